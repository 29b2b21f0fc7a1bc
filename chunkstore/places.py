"""Places a store can lie in: a folder, memory, an object store, a web server.

A *place* reads and writes whole objects and ranges of them by key. It knows nothing of arrays.
Local folders and memory need nothing installed; ``s3://``, ``gs://``, ``az://`` and ``http(s)://``
go through obstore, the extra ``cloud``. Errors and names never carry credentials.
"""

from __future__ import annotations

# ruff: noqa: D102 - what a method of a place does is said once, in Place
import errno
import itertools
import os
import re
import shutil
import stat
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np

from chunkstore.errors import ConfigError, FormatError, MissingDependencyError, UnsupportedError
from chunkstore.forks import new_rlock
from chunkstore.pool import DECODERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["Blob", "LocalPlace", "MemoryPlace", "ObjectPlace", "Place", "open_place"]

#: Times that a write begins anew where others sweep away what is not finished.
_SWEPT: Final = 5
#: What says that a store is complete: on the disk before it counts, and after everything that it names.
ROOT: Final = "zarr.json"
#: Directory for files that are being written; gone once the store is finished.
PARTIAL: Final = ".partial"
#: A pipe is opened without waiting for whoever might write into it.
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)
_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]+)://")
_REMOTE: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "azure", "adl", "abfs", "abfss", "http", "https"})
_SECRET: Final = re.compile(
    r"key|secret|token|password|credential|sas|signature|authorization", re.IGNORECASE
)
_ALIASES: Final = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "endpoint_url": "endpoint",
    "anon": "skip_signature",
}

#: What every place passes through as it is opened; empty but in tests (see ``chunkstore.testing``).
WRAPPERS: Final[list[Callable[[Place], Place]]] = []


class Place(ABC):
    """Objects by key, such as ``"x/c/0"``. Objects that are missing read as None."""

    url: str
    """Where it is, without credentials: fit for messages and logs."""
    kind: str
    """``local``, ``memory``, ``object`` or ``http``."""
    read_only: bool = False

    @property
    def is_remote(self) -> bool:
        """Whether each read waits for a network."""
        return self.kind in ("object", "http")

    @abstractmethod
    def get(self, key: str, most: int | None = None) -> bytes | None:
        """Return a whole object, or None where there is none.

        Raises
        ------
        FormatError
            If it has more than ``most`` bytes, or is something that is no file; nothing is read then.
        """

    def _check_size(self, key: str, size: int, most: int | None) -> None:
        if most is not None and size > most:
            raise FormatError(
                f"store {self.url}: {key} has {size:,} bytes, more than the {most:,} that it may"
            )

    @abstractmethod
    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        """Return the bytes of half-open ranges; fewer where the object ends sooner.

        Raises
        ------
        FileNotFoundError
            If there is no object of that key.
        """

    def read_into(self, key: str, start: int, buffers: Sequence[NDArray[np.uint8]]) -> int:
        """Fill buffers, one after the other, with what stands from ``start`` on; return the bytes read.

        They are fewer than the buffers hold where the object ends sooner.

        Raises
        ------
        FileNotFoundError
            If there is no object of that key.
        """
        sizes = [len(b) for b in buffers]
        data = memoryview(self.get_ranges(key, [(start, start + sum(sizes))])[0])
        at = 0
        for buffer, size in zip(buffers, sizes, strict=True):
            part = data[at : at + size]
            buffer[: len(part)] = np.frombuffer(part, np.uint8) if len(part) else 0
            at += len(part)
        return at

    @abstractmethod
    def blob(self, key: str, tail: int) -> Blob | None:
        """Open an object for many reads and return it with its last ``tail`` bytes, or None."""

    def get_tail(self, key: str, length: int) -> tuple[bytes, int] | None:
        """Return (the last ``length`` bytes or fewer, size of the object), or None where there is none."""
        found = self.blob(key, length)
        return None if found is None else (found.tail, found.size)

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None where there is none."""

    @abstractmethod
    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Write an object at once: a reader sees all of it or nothing."""

    def put_parts(self, key: str, parts: Sequence[bytes]) -> None:
        """Write an object that comes in parts, which stand one after the other; like :meth:`put`."""
        self.put(key, b"".join(parts))

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object, if there is one."""

    @abstractmethod
    def walk(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield (key, size) of all objects below ``prefix``, sorted."""

    @abstractmethod
    def zarr_store(self) -> Any:
        """Return a zarr store over the same objects, read-only."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is nothing here yet."""

    @abstractmethod
    def clear(self, keep: str | None = None) -> None:
        """Remove everything here but the object ``keep``."""

    def settle(self, *names: str) -> None:  # noqa: B027 - only some places have anything to do
        """Return when what was written, below ``names`` or everywhere, would outlive a loss of power."""

    def sweep(self) -> None:  # noqa: B027 - only some places have anything to do
        """Remove what writers that were killed have left behind."""

    def sweep_object(self, key: str) -> None:  # noqa: B027 - only some places have anything to do
        """Remove what writers of this object that were killed have left behind."""

    def check_key(self, key: str) -> None:  # noqa: B027 - only some places have links
        """Refuse a key that leads out of the store.

        Raises
        ------
        FormatError
            If it does.
        """

    def close(self) -> None:  # noqa: B027 - only some places have anything to do
        """Let go of whatever is held open."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


@dataclass(frozen=True, slots=True)
class Blob:
    """An object that is read many times."""

    place: Place
    key: str
    size: int
    """In bytes."""
    tail: bytes
    """Its last bytes, as many as were asked for or as there are."""

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        """Return the bytes of half-open ranges."""
        return self.place.get_ranges(self.key, ranges)

    def read_into(self, start: int, buffers: Sequence[NDArray[np.uint8]]) -> int:
        """Fill buffers with what stands from ``start`` on: see :meth:`Place.read_into`."""
        return self.place.read_into(self.key, start, buffers)


class _Handle:
    """A file descriptor that closes when the last thread that reads through it lets go."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class _Handles:
    """The files most recently read, over all stores of the process: a bounded number stays open."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lock = new_rlock()
        #: tokens to forget; what is met as garbage while the lock is held is forgotten a moment later
        self.late: list[int] = []
        self.open: OrderedDict[tuple[int, str], _Handle] = OrderedDict()

    def find(self, token: int, key: str) -> _Handle | None:
        with self.lock:
            self._forget_late()
            handle = self.open.get((token, key))
            if handle is not None and (token, key) in self.open:
                self.open.move_to_end((token, key))
            return handle

    def remember(self, token: int, key: str, handle: _Handle) -> None:
        with self.lock:
            self._forget_late()
            self.open[(token, key)] = handle
            while len(self.open) > self.limit:
                self.open.popitem(last=False)

    def forget(self, token: int) -> None:
        self.late.append(token)
        if not self.lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - no other way to tell
            with self.lock:
                self._forget_late()

    def _forget_late(self) -> None:
        while self.late:
            token = self.late.pop()
            for key in [k for k in list(self.open) if k[0] == token]:
                self.open.pop(key, None)


_HANDLES: Final = _Handles(128)
_TOKENS: Final = itertools.count()


class LocalPlace(Place):
    """A folder.

    Examples
    --------
    >>> import tempfile
    >>> place = LocalPlace(tempfile.mkdtemp())
    >>> place.put("x/c/0", b"abcd")
    >>> place.get("x/c/0"), place.get_tail("x/c/0", 2), list(place.walk())
    (b'abcd', (b'cd', 4), [('x/c/0', 4)])
    """

    kind = "local"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.url = os.fspath(path)
        self.root = os.path.realpath(self.url)
        self._token = next(_TOKENS)

    def path(self, key: str) -> str:
        """Return the path of an object, refusing keys and links that lead out of the store."""
        path = os.path.join(self.root, *key.split("/"))  # noqa: PTH118 - hot; pathlib costs 10 times
        real = os.path.realpath(path)
        if real != path:
            raise FormatError(
                f"store {self.url}: {key!r} is a symbolic link or leads out of the store; "
                "links inside a store are refused, copy the object instead"
            )
        return path

    def _open(self, key: str) -> _Handle:
        """Open an object; a pipe, which somebody may have laid there, would never open or never end."""
        handle = _Handle(os.open(self.path(key), os.O_RDONLY | _NO_WAIT))
        mode = os.fstat(handle.fd).st_mode
        if stat.S_ISDIR(mode):
            raise FileNotFoundError(2, "is a folder, not an object", f"{self.url}/{key}")
        if not stat.S_ISREG(mode):
            raise FormatError(f"store {self.url}: {key!r} is a pipe, a device or the like, not a file")
        return handle

    def get(self, key: str, most: int | None = None) -> bytes | None:
        try:
            handle = self._open(key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        size = os.fstat(handle.fd).st_size
        self._check_size(key, size, most)
        return bytes(_pread(handle.fd, 0, size))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        handle = self._handle(key)
        return [_pread(handle.fd, start, stop - start) for start, stop in ranges]

    def _handle(self, key: str) -> _Handle:
        """Return an open file; it stays open while the caller holds it."""
        handle = _HANDLES.find(self._token, key)
        if handle is None:
            handle = self._open(key)
            _HANDLES.remember(self._token, key, handle)
        return handle

    def read_into(self, key: str, start: int, buffers: Sequence[NDArray[np.uint8]]) -> int:
        if not hasattr(os, "preadv"):
            return super().read_into(key, start, buffers)
        handle = self._handle(key)
        views: list[Any] = list(buffers)
        return os.preadv(handle.fd, views, start)

    def close(self) -> None:
        _HANDLES.forget(self._token)

    def blob(self, key: str, tail: int) -> Blob | None:
        try:
            handle = self._open(key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        size = os.fstat(handle.fd).st_size
        start = max(0, size - tail)
        _HANDLES.remember(self._token, key, handle)
        return Blob(self, key, size, bytes(_pread(handle.fd, start, size - start)))

    def size(self, key: str) -> int | None:
        try:
            return Path(self.path(key)).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self.put_parts(key, [data])

    def put_parts(self, key: str, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        target = Path(self.path(key))
        for left in reversed(range(_SWEPT)):
            try:
                self._put(key, target, parts)
                break
            except FileNotFoundError:  # somebody who has finished swept what was not renamed yet
                if not left:
                    raise

    def _put(self, key: str, target: Path, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        # Writers never share a partial file, nor has each a folder: folders cost more than small objects do
        partial = Path(f"{self.path(f'{PARTIAL}/{key}')}~{os.getpid()}-{threading.get_ident()}")
        try:
            _with_folder(partial, lambda: _write(partial, parts))
            if key == ROOT:
                _sync(str(partial))
        except OSError as error:
            error.filename = error.filename or self.root  # a write does not say where: which disk is full?
            raise
        _with_folder(target, lambda: partial.replace(target))
        if key == ROOT:
            _sync(self.root)

    def settle(self, *names: str) -> None:
        _sync(self.root)
        for base in [self.path(name) for name in names] or [self.root]:
            for folder, _, files in os.walk(base):
                _sync(folder)
                for low in range(0, len(files), 1024):  # a million shards are not in memory at once
                    some = (os.path.join(folder, f) for f in files[low : low + 1024])  # noqa: PTH118 - many
                    # side by side: a journal takes what waits for it at once
                    DECODERS.each(_sync, some)

    def delete(self, key: str) -> None:
        Path(self.path(key)).unlink(missing_ok=True)

    def walk(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        base = Path(self.path(prefix)) if prefix else Path(self.root)
        found = []
        for folder, _, files in os.walk(base):
            for name in files:
                path = Path(folder, name)
                key = path.relative_to(self.root).as_posix()
                if not key.startswith(PARTIAL + "/"):
                    found.append((key, path.lstat().st_size))
        yield from sorted(found)

    def zarr_store(self) -> Any:
        from zarr.storage import LocalStore

        return LocalStore(self.root, read_only=True)

    def is_empty(self) -> bool:
        try:
            with os.scandir(self.root) as entries:
                # what a writer leaves that was killed in its very first write is nothing, too
                return all(entry.name == PARTIAL for entry in entries)
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return False

    def clear(self, keep: str | None = None) -> None:
        root = Path(self.root)
        if not root.exists():
            return
        if not root.is_dir():
            raise ConfigError(f"{self.url} is a file; a store is a folder")
        for entry in root.iterdir():
            if entry.name == keep:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def sweep(self) -> None:
        shutil.rmtree(self.path(PARTIAL), ignore_errors=True)

    def check_key(self, key: str) -> None:
        self.path(key)

    def sweep_object(self, key: str) -> None:
        place, name = os.path.split(self.path(f"{PARTIAL}/{key}"))
        try:
            with os.scandir(place) as entries:  # a handful: those that are being written now
                left = [entry.path for entry in entries if entry.name.startswith(name + "~")]
        except (FileNotFoundError, NotADirectoryError):
            return
        for path in left:
            Path(path).unlink(missing_ok=True)


def _with_folder(path: Path, call: Callable[[], object]) -> None:
    """Do what needs the folder of ``path``, which is made only where it turns out to be missing."""
    try:
        call()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        call()


def _write(path: Path, parts: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write a file of some parts; long ones go to the system as they are, joined nowhere."""
    with path.open("wb") as file:
        file.writelines(parts)


def _sync(path: str) -> None:
    """Have a file or folder written to its disk; where a file system knows no such thing, nothing happens."""
    if os.name == "nt":  # pragma: no cover - syncs only what is open for writing
        return
    try:
        handle = os.open(path, os.O_RDONLY | _NO_WAIT)
    except FileNotFoundError:  # swept away meanwhile
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(handle)


def _pread(handle: int, start: int, length: int) -> bytes | memoryview:
    """Return up to ``length`` bytes from ``start``; one call, or a few where the system gives less."""
    data = os.pread(handle, length, start)
    if len(data) == length or not data:
        return data
    parts, got = [data], len(data)
    while got < length:
        data = os.pread(handle, length - got, start + got)
        if not data:
            break
        parts.append(data)
        got += len(data)
    return b"".join(parts)


class MemoryPlace(Place):
    """Objects of this process, by name: ``memory://name``. Another process sees another memory.

    Examples
    --------
    >>> MemoryPlace("demo").put("a", b"12")
    >>> MemoryPlace("demo").get("a")
    b'12'
    """

    kind = "memory"
    _all: Final[dict[str, dict[str, bytes]]] = {}

    def __init__(self, name: str) -> None:
        self.url = f"memory://{name}"
        self.objects = self._all.setdefault(name, {})

    def get(self, key: str, most: int | None = None) -> bytes | None:
        data = self.objects.get(key)
        self._check_size(key, len(data or b""), most)
        return data

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        data = self.objects.get(key)
        if data is None:
            raise FileNotFoundError(key)
        view = memoryview(data)
        return [view[start:stop] for start, stop in ranges]

    def blob(self, key: str, tail: int) -> Blob | None:
        data = self.objects.get(key)
        return None if data is None else Blob(self, key, len(data), data[max(0, len(data) - tail) :])

    def size(self, key: str) -> int | None:
        data = self.objects.get(key)
        return None if data is None else len(data)

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self.objects[key] = bytes(data)

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def walk(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        start = prefix and prefix.rstrip("/") + "/"
        # a copy, here and below: other threads may write meanwhile
        yield from ((k, len(v)) for k, v in sorted(self.objects.copy().items()) if k.startswith(start))

    def zarr_store(self) -> Any:
        from zarr.core.buffer import cpu
        from zarr.storage import MemoryStore

        return MemoryStore(
            {k: cpu.Buffer.from_bytes(v) for k, v in self.objects.copy().items()}, read_only=True
        )

    def is_empty(self) -> bool:
        return not self.objects

    def clear(self, keep: str | None = None) -> None:
        for key in [k for k in self.objects.copy() if k != keep]:
            self.objects.pop(key, None)


class ObjectPlace(Place):
    """A prefix of an object store, or of a web server, through obstore."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.url = redact_url(url)
        self.kind = "http" if url.startswith(("http://", "https://")) else "object"
        self.read_only = self.kind == "http"
        options = dict(storage_options or {})
        self._secrets = _secrets(url, options)
        try:
            from obstore.store import from_url
        except ImportError:
            raise MissingDependencyError(
                f"{self.url} needs obstore: pip install 'chunkstore[cloud]'"
            ) from None
        special: dict[str, Any] = {
            k: options.pop(k) for k in ("client_options", "retry_config") if k in options
        }
        if "credential_provider" in options:
            special["credential_provider"] = options.pop("credential_provider")
        config = {
            _ALIASES.get(k, k): str(v).lower() if isinstance(v, bool) else v for k, v in options.items()
        }
        if str(config.get("endpoint", "")).startswith("http://") or url.startswith("http://"):
            special["client_options"] = {"allow_http": True, **special.get("client_options", {})}
        if self.kind == "http":
            special.pop("credential_provider", None)
            call: dict[str, Any] = {**special, **config}
        else:
            call = {**special, "config": config} if config else special
        try:
            self.store: Any = from_url(re.sub("^gcs://", "gs://", url.rstrip("/")), **call)
        except Exception as err:
            raise ConfigError(f"{self.url} cannot be used: {self._clean(err)}") from None

    def _clean(self, err: BaseException) -> str:
        text = str(err).split("\n\nDebug source:")[0]
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:500]

    def _failed(self, key: str, err: Exception) -> Exception:
        return OSError(f"{self.url}: object {key!r} cannot be reached: {self._clean(err)}")

    def get(self, key: str, most: int | None = None) -> bytes | None:
        try:
            found = self.store.get(key)  # the head of the answer; its body comes below
            self._check_size(key, int(found.meta["size"]), most)
            return bytes(found.bytes())
        except FileNotFoundError:
            return None
        except FormatError:
            raise
        except Exception as err:
            raise self._failed(key, err) from None

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        wanted = [(a, b) for a, b in ranges if b > a]
        try:
            found = self.store.get_ranges(key, starts=[a for a, _ in wanted], ends=[b for _, b in wanted])
        except FileNotFoundError:
            raise FileNotFoundError(key) from None
        except Exception as err:
            raise self._failed(key, err) from None
        parts = iter(found)
        return [memoryview(next(parts)) if b > a else b"" for a, b in ranges]

    def blob(self, key: str, tail: int) -> Blob | None:
        size = self.size(key)
        if size is None:
            return None
        start = max(0, size - tail)
        return Blob(self, key, size, bytes(self.get_ranges(key, [(start, size)])[0]))

    def size(self, key: str) -> int | None:
        try:
            return int(self.store.head(key)["size"])
        except FileNotFoundError:
            return None
        except Exception as err:
            raise self._failed(key, err) from None

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        if self.read_only:
            raise UnsupportedError(f"{self.url} is read-only; write to a folder or an object store")
        try:
            self.store.put(key, bytes(data))
        except Exception as err:
            raise self._failed(key, err) from None

    def delete(self, key: str) -> None:
        if self.read_only:
            raise UnsupportedError(f"{self.url} is read-only")
        try:
            self.store.delete(key)
        except FileNotFoundError:
            return
        except Exception as err:
            raise self._failed(key, err) from None

    def walk(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        if self.kind == "http":
            raise UnsupportedError(f"{self.url}: a web server cannot list its objects")
        try:
            found = [
                (str(item["path"]), int(item["size"]))
                for batch in self.store.list(prefix or None)
                for item in batch
            ]
        except Exception as err:
            raise self._failed(prefix, err) from None
        yield from sorted(found)

    def zarr_store(self) -> Any:
        from zarr.storage import ObjectStore

        return ObjectStore(self.store, read_only=True)

    def is_empty(self) -> bool:
        try:
            return not any(len(batch) for batch in self.store.list(None, chunk_size=1))
        except Exception as err:
            raise self._failed("", err) from None

    def clear(self, keep: str | None = None) -> None:
        keys = [key for key, _ in self.walk() if key != keep]
        try:
            for at in range(0, len(keys), 1000):
                self.store.delete(keys[at : at + 1000])
        except Exception as err:
            raise self._failed("", err) from None


def redact_url(url: str) -> str:
    """Return a URL without user, password and query: what may stand in a message.

    Examples
    --------
    >>> redact_url("https://me:pw@host/a.zarr?sig=abc")
    'https://host/a.zarr'
    """
    parts = urlsplit(url)
    container = parts.scheme in ("abfs", "abfss") and ":" not in parts.netloc.rpartition("@")[0]
    host = parts.netloc if container else parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _secrets(url: str, options: Mapping[str, Any]) -> list[str]:
    """Return the texts that must not appear in any message, longest first."""
    parts = urlsplit(url)
    found = {parts.query, parts.password or ""}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}", inner)
        elif isinstance(value, str) and _SECRET.search(name):
            found.add(value)

    walk("", dict(options))
    return sorted((s for s in found if len(s) >= 3), key=len, reverse=True)


def open_place(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Place:
    """Return the place that a path or URL names; nothing is read yet.

    Raises
    ------
    ConfigError
        If the scheme is unknown, or options are given where none can be used.
    MissingDependencyError
        If the place needs the extra ``cloud``.

    Examples
    --------
    >>> open_place("memory://a").kind, open_place("/tmp/a.zarr").kind
    ('memory', 'local')
    """
    place = _place_of(os.fspath(url), storage_options)
    for wrap in WRAPPERS:
        place = wrap(place)
    return place


def _place_of(text: str, storage_options: Mapping[str, Any] | None) -> Place:
    if not text.strip():
        raise ConfigError("the path of a store is empty; name a folder or a URL")
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else "file"
    if scheme in _REMOTE:
        return ObjectPlace(text, storage_options)
    if storage_options:
        raise ConfigError(f"storage_options are for remote places; {text!r} takes none")
    if scheme == "memory":
        return MemoryPlace(text.partition("://")[2].strip("/"))
    if scheme == "file":
        path = unquote(text[len(found[0]) :].removeprefix("localhost")) if found else text
        return LocalPlace(path)
    raise ConfigError(
        f"{redact_url(text)!r}: scheme {scheme!r} is none of file, memory, {', '.join(sorted(_REMOTE))}"
    )

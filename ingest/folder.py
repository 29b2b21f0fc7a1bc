"""A folder of small named objects, local or in an object store: where ledger and scratch live.

Every ``put`` is whole or not there (a rename, or the object store's own guarantee). Names are
relative, with ``/``. Nothing here knows what the objects mean.
"""

# paths are strings here: they travel to workers, fsspec and object stores
# ruff: noqa: PTH100, PTH103, PTH105, PTH108, PTH113, PTH114, PTH116, PTH118, PTH120

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import numpy as np

from chunkstore.errors import IngestError
from chunkstore.places import ObjectPlace
from ingest.inputs import is_url, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["Folder", "LocalFolder", "RemoteFolder", "open_folder"]

#: What every folder passes through as it is opened; empty but in tests (see ``ingest.testing``).
WRAPPERS: Final[list[Callable[[Folder], Folder]]] = []


class Folder(Protocol):
    """What ledger and scratch need of a place."""

    url: str

    def put(self, name: str, data: bytes) -> None:
        """Write an object whole, in place of one that is there."""

    def put_stream(self, name: str, pieces: Iterable[Any]) -> int:
        """Write an object whole from buffers that come one by one; return its bytes."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object only if there is none of that name; return whether it was written."""

    def get(self, name: str) -> bytes:
        """Return an object, or raise ``FileNotFoundError``."""

    def array(self, name: str, offset: int, dtype: np.dtype[Any], count: int) -> np.ndarray:
        """Return ``count`` values that begin at byte ``offset``, read only when touched where local."""

    def size(self, name: str) -> int | None:
        """Bytes of an object; ``None`` if there is none."""

    def age(self, name: str) -> float | None:
        """Seconds since an object was written, by the place's clock; ``None`` if there is none."""

    def names(self, prefix: str = "") -> Iterator[str]:
        """Names of all objects under ``prefix``, sorted."""

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none."""

    def delete_all(self, prefix: str = "") -> None:
        """Remove every object under ``prefix``, and the emptied folders."""


class LocalFolder:
    """A directory.

    Examples
    --------
    >>> folder = LocalFolder(tempfile.mkdtemp())
    >>> folder.put("a/b", b"12"), folder.create("a/b", b"3"), folder.get("a/b")
    (None, False, b'12')
    >>> list(folder.names()), folder.size("a/b"), folder.size("a/c")
    (['a/b'], 2, None)
    """

    def __init__(self, url: str) -> None:
        self.url = os.path.abspath(local_path(url))
        self._root = os.path.realpath(self.url)

    def _path(self, name: str) -> str:
        """Return the path of an object. Links laid inside would lead what we write elsewhere."""
        path = self._root
        for step in name.split("/"):
            path = os.path.join(path, step)
            if step in {"", ".", ".."} or os.path.islink(path):
                raise IngestError(
                    f"{self.url}/{name} is a symbolic link or lies behind one; remove it, or start anew with "
                    "--overwrite"
                )
        return path

    def _open(self, name: str) -> BinaryIO:
        """Open a file to read it; a pipe, which would never open or never end, is none."""
        handle = os.open(self._path(name), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise IngestError(f"{self.url}/{name} is not a file; remove it, or start anew with --overwrite")
        return os.fdopen(handle, "rb")

    def put(self, name: str, data: bytes) -> None:
        """Write an object whole, in place of one that is there."""
        self.put_stream(name, [data])

    def put_stream(self, name: str, pieces: Iterable[Any]) -> int:
        """Write an object whole from buffers that come one by one; return its bytes."""
        path = self._path(name)
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".part-")
        total = 0
        try:
            with os.fdopen(handle, "wb") as out:
                for piece in pieces:
                    total += out.write(piece)
            os.replace(temporary, path)
        except BaseException as error:
            Path(temporary).unlink(missing_ok=True)
            if isinstance(error, IsADirectoryError):
                raise IngestError(
                    f"{self.url}/{name} is a folder, where a file is to be; remove it"
                ) from error
            if isinstance(error, OSError) and error.filename is None:
                error.filename = folder  # a write does not say where: which disk is full?
            raise
        return total

    def create(self, name: str, data: bytes) -> bool:
        """Write an object only if there is none of that name; return whether it was written."""
        path = self._path(name)
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(data)
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            Path(temporary).unlink(missing_ok=True)
        return True

    def get(self, name: str) -> bytes:
        """Return an object, or raise ``FileNotFoundError``."""
        with self._open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """Open an object to read it, or raise ``FileNotFoundError``."""
        return self._open(name)

    def array(self, name: str, offset: int, dtype: np.dtype[Any], count: int) -> np.ndarray:
        """Return ``count`` values that begin at byte ``offset``, read only when touched."""
        if count == 0:
            return np.empty(0, dtype)
        return np.memmap(self._path(name), dtype=dtype, mode="r", offset=offset, shape=(count,))

    def size(self, name: str) -> int | None:
        """Bytes of an object; ``None`` if there is none."""
        try:
            return os.stat(self._path(name)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def age(self, name: str) -> float | None:
        """Seconds since an object was written, by the clock of the file system."""
        try:
            written = os.stat(self._path(name)).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None
        handle, probe = tempfile.mkstemp(dir=self.url, prefix=".part-")
        os.close(handle)
        now = os.stat(probe).st_mtime
        Path(probe).unlink(missing_ok=True)
        return max(0.0, now - written)

    def names(self, prefix: str = "") -> Iterator[str]:
        """Names of all objects under ``prefix``, sorted."""
        root = self._path(prefix) if prefix else self.url
        if os.path.isfile(root):
            yield prefix
            return
        hits: list[str] = []
        for folder, _, files in os.walk(root):
            relative = os.path.relpath(folder, self.url).replace(os.sep, "/")
            start = "" if relative == "." else relative + "/"
            hits.extend(start + f for f in files if not f.startswith(".part-"))
        yield from sorted(hits)

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none."""
        Path(self.url, *name.split("/")).unlink(missing_ok=True)  # a link itself, not what it leads to

    def delete_all(self, prefix: str = "") -> None:
        """Remove every object under ``prefix``, and the emptied folders."""
        path = os.path.join(self.url, *prefix.split("/")) if prefix else self.url
        if os.path.islink(path):
            os.unlink(path)
        else:
            shutil.rmtree(path, ignore_errors=True)


class RemoteFolder:
    """A prefix of an object store, through obstore."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        place = ObjectPlace(url, storage_options)
        import obstore

        self.url = place.url.rstrip("/")
        self._obs = obstore
        self._store = place.store

    def put(self, name: str, data: bytes) -> None:
        """Write an object whole, in place of one that is there."""
        self._obs.put(self._store, name, data)

    def put_stream(self, name: str, pieces: Iterable[Any]) -> int:
        """Write an object whole from buffers that come one by one; return its bytes."""
        total = 0

        def counted() -> Iterator[bytes]:
            nonlocal total
            for piece in pieces:
                data = bytes(piece)
                total += len(data)
                yield data

        self._obs.put(self._store, name, counted())
        return total

    def create(self, name: str, data: bytes) -> bool:
        """Write an object only if there is none of that name; return whether it was written."""
        from obstore.exceptions import AlreadyExistsError

        try:
            self._obs.put(self._store, name, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def get(self, name: str) -> bytes:
        """Return an object, or raise ``FileNotFoundError``."""
        return bytes(self._obs.get(self._store, name).bytes())

    def array(self, name: str, offset: int, dtype: np.dtype[Any], count: int) -> np.ndarray:
        """Return ``count`` values that begin at byte ``offset``: one ranged read."""
        if count == 0:
            return np.empty(0, dtype)
        data = self._obs.get_range(self._store, name, start=offset, length=count * dtype.itemsize)
        return np.frombuffer(bytes(data), dtype=dtype)

    def _head(self, name: str) -> Any:
        try:
            return self._obs.head(self._store, name)
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int | None:
        """Bytes of an object; ``None`` if there is none."""
        head = self._head(name)
        return None if head is None else int(head["size"])

    def age(self, name: str) -> float | None:
        """Seconds since an object was written, by the object store's clock."""
        head = self._head(name)
        if head is None:
            return None
        probe = ".clock"
        self._obs.put(self._store, probe, b"")
        now = self._head(probe)
        self.delete(probe)
        return max(0.0, (now["last_modified"] - head["last_modified"]).total_seconds()) if now else 0.0

    def names(self, prefix: str = "") -> Iterator[str]:
        """Names of all objects under ``prefix``, sorted."""
        hits: list[str] = []
        for page in self._obs.list(self._store, prefix or None):
            hits.extend(entry["path"] for entry in page)
        yield from sorted(hits)

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none."""
        try:
            self._obs.delete(self._store, name)
        except FileNotFoundError:
            return

    def delete_all(self, prefix: str = "") -> None:
        """Remove every object under ``prefix``."""
        names = list(self.names(prefix))
        for start in range(0, len(names), 1000):
            self._obs.delete(self._store, names[start : start + 1000])


def open_folder(url: str, storage_options: Mapping[str, Any] | None = None) -> Folder:
    """Open a folder by path or URL; nothing is made until something is put."""
    folder: Folder = RemoteFolder(url, storage_options) if is_url(url) else LocalFolder(url)
    for wrap in WRAPPERS:
        folder = wrap(folder)
    return folder

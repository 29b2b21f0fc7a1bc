"""Bytes of an input at an offset, local through ``pread``, anything else through fsspec ranges.

Nothing is mapped into memory: a file that shrinks while it is read gives short reads, which are
faults, where a mapping would end the process.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, Protocol, Self

from ingest.remote import latest_info, stamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["Input", "open_input"]


class Input(Protocol):
    """An input that answers ranges."""

    url: str
    size: int
    identity: str
    remote: bool

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Closing:
    def close(self) -> None:
        """Give back what is held."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LocalInput(_Closing):
    """A file of this machine."""

    remote = False

    def __init__(self, path: str) -> None:
        self.url = path
        # not to wait for what is no file: a pipe may never open
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
        state = os.fstat(self._fd)
        if not stat.S_ISREG(state.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "it is no regular file", path)
        self.size = state.st_size
        self.identity = f"{state.st_size}:{state.st_mtime_ns}"

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end."""
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        data = os.pread(self._fd, length, offset)
        while len(data) < length:  # a signal, or more than 2 GiB at once
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self


class RemoteInput(_Closing):
    """Anything that fsspec opens; each read is one range request."""

    remote = True

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        import fsspec

        self.url = url
        self._fs, self._path = fsspec.url_to_fs(url, **dict(storage_options or {}))
        info = latest_info(self._fs, self._path)
        self.size = int(info["size"])
        self.identity = f"{self.size}:{stamp(info)}"

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end."""
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        return bytes(self._fs.cat_file(self._path, start=offset, end=offset + length))

    def __enter__(self) -> Self:
        return self


def open_input(url: str, storage_options: Mapping[str, Any] | None = None) -> Input:
    """Open a path or URL.

    Raises
    ------
    OSError
        If there is nothing to open.
    """
    if "://" not in url:
        return LocalInput(url)
    if url.startswith("file://"):
        return LocalInput(url[len("file://") :])
    return RemoteInput(url, storage_options)

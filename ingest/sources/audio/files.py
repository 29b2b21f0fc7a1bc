"""Opening inputs, local or behind fsspec, and telling whether they are still what was scanned."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["identity", "is_remote", "local_copy", "open_input", "size_of"]


def is_remote(file: str) -> bool:
    """Whether a name is a URL rather than a local path.

    Examples
    --------
    >>> is_remote("s3://bucket/a.wav"), is_remote("a/b.wav"), is_remote("file:///a.wav")
    (True, False, False)
    """
    return "://" in file and not file.startswith("file://")


def _path(file: str) -> str:
    return file.removeprefix("file://")


def _info(file: str) -> dict[str, Any]:
    from ingest.remote import filesystem, latest_info

    return latest_info(*filesystem(file))


def size_of(file: str) -> int:
    """Bytes of an input; an OSError for what is no regular file (a folder, a pipe that never opens)."""
    if is_remote(file):
        return int(_info(file)["size"])
    status = os.stat(_path(file))  # noqa: PTH116 (one stat a file, of hundreds of thousands)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", file)
    return status.st_size


def identity(file: str) -> str:
    """Size and mtime of a local input, size and etag (or what there is) of a remote one."""
    if is_remote(file):
        from ingest.remote import stamp

        info = _info(file)
        return f"{info['size']}:{stamp(info)}"
    status = os.stat(_path(file))  # noqa: PTH116 (as above)
    return f"{status.st_size}:{status.st_mtime_ns}"


def open_input(file: str) -> IO[bytes]:
    """Open an input for reading; seekable."""
    if is_remote(file):
        from ingest.remote import filesystem

        system, path = filesystem(file)
        return cast("IO[bytes]", system.open(path, "rb"))
    return Path(_path(file)).open("rb")


@contextlib.contextmanager
def local_copy(file: str, alive: Callable[[], None] = lambda: None) -> Iterator[str]:
    """Give a local path of an input: itself, or a copy on disk for the time of the block.

    Decoders are C libraries that want a path and read it in their own way; a remote file is
    fetched once, in order, in bounded memory; ``alive`` is called as it comes.
    """
    if not is_remote(file):
        yield _path(file)
        return
    with tempfile.NamedTemporaryFile(prefix="chunkstore-audio-") as copy:
        with open_input(file) as source:
            while block := source.read(1 << 20):
                copy.write(block)
                alive()
        copy.flush()
        yield copy.name

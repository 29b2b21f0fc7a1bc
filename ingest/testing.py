"""Ledgers and scratch that fail on purpose: :mod:`chunkstore.testing` for the folders of an ingest.

Nothing here is used unless a test asks for it.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.testing import Faults, Mischief, remember
from ingest.folder import WRAPPERS, Folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["FaultyFolder", "break_folders"]


class FaultyFolder:
    """A folder whose calls fail now and then.

    Examples
    --------
    >>> import tempfile
    >>> from ingest.folder import LocalFolder
    >>> folder = FaultyFolder(LocalFolder(tempfile.mkdtemp()), Mischief(Faults(lying=1.0)))
    >>> folder.put("a", b"1234")
    >>> len(folder.get("a")) < 4, folder.mischief.told
    (True, [Fault(kind='lying', call='put', key='a')])
    """

    def __init__(self, inner: Folder, mischief: Mischief) -> None:
        self.inner = inner
        self.url = inner.url
        self.mischief = mischief

    def put(self, name: str, data: bytes) -> None:
        """Write an object, perhaps not all of it."""
        self.put_stream(name, [data])

    def put_stream(self, name: str, pieces: Iterable[Any]) -> int:
        """Write an object from buffers, perhaps not all of them; return the bytes that were given."""
        luck = self.mischief.begin("put", name)
        out = io.BytesIO()
        for piece in pieces:
            out.write(piece)
        data = out.getvalue()
        part = data[: int(next(luck) * len(data))]
        if self.mischief.happens("torn", "put", name, luck):
            self.inner.put(name, part)
            raise OSError(5, f"injected torn write of {name!r}")
        self.inner.put(name, part if self.mischief.happens("lying", "put", name, luck) else data)
        return len(data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object only if there is none of that name, or fail."""
        self.mischief.begin("put", name)
        return self.inner.create(name, data)

    def get(self, name: str) -> bytes:
        """Return an object, perhaps spoiled."""
        luck = self.mischief.begin("get", name)
        return self.mischief.spoil("get", name, self.inner.get(name), luck)

    def array(self, name: str, offset: int, dtype: np.dtype[Any], count: int) -> np.ndarray:
        """Return values, perhaps spoiled or fewer."""
        luck = self.mischief.begin("ranges", name)
        data = self.inner.array(name, offset, dtype, count).tobytes()
        data = self.mischief.spoil("ranges", name, data, luck)
        return np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)

    def size(self, name: str) -> int | None:
        """Bytes of an object, or fail."""
        self.mischief.begin("size", name)
        return self.inner.size(name)

    def age(self, name: str) -> float | None:
        """Seconds since an object was written."""
        return self.inner.age(name)

    def names(self, prefix: str = "") -> Iterator[str]:
        """Names of all objects under ``prefix``, or fail."""
        self.mischief.begin("walk", prefix)
        return self.inner.names(prefix)

    def delete(self, name: str) -> None:
        """Remove an object, or fail."""
        self.mischief.begin("delete", name)
        self.inner.delete(name)

    def delete_all(self, prefix: str = "") -> None:
        """Remove every object under ``prefix``."""
        self.inner.delete_all(prefix)


def break_folders(url: str, faults: Faults) -> None:
    """Let every ledger and scratch whose URL begins with ``url`` fail, until ``mend_storage()``.

    A dask worker is reached by ``client.run(break_folders, url, faults)``.

    Examples
    --------
    >>> from chunkstore.testing import mend_storage
    >>> break_folders("/nowhere", Faults(error=1.0))
    >>> mend_storage()
    []
    """
    mischief = Mischief(faults)

    def wrap(folder: Folder) -> Folder:
        return FaultyFolder(folder, mischief) if folder.url.startswith(url) else folder

    WRAPPERS.append(wrap)
    remember(WRAPPERS, wrap, mischief)

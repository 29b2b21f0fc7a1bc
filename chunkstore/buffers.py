"""Memory of batches that is used again as soon as nobody holds the batch any more.

A batch of some megabytes costs the system as much in fresh pages as it costs us in values. Memory
taken here comes back when the last array, tensor or view of it is gone, and serves the next batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["BatchBuffers"]

LEAST = 256 * 1024  # bytes; smaller arrays are served from the heap, which keeps its pages by itself


class BatchBuffers:
    """Hands out arrays that are not initialised, and keeps a few buffers that came back.

    Parameters
    ----------
    keep : int
        Buffers that may wait for their next use. A smaller array takes a buffer as it is, a larger one
        lets it go: one object serves batches of about one size.

    Notes
    -----
    Thread-safe: a list's ``append`` and ``pop`` are all that threads share.

    Examples
    --------
    >>> buffers = BatchBuffers()
    >>> first = buffers.empty((1024, 1024), "f4")
    >>> place, view = first.ctypes.data, first[3:]
    >>> del first
    >>> buffers.empty((1024, 1024), "f4").ctypes.data == place  # a view still holds it
    False
    >>> del view
    >>> buffers.empty((1024, 1024), "f4").ctypes.data == place
    True
    """

    def __init__(self, keep: int = 4) -> None:
        self.keep = keep
        self._free: list[_Buffer] = []

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return a C-contiguous array, its values not set."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size < LEAST:
            return np.empty(shape, kind)
        buffer = self._take(size)
        if buffer.shape != shape or buffer.kind != kind:
            buffer.serve(shape, kind)
        return np.asarray(_Lease(self, buffer))

    def _take(self, size: int) -> _Buffer:
        while True:
            try:
                buffer = self._free.pop()
            except IndexError:
                return _Buffer(size)
            if buffer.memory.nbytes >= size:  # the last batch of an epoch may be smaller
                return buffer

    def _back(self, buffer: _Buffer) -> None:
        if len(self._free) < self.keep:
            self._free.append(buffer)

    def clear(self) -> None:
        """Let go of what waits."""
        self._free.clear()

    def __reduce__(self) -> tuple[type[BatchBuffers], tuple[int]]:
        return BatchBuffers, (self.keep,)


class _Buffer:
    """Memory, and how it was last handed out: mostly the next time is like it."""

    __slots__ = ("interface", "kind", "memory", "shape")

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size, np.uint8)
        self.shape: tuple[int, ...] | None = None
        self.kind: np.dtype[Any] | None = None
        self.interface: dict[str, Any] = {}

    def serve(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
        self.shape, self.kind = shape, kind
        place = (self.memory.ctypes.data, False)
        self.interface = {"version": 3, "shape": shape, "typestr": kind.str, "data": place}


class _Lease:
    """What an array that was handed out stands on; gives the buffer back with its last holder."""

    __slots__ = ("__array_interface__", "_buffer", "_owner")

    def __init__(self, owner: BatchBuffers, buffer: _Buffer) -> None:
        self._owner, self._buffer = owner, buffer
        self.__array_interface__ = buffer.interface

    def __del__(self) -> None:
        self._owner._back(self._buffer)  # noqa: SLF001 - two halves of one thing

"""Where a decoded recording waits until it is known to be good: memory first, an unlinked file beyond that.

Nothing is left behind whoever is killed: neither the memory nor the file has a name. A decoder
process and its owner hold the same descriptors and read and write at stated offsets.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MEMORY", "Spool", "SpoolError"]

#: Bytes that a spool keeps in memory; the rest goes to disk. A minute at 48 kHz int16 is 5.8 MB.
MEMORY = 16 << 20


class SpoolError(OSError):
    """The spool can't be written, as a rule because the disk is full: no fault of the recording."""


class Spool:
    """Bytes written once from the start, then read at any offset.

    Examples
    --------
    >>> with Spool() as spool:
    ...     spool.rewind()
    ...     spool.write(np.arange(5, dtype=np.int16))
    ...     spool.read(1, 3, np.dtype(np.int16)).tolist()
    [1, 2]
    """

    def __init__(self, descriptors: tuple[int, int] | None = None) -> None:
        self.size = 0
        if descriptors is None:
            with tempfile.TemporaryFile(prefix="chunkstore-audio-") as file:
                disk = os.dup(file.fileno())
            make = getattr(os, "memfd_create", None)
            descriptors = (make("chunkstore-audio") if make else -1, disk)
            self._owned = True
        else:
            self._owned = False
        self._memory, self._disk = descriptors
        self._room = MEMORY if self._memory >= 0 else 0
        self.closed = False

    @property
    def descriptors(self) -> tuple[int, int]:
        """File descriptors of the memory (-1 where the system has none such) and of the file."""
        return self._memory, self._disk

    def rewind(self) -> None:
        """Forget what was written. Memory stays for the next recording, the file gives its space back."""
        if self.size > self._room or not self._room:
            os.ftruncate(self._disk, 0)
        self.size = 0

    def write(self, samples: NDArray[Any]) -> None:
        """Append samples.

        Raises
        ------
        SpoolError
            If there is no space left.
        """
        view = np.ascontiguousarray(samples).view(np.uint8).data
        try:
            while view:
                if self.size < self._room:
                    done = os.pwrite(self._memory, view[: self._room - self.size], self.size)
                else:
                    done = os.pwrite(self._disk, view, self.size - self._room)
                self.size += done
                view = view[done:]
        except OSError as err:
            folder = tempfile.gettempdir()
            raise SpoolError(err.errno, f"decoded samples can't be written: {err.strerror}", folder) from err

    def read(self, start: int, stop: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return samples [start, stop) of ``dtype``, as they were written by either side."""
        out = np.empty(stop - start, dtype)
        view, offset = out.view(np.uint8).data, start * dtype.itemsize
        while view:
            if offset < self._room:
                done = os.preadv(self._memory, [view[: self._room - offset]], offset)
            else:
                done = os.preadv(self._disk, [view], offset - self._room)
            if not done:
                raise SpoolError(f"the spool of decoded samples ends {len(view)} bytes early")
            offset, view = offset + done, view[done:]
        return out

    def close(self) -> None:
        """Let go of memory and file."""
        if self._owned and not self.closed:
            for descriptor in self.descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

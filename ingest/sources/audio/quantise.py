"""From float32 to what is stored, counting what does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Samples = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["FULL_SCALE", "Quantiser", "clean"]

#: The integer that stands for 1.0: int16 audio is a fraction of this.
FULL_SCALE = 32768


def clean(block: Samples) -> tuple[Samples, int]:
    """Replace NaN and infinities by 0 and count them (in samples of the source, before any filter)."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(block.sum()):  # one pass without a copy; what is no number makes the sum none
            return block, 0
    good = np.isfinite(block)
    bad = block.size - int(np.count_nonzero(good))
    return (np.where(good, block, np.float32(0)) if bad else block), bad


class Quantiser:
    """Rounds to int16 (halves to even) after clipping, or passes float32 on; counts and peak on the way.

    Examples
    --------
    >>> q = Quantiser("int16")
    >>> q.push(np.array([0.0, 0.5, -1.0, 1.1], np.float32)).tolist(), q.clipped
    ([0, 16384, -32768, 32767], 1)
    """

    def __init__(self, dtype: str) -> None:
        self._int = dtype == "int16"
        self.clipped, self.peak = 0, 0.0

    def push(self, block: Samples) -> np.ndarray[Any, Any]:
        """Take finite float32[n], give int16[n] or float32[n].

        A sample is counted as clipped where it rounds to more than int16 holds (beyond full scale for
        float32, which keeps it).
        """
        if not len(block):
            return np.zeros(0, np.int16 if self._int else np.float32)
        self.peak = max(self.peak, float(block.max()), -float(block.min()))
        if not self._int:
            if self.peak > 1:
                self.clipped += int(np.count_nonzero(np.abs(block) > 1))
            return block
        scaled = block * np.float32(FULL_SCALE)
        np.rint(scaled, out=scaled)
        if self.peak * FULL_SCALE >= FULL_SCALE - 0.5:
            self.clipped += int(np.count_nonzero((scaled > FULL_SCALE - 1) | (scaled < -FULL_SCALE)))
            np.clip(scaled, -FULL_SCALE, FULL_SCALE - 1, out=scaled)
        out: np.ndarray[Any, Any] = scaled.astype(np.int16)
        return out

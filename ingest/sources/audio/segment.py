"""Where a recording is cut into sequences, and which stretches of it are silence. Pure arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SILENCE_STEP", "overlaps", "peaks", "segments", "silent_ranges"]

#: Seconds of the steps in which silence is looked for.
SILENCE_STEP = 0.1


def segments(rows: int, length: int | None) -> list[tuple[int, int]]:
    """Cut ``rows`` samples into half-open ranges of ``length``; the last may be shorter.

    Examples
    --------
    >>> segments(10, 4), segments(10, None), segments(0, 4)
    ([(0, 4), (4, 8), (8, 10)], [(0, 10)], [(0, 0)])
    """
    if length is None or rows == 0:
        return [(0, rows)]
    return [(start, min(start + length, rows)) for start in range(0, rows, length)]


def peaks(block: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the largest absolute value of each ``step`` samples (the last may be shorter), float64."""
    if not len(block):
        return np.zeros(0)
    # negated in float64: the absolute of int16's lowest value is no int16
    high = np.maximum.reduceat(block, np.arange(0, len(block), step)).astype(np.float64)
    low = np.minimum.reduceat(block, np.arange(0, len(block), step)).astype(np.float64)
    return np.maximum(high, -low)


def silent_ranges(
    peak: np.ndarray[Any, Any], level: float, step: int, shortest: int, rows: int
) -> list[tuple[int, int]]:
    """Return half-open ranges of samples in which nothing reaches ``level``.

    Parameters
    ----------
    peak : ndarray
        float64[steps], as :func:`peaks` gives it.
    level : float
        In the unit of ``peak``.
    step, shortest, rows : int
        Samples of a step, of the shortest range that counts, of the recording.

    Examples
    --------
    >>> silent_ranges(np.array([0.0, 0.0, 9.0, 0.0]), 1.0, 10, 15, 35)
    [(0, 20)]
    """
    quiet = np.concatenate([[False], peak < level, [False]])
    edges = np.flatnonzero(quiet[1:] != quiet[:-1]) * step
    found = zip(edges[::2].tolist(), np.minimum(edges[1::2], rows).tolist(), strict=True)
    return [(start, stop) for start, stop in found if stop - start >= shortest]


def overlaps(ranges: Iterable[tuple[int, int]], start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """Return what of the ranges lies in [start, stop), counted from ``start``.

    Examples
    --------
    >>> overlaps([(0, 5), (8, 20)], 4, 10)
    ((0, 1), (4, 6))
    """
    return tuple((max(a, start) - start, min(b, stop) - start) for a, b in ranges if a < stop and b > start)

"""Counts, extremes and moments of many float64 in one visit to memory, compiled.

Values are summed in blocks, each in `LANES` sums side by side, which suits vector units of any width, and
visited twice while they are in the nearest cache. Blocks are merged in pairs, pairs in pairs of pairs. The
order of all additions follows from the number of values alone, and so do the bits of the result, on every
machine. The lock of the interpreter is free meanwhile. What is counted, and why, is decided in
:mod:`chunkstore.statistics`.
"""

# ruff: noqa: PLR0917, FURB136 - compiled code: many plain arguments, and comparisons that become vectors
from __future__ import annotations

import math
from typing import Any

import numpy as np

from chunkstore.compiled import njit

__all__ = ["COUNT", "INFINITE", "LANES", "LEVELS", "NULLS", "distances", "fixed", "gather_blocks"]

#: sums that run side by side
LANES = 64
#: merged blocks of 1, 2, 4, ... blocks
LEVELS = 48
#: places in the counts of an item: values that are not null, nulls, infinite values
COUNT, NULLS, INFINITE = range(3)


def fixed(array: np.ndarray) -> np.ndarray:
    """Return it flat, not to be written to: code is compiled for that alone, whatever comes.

    Examples
    --------
    >>> fixed(np.zeros((2, 3))).flags.writeable, fixed(np.zeros((2, 3))).shape
    (False, (6,))
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    flat.setflags(write=False)
    return flat


@njit(cache=True, nogil=True)
def _moments(values: Any, first: Any, n: Any, room: Any, finite: Any) -> Any:
    """Return (whether all are finite, least, greatest, mean, sum of squared deviations) of n >= 1 values.

    Infinities and NaN show in the sum and end it early, unless it is known that there are none.
    """
    # slices, not offsets: the compiler then sees that nothing overlaps and no index is negative
    sums, lows, highs, squares = room[0], room[1], room[2], room[3]
    a = values[first]
    for k in range(LANES):
        sums[k] = 0.0
        lows[k] = a
        highs[k] = a
    end = first + n
    whole = first + n // (4 * LANES) * (4 * LANES)
    for at in range(first, whole, 4 * LANES):
        part = values[at : at + 4 * LANES]
        for k in range(LANES):
            a, b, c, d = part[k], part[LANES + k], part[2 * LANES + k], part[3 * LANES + k]
            sums[k] += (a + b) + (c + d)
            low, other = (a if a < b else b), (c if c < d else d)
            low = low if low < other else other
            lows[k] = low if low < lows[k] else lows[k]
            high, other = (a if a > b else b), (c if c > d else d)
            high = high if high > other else other
            highs[k] = high if high > highs[k] else highs[k]
    for at in range(whole, end):
        a, k = values[at], (at - whole) % LANES
        sums[k] += a
        lows[k] = a if a < lows[k] else lows[k]
        highs[k] = a if a > highs[k] else highs[k]
    total, low, high = 0.0, lows[0], highs[0]
    for k in range(LANES):
        total += sums[k]
        low = lows[k] if lows[k] < low else low
        high = highs[k] if highs[k] > high else high
        sums[k] = 0.0
        squares[k] = 0.0
    if not (finite or math.isfinite(total)):
        return False, low, high, 0.0, 0.0
    mean = total / n
    if not math.isfinite(mean):  # finite values whose sum is not
        mean = 0.0
        for at in range(first, end):
            mean += values[at] / n
        mean = min(max(mean, low), high)
    for at in range(first, whole, 4 * LANES):
        part = values[at : at + 4 * LANES]
        for k in range(LANES):
            a, b = part[k] - mean, part[LANES + k] - mean
            c, d = part[2 * LANES + k] - mean, part[3 * LANES + k] - mean
            sums[k] += (a + b) + (c + d)
            squares[k] += (a * a + b * b) + (c * c + d * d)
    for at in range(whole, end):
        a, k = values[at] - mean, (at - whole) % LANES
        sums[k] += a
        squares[k] += a * a
    rest = square = 0.0
    for k in range(LANES):
        rest += sums[k]
        square += squares[k]
    rest /= n
    if math.isfinite(rest):  # takes the rounding of the first visit back
        mean += rest
        if math.isfinite(square):  # else infinity less infinity would be nothing
            square = max(0.0, square - rest * rest * n)
    return True, low, high, mean, square


@njit(cache=True, nogil=True)
def distances(values: Any, base: Any, out: Any) -> Any:
    """Write integers of 64 bits as their distance from one, float64; return the least and the greatest.

    Distances of 2**63 and more come out wrong.

    Examples
    --------
    >>> values, out = np.array([2**60 + 5, 2**60]), np.empty(2)
    >>> values.flags.writeable = False
    >>> least, greatest = distances(values, np.int64(2**60), out)
    >>> least == 2**60, greatest == 2**60 + 5, out.tolist()
    (True, True, [5.0, 0.0])
    """
    low = high = values[0]
    for i in range(values.size):
        value = values[i]
        low = min(low, value)
        high = max(high, value)
        out[i] = np.int64(value - base)
    return low, high


@njit(cache=True, nogil=True)
def gather_blocks(
    values: Any,
    valid: Any,
    items: Any,
    block: Any,
    done: Any,
    counts: Any,
    ends: Any,
    sizes: Any,
    sums: Any,
    room: Any,
    spare: Any,
    again: Any,
) -> None:
    """Take whole blocks of values of each item; the last one may be short if nothing follows.

    Parameters
    ----------
    values : float64[items * n]
        Those of the first item, then of the next. Never written to.
    valid : bool[items * n], bool[n] or bool[0]
        Where they are not null, of each item, of all alike, or everywhere. Never written to.
    items, block, done : int
        Items, values in a block, and blocks that were taken before.
    counts : int64[items, 3]
        See `COUNT`; added to.
    ends : float64[items, 2]
        Least and greatest value.
    sizes, sums : int64[items, LEVELS], float64[items, LEVELS, 2]
        Number, mean and squared deviations of the finite values in merged blocks; a level is in use if its
        bit is set in the number of blocks.
    room, spare, again : float64[4, LANES], float64[block], float64[block]
        Memory to work in; the last two are the same, ``again`` as values are: not to be written to.

    Examples
    --------
    >>> counts, ends = np.zeros((1, 3), np.int64), np.array([[np.inf, -np.inf]])
    >>> sizes, sums = np.zeros((1, LEVELS), np.int64), np.zeros((1, LEVELS, 2))
    >>> room, spare = np.empty((4, LANES)), np.empty(3)
    >>> values, valid = fixed(np.array([1.0, np.nan, 3.0])), fixed(np.ones(3, bool))
    >>> gather_blocks(values, valid, 1, 3, 0, counts, ends, sizes, sums, room, spare, fixed(spare))
    >>> counts.tolist(), ends.tolist(), sizes[0, 0].item(), sums[0, 0].tolist()
    ([[2, 1, 0]], [[1.0, 3.0]], 2, [2.0, 2.0])
    """
    length = values.size // items
    for item in range(items):
        start = item * length
        told = start if valid.size == values.size else 0
        for first in range(0, length, block):
            rows = min(block, length - first)
            masked = False
            if valid.size:
                there = 0
                for kept in valid[told + first : told + first + rows]:
                    there += kept
                masked = there < rows
            known = n = rows
            good, low, high, mean, square = False, np.inf, -np.inf, 0.0, 0.0
            if not masked:
                good, low, high, mean, square = _moments(values, start + first, rows, room, False)
            if not good:
                known = n = 0
                low, high = np.inf, -np.inf
                for i in range(first, first + rows):
                    a = values[start + i]
                    if (not masked or valid[told + i]) and not math.isnan(a):
                        known += 1
                        low, high = min(low, a), max(high, a)
                        if not math.isinf(a):
                            spare[n] = a
                            n += 1
                if n:
                    _, _, _, mean, square = _moments(again, 0, n, room, True)
            counts[item, COUNT] += known
            counts[item, NULLS] += rows - known
            counts[item, INFINITE] += known - n
            ends[item, 0] = min(ends[item, 0], low)
            ends[item, 1] = max(ends[item, 1], high)
            level, blocks = 0, done + first // block
            while blocks >> level & 1:
                before, mean_before = sizes[item, level], sums[item, level, 0]
                square_before = sums[item, level, 1]
                level += 1
                if n == 0:
                    n, mean, square = before, mean_before, square_before
                elif before:
                    delta, share = mean - mean_before, n / (before + n)
                    if math.isinf(delta):  # values near the end of float64
                        mean = mean_before * (before / (before + n)) + mean * share
                    else:
                        mean = mean_before + delta * share
                    square = square_before + square + delta * delta * (before * share)
                    n += before
            sizes[item, level], sums[item, level, 0], sums[item, level, 1] = n, mean, square

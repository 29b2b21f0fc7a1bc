"""Where a rank falls in many sorted runs, without reading them: the cut of a merge never made whole. Pure.

To fill one shard of a long sequence whose files overlap in time, a task must know which rows of each run
come before the shard and which belong to it. :func:`split_at` finds that by bisection over the values,
touching a few blocks of each run. Equal values belong to the earlier run first, as in a stable sort.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LazyTimes", "ordered", "split_at"]

#: rows that are read at a time, and how often that is kept: there may be thousands of runs
_BLOCK = 1024
_KEPT = 2


class Run(Protocol):
    """A sorted sequence of integers."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...


class LazyTimes:
    """Sorted times read block by block, as integers in the same order.

    Examples
    --------
    >>> times = LazyTimes(lambda a, b: np.array([-0.5, 0.0, 2.0, np.nan])[a:b], 4)
    >>> list(times) == sorted(times), len(times)
    (True, 4)
    """

    def __init__(self, read: Callable[[int, int], np.ndarray], length: int) -> None:
        self._read = read
        self._length = length
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._length:
            raise IndexError(index)
        number, within = divmod(index, _BLOCK)
        block = self._kept.get(number)
        if block is None:
            if len(self._kept) >= _KEPT:
                self._kept.popitem(last=False)
            start = number * _BLOCK
            read = self._read(start, min(start + _BLOCK, self._length))
            block = self._kept[number] = ordered(read).copy()  # without what it was read with
        found: int = block[within].item()
        return found


def ordered(times: np.ndarray) -> np.ndarray:
    """Return integers in the order in which numpy sorts the times: NaN last, -0.0 as 0.0.

    Examples
    --------
    >>> low, zero, same, high, none = ordered(np.array([-np.inf, -0.0, 0.0, np.inf, np.nan])).tolist()
    >>> low < zero == same < high < none
    True
    """
    if times.dtype.kind != "f":
        return times
    bits = (times.astype(np.float64) + 0.0).view(np.int64)
    bits = np.where(bits < 0, bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF), bits)
    return np.where(np.isnan(times), np.int64(0x7FFF_FFFF_FFFF_FFFF), bits)


def split_at(runs: Sequence[Run], rank: int) -> list[int]:
    """Return how many items of each run stand before ``rank`` in the stable merge of all.

    Parameters
    ----------
    runs : sequence of sorted sequences
        In the order in which equal items are taken.
    rank : int
        From 0 to the number of all items.

    Examples
    --------
    >>> split_at([[1, 5, 5], [2, 5, 9]], 3)
    [2, 1]
    """
    if rank <= 0:
        return [0] * len(runs)
    if rank >= sum(len(r) for r in runs):
        return [len(r) for r in runs]
    filled = [r for r in runs if len(r)]
    low = min(r[0] for r in filled)
    high = max(r[len(r) - 1] for r in filled)
    # the least value with more than `rank` items at or below it: the value of the item of that rank. What is
    # known of each run narrows with it, so that a search ends in one block of each
    begins, ends = [0] * len(runs), [len(r) for r in runs]
    while low < high:
        middle = (low + high) // 2
        upto = [bisect_right(r, middle, a, b) for r, a, b in zip(runs, begins, ends, strict=True)]
        if sum(upto) > rank:
            high, ends = middle, upto
        else:
            low, begins = middle + 1, upto
    before = [bisect_left(r, low, a, b) for r, a, b in zip(runs, begins, ends, strict=True)]
    rest = rank - sum(before)
    for i, r in enumerate(runs):
        take = min(rest, bisect_right(r, low, before[i], ends[i]) - before[i])
        before[i] += take
        rest -= take
    return before

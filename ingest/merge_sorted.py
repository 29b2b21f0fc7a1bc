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

__all__ = ["LazyTimes", "split_at"]

_BLOCK = 1024
_KEPT = 24


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
        self._kept: OrderedDict[int, list[int]] = OrderedDict()

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
            block = _ordered(self._read(start, min(start + _BLOCK, self._length)))
            self._kept[number] = block
        return block[within]


def _ordered(times: np.ndarray) -> list[int]:
    """Integers in the order in which numpy sorts the times: NaN last, -0.0 as 0.0."""
    if times.dtype.kind != "f":
        whole: list[int] = times.tolist()
        return whole
    bits = (times.astype(np.float64) + 0.0).view(np.int64)
    bits = np.where(bits < 0, bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF), bits)
    bits = np.where(np.isnan(times), np.int64(0x7FFF_FFFF_FFFF_FFFF), bits)
    return [int(b) for b in bits.tolist()]


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
    # the least value with more than `rank` items at or below it: the value of the item of that rank
    while low < high:
        middle = (low + high) // 2
        if sum(bisect_right(r, middle) for r in runs) > rank:
            high = middle
        else:
            low = middle + 1
    before = [bisect_left(r, low) for r in runs]
    rest = rank - sum(before)
    for i, r in enumerate(runs):
        take = min(rest, bisect_right(r, low) - before[i])
        before[i] += take
        rest -= take
    return before

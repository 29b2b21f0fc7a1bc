"""Order inside sequences: times that go back or repeat, and where a rule cuts a sequence. Pure.

A write task sees one shard. It looks at every pair of neighbouring rows of one sequence inside
the shard, and hands on the first and last row that hold data; :class:`Joiner` compares those
across shards, in their order, when all is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest.rows import differs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest.protocol import CutRule

__all__ = ["Joiner", "Look"]

#: dtypes of times that are counted by compiled code; others are none of a time field's usual ones
_COUNTED = (np.dtype(np.int64), np.dtype(np.float64))
_LONGEST = 2**64 - 1


class Look:
    """Looks at the rows of one shard, column by column, each in pieces that follow each other.

    Parameters
    ----------
    start, n : int
        First obs and number of rows.
    borders : int64
        Obs at which a sequence begins, ascending; others than those inside are ignored.
    cut : CutRule, optional
        The rule.

    Examples
    --------
    >>> from ingest.protocol import CutRule
    >>> look = Look(10, 5, borders=np.array([10, 12]), cut=CutRule(max_gap=5))
    >>> for piece in np.array([0, 1]), np.array([0, 9, 9]):
    ...     look.times(piece)
    >>> seen = look.seen()
    >>> seen["cuts"], seen["backward"], seen["duplicates"]
    ([13], 0, 1)
    >>> seen["last"]
    {'obs': 14, 'time': 9, 'values': {}}
    """

    def __init__(self, start: int, n: int, *, borders: np.ndarray, cut: CutRule | None) -> None:
        self._start, self._n = start, n
        self._borders = borders[(borders > start) & (borders < start + n)]
        self._upcoming = int(self._borders[0]) if self._borders.size else start + n
        self._gap = None if cut is None else cut.max_gap
        self._times: _Column | None = None
        self._watched: dict[str, _Column] = {}
        self._cuts: list[np.ndarray] = []
        self._backward = self._duplicates = 0
        self.where: int | None = None
        """Obs of the first row that goes back."""
        self.back: tuple[Any, Any] | None = None
        """Times of the row before it, and its own."""

    def times(self, values: np.ndarray, lost: np.ndarray | None = None) -> None:
        """Take the next values [k] of the time field; ``lost`` is bool[k], True where a row holds no data."""
        if not len(values):
            return
        if self._times is None:
            self._times = _Column(self._start)
        column = self._times
        if lost is not None or not _quick(values):
            self._pairs(*column.pairs(values, lost))
            return
        if column.last is not None:
            self._joint(*column.last, values[0], column.obs)
        self._steps(values, column.obs)
        column.take(values)

    def _joint(self, before: np.ndarray, obs: int, after: Any, obs_after: int) -> None:
        """Count the pair of the last row of a piece and the first of the next."""
        if self._edges(obs, obs_after - obs + 1).size:
            return
        a, b = before[0].item(), after.item()
        if b < a:
            self._backward += 1
            if self.where is None:
                self.where, self.back = obs_after, (before[0], after)
        self._duplicates += a == b
        if self._gap is not None and b - a > self._gap:
            self._cuts.append(np.array([obs_after]))

    def _steps(self, values: np.ndarray, start: int) -> None:
        """Count the pairs of values of consecutive obs; look closer only where there is something to see."""
        from ingest.steps import count_steps  # numba: not needed by those who only join

        edges = self._edges(start, len(values))
        view = values.view()
        view.flags.writeable = False
        gap = _LONGEST if self._gap is None else min(self._gap, _LONGEST)
        if values.dtype.kind == "f":
            back, same, far = count_steps(view, view, edges, float(gap))
        else:
            back, same, far = count_steps(view, view.view(np.uint64), edges, np.uint64(gap))
        self._backward += back
        self._duplicates += same
        if back and self.where is None:
            at = np.flatnonzero(values[1:] < values[:-1])
            self._first_back(values, np.arange(start, start + len(values)), at[~np.isin(at + 1, edges)])
        if far and self._gap is not None:
            at = np.flatnonzero(_far(values[:-1], values[1:], self._gap))
            self._cuts.append(start + 1 + at[~np.isin(at + 1, edges)])

    def _edges(self, start: int, n: int) -> np.ndarray:
        """Return where among ``n`` obs a sequence begins, the first left out.

        Obs that were asked for before are not asked for again, but the last of them.
        """
        borders = self._borders
        if start + n <= self._upcoming:
            return borders[:0]
        low, high = borders.searchsorted((start + 1, start + n)).tolist()
        self._upcoming = int(borders[high]) if high < borders.size else self._start + self._n
        edges: np.ndarray = borders[low:high] - start
        return edges

    def _first_back(self, values: np.ndarray, obs: np.ndarray, pairs: np.ndarray) -> None:
        if self.where is None and pairs.size:
            at = int(pairs[0])
            self.where, self.back = int(obs[at + 1]), (values[at], values[at + 1])

    def _pairs(self, values: np.ndarray, obs: np.ndarray) -> None:
        before, after = values[:-1], values[1:]
        same = self._same(obs)
        back = np.flatnonzero((after < before) & same)
        self._backward += back.size
        self._first_back(values, obs, back)
        self._duplicates += int(np.count_nonzero((after == before) & same))
        if self._gap is not None:
            self._cuts.append(obs[1:][_far(before, after, self._gap) & same])

    def _same(self, obs: np.ndarray) -> np.ndarray:
        """Whether each but the first of these rows belongs to the sequence of the one before."""
        same = np.ones(max(0, obs.size - 1), bool)
        edges = np.searchsorted(obs, self._borders)
        same[edges[(edges > 0) & (edges < obs.size)] - 1] = False
        return same

    def watch(self, name: str, values: np.ndarray, lost: np.ndarray | None = None) -> None:
        """Take the next values [k] or [k, items] of a column a change of which cuts."""
        column = self._watched.get(name)
        if column is None:
            column = self._watched[name] = _Column(self._start)
        kept, obs = column.pairs(values, lost)
        self._cuts.append(obs[1:][_differ(kept[:-1], kept[1:]) & self._same(obs)])

    def seen(self, lost: np.ndarray | None = None) -> dict[str, Any]:
        """Return what was seen, when all rows have come.

        Parameters
        ----------
        lost : bool[n], optional
            Rows of the shard that hold no data.

        Returns
        -------
        dict
            JSON values: ``backward`` and ``duplicates`` (pairs), ``where`` (obs of the first backward row),
            ``cuts`` (obs), ``first`` and ``last`` (obs, time and watched values of the outer rows).
        """
        ends: list[dict[str, Any] | None] = [None, None]
        kept = np.arange(min(self._n, 1)) if lost is None else np.flatnonzero(~lost)
        if kept.size:
            last = self._n - 1 if lost is None else int(kept[-1])
            ends = [self._row(self._start + int(kept[0]), 0), self._row(self._start + last, 1)]
        cuts = np.unique(np.concatenate(self._cuts)) if self._cuts else np.empty(0, np.int64)
        return {
            "backward": self._backward,
            "duplicates": self._duplicates,
            "where": self.where,
            "cuts": cuts.tolist(),
            "first": ends[0],
            "last": ends[1],
        }

    def _row(self, obs: int, end: int) -> dict[str, Any]:
        return {
            "obs": obs,
            "time": None if self._times is None else self._times.ends[end],
            "values": {name: column.ends[end] for name, column in self._watched.items()},
        }


class _Column:
    """How far a column has come, and its outer rows that hold data."""

    def __init__(self, start: int) -> None:
        self.obs = start
        """The next obs."""
        self.ends: list[Any] = [None, None]
        """First and last value so far, as JSON."""
        self.last: tuple[np.ndarray, int] | None = None
        """The last row that holds data, so far: its value [1] or [1, items], and its obs."""

    def take(self, values: np.ndarray) -> None:
        """Count in rows that all hold data."""
        if len(values):
            self.obs += len(values)
            self._end(values, self.obs - 1)

    def pairs(self, values: np.ndarray, lost: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Count in rows; return (values, obs) of those that hold data, behind the last one before them."""
        rows = np.arange(len(values)) if lost is None else np.flatnonzero(~lost)
        kept, obs = values if lost is None else values[rows], rows + self.obs
        before = self.last
        self.obs += len(values)
        if not rows.size:
            return values[:0], obs
        self._end(kept, int(obs[-1]))
        if before is None:
            return kept, obs
        return np.concatenate([before[0], kept]), np.concatenate([[before[1]], obs])

    def _end(self, values: np.ndarray, obs: int) -> None:
        if self.last is None:
            self.ends[0] = _json(values[0])
        self.ends[1] = _json(values[-1])
        self.last = values[-1:].copy(), obs


def _quick(times: np.ndarray) -> bool:
    """Whether the compiled count takes such times."""
    return times.dtype in _COUNTED and times.dtype.isnative and times.flags.c_contiguous


def _far(before: np.ndarray, after: np.ndarray, max_gap: float) -> np.ndarray:
    """Whether steps are longer than the gap: exactly what plain Python says, as between shards."""
    if before.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            step = after.astype(np.float64) - before.astype(np.float64)
            return np.asarray((after > before) & (step > max_gap))
    wide = np.uint64 if before.dtype.kind == "u" else np.int64
    # uint64 holds the longest step; a whole step is longer than a fraction where it is longer than its floor
    steps = after.astype(wide).view(np.uint64) - before.astype(wide).view(np.uint64)
    return np.asarray((after > before) & (steps > np.uint64(math.floor(min(max_gap, _LONGEST)))))


def _differ(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    other = before != after
    if before.dtype.kind == "f":
        other &= ~(np.isnan(before) & np.isnan(after))
    if other.ndim == 2:
        other = other.any(axis=1)
    return np.asarray(other)


def _json(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value.item()


@dataclass(slots=True)
class Joiner:
    """Joins what the shards saw, in their order.

    Examples
    --------
    >>> from ingest.protocol import CutRule
    >>> rule = CutRule(max_gap=5)
    >>> joiner = Joiner(np.array([0, 4]), rule)
    >>> for a in (0, 2):
    ...     look = Look(a, 2, borders=np.array([0]), cut=rule)
    ...     look.times(np.array([a, a + 1]) * 4)
    ...     joiner.add(look.seen())
    >>> joiner.cuts, joiner.duplicates
    ([], 0)
    """

    offsets: np.ndarray
    """int64[S + 1]: first obs of each sequence."""
    cut: CutRule | None
    """The rule."""
    cuts: list[int] = field(default_factory=list)
    """Obs at which a piece of a sequence begins."""
    backward: int = 0
    """Rows whose time is before that of the row before."""
    duplicates: int = 0
    """Rows whose time is that of the row before."""
    where: int | None = None
    """Obs of the first backward row."""
    _last: Mapping[str, Any] | None = None

    def add(self, seen: Mapping[str, Any]) -> None:
        """Take in the next shard."""
        first = seen["first"]
        if first is None:
            return
        before = self._last
        if before is not None and self._sequence(before["obs"]) == self._sequence(first["obs"]):
            self._compare(before, first)
        self.cuts += seen["cuts"]
        self.backward += seen["backward"]
        self.duplicates += seen["duplicates"]
        if self.where is None:
            self.where = seen["where"]
        self._last = seen["last"]

    def _sequence(self, obs: int) -> int:
        return int(np.searchsorted(self.offsets, obs, side="right"))

    def _compare(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        far = False
        if before["time"] is not None:
            if after["time"] < before["time"]:
                self.backward += 1
                if self.where is None:
                    self.where = after["obs"]
            self.duplicates += after["time"] == before["time"]
            if self.cut is not None and self.cut.max_gap is not None:
                far = after["time"] - before["time"] > self.cut.max_gap
        if far or any(_other(before["values"][name], value) for name, value in after["values"].items()):
            self.cuts.append(after["obs"])


def _other(before: Any, after: Any) -> bool:
    if isinstance(before, list):
        return any(_other(b, a) for b, a in zip(before, after, strict=True))
    return differs(before, after)

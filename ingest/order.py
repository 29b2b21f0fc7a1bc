"""Order inside sequences: times that go back or repeat, and where a rule cuts a sequence. Pure.

A write task sees one shard. It looks at every pair of neighbouring rows of one sequence inside
the shard, and hands on the first and last row that hold data; :class:`Joiner` compares those
across shards, in their order, when all is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest.rows import differs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest.protocol import CutRule

__all__ = ["Joiner", "examine"]


def examine(
    start: int,
    n: int,
    *,
    borders: np.ndarray,
    times: np.ndarray | None,
    watched: Mapping[str, np.ndarray],
    cut: CutRule | None,
    lost: np.ndarray | None = None,
) -> dict[str, Any]:
    """Look at the rows of one shard.

    Parameters
    ----------
    start, n : int
        First obs and number of rows.
    borders : int64
        Obs at which a sequence begins, ascending; others than those inside are ignored.
    times : array [n], optional
        Values of the time field.
    watched : mapping of name to array [n] or [n, items]
        Columns a change of which cuts.
    cut : CutRule, optional
        The rule.
    lost : bool[n], optional
        Rows that hold no data; their neighbours are compared with each other.

    Returns
    -------
    dict
        JSON values: ``backward`` and ``duplicates`` (pairs), ``where`` (obs of the first backward row),
        ``cuts`` (obs), ``first`` and ``last`` (obs, time and watched values of the outer rows).

    Examples
    --------
    >>> from ingest.protocol import CutRule
    >>> seen = examine(
    ...     10, 5, borders=np.array([10, 12]), times=np.array([0, 1, 0, 9, 9]), watched={},
    ...     cut=CutRule(max_gap=5))
    >>> seen["cuts"], seen["backward"], seen["duplicates"]
    ([13], 0, 1)
    >>> seen["last"]
    {'obs': 14, 'time': 9, 'values': {}}
    """
    found: dict[str, Any] = {
        "backward": 0,
        "duplicates": 0,
        "where": None,
        "cuts": [],
        "first": None,
        "last": None,
    }
    inside = borders[(borders > start) & (borders < start + n)] - start
    rows = None if lost is None or not lost.any() else np.flatnonzero(~lost)
    count = n if rows is None else rows.size
    if count == 0:
        return found

    def at(i: int) -> int:
        return i if rows is None else int(rows[i])

    def row(i: int) -> dict[str, Any]:
        return {
            "obs": start + at(i),
            "time": None if times is None else times[at(i)].item(),
            "values": {name: _json(column[at(i)]) for name, column in watched.items()},
        }

    found["first"], found["last"] = row(0), row(count - 1)
    if count < 2 or (times is None and not watched):
        return found
    same = np.ones(count - 1, bool)
    if rows is None:
        same[inside - 1] = False
    else:
        edge = np.searchsorted(rows, inside)
        edge = edge[(edge > 0) & (edge < count)]
        same[edge - 1] = False
    cuts = np.zeros(count - 1, bool)
    if times is not None:
        used = times if rows is None else times[rows]
        back = (used[1:] < used[:-1]) & same
        found["backward"] = int(np.count_nonzero(back))
        if found["backward"]:
            found["where"] = start + at(int(np.argmax(back)) + 1)
        found["duplicates"] = int(np.count_nonzero((used[1:] == used[:-1]) & same))
        if cut is not None and cut.max_gap is not None:
            cuts |= _far(used[:-1], used[1:], cut.max_gap)
    for column in watched.values():
        used = column if rows is None else column[rows]
        cuts |= _differ(used[:-1], used[1:])
    cuts &= same
    where = np.flatnonzero(cuts) + 1
    found["cuts"] = (start + (where if rows is None else rows[where])).tolist()
    return found


def _far(before: np.ndarray, after: np.ndarray, max_gap: int) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        step = after - before
        # an int64 step that wraps is the farthest of all
        far: np.ndarray = (step > max_gap) | ((step < 0) & (after > before))
    return far


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
    ...     times = np.array([a, a + 1]) * 4
    ...     joiner.add(examine(a, 2, borders=np.array([0]), times=times, watched={}, cut=rule))
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

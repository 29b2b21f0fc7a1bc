"""What an iteration serves when: rows of batches, moments, and the obs that pieces of blocks need.

Stands between the order of an epoch (:mod:`chunkstore.schedule`) and the loader. Decides which rows of
which batch a rank gets, in which order an iteration over several lane groups needs its blocks, and which
obs of them. Pure: integers and numpy; Python loops run over lane groups, numpy over windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chunkstore.sampling import Population
    from chunkstore.schedule import Blocks, EpochSchedule, Needs
    from chunkstore.state import Position, Rotation

__all__ = [
    "ROW",
    "Clock",
    "NeededRanges",
    "RowPlanner",
    "Rows",
    "SequenceStarts",
    "Turns",
    "WholeBlocks",
    "turns_of_full",
]

PLAN_DRAWS = 16384  # draws scheduled in one call
PLAN_PIECES = 4096  # pieces looked at in one call
ROW = ("store", "sequence", "start", "room", "block")


class Rows:
    """Rows of one batch of one rank: int64 arrays of one length."""

    __slots__ = ("block", "room", "sequence", "start", "store")

    def __init__(self, store: Any, sequence: Any, start: Any, room: Any, block: Any) -> None:
        self.store, self.sequence, self.start, self.room, self.block = store, sequence, start, room, block

    def part(self, low: int, high: int) -> Rows:
        """Return rows [low, high), as views."""
        part = slice(low, high)
        return Rows(
            self.store[part], self.sequence[part], self.start[part], self.room[part], self.block[part]
        )


class RowPlanner:
    """Rows of batches, scheduled many batches at a time."""

    def __init__(  # noqa: PLR0917 - all of them, from one place
        self,
        blocks: Blocks,
        items: Population,
        schedule: EpochSchedule,
        step: int,
        rank: int,
        world_size: int,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._blocks, self._items, self._schedule = blocks, items, schedule
        self._step = step
        self._cursor = schedule.cursor()
        self._ahead: dict[int, tuple[int, int, Rows]] = {}
        self.kept: dict[str, NDArray[Any]] = {}

    def take(self, group: int, first: int, draws: int) -> Rows:
        """Return the rank's rows of draws [first, first + draws) of a group."""
        have = self._ahead.get(group)
        if have is None or not (have[0] <= first and first + draws <= have[1]):
            have = self._ahead[group] = self._plan(group, first, draws)
        low, _, rows = have
        a = -(-(first - low) // self.world_size)
        b = a + len(range(self.rank, draws, self.world_size))
        return rows.part(a, b)

    @property
    def blocks(self) -> Blocks:
        """All blocks."""
        return self._blocks

    def rows(self, group: int, first: int, stop: int) -> tuple[Rows, NDArray[np.int64]]:
        """Return the rank's rows of draws [first, stop) of a group, and the draws."""
        draws = np.arange(first + self.rank, stop, self.world_size)
        item, piece = self._schedule.items(int(self._schedule.group_first[group]) + draws, self._cursor)
        places = self._items.index.locate(self._items.windows(item))
        if len(self._schedule.counts) == len(self._blocks):
            block = self._schedule.block[piece]
        else:  # a full shuffle knows no blocks
            block = self._blocks.of_windows(places.store, places.start)
        return Rows(places.store, places.sequence, places.start, places.room, block), draws

    def _plan(self, group: int, first: int, draws: int) -> tuple[int, int, Rows]:
        base = int(self._schedule.group_first[group])
        end = int(self._schedule.group_first[group + 1]) - base
        many = max(1, PLAN_DRAWS * self.world_size // self._step) * self._step
        stop = min(end, first + max(many, draws))
        return first, stop, self.rows(group, first, stop)[0]


class Clock:
    """Moments: the order in which an iteration over several lane groups serves their draws.

    Batch n of each group is served before batch n + 1 of any; the moment of a draw counts (batch, turn
    of its group, place within the batch).
    """

    def __init__(self, rotation: Rotation, position: Position, serve: tuple[int, ...]) -> None:
        n = len(position.drawn)
        order = [g for k in range(n) if (g := (position.turn + k) % n) in set(serve)]
        self.turn = {g: k for k, g in enumerate(order)}
        self.start = position.drawn
        self.step, self.groups = rotation.step, len(order)
        self.stop = {
            g: position.drawn[g]
            + (
                rotation.left(g, position.drawn[g]) * rotation.step
                if rotation.drop_last
                else rotation.n_draws[g] - position.drawn[g]
            )
            for g in order
        }

    def moment(self, group: int, draw: int) -> int:
        """Return the moment of a draw of a group."""
        batch, within = divmod(draw - self.start[group], self.step)
        return (batch * self.groups + self.turn[group]) * self.step + within

    def moments(self, group: int, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the moments of draws of a group."""
        batch, within = np.divmod(draws - self.start[group], self.step)
        return (batch * self.groups + self.turn[group]) * self.step + within

    def draw_of(self, group: int, moment: int, most: int) -> int:
        """Return the first draw of the group, at most ``most``, whose moment is not before ``moment``."""
        turn, within = divmod(moment, self.step)
        batch, ours = divmod(turn, self.groups)
        mine = self.turn[group]
        if ours > mine:
            batch, within = batch + 1, 0
        elif ours < mine:
            within = 0
        return min(most, self.start[group] + batch * self.step + within)


class Turns:
    """Pieces that an iteration needs, in the order of need, by moment."""

    __slots__ = ("block", "first", "last", "piece")

    def __init__(self, piece: Any, block: Any, first: Any, last: Any) -> None:
        self.piece, self.block, self.first, self.last = piece, block, first, last

    @classmethod
    def of(
        cls, schedule: EpochSchedule, clock: Clock, serve: tuple[int, ...], rank: int, world_size: int
    ) -> Turns:
        """Return the pieces of the lane groups that are served, from where the clock starts."""
        parts = []
        for g in serve:
            # ranks share the draws from where the clock starts, which another number of ranks may have set
            share = (rank + clock.start[g]) % world_size
            needs: Needs = schedule.needs(group=g, rank=share, world_size=world_size, start=clock.start[g])
            keep = needs.first < clock.stop[g]
            last = np.minimum(needs.last[keep], clock.stop[g] - 1)
            parts.append(
                (
                    needs.piece[keep],
                    needs.block[keep],
                    clock.moments(g, needs.first[keep]),
                    clock.moments(g, last),
                )
            )
        piece, block, first, last = (np.concatenate(c) for c in zip(*parts, strict=True))
        order = np.argsort(first, kind="stable")
        return cls(piece[order], block[order], first[order], last[order])


def turns_of_full(planner: RowPlanner, clock: Clock, serve: tuple[int, ...], span: int) -> Turns:
    """Return all blocks in the order in which the first draws of a full shuffle need them.

    After some thousand draws all are needed; those that none of them has shown come last.
    """
    blocks = planner.blocks
    first = np.full(len(blocks), np.iinfo(np.int64).max // 2)
    latest = 0
    for g in serve:
        start, stop = clock.start[g], min(clock.stop[g], clock.start[g] + PLAN_DRAWS * planner.world_size)
        if stop <= start:
            continue
        rows, draws = planner.rows(g, start, stop)
        moments = clock.moments(g, draws)
        latest = max(latest, int(moments[-1]) if len(moments) else 0)
        last = blocks.of_windows(rows.store, rows.start + np.minimum(rows.room, span) - 1)
        for step in range(int((last - rows.block).max(initial=0)) + 1):
            np.minimum.at(first, np.minimum(rows.block + step, last), moments)
    first = np.minimum(first, latest + 1)
    order = np.argsort(first, kind="stable")
    never = np.full(len(order), np.iinfo(np.int64).max)
    return Turns(order, order, first[order], never)


class NeededRanges:
    """What obs each piece needs: from its block's first window to its last, or those of few windows alone.

    Computed for many pieces at a time, in the order of need.
    """

    def __init__(
        self, blocks: Blocks, span: int, items: Population, schedule: EpochSchedule, turns: Turns
    ) -> None:
        self._span, self._items, self._schedule, self._turns = span, items, schedule, turns
        index = items.index
        first = blocks.first_ids(index)
        held = np.flatnonzero(np.diff(first))
        self._low, self._high = np.zeros(len(blocks), np.int64), np.zeros(len(blocks), np.int64)
        self._low[held] = index.locate(first[held]).start
        last = index.locate(first[held + 1] - 1)
        self._high[held] = last.start + np.minimum(last.room, span)
        count = schedule.count[turns.piece]
        self._few = count * span < (self._high - self._low)[turns.block]
        self._known: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, i: int) -> list[tuple[int, int]]:
        """Return half-open ranges of obs, ascending, of the i-th piece in the order of need."""
        if not self._few[i]:
            block = self._turns.block[i]
            return [(int(self._low[block]), int(self._high[block]))]
        if i not in self._known:
            self._learn(i)
        return self._known.pop(i)

    def _learn(self, i: int) -> None:
        which = i + np.flatnonzero(self._few[i : i + PLAN_PIECES])
        count = np.cumsum(self._schedule.count[self._turns.piece[which]])
        which = which[: max(1, int(np.searchsorted(count, PLAN_DRAWS)))]
        item, owner = self._schedule.items_of(self._turns.piece[which])
        at = self._items.index.locate(self._items.windows(item))
        end = at.start + np.minimum(at.room, self._span)
        order = np.lexsort((at.start, owner))
        owner, begin, end = owner[order], at.start[order], end[order]
        new = np.ones(len(owner), bool)
        new[1:] = (owner[1:] != owner[:-1]) | (begin[1:] > end[:-1])
        opens = np.flatnonzero(new)
        closes = np.append(opens[1:], len(owner)) - 1
        self._known = {int(j): [] for j in which}
        for j, a, b in zip(
            which[owner[opens]].tolist(), begin[opens].tolist(), end[closes].tolist(), strict=True
        ):
            self._known[j].append((a, b))


class WholeBlocks:
    """Every piece needs its whole block, and no halo: what is behind it is a block of its own."""

    def __init__(self, blocks: Blocks, turns: Turns) -> None:
        self._blocks, self._turns = blocks, turns

    def __call__(self, i: int) -> list[tuple[int, int]]:
        """Return the range of the i-th block in the order of need."""
        block = self._turns.block[i]
        return [(int(self._blocks.start[block]), int(self._blocks.stop[block]))]


class SequenceStarts:
    """First obs of every sequence of every store, on one axis."""

    def __init__(self, stores: Sequence[Any]) -> None:
        parts = [np.asarray(s.sequences.offsets, np.int64) for s in stores]
        self._flat = np.concatenate(parts)
        sizes = np.array([len(p) for p in parts], np.int64)
        self._base = np.cumsum(sizes) - sizes

    def of(self, store: NDArray[np.int64], sequence: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first obs of sequences, within their stores."""
        first: NDArray[np.int64] = self._flat[self._base[store] + sequence]
        return first

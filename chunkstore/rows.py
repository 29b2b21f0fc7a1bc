"""What an iteration serves when: rows of batches, moments, and the obs that pieces of blocks need.

Stands between the order of an epoch (:mod:`chunkstore.schedule`) and the loader. Decides which rows of
which batch a rank gets, in which order an iteration over several lane groups needs its blocks, and which
obs of them. Pure: integers and numpy; Python loops run over lane groups, numpy over windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.compiled import njit
from chunkstore.sampling import Population
from chunkstore.state import Position
from chunkstore.visits import integers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chunkstore.schedule import Blocks, EpochSchedule, Needs
    from chunkstore.state import Rotation

__all__ = [
    "Clock",
    "NeededRanges",
    "RowPlanner",
    "Rows",
    "SequenceStarts",
    "Turns",
    "WholeBlocks",
    "skip_batches",
    "turns_of_full",
]

PLAN_DRAWS = 16384  # draws scheduled in one call
PLAN_PIECES = 4096  # pieces looked at in one call
#: segments up to which a window's own is looked for among all: they are in the cache anyway
FEW_SEGMENTS = 64
_NONE = np.empty(0, np.int32)
STORE, SEQUENCE, START, ROOM, BLOCK, WITHIN, LENGTH = range(7)  # rows of a table


class Rows:
    """Rows of a batch of one rank: a stretch of a table that was made for many batches."""

    __slots__ = ("high", "low", "table")

    def __init__(self, table: NDArray[np.int64], low: int, high: int) -> None:
        #: int64[7, rows], C-contiguous: what the properties name, and what batches show of it
        self.table = table
        self.low, self.high = low, high

    def __len__(self) -> int:
        return self.high - self.low

    @property
    def store(self) -> NDArray[np.int64]:
        """Index of the store of each window."""
        return self.table[STORE, self.low : self.high]

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Index of the sequence within its store."""
        return self.table[SEQUENCE, self.low : self.high]

    @property
    def start(self) -> NDArray[np.int64]:
        """First obs, absolute within the store."""
        return self.table[START, self.low : self.high]

    @property
    def room(self) -> NDArray[np.int64]:
        """Obs from there to the end of the segment."""
        return self.table[ROOM, self.low : self.high]

    @property
    def block(self) -> NDArray[np.int64]:
        """The block that the start lies in."""
        return self.table[BLOCK, self.low : self.high]

    @property
    def within(self) -> NDArray[np.int64]:
        """First obs within the sequence."""
        return self.table[WITHIN, self.low : self.high]

    @property
    def length(self) -> NDArray[np.int64]:
        """Obs of the window that exist."""
        return self.table[LENGTH, self.low : self.high]

    def part(self, low: int, high: int) -> Rows:
        """Return rows [low, high), as views."""
        return Rows(self.table, self.low + low, self.low + high)

    def replaced(self, lost: NDArray[np.int64], source: NDArray[np.int64]) -> Rows:
        """Return a copy in which the rows ``lost`` are what the rows ``source`` are."""
        table = self.table[:, self.low : self.high].copy()
        table[:, lost] = table[:, source]
        return Rows(table, 0, len(self))


class RowPlanner:
    """Rows of batches, scheduled many batches at a time.

    Parameters
    ----------
    blocks, items, schedule
        The epoch.
    step : int
        Draws of a batch, all ranks together.
    rank, world_size : int
        Whose rows.
    starts : SequenceStarts, optional
        What ``within`` counts from; without, it counts as ``start`` does.
    """

    def __init__(  # noqa: PLR0917 - all of them, from one place
        self,
        blocks: Blocks,
        items: Population,
        schedule: EpochSchedule,
        step: int,
        rank: int,
        world_size: int,
        starts: SequenceStarts | None = None,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._blocks, self._items, self._schedule = blocks, items, schedule
        self._step = step
        self._starts = starts or SequenceStarts.none(items.index.n_stores)
        self._plain = type(items) is Population  # windows are the items themselves
        self._in_blocks = len(schedule.counts) == len(blocks)  # a full shuffle knows none
        #: int32[blocks + 1], the segment of each block's first window: between two are those of its windows;
        #: int32[0] where they are looked for among all
        self._segments: NDArray[np.int32] = np.empty(0, np.int32)
        if self._in_blocks and len(items.index.first) > FEW_SEGMENTS:
            self._segments = items.index.segment_of(blocks.first_ids(items.index)).astype(np.int32)
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
        b = a - (-(draws - self.rank) // self.world_size) if draws > self.rank else a
        return Rows(rows.table, a, b)

    @property
    def blocks(self) -> Blocks:
        """All blocks."""
        return self._blocks

    def rows(self, group: int, first: int, stop: int) -> tuple[Rows, NDArray[np.int64]]:
        """Return the rank's rows of draws [first, stop) of a group, and the draws."""
        draws = np.arange(first + self.rank, stop, self.world_size)
        item, piece = self._schedule.items(int(self._schedule.group_first[group]) + draws, self._cursor)
        index = self._items.index
        ids = item if self._plain else self._items.windows(item)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < index.n_windows:
            raise IndexError(f"windows {ids.min()} to {ids.max()} are not all in range({index.n_windows})")
        table = np.empty((7, len(draws)), np.int64)
        block = self._schedule.block[piece] if self._in_blocks else _NONE
        _place(
            ids,
            block,
            self._segments,
            index.first,
            index.store,
            index.sequence,
            index.start,
            index.offset,
            index.stop,
            index.spec.stride,
            index.spec.length,
            self._starts.flat,
            self._starts.base,
            table,
        )
        if self._in_blocks:
            table[BLOCK] = block
        else:
            table[BLOCK] = self._blocks.of_windows(table[STORE], table[START])
        return Rows(table, 0, len(draws)), draws

    def _plan(self, group: int, first: int, draws: int) -> tuple[int, int, Rows]:
        base = int(self._schedule.group_first[group])
        end = int(self._schedule.group_first[group + 1]) - base
        many = max(1, PLAN_DRAWS * self.world_size // self._step) * self._step
        stop = min(end, first + max(many, draws))
        return first, stop, self.rows(group, first, stop)[0]


@njit(cache=True, nogil=True)
def _place(  # noqa: PLR0917 - a compiled kernel
    ids: Any,
    block: Any,
    segment: Any,
    first: Any,
    store: Any,
    sequence: Any,
    begin: Any,
    offset: Any,
    stop: Any,
    stride: Any,
    length: Any,
    flat: Any,
    base: Any,
    table: Any,
) -> None:
    """Fill a table's rows with where windows are; as :meth:`WindowIndex.locate`, in one pass."""
    segments = begin.size
    for i in range(ids.size):
        low, high = np.int64(0), np.int64(segments)
        if segment.size:  # the few of its block, not all: what is looked through stays in the cache
            low, high = np.int64(segment[block[i]]), min(np.int64(segment[block[i] + 1]) + 1, high)
        while high - low > 1:
            middle = (low + high) // 2
            if first[middle] <= ids[i]:
                low = middle
            else:
                high = middle
        start = begin[low] + offset[low] + (ids[i] - first[low]) * stride
        room = stop[low] - start
        table[STORE, i], table[SEQUENCE, i], table[START, i] = store[low], sequence[low], start
        table[ROOM, i], table[LENGTH, i] = room, min(room, length)
        table[WITHIN, i] = start
        if flat.size:
            table[WITHIN, i] -= flat[base[store[low]] + sequence[low]]


def skip_batches(rotation: Rotation, position: Position, serve: tuple[int, ...], n: int) -> Position:
    """Return where an iteration over some lane groups stands after its next ``n`` batches, by arithmetic.

    Examples
    --------
    >>> from chunkstore.state import Rotation
    >>> rotation = Rotation(n_draws=(10**12, 7), step=4, drop_last=False)
    >>> skip_batches(rotation, Position.start(0, groups=2), (0, 1), 10**9)
    Position(epoch=0, turn=1, drawn=(3999999992, 7))
    """
    groups = len(position.drawn)
    turns = [(position.turn + k) % groups for k in range(groups)]
    left = {g: rotation.left(g, position.drawn[g]) for g in turns if g in set(serve)}
    left = {g: batches for g, batches in left.items() if batches}
    n = min(n, sum(left.values()))
    if n < 1:
        return position
    # whole rounds, in which each group that still has batches gives one
    rounds, given = 0, 0
    for batches in sorted(left.values()):
        going = sum(b > rounds for b in left.values())
        more = min(batches - rounds, (n - given) // going) if going else 0
        rounds, given = rounds + more, given + more * going
    going_on = [g for g, batches in left.items() if batches > rounds]
    extra = going_on[: n - given]
    latest = extra or [g for g, batches in left.items() if batches >= rounds]
    drawn = list(position.drawn)
    for g, batches in left.items():
        taken = min(batches, rounds) + (g in extra)
        drawn[g] = min(rotation.n_draws[g], drawn[g] + taken * rotation.step)
    return Position(position.epoch, (latest[-1] + 1) % groups, tuple(drawn))


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
        """Return the moments of draws of a group; the draws themselves where they are the same."""
        if self.groups == 1:
            return draws - self.start[group] if self.start[group] else draws
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
    """Pieces that an iteration needs, in the order of need, by moment; int32 where that holds them."""

    __slots__ = ("block", "first", "last", "piece")

    def __init__(self, piece: Any, block: Any, first: Any, last: Any) -> None:
        kind = integers(int(last.max(initial=0)) + 2)
        self.piece, self.block = piece, block
        self.first, self.last = first.astype(kind, copy=False), last.astype(kind, copy=False)

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
            piece, block, first, last = needs.piece, needs.block, needs.first, needs.last
            keep = int(np.searchsorted(first, clock.stop[g]))  # ascending
            last = np.minimum(last[:keep], clock.stop[g] - 1)
            parts.append((piece[:keep], block[:keep], clock.moments(g, first[:keep]), clock.moments(g, last)))
        if len(parts) == 1:
            return cls(*parts[0])
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
        below = -(-(self._high - self._low) // span)  # pieces of fewer windows read what these touch alone
        self._few = schedule.count[turns.piece] < below[turns.block]
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
    """First obs of every sequence of every store, on one axis: ``flat[base[store] + sequence]``."""

    def __init__(self, stores: Sequence[Any]) -> None:
        parts = [np.asarray(s.sequences.offsets, np.int64) for s in stores]
        self.flat = np.concatenate(parts) if len(parts) != 1 else np.ascontiguousarray(parts[0])
        sizes = np.array([len(p) for p in parts], np.int64)
        self.base = np.cumsum(sizes) - sizes

    @classmethod
    def none(cls, n_stores: int) -> SequenceStarts:
        """Return what leaves ``within`` as it is."""
        made = object.__new__(cls)
        made.flat, made.base = np.empty(0, np.int64), np.zeros(n_stores, np.int64)
        return made

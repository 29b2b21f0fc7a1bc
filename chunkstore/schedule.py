"""The order of an epoch: which window every draw shows, and which blocks are needed when.

Decides with integers; never reads. A *visit* is one turn of a block, serving a part of its items;
with ``passes = P`` a block of usual size has P visits, spread over the epoch. Visits are dealt to
``K`` lanes: the lane that is free first gets the next visit in keyed random order. Draw ``g`` is item
``g // K`` of lane ``g % K``::

    lane 0   | block 7 ......| block 2 ......| ...
    lane 1   ...| block 4 ......| block 9 ...| ...      one draw from each lane in turn
    lane 2   | block 0 ......| block 5 ......| ...

- Lanes begin at different places of a visit, and visits are dealt so that few end together: the
  reads of an epoch are spread evenly (:mod:`chunkstore.dealing`).
- *Ranks*: rank r of R takes the draws with ``g % R == r``. With K a multiple of R these are exactly the
  lanes with ``k % R == r``: a rank keeps ``K / R`` blocks, and the order of the whole does not depend on R.
- *Lane groups*: with G groups the epoch is G streams of draws, each with lanes of its own, and batches are
  taken from the groups in turn: a worker process that serves one group keeps ``K / G`` blocks. The order
  depends on G, never on the number of workers, ranks, or windows in a batch.

Pure: from a key and the number of items in every block follows everything, without data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.compiled import njit
from chunkstore.dealing import Pieces, crowding, deal, new_blocks
from chunkstore.errors import ConfigError
from chunkstore.numbers import whole_number, whole_numbers
from chunkstore.permute import MAX_N, TILE, derive_key, mix_keys, permute_many, permute_tile, sides, tile
from chunkstore.visits import integers, plan_visits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from chunkstore.windows import WindowIndex

__all__ = ["ORDER_VERSION", "Blocks", "EpochSchedule", "Needs"]

#: counts the changes of the order that the same key gives; a training state of another one cannot go on
ORDER_VERSION = 2
MOST_AT_ONCE = 5  # beyond three times the average
TRIES = 8  # keys, where the first order of an epoch is less even than that
TRY_PIECES = 1 << 16  # only epochs of at most so many pieces are dealt again


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks that segments touch, in the order of (store, obs): int64 arrays of one length."""

    store: NDArray[np.int64]
    """Index of the store."""
    start: NDArray[np.int64]
    """First obs, a multiple of the store's block length."""
    stop: NDArray[np.int64]
    """One past the last obs."""

    @classmethod
    def of(cls, index: WindowIndex, lengths: Sequence[int], n_obs: Sequence[int]) -> Blocks:
        """Cut each store's axis into blocks of ``lengths[store]`` obs and keep those with segments.

        Examples
        --------
        >>> from chunkstore.segments import cut_segments
        >>> from chunkstore.windows import WindowSpec, WindowIndex
        >>> index = WindowIndex(cut_segments(np.array([0, 9])), WindowSpec(3))
        >>> Blocks.of(index, [4], [9]).start.tolist()
        [0, 4, 8]
        """
        length = np.asarray(lengths, np.int64)[index.store]
        first, last = index.start // length, (index.stop - 1) // length
        count = last - first + 1
        total = int(count.sum())
        begins = np.cumsum(count) - count
        nth = np.arange(total) - np.repeat(begins, count) + np.repeat(first, count)
        store = np.repeat(index.store, count)
        # neighbouring segments may share a block
        new = np.ones(total, bool)
        new[1:] = (np.diff(store) != 0) | (np.diff(nth) != 0)
        store, nth = store[new], nth[new]
        length = np.asarray(lengths, np.int64)[store]
        start = nth * length
        return cls(store, start, np.minimum(start + length, np.asarray(n_obs, np.int64)[store]))

    def __len__(self) -> int:
        return len(self.start)

    def first_ids(self, index: WindowIndex) -> NDArray[np.int64]:
        """Return the id of the first window of each block, and the number of windows: int64[blocks + 1]."""
        return np.append(index.count_before(self.store, self.start), index.n_windows)

    def of_windows(self, store: NDArray[np.int64], start: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block that each window start lies in."""
        scale = int(self.stop.max(initial=0)) + 1
        axis = self.start if self.store[-1] == 0 else self.store * scale + self.start
        place = start if self.store[-1] == 0 else store * scale + start
        return np.searchsorted(axis, place, side="right") - 1


@dataclass(frozen=True, slots=True)
class Needs:
    """Pieces in the order in which they are needed: arrays of one length."""

    piece: NDArray[np.integer[Any]]
    """Index of the piece (a visit, or a part of one, in one lane)."""
    block: NDArray[np.integer[Any]]
    """The block that it needs."""
    first: NDArray[np.int64]
    """First draw of the group that needs it; ascending."""
    last: NDArray[np.int64]
    """Last draw of the group that needs it."""


class EpochSchedule:
    """The order of one epoch.

    Parameters
    ----------
    counts : int64 array
        Items (windows to draw) of each block.
    key : int
        64-bit key of (seed, epoch, fingerprint).
    lanes : int
        K, blocks drawn from at the same time, over all ranks and groups; a multiple of ``lane_groups``.
    passes : int
        P, visits of a block of usual size.
    lane_groups : int
        G, streams of draws. Draws are numbered one group after the other: those of group j
        begin at ``group_first[j]``.
    shuffle : bool
        False for the order of the store: draw g is item g.

    Examples
    --------
    >>> schedule = EpochSchedule([4, 4, 2], key=1, lanes=2)
    >>> items, pieces = schedule.items(range(10))
    >>> sorted(items.tolist()) == list(range(10))  # every window exactly once
    True
    >>> bool(schedule.items([7])[0][0] == items[7])  # any draw alone
    True
    """

    def __init__(
        self,
        counts: ArrayLike,
        *,
        key: int,
        lanes: int = 1,
        passes: int = 1,
        lane_groups: int = 1,
        shuffle: bool = True,
    ) -> None:
        counts = whole_numbers("counts", counts, 0)
        lanes, passes = whole_number("lanes", lanes, 1), whole_number("passes", passes, 1)
        lane_groups = whole_number("lane_groups", lane_groups, 1)
        key = whole_number("key", key)
        if counts.sum(dtype=np.float64) > MAX_N:
            raise ConfigError(f"an epoch has at most 2**48 draws, got {counts.sum(dtype=np.float64):.4g}")
        if lanes % lane_groups:
            raise ConfigError(f"lanes ({lanes}) must be a multiple of lane_groups ({lane_groups})")
        self.counts = counts
        self.first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.n_draws = int(self.first[-1])
        self.key = derive_key(key, "items")
        self.shuffle = shuffle
        self.lane_groups = lane_groups
        self.group_first = group_offsets(self.n_draws, lane_groups)
        self.lanes = lanes if shuffle else lane_groups
        self.lanes_per_group = self.lanes // lane_groups
        if shuffle:
            pieces = self._deal_evenly(derive_key(key, "visits"), passes)
        else:
            pieces = _in_order(self.first, self.group_first)
        self.pieces = pieces
        self.lane, self.at, self.block, self.rank, self.count = pieces
        self._lane_first = np.searchsorted(self.lane, np.arange(self.lanes + 1)).astype(np.int64)

    def _deal_evenly(self, key: int, passes: int) -> Pieces:
        """Deal visits; where a short epoch came out less even than promised, try other keys."""
        capacity, n = self._capacities(), len(self.counts)
        best, least = None, np.inf
        for attempt in range(TRIES):
            keyed = derive_key(key, attempt) if attempt else key
            pieces = deal(plan_visits(self.counts, keyed, passes, self.lanes), capacity, n)
            if len(pieces.at) > TRY_PIECES:
                return pieces
            new = new_blocks(pieces)
            rate = np.count_nonzero(new) / max(1, self.n_draws)
            begun = new & (pieces.at > 0)
            draws = self.draws_of(pieces.lane[begun], pieces.at[begun])
            group = pieces.lane[begun] // self.lanes_per_group
            uneven = max(crowding(draws[group == g], rate) for g in range(self.lane_groups))
            if uneven < least:
                best, least = pieces, uneven
            if least <= MOST_AT_ONCE:
                break
        assert best is not None
        return best

    def _capacities(self) -> NDArray[np.int64]:
        """Return the number of items of each lane."""
        lane, per = np.arange(self.lanes), self.lanes_per_group
        in_group = np.diff(self.group_first)[lane // per]
        sizes: NDArray[np.int64] = in_group // per + (lane % per < in_group % per)
        return sizes

    def lane_items(self, draws: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (lane, item within the lane) of each draw."""
        per = self.lanes_per_group
        if self.lane_groups == 1:
            return draws % per, draws // per
        group = np.searchsorted(self.group_first, draws, side="right") - 1
        local = draws - self.group_first[group]
        return group * per + local % per, local // per

    def draws_of(self, lane: NDArray[np.int64], item: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the draw that shows an item of a lane: the inverse of :meth:`lane_items`."""
        per = self.lanes_per_group
        draws: NDArray[np.int64] = np.multiply(item, per, dtype=np.int64)
        draws += lane if self.lane_groups == 1 else self.group_first[lane // per] + lane % per
        return draws

    def cursor(self) -> Cursor:
        """Return a memory of where each lane is, which makes :meth:`items` faster in sequence."""
        return Cursor(self.lanes)

    def items(
        self, draws: ArrayLike, cursor: Cursor | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what draws show, in any order, without computing what lies before them.

        Parameters
        ----------
        draws : array of int
            Each in ``range(n_draws)``.
        cursor : Cursor, optional
            From :meth:`cursor`; saves a search where draws follow each other.

        Returns
        -------
        item : int64 array
            Index of the item in the epoch, blocks one after the other.
        piece : int64 array
            Index of the piece it belongs to.
        """
        draws = whole_numbers("draws", draws)
        if draws.size and (int(draws.min()) < 0 or int(draws.max()) >= self.n_draws):
            raise IndexError(f"draws {draws.min()} to {draws.max()} are not all in range({self.n_draws})")
        cursor = cursor or self.cursor()
        flat = draws.reshape(-1)
        out, piece = np.empty_like(flat), np.empty_like(flat)
        _items(
            flat,
            self.group_first,
            self.lanes_per_group,
            self._lane_first,
            self.at,
            self.count,
            self.block,
            self.rank,
            self.counts,
            self.first,
            np.uint64(self.key),
            self.shuffle,
            cursor.piece,
            cursor.sides,
            cursor.key,
            out,
            piece,
        )
        return out.reshape(draws.shape), piece.reshape(draws.shape)

    def items_of(self, pieces: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all items of pieces, and for each the position in ``pieces`` of the one it belongs to."""
        count = self.count[pieces]
        owner = np.repeat(np.arange(len(pieces)), count)
        rank = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count) + self.rank[pieces][owner]
        block = self.block[pieces][owner]
        if self.shuffle:
            rank = permute_many(rank, self.counts[block], mix_keys(self.key, self.block[pieces])[owner])
        return self.first[block] + rank, owner

    def needs(self, *, group: int = 0, rank: int = 0, world_size: int = 1, start: int = 0) -> Needs:
        """Return the pieces that a rank needs of one lane group, in order of need.

        Parameters
        ----------
        group : int
            The lane group.
        rank, world_size : int
            The rank takes the draws of the group whose number within it is ``rank`` modulo ``world_size``.
        start : int
            First draw within the group.

        Raises
        ------
        ConfigError
            If the lanes of a group cannot be shared evenly by the ranks, or there is no such group or rank.
        """
        group, start = whole_number("group", group, 0), whole_number("start", start, 0)
        rank, world_size = whole_number("rank", rank, 0), whole_number("world_size", world_size, 1)
        if group >= self.lane_groups or rank >= world_size:
            raise ConfigError(
                f"group {group} is not one of {self.lane_groups}, or rank {rank} not one of {world_size}"
            )
        per = self.lanes_per_group
        low, high = self._lane_first[group * per], self._lane_first[(group + 1) * per]
        pieces = np.arange(low, high, dtype=np.int32 if high < 2**31 else np.int64)
        if self.shuffle and world_size > 1:
            if per % world_size:
                raise ConfigError(
                    f"{per} lanes a group cannot be shared by {world_size} ranks: make lanes a "
                    f"multiple of lane_groups x world_size = {self.lane_groups * world_size}"
                )
            pieces = pieces[self.lane[pieces] % per % world_size == rank]
        first = self.draws_of(self.lane[pieces], self.at[pieces])
        first -= self.group_first[group]
        order = np.argsort(first, kind="stable")
        first, pieces = first[order], pieces[order]
        del order
        last = np.multiply(self.count[pieces], per, dtype=np.int64)
        last += first - per
        if start > 0:
            going = last >= start
            pieces, first, last = pieces[going], np.maximum(first[going], start), last[going]
        return Needs(pieces, self.block[pieces], first, last)


def group_offsets(n_draws: int, groups: int) -> NDArray[np.int64]:
    """Return where the draws of each lane group begin, and the number of all: int64[groups + 1]."""
    sizes = n_draws // groups + (np.arange(groups) < n_draws % groups)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


class Cursor:
    """Where each lane is: scratch of :meth:`EpochSchedule.items`."""

    __slots__ = ("key", "piece", "sides")

    def __init__(self, lanes: int) -> None:
        self.piece = np.full(lanes, -1, np.int64)
        self.sides = np.ones((lanes, 2), np.uint64)
        self.key = np.zeros(lanes, np.uint64)


def _in_order(first: NDArray[np.int64], group_first: NDArray[np.int64]) -> Pieces:
    """Return pieces for the order of the store: one lane a group, blocks cut where groups meet."""
    edges = np.unique(np.concatenate([first, group_first]))
    begin, count = edges[:-1], np.diff(edges)
    lane = np.searchsorted(group_first, begin, side="right") - 1
    block = np.searchsorted(first, begin, side="right") - 1
    pieces = Pieces(lane, begin - group_first[lane], block, begin - first[block], count)
    kind = integers(len(first), int(np.diff(group_first).max()), int(np.diff(first).max(initial=0)))
    return Pieces(*(column.astype(kind) for column in pieces))


@njit(cache=True, nogil=True)
def _items(  # noqa: PLR0917 - a compiled kernel
    draws: Any,
    group_first: Any,
    per: Any,
    lane_first: Any,
    at: Any,
    count: Any,
    block: Any,
    rank: Any,
    counts: Any,
    first: Any,
    key: Any,
    shuffle: Any,
    cursor: Any,
    cursor_sides: Any,
    cursor_key: Any,
    out: Any,
    piece: Any,
) -> None:
    one = np.uint64(1)
    group, before = np.int64(0), np.int64(-1)
    k = j = np.int64(0)  # the lane of a draw, and its item there
    room = tile()
    for low in range(0, draws.size, TILE):
        m = min(TILE, draws.size - low)
        for i in range(m):
            draw = draws[low + i]
            ahead = draw - before
            if before >= 0 and 0 <= ahead <= per and draw < group_first[group + 1]:
                k += ahead  # a step on from the last one: no division
                if k >= (group + 1) * per:
                    k -= per
                    j += 1
            else:
                if draw < group_first[group] or draw >= group_first[group + 1]:
                    group = np.int64(np.searchsorted(group_first, draw, side="right") - 1)
                j = (draw - group_first[group]) // per
                k = group * per + (draw - group_first[group] - j * per)
            before = draw
            p = cursor[k]
            if p < 0 or j < at[p] or j >= at[p] + count[p]:
                lo, hi = lane_first[k], lane_first[k + 1]
                if p >= 0 and p + 1 < hi and at[p + 1] <= j < at[p + 1] + count[p + 1]:
                    p += 1
                else:
                    while hi - lo > 1:
                        middle = (lo + hi) // 2
                        if at[middle] <= j:
                            lo = middle
                        else:
                            hi = middle
                    p = lo
                cursor[k] = p
                cursor_sides[k, 0], cursor_sides[k, 1] = sides(counts[block[p]])
                z = (np.uint64(block[p]) + one) * np.uint64(0x9E3779B97F4A7C15) + key
                z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                cursor_key[k] = z ^ (z >> np.uint64(31))
            b = block[p]
            room[0, i], room[1, i] = np.uint64(rank[p] + j - at[p]), np.uint64(counts[b])
            room[2, i], room[3, i], room[4, i] = cursor_sides[k, 0], cursor_sides[k, 1], cursor_key[k]
            out[low + i] = first[b]
            piece[low + i] = p
        if shuffle:
            permute_tile(room, m)
        for i in range(m):
            out[low + i] += np.int64(room[0, i])

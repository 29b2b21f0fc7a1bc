"""The order of an epoch: which window every draw shows, and which blocks are needed when.

Decides with integers; never reads. A *visit* is one turn of a block, serving a part of its items;
with ``passes = P`` a block of usual size has P visits, spread over the epoch. Visits are dealt to
``K`` lanes: the lane that is free first gets the next visit in keyed random order. Draw ``g`` is item
``g // K`` of lane ``g % K``::

    lane 0   | block 7 ......| block 2 ......| ...
    lane 1   ...| block 4 ......| block 9 ...| ...      one draw from each lane in turn
    lane 2   | block 0 ......| block 5 ......| ...

- The first visit of each lane is cut at k/K of its length, the rest played at the end, so that lanes
  do not change blocks together; while dealing, a visit that would end where others end waits a
  little. Hence the reads of an epoch are spread evenly.
- Lanes have equal lengths (one more or less), so a few visits at the end of an epoch are cut in two.
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
from numba import njit

from chunkstore.errors import ConfigError
from chunkstore.permute import derive_key, mix_keys, permute_many, permute_one, sides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from chunkstore.windows import WindowIndex

__all__ = ["Blocks", "EpochSchedule", "Needs"]

LOOKAHEAD = 16  # visits among which the dealer chooses
PATIENCE = 16  # picks that the first of them waits at most
SLACK = 1  # pieces that may end about when a new one does
FUZZ = 0.3  # sizes within 30 % count as alike
GOLDEN = 0.6180339887498949
_BUSY, _CUT = 1 << 20, 1 << 10


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
        lo = np.searchsorted(self.store, store, side="left")
        hi = np.searchsorted(self.store, store, side="right")
        if len(np.unique(store)) <= 1:
            base = int(lo[0]) if len(lo) else 0
            end = int(hi[0]) if len(hi) else 0
            return base + np.searchsorted(self.start[base:end], start, side="right") - 1
        scale = int(self.stop.max()) + 1
        return np.searchsorted(self.store * scale + self.start, store * scale + start, side="right") - 1


@dataclass(frozen=True, slots=True)
class Needs:
    """Pieces in the order in which they are needed: arrays of one length."""

    piece: NDArray[np.int64]
    """Index of the piece (a visit, or a part of one, in one lane)."""
    block: NDArray[np.int64]
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
        counts = np.asarray(counts, np.int64)
        if lanes < 1 or passes < 1 or lane_groups < 1:
            raise ConfigError(
                f"lanes ({lanes}), passes ({passes}) and lane_groups ({lane_groups}) must be at least 1"
            )
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
            block, rank, count = _visits(counts, derive_key(key, "visits"), passes, lanes)
            dealt = _dealt(block, rank, count, self._capacities(), len(counts))
        else:
            dealt = _in_order(self.first, self.group_first)
        lane, at, block, rank, count = dealt
        order = np.argsort(lane.astype(np.int32), kind="stable")
        #: pieces, in the order of (lane, place): lane, first item in the lane, block, first rank, items
        self.lane, self.at, self.block = lane[order], at[order], block[order]
        self.rank, self.count = rank[order], count[order]
        self._lane_first = np.searchsorted(self.lane, np.arange(self.lanes + 1)).astype(np.int64)

    def _capacities(self) -> NDArray[np.int64]:
        """Return the number of items of each lane."""
        lane, per = np.arange(self.lanes), self.lanes_per_group
        in_group = np.diff(self.group_first)[lane // per]
        return in_group // per + (lane % per < in_group % per)

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
        return self.group_first[lane // per] + item * per + lane % per

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
        draws = np.asarray(draws, np.int64)
        if draws.size and (int(draws.min()) < 0 or int(draws.max()) >= self.n_draws):
            raise IndexError(f"draws {draws.min()} to {draws.max()} are not all in range({self.n_draws})")
        lane, item = self.lane_items(draws)
        cursor = cursor or self.cursor()
        out, piece = np.empty_like(draws), np.empty_like(draws)
        _items(
            lane,
            item,
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
        return out, piece

    def piece_items(self, piece: int) -> NDArray[np.int64]:
        """Return the items of one piece, in the order of its draws."""
        block, rank, count = int(self.block[piece]), int(self.rank[piece]), int(self.count[piece])
        ranks = np.arange(rank, rank + count)
        if not self.shuffle:
            return self.first[block] + ranks
        n = np.full(count, self.counts[block])
        return self.first[block] + permute_many(ranks, n, np.repeat(mix_keys(self.key, [block]), count))

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
            If the lanes of a group cannot be shared evenly by the ranks.
        """
        per = self.lanes_per_group
        low, high = self._lane_first[group * per], self._lane_first[(group + 1) * per]
        pieces = np.arange(low, high)
        if self.shuffle and world_size > 1:
            if per % world_size:
                raise ConfigError(
                    f"{per} lanes a group cannot be shared by {world_size} ranks: make lanes a "
                    f"multiple of lane_groups x world_size = {self.lane_groups * world_size}"
                )
            pieces = pieces[self.lane[pieces] % per % world_size == rank]
        base = self.group_first[group]
        last = self.draws_of(self.lane[pieces], self.at[pieces] + self.count[pieces] - 1) - base
        going = last >= start
        pieces, last = pieces[going], last[going]
        first = self.draws_of(self.lane[pieces], self.at[pieces]) - base
        order = np.argsort(first, kind="stable")
        pieces = pieces[order]
        return Needs(pieces, self.block[pieces], np.maximum(first[order], start), last[order])


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


def _in_order(first: NDArray[np.int64], group_first: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Return pieces for the order of the store: one lane a group, blocks cut where groups meet."""
    edges = np.unique(np.concatenate([first, group_first]))
    begin, count = edges[:-1], np.diff(edges)
    lane = np.searchsorted(group_first, begin, side="right") - 1
    block = np.searchsorted(first, begin, side="right") - 1
    return lane, begin - group_first[lane], block, begin - first[block], count


def _visits(
    counts: NDArray[np.int64], key: int, passes: int, lanes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (block, first rank, items) of every visit, in keyed random order, pass after pass.

    A block of n items has ``P * n / usual`` visits (at least one, at most P), so that small blocks are
    not read P times for a handful of windows each. At least two visits a lane where items suffice.
    """
    least = 2 * lanes
    blocks = np.flatnonzero(counts)
    n = counts[blocks]
    if not len(n):
        empty = np.empty(0, np.int64)
        return empty, empty, empty
    total = int(n.sum())
    usual = float((n.astype(np.float64) ** 2).sum() / total)
    passes = max(passes, min(-(-least // len(n)), total)) if len(n) < least else passes
    each = np.clip(np.rint(passes * (n / usual)).astype(np.int64), 1, np.minimum(passes, n))
    shift = (mix_keys(key, blocks) >> np.uint64(33)).astype(np.int64) % passes
    parts = []
    for p in range(passes):
        turn = (p + shift) % passes
        nth = turn * each // passes
        due = np.flatnonzero((turn + 1) * each // passes > nth)
        due = due[_even_order(n[due] / each[due], mix_keys(derive_key(key, p), blocks[due]))]
        low = nth[due] * n[due] // each[due]
        high = (nth[due] + 1) * n[due] // each[due]
        parts.append((blocks[due], low, high - low))
    block, rank, count = (np.concatenate(column) for column in zip(*parts, strict=True))
    # A lane's first visit is met in its middle, as any moment of the epoch would meet it: drawn evenly
    # from all items, so more likely a long one than one of the many short.
    ends = np.cumsum(count)
    moments = (np.arange(lanes) * 2 + 1) * total // (2 * lanes)
    begin = np.unique(np.searchsorted(ends, moments, side="right"))
    rest = np.ones(len(count), bool)
    rest[begin] = False
    order = np.concatenate([begin[np.argsort(mix_keys(key, begin), kind="stable")], np.flatnonzero(rest)])
    return block[order], rank[order], count[order]


def _even_order(size: NDArray[np.float64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return a keyed random order in which every stretch holds small and large visits alike.

    Visits are sorted by size (made fuzzy, ties broken by key), and the i-th is put at the fractional
    part of ``i * golden ratio``. Where all sizes are equal that is a random order like any other.
    """
    noise = (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53
    even = len(size) < 2 or float(size.min()) == float(size.max())
    ranked = np.argsort(noise if even else size * (1 + FUZZ * noise) + 1e-9 * noise, kind="stable")
    if even:
        return ranked
    place = np.empty(len(size))
    start = float(noise[ranked[0]])
    place[ranked] = (start + np.arange(len(size)) * GOLDEN) % 1.0
    return np.argsort(place, kind="stable")


def _dealt(
    block: NDArray[np.int64],
    rank: NDArray[np.int64],
    count: NDArray[np.int64],
    capacity: NDArray[np.int64],
    n_blocks: int,
) -> tuple[NDArray[np.int64], ...]:
    """Deal visits to lanes; return (lane, at, block, rank, count) of pieces in the order of their starts."""
    lanes, visits = len(capacity), len(block)
    room = visits + 3 * lanes + 1

    def grown(values: NDArray[np.int64]) -> NDArray[np.int64]:
        out = np.zeros(room, np.int64)
        out[:visits] = values
        return out

    total = int(capacity.sum())
    width = max(1, total // max(1, visits + lanes))
    pieces = np.empty((5, room), np.int64)
    n = _deal(
        grown(block),
        grown(rank),
        grown(count),
        visits,
        capacity,
        np.zeros(n_blocks, np.int64),
        np.zeros((int(capacity.max(initial=0)) + 1) * lanes // width + 2, np.int16),
        width,
        pieces,
    )
    return tuple(pieces[:, :n])


@njit(cache=True, nogil=True)
def _sink(heap: Any, size: Any) -> None:
    """Restore the heap after its top has grown."""
    at = 0
    value = heap[0]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value


@njit(cache=True, nogil=True)
def _deal(
    block: Any,
    rank: Any,
    count: Any,
    visits: Any,
    capacity: Any,
    until: Any,
    ends: Any,
    width: Any,
    out: Any,
) -> Any:
    """Deal; arrays of visits have free room behind for parts that are cut off.

    ``until[block]`` is the time until which a block is held, ``ends[time // width]`` how many pieces
    end about then; times are ``item * lanes + lane``, which is the draw where there is one group.
    """
    lanes = capacity.size
    heap = np.arange(lanes)  # time at which each lane is free; times mod lanes name the lane
    size = lanes
    head, tail, n, skipped = 0, visits, 0, 0
    while size > 0:
        now = heap[0]
        lane = now % lanes
        at = now // lanes
        room = capacity[lane] - at
        if room <= 0:
            size -= 1
            heap[0] = heap[size]
            _sink(heap, size)
            continue
        limit = min(head + LOOKAHEAD, tail)
        best, least = head, np.int64(1) << 40
        if at == 0:
            limit = head
        elif skipped >= PATIENCE:
            limit = head + 1
        for c in range(head, limit):
            if 2 * count[c] < count[head] or count[c] > 2 * count[head]:
                continue  # like for like, so that small visits stay mixed with large ones
            takes = min(count[c], room)
            score = max(0, np.int64(ends[(now + takes * lanes) // width]) - SLACK) if takes < room else 0
            if until[block[c]] > now:
                score += _BUSY
            if count[c] > room:
                score += _CUT
            if score < least:
                best, least = c, score
                if score == 0:
                    break
        if at > 0 and (least >= _CUT or head >= visits):
            # near the end: of what is left, and was cut from first visits, take what fits
            longest = np.int64(0)
            for c in range(max(head, visits), tail):
                score = np.int64(ends[(now + min(count[c], room) * lanes) // width]) if count[c] < room else 0
                if until[block[c]] > now:
                    score += _BUSY
                if count[c] > room:
                    score += _CUT
                if score < least or (score == least and count[c] > longest):
                    best, least, longest = c, score, count[c]
        b, r, s = block[best], rank[best], count[best]
        if best != head:
            skipped += 1
            for c in range(best, head, -1):
                block[c], rank[c], count[c] = block[c - 1], rank[c - 1], count[c - 1]
        else:
            skipped = 0
        head += 1
        takes = min(s, room)
        if at == 0:
            takes = min(takes, max(1, s * (lane + 1) // lanes))
        if takes < s:
            block[tail], rank[tail], count[tail] = b, r + takes, s - takes
            tail += 1
        out[0, n], out[1, n], out[2, n], out[3, n], out[4, n] = lane, at, b, r, takes
        n += 1
        now += takes * lanes
        until[b] = max(until[b], now)
        ends[now // width] += 1
        heap[0] = now
        _sink(heap, size)
    return n


@njit(cache=True, nogil=True)
def _items(
    lane: Any,
    item: Any,
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
    for i in range(lane.size):
        k, j = lane[i], item[i]
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
        nth = rank[p] + j - at[p]
        if shuffle:
            nth = np.int64(
                permute_one(
                    np.uint64(nth),
                    np.uint64(counts[b]),
                    cursor_sides[k, 0],
                    cursor_sides[k, 1],
                    cursor_key[k],
                )
            )
        out[i] = first[b] + nth
        piece[i] = p

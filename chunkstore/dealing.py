"""How visits of blocks are dealt to lanes, so that reads are spread evenly.

Decides which lane plays which visit when; which visits there are, and in which order they are to begin, comes
from :mod:`chunkstore.visits`. :mod:`chunkstore.schedule` makes draws of it. Pure; the loop over visits is
compiled.

A lane that is free takes the next visit. Two things keep the ends of visits apart, which is when the
next block is needed:

- Lanes begin at different places of a visit, so that first whole visits begin one usual share of draws
  after another (:func:`first_ends`). What is before them is filled last, with what lanes have too much of
  at their ends::

      lane 0  |b|aaaaaaaaaa|cccccccccc|eeee:      what is behind ':' is cut off ...
      lane 1  |eeeee|dddddddddd|ffffffffff|:      ... and fills the starts of lanes
      lane 2  |ffffffff|gggggggggg|hhhhhhhh:

- A visit that would end when others end waits a little for one that does not, of like size if there is
  one, and so does one whose block another lane holds. What counts is the most crowded stretch that the
  end would lie in, short or long (:func:`_crowd`).

Where exactly a short visit interrupts the long one that it is nested in is chosen last (:func:`_spread`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chunkstore.compiled import njit
from chunkstore.visits import integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkstore.visits import Visits

__all__ = ["Pieces", "crowding", "deal", "new_blocks"]

LOOKAHEAD = 16  # visits among which the dealer chooses
PATIENCE = 16  # picks that the first of them waits at most
USUAL = 2  # ends a bin
REACH = 12  # bins
SLACK = 1  # pieces that may end about when a new one does
NEAR = 12  # visits of other sizes that may go before one that would end in a crowd
PLACES = 8  # among which a short visit is put within a long one
_CROWDED = 2
_BUSY = 1 << 20


class Pieces(NamedTuple):
    """Visits, or parts of them, in lanes: arrays of one length, in the order of (lane, at).

    All int32 where that holds them: there are as many as blocks are visited, in memory for all of an epoch.
    """

    lane: NDArray[Any]
    """The lane."""
    at: NDArray[Any]
    """Item of the lane that is the piece's first."""
    block: NDArray[Any]
    """The block."""
    rank: NDArray[Any]
    """First of the block's items, in the block's own random order."""
    items: NDArray[Any]
    """How many of them."""


def deal(visits: Visits, capacity: NDArray[np.int64], n_blocks: int) -> Pieces:
    """Deal visits to lanes of given lengths.

    Parameters
    ----------
    visits : Visits
        In the order in which they are to be begun.
    capacity : int64[lanes]
        Items of each lane; their sum is that of the visits.
    n_blocks : int
        Blocks, numbered from 0.

    Returns
    -------
    Pieces
        At most two more a lane than there are visits.

    Examples
    --------
    >>> from chunkstore.visits import plan_visits
    >>> visits = plan_visits(np.array([4, 4, 2]), key=1, passes=1, lanes=2)
    >>> pieces = deal(visits, np.array([5, 5]), 3)
    >>> np.bincount(pieces.block, weights=pieces.items).tolist()
    [4.0, 4.0, 2.0]
    """
    total, lanes, n_visits = int(capacity.sum()), len(capacity), len(visits.whole)
    nested = n_visits < len(visits.block)
    edges = np.empty(0, np.int64)
    block, rank, count = visits.block, visits.rank, visits.items
    if nested:  # then visits are dealt as stretches of all items, and rank is the first of a stretch
        edges = np.concatenate([[0], np.cumsum(visits.items)])
        rank = edges[visits.whole]
        block, count = visits.block[visits.whole], np.diff(np.append(rank, total))
    usual = int((count.astype(np.float64) ** 2).sum() / max(1, total))
    width = max(1, total // max(1, n_visits + lanes))
    longest = int(capacity.max(initial=0)) + int(count.max(initial=0)) + 1
    kind = integers(n_blocks, longest, int(rank.max(initial=0)) + int(count.max(initial=0)))
    block, rank, count = (column.astype(kind) for column in (block, rank, count))
    out = np.empty((5, n_visits + 4 * lanes + 1), kind)
    begin = np.minimum(capacity, first_ends(lanes, usual))
    heap = np.sort(begin * lanes + np.arange(lanes))  # when lanes are free; times mod lanes name the lane
    ends = np.zeros(longest * lanes // width + 2, np.int16)
    np.add.at(ends, heap // width, 1)
    rest = np.empty((3, lanes + 1), np.int64)
    n, head, spare, size = _deal(
        block, rank, count, capacity, heap, np.zeros(n_blocks, np.int64), ends, width, rest, out
    )
    left = np.stack([block[head:], rank[head:], count[head:]]).astype(np.int64)
    del block, rank, count
    parts = np.concatenate([rest[:, :spare], left], axis=1)
    lane, at = heap[:size] % lanes, heap[:size] // lanes
    open_ends = np.stack([lane, at, capacity[lane] - at])
    starts = np.stack([np.arange(lanes), np.zeros(lanes, np.int64), begin])
    holes = np.concatenate([starts, open_ends], axis=1)
    holes = holes[:, np.argsort(holes[2], kind="stable")]
    holes = np.ascontiguousarray(holes[:, holes[2] > 0])
    n = _fill(parts, np.argsort(parts[2], kind="stable"), holes, ends, width, lanes, out, n)
    place = out[0, :n] * np.int64(longest + 1)
    place += out[1, :n]
    order = np.argsort(place, kind="stable").astype(np.int32 if n < 2**31 else np.int64)
    del place
    pieces = Pieces(*(row[:n][order] for row in out))
    return _parts(pieces, visits, edges, lanes) if nested else pieces


def _parts(pieces: Pieces, visits: Visits, edges: NDArray[np.int64], lanes: int) -> Pieces:
    """Return the parts that stretches of all items (``rank`` is their first) are made of."""
    lane, at, host, begin, items = pieces
    kind = at.dtype
    first = np.searchsorted(edges, begin, side="right") - 1
    count = np.searchsorted(edges, begin + items, side="left") - first
    owner = np.repeat(np.arange(len(begin), dtype=np.int32 if len(begin) < 2**31 else np.int64), count)
    opens = np.cumsum(count) - count
    part = np.arange(len(owner)) - np.repeat(opens - first, count)
    low = np.maximum(edges[part], begin[owner])
    size = (np.minimum(edges[part + 1], (begin + items)[owner]) - low).astype(kind)
    rank = (visits.rank[part] + low - edges[part]).astype(kind)
    del low
    block = visits.block[part].astype(kind)
    own = block == host[owner]
    del part
    # where exactly a short visit interrupts a long one is chosen last, when all ends are known
    total = int(items.sum())
    width = max(1, total // (len(begin) + int(np.count_nonzero(~own)) + lanes))
    ends = np.zeros((int((at + items).max()) + 1) * lanes // width + 2, np.int16)
    moment = at.astype(np.int64) * lanes + lane
    np.add.at(ends, moment // width, 1)
    turns = np.argsort(moment, kind="stable")
    del moment
    _spread(turns, opens, count, own, lane, at, size, rank, ends, width, lanes)
    starts = np.cumsum(size) - size
    starts -= starts[opens][owner]
    starts += at[owner]
    return Pieces(lane[owner], starts.astype(kind), block, rank, size)


def new_blocks(pieces: Pieces) -> NDArray[np.bool_]:
    """Return which pieces need a block that their lane does not hold: all but those behind a nested one."""
    new = np.ones(len(pieces.lane), bool)
    new[2:] = (pieces.block[2:] != pieces.block[:-2]) | (pieces.lane[2:] != pieces.lane[:-2])
    return new


def crowding(draws: NDArray[np.int64], rate: float) -> float:
    """Return the most that a stretch of draws holds beyond three times what it does on average.

    Parameters
    ----------
    draws : int64 array
        Draws that need a new block, in any order.
    rate : float
        New blocks a draw, on average.

    Examples
    --------
    >>> crowding(np.array([10, 11, 12, 50]), 0.1)  # 3 in 3 draws, where 0.3 are usual
    2.1
    """
    if not len(draws):
        return 0.0
    slack = np.arange(len(draws)) - 3 * rate * np.sort(draws)
    return float(round((slack - np.minimum.accumulate(slack)).max() + 1 - 3 * rate, 9))


def first_ends(lanes: int, usual: int) -> NDArray[np.int64]:
    """Return the items after which each lane begins its first whole visit: int64[lanes].

    Taken in order of draws they are ``usual`` draws apart, which keeps equal visits evenly spread for ever.

    Examples
    --------
    >>> first_ends(4, 3)  # draws 1, 4, 7, 10
    array([1, 0, 2, 1])
    >>> first_ends(4, 8)
    array([1, 3, 5, 7])
    """
    nth = np.arange(lanes)
    draw = nth * usual + nth * math.gcd(usual, lanes) // lanes  # each of another lane
    draw += usual // 2
    items = np.empty(lanes, np.int64)
    items[draw % lanes] = draw // lanes
    return items


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
def _crowd(ends: Any, at: Any) -> Any:
    """Return how many ends a bin has, and what stretches beside it hold beyond ``USUAL`` a bin.

    The worst stretches of at most ``REACH`` bins before and after it: a bin holds one end on average.
    """
    before = after = np.int64(0)
    run = np.int64(0)
    for i in range(at - 1, max(-1, at - 1 - REACH), -1):
        run += ends[i] - USUAL
        before = max(before, run)
    run = np.int64(0)
    for i in range(at + 1, min(ends.size, at + 1 + REACH)):
        run += ends[i] - USUAL
        after = max(after, run)
    return before + after + ends[at]


@njit(cache=True, nogil=True)
def _deal(  # noqa: PLR0917 - a compiled kernel
    block: Any,
    rank: Any,
    count: Any,
    capacity: Any,
    heap: Any,
    until: Any,
    ends: Any,
    width: Any,
    rest: Any,
    out: Any,
) -> Any:
    """Fill ``out`` with (lane, at, block, rank, count), ``rest`` with (block, rank, count) that were cut off.

    Returns how many pieces, visits and rests there are, and how many lanes are still open. ``until[block]``
    is the time until which a block is held, ``ends[time // width]`` how many pieces end about then; times
    are ``item * lanes + lane``.
    """
    lanes = capacity.size
    visits = block.size
    size = lanes
    head, n, skipped, spare = 0, 0, 0, 0
    while size > 0 and head < visits:
        now = heap[0]
        lane = now % lanes
        at = now // lanes
        room = capacity[lane] - at
        if room <= 0:
            size -= 1
            heap[0] = heap[size]
            _sink(heap, size)
            continue
        best, least = head, np.int64(1) << 40
        limit = head + 1 if skipped >= PATIENCE else min(head + LOOKAHEAD, visits)
        for c in range(head, limit):
            if 2 * count[c] < count[head] or count[c] > 2 * count[head]:
                continue  # like for like, so that small visits stay mixed with large ones
            score = np.int64(0)
            if count[c] < room:
                score = max(score, _crowd(ends, (now + count[c] * lanes) // width) - SLACK)
            if until[block[c]] > now:
                score += _BUSY
            if score < least:
                best, least = c, score
                if score == 0:
                    break
        if _CROWDED <= least < _BUSY:  # better another size than a crowd; it is the next one's turn soon
            for c in range(head, min(limit, head + NEAR)):
                score = _crowd(ends, (now + count[c] * lanes) // width) - SLACK
                if score < least and until[block[c]] <= now:
                    best, least = c, score
        b, r, s = block[best], rank[best], count[best]
        skipped = skipped + 1 if best != head else 0
        for c in range(best, head, -1):
            block[c], rank[c], count[c] = block[c - 1], rank[c - 1], count[c - 1]
        head += 1
        takes = min(s, room)
        if takes < s:
            rest[0, spare], rest[1, spare], rest[2, spare] = b, r + takes, s - takes
            spare += 1
        out[0, n], out[1, n], out[2, n], out[3, n], out[4, n] = lane, at, b, r, takes
        n += 1
        now += takes * lanes
        until[b] = max(until[b], now)
        ends[now // width] += 1
        heap[0] = now
        _sink(heap, size)
    return n, head, spare, size


@njit(cache=True, nogil=True)
def _fill(  # noqa: PLR0917 - a compiled kernel
    parts: Any, by_size: Any, holes: Any, ends: Any, width: Any, lanes: Any, out: Any, n: Any
) -> Any:
    """Fill holes (lane, at, items), the smallest first, with parts (block, rank, items)."""
    going = np.int64(-1)  # the part that is in use
    found = holes.shape[1]
    for nth in range(found):
        lane, at, need = holes[0, nth], holes[1, nth], holes[2, nth]
        after = holes[2, nth + 1] if nth + 1 < found else np.int64(0)
        first = n
        while need > 0:
            if going < 0:
                going = _next_part(parts[2], by_size, need, after, ends, width, lanes)
            i = going
            takes = min(need, parts[2, i])
            c = n  # the longest comes first
            while c > first and out[4, c - 1] < takes:
                for row in range(2, 5):
                    out[row, c] = out[row, c - 1]
                c -= 1
            out[2, c], out[3, c], out[4, c] = parts[0, i], parts[1, i], takes
            n += 1
            need -= takes
            parts[1, i] += takes
            parts[2, i] -= takes
            if parts[2, i] == 0:
                going = np.int64(-1)
        if n - first == 2:
            early, late = (at + out[4, n - 1]) * lanes // width, (at + out[4, first]) * lanes // width
            if ends[early] < ends[late]:
                for row in range(2, 5):
                    out[row, first], out[row, n - 1] = out[row, n - 1], out[row, first]
        for c in range(first, n):
            if c > first:
                ends[at * lanes // width] += 1
            out[0, c], out[1, c] = lane, at
            at += out[4, c]
    return n


@njit(cache=True, nogil=True)
def _next_part(  # noqa: PLR0917 - a compiled kernel
    left: Any, by_size: Any, need: Any, after: Any, ends: Any, width: Any, lanes: Any
) -> Any:
    """Choose the part from which the rest of a hole is filled.

    One that fits it, else one whose rest makes a change in the next hole (of ``after`` items) where few
    others change.
    """
    best, least = np.int64(-1), np.int64(1) << 40
    for i in by_size:
        over = left[i] - need
        if left[i] == 0:
            continue
        if over == 0:
            return np.int64(i)
        if over < 0:
            score = (np.int64(1) << 30) + left[i]  # a third piece: the shortest one
        elif over >= after:
            score = np.int64(SLACK)
        else:
            score = np.int64(min(ends[over * lanes // width], ends[(after - over) * lanes // width]))
        if score < least:
            best, least = np.int64(i), score
    return best


@njit(cache=True, nogil=True)
def _spread(  # noqa: PLR0917 - a compiled kernel
    turns: Any,
    opens: Any,
    count: Any,
    own: Any,
    lane: Any,
    at: Any,
    size: Any,
    rank: Any,
    ends: Any,
    width: Any,
    lanes: Any,
) -> None:
    """Move short visits within long ones to where few others begin: changes ``size`` and ``rank`` of parts.

    A stretch whose long visit is cut m times has m cells of equal length; each short one stays in its own.
    """
    turn = np.int64(0)
    for stretch in turns:
        first, stop = opens[stretch], opens[stretch] + count[stretch]
        cuts, left, alternate = np.int64(-1), np.int64(0), True
        for i in range(first, stop):
            if own[i]:
                cuts += 1
                left += size[i]
                alternate &= i == first or not own[i - 1]
            elif cuts >= 0 and i + 1 < stop:
                alternate &= own[i + 1]
        if cuts < 1 or left < 3 * cuts + 2 or not alternate:
            continue
        now = at[stretch]  # item of the lane at which part i begins
        done, nth, begun = np.int64(0), np.int64(0), False
        base = np.int64(0)
        for i in range(first, stop):
            if own[i]:
                if not begun:
                    base, begun = rank[i], True
                rank[i] = base + done
                if nth < cuts:
                    low = max(done + 1, nth * left // cuts)
                    high = min(left - (cuts - nth), (nth + 1) * left // cuts)
                    best, least = max(low, min(done + size[i], high)), np.int64(1) << 40
                    for c in range(PLACES):
                        # elsewhere in each cell: lanes are a share apart, a grid would put all on few bins
                        x = low + (high - low) * ((c * 3 % PLACES << 16) + (turn & 0xFFFF)) // (PLACES << 16)
                        score = _crowd(ends, ((now + x - done) * lanes + lane[stretch]) // width)
                        if score < least and low <= x <= high:
                            best, least = x, score
                            if score == 0:
                                break
                    nth += 1
                    turn += 40503  # 2 ** 16 times the golden ratio
                    size[i] = best - done
                    ends[((now + size[i]) * lanes + lane[stretch]) // width] += 1
                else:
                    size[i] = left - done
                done += size[i]
            now += size[i]

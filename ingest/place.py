"""What goes where: lengths to offsets to whole shards. Pure: integers and numpy.

Two questions are answered. Where do the rows of placed parts go (their lengths are known), and
where do the rows of staged slices go (their lengths were counted)? Both answers are prefix sums. This
module never sees a value of the data, only counts and, for ordering, the times at the ends of slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ingest.merge_sorted import ordered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkstore.layout import Layout

__all__ = [
    "PartPlaces",
    "SlicePlaces",
    "group_by_bytes",
    "place_parts",
    "place_slices",
    "task_borders",
]


@dataclass(frozen=True, slots=True)
class PartPlaces:
    """Where the rows of placed parts go, in the order of ``obs``."""

    part: np.ndarray
    """int64[P]: index of the part."""
    start: np.ndarray
    """int64[P + 1]: first obs of each, ascending; the last entry is ``n_obs``."""
    rowsize: np.ndarray
    """int64[S]: obs of each sequence."""

    @property
    def n_obs(self) -> int:
        """Length of the ``obs`` axis."""
        return int(self.start[-1])

    def touching(self, start: int, stop: int) -> tuple[int, int]:
        """Range [lo, hi) of entries that a task for obs [start, stop) reads.

        A part without rows is read by the task that holds its place, or by the last.
        """
        lo = int(np.searchsorted(self.start[1:], start, side="right"))
        while lo > 0 and self.start[lo - 1] == self.start[lo] == start:
            lo -= 1  # parts without rows at the very start
        hi = int(np.searchsorted(self.start[:-1], stop, side="left"))
        if stop == self.n_obs:
            hi = self.part.size
        return lo, hi


def place_parts(sequence: np.ndarray, rows: np.ndarray, n_sequences: int) -> PartPlaces:
    """Place parts whose sequence and rows are known: by sequence, then in their own order.

    Parameters
    ----------
    sequence, rows : int64[P]
        Sequence and number of rows of each part.
    n_sequences : int
        Number of sequences; one may have no part.

    Examples
    --------
    >>> places = place_parts(np.array([1, 0, 1]), np.array([5, 2, 3]), 3)
    >>> places.part.tolist(), places.start.tolist(), places.rowsize.tolist()
    ([1, 0, 2], [0, 2, 7, 10], [2, 8, 0])
    """
    order = np.arange(sequence.size)
    if (np.diff(sequence) < 0).any():
        order = np.argsort(sequence, kind="stable")
    start = np.zeros(order.size + 1, np.int64)
    np.cumsum(rows[order], out=start[1:])
    # bincount with weights works in floats, which lose integers past 2**53
    ends = np.searchsorted(sequence[order], np.arange(n_sequences), side="right")
    rowsize = np.diff(start[np.concatenate([[0], ends])])
    return PartPlaces(order.astype(np.int64), start, rowsize)


def task_borders(layout: Layout, part_starts: np.ndarray | None = None, waste: int = 4) -> np.ndarray:
    """Return int64[T + 1]: the shard with which each write task begins, and the number of shards.

    A task that begins inside a part decodes the part's head for nothing. Tasks are therefore ``waste`` times
    as long as what they may decode twice, and begin at the first shard after the start of a part.

    Examples
    --------
    >>> from chunkstore.layout import Layout
    >>> task_borders(Layout(100, 5, 10)).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    >>> task_borders(Layout(100, 5, 10), np.array([0, 38, 70, 100]), waste=3).tolist()
    [0, 4, 7, 10]
    """
    shards = layout.n_shards
    if part_starts is None or part_starts.size < 2 or shards < 2:
        return np.arange(shards + 1, dtype=np.int64)
    mean = layout.n_obs / (part_starts.size - 1)
    length = max(1, -(-int(waste * min(mean, layout.shard)) // layout.shard))
    if mean <= layout.shard:
        borders = np.arange(0, shards, length, dtype=np.int64)
    else:
        wanted = np.arange(0, layout.n_obs, length * layout.shard, dtype=np.int64)
        nearest = part_starts[
            np.searchsorted(part_starts, wanted, side="left").clip(max=part_starts.size - 1)
        ]
        # a part longer than the task is cut where the task would have ended
        nearest = np.where(nearest - wanted > length * layout.shard, wanted, nearest)
        borders = np.unique(-(-nearest // layout.shard))
        borders = borders[borders < shards]
    if borders.size == 0 or borders[0] != 0:
        borders = np.concatenate([[0], borders])
    return np.concatenate([borders, [shards]]).astype(np.int64)


def group_by_bytes(nbytes: np.ndarray, target: int, most: int = 256) -> np.ndarray:
    """Return int64[G + 1]: consecutive groups of at least ``target`` bytes or ``most`` entries.

    Examples
    --------
    >>> group_by_bytes(np.array([3, 3, 3, 9, 1]), 6).tolist()
    [0, 2, 4, 5]
    """
    ends = np.cumsum(nbytes)
    borders = [0]
    while (low := borders[-1]) < nbytes.size:
        before = int(ends[low - 1]) if low else 0
        enough = int(np.searchsorted(ends, before + target)) + 1  # the entry that reaches the target is in
        borders.append(min(max(enough, low + 1), low + most, nbytes.size))
    return np.array(borders, np.int64)


@dataclass(frozen=True, slots=True)
class SlicePlaces:
    """Where staged slices go, in the order of ``obs``.

    A slice is a run of rows of one sequence in one segment of scratch. Slices of one cluster have times that
    overlap: their rows are merged by time over the cluster's range of obs.
    """

    slice: np.ndarray
    """int64[N]: index of the slice, in the order of ``obs`` (in a cluster: in the order of the inputs)."""
    start: np.ndarray
    """int64[N + 1]: first obs; in a cluster only the cluster's first and last entries mean a place."""
    cluster: np.ndarray
    """int64[N]: entry with which the cluster of each entry begins; its own index where it stands alone."""
    rowsize: np.ndarray
    """int64[S]: obs of each sequence."""

    @property
    def n_obs(self) -> int:
        """Length of the ``obs`` axis."""
        return int(self.start[-1])

    def touching(self, start: int, stop: int) -> tuple[int, int]:
        """Range [lo, hi) of entries that a task for obs [start, stop) reads, whole clusters."""
        lo = int(np.searchsorted(self.start[1:], start, side="right"))
        hi = int(np.searchsorted(self.start[:-1], stop, side="left"))
        if lo >= hi:
            return lo, lo
        lo = int(self.cluster[lo])
        hi = int(np.searchsorted(self.cluster, self.cluster[hi - 1], side="right"))
        return lo, hi

    def clusters(self) -> Iterator[tuple[int, int]]:
        """Yield ranges [lo, hi) of entries of the clusters of two slices or more."""
        first, count = np.unique(self.cluster, return_counts=True)
        for lo, n in zip(first[count > 1].tolist(), count[count > 1].tolist(), strict=True):
            yield lo, lo + n


def place_slices(
    rank: np.ndarray,
    rows: np.ndarray,
    n_sequences: int,
    first: np.ndarray | None = None,
    last: np.ndarray | None = None,
    *,
    gone: np.ndarray | None = None,
) -> SlicePlaces:
    """Place slices: by sequence, then in the order of the inputs, or by time.

    Parameters
    ----------
    rank, rows : int64[N]
        Sequence and number of rows of each slice, in the order of the inputs; empty ones are left out.
    n_sequences : int
        Number of sequences.
    first, last : int64[N], uint64[N] or float64[N], optional
        Least and greatest time of each slice; given when rows are to be sorted by time. Slices are then put
        in the order of their times, and only those that overlap form a cluster to be merged. NaN is greater
        than all.
    gone : bool[N], optional
        Slices whose times are not known: each stands behind what the slice before it, in the order of the
        inputs, is merged with.

    Examples
    --------
    >>> places = place_slices(np.array([1, 0, 1]), np.array([5, 2, 3]), 2)
    >>> places.slice.tolist(), places.start.tolist(), places.rowsize.tolist()
    ([1, 0, 2], [0, 2, 7, 10], [2, 8])
    >>> by_time = place_slices(
    ...     np.array([0, 0, 0]), np.array([5, 2, 3]), 1, np.array([50, 0, 52]), np.array([60, 9, 70]))
    >>> by_time.slice.tolist(), by_time.cluster.tolist()
    ([1, 0, 2], [0, 1, 1])
    """
    kept = np.flatnonzero(rows > 0)
    rank, rows = rank[kept], rows[kept]
    cluster = np.arange(kept.size, dtype=np.int64)
    if first is None or last is None:
        order = np.argsort(rank, kind="stable")
    else:
        first, last = ordered(first[kept]), ordered(last[kept])  # one order of all, which NaN has not
        known = np.arange(kept.size) if gone is None else np.flatnonzero(~gone[kept])
        order = known[np.lexsort((first[known], rank[known]))]
        order, cluster = _clusters(order, rank, first, last)
        if known.size < kept.size:
            order, cluster = _with_gone(order, cluster, rank)
    start = np.zeros(order.size + 1, np.int64)
    np.cumsum(rows[order], out=start[1:])
    ends = np.searchsorted(rank[order], np.arange(n_sequences), side="right")
    rowsize = np.diff(start[np.concatenate([[0], ends])])
    return SlicePlaces(kept[order].astype(np.int64), start, cluster, rowsize)


def _with_gone(order: np.ndarray, cluster: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put in the slices that ``order`` leaves out, each alone behind the cluster of the one before it."""
    n = rank.size
    behind = np.full(n, -1, np.int64)  # cluster of each slice, or that behind which it stands
    behind[order] = cluster
    # in the order of the inputs, sequence by sequence: what is not known goes on as what came before
    inputs = np.argsort(rank, kind="stable")
    at = np.maximum.accumulate(np.where(behind[inputs] >= 0, np.arange(n), -1))
    of_before = np.where(at >= 0, inputs[at], -1)
    same = (of_before >= 0) & (rank[of_before] == rank[inputs])
    missing = np.ones(n, bool)
    missing[order] = False
    behind[inputs] = np.where(same, behind[of_before], -1)
    # those that were known keep their order; the others follow their cluster, or begin their sequence
    place = np.zeros(n, np.int64)
    place[order] = np.arange(order.size)
    place[missing] = np.flatnonzero(missing)
    order = np.lexsort((place, missing, behind, rank))
    number = np.arange(n)
    alone = missing[order]
    begins = alone | np.concatenate([[True], alone[:-1] | (np.diff(behind[order]) != 0)])
    return order, np.maximum.accumulate(np.where(begins, number, 0))


def _clusters(
    order: np.ndarray, rank: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Join entries whose times overlap; inside a cluster go back to the order of the inputs.

    Equal times at a border are no overlap if the earlier input comes first: a stable sort leaves them so.
    """
    n = order.size
    cluster = np.arange(n, dtype=np.int64)
    if n < 2:
        return order, cluster
    ranks, firsts, lasts = rank[order], first[order], last[order]
    new_sequence = np.concatenate([[True], ranks[1:] != ranks[:-1]])
    apart = new_sequence.copy()
    apart[1:] |= (firsts[1:] > lasts[:-1]) | ((firsts[1:] == lasts[:-1]) & (order[1:] > order[:-1]))
    if not apart.all():
        # A Python loop, over the entries of sequences that have any overlap
        troubled = np.isin(ranks, np.unique(ranks[~apart]))
        begin = 0
        reach = firsts[0]
        newest = 0
        for i in np.flatnonzero(troubled).tolist():
            alone = new_sequence[i] or firsts[i] > reach or (firsts[i] == reach and order[i] > newest)
            if alone:
                begin, reach, newest = i, lasts[i], order[i]
            else:
                newest = max(newest, order[i])
                reach = max(reach, lasts[i])
            cluster[i] = begin
        order = order[np.lexsort((order, cluster))]
    return order, cluster

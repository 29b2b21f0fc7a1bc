"""Assembling: the rows of one shard out of scratch, one column at a time.

A task knows the slices that touch its shards. Slices that stand alone are copied in runs. Slices of a cluster
overlap in time and are merged: small clusters all at once by one sort, a large one only as far as the
shard needs it. After that every row of the shard has a place in a segment, and columns are gathered by it.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import IngestError
from ingest.exchange import SegmentRef
from ingest.folder import LocalFolder
from ingest.merge_sorted import LazyTimes, split_at
from ingest.scratch import SegmentReader
from ingest.stage import LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkstore.layout import FieldSpec
    from ingest.folder import Folder

__all__ = ["Assembly", "Slices"]

#: rows of a cluster up to which it is sorted whole
MERGE_WHOLE = 1 << 20
#: the same where a shard ends within the cluster, unless a quarter of the shard is more
MERGE_PART = 1 << 16
#: slices of a cluster up to which that holds
PART_SLICES = 256
#: bytes of a column of one segment that are read for good from scratch that is not local
SPAN_BYTES = 8 << 20
#: bytes of such spans that are kept at a time
KEPT_BYTES = 32 << 20
#: segments that are mapped at a time
OPEN_SEGMENTS = 512
#: shorter runs than this are gathered by index, longer ones are copied one by one
SHORT_RUN = 256


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices that a write task reads, in the order of ``obs``."""

    segments: tuple[SegmentRef, ...]
    """Segments that they lie in."""
    segment: np.ndarray
    """int64[N]: place in ``segments`` of each slice."""
    row: np.ndarray
    """int64[N]: first row of each slice in its segment."""
    start: np.ndarray
    """int64[N + 1]: first obs of each slice, see ``SlicePlaces.start``."""
    cluster: np.ndarray
    """int64[N]: entry with which the cluster of each entry begins, from any origin."""

    def dump(self) -> bytes:
        """Return bytes for the scratch folder: numbers and JSON, nothing that runs.

        Examples
        --------
        >>> segments = (SegmentRef("seg/0", 5, {"x": (0, "<f8", 0, 0)}),)
        >>> a = Slices(segments, np.array([0]), np.array([2]), np.array([7, 9]), np.array([0]))
        >>> b = Slices.load(a.dump())
        >>> b.segments == a.segments, b.start.tolist()
        (True, [7, 9])
        """
        out = io.BytesIO()
        told = [s.to_json() for s in self.segments]
        np.savez(
            out,
            segments=np.frombuffer(json.dumps(told).encode(), np.uint8),
            segment=self.segment,
            row=self.row,
            start=self.start,
            cluster=self.cluster,
        )
        return out.getvalue()

    @classmethod
    def load(cls, data: bytes) -> Slices:
        """Return what :meth:`dump` wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            told = json.loads(found["segments"].tobytes())
            segments = tuple(SegmentRef.from_json(one) for one in told)
            return cls(segments, found["segment"], found["row"], found["start"], found["cluster"])


def _groups(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (value, indices where it stands, ascending) for each value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    edges = np.flatnonzero(np.diff(ordered)) + 1
    firsts = [0, *edges.tolist()] if values.size else []
    for a, b in zip(firsts, [*firsts[1:], values.size], strict=False):
        yield int(ordered[a]), order[a:b]


def _spread(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Integers of all ranges [start, start + length), one after the other.

    Examples
    --------
    >>> _spread(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    total = int(lengths.sum())
    spread: np.ndarray = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(total)
    return spread


class Assembly:
    """Rows of obs [start, stop) out of scratch."""

    def __init__(
        self,
        slices: Slices,
        folder: Folder,
        start: int,
        stop: int,
        *,
        time_field: str | None,
        take: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray],
        give: Callable[[np.ndarray], None],
    ) -> None:
        self.slices = slices
        self.folder = folder
        self.start, self.stop = start, stop
        self._time = time_field
        self._take, self._give = take, give
        #: segment -> (rows, obs from the start of the shard, lengths) of runs
        self.runs: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        #: segment -> (rows, obs from the start of the shard) of single rows
        self.single: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._kept: dict[tuple[int, str], tuple[np.ndarray, int]] = {}
        self._readers: dict[int, SegmentReader] = {}
        self._plan()
        self._kept.clear()
        self._moves = list(self._spans())

    # ---------------------------------------------------------------- where rows come from

    def _plan(self) -> None:
        slices = self.slices
        n = slices.segment.size
        edges = np.flatnonzero(np.diff(slices.cluster)) + 1
        first = np.concatenate([np.zeros(min(n, 1), np.int64), edges])
        ends = np.append(edges, n)[: first.size]
        low, high = slices.start[first], slices.start[ends]
        merged = (ends - first > 1) & (high > self.start) & (low < self.stop)
        # two at most go on in other shards, and this one may be a small part of them
        parted = (low < self.start) | (high > self.stop)
        parted &= ends - first <= PART_SLICES  # to search in more costs more than to sort them
        most = np.where(parted, max((self.stop - self.start) // 4, MERGE_PART), MERGE_WHOLE)
        large = merged & (high - low > np.minimum(most, MERGE_WHOLE))
        for lo, hi in zip(first[large].tolist(), ends[large].tolist(), strict=True):
            self._merge_large(lo, hi)
        self._merge_small(first[merged & ~large], ends[merged & ~large])
        alone = np.repeat(ends - first == 1, ends - first)
        a = np.maximum(slices.start[:-1], self.start)
        b = np.minimum(slices.start[1:], self.stop)
        used = np.flatnonzero(alone & (b > a))
        for segment, within in _groups(slices.segment[used]):
            own = used[within]
            rows = slices.row[own] + (a[own] - slices.start[own])
            self.runs[segment] = (rows, a[own] - self.start, b[own] - a[own])

    def _merge_small(self, first: np.ndarray, ends: np.ndarray) -> None:
        """Place the rows of many clusters by time, with one stable sort of all of them."""
        if not first.size:
            return
        slices = self.slices
        entries = _spread(first, ends - first)
        lengths = slices.start[entries + 1] - slices.start[entries]
        rows = _spread(slices.row[entries], lengths)
        segments = np.repeat(slices.segment[entries], lengths)
        sizes = slices.start[ends] - slices.start[first]
        times: np.ndarray | None = None
        for segment, at in _groups(segments):
            values, base = self._column(segment, self._name(), int(rows[at].min()), int(rows[at].max()) + 1)
            self._reader(segment).check(self._name(), values, base, rows[at])
            if times is None:
                times = np.empty(rows.size, values.dtype)
            times[at] = values[rows[at] - base]
        assert times is not None
        order = np.lexsort((times, np.repeat(np.arange(sizes.size), sizes)))
        del times
        obs = _spread(slices.start[first], sizes) - self.start
        kept = (obs >= 0) & (obs < self.stop - self.start)
        order, obs = order[kept], obs[kept]
        rows, segments = rows[order], segments[order]
        for segment, at in _groups(segments):
            self.single.setdefault(segment, []).append((rows[at], obs[at]))

    def _merge_large(self, lo: int, hi: int) -> None:
        """Place those rows of a long cluster that belong to this shard.

        Every slice is sorted, so :func:`ingest.merge_sorted.split_at` finds where the shard begins and ends
        in each of them without reading the rest; what lies between is sorted here.
        """
        slices = self.slices
        begin, end = int(slices.start[lo]), int(slices.start[hi])
        low, high = max(begin, self.start), min(end, self.stop)
        whole = slices.start[lo + 1 : hi + 1] - slices.start[lo:hi]
        runs = [
            LazyTimes(partial(self._times, i), length)
            for i, length in zip(range(lo, hi), whole.tolist(), strict=True)
        ]
        first = np.array(split_at(runs, low - begin), np.int64)
        lengths = np.array(split_at(runs, high - begin), np.int64) - first
        pieces = [
            self._times(lo + i, int(first[i]), int(first[i] + n)) for i, n in enumerate(lengths.tolist())
        ]
        order = np.argsort(np.concatenate(pieces), kind="stable")
        rows = _spread(slices.row[lo:hi] + first, lengths)[order]
        segments = np.repeat(slices.segment[lo:hi], lengths)[order]
        obs = np.arange(low - self.start, high - self.start)
        for segment, at in _groups(segments):
            self.single.setdefault(segment, []).append((rows[at], obs[at]))

    def _name(self) -> str:
        if self._time is None:
            raise IngestError("slices are to be merged by time, but there is no time field")
        return self._time

    def _times(self, entry: int, start: int, stop: int) -> np.ndarray:
        """Return the times of rows [start, stop) of a slice."""
        slices = self.slices
        row = int(slices.row[entry])
        segment, name = int(slices.segment[entry]), self._name()
        values, base = self._column(segment, name, row + start, row + stop)
        if stop > start:
            found = np.array([row + start]), np.array([stop - start])
            self._reader(segment).check(name, values, base, *found)
        return values[row + start - base : row + stop - base]

    # ---------------------------------------------------------------- reading

    def _column(self, segment: int, name: str, low: int, high: int) -> tuple[np.ndarray, int]:
        """Return (values, row of the first) that hold at least rows [low, high) of a column of a segment.

        They are not checked. A span of a remote segment is kept for a while if it is small.
        """
        kept = self._kept.get((segment, name))
        if kept is not None and kept[1] <= low and high <= kept[1] + len(kept[0]):
            return kept
        reader = self._reader(segment)
        ref = reader.ref
        _, dtype, items, _ = ref.columns[name]
        if ref.rows * max(1, items) * np.dtype(dtype).itemsize <= SPAN_BYTES:
            low, high = 0, ref.rows
        found = reader.column(name, low, high)
        if not reader.local:
            while self._kept and sum(v.nbytes for v, _ in self._kept.values()) > KEPT_BYTES:
                del self._kept[next(iter(self._kept))]
            self._kept[segment, name] = found
        return found

    def _reader(self, segment: int) -> SegmentReader:
        reader = self._readers.get(segment)
        if reader is None:
            if len(self._readers) >= OPEN_SEGMENTS:
                self._readers.clear()
            reader = self._readers[segment] = SegmentReader(self.folder, self.slices.segments[segment])
        return reader

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (segment, lowest row, row past the highest) of all that is read."""
        for segment in sorted({*self.runs, *self.single}):
            lows, highs = [], []
            if segment in self.runs:
                rows, _, lengths = self.runs[segment]
                lows.append(int(rows.min()))
                highs.append(int((rows + lengths).max()))
            for rows, _ in self.single.get(segment, ()):
                lows.append(int(rows.min()))
                highs.append(int(rows.max()) + 1)
            yield segment, min(lows), max(highs)

    def column(self, name: str, spec: FieldSpec | None) -> np.ndarray:
        """Assemble one column of the shard."""
        n = self.stop - self.start
        out: np.ndarray | None = None if spec is None else self._take(spec.shape(n), spec.np_dtype)
        for segment, low, high in self._moves:
            values, base = self._column(segment, name, low, high)
            self._kept.clear()
            if out is None:
                out = self._take((n, *values.shape[1:]), self._widest(name))
            self._check(name, values, segment, base)
            self._copy(out, values, segment, base)
        if out is None:
            raise IngestError(f"no slice of scratch holds {name!r}; the plan and scratch disagree")
        return out

    def chunks(self, name: str, spec: FieldSpec | None, step: int, kept: int = 1) -> Iterator[np.ndarray]:
        """Assemble one column of the shard in pieces of ``step`` rows, not to be written to.

        Long runs are gathered piece by piece, while they are in the cache, or given as they lie in scratch
        where one holds the whole piece; short or merged runs are gathered all at once. A piece is good until
        the ``kept``-th after it is asked for.
        """
        n = self.stop - self.start
        runs = self._in_order
        if runs is None:
            whole = self.column(name, spec)
            for low in range(0, n, step):
                yield whole[low : low + step]
            self._give(whole)
            return
        kind = self._widest(name) if spec is None else spec.np_dtype
        rooms: list[np.ndarray] = []
        at, (begins, ends, rows, segments) = 0, runs
        for piece, low in enumerate(range(0, n, step)):
            high = min(low + step, n)
            out: np.ndarray | None = None
            while True:
                begin, end = begins[at], ends[at]
                a, b = max(begin, low), min(end, high)
                values = self._reader(segments[at]).run(name, rows[at] + a - begin, b - a)
                if b - a == high - low and (spec is None or values.dtype == spec.np_dtype):
                    out = values
                else:
                    if out is None:
                        shape = (min(step, n), *values.shape[1:])
                        out = self._piece(rooms, piece % kept, shape, kind)[: high - low]
                    out[a - low : b - low] = values
                if end > high:
                    break
                at += 1
                if end == high:
                    break
            yield out
        for room in rooms:
            self._give(room)

    def _piece(
        self, rooms: list[np.ndarray], which: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> np.ndarray:
        """Return memory for a piece of a column, that of an earlier one if there is one."""
        while len(rooms) <= which:
            rooms.append(self._take(shape, dtype))
        return rooms[which]

    def _widest(self, name: str) -> np.dtype[Any]:
        """Return the dtype that holds a column of all segments: one that only cuts may differ by part."""
        return np.result_type(
            *{self.slices.segments[segment].columns[name][1] for segment, _, _ in self._moves}
        )

    @cached_property
    def _in_order(self) -> tuple[list[int], list[int], list[int], list[int]] | None:
        """First obs, obs past the last, row and segment of all runs; None where they are not read so."""
        local = isinstance(self.folder, LocalFolder)  # of others a whole column is one request a segment
        if not local or self.single or not self.runs:
            return None
        segments = np.repeat(list(self.runs), [rows.size for rows, _, _ in self.runs.values()])
        rows, obs, lengths = (np.concatenate(found) for found in zip(*self.runs.values(), strict=True))
        if int(lengths.sum()) < SHORT_RUN * lengths.size:
            return None
        order = np.argsort(obs)
        found = obs, obs + lengths, rows, segments
        begins, ends, rows, segments = (part[order].tolist() for part in found)
        return begins, ends, rows, segments

    def _check(self, name: str, values: np.ndarray, segment: int, base: int) -> None:
        reader = self._reader(segment)
        if segment in self.runs:
            rows, _, lengths = self.runs[segment]
            reader.check(name, values, base, rows, lengths)
        for rows, _ in self.single.get(segment, ()):
            reader.check(name, values, base, rows)

    def _copy(self, out: np.ndarray, values: np.ndarray, segment: int, base: int) -> None:
        if segment in self.runs:
            rows, obs, lengths = self.runs[segment]
            if rows.size > 64 and int(lengths.sum()) < SHORT_RUN * rows.size:
                out[_spread(obs, lengths)] = values[_spread(rows - base, lengths)]
            else:
                for row, at, length in zip(rows.tolist(), obs.tolist(), lengths.tolist(), strict=True):
                    out[at : at + length] = values[row - base : row - base + length]
        for rows, obs in self.single.get(segment, ()):
            out[obs] = values[rows - base]

    def lost(self) -> np.ndarray | None:
        """Return which rows of the shard stand for lost data, if any does."""
        mask = np.zeros(self.stop - self.start, bool)
        for segment, low, high in self._moves:
            if LOST in self.slices.segments[segment].columns:
                values, base = self._column(segment, LOST, low, high)
                self._check(LOST, values, segment, base)
                self._copy(mask, values, segment, base)
        self._kept.clear()
        return mask if mask.any() else None

    def rows(self) -> int:
        """Return the number of rows that the slices give to this shard."""
        runs = sum(int(lengths.sum()) for _, _, lengths in self.runs.values())
        return runs + sum(rows.size for pieces in self.single.values() for rows, _ in pieces)

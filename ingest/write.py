"""Writing: a task owns whole shards, fills them, and returns a receipt.

Two kinds of tasks end in the same last steps (:func:`_finish_shard`). A *placed* task decodes the parts that
touch its obs and copies rows straight to their place. A *staged* task copies runs of rows out of scratch,
one field after the other; where slices overlap in time it merges them. Nothing is ever read back from
the store and nothing is written twice, so tasks may run in any order and be repeated.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import IngestError
from chunkstore.skeleton import open_skeleton
from chunkstore.statistics import FieldStatistics
from ingest.faults import fault_to_json
from ingest.merge_sorted import LazyTimes, split_at
from ingest.order import examine
from ingest.rows import Account, column_of, has_mask, lost_mask, mask_name, mask_of, null_of, settle, total
from ingest.stage import LOST, summary
from ingest.worker import check_identity, fence, ledger_of, scratch_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chunkstore.layout import FieldSpec, Layout
    from ingest.exchange import SegmentRef
    from ingest.folder import Folder
    from ingest.ledger import Ledger
    from ingest.plan import Job
    from ingest.protocol import Batch, Fault, Part

__all__ = ["PlacedTask", "StagedTask", "write_placed", "write_staged"]

#: rows of overlapping slices up to which all their times are read at once
MERGE_WHOLE = 1 << 20


@dataclass(frozen=True, slots=True)
class PlacedTask:
    """Shards that one task fills from parts whose place is known."""

    index: int
    """Number of the task."""
    shards: tuple[int, int]
    """Half-open range of shards."""
    parts: tuple[tuple[Part, int], ...]
    """Parts that touch them, each with its first obs."""
    borders: np.ndarray
    """int64: obs in the task's range at which a sequence begins."""
    last: bool = False
    """Whether this is the last task, which reads the parts without rows at the end."""


@dataclass(frozen=True, slots=True)
class StagedTask:
    """Shards that one task fills from scratch."""

    index: int
    """Number of the task."""
    shards: tuple[int, int]
    """Half-open range of shards."""
    segments: tuple[SegmentRef, ...]
    """Segments that the slices lie in."""
    segment: np.ndarray
    """int64[N]: place in ``segments`` of each slice."""
    row: np.ndarray
    """int64[N]: first row of each slice in its segment."""
    start: np.ndarray
    """int64[N + 1]: first obs of each slice, see ``SlicePlaces.start``."""
    cluster: np.ndarray
    """int64[N]: entry with which the cluster of each entry begins."""
    borders: np.ndarray
    """int64: obs in the task's range at which a sequence begins."""


def _finish_shard(
    job: Job,
    ledger: Ledger,
    skeleton: Any,
    shard: int,
    *,
    borders: np.ndarray,
    column: Callable[[str, FieldSpec | None], np.ndarray],
    lost: np.ndarray | None,
    done: Callable[[np.ndarray], None],
) -> dict[str, Any]:
    """Order checks, statistics and the write of every array of one shard; return its receipt.

    ``done`` is told of every column that is not needed any more.
    """
    layout = _layout(job)
    start, stop = layout.shard_range(shard)
    specs = {f.name: f for f in job.fields}
    times = None if job.time_field is None else column(job.time_field, specs[job.time_field])
    watched = {} if job.cut is None else {name: column(name, specs.get(name)) for name in job.cut.on_change}
    seen = examine(start, stop - start, borders=borders, times=times, watched=watched, cut=job.cut, lost=lost)
    if job.order == "error" and seen["backward"]:
        raise IngestError(_backward(job, seen, times, start))
    if times is not None:
        done(times)
    for held in watched.values():
        done(held)
    del times, watched
    receipt: dict[str, Any] = {"shard": shard, "order": seen, "objects": {}, "stats": {}, "gaps": []}
    if lost is not None:
        receipt["gaps"] = _ranges(lost, start)
    for spec in job.fields:
        values = column(spec.name, spec)
        mask = None
        if has_mask(spec):
            mask = column(mask_name(spec.name), None)
            if lost is not None:
                mask[lost] = False
            values = _hidden(values, mask, spec)
        if lost is not None:
            values = _hidden(values, ~lost, spec)
        kept = values if lost is None else values[~lost]
        kept_mask = mask if mask is None or lost is None else mask[~lost]
        receipt["stats"][spec.name] = FieldStatistics.from_values(kept, kept_mask).to_json()
        del kept, kept_mask
        fence(job, ledger)
        receipt["objects"][spec.name] = _stored(skeleton.write_shard(spec.name, shard, values))
        done(values)
        del values
        if mask is not None:
            name = mask_name(spec.name)
            receipt["objects"][name] = _stored(skeleton.write_shard(name, shard, mask))
            done(mask)
    return receipt


def _stored(receipt: Any) -> list[Any] | None:
    return None if receipt is None or receipt.crc32c is None else [receipt.nbytes, receipt.crc32c]


def _hidden(values: np.ndarray, kept: np.ndarray, spec: FieldSpec) -> np.ndarray:
    """Values with what stands for none wherever they are not kept, whatever a decoder left there."""
    if kept.all():
        return values
    if not values.flags.writeable:
        values = values.copy()
    values[~kept] = null_of(spec)
    return values


def _ranges(lost: np.ndarray, start: int) -> list[list[int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], lost, [False]]).astype(np.int8)))
    return (edges.reshape(-1, 2) + start).tolist()


def _backward(job: Job, seen: Mapping[str, Any], times: np.ndarray | None, start: int) -> str:
    where = seen["where"]
    told = "" if times is None else f" ({times[where - start - 1]} then {times[where - start]})"
    return (
        f"times go back at obs {where}: {job.time_field}{told}; ask for the rows to be sorted, or for "
        "their order to be kept"
    )


def _layout(job: Job) -> Layout:
    if job.layout is None:
        raise IngestError("a write task came without a layout")
    return job.layout


class _Buffers(threading.local):
    """Memory of one shard's columns, used again for the next: touching fresh memory costs as much as a copy.

    Never more than what was in use at once, which the plan promised; let go when a larger piece is needed.
    """

    def __init__(self) -> None:
        self.free: list[np.ndarray] = []

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an array of any contents."""
        need = math.prod(shape) * dtype.itemsize
        fit = min((raw for raw in self.free if raw.size >= need), key=len, default=None)
        if fit is None:
            self.free.clear()
            fit = np.empty(max(need, 1), np.uint8)
        else:
            self.free = [raw for raw in self.free if raw is not fit]
        return fit[:need].view(dtype).reshape(shape)

    def give(self, array: np.ndarray) -> None:
        """Take an array back; nobody else may use it."""
        raw = array.base
        if isinstance(raw, np.ndarray) and raw.dtype == np.uint8 and raw.ndim == 1 and raw.base is None:
            self.free.append(raw)


_buffers = _Buffers()


class _Filling:
    """Columns of the shard that a placed task is filling."""

    def __init__(self, job: Job, shard: int) -> None:
        self.shard = shard
        self.start, self.stop = _layout(job).shard_range(shard)
        self.columns: dict[str, np.ndarray] = {}
        self.lost: np.ndarray | None = None
        self.filled = 0

    def put(self, name: str, values: np.ndarray, at: int) -> None:
        """Copy rows to obs ``at``."""
        column = self.columns.get(name)
        if column is None:
            n = self.stop - self.start
            column = self.columns[name] = _buffers.take((n, *values.shape[1:]), values.dtype)
        column[at - self.start : at - self.start + len(values)] = values

    def lose(self, mask: np.ndarray, at: int) -> None:
        """Note rows that stand for lost data."""
        if self.lost is None:
            if not mask.any():
                return
            self.lost = np.zeros(self.stop - self.start, bool)
        self.lost[at - self.start : at - self.start + len(mask)] |= mask

    def column(self, name: str, spec: FieldSpec | None) -> np.ndarray:  # noqa: ARG002  # as scratch is asked
        """Return a whole column."""
        return self.columns[name]


def write_placed(job: Job, task: PlacedTask) -> dict[str, Any]:
    """Fill and write the shards of a placed task, record its receipt, and return a summary of it."""
    began = time.perf_counter()
    ledger = ledger_of(job)
    fence(job, ledger)
    source = source_of(job)
    skeleton = open_skeleton(job.store, job.storage_options)
    layout = _layout(job)
    start, stop = (layout.shard * task.shards[0], min(layout.shard * task.shards[1], layout.n_obs))
    accounts: list[Account] = []
    faults: list[Fault] = []
    labels: dict[str, list[list[Any]]] = {}
    receipts: list[dict[str, Any]] = []
    filling = _Filling(job, task.shards[0]) if stop > start else None
    bytes_in = 0
    for part, first in task.parts:
        end = first + part.claimed
        # the task that holds a part's last row answers for its faults and labels; the others stop early
        owner = start < end <= stop or (
            part.claimed == 0 and (start <= first < stop or (task.last and first == stop))
        )
        if not owner and not (first < stop and end > start):
            continue
        check_identity(source, part)
        own: list[Fault] = []
        at, good, gap = first, 0, 0
        for batch in source.read(part):
            lost = lost_mask(batch)
            own += batch.faults
            gap += 0 if lost is None else int(np.count_nonzero(lost))
            if at + batch.rows > end:
                raise IngestError(f"{part.file}: part {part.index} gave more than its {part.claimed} rows")
            for name, values in batch.labels.items():
                labels.setdefault(name, []).extend(
                    [part.sequence, v] for v in values[:1] if v is not None and owner
                )
            low, high = max(at, start), min(at + batch.rows, stop)
            columns = _columns(job, batch, part) if low < high else {}
            while low < high and filling is not None:
                upto = min(high, filling.stop)
                for name, column in columns.items():
                    filling.put(name, column[low - at : upto - at], low)
                if lost is not None:
                    filling.lose(lost[low - at : upto - at], low)
                filling.filled += upto - low
                low = upto
                if low == filling.stop:
                    receipts.append(_close(job, ledger, skeleton, filling, task.borders))
                    shard = filling.shard + 1
                    filling = _Filling(job, shard) if shard < task.shards[1] else None
            at += batch.rows
            if at >= stop and not owner:
                break
        if owner:
            if at != end:
                raise IngestError(
                    f"{part.file}: part {part.index} gave {at - first} rows of {part.claimed}; a placed part "
                    "must give them all, lost ones included"
                )
            check_identity(source, part)
            good = part.claimed - gap
            account, extra = settle(part, good, gap, own)
            accounts.append(account)
            faults += own + extra
            bytes_in += part.nbytes
    if filling is not None:
        wanted = filling.stop - filling.start
        raise IngestError(
            f"shard {filling.shard} got {filling.filled} of its {wanted} rows; plan and source disagree"
        )
    return _record(
        job,
        ledger,
        task.index,
        receipts=receipts,
        accounts=accounts,
        faults=faults,
        labels=labels,
        bytes_in=bytes_in,
        began=began,
    )


def _columns(job: Job, batch: Batch, part: Part) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for spec in job.fields:
        columns[spec.name] = column_of(batch, spec, part)
        if has_mask(spec):
            columns[mask_name(spec.name)] = mask_of(batch, spec)
    if job.cut is not None:
        for name in job.cut.on_change:
            if name not in columns:
                if name not in batch.columns:
                    raise IngestError(
                        f"{part.file}: sequences are cut where {name!r} changes, but it did not come"
                    )
                columns[name] = batch.columns[name]
    return columns


def _close(job: Job, ledger: Ledger, skeleton: Any, filling: _Filling, borders: np.ndarray) -> dict[str, Any]:
    receipt = _finish_shard(
        job,
        ledger,
        skeleton,
        filling.shard,
        borders=borders,
        column=filling.column,
        lost=filling.lost,
        done=lambda _: None,
    )
    for column in filling.columns.values():
        _buffers.give(column)
    return receipt


def _record(
    job: Job,
    ledger: Ledger,
    index: int,
    *,
    receipts: list[dict[str, Any]],
    accounts: list[Account],
    faults: list[Fault],
    labels: Mapping[str, list[list[Any]]],
    bytes_in: int,
    began: float,
) -> dict[str, Any]:
    fence(job, ledger)
    ledger.record(
        "write",
        index,
        {
            "shards": receipts,
            "accounts": [a.to_json() for a in accounts],
            "faults": [fault_to_json(f) for f in faults],
            "labels": labels,
            "seconds": round(time.perf_counter() - began, 3),
        },
    )
    stored = sum(o[0] for r in receipts for o in r["objects"].values() if o is not None)
    return summary(total(accounts), faults, bytes_in, stored)


class _Scratch:
    """Reads columns of one shard out of scratch."""

    def __init__(self, job: Job, task: StagedTask, folder: Folder, shard: int) -> None:
        self.folder = folder
        self.task = task
        self.start, self.stop = _layout(job).shard_range(shard)
        #: segment -> (rows int64[k], first obs int64[k], lengths int64[k]) of runs, and scattered (rows, obs)
        self.runs: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.scattered: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._plan(job)

    def _plan(self, job: Job) -> None:
        task = self.task
        n = task.segment.size
        alone = np.ones(n, bool)
        edges = np.flatnonzero(np.diff(task.cluster)) + 1
        first = np.concatenate([np.zeros(min(n, 1), np.int64), edges])
        ends = np.append(edges, n)[: first.size]
        for lo, hi in zip(first, ends, strict=True):
            if hi - lo > 1:
                alone[lo:hi] = False
                self._merge(job, int(lo), int(hi))
        low = np.maximum(task.start[:-1], self.start)
        high = np.minimum(task.start[1:], self.stop)
        used = np.flatnonzero(alone & (high > low))
        for segment in np.unique(task.segment[used]).tolist():
            own = (
                used[task.segment[used] == segment] if used.size < 4096 else _of(task.segment, used, segment)
            )
            rows = task.row[own] + (low[own] - task.start[own])
            self.runs[segment] = (rows, low[own] - self.start, high[own] - low[own])

    def _merge(self, job: Job, lo: int, hi: int) -> None:
        """Place the rows of a cluster by time: a stable sort of its slices, in the order of the inputs.

        Every slice is sorted. A small cluster is sorted whole; of a large one only the rows of this shard
        are, whose place in each slice :func:`ingest.merge_sorted.split_at` finds without reading the rest.
        """
        task = self.task
        begin, end = int(task.start[lo]), int(task.start[hi])
        low, high = max(begin, self.start), min(end, self.stop)
        if low >= high:
            return
        name = job.time_field
        assert name is not None
        lengths = task.start[lo + 1 : hi + 1] - task.start[lo:hi]
        first = np.zeros(lengths.size, np.int64)
        skip = low - begin
        if end - begin > MERGE_WHOLE:
            runs = [
                LazyTimes(partial(self._times, name, i), length)
                for i, length in zip(range(lo, hi), lengths.tolist(), strict=True)
            ]
            first = np.array(split_at(runs, low - begin), np.int64)
            lengths = np.array(split_at(runs, high - begin), np.int64) - first
            skip = 0
        pieces = [
            self._times(name, lo + i, int(first[i]), int(first[i] + n))
            for i, n in enumerate(lengths.tolist())
        ]
        order = np.argsort(np.concatenate(pieces), kind="stable")[skip : skip + high - low]
        del pieces
        ends = np.cumsum(lengths)
        entry = np.searchsorted(ends, order, side="right")
        rows = task.row[lo + entry] + first[entry] + (order - (ends - lengths)[entry])
        segments = task.segment[lo + entry]
        obs = np.arange(low - self.start, high - self.start)
        for segment in np.unique(segments).tolist():
            own = segments == segment
            self.scattered.setdefault(segment, []).append((rows[own], obs[own]))

    def _times(self, name: str, entry: int, start: int, stop: int) -> np.ndarray:
        """Return the times of rows [start, stop) of a slice."""
        task = self.task
        return self._read(int(task.segment[entry]), name, int(task.row[entry]) + start, stop - start)

    def _read(self, segment: int, name: str, row: int, n: int) -> np.ndarray:
        ref = self.task.segments[segment]
        offset, dtype, items = ref.columns[name]
        kind = np.dtype(dtype)
        width = max(1, items)
        try:
            flat = self.folder.array(ref.name, offset + row * width * kind.itemsize, kind, n * width)
        except (FileNotFoundError, ValueError) as error:
            raise IngestError(
                f"scratch {self.folder.url} has lost {ref.name}; run again with --resume, which stages it "
                "anew"
            ) from error
        flat = np.asarray(flat)
        return flat.reshape(n, items) if items else flat

    def _moves(self) -> Iterator[tuple[int, int, int]]:
        """Yield (segment, lowest row, row past the highest) of all that is read."""
        for segment in sorted({*self.runs, *self.scattered}):
            lows, highs = [], []
            if segment in self.runs:
                rows, _, lengths = self.runs[segment]
                lows.append(int(rows.min()))
                highs.append(int((rows + lengths).max()))
            for rows, _ in self.scattered.get(segment, ()):
                lows.append(int(rows.min()))
                highs.append(int(rows.max()) + 1)
            yield segment, min(lows), max(highs)

    def column(self, name: str, spec: FieldSpec | None) -> np.ndarray:
        """Assemble one column of the shard."""
        n = self.stop - self.start
        out: np.ndarray | None = None if spec is None else _buffers.take(spec.shape(n), spec.np_dtype)
        for segment, low, high in self._moves():
            values = self._read(segment, name, low, high - low)
            if out is None:
                out = _buffers.take((n, *values.shape[1:]), values.dtype)
            self._copy(out, values, segment, low)
        if out is None:
            raise IngestError(f"no slice of scratch holds {name!r}; the plan and scratch disagree")
        return out

    def _copy(self, out: np.ndarray, values: np.ndarray, segment: int, low: int) -> None:
        if segment in self.runs:
            rows, obs, lengths = self.runs[segment]
            if rows.size > 64 and int(lengths.sum()) < 256 * rows.size:
                # many short runs: one gather instead of a Python loop
                within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                out[np.repeat(obs, lengths) + within] = values[np.repeat(rows - low, lengths) + within]
            else:
                for row, at, length in zip(rows.tolist(), obs.tolist(), lengths.tolist(), strict=True):
                    out[at : at + length] = values[row - low : row - low + length]
        for rows, obs in self.scattered.get(segment, ()):
            out[obs] = values[rows - low]

    def lost(self) -> np.ndarray | None:
        """Return which rows of the shard stand for lost data, if any does."""
        mask = np.zeros(self.stop - self.start, bool)
        for segment, low, high in self._moves():
            if LOST in self.task.segments[segment].columns:
                self._copy(mask, self._read(segment, LOST, low, high - low), segment, low)
        return mask if mask.any() else None

    def rows(self) -> int:
        """Return the number of rows that the slices give to this shard."""
        runs = sum(int(lengths.sum()) for _, _, lengths in self.runs.values())
        return runs + sum(rows.size for pieces in self.scattered.values() for rows, _ in pieces)


def _of(segments: np.ndarray, used: np.ndarray, segment: int) -> np.ndarray:
    own: np.ndarray = used[segments[used] == segment]
    return own


def write_staged(job: Job, task: StagedTask) -> dict[str, Any]:
    """Assemble and write the shards of a staged task, record its receipt, and return a summary of it."""
    began = time.perf_counter()
    ledger = ledger_of(job)
    fence(job, ledger)
    folder = scratch_of(job)
    skeleton = open_skeleton(job.store, job.storage_options)
    receipts = []
    for shard in range(*task.shards):
        scratch = _Scratch(job, task, folder, shard)
        wanted = scratch.stop - scratch.start
        if scratch.rows() != wanted:
            raise IngestError(f"shard {shard} would get {scratch.rows()} rows of {wanted}; the plan is wrong")
        receipts.append(
            _finish_shard(
                job,
                ledger,
                skeleton,
                shard,
                borders=task.borders,
                column=scratch.column,
                lost=scratch.lost(),
                done=_buffers.give,
            )
        )
    return _record(
        job,
        ledger,
        task.index,
        receipts=receipts,
        accounts=[],
        faults=[],
        labels={},
        bytes_in=0,
        began=began,
    )

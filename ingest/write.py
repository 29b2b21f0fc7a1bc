"""Writing: a task owns whole shards, fills them, and returns a receipt.

Two kinds of tasks end in the same last steps (:class:`_Shard`). A *placed* task decodes the parts that
touch its obs and copies rows straight to their place. A *staged* task copies runs of rows out of scratch,
one field after the other; where slices overlap in time it merges them. Nothing is ever read back from
the store and nothing is written twice, so tasks may run in any order and be repeated.
"""

from __future__ import annotations

import math
import threading
import time
import zipfile
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import IngestError
from chunkstore.shards import Chunk, add_chunks
from chunkstore.statistics import Gathering
from ingest.assemble import Assembly, Slices
from ingest.faults import fault_to_json
from ingest.order import Look
from ingest.rows import Account, column_of, has_mask, lost_mask, mask_name, mask_of, null_of, settle, total
from ingest.scratch import DamagedScratchError
from ingest.stage import keep_freed_memory, summary
from ingest.versions import check_versions
from ingest.worker import check_identity, fence, ledger_of, scratch_of, skeleton_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chunkstore.layout import FieldSpec, Layout
    from chunkstore.shards import ShardReceipt, ShardWriter, StoreSkeleton
    from ingest.folder import Folder
    from ingest.ledger import Ledger
    from ingest.plan import Job
    from ingest.protocol import Batch, Fault, Part

__all__ = ["PlacedTask", "StagedTask", "write_placed", "write_staged"]

#: chunks of a field that are handed to the encoders at a time, and their bytes, unless one has more
HANDED_CHUNKS, HANDED = 8, 4 << 20


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
    slices: Slices | str
    """What to read, or the name in scratch under which it is written: tasks stay small."""
    borders: np.ndarray
    """int64: obs in the task's range at which a sequence begins."""


class _Shard:
    """One shard on its way into the store: chunks are checked, counted and encoded while they are at hand.

    Nothing is stored before :meth:`store`, and no more than the encoded chunks is kept.
    """

    def __init__(
        self, job: Job, ledger: Ledger, skeleton: StoreSkeleton, shard: int, borders: np.ndarray
    ) -> None:
        self.job, self.ledger, self.skeleton, self.shard = job, ledger, skeleton, shard
        self.start, self.stop = _layout(job).shard_range(shard)
        self.watched = () if job.cut is None else job.cut.on_change
        self._look = Look(self.start, self.stop - self.start, borders=borders, cut=job.cut)
        self._writers: dict[str, ShardWriter] = {}
        self._stats = {f.name: Gathering(f.items) for f in job.fields}
        self.receipt: dict[str, Any] = {"shard": shard, "order": {}, "objects": {}, "stats": {}, "gaps": []}

    def look(self, name: str, values: np.ndarray, lost: np.ndarray | None) -> None:
        """Check the order of the next rows, if it shows in this column."""
        if name == self.job.time_field:
            self._look.times(values, lost)
            if self._look.back is not None and self.job.order == "error":
                raise IngestError(_backward(self.job, self._look))
        if name in self.watched:
            self._look.watch(name, values, lost)

    def looked(self, lost: np.ndarray | None) -> None:
        """Note the order of all rows, and which are lost."""
        self.receipt["order"] = self._look.seen(lost)
        if lost is not None:
            self.receipt["gaps"] = _ranges(lost, self.start)

    def ready(
        self, spec: FieldSpec, values: np.ndarray, mask: np.ndarray | None, lost: np.ndarray | None
    ) -> list[Chunk]:
        """Return what of the next chunk of a field is to be encoded, and then to be looked at and counted."""
        if lost is not None and not lost.any():
            lost = None
        if mask is not None:
            if lost is not None:
                mask = mask & ~lost
            values = _hidden(values, mask, spec)
        if lost is not None:
            values = _hidden(values, ~lost, spec)
        chunks = [Chunk(self._writer(spec.name), values, partial(self._count, spec.name, values, mask, lost))]
        if mask is not None:
            chunks.append(Chunk(self._writer(mask_name(spec.name)), mask))
        return chunks

    def _count(self, name: str, values: np.ndarray, mask: np.ndarray | None, lost: np.ndarray | None) -> None:
        self.look(name, values, lost)
        if lost is not None:
            values, mask = values[~lost], None if mask is None else mask[~lost]
        self._stats[name].add(values, mask)

    def _writer(self, name: str) -> ShardWriter:
        writer = self._writers.get(name)
        if writer is None:
            writer = self._writers[name] = self.skeleton.begin_shard(name, self.shard)
        return writer

    def store(self, spec: FieldSpec) -> None:
        """Write the arrays of a field, all of whose chunks have come."""
        self.receipt["stats"][spec.name] = self._stats[spec.name].result().to_json()
        fence(self.job, self.ledger)
        for name in (spec.name, mask_name(spec.name)) if has_mask(spec) else (spec.name,):
            done = self.skeleton.store_shard(self._writers.pop(name))
            self.receipt["objects"][name] = _stored(done)


def _stored(receipt: ShardReceipt) -> list[Any] | None:
    return None if receipt.checksum is None else [receipt.nbytes, receipt.checksum]


def _hidden(values: np.ndarray, kept: np.ndarray, spec: FieldSpec) -> np.ndarray:
    """Values with what stands for none wherever they are not kept, whatever a decoder left there."""
    if kept.all():
        return values
    values = values.copy()  # they may be the source's own
    values[~kept] = null_of(spec)
    return values


def _ranges(lost: np.ndarray, start: int) -> list[list[int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], lost, [False]]).astype(np.int8)))
    return (edges.reshape(-1, 2) + start).tolist()


def _backward(job: Job, look: Look) -> str:
    assert look.back is not None
    before, after = look.back
    return (
        f"times go back at obs {look.where}: {job.time_field} ({before} then {after}); ask for the rows "
        "to be sorted, or for their order to be kept"
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
    """The shard that a placed task is filling, row by row, all columns side by side.

    Rows that make a whole chunk are encoded where the source has put them; others are gathered first. A chunk
    is counted as soon as it is whole, while it is in the cache.
    """

    def __init__(self, shard: _Shard) -> None:
        self.shard = shard
        self.start, self.stop = shard.start, shard.stop
        self.at = self.start
        fields = shard.job.fields
        self._chunk = _layout(shard.job).chunk
        self._begun = self.start
        self._fields = [(spec, mask_name(spec.name) if has_mask(spec) else None) for spec in fields]
        self._others = [name for name in shard.watched if name not in {spec.name for spec in fields}]
        self._columns: dict[str, np.ndarray] = {}
        self._lost: np.ndarray | None = None

    def put(self, columns: Mapping[str, np.ndarray], lost: np.ndarray | None, low: int, high: int) -> None:
        """Take rows [low, high) of a batch as the next obs; they belong to this shard."""
        while low < high:
            end = min(self._begun + self._chunk, self.stop)
            upto = low + min(high - low, end - self.at)
            if lost is not None:
                self._lose(lost[low:upto])
            for name in self._others:
                self.shard.look(name, columns[name][low:upto], None if lost is None else lost[low:upto])
            self._take(columns, low, upto, end)
            self.at += upto - low
            low = upto
            if self.at == end:
                self._begun = end

    def _take(self, columns: Mapping[str, np.ndarray], low: int, high: int, end: int) -> None:
        """Gather rows of one chunk, and encode it if these are its last."""
        whole = self.at + high - low == end
        lost = None
        if whole and self._lost is not None:
            lost = self._lost[self._begun - self.start : end - self.start]
        chunks: list[Chunk] = []
        for spec, mask_of_it in self._fields:
            values = self._gathered(spec.name, columns[spec.name], low, high, end)
            mask = None
            if mask_of_it is not None:
                mask = self._gathered(mask_of_it, columns[mask_of_it], low, high, end)
            if whole:
                chunks += self.shard.ready(spec, values, mask, lost)
        if whole:
            add_chunks(chunks)

    def _gathered(self, name: str, values: np.ndarray, low: int, high: int, end: int) -> np.ndarray:
        """Return the chunk as far as it has come."""
        if high - low == end - self._begun:
            return values[low:high]
        column = self._columns.get(name)
        if column is None:
            n = min(self._chunk, self.stop - self.start)
            column = self._columns[name] = _buffers.take((n, *values.shape[1:]), values.dtype)
        at = self.at - self._begun
        column[at : at + high - low] = values[low:high]
        return column[: end - self._begun]

    def _lose(self, mask: np.ndarray) -> None:
        """Note rows that stand for lost data."""
        if self._lost is None:
            if not mask.any():
                return
            self._lost = np.zeros(self.stop - self.start, bool)
        self._lost[self.at - self.start : self.at - self.start + len(mask)] |= mask

    def close(self) -> dict[str, Any]:
        """Write the shard, and return its receipt."""
        self.shard.looked(self._lost)
        for column in self._columns.values():
            _buffers.give(column)
        for spec, _ in self._fields:
            self.shard.store(spec)
        return self.shard.receipt


def write_placed(job: Job, task: PlacedTask) -> dict[str, Any]:
    """Fill and write the shards of a placed task, record its receipt, and return a summary of it."""
    began = time.perf_counter()
    keep_freed_memory()
    check_versions(job.versions)
    ledger = ledger_of(job)
    fence(job, ledger)
    source = source_of(job)
    skeleton = skeleton_of(job)
    layout = _layout(job)
    start, stop = (layout.shard * task.shards[0], min(layout.shard * task.shards[1], layout.n_obs))
    accounts: list[Account] = []
    faults: list[Fault] = []
    labels: dict[str, list[list[Any]]] = {}
    receipts: list[dict[str, Any]] = []
    begin = partial(_Shard, job, ledger, skeleton, borders=task.borders)
    filling = _Filling(begin(task.shards[0])) if stop > start else None
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
                filling.put(columns, lost, low - at, upto - at)
                low = upto
                if low == filling.stop:
                    receipts.append(filling.close())
                    shard = filling.shard.shard + 1
                    more = shard < task.shards[1]
                    filling = _Filling(begin(shard)) if more else None
            at += batch.rows
            if at >= stop and not owner:
                break
        check_identity(source, part)  # whoever has read some of it answers for what it was
        if owner:
            if at != end:
                raise IngestError(
                    f"{part.file}: part {part.index} gave {at - first} rows of {part.claimed}; a placed part "
                    "must give them all, lost ones included"
                )
            good = part.claimed - gap
            account, extra = settle(part, good, gap, own)
            accounts.append(account)
            faults += own + extra
            bytes_in += part.nbytes
    if filling is not None:
        wanted = filling.stop - filling.start
        raise IngestError(
            f"shard {filling.shard.shard} got {filling.at - filling.start} of its {wanted} rows; plan and "
            "source disagree"
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


def _slices(folder: Folder, task: StagedTask) -> Slices:
    if isinstance(task.slices, Slices):
        return task.slices
    try:
        data = folder.get(task.slices)
    except FileNotFoundError as error:
        raise IngestError(f"scratch {folder.url} has lost {task.slices}; run again with --resume") from error
    try:
        return Slices.load(data)
    except (ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:  # its own crc32
        raise IngestError(
            f"{task.slices} in scratch {folder.url} is damaged; run again with --resume, which makes it anew"
        ) from error


def write_staged(job: Job, task: StagedTask) -> dict[str, Any]:
    """Assemble and write the shards of a staged task, record its receipt, and return a summary of it."""
    began = time.perf_counter()
    check_versions(job.versions)
    ledger = ledger_of(job)
    fence(job, ledger)
    folder = scratch_of(job)
    skeleton = skeleton_of(job)
    receipts = []
    slices = _slices(folder, task)
    try:
        for shard in range(*task.shards):
            start, stop = _layout(job).shard_range(shard)
            scratch = Assembly(
                slices,
                folder,
                start,
                stop,
                time_field=job.time_field,
                take=_buffers.take,
                give=_buffers.give,
            )
            wanted = stop - start
            if scratch.rows() != wanted:
                raise IngestError(
                    f"shard {shard} would get {scratch.rows()} rows of {wanted}; the plan is wrong"
                )
            receipts.append(_assembled(_Shard(job, ledger, skeleton, shard, task.borders), scratch))
    except DamagedScratchError as error:
        fence(job, ledger)
        folder.delete(error.segment)  # what is not there is staged anew
        raise IngestError(str(error)) from error
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


def _assembled(shard: _Shard, scratch: Assembly) -> dict[str, Any]:
    """Write a shard out of scratch, one field after the other, and return its receipt."""
    job = shard.job
    lost = scratch.lost()
    step = _layout(job).chunk
    known = {f.name for f in job.fields}
    for name in shard.watched:
        if name not in known:
            at = 0
            for values in scratch.chunks(name, None, step):
                shard.look(name, values, None if lost is None else lost[at : at + len(values)])
                at += len(values)
    # times first: where they may not go back, nothing else is worth reading before they are seen
    for spec in sorted(job.fields, key=lambda f: f.name != job.time_field):
        several = max(1, min(HANDED // (step * spec.bytes_per_obs), HANDED_CHUNKS))
        pieces = scratch.chunks(spec.name, spec, step, several)
        count = -(-(shard.stop - shard.start) // step)
        masks: Iterable[np.ndarray | None] = repeat(None, count)
        if has_mask(spec):
            masks = scratch.chunks(mask_name(spec.name), None, step, several)
        at = 0
        ready: list[Chunk] = []
        for i, (values, mask) in enumerate(zip(pieces, masks, strict=True), 1):
            gone = None if lost is None else lost[at : at + len(values)]
            for chunk in shard.ready(spec, values, mask, gone):
                if chunk.then is not None:
                    chunk.then()  # here: it was compared with its checksum, so this core has it at hand
                ready.append(chunk._replace(then=None))
            at += len(values)
            if i % several == 0 or i == count:
                add_chunks(ready)
                ready = []
        shard.store(spec)
    shard.looked(lost)
    return shard.receipt

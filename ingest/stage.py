"""Staging: decode every part once into scratch, grouped by sequence, and count.

A staging task reads a few parts and writes *segments*. A segment holds decoded rows column by
column; the rows of one sequence stand together in it (a *slice*), sorted by time if the plan sorts. The
counts of all slices say where everything goes; :mod:`ingest.write` then reads each segment in
runs and assembles shards: a counting sort over any amount of data with two sequential passes.
"""

from __future__ import annotations

import io
import math
import time
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.codecs import checksum
from chunkstore.errors import IngestError, UnsupportedError
from ingest.faults import FaultCount, fault_to_json, loses_rows
from ingest.grouping import group
from ingest.inputs import natural_key
from ingest.rows import (
    Account,
    column_of,
    differs,
    fill_lost,
    has_mask,
    lost_mask,
    mask_name,
    mask_of,
    settle,
    total,
)
from ingest.scratch import page_sums
from ingest.versions import check_versions
from ingest.worker import check_identity, fence, ledger_of, scratch_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingest.folder import Folder
    from ingest.grouping import Grouping
    from ingest.plan import Job
    from ingest.protocol import Batch, Fault, Part

__all__ = ["LOST", "StageTask", "stage"]

#: name of the hidden column of rows that stand for lost data
LOST = "__lost__"
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class StageTask:
    """Parts that one task decodes into scratch."""

    index: int
    """Number of the task."""
    parts: tuple[Part, ...]
    """Consecutive parts."""
    keys: tuple[str, ...] | None
    """Sequence of each part where the scan knows it (placed sources whose rows must be sorted)."""
    key_order: str
    """``input`` or ``sorted``."""
    key_once: bool = False
    """Whether keys that read the same are sequences of their own."""


@dataclass
class _Buffer:
    """Rows gathered for the next segment."""

    columns: dict[str, list[np.ndarray]] = field(default_factory=dict)
    codes: list[tuple[np.ndarray | int, int]] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    aside: int = 0
    """Bytes that grouping and sorting will need beside the values."""


class _Stager:
    """The work of one task; see :func:`stage`."""

    def __init__(self, job: Job, task: StageTask) -> None:
        self.job = job
        self.task = task
        self.scratch: Folder = scratch_of(job)
        self.keys: dict[str, int] = {}
        self.names: list[str] = []
        """Key of each code."""
        self.labels: dict[str, dict[int, Any]] = {}
        self.conflicts: list[tuple[str, str, Any, Any]] = []
        self.segments: list[dict[str, Any]] = []
        self.buffer = _Buffer()
        self.nbytes = 0
        self._memory = np.empty(0, np.uint8)

    def add(self, part: Part, batch: Batch, key: str | None) -> tuple[int, int]:
        """Take in a batch; return (rows with data, rows lost)."""
        keys = batch.keys if key is None else (key,)
        known = self._codes(keys)
        for name, stated in batch.labels.items():
            told = self.labels.setdefault(name, {})
            for k, code, value in zip(keys, known, stated, strict=True):
                if value is None:
                    continue
                if differs(told.setdefault(code, value), value):
                    self.conflicts.append((k, name, told[code], value))
        if batch.rows == 0:
            return 0, 0
        if not known:
            raise IngestError(f"{part.file}: {batch.rows} rows came without a key")
        lost = lost_mask(batch)
        buffer = self.buffer
        if batch.codes is None:
            buffer.codes.append((known[0], batch.rows))
        elif key is None:
            codes = batch.codes
            if codes.dtype != np.int32 or known != list(range(len(known))):
                codes = np.array(known, np.int32)[codes]
            buffer.codes.append((codes, batch.rows))
        else:
            buffer.codes.append((known[0], batch.rows))
        added = 0
        for spec in self.job.fields:
            added += self._keep(spec.name, column_of(batch, spec, part))
            if has_mask(spec):
                added += self._keep(mask_name(spec.name), mask_of(batch, spec))
        for name in _watched(self.job):
            values = batch.columns.get(name)
            if values is None:
                raise IngestError(
                    f"{part.file}: sequences are cut where {name!r} changes, but it did not come"
                )
            if values.dtype.kind not in "biuf":
                raise UnsupportedError(
                    f"cannot cut where {name!r} changes: it is {values.dtype}, not a number"
                )
            added += self._keep(name, values)
        gap = 0
        if lost is not None or LOST in buffer.columns:
            if LOST not in buffer.columns:
                buffer.columns[LOST] = [np.zeros(n, bool) for _, n in buffer.codes[:-1]]
            buffer.columns[LOST].append(np.zeros(batch.rows, bool) if lost is None else lost)
            gap = 0 if lost is None else int(np.count_nonzero(lost))
        buffer.rows += batch.rows
        buffer.nbytes += added
        buffer.aside += batch.rows * self._aside_bytes(mixed=batch.codes is not None and key is None)
        if buffer.nbytes >= min(self.job.segment, 2 * self.job.segment - buffer.aside):
            self.flush()
        return batch.rows - gap, gap

    def _aside_bytes(self, *, mixed: bool) -> int:
        """Return the bytes a row beside the values; a plan promises twice a segment for both."""
        one = max(f.bytes_per_obs for f in self.job.fields)  # columns are grouped one after the other
        sort = self.job.order == "sort"
        return one + 8 * mixed + 40 * sort + 56 * (sort and LOST in self.buffer.columns)

    def _codes(self, keys: Sequence[str]) -> list[int]:
        """Give a number to every key; the same to the same, unless each is met once."""
        if self.task.key_once:
            first = len(self.names)
            self.names += keys
            return list(range(first, len(self.names)))
        codes = []
        for key in keys:
            code = self.keys.setdefault(key, len(self.names))
            if code == len(self.names):
                self.names.append(key)
            codes.append(code)
        return codes

    def _keep(self, name: str, values: np.ndarray) -> int:
        self.buffer.columns.setdefault(name, []).append(values)
        return values.nbytes

    def _grouped(self) -> tuple[Grouping, np.ndarray | None, np.ndarray | None]:
        """Say where each row goes; where time sorts, return times in that order, and wholly lost slices."""
        buffer = self.buffer
        grouping = group(buffer.codes, self._rank())
        name = self.job.time_field
        if self.job.order != "sort" or name is None:
            return grouping, None, None
        pieces = buffer.columns[name]
        times = grouping.gather(pieces, np.empty(buffer.rows, np.result_type(*pieces)))
        gone = None
        if LOST in buffer.columns:
            # lost rows stay behind the row before them; what they hold never reaches the store
            lost = grouping.gather(buffer.columns[LOST], np.empty(buffer.rows, bool))
            times, gone = fill_lost(times, lost, grouping.rows)
            buffer.columns[name] = grouping.ungather(times)
        ordered = grouping.sort(times)
        return grouping, times if ordered is None else ordered, gone

    def _rank(self) -> np.ndarray:
        names = self.names
        rank = np.arange(len(names))
        if self.task.key_order == "sorted":
            place = sorted(range(len(names)), key=lambda i: natural_key(names[i]))
            rank[place] = np.arange(len(names))
        return rank

    def _room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return memory for one column, the same again: touching fresh memory costs as much as a copy."""
        need = math.prod(shape) * dtype.itemsize
        if self._memory.size < need:
            self._memory = np.empty(need, np.uint8)
        return self._memory[:need].view(dtype).reshape(shape)

    def flush(self) -> None:
        """Write what is gathered as one segment."""
        buffer = self.buffer
        if buffer.rows == 0:
            return
        grouping, times, gone = self._grouped()
        name = f"seg/{self.task.index:06d}-{len(self.segments):04d}"
        columns: dict[str, list[Any]] = {}
        sums: list[np.ndarray] = []

        def pieces() -> Iterator[Any]:
            offset = 0
            for column in list(buffer.columns):
                values = buffer.columns.pop(column)
                kind = np.result_type(*values)
                if grouping.moved or any(v.dtype != kind for v in values):
                    shape = (buffer.rows, *values[0].shape[1:])
                    values = [grouping.gather(values, self._room(shape, kind))]
                items = values[0].shape[1] if values[0].ndim == 2 else 0
                columns[column] = [offset, kind.str, items, sum(map(len, sums))]
                data = [np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in values]
                nbytes = sum(map(len, data))
                if nbytes:
                    sums.append(page_sums(data, nbytes // buffer.rows))
                    for piece in data:
                        yield piece.data
                pad = -nbytes % _ALIGN
                yield bytes(pad)
                offset += nbytes + pad
            table = np.concatenate([np.empty(0, "<u4"), *sums])
            where.extend((offset, table.size, checksum(table.tobytes())))
            yield table.tobytes()

        where: list[int] = []
        rows = buffer.rows
        nbytes = self.scratch.put_stream(name, pieces())
        table = np.zeros((grouping.keys.size, 4), np.int64)
        table[:, 0], table[:, 1] = grouping.keys, grouping.rows
        if times is not None:
            ends = np.cumsum(grouping.rows)
            table[:, 2], table[:, 3] = _bits(times[ends - grouping.rows]), _bits(times[ends - 1])
        if gone is not None:
            table[gone, 1] *= -1  # no time of theirs is known
        out = io.BytesIO()
        np.save(out, table)
        index = out.getvalue()
        self.scratch.put(name + ".idx", index)
        self.nbytes += nbytes
        told = {"name": name, "rows": rows, "nbytes": nbytes, "columns": columns}
        self.segments.append({**told, "sums": where, "crc": checksum(index)})
        self.buffer = _Buffer()


def _bits(times: np.ndarray) -> np.ndarray:
    """Return times as int64: integers modulo 2**64, floats by their bits (undone by ``ingest.exchange``)."""
    if times.dtype.kind == "f":
        return times.astype(np.float64).view(np.int64)
    return times.astype(np.int64)


def _watched(job: Job) -> list[str]:
    """Columns that only the cutting rule needs."""
    if job.cut is None:
        return []
    known = {f.name for f in job.fields}
    return [name for name in job.cut.on_change if name not in known]


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what is freed, up to 64 MiB, for what is asked for next.

    Batches wait until they make a segment and are freed together. glibc would give them back and fault fresh
    pages in for the next ones, which costs as much as decoding them; it keeps twice the largest mapped block
    that it has seen freed, 32 MiB at most. Other libraries do not mind. What a task holds at most does not
    change.
    """
    np.empty(31 << 20, np.uint8)  # never touched: no memory but addresses


def stage(job: Job, task: StageTask) -> dict[str, Any]:
    """Decode the parts of a task into scratch, record its receipt, and return a summary of it."""
    began = time.perf_counter()
    keep_freed_memory()
    check_versions(job.versions)
    ledger = ledger_of(job)
    fence(job, ledger)
    source = source_of(job)
    work = _Stager(job, task)
    accounts: list[Account] = []
    faults: list[Fault] = []
    for i, part in enumerate(task.parts):
        check_identity(source, part)
        own: list[Fault] = []
        good = gap = 0
        for batch in source.read(part):
            own += batch.faults
            a, b = work.add(part, batch, None if task.keys is None else task.keys[i])
            good, gap = good + a, gap + b
        check_identity(source, part)
        account, extra = settle(part, good, gap, own)
        accounts.append(account)
        faults += own + extra
    work.flush()
    fence(job, ledger)
    whole = total(accounts)
    receipt = {
        "keys": work.names,
        "labels": {
            name: [column.get(code) for code in range(len(work.names))]
            for name, column in work.labels.items()
        },
        "conflicts": work.conflicts,
        "segments": work.segments,
        "accounts": [a.to_json() for a in accounts],
        "faults": [fault_to_json(f) for f in faults],
        "seconds": round(time.perf_counter() - began, 3),
    }
    ledger.record("stage", task.index, receipt)
    return summary(whole, faults, sum(p.nbytes for p in task.parts), work.nbytes)


def summary(whole: Account, faults: Sequence[Fault], bytes_in: int, bytes_out: int) -> dict[str, Any]:
    """Return the few numbers that travel back to the client."""
    count = FaultCount()
    count.add(faults)
    return {
        "rows": whole.rows_in,
        "stored": whole.stored,
        "lost": whole.gap + whole.quarantined,
        "faults": count.by_code,
        "losing": count.losing,
        "first": next((f"{f.file}: {f.message}" for f in faults if loses_rows(f)), None),
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
    }

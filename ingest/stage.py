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
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.codecs import checksum
from chunkstore.errors import IngestError, UnsupportedError
from ingest.faults import FaultCount, fault_to_json, loses_rows
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
from ingest.worker import check_identity, fence, ledger_of, scratch_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingest.folder import Folder
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

    def codes_array(self) -> np.ndarray:
        """int32[rows]: key of each row."""
        pieces = [np.full(n, c, np.int32) if isinstance(c, int) else c for c, n in self.codes]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int32)

    def runs(self, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return key and rows of each key if batches have one each, in order: then nothing moves."""
        if not all(isinstance(c, int) for c, _ in self.codes):
            return None
        keys = np.array([c for c, _ in self.codes], np.int64)
        if (np.diff(rank[keys]) < 0).any():
            return None
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return keys[starts], np.add.reduceat(np.array([n for _, n in self.codes], np.int64), starts)

    def single(self) -> int | None:
        """Return the key of all rows, if they have one."""
        known = {c for c, _ in self.codes if isinstance(c, int)}
        if len(known) == 1 and all(isinstance(c, int) for c, _ in self.codes):
            return known.pop()
        return None


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
        self._rooms = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

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
            buffer.codes.append((np.array(known, np.int32)[batch.codes], batch.rows))
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
                buffer.columns[LOST] = [np.zeros(buffer.rows, bool)] if buffer.rows else []
            buffer.columns[LOST].append(np.zeros(batch.rows, bool) if lost is None else lost)
            gap = 0 if lost is None else int(np.count_nonzero(lost))
        buffer.rows += batch.rows
        buffer.nbytes += added
        if buffer.nbytes >= self.job.segment:
            self.flush()
        return batch.rows - gap, gap

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

    def _order(self) -> tuple[np.ndarray | None, np.ndarray, np.ndarray, np.ndarray | None]:
        """Return (permutation or None, key of each slice, rows of each slice, sorted times or None)."""
        buffer = self.buffer
        times = None
        if self.job.order == "sort" and self.job.time_field is not None:
            times = np.concatenate(buffer.columns[self.job.time_field])
            if LOST in buffer.columns:
                # lost rows stay behind the row before them; what they hold never reaches the store
                times = fill_lost(times, np.concatenate(buffer.columns[LOST]))
                buffer.columns[self.job.time_field] = [times]
        single = buffer.single()
        order: np.ndarray | None
        if single is not None:
            order = None
            if times is not None and (times[1:] < times[:-1]).any():
                order = np.argsort(times, kind="stable")
                times = times[order]
            return order, np.array([single]), np.array([buffer.rows]), times
        rank = self._rank()
        runs = buffer.runs(rank) if times is None else None
        if runs is not None:
            return None, runs[0], runs[1], None
        codes = buffer.codes_array()
        # numpy sorts numbers of 16 bits by counting them: several times faster, and in the same order
        ranks = (rank.astype(np.uint16) if rank.size <= 1 << 16 else rank)[codes]
        order = np.argsort(ranks, kind="stable") if times is None else np.lexsort((times, ranks))
        if times is not None:
            times = times[order]
        counts = np.bincount(ranks, minlength=rank.size)
        present = np.flatnonzero(counts)
        code_of = np.empty_like(rank)
        code_of[rank] = np.arange(rank.size)
        return order, code_of[present], counts[present], times

    def _rank(self) -> np.ndarray:
        names = self.names
        rank = np.arange(len(names))
        if self.task.key_order == "sorted":
            place = sorted(range(len(names)), key=lambda i: natural_key(names[i]))
            rank[place] = np.arange(len(names))
        return rank

    def _joined(self, values: list[np.ndarray]) -> np.ndarray:
        shape = (sum(map(len, values)), *values[0].shape[1:])
        return np.concatenate(values, out=self._room(0, shape, np.result_type(*values)))

    def _room(self, which: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return memory for one column, the same again: touching fresh memory costs as much as a copy."""
        need = math.prod(shape) * dtype.itemsize
        if self._rooms[which].size < need:
            self._rooms[which] = np.empty(need, np.uint8)
        return self._rooms[which][:need].view(dtype).reshape(shape)

    def flush(self) -> None:
        """Write what is gathered as one segment."""
        buffer = self.buffer
        if buffer.rows == 0:
            return
        order, slice_keys, slice_rows, times = self._order()
        name = f"seg/{self.task.index:06d}-{len(self.segments):04d}"
        columns: dict[str, list[Any]] = {}
        sums: list[np.ndarray] = []

        def pieces() -> Iterator[Any]:
            offset = 0
            for column in list(buffer.columns):
                values = buffer.columns.pop(column)
                whole = values[0] if len(values) == 1 else self._joined(values)
                del values
                if order is not None:
                    whole = np.take(whole, order, 0, self._room(1, whole.shape, whole.dtype), mode="clip")
                whole = np.ascontiguousarray(whole)
                items = whole.shape[1] if whole.ndim == 2 else 0
                columns[column] = [offset, whole.dtype.str, items, sum(map(len, sums))]
                if whole.nbytes:
                    data = whole.reshape(-1).view(np.uint8)
                    sums.append(page_sums(data, whole.nbytes // len(whole)))
                    yield data.data
                pad = -whole.nbytes % _ALIGN
                yield bytes(pad)
                offset += whole.nbytes + pad
            table = np.concatenate([np.empty(0, "<u4"), *sums])
            where.extend((offset, table.size))
            yield table.tobytes()

        where: list[int] = []
        rows = buffer.rows
        nbytes = self.scratch.put_stream(name, pieces())
        table = np.zeros((slice_keys.size, 4), np.int64)
        table[:, 0], table[:, 1] = slice_keys, slice_rows
        if times is not None:
            ends = np.cumsum(slice_rows)
            table[:, 2], table[:, 3] = _bits(times[ends - slice_rows]), _bits(times[ends - 1])
        out = io.BytesIO()
        np.save(out, table)
        index = out.getvalue()
        self.scratch.put(name + ".idx", index)
        self.nbytes += nbytes
        told = {"name": name, "rows": rows, "nbytes": nbytes, "columns": columns}
        self.segments.append({**told, "sums": where, "crc": checksum(index)})
        self.buffer = _Buffer()


def _bits(times: np.ndarray) -> np.ndarray:
    """Return times as int64: integers as they are, floats by their bits (undone by ``ingest.exchange``)."""
    if times.dtype.kind == "f":
        return times.astype(np.float64).view(np.int64)
    return times.astype(np.int64)


def _watched(job: Job) -> list[str]:
    """Columns that only the cutting rule needs."""
    if job.cut is None:
        return []
    known = {f.name for f in job.fields}
    return [name for name in job.cut.on_change if name not in known]


def stage(job: Job, task: StageTask) -> dict[str, Any]:
    """Decode the parts of a task into scratch, record its receipt, and return a summary of it."""
    began = time.perf_counter()
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

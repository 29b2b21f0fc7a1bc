"""From staged counts to places: which slice of scratch goes to which obs.

Runs once, in the client, between staging and writing. It reads the receipts of staging and the
tables of slices, orders the sequences, and lets :mod:`ingest.place` do the sums.
"""

from __future__ import annotations

import io
import logging
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.codecs import checksum
from chunkstore.errors import IngestError
from ingest.inputs import natural_key
from ingest.lazy import LazyList
from ingest.ledger import in_order
from ingest.place import place_slices
from ingest.rows import differs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingest.folder import Folder
    from ingest.ledger import Ledger
    from ingest.place import SlicePlaces
    from ingest.plan import Plan

__all__ = ["Exchange", "SegmentRef", "Segments", "gather", "numbered", "scratch_is_whole"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """Where a segment lies and what is in it."""

    name: str
    """Name in the scratch folder."""
    rows: int
    """Number of rows."""
    columns: Mapping[str, tuple[int, str, int, int]]
    """Column -> (byte offset, dtype, items; 0 for scalars, index of its first sum)."""
    sums: tuple[int, int, int] | None = None
    """Byte offset and number of the checksums of its pages, see :mod:`ingest.scratch`, and the crc32c of
    them, by which no other segment is taken for it; None for none."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> SegmentRef:
        """Return what a receipt of staging, or :meth:`to_json`, tells of a segment."""
        columns = {n: (c[0], c[1], c[2], c[3] if len(c) > 3 else 0) for n, c in told["columns"].items()}
        sums = told.get("sums")
        return cls(told["name"], told["rows"], columns, None if sums is None else (sums[0], sums[1], sums[2]))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        columns = {name: list(column) for name, column in self.columns.items()}
        return {"name": self.name, "rows": self.rows, "columns": columns, "sums": self.sums}


class Segments(LazyList[SegmentRef]):
    """All segments, in the order of the inputs: two integers a column of each, not objects.

    Examples
    --------
    >>> told = {"name": "seg/0", "rows": 3, "columns": {"x": [0, "<f4", 0, 0]}, "sums": [64, 1, 7]}
    >>> segments = Segments()
    >>> segments.append(told)
    >>> segments[0] == SegmentRef.from_json(told), len(segments)
    (True, 1)
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._shapes: list[tuple[Any, ...]] = []  # of each kind: name, dtype and items of its columns
        #: kind, rows, byte offset, number (-1 for none) and crc32c of the sums, first entry of the columns
        self._fixed = array("q")
        #: byte offset and index of the first sum of each column
        self._columns = array("q")

    def append(self, told: Mapping[str, Any]) -> None:
        """Keep what a receipt tells of one more."""
        ref = SegmentRef.from_json(told)
        shape = tuple((name, dtype, items) for name, (_, dtype, items, _) in ref.columns.items())
        kind = self._kinds.setdefault(shape, len(self._kinds))
        if kind == len(self._shapes):
            self._shapes.append(shape)
        self._names.append(ref.name)
        self._fixed.extend((kind, ref.rows, *(ref.sums or (-1, -1, -1)), len(self._columns)))
        for offset, _, _, first in ref.columns.values():
            self._columns.extend((offset, first))

    def __len__(self) -> int:
        return len(self._names)

    def item(self, index: int) -> SegmentRef:
        """Make one reference."""
        kind, rows, where, count, crc, at = self._fixed[6 * index : 6 * index + 6]
        columns = {}
        for name, dtype, items in self._shapes[kind]:
            columns[name] = (self._columns[at], dtype, items, self._columns[at + 1])
            at += 2
        return SegmentRef(self._names[index], rows, columns, None if count < 0 else (where, count, crc))


@dataclass(frozen=True)
class Exchange:
    """Everything that staging led to."""

    ids: tuple[str, ...]
    """Ids of the sequences, in their order."""
    labels: Mapping[str, Mapping[int, Any]]
    """Column -> {place of the sequence: value}."""
    places: SlicePlaces
    """Where slices go."""
    segments: Segments
    """All segments, in the order of the inputs."""
    segment_of: np.ndarray
    """int64[N]: segment of each slice."""
    row: np.ndarray
    """int64[N]: first row of each slice in its segment."""
    nbytes: int
    """Bytes in scratch."""
    conflicts: list[tuple[str, str, Any, Any]] = field(default_factory=list)
    """(id, column, value kept, value found) of labels that disagree."""
    repeated: tuple[str, ...] = ()
    """Ids that several records had, where a record is a sequence."""


def scratch_is_whole(receipt: Mapping[str, Any], scratch: Folder) -> bool:
    """Whether every segment that a staging receipt names is still in scratch, with its size."""
    return all(
        scratch.size(s["name"]) == s["nbytes"] and scratch.size(s["name"] + ".idx") is not None
        for s in receipt["segments"]
    )


def gather(plan: Plan, ledger: Ledger, scratch: Folder) -> Exchange:
    """Read all receipts of staging and place every slice.

    Raises
    ------
    IngestError
        If a receipt or a table is gone.
    """
    known = _Names(plan.keys, once=plan.key_once)
    labels: dict[str, dict[int, Any]] = {}
    conflicts: list[tuple[str, str, Any, Any]] = []
    segments = Segments()
    tables = array("q")  # grows in place: an array a segment would be millions of them
    slices = array("q")
    nbytes = 0

    def read(receipt: dict[str, Any]) -> tuple[dict[str, Any], list[np.ndarray]]:
        return receipt, [_table(scratch, s["name"], s.get("crc")) for s in receipt["segments"]]

    for receipt, found in in_order(scratch.url, read, ledger.receipts("stage", plan.n_stage_tasks)):
        codes = np.array([known.code(k) for k in receipt["keys"]], np.int64)
        conflicts += [(a, b, c, d) for a, b, c, d in receipt["conflicts"]]
        for name, values in receipt["labels"].items():
            column = labels.setdefault(name, {})
            for key, code, value in zip(receipt["keys"], codes.tolist(), values, strict=True):
                if value is not None and differs(column.setdefault(code, value), value):
                    conflicts.append((key, name, column[code], value))
        for segment, table in zip(receipt["segments"], found, strict=True):
            table[:, 0] = codes[table[:, 0]]
            slices.append(len(table))
            tables.frombytes(table.tobytes())
            segments.append(segment)
            nbytes += segment["nbytes"]
    whole = np.array(tables, np.int64).reshape(-1, 4)
    del tables
    gone = whole[:, 1] < 0  # all of these is lost, when is not known
    np.abs(whole[:, 1], out=whole[:, 1])
    counts = np.array(slices, np.int64)
    segment_of = np.repeat(np.arange(len(segments)), counts)
    before = np.cumsum(whole[:, 1]) - whole[:, 1]
    # rows before a slice in its own segment: less those before the segment
    row = before - np.repeat(before[(np.cumsum(counts) - counts)[counts > 0]], counts[counts > 0])
    ids = known.names
    rank = np.arange(len(ids), dtype=np.int64)
    if plan.key_order == "sorted":
        # those that the scan knows have their order, and labels in it
        order = [
            *range(len(plan.keys)),
            *sorted(range(len(plan.keys), len(ids)), key=lambda i: natural_key(ids[i])),
        ]
        rank[order] = np.arange(len(ids))
        ids = [ids[i] for i in order]  # of ids that read the same, the first of the inputs comes first
        labels = {name: {int(rank[i]): v for i, v in column.items()} for name, column in labels.items()}
    ids, repeated = numbered(ids) if plan.key_once else (ids, ())
    first = last = None
    if plan.order == "sort":
        first, last = _times(plan, whole[:, 2]), _times(plan, whole[:, 3])
    places = place_slices(rank[whole[:, 0]], whole[:, 1], len(ids), first, last, gone=gone)
    return Exchange(
        tuple(ids),
        labels,
        places,
        segments,
        segment_of,
        row,
        nbytes,
        conflicts,
        repeated,
    )


class _Names:
    """Numbers of keys: one for those that read the same, or (``once``) one for each."""

    def __init__(self, keys: Sequence[str], *, once: bool) -> None:
        self.names = list(keys)
        self._known = None if once else {key: i for i, key in enumerate(keys)}

    def code(self, key: str) -> int:
        code = len(self.names) if self._known is None else self._known.setdefault(key, len(self.names))
        if code == len(self.names):
            self.names.append(key)
        return code


def numbered(ids: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Make ids differ: a number behind the second and later ones; return the ids that were met again too.

    Examples
    --------
    >>> numbered(["a", "b", "a"])
    (['a', 'b', 'a#2'], ('a',))
    """
    seen: dict[str, int] = {}
    for key in ids:
        seen[key] = seen.get(key, 0) + 1
    repeated = tuple(key for key, n in seen.items() if n > 1)
    if not repeated:
        return list(ids), ()
    sign = "#"
    while any(sign in key for key in seen):
        sign += "#"
    seen.clear()
    out = []
    for key in ids:
        seen[key] = n = seen.get(key, 0) + 1
        out.append(key if n == 1 else f"{key}{sign}{n}")
    return out, repeated


def _table(scratch: Folder, name: str, crc: int | None) -> np.ndarray:
    """Return the table of slices of a segment; a damaged one is removed, so that it is staged anew."""
    try:
        data = scratch.get(name + ".idx")
    except FileNotFoundError as error:
        raise IngestError(
            f"scratch {scratch.url} has lost {name}; run again with --resume, which stages it anew"
        ) from error
    if crc is not None and checksum(data) != crc:
        scratch.delete(name + ".idx")
        raise IngestError(
            f"{name}.idx in scratch {scratch.url} is damaged and was removed; run again with --resume, which "
            "stages it anew"
        )
    table: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    return table


def _times(plan: Plan, bits: np.ndarray) -> np.ndarray:
    kind = next(f.np_dtype.kind for f in plan.fields if f.name == plan.time_field)
    bits = np.ascontiguousarray(bits)
    return bits.view({"f": np.float64, "u": np.uint64}.get(kind, np.int64))

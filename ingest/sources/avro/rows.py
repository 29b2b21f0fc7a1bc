"""From decoded blocks to batches: lost rows, keys, labels, sequences of records."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest.protocol import Batch, Fault
from ingest.sources.avro.decoded import blank

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingest.protocol import Part
    from ingest.sources.avro.columns import KeyColumn, Plan
    from ingest.sources.avro.decoded import Decoded

__all__ = ["RowMaker", "join_codes", "null_marks"]

_GAP_BYTES = 16 << 20


def join_codes(columns: Sequence[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Give numbers to the tuples of several code columns, in the order of their first appearance.

    Parameters
    ----------
    columns
        (int32[rows] codes, number of codes) of each.

    Returns
    -------
    codes : int32[rows]
    first : int64[tuples]
        The row in which each tuple appears first.

    Examples
    --------
    >>> join_codes([(np.array([1, 1, 0, 1]), 2)])
    (array([0, 0, 1, 0], dtype=int32), array([0, 2]))
    """
    flat = columns[0][0].astype(np.int64)
    size = columns[0][1]
    for codes, n in columns[1:]:
        flat = flat * n + codes
        size *= n
        if size > 1 << 24:  # number them densely again, so that the product cannot overflow
            flat = np.unique(flat, return_inverse=True)[1].astype(np.int64)
            size = int(flat.max(initial=-1)) + 1
    if size <= max(4096, 4 * flat.size):
        seen = np.full(size, -1, np.int64)
        seen[flat[::-1]] = np.arange(flat.size - 1, -1, -1)
        present = np.flatnonzero(seen >= 0)
        order = np.argsort(seen[present], kind="stable")
        rank = np.empty(size, np.int32)
        rank[present[order]] = np.arange(present.size, dtype=np.int32)
        return rank[flat], seen[present[order]]
    _, index, inverse = np.unique(flat, return_index=True, return_inverse=True)
    order = np.argsort(index, kind="stable")
    rank = np.empty(index.size, np.int32)
    rank[order] = np.arange(index.size, dtype=np.int32)
    return rank[inverse], index[order]


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _id(k: KeyColumn, value: Any) -> str:
    """Text of a key's value; a text that reads like a null gets quotes where nulls are possible."""
    text = _text(value)
    return f'"{text}"' if k.nullable and value is not None and text.strip('"') == "null" else text


def _joined(parts: Sequence[str]) -> str:
    """Join the texts of several keys; what a part has of the separator is escaped.

    Examples
    --------
    >>> _joined(["a/b", "c"]), _joined(["a", "b/c"]), _joined(["a/b"])
    ('a%2Fb/c', 'a/b%2Fc', 'a/b')
    """
    if len(parts) == 1:
        return parts[0]
    return "/".join(re.sub("%(?=2[5F])", "%25", p).replace("/", "%2F") for p in parts)


def _number_of(value: Any) -> int:
    """Give a text a number, the same everywhere; what is no text has a number that no text has."""
    data = b"\xff" if value is None else _text(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def null_marks(plan: Plan, cut_on: Sequence[str]) -> dict[str, str]:
    """Name what tells nulls from values in the fields that cut sequences: a null is stored as some value.

    Returns the name of a column that comes with the rows and is not stored, by the field's name.
    """
    taken = {name for c in plan.columns for name in (c.name, f"{c.name}_valid")} | {k.name for k in plan.cuts}
    out = {}
    for c in plan.columns:
        if c.masked and c.path in cut_on:
            mark = f"{c.name}__null"
            while mark in taken:
                mark += "_"
            out[c.name] = mark
            taken.add(mark)
    return out


class RowMaker:
    """Makes the batches of one part."""

    def __init__(self, part: Part, plan: Plan, *, placed: bool, cut_on: Sequence[str] = ()) -> None:
        self.part, self.plan, self.placed = part, plan, placed
        self.nulls = null_marks(plan, cut_on)
        self.row = int(part.payload.get("row", 0))

    def gap(self, rows: int) -> Iterator[Batch]:
        """Rows that a damaged stretch stands for: lost rows where they have a place."""
        self.row += rows
        if not self.placed:
            return
        while rows > 0:
            n = min(rows, max(1, _GAP_BYTES // max(1, self.plan.row_bytes)))
            yield Batch(self._blank(n), n, lost=((0, n),))
            rows -= n

    def _blank(self, rows: int) -> dict[str, np.ndarray]:
        out: dict[str, np.ndarray] = {}
        for c in self.plan.columns:
            out[c.name] = blank(c, rows)
            if c.masked:
                out[f"{c.name}_valid"] = np.zeros(rows, bool)
        marks = dict.fromkeys(self.nulls.values())
        return out | {
            name: np.zeros(rows, np.int64) for name in [k.name for k in self.plan.cuts] + list(marks)
        }

    def batch(self, decoded: Decoded, counts: np.ndarray, bad: np.ndarray, faults: list[Fault]) -> Batch:
        """Make one batch of some consecutive blocks.

        Parameters
        ----------
        decoded
            Their columns.
        counts : int64[blocks]
            Records of each block.
        bad : bool[blocks]
            Blocks that are not taken.
        faults
            What was wrong with them.
        """
        edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        first_row = self.row
        records = int(edges[-1])
        self.row += records
        lost = tuple((int(edges[i]), int(edges[i + 1])) for i in np.flatnonzero(bad & (counts > 0)))
        columns = decoded.columns
        keep: np.ndarray | None = None
        if lost and self.placed:
            for lo, hi in lost:
                for name, values in self._blank(hi - lo).items():
                    if name in columns:
                        columns[name][lo:hi] = values
        elif lost:
            keep = np.ones(records, bool)
            for lo, hi in lost:
                keep[lo:hi] = False
            if not self.plan.per_record:
                columns = {name: values[keep] for name, values in columns.items()}
        if self.plan.cuts and not self.plan.per_record:
            columns = columns | self._cuts(decoded, keep)
        if self.nulls:
            marks = {m: (~columns[f"{c}_valid"]).astype(np.int64) for c, m in self.nulls.items()}
            columns = columns | marks
        if self.placed:
            return self._placed(decoded, columns, records, lost, faults)
        numbers = np.arange(first_row, first_row + records)
        codes, keys, first = self._keys(decoded, keep, numbers, faults)
        labels = self._labels(decoded, keep, codes, first, keys, faults)
        rows = codes.size
        if self.plan.per_record:
            assert decoded.rowsize is not None
            sizes = decoded.rowsize if keep is None else decoded.rowsize[keep]
            codes = np.repeat(codes, sizes)
            rows = codes.size
        return Batch(columns, rows, keys, codes, labels, (), tuple(faults))

    def _cuts(self, decoded: Decoded, keep: np.ndarray | None) -> dict[str, np.ndarray]:
        """Text that cuts sequences, as numbers that are the same in all batches: int64[rows]."""
        out = {}
        for k in self.plan.cuts:
            codes, values = decoded.dictionaries[".".join(k.steps)]
            numbers = np.array(
                [*(_number_of(v) for v in values), 0], np.int64
            )  # the last: rows that are lost
            out[k.name] = numbers[codes if keep is None else codes[keep]]
        return out

    def _placed(
        self,
        decoded: Decoded,
        columns: dict[str, np.ndarray],
        records: int,
        lost: tuple[tuple[int, int], ...],
        faults: list[Fault],
    ) -> Batch:
        keys: tuple[str, ...] = ()
        labels: dict[str, tuple[Any, ...]] = {}
        if self.plan.labels:
            keys = (str(self.part.payload["key"]),)
            keep = np.ones(records, bool)
            for lo, hi in lost:
                keep[lo:hi] = False
            codes = np.zeros(int(keep.sum()), np.int32)
            first = np.zeros(1 if codes.size else 0, np.int64)
            labels = self._labels(decoded, keep, codes, first, keys, faults)
            if not codes.size:
                keys, labels = (), {}
        return Batch(columns, records, keys, None, labels, lost, tuple(faults))

    def _keys(
        self, decoded: Decoded, keep: np.ndarray | None, numbers: np.ndarray, faults: list[Fault]
    ) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
        """Code of each record, ids of the keys, and the first record of each."""
        if not self.plan.keys:
            if keep is not None:
                numbers = numbers[keep]
            name = self.part.payload["id"]
            keys = tuple(f"{name}#{n}" for n in numbers.tolist())
            every = np.arange(numbers.size)
            return every.astype(np.int32), keys, every
        tables = [decoded.dictionaries[".".join(k.steps)] for k in self.plan.keys]
        if self.plan.per_record:  # every record is a sequence, also where two have one id
            kept = [(codes if keep is None else codes[keep], values) for codes, values in tables]
            self._note_nulls(kept, faults)
            texts = [[_id(k, v) for v in values] for k, (_, values) in zip(self.plan.keys, kept, strict=True)]
            rows = zip(*(codes.tolist() for codes, _ in kept), strict=True)
            keys = tuple(_joined([own[c] for own, c in zip(texts, row, strict=True)]) for row in rows)
            every = np.arange(len(keys))
            return every.astype(np.int32), keys, every
        if len(tables) == 1 and keep is None and not faults and not self.plan.labels:
            codes, values = tables[0]  # numbered as they appear, and all of them appear
            keys = tuple(_id(self.plan.keys[0], v) for v in values)
            if None not in values and len(set(keys)) == len(keys):
                return codes, keys, np.empty(0, np.int64)
        kept = [(codes if keep is None else codes[keep], values) for codes, values in tables]
        codes, first = join_codes([(c, len(v)) for c, v in kept])
        parts = [
            [_id(k, values[c]) for c in own[first].tolist()]
            for k, (own, values) in zip(self.plan.keys, kept, strict=True)
        ]
        keys = tuple(_joined(p) for p in zip(*parts, strict=True))
        self._note_nulls(kept, faults)
        if len(set(keys)) < len(keys):  # one number may be written in several ways, as decimals are
            number = {k: i for i, k in enumerate(dict.fromkeys(keys))}
            again = np.array([number[k] for k in keys], np.int32)
            return self._merge(again[codes], tuple(number))
        return codes, keys, first

    @staticmethod
    def _merge(codes: np.ndarray, keys: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
        first = np.full(len(keys), -1, np.int64)
        first[codes[::-1]] = np.arange(codes.size - 1, -1, -1)
        return codes, keys, first

    def _note_nulls(self, kept: list[tuple[np.ndarray, tuple[Any, ...]]], faults: list[Fault]) -> None:
        for k, (codes, values) in zip(self.plan.keys, kept, strict=True):
            if None in values and (rows := int((codes == values.index(None)).sum())):
                message = f"{rows} rows have no {'.'.join(k.steps)}; they are stored under the id 'null'"
                faults.append(Fault("avro-null-key", self.part.file, message, action="kept"))

    def _labels(  # noqa: PLR0917 # private: what is known of one batch
        self,
        decoded: Decoded,
        keep: np.ndarray | None,
        codes: np.ndarray,
        first: np.ndarray,
        keys: tuple[str, ...],
        faults: list[Fault],
    ) -> dict[str, tuple[Any, ...]]:
        out: dict[str, tuple[Any, ...]] = {}
        for label in self.plan.labels:
            own, values = decoded.dictionaries[".".join(label.steps)]
            own = own if keep is None else own[keep]
            head = own[first]
            changed = np.flatnonzero(own != head[codes]) if own.size else own
            if changed.size:
                at = int(codes[changed[0]])
                faults.append(
                    Fault(
                        "avro-label-varies",
                        self.part.file,
                        f"label {label.name!r} of sequence {keys[at]!r} is {_text(values[head[at]])!r} "
                        f"and later {_text(values[own[changed[0]]])!r} ({changed.size} rows in all); the "
                        "first is kept",
                        action="kept",
                    )
                )
            got = [values[c] for c in head.tolist()]
            out[label.name] = tuple(g if label.dtype != "string" or g is None else _text(g) for g in got)
        return out

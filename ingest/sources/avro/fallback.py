"""The slow path: fastavro makes records, and plain Python puts them into the same columns.

It is the oracle of the kernel in the tests, and serves schemas that the kernel does not take. Logical types
are taken off the schemas first, so that numbers stay numbers: no datetime is ever made.
"""

from __future__ import annotations

import copy
import io
import struct
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np

from ingest.sources.avro.columns import ITEM, Plan
from ingest.sources.avro.decoded import Decoded, blank, key_text
from ingest.sources.avro.faults import STATUS_CODES
from ingest.sources.avro.schema import MISSING, find_field, fits, pick, to_json, unlike

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.sources.avro.columns import Column, KeyColumn
    from ingest.sources.avro.schema import Node

__all__ = ["FastavroDecoder"]

_STATUS = {code: i for i, code in enumerate(STATUS_CODES)}


class _BadBlockError(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.status = _STATUS[code]


def plain(raw: Any) -> Any:
    """Take the logical types off a schema given as JSON value."""
    if isinstance(raw, list):
        return [plain(r) for r in raw]
    if isinstance(raw, dict):
        return {
            k: plain(v) if k in ("type", "items", "values", "fields") else v
            for k, v in raw.items()
            if k != "logicalType"
        }
    return raw


def narrowed(writer: Node, reader: Node, paths: Sequence[tuple[str, ...]]) -> Node:
    """Make the reader's schema with nothing but what ``paths`` lead to, and with defaults made whole.

    Where the writer's logical type is another one, the type becomes one that nothing resolves to: with
    logical types taken off, milliseconds would be read as microseconds.
    """
    reader = copy.deepcopy(reader)
    kept: dict[int, tuple[Node, set[str]]] = {}
    for steps in paths:
        _follow(writer, reader, steps, kept)
    for node, names in kept.values():
        node.fields = [f for f in node.fields if f.name in names]
        for f in node.fields:
            if f.default is not MISSING:
                f.default = _whole(f.default, f.node)
    return reader


def _follow(
    writer: Node | None, reader: Node, steps: Sequence[str], kept: dict[int, tuple[Node, set[str]]]
) -> None:
    """Go along one path in both schemas; ``writer`` is None where a default stands for it."""
    if writer is not None and writer.kind == "union":
        for branch in writer.branches:
            _follow(branch, reader, steps, kept)
        if writer.branches:
            return
    if reader.kind == "union":
        chosen = None if writer is None else pick(writer, reader)
        for branch in reader.branches if chosen is None else [chosen]:
            _follow(writer if chosen is not None else None, branch, steps, kept)
    elif not steps:
        if writer is not None and unlike(writer, reader):
            reader.kind, reader.logical = "boolean", None
    elif steps[0] == ITEM and reader.items is not None:
        _follow(None if writer is None else writer.items, reader.items, steps[1:], kept)
    elif reader.kind == "record":
        kept.setdefault(id(reader), (reader, set()))[1].add(steps[0])
        own = reader.field(steps[0])
        if own is not None:
            found = None if writer is None or writer.kind != "record" else find_field(own, writer)
            _follow(None if found is None else found.node, own.node, steps[1:], kept)


def _whole(value: Any, node: Node) -> Any:
    """Put inner defaults where a default leaves them out; numbers given as words become numbers."""
    if node.kind == "union":
        branch = next((b for b in node.branches if fits(value, b)), None)
        return value if branch is None else _whole(value, branch)
    if node.kind == "record" and isinstance(value, dict):
        found = {f.name: (value.get(f.name, f.default), f.node) for f in node.fields}
        return {name: _whole(v, inner) for name, (v, inner) in found.items() if v is not MISSING}
    if node.kind == "array" and isinstance(value, list) and node.items is not None:
        return [_whole(v, node.items) for v in value]
    if node.kind in ("float", "double") and isinstance(value, str):
        return float(value.replace("INF", "inf"))
    return value


def _descend(value: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if not isinstance(value, dict):
            return None
        if step not in value:  # a default that is not whole
            raise _BadBlockError("avro-resolution")
        value = value[step]
    return value


class FastavroDecoder:
    """Decodes through fastavro's records; see ``decoded.Decoder``."""

    name = "fastavro"

    def __init__(self, writer: Node, reader: Node, plan: Plan) -> None:
        from ingest.sources.avro.kernel_decoder import KernelDecoder

        self.plan = plan
        # fastavro believes what a block claims; the kernel passes over it first, with every claim bounded.
        self._guard = KernelDecoder(writer, writer, Plan((), (), (), False, check_text=plan.check_text))
        self._unicode = "strict" if plan.check_text else "replace"
        self._writer = fastavro.parse_schema(plain(to_json(writer)), _write_hint=False, _force=True)
        wanted = narrowed(writer, reader, [*(c.steps for c in plan.columns), *(k.steps for k in plan.words)])
        self._reader = fastavro.parse_schema(plain(to_json(wanted)), _write_hint=False, _force=True)

    def _records(self, data: bytes, count: int) -> list[Any]:
        stream = io.BytesIO(data)
        out = []
        for _ in range(count):
            try:
                out.append(
                    fastavro.schemaless_reader(
                        stream, self._writer, self._reader, handle_unicode_errors=self._unicode
                    )
                )
            except fastavro.read.SchemaResolutionError:
                raise _BadBlockError("avro-resolution") from None
            except UnicodeDecodeError:
                raise _BadBlockError("avro-utf8") from None
            except (IndexError, KeyError):
                raise _BadBlockError("avro-union") from None
            except Exception:
                raise _BadBlockError("avro-overrun") from None
        if stream.tell() != len(data):
            raise _BadBlockError("avro-trailing")
        return out

    def decode(self, arena: np.ndarray, starts: np.ndarray, stops: np.ndarray, counts: np.ndarray) -> Decoded:
        """Decode blocks; see ``decoded.Decoder``."""
        plan = self.plan
        guard = self._guard.decode(arena, starts, stops, counts)
        status = guard.status
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        total = int(offsets[-1])
        pieces: dict[str, list[tuple[int, np.ndarray, np.ndarray]]] = {c.name: [] for c in plan.columns}
        tables = {k.steps: _Table(total) for k in plan.words}
        rowsize = np.zeros(total, np.int64) if plan.per_record else None
        for b, (lo, hi) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            if hi < lo or status[b]:
                continue
            first = int(offsets[b])
            try:
                records = self._records(arena[lo:hi].tobytes(), int(counts[b]))
                keys = {k.steps: [_key(_descend(r, k.steps), k) for r in records] for k in plan.words}
                sizes = self._sizes(records) if plan.per_record else None
                made = [(c.name, *self._column(c, records, sizes)) for c in plan.columns]
            except _BadBlockError as bad:
                status[b] = bad.status
                continue
            for name, values, valid in made:
                pieces[name].append((first, values, valid))
            for steps, words in keys.items():
                tables[steps].put(first, words)
            if rowsize is not None and sizes is not None:
                rowsize[first : first + len(sizes)] = sizes
        rows = int(rowsize.sum()) if rowsize is not None else total
        columns: dict[str, np.ndarray] = {}
        for c in plan.columns:
            out = blank(c, rows)
            mask = np.zeros(rows, bool)
            at = 0
            for first, values, valid in pieces[c.name]:
                at = at if plan.per_record else first
                out[at : at + len(values)] = values
                mask[at : at + len(values)] = valid
                at += len(values)
            columns[c.name] = out
            if c.masked:
                columns[f"{c.name}_valid"] = mask
        dictionaries = {".".join(steps): table.result() for steps, table in tables.items()}
        return Decoded(columns, status, guard.where, dictionaries, rowsize)

    def _sizes(self, records: list[Any]) -> np.ndarray:
        found: np.ndarray | None = None
        for group in self.plan.groups:
            sizes = np.array([len(_rows(r, group)) for r in records], np.int64)
            if found is not None and not np.array_equal(found, sizes):
                raise _BadBlockError("avro-array-lengths")
            found = sizes
        assert found is not None
        return found

    @staticmethod
    def _channels(c: Column, values: list[Any], inner: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        out = blank(c, len(values))
        for i, row in enumerate(values):
            if len(row) != c.items:
                raise _BadBlockError("avro-vector-length")
            for k, item in enumerate(row):
                found = _descend(item, inner)
                if found is not None:
                    out[i, k] = _convert(c, found)
        return out, np.ones(len(values), bool)

    def _column(
        self, c: Column, records: list[Any], sizes: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if sizes is None:
            values, inner = records, c.steps
        else:
            head = c.group
            values = [item for r in records for item in _rows(r, head)]
            inner = c.steps[len(head) :]
            if c.inner_obs:
                return self._channels(c, values, inner)
        out = blank(c, len(values))
        valid = np.zeros(len(values), bool)
        for i, value in enumerate(values):
            if ITEM in inner:
                cut = inner.index(ITEM)
                vector = _descend(value, inner[:cut])
                if vector is None:
                    continue
                if len(vector) != c.items:
                    raise _BadBlockError("avro-vector-length")
                valid[i] = True
                for k, item in enumerate(vector):
                    found = _descend(item, inner[cut + 1 :])
                    if found is not None:
                        out[i, k] = _convert(c, found)
            else:
                found = _descend(value, inner)
                if found is not None:
                    out[i] = _convert(c, found)
                    valid[i] = True
        return out, valid


def _rows(record: Any, group: Sequence[str]) -> Any:
    """List the obs of one record: the items of its array, or tuples of one item of each channel."""
    cut = list(group).index(ITEM)
    outer = _descend(record, group[:cut]) or ()
    if group.count(ITEM) == 1:
        return outer
    inner = [_descend(channel, group[cut + 1 : -1]) for channel in outer]
    if any(channel is None for channel in inner):
        raise _BadBlockError("avro-null-vector")
    if len({len(channel) for channel in inner}) > 1:
        raise _BadBlockError("avro-array-lengths")
    return list(zip(*inner, strict=True))


def _convert(c: Column, value: Any) -> Any:
    kind = c.kind
    if isinstance(value, str) and kind in ("decimal", "fixed", "duration"):  # a default, as JSON has it
        value = value.encode("latin-1")
    if kind == "enum":
        return c.symbols.index(value)
    if kind == "decimal":
        number = int.from_bytes(value, "big", signed=True)
        if not -(1 << 63) <= number < 1 << 63:
            raise _BadBlockError("avro-decimal")
        return number
    if kind == "fixed":
        return np.frombuffer(value, np.uint8)
    if kind == "duration":
        return np.frombuffer(value, "<u4")
    if kind in ("int", "long"):
        if isinstance(value, bool) or not isinstance(value, int):
            raise _BadBlockError("avro-resolution")
        info = np.iinfo(c.dtype if c.dtype != "bool" else "int32")
        if not info.min <= value <= info.max:
            raise _BadBlockError("avro-varint")
    return value


def _key(value: Any, k: KeyColumn) -> Any:
    if isinstance(value, str) and k.kind in (
        "bytes",
        "fixed",
        "decimal",
        "uuid",
    ):  # a default, as JSON has it
        value = value.encode("latin-1")
    if isinstance(value, (bytes, bytearray)):
        return key_text(bytes(value), k.kind, k.scale)
    return value


class _Table:
    def __init__(self, total: int) -> None:
        self.codes = np.full(total, -1, np.int32)
        self.values: dict[tuple[str, Any], tuple[int, Any]] = {}

    def put(self, first: int, values: list[Any]) -> None:
        for i, value in enumerate(values):
            self.codes[first + i] = self.values.setdefault(_same(value), (len(self.values), value))[0]

    def result(self) -> tuple[np.ndarray, tuple[Any, ...]]:
        return self.codes, tuple(value for _, value in self.values.values())


def _same(value: Any) -> tuple[str, Any]:
    """Two values are one key where this is equal: floats by their bits."""
    return type(value).__name__, struct.pack("<d", value) if isinstance(value, float) else value

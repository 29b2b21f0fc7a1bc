"""The slow path: fastavro takes the bytes of records apart, and plain Python puts the values into columns.

It is the oracle of the kernel in the tests, and serves schemas that the kernel does not take. fastavro is
given the shape of the writer's schema alone: no names, no logical types, no reader. What the specification
says of reading one schema as another is done here, by the rules that the kernel's compiler has too:
fastavro has others for aliases, namespaces and unions.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np

from ingest.sources.avro.columns import ITEM, Plan
from ingest.sources.avro.decoded import Decoded, blank, key_text
from ingest.sources.avro.faults import STATUS_CODES
from ingest.sources.avro.program import default_value, leads_into
from ingest.sources.avro.schema import MISSING, Node, find_field, pick, unlike

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.sources.avro.columns import Column, KeyColumn

__all__ = ["FastavroDecoder", "shape"]

_STATUS = {code: i for i, code in enumerate(STATUS_CODES)}


class _BadBlockError(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.status = _STATUS[code]


def shape(root: Node) -> Any:
    """Make a schema, as JSON value, whose values take the same bytes.

    Fields go by their number (``f0``), text is bytes, an enum is its number, and the branch of a union is a
    record of one field (``u0``) that says which branch it is.

    Examples
    --------
    >>> shape(Node("union", branches=[Node("null"), Node("string")]))[1]["fields"]
    [{'name': 'u1', 'type': 'bytes'}]
    """
    names: dict[int, str] = {}
    count = 0

    def named(kind: str, **rest: Any) -> dict[str, Any]:
        nonlocal count
        count += 1
        return {"type": kind, "name": f"N{count}", **rest}

    def walk(node: Node) -> Any:
        kind = node.kind
        if kind in ("string", "enum"):
            return "bytes" if kind == "string" else "int"
        if kind == "union":
            return [
                named("record", fields=[{"name": f"u{i}", "type": walk(b)}])
                for i, b in enumerate(node.branches)
            ]
        if node.items is not None:
            return {"type": kind, "items" if kind == "array" else "values": walk(node.items)}
        if kind == "fixed":
            return named("fixed", size=node.size)
        if kind != "record":
            return kind
        if id(node) in names:
            return names[id(node)]
        out = named("record")
        names[id(node)] = out["name"]
        out["fields"] = [{"name": f"f{i}", "type": walk(f.node)} for i, f in enumerate(node.fields)]
        return out

    return walk(root)


@dataclass(frozen=True, slots=True)
class _Value:
    """One value at the end of a path; a default of the reader's schema where there is no writer's type."""

    value: Any
    reader: Node
    writer: Node | None = None


def _find(writer: Node, reader: Node, value: Any, steps: Sequence[str]) -> Any:
    """Follow a path through one value of ``writer`` that is read as ``reader``.

    Returns a :class:`_Value`, None for a null, or a list of those for each array on the path.
    """
    if writer.kind == "union":
        ((name, value),) = value.items()
        writer = writer.branches[int(name[1:])]
    chosen = pick(writer, reader)
    if chosen is None:
        raise _BadBlockError("avro-resolution")
    if writer.kind == "null" or not leads_into(steps, chosen):
        return None
    if not steps:
        return _Value(value, chosen, writer)
    if steps[0] == ITEM:
        assert writer.items is not None
        assert chosen.items is not None
        return [_find(writer.items, chosen.items, item, steps[1:]) for item in value]
    own = chosen.field(steps[0])
    assert own is not None
    found = find_field(own, writer)
    if found is not None:
        return _find(found.node, own.node, value[f"f{writer.fields.index(found)}"], steps[1:])
    given = MISSING if own.default is MISSING else default_value(own.default, own.node, steps[1:])
    if given is MISSING:
        raise _BadBlockError("avro-resolution")
    return _constants(given, own.node)


def _constants(given: Any, node: Node) -> Any:
    if isinstance(given, list):
        return [_constants(g, node) for g in given]
    return None if given is None else _Value(given, node)


def _meets(writer: Node, reader: Node, steps: Sequence[str]) -> bool:
    """Whether a path leads to something of the writer's, not only to defaults."""
    if writer.kind == "union":
        return any(_meets(b, reader, steps) for b in writer.branches)
    chosen = pick(writer, reader)
    if chosen is None or writer.kind == "null" or not steps or not leads_into(steps, chosen):
        return chosen is not None and writer.kind != "null" and not steps
    if steps[0] == ITEM:
        assert writer.items is not None
        assert chosen.items is not None
        return len(steps) == 1 or _meets(writer.items, chosen.items, steps[1:])
    own = chosen.field(steps[0])
    found = None if own is None else find_field(own, writer)
    return own is not None and found is not None and _meets(found.node, own.node, steps[1:])


class FastavroDecoder:
    """Decodes through fastavro's records; see ``decoded.Decoder``."""

    name = "fastavro"

    def __init__(self, writer: Node, reader: Node, plan: Plan) -> None:
        from ingest.sources.avro.kernel_decoder import KernelDecoder

        self.plan, self._writer, self._reader = plan, writer, reader
        # fastavro believes what a block claims; the kernel passes over it first, with every claim bounded.
        self._guard = KernelDecoder(writer, writer, Plan((), (), (), False, check_text=plan.check_text))
        self._shape = fastavro.parse_schema(shape(writer), _write_hint=False, _force=True)
        self._absent = {g for g in plan.groups if not _meets(writer, reader, g)} if plan.per_record else set()

    def _records(self, data: bytes, count: int) -> list[Any]:
        stream = io.BytesIO(data)
        out = []
        for _ in range(count):
            try:
                out.append(
                    fastavro.schemaless_reader(stream, self._shape, None, handle_unicode_errors="replace")
                )
            except Exception:
                raise _BadBlockError("avro-overrun") from None
        if stream.tell() != len(data):
            raise _BadBlockError("avro-trailing")
        return out

    def _found(self, records: list[Any], steps: Sequence[str]) -> list[Any]:
        return [_find(self._writer, self._reader, r, steps) for r in records]

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
                keys = {k.steps: [_key(v, k) for v in self._found(records, k.steps)] for k in plan.words}
                made, sizes = self._columns(records)
            except _BadBlockError as bad:
                status[b] = bad.status
                continue
            for name, values, valid in made:
                pieces[name].append((first, values, valid))
            for steps, words in keys.items():
                tables[steps].put(first, words)
            if rowsize is not None:
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

    def _columns(self, records: list[Any]) -> tuple[list[tuple[str, np.ndarray, np.ndarray]], np.ndarray]:
        """Columns of the records of one block, and where records are sequences the obs of each."""
        if not self.plan.per_record:
            found = {c.name: self._found(records, c.steps) for c in self.plan.columns}
            return [(c.name, *_column(c, found[c.name])) for c in self.plan.columns], np.zeros(0, np.int64)
        sizes: np.ndarray | None = None
        obs: dict[str, list[Any]] = {}
        for c in self.plan.columns:
            if c.group in self._absent:
                self._found(records, c.steps)  # a default has to be there
                continue
            rows = [_obs(c, v) for v in self._found(records, c.steps)]
            own = np.array([len(r) for r in rows], np.int64)
            if sizes is not None and not np.array_equal(sizes, own):
                raise _BadBlockError("avro-array-lengths")
            sizes = own
            obs[c.name] = [item for r in rows for item in r]
        if sizes is None:
            sizes = np.zeros(len(records), np.int64)
        nothing = [None] * int(sizes.sum())
        return [(c.name, *_column(c, obs.get(c.name, nothing))) for c in self.plan.columns], sizes


def _obs(c: Column, value: Any) -> list[Any]:
    """List the obs of one record: the items of its array, or lists of one item of each channel."""
    if not isinstance(value, list):
        return []
    if not c.inner_obs:
        return value
    if len(value) != c.items:
        raise _BadBlockError("avro-vector-length")
    if any(channel is None for channel in value):
        raise _BadBlockError("avro-null-vector")
    if len({len(channel) for channel in value}) > 1:
        raise _BadBlockError("avro-array-lengths")
    return [list(row) for row in zip(*value, strict=True)]


def _column(c: Column, found: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Values of one column, and which of them are there."""
    out = blank(c, len(found))
    valid = np.zeros(len(found), bool)
    for i, value in enumerate(found):
        if value is None:
            continue
        valid[i] = True
        if not isinstance(value, list):
            out[i] = _convert(c, value)
            continue
        if len(value) != c.items:
            raise _BadBlockError("avro-vector-length")
        for k, item in enumerate(value):
            if item is not None:
                out[i, k] = _convert(c, item)
            elif not c.null_items and not c.dtype.startswith("float"):
                raise _BadBlockError("avro-null-vector")
    return out, valid


def _symbol(found: _Value, symbols: Sequence[str]) -> str:
    """Find the reader's symbol for a value of an enum: its own, or the reader's default."""
    symbol = found.value if found.writer is None else found.writer.symbols[found.value]
    symbol = symbol if symbol in symbols else found.reader.default
    if not isinstance(symbol, str) or symbol not in symbols:
        raise _BadBlockError("avro-enum")
    return symbol


def _convert(c: Column, found: _Value) -> Any:
    value, kind = found.value, c.kind
    if found.writer is not None and unlike(found.writer, found.reader):
        raise _BadBlockError("avro-resolution")
    if kind == "enum":
        return c.symbols.index(_symbol(found, c.symbols))
    if kind == "decimal":
        number = int.from_bytes(value, "big", signed=True)
        if not -(1 << 63) <= number < 1 << 63:
            raise _BadBlockError("avro-decimal")
        return number
    if kind in ("fixed", "duration"):
        return np.frombuffer(value, np.uint8 if kind == "fixed" else "<u4")
    if isinstance(value, int) and not isinstance(value, bool):
        small = (found.writer is not None and found.writer.kind == "int") or c.dtype == "int32"
        if small and not -(1 << 31) <= value < 1 << 31:
            raise _BadBlockError("avro-varint")
        return np.int64(value).astype(c.dtype)  # rounded once, not by way of a double
    return value


def _key(found: _Value | None, k: KeyColumn) -> Any:
    if found is None:
        return None
    value, kind = found.value, found.reader.kind
    if found.writer is not None and unlike(found.writer, found.reader):
        raise _BadBlockError("avro-resolution")
    if k.kind == "enum":
        return _symbol(found, k.symbols)
    if isinstance(value, bytes):
        try:
            if kind == "string":
                value.decode("utf-8")
            return key_text(value, k.kind, k.scale)
        except UnicodeDecodeError:
            raise _BadBlockError("avro-utf8") from None
    if kind in ("float", "double"):
        return float(np.float32(value)) if kind == "float" else float(value)
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

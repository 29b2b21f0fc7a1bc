"""Schemas that differ between files: what differs, and the one schema that all are resolved to."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError, InputError
from ingest.protocol import Fault
from ingest.sources.avro.columns import Leaf, leaves
from ingest.sources.avro.container import printable
from ingest.sources.avro.schema import (
    MISSING,
    Field,
    Node,
    SchemaError,
    alike,
    mend_defaults,
    parse,
    same_name,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ingest.sources.avro.options import AvroOptions
    from ingest.sources.avro.survey import FileSurvey

__all__ = ["Drift", "distinct", "drift", "load_schema", "merge", "resolve_schemas", "type_text"]


@dataclass(frozen=True, slots=True)
class Drift:
    """One field whose type is not the same in all files."""

    path: str
    types: tuple[tuple[str, int], ...]
    """(type, number of files); the type ``absent`` where a file lacks the field."""

    def __str__(self) -> str:
        return f"{self.path}: " + ", ".join(f"{t} in {n} file{'s' * (n != 1)}" for t, n in self.types)


def type_text(node: Node, nullable: bool = False, skip: int = 0) -> str:
    """Say a type in a few words; of an enum six symbols, those from ``skip`` on where they are not the first.

    Examples
    --------
    >>> type_text(parse('{"type": "long", "logicalType": "timestamp-millis"}'), nullable=True)
    'timestamp-millis or null'
    """
    kind = node.logical or node.kind
    if node.kind == "enum":
        first = skip if skip >= 6 else 0
        rest = node.symbols[first:]
        shown = ["..."] * bool(first) + list(rest[:6]) + ["..."] * (len(rest) > 6)
        kind = f"enum({', '.join(shown)})"
    elif node.logical == "decimal":
        kind = f"decimal({node.precision}, {node.scale})"
    elif node.kind == "fixed" and node.logical is None:
        kind = f"fixed({node.size})"
    elif node.kind == "union":
        kind = " or ".join(type_text(b) for b in node.branches)
    elif node.kind in ("array", "map"):
        assert node.items is not None
        kind = f"{node.kind}<{type_text(node.items)}>"
    elif node.kind == "record":
        kind = f"record {node.short}"
    return kind + (" or null" if nullable else "")


def distinct(surveys: Iterable[FileSurvey]) -> list[tuple[Node, list[FileSurvey]]]:
    """Schemas that differ in more than docs, in the order of the files."""
    groups: dict[str, tuple[Node, list[FileSurvey]]] = {}
    texts: dict[bytes, str] = {}
    for s in surveys:
        assert s.header is not None
        assert s.node is not None
        if s.header.schema not in texts:
            texts[s.header.schema] = json.dumps(to_json(s.node), sort_keys=True)
        groups.setdefault(texts[s.header.schema], (s.node, []))[1].append(s)
    return list(groups.values())


def drift(groups: Sequence[tuple[Node, list[FileSurvey]]]) -> list[Drift]:
    """Field by field, what is not the same in all schemas."""
    if len(groups) < 2:
        return []
    tables: list[tuple[dict[str, Leaf], int]] = []
    for node, files in groups:
        table: dict[str, Leaf] = {}
        for one in leaves(node):
            table.setdefault(one.path, one)
        tables.append((table, len(files)))
    out = []
    for path in dict.fromkeys(p for table, _ in tables for p in table):
        skip = _alike([table[path].node.symbols for table, _ in tables if path in table])
        counts: dict[str, int] = {}
        for table, n in tables:
            leaf = table.get(path)
            text = type_text(leaf.node, leaf.nullable, skip) + "[]" * leaf.depth if leaf else "absent"
            counts[text] = counts.get(text, 0) + n
        if len(counts) > 1:
            out.append(Drift(path or "(value)", tuple(counts.items())))
    return out


def _alike(symbols: Sequence[tuple[str, ...]]) -> int:
    """Count the symbols with which all of several enums begin, where some go on otherwise; else 0.

    Examples
    --------
    >>> _alike([("a", "b", "c"), ("a", "b", "z")]), _alike([("a", "b"), ("a", "b")])
    (2, 0)
    """
    same = len(os.path.commonprefix(list(symbols)))  # noqa: RUF071 # of sequences, not of paths
    return same if any(len(s) > same for s in symbols) else 0


def load_schema(given: Any) -> Node:
    """Load a reader's schema, given as JSON value, JSON text, or the path of a file.

    Raises
    ------
    ConfigError
        If it cannot be read or is no schema.
    """
    try:
        if isinstance(given, str) and not given.lstrip().startswith(("{", "[", '"')):
            if given in ("null", "boolean", "int", "long", "float", "double", "bytes", "string"):
                return parse([given]).branches[0]
            with open(given, "rb") as file:  # noqa: PTH123 # a path as the user typed it
                return parse(file.read(1 << 24))
        if isinstance(given, str):
            return parse(given)
        return parse(json.dumps(given))
    except SchemaError as error:
        raise ConfigError(f"the reader's schema cannot be used: {error}") from error
    except OSError as error:
        raise ConfigError(f"the reader's schema {given!r} cannot be read: {error}") from error


def resolve_schemas(surveys: Sequence[FileSurvey], options: AvroOptions) -> tuple[Node, list[Fault]]:
    """Find the schema that all files are read as.

    Raises
    ------
    InputError
        If schemas differ in fields that are wanted and no rule was given.
    ConfigError
        If the reader's schema cannot be used.
    """
    if options.reader_schema is not None:
        node = load_schema(options.reader_schema)
        where = options.reader_schema if isinstance(options.reader_schema, str) else "reader_schema"
        notes = [Fault("avro-default", printable(where), n, action="kept") for n in mend_defaults(node)]
        return node, notes
    groups = distinct(surveys)
    if len(groups) == 1:
        return groups[0][0], []
    found = drift(groups)
    if options.on_drift == "fail":
        wanted = [d for d in found if _touches(d.path, options)]
        if wanted:
            lines = "; ".join(str(d) for d in wanted[:12])
            raise InputError(
                f"{len(surveys)} files have {len(groups)} schemas that differ in {len(wanted)} field(s): "
                f"{lines}. "
                "Take all fields with on_drift='union', give reader_schema=FILE, or name fields that are the "
                "same in all"
            )
    node = groups[0][0]
    for other, files in groups[1:]:
        node = merge(node, other, f"{files[0].url}: ", unasked=lambda path: _unasked(path, options))
    return node, []


def _named(options: AvroOptions) -> list[str]:
    """Fields that options name for something else than being stored."""
    time = [options.time] if options.time else []
    return [*options.sequence_key, *options.labels, *options.cut_on, *time]


def _unasked(path: str, options: AvroOptions) -> bool:
    """Whether nobody asks for a field, nor for anything in it."""
    names = (*_named(options), *(options.fields or ()))
    return not _touches(path, options) and not any(n.startswith(path + ".") for n in names)


def _touches(path: str, options: AvroOptions) -> bool:
    named = _named(options)

    def inside(names: Iterable[str]) -> bool:
        return any(path == n or path.startswith(n + ".") for n in names)

    if inside(named):
        return True
    if inside(options.exclude):
        return False
    return options.fields is None or inside(options.fields)


#: two kinds -> the one that holds both without loss
_WIDER = {
    frozenset(("int", "long")): "long",
    frozenset(("int", "float")): "double",
    frozenset(("int", "double")): "double",
    frozenset(("float", "double")): "double",
    frozenset(("string", "bytes")): "string",
}


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where in two schemas a merge is, and what it may do there."""

    where: str
    """What an error begins with."""
    unasked: Callable[[str], bool] | None
    path: str = ""
    """Dotted path of the two."""
    busy: Mapping[tuple[int, int], Node] = field(default_factory=dict)
    """Pairs of records that are being merged already, and what they become."""

    def within(self, a: Node, b: Node, out: Node) -> _Spot:
        return replace(self, busy={**self.busy, (id(a), id(b)): out})

    def field(self, name: str) -> _Spot:
        path = f"{self.path}.{name}" if self.path else name
        return replace(self, where=f"{self.where}{name}: ", path=path)

    @property
    def free(self) -> bool:
        """Whether nobody asks for what is here."""
        return self.unasked is not None and self.unasked(self.path)


def merge(a: Node, b: Node, where: str = "", *, unasked: Callable[[str], bool] | None = None) -> Node:
    """Make the schema that has every field of both, nulls where one lacks it, types that hold both.

    Parameters
    ----------
    a, b
        Two schemas.
    where
        What an error begins with.
    unasked
        Whether nobody asks for the field of a path: where no type holds both, it becomes a union of them.

    Raises
    ------
    InputError
        If a field has types that nothing holds without loss.

    Examples
    --------
    >>> merge(Node("int"), Node("double")).kind
    'double'
    """
    return _merge(a, b, _Spot(where, unasked))


def _merge(a: Node, b: Node, spot: _Spot) -> Node:
    if a is b:
        return a
    if (id(a), id(b)) in spot.busy:  # a record that holds itself
        return spot.busy[id(a), id(b)]
    if "union" in (a.kind, b.kind) or (a.kind != b.kind and "null" in (a.kind, b.kind)):
        return _merge_unions(a, b, spot)
    if a.kind == b.kind and a.logical == b.logical:
        if a.kind == "record":
            return _merge_records(a, b, spot)
        if a.kind == "enum":
            symbols = tuple(dict.fromkeys(a.symbols + b.symbols))
            return replace(a, symbols=symbols, aliases=_aliases(a, b), _least=-1)
        if a.kind in ("array", "map"):
            assert a.items is not None
            assert b.items is not None
            return Node(a.kind, items=_merge(a.items, b.items, spot))
        if a.kind == "fixed" and a.size == b.size and (a.precision, a.scale) == (b.precision, b.scale):
            return replace(a, aliases=_aliases(a, b), _least=-1)
        if a.kind != "fixed" and (a.logical != "decimal" or a.scale == b.scale):
            return a if a.precision >= b.precision else b
    if a.logical is b.logical is None and (wider := _WIDER.get(frozenset((a.kind, b.kind)))):
        return Node(wider)
    if a.kind == b.kind == "string":  # one of them is text of a certain form
        return a if a.logical is None else b
    raise InputError(
        f"{spot.where}a field is {type_text(a)} in one file and {type_text(b)} in another, and no type holds "
        "both without loss; give reader_schema=FILE or exclude the field"
    )


def _aliases(a: Node, b: Node) -> tuple[str, ...]:
    extra = () if not b.name or (a.name and same_name(b, a)) else (b.name,)
    return tuple(dict.fromkeys((*a.aliases, *b.aliases, *extra)))


def _merge_records(a: Node, b: Node, spot: _Spot) -> Node:
    out = replace(a, fields=[], aliases=_aliases(a, b), _least=-1)
    spot = spot.within(a, b, out)
    for f in a.fields:
        other = b.field(f.name)
        if other is None:
            out.fields.append(_optional(f))
        else:
            inner = spot.field(f.name)
            try:
                node = _merge(f.node, other.node, inner)
            except InputError:
                if not inner.free:
                    raise
                every = [*_branches(f.node), *_branches(other.node)]
                nulls = [x for x in every if x.kind == "null"][:1]
                node = Node("union", branches=[*nulls, *(x for x in every if x.kind != "null")])
            default = f.default if f.default is not MISSING else other.default
            aliases = tuple(dict.fromkeys((*f.aliases, *other.aliases)))
            out.fields.append(Field(f.name, node, aliases, _null_first(node, default), f.doc or other.doc))
    out.fields.extend(_optional(f) for f in b.fields if a.field(f.name) is None)
    out.fields = [_holding_aliases(f, out, spot) if f.aliases else f for f in out.fields]
    return out


def _null_first(node: Node, default: Any) -> Any:
    """Give the default of a merged type: null where that is its first branch."""
    return None if node.kind == "union" and node.branches[0].kind == "null" else default


def _holding_aliases(f: Field, record: Node, spot: _Spot) -> Field:
    """Make a field hold what files have under its aliases; without those whose type it cannot hold."""
    node, kept = f.node, []
    for alias in f.aliases:
        other = record.field(alias)
        if other is not None and not alike(node, other.node):
            if _records_in(node) or _records_in(other.node):
                continue
            try:
                node = _merge(node, other.node, spot.field(f.name))
            except InputError:
                continue
        kept.append(alias)
    return replace(f, node=node, aliases=tuple(kept), default=_null_first(node, f.default))


def _records_in(node: Node) -> bool:
    inner = node.branches if node.items is None else [node.items]
    return node.kind == "record" or any(_records_in(x) for x in inner)


def _branches(node: Node) -> list[Node]:
    return node.branches if node.kind == "union" else [node]


def _optional(f: Field) -> Field:
    """Make the same field where it may be absent: null then, whatever its default was."""
    rest = [x for x in _branches(f.node) if x.kind != "null"]
    return Field(f.name, Node("union", branches=[Node("null"), *rest]), f.aliases, None, f.doc)


def _merge_unions(a: Node, b: Node, spot: _Spot) -> Node:
    left, right = _branches(a), _branches(b)
    null = any(x.kind == "null" for x in (*left, *right))
    out = [x for x in left if x.kind != "null"]
    single = len(out) == 1 and sum(x.kind != "null" for x in right) == 1
    for x in right:
        if x.kind == "null":
            continue
        at = next((i for i, y in enumerate(out) if y.kind == x.kind and (not x.name or same_name(x, y))), -1)
        if at < 0 and single:
            at = 0
        if at < 0:
            out.append(x)
        else:
            out[at] = _merge(out[at], x, spot)
    if len(out) == 1 and not null:
        return out[0]
    return Node("union", branches=[*([Node("null")] if null else []), *out])

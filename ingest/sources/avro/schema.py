"""Avro schemas as a tree of nodes: parsing, names, logical types, and which writer type a reader type takes.

The tree is what everything else works on: recursive schemas are cycles in it, names are resolved, a
logical type that does not fit its base type is dropped, as the specification asks.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Field", "Node", "SchemaError", "matches", "parse", "to_json"]

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
#: writer kind -> reader kinds that it may be promoted to
PROMOTIONS: dict[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


#: largest values of floating-point types, and decimal digits that 64 bits hold
_MOST = {"float": float.fromhex("0x1.fffffep+127"), "double": sys.float_info.max}
_MOST_DIGITS = 18


class _Missing:
    """What stands where there is no default; itself also in a copy."""

    def __repr__(self) -> str:
        return "MISSING"

    def __copy__(self) -> _Missing:
        return self

    def __deepcopy__(self, memo: object) -> _Missing:
        return self


MISSING = _Missing()
_UNNAMED = "Unnamed"
MAX_SCHEMA = 16 << 20
MAX_NODES = 200_000
MAX_NESTING = 100


class SchemaError(Exception):
    """Text that is no Avro schema."""


@dataclass(eq=False, slots=True)
class Field:
    """One field of a record."""

    name: str
    node: Node
    aliases: tuple[str, ...] = ()
    default: Any = MISSING
    doc: str | None = None


@dataclass(eq=False, slots=True)
class Node:
    """One type; compared by identity, since schemas may be cyclic."""

    kind: str
    """A primitive's name, or record, enum, fixed, array, map, union."""
    name: str = ""
    """Full name of a named type."""
    aliases: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default: Any = MISSING
    """Of an enum."""
    size: int = 0
    """Of a fixed, in bytes."""
    items: Node | None = None
    """Of an array, or the values of a map."""
    branches: list[Node] = field(default_factory=list)
    """Of a union."""
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    doc: str | None = None
    _least: int = -1

    @property
    def short(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    def field(self, name: str) -> Field | None:
        """Find the field of that name."""
        return next((f for f in self.fields if f.name == name), None)

    def least(self) -> int:
        """Fewest bytes that a value takes; 0 exactly for types whose values never take any.

        Examples
        --------
        >>> fields = [{"name": "a", "type": "double"}, {"name": "b", "type": "long"}]
        >>> parse({"type": "record", "name": "R", "fields": fields}).least()
        9
        """
        if self._least < 0:
            self._least = _least(self, set())
        return self._least


def _least(node: Node, busy: set[int]) -> int:
    if node._least >= 0:  # noqa: SLF001 # a cache of this module
        return node._least  # noqa: SLF001
    kind = node.kind
    if kind == "null":
        out = 0
    elif kind in ("float", "double", "fixed"):
        out = {"float": 4, "double": 8}.get(kind, node.size)
    elif kind == "record":
        if id(node) in busy:  # a record that holds itself has no finite value: any bound holds
            return 1
        busy.add(id(node))
        out = min(sum(_least(f.node, busy) for f in node.fields), 1 << 30)
    else:  # at least one byte of a length, a count or a branch
        out = 1
    node._least = out  # noqa: SLF001
    return out


_LOGICAL = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "time-nanos": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
    "decimal": ("bytes", "fixed"),
}


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class _Parser:
    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.written: dict[str, Any] = {}
        self.nodes = 0
        self.depth = 0

    def parse(self, raw: Any, space: str) -> Node:
        """Parse one type; what it refers to is known already, or is itself."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise SchemaError(f"the schema nests deeper than {MAX_NESTING} types")
        node = self.inside(raw, space)
        self.depth -= 1
        return node

    def inside(self, raw: Any, space: str) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise SchemaError(f"the schema has more than {MAX_NODES} types")
        if isinstance(raw, str):
            if raw in PRIMITIVES:
                return Node(raw)
            return self.named(raw, space)
        if isinstance(raw, list):
            branches = [self.parse(b, space) for b in raw]
            if any(b.kind == "union" for b in branches):
                raise SchemaError("a union stands directly inside a union")
            if not branches:
                raise SchemaError("a union has no branch")
            return Node("union", branches=branches)
        if not isinstance(raw, dict) or "type" not in raw:
            raise SchemaError(f"{str(raw)[:80]!r} is not a type")
        kind = raw["type"]
        if isinstance(kind, (dict, list)):
            node = self.parse(kind, space)
            if node.logical is None and node.kind in PRIMITIVES:
                self.logical(node, raw)
            return node
        if kind in PRIMITIVES:
            node = Node(kind, doc=_text(raw.get("doc")))
            self.logical(node, raw)
            return node
        if kind == "array":
            return Node("array", items=self.parse(_need(raw, "items"), space))
        if kind == "map":
            return Node("map", items=self.parse(_need(raw, "values"), space))
        if kind in ("record", "error", "enum", "fixed"):
            return self.define(raw, kind, space)
        if isinstance(kind, str):
            return self.named(kind, space)
        raise SchemaError(f"{str(kind)[:80]!r} is not a type")

    def named(self, name: str, space: str) -> Node:
        for full in (f"{space}.{name}", name) if space and "." not in name else (name,):
            if full in self.names:
                return self.names[full]
        raise SchemaError(f"the type {name[:200]!r} is not defined")

    def define(self, raw: dict[str, Any], kind: str, space: str) -> Node:
        name = raw.get("name")
        if not isinstance(name, str):
            raise SchemaError(f"a {kind} has no name")
        if name and "." not in name:
            own = raw.get("namespace", space)
            name = f"{own}.{name}" if isinstance(own, str) and own else name
        if name in self.names:  # generators repeat what is the same; another type of the name is an error
            if self.written[name] == _bare(raw):
                return self.names[name]
            raise SchemaError(f"the type {name[:200]!r} is defined twice, and not as the same")
        space = name.rpartition(".")[0]
        node = Node("record" if kind == "error" else kind, name=name, doc=_text(raw.get("doc")))
        node.aliases = tuple(
            a if "." in a or not space else f"{space}.{a}" for a in _strings(raw.get("aliases"))
        )
        if name:  # some writers leave it empty: nothing refers to such a type
            self.names[name], self.written[name] = node, _bare(raw)
        if kind == "fixed":
            size = _number(raw.get("size"))
            if size is None or size < 0:
                raise SchemaError(f"the fixed {name!r} has the size {raw.get('size')!r}")
            node.size = size
            self.logical(node, raw)
        elif kind == "enum":
            symbols = raw.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
                raise SchemaError(f"the enum {name!r} has no list of symbols")
            node.symbols = tuple(symbols)
            if len(set(symbols)) < len(symbols):
                raise SchemaError(f"the enum {name!r} has a symbol twice")
            node.default = raw.get("default", MISSING)
        else:
            fields = raw.get("fields")
            if not isinstance(fields, list):
                raise SchemaError(f"the record {name!r} has no list of fields")
            seen: set[str] = set()
            for f in fields:
                if not isinstance(f, dict) or not isinstance(f.get("name"), str) or "type" not in f:
                    raise SchemaError(f"the record {name!r} has a field without a name or a type")
                if f["name"] in seen:
                    raise SchemaError(f"the record {name!r} has two fields named {f['name']!r}")
                seen.add(f["name"])
                if f["type"] in ("record", "error", "enum", "fixed", "array", "map"):
                    child = self.parse(f, space)  # an old way to write it: the definition in the field itself
                else:
                    child = self.parse(f["type"], space)
                    if child.logical is None and child.kind in PRIMITIVES and isinstance(f["type"], str):
                        self.logical(child, f)
                node.fields.append(
                    Field(
                        f["name"],
                        child,
                        tuple(_strings(f.get("aliases"))),
                        f.get("default", MISSING),
                        _text(f.get("doc")),
                    )
                )
        return node

    def logical(self, node: Node, raw: dict[str, Any]) -> None:
        """Take over a logical type, where it fits; else the base type stands."""
        name = raw.get("logicalType")
        if not isinstance(name, str) or node.kind not in _LOGICAL.get(name, ()):
            return
        if name == "decimal":
            precision, scale = _number(raw.get("precision")), _number(raw.get("scale", 0))
            if precision is None or scale is None or precision < 1 or not 0 <= scale <= precision:
                return
            if node.kind == "fixed":
                bits = 8 * node.size - 1
                if bits < 1 or precision > math.floor(bits * math.log10(2)):
                    return
            node.precision, node.scale = precision, scale
        if (name == "duration" and node.size != 12) or (
            name == "uuid" and node.kind == "fixed" and node.size != 16
        ):
            return
        node.logical = name


def _bare(raw: Any) -> Any:
    """Take the docs off a definition."""
    if isinstance(raw, dict):
        return {k: _bare(v) for k, v in raw.items() if k != "doc"}
    return [_bare(v) for v in raw] if isinstance(raw, list) else raw


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _strings(value: Any) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _need(raw: dict[str, Any], key: str) -> Any:
    if key not in raw:
        raise SchemaError(f"a type of kind {raw['type']!r} lacks {key!r}")
    return raw[key]


def parse(text: str | bytes | list[Any] | dict[str, Any]) -> Node:
    """Parse a schema given as JSON text or as the value that JSON stands for.

    Raises
    ------
    SchemaError
        If it is no schema.

    Examples
    --------
    >>> parse('["null", "int"]').branches[1].kind
    'int'
    """
    try:
        if isinstance(text, (str, bytes)):
            if len(text) > MAX_SCHEMA:
                raise SchemaError(f"the schema takes {len(text)} bytes, more than {MAX_SCHEMA}")
            raw = json.loads(text)
        else:
            raw = text
        return _Parser().parse(raw, "")
    except RecursionError:
        raise SchemaError("the schema nests too deep") from None
    except (ValueError, TypeError) as error:
        raise SchemaError(f"the schema is not valid: {str(error)[:200]}") from error


def to_json(node: Node, seen: dict[str, Node] | None = None) -> Any:
    """Return a value that :func:`parse` reads back to the same tree; docs are left out.

    Where two different types go by one name, as merged schemas may have it, the later one gets a name of its
    own, with the old one as an alias.

    Examples
    --------
    >>> to_json(parse('{"type": "array", "items": "int"}'))
    {'type': 'array', 'items': 'int'}
    """
    seen = {} if seen is None else seen
    kind = node.kind
    out: dict[str, Any]
    if kind == "union":
        return [to_json(b, seen) for b in node.branches]
    if kind == "array":
        assert node.items is not None
        return {"type": "array", "items": to_json(node.items, seen)}
    if kind == "map":
        assert node.items is not None
        return {"type": "map", "values": to_json(node.items, seen)}
    if kind in PRIMITIVES:
        if node.logical is None:
            return kind
        out = {"type": kind, "logicalType": node.logical}
    else:
        name, number = node.name or _UNNAMED, 1
        while name in seen and not alike(seen[name], node):
            number += 1
            name = f"{node.name or _UNNAMED}__{number}"
        if name in seen:
            return name
        seen[name] = node
        out = {"type": kind, "name": name}
        if "." not in name:  # it must not fall into an enclosing namespace
            out["namespace"] = ""
        if own := [*node.aliases, *([node.name] if node.name and name != node.name else [])]:
            out["aliases"] = own
        if kind == "fixed":
            out["size"] = node.size
        elif kind == "enum":
            out["symbols"] = list(node.symbols)
            if node.default is not MISSING:
                out["default"] = node.default
        else:
            out["fields"] = [
                {"name": f.name, "type": to_json(f.node, seen)}
                | ({"aliases": list(f.aliases)} if f.aliases else {})
                | ({} if f.default is MISSING else {"default": f.default})
                for f in node.fields
            ]
    if node.logical is not None:
        out["logicalType"] = node.logical
        if node.logical == "decimal":
            out |= {"precision": node.precision, "scale": node.scale}
    return out


def alike(a: Node, b: Node, met: set[tuple[int, int]] | None = None) -> bool:
    """Whether two types are written the same, docs left out.

    Examples
    --------
    >>> alike(Node("array", items=Node("int")), Node("array", items=Node("long")))
    False
    """
    met = set() if met is None else met
    if a is b or (id(a), id(b)) in met:
        return True
    met.add((id(a), id(b)))

    def own(n: Node) -> tuple[Any, ...]:
        return n.kind, n.name, n.aliases, n.symbols, n.size, n.logical, n.precision, n.scale, repr(n.default)

    if own(a) != own(b) or len(a.fields) != len(b.fields) or len(a.branches) != len(b.branches):
        return False
    if (a.items is None) != (b.items is None):
        return False
    pairs = [*zip(a.branches, b.branches, strict=True)]
    if a.items is not None and b.items is not None:
        pairs.append((a.items, b.items))
    for f, g in zip(a.fields, b.fields, strict=True):
        if (f.name, f.aliases, repr(f.default)) != (g.name, g.aliases, repr(g.default)):
            return False
        pairs.append((f.node, g.node))
    return all(alike(x, y, met) for x, y in pairs)


def matches(writer: Node, reader: Node) -> bool:
    """Whether a value of ``writer`` may be read as ``reader``, judged at this level.

    Named types match by their names without namespace, or through an alias of the reader's.

    Examples
    --------
    >>> matches(Node("int"), Node("double")), matches(Node("double"), Node("int"))
    (True, False)
    """
    if writer.kind == "union" or reader.kind == "union":
        return True
    if writer.kind != reader.kind:
        return reader.kind in PROMOTIONS.get(writer.kind, ())
    if writer.kind in ("record", "enum", "fixed"):
        if writer.kind == "fixed" and writer.size != reader.size:
            return False
        return same_name(writer, reader)
    if writer.kind in ("array", "map"):
        assert writer.items is not None
        assert reader.items is not None
        return matches(writer.items, reader.items)
    return True


def same_name(writer: Node, reader: Node) -> bool:
    """Whether two named types go by the same name; one without a name is like any."""
    return (
        not (writer.short and reader.short)
        or writer.short == reader.short
        or writer.name in reader.aliases
        or any(a.rpartition(".")[2] == writer.short for a in reader.aliases)
    )


def pick(writer: Node, reader: Node) -> Node | None:
    """Find the reader's type for a value of ``writer``: the reader itself, or a branch of its union.

    The writer is no union. The same name comes first, then the same kind, then the first branch that a
    promotion reaches.

    Examples
    --------
    >>> both = Node("union", branches=[Node("fixed", name=name, size=1) for name in ("a.F", "b.F")])
    >>> pick(Node("fixed", name="b.F", size=1), both).name, pick(Node("fixed", name="c.F", size=1), both).name
    ('b.F', 'a.F')
    """
    if reader.kind != "union":
        return reader if matches(writer, reader) else None
    for branch in reader.branches:
        if branch.kind == writer.kind and branch.name == writer.name and matches(writer, branch):
            return branch
    found = [b for b in reader.branches if matches(writer, b)]
    return min(found, key=lambda b: b.kind != writer.kind, default=None)


def unlike(writer: Node, reader: Node) -> bool:
    """Whether numbers of the two mean different things: other units of time, other scales, digits and bytes.

    Examples
    --------
    >>> millis, micros = (Node("long", logical=f"timestamp-{u}") for u in ("millis", "micros"))
    >>> unlike(millis, micros), unlike(millis, Node("long"))
    (True, False)
    """
    if not writer.logical or not reader.logical:
        # the specification lets text be bytes: those of "12" are the decimal 12594
        return reader.logical == "decimal" and writer.kind == "string"
    return (writer.logical, writer.scale) != (reader.logical, reader.scale)


def find_field(reader_field: Field, writer: Node) -> Field | None:
    """Find the writer's field that a reader's field takes: of its name, else of one of its aliases."""
    found = writer.field(reader_field.name)
    if found is not None:
        return found
    for alias in reader_field.aliases:
        found = writer.field(alias)
        if found is not None:
            return found
    return None


def fits(value: Any, node: Node) -> bool:
    """Whether a default, as JSON has it, is a value of the type; for a union, of any of its branches.

    Examples
    --------
    >>> fits(None, parse('["int", "null"]')), fits("null", parse('["null", "int"]'))
    (True, False)
    """
    kind = node.kind
    if kind == "union":
        return any(fits(value, b) for b in node.branches)
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        return _number(value) is not None and -(1 << bits) <= value < 1 << bits
    if kind in ("float", "double"):
        if isinstance(value, str):
            return value in ("NaN", "Infinity", "-Infinity", "INF", "-INF")
        if _number(value) is None and not isinstance(value, float):
            return False
        return not _MOST[kind] < abs(value) < math.inf  # NaN, too, is less than nothing
    if kind == "record":
        return isinstance(value, dict) and all(
            fits(value[f.name], f.node) if f.name in value else f.default is not MISSING for f in node.fields
        )
    if kind == "array":
        assert node.items is not None
        items = node.items
        return isinstance(value, list) and all(fits(v, items) for v in value)
    if kind == "map":
        assert node.items is not None
        items = node.items
        return isinstance(value, dict) and all(fits(v, items) for v in value.values())
    if kind == "enum":
        return isinstance(value, str) and value in node.symbols
    if not isinstance(value, str):
        return False
    if kind == "string":
        return True
    if not all(ord(c) < 256 for c in value) or (kind == "fixed" and len(value) != node.size):
        return False
    if node.logical != "decimal" or node.precision > _MOST_DIGITS:
        return True
    return -(1 << 63) <= int.from_bytes(value.encode("latin-1"), "big", signed=True) < 1 << 63


def mend_defaults(root: Node) -> list[str]:
    """Replace defaults that do not fit their type: by null where that is possible, else by none.

    Returns a sentence for each; the tree is changed.
    """
    notes: list[str] = []
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        todo.extend(node.branches)
        if node.items is not None:
            todo.append(node.items)
        for f in node.fields:
            todo.append(f.node)
            if f.default is MISSING or fits(f.default, f.node):
                continue
            null = any(b.kind == "null" for b in f.node.branches)
            wrong = repr(f.default)[:60]
            f.default = None if null else MISSING
            notes.append(
                f"the default {wrong} of field {f.name!r} is no {f.node.kind}; "
                + ("null is taken" if null else "none is taken")
            )
    return notes

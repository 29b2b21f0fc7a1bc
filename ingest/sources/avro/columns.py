"""What the fields of a schema become: columns along ``obs``, keys, labels, or nothing, with the reason.

One table of decisions for the scan, the kernel and the fallback, so that all three agree.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.clock import unit_nanoseconds
from chunkstore.errors import ConfigError, UnknownNameError, UnsupportedError
from chunkstore.layout import RESERVED, FieldSpec
from ingest.sources.avro.schema import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ingest.sources.avro.options import AvroOptions
    from ingest.sources.avro.schema import Node

__all__ = ["Column", "KeyColumn", "Leaf", "Plan", "default_lengths", "leaves", "make_plan"]

ITEM = "[]"
MAX_LEAVES = 20_000
MAX_DEPTH = 64
MAX_VECTOR = 1 << 20
NUMBERS = ("boolean", "int", "long", "float", "double")
KEY_KINDS = ("string", "bytes", "int", "long", "boolean", "enum", "fixed", "float", "double")
_UNIT = {"millis": "milliseconds", "micros": "microseconds", "nanos": "nanoseconds"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One path through a schema that ends at something without parts."""

    steps: tuple[str, ...]
    """Names of fields; ``[]`` goes into an array."""
    node: Node
    """What stands there; with the union around it taken off."""
    nulls: tuple[bool, ...]
    """For each number of arrays above: whether a null, or another branch, may stand there."""
    kinds: tuple[str, ...] = ()
    """All kinds of a union of numbers."""
    reason: str = ""
    """Why it cannot be stored, where that is known already."""
    doc: str | None = None

    @property
    def path(self) -> str:
        """Dotted path, arrays left out."""
        return ".".join(s for s in self.steps if s != ITEM)

    @property
    def depth(self) -> int:
        """Number of arrays above."""
        return sum(s == ITEM for s in self.steps)

    @property
    def nullable(self) -> bool:
        """Whether a null may stand anywhere on the path."""
        return any(self.nulls)


@dataclass(frozen=True, slots=True)
class Column:
    """One column along ``obs``."""

    name: str
    """Name in the store."""
    steps: tuple[str, ...]
    kind: str
    """boolean, int, long, float, double, enum, fixed, duration or decimal: what is read."""
    dtype: str
    """Numpy's name of what is stored."""
    items: int = 0
    """Length of the vector; 0 for a scalar."""
    nullable: bool = False
    null_items: bool = False
    """Whether a null may stand for one item of a vector."""
    inner_obs: bool = False
    """Whether the inner of two arrays holds the obs, the outer one the channels."""
    null_value: int | None = None
    """What stands for null, where no mask is wanted."""
    symbols: tuple[str, ...] = ()
    """Of the reader's enum."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    units: str | None = None
    scale_factor: float | None = None
    long_name: str | None = None

    @property
    def path(self) -> str:
        """Dotted path, as options name it."""
        return ".".join(s for s in self.steps if s != ITEM)

    @property
    def group(self) -> tuple[str, ...]:
        """Steps up to the array whose items are the obs, where a record is a sequence."""
        return group_of(self.steps, 2 if self.inner_obs else 1)

    @property
    def masked(self) -> bool:
        """Whether a column ``<name>_valid`` stands beside it."""
        return self.nullable and self.null_value is None and np.dtype(self.dtype).kind != "f"

    def spec(self) -> FieldSpec:
        """Make what the store is told."""
        return FieldSpec(
            self.name,
            self.dtype,
            items=self.items,
            units=self.units,
            long_name=self.long_name,
            nullable=self.masked,
            scale_factor=self.scale_factor,
            categories=self.symbols or None,
            attrs=dict(self.attrs),
        )


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A key or a label: one value a record, gathered in a dictionary."""

    name: str
    steps: tuple[str, ...]
    kind: str
    dtype: str
    """``string`` or numpy's name: what the column along ``sequence`` has."""
    symbols: tuple[str, ...] = ()
    units: str | None = None
    nullable: bool = False
    scale: int = 0
    """Of a decimal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is taken of each record."""

    columns: tuple[Column, ...]
    keys: tuple[KeyColumn, ...]
    labels: tuple[KeyColumn, ...]
    per_record: bool
    """Whether a record is a sequence, and obs are the items of its arrays."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Path -> why it is not stored."""
    check_text: bool = True
    """Whether skipped text must be valid UTF-8."""
    cuts: tuple[KeyColumn, ...] = ()
    """Text a change of which cuts a sequence; it is compared and not stored."""

    @property
    def words(self) -> tuple[KeyColumn, ...]:
        """All that is gathered in dictionaries, each once."""
        every = {k.steps: k for k in (*self.cuts, *self.labels, *self.keys)}
        return tuple(every.values())

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Arrays whose items are obs, as steps; ``((),)`` where records are obs."""
        if not self.per_record:
            return ((),)
        return tuple(dict.fromkeys(c.group for c in self.columns))

    @property
    def row_bytes(self) -> int:
        """Decoded bytes of one obs, masks included."""
        return sum(np.dtype(c.dtype).itemsize * max(1, c.items) + c.masked for c in self.columns)


def group_of(steps: Sequence[str], depth: int = 1) -> tuple[str, ...]:
    """Take steps up to and with the first array, or the ``depth``-th.

    Examples
    --------
    >>> group_of(("lpc", "[]", "[]"))
    ('lpc', '[]')
    """
    places = [i for i, s in enumerate(steps) if s == ITEM]
    return tuple(steps[: places[depth - 1] + 1])


def leaves(root: Node) -> list[Leaf]:
    """List every path that ends at a primitive, enum or fixed, in the order of the schema.

    Maps, recursions and unions that do not come down to one type end a path with a ``reason``.

    Raises
    ------
    UnsupportedError
        If there are more than 20,000.
    """
    out: list[Leaf] = []

    def walk(
        node: Node, steps: tuple[str, ...], nulls: tuple[bool, ...], busy: tuple[int, ...], doc: str | None
    ) -> None:
        if len(out) > MAX_LEAVES:
            raise UnsupportedError(
                f"the schema has more than {MAX_LEAVES} fields when its records are laid flat; "
                "read it with a reader_schema that has fewer"
            )

        def leaf(node: Node, reason: str = "", kinds: tuple[str, ...] = ()) -> None:
            out.append(Leaf(steps, node, nulls, kinds, reason, doc))

        kind = node.kind
        if len(steps) > MAX_DEPTH:
            leaf(node, f"it lies more than {MAX_DEPTH} levels deep")
        elif kind == "union":
            branches = [b for b in node.branches if b.kind != "null"]
            if len(branches) < len(node.branches):
                nulls = (*nulls[:-1], True)
            kinds = tuple(b.kind for b in branches)
            records = [b for b in branches if b.kind == "record"]
            if not branches:
                leaf(node, "it is always null")
            elif len(branches) == 1:
                walk(branches[0], steps, nulls, busy, doc)
            elif all(k in NUMBERS[1:] for k in kinds) and not any(b.logical for b in branches):
                leaf(node, kinds=kinds)
            elif len(records) == 1 and "array" not in kinds and "map" not in kinds:
                rest = ", ".join(k for k in kinds if k != "record")
                leaf(node, f"of its union the record is stored, and null where it is {rest}")
                walk(records[0], steps, (*nulls[:-1], True), busy, doc)
            else:
                leaf(node, f"a union of {', '.join(kinds)} is not one type")
        elif kind == "record":
            if id(node) in busy:
                leaf(node, f"the schema is recursive here ({node.name})")
            else:
                for f in node.fields:
                    walk(f.node, (*steps, f.name), nulls, (*busy, id(node)), f.doc or None)
        elif kind == "array":
            assert node.items is not None
            walk(node.items, (*steps, ITEM), (*nulls, False), busy, doc)
        elif kind == "map":
            leaf(node, "a map has no fixed set of fields")
        elif kind == "null":
            leaf(node, "it is always null")
        else:
            leaf(node)

    walk(root, (), (False,), (), None)
    return out


def _units(node: Node) -> tuple[str | None, dict[str, Any]]:
    logical = node.logical
    if logical is None:
        return None, {}
    attrs: dict[str, Any] = {"avro_logical_type": logical}
    unit = _UNIT.get(logical.rpartition("-")[2])
    if logical == "date":
        return "days since 1970-01-01", attrs
    if logical.startswith(("timestamp", "local-timestamp")):
        return f"{unit} since 1970-01-01", attrs
    if logical.startswith("time-"):
        return unit, attrs
    return None, attrs


def _join(kinds: tuple[str, ...]) -> str | None:
    """Find the one kind that holds all numbers of a union without loss."""
    if set(kinds) <= {"int", "long"}:
        return "long"
    if set(kinds) <= {"float", "double", "int"}:
        return "double"
    return None


def _store_name(path: str, taken: set[str], *, masked: bool = False) -> str:
    name = re.sub(r"[^A-Za-z0-9_.\-]", "_", path) or "value"
    if not re.match(r"[A-Za-z0-9_]", name):
        name = "_" + name
    if name in RESERVED:
        name += "_value"
    while name in taken or (masked and f"{name}_valid" in taken):
        name += "_"
    taken.add(name)
    if masked:
        taken.add(f"{name}_valid")
    return name


def column_of(leaf: Leaf, options: AvroOptions, lengths: Mapping[str, int]) -> Column | str:
    """Decide what a leaf becomes along ``obs``; a text says why it cannot be stored.

    Parameters
    ----------
    leaf
        A path of the reader's schema.
    options
        What the user asks for.
    lengths
        Steps of an array, joined with dots -> its length, where that is the same in all records seen.

    Raises
    ------
    ConfigError
        If an option does not fit the field.
    """
    node, path, kind = leaf.node, leaf.path, leaf.node.kind
    per_record = options.sequence_per == "record"
    if leaf.reason:
        return leaf.reason
    depth = leaf.depth - per_record
    if depth < 0:
        return "it stands outside the arrays whose items are the obs; take it as a label"
    if depth > 1:
        return "arrays nest deeper than vectors"
    if leaf.kinds:
        joined = _join(leaf.kinds)
        if joined is None:
            return f"a union of {', '.join(leaf.kinds)} has no common type without loss"
        kind = joined
    if kind in ("string", "bytes") and node.logical != "decimal":
        return f"{kind} values are not numbers; take them as key or label"
    units, attrs = _units(node)
    dtype, items, scale = "", 0, None
    symbols: tuple[str, ...] = ()
    if node.logical == "decimal":
        if node.precision > 18:
            return f"a decimal of {node.precision} digits does not fit 64 bits (18 digits do)"
        kind, dtype, scale = "decimal", "int64", float(f"1e-{node.scale}")
        attrs |= {"precision": node.precision, "scale": node.scale}
    elif node.logical == "duration":
        kind, dtype, items = "duration", "uint32", 3
        attrs |= {"item_names": ["months", "days", "milliseconds"]}
    elif kind == "fixed":
        if node.size == 0:
            return "a fixed of 0 bytes holds nothing"
        if node.size > MAX_VECTOR:
            return f"a fixed of {node.size} bytes is too long for a vector"
        dtype, items = "uint8", node.size
    elif kind == "enum":
        if not node.symbols:
            return "an enum without symbols holds nothing"
        dtype = "int8" if len(node.symbols) < 128 else "int16" if len(node.symbols) < 1 << 15 else "int32"
        symbols = node.symbols
    else:
        dtype = {"boolean": "bool", "int": "int32", "long": "int64", "float": "float32", "double": "float64"}[
            kind
        ]
        if units is not None:
            dtype = "int64"
    inner_obs = False
    if depth == 1:
        if items:
            return f"an array of {kind} values nests deeper than vectors"
        found = _vector(leaf, options, lengths)
        if isinstance(found, str):
            return found
        items, inner_obs = found
    row_null, item_null = leaf.nulls[int(per_record)], leaf.nulls[-1] if depth == 1 else False
    if inner_obs:
        row_null = False
    null_value = options.null_values.get(path)
    if null_value is not None:
        if not np.issubdtype(np.dtype(dtype), np.integer):
            raise ConfigError(f"null_values names {path!r}, which is stored as {dtype}, not as an integer")
        info = np.iinfo(dtype)
        if not info.min <= null_value <= info.max:
            raise ConfigError(f"null_values[{path!r}] is {null_value}, which {dtype} cannot hold")
    if item_null and not dtype.startswith("float") and null_value is None:
        return "its vectors hold nulls; give null_values"
    return Column(
        name=path,
        steps=leaf.steps,
        kind=kind,
        dtype=dtype,
        items=items,
        nullable=row_null or item_null,
        null_items=item_null,
        inner_obs=inner_obs,
        null_value=null_value if row_null or item_null else None,
        symbols=symbols,
        attrs=attrs,
        units=units,
        scale_factor=scale,
        long_name=leaf.doc[:500] if leaf.doc else None,
    )


def _vector(leaf: Leaf, options: AvroOptions, lengths: Mapping[str, int]) -> tuple[int, bool] | str:
    """Length of a field's vectors, and whether the inner of two arrays holds the obs."""
    path = leaf.path
    given = options.vector_lengths.get(path)
    if given is not None and not 1 <= given <= MAX_VECTOR:
        raise ConfigError(f"vector_lengths[{path!r}] is {given}; it must be 1 to {MAX_VECTOR}")
    last = lengths.get(".".join(group_of(leaf.steps, leaf.depth)))
    if options.sequence_per != "record":
        n = given or last
        if n == 0:
            return "its arrays are empty"
        if n is None:
            return (
                "its arrays differ in length, or none was met; give vector_lengths, or take a sequence per "
                "record"
            )
        return (n, False) if n <= MAX_VECTOR else f"its arrays of {n} items are too long for a vector"
    first = lengths.get(".".join(group_of(leaf.steps, 1)))
    inner = path in options.inner_obs
    if not inner and options.obs_axis == "auto":
        inner = (last is None and first is not None) or (given is not None and first == given != last)
    inner = inner or options.obs_axis == "inner"
    n = given or (first if inner else last)
    if n == 0:
        return "its inner arrays are empty"
    if n is None:
        return (
            "its inner and outer arrays differ in length, or none was met; give vector_lengths, and obs_axis"
        )
    return (n, inner) if n <= MAX_VECTOR else f"its arrays of {n} items are too long for a vector"


def _key_column(path: str, by_path: Mapping[str, Leaf], what: str, taken: set[str]) -> KeyColumn:
    if path not in by_path:
        raise UnknownNameError(_unknown(path, what, by_path))
    leaf = by_path[path]
    if leaf.reason or leaf.kinds or leaf.depth or leaf.node.kind not in KEY_KINDS:
        why = leaf.reason or ("it lies in an array" if leaf.depth else "it is not one simple type")
        raise UnsupportedError(f"the {what} {path!r} cannot be used: {why}")
    kind = leaf.node.kind
    units, _ = _units(leaf.node)
    dtype = {"int": "int64", "long": "int64", "boolean": "bool", "float": "float64", "double": "float64"}.get(
        kind, "string"
    )
    if leaf.node.logical == "decimal" or (leaf.node.logical == "uuid" and kind == "fixed"):
        kind = leaf.node.logical
    return KeyColumn(
        _store_name(path, taken),
        leaf.steps,
        kind,
        dtype,
        leaf.node.symbols,
        units,
        leaf.nullable,
        leaf.node.scale,
    )


def _label(path: str, by_path: Mapping[str, Leaf], taken: set[str]) -> KeyColumn:
    """Make the column of a label; words have a second array, of their codes."""
    label = _key_column(path, by_path, "label", taken)
    if f"{label.name}_code" in taken:
        label = replace(label, name=f"{label.name}_")
    taken |= {label.name, f"{label.name}_code"}
    return label


def _unknown(path: str, what: str, paths: Iterable[str]) -> str:
    every = list(paths)
    near = difflib.get_close_matches(path, every, n=3)
    text = f"there is no {what} {path!r}"
    if near:
        return f"{text}; did you mean {' or '.join(repr(n) for n in near)}?"
    return f"{text}; there are {', '.join(every[:30])}{' ...' if len(every) > 30 else ''}"


def make_plan(root: Node, options: AvroOptions, lengths: Mapping[str, int]) -> Plan:
    """Decide what is taken of each record of a reader's schema.

    Parameters
    ----------
    root
        The reader's schema.
    options
        What the user asks for.
    lengths
        Path of an array -> length of its vectors, where all have the same.

    Raises
    ------
    UnknownNameError
        If an option names a field that is not there.
    UnsupportedError
        If a field that is asked for cannot be stored; the message says why.
    """
    every = leaves(root)
    by_path: dict[str, Leaf] = {}
    for leaf in every:
        by_path.setdefault(leaf.path, leaf)
    taken: set[str] = set()
    keys = tuple(_key_column(p, by_path, "sequence key", set()) for p in options.sequence_key)
    labels = tuple(_label(p, by_path, taken) for p in options.labels)
    names = set(options.sequence_key) | set(options.labels)
    wanted = options.fields
    texts = [p for p in options.cut_on if p in by_path and _is_text(by_path[p])]
    if texts and options.sequence_per == "record":
        raise UnsupportedError(
            f"the field {texts[0]!r} cannot cut sequences: a record is one, and has it once"
        )
    extra = [p for p in options.cut_on if p not in texts] + ([options.time] if options.time else [])

    def inside(path: str, names: Iterable[str]) -> bool:
        return any(path == n or path.startswith(n + ".") for n in names)

    for what, asked in (
        ("field", wanted or ()),
        ("field", options.exclude),
        ("field", extra),
        ("array", options.vector_lengths),
        ("field", options.null_values),
    ):
        for name in asked:
            if not any(inside(p, (name,)) for p in by_path):
                raise UnknownNameError(_unknown(name, what, by_path))
    for name in (*options.null_values, *options.vector_lengths):
        if name not in by_path:
            raise ConfigError(f"{name!r} is a record; give null_values and vector_lengths to fields in it")
    for name in options.vector_lengths:
        if by_path[name].depth <= (options.sequence_per == "record"):
            raise ConfigError(f"vector_lengths names {name!r}, which has no vectors")
    columns: list[Column] = []
    left: dict[str, str] = {}
    for leaf in every:
        if by_path[leaf.path] is not leaf:
            left[f"{leaf.path} (again)"] = "another field goes by that path"
    for path, leaf in by_path.items():
        explicit = path in extra or (
            wanted is not None and path in wanted and not any(p.startswith(f"{path}.") for p in by_path)
        )
        if path in names and not explicit:  # it is stored along sequence
            continue
        if wanted is not None and not inside(path, wanted) and path not in extra:
            left[path] = "not asked for"
            continue
        if inside(path, options.exclude) and path not in extra:
            left[path] = "excluded"
            continue
        if path in texts and not explicit:
            left[path] = "sequences are cut where it changes"
            continue
        column = column_of(leaf, options, lengths)
        if isinstance(column, str):
            if explicit:
                raise UnsupportedError(f"the field {path!r} cannot be stored: {column}")
            left[path] = column
            continue
        columns.append(column)
    columns = _without_mixed(columns, left, wanted or ())
    if options.sequence_per == "record" and len({c.group for c in columns}) > 1:
        # a file may lack one array of obs beside another: its obs are nulls then
        columns = [
            replace(c, nullable=True) if not c.inner_obs and _may_lack(root, c.steps) else c for c in columns
        ]
    if not columns:
        told = {**dict.fromkeys(sorted(names & set(by_path)), "key or label"), **left}
        why = "; ".join(f"{p or '(value)'}: {r}" for p, r in list(told.items())[:10])
        raise ConfigError(f"no field is left to store ({why})")
    named = []
    for c in columns:
        name = _store_name(c.name, taken, masked=c.masked)
        named.append(_renamed(c, name))
    used = {n for c in named for n in (c.name, f"{c.name}_valid")}
    cuts = tuple(_key_column(p, by_path, "field", used) for p in texts)
    return Plan(tuple(named), keys, labels, options.sequence_per == "record", left, options.check_text, cuts)


def _may_lack(node: Node, steps: Sequence[str]) -> bool:
    """Whether a file may lack the array on a path, as the reader's schema has it."""
    for branch in node.branches:
        if branch.kind == "null" or _may_lack(branch, steps):
            return True
    inner = node.field(steps[0]) if steps[0] != ITEM else None
    return inner is not None and (inner.default is not MISSING or _may_lack(inner.node, steps[1:]))


def default_lengths(node: Node) -> dict[str, int]:
    """Lengths of the arrays that stand as defaults in a reader's schema, by their steps.

    Examples
    --------
    >>> from ingest.sources.avro.schema import parse
    >>> array = {"name": "a", "type": {"type": "array", "items": "int"}, "default": [1, 2]}
    >>> default_lengths(parse({"type": "record", "name": "R", "fields": [array]}))
    {'a.[]': 2}
    """
    out: dict[str, int] = {}
    for leaf in leaves(node):
        if not leaf.depth:
            continue
        head, at = group_of(leaf.steps), node
        for step in head[:-1]:
            found = at.field(step)
            if found is None:
                break
            at = found.node
        else:
            default = found.default if len(head) > 1 and found is not None else MISSING
            if isinstance(default, list):
                out[".".join(head)] = len(default)
    return out


def _without_mixed(columns: list[Column], left: dict[str, str], wanted: Sequence[str]) -> list[Column]:
    """Leave out what stands beside channels: one array cannot hold both channels and obs."""
    outer = {group_of(c.steps) for c in columns if c.inner_obs}
    out = []
    for c in columns:
        if not c.inner_obs and ITEM in c.steps and group_of(c.steps) in outer:
            reason = "its array holds channels, whose own arrays hold the obs"
            if c.path in wanted:
                raise UnsupportedError(f"the field {c.path!r} cannot be stored: {reason}")
            left[c.path] = reason
        else:
            out.append(c)
    return out


def _is_text(leaf: Leaf) -> bool:
    """Whether a field is text that stands in a record once."""
    return (
        not leaf.depth and not leaf.reason and leaf.node.kind in ("string", "bytes") and not leaf.node.logical
    )


def _renamed(column: Column, name: str) -> Column:
    attrs = dict(column.attrs)
    if name != column.name:
        attrs["avro_path"] = column.name
    return replace(column, name=name, attrs=attrs)


def time_step(value: float | str, column: Column) -> float:
    """Give the longest step of time in the unit of a time field: a whole number where its times are.

    Parameters
    ----------
    value
        A number in the field's own unit, or text with a unit: ``10s``, ``5 min``, ``250ms``.
    column
        The time field.

    Raises
    ------
    ConfigError
        If this is no time, or the field has no unit.

    Examples
    --------
    >>> millis = Column("t", ("t",), "long", "int64", units="milliseconds since 1970-01-01")
    >>> seconds = Column("t", ("t",), "double", "float64")
    >>> time_step("10s", millis), time_step(2.5, millis), time_step(2.5, seconds)
    (10000, 2, 2.5)
    """
    found = re.match(r"^\s*(\d+(?:\.\d+)?(?:e[-+]?\d{1,3})?)\s*([a-z]*)\s*$", str(value))
    span = unit_nanoseconds({"m": "min"}.get(found[2], found[2])) if found else None
    if not found or (found[2] and span is None):
        raise ConfigError(
            f"max_gap {value!r} is not a step of time; write a number, or text such as '10s' or '250ms'"
        )
    step = Fraction(found[1])
    if span is not None:
        tick = unit_nanoseconds((column.units or "").split(" ")[0])
        if tick is None:
            raise ConfigError(
                f"the time field {column.name!r} has no unit, so that {value!r} cannot be compared with it; "
                "give a plain number"
            )
        step *= Fraction(span, tick)
    # a step between whole numbers is above 2.5 where it is above 2
    return float(step) if column.dtype.startswith("float") else math.floor(step)

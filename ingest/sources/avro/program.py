"""From a writer's schema, a reader's schema and a plan to the flat program that the kernel runs.

The writer's schema is walked once, in the order of its bytes. What nobody asks for is skipped, with
neighbours joined into one instruction; what is asked for is stored, promoted as the specification has it.
Recursive types and types met several times become subroutines. All errors of resolution are known here:
an impossible value becomes a ``FAIL`` where it would be read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import UnsupportedError
from ingest.sources.avro import opcodes as oc
from ingest.sources.avro.columns import ITEM, Column, KeyColumn, Plan
from ingest.sources.avro.schema import MISSING, Node, find_field, pick, unlike

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Output", "Program", "compile_program", "default_value", "leads_into"]

MAX_INSTRUCTIONS = 1_000_000
_FILL = {1: oc.FILL8, 2: oc.FILL16, 4: oc.FILL32, 8: oc.FILL64}


@dataclass(frozen=True, slots=True)
class Output:
    """One array that the program fills."""

    name: str
    dtype: str
    items: int
    """Values of a row; 0 for a scalar."""
    cursor: int

    @property
    def width(self) -> int:
        """Values of a row, at least 1."""
        return max(1, self.items)


@dataclass(slots=True)
class Program:
    """Instructions, and what they need around them."""

    code: np.ndarray
    """int64[instructions, 8]; the bases of arrays are set by the caller."""
    aux: np.ndarray
    outputs: list[Output]
    patches: np.ndarray
    """int64[n, 3]: instruction, output, and values to add to its base."""
    tables: list[KeyColumn]
    constants: list[Any]
    """Constants that keys may stand for."""
    groups: list[tuple[str, ...]]
    """Arrays whose items are obs, by cursor - 1."""
    checked: np.ndarray
    """Cursors whose lengths must agree."""
    absent: frozenset[int]
    """Outputs that the writer has nothing for, where arrays are obs: they are blank."""
    least_item: list[int] = field(default_factory=list)
    """Fewest bytes of an item, by cursor - 1."""


@dataclass(slots=True)
class _Target:
    """Something wanted below the current node."""

    what: Column | KeyColumn
    steps: tuple[str, ...]
    """What is left of its path."""
    table: int = -1
    vector: bool = False
    """Whether the innermost array entered is a vector."""
    rows: bool = False
    """Whether the array whose items are obs has been entered."""


def leads_into(steps: Sequence[str], reader: Node) -> bool:
    """Whether a path goes on in this type: other branches of a union are nulls to it.

    Examples
    --------
    >>> leads_into(("[]",), Node("array")), leads_into((), Node("array"))
    (True, False)
    """
    if not steps:
        return reader.kind not in ("record", "array", "map", "null")
    if steps[0] == ITEM:
        return reader.kind == "array"
    return reader.kind == "record" and reader.field(steps[0]) is not None


def default_value(default: Any, node: Node, steps: Sequence[str]) -> Any:
    """Follow ``steps`` into a default of the type ``node``; MISSING where they lead nowhere."""
    if node.kind == "union":
        if default is None:
            return None
        options = [b for b in node.branches if b.kind != "null"]
        for branch in options:
            found = default_value(default, branch, steps)
            if found is not MISSING:
                return found
        return MISSING
    if not steps:
        return _fit(default, node)
    if node.kind == "record" and isinstance(default, dict):
        inner = node.field(steps[0])
        if inner is None:
            return MISSING
        value = default.get(inner.name, inner.default)
        return MISSING if value is MISSING else default_value(value, inner.node, steps[1:])
    if node.kind == "array" and isinstance(default, list) and steps[0] == ITEM:
        assert node.items is not None
        out = [default_value(v, node.items, steps[1:]) for v in default]
        return MISSING if any(v is MISSING for v in out) else out
    return MISSING


def _fit(value: Any, node: Node) -> Any:
    """Read a default as a value of a simple type; MISSING where it is none."""
    kind = node.kind
    if kind == "null":
        return None if value is None else MISSING
    if kind == "boolean":
        return value if isinstance(value, bool) else MISSING
    if kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        good = isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits
        return value if good else MISSING
    if kind in ("float", "double"):
        if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity", "INF", "-INF"):
            return float(value.replace("INF", "inf"))
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else MISSING
    if kind == "string":
        return value if isinstance(value, str) else MISSING
    if kind in ("bytes", "fixed"):
        if not isinstance(value, str):
            return MISSING
        try:
            data = value.encode("latin-1")
        except UnicodeEncodeError:
            return MISSING
        return data if kind == "bytes" or len(data) == node.size else MISSING
    if kind == "enum":
        return value if isinstance(value, str) and value in node.symbols else MISSING
    return MISSING


class _Compiler:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.code: list[list[int]] = []
        self.aux: list[int] = []
        self.outputs: list[Output] = []
        self.index: dict[str, int] = {}
        self.patches: list[tuple[int, int, int]] = []
        self.constants: list[Any] = []
        self.merge = False
        self.marks = 0
        """Places that are remembered."""
        self.run = -1
        """The first of the copies that the next one may be joined to."""
        self.routines: dict[int, int] = {}
        self.pending: list[tuple[int, Node]] = []
        self.shared: set[int] = set()
        self.groups = [] if not plan.per_record else list(plan.groups)
        self.least = [1] * len(self.groups)
        self.met: set[int] = set()
        """Outputs that are stored from something."""
        for c in plan.columns:
            cursor = 1 + self.groups.index(c.group) if plan.per_record else 0
            self.index[c.name] = len(self.outputs)
            self.outputs.append(Output(c.name, c.dtype, c.items, cursor))
            if c.masked:
                self.outputs.append(Output(f"{c.name}_valid", "bool", 0, cursor))

    # ------------------------------------------------------------ emitting

    def emit(self, op: int, *operands: int) -> int:
        if len(self.code) >= MAX_INSTRUCTIONS:
            raise UnsupportedError(f"the schema needs more than {MAX_INSTRUCTIONS} instructions")
        self.code.append([op, *operands] + [0] * (oc.WIDTH - 1 - len(operands)))
        self.merge = op in (oc.SKIP, oc.SKIP_VARINT)
        at = len(self.code) - 1
        if op not in (oc.COPY32, oc.COPY64) or operands[1] != 1:
            self.run = -1
        elif self.run >= 0 and self.code[self.run][0] == op and self.code[self.run][3] == operands[2]:
            self.code[self.run][6] += 1  # neighbours are copied in one go
        else:
            self.run = at
        return at

    def here(self) -> int:
        """Mark a place that is jumped to: nothing before it may be joined with what follows."""
        self.merge = False
        self.run = -1
        return len(self.code)

    def skip_bytes(self, n: int) -> None:
        if n == 0:
            return
        if self.merge and self.code[-1][0] == oc.SKIP:
            self.code[-1][1] += n
        else:
            self.emit(oc.SKIP, n)

    def skip_numbers(self, n: int) -> None:
        if self.merge and self.code[-1][0] == oc.SKIP_VARINT:
            self.code[-1][1] += n
        else:
            self.emit(oc.SKIP_VARINT, n)

    # ------------------------------------------------------------ skipping

    def find_shared(self, root: Node) -> None:
        """Find the records that are recursive or met more than once: they become subroutines."""
        seen: set[int] = set()
        todo = [root]
        while todo:
            node = todo.pop()
            if node.kind == "record":
                if id(node) in seen:
                    self.shared.add(id(node))
                    continue
                seen.add(id(node))
            todo.extend(f.node for f in node.fields)
            todo.extend(node.branches)
            if node.items is not None:
                todo.append(node.items)

    def skip(self, node: Node) -> None:
        """Emit what passes over one value."""
        kind = node.kind
        if kind == "null":
            return
        if kind in ("int", "long"):
            self.skip_numbers(1)
        elif kind == "boolean":
            self.emit(oc.SKIP_BOOL)
        elif kind in ("float", "double", "fixed"):
            self.skip_bytes({"float": 4, "double": 8}.get(kind, node.size))
        elif kind in ("bytes", "string"):
            self.emit(oc.SKIP_BYTES, int(kind == "string" and self.plan.check_text))
        elif kind == "enum":
            self.emit(oc.SKIP_ENUM, len(node.symbols))
        elif kind == "record":
            if node.least() == 0:
                return
            if id(node) in self.shared:
                self.call(node)
            else:
                for f in node.fields:
                    self.skip(f.node)
        elif kind in ("array", "map"):
            assert node.items is not None
            self.loop(0, 0, 0, node.items.least() + (kind == "map"), lambda: self.skip_item(node))
        else:
            self.union([lambda b=b: self.skip(b) for b in node.branches], node)

    def skip_item(self, node: Node) -> None:
        assert node.items is not None
        if node.kind == "map":
            self.emit(oc.SKIP_BYTES, int(self.plan.check_text))
        self.skip(node.items)

    def call(self, node: Node) -> None:
        at = self.emit(oc.CALL, -1)
        self.pending.append((at, node))

    def finish(self) -> None:
        """Emit the subroutines that are called."""
        while self.pending:
            at, node = self.pending.pop()
            if id(node) not in self.routines:
                self.routines[id(node)] = self.here()
                for f in node.fields:
                    self.skip(f.node)
                self.emit(oc.RETURN)
            self.code[at][1] = self.routines[id(node)]

    def loop(self, mode: int, items: int, cursor: int, least: int, body: Any) -> None:
        """Emit an array or map around what ``body`` emits."""
        begin = self.emit(oc.ARRAY, -1, mode, items, cursor)
        first = self.here()
        body()
        self.here()
        single, operand = -1, 0
        if len(self.code) == first + 1:
            op = self.code[first][0]
            if (mode == 0 and op in (oc.SKIP, oc.SKIP_VARINT)) or (
                mode in (1, 2, 3)
                and op in (oc.COPY32, oc.COPY64)
                and (mode == 1 or self.code[first][3] == cursor)
            ):
                single, operand = op, self.code[first][1]
        if mode == 0 and len(self.code) == first and least > 0:
            raise AssertionError("an item of some bytes has no instruction")
        at = self.emit(oc.NEXT, first, mode, items, cursor, least, single, operand)
        self.code[begin][1] = at
        self.here()

    def union(self, bodies: list[Any], node: Node) -> None:
        """Emit a choice between what ``bodies`` emit, one for each branch."""
        kinds = [b.kind for b in node.branches]
        if len(bodies) == 2 and "null" in kinds:
            null = kinds.index("null")
            at = self.emit(oc.NULLABLE, null, -1)
            self.here()
            bodies[1 - null]()
            jump = self.emit(oc.JUMP, -1)
            self.code[at][2] = self.here()
            bodies[null]()
            if len(self.code) == jump + 1:  # nothing is done for null: no jump over it is needed
                self.code.pop()
                self.code[at][2] = len(self.code)
            else:
                self.code[jump][1] = len(self.code)
            self.here()
            return
        table = len(self.aux)
        self.aux.extend([-1] * len(bodies))
        self.emit(oc.UNION, table, len(bodies))
        jumps = []
        for i, body in enumerate(bodies):
            self.aux[table + i] = self.here()
            body()
            jumps.append(self.emit(oc.JUMP, -1))
        for jump in jumps:
            self.code[jump][1] = len(self.code)
        self.here()

    # ------------------------------------------------------------ storing

    def value(self, writer: Node, reader: Node, targets: list[_Target]) -> None:
        """Emit what reads one value of ``writer`` as ``reader`` and stores what ``targets`` want."""
        if not targets:
            self.skip(writer)
            return
        if writer.kind == "union":
            if self.fused(writer, reader, targets):
                return
            self.union([lambda b=b: self.branch(b, reader, targets) for b in writer.branches], writer)
            return
        self.branch(writer, reader, targets)

    def branch(self, writer: Node, reader: Node, targets: list[_Target]) -> None:
        """Emit the same where ``writer`` is no union."""
        chosen = pick(writer, reader)
        if chosen is None:
            self.emit(oc.FAIL, oc.UNRESOLVED)
            return
        if writer.kind == "null":
            self.nulls(targets)
            return
        inside = [t for t in targets if leads_into(t.steps, chosen)]
        outside = [t for t in targets if not leads_into(t.steps, chosen)]
        self.nulls(outside)
        if not inside:
            self.skip(writer)
        elif writer.kind == "record":
            self.record(writer, chosen, inside)
        elif writer.kind == "array":
            self.array(writer, chosen, inside)
        else:
            self.several([lambda t=t: self.leaf(writer, chosen, t) for t in inside])

    def record(self, writer: Node, reader: Node, targets: list[_Target]) -> None:
        taken: dict[str, list[tuple[Node, list[_Target]]]] = {}
        for f in reader.fields:
            mine = [_step(t) for t in targets if t.steps[0] == f.name]
            found = find_field(f, writer)
            if found is not None:
                if mine:
                    taken.setdefault(found.name, []).append((f.node, mine))
            elif mine:
                for t in mine:
                    self.constant(t, f.node, f.default)
        for w in writer.fields:
            if w.name in taken:
                # each reader's field has a type of its own
                self.several([lambda w=w, n=n, m=m: self.value(w.node, n, m) for n, m in taken[w.name]])
            else:
                self.skip(w.node)

    def several(self, bodies: list[Any]) -> None:
        """Emit what reads one value several times, once for each body."""
        for body in bodies[:-1]:
            if self.marks >= oc.MAX_MARKS:
                raise UnsupportedError(f"more than {oc.MAX_MARKS} values inside each other are read twice")
            self.emit(oc.MARK, self.marks)
            self.marks += 1
            body()
            self.marks -= 1
            self.emit(oc.BACK, self.marks)
        bodies[-1]()

    def array(self, writer: Node, reader: Node, targets: list[_Target]) -> None:
        assert writer.items is not None
        assert reader.items is not None
        items, into = writer.items, reader.items
        first = targets[0]
        assert isinstance(first.what, Column)
        outer_vector = first.what.inner_obs and not first.vector
        for t in targets:
            assert isinstance(t.what, Column)
        inner = [_step(t) for t in targets]
        if self.plan.per_record and not first.rows and not outer_vector:
            cursor = 1 + self.groups.index(first.what.group)
            self.least[cursor - 1] = min(self.least[cursor - 1], max(1, items.least()))
            for t in inner:
                t.rows = True
                self.met.add(self.index[t.what.name])
            mode, n = (3, first.what.items) if first.vector else (2, 0)
            self.loop(mode, n, cursor, items.least(), lambda: self.value(items, into, inner))
            return
        for t in inner:
            t.vector = True
        self.loop(
            1, first.what.items, int(outer_vector), items.least(), lambda: self.value(items, into, inner)
        )
        if not outer_vector:
            for t in inner:
                assert isinstance(t.what, Column)
                self.mask(t.what, 1)

    # ------------------------------------------------------------ leaves

    def patch(self, at: int, output: int, extra: int = 0) -> None:
        self.patches.append((at, output, extra))

    def place(self, c: Column) -> tuple[int, int]:
        out = self.outputs[self.index[c.name]]
        return out.width, out.cursor

    def mask(self, c: Column, value: int) -> None:
        if c.masked:
            output = self.index[c.name] + 1
            # A vector's item must not move the place in its mask: k is 0 outside vectors only.
            at = self.emit(oc.FILL8, 0, 1, self.outputs[output].cursor, value, 1)
            self.patch(at, output)

    def nulls(self, targets: list[_Target]) -> None:
        """Emit what stores a null for each target."""
        for t in targets:
            if isinstance(t.what, KeyColumn):
                self.emit(oc.KEY_CONST, t.table, 0, -2)
                continue
            if self.plan.per_record and not t.rows:
                if t.vector and t.what.inner_obs:
                    self.emit(oc.FAIL, oc.NULL_VECTOR)  # one channel of a record has no length
                continue  # an array that is null has no obs
            self.fill(t, None)

    def fill(self, t: _Target, value: Any) -> None:
        """Emit what stores a constant: the whole rest of the row, or the current item of a vector."""
        c = t.what
        assert isinstance(c, Column)
        whole = c.items and not t.vector
        if t.vector and value is None and not c.null_items and not (c.dtype.startswith("float")):
            self.emit(oc.FAIL, oc.NULL_VECTOR)
            return
        width, cursor = self.place(c)
        size = np.dtype(c.dtype).itemsize
        values = value if isinstance(value, list) else [value]
        if whole and isinstance(value, list) and len(value) != c.items:
            self.emit(oc.FAIL, oc.BAD_VECTOR)
            return
        if len(values) == 1 or len(set(map(repr, values))) == 1:
            at = self.emit(_FILL[size], 0, width, cursor, _bits(c, values[0]), c.items if whole else 1)
            self.patch(at, self.index[c.name])
        else:
            for i, v in enumerate(values):
                at = self.emit(_FILL[size], 0, width, cursor, _bits(c, v), 1)
                self.patch(at, self.index[c.name], i)
        if not t.vector:
            self.mask(c, int(value is not None))

    def constant(self, t: _Target, node: Node, default: Any) -> None:
        """Emit what a field that the writer lacks becomes: its default."""
        value = MISSING if default is MISSING else default_value(default, node, t.steps)
        if isinstance(t.what, KeyColumn):
            if value is MISSING:
                self.emit(oc.FAIL, oc.UNRESOLVED)
            elif value is None:
                self.emit(oc.KEY_CONST, t.table, 0, -2)
            else:
                self.constants.append(value)
                self.emit(oc.KEY_CONST, t.table, len(self.constants) - 1, -3)
            return
        if self.plan.per_record and not t.rows:
            if value is MISSING:
                self.emit(oc.FAIL, oc.UNRESOLVED)
            return  # no array: its outputs are blank
        if value is MISSING:
            self.emit(oc.FAIL, oc.UNRESOLVED)
            return
        if isinstance(value, list) and any(v is None for v in value) and not t.what.null_items:
            self.emit(oc.FAIL, oc.NULL_VECTOR)
            return
        c = t.what
        if c.kind in ("fixed", "duration") and value is not None:
            value = list(value if c.kind == "fixed" else struct.unpack("<3I", value))
        self.fill(t, value)

    def fused(self, writer: Node, reader: Node, targets: list[_Target]) -> bool:
        """One instruction for a nullable float that is stored as it is."""
        if len(targets) != 1 or len(writer.branches) != 2 or targets[0].steps:
            return False
        c = targets[0].what
        kinds = [b.kind for b in writer.branches]
        if "null" not in kinds or not isinstance(c, Column) or (c.items and not targets[0].vector):
            return False
        null = kinds.index("null")
        inner = writer.branches[1 - null]
        chosen, nothing = pick(inner, reader), pick(writer.branches[null], reader)
        if chosen is None or nothing is None:
            return False
        op = {("float", "float32"): oc.NULL_COPY32, ("double", "float64"): oc.NULL_COPY64}.get(
            (inner.kind, c.dtype)
        )
        if op is None:
            return False
        width, cursor = self.place(c)
        self.patch(self.emit(op, 0, width, cursor, null, _bits(c, None)), self.index[c.name])
        return True

    def leaf(self, writer: Node, reader: Node, t: _Target) -> None:
        if unlike(writer, reader):
            self.emit(oc.FAIL, oc.UNRESOLVED)  # another unit or scale: nothing is ever rescaled
            return
        if isinstance(t.what, KeyColumn):
            self.key(writer, reader, t.what, t.table)
            return
        c, kind = t.what, writer.kind
        width, cursor = self.place(c)
        output = self.index[c.name]
        small = int(kind == "int")
        if c.kind == "enum":
            op = {1: oc.ENUM8, 2: oc.ENUM16, 4: oc.ENUM32}[np.dtype(c.dtype).itemsize]
            at = self.emit(op, 0, width, cursor, self.codes(writer, reader, c.symbols), len(writer.symbols))
        elif c.kind == "decimal":
            if kind == "fixed":
                at = self.emit(oc.DECIMAL_FIXED, 0, width, cursor, writer.size)
            else:
                at = self.emit(oc.DECIMAL, 0, width, cursor)
        elif c.kind in ("fixed", "duration"):
            at = self.emit(oc.BYTES, 0, writer.size, cursor, writer.size)
        elif kind == "boolean":
            at = self.emit(oc.BOOL, 0, width, cursor)
        elif kind in ("int", "long"):
            if c.dtype not in ("int64", "int32", "float64", "float32"):
                raise UnsupportedError(f"{kind} cannot be stored as {c.dtype}")
            op = {"int64": oc.LONG, "int32": oc.INT, "float64": oc.INT_F64, "float32": oc.INT_F32}[c.dtype]
            at = self.emit(op, 0, width, cursor, small or int(op == oc.INT))
        elif kind == "float":
            at = self.emit(oc.F32_F64 if c.dtype == "float64" else oc.COPY32, 0, width, cursor)
        elif kind == "double":
            at = self.emit(oc.COPY64, 0, width, cursor)
        else:
            raise UnsupportedError(f"{kind} cannot be stored as {c.dtype}")
        self.patch(at, output)
        if not t.vector:
            self.mask(c, 1)

    def codes(self, writer: Node, reader: Node, symbols: Sequence[str]) -> int:
        """Put the reader's codes of the writer's symbols into aux; -1 where the reader knows none."""
        number = {s: i for i, s in reversed(list(enumerate(symbols)))}
        other = number.get(reader.default, -1) if isinstance(reader.default, str) else -1
        start = len(self.aux)
        self.aux.extend(number.get(s, other) for s in writer.symbols)
        return start

    def key(self, writer: Node, reader: Node, k: KeyColumn, table: int) -> None:
        kind = writer.kind
        if kind in ("string", "bytes"):
            self.emit(oc.KEY_BYTES, table, int(reader.kind == "string"))
        elif kind in ("int", "long"):
            if reader.kind in ("float", "double"):
                raise UnsupportedError("a key that is an integer in one file and a float in another")
            self.emit(oc.KEY_LONG, table)
        elif kind == "fixed":
            self.emit(oc.KEY_FIXED, table, writer.size)
        elif kind == "enum":
            self.emit(oc.KEY_ENUM, table, self.codes(writer, reader, k.symbols), len(writer.symbols))
        elif kind == "boolean":
            self.emit(oc.KEY_BOOL, table)
        elif kind == "float":
            if reader.kind == "double":
                raise UnsupportedError("a key that is a float in one file and a double in another")
            self.emit(oc.KEY_F32, table)
        else:
            self.emit(oc.KEY_F64, table)


def _step(t: _Target) -> _Target:
    return _Target(t.what, t.steps[1:], t.table, t.vector, t.rows)


def _bits(c: Column, value: Any) -> int:
    """Give the bits of a constant as a signed integer; None is null."""
    dtype = np.dtype(c.dtype)
    if value is None:
        value = np.nan if dtype.kind == "f" else (c.null_value or 0)
    elif c.kind == "enum":
        value = c.symbols.index(value)
    elif c.kind == "decimal":
        value = int.from_bytes(value, "big", signed=True)
    raw = np.array([value]).astype(dtype).tobytes()
    return int.from_bytes(raw, "little", signed=len(raw) == 8)


def compile_program(writer: Node, reader: Node, plan: Plan) -> Program:
    """Compile the program that reads records of ``writer`` as ``reader`` and stores what ``plan`` takes.

    Raises
    ------
    UnsupportedError
        If the kernel does not take this; the fallback does.

    Examples
    --------
    >>> from ingest.sources.avro.columns import make_plan
    >>> from ingest.sources.avro.options import AvroOptions
    >>> from ingest.sources.avro.schema import parse
    >>> fields = [{"name": "a", "type": "int"}, {"name": "b", "type": "double"}]
    >>> node = parse({"type": "record", "name": "R", "fields": fields})
    >>> plan = make_plan(node, AvroOptions(sequence_per="file", fields=("b",)), {})
    >>> compile_program(node, node, plan).code[:, 0].tolist() == [oc.SKIP_VARINT, oc.COPY64, oc.END]
    True
    """
    c = _Compiler(plan)
    c.find_shared(writer)
    tables = list(plan.words)
    targets = [_Target(k, k.steps, table=i) for i, k in enumerate(tables)]
    targets += [_Target(column, column.steps) for column in plan.columns]
    try:
        c.value(writer, reader, targets)
        c.emit(oc.END)
        c.finish()
    except RecursionError:
        raise UnsupportedError("the schema nests too deep for the kernel") from None
    met = {c.outputs[i].cursor for i in c.met}
    absent = frozenset(i for i, out in enumerate(c.outputs) if plan.per_record and out.cursor not in met)
    return Program(
        code=np.array(c.code, np.int64).reshape(-1, oc.WIDTH),
        aux=np.array(c.aux or [0], np.int64),
        outputs=c.outputs,
        patches=np.array(c.patches, np.int64).reshape(-1, 3),
        tables=tables,
        constants=c.constants,
        groups=c.groups,
        checked=np.array(sorted(met), np.int64),
        absent=absent,
        least_item=c.least,
    )

"""A look at the first records of a file: how long their arrays are.

Lengths of vectors are nowhere in a schema, so the scan decodes a few records of one block, in plain
Python, with every claim bounded by the bytes that are there. Arrays of numbers, which may be long, are
stepped over as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ingest.sources.avro.schema import Node

__all__ = ["PeekError", "array_lengths"]

_MAX_DEPTH = 200
#: values walked over one by one that a look is worth, and after which it begins no further record
_MAX_STEPS, _ENOUGH = 1 << 22, 1 << 16
_WINDOW = 1 << 20
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class PeekError(Exception):
    """Bytes that are no value of the schema, or more than a look is worth."""


class _Bytes:
    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data)
        self.at = self.steps = 0
        self._widths: dict[int, int] = {}

    def take(self, n: int) -> memoryview:
        if n < 0 or n > len(self.data) - self.at:
            raise PeekError(f"{n} bytes are wanted, {len(self.data) - self.at} are left")
        out = self.data[self.at : self.at + n]
        self.at += n
        return out

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise PeekError("a number is longer than ten bytes")

    def skip_numbers(self, count: int) -> None:
        """Step over so many numbers: each ends with a byte below 128."""
        while count:
            window = np.frombuffer(self.data[self.at : self.at + _WINDOW], np.uint8)
            ends = np.flatnonzero(window < 128)[:count]
            if not ends.size:
                raise PeekError(f"{count} numbers are wanted where none is left")
            self.at += int(ends[-1]) + 1
            count -= ends.size

    def width(self, node: Node) -> int:
        """Bytes that every value of a type takes; -1 where they differ."""
        if id(node) not in self._widths:
            self._widths[id(node)] = -1  # also of a record that holds itself
            width = node.size if node.kind == "fixed" else _SIZES.get(node.kind, -1)
            if node.kind == "record":
                inner = [self.width(f.node) for f in node.fields]
                width = -1 if -1 in inner else sum(inner)
            self._widths[id(node)] = width
        return self._widths[id(node)]


def _walk(
    node: Node, data: _Bytes, lengths: dict[tuple[str, ...], set[int]], steps: tuple[str, ...], depth: int
) -> None:
    """Walk over one value; the length of every array that is met is added to ``lengths``."""
    data.steps += 1
    if depth > _MAX_DEPTH or data.steps > _MAX_STEPS:
        raise PeekError("values nest too deep for a look, or are too many")
    kind = node.kind
    if kind == "record":
        for f in node.fields:
            _walk(f.node, data, lengths, (*steps, f.name), depth + 1)
    elif kind == "union":
        branch = data.number()
        if not 0 <= branch < len(node.branches):
            raise PeekError(f"there is no branch {branch}")
        _walk(node.branches[branch], data, lengths, steps, depth + 1)
    elif kind in ("array", "map"):
        assert node.items is not None
        total = 0
        while count := data.number():
            if count < 0:
                count = -count
                data.number()
            total += count
            if kind == "array" and (width := data.width(node.items)) >= 0:
                data.take(count * width)
                continue
            if kind == "array" and node.items.kind in ("int", "long", "enum"):
                data.skip_numbers(count)
                continue
            if count * node.items.least() > len(data.data) - data.at:
                raise PeekError(f"an array claims {total} items")
            for _ in range(count):
                if kind == "map":
                    data.take(data.number())
                    _walk(node.items, data, {}, (), depth + 1)
                else:
                    _walk(node.items, data, lengths, (*steps, "[]"), depth + 1)
        if kind == "array":
            lengths.setdefault((*steps, "[]"), set()).add(total)
    elif kind in ("string", "bytes"):
        data.take(data.number())
    elif kind in ("int", "long", "enum"):
        data.number()
    else:
        data.take(data.width(node))


def array_lengths(
    node: Node, block: bytes | bytearray | memoryview, rows: int, most: int = 64
) -> dict[tuple[str, ...], set[int]]:
    """Lengths of the arrays in the first records of a decoded block, by their steps.

    Damage ends the look; what was seen before it counts.

    Examples
    --------
    >>> from ingest.sources.avro.schema import parse
    >>> array_lengths(parse('{"type": "array", "items": "int"}'), bytes([4, 2, 4, 0]), rows=1)
    {('[]',): {2}}
    """
    data = _Bytes(block)
    lengths: dict[tuple[str, ...], set[int]] = {}
    for _ in range(min(rows, most)):
        if data.steps > _ENOUGH:
            break
        try:
            _walk(node, data, lengths, (), 0)
        except PeekError:
            break
    return lengths

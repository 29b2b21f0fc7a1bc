"""A look at the first records of a file: how long their arrays are.

Lengths of vectors are nowhere in a schema, so the scan decodes a few records of one block, in plain
Python, with every claim bounded by the bytes that are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.sources.avro.schema import Node

__all__ = ["PeekError", "array_lengths"]

_MAX_ITEMS = 1 << 20
_MAX_DEPTH = 200


class PeekError(Exception):
    """Bytes that are no value of the schema, or more than a look is worth."""


class _Bytes:
    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data)
        self.at = 0

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


def _walk(
    node: Node, data: _Bytes, lengths: dict[tuple[str, ...], set[int]], steps: tuple[str, ...], depth: int
) -> None:
    """Walk over one value; the length of every array that is met is added to ``lengths``."""
    if depth > _MAX_DEPTH:
        raise PeekError("values nest too deep for a look")
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
            if total > _MAX_ITEMS or count * node.items.least() > len(data.data) - data.at:
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
    elif kind == "boolean":
        data.take(1)
    elif kind != "null":
        data.take({"float": 4, "double": 8}.get(kind, node.size))


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
        try:
            _walk(node, data, lengths, (), 0)
        except PeekError:
            break
    return lengths

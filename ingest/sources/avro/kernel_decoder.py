"""The fast decoder: lays out the output arena, runs the kernel, reads its dictionaries back."""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import UnsupportedError
from ingest.sources.avro import kernel, opcodes
from ingest.sources.avro.decoded import Decoded, blank, key_text
from ingest.sources.avro.program import compile_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest.sources.avro.columns import KeyColumn, Plan
    from ingest.sources.avro.schema import Node

__all__ = ["KernelDecoder"]

DEPTH = 1 << 16
_ENTRIES = 1 << 10
_LISTED = 1 << 12
#: bytes of obs that records are given room for at first
_ROOM = 64 << 20
#: bytes that one decoding may become
_MOST = 8 << 30
_SEED = int.from_bytes(os.urandom(8), "little")


class KernelDecoder:
    """Decodes with the compiled kernel; see ``decoded.Decoder``.

    Parameters
    ----------
    writer, reader
        The file's schema, and the one that it is read as.
    plan
        What is taken of each record.

    Raises
    ------
    UnsupportedError
        If the kernel does not take the schema, or this machine stores numbers the other way round.
    """

    name = "kernel"

    def __init__(self, writer: Node, reader: Node, plan: Plan) -> None:
        if sys.byteorder != "little":
            raise UnsupportedError("the kernel reads little-endian numbers in place")
        self.plan = plan
        self.program = compile_program(writer, reader, plan)
        self._columns = {c.name: c for c in plan.columns}

    def decode(self, arena: np.ndarray, starts: np.ndarray, stops: np.ndarray, counts: np.ndarray) -> Decoded:
        """Decode blocks; see ``decoded.Decoder``."""
        p, buf = self.program, arena
        used_bytes = np.maximum(stops - starts, 0)
        cursors = 1 + len(p.groups)
        caps = np.zeros(cursors, np.int64)
        caps[0] = int(counts.sum())
        most = caps.copy()
        widths = self._widths(cursors)
        for g, least in enumerate(p.least_item):
            most[g + 1] = min(int(used_bytes.sum()) // least, _MOST // int(widths[g + 1]))
            caps[g + 1] = min(int(most[g + 1]), max(16, _ROOM // int(widths[g + 1])))
        while True:
            made = self._run(buf, starts, stops, counts, caps, final=bool((caps == most).all()))
            if made is not None:
                return made
            caps[1:] = np.minimum(most[1:], 4 * caps[1:])

    def _widths(self, cursors: int) -> np.ndarray:
        """Bytes of a row of each cursor: int64[cursors], at least 1."""
        out = np.ones(cursors, np.int64)
        for o in self.program.outputs:
            out[o.cursor] += o.width * np.dtype(o.dtype).itemsize
        return out

    def _run(  # private: what decode was given
        self,
        buf: np.ndarray,
        starts: np.ndarray,
        stops: np.ndarray,
        counts: np.ndarray,
        caps: np.ndarray,
        *,
        final: bool,
    ) -> Decoded | None:
        """Run the kernel with room for ``caps`` rows; None where that is too little."""
        p = self.program
        records, cursors = int(caps[0]), caps.size
        firsts = np.cumsum(counts) - counts
        out, offsets = self._arena(caps)
        code = p.code.copy()
        if len(p.patches):
            at, which, extra = p.patches.T
            size = np.array([np.dtype(o.dtype).itemsize for o in p.outputs])
            unit = np.where(code[at, 0] == opcodes.BYTES, 1, size[which])
            code[at, 1] = offsets[which] // unit + extra
        status = np.zeros(starts.size, np.int32)
        where = np.zeros(starts.size, np.int64)
        cur = np.zeros(cursors, np.int64)
        rowlen = np.zeros((cursors if p.groups else 1, records if p.groups else 0), np.int64)
        n = max(1, len(p.tables))
        codes = np.full((len(p.tables), records), -1, np.int32)
        table = np.full((n, 2 * _ENTRIES), -1, np.int32)
        places = np.zeros((n, _ENTRIES, 4), np.int64)
        heads = np.zeros((n, 2), np.int64)
        heads[:, 1] = -1
        stack = np.empty((DEPTH, 4), np.int64)
        begin = 0
        while True:
            begin = kernel.decode_blocks(
                buf, starts, stops, counts, firsts, begin, code, p.aux, cur, caps, final,
                out, out.view(np.uint16), out.view(np.uint32), out.view(np.uint64),
                out.view(np.float32), out.view(np.float64), stack, rowlen, p.checked, status, where,
                codes, table, places, heads, np.uint64(_SEED),
            )  # fmt: skip
            if begin < 0:
                return None
            if begin >= starts.size:
                break
            entries = places.shape[1]
            table = np.full((n, 8 * entries), -1, np.int32)
            places = np.concatenate([places, np.zeros((n, 3 * entries, 4), np.int64)], axis=1)
            kernel.rehash(table, places, heads)
        return self._result(buf, out, offsets, records, cur, rowlen, status, where, codes, places, heads)

    def _arena(self, caps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One piece of memory for all arrays, each at a multiple of 64 bytes."""
        p = self.program
        offsets, at = [], 0
        for i, o in enumerate(p.outputs):
            offsets.append(at)
            rows = 0 if i in p.absent else int(caps[o.cursor])
            at += -(-rows * o.width * np.dtype(o.dtype).itemsize // 64) * 64
        return np.empty(at + 64, np.uint8), np.array(offsets, np.int64)

    def _result(  # noqa: PLR0917 # private: what one run of the kernel left
        self,
        buf: np.ndarray,
        out: np.ndarray,
        offsets: np.ndarray,
        records: int,
        cur: np.ndarray,
        rowlen: np.ndarray,
        status: np.ndarray,
        where: np.ndarray,
        codes: np.ndarray,
        places: np.ndarray,
        heads: np.ndarray,
    ) -> Decoded:
        p = self.program
        rowsize: np.ndarray | None = None
        rows = records
        if p.groups:
            first = int(p.checked[0]) if p.checked.size else -1
            rowsize = rowlen[first] if first >= 0 else np.zeros(records, np.int64)
            rows = int(cur[first]) if first >= 0 else 0
        columns: dict[str, np.ndarray] = {}
        for i, o in enumerate(p.outputs):
            if i in p.absent:
                own = self._columns.get(o.name)
                columns[o.name] = blank(own, rows) if own is not None else np.zeros(rows, bool)
                continue
            nbytes = rows * o.width * np.dtype(o.dtype).itemsize
            values = out[offsets[i] : offsets[i] + nbytes].view(o.dtype)
            columns[o.name] = values.reshape(rows, o.items) if o.items else values
        dictionaries = {
            ".".join(k.steps): (
                codes[t],
                tuple(self._values(k, buf, places[t, : heads[t, 0], :2])),
            )
            for t, k in enumerate(p.tables)
        }
        return Decoded(columns, status, where, dictionaries, rowsize)

    def _values(self, k: KeyColumn, buf: np.ndarray, entries: np.ndarray) -> Iterator[Any]:
        for low in range(0, len(entries), _LISTED):  # a list of all would take more than the keys
            for value, length in entries[low : low + _LISTED].tolist():
                yield self._value(k, buf, value, length)

    def _value(self, k: KeyColumn, buf: np.ndarray, value: int, length: int) -> Any:
        if length >= 0:
            return key_text(buf[value : value + length].tobytes(), k.kind, k.scale)
        if length == -3:
            found = self.program.constants[value]
            return key_text(found, k.kind, k.scale) if isinstance(found, bytes) else found
        if length != -1:
            return None
        if k.kind == "boolean":
            return bool(value)
        if k.kind == "enum":
            return k.symbols[value]
        if k.kind == "float":
            return struct.unpack("<f", struct.pack("<I", value))[0]
        if k.kind == "double":
            return struct.unpack("<d", struct.pack("<q", value))[0]
        return value

"""The interpreter of decoding programs, compiled with numba: blocks in, columns out, GIL released.

Every read is checked against the end of its block before it is done, every store goes to a row that was
counted before, loops and calls are bounded by the bytes of the block. What does not fit ends the block with a
status. The program is trusted, the bytes are not.
"""

# ruff: noqa: PLR0917, SIM109, PLR1714 - compiled code: many plain arguments, comparisons that become a jump table
from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from ingest.sources.avro import opcodes as oc
from ingest.sources.avro.walk_kernel import inlined, jit

__all__ = ["decode_blocks", "rehash"]

END, JUMP, UNION, NULLABLE, ARRAY, NEXT = oc.END, oc.JUMP, oc.UNION, oc.NULLABLE, oc.ARRAY, oc.NEXT
CALL, RETURN, FAIL, MARK, BACK = oc.CALL, oc.RETURN, oc.FAIL, oc.MARK, oc.BACK
MAX_MARKS = oc.MAX_MARKS
SKIP, SKIP_VARINT, SKIP_BYTES, SKIP_BOOL, SKIP_ENUM = (
    oc.SKIP,
    oc.SKIP_VARINT,
    oc.SKIP_BYTES,
    oc.SKIP_BOOL,
    oc.SKIP_ENUM,
)
BOOL, INT, LONG, INT_F32, INT_F64 = oc.BOOL, oc.INT, oc.LONG, oc.INT_F32, oc.INT_F64
COPY32, COPY64, F32_F64, BYTES = oc.COPY32, oc.COPY64, oc.F32_F64, oc.BYTES
ENUM8, ENUM16, ENUM32, DECIMAL, DECIMAL_FIXED = oc.ENUM8, oc.ENUM16, oc.ENUM32, oc.DECIMAL, oc.DECIMAL_FIXED
NULL_COPY32, NULL_COPY64 = oc.NULL_COPY32, oc.NULL_COPY64
FILL8, FILL16, FILL32, FILL64 = oc.FILL8, oc.FILL16, oc.FILL32, oc.FILL64
KEY_BYTES, KEY_LONG, KEY_FIXED, KEY_ENUM = oc.KEY_BYTES, oc.KEY_LONG, oc.KEY_FIXED, oc.KEY_ENUM
KEY_BOOL, KEY_F32, KEY_F64, KEY_CONST = oc.KEY_BOOL, oc.KEY_F32, oc.KEY_F64, oc.KEY_CONST
OVERRUN, TRAILING, BAD_VARINT, BAD_UNION = oc.OVERRUN, oc.TRAILING, oc.BAD_VARINT, oc.BAD_UNION
BAD_ENUM, BAD_BOOL, BAD_LENGTH, BAD_ARRAY_SIZE = oc.BAD_ENUM, oc.BAD_BOOL, oc.BAD_LENGTH, oc.BAD_ARRAY_SIZE
BAD_VECTOR, BAD_ARRAYS, BAD_UTF8, BAD_DECIMAL = oc.BAD_VECTOR, oc.BAD_ARRAYS, oc.BAD_UTF8, oc.BAD_DECIMAL
TOO_DEEP, NULL_VECTOR, GROW, GROW_ROWS, MAX_EMPTY_ITEMS = (
    oc.TOO_DEEP,
    oc.NULL_VECTOR,
    oc.GROW,
    oc.GROW_ROWS,
    oc.MAX_EMPTY_ITEMS,
)

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
K1 = np.uint64(0x9E3779B97F4A7C15)
U0, U1, U2, U3, U4, U7, U8, U32, U63, U127, U128 = (
    np.uint64(n) for n in (0, 1, 2, 3, 4, 7, 8, 32, 63, 127, 128)
)
HIGH = np.uint64(0x8080808080808080)
A0, A1 = np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00)
B0, B1 = np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000)
C0, C1 = np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000)


def _inline_ir(function: Any) -> Any:
    """Make an intrinsic; to the type checker it is a function of anything."""
    return intrinsic(function)


def _loader(bits: int) -> Any:
    """Make an unaligned little-endian load from an address; the caller has checked the bounds.

    Addresses, not arrays, go into the inlined helpers: an array handed over costs two atomic counts.
    """

    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:  # noqa: ARG001 # numba's signature
        result = types.uint64 if bits == 64 else types.uint32 if bits == 32 else types.uint8

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001 # numba's signature
            kind = ir.IntType(bits)
            return builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=1)

        return result(types.int64), codegen

    return load


def _storer(bits: int) -> Any:
    """Make a store to an address."""

    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001 # numba's signature
        kind = types.int64 if bits == 64 else types.int32

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001 # numba's signature
            place = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(args[1], place, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, kind), codegen

    return store


load8, load32, load64 = _loader(8), _loader(32), _loader(64)
store32, store64 = _storer(32), _storer(64)


@_inline_ir
def low_zeros(typing_context: Any, value: Any) -> Any:  # noqa: ARG001 # numba's signature
    """Count the zero bits below the lowest one of a uint64 that is not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001 # numba's signature
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@inlined
def varint(base: int, pos: int, end: int) -> tuple[Any, Any]:
    """Read a zigzag number: (value, next place); the place is -1 where the block ends, -2 for bad bytes."""
    if pos >= end:
        return 0, -1
    byte = np.uint64(load8(base + pos))
    pos += 1
    if byte < U128:
        return np.int64(byte >> U1) ^ -np.int64(byte & U1), pos
    if end - pos >= 7:
        # Eight bytes at once: cut behind the first that ends a number, then close the gaps of a bit a byte.
        word = load64(base + pos - 1)
        ends = ~word & HIGH
        if ends != U0:
            word &= ends ^ (ends - U1)
            word = (word & A0) | ((word & A1) >> U1)
            word = (word & B0) | ((word & B1) >> U2)
            word = (word & C0) | ((word & C1) >> U4)
            return np.int64(word >> U1) ^ -np.int64(word & U1), pos + np.int64(low_zeros(ends) >> U3)
    value = byte & U127
    shift = U7
    while True:
        if pos >= end:
            return 0, -1
        byte = np.uint64(load8(base + pos))
        pos += 1
        if shift == U63 and byte > U1:
            return 0, -2
        value |= (byte & U127) << shift
        if byte < U128:
            break
        shift += U7
    return np.int64(value >> U1) ^ -np.int64(value & U1), pos


@inlined
def ascii7(base: int, at: int, end: int, size: int) -> Any:
    """Whether bytes are ASCII; may say no of a few bytes at the very end of the arena."""
    while at + 8 <= end:
        if load64(base + at) & HIGH != U0:
            return False
        at += 8
    if at == end:
        return True
    return at + 8 <= size and load64(base + at) & HIGH & ((U1 << np.uint64(8 * (end - at))) - U1) == U0


@jit
def utf8(base: int, at: int, end: int) -> Any:
    """Whether bytes are valid UTF-8."""
    while at < end:
        if at + 8 <= end and load64(base + at) & np.uint64(0x8080808080808080) == U0:
            at += 8
            continue
        c = load8(base + at)
        at += 1
        if c < 0x80:
            continue
        if 0xC2 <= c <= 0xDF:
            more = 1
        elif 0xE0 <= c <= 0xEF:
            more = 2
        elif 0xF0 <= c <= 0xF4:
            more = 3
        else:
            return False
        if at + more > end:
            return False
        second = load8(base + at)
        if second & 0xC0 != 0x80:
            return False
        if (
            (c == 0xE0 and second < 0xA0)
            or (c == 0xED and second > 0x9F)
            or (c == 0xF0 and second < 0x90)
            or (c == 0xF4 and second > 0x8F)
        ):
            return False
        for i in range(1, more):
            if load8(base + at + i) & 0xC0 != 0x80:
                return False
        at += more
    return True


@inlined
def hash_bytes(base: int, at: int, end: int, size: int, seed: np.uint64) -> np.uint64:
    """Hash with a secret, so that nobody can prepare keys that collide."""
    h = seed ^ (np.uint64(end - at) * K1)
    while at + 8 <= end:
        h = (h ^ load64(base + at)) * K1
        h ^= h >> U32
        at += 8
    if at < end:
        word = U0
        if at + 8 <= size:
            word = load64(base + at) & ((U1 << np.uint64(8 * (end - at))) - U1)
        else:
            shift = U0
            while at < end:
                word |= np.uint64(load8(base + at)) << shift
                shift += U8
                at += 1
        h = (h ^ word) * K1
        h ^= h >> U32
    h = (h ^ seed) * K1
    return h ^ (h >> U32)


@inlined
def same_bytes(base: int, a: int, b: int, n: int, size: int) -> Any:
    """Whether two stretches of ``n`` bytes are equal."""
    i = 0
    while i + 8 <= n:
        if load64(base + a + i) != load64(base + b + i):
            return False
        i += 8
    if i < n and max(a, b) + i + 8 <= size:
        differ = load64(base + a + i) ^ load64(base + b + i)
        return differ & ((U1 << np.uint64(8 * (n - i))) - U1) == U0
    while i < n:
        if load8(base + a + i) != load8(base + b + i):
            return False
        i += 1
    return True


@inlined
def intern(
    base: int,
    size: int,
    value: int,
    length: int,
    seed: np.uint64,
    table: int,
    mask: np.uint64,
    entries: int,
    places: int,
    heads: int,
) -> Any:
    """Code of a key in one dictionary; -1 where it is full.

    ``length`` >= 0: bytes of the block from ``value`` on; else a number (-1), null (-2) or constant (-3).

    ``table`` is the address of int32[mask + 1] codes, ``places`` of int64[entries, 4]: value, length, hash,
    and the code that followed; ``heads`` of int64[2]: entries used, and the last code.
    """
    # What followed the last key before is tried first: right for runs and for rows of several taking turns.
    before = np.int64(load64(heads + 8))
    if before >= 0:
        code = np.int64(load64(places + 32 * before + 24))
        entry = places + 32 * code
        if np.int64(load64(entry + 8)) == length:
            if length < 0:
                if np.int64(load64(entry)) == value:
                    store64(heads + 8, code)
                    return code
            elif same_bytes(base, np.int64(load64(entry)), value, length, size):
                store64(heads + 8, code)
                return code
    if length >= 0:
        h = hash_bytes(base, value, value + length, size, seed)
    else:
        h = (np.uint64(value) ^ seed ^ np.uint64(-length)) * K1
        h ^= h >> U32
        h = (h ^ seed) * K1
        h ^= h >> U32
    slot = h & mask
    while True:
        code = np.int64(np.int32(load32(table + np.int64(slot) * 4)))
        if code < 0:
            break
        entry = places + 32 * code
        if load64(entry + 16) == h and np.int64(load64(entry + 8)) == length:
            if length < 0:
                if np.int64(load64(entry)) == value:
                    break
            elif same_bytes(base, np.int64(load64(entry)), value, length, size):
                break
        slot = (slot + U1) & mask
    if code < 0:
        code = np.int64(load64(heads))
        if code >= entries:
            return np.int64(-1)
        store32(table + np.int64(slot) * 4, np.int32(code))
        entry = places + 32 * code
        store64(entry, value)
        store64(entry + 8, length)
        store64(entry + 16, np.int64(h))
        store64(entry + 24, code)
        store64(heads, code + 1)
    if before >= 0:
        store64(places + 32 * before + 24, code)
    store64(heads + 8, code)
    return code


@jit
def rehash(table: np.ndarray, places: np.ndarray, heads: np.ndarray) -> None:
    """Put all entries into a larger table; the arrays are those of :func:`decode_blocks`."""
    mask = np.uint64(table.shape[1] - 1)
    for t in range(table.shape[0]):
        for code in range(heads[t, 0]):
            slot = np.uint64(places[t, code, 2]) & mask
            while table[t, slot] >= 0:
                slot = (slot + U1) & mask
            table[t, slot] = code


@jit
def decode_blocks(
    buf: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    counts: np.ndarray,
    firsts: np.ndarray,
    begin: int,
    prog: np.ndarray,
    aux: np.ndarray,
    cur: np.ndarray,
    caps: np.ndarray,
    final: bool,
    o8: np.ndarray,
    o16: np.ndarray,
    o32: np.ndarray,
    o64: np.ndarray,
    f32: np.ndarray,
    f64: np.ndarray,
    stack: np.ndarray,
    rowlen: np.ndarray,
    checked: np.ndarray,
    status: np.ndarray,
    where: np.ndarray,
    codes: np.ndarray,
    table: np.ndarray,
    places: np.ndarray,
    heads: np.ndarray,
    seed: np.uint64,
) -> int:
    """Decode blocks from ``begin`` on.

    Returns their number, or the block at which a dictionary was full, or -1 where there was no room for obs
    and ``caps`` is not ``final``, which is to say not what the bytes can hold at most.

    Parameters
    ----------
    buf : uint8[n]
        Decompressed bytes of all blocks.
    starts, stops, counts, firsts : int64[blocks]
        Where each lies, its records, and the number of its first record. ``stop < start``: left out.
    prog : int64[instructions, 8]
    aux : int64[m]
        Targets of unions and codes of enums.
    cur, caps : int64[cursors]
        Next row of each cursor, and how many rows there is room for; cursor 0 is the record.
    o8, o16, o32, o64, f32, f64 : views of one output arena
    stack : int64[depth, 4]
    rowlen : int64[cursors, records]
        Out: items of each record, where arrays are obs.
    checked : int64[n]
        Cursors whose lengths must agree in each record.
    status, where : [blocks]
        Out: what was wrong, and at which byte of the block.
    codes : int32[tables, records]
        Out: codes of keys and labels.
    table : int32[tables, 2 * entries]
    places : int64[tables, entries, 4]
    heads : int64[tables, 2]
        The dictionaries of keys and labels; see :func:`intern`.
    """
    base = buf.ctypes.data
    size = buf.size
    tables_at, places_at, heads_at = table.ctypes.data, places.ctypes.data, heads.ctypes.data
    entries = places.shape[1]
    mask = np.uint64(table.shape[1] - 1)
    depth = stack.shape[0]
    cursors = cur.size
    before = np.zeros(cursors, np.int64)
    at_block = np.zeros(cursors, np.int64)
    marks = np.zeros(MAX_MARKS, np.int64)
    for b in range(begin, starts.size):
        if stops[b] < starts[b]:
            continue
        pos = starts[b]
        end = stops[b]
        for g in range(cursors):
            at_block[g] = cur[g]
        bad = 0
        sp = 0
        k = 0
        empty = 0
        rec = firsts[b]
        rec_end = rec + counts[b]
        while rec < rec_end:
            cur[0] = rec
            for g in range(1, cursors):
                before[g] = cur[g]
            pc = 0
            sp = 0
            k = 0
            place = pos
            while True:
                op = prog[pc, 0]
                if op == COPY32:
                    more = prog[pc, 6]
                    row = cur[prog[pc, 3]]
                    if end - pos < 4 * more + 4:
                        bad = OVERRUN
                        break
                    o32[prog[pc, 1] + row * prog[pc, 2] + k] = load32(base + pos)
                    for i in range(1, more + 1):
                        o32[prog[pc + i, 1] + row] = load32(base + pos + 4 * i)
                    pos += 4 * more + 4
                    pc += more + 1
                elif op == COPY64:
                    more = prog[pc, 6]
                    row = cur[prog[pc, 3]]
                    if end - pos < 8 * more + 8:
                        bad = OVERRUN
                        break
                    o64[prog[pc, 1] + row * prog[pc, 2] + k] = load64(base + pos)
                    for i in range(1, more + 1):
                        o64[prog[pc + i, 1] + row] = load64(base + pos + 8 * i)
                    pos += 8 * more + 8
                    pc += more + 1
                elif op == NULL_COPY64:
                    to = prog[pc, 1] + cur[prog[pc, 3]] * prog[pc, 2] + k
                    if end - pos >= 9 and load8(base + pos) <= 2 and load8(base + pos) & 1 == 0:
                        # Both cases without a branch: which one it is cannot be foretold.
                        null = np.int64(load8(base + pos) >> 1) == prog[pc, 4]
                        o64[to] = np.uint64(prog[pc, 5]) if null else load64(base + pos + 1)
                        pos += 1 if null else 9
                        pc += 1
                        continue
                    branch, place = varint(base, pos, end)
                    if place < 0:
                        bad = OVERRUN if place == -1 else BAD_VARINT
                        break
                    pos = place
                    if branch == prog[pc, 4]:
                        o64[to] = np.uint64(prog[pc, 5])
                    elif branch == 1 - prog[pc, 4]:
                        if end - pos < 8:
                            bad = OVERRUN
                            break
                        o64[to] = load64(base + pos)
                        pos += 8
                    else:
                        bad = BAD_UNION
                        break
                    pc += 1
                elif op == NULL_COPY32:
                    to = prog[pc, 1] + cur[prog[pc, 3]] * prog[pc, 2] + k
                    if end - pos >= 5 and load8(base + pos) <= 2 and load8(base + pos) & 1 == 0:
                        # Both cases without a branch: which one it is cannot be foretold.
                        null = np.int64(load8(base + pos) >> 1) == prog[pc, 4]
                        o32[to] = np.uint32(prog[pc, 5]) if null else load32(base + pos + 1)
                        pos += 1 if null else 5
                        pc += 1
                        continue
                    branch, place = varint(base, pos, end)
                    if place < 0:
                        bad = OVERRUN if place == -1 else BAD_VARINT
                        break
                    pos = place
                    if branch == prog[pc, 4]:
                        o32[to] = np.uint32(prog[pc, 5])
                    elif branch == 1 - prog[pc, 4]:
                        if end - pos < 4:
                            bad = OVERRUN
                            break
                        o32[to] = load32(base + pos)
                        pos += 4
                    else:
                        bad = BAD_UNION
                        break
                    pc += 1
                elif op == LONG or op == INT or op == INT_F64 or op == INT_F32:
                    value, place = varint(base, pos, end)
                    if place < 0:
                        bad = OVERRUN if place == -1 else BAD_VARINT
                        break
                    pos = place
                    to = prog[pc, 1] + cur[prog[pc, 3]] * prog[pc, 2] + k
                    if prog[pc, 4] == 1 and (value < INT32_MIN or value > INT32_MAX):
                        bad = BAD_VARINT
                        break
                    if op == LONG:
                        o64[to] = np.uint64(value)
                    elif op == INT:
                        o32[to] = np.uint32(value)
                    elif op == INT_F64:
                        f64[to] = np.float64(value)
                    else:
                        f32[to] = np.float32(value)  # at once: by way of a double it is rounded twice
                    pc += 1
                elif op == SKIP:
                    if end - pos < prog[pc, 1]:
                        bad = OVERRUN
                        break
                    pos += prog[pc, 1]
                    pc += 1
                elif op == SKIP_VARINT:
                    for _ in range(prog[pc, 1]):
                        value, place = varint(base, pos, end)
                        if place < 0:
                            break
                        pos = place
                    if place < 0:
                        bad = OVERRUN if place == -1 else BAD_VARINT
                        break
                    pc += 1
                elif op == SKIP_BYTES:
                    value, place = varint(base, pos, end)
                    if place < 0:
                        bad = OVERRUN if place == -1 else BAD_VARINT
                        break
                    pos = place
                    if value < 0 or value > end - pos:
                        bad = BAD_LENGTH
                        break
                    if (
                        prog[pc, 1] == 1
                        and not ascii7(base, pos, pos + value, size)
                        and not utf8(base, pos, pos + value)
                    ):
                        bad = BAD_UTF8
                        break
                    pos += value
                    pc += 1
                elif op == KEY_BYTES:
                    value, place = varint(base, pos, end)
                    if place < 0:
                        bad = OVERRUN if place == -1 else BAD_VARINT
                        break
                    pos = place
                    if value < 0 or value > end - pos:
                        bad = BAD_LENGTH
                        break
                    t = prog[pc, 1]
                    known = heads[t, 0]
                    code = intern(
                        base,
                        size,
                        pos,
                        value,
                        seed,
                        tables_at + t * 8 * entries,
                        mask,
                        entries,
                        places_at + t * 32 * entries,
                        heads_at + 16 * t,
                    )
                    if code < 0:
                        bad = GROW
                        break
                    if code >= known and prog[pc, 2] == 1 and not utf8(base, pos, pos + value):
                        places[t, code, 1] = -9  # an entry that nothing equals
                        bad = BAD_UTF8
                        break
                    codes[t, rec] = code
                    pos += value
                    pc += 1
                elif op == END:
                    break
                elif op == NULLABLE:
                    branch, place = varint(base, pos, end)
                    if place < 0:
                        bad = OVERRUN if place == -1 else BAD_VARINT
                        break
                    pos = place
                    if branch == prog[pc, 1]:
                        pc = prog[pc, 2]
                    elif branch == 1 - prog[pc, 1]:
                        pc += 1
                    else:
                        bad = BAD_UNION
                        break
                elif op == JUMP:
                    pc = prog[pc, 1]
                elif op == FILL8 or op == FILL16 or op == FILL32 or op == FILL64:
                    to = prog[pc, 1] + cur[prog[pc, 3]] * prog[pc, 2] + k
                    for i in range(to, to + prog[pc, 5]):
                        if op == FILL8:
                            o8[i] = np.uint8(prog[pc, 4] & 255)
                        elif op == FILL16:
                            o16[i] = np.uint16(prog[pc, 4] & 65535)
                        elif op == FILL32:
                            o32[i] = np.uint32(prog[pc, 4] & 4294967295)
                        else:
                            o64[i] = np.uint64(prog[pc, 4])
                    pc += 1
                elif op == BOOL or op == SKIP_BOOL:
                    if pos >= end:
                        bad = OVERRUN
                        break
                    byte = load8(base + pos)
                    if byte > 1:
                        bad = BAD_BOOL
                        break
                    pos += 1
                    if op == BOOL:
                        o8[prog[pc, 1] + cur[prog[pc, 3]] * prog[pc, 2] + k] = byte
                    pc += 1
                elif op == ENUM8 or op == ENUM16 or op == ENUM32 or op == SKIP_ENUM:
                    value, place = varint(base, pos, end)
                    if place < 0:
                        bad = OVERRUN if place == -1 else BAD_VARINT
                        break
                    if op == SKIP_ENUM:
                        if value < 0 or value >= prog[pc, 1]:
                            bad = BAD_ENUM
                            break
                    else:
                        if value < 0 or value >= prog[pc, 5]:
                            bad = BAD_ENUM
                            break
                        code = aux[prog[pc, 4] + value]
                        if code < 0:
                            bad = BAD_ENUM
                            break
                        to = prog[pc, 1] + cur[prog[pc, 3]] * prog[pc, 2] + k
                        if op == ENUM8:
                            o8[to] = np.uint8(code)
                        elif op == ENUM16:
                            o16[to] = np.uint16(code)
                        else:
                            o32[to] = np.uint32(code)
                    pos = place
                    pc += 1
                elif op == F32_F64:
                    if end - pos < 4:
                        bad = OVERRUN
                        break
                    to = prog[pc, 1] + cur[prog[pc, 3]] * prog[pc, 2] + k
                    o32[2 * to] = load32(base + pos)
                    f64[to] = np.float64(f32[2 * to])
                    pos += 4
                    pc += 1
                elif op == BYTES:
                    n = prog[pc, 4]
                    if end - pos < n:
                        bad = OVERRUN
                        break
                    to = prog[pc, 1] + cur[prog[pc, 3]] * prog[pc, 2]
                    for i in range(n):
                        o8[to + i] = load8(base + pos + i)
                    pos += n
                    pc += 1
                elif op == DECIMAL or op == DECIMAL_FIXED:
                    if op == DECIMAL:
                        n, place = varint(base, pos, end)
                        if place < 0:
                            bad = OVERRUN if place == -1 else BAD_VARINT
                            break
                        pos = place
                        if n < 0:
                            bad = BAD_LENGTH
                            break
                    else:
                        n = prog[pc, 4]
                    if n > end - pos:
                        bad = BAD_LENGTH if op == DECIMAL else OVERRUN
                        break
                    number = np.uint64(0)
                    sign = np.uint8(0)
                    if n > 0 and load8(base + pos) > 127:
                        sign = np.uint8(255)
                        number = ~number
                    for i in range(n):
                        byte = load8(base + pos + i)
                        if i < n - 8 and byte != sign:
                            bad = BAD_DECIMAL
                            break
                        number = (number << U8) | np.uint64(byte)
                    if n > 8 and bad == 0 and (load8(base + pos + n - 8) > 127) != (sign == 255):
                        bad = BAD_DECIMAL
                    if bad != 0:
                        break
                    o64[prog[pc, 1] + cur[prog[pc, 3]] * prog[pc, 2] + k] = number
                    pos += n
                    pc += 1
                elif op == ARRAY:
                    if sp >= depth:
                        bad = TOO_DEEP
                        break
                    stack[sp, 0] = -1  # items left in the run; -1: not begun
                    stack[sp, 1] = -1  # where the run must end
                    stack[sp, 2] = 0  # items in all
                    stack[sp, 3] = cur[prog[pc, 4]] if prog[pc, 2] == 3 else k
                    if prog[pc, 2] == 1:
                        k = 0
                    sp += 1
                    pc = prog[pc, 1]
                elif op == NEXT:
                    f = sp - 1
                    mode = prog[pc, 2]
                    if stack[f, 0] >= 0:
                        if mode == 1:
                            k += 1
                        elif mode >= 2:
                            cur[prog[pc, 4]] += 1
                        if stack[f, 0] > 0:
                            if mode >= 2 and cur[prog[pc, 4]] >= caps[prog[pc, 4]]:
                                bad = BAD_LENGTH if final else GROW_ROWS
                                break
                            stack[f, 0] -= 1
                            pc = prog[pc, 1]
                            continue
                    least = prog[pc, 5]
                    inside = False
                    while True:
                        if stack[f, 1] >= 0 and pos != stack[f, 1]:
                            bad = BAD_ARRAY_SIZE
                            break
                        count, place = varint(base, pos, end)
                        if place < 0:
                            bad = OVERRUN if place == -1 else BAD_VARINT
                            break
                        pos = place
                        stack[f, 1] = -1
                        if count == 0:
                            break
                        if count < 0:
                            count = -count
                            nbytes, place = varint(base, pos, end)
                            if place < 0:
                                bad = OVERRUN if place == -1 else BAD_VARINT
                                break
                            pos = place
                            if count < 0 or nbytes < 0 or nbytes > end - pos:
                                bad = BAD_LENGTH
                                break
                            stack[f, 1] = pos + nbytes
                        if least > 0:
                            if count > (end - pos) // least:
                                bad = BAD_LENGTH
                                break
                        else:
                            empty += min(count, MAX_EMPTY_ITEMS + 1)
                            if empty > MAX_EMPTY_ITEMS:
                                bad = BAD_LENGTH
                                break
                            if mode == 0:
                                continue
                        stack[f, 2] += count
                        if mode == 1 and stack[f, 2] > prog[pc, 3]:
                            bad = BAD_VECTOR
                            break
                        single = prog[pc, 6]
                        if mode >= 2 and (count if single >= 0 else 1) > caps[prog[pc, 4]] - cur[prog[pc, 4]]:
                            bad = BAD_LENGTH if final else GROW_ROWS
                            break
                        if single < 0:
                            inside = True
                            break
                        # A body of one plain instruction: the whole run at once.
                        body = prog[pc, 1]
                        if single == SKIP:
                            n = count * prog[body, 1]
                            if n > end - pos:
                                bad = OVERRUN
                                break
                            pos += n
                        elif single == SKIP_VARINT:
                            for _ in range(count * prog[body, 1]):
                                value, place = varint(base, pos, end)
                                if place < 0:
                                    break
                                pos = place
                            if place < 0:
                                bad = OVERRUN if place == -1 else BAD_VARINT
                                break
                        else:
                            width = 4 if single == COPY32 else 8
                            if count * width > end - pos:
                                bad = OVERRUN
                                break
                            to = prog[body, 1] + cur[prog[body, 3]] * prog[body, 2] + k
                            step = 1 if mode == 1 else prog[body, 2]
                            if single == COPY32:
                                for i in range(count):
                                    o32[to + i * step] = load32(base + pos + 4 * i)
                            else:
                                for i in range(count):
                                    o64[to + i * step] = load64(base + pos + 8 * i)
                            pos += count * width
                            if mode == 1:
                                k += count
                            else:
                                cur[prog[pc, 4]] += count
                    if bad != 0:
                        break
                    if inside:
                        stack[f, 0] = count - 1
                        pc = prog[pc, 1]
                        continue
                    if mode == 1:
                        if stack[f, 2] != prog[pc, 3] and (stack[f, 2] != 0 or prog[pc, 4] == 0):
                            bad = BAD_VECTOR
                            break
                        k = stack[f, 3]
                    elif mode == 3:
                        # One channel of a record is complete: all have the length of the first.
                        g = prog[pc, 4]
                        if k == 0:
                            stack[f, 2] = cur[g] - stack[f, 3]
                            rowlen[g, rec] = stack[f, 2]
                        elif cur[g] - stack[f, 3] != rowlen[g, rec]:
                            bad = BAD_ARRAYS
                            break
                        cur[g] = stack[f, 3]
                        if k == prog[pc, 3] - 1:
                            cur[g] += rowlen[g, rec]
                    sp -= 1
                    pc += 1
                elif op == UNION:
                    branch, place = varint(base, pos, end)
                    if place < 0:
                        bad = OVERRUN if place == -1 else BAD_VARINT
                        break
                    pos = place
                    if branch < 0 or branch >= prog[pc, 2]:
                        bad = BAD_UNION
                        break
                    pc = aux[prog[pc, 1] + branch]
                elif op == CALL:
                    if sp >= depth:
                        bad = TOO_DEEP
                        break
                    stack[sp, 0] = pc + 1
                    sp += 1
                    pc = prog[pc, 1]
                elif op == RETURN:
                    sp -= 1
                    pc = stack[sp, 0]
                elif op == MARK:
                    marks[prog[pc, 1]] = pos
                    pc += 1
                elif op == BACK:
                    pos = marks[prog[pc, 1]]
                    pc += 1
                elif op == FAIL:
                    bad = prog[pc, 1]
                    break
                else:
                    # Keys that are not strings: a number, and how it is meant.
                    t = prog[pc, 1]
                    kind = -1
                    value = np.int64(0)
                    if op == KEY_LONG or op == KEY_ENUM:
                        value, place = varint(base, pos, end)
                        if place < 0:
                            bad = OVERRUN if place == -1 else BAD_VARINT
                            break
                        pos = place
                        if op == KEY_ENUM:
                            if value < 0 or value >= prog[pc, 3] or aux[prog[pc, 2] + value] < 0:
                                bad = BAD_ENUM
                                break
                            value = aux[prog[pc, 2] + value]
                    elif op == KEY_FIXED:
                        if end - pos < prog[pc, 2]:
                            bad = OVERRUN
                            break
                        kind = prog[pc, 2]
                        value = pos
                        pos += kind
                    elif op == KEY_BOOL:
                        if pos >= end:
                            bad = OVERRUN
                            break
                        value = np.int64(load8(base + pos))
                        if value > 1:
                            bad = BAD_BOOL
                            break
                        pos += 1
                    elif op == KEY_F32:
                        if end - pos < 4:
                            bad = OVERRUN
                            break
                        value = np.int64(load32(base + pos))
                        pos += 4
                    elif op == KEY_F64:
                        if end - pos < 8:
                            bad = OVERRUN
                            break
                        value = np.int64(load64(base + pos))
                        pos += 8
                    else:
                        value = prog[pc, 2]
                        kind = prog[pc, 3]
                    code = intern(
                        base,
                        size,
                        value,
                        kind,
                        seed,
                        tables_at + t * 8 * entries,
                        mask,
                        entries,
                        places_at + t * 32 * entries,
                        heads_at + 16 * t,
                    )
                    if code < 0:
                        bad = GROW
                        break
                    codes[t, rec] = code
                    pc += 1
            if bad == 0 and checked.size > 0:
                for g in range(1, cursors):
                    rowlen[g, rec] = cur[g] - before[g]
                want = rowlen[checked[0], rec]
                for i in range(1, checked.size):
                    if rowlen[checked[i], rec] != want:
                        bad = BAD_ARRAYS
            if bad != 0:
                break
            rec += 1
        if bad == 0 and pos != end:
            bad = TRAILING
        if bad != 0:
            for g in range(cursors):
                cur[g] = at_block[g]
            if bad == GROW:
                return b
            if bad == GROW_ROWS:
                return -1
            status[b] = bad
            where[b] = pos - starts[b]
            for g in range(1, cursors):
                for i in range(firsts[b], rec_end):
                    rowlen[g, i] = 0
    return starts.size


def compiled() -> dict[str, Any]:
    """Versions of what compiled this."""
    return {"numba": numba.__version__}

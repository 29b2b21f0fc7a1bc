"""Damaged blocks, many of them: the kernel ends in a fault or gives what fastavro gives, and never runs wild.

``CHUNKSTORE_FUZZ=1000000`` in the environment asks for that many blocks instead of some thousands.
"""

from __future__ import annotations

import io
import json
import os
import random

import fastavro
import numpy as np
import pytest

from ingest.sources.avro import schema as schemas
from ingest.sources.avro.columns import make_plan
from ingest.sources.avro.fallback import FastavroDecoder
from ingest.sources.avro.kernel_decoder import KernelDecoder
from ingest.sources.avro.options import AvroOptions

BLOCKS = int(os.environ.get("CHUNKSTORE_FUZZ", "20000"))
GROUP = 1000


def record(name, **fields):
    return {"type": "record", "name": name, "fields": [{"name": k, "type": v} for k, v in fields.items()]}


def array(items):
    return {"type": "array", "items": items}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
FLAT = record(
    "Flat", key="string", t="long", b="boolean", i=["null", "int"], d=["double", "null"], f="float", e=ENUM
)
DEEP = record(
    "Deep",
    key=["null", "string"],
    skipped=array(record("In", s="string", m={"type": "map", "values": ["null", "long"]})),
    v={"type": "array", "items": "double"},
    x={"type": "fixed", "name": "X", "size": 5},
    u=["null", "string", "long", record("Ub", a=array("bytes"))],
    n=record("N", y=["null", record("M", z="int", q=["null", "float"])]),
    last={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
)
LIST = record("L", value="long", next=["L", "null"])
TREE = record("T", x="double", kids=array("T"))
SEQ = record(
    "S",
    key="string",
    a=array("int"),
    s=array(record("St", w=["null", "double"], g="long")),
    z=array(array("float")),
)
EMPTY = record("Em", a=array("null"), x="int", r=array(record("None_")))


def values(which, rng):
    text = lambda: "".join(rng.choice("abcdé€") for _ in range(rng.randrange(6)))
    long = lambda: rng.choice(
        [rng.randrange(-5, 5), rng.getrandbits(63) - (1 << 62), rng.randrange(-(1 << 40), 1 << 40)]
    )
    if which == "flat":
        return {
            "key": text(),
            "t": long(),
            "b": rng.random() < 0.5,
            "i": rng.choice([None, 5, -(1 << 31)]),
            "d": rng.choice([None, 1.5]),
            "f": 0.25,
            "e": rng.choice("ABC"),
        }
    if which == "deep":
        return {
            "key": rng.choice([None, text()]),
            "skipped": [
                {"s": text(), "m": {text(): rng.choice([None, long()]) for _ in range(rng.randrange(3))}}
                for _ in range(rng.randrange(3))
            ],
            "v": [rng.random() for _ in range(3)],
            "x": rng.randbytes(5),
            "u": rng.choice([None, "s", 7, {"a": [b"1", b"22"]}]),
            "n": {"y": rng.choice([None, {"z": 3, "q": rng.choice([None, 2.5])}])},
            "last": rng.randrange(-(1 << 30), 1 << 30).to_bytes(rng.choice([5, 9]), "big", signed=True),
        }
    if which == "list":
        out = None
        for _ in range(rng.randrange(1, 5)):
            out = {"value": long(), "next": out}
        return out
    if which == "tree":
        grow = lambda d: {
            "x": rng.random(),
            "kids": [grow(d - 1) for _ in range(rng.randrange(3) if d else 0)],
        }
        return grow(3)
    if which == "seq":
        n = rng.randrange(4)
        return {
            "key": text(),
            "a": [rng.randrange(-300, 300) for _ in range(n)],
            "s": [{"w": rng.choice([None, 1.0]), "g": long()} for _ in range(n)],
            "z": [[0.5, 1.5] for _ in range(n)],
        }
    return {"a": [None] * rng.randrange(3), "x": 1, "r": [{}] * rng.randrange(2)}


CASES = {
    "flat": (FLAT, {"sequence_key": "key"}),
    "deep": (DEEP, {"sequence_key": "key", "vector_lengths": {"v": 3}}),
    "list": (LIST, {"sequence_per": "all", "fields": ("value",)}),
    "tree": (TREE, {"sequence_per": "all", "fields": ("x",)}),
    "seq": (SEQ, {"sequence_key": "key", "sequence_per": "record", "vector_lengths": {"z": 2}}),
    "empty": (EMPTY, {"sequence_per": "all", "fields": ("x",)}),
}


def mutate(data, rng, zigzag):
    data = bytearray(data)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 4])):
        kind = rng.randrange(7)
        at = rng.randrange(len(data) + 1)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data = data[:at]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 4))
        elif kind == 3:
            forged = rng.choice(
                [-1, -(1 << 62), 1 << 62, (1 << 31) - 1, 1 << 40, -(1 << 63), rng.randrange(-99, 99), 10**9]
            )
            data[at : at + 1] = zigzag(forged)
        elif kind == 4:
            data[at:at] = b"\xff" * rng.randrange(1, 12)
        elif kind == 5 and data:
            data[at % len(data)] = rng.choice([0, 1, 2, 127, 128, 255])
        elif data:
            other = rng.randrange(len(data))
            data[at:at] = data[other : other + rng.randrange(8)]
    return bytes(data)


@pytest.mark.parametrize("which", CASES)
def test_a_mutated_block_is_a_fault_or_what_fastavro_reads(which, avro):
    schema, options = CASES[which]
    node = schemas.parse(json.dumps(schema))
    plan = make_plan(node, AvroOptions(**options), {})
    kernel, slow = KernelDecoder(node, node, plan), FastavroDecoder(node, node, plan)
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    rng = random.Random(f"fuzz {which}")
    goods = []
    for _ in range(50):
        stream = io.BytesIO()
        rows = rng.randrange(1, 4)
        for _ in range(rows):
            fastavro.schemaless_writer(stream, parsed, values(which, rng))
        goods.append((rows, stream.getvalue()))
    accepted = refused = 0
    for _ in range(max(1, BLOCKS // len(CASES) // GROUP)):
        blocks = []
        for _ in range(GROUP):
            rows, data = rng.choice(goods)
            blocks.append(
                (rows if rng.random() < 0.95 else rng.randrange(0, 6), mutate(data, rng, avro.zigzag))
            )
        sizes = np.array([len(d) for _, d in blocks], np.int64)
        stops = np.cumsum(sizes)
        counts = np.array([r for r, _ in blocks], np.int64)
        args = np.frombuffer(b"".join(d for _, d in blocks), np.uint8), stops - sizes, stops, counts
        fast = kernel.decode(*args)
        good = np.flatnonzero(fast.status == 0)
        accepted += good.size
        refused += GROUP - good.size
        # fastavro, on what was accepted; a block that was refused is left out (stop before start)
        left = np.where(fast.status == 0, stops, stops - sizes - 1)
        truth = slow.decode(args[0], args[1], left, counts)
        surprising = {int(s) for s in truth.status[good]} - {0}
        assert not surprising, f"fastavro refuses what the kernel takes: {surprising}"
        keep = np.repeat(fast.status == 0, counts)
        for name, column in fast.columns.items():
            own, other = (
                (column, truth.columns[name])
                if plan.per_record
                else (column[keep], truth.columns[name][keep])
            )
            assert np.array_equal(own, other, equal_nan=own.dtype.kind == "f"), name
        for name, (codes, words) in fast.dictionaries.items():
            other_codes, other_words = truth.dictionaries[name]
            assert [words[c] for c in codes[keep]] == [other_words[c] for c in other_codes[keep]]
        if fast.rowsize is not None:
            assert np.array_equal(fast.rowsize[keep], truth.rowsize[keep])
            assert not fast.rowsize[~keep].any()
    assert accepted
    assert refused

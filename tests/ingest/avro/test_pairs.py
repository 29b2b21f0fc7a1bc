"""Random schemas, and random later versions of them: both decoders resolve every value alike.

``CHUNKSTORE_EXAMPLES=9000`` in the environment asks for that many pairs instead of a hundred.
"""

from __future__ import annotations

import copy
import io
import os
import random

import fastavro
import numpy as np

from chunkstore.errors import ChunkstoreError
from ingest.sources.avro import schema as schemas
from ingest.sources.avro.columns import leaves, make_plan
from ingest.sources.avro.fallback import FastavroDecoder
from ingest.sources.avro.kernel_decoder import KernelDecoder
from ingest.sources.avro.options import AvroOptions

PAIRS = int(os.environ.get("CHUNKSTORE_EXAMPLES", "100"))
SIMPLE = ("int", "long", "float", "double", "boolean")
WIDER = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}


class Maker:
    """Makes a writer's schema, and a reader's out of it."""

    def __init__(self, rng):
        self.rng, self.count = rng, 0

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def record(self, depth):
        fields = [{"name": self.name("f"), "type": self.type(depth)} for _ in range(self.rng.randrange(1, 5))]
        return {"type": "record", "name": self.name("R"), "fields": fields}

    def type(self, depth):
        inner = ("fixed", "null", "union", "record", "array") if depth else ()
        kind = self.rng.choice((*SIMPLE, "enum", *inner))
        if kind in SIMPLE:
            return kind
        if kind == "enum":
            return {"type": "enum", "name": self.name("E"), "symbols": ["A", "B", "C"]}
        if kind == "fixed":
            return {"type": "fixed", "name": self.name("F"), "size": 3}
        if kind == "union":
            return self.rng.sample(["null", "int", "double", "string"], 3)
        if kind == "array":
            return {"type": "array", "items": self.type(0)}
        if kind == "record":
            return self.record(depth - 1)
        plain = self.type(depth - 1)
        return plain if isinstance(plain, list) else ["null", plain]

    def later(self, old):
        """Make another version of a type: wider, renamed, in another order, or one that does not fit."""
        chance = self.rng.random()
        if isinstance(old, str):
            if chance < 0.4:
                return self.rng.choice(WIDER.get(old, (old,)))
            if chance < 0.5:
                return ["null", old]
            return self.rng.choice(SIMPLE) if chance < 0.55 else old
        if isinstance(old, list):
            old = old[::-1] if chance < 0.3 else old
            kept = [b for b in old if b != "null" or chance < 0.8] or old
            return [b if isinstance(b, str) else self.later(b) for b in kept]
        new = copy.deepcopy(old)
        if new["type"] == "array":
            new["items"] = self.later(new["items"])
        elif new["type"] == "enum":
            new["symbols"] = self.rng.choice([["A", "B", "C"], ["C", "A", "B"], ["A"], ["A", "Z"]])
            if "Z" in new["symbols"]:
                new["default"] = "Z"
        elif new["type"] == "record":
            new["fields"] = self.fields(new["fields"])
        if new["type"] in ("record", "enum") and self.rng.random() < 0.2:
            new["aliases"], new["name"] = [new["name"]], self.name("N")
        return new

    def fields(self, old):
        out = []
        for field in old:
            if self.rng.random() < 0.1:
                continue
            new = {"name": field["name"], "type": self.later(field["type"])}
            if self.rng.random() < 0.2:
                new = {**new, "aliases": [new["name"]], "name": self.name("g")}
            if self.rng.random() < 0.1:
                kind = field["type"] if isinstance(field["type"], str) else "int"
                out.append({"name": self.name("h"), "type": kind, "aliases": [field["name"]]})
            out.append(new)
        if self.rng.random() < 0.3:
            out.append({"name": self.name("n"), "type": "double", "default": 1.5})
        if self.rng.random() < 0.2:
            out.append({"name": self.name("n"), "type": ["null", "int"], "default": None})
        self.rng.shuffle(out)
        return out

    def value(self, kind):
        if isinstance(kind, list):
            return self.value(self.rng.choice(kind))
        if isinstance(kind, str):
            return {
                "int": self.rng.choice([0, -1, 7, 2**31 - 1]),
                "long": self.rng.choice([0, -1, 7, 2**62 + 1]),
                "float": float(np.float32(self.rng.random())),
                "double": self.rng.random(),
                "boolean": self.rng.random() < 0.5,
                "string": "s",
            }.get(kind)
        if kind["type"] == "enum":
            return self.rng.choice(kind["symbols"])
        if kind["type"] == "fixed":
            return b"xyz"
        if kind["type"] == "array":
            return [self.value(kind["items"]) for _ in range(2)]
        return {f["name"]: self.value(f["type"]) for f in kind["fields"]}


def test_both_decoders_resolve_every_value_alike():
    rng = random.Random("pairs")
    good = bad = 0
    for _ in range(PAIRS):
        maker = Maker(rng)
        raw = maker.record(2)
        later = {**raw, "fields": maker.fields(raw["fields"])}
        stream, ends = io.BytesIO(), [0]
        parsed = fastavro.parse_schema(copy.deepcopy(raw))
        for _row in range(4):
            fastavro.schemaless_writer(stream, parsed, maker.value(raw))
            ends.append(stream.tell())
        writer, reader = schemas.parse(raw), schemas.parse(later)
        try:
            lengths = {".".join(leaf.steps): 2 for leaf in leaves(reader) if leaf.depth}
            plan = make_plan(reader, AvroOptions(sequence_per="file"), lengths)
        except ChunkstoreError:  # nothing is left to store
            continue
        blocks = np.frombuffer(stream.getvalue(), np.uint8), np.array(ends[:-1]), np.array(ends[1:])
        fast, slow = (
            decoder(writer, reader, plan).decode(*blocks, np.ones(4, np.int64))
            for decoder in (KernelDecoder, FastavroDecoder)
        )
        fine = fast.status == 0
        assert fine.tolist() == (slow.status == 0).tolist(), (raw, later)
        for name, column in fast.columns.items():
            assert np.array_equal(
                column[fine], slow.columns[name][fine], equal_nan=column.dtype.kind == "f"
            ), (name, raw, later)
        good, bad = good + int(fine.sum()), bad + int((~fine).sum())
    assert good > PAIRS
    assert bad

"""Random schemas and records, written by fastavro: kernel, fallback and fastavro's own records agree."""

from __future__ import annotations

import io
import os

import fastavro
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("CHUNKSTORE_EXAMPLES", "100"))
CODECS = ("null", "deflate", "snappy", "zstandard", "bzip2", "xz")
INTS = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-100, 100)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1) | INTS
DOUBLES = st.floats(allow_nan=True)
FLOATS = st.floats(width=32)


class Maker:
    """Draws a schema and a strategy for its values; names are unique, records may refer to themselves."""

    def __init__(self, draw):
        self.draw = draw
        self.count = 0

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def type(self, depth, union=True):
        simple = ["null", "boolean", "int", "long", "float", "double", "string", "bytes", "enum", "fixed"]
        nested = ["record", "array", "map", "list"] + (["union", "nullable", "nullable"] if union else [])
        kind = self.draw(st.sampled_from(simple + (nested if depth else [])))
        values = {
            "null": st.none(),
            "boolean": st.booleans(),
            "int": INTS,
            "long": LONGS,
            "float": FLOATS,
            "double": DOUBLES,
            "string": st.text(max_size=12),
            "bytes": st.binary(max_size=12),
        }
        if kind in values:
            return kind, values[kind]
        if kind == "enum":
            symbols = [f"S{i}" for i in range(self.draw(st.integers(1, 5)))]
            return {"type": "enum", "name": self.name("E"), "symbols": symbols}, st.sampled_from(symbols)
        if kind == "fixed":
            size = self.draw(st.integers(0, 9))
            return {"type": "fixed", "name": self.name("F"), "size": size}, st.binary(
                min_size=size, max_size=size
            )
        if kind == "record":
            return self.record(depth - 1)
        if kind == "array":
            schema, items = self.type(depth - 1)
            n = self.draw(st.integers(0, 3))
            size = {"max_size": 4} if self.draw(st.booleans()) else {"min_size": n, "max_size": n}
            return {"type": "array", "items": schema}, st.lists(items, **size)
        if kind == "map":
            schema, items = self.type(depth - 1)
            return {"type": "map", "values": schema}, st.dictionaries(st.text(max_size=4), items, max_size=3)
        if kind == "list":
            name = self.name("L")
            inner, items = self.type(0)
            schema = {
                "type": "record",
                "name": name,
                "fields": [{"name": "v", "type": inner}, {"name": "next", "type": ["null", name]}],
            }
            values = items.map(lambda v: {"v": v, "next": None})
            return schema, st.recursive(
                values, lambda s: st.tuples(items, s).map(lambda p: {"v": p[0], "next": p[1]}), max_leaves=3
            )
        if kind == "nullable":
            schema, items = self.type(depth - 1, union=False)
            if schema == "null":
                return ["null"], st.none()
            order = [schema, "null"] if self.draw(st.booleans()) else ["null", schema]
            return order, st.none() | items
        options = [
            ("null", st.none()),
            ("string", st.text(max_size=5)),
            ("boolean", st.booleans()),
            ("bytes", st.binary(max_size=4)),
        ]
        options += [("long", LONGS)] if self.draw(st.booleans()) else [("double", DOUBLES)]
        if self.draw(st.booleans()):
            options.append(self.record(0))
        chosen = self.draw(st.permutations(options))[: self.draw(st.integers(1, 4))]
        return [c[0] for c in chosen], st.one_of([c[1] for c in chosen])

    def record(self, depth):
        name = self.name("R")
        fields, values = [], {}
        for _ in range(self.draw(st.integers(0, 4))):
            schema, items = self.type(depth)
            own = self.name("f")
            fields.append({"name": own, "type": schema})
            values[own] = items
        return {"type": "record", "name": name, "fields": fields}, st.fixed_dictionaries(values)


@st.composite
def cases(draw):
    maker = Maker(draw)
    schema, values = maker.record(3)
    schema["fields"].insert(draw(st.integers(0, len(schema["fields"]))), {"name": "x", "type": "double"})
    values = st.tuples(values, DOUBLES).map(lambda p: {**p[0], "x": p[1]})
    records = draw(st.lists(values, max_size=12))
    return schema, records, draw(st.sampled_from(CODECS)), draw(st.sampled_from([1, 50, 16000]))


def simple(field, records):
    """Whether the oracle can follow the field's path: not through arrays of records, or unions of kinds."""
    path = field.attrs.get("avro_path", field.name).split(".")
    for record in records:
        value = record
        for step in path:
            if isinstance(value, list):
                return False
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, list) and any(isinstance(v, (dict, list, str)) for v in value):
            return False
        if isinstance(value, dict):
            return False
    return True


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(), data=st.data())
def test_kernel_fallback_and_fastavro_give_the_same_columns(avro, tmp_path_factory, case, data):
    schema, records, codec, interval = case
    path = tmp_path_factory.mktemp("random") / "a.avro"
    path.write_bytes(avro.bytes(schema, records, codec, interval))
    plain = io.BytesIO(avro.bytes(schema, records, "null", interval))
    truth = list(fastavro.reader(plain))
    kernel = avro.read(path, sequence_per="all", decoder="kernel")
    assert not kernel.faults
    assert kernel.rows == len(records)
    slow = avro.read(path, sequence_per="all", decoder="fastavro")
    assert not slow.faults
    avro.same(kernel.columns, slow.columns)
    for field in kernel.scan.fields:
        if not records or not simple(field, truth):
            continue
        values, valid = avro.expected(field, truth)
        got = kernel.columns[field.name]
        assert np.array_equal(got, values, equal_nan=got.dtype.kind == "f"), field
        if field.nullable:
            assert np.array_equal(kernel.columns[f"{field.name}_valid"], valid), field
    names = [f.name for f in kernel.scan.fields]
    some = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    paths = [f.attrs.get("avro_path", f.name) for f in kernel.scan.fields if f.name in some]
    part = avro.read(
        path,
        sequence_per="all",
        fields=paths,
        decoder="kernel",
        vector_lengths={p: n for p, n in kernel.scan.options["vector_lengths"].items() if p in paths},
    )
    for name, values in part.columns.items():
        assert np.array_equal(values, kernel.columns[name], equal_nan=values.dtype.kind == "f")


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(), data=st.data())
def test_keys_and_labels_are_the_values_that_fastavro_reads(avro, tmp_path_factory, case, data):
    schema, records, codec, interval = case
    schema["fields"].append(
        {"name": "k", "type": data.draw(st.sampled_from(["string", "long", ["null", "string"], "boolean"]))}
    )
    kind = schema["fields"][-1]["type"]
    values = {
        "string": st.sampled_from(["a", "b", "a longer key", ""]),
        "long": LONGS,
        "boolean": st.booleans(),
    }
    strategy = values[kind] if isinstance(kind, str) else values["string"] | st.none()
    keys = [data.draw(strategy) for _ in records]
    records = [{**r, "k": k, "same": f"label of {k}"} for r, k in zip(records, keys, strict=True)]
    schema["fields"].append({"name": "same", "type": "string"})
    path = tmp_path_factory.mktemp("random") / "a.avro"
    path.write_bytes(avro.bytes(schema, records, codec, interval))
    for decoder in ("kernel", "fastavro"):
        got = avro.read(path, sequence_key="k", labels="same", fields=["x"], decoder=decoder)
        text = ["null" if k is None else str(k).lower() if isinstance(k, bool) else str(k) for k in keys]
        assert got.sequence == text
        assert got.labels.get("same", {}) == {t: f"label of {k}" for t, k in zip(text, keys, strict=True)}
        assert {f.code for f in got.faults} <= {"avro-null-key"}


@st.composite
def sequences(draw):
    """A record a sequence: arrays of numbers, of records and of arrays, beside what is skipped."""
    maker = Maker(draw)
    before, filler = maker.type(2)
    width = draw(st.integers(1, 4))
    kinds = {"int": INTS, "float": FLOATS, "double": DOUBLES, "long": LONGS}
    a = draw(st.sampled_from(sorted(kinds)))
    b = draw(st.sampled_from(sorted(kinds)))
    schema = {
        "type": "record",
        "name": "Seq",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "before", "type": before},
            {"name": "plain", "type": {"type": "array", "items": a}},
            {
                "name": "steps",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Step",
                        "fields": [
                            {"name": "u", "type": ["null", b]},
                            {"name": "skip", "type": "string"},
                            {"name": "w", "type": a},
                        ],
                    },
                },
            },
            {"name": "frames", "type": {"type": "array", "items": {"type": "array", "items": "float"}}},
            {"name": "channels", "type": {"type": "array", "items": {"type": "array", "items": b}}},
        ],
    }
    records = []
    for i in range(draw(st.integers(1, 6))):
        n = draw(st.integers(0, 5)) if i else draw(st.sampled_from([5, 6]))
        fixed = {"min_size": n, "max_size": n}
        records.append(
            {
                "id": f"s{i}",
                "before": draw(filler),
                "plain": draw(st.lists(kinds[a], **fixed)),
                "steps": draw(
                    st.lists(
                        st.fixed_dictionaries(
                            {"u": st.none() | kinds[b], "skip": st.text(max_size=3), "w": kinds[a]}
                        ),
                        **fixed,
                    )
                ),
                "frames": draw(st.lists(st.lists(FLOATS, min_size=width, max_size=width), **fixed)),
                "channels": [draw(st.lists(kinds[b], **fixed)) for _ in range(width)],
            }
        )
    return schema, records, width, draw(st.sampled_from(CODECS)), draw(st.sampled_from([1, 60, 16000]))


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=sequences())
def test_a_record_is_a_sequence_whose_obs_are_the_items_of_its_arrays(avro, tmp_path_factory, case):
    schema, records, width, codec, interval = case
    path = tmp_path_factory.mktemp("random") / "a.avro"
    path.write_bytes(avro.bytes(schema, records, codec, interval))
    options = {
        "sequence_per": "record",
        "sequence_key": "id",
        "fields": ["plain", "steps", "frames", "channels"],
        "vector_lengths": {"frames": width, "channels": width},
    }
    truth = list(fastavro.reader(io.BytesIO(avro.bytes(schema, records, "null", interval))))
    kernel = avro.read(path, decoder="kernel", **options)
    slow = avro.read(path, decoder="fastavro", **options)
    assert not kernel.faults
    avro.same(kernel.columns, slow.columns)
    lengths = [len(r["plain"]) for r in truth]
    assert kernel.sequence == [r["id"] for r, n in zip(truth, lengths, strict=True) for _ in range(n)]
    assert kernel.keys == [r["id"] for r in truth]
    flat_plain = [v for r in truth for v in r["plain"]]
    got = kernel.columns["plain"]
    assert np.array_equal(got, np.array(flat_plain, got.dtype), equal_nan=got.dtype.kind == "f")
    u = [s["u"] for r in truth for s in r["steps"]]
    got = kernel.columns["steps.u"]
    if got.dtype.kind == "f":
        assert np.array_equal(
            got, np.array([np.nan if v is None else v for v in u], got.dtype), equal_nan=True
        )
    else:
        assert np.array_equal(kernel.columns["steps.u_valid"], np.array([v is not None for v in u], bool))
        assert np.array_equal(got, np.array([v or 0 for v in u], got.dtype))
    frames = np.array([f for r in truth for f in r["frames"]], np.float32).reshape(-1, width)
    assert np.array_equal(kernel.columns["frames"], frames, equal_nan=True)
    if "channels" in kernel.scan.options["inner_obs"]:
        got = kernel.columns["channels"]
        want = [row for r in truth for row in zip(*r["channels"], strict=True)]
        assert np.array_equal(
            got, np.array(want, got.dtype).reshape(-1, width), equal_nan=got.dtype.kind == "f"
        )

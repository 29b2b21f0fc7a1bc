"""The look at the first records: lengths of arrays as fastavro reads them, whatever stands beside."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.sources.avro import peek
from ingest.sources.avro.peek import array_lengths
from ingest.sources.avro.schema import parse

LEAVES = {
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.just(0.5),
    "double": st.just(-1e300),
    "boolean": st.booleans(),
    "string": st.text(max_size=3),
    "bytes": st.binary(max_size=3),
    "null": st.none(),
}


@st.composite
def cases(draw, depth=0, letters=None):
    """A type and a strategy of its values."""
    letters = iter(range(1000)) if letters is None else letters
    kind = draw(
        st.sampled_from([*LEAVES, "enum", "fixed", "nullable", *["array", "record", "map"] * (depth < 3)])
    )
    if kind in LEAVES:
        return kind, LEAVES[kind]
    if kind == "enum":
        return {"type": kind, "name": f"E{next(letters)}", "symbols": ["a", "b"]}, st.sampled_from("ab")
    if kind == "fixed":
        return {"type": kind, "name": f"F{next(letters)}", "size": 2}, st.just(b"xy")
    if kind == "nullable":
        return ["null", "long"], st.none() | LEAVES["long"]
    if kind == "record":
        fields = [draw(cases(depth + 1, letters)) for _ in range(draw(st.integers(0, 3)))]
        schema = {"type": kind, "name": f"R{next(letters)}", "fields": []}
        schema["fields"] = [{"name": f"f{i}", "type": t} for i, (t, _) in enumerate(fields)]
        return schema, st.fixed_dictionaries({f"f{i}": v for i, (_, v) in enumerate(fields)})
    inner, values = draw(cases(depth + 1, letters))
    if kind == "map":
        return {"type": kind, "values": inner}, st.dictionaries(st.text(max_size=2), values, max_size=2)
    return {"type": kind, "items": inner}, st.lists(values, max_size=5)


def found(schema, value, steps, out):
    """Lengths of the arrays in one value, as Python has it."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        for f in schema["fields"]:
            found(f["type"], value[f["name"]], (*steps, f["name"]), out)
    elif kind == "array":
        out.setdefault((*steps, "[]"), set()).add(len(value))
        for item in value:
            found(schema["items"], item, (*steps, "[]"), out)
    return out


@settings(deadline=None, max_examples=300)
@given(cases(), st.data())
def test_lengths_are_those_of_the_arrays(case, data):
    schema, values = case
    records = data.draw(st.lists(values, min_size=1, max_size=4))
    stream = io.BytesIO()
    want = {}
    for record in records:
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
        found(schema, record, (), want)
    block, node = stream.getvalue(), parse(json.dumps(schema))
    assert array_lengths(node, block, len(records)) == want
    cut = data.draw(st.integers(0, len(block)))
    for steps, sizes in array_lengths(node, block[:cut], len(records)).items():
        assert sizes <= want[steps]  # what was seen before the end


@pytest.mark.parametrize("kind", ["float", "int", "boolean", "null"])
def test_long_arrays_are_stepped_over_as_a_whole(avro, monkeypatch, kind):
    monkeypatch.setattr(peek, "_MAX_STEPS", 10)
    monkeypatch.setattr(peek, "_WINDOW", 1000)
    item = {"float": bytes(4), "int": b"\x80\x01", "boolean": b"\1", "null": b""}[kind]
    n = 100_000
    fields = [{"name": "x", "type": {"type": "array", "items": kind}}, {"name": "v", "type": "int"}]
    node = parse({"type": "record", "name": "R", "fields": fields})
    block = avro.zigzag(n) + item * n + avro.zigzag(-3) + avro.zigzag(3 * len(item)) + item * 3 + b"\0\2"
    assert array_lengths(node, block, 1) == {("x", "[]"): {n + 3}}
    assert array_lengths(node, block[: n // 2] if item else block[:-3], 1) == {}


def test_a_few_bytes_that_claim_much_cost_little(avro, monkeypatch):
    monkeypatch.setattr(peek, "_MAX_STEPS", 2000)
    node = parse({"type": "array", "items": {"type": "array", "items": "null"}})
    inner = avro.zigzag(1 << 40) + b"\0"
    assert array_lengths(node, avro.zigzag(1000) + inner * 1000 + b"\0", 1) == {
        ("[]", "[]"): {1 << 40},
        ("[]",): {1000},
    }
    assert ("[]",) not in array_lengths(node, avro.zigzag(3000) + inner * 3000 + b"\0", 1)

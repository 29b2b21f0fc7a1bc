"""Schemas as trees: names, logical types that fit or are dropped, what is refused."""

from __future__ import annotations

import json

import pytest

from ingest.sources.avro.columns import leaves
from ingest.sources.avro.schema import SchemaError, parse, to_json


def test_names_are_found_in_their_namespace_then_without_one():
    node = parse(
        {
            "type": "record",
            "name": "a.b.Outer",
            "fields": [
                {"name": "one", "type": {"type": "fixed", "name": "Inner", "size": 3}},
                {"name": "two", "type": "Inner"},
                {"name": "three", "type": "a.b.Inner"},
                {
                    "name": "four",
                    "type": {
                        "type": "record",
                        "name": "R",
                        "namespace": "",
                        "fields": [{"name": "x", "type": "int"}],
                    },
                },
            ],
        }
    )
    one, two, three, four = (f.node for f in node.fields)
    assert one is two is three
    assert (one.name, four.name, four.short) == ("a.b.Inner", "R", "R")


@pytest.mark.parametrize(
    ("schema", "logical"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp-millis"),
        ({"type": "int", "logicalType": "timestamp-millis"}, None),
        ({"type": "string", "logicalType": "date"}, None),
        ({"type": "long", "logicalType": "no-such-type"}, None),
        ({"type": "long", "logicalType": 7}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, "decimal"),
        ({"type": "bytes", "logicalType": "decimal", "precision": "4"}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, None),
        ({"type": "bytes", "logicalType": "decimal"}, None),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4}, "decimal"),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5}, None),
        ({"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"}, "duration"),
        ({"type": "fixed", "name": "F", "size": 11, "logicalType": "duration"}, None),
        ({"type": {"type": "long"}, "logicalType": "timestamp-micros"}, "timestamp-micros"),
    ],
)
def test_a_logical_type_that_does_not_fit_falls_back_to_its_base(schema, logical):
    assert parse(schema).logical == logical


@pytest.mark.parametrize(
    "schema",
    [
        "nonsense",
        "[]",
        "{}",
        "{",
        "7",
        "null",
        '{"type": "record", "name": "R"}',
        '{"type": "record", "fields": []}',
        '{"type": "record", "name": "R", "fields": [{"name": "a"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type": "enum", "name": "E"}',
        '{"type": "enum", "name": "E", "symbols": [1]}',
        '{"type": "fixed", "name": "F", "size": -1}',
        '{"type": "fixed", "name": "F", "size": true}',
        '{"type": "array"}',
        '[["int"]]',
        b"\xff\xfe",
        "[" * 200_000,
        '{"type":"array","items":' * 2000 + '"int"' + "}" * 2000,
    ],
    ids=range(19),
)
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(SchemaError):
        parse(schema)


def test_a_schema_written_out_reads_back_the_same():
    raw = {
        "type": "record",
        "name": "n.R",
        "aliases": ["Old"],
        "fields": [
            {
                "name": "e",
                "type": {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
                "default": "A",
            },
            {"name": "again", "type": ["null", "n.R"], "default": None, "aliases": ["before"]},
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1}},
            {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "E"}}},
        ],
    }
    once = to_json(parse(raw))
    assert to_json(parse(json.dumps(once))) == once


def test_fewest_bytes_are_counted():
    def least(schema):
        return parse(json.dumps(schema)).least()

    assert [least(k) for k in ("null", "boolean", "int", "float", "double", "string")] == [0, 1, 1, 4, 8, 1]
    assert least(["null", "double"]) == 1
    empty = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "n", "type": "null"},
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 0}},
        ],
    }
    assert least(empty) == 0
    assert least({"type": "array", "items": empty}) == 1
    assert (
        least(
            {
                "type": "record",
                "name": "L",
                "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "L"]}],
            }
        )
        == 2
    )
    assert least({"type": "record", "name": "Endless", "fields": [{"name": "e", "type": "Endless"}]}) >= 1


def test_recursion_ends_a_path_with_its_reason():
    node = parse(
        {
            "type": "record",
            "name": "L",
            "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "L"]}],
        }
    )
    found = {leaf.path: leaf.reason for leaf in leaves(node)}
    assert found["v"] == ""
    assert "recursive" in found["next"]


def test_nulls_are_known_by_the_number_of_arrays_above():
    node = parse({"type": "array", "items": ["null", {"type": "array", "items": ["double", "null"]}]})
    (leaf,) = leaves(node)
    assert leaf.nulls == (False, True, True)


def test_a_type_may_be_repeated_but_not_be_two_things():
    own = {"type": "record", "name": "I", "fields": [{"name": "v", "type": "int"}]}
    other = {"type": "record", "name": "I", "fields": [{"name": "w", "type": "double"}]}

    def both(first, second):
        fields = [{"name": "a", "type": first}, {"name": "b", "type": second}]
        return parse({"type": "record", "name": "R", "fields": fields})

    same = both(own, {**own, "doc": "again"})
    assert same.fields[0].node is same.fields[1].node
    with pytest.raises(SchemaError, match="'I' is defined twice"):
        both(own, other)


def test_an_enum_with_a_symbol_twice_is_no_schema():
    with pytest.raises(SchemaError, match="a symbol twice"):
        parse({"type": "enum", "name": "E", "symbols": ["A", "B", "A"]})

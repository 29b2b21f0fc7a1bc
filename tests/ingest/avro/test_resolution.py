"""Reading one schema as another: promotions, defaults, aliases, unions, enums, as specified."""

from __future__ import annotations

import io
import json

import fastavro
import numpy as np
import pytest

from chunkstore.errors import InputError
from ingest.sources.avro import schema as schemas
from ingest.sources.avro.columns import make_plan
from ingest.sources.avro.drift import merge
from ingest.sources.avro.options import AvroOptions


def rec(*fields, name="R", **more):
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": n, "type": t, **m} for n, t, m in fields],
        **more,
    }


def one(kind, **more):
    return rec(("x", kind, more), ("end", "int", {}))


def read_as(avro, tmp_path, writer, values, reader, decoder, **options):
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(writer, [{"x": v, "end": 7} for v in values]))
    return avro.read(path, sequence_per="file", reader_schema=reader, decoder=decoder, **options)


E_AB = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
E_BA = {"type": "enum", "name": "E", "symbols": ["B", "A"]}
E_A = {"type": "enum", "name": "E", "symbols": ["A"]}
E_DEFAULT = {"type": "enum", "name": "E", "symbols": ["A", "Z"], "default": "Z"}
F4 = {"type": "fixed", "name": "F", "size": 4}
NAN = float("nan")

GOOD = [
    ("int to long", "int", [1, -5], "long", [1, -5], None),
    ("int to float", "int", [1, 1 << 24], "float", [1.0, float(1 << 24)], None),
    ("int to double", "int", [1], "double", [1.0], None),
    ("long to float", "long", [1 << 40], "float", [float(1 << 40)], None),
    ("long to double", "long", [(1 << 53) + 1], "double", [float((1 << 53) + 1)], None),
    ("float to double", "float", [0.1], "double", [float(np.float32(0.1))], None),
    ("plain to nullable", "int", [3], ["null", "int"], [3], [True]),
    ("plain to nullable wider", "int", [3], ["null", "double"], [3.0], None),
    ("nullable to plain", ["null", "int"], [3], "int", [3], None),
    ("branches in another order", ["null", "long"], [None, 3], ["long", "null"], [0, 3], [False, True]),
    ("one branch of several", ["null", "string", "long"], [5], "long", [5], None),
    ("enum by symbols", E_AB, ["A", "B"], E_BA, [1, 0], None),
    ("enum default", E_AB, ["A", "B"], E_DEFAULT, [0, 1], None),
    ("fixed", F4, [b"1234"], F4, [[49, 50, 51, 52]], None),
    ("a union of integers", ["int", "long"], [1, 1 << 40], ["int", "long"], [1, 1 << 40], None),
    (
        "a union of floats",
        ["null", "float", "double"],
        [0.5, None],
        ["null", "float", "double"],
        [0.5, NAN],
        None,
    ),
]


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
@pytest.mark.parametrize(
    ("writer", "values", "reader", "want", "valid"), [g[1:] for g in GOOD], ids=[g[0] for g in GOOD]
)
def test_a_value_is_resolved(avro, tmp_path, writer, values, reader, want, valid, decoder):
    got = read_as(avro, tmp_path, one(writer), values, one(reader), decoder)
    assert not got.faults
    assert np.array_equal(
        got.columns["x"], np.array(want, got.columns["x"].dtype), equal_nan=got.columns["x"].dtype.kind == "f"
    )
    assert got.columns["end"].tolist() == [7] * len(values)
    if valid is not None:
        assert got.columns["x_valid"].tolist() == valid


BAD = [
    ("a double is no int", "double", [1.0], "int"),
    ("a null is no int", ["null", "int"], [None], "int"),
    ("a symbol that the reader lacks", E_AB, ["B"], E_A),
    ("another branch than is wanted", ["string", "long"], ["s"], "long"),
    ("a fixed of another size", F4, [b"1234"], {"type": "fixed", "name": "F", "size": 5}),
    ("an enum of another name", E_AB, ["A"], {**E_AB, "name": "Other"}),
    (
        "digits are no decimal's bytes",
        "string",
        ["12"],
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    ),
]


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
@pytest.mark.parametrize(("writer", "values", "reader"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_what_does_not_resolve_is_a_fault(avro, tmp_path, writer, values, reader, decoder):
    got = read_as(avro, tmp_path, one(writer), values, one(reader), decoder)
    assert got.lost == [(0, len(values))]
    assert got.faults[0].code in ("avro-resolution", "avro-enum")


DEFAULTS = [
    ("int", 5, 5, None),
    ("double", 1.5, 1.5, None),
    (["null", "int"], None, 0, False),
    (["int", "null"], 5, 5, True),
    (E_AB, "B", 1, None),
    ({"type": "array", "items": "float"}, [1.0, 2.0], [1.0, 2.0], None),
    (F4, "\u0001\u0002\u00ff\u0000", [1, 2, 255, 0], None),
    ("boolean", True, True, None),
]


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
@pytest.mark.parametrize(
    ("kind", "default", "want", "valid"), DEFAULTS, ids=[str(d[0])[:30] for d in DEFAULTS]
)
def test_a_field_that_the_writer_lacks_has_its_default(avro, tmp_path, kind, default, want, valid, decoder):
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(rec(("end", "int", {})), [{"end": 7}] * 3))
    reader = rec(("d", kind, {"default": default}), ("end", "int", {}))
    got = avro.read(
        path,
        sequence_per="file",
        reader_schema=reader,
        decoder=decoder,
        vector_lengths={"d": 2} if isinstance(want, list) and len(want) == 2 else {},
    )
    assert not got.faults
    assert got.columns["d"].tolist() == [want] * 3
    if valid is not None:
        assert got.columns["d_valid"].tolist() == [valid] * 3


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
def test_a_key_that_the_writer_lacks_has_its_default(avro, tmp_path, decoder):
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(rec(("x", "int", {})), [{"x": 7}] * 3))
    reader = rec(("k", "string", {"default": "somewhere"}), ("x", "int", {}))
    got = avro.read(path, sequence_key="k", reader_schema=reader, decoder=decoder)
    assert got.sequence == ["somewhere"] * 3


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
def test_aliases_of_fields_and_records_are_honoured(avro, tmp_path, decoder):
    writer = rec(("old", "int", {}), ("deep", rec(("v", "double", {}), name="OldName"), {}))
    reader = rec(
        ("new", "long", {"aliases": ["old"]}),
        ("deep", rec(("v", "double", {}), name="NewName", aliases=["OldName"]), {}),
    )
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(writer, [{"old": i, "deep": {"v": i / 2}} for i in range(4)]))
    got = avro.read(path, sequence_per="file", reader_schema=reader, decoder=decoder)
    assert not got.faults
    assert got.columns["new"].tolist() == [0, 1, 2, 3]
    assert got.columns["deep.v"].tolist() == [0.0, 0.5, 1.0, 1.5]


def test_another_unit_of_time_is_never_taken_for_the_readers(avro, tmp_path):
    millis = one({"type": "long", "logicalType": "timestamp-millis"})
    micros = one({"type": "long", "logicalType": "timestamp-micros"})
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(one("long"), [{"x": 5, "end": 7}]).replace(b'"long"', b'"long"'))
    a, b = schemas.parse(json.dumps(millis)), schemas.parse(json.dumps(micros))
    with pytest.raises(InputError, match="timestamp-millis in one file and timestamp-micros in another"):
        merge(a, b)


def kinds_of(node):
    return [b.kind for b in node.branches] if node.kind == "union" else node.kind


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ("int", "long", "long"),
        ("int", "double", "double"),
        ("int", "float", "double"),
        ("float", "double", "double"),
        ("int", ["null", "int"], ["null", "int"]),
        (["null", "int"], "long", ["null", "long"]),
        ("null", "int", ["null", "int"]),
        ("string", "bytes", "string"),
        (["null", "string"], ["null", "string", "long"], ["null", "string", "long"]),
    ],
)
def test_a_union_of_schemas_holds_both(a, b, want):
    both = merge(schemas.parse(json.dumps(a)), schemas.parse(json.dumps(b)))
    assert kinds_of(both) == want


@pytest.mark.parametrize(
    ("a", "b"),
    [("long", "double"), ("long", "float"), ("int", "string"), ("boolean", "int"), (F4, {**F4, "size": 5})],
)
def test_types_that_nothing_holds_without_loss_are_an_error(a, b):
    with pytest.raises(InputError, match="no type holds both without loss"):
        merge(schemas.parse(json.dumps(a)), schemas.parse(json.dumps(b)))


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
def test_files_of_different_schemas_are_read_as_their_union(avro, tmp_path, decoder):
    first = rec(
        ("key", "string", {}),
        ("x", "int", {}),
        ("e", E_AB, {}),
        ("deep", rec(("u", "float", {}), name="D"), {}),
    )
    second = rec(
        ("late", "long", {}),
        ("x", "double", {}),
        ("e", {"type": "enum", "name": "E", "symbols": ["C", "B"]}, {}),
        ("key", "string", {}),
        ("deep", rec(("w", "int", {}), ("u", "double", {}), name="D"), {}),
    )
    (tmp_path / "a.avro").write_bytes(avro.bytes(first, [{"key": "k", "x": 1, "e": "B", "deep": {"u": 0.5}}]))
    (tmp_path / "b.avro").write_bytes(
        avro.bytes(second, [{"late": 9, "key": "k", "x": 0.25, "e": "C", "deep": {"w": 3, "u": 1.5}}])
    )
    got = avro.read(
        [tmp_path / "a.avro", tmp_path / "b.avro"], sequence_key="key", on_drift="union", decoder=decoder
    )
    assert not got.faults
    assert got.columns["x"].tolist() == [1.0, 0.25]
    assert got.columns["late"].tolist() == [0, 9]
    assert got.columns["late_valid"].tolist() == [False, True]
    words = next(f for f in got.scan.fields if f.name == "e").categories
    assert [words[c] for c in got.columns["e"]] == ["B", "C"]
    assert got.columns["deep.u"].tolist() == [0.5, 1.5]
    assert got.columns["deep.w_valid"].tolist() == [False, True]


def test_a_file_without_the_arrays_of_the_others_has_nulls(avro, tmp_path):
    first = rec(
        ("id", "string", {}),
        ("a", {"type": "array", "items": "int"}, {}),
        ("b", {"type": "array", "items": "double"}, {}),
    )
    second = rec(("id", "string", {}), ("a", {"type": "array", "items": "int"}, {}))
    (tmp_path / "a.avro").write_bytes(avro.bytes(first, [{"id": "p", "a": [1, 2], "b": [0.5, 1.5]}]))
    (tmp_path / "b.avro").write_bytes(avro.bytes(second, [{"id": "q", "a": [3, 4, 5]}]))
    got = avro.read(
        [tmp_path / "a.avro", tmp_path / "b.avro"],
        sequence_per="record",
        sequence_key="id",
        on_drift="union",
        decoder="kernel",
    )
    assert got.sequence == ["p", "p", "q", "q", "q"]
    assert got.columns["a"].tolist() == [1, 2, 3, 4, 5]
    assert np.array_equal(got.columns["b"], [0.5, 1.5, NAN, NAN, NAN], equal_nan=True)


def test_arrays_of_one_record_that_differ_in_length_are_a_fault(avro, tmp_path):
    first = rec(("a", {"type": "array", "items": "int"}, {}), ("b", {"type": "array", "items": "int"}, {}))
    (tmp_path / "a.avro").write_bytes(
        avro.bytes(first, [{"a": [1, 2], "b": [1, 2]}, {"a": [1], "b": []}], sync_interval=1)
    )
    for decoder in ("kernel", "fastavro"):
        got = avro.read(tmp_path / "a.avro", sequence_per="record", decoder=decoder)
        assert got.rows == 2
        assert [(f.code, f.rows) for f in got.faults] == [("avro-array-lengths", 1)]


def test_decimals_are_unscaled_integers(avro, tmp_path):
    fixed = {"type": "fixed", "name": "D", "size": 12, "logicalType": "decimal", "precision": 18, "scale": 4}
    writer = rec(
        ("a", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, {}),
        ("b", fixed, {}),
        ("big", {"type": "bytes", "logicalType": "decimal", "precision": 40}, {}),
    )
    numbers = [0, 1, -1, 127, 128, -128, -129, 10**17, -(10**17)]
    plain = rec(
        ("a", "bytes", {}), ("b", {"type": "fixed", "name": "D", "size": 12}, {}), ("big", "bytes", {})
    )

    def shortest(n):
        return n.to_bytes((n + (n < 0)).bit_length() // 8 + 1, "big", signed=True)

    data = avro.bytes(
        plain,
        [{"a": shortest(n), "b": n.to_bytes(12, "big", signed=True), "big": b""} for n in numbers],
        sync_interval=16_000,
    )
    path = tmp_path / "a.avro"
    import io

    import fastavro

    block = next(iter(fastavro.block_reader(io.BytesIO(data))))
    path.write_bytes(avro.container(json.dumps(writer), [(len(numbers), block.bytes_.getvalue())]))
    for decoder in ("kernel", "fastavro"):
        got = avro.read(path, sequence_per="file", decoder=decoder)
        assert got.columns["a"].tolist() == got.columns["b"].tolist() == numbers
        assert [f.scale_factor for f in got.scan.fields] == [0.01, 0.0001]
        assert "40 digits does not fit" in got.scan.attrs["avro_fields_left"]["big"]


def test_a_decimal_that_does_not_fit_is_a_fault(avro, tmp_path):
    writer = rec(("a", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, {}))
    path = tmp_path / "a.avro"
    body = (1 << 64).to_bytes(9, "big")
    path.write_bytes(avro.container(json.dumps(writer), [(1, avro.zigzag(9) + body)]))
    for decoder in ("kernel", "fastavro"):
        got = avro.read(path, sequence_per="file", decoder=decoder)
        assert [f.code for f in got.faults] == ["avro-decimal"]


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
def test_a_default_that_does_not_fit_is_said_and_null_is_taken(avro, tmp_path, decoder):
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(rec(("end", "int", {})), [{"end": 7}] * 3))
    reader = rec(("d", ["null", "int"], {"default": "null"}), ("end", "int", {"default": "seven"}))
    got = avro.read(path, sequence_per="file", reader_schema=reader, decoder=decoder)
    assert [(f.code, f.action) for f in got.faults] == [("avro-default", "kept")] * 2
    assert got.columns["d_valid"].tolist() == [False] * 3
    assert got.columns["end"].tolist() == [7] * 3


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
        ),
        ({"type": "int", "logicalType": "time-millis"}, {"type": "long", "logicalType": "time-micros"}),
        (
            ["null", {"type": "int", "logicalType": "date"}],
            {"type": "long", "logicalType": "timestamp-millis"},
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
        ),
    ],
)
def test_numbers_of_another_unit_or_scale_are_never_taken(avro, tmp_path, decoder, writer, reader):
    plain = [b"\x05"] if "decimal" in str(writer) else [5]
    base = (
        "bytes"
        if "decimal" in str(writer)
        else ["null", "int"]
        if isinstance(writer, list)
        else writer["type"]
    )
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(json.dumps(one(writer)), [(1, _body(base, plain[0]))]))
    got = avro.read(path, sequence_per="file", reader_schema=one(reader), decoder=decoder)
    assert [f.code for f in got.faults] == ["avro-resolution"]
    aside = avro.read(path, sequence_per="file", reader_schema=one(reader), decoder=decoder, fields="end")
    assert aside.columns["end"].tolist() == [7]


def _body(base, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, one(base), {"x": value, "end": 7})
    return stream.getvalue()


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
def test_a_default_that_leaves_out_inner_fields_takes_their_own(avro, tmp_path, decoder):
    inner = rec(
        ("a", "int", {}), ("b", ["null", "double"], {"default": None}), ("c", "double", {"default": "NaN"})
    )
    inner["fields"].append({"name": "d", "type": "long", "default": 9})
    inner["name"] = "Inner"
    reader = rec(("end", "int", {}), ("r", inner, {"default": {"a": 3}}))
    got = read_as(avro, tmp_path, one("int"), [1, 2], reader, decoder)
    assert not got.faults
    assert got.columns["r.a"].tolist() == [3, 3]
    assert np.isnan(got.columns["r.b"]).all()
    assert np.isnan(got.columns["r.c"]).all()
    assert got.columns["r.d"].tolist() == [9, 9]


def two(avro, tmp_path, *kinds):
    """Files with one record each, whose field x has these types; 1 or "1" in it."""
    paths = []
    for i, (kind, value) in enumerate(kinds):
        paths.append(tmp_path / f"{i}.avro")
        paths[-1].write_bytes(avro.bytes(one(kind), [{"x": value, "end": i}]))
    return paths


@pytest.mark.parametrize(
    "options", [{"fields": "end"}, {"exclude": "x"}, {"exclude": "x", "on_drift": "union"}]
)
@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
def test_types_that_nothing_holds_do_not_matter_where_nobody_asks(avro, tmp_path, options, decoder):
    paths = two(avro, tmp_path, ("long", 1), ("string", "1"), (["null", "double"], None))
    got = avro.read(paths, sequence_per="all", decoder=decoder, **options)
    assert not got.faults
    assert got.columns["end"].tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="no type holds both"):
        avro.read(paths, sequence_per="all", on_drift="union")


def test_a_field_asked_for_inside_a_record_is_never_given_up(avro, tmp_path):
    paths = []
    for i, kind in enumerate(["long", "string"]):
        inner = {
            "type": "record",
            "name": "I",
            "fields": [{"name": "a", "type": kind}, {"name": "b", "type": "int"}],
        }
        paths.append(tmp_path / f"{i}.avro")
        paths[-1].write_bytes(avro.bytes(one(inner), [{"x": {"a": 1 if i == 0 else "1", "b": i}, "end": i}]))
    got = avro.read(paths, sequence_per="all", fields="x.b")
    assert got.columns["x.b"].tolist() == [0, 1]
    with pytest.raises(InputError, match=r"x\.a"):
        avro.read(paths, sequence_per="all", fields="x.a,x.b")


def test_text_of_a_certain_form_and_text_are_text(avro, tmp_path):
    uuid = {"type": "string", "logicalType": "uuid"}
    word = "7d4dd7bb-6b7b-4b0f-9f7d-2cbb3a2a2a11"
    paths = two(avro, tmp_path, (uuid, word), ("string", "z"))
    got = avro.read(paths, sequence_key="x", on_drift="union")
    assert got.sequence == [word, "z"]


BOTH = pytest.mark.parametrize("decoder", ["kernel", "fastavro"])


@BOTH
@pytest.mark.parametrize("names", [("a", "b"), ("x", "b")], ids=["two aliases", "a name and an alias"])
def test_two_fields_of_the_reader_may_take_one_field_of_the_writer(avro, tmp_path, names, decoder):
    reader = rec((names[0], "int", {"aliases": ["x"]}), (names[1], "double", {"aliases": ["x"]}))
    got = read_as(avro, tmp_path, one("int"), [5, -6], reader, decoder)
    assert not got.faults
    assert got.columns[names[0]].tolist() == [5, -6]
    assert got.columns[names[1]].tolist() == [5.0, -6.0]


@BOTH
@pytest.mark.parametrize("alias", ["Old", "q.Old"])
def test_a_type_goes_by_its_alias_with_and_without_its_namespace(avro, tmp_path, alias, decoder):
    writer = rec(("x", rec(("v", "int", {}), name="Old"), {}), ("end", "int", {}), name="W")
    reader = rec(
        ("x", rec(("v", "long", {}), name="q.New", aliases=[alias]), {}), ("end", "int", {}), aliases=["W"]
    )
    got = read_as(avro, tmp_path, writer, [{"v": 5}], reader, decoder)
    assert not got.faults
    assert got.columns["x.v"].tolist() == [5]


@BOTH
def test_a_type_without_a_namespace_is_found_from_within_one(avro, tmp_path, decoder):
    inner = {**rec(("v", "int", {}), name="Inner"), "namespace": ""}
    schema = rec(("i", inner, {}), ("j", "Inner", {}), name="Outer", namespace="n")
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(json.dumps(schema), [(1, avro.zigzag(3) + avro.zigzag(4))]))
    got = avro.read(path, sequence_per="file", decoder=decoder)
    assert (got.columns["i.v"].tolist(), got.columns["j.v"].tolist()) == ([3], [4])


@BOTH
def test_a_long_becomes_a_float_in_one_rounding(avro, tmp_path, decoder):
    # just above the middle between two floats: by way of a double it would be the middle, and go down
    value = (1 << 60) + (1 << 36) + 1
    got = read_as(avro, tmp_path, one("long"), [value], one("float"), decoder)
    assert int(got.columns["x"][0]) == (1 << 60) + (1 << 37)


@BOTH
def test_an_array_that_no_file_has_is_as_long_as_its_default(avro, tmp_path, decoder):
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(rec(("end", "int", {})), [{"end": 7}] * 2))
    reader = rec(("d", {"type": "array", "items": "int"}, {"default": [1, 2, 3]}), ("end", "int", {}))
    got = avro.read(path, sequence_per="file", reader_schema=reader, decoder=decoder)
    assert got.columns["d"].tolist() == [[1, 2, 3]] * 2


@BOTH
@pytest.mark.parametrize("reverse", [False, True])
def test_types_of_one_name_may_differ_once_schemas_are_united(avro, tmp_path, decoder, reverse):
    own = rec(("v", "int", {}), name="I")
    other = rec(("v", "int", {}), ("w", "double", {}), name="K")
    first, second = rec(("j", own, {}), ("i", "I", {})), rec(("j", own, {}), ("i", other, {}))
    (tmp_path / "a.avro").write_bytes(avro.bytes(first, [{"j": {"v": 1}, "i": {"v": 2}}]))
    (tmp_path / "b.avro").write_bytes(avro.bytes(second, [{"j": {"v": 3}, "i": {"v": 4, "w": 0.5}}]))
    paths = [tmp_path / "a.avro", tmp_path / "b.avro"][:: -1 if reverse else 1]
    got = avro.read(paths, sequence_per="file", on_drift="union", decoder=decoder)
    assert not got.faults
    order = slice(None, None, -1 if reverse else 1)
    assert got.columns["j.v"].tolist() == [1, 3][order]
    assert got.columns["i.v"].tolist() == [2, 4][order]
    assert np.array_equal(got.columns["i.w"], [NAN, 0.5][order], equal_nan=True)


@BOTH
@pytest.mark.parametrize("default", ["absent", []])
def test_integers_of_an_array_that_a_file_lacks_are_nulls_and_not_zeros(avro, tmp_path, decoder, default):
    array = {"type": "array", "items": "int"}
    (tmp_path / "a.avro").write_bytes(
        avro.bytes(rec(("a", array, {}), ("b", array, {})), [{"a": [1, 2], "b": [3, 4]}])
    )
    (tmp_path / "b.avro").write_bytes(avro.bytes(rec(("a", array, {})), [{"a": [5]}]))
    rule = (
        {"on_drift": "union"}
        if default == "absent"
        else {"reader_schema": rec(("a", array, {}), ("b", array, {"default": default}))}
    )
    paths = [tmp_path / "a.avro", tmp_path / "b.avro"]
    got = avro.read(paths, sequence_per="record", decoder=decoder, **rule)
    assert not got.faults
    assert got.columns["a"].tolist() == [1, 2, 5]
    assert got.columns["b"].tolist() == [3, 4, 0]
    assert got.columns["b_valid"].tolist() == [True, True, False]


@BOTH
def test_records_whose_name_was_left_empty_are_read_and_united(avro, tmp_path, decoder):
    # as one data frame library writes them: "" for the table, and for each structure in it
    inner, other = (rec((n, "long", {}), name="") for n in "pq")
    first = rec(("a", inner, {}), ("b", ["null", other], {}), ("x", "int", {}), name="")
    z = avro.zigzag
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(json.dumps(first), [(2, z(1) + z(1) + z(2) + z(3) + z(4) + z(0) + z(5))]))
    got = avro.read(path, sequence_per="file", decoder=decoder)
    assert not got.faults
    assert got.columns["a.p"].tolist() == [1, 4]
    assert (got.columns["b.q"].tolist(), got.columns["b.q_valid"].tolist()) == ([2, 0], [True, False])
    assert got.columns["x"].tolist() == [3, 5]
    named = rec(("a", rec(("p", "long", {}), name="In"), {}), ("x", "long", {}), name="Out")
    (tmp_path / "b.avro").write_bytes(avro.bytes(named, [{"a": {"p": 7}, "x": 8}]))
    both = avro.read([path, tmp_path / "b.avro"], sequence_per="file", on_drift="union", decoder=decoder)
    assert not both.faults
    assert both.columns["a.p"].tolist() == [1, 4, 7]
    assert both.columns["x"].tolist() == [3, 5, 8]


@BOTH
def test_each_of_two_fields_that_take_one_has_its_own_type(avro, tmp_path, decoder):
    # the first is an int for the reader, which a long or a null of the writer's never is
    reader = rec(("h", "int", {"aliases": ["x"]}), ("x", ["null", "long"], {}))
    got = read_as(avro, tmp_path, one(["null", "long"]), [None, 5], reader, decoder)
    assert got.lost == [(0, 2)]
    assert [f.code for f in got.faults] == ["avro-resolution"]


@BOTH
def test_a_record_may_be_read_twice_and_what_is_in_it_too(avro, tmp_path, decoder):
    def inner(first, second, name):
        kind = rec((first, "long", {"aliases": ["v"]}), (second, "double", {"aliases": ["v"]}), name=name)
        return {**kind, "aliases": ["I"]}

    writer = rec(("x", {"type": "array", "items": rec(("v", "int", {}), name="I")}, {}), ("end", "int", {}))
    reader = rec(
        ("p", {"type": "array", "items": inner("a", "b", "J")}, {"aliases": ["x"]}),
        ("q", {"type": "array", "items": inner("c", "d", "K")}, {"aliases": ["x"]}),
        ("end", "int", {}),
    )
    lengths = {f"{p}": 2 for p in ("p.a", "p.b", "q.c", "q.d")}
    values = [[{"v": 1}, {"v": 2}], [{"v": 3}, {"v": 4}]]
    got = read_as(avro, tmp_path, writer, values, reader, decoder, vector_lengths=lengths)
    assert not got.faults
    for name in lengths:
        assert got.columns[name].tolist() == [[1, 2], [3, 4]]
    assert got.columns["end"].tolist() == [7, 7]


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        pytest.param("double", 10**308, 10**309, id="double"),  # of 1.8e308 at most
        ("float", 3.4e38, -3.5e38),  # the largest float is 3.40282347e38
        ({"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}, "\x7f" * 8, "\x01" * 9),
    ],
)
def test_a_default_that_its_type_cannot_hold_is_none(avro, tmp_path, kind, good, bad, decoder):
    def read(default):
        reader = rec(("x", "int", {}), ("end", "int", {}), ("m", ["null", kind], {"default": default}))
        return read_as(avro, tmp_path, one("int"), [1], reader, decoder)

    node = schemas.parse([kind]).branches[0]
    assert schemas.fits(good, node)
    assert not schemas.fits(bad, node)
    got = read(bad)
    assert [f.code for f in got.faults] == ["avro-default"]
    assert got.columns["end"].tolist() == [7]


def test_what_is_no_record_in_a_union_with_one_is_named_as_left_out():
    inner = rec(("y", "int", {}), name="Inner")
    root = schemas.parse(rec(("u", ["null", "double", inner], {}), ("v", ["null", inner], {})))
    plan = make_plan(root, AvroOptions(sequence_per="file"), {})
    assert [c.path for c in plan.columns] == ["u.y", "v.y"]
    assert plan.left == {"u": "of its union the record is stored, and null where it is double"}
    asked = make_plan(root, AvroOptions(sequence_per="file", fields=("u",)), {})
    assert [c.path for c in asked.columns] == ["u.y"]

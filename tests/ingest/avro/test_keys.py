"""Ids of sequences: two things that differ never become one sequence, on either decoder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chunkstore
from ingest import ingest_avro
from ingest.exchange import numbered

DECODERS = pytest.mark.parametrize("decoder", ["kernel", "fastavro"])


def fill(avro, folder, kinds, keys, decoder="auto", **options):
    """A store of records of these keys, each with its number as value."""
    names = [f"k{i}" for i in range(len(kinds))]
    fields = [{"name": n, "type": t} for n, t in zip(names, kinds, strict=True)]
    schema = {"type": "record", "name": "R", "fields": [*fields, {"name": "x", "type": "int"}]}
    rows = [dict(zip(names, key, strict=True)) | {"x": i} for i, key in enumerate(keys)]
    path = folder / "a.avro"
    path.write_bytes(avro.bytes(schema, rows, sync_interval=30))
    result = ingest_avro(
        [path], folder / "out.zarr", sequence_key=names, fields="x", decoder=decoder, workers=0, **options
    )
    return result, chunkstore.open_store(folder / "out.zarr")


def members(store):
    """Id -> values."""
    ends = np.cumsum(store.sequences.rowsize)
    x = store.read("x", 0, store.n_obs).tolist()
    return {
        i: x[e - n : e]
        for i, e, n in zip(store.sequences.ids, ends.tolist(), store.sequences.rowsize.tolist(), strict=True)
    }


@DECODERS
def test_composite_keys_whose_parts_hold_the_separator_stay_apart(avro, tmp_path, decoder):
    keys = [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("100%", "c")]
    _, store = fill(avro, tmp_path, ["string", "string"], keys, decoder)
    assert members(store) == {"a%2Fb/c": [0], "a/b%2Fc": [1], "a%252Fb/c": [2], "100%/c": [3]}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    keys=st.lists(
        st.tuples(*[st.one_of(st.none(), st.text('nul"/%25Fa', max_size=5))] * 2), min_size=1, max_size=30
    ),
    decoder=st.sampled_from(["kernel", "fastavro"]),
)
def test_as_many_sequences_as_different_keys(avro, tmp_path_factory, keys, decoder):
    keys = [*keys, ("null", None), (None, "null"), ("/", ""), ("", "/")]
    nullable = ["null", "string"]
    _, store = fill(avro, tmp_path_factory.mktemp("keys"), [nullable, nullable], keys, decoder)
    wanted = {}
    for i, key in enumerate(keys):
        wanted.setdefault(key, []).append(i)
    assert sorted(members(store).values()) == sorted(wanted.values())


@DECODERS
@pytest.mark.parametrize(
    ("kind", "keys", "ids"),
    [
        ("bytes", [b"41ff", b"\x41\xff", b"0x41ff", b""], ["41ff", "0x41ff", "0x307834316666", ""]),
        ({"type": "fixed", "name": "F", "size": 2}, [b"ab", b"\0\1"], ["ab", "0001"]),
        (
            {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
            [b"abcdefghijklmnop"],
            ["61626364-6566-6768-696a-6b6c6d6e6f70"],
        ),
        ("double", [0.0, -0.0, 0.5], ["0.0", "-0.0", "0.5"]),
        (["null", "string"], [None, "null", '"null"'], ["null", '"null"', '""null""']),
        ("string", ["null"], ["null"]),
    ],
)
def test_ids_of_keys_of_every_kind(avro, tmp_path, decoder, kind, keys, ids):
    _, store = fill(avro, tmp_path, [kind], [(k,) for k in keys], decoder)
    assert {i: v[0] for i, v in members(store).items()} == dict(zip(ids, range(len(ids)), strict=True))


@DECODERS
def test_decimals_are_keys_by_their_value_however_they_are_written(avro, tmp_path, decoder):
    # 125 in one and in two bytes, and 38 digits: more than a float or Python's decimal context keeps
    long = 12345678901234567890123456789012345678
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    fields = [{"name": "k", "type": "bytes"}, {"name": "x", "type": "int"}]
    keys = [b"\x7d", b"\x00\x7d", b"\x83", long.to_bytes(16, "big"), (long + 1).to_bytes(16, "big"), b""]
    rows = [{"k": k, "x": i} for i, k in enumerate(keys)]
    data = avro.bytes({"type": "record", "name": "R", "fields": fields}, rows)
    fields[0]["type"] = kind
    path = tmp_path / "a.avro"
    path.write_bytes(data)
    schema = {"type": "record", "name": "R", "fields": fields}
    ingest_avro(
        [path], tmp_path / "o", sequence_key="k", reader_schema=schema, decoder=decoder, workers=0, fields="x"
    )
    assert members(chunkstore.open_store(tmp_path / "o")) == {
        "1.25": [0, 1],
        "-1.25": [2],
        "123456789012345678901234567890123456.78": [3],
        "123456789012345678901234567890123456.79": [4],
        "0.00": [5],
    }


@DECODERS
@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
def test_two_records_with_one_id_are_two_sequences(avro, tmp_path, decoder, part_bytes):
    fields = [{"name": "id", "type": "string"}, {"name": "x", "type": {"type": "array", "items": "int"}}]
    schema = {"type": "record", "name": "R", "fields": fields}
    records = [("a", [1, 2]), ("b", [3]), ("a", [4, 5, 6]), ("c", []), ("b", [7]), ("a", [])]
    paths = []
    for n in range(2):
        paths.append(tmp_path / f"{n}.avro")
        rows = [{"id": i, "x": x} for i, x in records[3 * n : 3 * n + 3]]
        paths[-1].write_bytes(avro.bytes(schema, rows, sync_interval=1))
    result = ingest_avro(
        paths,
        tmp_path / "out.zarr",
        sequence_per="record",
        sequence_key="id",
        part_bytes=part_bytes,
        decoder=decoder,
        workers=0,
    )
    assert members(chunkstore.open_store(tmp_path / "out.zarr")) == {
        "a": [1, 2],
        "a#2": [4, 5, 6],
        "a#3": [],
        "b": [3],
        "b#2": [7],
        "c": [],
    }
    assert result.exit_code == 0
    assert result.report["faults"] == {"duplicate-id": 1}


@given(st.lists(st.text("a#1", max_size=3), max_size=40))
def test_numbered_ids_differ_and_the_first_keep_theirs(ids):
    out, repeated = numbered(ids)
    assert len(set(out)) == len(ids)
    assert set(repeated) == {i for i in ids if ids.count(i) > 1}
    for key in set(ids):
        assert out[ids.index(key)] == key


def test_labels_of_integers_with_nulls_lose_no_digit(avro, tmp_path):
    fields = [
        {"name": "k", "type": "string"},
        {"name": "n", "type": ["null", "long"]},
        {"name": "m", "type": ["null", "long"]},
        {"name": "x", "type": "int"},
    ]
    rows = [{"k": "a", "n": (1 << 60) + 1, "m": 5, "x": 0}, {"k": "b", "n": None, "m": None, "x": 1}]
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes({"type": "record", "name": "R", "fields": fields}, rows))
    ingest_avro([path], tmp_path / "o", sequence_key="k", labels="n,m", workers=0)
    columns = chunkstore.open_store(tmp_path / "o").sequences
    assert list(columns.column("n")) == ["1152921504606846977", ""]
    assert np.array_equal(columns.column("m"), [5.0, np.nan], equal_nan=True)

"""The source as the engine sees it: parts, keys, labels, gaps, and rows that add up."""

from __future__ import annotations

import io
import json
import pickle
import random

import fastavro
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chunkstore
import ingest
from chunkstore.errors import ConfigError, InputError, SourceChangedError, UnknownNameError, UnsupportedError
from ingest.protocol import Source
from ingest.sources.avro import CODES, AvroSource, survey
from ingest.sources.avro.columns import Column, time_step
from ingest.sources.avro.rows import join_codes
from ingest.sources.avro.survey import file_ids

ROW = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "key", "type": "string"},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "x", "type": "float"},
        {"name": "n", "type": ["null", "int"], "default": None},
    ],
}
BAD = b"\xff" * 20


def rows(n, key=lambda i: f"k{i % 3}", start=0):
    """Each value tells its row."""
    return [
        {"key": key(i), "t": i, "x": float(i), "n": None if i % 5 == 0 else i}
        for i in range(start, start + n)
    ]


def write(path, avro, records, codec="null", interval=200):
    path.write_bytes(avro.bytes(ROW, records, codec, interval))
    return str(path)


def test_it_is_a_source():
    assert isinstance(AvroSource(sequence_per="file"), Source)


def test_the_scan_is_a_plan_that_survives_json_and_pickle(avro, tmp_path):
    paths = [write(tmp_path / f"{n}.avro", avro, rows(100)) for n in "ab"]
    scan = AvroSource(sequence_key="key", time="t", part_bytes=600).scan(paths)
    again = AvroSource(**json.loads(json.dumps(dict(scan.options))))
    part = pickle.loads(pickle.dumps(scan.parts[1]))
    json.dumps(dict(part.payload))
    (batch,) = again.read(part)
    assert batch.rows == part.claimed
    assert again.identity(paths[0]) == scan.parts[0].identity
    assert len(scan.parts) > 4
    assert [p.index for p in scan.parts] == list(range(len(scan.parts)))
    assert all(p.memory > p.nbytes for p in scan.parts)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    part_bytes=st.sampled_from([1, 300, 5000, 1 << 26]),
    codec=st.sampled_from(["null", "zstandard"]),
    per=st.sampled_from(["file", "all", "key"]),
)
def test_rows_come_in_order_whatever_the_parts(avro, tmp_path_factory, sizes, part_bytes, codec, per):
    folder = tmp_path_factory.mktemp("parts")
    paths, start = [], 0
    for i, n in enumerate(sizes):
        paths.append(write(folder / f"f{i}.avro", avro, rows(n, start=start), codec))
        start += n
    options = {"sequence_key": "key"} if per == "key" else {"sequence_per": per}
    got = avro.read(paths, part_bytes=part_bytes, **options)
    assert got.rows == start
    assert np.array_equal(got.columns.get("t", np.empty(0, np.int64)), np.arange(start))
    names = [f"f{i}" for i, n in enumerate(sizes) for _ in range(n)]
    want = {
        "all": ["all"] * start,
        "file": names,
        "key": [
            f"k{i % 3}"
            for r, n in zip(range(len(sizes)), sizes, strict=True)
            for i in range(sum(sizes[:r]), sum(sizes[:r]) + n)
        ],
    }
    assert got.sequence == want[per]


def damage(path, at_block, avro, how="payload"):
    """Damage one block of a file so that its record data are wrong."""
    from ingest.sources.avro.container import read_header, walk
    from ingest.sources.avro.inputs import open_input

    with open_input(str(path)) as source:
        table = next(iter(walk(source, read_header(source))))
    data = bytearray(path.read_bytes())
    begin, size = int(table.payloads[at_block]), int(table.sizes[at_block])
    if how == "payload":
        data[begin : begin + min(size, 20)] = BAD[: min(size, 20)]
    else:
        data[begin + size] ^= 1
    path.write_bytes(bytes(data))
    return table.counts.tolist()


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
@pytest.mark.parametrize("how", ["payload", "marker"])
def test_a_damaged_block_is_a_gap_of_its_claim_where_places_are_known(avro, tmp_path, codec, how):
    path = tmp_path / "a.avro"
    write(path, avro, rows(100), codec)
    counts = damage(path, 1, avro, how)
    got = avro.read(path, sequence_per="file")
    lo = counts[0]
    hi = lo + counts[1]
    assert got.rows == 100
    assert got.lost == [(lo, hi)]
    keep = np.r_[0:lo, hi:100]
    assert np.array_equal(got.columns["t"][keep], keep)
    assert np.isnan(got.columns["x"][lo:hi]).all()
    assert not got.columns["n_valid"][lo:hi].any()
    (fault,) = got.faults
    assert (fault.rows, fault.block, fault.action) == (hi - lo, 1, "gap")
    assert fault.code in CODES


@pytest.mark.parametrize("how", ["payload", "marker"])
def test_a_damaged_block_is_left_out_where_keys_are_found(avro, tmp_path, how):
    path = tmp_path / "a.avro"
    write(path, avro, rows(100))
    counts = damage(path, 1, avro, how)
    got = avro.read(path, sequence_key="key")
    lo, hi = counts[0], counts[0] + counts[1]
    assert np.array_equal(got.columns["t"], np.r_[0:lo, hi:100])
    assert [(f.rows, f.action) for f in got.faults] == [(hi - lo, "quarantined")]
    assert got.rows + sum(f.rows for f in got.faults) == 100


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), per=st.sampled_from(["file", "key", "record"]))
def test_rows_in_are_rows_stored_and_rows_in_quarantine(avro, tmp_path_factory, seed, per):
    """Blocks are damaged at random; what every block claims adds up, whatever it ends as."""
    rng = random.Random(seed)
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "key", "type": "string"},
            {"name": "v", "type": {"type": "array", "items": "int"}},
            {"name": "x", "type": "double"},
        ],
    }
    records = [{"key": f"k{i % 4}", "v": [i] * 3, "x": float(i)} for i in range(80)]
    path = tmp_path_factory.mktemp("sum") / "a.avro"
    codec = rng.choice(["null", "snappy", "deflate", "zstandard"])
    path.write_bytes(avro.bytes(schema, records, codec, 120))
    from ingest.sources.avro.container import read_header, walk
    from ingest.sources.avro.inputs import open_input

    with open_input(str(path)) as source:
        table = next(iter(walk(source, read_header(source))))
    data = bytearray(path.read_bytes())
    for i in rng.sample(range(len(table)), rng.randrange(4)):
        at = int(table.payloads[i]) + rng.randrange(int(table.sizes[i]) + 16)
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))
    options = {
        "file": {"sequence_per": "file", "fields": "x"},
        "key": {"sequence_key": "key", "fields": "x"},
        "record": {"sequence_per": "record", "fields": "v"},
    }[per]
    got = avro.read(path, **options)
    stored = got.rows - sum(hi - lo for lo, hi in got.lost)
    if per == "record":
        stored = len(got.keys)  # a flipped bit may leave an array that is shorter and legal
    assert stored + sum(f.rows for f in got.faults if f.action != "kept") == 80


def test_a_claim_that_cannot_be_is_refused_and_leaves_no_gap(avro, tmp_path):
    path = tmp_path / "a.avro"
    good = avro.bytes(ROW, rows(10))
    path.write_bytes(good + avro.zigzag(10**9) + avro.zigzag(0) + avro.SYNC)
    for options in ({"sequence_per": "file"}, {"sequence_key": "key"}):
        got = avro.read(path, **options)
        assert got.rows == 10
        assert [(f.code, f.rows) for f in got.faults] == [("avro-block-claim", 0)]
        assert "claims 1000000000 rows in 0 bytes" in got.faults[0].message


def test_rows_without_bytes_are_legal_and_bounded(avro, tmp_path):
    schema = {"type": "record", "name": "Void", "fields": [{"name": "v", "type": "null"}]}
    reader = {"type": "record", "name": "Void", "fields": [{"name": "x", "type": "int", "default": 7}]}
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(json.dumps(schema), [(1000, b""), (1 << 40, b""), (5, b"")]))
    got = avro.read(path, sequence_per="file", reader_schema=reader)
    assert got.columns["x"].tolist() == [7] * 1005
    assert [(f.code, f.rows) for f in got.faults] == [("avro-block-claim", 0)]


def test_concatenated_containers_are_named_and_their_rows_counted(avro, tmp_path):
    path = tmp_path / "a.avro"
    one = avro.bytes(ROW, rows(10))
    path.write_bytes(one + avro.bytes(ROW, rows(20)) + avro.bytes(ROW, rows(5)))
    got = avro.read(path, sequence_per="file")
    assert got.rows == 10
    assert [(f.code, f.offset, f.rows) for f in got.faults] == [("avro-concatenated", len(one), 25)]


def test_empty_and_foreign_files_do_not_cost_the_others(avro, tmp_path):
    paths = [tmp_path / n for n in ("a.avro", "b.avro", "c.avro", "d.avro", "e.avro")]
    write(paths[0], avro, rows(10))
    paths[1].write_bytes(b"")
    paths[2].write_bytes(b"not avro at all")
    write(paths[3], avro, [])
    paths[4].write_bytes(avro.container('{"type": "nonsense"}', []))
    got = avro.read([*paths, tmp_path / "missing.avro"], sequence_per="file")
    assert got.rows == 10
    assert [f.code for f in got.faults] == [
        "avro-empty",
        "avro-not-container",
        "avro-schema",
        "avro-unreadable",
    ]
    assert got.scan.keys == ("a", "d")


def test_an_unknown_codec_quarantines_its_file(avro, tmp_path):
    write(tmp_path / "a.avro", avro, rows(3))
    (tmp_path / "b.avro").write_bytes(
        avro.container(json.dumps(ROW), [(1, b"x")], codec="null", extra={"avro.codec": b"lzo"})
    )
    got = avro.read([tmp_path / "a.avro", tmp_path / "b.avro"], sequence_per="file")
    assert [f.code for f in got.faults] == ["avro-codec-unknown"]


def test_nothing_to_read_is_an_error(tmp_path):
    (tmp_path / "a.avro").write_bytes(b"")
    with pytest.raises(InputError, match="none of 1 input"):
        AvroSource(sequence_per="file").scan([str(tmp_path / "a.avro")])


def test_an_input_that_changed_is_not_read(avro, tmp_path):
    path = tmp_path / "a.avro"
    scan = AvroSource(sequence_per="file").scan([write(path, avro, rows(10))])
    write(path, avro, rows(11))
    with pytest.raises(SourceChangedError, match="scan again"):
        list(AvroSource(**scan.options).read(scan.parts[0]))


def test_keys_of_several_fields_are_joined_and_nulls_are_said(avro, tmp_path):
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": ["null", "string"]},
            {"name": "b", "type": "int"},
            {"name": "c", "type": "boolean"},
            {"name": "x", "type": "int"},
        ],
    }
    records = [
        {"a": None if i % 4 == 0 else "é" * (i % 3), "b": i % 2, "c": i % 5 == 0, "x": i} for i in range(60)
    ]
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(schema, records))
    for decoder in ("kernel", "fastavro"):
        got = avro.read(path, sequence_key="a,b,c", decoder=decoder)
        assert got.sequence == [
            f"{'null' if r['a'] is None else r['a']}/{r['b']}/{str(r['c']).lower()}" for r in records
        ]
        assert {f.code for f in got.faults} == {"avro-null-key"}
        assert all(f.action == "kept" and f.rows == 0 for f in got.faults)


def test_more_keys_than_a_dictionary_begins_with(avro, tmp_path):
    records = rows(30_000, key=lambda i: f"device-{(i * 7919) % 20_000}")
    path = write(tmp_path / "a.avro", avro, records, interval=16_000)
    got = avro.read(path, sequence_key="key", decoder="kernel")
    assert got.sequence == [r["key"] for r in records]


def test_labels_are_taken_and_a_change_is_reported(avro, tmp_path):
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "k", "type": "int"},
            {"name": "name", "type": "string"},
            {"name": "w", "type": "double"},
            {"name": "x", "type": "int"},
        ],
    }
    records = [{"k": i % 2, "name": f"n{i % 2}" if i < 90 else "other", "w": 0.5, "x": i} for i in range(100)]
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(schema, records, sync_interval=16_000))
    got = avro.read(path, sequence_key="k", labels="name,w")
    assert got.labels == {"name": {"0": "n0", "1": "n1"}, "w": {"0": 0.5, "1": 0.5}}
    assert [(f.code, f.action, f.rows) for f in got.faults] == [("avro-label-varies", "kept", 0)]
    assert "10 rows in all" in got.faults[0].message
    whole = avro.read(path, sequence_per="file", labels="w")
    assert whole.labels == {"w": {"a": 0.5}}


def test_times_and_other_logical_types_are_integers_with_their_unit(avro, tmp_path):
    kinds = {
        "date": ("int", "days since 1970-01-01"),
        "time-millis": ("int", "milliseconds"),
        "time-micros": ("long", "microseconds"),
        "timestamp-millis": ("long", "milliseconds since 1970-01-01"),
        "timestamp-micros": ("long", "microseconds since 1970-01-01"),
        "timestamp-nanos": ("long", "nanoseconds since 1970-01-01"),
        "local-timestamp-millis": ("long", "milliseconds since 1970-01-01"),
    }
    plain = {
        "type": "record",
        "name": "R",
        "fields": [{"name": f"f{i}", "type": k} for i, (k, _) in enumerate(kinds.values())],
    }
    values = [{f"f{i}": v for i in range(len(kinds))} for v in (0, -1, 90_000_000, (1 << 31) - 1)]
    logical = json.loads(json.dumps(plain))
    for f, name in zip(logical["fields"], kinds, strict=True):
        f["type"] = {"type": f["type"], "logicalType": name}
    body = avro.bytes(plain, values)
    path = tmp_path / "a.avro"

    block = next(iter(fastavro.block_reader(io.BytesIO(body))))
    path.write_bytes(avro.container(json.dumps(logical), [(4, block.bytes_.getvalue())]))
    got = avro.read(path, sequence_per="file")
    for field, (_, unit) in zip(got.scan.fields, kinds.values(), strict=True):
        assert field.units == unit
        assert got.columns[field.name].dtype == np.int64
        assert got.columns[field.name].tolist() == [0, -1, 90_000_000, (1 << 31) - 1]


def test_an_integer_beyond_53_bits_keeps_its_value_beside_nulls(avro, tmp_path):
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]}
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(schema, [{"n": (1 << 60) + 1}, {"n": None}]))
    got = avro.read(path, sequence_per="file")
    assert got.columns["n"].tolist() == [(1 << 60) + 1, 0]
    assert got.columns["n_valid"].tolist() == [True, False]
    assert got.scan.fields[0].nullable
    given_value = avro.read(path, sequence_per="file", null_values={"n": -1})
    assert given_value.columns["n"].tolist() == [(1 << 60) + 1, -1]
    assert not given_value.scan.fields[0].nullable


def test_wrong_options_say_what_to_do(avro, tmp_path):
    path = write(tmp_path / "a.avro", avro, rows(5))
    for options, error, text in [
        ({}, ConfigError, "say what a sequence is"),
        ({"sequence_key": "kay"}, UnknownNameError, "did you mean 'key'"),
        ({"sequence_per": "file", "fields": "zzz"}, UnknownNameError, "there is no field 'zzz'"),
        ({"sequence_per": "file", "fields": "key"}, UnsupportedError, "take them as key or label"),
        ({"sequence_per": "hour"}, ConfigError, "must be one of file, record, all"),
        ({"sequence_per": "file", "max_gap": 3}, ConfigError, "needs the time field"),
        ({"sequence_per": "file", "max_gap": "3 parsecs", "time": "t"}, ConfigError, "not a step of time"),
        ({"sequence_per": "file", "max_gap": -1, "time": "t"}, ConfigError, "not a step of time"),
        ({"sequence_per": "file", "max_gap": float("nan"), "time": "t"}, ConfigError, "not a step of time"),
        ({"sequence_per": "file", "obs_axis": "inner"}, ConfigError, "needs sequence_per='record'"),
        ({"sequence_per": "file", "null_values": {"n": 1.5}}, ConfigError, "must be a whole number"),
        ({"sequence_per": "file", "vector_lengths": {"n": 0}}, ConfigError, "must be 1 or more"),
        ({"sequence_per": "file", "vector_lengths": {"n": 3}}, ConfigError, "which has no vectors"),
        ({"sequence_per": "file", "max_ratio": 1.5}, ConfigError, "must be a whole number"),
        ({"sequence_per": "record", "cut_on": "key"}, UnsupportedError, "a record is one"),
        ({"sequence_per": "file", "colour": 1}, ConfigError, "no option 'colour'"),
        ({"sequence_per": "file", "null_values": {"x": 1}}, ConfigError, "not as an integer"),
        ({"sequence_per": "record"}, ConfigError, "no field is left"),
        ({"sequence_per": "file", "reader_schema": "/nowhere.avsc"}, ConfigError, "cannot be read"),
    ]:
        with pytest.raises(error, match=text):
            AvroSource(**options).scan([path])


def test_a_cut_rule_is_in_the_unit_of_the_time(avro, tmp_path):
    path = write(tmp_path / "a.avro", avro, rows(5))
    scan = AvroSource(sequence_per="all", time="t", cut_on="n", max_gap="2.5s", on_disorder="sort").scan(
        [path]
    )
    assert (scan.cut.on_change, scan.cut.max_gap, scan.order, scan.time_field) == (
        ("n", "n__null"),  # a null is stored as some value, and is none
        2_500_000,
        "sort",
        "t",
    )


@pytest.mark.parametrize("gap", [0.5, "0.5", 0.25, "0.3"])
def test_a_gap_of_times_that_are_fractions_is_one_too(avro, tmp_path, gap):
    schema = {"type": "record", "name": "R", "fields": [{"name": "t", "type": "double"}]}
    times = [0.0, 0.25, 0.5, 5.0, 5.25]
    (tmp_path / "a.avro").write_bytes(avro.bytes(schema, [{"t": t} for t in times]))
    how = {"sequence_per": "file", "time": "t", "max_gap": gap}
    ingest.ingest_avro(tmp_path / "a.avro", tmp_path / "o.zarr", workers=0, **how)
    assert chunkstore.open_store(tmp_path / "o.zarr").sequences.rowsize.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("text", "unit", "ticks"),
    [
        ("0.3s", "milliseconds", 300),
        ("0.6ms", "milliseconds", 0),
        ("12h", "days", 0),
        ("1.1us", "nanoseconds", 1100),
        ("9007199254740993", "", (1 << 53) + 1),
    ],
)
def test_no_step_of_whole_numbers_is_rounded_up(text, unit, ticks):
    units = f"{unit} since 1970-01-01" if unit else None
    assert time_step(text, Column("t", ("t",), "long", "int64", units=units)) == ticks


def test_a_record_of_fields_takes_no_value_for_null(avro, tmp_path):
    inner = {"type": "record", "name": "Q", "fields": [{"name": "n", "type": ["null", "int"]}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "q", "type": inner}]}
    (tmp_path / "a.avro").write_bytes(avro.bytes(schema, [{"q": {"n": None}}]))
    for name in ("null_values", "vector_lengths"):
        with pytest.raises(ConfigError, match="'q' is a record"):
            AvroSource(sequence_per="file", **{name: {"q": 1}}).scan([str(tmp_path / "a.avro")])


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
def test_obs_may_be_told_to_be_the_inner_of_two_arrays(avro, tmp_path, decoder):
    kind = {"type": "array", "items": {"type": "array", "items": "int"}}
    schema = {"type": "record", "name": "R", "fields": [{"name": "m", "type": kind}]}
    values = np.arange(12).reshape(2, 2, 3)  # all lengths are the same: nothing tells them apart
    (tmp_path / "a.avro").write_bytes(avro.bytes(schema, [{"m": m.tolist()} for m in values]))
    for axis, want in (("outer", values.reshape(4, 3)), ("inner", values.transpose(0, 2, 1).reshape(6, 2))):
        got = avro.read(tmp_path / "a.avro", sequence_per="record", obs_axis=axis, decoder=decoder)
        assert np.array_equal(got.columns["m"], want)


def test_a_schema_of_many_files_is_parsed_and_kept_once(avro, tmp_path, monkeypatch):
    paths = [write(tmp_path / f"{i}.avro", avro, rows(3)) for i in range(20)]
    parsed = []
    parse = survey.parse
    monkeypatch.setattr(survey, "parse", lambda text: parsed.append(text) or parse(text))
    source = AvroSource(sequence_per="file")
    found = source.survey(paths)
    assert len(parsed) == 1
    assert {id(s.node) for s in found} == {id(found[0].node)}
    assert {id(s.header.schema) for s in found} == {id(parsed[0])}
    assert not any(s.header.metadata for s in found)  # which holds the schema too
    assert source.scan_surveys(found).parts[19].claimed == 3


def test_files_are_named_shortly_and_differently():
    assert file_ids(["/d/a.avro", "/d/b.AVRO"]) == ["a", "b"]
    assert file_ids(["/d/x/a.avro", "/d/y/a.avro"]) == ["x/a", "y/a"]
    assert file_ids(["/d/a.avro", "/d/a.avro"]) == ["a", "a#2"]
    assert file_ids(["/d/a.avro", "/d/a", "/d/a#2.avro"]) == ["a", "a#3", "a#2"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=30))
def test_tuples_are_numbered_as_they_appear(pairs):
    a = np.array([p[0] for p in pairs], np.int32)
    b = np.array([p[1] for p in pairs], np.int32)
    codes, first = join_codes([(a, 4), (b, 3)])
    order = list(dict.fromkeys(pairs))
    assert codes.tolist() == [order.index(p) for p in pairs]
    assert first.tolist() == [pairs.index(p) for p in order]


def test_a_remote_file_is_read_like_a_local_one(avro, tmp_path):
    import fsspec

    path = write(tmp_path / "a.avro", avro, rows(500), "zstandard")
    fsspec.filesystem("memory").pipe("/avro/a.avro", (tmp_path / "a.avro").read_bytes())
    local = avro.read(path, sequence_key="key")
    scan = AvroSource(sequence_key="key").scan(["memory://avro/a.avro"])
    batches = [b for p in scan.parts for b in AvroSource(**scan.options).read(p)]
    assert np.array_equal(np.concatenate([b.columns["t"] for b in batches]), local.columns["t"])


def test_parts_of_forty_million_blocks_are_planned_in_little_memory(avro, tmp_path):
    """The table of parts holds eight integers a part of 64 MiB; blocks are walked in bounded tables."""
    from ingest.sources.avro.parts import PartTable

    path = write(tmp_path / "a.avro", avro, rows(50))
    source = AvroSource(sequence_per="all")
    survey = source.survey([path])[0]
    plan_of = source.scan([path])
    assert len(plan_of.parts) == 1
    survey.slices = survey.slices * 10_000
    from ingest.sources.avro.columns import make_plan

    table = PartTable([survey], source.options, make_plan(survey.node, source.options, {}))
    assert len(table) == 10_000
    assert table._table.nbytes == 640_000
    assert table[-1].index == 9_999


def test_room_for_the_obs_of_records_grows_as_they_come(avro, tmp_path, monkeypatch):
    from ingest.sources.avro import kernel_decoder

    monkeypatch.setattr(kernel_decoder, "_ROOM", 64)
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": {"type": "array", "items": "long"}}],
    }
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(schema, [{"a": list(range(i))} for i in range(200)], sync_interval=16_000))
    got = avro.read(path, sequence_per="record", decoder="kernel")
    assert got.columns["a"].tolist() == [v for i in range(200) for v in range(i)]
    assert len(got.keys) == 200


def test_the_source_travels_to_another_process(avro, tmp_path):
    path = write(tmp_path / "a.avro", avro, rows(30))
    scan = AvroSource(sequence_key="key").scan([path])
    worker = pickle.loads(pickle.dumps(AvroSource(**scan.options)))
    assert sum(b.rows for p in scan.parts for b in worker.read(p)) == 30


def test_threads_share_a_source(avro, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    paths = [write(tmp_path / f"{i}.avro", avro, rows(200, start=i), "zstandard") for i in range(100)]
    scan = AvroSource(sequence_per="file").scan(paths)
    worker = AvroSource(**scan.options)
    with ThreadPoolExecutor(4) as pool:
        firsts = list(pool.map(lambda p: next(iter(worker.read(p))).columns["t"][0], scan.parts))
    assert firsts == list(range(100))


def test_the_package_is_light_until_it_decodes():
    import subprocess
    import sys

    code = "import sys, ingest.sources.avro as a; print('numba' in sys.modules, callable(a.scan_text))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard"])
def test_blocks_larger_than_the_room_for_them_are_read(avro, tmp_path, codec):
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "pad", "type": "bytes"}, {"name": "x", "type": "int"}],
    }
    noise = np.random.default_rng(0).integers(0, 256, 50_000, np.uint8).tobytes()
    records = [{"pad": noise * (60 if i in (3, 7) else 1), "x": i} for i in range(40)]
    records[5]["pad"] = noise * 300
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(schema, records, codec, sync_interval=100_000))
    got = avro.read(path, sequence_per="file", fields="x")
    assert not got.faults
    assert got.columns["x"].tolist() == list(range(40))


@pytest.mark.parametrize("per", ["all", "key"])
def test_text_may_cut_sequences_and_compares_across_batches(avro, tmp_path, per):
    records = rows(200, key=lambda i: f"run-{i // 40}")
    path = write(tmp_path / "a.avro", avro, records, "zstandard")
    for decoder in ("kernel", "fastavro"):
        options = {"sequence_per": "all"} if per == "all" else {"sequence_key": "n"}
        got = avro.read(path, cut_on="key", part_bytes=500, decoder=decoder, **options)
        assert got.scan.cut.on_change == ("key",)
        assert "key" not in [f.name for f in got.scan.fields]
        numbers = got.columns["key"]
        assert numbers.dtype == np.int64
        assert np.flatnonzero(np.diff(numbers)).tolist() == [39, 79, 119, 159]


def test_a_null_is_another_text_than_the_word_null_where_sequences_are_cut(avro, tmp_path):
    fields = [{"name": "key", "type": ["null", "string"]}, {"name": "x", "type": "int"}]
    records = [{"key": key, "x": i} for i, key in enumerate([None, None, "null", "null", None, ""])]
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes({"type": "record", "name": "R", "fields": fields}, records))
    for decoder in ("kernel", "fastavro"):
        got = avro.read(path, sequence_per="all", cut_on="key", decoder=decoder)
        assert np.flatnonzero(np.diff(got.columns["key"])).tolist() == [1, 3, 4]


@pytest.mark.parametrize(
    ("cut", "other"), [("n", "n__null"), ("t\u00e9", "t_"), ("t_", "t\u00e9")], ids=["mark", "text", "turned"]
)
def test_no_field_is_written_over_by_what_cuts_sequences(avro, tmp_path, cut, other):
    kind = ["null", "long"] if cut == "n" else "string"
    fields = [{"name": cut, "type": kind}, {"name": other, "type": "long"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    path = tmp_path / "a.avro"
    first = [b"\2" + avro.zigzag(1), b"\0"] if cut == "n" else [b"\2a", b"\2b"]
    records = b"".join(one + avro.zigzag(77 + i) for i, one in enumerate(first))
    path.write_bytes(avro.container(json.dumps(schema), [(2, records)]))
    got = avro.read(path, sequence_per="file", cut_on=cut)
    name = next(f.name for f in got.scan.fields if f.attrs.get("avro_path", f.name) == other)
    assert got.columns[name].tolist() == [77, 78]
    assert name not in got.scan.cut.on_change


def test_a_damaged_block_does_not_lose_the_text_that_cuts(avro, tmp_path):
    path = tmp_path / "a.avro"
    write(path, avro, rows(100, key=lambda i: f"run-{i // 40}"))
    counts = damage(path, 1, avro)
    got = avro.read(path, sequence_per="all", cut_on="key")
    lo, hi = counts[0], counts[0] + counts[1]
    assert got.lost == [(lo, hi)]
    assert len(set(got.columns["key"][np.r_[0:lo, hi:100]].tolist())) == 3


def test_a_field_named_like_a_mask_and_the_mask_stay_apart(avro, tmp_path):
    for order in ([0, 1], [1, 0]):
        both = [{"name": "a", "type": ["null", "long"]}, {"name": "a_valid", "type": "boolean"}]
        schema = {"type": "record", "name": "R", "fields": [both[i] for i in order]}
        path = tmp_path / "a.avro"
        path.write_bytes(avro.bytes(schema, [{"a": None, "a_valid": True}, {"a": 5, "a_valid": False}]))
        scan = AvroSource(sequence_per="file").scan([str(path)])
        arrays = [f.name for f in scan.fields] + [f"{f.name}_valid" for f in scan.fields if f.nullable]
        assert len(set(arrays)) == 3
        got = avro.read(path, sequence_per="file")
        nullable = next(f.name for f in scan.fields if f.nullable)
        flag = next(f.name for f in scan.fields if not f.nullable)
        assert got.columns[nullable].tolist() == [0, 5]
        assert got.columns[f"{nullable}_valid"].tolist() == [False, True]
        assert got.columns[flag].tolist() == [True, False]


def test_a_block_beyond_the_limit_is_not_even_read(avro, tmp_path, monkeypatch):
    from ingest.sources.avro import inputs

    data = avro.bytes(ROW, rows(30), "null", 1 << 20)
    head = data.index(avro.SYNC) + 16
    path = tmp_path / "a.avro"
    with path.open("wb") as file:
        file.write(data)
        file.write(avro.zigzag(5) + avro.zigzag(1 << 30))
        file.seek(1 << 30, 1)
        file.write(avro.SYNC + data[head:])
    largest = []
    read = inputs.LocalInput.read

    def watched(self, offset, length):
        found = read(self, offset, length)
        largest.append(len(found))
        return found

    monkeypatch.setattr(inputs.LocalInput, "read", watched)
    got = avro.read(path, sequence_key="key")
    assert got.rows == 60
    assert [(f.code, f.rows) for f in got.faults] == [("avro-block-claim", 5)]
    assert max(largest) <= 4 << 20


def test_the_planned_memory_holds_keys_that_are_all_different(avro, tmp_path):
    """Each key takes room in the kernel's dictionary and as text; blocks of many keys are read in turns."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "k", "type": "string"}]}
    schema["fields"].append({"name": "x", "type": "boolean"})
    path = tmp_path / "a.avro"
    path.write_bytes(
        avro.bytes(schema, ({"k": f"{i:05x}", "x": True} for i in range(300_000)), "zstandard", 64_000)
    )
    scan = AvroSource(sequence_key="k").scan([str(path)])
    (part,) = scan.parts
    assert part.memory >= 131_072 * 320
    batches = list(AvroSource(**scan.options).read(part))
    assert sum(b.rows for b in batches) == 300_000
    assert max(b.rows for b in batches) <= 131_072
    assert len({k for b in batches for k in b.keys}) == 300_000


def test_a_folder_gives_its_avro_files_and_nothing_that_lies_beside_them(avro, tmp_path):
    from ingest import ingest_avro
    from ingest.sources.avro.describe import describe

    folder = tmp_path / "exported"
    folder.mkdir()
    write(folder / "part-00000.c000.avro", avro, rows(20))
    write(folder / "part-00001.c000.AVRO", avro, rows(10))
    for name in ("_SUCCESS", ".part-00000.c000.avro.crc", "README.txt", "._part-00000.c000.avro"):
        (folder / name).write_bytes(b"")
    result = ingest_avro(folder, tmp_path / "out.zarr", sequence_key="key", workers=0)
    assert result.exit_code == 0
    assert result.report["rows"]["stored"] == 30
    assert result.report["faults"] == {}
    named = write(tmp_path / "without_suffix", avro, rows(5))
    assert describe([named]).rows == 5


def test_the_scan_takes_decimals_beside_a_map_for_rows_of_a_table(avro, tmp_path):
    """Maps that are exported as arrays of entries do not make a record a sequence."""
    from ingest.sources.avro.describe import describe

    entry = {"type": "record", "name": "Entry", "fields": [{"name": "value", "type": "double"}]}
    fields = [
        {"name": "device", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": entry}},
    ]
    plain = json.loads(json.dumps(fields))
    plain[1]["type"], plain[2]["type"] = "bytes", "long"
    records = [
        {"device": f"d{i % 3}", "amount": b"\x05", "at": i, "tags": [{"value": 1.0}] * (i % 4)}
        for i in range(30)
    ]
    data = avro.bytes({"type": "record", "name": "R", "fields": plain}, records, sync_interval=1 << 20)
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    at = data.index(avro.SYNC) + 16
    blocks = avro.container(text, [(30, data[at + 3 : -16])])
    path = tmp_path / "a.avro"
    path.write_bytes(blocks)
    found = describe([str(path)])
    assert "--sequence-key device --time at" in found.command


def test_the_scan_prefers_keys_that_are_never_null_and_names_inputs_as_they_were_given(avro, tmp_path):
    from ingest.sources.avro.describe import describe

    fields = [
        {"name": "device", "type": "string"},
        {"name": "value", "type": "double"},
        {"name": "note", "type": ["null", "string"]},
    ]
    rows = [{"device": f"d{i % 2}", "value": 1.0, "note": [None, "a", "b"][i % 3]} for i in range(30)]
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes({"type": "record", "name": "R", "fields": fields}, rows))
    command = describe([str(path)], inputs=["my readings"]).command
    assert command == "chunkstore ingest avro 'my readings' -o OUT.zarr --sequence-key device"


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
@pytest.mark.parametrize(
    "per",
    [
        {"sequence_per": "file"},
        {"sequence_per": "all"},
        {"sequence_key": "k", "time": "t", "on_disorder": "sort"},
    ],
)
@pytest.mark.parametrize(
    ("kind", "values"), [("int", [0, None, None, 0, 5]), ("boolean", [False, None, None, False, True])]
)
def test_a_null_is_another_value_than_what_stands_for_it_where_sequences_are_cut(
    avro, tmp_path, decoder, per, kind, values
):
    fields = [{"name": "k", "type": "string"}, {"name": "t", "type": "int"}]
    fields += [{"name": "flag", "type": ["null", kind]}]
    records = [{"k": "s", "t": t, "flag": v} for t, v in enumerate(values)]
    if "sequence_key" in per:
        records.reverse()
    (tmp_path / "a.avro").write_bytes(avro.bytes({"type": "record", "name": "R", "fields": fields}, records))
    result = ingest.ingest_avro(
        tmp_path / "a.avro", tmp_path / "o.zarr", cut_on="flag", decoder=decoder, workers=0, **per
    )
    assert result.exit_code == 0
    store = chunkstore.open_store(tmp_path / "o.zarr")
    assert store.sequences.rowsize.tolist() == [1, 2, 1, 1]
    assert "flag__null" not in store.fields


@pytest.mark.parametrize("labels", ["kind", "kind,kind_code", "kind_code,kind"])
def test_a_field_named_like_the_codes_of_a_label_ends_no_job(avro, tmp_path, labels):
    fields = [{"name": n, "type": t} for n, t in (("k", "int"), ("kind", "string"), ("kind_code", "string"))]
    fields += [{"name": "x", "type": "double"}]
    if labels == "kind":
        fields[2]["type"] = "int"
    other = 3 if labels == "kind" else "w"
    schema = {"type": "record", "name": "R", "fields": fields}
    (tmp_path / "a.avro").write_bytes(
        avro.bytes(schema, [{"k": 1, "kind": "a", "kind_code": other, "x": 0.5}])
    )
    result = ingest.ingest_avro(
        tmp_path / "a.avro", tmp_path / "o.zarr", sequence_key="k", labels=labels, workers=0
    )
    assert result.exit_code == 0


def test_two_fields_of_one_path_are_not_lost_without_a_word(avro, tmp_path):
    inner = {"type": "record", "name": "Q", "fields": [{"name": "b", "type": "int"}]}
    fields = [{"name": "a.b", "type": "int"}, {"name": "a", "type": inner}]
    schema = {"type": "record", "name": "R", "fields": fields}  # a dot in a name is not allowed, and met
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(json.dumps(schema), [(1, avro.zigzag(1) + avro.zigzag(2))]))
    got = avro.read(path, sequence_per="file")
    assert got.columns["a.b"].tolist() == [1]
    assert "a.b (again)" in got.scan.attrs["avro_fields_left"]


def test_what_is_stored_along_sequence_is_not_said_to_be_left_out(avro, tmp_path):
    names = ("key", "kind", "note", "x")
    fields = [{"name": n, "type": "string" if n != "x" else "int"} for n in names]
    schema = {"type": "record", "name": "R", "fields": fields}
    path = tmp_path / "a.avro"
    row = b"".join(avro.zigzag(1) + c for c in (b"a", b"b", b"c")) + avro.zigzag(7)
    path.write_bytes(avro.container(json.dumps(schema), [(1, row)]))
    for more in ({}, {"fields": ["x"]}):
        left = avro.read(path, sequence_key=["key"], labels=["kind"], **more).scan.attrs["avro_fields_left"]
        assert set(left) == {"note"}
    with pytest.raises(ConfigError, match="key: key or label; kind: key or label"):
        avro.read(path, sequence_key=["key"], labels=["kind"], exclude=["x"])


def test_a_long_list_of_what_is_left_out_says_how_many_more(avro, tmp_path, monkeypatch):
    monkeypatch.setattr("ingest.sources.avro.source._LISTED", 2)
    fields = [{"name": f"t{i}", "type": "string"} for i in range(5)] + [{"name": "x", "type": "int"}]
    path = tmp_path / "a.avro"
    row = (avro.zigzag(1) + b"a") * 5 + avro.zigzag(7)
    path.write_bytes(
        avro.container(json.dumps({"type": "record", "name": "R", "fields": fields}), [(1, row)])
    )
    left = avro.read(path, sequence_per="file").scan.attrs["avro_fields_left"]
    assert list(left) == ["t0", "t1", "..."]
    assert left["..."] == "3 more"

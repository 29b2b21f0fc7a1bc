"""Files made to do harm: deep nests, huge claims, endless types, bombs. A fault or an error, soon."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

from chunkstore.errors import ChunkstoreError, UnsupportedError
from ingest.sources.avro import AvroSource

LIST = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "x", "type": "int"}, {"name": "next", "type": ["null", "L"]}],
}
TREE = {
    "type": "record",
    "name": "T",
    "fields": [{"name": "x", "type": "int"}, {"name": "kids", "type": {"type": "array", "items": "T"}}],
}


def test_values_that_nest_a_million_deep_are_a_fault(avro, tmp_path):
    path = tmp_path / "a.avro"
    deep = b"\2\2" * 1_000_000 + b"\2\0"
    tree = b"\2\2" * 1_000_000 + b"\2\0" + b"\0" * 1_000_000
    path.write_bytes(avro.container(json.dumps(LIST), [(1, b"\2\0"), (1, deep), (1, b"\4\0")]))
    got = avro.read(path, sequence_per="file", fields="x")
    assert got.columns["x"].tolist() == [1, 0, 2]
    assert [f.code for f in got.faults] == ["avro-depth"]
    path.write_bytes(avro.container(json.dumps(TREE), [(1, tree)]))
    assert [f.code for f in avro.read(path, sequence_per="file", fields="x").faults] == ["avro-depth"]


def test_lists_of_some_thousands_are_skipped(avro, tmp_path):
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(json.dumps(LIST), [(1, b"\2\2" * 20_000 + b"\2\0")]))
    assert not avro.read(path, sequence_per="file", fields="x").faults


@pytest.mark.parametrize("depth", [50, 300, 900, 100_000])
def test_a_schema_that_nests_deep_is_read_or_refused(avro, tmp_path, depth):
    text = '{"type":"array","items":' * depth + '"int"' + "}" * depth
    deep = '{"name":"deep","type":' + text + "}"
    record = '{"type":"record","name":"R","fields":[{"name":"x","type":"int"},' + deep + "]}"
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(record, [(1, b"\2\0")]))
    try:
        got = avro.read(path, sequence_per="file", fields="x")
    except ChunkstoreError as error:
        assert "avro" in str(error).lower()  # noqa: PT017 # it is read where the depth is modest
        assert depth >= 300
    else:
        assert got.columns["x"].tolist() == [1]


def test_a_schema_that_doubles_at_every_level_is_bounded(avro, tmp_path):
    """Thirty levels of two fields each are 2^30 paths in some kilobytes."""
    inner = '{"type":"record","name":"R0","fields":[{"name":"v","type":"null"}]}'
    for i in range(1, 31):
        fields = f'{{"name":"a","type":{inner}}},{{"name":"b","type":"R{i - 1}"}}'
        inner = f'{{"type":"record","name":"R{i}","fields":[{fields}]}}'
    record = (
        f'{{"type":"record","name":"R","fields":[{{"name":"x","type":"int"}},{{"name":"d","type":{inner}}}]}}'
    )
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(record, [(1, b"\2")]))
    with pytest.raises(UnsupportedError, match="more than 20000 fields"):
        AvroSource(sequence_per="file").scan([str(path)])


def test_an_endless_record_is_a_fault(avro, tmp_path):
    record = '{"type":"record","name":"E","fields":[{"name":"x","type":"int"},{"name":"e","type":"E"}]}'
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(record, [(1, b"\2" * 100_000)]))
    got = avro.read(path, sequence_per="file", fields="x")
    assert got.faults[0].code in ("avro-depth", "avro-overrun")


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
@pytest.mark.parametrize(
    "items", ["null", "int", "string", {"type": "record", "name": "V", "fields": []}], ids=str
)
@pytest.mark.parametrize("count", [10**9, (1 << 62), -(1 << 62), -(1 << 63)])
def test_arrays_that_claim_more_than_there_is_are_faults(avro, tmp_path, items, count, decoder):
    record = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "x", "type": "int"}, {"name": "a", "type": {"type": "array", "items": items}}],
    }
    body = b"\2" + avro.zigzag(count) + (avro.zigzag(4) if count < 0 else b"") + b"\0\0\0\0"
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(json.dumps(record), [(1, body)]))
    got = avro.read(path, sequence_per="file", fields="x", decoder=decoder)
    assert [f.rows for f in got.faults] == [1]
    assert got.faults[0].code in ("avro-length", "avro-array-size", "avro-overrun", "avro-trailing")


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
@pytest.mark.parametrize("length", [-1, 10**9, 1 << 62, -(1 << 63)])
@pytest.mark.parametrize("kind", ["string", "bytes"])
def test_text_that_claims_more_than_there_is_is_a_fault(avro, tmp_path, kind, length, decoder):
    record = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "k", "type": kind}, {"name": "x", "type": "int"}],
    }
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(json.dumps(record), [(1, avro.zigzag(length) + b"abc\2")]))
    for options in ({"sequence_key": "k"}, {"sequence_per": "file", "fields": "x"}):
        got = avro.read(path, decoder=decoder, **options)
        assert [(f.code, f.rows) for f in got.faults] == [("avro-length", 1)]


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "bzip2", "xz", "snappy"])
def test_a_bomb_costs_its_limit_and_no_more(avro, tmp_path, codec):
    record = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "k", "type": "int"}, {"name": "x", "type": "int"}],
    }
    path = tmp_path / "a.avro"
    bomb = avro.compress(codec, bytes(96 << 20))
    path.write_bytes(
        avro.container(json.dumps(record), [(1 << 20, bomb), (1, avro.compress(codec, b"\2\2"))], codec)
    )
    del bomb
    tracemalloc.start()
    got = avro.read(path, sequence_key="k", max_block_bytes="8MiB")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert got.columns["x"].tolist() == [1]
    assert got.faults[0].code in ("avro-bomb", "avro-block-claim")
    assert peak < 80 << 20


def test_names_from_files_are_printed_in_one_short_line(avro, tmp_path):
    path = tmp_path / "a.avro"
    name = "x" * 100_000
    record = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "a\x1b[31m/../" + name}],
    }
    path.write_bytes(avro.container(json.dumps(record), []))
    from chunkstore.errors import InputError

    with pytest.raises(InputError) as error:
        AvroSource(sequence_per="file").scan([str(path)])
    assert len(str(error.value)) < 1000
    assert "\x1b" not in str(error.value)


def test_keys_may_be_long_and_strange(avro, tmp_path):
    record = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "k", "type": "string"}, {"name": "x", "type": "int"}],
    }
    keys = ["../../etc/passwd", "a\x00b", "k" * 100_000, "\n", "C:\\x", "é" * 5]
    path = tmp_path / "a.avro"
    path.write_bytes(avro.bytes(record, [{"k": k, "x": i} for i, k in enumerate(keys)]))
    for decoder in ("kernel", "fastavro"):
        assert avro.read(path, sequence_key="k", decoder=decoder).sequence == keys


def test_text_that_is_not_utf8_is_a_fault_unless_told_otherwise(avro, tmp_path):
    record = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "k", "type": "string"}, {"name": "x", "type": "int"}],
    }
    path = tmp_path / "a.avro"
    path.write_bytes(avro.container(json.dumps(record), [(1, b"\4\xff\xfe\2"), (1, b"\4ok\4")]))
    got = avro.read(path, sequence_per="file", fields="x")
    assert [f.code for f in got.faults] == ["avro-utf8"]
    assert avro.read(path, sequence_per="file", fields="x", check_text=False).columns["x"].tolist() == [1, 2]
    assert [f.code for f in avro.read(path, sequence_key="k", check_text=False).faults] == ["avro-utf8"]


@pytest.mark.parametrize("text", ["", "a", "é", "€", "𝄞", "a" * 7 + "é", "abcdefgh€", "x" * 100 + "𝄞"])
@pytest.mark.parametrize(
    "tail", [b"", b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf8"]
)
def test_utf8_is_judged_as_python_does(text, tail):
    from ingest.sources.avro.kernel import utf8

    data = np.frombuffer(text.encode() + tail + bytes(1), np.uint8)
    try:
        (text.encode() + tail).decode("utf-8")
        good = True
    except UnicodeDecodeError:
        good = False
    assert utf8(data.ctypes.data, 0, data.size - 1) == good


@pytest.mark.parametrize("per", ["file", "record"])
def test_rows_that_are_wide_are_not_allocated_on_a_claim(avro, tmp_path, per):
    """A row of one byte becomes a vector of a million floats: what a block may become is bounded."""
    vector = {"type": "array", "items": "float"}
    record = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "v", "type": ["null", vector] if per == "file" else {"type": "array", "items": vector}}
        ],
    }
    path = tmp_path / "a.avro"
    rows = 100_000
    body = b"\0" * rows if per == "file" else avro.zigzag(rows) + b"\0" * rows + b"\0"
    good = b"\2\0" if per == "file" else b"\0"
    path.write_bytes(
        avro.container(json.dumps(record), [(rows if per == "file" else 1, body), (1, good[:1])])
    )
    tracemalloc.start()
    scan = AvroSource(sequence_per=per, vector_lengths={"v": 1 << 20}).scan([str(path)])
    worker = AvroSource(**scan.options)
    faults, seen = [], 0
    for part in scan.parts:
        for batch in worker.read(part):
            faults += [f.code for f in batch.faults]
            seen += 1
            if seen > 20:
                break
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert faults[0] in ("avro-block-claim", "avro-vector-length", "avro-overrun")
    assert peak < 300 << 20

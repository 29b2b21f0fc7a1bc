"""Rows without a time: kept, put in one stated place, and said."""

from __future__ import annotations

import json

import fastavro
import pytest

import chunkstore
import ingest


@pytest.mark.parametrize(
    ("kind", "wanted"), [("long", [2, 5, 6, 1, 3, 0, 4]), ("double", [6, 1, 3, 0, 4, 2, 5])]
)
@pytest.mark.parametrize("shard", [4, 64])
def test_rows_without_a_time_are_kept_and_reported(tmp_path, kind, wanted, shard):
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "k", "type": "string"},
            {"name": "t", "type": ["null", kind]},
            {"name": "n", "type": "int"},
        ],
    }
    times = [5, 3, None, 3, 5, None, 1]
    with (tmp_path / "a.avro").open("wb") as out:
        fastavro.writer(out, schema, [{"k": "a", "t": t, "n": i} for i, t in enumerate(times)])
    result = ingest.ingest_avro(
        str(tmp_path / "a.avro"),
        tmp_path / "o.zarr",
        sequence_key="k",
        time="t",
        on_disorder="sort",
        workers=0,
        chunk=2,
        shard=shard,
        report=str(tmp_path / "faults.jsonl"),
    )
    store = chunkstore.open_store(tmp_path / "o.zarr")
    assert store.read("n", 0, 7).tolist() == wanted
    assert result.report["faults"] == {"time-missing": 1}
    assert result.exit_code == 0
    (line,) = [json.loads(text) for text in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert line["message"].startswith("2 obs have no t; sorted by time they stand")


def test_nothing_is_said_where_all_rows_have_a_time(tmp_path):
    schema = {"type": "record", "name": "R", "fields": [{"name": "t", "type": "long"}]}
    with (tmp_path / "a.avro").open("wb") as out:
        fastavro.writer(out, schema, [{"t": i} for i in range(5)])
    result = ingest.ingest_avro(
        str(tmp_path / "a.avro"), tmp_path / "o.zarr", sequence_per="file", time="t", workers=0
    )
    assert result.report["faults"] == {}

"""Rows that are lost keep their place where the others are sorted by time: nothing is silently joined."""

from __future__ import annotations

import fastavro
import numpy as np
import pytest

import chunkstore
import ingest

SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "t", "type": "long"}, {"name": "n", "type": "int"}],
}


def write(path, times, damaged=()):
    """Write blocks of ten records, and spoil the deflated data of some."""
    marker = bytes(range(16))
    rows = [{"t": int(t), "n": i} for i, t in enumerate(times)]
    with path.open("wb") as out:
        fastavro.writer(out, SCHEMA, [], codec="deflate", sync_marker=marker)
    for at in range(0, len(rows), 10):
        with path.open("a+b") as out:
            fastavro.writer(out, None, rows[at : at + 10], codec="deflate")
    data = bytearray(path.read_bytes())
    ends = [i for i in range(len(data)) if data[i : i + 16] == marker]
    for block in damaged:
        for at in range(ends[block] + 16 + 6, ends[block + 1] - 2):
            data[at] = 0xFF
    path.write_bytes(data)


def run(folder, out, **options):
    ingest.ingest_avro(
        str(folder / "*.avro"), out, time="t", on_disorder="sort", workers=0, chunk=4, shard=16, **options
    )
    return chunkstore.open_store(out)


def test_a_recording_that_begins_with_a_lost_block_still_does(tmp_path):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.avro", np.arange(1000, 1030))
    write(tmp_path / "in" / "b.avro", np.arange(500, 530), damaged=[0])
    store = run(tmp_path / "in", tmp_path / "o.zarr", sequence_per="file")
    assert store.gaps.tolist() == [[30, 40]]
    assert store.read("t", 40, 60).tolist() == list(range(510, 530))


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_file_that_is_lost_leaves_a_gap_where_it_was(tmp_path, monkeypatch, together, damaged):
    if not together:
        monkeypatch.setattr("ingest.plan.stage_target", lambda total: 1)
    (tmp_path / "in").mkdir()
    for f in range(3):
        times = 100 * f + np.arange(30)
        times[[3, 4]] = times[[4, 3]]
        write(tmp_path / "in" / f"{f}.avro", times, damaged=range(3) if f == damaged else ())
    store = run(tmp_path / "in", tmp_path / "o.zarr", sequence_per="all")
    assert store.gaps.tolist() == [[30 * damaged, 30 * damaged + 30]]
    told = store.read("t", 0, 90).reshape(3, 30)
    for f in {0, 1, 2} - {damaged}:
        assert told[f].tolist() == list(range(100 * f, 100 * f + 30))

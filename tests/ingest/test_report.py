"""What a job tells at its end and on the way: true units, and no more control over a terminal than is due."""

from __future__ import annotations

import io
import json

import fastavro
import numpy as np
import pytest

from ingest import ingest_avro
from ingest.progress import Bars, Lines
from ingest.report import tell

SCHEMA = {
    "type": "record",
    "name": "Utterance",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "x", "type": {"type": "array", "items": "float"}},
    ],
}


def blocks_of_two(path, records):
    with path.open("wb") as out:
        fastavro.writer(out, SCHEMA, records, codec="deflate", sync_interval=1, sync_marker=bytes(range(16)))


@pytest.mark.parametrize("damaged", [False, True])
def test_records_that_are_lost_are_told_as_records_not_as_obs(tmp_path, damaged):
    records = [{"id": f"r{i}", "x": np.arange(100.0).tolist()} for i in range(5)]
    path = tmp_path / "a.avro"
    blocks_of_two(path, records)
    data = bytearray(path.read_bytes())
    if damaged:
        first = data.index(bytes(range(16)))
        second = data.index(bytes(range(16)), first + 16)
        data[second + 24] ^= 0xFF  # inside the payload of the second block
        path.write_bytes(data)
    result = ingest_avro(path, tmp_path / "o.zarr", sequence_per="record", sequence_key="id", workers=0)
    assert result.report["quarantined_are"] == "records"
    lost = int(damaged)
    assert (result.report["rows"]["quarantined"], result.report["obs"]) == (lost, (5 - lost) * 100)
    told = tell(result.report)
    assert ("400 obs are stored, 0 are gaps; 1 record in quarantine" in told) == damaged


@pytest.mark.parametrize("kind", [Lines, Bars])
def test_names_of_files_in_messages_do_not_command_the_terminal(kind, monkeypatch):
    out = io.StringIO()
    if kind is Lines:
        shown = Lines(out)
    else:
        shown = Bars()
        monkeypatch.setattr(shown._rich.console, "file", out)
    shown.message("\x1b[2J[red]owl")
    shown.close()
    told = out.getvalue()
    assert "owl" in told
    assert "[red]" in told
    assert "\x1b[2J" not in told


def test_reports_of_older_versions_are_still_told():
    report = {
        "store": "s",
        "sequences": 1,
        "obs": 3,
        "files": [],
        "bytes_in": 1,
        "bytes_decoded": 1,
        "bytes_stored": 1,
        "seconds": {},
        "rows": {"rows_in": 5, "stored": 3, "gap": 0, "quarantined": 2},
        "cuts": 0,
        "times_backward": 0,
        "times_duplicate": 0,
        "faults": {},
    }
    assert "of 5 rows 3 are stored" in tell(json.loads(json.dumps(report)))

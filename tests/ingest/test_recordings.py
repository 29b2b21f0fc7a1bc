"""Made-up recordings are written by the real encoders, are the same each time, and differ by species."""

import hashlib
from pathlib import Path

import fastavro
import numpy as np
import pytest

from ingest import recordings


def test_the_avro_files_hold_every_hour_of_every_station_with_four_codecs(tmp_path):
    files = recordings.make_avro(tmp_path, stations=2, hours=50)
    rows, codecs = [], []
    for file in files:
        with open(file, "rb") as stream:
            reader = fastavro.reader(stream)
            codecs.append(reader.codec)
            rows += list(reader)
    assert tuple(codecs) == recordings.AVRO_CODECS
    assert len(rows) == 100
    hours = {(r["station"], r["time"]) for r in rows}
    assert len(hours) == 100
    assert rows[0]["time"].isoformat() == "2023-01-01T00:00:00+00:00"


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    def digest(folder, seed):
        files = recordings.make_avro(folder, hours=30, seed=seed)
        return [hashlib.sha256(Path(f).read_bytes()).hexdigest() for f in files]

    assert digest(tmp_path / "a", 0) == digest(tmp_path / "b", 0)
    assert digest(tmp_path / "a", 0) != digest(tmp_path / "c", 1)


def test_some_readings_are_missing():
    values = recordings._weather(3, 2000, 0)
    share = np.isnan(values[..., :3]).mean()
    assert 0.005 < share < 0.015
    assert not np.isnan(values[..., 3]).any()


def test_clips_differ_in_length_and_stay_in_range(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    files = recordings.make_birds(tmp_path, clips=4, seconds=0.5)
    assert len(files) == 4 * len(recordings.SONGS)
    lengths = {soundfile.info(f).frames for f in files if f.endswith(("wav", "flac"))}
    assert len(lengths) > 4
    for file in files:
        samples, rate = soundfile.read(file)
        assert rate == 32000
        assert np.abs(samples).max() < 1

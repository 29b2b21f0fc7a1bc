"""The demo does the whole job on recordings of its own."""

import re

import pytest

import chunkstore
from chunkstore import cli
from ingest import demo


@pytest.mark.slow
@pytest.mark.cluster
def test_the_demo_ingests_looks_trains_and_tells(tmp_path, capsys):
    pytest.importorskip("torch")
    assert cli.run(["demo", "--out", str(tmp_path / "a demo"), "--steps", "40"]) == 0
    out = capsys.readouterr().out
    assert "Recordings made for the demo" in out
    assert "26,280 rows in 3 sequences" in out
    assert "xarray.Dataset" in out
    losses = re.findall(r"first loss ([0-9.]+), last loss ([0-9.]+)", out)
    assert len(losses) == 2
    assert all(float(last) < float(first) for first, last in losses)
    assert out.count("windows a second:") == 2
    for name, sequences in (("sensors", 3), ("sounds", 32)):
        assert chunkstore.open_store(tmp_path / "a demo" / f"{name}.zarr").n_sequences == sequences


def test_an_earlier_demo_is_not_overwritten_unasked(tmp_path, capsys):
    pytest.importorskip("torch")
    (tmp_path / "sensors.zarr").mkdir()
    (tmp_path / "sensors.zarr" / "keep").touch()
    assert cli.run(["demo", "--out", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().err or (tmp_path / "sensors.zarr" / "keep").exists()


def test_real_recordings_are_used_where_they_are(shared_data, tmp_path):
    found = demo.find_inputs(str(shared_data), tmp_path)
    assert not found.made
    assert found.avro.endswith("weather")


def test_no_steps_are_refused(capsys):
    assert cli.run(["demo", "--steps", "0"]) == 2
    assert "1 or more" in capsys.readouterr().err

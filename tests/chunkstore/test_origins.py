"""What is written never takes the place of what it is made from."""

from __future__ import annotations

import numpy as np
import pytest

from chunkstore import ConfigError, FieldSpec, StoreWriter, open_store
from chunkstore.audio import export
from chunkstore.origins import holds, identity
from chunkstore.report import write_report


def files_of(folder):
    return sorted((p, p.read_bytes()) for p in folder.rglob("*") if p.is_file())


def sounds(url):
    with StoreWriter(url, [FieldSpec("audio", "int16", attrs={"sample_rate": 8000})]) as out:
        out.write("a", {"audio": np.arange(80)})
    return open_store(url)


def test_a_report_or_a_sound_is_never_written_into_its_store(tmp_path):
    store = sounds(tmp_path / "a.zarr")
    (tmp_path / "link").symlink_to(tmp_path / "a.zarr")
    before = files_of(tmp_path / "a.zarr")
    for name in ("a.zarr/zarr.json", "link/zarr.json", "a.zarr/new/report.html"):
        with pytest.raises(ConfigError, match="lies in the store"):
            write_report(store, tmp_path / name)
    with pytest.raises(ConfigError, match="lies in the store"):
        export(store, "a", tmp_path / "link/audio/a.wav")
    assert files_of(tmp_path / "a.zarr") == before
    assert export(store, "a", tmp_path / "a.zarr.wav").stat().st_size == 44 + 160  # a header, 80 of 2 bytes


def test_places_are_the_same_however_they_are_spelt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "l").symlink_to("a")
    place = identity("l/")
    assert place == identity("a") == identity(tmp_path / "x" / ".." / "a") == identity(f"file://{tmp_path}/a")
    assert holds(place, "l/x")
    assert holds(place, f"file://{tmp_path}/a")
    assert not holds(place, "ab")
    assert not holds(place, "s3://b/a")
    assert not holds(place, tmp_path)

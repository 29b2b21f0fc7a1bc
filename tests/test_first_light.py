"""Real files through the whole road, against readers that are not ours: fastavro, soundfile and soxr."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import chunkstore
import ingest

pytestmark = pytest.mark.data

fastavro = pytest.importorskip("fastavro")


def records(folder):
    for file in sorted(folder.glob("*.avro")):
        with file.open("rb") as data:
            yield from fastavro.reader(data)


def millis(value):
    return round(value.timestamp() * 1000) if hasattr(value, "timestamp") else int(value)


def numbers(values):
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def test_weather_by_station_has_three_sequences_with_nulls_and_exact_times(shared_data, tmp_path):
    folder = shared_data / "avro" / "weather"
    result = ingest.ingest_avro(
        folder, tmp_path / "w.zarr", sequence_key="station", time="time", workers=0, chunk=1024, shard=4096
    )
    assert result.exit_code == 0
    store = chunkstore.open_store(tmp_path / "w.zarr")
    assert (store.n_sequences, store.n_obs) == (3, 26_115)  # as the data's README says
    # the same rows uncompressed, so that the oracle needs no codec library; six months lack two fields
    told = {}
    for row in records(shared_data / "avro" / "weather-drift"):
        told.setdefault(row["station"], []).append(row)
    assert sorted(store.sequences.ids) == sorted(told)
    for i, station in enumerate(store.sequences.ids):
        a, b = (int(v) for v in store.sequences.offsets[i : i + 2])
        rows = told[station]
        np.testing.assert_array_equal(store.read("time", a, b), [millis(r["time"]) for r in rows])
        for name in set(store.fields) - {"time"}:
            there = np.array([name in r for r in rows])
            assert there.all() == (name not in {"wind_gust", "precip"})
            wanted = numbers(r[name] for r in rows if name in r)
            np.testing.assert_array_equal(store.read(name, a, b)[there], wanted, err_msg=name)
    assert store.fields["time"].units.startswith("milliseconds since 1970-01-01")
    assert any(np.isnan(store.read(f, 0, store.n_obs)).any() for f in set(store.fields) - {"time"})


def test_vowels_by_utterance_have_640_sequences_although_they_cross_files(shared_data, tmp_path):
    folder = shared_data / "avro" / "vowels-steps"
    result = ingest.ingest_avro(
        folder,
        tmp_path / "v.zarr",
        sequence_key="utterance",
        fields="lpc",
        labels="speaker",
        workers=0,
        chunk=256,
        shard=1024,
    )
    assert result.exit_code == 0
    store = chunkstore.open_store(tmp_path / "v.zarr")
    assert store.n_sequences == 640
    assert sorted(store.fields) == sorted(f"lpc.c{i:02d}" for i in range(12))
    told = {}
    for row in records(folder):
        told.setdefault(str(row["utterance"]), []).append(row)
    speakers = store.sequences.column("speaker")
    for i, key in enumerate(store.sequences.ids):
        a, b = (int(v) for v in store.sequences.offsets[i : i + 2])
        rows = told[key]
        assert b - a == len(rows)
        assert str(speakers[i]) == str(rows[0]["speaker"])
        for c in ("c00", "c11"):
            np.testing.assert_array_equal(
                store.read(f"lpc.{c}", a, b),
                np.array([r["lpc"][c] for r in rows], store.fields[f"lpc.{c}"].dtype),
            )


@pytest.mark.parametrize(("per", "sequences"), [("all", 1), ("file", 3)])
def test_gait_by_file_or_as_one(shared_data, tmp_path, per, sequences):
    folder = shared_data / "avro" / "gait"
    result = ingest.ingest_avro(folder, tmp_path / "g.zarr", sequence_per=per, workers=0)
    store = chunkstore.open_store(tmp_path / "g.zarr")
    assert (result.exit_code, store.n_sequences, store.n_obs) == (0, sequences, 7040)
    rows = list(records(folder))
    for name, spec in store.fields.items():
        got = store.read(name, 0, store.n_obs)
        if spec.categories:
            assert [spec.categories[c] for c in got.tolist()] == [r[name] for r in rows]
        elif not hasattr(rows[0][name], "timestamp"):
            np.testing.assert_array_equal(got, numbers(r[name] for r in rows).astype(spec.dtype))


@pytest.mark.parametrize(("per", "sequences"), [("all", 1), ("file", 5)])
def test_heart_by_file_or_as_one(shared_data, tmp_path, per, sequences):
    folder = shared_data / "avro" / "heart"
    result = ingest.ingest_avro(folder, tmp_path / "h.zarr", sequence_per=per, time="time", workers=0)
    store = chunkstore.open_store(tmp_path / "h.zarr")
    assert (result.exit_code, store.n_sequences, store.n_obs) == (0, sequences, 68_476)
    rows = list(records(folder))
    np.testing.assert_array_equal(
        store.read("pulse", 0, store.n_obs),
        numbers(r["pulse"] for r in rows).astype(store.fields["pulse"].dtype),
    )


def test_esc10_has_the_lengths_and_values_of_soundfile_and_soxr(shared_data, tmp_path):
    soundfile, soxr = pytest.importorskip("soundfile"), pytest.importorskip("soxr")
    folder = shared_data / "audio" / "esc10"
    result = ingest.ingest_audio(
        folder, tmp_path / "e.zarr", rate=32_000, dtype="int16", label_from="parent", workers=0, isolate=False
    )
    assert result.exit_code == 0
    store = chunkstore.open_store(tmp_path / "e.zarr")
    assert store.n_sequences == 80
    field = next(iter(store.fields))
    files = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.suffix == ".ogg"}
    labels = store.sequences.column("label")
    assert sorted(store.sequences.ids) == sorted(files)
    for i, key in enumerate(store.sequences.ids):
        a, b = (int(v) for v in store.sequences.offsets[i : i + 2])
        path = files[key]
        assert labels[i] == path.parent.name
        raw, rate = soundfile.read(path, dtype="float32", always_2d=True)
        wanted = soxr.resample(raw.mean(axis=1), rate, 32_000)
        assert b - a == (len(raw) * 32_000 + rate // 2) // rate == len(wanted)
        whole = np.clip(np.rint(wanted.astype(np.float64) * 32768), -32768, 32767)
        np.testing.assert_allclose(store.read(field, a, b).astype(np.int64), whole, atol=1)


def test_plain_xarray_opens_what_was_ingested(shared_data, tmp_path):
    import xarray

    ingest.ingest_avro(shared_data / "avro" / "gait", tmp_path / "g.zarr", sequence_per="file", workers=0)
    with xarray.open_zarr(str(tmp_path / "g.zarr"), chunks=None) as data:
        assert data.sizes["obs"] == 7040
        assert data["rowsize"].attrs["sample_dimension"] == "obs"
        assert list(data["id"].values) == list(chunkstore.open_store(tmp_path / "g.zarr").sequences.ids)


def test_a_local_cluster_makes_the_same_bytes_as_one_process(shared_data, tmp_path):
    folder = shared_data / "avro" / "weather"
    asked = {"sequence_key": "station", "time": "time", "on_disorder": "sort", "chunk": 512, "shard": 2048}
    for name, workers in (("one", 0), ("two", 2)):
        ingest.ingest_avro(folder, tmp_path / f"{name}.zarr", workers=workers, **asked)

    def tree(name):
        root = Path(tmp_path / f"{name}.zarr")
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}

    assert tree("one") == tree("two")

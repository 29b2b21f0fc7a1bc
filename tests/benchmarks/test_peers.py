"""What is compared does the same work: our rows hold what the plain loops hold."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import chunkstore
from benchmarks.compare_audio import subjects as audio_subjects
from benchmarks.compare_growth import subjects as growth_subjects
from benchmarks.compare_ingest import subjects as ingest_subjects
from benchmarks.compare_windows import subjects as window_subjects
from benchmarks.data import Places
from benchmarks.harness import Probe
from benchmarks.peers import audio, growth, ours, tables
from benchmarks.peers.task import Task
from benchmarks.workers import SUBJECTS as WORKERS

SUBJECTS = [
    *WORKERS,
    *(
        subject
        for make in (window_subjects, audio_subjects, ingest_subjects, growth_subjects)
        for subject in make(False)
    ),
]


@pytest.fixture(autouse=True)
def _work(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKSTORE_BENCH_WORK", str(tmp_path))
    for module in (ours, growth):
        monkeypatch.setattr(module, "compiled", lambda kind: None)  # matters to clocks only


@pytest.mark.parametrize("interleaved", [False, True], ids=["a file a device", "interleaved"])
def test_ingested_rows_are_those_of_the_fastavro_loop(interleaved, tmp_path):
    task = tables.AvroTask(files=3, rows=300, repeat=2, devices=2, interleaved=interleaved)
    assert tables.fastavro_npy(task, tmp_path / "loop") == task.n_rows
    assert ours.ingest_avro_here(task, tmp_path / "ours.zarr") == task.n_rows
    store = chunkstore.open_store(tmp_path / "ours.zarr")
    of_device = {str(name): k for k, name in enumerate(store.sequences.ids)}
    at = [store.sequences.offsets[[of_device[k], of_device[k] + 1]] for k in sorted(of_device)]
    for name in tables.FIELDS:
        found = np.concatenate([store.read(name, int(a), int(b)) for a, b in at])
        wanted = np.load(tmp_path / "loop" / f"{name}.npy")
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_our_reader_draws_every_window_once_and_crosses_no_end():
    task = Task(sequences=4, sequence_obs=600, channels=3, length=50, batch_size=16)
    opened = ours.loader(task)
    places = Places(task.n_obs, task.channels)
    drawn = np.concatenate([places.of(opened.first(batch)) for batch in opened.batches()])
    np.testing.assert_array_equal(np.sort(drawn), task.start_of(np.arange(task.n_windows)))


def test_a_crop_of_ours_is_a_stretch_of_one_recording():
    task = audio.AudioTask(recordings=3, frames=2000, batch_size=4)
    batch = next(iter(ours.crops(task).batches()))
    assert batch.shape == (4, 2000)
    whole = np.concatenate([audio.sound(task, k) for k in range(3)]).astype(np.float32) / 32768
    windows = np.lib.stride_tricks.sliding_window_view(whole, 2000)
    starts = np.flatnonzero((windows[:, :8] == batch[0, :8]).all(axis=1))
    assert any(np.array_equal(windows[s], batch[0]) for s in starts)


def test_seeking_readers_give_the_samples_that_were_asked_for():
    task = audio.AudioTask(recordings=3, frames=2000, batch_size=4, suffix="flac")
    whole = np.concatenate([audio.sound(task, k) for k in range(3)]).astype(np.float32) / 32768
    windows = np.lib.stride_tricks.sliding_window_view(whole, 2000)
    for reader in (audio.soundfile_seek, audio.decode_all, audio.npy_open, audio.npy_kept):
        crop = next(iter(reader(task).batches()))[0]
        starts = np.flatnonzero((windows[:, :8] == crop[:8]).all(axis=1))
        assert any(np.array_equal(windows[s], crop) for s in starts), reader.__name__


def test_growth_measures_set_up_first_batch_rate_and_axis():
    probe = Probe(0.1)
    growth.ours(probe, "lanes", 4, obs=1 << 14, sequences=4, length=64, batch_size=8, seconds=1.0)
    assert {"setup_s", "first_batch_s", "per_s"} <= set(probe.lists)
    assert probe.values["value"] == 4


def test_every_subject_names_functions_that_exist():
    for subject in SUBJECTS:
        for text in (subject.target, *(v for v in subject.params.values() if ":" in str(v))):
            module, function = text.split(":")
            module = module if module.startswith("benchmarks.") else f"benchmarks.peers.{module}"
            assert callable(getattr(importlib.import_module(module), function)), subject


def test_no_two_rows_of_a_table_have_one_name():
    rows = [(s.target.split(":")[0], s.table, s.name) for s in SUBJECTS]
    assert len(set(rows)) == len(rows)

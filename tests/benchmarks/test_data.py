"""Generated data: the same for everybody, and every window can be told by its first values."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.data import Places, recording
from benchmarks.peers import arrays
from benchmarks.peers.task import Task

SMALL = Task(sequences=4, sequence_obs=600, channels=3, length=50, batch_size=16)


@pytest.fixture(autouse=True)
def _work(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKSTORE_BENCH_WORK", str(tmp_path))


def test_a_recording_is_made_once_and_does_not_depend_on_its_length():
    short, long = (np.load(recording(n, 2)) for n in (1000, 300_000))
    np.testing.assert_array_equal(short, long[:1000])
    assert short.dtype == np.float32


def test_four_values_tell_where_a_window_starts():
    x = np.load(recording(5000, 2))[:, 0]
    at = np.array([0, 17, 4990])
    np.testing.assert_array_equal(Places(5000, 2).of(np.stack([x[a : a + 4] for a in at])), at)


def test_values_that_are_nowhere_are_said_to_be_nowhere():
    assert Places(5000, 2).of(np.full((1, 4), 7.9)).tolist() == [-1]


@pytest.mark.parametrize("reader", [arrays.memory, arrays.memmap_fancy, arrays.memmap_dataloader])
def test_the_plain_readers_draw_every_window_once_and_cross_no_end(reader):
    opened = reader(SMALL)
    places = Places(SMALL.n_obs, SMALL.channels)
    drawn = np.concatenate([places.of(opened.first(batch)) for batch in opened.batches()])
    np.testing.assert_array_equal(np.sort(drawn), SMALL.start_of(np.arange(SMALL.n_windows)))

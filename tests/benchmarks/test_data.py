"""Generated data: the same for everybody, and every window can be told by its first values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.compare_windows import counted
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


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 20))
def test_who_leaves_out_a_few_at_random_is_counted_alike_each_time(seed, left_out, crossing):
    rng, places = np.random.default_rng(seed), 40 + crossing
    times = np.ones((3, places), np.int64)
    for k, epoch in enumerate(times):  # others each time
        epoch[(seed + k * left_out + np.arange(left_out)) % places] = 0
    found = counted(times, rng.choice(places, 40, replace=False))
    assert (found["missed"], found["crossing"], found["repeated"]) == (left_out, crossing, 0)
    assert not found["exactly_once"]


def test_an_epoch_with_every_window_once_and_no_other_is_exactly_once():
    found = counted(np.array([[0, 1, 1, 1, 0]]), np.array([1, 2, 3]))
    assert found == {"drawn": 3, "missed": 0, "repeated": 0, "crossing": 0, "exactly_once": True}
    twice = counted(np.array([[0, 1, 2, 1, 0]]), np.array([1, 2, 3]))
    assert (twice["repeated"], twice["exactly_once"]) == (1, False)

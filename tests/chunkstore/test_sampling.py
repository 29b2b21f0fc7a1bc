"""What an epoch draws: all windows, n of each sequence, or weighted ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import ConfigError
from chunkstore.sampling import PerSequence, Weighted, n_draws, parse_sampling, population
from chunkstore.schedule import Blocks
from chunkstore.segments import cut_segments
from chunkstore.windows import WindowIndex, WindowSpec


def made(rowsizes, length=4, block=8, stride=1, gaps=None, phase=0):
    offsets = np.concatenate([[0], np.cumsum(rowsizes)])
    gaps = None if gaps is None else np.array(gaps)
    index = WindowIndex(cut_segments(offsets, gaps=gaps), WindowSpec(length, stride=stride, phase=phase))
    return index, Blocks.of(index, [block], [int(offsets[-1])])


def drawn(index, blocks, sampling, epoch=0, seed=0):
    items = population(index, blocks, sampling, seed=seed, epoch=epoch)
    ids = items.windows(np.arange(items.counts.sum()))
    at = items.index.locate(ids)
    block = np.repeat(np.arange(len(blocks)), items.counts)
    assert (blocks.start[block] <= at.start).all()
    assert (at.start < blocks.stop[block]).all()
    return ids, at


rowsizes = st.lists(st.integers(1, 40), min_size=1, max_size=6).filter(lambda r: max(r) >= 4)


@given(rowsizes, st.integers(1, 3), st.sampled_from([3, 8, 50]))
def test_all_draws_every_window_once_and_each_in_its_block(sizes, stride, block):
    index, blocks = made(sizes, stride=stride, block=block)
    ids, _ = drawn(index, blocks, "all")
    assert ids.tolist() == list(range(index.n_windows))


@given(rowsizes, st.integers(1, 5), st.integers(0, 5))
def test_per_sequence_draws_n_of_each_and_none_twice_while_there_are_enough(sizes, n, epoch):
    index, blocks = made(sizes, gaps=[[2, 3]] if sizes[0] > 12 else None)
    ids, at = drawn(index, blocks, PerSequence(n), epoch)
    assert len(ids) == n_draws(index, PerSequence(n))
    for sequence in range(len(sizes)):
        have = (index.locate(np.arange(index.n_windows)).sequence == sequence).sum()
        mine = ids[at.sequence == sequence]
        assert len(mine) == (n if have else 0)
        assert len(np.unique(mine)) == min(n, have)


def test_per_sequence_differs_between_epochs_and_sequences_and_not_between_calls():
    index, blocks = made([1000] * 20, block=64)
    a, b = (drawn(index, blocks, PerSequence(1), epoch)[1] for epoch in (0, 1))
    assert (a.start != b.start).any()
    assert len(np.unique(a.start % 1000)) > 15
    assert (drawn(index, blocks, PerSequence(1), 0)[1].start == a.start).all()


def test_every_crop_of_a_sequence_is_equally_likely():
    index, blocks = made([13], length=4)  # ten windows
    starts = [int(drawn(index, blocks, PerSequence(1), epoch)[1].start[0]) for epoch in range(2000)]
    found = np.bincount(starts, minlength=10)
    assert np.abs(found - 200).max() < 6 * np.sqrt(200)


def test_weights_share_draws_in_proportion():
    index, blocks = made([100, 100, 100, 100], length=1)
    _, at = drawn(index, blocks, Weighted([0.0, 1.0, 2.0, 5.0], n=8000))
    assert np.bincount(at.sequence, minlength=4).tolist() == pytest.approx([0, 1000, 2000, 5000], abs=30)


def test_weights_of_sequences_do_not_depend_on_their_lengths():
    index, blocks = made([10, 1000], length=1)
    _, at = drawn(index, blocks, Weighted([1.0, 1.0], n=1000, by="sequence"))
    assert np.bincount(at.sequence).tolist() == pytest.approx([500, 500], abs=20)


def test_weighted_draws_repeat_and_cover_a_sequence_evenly():
    index, blocks = made([50], length=1, block=7)
    ids, _ = drawn(index, blocks, Weighted([1.0], n=50_000))
    found = np.bincount(ids, minlength=50)
    assert np.abs(found - 1000).max() < 6 * np.sqrt(1000)


def test_several_stores_take_a_list_of_weights():
    segments = [cut_segments(np.array([0, 10])), cut_segments(np.array([0, 5, 10]))]
    index = WindowIndex(segments, WindowSpec(1))
    blocks = Blocks.of(index, [4, 4], [10, 10])
    _, at = drawn(index, blocks, Weighted([[0.0], [1.0, 3.0]], n=400))
    assert set(at.store) == {1}
    assert np.bincount(at.sequence).tolist() == pytest.approx([100, 300], abs=10)


def test_a_random_phase_moves_windows_every_epoch_and_never_their_number():
    index, blocks = made([100, 31], length=5, stride=6, phase="random")
    starts = {tuple(drawn(index, blocks, "all", epoch)[1].start % 6) for epoch in range(20)}
    assert len(starts) > 10


@pytest.mark.parametrize("word", ["some", "per_sequence=x", {"per": 3}, {"weights": [1], "m": 3}, 7])
def test_words_that_mean_nothing_are_refused(word):
    with pytest.raises(ConfigError, match="not known"):
        parse_sampling(word)


def test_short_forms_mean_what_they_say():
    assert parse_sampling(None) == "all"
    assert parse_sampling("per_sequence") == PerSequence(1)
    assert parse_sampling({"per_sequence": 4}) == PerSequence(4)
    assert parse_sampling({"weights": [1, 2], "n": 5}).n == 5


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ([1.0], "1 weights but a sequence"),
        ([1.0, -1.0], "from 0"),
        ([0.0, 0.0], "nothing to draw"),
        ([[1.0], [1.0]], "2 stores"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, match):
    index, blocks = made([10, 10])
    with pytest.raises(ConfigError, match=match):
        drawn(index, blocks, Weighted(weights))


@pytest.mark.parametrize(
    "value", ["per_sequence=²", {"per_sequence": 2.7}, {"per_sequence": "3"}, {"per_sequence": True}]
)
def test_a_number_of_windows_is_a_whole_number(value):
    with pytest.raises(ConfigError):
        parse_sampling(value)
    with pytest.raises(ConfigError, match="whole number of draws"):
        Weighted([1.0], n=2.5)
    assert parse_sampling({"per_sequence": np.int64(3)}) == PerSequence(3)

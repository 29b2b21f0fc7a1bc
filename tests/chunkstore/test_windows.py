"""Window ids by arithmetic, against an oracle that lists every window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.errors import ConfigError
from chunkstore.segments import Segments, cut_segments
from chunkstore.windows import WindowIndex, WindowSpec


@st.composite
def stores_of_segments(draw):
    stores = []
    for _ in range(draw(st.integers(1, 3))):
        at, rows = 0, []
        for sequence in range(draw(st.integers(0, 4))):
            at += draw(st.sampled_from([0, 0, 1, 3]))
            length = draw(st.integers(1, 15))
            rows.append((sequence, at, at + length))
            at += length
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        stores.append(Segments(*columns))
    return stores


specs = st.builds(
    WindowSpec,
    length=st.integers(1, 6),
    stride=st.integers(1, 5),
    horizon=st.integers(0, 3),
    short=st.sampled_from(["drop", "pad"]),
    phase=st.integers(0, 3),
)


def every_window(stores, spec):
    for number, segments in enumerate(stores):
        for sequence, start, stop in zip(segments.sequence, segments.start, segments.stop, strict=True):
            if stop - start < spec.span:
                if spec.short == "pad":
                    yield number, sequence, start
                continue
            for at in range(start + spec.phase, stop - spec.span + 1, spec.stride):
                yield number, sequence, at


@given(stores_of_segments(), specs)
@settings(max_examples=300)
def test_ids_run_through_all_windows_in_order_and_back(stores, spec):
    index = WindowIndex(stores, spec)
    want = list(every_window(stores, spec))
    assert index.n_windows == len(want)
    at = index.locate(np.arange(index.n_windows))
    assert list(zip(at.store, at.sequence, at.start, strict=True)) == want
    assert (index.ids_of(at.store, at.start) == np.arange(len(want))).all()


@given(stores_of_segments(), specs, st.integers(0, 2), st.integers(0, 80))
@settings(max_examples=300)
def test_counts_before_an_obs_and_ids_of_any_place_agree_with_the_list(stores, spec, number, obs):
    number %= len(stores)
    index = WindowIndex(stores, spec)
    want = [(s, at) for s, _, at in every_window(stores, spec)]
    assert index.count_before(number, obs) == sum(w < (number, obs) for w in want)
    assert index.ids_of(number, obs) == (want.index((number, obs)) if (number, obs) in want else -1)


@given(stores_of_segments(), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32))
def test_a_random_phase_keeps_the_number_of_windows_and_every_border(stores, length, stride, seed):
    index = WindowIndex(stores, WindowSpec(length, stride=stride, phase="random"))
    drawn = index.with_phase(np.random.default_rng(seed).integers(0, 2**64, len(index.start), np.uint64))
    assert drawn.n_windows == index.n_windows
    at = drawn.locate(np.arange(drawn.n_windows))
    segment = drawn.segment_of(np.arange(drawn.n_windows))
    assert (at.start >= index.start[segment]).all()
    assert (at.start + length <= index.stop[segment]).all()
    assert (np.diff(at.start)[np.diff(segment) == 0] == stride).all()


def test_every_phase_of_a_long_segment_is_drawn():
    segments = cut_segments(np.array([0, 1000]))
    index = WindowIndex(segments, WindowSpec(10, stride=7, phase="random"))
    keys = np.random.default_rng(0).integers(0, 2**64, 300, np.uint64)
    assert {int(index.with_phase(keys[i : i + 1]).offset[0]) for i in range(300)} == set(range(7))


def test_memory_follows_segments_and_never_windows():
    segments = cut_segments(np.array([0, 10**11]))
    index = WindowIndex(segments, WindowSpec(512))
    assert index.n_windows == 10**11 - 511
    assert index.locate([index.n_windows - 1]).start.tolist() == [10**11 - 512]
    assert sum(v.nbytes for v in vars(index).values() if isinstance(v, np.ndarray)) < 1000


def test_a_million_sequences_of_one_obs():
    index = WindowIndex(cut_segments(np.arange(1_000_001)), WindowSpec(1))
    assert index.locate([999_999]).sequence.tolist() == [999_999]


def test_short_segments_are_dropped_padded_or_refused():
    segments = cut_segments(np.array([0, 3, 10]))
    assert WindowIndex(segments, WindowSpec(5)).n_windows == 3
    padded = WindowIndex(segments, WindowSpec(5, short="pad"))
    assert padded.n_windows == 4
    assert padded.locate([0]).room.tolist() == [3]
    with pytest.raises(ConfigError, match=r"1 of 2 segments are shorter than a window of 5 obs .* has 3"):
        WindowIndex(segments, WindowSpec(5, short="error"))


@pytest.mark.parametrize(
    "options",
    [{"length": 0}, {"length": 3, "stride": 0}, {"length": 3, "horizon": -1}, {"length": 3, "phase": -1}],
)
def test_a_window_that_cannot_be_is_refused(options):
    with pytest.raises(ConfigError):
        WindowSpec(**options)


def test_ids_outside_the_index_are_refused():
    index = WindowIndex(cut_segments(np.array([0, 9])), WindowSpec(3))
    with pytest.raises(IndexError, match="range"):
        index.locate([7])


@pytest.mark.parametrize("lengths", [(2.5, 1, 0), (2, 0.5, 0), (2, 1, 1.0), (True, 1, 0)])
def test_lengths_are_whole_numbers(lengths):
    with pytest.raises(ConfigError, match="whole numbers of obs"):
        WindowSpec(lengths[0], stride=lengths[1], horizon=lengths[2])
    assert WindowSpec(np.int64(4), stride=np.int32(2)).span == 4

"""Samples say how much they were made from, and stay small."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chunkstore
from chunkstore import FieldSpec, survey


@given(n=st.integers(1, 10_000), chunk=st.integers(1, 500), most=st.integers(1, 40))
def test_spread_chunks_are_whole_distinct_and_reach_both_ends(n, chunk, most):
    found = survey.spread_chunks(n, chunk, most)
    assert len(found) <= most
    assert len(set(found)) == len(found)
    assert found[0][0] == 0
    assert all(a % chunk == 0 and b in (a + chunk, n) for a, b in found)
    if most > 1:
        assert found[-1][1] == n


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_no_value_is_lost_in_a_histogram(values):
    h = survey.histogram(np.array(values))
    assert int(h.counts.sum()) + h.beyond == len(values)
    assert (np.diff(h.edges) > 0).all()


def test_a_few_extremes_do_not_squeeze_the_rest():
    values = np.random.default_rng(0).normal(size=100_000)
    values[:5] = 1e9
    h = survey.histogram(values)
    assert h.beyond >= 5
    assert h.edges[-1] < 10


def test_lengths_over_decades_get_bins_that_grow():
    assert survey.histogram(np.geomspace(1, 1e6, 500)).log


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    with chunkstore.StoreWriter(
        tmp_path / "s.zarr", fields=[FieldSpec("x", "float32")], chunk=16, shard=64
    ) as out:
        for i in range(50):
            values = rng.normal(size=20 + i)
            values[0] = np.nan
            out.write(f"s{i}", {"x": values}, labels={"kind": "ab"[i % 5 == 0], "name": f"n{i}"})
    return chunkstore.open_store(tmp_path / "s.zarr")


def test_a_small_sample_says_what_it_left_out(store):
    sample = survey.field_sample(store, "x", budget=4 * 16 * 4)
    assert 48 < sample.obs <= 64  # the last chunk is short
    assert f"from {sample.obs} of {store.n_obs:,} obs" in sample.note
    assert not np.isnan(sample.values).any()


def test_a_sample_of_everything_says_nothing(store):
    sample = survey.field_sample(store, "x")
    assert sample.note == ""
    assert len(sample.values) == store.n_obs - 50


def test_label_balance_counts_sequences_and_obs(store):
    balance = survey.label_balance(store, "kind")
    assert balance.values == ["a", "b"]
    assert balance.sequences == [40, 10]
    assert sum(balance.obs) == store.n_obs


def test_a_label_of_its_own_for_each_sequence_has_no_balance(store):
    assert survey.label_balance(store, "name") is None


def test_missing_data_is_where_it_is(store):
    missing = survey.missing_over_obs(store, ["x"], bins=100)
    lengths = np.diff(np.append(missing.start, store.n_obs))
    assert round(float((missing.fraction[0] * lengths).sum())) == 50


@given(count=st.integers(0, 60), seed=st.integers(0, 5))
def test_examples_are_distinct_and_include_the_longest(count, seed):
    class Table:
        rowsize = np.arange(50)

    class Fake:
        sequences = Table

    found = survey.example_sequences(Fake, count, seed)
    assert len(found) == len(set(found)) == min(count, 49)
    assert 0 not in found
    assert count == 0 or 49 in found


def test_each_sequence_is_heard_at_its_own_rate():
    with chunkstore.StoreWriter("memory://survey-rates", {"x": "f4", "v": "2f4"}, overwrite=True) as out:
        for name, rate in (("slow", 100.0), ("a", 8000.0), ("b", 16000.0)):
            out.write(name, {"x": [0.0], "v": [[0.0, 0.0]]}, columns={"sample_rate": rate})
    store = chunkstore.open_store("memory://survey-rates")
    assert survey.audio_rate(store, "x") == 8000
    assert [survey.audio_rate(store, "x", i) for i in range(3)] == [None, 8000, 16000]
    assert survey.audio_rate(store, "v") is None


def test_a_histogram_spans_all_that_a_float_can_say():
    h = survey.histogram(np.array([-1.7e308, 0.0, 1.7e308]))
    assert h.counts.sum() + h.beyond == 3
    assert np.isfinite(h.edges).all()

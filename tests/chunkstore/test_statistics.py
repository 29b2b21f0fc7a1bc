"""Statistics are exact to the rounding of float64, however the values come in pieces."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chunkstore import ConfigError, FormatError, StoreWriter, open_store
from chunkstore.statistics import FieldStatistics


def exact(values: list[float]) -> tuple[float, float]:
    """Mean and std in rational arithmetic."""
    parts = [Fraction(v) for v in values]
    mean = sum(parts) / len(parts)
    variance = sum((p - mean) ** 2 for p in parts) / len(parts)
    return float(mean), math.sqrt(float(variance))


@settings(max_examples=150, deadline=None)
@given(
    values=hnp.arrays("f8", st.integers(1, 60), elements=st.floats(-1e6, 1e6, width=64)),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    shift=st.sampled_from([0.0, 1e9]),
)
def test_merged_statistics_are_those_of_the_whole(values, cuts, shift):
    values = values + shift
    merged = FieldStatistics.empty()
    for part in np.split(values, sorted(c for c in cuts if c < len(values))):
        merged = merged.merge(FieldStatistics.from_values(part))
    mean, std = exact(values.tolist())
    scale = float(np.abs(values).max()) or 1.0
    assert merged.count == len(values)
    assert (merged.min, merged.max) == (values.min(), values.max())
    assert merged.mean == pytest.approx(mean, rel=1e-14, abs=1e-14 * scale)
    assert merged.std == pytest.approx(std, rel=1e-9, abs=4e-16 * scale * 8)


@settings(max_examples=60, deadline=None)
@given(values=hnp.arrays("f4", (7, 3)) | hnp.arrays("i8", 20) | hnp.arrays("f8", 9))
def test_json_carries_every_bit(values):
    stats = FieldStatistics.from_values(values)
    assert FieldStatistics.from_json(json.loads(json.dumps(stats.to_json(), allow_nan=False))) == stats


def test_nulls_and_infinities_are_counted_and_left_out():
    stats = FieldStatistics.from_values(np.array([1, np.nan, np.inf, -np.inf, 3.0]))
    assert (stats.count, stats.nulls, stats.infinite, stats.min, stats.max) == (4, 1, 2, -math.inf, math.inf)
    assert (stats.mean, stats.std) == (2.0, 1.0)


def test_integers_keep_every_digit_of_their_extremes():
    values = np.array([2**63 - 1, -(2**63), 5], dtype=np.int64)
    stats = FieldStatistics.from_values(values, np.array([True, True, False]))
    assert (stats.min, stats.max, stats.count, stats.nulls) == (-(2**63), 2**63 - 1, 2, 1)


def test_vectors_have_one_entry_an_item():
    stats = FieldStatistics.from_values(np.array([[1.0, 10.0], [3.0, np.nan]]))
    assert stats.mean == [2.0, 10.0]
    assert stats.nulls == [0, 1]
    assert FieldStatistics.empty(2).std == [None, None]


def test_no_values_have_no_extremes():
    stats = FieldStatistics.from_values(np.array([np.nan]))
    assert (stats.count, stats.min, stats.mean, stats.std) == (0, None, None, None)


def test_statistics_of_other_shapes_do_not_merge():
    with pytest.raises(ConfigError):
        FieldStatistics.empty().merge(FieldStatistics.empty(2))
    with pytest.raises(ConfigError):
        FieldStatistics.from_values(np.zeros(3), np.ones(2, bool))


@pytest.mark.parametrize("found", [{}, {"count": "a"}, [], {"count": -1}, {"count": [1], "nulls": 0}, None])
def test_damaged_statistics_are_refused(found):
    with pytest.raises(FormatError):
        FieldStatistics.from_json(found)


def test_the_writer_gathers_them_leaving_gaps_out(tmp_path):
    rng = np.random.default_rng(2)
    values = rng.normal(5, 2, 5000).astype("f4")
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4"}, chunk=64, shard=256) as out:
        out.write("a", {"x": values[:3000]}, gaps=[(100, 600)])
        out.write("b", {"x": values[3000:]})
    kept = np.delete(values, slice(100, 600)).astype("f8")
    stats = open_store(tmp_path / "a.zarr").statistics["x"]
    assert stats.count == 4500
    assert stats.mean == pytest.approx(kept.mean(), rel=1e-13)
    assert stats.std == pytest.approx(kept.std(), rel=1e-12)

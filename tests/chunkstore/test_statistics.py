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
from chunkstore.statistics import FieldStatistics, Gathering


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


KINDS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">f8", ">i8", ">i2"]
#: a little less, as much, and more than is summed at once
LENGTHS = [1, 63, 64, 255, 256, 4095, 4096, 4097, 3 * 4096 + 17, 9 * 4096]


def strange(kind: str, shape: tuple[int, ...], seed: int, special: bool) -> np.ndarray:
    """Values of every magnitude that a dtype has; with NaN and infinities if it has them."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(kind)
    if dtype.kind != "f":
        return random.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0] & (
            dtype.type(1) if dtype.kind == "b" else dtype.type(-1 if dtype.kind == "i" else ~np.uint64(0))
        )
    values = (random.standard_normal(shape) * 10 ** random.uniform(-3, 3, shape)).astype(dtype)
    if special:
        values[random.random(shape) < 0.01] = np.nan
        values[random.random(shape) < 0.01] = np.inf
        values[random.random(shape) < 0.01] = -np.inf
    return values


def told(values: np.ndarray, valid: np.ndarray | None) -> dict[str, object]:
    """Statistics of one item by another way: masks and whole numpy arrays, sums without rounding."""
    kept = np.ones(len(values), bool) if valid is None else valid
    known = values[kept & ~(np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool))]
    finite = known[np.isfinite(known)] if values.dtype.kind == "f" else known
    found = {
        "count": len(known),
        "nulls": len(values) - len(known),
        "infinite": len(known) - len(finite),
        "min": known.min().item() if len(known) else None,
        "max": known.max().item() if len(known) else None,
        "mean": None,
        "std": None,
    }
    if len(finite):
        whole = [int(v) if values.dtype.kind != "f" else float(v) for v in finite]
        origin = whole[0]
        off = [v - origin for v in whole] if values.dtype.kind != "f" else whole
        mean = Fraction(sum(map(Fraction, off))) / len(off)
        near = float(mean)
        square = math.fsum((float(v) - near) ** 2 for v in off)
        found["mean"] = float(mean + origin) if values.dtype.kind != "f" else near
        found["std"] = math.sqrt(square / len(off))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [False, True])
def test_every_dtype_is_counted_as_another_way_counts_it(kind, masked):
    for seed, n in enumerate(LENGTHS):
        values = strange(kind, (n,), seed, special=seed % 2 == 0)
        valid = np.random.default_rng(seed).random(n) < 0.7 if masked else None
        stats, other = FieldStatistics.from_values(values, valid), told(values, valid)
        for name in ("count", "nulls", "infinite", "min", "max"):
            assert getattr(stats, name) == other[name], (name, n)
            assert type(getattr(stats, name)) is type(other[name])
        if other["mean"] is None:
            assert stats.mean is stats.std is None
            continue
        scale = max(abs(float(v)) for v in (stats.min, stats.max) if math.isfinite(v)) if n < 64 else None
        assert stats.mean == pytest.approx(other["mean"], rel=1e-13, abs=1e-13 * (scale or other["std"]))
        assert stats.std == pytest.approx(other["std"], rel=1e-11)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.sampled_from([(), (), (1,), (3,), (40,)]),
    n=st.integers(0, 3 * 4096),
    cuts=st.lists(st.integers(0, 3 * 4096), max_size=5),
    gaps=st.sampled_from(["none", "all", "rows", "items"]),
    seed=st.integers(0, 99),
)
def test_however_values_are_cut_and_laid_the_bits_are_the_same(kind, shape, n, cuts, gaps, seed):
    n //= 8 if shape == (40,) else 1
    values = strange(kind, (n, *shape), seed, special=seed % 3 == 0)
    random = np.random.default_rng(seed)
    valid = {
        "none": None,
        "all": np.ones(n, bool),
        "rows": random.random(n) < 0.9,
        "items": random.random((n, *shape)) < 0.9,
    }[gaps]
    items = shape[0] if shape else 0
    whole = FieldStatistics.from_values(values, valid) if n else FieldStatistics.empty(items)
    gathering = Gathering(items)
    for rows in np.split(np.arange(n), sorted(c for c in cuts if c < n)):
        piece = np.repeat(values[rows], 2, axis=0)[::2]  # strided
        kept = None if valid is None else valid[rows]
        if kept is not None and kept.all():
            kept = None  # no mask says the same as one that is true
        gathering.add(piece, kept)
    assert repr(gathering.result().to_json()) == repr(whole.to_json())
    assert repr(gathering.result()) == repr(whole)
    for i in range(min(items, 16) if items < 16 else 0):  # of longer vectors fewer rows are summed at once
        keep = valid if valid is None or valid.ndim == 1 else valid[:, i]
        assert FieldStatistics.from_values(values[:, i], keep)._items().__next__() == tuple(whole._items())[i]


def test_a_source_may_keep_its_values_from_being_written_to():
    values, valid = np.arange(5000.0), np.arange(5000) % 3 > 0
    fixed, kept = values.copy(), valid.copy()
    fixed.flags.writeable = kept.flags.writeable = False
    assert FieldStatistics.from_values(fixed, kept) == FieldStatistics.from_values(values, valid)
    assert values.flags.writeable
    assert valid.flags.writeable


def test_values_at_the_end_of_float64_have_a_mean():
    top = np.finfo("f8").max
    values = np.concatenate([np.full(5000, top), np.full(5000, -top)])
    stats = FieldStatistics.from_values(values)
    assert (stats.min, stats.max) == (-top, top)
    assert abs(stats.mean) < top / 1e10
    assert math.isinf(stats.std)
    assert FieldStatistics.from_values(values[:5000]).mean == pytest.approx(top, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_a_spread_too_large_to_square_is_infinite_and_not_nothing(seed):
    values = np.random.default_rng(seed).normal(size=255) * 1e300 + 1e300
    found = FieldStatistics.from_values(values)
    assert math.isinf(found.std)
    assert FieldStatistics.from_json(found.to_json()) == found


def test_little_spread_on_large_values_is_seen():
    random = np.random.default_rng(0)
    noise = random.standard_normal(1_000_000) / 1024
    stats = FieldStatistics.from_values(noise + 1e6)
    exactly = (noise + 1e6) - 1e6
    assert stats.std == pytest.approx(float(exactly.std()), rel=1e-11)
    assert stats.mean == pytest.approx(1e6 + math.fsum(exactly) / noise.size, rel=1e-15)


def test_statistics_go_on_after_they_were_asked_for():
    gathering = Gathering()
    for piece in np.split(np.arange(9000.0), [4000, 5000]):
        gathering.add(piece)
        gathering.result()
    assert gathering.result() == FieldStatistics.from_values(np.arange(9000.0))


def test_a_change_of_dtype_loses_nothing():
    gathering = Gathering()
    gathering.add(np.arange(10, dtype="i2"))
    gathering.add(np.array([0.5, 20.5]))
    found = gathering.result()
    assert (found.count, found.min, found.max, found.mean) == (12, 0, 20.5, 5.5)


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

"""Scales of channels, and windows standardised by themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import ConfigError, UnknownNameError
from chunkstore.normalize import ChannelScale, Standardize, channel_scale, merge_moments

FIELDS = [("temp", 0), ("lpc", 2)]


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), min_size=1, max_size=5))
def test_moments_of_parts_are_those_of_the_whole(parts):
    mean, std = merge_moments([(len(p), [np.mean(p)], [np.std(p)]) for p in parts])
    whole = np.concatenate(parts)
    assert np.allclose(mean, whole.mean(), atol=1e-6)
    assert np.allclose(std, whole.std(), atol=1e-4)


def test_statistics_of_the_stores_make_the_scale():
    stats = {"temp": (10, 1.0, 2.0), "lpc": ([10, 10], [0.0, 5.0], [1.0, 3.0])}
    scale = channel_scale("store", FIELDS, [stats])
    assert scale.mean.tolist() == [1.0, 0.0, 5.0]
    assert scale.std.tolist() == [2.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("given_", "mean", "std"),
    [
        ({"temp": (4, 2)}, [4, 0, 0], [2, 1, 1]),
        ({"lpc": ([1, 2], 3)}, [0, 1, 2], [1, 3, 3]),
        ((0.5, 2.0), [0.5] * 3, [2] * 3),
        (([1, 2, 3], [4, 5, 6]), [1, 2, 3], [4, 5, 6]),
    ],
    ids=["one field", "items of a vector", "all channels alike", "each channel"],
)
def test_given_numbers_make_the_scale(given_, mean, std):
    scale = channel_scale(given_, FIELDS, [])
    assert scale.mean.tolist() == mean
    assert scale.std.tolist() == std


@pytest.mark.parametrize("nothing", [None, False])
def test_nothing_asked_for_is_no_scale(nothing):
    assert channel_scale(nothing, FIELDS, []) is None


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        ("tore", ConfigError, "none of"),
        (
            {"rain": (0, 1)},
            UnknownNameError,
            "'rain', which is no field of the windows; those are: temp, lpc",
        ),
        (([1, 2], [1, 2]), ConfigError, "2 numbers for 3 channels"),
        ({"temp": 3}, ConfigError, "must be a pair"),
        ("store", ConfigError, "no statistics|have no statistics"),
        ((0.0, float("nan")), ConfigError, "finite"),
    ],
)
def test_what_cannot_be_a_scale_is_refused(bad, error, text):
    with pytest.raises(error, match=text):
        channel_scale(bad, FIELDS, [{}])


def test_a_channel_that_never_changes_is_only_shifted():
    scale = ChannelScale(np.array([3.0]), np.array([0.0]))
    assert scale.factor[0] * 3.0 + scale.shift[0] == 0.0


@pytest.mark.parametrize("channels", ["first", "last"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_each_window_is_standardised_over_its_valid_obs_alone(kind, channels):
    rng = np.random.default_rng(7)
    x = rng.normal(5, 3, (4, 2, 9)).astype(np.float32)
    length = np.array([9, 4, 9, 1])
    for row, n in enumerate(length):
        x[row, :, n:] = 0
    expected = np.zeros_like(x)
    for row, n in enumerate(length):
        part = x[row, :, :n].astype(np.float64)
        expected[row, :, :n] = (part - part.mean(1, keepdims=True)) / np.sqrt(
            part.var(1, keepdims=True) + 1e-8
        )
    if channels == "last":
        x, expected = x.swapaxes(1, 2), expected.swapaxes(1, 2)
    batch = {"x": x.copy(), "length": length}
    if kind == "torch":
        batch = {k: torch.from_numpy(v) for k, v in batch.items()}
    before = batch["x"] + 0
    out = Standardize(channels=channels)(batch)["x"]
    assert out.dtype == batch["x"].dtype
    assert np.allclose(np.asarray(out), expected, atol=2e-3)
    assert bool((batch["x"] == before).all())

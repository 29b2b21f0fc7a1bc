"""Scales on tensors: the same numbers wherever a batch lives, and no threads of torch for it."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.normalize import ChannelScale
from chunkstore.torch.tensors import CACHED, ScaleTensors

SCALE = ChannelScale(mean=np.array([1.0, -2.0, 0.5]), std=np.array([2.0, 0.0, 4.0]))


@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 900)),
    dtype=st.sampled_from(["float32", "float64"]),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_channels_are_scaled_and_padding_stays_zero(shape, dtype, last, seed):
    rows, width = shape
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3, width)).astype(dtype)
    length = rng.integers(1, width + 1, rows)
    x *= np.arange(width) < length[:, None, None]
    # the formula of the docs, in float64: (x - mean) / std, only shifted where nothing changes
    wanted = (x - SCALE.mean[:, None]) / np.array([2.0, 1.0, 4.0])[:, None]
    wanted *= np.arange(width) < length[:, None, None]
    given_ = np.ascontiguousarray(x.swapaxes(1, 2)) if last else x
    got = given_.copy()
    scale = ScaleTensors(SCALE, "last" if last else "first")
    scale.apply(torch.from_numpy(got), length)
    assert np.allclose(got.swapaxes(1, 2) if last else got, wanted, atol=1e-5)


def test_a_view_that_is_not_in_one_piece_is_scaled_in_place():
    whole = torch.zeros(4, 3, 10)
    ScaleTensors(SCALE, "last").apply(whole.transpose(1, 2), np.full(4, 10))
    assert torch.equal(whole[0, :, 0], torch.tensor([-0.5, 2.0, -0.125]))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_scaling_starts_no_thread():
    x, valid = torch.ones(64, 3, CACHED // 4), np.full(64, CACHED // 4)
    before = set(os.listdir("/proc/self/task"))
    ScaleTensors(SCALE, "first").apply(x, valid)
    assert set(os.listdir("/proc/self/task")) <= before

"""Windows cut from an arena equal slices taken one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.gather import cut_stack, cut_windows

DTYPES = [
    ("int16", "float32"),
    ("float32", "float32"),
    ("float64", "float32"),
    ("int64", "int64"),
    ("uint8", "float64"),
]


@pytest.mark.parametrize(("stored", "given_out"), DTYPES)
@pytest.mark.parametrize("items", [0, 1, 3])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("scale", [None, 0.25])
@given(data=st.data())
@settings(max_examples=10)
def test_a_batch_equals_its_slices(data, stored, given_out, items, last, scale):
    if scale is not None and np.dtype(given_out).kind != "f":
        return
    width = data.draw(st.integers(1, 9))
    starts = np.array(data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=8)), np.int64)
    valid = np.array([data.draw(st.integers(0, width)) for _ in starts], np.int64)
    shape = (50, items) if items else (50,)
    arena = np.random.default_rng(0).integers(0, 100, shape).astype(stored)
    before, channels = 2, max(1, items)
    total = before + channels + 1
    out = np.full((len(starts), width, total) if last else (len(starts), total, width), 77, given_out)
    cut_windows(arena, starts, valid, out, before, channels_last=last, scale=scale)
    got = out if last else out.swapaxes(1, 2)
    for row, (start, n) in enumerate(zip(starts, valid, strict=True)):
        want = np.zeros((width, channels), given_out)
        want[:n] = arena[start : start + n].reshape(n, channels) * np.dtype(given_out).type(scale or 1)
        assert (got[row, :, before : before + channels] == want).all()
    assert (got[:, :, :before] == 77).all()
    assert (got[:, :, before + channels :] == 77).all()


def test_one_vector_field_channels_last_is_one_run_of_memory():
    arena = np.arange(40, dtype="f4").reshape(20, 2)
    out = np.empty((2, 3, 2), "f4")
    cut_windows(arena, np.array([4, 18]), np.array([3, 2]), out, 0, channels_last=True)
    assert out.tolist() == [[[8, 9], [10, 11], [12, 13]], [[36, 37], [38, 39], [0, 0]]]


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=9),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=6),
    st.booleans(),
)
def test_several_fields_at_once_equal_one_after_the_other(which, windows, last):
    stack = np.arange(7 * 40, dtype="f4").reshape(7, 40)
    at, valid = np.array(windows, np.int64).T.copy()
    n, c, w = len(windows), len(which), 9
    got, want = (np.full((n, w, c) if last else (n, c, w), np.nan, "f4") for _ in range(2))
    cut_stack(stack, np.array(which), at, valid, got, channels_last=last)
    for channel, field in enumerate(which):
        cut_windows(stack[field], at, valid, want, channel, channels_last=last)
    assert (got == want).all()

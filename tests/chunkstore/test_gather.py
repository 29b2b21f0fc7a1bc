"""Windows cut from an arena equal slices taken one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.gather import cut_rows, cut_windows, places_of
from chunkstore.rows import BLOCK, ROOM, START, Rows

DTYPES = [
    ("int16", "float32"),
    ("float32", "float32"),
    ("float64", "float32"),
    ("int64", "int64"),
    ("uint8", "float64"),
    ("float16", "float32"),
    ("float16", "float16"),
    ("float32", "float16"),
]


@pytest.mark.parametrize(("stored", "given_out"), DTYPES)
@pytest.mark.parametrize("items", [0, 1, 2, 3, 4, 5])
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
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 12)), min_size=1, max_size=6),
    st.integers(0, 4),
    st.booleans(),
)
def test_several_fields_at_once_equal_one_after_the_other(which, windows, offset, last):
    """Windows are (block, obs within it, room); each block lies somewhere else in the arena."""
    stack = np.random.default_rng(0).random((7, 60)).astype("f4")
    origin, width = np.array([30, 5, 14]), 9
    table = np.zeros((7, len(windows) + 3), np.int64)
    for row, (block, obs, room) in enumerate(windows, start=1):
        table[[BLOCK, START, ROOM], row] = block, obs, room
    rows = Rows(table, 1, len(windows) + 1)
    at, valid = places_of(origin, rows, offset, width)
    assert at.tolist() == [origin[block] + obs + offset for block, obs, _ in windows]
    assert valid.tolist() == [min(max(0, room - offset), width) for _, _, room in windows]
    shape = (len(windows) + 2, width, len(which)) if last else (len(windows) + 2, len(which), width)
    got, want = np.full(shape, 7, "f4"), np.full(shape, 7, "f4")
    cut_rows(stack, np.array(which), origin, rows, offset, got, 1, last)
    for channel, field in enumerate(which):
        cut_windows(stack[field], at, valid, want[1:-1], channel, channels_last=last)
    assert (got == want).all()

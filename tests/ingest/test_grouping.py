"""Rows of one key stand together, in their order, as a stable sort would have them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest import grouping
from ingest.grouping import group


@st.composite
def batches(draw):
    keys = draw(st.integers(1, 6))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        n = draw(st.integers(1, 30))
        one = draw(st.booleans())
        codes = draw(st.integers(0, keys - 1)) if one else None
        if codes is None:
            codes = np.array(draw(st.lists(st.integers(0, keys - 1), min_size=n, max_size=n)), np.int32)
        found.append((codes, n))
    return found, np.array(draw(st.permutations(range(keys))), np.int64)


def ranks(codes, rank):
    return rank[np.concatenate([np.full(n, c) if isinstance(c, int) else c for c, n in codes])]


def cut(values, codes):
    return np.split(values, np.cumsum([n for _, n in codes])[:-1])


@settings(max_examples=150, deadline=None)
@given(
    made=batches(),
    kind=st.sampled_from(["?", "i1", "f2", "i4", "f8", ">i4"]),
    items=st.sampled_from([0, 3]),
    few=st.sampled_from([0, 256]),
    nan=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_stand_as_a_stable_sort_puts_them(made, kind, items, few, nan, seed):
    codes, rank = made
    n = sum(k for _, k in codes)
    random = np.random.default_rng(seed)
    values = random.integers(0, 100, (n, items) if items else n).astype(kind)
    times = random.integers(0, 9, n).astype("f8" if nan else "i8")
    if nan:
        times[random.random(n) < 0.2] = np.nan
    by_key = np.argsort(ranks(codes, rank), kind="stable")
    found = group(codes, rank)
    assert np.repeat(rank[found.keys], found.rows).tolist() == ranks(codes, rank)[by_key].tolist()
    assert found.moved or (by_key == np.arange(n)).all()
    out = found.gather(cut(values, codes), np.empty_like(values))
    assert out.tobytes() == values[by_key].tobytes()
    if not found.moved:
        assert out.tobytes() == values.tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "FEW_SLICES", few)
        gathered = found.gather(cut(times, codes), np.empty_like(times))
        ordered = found.sort(gathered)
    wanted = np.lexsort((times, ranks(codes, rank)))
    np.testing.assert_array_equal(gathered if ordered is None else ordered, times[wanted])
    assert found.gather(cut(values, codes), np.empty_like(values)).tobytes() == values[wanted].tobytes()
    if not found.moved:
        assert wanted.tolist() == list(range(n))


def test_rows_of_one_key_and_batches_in_order_do_not_move():
    one = np.zeros(3, np.int32)
    assert not group([(one, 3), (0, 2)], np.array([0])).moved
    assert not group([(1, 3), (0, 2), (0, 4)], np.array([1, 0])).moved
    assert group([(0, 3), (1, 2), (0, 4)], np.array([0, 1])).moved

"""The cut of a merge is the cut of the sorted whole."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingest import merge_sorted
from ingest.merge_sorted import LazyTimes, split_at

numbers = st.one_of(
    st.lists(st.lists(st.integers(-5, 9), max_size=9), min_size=1, max_size=5),
    st.lists(st.lists(st.floats(width=64), max_size=9), min_size=1, max_size=5),
)


@given(numbers, st.data())
def test_a_split_is_the_stable_merge_cut_at_the_rank(values, data):
    floats = any(isinstance(v, float) for run in values for v in run)
    runs = [np.sort(np.array(run, np.float64 if floats else np.int64), kind="stable") for run in values]
    total = sum(map(len, runs))
    rank = data.draw(st.integers(0, total))
    whole = np.concatenate(runs)
    owner = np.repeat(np.arange(len(runs)), [len(r) for r in runs])
    told = np.bincount(owner[np.argsort(whole, kind="stable")[:rank]], minlength=len(runs))
    lazy = [LazyTimes(lambda a, b, run=run: run[a:b], len(run)) for run in runs]
    assert split_at(lazy, rank) == told.tolist()


def test_only_a_few_blocks_are_read(monkeypatch):
    monkeypatch.setattr(merge_sorted, "_BLOCK", 64)
    n = 1 << 20
    read = []

    def times(k, a, b):
        read.append(b - a)
        return np.arange(a, b) * 3 + k

    runs = [LazyTimes(lambda a, b, k=k: times(k, a, b), n) for k in range(3)]
    split = split_at(runs, n)
    assert sum(split) == n
    assert max(split) - min(split) <= 1
    assert sum(read) < n // 20


def test_thousands_of_runs_are_not_kept_in_memory():
    n = 1 << 15
    times = np.arange(n) + 10**15
    runs = [LazyTimes(lambda a, b: times[a:b], n) for _ in range(300)]
    tracemalloc.start()
    split = split_at(runs, 300 * n // 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(split) == 300 * n // 3
    assert peak < 300 * 24_000  # bytes of two blocks and a little, of each

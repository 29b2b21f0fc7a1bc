"""Offsets, clusters and tasks are arithmetic: checked against plain Python and a pandas-like sort."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.layout import Layout
from ingest.place import group_by_bytes, place_parts, place_slices, task_borders

pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=30)


@given(pairs)
def test_parts_stand_by_sequence_then_in_their_own_order(parts):
    sequence = np.array([s for s, _ in parts], np.int64)
    rows = np.array([r for _, r in parts], np.int64)
    places = place_parts(sequence, rows, 5)
    told = [i for s in range(5) for i, (own, _) in enumerate(parts) if own == s]
    assert places.part.tolist() == told
    assert places.start.tolist() == np.cumsum([0, *(parts[i][1] for i in told)]).tolist()
    assert places.rowsize.tolist() == [sum(r for own, r in parts if own == s) for s in range(5)]


@given(pairs, st.integers(1, 7), st.integers(1, 4))
def test_every_part_is_read_to_its_end_by_exactly_one_task(parts, shard, waste):
    sequence = np.array([s for s, _ in parts], np.int64)
    rows = np.array([r for _, r in parts], np.int64)
    places = place_parts(sequence, rows, 5)
    layout = Layout(places.n_obs, 1, shard)
    borders = task_borders(layout, places.start, waste)
    assert borders[0] == 0
    assert borders[-1] == layout.n_shards
    assert (np.diff(borders) > 0).all() or layout.n_shards == 0
    for a, b in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        start, stop = layout.shard_range(a)[0], layout.shard_range(b - 1)[1]
        lo, hi = places.touching(start, stop)
        for i in range(places.part.size):
            overlaps = places.start[i] < stop and places.start[i + 1] > start
            assert not overlaps or lo <= i < hi


def test_a_sum_past_two_to_the_53_is_exact():
    rows = np.array([2**53, 1, 1], np.int64)
    places = place_parts(np.zeros(3, np.int64), rows, 1)
    assert places.rowsize.tolist() == [2**53 + 2]


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(1, 30), st.integers(1, 9))
def test_groups_cover_everything_once_and_stay_small(sizes, target, most):
    borders = group_by_bytes(np.array(sizes, np.int64), target, most)
    assert borders[0] == 0
    assert borders[-1] == len(sizes)
    for a, b in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        assert 0 < b - a <= most
        assert sum(sizes[a : b - 1]) < target


@st.composite
def staged(draw):
    """Slices of sorted times, as (rank, times)."""
    slices = draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.lists(st.integers(0, 12), min_size=0, max_size=5)), max_size=14
        )
    )
    return [(rank, sorted(times)) for rank, times in slices]


@given(staged())
def test_sorting_only_inside_clusters_is_a_stable_sort_of_the_whole_sequence(slices):
    rank = np.array([r for r, _ in slices], np.int64)
    rows = np.array([len(t) for _, t in slices], np.int64)
    first = np.array([t[0] if t else 0 for _, t in slices], np.int64)
    last = np.array([t[-1] if t else 0 for _, t in slices], np.int64)
    places = place_slices(rank, rows, 4, first, last)
    got = []
    entries = places.slice.size
    i = 0
    while i < entries:
        assert places.cluster[i] == i
        j = int(np.searchsorted(places.cluster, i, side="right"))
        merged = [(t, s, k) for s in places.slice[i:j].tolist() for k, t in enumerate(slices[s][1])]
        if j > i + 1:
            assert places.slice[i:j].tolist() == sorted(places.slice[i:j].tolist())
            merged.sort(key=lambda row: row[0])
        got += merged
        i = j
    told = [
        row
        for r in range(4)
        for row in sorted(
            ((t, s, k) for s, (own, times) in enumerate(slices) if own == r for k, t in enumerate(times)),
            key=lambda row: row[0],
        )
    ]
    assert got == told


def test_slices_that_only_touch_are_not_merged():
    places = place_slices(np.zeros(3, np.int64), np.full(3, 2), 1, np.array([0, 5, 9]), np.array([5, 9, 12]))
    assert list(places.clusters()) == []


def test_a_slice_that_ends_without_a_time_reaches_behind_all_later_ones():
    first, last = np.array([1.0, 2.0, 6.0, 8.0]), np.array([5.0, np.nan, 7.0, 9.0])
    places = place_slices(np.zeros(4, np.int64), np.full(4, 2), 1, first, last)
    assert list(places.clusters()) == [(0, 4)]


@given(staged(), st.lists(st.booleans(), min_size=14, max_size=14))
def test_slices_without_times_stand_alone_behind_the_one_before_them(slices, marks):
    slices = [(rank, times) for rank, times in slices if times]
    gone = np.array(marks[: len(slices)], bool)
    rank = np.array([r for r, _ in slices], np.int64)
    rows = np.array([len(t) for _, t in slices], np.int64)
    first = np.array([t[0] for _, t in slices], np.int64)
    last = np.array([t[-1] for _, t in slices], np.int64)
    found = place_slices(rank, rows, 4, first, last, gone=gone)
    own = np.flatnonzero(~gone)
    plain = place_slices(rank[own], rows[own], 4, first[own], last[own])
    clusters = [own[plain.slice[plain.cluster == c]].tolist() for c in np.unique(plain.cluster)]
    wanted = []
    for r in range(4):
        mine = [c for c in clusters if rank[c[0]] == r]
        after = {-1: []} | {i: [] for i in range(len(mine))}
        for s in np.flatnonzero(gone & (rank == r)).tolist():
            known = [i for i in range(s) if rank[i] == r and not gone[i]]
            after[next(k for k, c in enumerate(mine) if known[-1] in c) if known else -1].append([s])
        wanted += after[-1]
        for k, c in enumerate(mine):
            wanted += [c, *after[k]]
    assert [found.slice[found.cluster == c].tolist() for c in np.unique(found.cluster)] == wanted
    assert found.start.tolist() == np.cumsum([0, *(int(rows[s]) for c in wanted for s in c)]).tolist()
    assert found.rowsize.tolist() == [int(rows[rank == r].sum()) for r in range(4)]

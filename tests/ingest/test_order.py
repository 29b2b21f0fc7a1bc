"""Order inside sequences is what row after row, looked at one by one in plain Python, shows."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.order import Joiner, Look
from ingest.protocol import CutRule


def plainly(start, borders, times, watched, cut, lost):
    """Rows that hold data, each compared with the one before it if both are of one sequence."""
    found = {"backward": 0, "duplicates": 0, "where": None, "cuts": []}
    kept = [i for i in range(len(lost)) if not lost[i]]
    for before, i in pairwise(kept):
        if any(start + before < b <= start + i for b in borders):
            continue
        a, b = times[before].item(), times[i].item()
        found["duplicates"] += a == b
        if b < a:
            found["backward"] += 1
            found["where"] = start + i if found["where"] is None else found["where"]
        far = cut is not None and cut.max_gap is not None and b - a > cut.max_gap
        old, new = watched[before].tolist(), watched[i].tolist()
        other = old != new and not (isinstance(old, float) and math.isnan(old) and math.isnan(new))
        if far or (cut is not None and cut.on_change and other):
            found["cuts"].append(start + i)
    return found


@st.composite
def shards(draw):
    n = draw(st.integers(0, 40))
    kind = draw(st.sampled_from(["i8", "f8", "i4", "u8", "f4"]))
    steps = draw(st.lists(st.integers(-2, 6), min_size=n, max_size=n))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    return {
        "start": draw(st.integers(0, 20)),
        "times": (100 + np.cumsum(np.array(steps, int))).astype(kind),
        "watched": random.choice([0.0, 1.0, np.nan], n),
        "borders": np.unique(draw(st.lists(st.integers(0, 70), max_size=8))).astype(np.int64),
        "lost": random.random(n) < draw(st.sampled_from([0.0, 0.3, 1.0])),
        "cut": draw(st.sampled_from([None, CutRule(max_gap=3), CutRule(("x",)), CutRule(("x",), 3)])),
        "at": sorted(draw(st.lists(st.integers(0, n), max_size=4))),
    }


def look(shard, low, high):
    """Look at rows [low, high) of a shard in pieces."""
    cut = shard["cut"]
    one = Look(shard["start"] + low, high - low, borders=shard["borders"], cut=cut)
    for rows in np.split(np.arange(low, high), [i - low for i in shard["at"] if low <= i <= high]):
        lost = shard["lost"][rows] if shard["lost"][rows].any() else None
        one.times(shard["times"][rows], lost)
        if cut is not None and cut.on_change:
            one.watch("x", shard["watched"][rows], lost)
    lost = shard["lost"][low:high]
    return one, one.seen(lost if lost.any() else None)


@settings(max_examples=400, deadline=None)
@given(shard=shards())
def test_pieces_show_what_single_rows_show(shard):
    one, seen = look(shard, 0, len(shard["times"]))
    wanted = plainly(*(shard[k] for k in ("start", "borders", "times", "watched", "cut", "lost")))
    assert {k: seen[k] for k in wanted} == wanted
    if wanted["where"] is not None:
        kept = np.flatnonzero(~shard["lost"])
        at = int(np.searchsorted(kept, wanted["where"] - shard["start"]))
        assert one.back == (shard["times"][kept[at - 1]], shard["times"][kept[at]])


@settings(max_examples=200, deadline=None)
@given(shard=shards(), at=st.integers(0, 40))
def test_shards_joined_show_what_all_rows_show(shard, at):
    n = len(shard["times"])
    joiner = Joiner(np.concatenate([[0], shard["borders"], [200]]), shard["cut"])
    for low, high in ((0, min(at, n)), (min(at, n), n)):
        joiner.add(look(shard, low, high)[1])
    wanted = plainly(*(shard[k] for k in ("start", "borders", "times", "watched", "cut", "lost")))
    found = {
        "backward": joiner.backward,
        "duplicates": joiner.duplicates,
        "where": joiner.where,
        "cuts": joiner.cuts,
    }
    assert found == wanted


@pytest.mark.parametrize("kind", ["i8", "f8"])
def test_the_longest_step_of_all_is_far(kind):
    ends = np.array([-(2**63), 2**63 - 1], "i8").astype(kind)
    one = Look(0, 2, borders=np.array([0]), cut=CutRule(max_gap=2**62))
    one.times(ends)
    assert one.seen()["cuts"] == [1]


def test_a_piece_of_nothing_says_nothing():
    """Not where sequences begin among rows that are lost, either."""
    look = Look(0, 6, borders=np.array([3]), cut=CutRule(max_gap=5))
    look.times(np.array([0, 1]))
    look.times(np.array([0, 0]), np.array([True, True]))
    look.times(np.array([], np.int64))
    look.times(np.array([90, 91]))
    assert look.seen()["cuts"] == []
    assert look.seen()["last"]["time"] == 91

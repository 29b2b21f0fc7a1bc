"""A memory limit becomes lanes, passes and slots, or an error that says the least that would do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.budget import Sizes, make_plan
from chunkstore.errors import ConfigError, MemoryLimitError


def sizes(n_obs=1_000_000, chunk=1000, width=8, length=100, touched=None, n_draws=None):
    touched = n_obs if touched is None else touched
    return Sizes((n_obs,), (chunk,), touched, width, length, length, n_draws or n_obs)


@given(
    st.integers(10_000, 10**7),
    st.sampled_from([500, 1000, 4096]),
    st.integers(1, 5000),
    st.integers(50_000, 10**7),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
)
def test_the_arena_never_exceeds_the_limit_and_lanes_fit_groups_and_ranks(
    n, chunk, length, limit, groups, ranks
):
    try:
        plan = make_plan(
            sizes(n, chunk, 4, length), limit, batch_size=64, lane_groups=groups, world_size=ranks
        )
    except MemoryLimitError:
        return
    assert plan.arena_bytes <= limit
    assert plan.lanes % (groups * ranks) == 0
    assert plan.whole or plan.slots >= plan.lanes // ranks + 1
    assert plan.whole == (n * 4 * groups <= limit)


@given(st.integers(1, 200_000), st.sampled_from(["auto", 4, 64]), st.sampled_from([2_000, 20_000, 1_000_000]))
def test_the_least_that_would_do_is_what_the_error_says(limit, lanes, n_obs):
    some = sizes(n_obs)  # of the small ones everything may be less than the slots for many lanes
    try:
        make_plan(some, limit, batch_size=64, lanes=lanes)
    except MemoryLimitError as error:
        least = int(re.search(r"the least that would do is (\d+)", str(error))[1])
        assert least > limit
        make_plan(some, least, batch_size=64, lanes=lanes)
        with pytest.raises(MemoryLimitError):
            make_plan(some, least - 1, batch_size=64, lanes=lanes)


@given(
    st.integers(1_000, 50_000),
    st.integers(1, 300),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 3, 16]),
)
def test_more_memory_never_makes_a_plan_impossible(n_obs, length, groups, batch):
    # longer blocks were once chosen that left lane groups too few slots
    some = sizes(n_obs, chunk=16, width=6, length=length)
    at, done = 1, False
    while at < 2 * n_obs * 6:
        try:
            make_plan(some, at, batch_size=batch, lane_groups=groups)
            done = True
        except MemoryLimitError:
            assert not done
        at += max(1, at // 20)


def test_lanes_are_as_many_as_a_batch_has_windows_if_the_limit_allows():
    assert make_plan(sizes(), 4_000_000, batch_size=32).lanes == 32
    small = make_plan(sizes(), 100_000, batch_size=32)
    assert 1 <= small.lanes < 32
    assert "as many as the limit holds" in small.reason


def test_what_is_given_is_kept_and_said():
    plan = make_plan(sizes(), 4_000_000, batch_size=32, lanes=7, passes=3)
    assert (plan.lanes, plan.passes) == (7, 3)
    assert "as given" in plan.reason


def test_passes_are_chosen_where_windows_overlap_and_lanes_are_few():
    overlap = make_plan(sizes(length=500), 100_000, batch_size=256)
    apart = make_plan(sizes(length=500, n_draws=2000), 100_000, batch_size=256)
    assert overlap.passes > 1
    assert apart.passes == 1


def test_blocks_of_an_earlier_plan_are_kept_under_another_limit():
    first = make_plan(sizes(), 4_000_000, batch_size=32)
    again = make_plan(sizes(), 3_000_000, batch_size=32, lanes=first.lanes, passes=1, blocks=first.blocks)
    assert again.blocks == first.blocks


@pytest.mark.parametrize(
    "options", [{"lanes": 0}, {"lanes": "many"}, {"passes": 1.5}, {"lanes": 6, "lane_groups": 4}]
)
def test_numbers_that_cannot_be_are_refused(options):
    with pytest.raises(ConfigError):
        make_plan(sizes(), 10**6, batch_size=8, **options)


@pytest.mark.parametrize("limit", [10**9, 10**6])
@pytest.mark.parametrize(("lanes", "passes"), [("auto", "auto"), (8, 0)])
def test_the_order_of_the_store_does_not_depend_on_the_number_of_ranks(limit, lanes, passes):
    options = {"batch_size": 32, "lanes": lanes, "passes": passes, "lane_groups": 2, "shuffle": False}
    plans = [make_plan(sizes(), limit, world_size=w, **options) for w in (1, 2, 4)]
    assert {(p.lanes, p.passes, p.blocks) for p in plans} == {(2, 1, plans[0].blocks)}


def test_what_fits_once_but_not_for_each_lane_group_is_no_full_shuffle():
    alone = make_plan(sizes(), 10**7, batch_size=32, lane_groups=1)
    shared = make_plan(sizes(), 10**7, batch_size=32, lane_groups=2)
    assert alone.full
    assert not shared.whole
    assert make_plan(sizes(), 2 * 8 * 10**6, batch_size=32, lane_groups=2).full
    with pytest.raises(MemoryLimitError, match="8000000 bytes in each of 2 lane groups, 16000000 together"):
        make_plan(sizes(), 10**7, batch_size=32, lane_groups=2, passes=0)

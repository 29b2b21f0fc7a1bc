"""The order of an epoch: exactly once, the same for every rank and start, reads spread evenly."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chunkstore.dealing import crowding, first_ends
from chunkstore.errors import ConfigError
from chunkstore.schedule import ORDER_VERSION, EpochSchedule, group_offsets

counts = st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(lambda c: sum(c) > 0)


@st.composite
def schedules(draw, ranks=1):
    g = draw(st.sampled_from([1, 2, 3, 4]))
    options = {
        "key": draw(st.integers(0, 2**63)),
        "lanes": g * ranks * draw(st.sampled_from([1, 2, 3, 5, 8])),
        "passes": draw(st.sampled_from([1, 2, 3, 8])),
        "lane_groups": g,
        "shuffle": draw(st.booleans()),
    }
    return draw(counts), options


def sizes_of(kind, n, rng):
    """Blocks of one size, of all sizes, with a long tail, tiny ones among large, a few short ones."""
    return {
        "equal": lambda: np.full(n, 400),
        "short": lambda: np.full(n, 40),
        "12 to 50": lambda: rng.integers(12, 51, n),
        "uniform": lambda: rng.integers(0, 800, n),
        "exponential": lambda: rng.exponential(300, n).astype(int),
        "tiny and large": lambda: rng.choice([1, 800], n),
        "80 % tiny": lambda: rng.choice([1, 800], n, p=[0.8, 0.2]),
        "90 % tiny": lambda: rng.choice([1, 800], n, p=[0.9, 0.1]),
        "95 % tiny, sorted": lambda: np.sort(rng.choice([1, 3, 9, 800], n, p=[0.3, 0.35, 0.3, 0.05])),
        "few hold most": lambda: 1 + np.minimum(20 * rng.pareto(1, n), 20_000).astype(int),
        "mostly full": lambda: np.where(rng.random(n) < 0.8, 800, rng.integers(1, 800, n)),
    }[kind]()


@given(schedules())
@settings(max_examples=300)
def test_every_item_is_drawn_exactly_once(case):
    sizes, options = case
    schedule = EpochSchedule(sizes, **options)
    items, piece = schedule.items(np.arange(schedule.n_draws))
    assert np.sort(items).tolist() == list(range(sum(sizes)))
    block = np.repeat(np.arange(len(sizes)), sizes)
    assert (block[items] == schedule.block[piece]).all()


@given(schedules(), st.data())
@settings(max_examples=200)
def test_any_draw_alone_is_what_it_is_in_sequence(case, data):
    sizes, options = case
    schedule = EpochSchedule(sizes, **options)
    items, piece = schedule.items(np.arange(schedule.n_draws), schedule.cursor())
    some = data.draw(st.lists(st.integers(0, schedule.n_draws - 1), min_size=1, max_size=20))
    again = EpochSchedule(sizes, **options).items(some)
    assert again[0].tolist() == items[some].tolist()
    assert again[1].tolist() == piece[some].tolist()


@given(schedules())
@settings(max_examples=100)
def test_lanes_and_draws_are_inverse_and_lanes_differ_by_one_item_at_most(case):
    sizes, options = case
    schedule = EpochSchedule(sizes, **options)
    draws = np.arange(schedule.n_draws)
    lane, item = schedule.lane_items(draws)
    assert (schedule.draws_of(lane, item) == draws).all()
    lengths = np.bincount(lane, minlength=schedule.lanes)
    for group in np.split(lengths, schedule.lane_groups):
        assert group.max() - group.min() <= 1


@given(schedules(ranks=4), st.sampled_from([1, 2, 4]), st.integers(0, 100))
@settings(max_examples=200)
def test_a_rank_needs_just_the_blocks_of_its_draws_in_their_order(case, ranks, start):
    sizes, options = case
    schedule = EpochSchedule(sizes, **options)
    for group in range(schedule.lane_groups):
        low, high = schedule.group_first[group : group + 2]
        for rank in range(ranks):
            needs = schedule.needs(group=group, rank=rank, world_size=ranks, start=start)
            draws = np.arange(low, high)
            local = draws - low
            mine = draws[(local % ranks == rank) & (local >= start)]
            _, piece = schedule.items(mine)
            used, first = np.unique(piece, return_index=True)
            assert set(used.tolist()) <= set(needs.piece.tolist())
            assert (np.diff(needs.first) >= 0).all()
            at = dict(zip(needs.piece.tolist(), zip(needs.first, needs.last, strict=True), strict=True))
            for p, d in zip(piece.tolist(), (mine - low).tolist(), strict=True):
                assert at[p][0] <= d <= at[p][1]
            if options["shuffle"]:
                assert set(used.tolist()) == set(needs.piece.tolist())
            del first


@given(counts, st.integers(0, 2**32), st.sampled_from([1, 2, 4]))
def test_two_epochs_and_two_keys_differ(sizes, key, lanes):
    assume(sum(sizes) > 30)
    draws = np.arange(sum(sizes))
    a, b = (EpochSchedule(sizes, key=k, lanes=lanes).items(draws)[0] for k in (key, key + 1))
    assert (a != b).any()


def test_the_same_key_gives_the_same_order_in_another_process():
    code = (
        "from chunkstore.schedule import EpochSchedule as E;"
        "print(E([50, 60, 7, 90], key=3, lanes=4, passes=2).items(range(207))[0].tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = EpochSchedule([50, 60, 7, 90], key=3, lanes=4, passes=2).items(range(207))[0].tolist()
    assert out.stdout.strip() == str(here)


def new_block_draws(schedule, group=0):
    """Draws at which a lane goes on to a block that it does not hold, and those that open a lane; one by one.

    A lane holds the block of its last piece, and the one before it while a single piece interrupts its visit.
    """
    new, opening = [], []
    for lane in range(group * schedule.lanes_per_group, (group + 1) * schedule.lanes_per_group):
        held = [None, None]
        for i in np.flatnonzero(schedule.lane == lane):
            if schedule.block[i] != held[0]:
                draw = int(schedule.draws_of(schedule.lane[i : i + 1], schedule.at[i : i + 1])[0])
                (new if schedule.at[i] else opening).append(draw - int(schedule.group_first[group]))
            held = [held[1], schedule.block[i]]
    return np.sort(new), opening


def excess(draws, rate):
    """Return the most that a stretch from one new block to another holds beyond 3 L."""
    # a stretch from load i to load j holds j - i + 1 loads in at[j] - at[i] + 1 draws
    slack = np.arange(len(draws)) - 3 * rate * draws
    return (slack + 1 - np.minimum.accumulate(slack)).max(initial=0) - 3 * rate


@pytest.mark.parametrize(
    ("kind", "lanes", "passes"),
    [
        (kind, lanes, passes)
        for kind in (
            "equal",
            "short",
            "uniform",
            "exponential",
            "tiny and large",
            "80 % tiny",
            "90 % tiny",
            "95 % tiny, sorted",
            "few hold most",
            "mostly full",
            "12 to 50",
        )
        for lanes, passes in ((1, 1), (2, 1), (4, 1), (16, 1), (64, 1), (8, 4), (64, 4), (100, 8), (256, 8))
    ],
)
def test_in_any_stretch_at_most_3_l_plus_5_blocks_are_needed_where_l_are_on_average(kind, lanes, passes):
    rng = np.random.default_rng(lanes * 100 + passes)
    for blocks in (4 * lanes, 6 * lanes + 37, 20 * lanes):
        sizes = sizes_of(kind, blocks, rng)
        for key in range(3):
            schedule = EpochSchedule(sizes, key=key, lanes=lanes, passes=passes)
            draws, opening = new_block_draws(schedule)
            rate = (len(draws) + len(opening)) / schedule.n_draws
            assert excess(draws, rate) <= 5, (blocks, key)


@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 3, 4, 6, 8]),
    st.sampled_from([1, 2, 5]),
    st.floats(0.5, 0.98),
    st.integers(1, 20),
    st.integers(30, 200),
)
@settings(max_examples=60)
def test_few_lanes_and_mostly_tiny_blocks_are_read_evenly_too(key, lanes, passes, tiny, most, blocks):
    rng = np.random.default_rng(key)
    sizes = np.where(rng.random(blocks) < tiny, rng.integers(1, most + 1, blocks), 800)
    schedule = EpochSchedule(sizes, key=key, lanes=lanes, passes=passes)
    draws, opening = new_block_draws(schedule)
    assert excess(draws, (len(draws) + len(opening)) / schedule.n_draws) <= 5


def test_short_visits_interrupt_long_ones_and_never_come_in_a_row():
    sizes = np.array([1] * 900 + [800] * 100)
    schedule = EpochSchedule(sizes, key=0, lanes=1)
    short = sizes[schedule.block] == 1
    assert not (short[1:] & short[:-1]).any()
    between = np.diff(np.flatnonzero(short))
    assert np.bincount(between)[2] > 700  # a part of the same visit between two of them
    assert schedule.items(np.arange(schedule.n_draws))[0].tolist() != sorted(range(sum(sizes)))


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("kind", ["equal", "uniform", "12 to 50", "90 % tiny"])
def test_reads_of_each_lane_group_are_even_too(kind, groups):
    sizes = sizes_of(kind, 640, np.random.default_rng(groups))
    schedule = EpochSchedule(sizes, key=1, lanes=32, passes=2, lane_groups=groups)
    found = [new_block_draws(schedule, group) for group in range(groups)]
    rate = sum(len(draws) + len(opening) for draws, opening in found) / schedule.n_draws
    for draws, _ in found:
        assert excess(draws, rate) <= 5


def test_crowding_is_the_worst_stretch_as_counted_one_by_one():
    rng = np.random.default_rng(0)
    for rate in (0.02, 0.3):
        draws = np.sort(rng.choice(300, 40, replace=False))
        pairs = [(i, j) for i in range(40) for j in range(i, 40)]
        worst = max(j - i + 1 - 3 * rate * (draws[j] - draws[i] + 1) for i, j in pairs)
        assert crowding(rng.permutation(draws), rate) == pytest.approx(worst)
    assert crowding(draws[:0], 0.1) == 0


@given(st.integers(1, 300), st.integers(1, 1000))
def test_equal_visits_begin_one_share_after_another_for_ever(lanes, usual):
    begin = first_ends(lanes, usual)
    assert (begin * lanes).max() < (usual + 1) * lanes
    draws = np.sort((begin[:, None] + usual * np.arange(3)) * lanes + np.arange(lanes)[:, None], axis=None)
    assert (np.abs(np.diff(draws) - usual) <= lanes).all()
    assert crowding(draws, 1 / usual) <= 3


def test_evenness_costs_at_most_two_more_pieces_a_lane():
    for lanes in (1, 7, 64):
        schedule = EpochSchedule(np.full(640, 100), key=1, lanes=lanes)
        assert len(schedule.block) <= 640 + 2 * lanes


def distinct_blocks(schedule, batch):
    full = schedule.n_draws // batch
    _, piece = schedule.items(np.arange(full * batch))
    blocks = np.sort(schedule.block[piece].reshape(full, batch), axis=1)
    return 1 + (np.diff(blocks, axis=1) != 0).sum(axis=1)


@pytest.mark.parametrize(("lanes", "batch"), [(8, 8), (8, 32), (32, 32), (64, 256), (64, 16)])
@pytest.mark.parametrize(("passes", "blocks_a_lane"), [(1, 4), (1, 20), (2, 20), (8, 20)])
def test_batches_mix_as_many_blocks_as_there_are_lanes_to_the_end_of_the_epoch(
    lanes, batch, passes, blocks_a_lane
):
    for key in range(2):
        schedule = EpochSchedule(np.full(lanes * blocks_a_lane, 320), key=key, lanes=lanes, passes=passes)
        found = distinct_blocks(schedule, batch)
        assert np.percentile(found, 1) >= 0.9 * min(batch, lanes)
        assert np.percentile(found[-20:], 10) >= 0.9 * min(batch, lanes)


def test_passes_spread_the_windows_of_a_block_over_the_epoch():
    schedule = EpochSchedule(np.full(200, 400), key=0, lanes=8, passes=8)
    _, piece = schedule.items(np.arange(schedule.n_draws))
    when = np.arange(schedule.n_draws)[schedule.block[piece] == 17] / schedule.n_draws
    share = np.histogram(when, bins=8, range=(0, 1))[0]
    assert share.tolist() == pytest.approx([50] * 8, abs=50)
    assert np.count_nonzero(share) >= 7


def test_small_blocks_are_not_visited_once_a_pass():
    schedule = EpochSchedule([1000] * 50 + [3] * 50, key=0, lanes=4, passes=8)
    visits = np.bincount(schedule.block, minlength=100)
    assert visits[50:].max() <= 2
    assert visits[:50].min() >= 8


def test_without_shuffling_draws_are_the_items_in_order():
    schedule = EpochSchedule([3, 0, 4], key=0, lanes=8, shuffle=False)
    assert schedule.items(range(7))[0].tolist() == list(range(7))


def test_an_epoch_of_ten_to_the_eleven_windows_costs_memory_by_blocks_only():
    schedule = EpochSchedule(np.full(1_500_000, 66_667), key=0, lanes=256)
    assert schedule.n_draws > 10**11 - 10**9
    items, _ = schedule.items(np.arange(schedule.n_draws - 1000, schedule.n_draws))
    assert len(np.unique(items)) == 1000
    held = sum(v.nbytes for v in vars(schedule).values() if isinstance(v, np.ndarray))
    assert held < 80 * 1_500_000


def test_lanes_that_ranks_or_groups_cannot_share_are_refused():
    with pytest.raises(ConfigError, match=r"lanes \(6\) must be a multiple of lane_groups \(4\)"):
        EpochSchedule([10], key=0, lanes=6, lane_groups=4)
    with pytest.raises(ConfigError, match="multiple of lane_groups x world_size = 8"):
        EpochSchedule([100], key=0, lanes=6, lane_groups=2).needs(rank=0, world_size=4)
    with pytest.raises(ConfigError, match="lanes must be 1 or more"):
        EpochSchedule([10], key=0, lanes=0)
    with pytest.raises(IndexError):
        EpochSchedule([10], key=0).items([10])


def test_groups_share_draws_evenly():
    assert group_offsets(10, 3).tolist() == [0, 4, 7, 10]


def test_pieces_take_twenty_bytes_each_where_their_numbers_are_small():
    schedule = EpochSchedule(np.full(5000, 400), key=0, lanes=16, passes=4)
    held = sum(column.nbytes for column in schedule.pieces)
    assert held == 20 * len(schedule.at)


def test_numbers_that_need_64_bits_have_them():
    """A lane of 3 * 10**9 items; blocks of 10**9, one of them interrupted by blocks of 1."""
    sizes = np.array([10**9] * 12 + [1] * 6)
    for lanes in (1, 4):
        schedule = EpochSchedule(sizes, key=3, lanes=lanes)
        visited = np.bincount(schedule.block, weights=schedule.count, minlength=18)
        assert visited.tolist() == sizes.tolist()
        draws = np.concatenate([np.arange(1000), np.arange(schedule.n_draws - 1000, schedule.n_draws)])
        items, piece = schedule.items(draws)
        edges = np.concatenate([[0], np.cumsum(sizes)])
        assert (np.searchsorted(edges, items, side="right") - 1 == schedule.block[piece]).all()
        assert len(np.unique(items)) == 2000
        needs = schedule.needs()
        assert needs.last.max() == schedule.n_draws - 1
        assert (needs.last >= needs.first).all()


#: (items of each block, options) -> sha256 of what draws show and from which block, made by order version 2
ORDERS = [
    ([50, 60, 7, 90], {"lanes": 4, "passes": 2}, "7219f9355050607c"),
    ([1000] * 40, {"lanes": 8}, "5a0321b512b22c33"),
    ([1000] * 40 + [3] * 30, {"lanes": 16, "passes": 3, "lane_groups": 2}, "79c482187f50140f"),
    (range(1, 200), {"lanes": 12, "passes": 4, "lane_groups": 4}, "26fa33d25a88224f"),
    ([5000, 1, 1, 1, 1], {"lanes": 2, "passes": 8}, "49d82e77de363e9e"),
    ([9] * 7, {"lanes": 2, "lane_groups": 2, "shuffle": False}, "2e7ec5ab0be9ebb7"),
]


@pytest.mark.parametrize(("sizes", "options", "known"), ORDERS)
def test_the_order_of_a_key_changes_only_with_its_version(sizes, options, known):
    assert ORDER_VERSION == 2, "make the digests anew"
    schedule = EpochSchedule(list(sizes), key=3, **options)
    items, pieces = schedule.items(np.arange(schedule.n_draws))
    shown = items.astype("<i8").tobytes() + schedule.block[pieces].astype("<i8").tobytes()
    assert hashlib.sha256(shown).hexdigest()[:16] == known


def test_a_block_of_more_items_than_32_bits_is_cut_where_groups_meet():
    schedule = EpochSchedule([6 * 10**9], key=0, lanes=3, lane_groups=3, shuffle=False)
    draws = [0, 10**9, 3 * 10**9, 5 * 10**9, 6 * 10**9 - 1]
    assert schedule.items(draws)[0].tolist() == draws

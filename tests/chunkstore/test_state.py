"""Positions, rotations of lane groups, and states that refuse what is not theirs."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import StateError
from chunkstore.state import Position, Rotation, make_state, read_state

FINGERPRINT = {"stores": "abc", "window": 512, "lanes": 8}


@st.composite
def rotations(draw):
    groups = draw(st.integers(1, 6))
    n = draw(st.lists(st.integers(0, 200), min_size=groups, max_size=groups))
    rotation = Rotation(tuple(n), draw(st.integers(1, 40)), draw(st.booleans()))
    drawn = tuple(draw(st.integers(0, k)) for k in n)
    return rotation, Position(draw(st.integers(0, 3)), draw(st.integers(0, groups - 1)), drawn)


@given(rotations())
def test_every_draw_left_is_in_exactly_one_batch(case):
    rotation, position = case
    seen = [(g, d) for g, first, n in rotation.batches(position) for d in range(first, first + n)]
    left = [
        (g, d)
        for g, (n, drawn) in enumerate(zip(rotation.n_draws, position.drawn, strict=True))
        for d in range(drawn, n)
    ]
    assert len(seen) == len(set(seen))
    if rotation.drop_last:
        assert set(seen) <= set(left)
        assert len(left) - len(seen) < rotation.step * len(rotation.n_draws)
    else:
        assert sorted(seen) == left


@given(rotations())
def test_batches_are_as_many_as_counted(case):
    rotation, position = case
    assert len(list(rotation.batches(position))) == rotation.count(position)


@given(rotations(), st.sampled_from([1, 2, 3]))
def test_workers_deliver_what_one_process_would(case, workers):
    rotation, position = case
    batches = sorted((g, n) for g, _, n in rotation.batches(position))
    assert sorted((g, n) for _, g, n, _ in rotation.deliveries(position, workers)) == batches


@given(st.integers(0, 500), st.sampled_from([(4, 1), (4, 2), (4, 4), (6, 3)]), st.integers(1, 20))
def test_an_epoch_from_its_start_has_one_order_for_any_number_of_workers(n, shape, step):
    groups, workers = shape
    whole, rest = divmod(n, step * groups)
    n_draws = tuple(whole * step + min(max(rest - g * step, 0), step) for g in range(groups))
    rotation = Rotation(n_draws, step, drop_last=False)
    start = Position.start(0, groups)
    expected = [(g, n) for g, _, n in rotation.batches(start)]
    assert [(g, n) for _, g, n, _ in rotation.deliveries(start, workers)] == expected


@given(rotations())
def test_the_position_behind_a_batch_leads_to_the_next(case):
    rotation, position = case
    delivered = list(rotation.deliveries(position))
    for (_, _, _, behind), (_, group, draws, _) in pairwise(delivered):
        first = next(rotation.batches(behind))
        assert (first[0], first[2]) == (group, draws)


@given(rotations())
def test_a_position_survives_numbers_and_json(case):
    _, position = case
    assert Position.from_numbers(position.to_numbers()) == position
    state = json.loads(json.dumps(make_state(position, FINGERPRINT)))
    assert read_state(state, FINGERPRINT) == (position, None)


def test_a_state_is_small():
    assert len(json.dumps(make_state(Position.start(9, groups=8), FINGERPRINT))) < 500


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"window": 256}, "window is 512 in the state, 256 here"),
        (
            {"lanes": 4, "stores": "def"},
            "lanes is 8 in the state, 4 here; stores is abc in the state, def here",
        ),
        ({"extra": 1}, "extra is absent in the state, 1 here"),
    ],
)
def test_the_state_of_another_dataset_is_refused_with_the_difference_named(changed, named):
    state = make_state(Position.start(0, groups=1), FINGERPRINT)
    with pytest.raises(StateError, match=named):
        read_state(state, {**FINGERPRINT, **changed})


@pytest.mark.parametrize("junk", [{}, {"format": "other"}, [], None])
def test_what_is_no_state_is_refused(junk):
    with pytest.raises(StateError, match="not a training state"):
        read_state(junk, FINGERPRINT)


def test_a_state_of_a_later_version_is_refused():
    state = {**make_state(Position.start(0, groups=1), FINGERPRINT), "version": 99}
    with pytest.raises(StateError, match="version 99"):
        read_state(state, FINGERPRINT)


def test_the_state_of_a_worker_fits_only_among_as_many_workers():
    state = make_state(Position(0, 1, (4, 0)), FINGERPRINT, worker=(2, (0,)))
    assert read_state(state, FINGERPRINT, workers=2) == (Position(0, 1, (4, 0)), (0,))
    for workers in (None, 4):
        with pytest.raises(StateError, match="one of 2 workers"):
            read_state(state, FINGERPRINT, workers=workers)


@pytest.mark.parametrize("old", [{}, {"order": 1}])
def test_a_state_of_another_order_of_draws_is_refused_with_the_reason(old):
    state = make_state(Position(2, 0, (640,)), {"window": 512} | old)
    with pytest.raises(StateError, match=r"order version 1, this chunkstore draws in order version 2.*twice"):
        read_state(state, {"window": 512, "order": 2})


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("turn"),
        lambda s: s.pop("fingerprint"),
        lambda s: s.update(drawn=[-4, 0]),
        lambda s: s.update(drawn=[]),
        lambda s: s.update(turn=2),
        lambda s: s.update(epoch=-1),
        lambda s: s.update(epoch="soon"),
    ],
)
def test_a_damaged_state_is_refused_as_one(change):
    state = make_state(Position.start(1, groups=2), FINGERPRINT)
    change(state)
    with pytest.raises(StateError, match="unchanged"):
        read_state(state, FINGERPRINT)

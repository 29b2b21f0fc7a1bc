"""What is served when: skipping by arithmetic, moments, rows."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from chunkstore.rows import skip_batches
from chunkstore.state import Position, Rotation


@st.composite
def iterations(draw):
    groups = draw(st.integers(1, 5))
    sizes = tuple(draw(st.lists(st.integers(0, 60), min_size=groups, max_size=groups)))
    rotation = Rotation(sizes, step=draw(st.integers(1, 9)), drop_last=draw(st.booleans()))
    drawn = tuple(draw(st.integers(0, n)) for n in sizes)
    serve = tuple(g for g in range(groups) if draw(st.booleans())) or (0,)
    return rotation, Position(3, draw(st.integers(0, groups - 1)), drawn), serve


@given(iterations(), st.integers(0, 80))
def test_skipping_by_arithmetic_is_skipping_one_by_one(case, n):
    rotation, position, serve = case
    whole = list(rotation.batches(position, serve))
    there = skip_batches(rotation, position, serve, n)
    assert list(rotation.batches(there, serve)) == whole[n:]
    want = list(position.drawn)
    for group, first, draws in whole[:n]:
        want[group] = first + draws
    assert there.drawn == tuple(want)
    if whole[:n]:
        assert there.turn == (whole[:n][-1][0] + 1) % len(want)


def test_skipping_ten_to_the_eleven_batches_is_as_much_work_as_skipping_ten():
    """Work is counted in what is asked of the rotation."""

    class Counted(Rotation):
        asked = 0

        def left(self, group, drawn):
            Counted.asked += 1
            return super().left(group, drawn)

    def work(n):
        Counted.asked = 0
        rotation = Counted((10**12, 10**13, 7), step=4, drop_last=False)
        there = skip_batches(rotation, Position.start(0, groups=3), (0, 1, 2), n)
        found = Counted.asked
        assert sum(there.drawn) <= 4 * n
        assert len(list(islice(rotation.batches(there, (0, 1, 2)), 3))) == 3
        return found

    assert work(10**11) == work(10)

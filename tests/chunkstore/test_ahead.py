"""Items made ahead in a thread: in order, no more than asked, and nothing left behind."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.ahead import ahead_of


def threads():
    return [t for t in threading.enumerate() if t.name == "chunkstore-ahead"]


@given(st.lists(st.integers()), st.integers(0, 4))
def test_items_come_in_their_order(items, depth):
    assert list(ahead_of(iter(items), depth)) == items
    assert not threads()


def test_no_more_than_the_depth_is_made_ahead():
    made = []

    def items():
        for i in range(100):
            made.append(i)
            yield i

    ahead = ahead_of(items(), 2)
    next(ahead)
    time.sleep(0.2)
    assert len(made) <= 1 + 2 + 1  # handed out, waiting, and one in the hand of the thread
    ahead.close()
    assert not threads()


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_is_raised_where_its_item_would_have_come(depth):
    def items():
        yield 1
        raise OSError("chunk 7")

    ahead = ahead_of(items(), depth)
    assert next(ahead) == 1
    with pytest.raises(OSError, match="chunk 7"):
        next(ahead)
    assert not threads()


def test_dropping_the_iterator_ends_the_thread_and_closes_the_source():
    closed = threading.Event()

    def items():
        try:
            while True:
                yield 0
        finally:
            closed.set()

    ahead = ahead_of(items(), 3)
    next(ahead)
    del ahead
    assert closed.wait(5)
    assert not threads()

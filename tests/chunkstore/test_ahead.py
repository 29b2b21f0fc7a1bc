"""Items made ahead in a thread: in order, no more than asked, and nothing left behind."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.ahead import BYTES, Passed, depth_of
from chunkstore.ahead import ahead_of as pairs_ahead_of
from chunkstore.errors import ForkError


def ahead_of(items, depth):
    """Return the generator for items without anything beside them."""
    return pairs_ahead_of(((item, None) for item in items), depth, Passed())


def threads():
    return [t for t in threading.enumerate() if t.name == "chunkstore-ahead"]


def until(true, seconds=5.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


@given(st.lists(st.integers()), st.integers(0, 20))
def test_items_come_in_their_order(items, depth):
    assert list(ahead_of(iter(items), depth)) == items
    assert not threads()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_what_stands_beside_an_item_passes_with_it_and_not_before(depth):
    passed = Passed("nothing yet")
    flow = pairs_ahead_of(((i, -i) for i in range(20)), depth, passed)
    assert passed.beside == "nothing yet"
    for item in flow:
        assert passed.beside == -item
        time.sleep(0.001)


@given(st.integers(0, 2**40), st.integers(1, 2**40))
def test_a_depth_that_nobody_gave_takes_little_memory(size, limit):
    depth = depth_of(size, limit)
    assert 2 <= depth <= 16
    assert depth == 2 or depth * size <= min(BYTES, limit / 4)


def test_no_more_than_the_depth_is_made_ahead():
    made = []

    def items():
        for i in range(100):
            made.append(i)
            yield i

    ahead = ahead_of(items(), 2)
    next(ahead)
    time.sleep(0.2)
    assert len(made) == 1 + 2  # handed out, and waiting
    ahead.close()
    assert not threads()


class Item:
    """Something that can be watched."""


@pytest.mark.parametrize("depth", [1, 2, 5, 16])
@pytest.mark.parametrize("slow", ["caller", "source", "neither"])
def test_what_waits_and_what_was_let_go_of_is_never_more_than_the_depth(depth, slow):
    alive = weakref.WeakSet()
    most = []

    def items():
        for _ in range(60):
            item = Item()
            alive.add(item)
            yield item
            del item
            time.sleep(0.001 * (slow == "source"))

    for _item in ahead_of(items(), depth):
        most.append(len(alive))
        time.sleep(0.001 * (slow == "caller"))
    del _item
    assert max(most) <= depth + 2  # and one in the hand of either side
    gc.collect()
    assert not alive


def test_an_item_that_the_caller_keeps_is_kept():
    kept = list(ahead_of((Item() for _ in range(40)), 4))
    assert len({id(item) for item in kept}) == 40


def test_the_first_item_does_not_wait_for_the_others():
    go_on = threading.Event()

    def items():
        yield 1
        go_on.wait(10)
        yield 2

    ahead = ahead_of(items(), 16)
    assert next(ahead) == 1
    assert not go_on.is_set()
    go_on.set()
    assert list(ahead) == [2]


def test_a_caller_that_pauses_and_hurries_finds_every_item():
    made = []

    def items():
        for i in range(200):
            made.append(i)
            yield i

    ahead = ahead_of(items(), 8)
    got = [next(ahead) for _ in range(20)]
    until(lambda: len(made) > 20 + 4)  # it sleeps with more than half in the line
    time.sleep(0.3)  # the thread has learned that the caller asks for nothing
    assert 20 + 4 < len(made) <= 20 + 8
    got += [next(ahead) for _ in range(20)]
    until(lambda: len(made) > 40 + 4)
    assert len(made) <= 40 + 8
    got += list(ahead)
    assert got == list(range(200))


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_is_raised_where_its_item_would_have_come(depth):
    def items():
        yield 1
        raise OSError("chunk 7")

    ahead = ahead_of(items(), depth)
    assert next(ahead) == 1
    time.sleep(0.05)  # the error is there long before it is asked for
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


def test_a_caller_that_is_always_faster_leaves_no_calls_behind():
    def items():
        for i in range(300):
            time.sleep(0.0001)
            yield i

    ahead = ahead_of(items(), 2)
    for _ in ahead:
        assert ahead.gi_frame.f_locals["room"].qsize() <= 1


def test_closing_does_not_wait_for_a_caller_that_has_stopped_asking():
    ahead = ahead_of(iter(range(100)), 2)
    next(ahead)
    time.sleep(0.3)  # the thread sleeps longer and longer
    ahead.close()
    assert not threads()


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise OSError"])
def test_a_program_that_ends_half_way_ends(ending):
    program = (
        "import sys, itertools\nfrom chunkstore.ahead import Passed, ahead_of\n"
        f"kept = ahead_of(zip(itertools.count(), itertools.count()), 4, Passed())\n"
        f"print(next(kept), flush=True)\n{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False
    )
    assert done.stdout == "0\n"
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(ending, 1)
    assert ("Traceback" in done.stderr) == (ending == "raise OSError")


def test_an_iterator_that_its_own_thread_meets_as_garbage_ends_without_complaint(monkeypatch):
    said, dropped = [], threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    def items():
        yield 0
        dropped.wait()
        gc.collect()
        yield 1

    class Ring:
        """Something that only the collector frees."""

    gc.disable()
    try:
        ring = Ring()
        ring.self, ring.items = ring, ahead_of(items(), 2)
        assert next(ring.items) == 0
        (thread,) = threads()
        del ring
        dropped.set()
        thread.join(5)
    finally:
        gc.enable()
    assert not thread.is_alive()
    assert not said


def test_an_iterator_that_was_interrupted_as_its_thread_began_leaves_none(monkeypatch):
    start = threading.Thread.start

    def interrupted(self):
        start(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(ahead_of(itertools.repeat(0), 4))
    assert not threads()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_instead_of_waiting_for_a_thread_that_is_not_there():
    ahead = ahead_of(iter(range(1000)), 2)
    assert next(ahead) == 0
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            list(ahead)
        except ForkError as error:
            code = 0 if "begin anew" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert list(ahead) == list(range(1, 1000))

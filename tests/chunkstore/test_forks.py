"""Forks at any moment: children find no lock shut, and nothing that lives on is missed."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

import chunkstore
from chunkstore.epochs import EpochClock
from chunkstore.forks import Living, new_lock, new_rlock

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def status_of_child(do):
    """Return the exit status of a child that does something; one that hangs is ended after 5 seconds."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(5)
        try:
            do()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@pytest.fixture
def store():
    with chunkstore.StoreWriter("memory://forked", {"x": "f4"}, overwrite=True) as out:
        out.write("a", {"x": [1, 2, 3]}, gaps=[(1, 2)])
    return chunkstore.open_store("memory://forked")


@pytest.mark.parametrize(
    ("lock", "use"),
    [
        (lambda store: store._lock, lambda store: store.gaps),
        (lambda store: store.sequences._lock, lambda store: store.sequences.ids),
        (lambda store: store._cache._lock, lambda store: store.stored_bytes("x", 0)),
        (lambda _: new_lock(), lambda store: store.close()),
        (lambda _: new_rlock(), lambda store: store.close()),
    ],
    ids=["store", "sequences", "indices", "lock", "rlock"],
)
def test_a_lock_that_another_thread_held_at_a_fork_is_open_in_the_child(store, lock, use):
    lock, held, go_on = lock(store), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            go_on.wait(20)

    def both():
        use(store)
        with lock:
            pass

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert status_of_child(both) == 0
        assert not lock.acquire(blocking=False)  # the parent's is as it was
    finally:
        go_on.set()
        thread.join()


def test_a_fork_while_clocks_are_made_misses_none(monkeypatch):
    said, stop, interval = [], threading.Event(), sys.getswitchinterval()
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    def make():
        kept = []
        while not stop.is_set():
            kept = [*kept[-300:], EpochClock(2)]

    threads = [threading.Thread(target=make) for _ in range(3)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(60):
            assert status_of_child(lambda: None) == 0
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        for thread in threads:
            thread.join()
    assert not said


def test_what_has_gone_is_not_listed_and_a_new_thing_in_its_place_is():
    living, kept = Living(), []
    for n in range(2000):
        thing = threading.Event()  # mostly where the last one was
        living.add(thing)
        if n % 2:
            kept.append(thing)
        del thing
    assert living.listed() == kept

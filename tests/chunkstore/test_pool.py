"""Threads that share items: what happens when somebody interrupts, hangs, or the program is ending."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import chunkstore
from chunkstore.pool import WorkerPool


class Interrupted(BaseException):
    """What a handler of signals raises, as Ctrl-C raises KeyboardInterrupt."""


@pytest.fixture
def interrupt():
    """Return a function that interrupts the main thread at some times, in seconds from now."""

    def stop(*_):
        raise Interrupted

    def at(first, then=0.0):
        signal.setitimer(signal.ITIMER_REAL, first, then)

    before = signal.signal(signal.SIGALRM, stop)
    yield at
    at(0.0)
    signal.signal(signal.SIGALRM, before)


def test_whoever_interrupts_finds_no_item_being_done_any_more(interrupt):
    pool, main, doing = WorkerPool("test", 3), threading.get_ident(), set()

    def work(n):
        if threading.get_ident() == main:
            return
        doing.add(n)
        time.sleep(0.4)
        doing.discard(n)

    interrupt(0.1)
    with pytest.raises(Interrupted):
        pool.each(work, range(3))
    assert not doing


def test_whoever_interrupts_twice_waits_for_nobody(interrupt):
    pool, main, hold = WorkerPool("test", 2), threading.get_ident(), threading.Event()

    def work(n):
        time.sleep(0.05)
        return n if threading.get_ident() == main else hold.wait(20)

    interrupt(0.2, 0.2)
    with pytest.raises(Interrupted):
        pool.each(work, range(2))
    interrupt(0.0)
    assert not hold.is_set()
    hold.set()
    assert pool.each(abs, [-1, -2]) == [1, 2]


def test_interrupts_at_any_moment_leave_a_pool_that_works(interrupt):
    pool, doing, main = WorkerPool("test", 4), set(), threading.get_ident()

    def work(n):
        me = threading.get_ident()
        if me != main:
            doing.add(me)
        end = time.perf_counter() + 0.0005 * (n % 3)
        while time.perf_counter() < end:
            pass
        doing.discard(me)
        return -n

    times = np.random.default_rng(1).uniform(1e-5, 3e-3, 300)
    stopped = 0
    for seconds in times.tolist():
        try:
            interrupt(seconds)
            assert pool.each(work, range(8)) == [-n for n in range(8)]
            interrupt(0.0)
        except Interrupted:
            stopped += 1
            assert not doing
    interrupt(0.0)
    assert stopped > 10
    assert pool.each(work, range(8)) == [-n for n in range(8)]


def test_an_interrupt_is_heard_though_an_earlier_item_fails():
    pool, failed = WorkerPool("test", 2), threading.Event()

    def work(n):
        if n == 0:
            failed.wait(5)
            raise ValueError("zero")
        failed.set()
        raise Interrupted

    with pytest.raises(Interrupted):
        pool.each(work, range(2))


def test_threads_that_hang_keep_no_items_of_others():
    pool, hold = WorkerPool("test", 3), threading.Event()
    stuck = [threading.Thread(target=pool.each, args=(lambda _: hold.wait(20), range(3))) for _ in range(2)]
    for thread in stuck:
        thread.start()
    time.sleep(0.2)
    kept = []
    for _ in range(100):
        items = [np.zeros(100) for _ in range(3)]
        kept += [weakref.ref(item) for item in items]
        assert pool.each(len, items) == [100, 100, 100]
        del items
    gc.collect()
    assert not any(item() is not None for item in kept)
    assert pool._asked.qsize() < 20
    hold.set()
    for thread in stuck:
        thread.join()


def test_a_pool_has_no_more_threads_than_workers_whoever_asks():
    pool = WorkerPool("most", 3)
    asking = [
        threading.Thread(target=lambda: [pool.each(abs, range(9)) for _ in range(50)]) for _ in range(8)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert 1 <= sum(t.name.startswith("chunkstore-most") for t in threading.enumerate()) <= 3


def test_where_the_system_gives_no_thread_the_caller_works_alone(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    pool = WorkerPool("test", 3)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert pool.each(abs, [-1, -2, -3]) == [1, 2, 3]


@pytest.mark.parametrize("when", ["threading.Thread(target=use).start()", "atexit.register(use)"])
def test_stores_are_written_and_read_though_the_main_thread_has_ended(tmp_path, when):
    program = f"""
import atexit, threading, time
import numpy as np
import chunkstore

def use():
    time.sleep(0.3)
    with chunkstore.StoreWriter("late.zarr", {{"x": "f4"}}, chunk=4096, shard=2**21) as out:
        out.write("a", {{"x": np.arange(2_000_000)}})
    print(int(chunkstore.open_store("late.zarr").read("x", 0, 2_000_000)[-1]))

{when}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1999999\n", done.stderr
    assert chunkstore.open_store(tmp_path / "late.zarr").n_obs == 2_000_000

"""Knowing of the garbage collector, without being in anybody's way."""

from __future__ import annotations

import gc
import signal
import threading
import time

import pytest

from chunkstore.collecting import is_collecting


class Ring:
    """Something that only the collector frees, and that says whether it did."""

    told: list[bool]

    def __init__(self, told):
        self.me, self.told = self, told

    def __del__(self):
        self.told.append(is_collecting())


def test_a_finalizer_knows_who_met_it():
    told = []
    for _ in range(3):
        assert not is_collecting()
        Ring(told)
        gc.collect()
        ring = Ring(told)
        ring.me = None
        del ring
    assert told == [True, False] * 3
    assert not is_collecting()


def test_a_thread_knows_its_own_collections_from_those_of_others():
    """What is dropped here while garbage is collected elsewhere may be waited for."""

    class Slow(Ring):
        """Takes its time, and lets others work."""

        def __del__(self):
            super().__del__()
            begun.set()
            assert end.wait(60)
            super().__del__()

    def collect():
        gc.collect()
        told.append(is_collecting())

    told, elsewhere = [], []
    begun, end = threading.Event(), threading.Event()
    gc.collect()  # this thread has done so before, too
    Slow(told)
    thread = threading.Thread(target=collect)
    gc.disable()
    try:
        thread.start()
        assert begun.wait(60)
        elsewhere.append(is_collecting())
        Ring(elsewhere).me = None
    finally:
        end.set()
        thread.join()
        gc.enable()
    assert elsewhere == [False, False]
    assert told == [True, True, False]
    assert not is_collecting()


def test_no_interrupt_is_lost_where_garbage_is_collected_all_the_time():
    """A callback in Python would meet it between two of its own instructions, where nobody hears of it."""

    class Interrupted(BaseException):
        """Of a timer."""

    def stop(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, stop)
    # those of hypothesis are in Python
    others = [call for call in gc.callbacks if "hypothesis" in str(getattr(call, "__module__", ""))]
    ours = [call for call in gc.callbacks if call not in others]
    gc.callbacks[:] = ours
    _kept = [[] for _ in range(50_000)]  # a collection takes a while
    try:
        for n in range(40):
            with pytest.raises(Interrupted):  # noqa: PT012 - wherever it is met
                signal.setitimer(signal.ITIMER_REAL, 0.002 + n * 1e-4)
                end = time.monotonic() + 2
                while time.monotonic() < end:
                    gc.collect()
    finally:
        gc.callbacks[:] = [*others, *ours]
        signal.signal(signal.SIGALRM, before)

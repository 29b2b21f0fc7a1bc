"""Make the next items of an iterator in a thread, while the caller works on the last one.

Decides how far ahead, and when the thread works: it fills the line to the top, then sleeps until about
half of it is taken. How long that takes it learns from the caller's pace, so that the caller finds its
items ready and need not wake anybody: a wake-up costs more than all the rest of a hand-over. Items that the
caller is done with are let go of in the thread as well. Decides nothing about the items.

The thread ends with the iterator: when it is exhausted, closed, dropped half-way, or when either side raises.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chunkstore.collecting import is_collecting
from chunkstore.errors import ForkError
from chunkstore.forks import Living

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["Passed", "ahead_of", "depth_of"]

T = TypeVar("T")
LEAST, MOST = 2, 16  # items ahead where nobody said; more would only make memory colder
BYTES = 16 << 20  # of all these together, where they are small enough for the least number
FIRST_PACE = 1e-3  # seconds an item, before it is known
EARLY = 0.7  # of the time until half is taken, as steps are not all equally long
LONGEST_PACE = 10.0  # seconds an item, of a caller that has stopped asking


def depth_of(item_bytes: int, memory_limit: int) -> int:
    """Return how many items are made ahead where nobody said.

    Parameters
    ----------
    item_bytes : int
        Bytes of one.
    memory_limit : int
        Bytes that the work beside may take: items ahead take a quarter as much at most, and 16 MiB at most,
        unless two take more.

    Examples
    --------
    >>> depth_of(1000, memory_limit=1 << 30), depth_of(4 << 20, memory_limit=1 << 30)
    (16, 4)
    >>> depth_of(1 << 20, memory_limit=16 << 20), depth_of(1 << 30, memory_limit=1 << 30)
    (4, 2)
    """
    room = min(BYTES, memory_limit // 4)
    return max(LEAST, min(MOST, room // max(1, item_bytes)))


class Passed:
    """What stood beside the item that the caller was given last."""

    __slots__ = ("beside",)

    def __init__(self, beside: Any = None) -> None:
        self.beside = beside


def ahead_of(items: Iterator[tuple[T, Any]], depth: int, passed: Passed) -> Generator[T, None, None]:
    """Yield the first of each pair, up to ``depth`` of them made ahead in a thread; 0 makes each when asked.

    The second of a pair is put into ``passed`` as the first is handed out. (One generator does both: a caller
    that computed meanwhile finds every frame of ours out of the cache.) An exception in ``items`` is raised
    where its item would have come. Items that were handed out and let go of may stay in memory for a
    while: with those that wait they are never more than ``depth``.

    Examples
    --------
    >>> passed = Passed()
    >>> [(item, passed.beside) for item in ahead_of(zip("abc", [1, 2, 3]), 2, passed)]
    [('a', 1), ('b', 2), ('c', 3)]
    """
    if depth < 1:
        try:
            for item, passed.beside in items:
                yield item
                del item
        finally:
            _close(items)
        return
    line, asker = _Line(depth), threading.get_ident()
    _LIVING.add(line)
    thread = threading.Thread(target=line.fill, args=(items,), name="chunkstore-ahead", daemon=True)
    take, ready, room, spend, low = line.ready.get, line.ready, line.room, line.spent.append, depth // 4
    pair: Any = None
    try:
        thread.start()  # may be interrupted when the thread is there already
        while True:
            pair = take()
            if pair.__class__ is _End:
                break
            if line.resting and ready.qsize() <= low:
                line.resting = False
                room.put(None)
            item, passed.beside = pair
            yield item
            del item
            spend(pair)
            pair = None
        if pair.error is not None:
            raise pair.error
    finally:
        line.stop = True
        room.put(None)
        # another thread, perhaps one that this one waits for, may meet us as garbage, or this one while it
        # holds a lock: then it ends by itself; at the end of the program it runs no more
        mine = asker == threading.get_ident() and not is_collecting()
        if mine and not sys.is_finalizing() and thread.is_alive():
            thread.join()
        line.spent.clear()


class _End:
    """Stands behind the last item: there are no more, or they broke off."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def _close(items: Iterator[Any]) -> None:
    close = getattr(items, "close", None)
    if close is not None:
        close()


class _Line:
    """What the two threads share."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        #: the pairs, then an end; wakes nobody where nobody waits
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: tells the thread that few are left, or that it must stop
        self.room: queue.SimpleQueue[None] = queue.SimpleQueue()
        #: what the caller has had; a list, whose ``append`` and ``clear`` are atomic
        self.spent: list[Any] = []
        self.resting = False
        self.stop = False
        self._pace = FIRST_PACE

    def fill(self, items: Iterator[Any]) -> None:
        """Make items, in the thread."""
        try:
            if self.stop:  # whoever asked was interrupted as the thread began
                return
            for item in items:
                self.ready.put(item)
                del item
                self.spent.clear()
                if self.stop or (self.ready.qsize() >= self.depth and not self._rest()):
                    return
            self.ready.put(_End())
        except BaseException as error:  # raised again in the thread that asks
            self.ready.put(_End(error))
        finally:
            _close(items)

    def _rest(self) -> bool:
        """Sleep until about half of what is ready is taken; return whether there is more to do."""
        half = self.depth // 2
        while not self.stop:
            self.resting = True
            level, began = self.ready.qsize(), time.perf_counter()
            if level <= half:
                self.resting = False
                self.spent.clear()
                return True
            with contextlib.suppress(queue.Empty):
                self.room.get(timeout=EARLY * self._pace * (level - half))
            taken, spent = level - self.ready.qsize(), time.perf_counter() - began
            self._pace = spent / taken if taken else min(2 * self._pace, LONGEST_PACE)
        return False


_LIVING: Final[Living[_Line]] = Living()


def _tell_child() -> None:
    """Let an iterator that came along into a forked child end: nobody there makes its next items."""
    for line in _LIVING.listed():
        line.ready.put(
            _End(ForkError("this iterator was begun before a fork, and its thread is not here; begin anew"))
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_child)

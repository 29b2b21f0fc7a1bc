"""Make the next items of an iterator in a thread, while the caller works on the last one.

Decides how far ahead, and when the thread works: it fills the line to the top, then sleeps until about
half of it is taken. How long that takes it learns from the caller's pace, so that the caller finds its
items ready and need not wake anybody: a wake-up costs more than all the rest of a hand-over. Items that the
caller is done with are let go of in the thread as well. Decides nothing about the items.

The thread ends with the iterator: when it is exhausted, closed, dropped half-way, or when either side raises.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["ahead_of", "depth_of"]

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


def ahead_of(items: Iterator[T], depth: int) -> Generator[T, None, None]:
    """Yield ``items``, up to ``depth`` of them made ahead in a thread; 0 makes each when it is asked for.

    An exception in ``items`` is raised where its item would have come. Items that were handed out and let go
    of may stay in memory for a while: with those that wait they are never more than ``depth``.

    Examples
    --------
    >>> list(ahead_of(iter("abc"), depth=2))
    ['a', 'b', 'c']
    """
    if depth < 1:
        yield from items
        return
    line = _Line(depth)
    thread = threading.Thread(target=line.fill, args=(items,), name="chunkstore-ahead", daemon=True)
    thread.start()
    ready, room, spent, low = line.ready, line.room, line.spent, depth // 4
    try:
        while True:
            more, item = ready.get()
            if not more:
                break
            if line.resting and ready.qsize() <= low:
                line.resting = False
                room.put(None)
            yield item
            spent.append(item)
        if item is not None:
            raise item
    finally:
        line.stop = True
        room.put(None)
        if thread is not threading.current_thread():  # which may meet us as garbage; it ends by itself
            thread.join()
        spent.clear()


class _Line:
    """What the two threads share."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        #: (True, item) for each item, then (False, None) or (False, error); wakes nobody where nobody waits
        self.ready: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
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
            for item in items:
                self.ready.put((True, item))
                del item
                self.spent.clear()
                if self.stop or (self.ready.qsize() >= self.depth and not self._rest()):
                    return
            self.ready.put((False, None))
        except BaseException as error:  # raised again in the thread that asks
            self.ready.put((False, error))
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

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

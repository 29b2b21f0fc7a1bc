"""Make the next few items of an iterator in a thread, while the caller works on the last one.

Decides nothing about the items. The thread ends with the iterator: when it is exhausted, closed,
dropped half-way, or when either side raises.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["ahead_of"]

T = TypeVar("T")
_POLL = 0.05  # seconds between looks at the stop flag while the queue is full


def ahead_of(items: Iterator[T], depth: int) -> Generator[T, None, None]:
    """Yield ``items``, up to ``depth`` of them made ahead in a thread; 0 makes each when it is asked for.

    An exception in ``items`` is raised where its item would have come.

    Examples
    --------
    >>> list(ahead_of(iter("abc"), depth=2))
    ['a', 'b', 'c']
    """
    if depth < 1:
        yield from items
        return
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, ready, stop), name="chunkstore-ahead", daemon=True)
    thread.start()
    try:
        while True:
            more, item = ready.get()
            if more:
                yield item
                del item
            elif item is None:
                return
            else:
                raise item
    finally:
        stop.set()
        thread.join()


def _fill(items: Iterator[T], ready: queue.Queue[tuple[bool, Any]], stop: threading.Event) -> None:
    """Put (True, item) for each item, then (False, None), or (False, error); runs in the thread."""
    try:
        for item in items:
            if not _put(ready, (True, item), stop):
                return
            del item
        _put(ready, (False, None), stop)
    except BaseException as error:  # raised again in the thread that asks
        _put(ready, (False, error), stop)
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


def _put(ready: queue.Queue[tuple[bool, Any]], entry: tuple[bool, Any], stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            ready.put(entry, timeout=_POLL)
        except queue.Full:
            continue
        return True
    return False

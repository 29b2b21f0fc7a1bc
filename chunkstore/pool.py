"""Threads of the process for encoding and decoding chunks: few, shared, made anew after a fork."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["DECODERS", "ENCODERS", "TABLES", "WorkerPool"]

T = TypeVar("T")
R = TypeVar("R")


class WorkerPool:
    """A pool of threads that starts at its first use in a process.

    Examples
    --------
    >>> WorkerPool("doc", 2).get().submit(abs, -3).result()
    3
    """

    def __init__(self, name: str, workers: int) -> None:
        self.name = name
        self.workers = workers
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        _POOLS.append(self)

    def get(self) -> ThreadPoolExecutor:
        """Return the executor of this process."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(
                    self.workers, thread_name_prefix=f"chunkstore-{self.name}"
                )
            return self._executor

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return what the work made of every item; where one raises, none is being done any more by then.

        The calling thread takes part: it works while others wake up, and alone where there are none.
        Items are begun in their order. Of several that raise, the first is heard.

        Examples
        --------
        >>> WorkerPool("doc", 2).each(str.upper, "abc")
        ['A', 'B', 'C']
        """
        todo = list(items)
        if self.workers == 1:
            return [work(item) for item in todo]
        turns = deque(range(len(todo)))
        made: dict[int, R] = {}
        failed: dict[int, BaseException] = {}

        def go() -> None:
            while True:
                try:
                    turn = turns.popleft()
                except IndexError:
                    return
                try:
                    made[turn] = work(todo[turn])
                except BaseException as error:
                    failed[turn] = error
                    turns.clear()

        count = min(self.workers, len(todo)) - 1
        helpers = [self.get().submit(go) for _ in range(count)]
        try:
            go()
        finally:
            turns.clear()
            running = [helper for helper in helpers if not helper.cancel()]
            if running:
                wait(running)
        if failed:
            first = failed[min(failed)]
            failed.clear()  # an error that is kept holds this frame
            try:
                raise first
            finally:
                del first
        return [made[turn] for turn in range(len(todo))]

    def forget(self) -> None:
        """Start anew: the threads of a parent do not exist in its forked child."""
        self._lock = threading.Lock()
        self._executor = None


def _forget_all() -> None:
    for pool in _POOLS:
        pool.forget()


_POOLS: Final[list[WorkerPool]] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _threads(variable: str, default: int) -> int:
    """Return a number of threads; the environment may set it where processes work side by side."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() and int(text) else default


ENCODERS: Final = WorkerPool("encode", _threads("CHUNKSTORE_ENCODE_THREADS", min(8, os.cpu_count() or 1)))
#: Shared by all stores of the process, so that many readers never become many threads.
DECODERS: Final = WorkerPool("decode", min(8, max(4, os.cpu_count() or 1)))
#: Arrays along ``sequence``: decoders wait for them to name the sequence of a bad chunk, they for nobody.
TABLES: Final = WorkerPool("tables", 8)

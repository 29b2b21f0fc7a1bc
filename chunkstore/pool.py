"""Threads of the process for encoding and decoding chunks: few, shared, made anew after a fork.

They are daemons with a queue, and no executor of the standard library: that one takes no work once the main
thread has ended, though others may still write a store, and its locks stay locked where Ctrl-C meets them.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["DECODERS", "ENCODERS", "TABLES", "WorkerPool"]

T = TypeVar("T")
R = TypeVar("R")


class WorkerPool:
    """A pool of threads, each of which starts when there is work for it.

    Examples
    --------
    >>> WorkerPool("doc", 2).each(abs, [-3, 2])
    [3, 2]
    """

    def __init__(self, name: str, workers: int) -> None:
        self.name = name
        self.workers = workers
        self.forget()
        _POOLS.append(self)

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return what the work made of every item; where one raises, none is being done any more by then.

        The calling thread takes part: it works while others wake up, and alone where there are none.
        Items are begun in their order. Of several that raise, the first is heard. Whoever interrupts waits
        for the items that are being done, too, and does not where he interrupts once more.

        Examples
        --------
        >>> WorkerPool("doc", 2).each(str.upper, "abc")
        ['A', 'B', 'C']
        """
        todo = list(items)
        helpers = min(self.workers, len(todo)) - 1
        if helpers < 1:
            return [work(item) for item in todo]
        share = _Share(work, todo)
        try:
            self._ask(share.help, helpers)
            share.go()
        finally:
            share.end()
        return share.results()

    def _ask(self, call: Callable[[], None], times: int) -> None:
        """Have up to so many threads call something as soon as they are free."""
        asked = self._asked
        if asked.qsize() > 4 * self.workers:  # all are held up, by storage that hangs perhaps
            return
        for _ in range(times):
            asked.put(call)
        for _ in range(asked.qsize()):
            self._begun.append(None)  # first: two that look at once start one too few, never one too many
            name = f"chunkstore-{self.name}_{len(self._begun)}"
            try:
                if len(self._begun) <= self.workers:
                    threading.Thread(target=_serve, args=(asked,), name=name, daemon=True).start()
                    continue
            except RuntimeError:  # the system gives no more, or the program is ending
                pass
            self._begun.pop()
            return

    def forget(self) -> None:
        """Start anew: the threads of a parent do not exist in its forked child."""
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        #: one for each thread that was started; a list, whose end is atomic
        self._begun: list[None] = []


class _Share(Generic[T, R]):
    """Items that some threads do together.

    No lock is held anywhere, so that an interrupt leaves none behind: lists and deques are atomic.
    """

    def __init__(self, work: Callable[[T], R], todo: list[T]) -> None:
        self._work = work
        self._todo = todo
        self._turns = deque(range(len(todo)))
        self._made: dict[int, R] = {}
        self._failed: dict[int, BaseException] = {}
        self._ended = False
        self._came: list[None] = []
        self._left: list[None] = []
        self._quiet: SimpleQueue[None] = SimpleQueue()

    def go(self) -> None:
        """Do items as long as there are any."""
        while True:
            try:
                turn = self._turns.popleft()
            except IndexError:
                return
            try:
                self._made[turn] = self._work(self._todo[turn])
            except BaseException as error:
                self._failed[turn] = error
                self._turns.clear()

    def help(self) -> None:
        """Do items in a thread of the pool, unless it comes too late."""
        self._came.append(None)  # first: whoever ends the share looks after saying so
        try:
            if not self._ended:
                self.go()
        finally:
            self._left.append(None)
            self._quiet.put(None)

    def end(self) -> None:
        """Begin no more items, and wait for those that are being done."""
        self._ended = True
        self._turns.clear()
        stopped: BaseException | None = None
        while len(self._left) < len(self._came):
            try:
                self._quiet.get()
            except BaseException as error:
                if stopped is not None:
                    raise
                stopped = error
        self._todo = []  # a thread that is held up may come for this share much later
        if stopped is not None:
            try:
                raise stopped
            finally:
                del stopped

    def results(self) -> list[R]:
        """Return what was made, or raise what is to be heard."""
        made, failed = self._made, self._failed
        self._made, self._failed = {}, {}  # an error that is kept holds its frames, and they hold this
        if not failed:
            return [made[turn] for turn in range(len(made))]
        told = min(failed, key=lambda turn: (isinstance(failed[turn], Exception), turn))
        error = failed[told]
        failed.clear()
        try:
            raise error
        finally:
            del error


def _serve(asked: SimpleQueue[Callable[[], None]]) -> None:
    """Do what is asked for, in a thread of the pool."""
    while True:
        call: Any = asked.get()
        call()
        del call


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

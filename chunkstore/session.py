"""One iteration over one epoch: threads that read ahead of it, in the order of need, and what it holds.

Decides when blocks are read and let go of, and who waits for whom; where they lie is left to
:mod:`chunkstore.resident`. A session owns its threads: when it ends, by exhaustion, an error or being
dropped, they end. The newest over a residency takes over, and the older says so to whoever asks it for more.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.collecting import is_collecting
from chunkstore.errors import ConfigError
from chunkstore.resident import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from chunkstore.resident import Job, Residency

__all__ = ["Session", "next_use"]

BUNDLE_BYTES = 1 << 20  # small reads are joined until they come to about this
BUNDLE_PIECES = 16
_ENDED = "this iteration has ended: a newer one over the same loader took over, or it was closed"


class Session:
    """One iteration: threads that read ahead of it, and what it holds.

    Parameters
    ----------
    residency : Residency
        Where blocks live.
    block : int64 array
        The block of each piece, in the order of need.
    first, last : int64 array
        First and last moment at which each piece is needed; ``first`` is ascending.
    ranges_of : callable
        ``ranges_of(i)`` returns the obs ranges that piece i needs.
    capacity : int
        Pieces that may be held at once.
    """

    def __init__(  # noqa: PLR0917 - all of them, from one place
        self,
        residency: Residency,
        block: NDArray[np.int64],
        first: NDArray[np.int64],
        last: NDArray[np.int64],
        ranges_of: Callable[[int], list[tuple[int, int]]],
        capacity: int,
    ) -> None:
        residency.check_process()
        self.residency = residency
        self.block, self.first = block, first
        self._ranges_of = ranges_of
        self.capacity = capacity
        self._by_last = np.argsort(last, kind="stable").astype(np.int32 if len(last) < 2**31 else np.int64)
        self._last = last[self._by_last]
        self._next = next_use(block)
        self._issued = 0
        self._released = 0
        self._ready = 0
        self._sure = 0  # what moments before it need is resident
        self._leaving = int(self._last[0]) if len(self._last) else NEVER  # no piece is done before it
        self._waits: dict[int, list[Job]] = {}
        self._wanted = 0  # pieces before it are waited for
        self._come = 0  # pieces before it are known to be done
        self._stop = False
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []
        with residency.lock:
            old, residency.session = residency.session, self  # the newest iteration takes over
            if old is not None:
                old._end()  # noqa: SLF001 - of the same kind
            before = residency.running
        _join(before)
        try:
            with residency.lock:
                if self._stop:
                    raise ConfigError(_ENDED)
                residency.begin(block)
                residency.running = self._threads = [
                    threading.Thread(target=_work, args=(self,), name=f"chunkstore-decode-{n}", daemon=True)
                    for n in range(residency.threads)
                ]
                for thread in self._threads:
                    thread.start()
        except BaseException:  # an interrupt, or no more threads to be had
            self.close()
            raise

    # ---- the consumer's side

    def reach(self, stop: int) -> int:
        """Wait until what moments before ``stop`` need is resident; return how far that holds.

        The answer is less than ``stop`` where more pieces are needed than can be held at once: the caller
        uses what is there, calls :meth:`leave`, and asks again.
        """
        r = self.residency
        r.check_process()
        if stop <= self._sure and not self._stop:
            return stop
        # bisect, since numpy's search lets go of the interpreter, and gets it back after the threads
        wanted = bisect_left(self.first, stop)
        most = min(wanted, self._released + self.capacity)
        if most < wanted:
            stop = int(self.first[most])
            most = bisect_left(self.first, stop)
        if most <= self._ready and not self._stop:
            self._sure = int(self.first[self._ready]) if self._ready < len(self.first) else NEVER
            return stop
        failed: Job | None = None
        with r.lock:
            began = None
            while self._ready < most:
                if self._stop:
                    raise ConfigError(_ENDED)
                if self._failure is not None:
                    raise self._failure
                i = self._ready
                jobs = self._waits.get(i) if i < self._issued else None
                if jobs is not None and all(job.done for job in jobs):
                    failed = next((job for job in jobs if job.error is not None), None)
                    if failed is not None:
                        break
                    del self._waits[i]
                    self._ready += 1
                    continue
                if began is None:
                    began = time.perf_counter()
                    r.counters.waits += 1
                self._wanted, self._come = most, i
                r.arrived.wait(1.0)
            if began is not None:
                r.counters.seconds_waited += time.perf_counter() - began
            self._wanted = 0
            if self._stop:
                raise ConfigError(_ENDED)
        if failed is not None:  # named without the lock: that reads the table of sequences
            assert failed.error is not None
            if isinstance(failed.error, MemoryError):
                raise failed.error  # says nothing about the store
            raise r.explain(failed, failed.error) from failed.error
        return stop

    def _tell(self) -> None:
        """Wake the consumer if all that it waits for is here, or an error stands for it; the lock is held.

        Woken for every piece it would fight with the readers for the interpreter, and go back to sleep.
        """
        while self._come < self._wanted:
            jobs = self._waits.get(self._come) if self._come < self._issued else None
            if jobs is None or not all(job.done for job in jobs):
                return
            self._come += 1
            if any(job.error is not None for job in jobs):
                break
        if self._wanted:
            self._wanted = 0
            self.residency.arrived.notify_all()

    def leave(self, moment: int) -> None:
        """Let go of pieces that no moment from ``moment`` on needs.

        Raises
        ------
        ConfigError
            If a newer iteration took over since :meth:`reach`: what was cut meanwhile may be of its blocks.
        """
        if self._stop:
            raise ConfigError(_ENDED)
        if moment <= self._leaving:
            return
        upto = bisect_left(self._last, moment)
        if upto <= self._released:
            return
        r = self.residency
        with r.lock:
            if self._stop:
                raise ConfigError(_ENDED)
            for i in self._by_last[self._released : upto].tolist():
                r.release(int(self.block[i]))
            self._released = upto
            self._leaving = int(self._last[upto]) if upto < len(self._last) else NEVER
            r.lock.notify_all()

    def close(self) -> None:
        """End the threads; what is resident stays."""
        r = self.residency
        # a forked child has no threads to end; at the end of the program they run no more, one perhaps locked
        if os.getpid() != r.pid or sys.is_finalizing():
            return
        with r.lock:
            self._end()
            if r.session is self:
                r.session = None
        # where we are met as garbage, they may wait for this very thread, or for a lock that it holds:
        # the next session waits for them
        if threading.current_thread() in self._threads or r.lock._is_owned() or is_collecting():  # type: ignore[attr-defined]  # noqa: SLF001
            return
        _join(self._threads)

    def _end(self) -> None:
        """Tell all that wait to go home; the lock is held."""
        self._stop = True
        self.residency.lock.notify_all()
        self.residency.arrived.notify_all()

    # ---- the threads' side; the lock is held

    def next_jobs(self) -> list[Job]:
        """Issue pieces in order until there is about a bundle of bytes to read."""
        r = self.residency
        jobs: list[Job] = []
        size = 0
        while self._issued < len(self.block) and len(jobs) < BUNDLE_PIECES and size < BUNDLE_BYTES:
            if self._issued - self._released >= self.capacity:
                break
            i = self._issued
            block = int(self.block[i])
            waits = r.take(i, block, self._ranges_of(i), int(self._next[i]))
            if waits is None:
                break
            self._waits[i] = waits
            self._issued += 1
            if waits and waits[0].piece == i and not waits[0].done and waits[0] not in jobs:
                jobs.append(waits[0])
                size += sum(b - a for a, b in waits[0].ranges) * r.bytes_per_obs
        return jobs

    def steps(self) -> Iterator[list[Job]]:
        """Yield jobs to read, until the session ends."""
        r = self.residency
        while True:
            with r.lock:
                jobs: list[Job] = []
                while not self._stop:
                    jobs = self.next_jobs()
                    if jobs or self._issued >= len(self.block):
                        break
                    self._tell()
                    r.lock.wait()
                self._tell()  # pieces may have been resident already
                if self._stop or not jobs:
                    for job in jobs:
                        job.error = RuntimeError("the iteration ended before this was read")
                        r.finish(job)
                    return
            yield jobs
            with r.lock:
                for job in jobs:
                    r.finish(job)
                self._tell()


def _work(session: Session) -> None:
    """Read what a session needs, in order, until it ends."""
    try:
        for jobs in session.steps():
            try:
                session.residency.read(jobs)
            except BaseException as error:
                for job in jobs:
                    job.error = job.error or error
    except BaseException as error:
        with session.residency.lock:
            session._failure = error  # noqa: SLF001 - handed to the consumer
            session.residency.arrived.notify_all()


def _join(threads: list[threading.Thread]) -> None:
    """Wait for threads to end; one that was never started has."""
    for thread in threads:
        if thread.is_alive():
            thread.join()


def next_use(block: NDArray[Any]) -> NDArray[Any]:
    """Return for each piece the next piece that needs the same block, or a number beyond all pieces."""
    kind = np.int32 if len(block) < 2**31 else np.int64
    order = np.argsort(block, kind="stable").astype(kind)
    out = np.full(len(block), np.iinfo(kind).max, kind)
    same = np.flatnonzero(np.diff(block[order]) == 0)
    out[order[same]] = order[same + 1]
    return out

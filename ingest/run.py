"""Running tasks: one after the other, or on a dask cluster.

A runner takes a function and an iterator of tasks and yields results as they come. It keeps a bounded
number of tasks in flight, lets go of every future as soon as its result is here, and tries a task again
when its worker died or its storage failed for a moment; a fault of the plan or the data ends the
job at once. Tasks shorter than what it costs to hand one out are handed out together. It knows nothing of
what the tasks do.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import queue
import time
import traceback
import zlib
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import chunkstore.errors
from chunkstore.errors import ChunkstoreError, CorruptDataError, IngestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


__all__ = ["DaskRunner", "Runner", "SerialRunner"]

log = logging.getLogger(__name__)
#: times that one task is tried
TRIES = 4
#: times that the workers of a task may die under it
DEATHS = 8
#: seconds of work that are handed out at once where tasks are shorter: a hundred times what that costs
TOGETHER_SECONDS = 0.5
#: most tasks that are handed out at once
TOGETHER = 128
#: seconds before a task is tried again, by the number of times that it was tried
PAUSES = (0.0, 0.4, 1.6, 6.4)
#: seconds without any worker after which that is told
ALONE = 30.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NEVER = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG})


class Runner(Protocol):
    """What the job needs of whatever runs tasks."""

    @property
    def workers(self) -> int:
        """Tasks that can run at once."""

    @property
    def dashboard(self) -> str | None:
        """Link to a page that shows the cluster, if there is one."""

    def map(
        self, work: Callable[[Any], Any], tasks: Iterable[Any], count: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Run ``work(task)`` for every task; yield (task, result) in any order.

        ``count`` is the number of tasks, where it is known.
        """

    def close(self) -> None:
        """Let go of what the runner started."""


def is_passing(error: BaseException) -> bool:
    """Whether trying again may help: storage that failed for a moment, as far as one can tell.

    Examples
    --------
    >>> is_passing(TimeoutError()), is_passing(OSError(errno.ENOSPC, "full")), is_passing(KeyError())
    (True, False, False)
    """
    if isinstance(error, CorruptDataError):
        return True
    if isinstance(error, (ChunkstoreError, FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return False
    if isinstance(error, OSError):
        return error.errno not in _FULL | _NEVER
    return isinstance(error, TimeoutError) or type(error).__module__.startswith("obstore")


def patiently(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``call(*arguments)``; storage that fails for a moment is asked again.

    Examples
    --------
    >>> patiently(max, 1, 2)
    2
    """
    for attempt in range(1, TRIES):
        try:
            return call(*arguments)
        except Exception as error:
            if not is_passing(error):
                raise
            log.warning(
                "%s failed (%s), trying again; check the storage if this goes on",
                getattr(call, "__name__", "a call"),
                error,
            )
            time.sleep(PAUSES[attempt])
    return call(*arguments)


def explain(error: BaseException, what: str) -> IngestError:
    """Return the error that ends a job: one clear sentence, the cause chained to it."""
    if isinstance(error, OSError) and error.errno in _FULL:
        where = f" ({error.filename})" if error.filename else ""
        return IngestError(
            f"the disk is full{where}: {what}; what is finished is kept: free some space and run again "
            "with --resume"
        )
    if isinstance(error, IngestError):
        return error
    kind = type(error).__name__
    return IngestError(f"{what}: {kind}: {error}; what is finished is kept: run again with --resume")


def _raise(error: BaseException, what: str) -> None:
    told = explain(error, what)
    if told is error or (isinstance(error, ChunkstoreError) and not isinstance(error, IngestError)):
        raise error
    raise told from error


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way from a worker: plain values, for not every exception survives the journey."""

    kind: str
    """Name of its class."""
    message: str
    """What it says."""
    errno: int | None
    """Its number, if it has one."""
    filename: str | None
    """Its file, if it has one."""
    passing: bool
    """Whether trying again may help."""
    trace: str
    """Where it came from."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception.

        Examples
        --------
        >>> told = Failure.of(IngestError("no"))
        >>> told.kind, told.passing, told.error()
        ('IngestError', False, IngestError('no'))
        """
        number, name = getattr(error, "errno", None), getattr(error, "filename", None)
        message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return cls(
            type(error).__name__,
            message,
            number,
            None if name is None else str(name),
            is_passing(error),
            "".join(traceback.format_exception(error)),
        )

    def error(self) -> BaseException:
        """Make the exception again, or one that says the same."""
        own = getattr(chunkstore.errors, self.kind, None)
        if isinstance(own, type) and issubclass(own, ChunkstoreError):
            made: BaseException = own(self.message)
            return made
        if self.errno is not None:
            return OSError(self.errno, self.message, self.filename)
        return IngestError(f"{self.kind}: {self.message}; what is finished is kept: run again with --resume")


def guarded(work: Callable[[Any], Any], task: Any) -> Any:
    """Run a task in a worker; return its result, or its failure."""
    try:
        return work(task)
    except Exception as error:
        return Failure.of(error)


def packed(work: Callable[[Any], Any], tasks: Sequence[Any]) -> bytes:
    """Return work and tasks as few bytes: a scheduler remembers the last thousand things it handed out."""
    import distributed.protocol

    dask: Any = distributed.protocol
    return zlib.compress(dask.pickle.dumps((work, tasks)), 1)


def together(handful: bytes) -> tuple[list[Any], float]:
    """Run packed tasks in a worker up to the first that fails; return results, and seconds.

    Examples
    --------
    >>> import math
    >>> results, seconds = together(packed(math.sqrt, [1, 4, -1, 9]))
    >>> results[:2], results[2].kind, len(results)
    ([1.0, 2.0], 'ValueError', 3)
    """
    import distributed.protocol

    began = time.perf_counter()
    dask: Any = distributed.protocol
    work, tasks = dask.pickle.loads(zlib.decompress(handful))
    results: list[Any] = []
    for task in tasks:
        results.append(guarded(work, task))
        if isinstance(results[-1], Failure):
            break
    return results, time.perf_counter() - began


class _Pace:
    """How many tasks are handed out at once: one at first, then as many as their length and number allow.

    Examples
    --------
    >>> pace = _Pace(20)
    >>> pace.took(1, 0.001)
    >>> [pace.next(threads=2) for _ in range(12)]
    [2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1]
    """

    def __init__(self, left: int | None = None) -> None:
        self.size = 1
        self._each: float | None = None
        self._left = left

    def next(self, threads: int) -> int:
        """Return how many are handed out now; no thread gets more than half of its share of what is left."""
        if self._left is None:
            return self.size
        size = max(1, min(self.size, self._left // (2 * threads)))
        self._left -= size
        return size

    def took(self, count: int, seconds: float) -> None:
        """Learn from tasks that ran."""
        each = seconds / count
        self._each = each if self._each is None else 0.8 * self._each + 0.2 * each
        fit = int(TOGETHER_SECONDS / max(self._each, 1e-9))
        self.size = max(1, min(TOGETHER, fit, 2 * self.size))


@dataclass(slots=True)
class _Try:
    """A task on its way."""

    task: Any
    tries: int = 1
    """Times that it was tried, this one too."""
    deaths: int = 0
    """Times that its worker died."""
    due: float = 0.0
    """When it may be tried again, by the monotonic clock."""


def _name(task: Any) -> str:
    return f"{type(task).__name__} {getattr(task, 'index', '')}".strip()


class SerialRunner:
    """Everything in this process, one task after the other: for debugging, and for small jobs.

    Examples
    --------
    >>> list(SerialRunner().map(abs, [-1, 2]))
    [(-1, 1), (2, 2)]
    """

    workers: int = 1
    dashboard: str | None = None

    def map(
        self,
        work: Callable[[Any], Any],
        tasks: Iterable[Any],
        count: int | None = None,  # noqa: ARG002 - nothing is handed out together
    ) -> Iterator[tuple[Any, Any]]:
        """Run ``work(task)`` for every task, in order."""
        for task in tasks:
            for attempt in range(1, TRIES + 1):
                try:
                    result = work(task)
                    break
                except Exception as error:
                    if attempt == TRIES or not is_passing(error):
                        _raise(error, _name(task))
                    log.warning(
                        "%s failed (%s), trying again; check the storage if this goes on", _name(task), error
                    )
                    time.sleep(PAUSES[attempt])
            yield task, result

    def close(self) -> None:
        """Nothing was started."""


class DaskRunner:
    """Tasks on a dask cluster through a client.

    Parameters
    ----------
    client : distributed.Client
        Not closed by the runner unless ``own`` says so.
    own : callables
        Called by :meth:`close`, in order.
    watch : callable, optional
        Called every second: a local cluster starts dead workers anew there.
    """

    def __init__(
        self, client: Any, own: Iterable[Callable[[], Any]] = (), watch: Callable[[], None] | None = None
    ) -> None:
        self.client = client
        self._own = list(own)
        self._watch = watch
        self._run = f"{os.getpid()}-{time.time_ns()}"
        self.dashboard: str | None = getattr(client, "dashboard_link", None)
        self._count = 0
        self._known = 0
        self._seen = time.monotonic()

    @property
    def workers(self) -> int:
        """Threads of all workers there are now."""
        return max(1, self._threads())

    def _threads(self) -> int:
        try:
            self._known = int(sum(self.client.nthreads().values()))
        except Exception:  # of a connection that is lost; the client may find it again
            self._check()
        return self._known

    def map(
        self, work: Callable[[Any], Any], tasks: Iterable[Any], count: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Run ``work(task)`` for every task; yield (task, result) as they come.

        At most two handfuls a thread, and two more, are in flight; the rest exist only in the iterator. A
        handful is one task, or as many as run in half a second; fewer towards the end, if ``count`` says
        where that is, so that no worker is idle while another has several left. One that failed, or whose
        worker died, goes alone when it is tried again: whatever killed the worker is then known.
        """
        waiting = iter(tasks)
        again: deque[_Try] = deque()
        running: dict[Any, list[_Try]] = {}
        finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threads = self.workers
        pace = _Pace(count)
        limit = 2 * threads + 2
        looked = time.monotonic()
        try:
            while True:
                while len(running) < limit:
                    now = time.monotonic()
                    ready = next((one for one in again if one.due <= now), None)
                    if ready is not None:
                        again.remove(ready)
                    tried = [ready] if ready else [_Try(t) for t in islice(waiting, pace.next(threads))]
                    if not tried:
                        break
                    running[self._submit(work, tried, finished)] = tried
                if not running and not again:
                    return
                soon = min((one.due for one in again), default=math.inf) - time.monotonic()
                done = self._wait(finished, min(1.0, max(0.01, soon)))
                if time.monotonic() - looked > 1:
                    looked = time.monotonic()
                    threads = self.workers
                    limit = 2 * threads + 2
                    self._tell_alone()
                    if self._watch is not None:
                        self._watch()
                for future in done:
                    if future not in running:
                        continue
                    tried = running.pop(future)
                    got = self._result(future)
                    future.release()
                    if isinstance(got, BaseException):
                        again.extend(self._lost(tried, got))
                        continue
                    results, seconds = got
                    pace.took(len(results), seconds)
                    again.extend(tried[len(results) :])
                    for one, result in zip(tried, results, strict=False):
                        if isinstance(result, Failure):
                            again.append(self._failed(one, result))
                        else:
                            yield one.task, result
        finally:
            if running:
                with contextlib.suppress(Exception):
                    self.client.cancel(list(running))

    @staticmethod
    def _lost(tried: Sequence[_Try], error: BaseException) -> Sequence[_Try]:
        """Return tasks whose worker died, to be given to another."""
        died = type(error).__name__ in {"KilledWorker", "CancelledError", "FutureCancelledError"}
        for one in tried:
            if not died or one.deaths >= DEATHS:
                _raise(error, _name(one.task))
            one.deaths += 1
        log.warning(
            "%s%s lost its worker, giving it to another; if this goes on, lower workers or memory_limit",
            _name(tried[0].task),
            f" and {len(tried) - 1} more" if len(tried) > 1 else "",
        )
        return tried

    @staticmethod
    def _failed(one: _Try, failure: Failure) -> _Try:
        """Return a task that failed for a moment, to be tried again; one that failed for good raises."""
        log.debug("%s failed:\n%s", _name(one.task), failure.trace)
        if not failure.passing or one.tries >= TRIES:
            _raise(failure.error(), _name(one.task))
        log.warning(
            "%s failed (%s), trying again; check the storage if this goes on",
            _name(one.task),
            failure.error(),
        )
        one.due = time.monotonic() + PAUSES[one.tries]  # meanwhile others are handed out
        one.tries += 1
        return one

    def _submit(
        self, work: Callable[[Any], Any], tried: Sequence[_Try], finished: queue.SimpleQueue[Any]
    ) -> Any:
        self._count += 1
        key = f"{getattr(work, '__name__', 'task')}-{self._run}-{self._count}"
        handful = packed(work, [one.task for one in tried])
        try:
            future = self.client.submit(together, handful, key=key, pure=False)
        except Exception:
            self._check()
            raise
        future.add_done_callback(finished.put)
        return future

    def _tell_alone(self) -> None:
        """Say once that the job waits for workers, of which a cluster may have none."""
        now = time.monotonic()
        if self._known:
            self._seen = now
        elif now - self._seen > ALONE:
            self._seen = math.inf
            log.warning("the cluster has no worker: run `dask worker ADDRESS`, the job waits for it")

    def _check(self) -> None:
        if self.client.status not in {"running", "connecting"}:
            raise IngestError(
                "the dask scheduler is gone, or its client was closed; what is finished is kept: run again "
                "with --resume"
            )

    def _wait(self, done: queue.SimpleQueue[Any], seconds: float) -> list[Any]:
        self._check()
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(done.get(timeout=seconds))
            while True:
                found.append(done.get_nowait())
        return found

    def _result(self, future: Any) -> Any:
        """Return what a handful led to, or the error of one that has no result.

        Its worker may die before the result has left it. The scheduler then waits for another worker, which
        may be for us to start.
        """
        while True:
            if future.status in {"cancelled", "lost"}:
                from distributed import CancelledError

                return CancelledError(future.key)
            try:
                if future.status == "error":
                    return future.exception()
                return future.result(timeout=1)
            except TimeoutError:
                self._check()
                if self._watch is not None:
                    self._watch()
            except Exception as error:
                return error

    def close(self) -> None:
        """Close what this runner started, and nothing else."""
        for close in self._own:
            with contextlib.suppress(Exception):
                close()

"""The ledger: what of a job is finished, in a folder beside the store.

::

    OUT.zarr.ledger/
      plan.json            the plan, readable, with its hash
      parts.jsonl          its parts, one a line
      lock.json            who works on the store now
      stage/000/000007.json  one small file a finished staging task
      place.json           what the staged counts led to
      write/000/000003.json  one small file a finished write task
      report.json          how it ended

A task is finished when its receipt is here, and says the plan's hash and which task it is of; the presence
of a chunk in the store proves nothing.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkstore.codecs import checksum
from chunkstore.errors import IngestError
from ingest.folder import open_folder
from ingest.inputs import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self

    from ingest.folder import Folder

__all__ = ["SHELF", "Ledger", "Lock", "in_order", "is_ledger_name", "ledger_url"]

log = logging.getLogger(__name__)
_HEARTBEAT = 10.0
#: seconds after which a lock that was taken over is looked at again
_SETTLE = 0.2
_SEAL = b',"sum":"00000000"}'
#: receipts in one folder of the ledger
SHELF = 1000
#: receipts of an object store that are asked for before they are needed, and threads that ask
_AHEAD, _THREADS = 64, 16
#: seconds without a heartbeat after which the lock of another machine is stale
STALE_AFTER = 60.0
#: tokens of the locks that this process holds, or is about to take
_HELD: set[str] = set()


def ledger_url(store: str) -> str:
    """Return the place of a store's ledger.

    Examples
    --------
    >>> ledger_url("s3://bucket/out.zarr/")
    's3://bucket/out.zarr.ledger'
    """
    return store.rstrip("/") + ".ledger"


def encode(value: Any) -> bytes:
    """Return JSON that is the same for the same value, wherever it is made."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def seal(document: bytes) -> bytes:
    """Add a crc32c to a JSON object: a receipt that is torn or has a flipped bit counts for nothing.

    Examples
    --------
    >>> seal(b'{"rows":3}')
    b'{"rows":3,"sum":"535ec11c"}'
    >>> unseal(seal(b'{"rows":3}'))
    b'{"rows":3}'
    """
    return b'%s,"sum":"%08x"}' % (document[:-1], checksum(document))


def unseal(data: bytes) -> bytes:
    """Return what :func:`seal` was given.

    Raises
    ------
    ValueError
        If it is not that any more.
    """
    document = data[: -len(_SEAL)] + b"}"
    if seal(document) != data:
        raise ValueError("the checksum does not fit")
    return document


_RECEIPT = re.compile(r"(stage|write)/\d+/\d+\.json", re.ASCII)
_OWN = re.compile(
    rf"(plan|created|place|finished|report|lock)\.json|parts\.jsonl|{_RECEIPT.pattern}|scratch/.+", re.ASCII
)


def is_ledger_name(name: str) -> bool:
    """Whether an object of that name is one that a job writes beside its store.

    Examples
    --------
    >>> is_ledger_name("write/000/000007.json"), is_ledger_name("notes.txt")
    (True, False)
    """
    return _OWN.fullmatch(name) is not None


def in_order(url: str, read: Callable[[Any], Any], wanted: Iterable[Any]) -> Iterator[Any]:
    """Yield ``read(one)`` in order; out of an object store some are asked for before they are needed.

    Examples
    --------
    >>> list(in_order("s3://bucket/x", abs, [-1, 2])), list(in_order("/data/x", abs, [-1, 2]))
    ([1, 2], [1, 2])
    """
    if not is_url(url):
        yield from map(read, wanted)
        return
    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for one in wanted:
                waiting.append(pool.submit(read, one))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class Ledger:
    """Receipts of finished tasks, the plan and the report of one store.

    Examples
    --------
    >>> import tempfile
    >>> ledger = Ledger(tempfile.mkdtemp(), plan="abc")
    >>> ledger.record("write", 7, {"rows": 3})
    >>> ledger.receipt("write", 7), ledger.receipt("write", 8)
    ({'plan': 'abc', 'rows': 3, 'task': ['write', 7]}, None)
    >>> Ledger(ledger.url, plan="other").receipt("write", 7) is None
    True
    """

    def __init__(
        self, url: str, storage_options: Mapping[str, Any] | None = None, plan: str | None = None
    ) -> None:
        self.url = url
        self.plan = plan
        self.folder: Folder = open_folder(url, storage_options)

    @staticmethod
    def _name(stage: str, index: int) -> str:
        return f"{stage}/{index // SHELF:03d}/{index:06d}.json"

    def record(self, stage: str, index: int, receipt: Mapping[str, Any]) -> None:
        """Write the receipt of a finished task, with the plan's hash, which task it is of, and a checksum."""
        told = {**receipt, "plan": self.plan, "task": [stage, index]}
        self.folder.put(self._name(stage, index), seal(encode(told)))

    def receipt(self, stage: str, index: int) -> dict[str, Any] | None:
        """Return the receipt of a task of this plan; ``None`` if there is none, or not all of it."""
        try:
            value = json.loads(unseal(self.folder.get(self._name(stage, index))))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or value.get("plan") != self.plan:
            return None
        # that of another task is whole as well, but its rows would go where this one's should
        if value.get("task") != [stage, index]:
            return None
        return value

    def forget(self, stage: str, index: int) -> None:
        """Remove the receipt of a task that must be done again."""
        self.folder.delete(self._name(stage, index))

    def receipts(self, stage: str, count: int) -> Iterator[dict[str, Any]]:
        """Yield the receipts of tasks 0 .. ``count - 1`` in order, a bounded number in memory.

        Raises
        ------
        IngestError
            If one is not there.
        """
        for index, receipt in enumerate(in_order(self.url, partial(self.receipt, stage), range(count))):
            if receipt is None:
                raise IngestError(
                    f"the ledger {self.url} has lost the receipt of {stage} task {index}; "
                    "run again with --resume"
                )
            yield receipt

    def recorded(self, stage: str, low: int) -> list[int]:
        """Return which of the tasks ``low .. low + SHELF - 1`` have something for a receipt: one listing.

        Parameters
        ----------
        low : int
            A multiple of ``SHELF``.

        Examples
        --------
        >>> import tempfile
        >>> ledger = Ledger(tempfile.mkdtemp(), plan="abc")
        >>> for index in (2, 1, 1001):
        ...     ledger.record("write", index, {})
        >>> ledger.recorded("write", 0), ledger.recorded("write", 1000), ledger.recorded("write", 2000)
        ([1, 2], [1001], [])
        """
        names = self.folder.names(f"{stage}/{low // SHELF:03d}")
        found = sorted(int(name.rpartition("/")[2][:-5]) for name in names if _RECEIPT.fullmatch(name))
        return [index for index in found if low <= index < low + SHELF]

    def put_json(self, name: str, value: Any) -> None:
        """Write a document for people: indented, keys in order."""
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
        self.folder.put(name, text.encode("utf-8", "surrogatepass") + b"\n")

    def get_json(self, name: str) -> Any:
        """Return a document; ``None`` if there is none that can be read."""
        try:
            return json.loads(self.folder.get(name))
        except (FileNotFoundError, ValueError, RecursionError):
            return None

    def exists(self) -> bool:
        """Whether a plan is here."""
        return self.folder.size("plan.json") is not None


def _start_of(pid: int) -> str | None:
    """When a process of this machine started, so that a number used again is not taken for it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rsplit(")", 1)[-1].split()
    if fields and fields[0] in "ZX":
        return None  # a zombie writes nothing
    return fields[19] if len(fields) > 19 else None


def _machine() -> str:
    """Where numbers of processes mean the same: containers may share the name of a host, and no process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return ""


def _alive(pid: int, started: str | None) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if started is None or not Path("/proc/self/stat").exists():
        return True
    return _start_of(pid) == started


class Lock:
    """One job a store: who holds it, since when, and whether the holder still lives.

    A lock of this machine is stale as soon as its process is gone; one of another machine after a
    minute without a heartbeat; one of this very process where no job of it holds it, as whoever was
    interrupted twice may leave. A stale lock is taken over, and that is logged.

    Examples
    --------
    >>> import tempfile
    >>> folder = open_folder(tempfile.mkdtemp())
    >>> with Lock(folder, "out.zarr"):
    ...     Lock(folder, "out.zarr").acquire()
    Traceback (most recent call last):
    chunkstore.errors.IngestError: another job works on out.zarr: ...
    """

    def __init__(self, folder: Folder, store: str) -> None:
        self.folder = folder
        self.store = store
        self.token = uuid.uuid4().hex
        self._since = time.time()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _info(self) -> bytes:
        return encode(
            {
                "token": self.token,
                "host": socket.gethostname(),
                "machine": _machine(),
                "pid": os.getpid(),
                "started": _start_of(os.getpid()),
                "user": _user(),
                "since": self._since,
                "heartbeat": time.time(),
            }
        )

    def acquire(self) -> None:
        """Take the lock, or raise ``IngestError`` that names its holder."""
        _HELD.add(self.token)
        try:
            self._take()
        except BaseException:  # an interrupt: no ``with`` gives back what was not taken whole
            self.release()
            raise

    def _take(self) -> None:
        taken = False
        for _ in range(5):
            if self.folder.create("lock.json", self._info()):
                break
            held = self._held()
            if held is None:
                continue
            if held.get("token") == self.token:
                break  # it was written, only the answer was lost and the storage asked again
            if not self._stale(held):
                raise IngestError(
                    f"another job works on {self.store}: process {held.get('pid')!s:.20} of "
                    f"{held.get('user')!s:.80} on {held.get('host')!s:.80}, since "
                    f"{_moment(held.get('since'))}; wait for it, or end it and run again with --resume"
                )
            log.warning(
                "taking over the lock of a job that is gone: process %s on %s; nothing need be done",
                held.get("pid"),
                held.get("host"),
            )
            if self._held() == held:  # nobody else was faster
                self.folder.delete("lock.json")
                taken = True
        else:
            raise IngestError(f"cannot take the lock of {self.store}: other jobs are starting; try again")
        if taken:  # whoever found the same lock stale may have removed ours
            time.sleep(_SETTLE)
            if not self.held():
                raise IngestError(f"another job took the lock of {self.store} at the same moment; try again")
        self._thread = threading.Thread(target=self._beat, name="ingest-lock", daemon=True)
        self._thread.start()

    def _held(self) -> dict[str, Any] | None:
        try:
            value = json.loads(self.folder.get("lock.json"))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return {"host": None}
        return value if isinstance(value, dict) else {"host": None}

    def _stale(self, held: Mapping[str, Any]) -> bool:
        pid = held.get("pid")
        here = held.get("host") == socket.gethostname() and held.get("machine", _machine()) == _machine()
        if here and pid == os.getpid() and held.get("started") == _start_of(os.getpid()):
            return held.get("token") not in _HELD
        if here and type(pid) is int and 0 < pid < 2**31:
            return not _alive(pid, held.get("started"))
        age = self.folder.age("lock.json")
        return age is not None and age > STALE_AFTER

    def _beat(self) -> None:
        while not self._stop.wait(_HEARTBEAT):
            try:
                if not self.held():
                    log.warning(
                        "the lock of %s was taken by another job; "
                        "this one stops writing: see which jobs run, and let one go on",
                        self.store,
                    )
                    return
                self.folder.put("lock.json", self._info())
            except Exception as error:
                log.warning(
                    "cannot renew the lock of %s: %s; it is tried again; check the storage if this goes on",
                    self.store,
                    error,
                )

    def held(self) -> bool:
        """Whether the lock is still ours."""
        held = self._held()
        return held is not None and held.get("token") == self.token

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        self._stop.set()
        _HELD.discard(self.token)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout=_HEARTBEAT)
        self._thread = None
        try:
            if self.held():
                self.folder.delete("lock.json")
        except Exception as error:  # how the job ended is not decided here
            log.warning(
                "cannot give back the lock of %s: %s; it is stale as soon as this process is gone, for other "
                "machines after a minute",
                self.store,
                error,
            )

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _moment(seconds: Any) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(seconds)))
    except (TypeError, ValueError, OverflowError, OSError):
        return "a time that it does not say"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"

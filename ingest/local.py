"""A dask cluster on this machine: a scheduler in this process, workers as processes of their own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import IngestError
from ingest.run import DaskRunner

__all__ = ["LocalWorkers", "local_cluster", "serve"]

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)


class LocalWorkers:
    """Worker processes of a local cluster: no `__main__` guard is needed.

    They are started before there is a scheduler, import what tasks will need while the inputs are scanned,
    and wait to be told its address. They end by themselves when it goes, whatever ends this process.

    Parameters
    ----------
    count : int
        Processes, of one thread each.
    source, options : str, mapping
        The source that tasks will read, to be made ready; none by default.
    folder : str, optional
        Where dask may put files; by default in a folder of their own, which goes when they are closed.
    """

    def __init__(
        self,
        count: int,
        source: str = "",
        options: Mapping[str, Any] | None = None,
        folder: str | None = None,
    ) -> None:
        self._folder_is_ours = folder is None
        self.folder = tempfile.mkdtemp(prefix="chunkstore-workers-") if folder is None else folder
        self.restarts = 0
        # secrets may be among the options
        self._ready = json.dumps([source, dict(options or {})], default=str).encode() + b"\n"
        self._address: str | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(count):
                self.processes.append(self._start())
        except BaseException:
            self.close()
            raise

    def connect(self, address: str) -> None:
        """Tell all workers where the scheduler is."""
        self._address = address
        for process in self.processes:
            self._tell(process)

    def _tell(self, process: subprocess.Popen[bytes]) -> None:
        asked = [
            self._address,
            "--nthreads=1",
            "--no-nanny",
            "--no-dashboard",
            "--memory-limit=0",
            "--death-timeout=20",
            "--preload=ingest.local",
            f"--local-directory={self.folder}",
        ]
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # one that died is started anew by watch()
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.close()

    def _start(self) -> subprocess.Popen[bytes]:
        paths = [p for p in sys.path if p]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            # one thread a task: the processes are the parallelism
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "CHUNKSTORE_ENCODE_THREADS": os.environ.get("CHUNKSTORE_ENCODE_THREADS", "1"),
            "DASK_DISTRIBUTED__WORKER__USE_FILE_LOCKING": "False",
            "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "error",
        }
        process = subprocess.Popen(  # our own interpreter and module
            [sys.executable, "-c", "from ingest.local import serve; serve()"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            # not among its arguments, which everybody on the machine can read
            process.stdin.write(self._ready)
            process.stdin.flush()
        if self._address is not None:
            self._tell(process)
        return process

    def watch(self) -> None:
        """Start workers that died anew, within limits."""
        for i, process in enumerate(self.processes):
            if process.poll() is not None:
                self.restarts += 1
                if self.restarts > 10 + 4 * len(self.processes):
                    raise IngestError(
                        f"workers keep dying (last exit status {process.returncode}); is there enough "
                        "memory? Lower workers or memory_limit and run again with --resume"
                    )
                log.warning(
                    "a worker died (exit status %s), starting another; "
                    "if this goes on, lower workers or memory_limit",
                    process.returncode,
                )
                self.processes[i] = self._start()

    def close(self) -> None:
        """End the workers that were started here."""
        for process in self.processes:
            process.terminate()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=2)  # whatever it may still do can be done again
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._folder_is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)  # one that was killed leaves its own there


def serve() -> None:
    """Be a worker: import what stdin names, wait there for the scheduler's address, work until it goes."""
    status = 1
    try:
        _serve()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        _end(status)


def _end(status: int) -> None:
    """End this process now: for the interpreter to take all modules apart costs 0.4 s."""
    atexit._run_exitfuncs()  # noqa: SLF001 - decoder processes and folders end there
    os._exit(status)


async def dask_setup(worker: Any) -> None:  # noqa: ARG001 - dask calls it so, within its loop
    """End at once when asked to, whatever the worker does; dask calls this before it registers the worker.

    dask's own way cancels what is being sent, and then waits up to 30 s for it, one time in some hundreds
    (``BatchedSend.close`` in distributed 2026.8). All that a worker does can be done again.
    """
    with contextlib.suppress(NotImplementedError):  # Windows knows no such signal, and ends it without
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _end, 0)


def _serve() -> None:
    from distributed.cli import dask_worker

    name, options = json.loads(sys.stdin.buffer.readline())
    for prepare in (partial(_warm_source, name, options), _warm_engine):
        with contextlib.suppress(Exception):  # a task that needs what cannot be had will say so
            prepare()
    asked = sys.stdin.buffer.readline()
    if not asked:  # the job ended before it had work
        return
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    dask_worker.main(args=json.loads(asked))


def _warm_source(name: str, options: Mapping[str, Any]) -> None:
    from ingest.sources import open_source

    warm = getattr(open_source(name, options), "warm", None) if name else None
    if warm is not None:
        warm()  # first: a process that it starts gets ready meanwhile


def _warm_engine() -> None:
    import ingest.stage
    import ingest.write  # noqa: F401  # tasks need it
    from chunkstore.statistics import FieldStatistics

    FieldStatistics.from_values(np.zeros(1))  # machine code that is kept on disk is loaded when it is used


def dashboard_wanted() -> bool:
    """Whether anybody would see the link to dask's dashboard: its import costs 0.4 s at every start.

    ``CHUNKSTORE_DASHBOARD=1`` or ``0`` decides; by default there is one where stderr is a terminal. There is
    none without bokeh, the extra ``dashboard``.

    Examples
    --------
    >>> import os
    >>> from unittest import mock
    >>> with mock.patch.dict(os.environ, CHUNKSTORE_DASHBOARD="0"):
    ...     dashboard_wanted()
    False
    """
    asked = os.environ.get("CHUNKSTORE_DASHBOARD", "")
    wanted = asked != "0" if asked else sys.stderr is not None and sys.stderr.isatty()
    if wanted and importlib.util.find_spec("bokeh") is None:
        if asked:
            log.warning("dask's dashboard needs bokeh: pip install 'chunkstore[dashboard]'; going on without")
        return False
    return wanted


def local_cluster(workers: int | LocalWorkers, folder: str | None = None) -> DaskRunner:
    """Start a scheduler in this process, for processes of one thread each: some that wait, or so many."""
    import warnings

    import distributed

    library: Any = distributed
    shown = dashboard_wanted()
    told = logging.getLogger("distributed")
    level = told.level
    told.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a taken dashboard port, of no interest here
        cluster = library.LocalCluster(
            n_workers=0,
            processes=True,
            dashboard_address=":0",
            scheduler_kwargs={"dashboard": shown},
            silence_logs=logging.ERROR,
            host="127.0.0.1",
        )
    processes = workers if isinstance(workers, LocalWorkers) else None
    client = None
    try:
        client = library.Client(cluster, set_as_default=False)
        if not isinstance(workers, LocalWorkers):
            processes = LocalWorkers(workers, folder=folder)
        assert processes is not None
        processes.connect(cluster.scheduler_address)
        deadline = time.monotonic() + 60
        while not client.nthreads():
            processes.watch()
            if time.monotonic() > deadline:
                raise IngestError("no worker started within 60 seconds; try --workers 0 to see what is wrong")
            time.sleep(0.05)
    except BaseException:
        if processes is not None:
            processes.close()
        if client is not None:
            client.close()
        cluster.close()
        told.setLevel(level)
        raise
    runner = DaskRunner(
        client, [processes.close, client.close, cluster.close, lambda: told.setLevel(level)], processes.watch
    )
    if not shown:
        runner.dashboard = None
    return runner

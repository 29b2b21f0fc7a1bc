"""A dask cluster on this machine: a scheduler in this process, workers as processes of their own."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import time
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
        Where dask may put files.
    """

    def __init__(
        self,
        count: int,
        source: str = "",
        options: Mapping[str, Any] | None = None,
        folder: str | None = None,
    ) -> None:
        self.folder = folder
        self.restarts = 0
        # secrets may be among the options
        self._ready = json.dumps([source, dict(options or {})], default=str).encode() + b"\n"
        self._address: str | None = None
        self.processes = [self._start() for _ in range(count)]

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
        ]
        if self.folder is not None:
            asked.append(f"--local-directory={self.folder}")
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


def serve() -> None:
    """Be a worker: import what stdin names, wait there for the scheduler's address, work until it goes.

    The process ends with that, at once: for the interpreter to take all modules apart costs 0.4 s.
    """
    status = 1
    try:
        _serve()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001 - decoder processes and folders end there
        os._exit(status)


def _serve() -> None:
    from distributed.cli import dask_worker

    with contextlib.suppress(Exception):  # a task that needs what cannot be had will say so
        name, options = json.loads(sys.stdin.buffer.readline())
        _make_ready(name, options)
    asked = sys.stdin.buffer.readline()
    if not asked:  # the job ended before it had work
        return
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    dask_worker.main(args=json.loads(asked))


def _make_ready(name: str, options: Mapping[str, Any]) -> None:
    import ingest.stage
    import ingest.write  # noqa: F401  # tasks need it
    from chunkstore.statistics import FieldStatistics
    from ingest.sources import open_source

    warm = getattr(open_source(name, options), "warm", None) if name else None
    if warm is not None:
        warm()  # first: a process that it starts gets ready meanwhile
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

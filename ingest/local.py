"""A dask cluster on this machine: a scheduler in this process, workers as processes of their own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from typing import Any

from chunkstore.errors import IngestError
from ingest.run import DaskRunner

__all__ = ["local_cluster"]

log = logging.getLogger(__name__)


class _Workers:
    """Worker processes of a local cluster, started by their command line: no `__main__` guard is needed.

    They end by themselves when the scheduler goes, whatever ends this process.
    """

    def __init__(self, address: str, count: int, folder: str | None) -> None:
        self.address = address
        self.folder = folder
        self.restarts = 0
        self.processes = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            self.address,
            "--nthreads=1",
            "--no-nanny",
            "--no-dashboard",
            "--memory-limit=0",
            "--death-timeout=20",
        ]
        if self.folder is not None:
            command.append(f"--local-directory={self.folder}")
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
        return subprocess.Popen(  # noqa: S603  # our own interpreter
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

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
        for process in self.processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def local_cluster(workers: int, folder: str | None = None) -> DaskRunner:
    """Start a scheduler in this process and ``workers`` processes of one thread each."""
    import warnings

    import distributed

    library: Any = distributed
    told = logging.getLogger("distributed")
    level = told.level
    told.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a taken dashboard port, of no interest here
        cluster = library.LocalCluster(
            n_workers=0,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.ERROR,
            host="127.0.0.1",
        )
    processes = None
    try:
        client = library.Client(cluster, set_as_default=False)
        processes = _Workers(cluster.scheduler_address, workers, folder)
        deadline = time.monotonic() + 60
        while not client.nthreads():
            processes.watch()
            if time.monotonic() > deadline:
                raise IngestError("no worker started within 60 seconds; try --workers 0 to see what is wrong")
            time.sleep(0.05)
    except BaseException:
        if processes is not None:
            processes.close()
        cluster.close()
        raise
    return DaskRunner(
        client, [processes.close, client.close, cluster.close, lambda: told.setLevel(level)], processes.watch
    )

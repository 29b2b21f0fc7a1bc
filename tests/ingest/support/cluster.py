"""A real dask cluster on loopback, and a client process, all of which can be killed.

Run as a script it is the client: ``python cluster.py '{"source": ..., "inputs": ..., "out": ...}'``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)])}


def start(*words, log=None):
    out = subprocess.DEVNULL if log is None else Path(log).open("ab")  # noqa: SIM115  # closed below
    try:
        return subprocess.Popen(
            [sys.executable, *words],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    finally:
        if log is not None:
            out.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """A scheduler and workers as processes of their own."""

    def __init__(self, workers=3):
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.wanted = workers
        self.scheduler = None
        self.workers = []
        self.raise_up()

    def raise_up(self):
        """Start whatever is not there."""
        if self.scheduler is None or self.scheduler.poll() is not None:
            self.scheduler = start(
                "-m",
                "distributed.cli.dask_scheduler",
                f"--port={self.port}",
                "--host=127.0.0.1",
                "--no-dashboard",
            )
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                        break
                time.sleep(0.05)
        self.workers = [w for w in self.workers if w.poll() is None]
        while len(self.workers) < self.wanted:
            self.workers.append(
                start(
                    "-m",
                    "distributed.cli.dask_worker",
                    self.address,
                    "--nthreads=1",
                    "--no-nanny",
                    "--no-dashboard",
                    "--memory-limit=0",
                    "--death-timeout=20",
                )
            )

    def kill(self, process):
        process.kill()
        process.wait()

    def kill_all(self):
        for process in [*self.workers, self.scheduler]:
            if process is not None:
                self.kill(process)

    close = kill_all


def client(job, log=None):
    """Start a process that runs one ingest."""
    return start(str(HERE / "cluster.py"), json.dumps(job), log=log)


def main():
    import ingest

    job = json.loads(sys.argv[1])
    result = ingest.ingest(
        job.pop("source"), job.pop("inputs"), job.pop("out"), job.pop("options", {}), **job
    )
    sys.exit(result.exit_code)


if __name__ == "__main__":
    main()

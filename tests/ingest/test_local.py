"""Local workers start before there is work, and end with whoever started them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest import job
from ingest.local import LocalWorkers, dashboard_wanted, local_cluster


def test_workers_that_wait_end_when_the_job_ends_before_it_has_work():
    workers = LocalWorkers(1, "npy", {})
    (process,) = workers.processes
    assert process.poll() is None
    workers.close()
    assert process.poll() is not None


def test_workers_that_wait_end_when_their_owner_is_gone():
    workers = LocalWorkers(1, "no such source", {"x": object()})
    (process,) = workers.processes
    try:
        with contextlib.suppress(OSError):
            process.stdin.close()  # what the system does for an owner that was killed
        assert process.wait(60) == 0
    finally:
        workers.close()


def test_workers_that_waited_work():
    workers = LocalWorkers(1, "npy", {})
    runner = local_cluster(workers)
    try:
        assert list(runner.map(abs, [-3])) == [(-3, 3)]
    finally:
        runner.close()
    assert all(process.poll() is not None for process in workers.processes)


READY = """
import json, pathlib
class Source:
    def __init__(self, **options):
        self.options = options
    def warm(self):
        pathlib.Path(self.options["told"]).write_text(json.dumps(self.options))
"""


def test_workers_that_wait_make_the_source_ready_with_its_options(tmp_path, monkeypatch):
    (tmp_path / "source_to_warm.py").write_text(READY)
    monkeypatch.syspath_prepend(tmp_path)
    told = tmp_path / "told.json"
    options = {"rate": 8000, "told": str(told), "names": ["a", None]}
    workers = LocalWorkers(1, "source_to_warm:Source", options)
    runner = local_cluster(workers)
    try:
        assert list(runner.map(compiled, [0])) == [(0, 1)]  # whoever has work was made ready before
        assert json.loads(told.read_text()) == options
    finally:
        runner.close()


def compiled(_):
    """Return how often the code that counts values is there, without asking for it."""
    return len(sys.modules["chunkstore.moments"].gather_blocks.signatures)


def test_workers_end_in_good_order_and_leave_nothing(tmp_path):
    workers = LocalWorkers(1, "audio", {"rate": 8000}, folder=str(tmp_path))
    runner = local_cluster(workers)
    try:
        ((_, children),) = runner.map(decoders, [0])
        assert children
        assert list(tmp_path.iterdir())
    finally:
        runner.close()
    assert [process.returncode for process in workers.processes] == [0]
    assert not list(tmp_path.rglob("worker-*"))
    deadline = time.monotonic() + 60
    while any(runs(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


MEET = """
import asyncio, os, signal
def meet(_):
    from distributed import get_worker
    worker = get_worker()
    def send():
        plain = worker.batched_stream.comm.write
        async def write(*a, **k):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            return await plain(*a, **k)
        worker.batched_stream.comm.write = write
        worker.batched_send({"op": "log-event", "topic": "t", "msg": 1})
    worker.loop.call_later(0.2, send)
"""


def test_a_worker_that_is_sending_ends_when_it_is_asked_to(tmp_path, monkeypatch):
    """distributed would wait half a minute for what it has cancelled."""
    (tmp_path / "told_while_sending.py").write_text(MEET)
    monkeypatch.syspath_prepend(tmp_path)
    workers = LocalWorkers(1, "npy", {}, folder=str(tmp_path))
    runner = local_cluster(workers)
    try:
        list(runner.map(__import__("told_while_sending").meet, [0]))
        assert workers.processes[0].wait(20) == 0
    finally:
        runner.close()
    assert not list(tmp_path.rglob("worker-*"))


def test_a_worker_amid_a_task_ends_when_it_is_asked_to_and_leaves_nothing():
    workers = LocalWorkers(1, "npy", {})
    runner = local_cluster(workers)
    folder = Path(workers.folder)
    try:
        future = runner.client.submit(time.sleep, 600)
        deadline = time.monotonic() + 60
        while not any(runner.client.processing().values()):
            assert not future.done()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert list(folder.rglob("worker-*"))
    finally:
        runner.close()
    assert [process.returncode for process in workers.processes] == [0]
    assert not folder.exists()


def test_what_killed_workers_leave_goes_with_their_job():
    workers = LocalWorkers(1, "npy", {})
    folder = Path(workers.folder)
    runner = local_cluster(workers)
    workers.processes[0].kill()
    workers.processes[0].wait()
    assert list(folder.rglob("worker-*"))
    runner.close()
    assert not folder.exists()


def test_no_worker_is_there_when_a_store_is_finished(tmp_path, monkeypatch):
    """One that nobody hears of any more might still write into it."""
    np.save(tmp_path / "a.npy", np.arange(5.0))
    asked, seen = [], []

    def early(*args, **kwargs):
        asked.append(job.start_early_(*args, **kwargs))
        return asked[-1]

    def finish(*args, **kwargs):
        seen.extend(process.poll() for process in asked[0].processes)
        return job.finish_(*args, **kwargs)

    for name, ours in (("start_early", early), ("finish", finish)):
        monkeypatch.setattr(job, f"{name}_", getattr(job, name), raising=False)
        monkeypatch.setattr(job, name, ours)
    ingest.ingest("npy", tmp_path, tmp_path / "o.zarr", workers=1)
    assert seen == [0]


def runs(pid):
    """Whether there is such a process, other than one that is dead and that nobody has asked about."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def decoders(_):
    """Return the processes that this one keeps for decoding."""
    from ingest.sources.audio.isolate import pool

    return [process.pid for process in pool._idle]


LOOK = """
import sys
from ingest.local import local_cluster
runner = local_cluster(1)
assert list(runner.map(abs, [-3])) == [(-3, 3)]
print(runner.dashboard, "bokeh" in sys.modules)
runner.close()
"""


def test_nobody_waits_for_a_dashboard_that_nobody_would_see():
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "False"]


def test_a_dashboard_that_cannot_be_is_named_with_the_remedy(monkeypatch, caplog):
    monkeypatch.setenv("CHUNKSTORE_DASHBOARD", "1")
    monkeypatch.setitem(sys.modules, "bokeh", None)
    assert not dashboard_wanted()
    assert "chunkstore[dashboard]" in caplog.text


def test_a_dashboard_that_was_asked_for_is_there(monkeypatch):
    pytest.importorskip("bokeh")
    monkeypatch.setenv("CHUNKSTORE_DASHBOARD", "1")
    runner = local_cluster(1)
    try:
        assert runner.dashboard.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(runner.dashboard, timeout=30) as page:
            assert b"Dask" in page.read()
    finally:
        runner.close()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="arguments are read from /proc")
def test_options_with_secrets_are_not_among_the_arguments_of_workers():
    long = {"fields": "x" * 200_000}  # no system takes an argument as long as that
    workers = LocalWorkers(1, "npy", {"storage_options": {"secret": "hush-hush"}, **long})
    try:
        (process,) = workers.processes
        assert b"hush-hush" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert b"hush-hush" not in Path(f"/proc/{process.pid}/environ").read_bytes()
        runner = local_cluster(workers)
        assert list(runner.map(abs, [-3])) == [(-3, 3)]
        runner.close()
    finally:
        workers.close()

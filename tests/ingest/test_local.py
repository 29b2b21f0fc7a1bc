"""Local workers start before there is work, and end with whoever started them."""

from __future__ import annotations

import contextlib

from ingest.local import LocalWorkers, local_cluster


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

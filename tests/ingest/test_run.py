"""Runners: few tasks in flight, passing failures tried again, lasting ones the end of the job."""

from __future__ import annotations

import errno
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ingest
from chunkstore.errors import ConfigError, IngestError, SourceChangedError
from ingest.local import LocalWorkers, local_cluster
from ingest.run import DEATHS, TOGETHER, DaskRunner, SerialRunner, _Pace, _Try, is_passing
from ingest.runners import check_workers, make_runner


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("ingest.run.PAUSES", (0.0, 0.01, 0.01, 0.01))
    monkeypatch.setattr("time.sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.01)))


@pytest.fixture(scope="module")
def client():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster, set_as_default=False) as found,
    ):
        yield found


class Flaky:
    """Fails a number of times, then works."""

    def __init__(self, error, times):
        self.error = error
        self.left = times
        self.lock = threading.Lock()

    def __call__(self, task):
        with self.lock:
            if self.left:
                self.left -= 1
                raise self.error
        return task * 2

    def __reduce__(self):
        return (_same, (id(self),))


def _same(address):
    import ctypes

    return ctypes.cast(address, ctypes.py_object).value


@pytest.fixture(params=["serial", "dask"])
def runner(request):
    if request.param == "serial":
        return SerialRunner()
    return DaskRunner(request.getfixturevalue("client"))


def test_every_task_runs_once(runner):
    assert sorted(runner.map(abs, range(-40, 0))) == [(-n, n) for n in range(40, 0, -1)]


def test_passing_failures_are_tried_again(runner, quick):
    work = Flaky(OSError("503 Slow Down"), 3)
    assert list(runner.map(work, [21])) == [(21, 42)]


def test_failures_that_stay_end_the_job_and_say_how_to_go_on(runner, quick):
    with pytest.raises(IngestError, match=r"503 Slow Down.*--resume"):
        list(runner.map(Flaky(OSError("503 Slow Down"), 99), [1]))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (SourceChangedError("a.avro changed"), SourceChangedError, r"^a\.avro changed$"),
        (ConfigError("no such field"), ConfigError, "no such field"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/data/x"),
            IngestError,
            r"disk is full \(/data/x\)",
        ),
        (ZeroDivisionError("a bug"), IngestError, r"ZeroDivisionError: a bug"),
    ],
)
def test_what_trying_again_cannot_help_is_tried_once(runner, error, kind, words):
    work = Flaky(error, 1)
    with pytest.raises(kind, match=words):
        list(runner.map(work, [1]))
    assert work.left == 0


def test_tasks_are_taken_one_by_one_and_few_are_in_flight(client):
    taken = []

    def tasks():
        for n in range(2000):
            taken.append(n)
            yield n

    done = 0
    for _ in DaskRunner(client).map(abs, tasks()):
        done += 1
        assert len(taken) - done <= (2 * 2 + 2) * TOGETHER
    assert done == 2000


def test_long_tasks_go_one_by_one_and_short_ones_together():
    pace = _Pace()
    sizes = []
    for _ in range(12):
        pace.took(pace.size, 0.001 * pace.size)
        sizes.append(pace.size)
    assert sizes == [2, 4, 8, 16, 32, 64, 128, 128, 128, 128, 128, 128]
    for _ in range(20):
        pace.took(pace.size, 2.0 * pace.size)
    assert pace.size == 1


@given(count=st.integers(0, 3000), threads=st.integers(1, 40), each=st.sampled_from([0.0, 0.01, 0.2]))
def test_no_thread_is_left_with_many_tasks_at_the_end(count, threads, each):
    pace = _Pace(count)
    left = count
    while left:
        size = pace.next(threads)
        assert size == 1 or 2 * threads * size <= left
        pace.took(size, size * each)
        left -= size


def test_tasks_whose_number_is_known_go_alone_at_the_end():
    client = Handed()
    assert sorted(DaskRunner(client).map(abs, range(-200, 0), 200)) == [(-n, n) for n in range(200, 0, -1)]
    assert max(client.sizes) > 8
    assert client.sizes[-2:] == [1, 1]


class Handed:
    """A client whose workers answer at once, in this process; it notes how many tasks came together."""

    status = "running"

    def __init__(self):
        self.sizes = []

    def nthreads(self):
        return {"a": 1}

    def submit(self, run, handful, key, pure):
        answer = Answer(key, run, handful)
        self.sizes.append(len(answer.result()[0]))
        return answer

    def cancel(self, futures):
        pass


class Answer:
    """A future that is done."""

    status = "finished"

    def __init__(self, key, run, handful):
        self.key = key
        self._result = run(handful)

    def add_done_callback(self, call):
        call(self)

    def result(self, timeout=None):
        return self._result

    def release(self):
        del self._result


def test_tasks_of_one_handful_that_fail_are_tried_alone_and_none_is_lost(quick):
    client = Handed()
    work = Flaky(OSError("503 Slow Down"), 0)

    def tasks():
        for n in range(1000):
            if n == 600:
                work.left = 1
            yield n

    assert sorted(DaskRunner(client).map(work, tasks())) == [(n, 2 * n) for n in range(1000)]
    assert client.sizes[:4] == [1, 1, 1, 1]  # in flight before anything is known
    assert max(client.sizes) > 16


def test_a_worker_that_dies_gives_its_tasks_back_one_by_one():
    class KilledWorker(Exception):  # noqa: N818
        """As dask names it."""

    tried = [_Try(1), _Try(2, deaths=DEATHS - 1)]
    error = KilledWorker("four workers died")
    assert [(one.task, one.deaths) for one in DaskRunner._lost(tried, error)] == [(1, 1), (2, DEATHS)]
    with pytest.raises(IngestError, match="KilledWorker"):
        DaskRunner._lost(tried, error)


def test_the_scheduler_keeps_nothing_of_finished_tasks(client):
    for _ in DaskRunner(client).map(abs, range(50)):
        pass
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and client.run_on_scheduler(
        lambda dask_scheduler: len(dask_scheduler.tasks)
    ):
        time.sleep(0.05)
    assert client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0


def test_a_client_that_is_given_is_used_and_left_open(client, tmp_path):
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.arange(100.0))
    result = ingest.ingest("npy", tmp_path, tmp_path / "o.zarr", client=client, chunk=16, shard=32)
    assert (result.exit_code, result.report["obs"]) == (0, 300)
    assert client.status == "running"


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    import distributed

    def refuse(address, **_):
        raise TimeoutError(f"Timed out trying to connect to {address}")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(IngestError, match=r"no dask scheduler answers at tcp://127\.0\.0\.1:1"):
        make_runner(scheduler="tcp://127.0.0.1:1")


def test_passing_is_told_from_lasting():
    assert is_passing(ConnectionResetError())
    assert is_passing(OSError("503"))
    assert not is_passing(PermissionError(errno.EACCES, "no"))
    assert not is_passing(FileNotFoundError())
    assert not is_passing(ValueError())


def test_a_worker_that_dies_before_its_result_has_left_it_is_replaced():
    from distributed import Client

    class Struck(Client):
        """The scheduler has heard that a task is done; its worker dies while the result is asked for."""

        left = 1

        def submit(self, *given, **named):
            future = super().submit(*given, **named)
            real = future.result

            def result(timeout=None):
                if Struck.left:
                    Struck.left = 0
                    (process,) = workers.processes
                    process.kill()
                    process.wait()
                return real(timeout)

            future.result = result
            return future

    workers = LocalWorkers(1)
    runner = local_cluster(workers)
    try:
        with Struck(runner.client.scheduler.address, set_as_default=False) as client:
            watched = DaskRunner(client, watch=workers.watch)
            found: list[object] = []
            thread = threading.Thread(target=lambda: found.extend(watched.map(abs, [-1, -2])), daemon=True)
            thread.start()
            thread.join(60)
            assert sorted(found) == [(-2, 2), (-1, 1)]
            assert Struck.left == 0
    finally:
        runner.close()


def test_what_no_runner_can_be_made_of_is_refused_before_any_work(client, tmp_path):
    class Closed(Handed):
        status = "closed"

    class Asynchronous(Handed):
        asynchronous = True

    np.save(tmp_path / "a.npy", np.arange(4.0))
    for how, words in (
        ({"workers": -1}, "workers is -1"),
        ({"workers": 2, "client": client}, "workers and client exclude"),
        ({"workers": 0, "scheduler": "tcp://127.0.0.1:1"}, "workers and scheduler exclude"),
        ({"client": Closed()}, "client is closed"),
        ({"client": Asynchronous()}, "asynchronous"),
        ({"client": "tcp://127.0.0.1:1"}, "of type str"),
    ):
        with pytest.raises(ConfigError, match=words):
            ingest.ingest("npy", tmp_path, tmp_path / "o.zarr", **how)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy"]
    check_workers(None, None, client)


def test_others_are_handed_out_while_a_task_that_failed_waits(monkeypatch):
    monkeypatch.setattr("ingest.run.PAUSES", (0.0, 0.2, 0.2, 0.2))
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("everything would wait"))
    work = Flaky(OSError("503 Slow Down"), 1)
    found = [task for task, _ in DaskRunner(Handed()).map(work, range(20))]
    assert sorted(found) == list(range(20))
    assert found[-1] == 0  # it failed first and came last


def test_a_cluster_without_workers_is_told_once(monkeypatch, caplog):
    class Alone(Handed):
        """Has no workers."""

        def nthreads(self):
            return {}

    monkeypatch.setattr("ingest.run.ALONE", -1.0)
    runner = DaskRunner(Alone())
    for _ in range(5):
        assert runner.workers == 1
        runner._tell_alone()
    assert caplog.text.count("the cluster has no worker") == 1


@pytest.mark.parametrize("call", ["nthreads", "submit"])
def test_a_scheduler_that_goes_in_the_middle_is_named_whatever_call_finds_out(call):
    class Lost(Handed):
        """Is closed because nobody answers."""

        def nthreads(self):
            return self.lose() if call == "nthreads" else super().nthreads()

        def submit(self, *given, **named):
            return self.lose() if call == "submit" else super().submit(*given, **named)

        def lose(self):
            self.status = "closed"
            raise OSError("ConnectionPool closing.")

    with pytest.raises(IngestError, match=r"the dask scheduler is gone.*--resume"):
        list(DaskRunner(Lost()).map(abs, [-1]))


def test_a_connection_that_is_found_again_costs_nothing():
    class Shaky(Handed):
        """Does not answer now and then."""

        asked = 0

        def nthreads(self):
            self.asked += 1
            if self.asked % 2 == 0:
                raise OSError("Timed out")
            return {"a": 3}

    runner = DaskRunner(Shaky())
    assert [runner.workers for _ in range(4)] == [3, 3, 3, 3]

"""Reading ranges of one array: what happens where some of many reads fail."""

from __future__ import annotations

import shutil
import threading
import time

import numpy as np
import pytest

import chunkstore
from chunkstore.errors import CorruptDataError
from chunkstore.pool import DECODERS, WorkerPool
from chunkstore.reader import ArrayReader


@pytest.fixture
def remote(monkeypatch):
    """Return a store whose reads are shared among threads, as those of an object store are."""
    with chunkstore.StoreWriter(
        "memory://test-reader", fields={"x": "f4"}, chunk=16, shard=64, overwrite=True
    ) as out:
        out.write("a", {"x": np.arange(2000)})
    store = chunkstore.open_store("memory://test-reader")
    monkeypatch.setattr(type(store._place), "is_remote", property(lambda _: True))
    return store


def test_nothing_is_written_any_more_once_a_read_has_failed(remote, monkeypatch):
    run = ArrayReader._run

    def slow(self, job):
        if job.spans[0][2] == 0:
            raise CorruptDataError("the first chunk is bad")
        time.sleep(0.1)
        run(self, job)

    monkeypatch.setattr(ArrayReader, "_run", slow)
    out = np.full(2000, -1, "f4")
    with pytest.raises(CorruptDataError, match="the first chunk"):
        remote.read_into("x", 0, 2000, out)
    told = out.copy()
    time.sleep(0.3)
    assert (out == told).all()


def test_decoders_that_name_sequences_do_not_wait_for_each_other(remote, monkeypatch):
    """The table of sequences is itself read by threads, where it is long."""
    with chunkstore.StoreWriter(
        "memory://test-table", fields={"x": "f4"}, chunk=1024, shard=2048, overwrite=True
    ) as out:
        for n in range(70_000):
            out.write(f"s{n}", {"x": np.zeros(1)})
    all_of_them = threading.Barrier(DECODERS.workers)

    def damaged(self, job):
        all_of_them.wait(5)
        raise self._damaged(job.spans[0][2], "fails its checksum")

    monkeypatch.setattr(ArrayReader, "_run", damaged)
    with pytest.raises(CorruptDataError, match=r"sequences 's0' to 's1023' \(1024\): fails its checksum"):
        chunkstore.open_store("memory://test-table").read("x", 0, 2048 * DECODERS.workers)


def test_each_does_everything_or_says_what_failed_when_all_is_quiet():
    pool, done = WorkerPool("test", 3), []

    def work(n):
        time.sleep(0.01 * n)
        if n == 2:
            raise ValueError("two")
        done.append(n)

    pool.each(work, [0, 1])
    assert sorted(done) == [0, 1]
    done.clear()
    with pytest.raises(ValueError, match="two"):
        pool.each(work, [2, 3, 9])
    count = len(done)
    time.sleep(0.15)
    assert len(done) == count


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_each_begins_in_order_takes_part_and_hears_the_first_that_failed(workers):
    pool, begun, threads = WorkerPool("test", workers), [], set()
    lock = threading.Lock()

    def work(n):
        with lock:
            begun.append(n)
            threads.add(threading.get_ident())
        time.sleep(0.001)
        if n in {30, 31, 32}:
            raise ValueError(str(n))
        return -n

    assert pool.each(work, range(20)) == [-n for n in range(20)]
    assert (begun if workers == 1 else sorted(begun)) == list(range(20))  # noted a moment after it is taken
    assert threading.get_ident() in threads
    assert len(threads) <= workers
    with pytest.raises(ValueError, match=r"^30$"):
        pool.each(work, range(20, 60))
    assert len(begun) <= 20 + 11 + workers
    assert pool.each(work, []) == []


def test_each_may_be_called_by_the_threads_of_its_pool():
    pool = WorkerPool("test", 2)
    assert pool.each(lambda n: pool.each(str, range(n)), [3, 4, 5]) == [
        [str(i) for i in range(n)] for n in (3, 4, 5)
    ]


@pytest.mark.parametrize("engine", ["direct", "zarrs"])
def test_a_shard_that_vanishes_while_the_store_is_open_is_named(tmp_path, engine):
    with chunkstore.StoreWriter(
        tmp_path / "s.zarr", fields={"x": "f4"}, codec="zstd", chunk=16, shard=64
    ) as out:
        out.write("a", {"x": np.arange(100)})
    store = chunkstore.open_store(tmp_path / "s.zarr", engine=engine)
    store.read("x", 3, 90)
    shutil.rmtree(tmp_path / "s.zarr" / "x" / "c")
    store._place.close()  # files that are open would still be read
    with pytest.raises(CorruptDataError, match=r"obs \[64, 100\), sequence 'a' at 64: the shard vanished"):
        store.read("x", 70, 90)

"""Storage that fails: whatever it does, a value that is handed out is the value that was written."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore.errors import ChunkstoreError, CorruptDataError
from chunkstore.loader import WindowLoader
from chunkstore.places import MemoryPlace
from chunkstore.testing import Faults, FaultyPlace, broken_storage
from chunkstore.verify import verify_store
from chunkstore.windows import WindowSpec

N = 2000
_names = itertools.count()


@pytest.fixture(scope="module")
def url():
    """A store whose value at obs i is i."""
    where = "memory://broken-storage"
    with chunkstore.StoreWriter(where, {"x": "i4"}, codec="zstd", chunk=50, shard=250, overwrite=True) as out:
        out.write("a", {"x": np.arange(0, 1200)}, labels={"kind": "cat"})
        out.write("b", {"x": np.arange(1200, N)}, labels={"kind": "dog"}, gaps=[(5, 9)])
    return where


rates = st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0])
any_faults = st.builds(
    Faults, seed=st.integers(0, 10**6), error=rates, short=rates, flip=rates, latency=st.just(0.0)
)


@given(any_faults)
@settings(max_examples=150)
def test_reading_gives_what_was_written_or_an_error_that_says_so(url, faults):
    with broken_storage(url, faults):
        try:
            store = chunkstore.open_store(url)
            for low in range(0, N, 170):
                high = min(N, low + 200)
                assert (store.read("x", low, high) == np.arange(low, high)).all()
            assert store.sequences.ids.tolist() == ["a", "b"]
            assert store.gaps.tolist() == [[1205, 1209]]
            assert store.sequences.column("kind").tolist() == ["cat", "dog"]
        except (ChunkstoreError, OSError) as err:
            assert "broken-storage" in str(err) or "injected" in str(err)  # noqa: PT017 - either is right


@given(any_faults)
@settings(max_examples=60)
def test_verify_reports_and_never_falls_over(url, faults):
    # the root itself is kept whole: a store without one is no store
    faults = Faults(**{n: getattr(faults, n) for n in ("seed", "error", "short", "flip")}, keys="/c/")
    with broken_storage(url, faults) as told:
        report = verify_store(url, deep=True)
    assert report.ok == (not told)


def batches_of(store, **options):
    with WindowLoader(store, WindowSpec(20), batch_size=32, memory_limit=6000, seed=5, **options) as loader:
        yield from loader.batches(0)


def test_a_loader_on_slow_storage_serves_the_same_batches(url):
    wanted = [b["x"].copy() for b in batches_of(chunkstore.open_store(url))]
    with broken_storage(url, Faults(latency=0.001)) as told:
        store = chunkstore.open_store(url)
        found = [b["x"].copy() for b in batches_of(store)]
    assert not told
    assert len(found) == len(wanted) > 20
    assert all((a == b).all() for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kind", ["error", "short", "flip"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_loader_on_failing_storage_never_serves_a_wrong_window(url, kind, policy):
    for seed in range(12):
        served, failed = 0, None
        with broken_storage(url, Faults(seed=seed, keys="x/c/", **{kind: 0.08})) as told:
            store = chunkstore.open_store(url)
            try:
                for batch in batches_of(store, on_bad_chunk=policy):
                    first = batch["start"] + np.where(batch["sequence"] == 1, 1200, 0)
                    assert (batch["x"][:, 0] == first[:, None] + np.arange(20)).all()
                    served += len(first)
            except (CorruptDataError, OSError) as err:
                failed = err
        if not told:
            assert failed is None
        if failed is None:
            assert served == 1200 - 19 + (800 - 9 - 19)  # obs 5 to 8 of b are a gap
        elif policy == "skip":
            assert kind == "error" or "none can stand" in str(failed)


def test_a_loader_goes_on_where_failing_storage_stopped_it(url):
    wanted = [b["x"].copy() for b in batches_of(chunkstore.open_store(url))]
    found: list[np.ndarray] = []
    stops = 0
    with broken_storage(url, Faults(seed=1, error=0.15, keys="x/c/", limit=20)):
        while len(found) < len(wanted):
            store = chunkstore.open_store(url)
            with WindowLoader(store, WindowSpec(20), batch_size=32, memory_limit=6000, seed=5) as loader:
                try:
                    found.extend(b["x"].copy() for b in loader.batches(0, start_batch=len(found)))
                except OSError:
                    stops += 1
    assert stops > 2
    assert all((a == b).all() for a, b in zip(found, wanted, strict=True))


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["error", "torn"]))
@settings(max_examples=40)
def test_a_writer_on_failing_storage_never_leaves_a_store_that_looks_whole(seed, kind):
    url = f"memory://broken-writer-{next(_names)}"
    failed = False
    with broken_storage(url, Faults(seed=seed, **{kind: 0.08})):
        try:
            with chunkstore.StoreWriter(url, {"x": "i4"}, chunk=10, shard=20) as out:
                out.write("a", {"x": np.arange(100)})
        except OSError:
            failed = True
    if failed:
        # what fails last is the root: torn, it is no store; else the store says that it is incomplete
        with pytest.raises(ChunkstoreError):
            chunkstore.open_store(url)
    else:
        assert (chunkstore.open_store(url).read("x", 0, 100) == np.arange(100)).all()
        assert verify_store(url, deep=True).ok


def test_storage_that_lies_about_a_write_is_found_out():
    for seed in range(20):
        url = f"memory://broken-liar-{seed}"
        faults = Faults(seed=seed, lying=0.2, keys=r"x/c/|rowsize/c|id/c", limit=1)
        with (
            broken_storage(url, faults) as told,
            chunkstore.StoreWriter(url, {"x": "i4"}, chunk=32, shard=64) as out,
        ):
            out.write("a", {"x": np.arange(500)})
        report = verify_store(url)
        assert report.ok == (not told)
        if told:
            assert told[0].key.split("/")[0] in {f.array for f in report.findings}


def test_the_same_seed_fails_the_same_way():
    def run(seed):
        place = FaultyPlace(MemoryPlace("broken-seed"), Faults(seed=seed, error=0.3, flip=0.3, short=0.3))
        found = []
        for key in "abcdefgh" * 5:
            try:
                found.append(place.get(key))
            except OSError as err:
                found.append(str(err))
        return found, place.told

    for key in "abcdefgh":
        MemoryPlace("broken-seed").put(key, bytes(range(40)))
    assert run(1) == run(1)
    assert run(1) != run(2)

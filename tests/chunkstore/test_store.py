"""The handle: what it opens, what it refuses, and where it may be used."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chunkstore import (
    ConfigError,
    CorruptDataError,
    FieldSpec,
    IncompleteStoreError,
    MissingDependencyError,
    NotAStoreError,
    StoreNotFoundError,
    StoreWriter,
    UnknownNameError,
    create_store,
    finish_store,
    open_skeleton,
    open_store,
    places,
)


@pytest.fixture
def path(tmp_path):
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4"}, chunk=64, shard=256) as out:
        for i in range(10):
            out.write(f"s{i}", {"x": np.arange(i * 100, i * 100 + 100)}, labels={"kind": "ab"[i % 2]})
    return tmp_path / "a.zarr"


def test_nothing_a_folder_and_a_foreign_group_are_three_different_errors(tmp_path):
    with pytest.raises(StoreNotFoundError, match="nothing"):
        open_store(tmp_path / "nothing.zarr")
    (tmp_path / "note.txt").write_text("hi")
    with pytest.raises(NotAStoreError, match=r"no zarr\.json"):
        open_store(tmp_path)
    (tmp_path / "zarr.json").write_text(
        json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}})
    )
    with pytest.raises(NotAStoreError, match="from_xarray"):
        open_store(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_store(tmp_path / "nothing.zarr")


def test_an_unknown_field_sequence_column_and_split_name_what_there_is(path):
    store = open_store(path)
    with pytest.raises(UnknownNameError, match="no field 'y'; it has x"):
        store.read("y", 0, 1)
    with pytest.raises(UnknownNameError, match="no sequence 'zz'; it has 10: 's0'"):
        store.sequence("zz")
    with pytest.raises(UnknownNameError, match="no column 'color' along sequence; it has kind"):
        store.sequences.column("color")
    with pytest.raises(UnknownNameError, match="no split with a part 'train'"):
        store.segments("train")
    with pytest.raises(KeyError):
        store.read("y", 0, 1)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 1001), (1001, 1001)])
def test_a_range_that_leaves_obs_is_refused(path, start, stop):
    with pytest.raises(ConfigError, match="not inside"):
        open_store(path).read("x", start, stop)


def test_an_output_of_another_shape_or_dtype_is_refused(path):
    with pytest.raises(ConfigError, match="out is float64"):
        open_store(path).read_into("x", 0, 3, np.empty(3))
    with pytest.raises(ConfigError, match=r"\[4\]"):
        open_store(path).read_into("x", 0, 3, np.empty(4, "f4"))


def test_a_pickled_store_opens_again_in_another_process(path):
    store = pickle.loads(pickle.dumps(open_store(path)))
    assert store.read("x", 3, 5).tolist() == [3, 4]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_read, (store,)) == [7.0, 8.0]


def _read(store):
    return store.read("x", 7, 9).tolist()


def test_a_store_pickled_by_a_relative_path_is_found_from_another_folder(path, tmp_path, monkeypatch):
    monkeypatch.chdir(path.parent)
    pickled = pickle.dumps(open_store("a.zarr"))
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert pickle.loads(pickled).n_obs == 1000
    assert open_store(path.as_uri()).n_obs == 1000


FORK = """
import os, sys
from chunkstore import ForkError, open_store
store = open_store(sys.argv[1])
if sys.argv[2] == "decoded":
    store.read("x", 0, 10)
pid = os.fork()
if not pid:
    try:
        store.read("x", 0, 10)
        os._exit(7)
    except ForkError as err:
        os._exit(8 if "spawn" in str(err) else 9)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(("before", "status"), [("decoded", "8"), ("nothing", "7")])
def test_a_forked_child_is_told_so_if_its_parent_has_decoded(path, before, status):
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(path), before],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == status, done.stderr


def test_threads_share_a_store(path):
    store = open_store(path)
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 900, 400)

    def check(start):
        out = np.empty(100, "f4")
        store.read_into("x", int(start), int(start) + 100, out)
        return bool((out == np.arange(start, start + 100)).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, starts))


def test_closing_lets_go_and_reading_goes_on(path):
    store = open_store(path)
    store.read("x", 0, 10)
    store.close()
    assert store.read("x", 0, 2).tolist() == [0, 1]


def test_files_stay_few_however_many_stores_are_open(path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not list open files")
    stores = [open_store(path) for _ in range(100)]
    for store in stores:
        store.read("x", 0, store.n_obs)
    assert len(os.listdir("/proc/self/fd")) < 128 + 100


def test_a_reader_beside_a_writer_sees_incomplete_and_then_all(tmp_path):
    url = tmp_path / "a.zarr"
    seen: list[int] = []
    begun, done = threading.Event(), threading.Event()

    def watch():
        begun.wait()
        while True:
            last = done.is_set()
            try:
                store = open_store(url)
                seen.append(store.n_sequences)
                assert store.read("x", 0, store.n_obs).tolist() == list(range(store.n_obs))
            except IncompleteStoreError:
                seen.append(-1)
            if last:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with StoreWriter(url, {"x": "f4"}, chunk=8, shard=32) as out:
            begun.set()
            for i in range(200):
                out.write(f"s{i}", {"x": np.arange(10) + 10 * i})
                while not seen:
                    pass
    finally:
        begun.set()
        done.set()
        watcher.join()
    assert set(seen) <= {-1, 200}
    assert seen[0] == -1
    assert seen[-1] == 200


def test_a_reader_beside_an_overwriting_writer_never_sees_the_old_store_as_whole(path):
    before = open_store(path)
    with StoreWriter(path, {"x": "f4"}, overwrite=True) as out:
        with pytest.raises(IncompleteStoreError):
            open_store(path)
        out.write("new", {"x": [1]})
    assert open_store(path).n_obs == 1
    assert before.n_obs == 1000


def test_an_incomplete_store_opens_where_that_is_asked_for(tmp_path):
    create_store(tmp_path / "a.zarr", fields=[FieldSpec("x", "f4")], n_obs=10, chunk=2, shard=4)
    open_skeleton(tmp_path / "a.zarr").write_shard("x", 1, np.arange(4, dtype="f4"))
    store = open_store(tmp_path / "a.zarr", allow_incomplete=True)
    assert store.status == "incomplete"
    assert store.read("x", 3, 8).tolist()[1:5] == [0, 1, 2, 3]
    with pytest.raises(IncompleteStoreError):
        _ = store.sequences


def test_an_axis_of_a_trillion_obs_opens_and_lists_at_once(tmp_path):
    n = 10**12
    create_store(tmp_path / "a.zarr", fields=[FieldSpec("x", "f4")], n_obs=n)
    finish_store(tmp_path / "a.zarr", rowsize=[n - 10**11, 10**11], ids=["a", "b"], gaps=[(5, 2**40 // 2)])
    store = open_store(tmp_path / "a.zarr")
    segments = store.segments()
    assert segments.stop.tolist() == [5, n - 10**11, n]
    assert np.isnan(store.read("x", n - 5, n)).all()
    assert store.to_xarray().sizes["obs"] == n
    store.add_split("train/val", by="time", fractions=[0.75, 0.25], embargo=100)
    assert store.splits["train/val"].n_obs == {"train": n * 3 // 4 - 200, "val": n // 4 - 200}
    assert store.audit_splits(window=64).ok


def test_a_million_sequences_open_with_nothing_per_obs(tmp_path):
    n = 1_000_000
    create_store(tmp_path / "a.zarr", fields=[FieldSpec("x", "i1")], n_obs=n)
    finish_store(tmp_path / "a.zarr", rowsize=np.ones(n, np.int64), ids=[f"s{i}" for i in range(n)])
    store = open_store(tmp_path / "a.zarr")
    assert len(store.segments()) == n
    assert store.sequences._kept.keys() == {"rowsize", "offsets"}
    assert store.sequences.index_of("s999999") == 999_999


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr("chunkstore.engine.usable_cores", lambda: 16)


def test_the_engine_says_what_it_does_and_why(path, tmp_path, many_cores, monkeypatch):
    assert open_store(path).engine["x"].name == "direct"  # small shards
    assert "asked for" in open_store(path, engine="direct").engine["x"].reason
    with StoreWriter(tmp_path / "b.zarr", {"x": "f4"}) as out:
        out.write("a", {"x": [1]})
    info = open_store(tmp_path / "b.zarr").engine["x"]
    assert info.name == "zarrs"
    assert "checksum" in info.reason
    with StoreWriter("memory://engine", {"x": "f4"}, overwrite=True) as out:
        out.write("a", {"x": [1]})
    assert open_store("memory://engine").engine["x"].name == "direct"
    with pytest.raises(ConfigError, match="none of"):
        open_store(path, engine="fast")
    monkeypatch.setattr("chunkstore.engine.usable_cores", lambda: 2)
    assert "2 cores" in open_store(tmp_path / "b.zarr").engine["x"].reason


def test_pcodec_without_its_library_goes_through_zarrs_with_every_checksum_checked(tmp_path, monkeypatch):
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4"}, codec="pcodec", chunk=64, shard=256) as out:
        out.write("a", {"x": np.arange(500)})
    from chunkstore import codecs

    monkeypatch.setattr("chunkstore.engine.has_pcodec", lambda: False)
    monkeypatch.setattr(codecs, "has_pcodec", lambda: False)
    codecs._compressor.cache_clear()
    try:
        store = open_store(tmp_path / "a.zarr")
        assert store.engine["x"].name == "zarrs"
        assert store.read("x", 10, 490).tolist() == list(range(10, 490))
        with pytest.raises(MissingDependencyError, match=r"chunkstore\[pcodec\]"):
            StoreWriter(tmp_path / "b.zarr", {"x": "f4"}, codec="pcodec")
        file = tmp_path / "a.zarr/x/c/0"
        bad = bytearray(file.read_bytes())
        bad[30] ^= 1
        file.write_bytes(bad)
        with pytest.raises(CorruptDataError, match="shard 0, chunk 0"):
            open_store(tmp_path / "a.zarr").read("x", 10, 20)
    finally:
        codecs._compressor.cache_clear()


def test_whole_shards_go_through_zarrs_and_ends_go_direct(tmp_path, many_cores):
    n = 5 << 20
    with StoreWriter(tmp_path / "b.zarr", {"x": "f4"}, chunk=65536, shard=1 << 20) as out:
        out.write("a", {"x": np.arange(n)})
    store = open_store(tmp_path / "b.zarr")
    meta = store._array("x")
    assert store._route(meta, 10, n - 10) == [
        ("direct", 10, 1 << 20),
        ("zarrs", 1 << 20, 4 << 20),
        ("direct", 4 << 20, n - 10),
    ]
    assert store._route(meta, 5, 100) == [("direct", 5, 100)]
    assert np.array_equal(store.read("x", 10, n - 10), np.arange(10, n - 10, dtype="f4"))
    assert store._zarrs.keys() == {"x"}


@pytest.mark.parametrize("where", ["files", "indices"])
def test_a_store_may_be_closed_in_the_middle_of_a_read(tmp_path, where, monkeypatch):
    """As by a generator that the garbage collector meets, or by a handler of a signal."""
    with StoreWriter(tmp_path / "a.zarr", {"x": "i4"}, chunk=64, shard=128) as out:
        out.write("a", {"x": np.arange(1000)})
    store, read = open_store(tmp_path / "a.zarr"), []

    class Met(OrderedDict):
        def get(self, *args):
            store.close()
            return super().get(*args)

        def move_to_end(self, *args):
            store.close()
            super().move_to_end(*args)

    if where == "files":
        monkeypatch.setattr(places._HANDLES, "open", Met())
    else:
        store._cache._shards = Met()
    thread = threading.Thread(
        target=lambda: read.extend(store.read("x", at, at + 99).tolist() for at in range(0, 900, 9)),
        daemon=True,
    )
    thread.start()
    thread.join(10)
    assert read == [list(range(at, at + 99)) for at in range(0, 900, 9)]
    monkeypatch.undo()
    store.close()
    assert not [key for key in places._HANDLES.open if key[0] == store._place._token]

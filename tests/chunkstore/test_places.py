"""Places: S3 by its real protocol, a web server, memory; and secrets that stay secret."""

from __future__ import annotations

import http.server
import logging
import os
import pickle
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from chunkstore import (
    ConfigError,
    CorruptDataError,
    IncompleteStoreError,
    MissingDependencyError,
    NotAStoreError,
    StoreNotFoundError,
    StoreWriter,
    UnsupportedError,
    open_store,
    places,
    verify_store,
)
from chunkstore.places import LocalPlace, MemoryPlace, open_place, redact_url

SECRET = "s3cr3t-of-the-test"


def fill(url, **options):
    with StoreWriter(url, {"x": "f4", "v": "2i2"}, chunk=128, shard=1024, overwrite=True, **options) as out:
        for i in range(3):
            x = np.arange(i * 1000, (i + 1) * 1000)
            out.write(
                f"s{i}", {"x": x, "v": np.stack([x, -x], axis=1).astype("i2")}, labels={"k": "ab"[i % 2]}
            )


@pytest.fixture(scope="module")
def s3():
    """A real S3 protocol server on loopback, with one bucket."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto.server")
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "endpoint": f"http://{host}:{port}",
        "access_key_id": "test",
        "secret_access_key": SECRET,
        "region": "us-east-1",
        "retry_config": {"max_retries": 0},
    }
    import urllib.request

    request = urllib.request.Request(f"{options['endpoint']}/bucket", method="PUT")
    urllib.request.urlopen(request, timeout=20).close()
    yield options
    server.stop()


def test_a_store_on_s3_is_written_read_split_and_verified(s3):
    url = "s3://bucket/deep/a.zarr"
    with pytest.raises(StoreNotFoundError):
        open_store("s3://bucket/nothing.zarr", storage_options=s3)
    fill(url, storage_options=s3)
    store = open_store(url, storage_options=s3)
    for engine in ("auto", "direct", "zarrs"):
        again = open_store(url, storage_options=s3, engine=engine)
        assert again.read("x", 0, 3000).tolist() == list(range(3000))
        assert again.read("v", 2000, 2002).tolist() == [[2000, -2000], [2001, -2001]]
    assert open_store(url, storage_options=s3, engine="zarrs").engine["x"].name == "zarrs"
    store.add_split("train/val", fractions=[2 / 3, 1 / 3])
    assert open_store(url, storage_options=s3).segments("train").n_obs == 2000
    report = verify_store(url, deep=True, storage_options=s3)
    assert report.ok, report.findings
    assert report.chunks == 2 * 24
    copy = pickle.loads(pickle.dumps(store))
    assert copy.read("x", 5, 6).tolist() == [5]
    assert store.to_xarray().x.sum().compute(scheduler="sync") == sum(range(3000))
    fill(url, storage_options=s3)
    assert list(open_store(url, storage_options=s3).splits) == []


def test_a_shard_that_is_gone_from_s3_is_an_error(s3):
    url = "s3://bucket/gone.zarr"
    fill(url, storage_options=s3)
    open_place(url, s3).delete("x/c/1")
    with pytest.raises(CorruptDataError, match="missing"):
        open_store(url, storage_options=s3).read("x", 1500, 1501)


def test_no_secret_is_shown_by_an_error_a_log_a_name_or_the_store(s3, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    texts = []
    wrong = {**s3, "endpoint": "http://127.0.0.1:9"}
    with pytest.raises(OSError, match="cannot be reached") as failed:
        open_store("s3://bucket/a.zarr", storage_options=wrong)
    texts += [str(failed.value), repr(failed.value)]
    assert failed.value.__cause__ is None
    with pytest.raises(ConfigError) as refused:
        open_place("s3://bucket/a", {**s3, "no_such_option": SECRET})
    texts.append(str(refused.value))
    fill("s3://bucket/secret.zarr", storage_options=s3)
    store = open_store("s3://bucket/secret.zarr", storage_options=s3)
    texts += [repr(store), store.url, repr(store._place), str(dict(store.attrs)), caplog.text]
    place = open_place("s3://bucket/secret.zarr", s3)
    texts += [str(place.get(key)) for key, _ in place.walk()]
    assert [t for t in texts if SECRET in t] == []
    assert redact_url("https://me:pw@h.org/a?sig=zz#f") == "https://h.org/a"


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves files, and ranges of them, as web servers do."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = self.translate_path(self.path)
        wanted = self.headers.get("Range")
        if not wanted or not os.path.isfile(path):
            return super().do_GET()
        data = Path(path).read_bytes()
        low, _, high = wanted.removeprefix("bytes=").partition("-")
        start = int(low) if low else max(0, len(data) - int(high))
        stop = min(len(data), int(high) + 1) if low and high else len(data)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(data[start:stop])
        return None


@pytest.fixture
def web(tmp_path):
    pytest.importorskip("obstore")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield tmp_path, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_store_on_a_web_server_is_read_and_never_written(web):
    folder, base = web
    fill(folder / "a.zarr")
    for engine in ("auto", "direct", "zarrs"):
        store = open_store(f"{base}/a.zarr", engine=engine)
        assert store.read("x", 900, 2100).tolist() == list(range(900, 2100))
        assert store.sequences.ids.tolist() == ["s0", "s1", "s2"]
    assert verify_store(f"{base}/a.zarr", deep=True).ok
    with pytest.raises(UnsupportedError, match="read-only"):
        store.add_split("train/val")
    with pytest.raises(UnsupportedError, match="read-only"):
        StoreWriter(f"{base}/b.zarr", {"x": "f4"})
    with pytest.raises(NotAStoreError, match=r"no zarr\.json"):
        open_store(f"{base}/b.zarr")


def test_memory_is_a_place_of_its_own():
    fill("memory://place")
    assert open_store("memory://place").read("x", 0, 3).tolist() == [0, 1, 2]
    assert verify_store("memory://place", deep=True).ok
    with pytest.raises(StoreNotFoundError):
        open_store("memory://elsewhere")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket/a.zarr", {"skip_signature": True}),
        ("gcs://bucket/a.zarr", {"anon": True}),
        ("az://container/a.zarr", {"account_name": "acct", "account_key": "c2VjcmV0"}),
        ("abfss://container@acct.dfs.core.windows.net/a.zarr", {"account_key": "c2VjcmV0"}),
    ],
)
def test_other_clouds_are_places_too(url, options):
    """Only that they can be named: there is no server of theirs here to talk to."""
    pytest.importorskip("obstore")
    place = open_place(url, options)
    assert place.kind == "object"
    assert place.url == url
    assert "c2VjcmV0" not in repr(place)


@pytest.mark.parametrize("url", ["ftp://h/a", "zip://a.zip", "s4://b/a"])
def test_an_unknown_scheme_is_named(url):
    with pytest.raises(ConfigError, match="none of"):
        open_place(url)


def test_options_where_none_can_be_used_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="takes none"):
        open_store(tmp_path, storage_options={"key": "a"})


def test_a_missing_obstore_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingDependencyError, match=r"chunkstore\[cloud\]"):
        open_store("s3://bucket/a.zarr")


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    if request.param == "local":
        return LocalPlace(tmp_path)
    made = MemoryPlace("place-test")
    made.clear()
    return made


def test_an_object_may_come_in_parts(place):
    parts = [bytes([i % 256]) * (i * 97 % 5000) for i in range(3000)]
    place.put_parts("a/c/0", parts)
    assert place.get("a/c/0") == b"".join(parts)
    place.put_parts("a/c/0", [b"", b"ab", b""])
    assert place.get("a/c/0") == b"ab"


def test_every_place_reads_what_it_was_given(place):
    assert place.is_empty()
    place.put("a/c/0", b"0123456789")
    place.put("a/zarr.json", memoryview(b"{}"))
    assert place.get("a/c/0") == b"0123456789"
    assert [bytes(b) for b in place.get_ranges("a/c/0", [(2, 4), (8, 99)])] == [b"23", b"89"]
    assert place.get_tail("a/c/0", 3) == (b"789", 10)
    assert place.get_tail("a/c/0", 99) == (b"0123456789", 10)
    assert place.size("a/c/0") == 10
    assert list(place.walk()) == [("a/c/0", 10), ("a/zarr.json", 2)]
    assert list(place.walk("a/c")) == [("a/c/0", 10)]
    for missing in ("b", "a/c/1", "a/c/0/0"):
        assert place.get(missing) is None
        assert place.get_tail(missing, 3) is None
        assert place.size(missing) is None
    with pytest.raises(FileNotFoundError):
        place.get_ranges("a/c/1", [(0, 1)])
    place.delete("a/c/0")
    place.delete("a/c/0")
    assert place.get("a/c/0") is None
    place.clear()
    assert place.is_empty()


def test_an_empty_path_is_no_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("", " "):
        with pytest.raises(ConfigError, match="path of a store is empty"):
            StoreWriter(text, {"x": "f4"}, overwrite=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lead", ["file://", "FILE://", "file://localhost"])
def test_a_file_url_names_its_path_however_it_is_spelt(tmp_path, lead):
    assert open_place(f"{lead}{tmp_path}/a%20b.zarr").root == str(tmp_path.resolve() / "a b.zarr")


def test_a_store_is_on_its_disk_before_it_says_that_it_is_complete(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def remember(handle):
        synced.append(os.fstat(handle).st_ino)
        sync(handle)

    monkeypatch.setattr(os, "fsync", remember)
    store = tmp_path / "a.zarr"
    with StoreWriter(store, {"x": "f4", "v": "2i2"}, chunk=2, shard=4) as out:
        for name in "abcd":
            out.write(name, {"x": np.arange(5), "v": np.ones((5, 2), "i2")}, labels={"kind": name})
        first = len(synced)
    inodes = {p.stat().st_ino: p for p in (store, *store.rglob("*"))}
    root = (store / "zarr.json").stat().st_ino
    before = synced[first : synced.index(root)]
    assert set(inodes) - set(before) == {root}
    assert synced[synced.index(root) :] == [root, store.stat().st_ino]  # the root last, then its name

    synced.clear()
    open_store(store).add_split("train/val")
    root = (store / "zarr.json").stat().st_ino
    split = {p.stat().st_ino for p in store.rglob("split_*/c/0")}
    assert len(split) == 3
    assert split <= set(synced[: synced.index(root)])
    assert not (store / ".partial").exists()


def test_a_disk_that_fails_to_settle_leaves_a_store_that_is_incomplete(tmp_path, monkeypatch):
    sync = os.fsync

    def refuse(handle):
        if os.fstat(handle).st_size == marked:
            raise OSError(5, "Input/output error")
        sync(handle)

    out = StoreWriter(tmp_path / "a.zarr", {"x": "f4"}, chunk=2, shard=4)
    out.write("a", {"x": np.arange(4)})
    marked = (tmp_path / "a.zarr" / "x" / "c" / "0").stat().st_size
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output"):
        out.close()
    with pytest.raises(IncompleteStoreError):
        open_store(tmp_path / "a.zarr")


def test_a_file_system_that_cannot_settle_is_taken_at_its_word(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4"}) as out:
        out.write("a", {"x": np.arange(4)})
    assert verify_store(tmp_path / "a.zarr", deep=True).ok


def test_a_write_goes_on_while_others_sweep(tmp_path, monkeypatch):
    place, other = LocalPlace(tmp_path), LocalPlace(tmp_path)
    write, times = places._write, []

    def swept(path, parts):
        if len(times) == 1:
            other.sweep()  # before the file is there
            times.append(1)
        done = write(path, parts)
        if not times:
            other.sweep()  # before it has its name
            times.append(1)
        return done

    monkeypatch.setattr(places, "_write", swept)
    place.put("x/c/0", b"abcd")
    assert len(times) == 2
    assert place.get("x/c/0") == b"abcd"


def test_objects_in_memory_may_be_listed_and_removed_while_a_thread_writes():
    place, stop, interval = MemoryPlace("busy"), threading.Event(), sys.getswitchinterval()

    def write():
        n = 0
        while not stop.is_set():
            place.put(f"x/{n}", b"1")
            place.delete(f"x/{n - 300}")
            n += 1

    thread = threading.Thread(target=write)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(40):
            for n in range(2000):
                place.put(f"y/{n}", b"1")
            list(place.walk())
            place.clear(keep="x/3")
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()

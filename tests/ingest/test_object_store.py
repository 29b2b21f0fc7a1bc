"""Inputs, output, ledger and scratch in an object store (moto on loopback), now and then answering 503."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib import error as urlerror
from urllib import request as urlrequest

import numpy as np
import pytest

import chunkstore
import ingest
from chunkstore.errors import IngestError, SourceChangedError, StoreExistsError
from ingest.folder import open_folder
from ingest.inputs import expand
from ingest.ledger import Lock
from ingest.sources import open_source

pytest.importorskip("moto")
pytest.importorskip("obstore")
boto3 = pytest.importorskip("boto3")

SUPPORT = Path(__file__).parent / "support"


class Flaky(BaseHTTPRequestHandler):
    """Passes requests on to moto; every n-th is answered with 503."""

    target = ""
    every = 0
    count = 0
    refused = 0
    lock = threading.Lock()
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Be silent."""

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with Flaky.lock:
            Flaky.count += 1
            refuse = Flaky.every and Flaky.count % Flaky.every == 0
            Flaky.refused += bool(refuse)
        if refuse:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        headers = {k: v for k, v in self.headers.items() if k.lower() not in {"connection", "content-length"}}
        headers.setdefault("Content-Type", "application/octet-stream")  # else urllib calls it a form
        asked = urlrequest.Request(Flaky.target + self.path, body or None, headers, method=self.command)
        try:
            with urlrequest.urlopen(asked, timeout=30) as found:
                status, kept, data = found.status, found.headers, found.read()
        except urlerror.HTTPError as found:
            status, kept, data = found.code, found.headers, found.read()
            found.close()
        self.send_response(status)
        for name, value in kept.items():
            if name.lower() not in {"connection", "transfer-encoding", "content-length", "date", "server"}:
                self.send_header(name, value)
        self.send_header("Content-Length", kept.get("Content-Length") or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815  # the names that the library calls


@pytest.fixture(scope="module")
def endpoint():
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    Flaky.target = f"http://{host}:{port}"
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{proxy.server_address[1]}"
    proxy.shutdown()
    proxy.server_close()
    thread.join()
    moto.stop()


@pytest.fixture
def bucket(endpoint, monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ENDPOINT": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    Flaky.every = Flaky.count = Flaky.refused = 0
    client = boto3.client("s3", endpoint_url=Flaky.target, region_name="us-east-1")
    client.create_bucket(Bucket="work")
    yield client
    Flaky.every = 0
    for entry in client.list_objects_v2(Bucket="work").get("Contents", []):
        client.delete_object(Bucket="work", Key=entry["Key"])
    client.delete_bucket(Bucket="work")
    client.close()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SUPPORT))
    monkeypatch.setattr("ingest.plan.SEGMENT", 8000)
    from keyed_source import make_files

    make_files(tmp_path / "in", files=2, rows=150, keys=3)
    return tmp_path / "in"


def run(inputs, out, options=None, **how):
    how = {"workers": 0, "chunk": 32, "shard": 128, **how}
    return ingest.ingest("keyed_source:KeyedSource", inputs, out, options or {"order": "sort"}, **how)


def objects(client, prefix):
    found = {}
    for entry in client.list_objects_v2(Bucket="work", Prefix=prefix).get("Contents", []):
        found[entry["Key"][len(prefix) :]] = client.get_object(Bucket="work", Key=entry["Key"])["Body"].read()
    return found


@pytest.mark.parametrize("every", [0, 7])
def test_a_store_in_an_object_store_has_the_bytes_of_a_local_one(bucket, folder, tmp_path, every):
    run(folder, tmp_path / "local.zarr")
    Flaky.every = every
    result = run(folder, "s3://work/out.zarr")
    Flaky.every = 0
    assert result.exit_code == 0
    assert (Flaky.refused > 0) == (every > 0)
    local = {
        str(p.relative_to(tmp_path / "local.zarr")): p.read_bytes()
        for p in (tmp_path / "local.zarr").rglob("*")
        if p.is_file()
    }
    assert objects(bucket, "out.zarr/") == local
    ledger = objects(bucket, "out.zarr.ledger/")
    assert "report.json" in ledger
    assert "lock.json" not in ledger
    assert not [name for name in ledger if name.startswith("scratch")]
    with pytest.raises(StoreExistsError):
        run(folder, "s3://work/out.zarr")
    run(folder, "s3://work/out.zarr", overwrite=True)
    assert objects(bucket, "out.zarr/") == local


def test_a_lock_in_an_object_store_keeps_others_out(bucket):
    place = open_folder("s3://work/o.zarr.ledger")
    with Lock(place, "s3://work/o.zarr"), pytest.raises(IngestError, match="another job"):
        Lock(place, "s3://work/o.zarr").acquire()
    assert place.size("lock.json") is None


def test_inputs_in_an_object_store_are_found_in_natural_order(bucket):
    for name in ("a10.npy", "a9.npy", "b/c.npy", "notes.txt", "._a1.npy"):
        bucket.put_object(Bucket="work", Key=f"in/{name}", Body=b"x")
    found = ["s3://work/in/a9.npy", "s3://work/in/a10.npy", "s3://work/in/b/c.npy"]
    assert expand("s3://work/in", [".npy"]) == found
    assert expand("s3://work/in/*.npy", [".npy"]) == found[:2]
    assert expand("s3://work/in/a9.npy", [".npy"]) == found[:1]


def test_avro_is_read_from_an_object_store(bucket, tmp_path):
    fastavro = pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "double"}]}
    for i in range(2):
        path = tmp_path / f"{i}.avro"
        with path.open("wb") as out:
            fastavro.writer(out, schema, [{"x": float(i * 100 + k)} for k in range(50)])
        bucket.put_object(Bucket="work", Key=f"in/{i}.avro", Body=path.read_bytes())
    result = ingest.ingest_avro("s3://work/in", "s3://work/o.zarr", sequence_per="file", workers=0)
    assert result.exit_code == 0
    store = chunkstore.open_store("s3://work/o.zarr")
    np.testing.assert_array_equal(store.read("x", 48, 52), [48, 49, 100, 101])


def test_an_input_that_is_replaced_by_one_of_its_size_is_noticed(bucket):
    """obstore spells the etag ``e_tag``: without it the size alone would tell one version from another."""
    import io

    fastavro = pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "double"}]}

    def put(value):
        out = io.BytesIO()
        fastavro.writer(out, schema, [{"x": value}] * 50, sync_marker=bytes(16))
        bucket.put_object(Bucket="work", Key="in/a.avro", Body=out.getvalue())

    put(1.0)
    source = open_source("avro", {"sequence_per": "file"})
    scan = source.scan(expand("s3://work/in/a.avro"))
    source = open_source("avro", scan.options)
    assert [b.columns["x"][0] for b in source.read(scan.parts[0])] == [1.0]
    heard = open_source("audio", {}).identity("s3://work/in/a.avro")
    put(2.0)
    assert source.identity("s3://work/in/a.avro") != scan.parts[0].identity
    assert open_source("audio", {}).identity("s3://work/in/a.avro") != heard
    with pytest.raises(SourceChangedError):
        list(source.read(scan.parts[0]))


@pytest.fixture
def listed():
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Listed(MemoryFileSystem):
        """Answers from its last listing, as s3fs and gcsfs do."""

        protocol = "listed"
        store: dict = {}  # noqa: RUF012 - as in the class above it
        pseudo_dirs = [""]  # noqa: RUF012 - as above
        known: dict = {}  # noqa: RUF012 - as above

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.removeprefix("listed://").strip("/")

        def info(self, path, **_):
            return self.known.setdefault(path, super().info(path))

        def find(self, path, **how):
            return self.known.setdefault(f"find {path} {how}", super().find(path, **how))

        def invalidate_cache(self, path=None):
            if path is None:
                self.known.clear()
            self.known.pop(path, None)

    fsspec.register_implementation("listed", Listed, clobber=True)
    return fsspec.filesystem("listed")


@pytest.mark.parametrize(("name", "options"), [("avro", {"sequence_per": "file"}), ("audio", {})])
def test_what_a_file_system_remembers_of_a_listing_does_not_hide_a_change(listed, name, options):
    listed.pipe_file("/a", b"one")
    source = open_source(name, options)
    before = source.identity("listed://a")
    listed.pipe_file("/a", b"two")
    assert source.identity("listed://a") != before


def test_what_a_file_system_remembers_of_a_listing_does_not_hide_a_file(listed):
    listed.pipe_file("/in/a.avro", b"one")
    assert expand("listed://in") == ["listed:///in/a.avro"]
    listed.pipe_file("/in/b.avro", b"two")
    assert expand("listed://in") == ["listed:///in/a.avro", "listed:///in/b.avro"]


def test_a_file_or_folder_that_is_there_is_no_pattern(listed):
    for name in ("a[1].avro", "a1.avro", "b[1]/x.avro", "b1/y.avro"):
        listed.pipe_file(f"/in/{name}", b"")
    assert expand("listed://in/a[1].avro") == ["listed://in/a[1].avro"]
    assert expand("listed://in/b[1]") == ["listed:///in/b[1]/x.avro"]
    assert expand("listed://in/a*.avro") == ["listed:///in/a1.avro", "listed:///in/a[1].avro"]

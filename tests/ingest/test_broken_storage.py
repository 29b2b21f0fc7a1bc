"""An ingest on storage that fails ends with the bytes of an undisturbed one, or says why not and resumes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import chunkstore
import ingest
from chunkstore.errors import ChunkstoreError, IngestError
from chunkstore.testing import Faults, broken_storage
from chunkstore.verify import verify_store

SUPPORT = Path(__file__).parent / "support"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SUPPORT))
    monkeypatch.setattr("ingest.plan.SEGMENT", 8000)
    monkeypatch.setattr("ingest.plan.stage_target", lambda total: 4000)
    monkeypatch.setattr("time.sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.001)))
    from keyed_source import make_files

    make_files(tmp_path / "in", files=2, rows=150, keys=3)
    return tmp_path / "in"


def run(folder, out, **how):
    how = {"workers": 0, "chunk": 16, "shard": 64, **how}
    return ingest.ingest("keyed_source:KeyedSource", folder, out, {"order": "sort"}, **how)


def bytes_of(out):
    from trees import tree

    return tree(out)


@pytest.mark.parametrize("kind", ["error", "torn"])
def test_storage_that_fails_now_and_then_costs_time_and_no_byte(folder, tmp_path, kind):
    run(folder, tmp_path / "wanted.zarr")
    faults = 0
    for seed in range(4):
        out = tmp_path / f"o{seed}.zarr"
        with broken_storage(str(out), Faults(seed=seed, keys="/c/", **{kind: 0.05})) as told:
            for attempt in range(6):
                try:
                    run(folder, out, resume=attempt > 0)
                    break
                except (ChunkstoreError, OSError) as err:
                    with pytest.raises(ChunkstoreError):
                        chunkstore.open_store(out)  # not before it is whole
                    assert "injected" in str(err)  # noqa: PT017 - what went wrong is told
            else:
                pytest.fail("six attempts were not enough")
            faults += len(told)
        assert bytes_of(out) == bytes_of(tmp_path / "wanted.zarr")
    assert faults > 4


def test_wherever_one_write_is_torn_the_job_ends_clearly_and_resumes_to_the_same_bytes(folder, tmp_path):
    """Objects of every kind are torn once. The root is not: replacing it is atomic wherever we write."""
    run(folder, tmp_path / "wanted.zarr")
    wanted = bytes_of(tmp_path / "wanted.zarr")
    keys = sorted(k for k in wanted if k != "zarr.json")
    for i, key in enumerate(keys[:: max(1, len(keys) // 12)]):
        out = tmp_path / f"k{i}.zarr"
        with broken_storage(str(out), Faults(seed=i, torn=1.0, keys=f"^{key}$", limit=1)) as told:
            try:
                run(folder, out)
            except (ChunkstoreError, OSError):
                with pytest.raises(ChunkstoreError):
                    chunkstore.open_store(out)
                run(folder, out, resume=True)
        assert [f.key for f in told] == [key]
        assert bytes_of(out) == wanted


def test_whichever_call_for_the_root_fails_the_job_resumes_to_the_same_bytes(folder, tmp_path):
    run(folder, tmp_path / "wanted.zarr")
    wanted = bytes_of(tmp_path / "wanted.zarr")
    calls = set()
    for seed in range(8):
        out = tmp_path / f"r{seed}.zarr"
        with broken_storage(str(out), Faults(seed=seed, error=0.3, keys="^zarr.json$", limit=5)) as told:
            for attempt in range(9):
                try:
                    run(folder, out, resume=attempt > 0)
                    break
                except (ChunkstoreError, OSError):
                    pass
            calls |= {fault.call for fault in told}
        assert bytes_of(out) == wanted
    assert calls >= {"get", "put"}


def test_a_writer_killed_in_its_first_write_leaves_nothing_in_the_way(folder, tmp_path):
    (tmp_path / "o.zarr/.partial").mkdir(parents=True)
    (tmp_path / "o.zarr/.partial/zarr.json~77-1").write_bytes(b"{")
    run(folder, tmp_path / "o.zarr")
    run(folder, tmp_path / "wanted.zarr")
    assert bytes_of(tmp_path / "o.zarr") == bytes_of(tmp_path / "wanted.zarr")


def test_a_shard_that_storage_did_not_keep_is_found_on_resume(folder, tmp_path):
    run(folder, tmp_path / "wanted.zarr")
    out = tmp_path / "o.zarr"
    with (
        broken_storage(str(out), Faults(lying=1.0, keys="^value/c/0$", limit=1)),
        broken_storage(str(out), Faults(error=1.0, keys="^value/c/3$", limit=4)) as told,
        pytest.raises(IngestError, match="injected"),
    ):
        run(folder, out)
    assert len(told) == 4
    run(folder, out, resume=True)
    assert bytes_of(out) == bytes_of(tmp_path / "wanted.zarr")
    assert verify_store(out, deep=True).ok

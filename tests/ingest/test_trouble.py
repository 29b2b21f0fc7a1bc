"""What goes wrong around a job: each ends clearly, and goes on with ``resume`` to the right bytes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import chunkstore
import ingest
from chunkstore.errors import (
    ConfigError,
    IngestError,
    InputError,
    MemoryLimitError,
    NotAStoreError,
    SourceChangedError,
    StoreExistsError,
)
from chunkstore.places import PARTIAL, LocalPlace, open_place
from chunkstore.skeleton import StoreSkeleton
from ingest.folder import LocalFolder, open_folder
from ingest.ledger import Ledger, Lock, ledger_url
from ingest.run import SerialRunner, explain

SUPPORT = Path(__file__).parent / "support"
KEYED = "keyed_source:KeyedSource"


@pytest.fixture(autouse=True)
def reach(monkeypatch):
    monkeypatch.syspath_prepend(str(SUPPORT))
    monkeypatch.setattr("ingest.plan.SEGMENT", 8000)
    monkeypatch.setattr("ingest.plan.stage_target", lambda total: 4000)
    monkeypatch.setattr("time.sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.02)))


@pytest.fixture
def folder(tmp_path):
    from keyed_source import make_files

    make_files(tmp_path / "in", files=3, rows=200, keys=4)
    return tmp_path / "in"


def run(folder, out, options=None, **how):
    how = {"workers": 0, "chunk": 16, "shard": 64, **how}
    return ingest.ingest(KEYED, folder, out, options or {}, **how)


@pytest.fixture
def wanted(folder, tmp_path):
    from trees import tree

    run(folder, tmp_path / "reference.zarr")
    return tree(tmp_path / "reference.zarr")


def check(out, wanted):
    from trees import tree

    assert tree(out) == wanted


def test_an_output_that_is_there_is_refused(folder, tmp_path):
    run(folder, tmp_path / "o.zarr")
    with pytest.raises(StoreExistsError, match="already a store"):
        run(folder, tmp_path / "o.zarr")


def test_overwrite_replaces_a_store_of_ours(folder, tmp_path, wanted):
    np.save(tmp_path / "x.npy", np.arange(9.0))
    ingest.ingest("npy", tmp_path / "x.npy", tmp_path / "o.zarr", workers=0)
    run(folder, tmp_path / "o.zarr", overwrite=True)
    check(tmp_path / "o.zarr", wanted)


@pytest.mark.parametrize("how", ["overwrite", "resume", None])
def test_what_is_not_ours_is_never_touched(folder, tmp_path, how):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter1.tex").write_text("years of work")
    with pytest.raises(StoreExistsError, match="not a store of chunkstore"):
        run(folder, out, **({how: True} if how else {}))
    assert (out / "chapter1.tex").read_text() == "years of work"


def test_a_foreign_zarr_group_is_not_ours_either(folder, tmp_path):
    out = tmp_path / "o.zarr"
    out.mkdir()
    (out / "zarr.json").write_text('{"zarr_format":3,"node_type":"group","attributes":{}}')
    with pytest.raises(StoreExistsError):
        run(folder, out, overwrite=True)
    assert (out / "zarr.json").exists()


@pytest.mark.parametrize(
    "kept",
    [
        "o.zarr/notes.txt",
        "o.zarr/mine/data.csv",
        "o.zarr/.git/config",
        "o.zarr/.env",
        "o.zarr/value/notes.txt",
        "o.zarr.ledger/notes.txt",
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_somebody_keeps_among_our_files_is_never_removed(folder, tmp_path, kept, first):
    if first or kept.startswith("o.zarr/"):
        run(folder, tmp_path / "o.zarr")
    (tmp_path / kept).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / kept).write_text("precious")
    with pytest.raises(StoreExistsError, match="nothing was removed"):
        run(folder, tmp_path / "o.zarr", overwrite=True)
    assert (tmp_path / kept).read_text() == "precious"
    if first:
        assert chunkstore.open_store(tmp_path / "o.zarr").n_obs == 600


def test_a_folder_that_is_named_like_our_ledger_is_spared_without_overwrite_too(folder, tmp_path):
    (tmp_path / "o.zarr.ledger").mkdir()
    (tmp_path / "o.zarr.ledger" / "notes.txt").write_text("precious")
    with pytest.raises(StoreExistsError, match="nothing was removed"):
        run(folder, tmp_path / "o.zarr")
    assert (tmp_path / "o.zarr.ledger" / "notes.txt").read_text() == "precious"


def test_resume_and_overwrite_exclude_each_other(folder, tmp_path):
    with pytest.raises(ConfigError, match="exclude each other"):
        run(folder, tmp_path / "o.zarr", resume=True, overwrite=True)


def test_resume_of_a_finished_job_does_nothing(folder, tmp_path, wanted):
    first = run(folder, tmp_path / "o.zarr")
    again = run(folder, tmp_path / "o.zarr", resume=True)
    assert again.report == first.report
    check(tmp_path / "o.zarr", wanted)


class PowerOff(BaseException):
    """The end of a process at once, as far as one can be had inside one."""


@pytest.mark.parametrize("back", range(1, 9))
def test_two_ends_at_the_worst_moments_leave_nothing_behind(folder, tmp_path, monkeypatch, wanted, back):
    """The first in the middle of one of the last writes, the second as soon as the store is complete."""
    out, put = str(tmp_path / "a.zarr"), LocalPlace.put
    ours: list[str] = []

    def count(self, key, data):
        ours.append(key)
        put(self, key, data)

    monkeypatch.setattr(LocalPlace, "put", count)
    run(folder, str(tmp_path / "count.zarr"))
    last = len(ours) - back
    ours.clear()

    def half(self, key, data):
        ours.append(key)
        if len(ours) - 1 == last:
            left = Path(self.root, PARTIAL, f"{key}~99-99")
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(bytes(data)[:7])
            raise PowerOff
        put(self, key, data)

    def complete(self, key, data):
        put(self, key, data)
        if key == "zarr.json" and b'"complete"' in bytes(data):
            raise PowerOff

    monkeypatch.setattr(LocalPlace, "put", half)
    with pytest.raises(PowerOff):
        run(folder, out)
    monkeypatch.setattr(LocalPlace, "put", complete)
    with pytest.raises(PowerOff):
        run(folder, out, resume=True)
    assert [p for p in Path(out, PARTIAL).rglob("*") if p.is_file()] == []
    monkeypatch.setattr(LocalPlace, "put", put)
    run(folder, out, resume=True)
    assert not Path(out, PARTIAL).exists()
    check(out, wanted)


def test_a_job_that_ended_before_its_scratch_was_gone_removes_it_on_resume(
    folder, tmp_path, monkeypatch, wanted
):
    out = str(tmp_path / "a.zarr")

    def end(self, prefix=""):
        raise PowerOff

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "delete_all", end)
        with pytest.raises(PowerOff):
            run(folder, out)
    assert Path(f"{out}.ledger/scratch").exists()
    run(folder, out, resume=True)
    assert not Path(f"{out}.ledger/scratch").exists()
    check(out, wanted)


def test_resume_of_nothing_starts(folder, tmp_path, wanted):
    run(folder, tmp_path / "o.zarr", resume=True)
    check(tmp_path / "o.zarr", wanted)


def full_disk(monkeypatch, after):
    """The disk is full when the n-th shard is written."""
    real = StoreSkeleton.store_shard
    count = iter(range(10**9))

    def write(self, writer):
        if next(count) == after:
            path = f"{self.url}/{writer.field}/c/{writer.shard_index}"
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(self, writer)

    monkeypatch.setattr(StoreSkeleton, "store_shard", write)


@pytest.mark.parametrize("after", [0, 7, 30])
def test_a_full_disk_ends_clearly_and_resumes(folder, tmp_path, monkeypatch, wanted, after):
    with monkeypatch.context() as patch:
        full_disk(patch, after)
        with pytest.raises(IngestError, match=r"disk is full.*--resume"):
            run(folder, tmp_path / "o.zarr")
    run(folder, tmp_path / "o.zarr", resume=True)
    check(tmp_path / "o.zarr", wanted)


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")
        yield

    with pytest.raises(OSError, match="No space") as caught:
        open_folder(str(tmp_path / "scratch")).put_stream("seg/a", full())
    assert str(tmp_path / "scratch") in str(explain(caught.value, "StageTask 0"))
    place = open_place(str(tmp_path / "o.zarr"))
    monkeypatch.setattr("chunkstore.places._write", lambda *_: next(full()))
    with pytest.raises(OSError, match="No space") as caught:
        place.put("x/c/0", b"1")
    assert str(tmp_path / "o.zarr") in str(explain(caught.value, "PlacedTask 0"))


def test_storage_that_fails_for_a_moment_is_tried_again(folder, tmp_path, monkeypatch, wanted):
    real = StoreSkeleton.store_shard
    count = iter(range(10**9))

    def write(self, writer):
        if next(count) % 11 == 5:
            raise OSError("503 Slow Down")
        return real(self, writer)

    monkeypatch.setattr(StoreSkeleton, "store_shard", write)
    run(folder, tmp_path / "o.zarr")
    check(tmp_path / "o.zarr", wanted)


def test_storage_that_keeps_failing_ends_the_job(folder, tmp_path, monkeypatch):
    def write(self, writer):
        raise OSError("503 Slow Down")

    monkeypatch.setattr(StoreSkeleton, "store_shard", write)
    with pytest.raises(IngestError, match="503 Slow Down"):
        run(folder, tmp_path / "o.zarr")


def test_scratch_that_vanishes_is_named_and_staged_anew(folder, tmp_path, monkeypatch, wanted):
    from ingest import job

    real = job.gather

    def vanish(plan, ledger, scratch):
        found = real(plan, ledger, scratch)
        shutil.rmtree(tmp_path / "tmp")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(job, "gather", vanish)
        with pytest.raises(IngestError, match=r"has lost.*--resume"):
            run(folder, tmp_path / "o.zarr", tmp_dir=tmp_path / "tmp")
    run(folder, tmp_path / "o.zarr", tmp_dir=tmp_path / "tmp", resume=True)
    check(tmp_path / "o.zarr", wanted)


def test_jobs_of_one_plan_for_two_stores_have_each_their_own_scratch(folder, tmp_path, monkeypatch, wanted):
    """The one that ends first removes its scratch; the plan is the same, for it names no output."""
    from ingest import job

    real = job.gather

    def other_job(plan, ledger, scratch):
        found = real(plan, ledger, scratch)
        monkeypatch.setattr(job, "gather", real)
        run(folder, tmp_path / "other.zarr", tmp_dir=tmp_path / "tmp")
        return found

    monkeypatch.setattr(job, "gather", other_job)
    run(folder, tmp_path / "o.zarr", tmp_dir=tmp_path / "tmp")
    check(tmp_path / "o.zarr", wanted)
    check(tmp_path / "other.zarr", wanted)
    assert not list((tmp_path / "tmp").iterdir())


def test_scratch_is_used_again_on_resume(folder, tmp_path, monkeypatch, wanted):
    with monkeypatch.context() as patch:
        full_disk(patch, 9)
        with pytest.raises(IngestError):
            run(folder, tmp_path / "o.zarr")
    monkeypatch.setattr("ingest.job.stage", lambda *_: pytest.fail("staged again"))
    run(folder, tmp_path / "o.zarr", resume=True)
    check(tmp_path / "o.zarr", wanted)


def test_a_source_that_changes_before_it_is_read_ends_the_job(folder, tmp_path, monkeypatch, wanted):
    from ingest import job

    victim = folder / "part1.npz"
    kept = victim.read_bytes()
    when = victim.stat()
    real = job.make_plan

    def change(scan, choices):
        plan = real(scan, choices)
        victim.write_bytes(kept + b"more")
        return plan

    with monkeypatch.context() as patch:
        patch.setattr(job, "make_plan", change)
        with pytest.raises(SourceChangedError, match=r"part1\.npz changed since the scan"):
            run(folder, tmp_path / "o.zarr")
    with pytest.raises(InputError, match=r"changed: .*part1.npz"):
        run(folder, tmp_path / "o.zarr", resume=True)
    victim.write_bytes(kept)
    os.utime(victim, ns=(when.st_atime_ns, when.st_mtime_ns))
    run(folder, tmp_path / "o.zarr", resume=True)
    check(tmp_path / "o.zarr", wanted)


def test_another_job_is_refused_with_the_difference(folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        full_disk(patch, 3)
        with pytest.raises(IngestError):
            run(folder, tmp_path / "o.zarr")
    with pytest.raises(InputError, match=r"options.order was 'keep' and is 'sort' now"):
        run(folder, tmp_path / "o.zarr", {"order": "sort"}, resume=True)
    with pytest.raises(InputError, match="codec was 'default' and is 'lz4' now"):
        run(folder, tmp_path / "o.zarr", resume=True, codec="lz4")
    (folder / "part9.npz").write_bytes((folder / "part0.npz").read_bytes())
    with pytest.raises(InputError, match=r"new: .*part9.npz"):
        run(folder, tmp_path / "o.zarr", resume=True)


@pytest.mark.parametrize("forged", [b"[]", b'{"hash": 5}', b"{", b"\xff\xfe", b'{"fields": [{"name": "x"}]}'])
def test_a_forged_plan_is_another_plan(folder, tmp_path, monkeypatch, forged):
    with monkeypatch.context() as patch:
        full_disk(patch, 3)
        with pytest.raises(IngestError):
            run(folder, tmp_path / "o.zarr")
    (Path(ledger_url(str(tmp_path / "o.zarr"))) / "plan.json").write_bytes(forged)
    with pytest.raises((InputError, NotAStoreError), match="overwrite"):
        run(folder, tmp_path / "o.zarr", resume=True)
    run(folder, tmp_path / "o.zarr", overwrite=True)


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_a_shard_that_is_not_what_was_written_is_written_again(folder, tmp_path, monkeypatch, wanted, damage):
    with monkeypatch.context() as patch:
        full_disk(patch, 40)
        with pytest.raises(IngestError):
            run(folder, tmp_path / "o.zarr")
    shards = sorted((tmp_path / "o.zarr" / "value" / "c").iterdir())
    assert len(shards) > 2
    data = shards[1].read_bytes()
    if damage == "gone":
        shards[1].unlink()
    else:
        shards[1].write_bytes(data[:-9] if damage == "short" else data[:-1] + bytes([data[-1] ^ 1]))
    run(folder, tmp_path / "o.zarr", resume=True)
    check(tmp_path / "o.zarr", wanted)


def test_shards_of_one_size_that_changed_places_are_written_again(folder, tmp_path, monkeypatch):
    from trees import tree

    run(folder, tmp_path / "reference.zarr", codec="none")
    with monkeypatch.context() as patch:
        full_disk(patch, 40)
        with pytest.raises(IngestError):
            run(folder, tmp_path / "o.zarr", codec="none")
    one, two = sorted((tmp_path / "o.zarr" / "value" / "c").iterdir())[:2]
    data = one.read_bytes(), two.read_bytes()
    assert len(data[0]) == len(data[1])
    one.write_bytes(data[1])
    two.write_bytes(data[0])
    run(folder, tmp_path / "o.zarr", codec="none", resume=True)
    check(tmp_path / "o.zarr", tree(tmp_path / "reference.zarr"))


def test_a_receipt_that_is_torn_counts_for_nothing(folder, tmp_path, monkeypatch, wanted):
    with monkeypatch.context() as patch:
        full_disk(patch, 40)
        with pytest.raises(IngestError):
            run(folder, tmp_path / "o.zarr")
    receipts = sorted(Path(ledger_url(str(tmp_path / "o.zarr"))).glob("*/*/*.json"))
    for receipt in receipts[::3]:
        receipt.write_bytes(receipt.read_bytes()[:40])
    run(folder, tmp_path / "o.zarr", resume=True)
    check(tmp_path / "o.zarr", wanted)


def test_receipts_that_changed_places_count_for_nothing(folder, tmp_path, monkeypatch, wanted):
    """Rows go where their receipt stands: that of another task is whole, and of this plan."""
    with monkeypatch.context() as patch:
        full_disk(patch, 40)
        with pytest.raises(IngestError):
            run(folder, tmp_path / "o.zarr")
    for stage in ("stage", "write"):
        one, two = sorted(Path(ledger_url(str(tmp_path / "o.zarr"))).glob(f"{stage}/*/*.json"))[:2]
        data = one.read_bytes(), two.read_bytes()
        one.write_bytes(data[1])
        two.write_bytes(data[0])
    run(folder, tmp_path / "o.zarr", resume=True)
    check(tmp_path / "o.zarr", wanted)


def test_staging_that_moves_a_row_to_another_sequence_is_noticed(folder, tmp_path, monkeypatch):
    """As many rows in all say nothing of where they go: what was written would not fit what is."""
    from keyed_source import KeyedSource

    with monkeypatch.context() as patch:
        full_disk(patch, 40)
        with pytest.raises(IngestError, match="disk is full"):
            run(folder, tmp_path / "o.zarr")
    segment = min(Path(ledger_url(str(tmp_path / "o.zarr"))).glob("scratch/seg/*"))
    segment.unlink()
    read = KeyedSource.read

    def other(self, part):
        for batch in read(self, part):
            codes = batch.codes.copy()
            codes[0] = (codes[0] + 1) % len(batch.keys)
            yield replace(batch, codes=codes)

    monkeypatch.setattr(KeyedSource, "read", other)
    monkeypatch.setattr("ingest.worker._sources", {})  # of an earlier import of the same module
    with pytest.raises(IngestError, match=r"other sequences or lengths.*--overwrite"):
        run(folder, tmp_path / "o.zarr", resume=True)


def test_a_file_that_another_stands_for_while_some_of_its_rows_are_read_ends_the_job(tmp_path, monkeypatch):
    """Of a part that several tasks read each takes some rows: each answers for what it has read."""
    from ingest.sources.npy import NpySource

    file = tmp_path / "a.npy"
    np.save(file, np.arange(256.0))
    kept, when, read, record = file.read_bytes(), file.stat(), NpySource.read, Ledger.record
    before = iter([True])

    def swapped(self, part):
        if next(before, False):
            np.save(file, -np.arange(256.0))
        yield from read(self, part)

    def back(*arguments):
        file.write_bytes(kept)
        os.utime(file, ns=(when.st_atime_ns, when.st_mtime_ns))
        if arguments:
            record(*arguments)

    monkeypatch.setattr(NpySource, "read", swapped)
    monkeypatch.setattr(Ledger, "record", back)  # the old file is back before the next task looks at it
    how = {"workers": 0, "chunk": 16, "shard": 16}
    with pytest.raises(SourceChangedError):
        ingest.ingest("npy", file, tmp_path / "o.zarr", {}, **how)
    back()
    ingest.ingest("npy", file, tmp_path / "o.zarr", {}, resume=True, **how)
    np.testing.assert_array_equal(
        chunkstore.open_store(tmp_path / "o.zarr").read("x", 0, 256), np.arange(256.0)
    )


def test_two_jobs_on_one_store_are_refused_by_whatever_link_they_reach_it(folder, tmp_path, monkeypatch):
    from ingest import job

    (tmp_path / "link.zarr").symlink_to(tmp_path / "o.zarr")
    real = job.make_plan

    def other_job(scan, choices):
        monkeypatch.setattr(job, "make_plan", real)
        with pytest.raises(IngestError, match="another job works on"):
            run(folder, tmp_path / "link.zarr", overwrite=True)
        return real(scan, choices)

    monkeypatch.setattr(job, "make_plan", other_job)
    (tmp_path / "o.zarr").mkdir()
    run(folder, tmp_path / "o.zarr")
    assert not Path(ledger_url(str(tmp_path / "link.zarr"))).exists()


def test_two_jobs_on_one_store_are_refused(folder, tmp_path):
    out = str(tmp_path / "o.zarr")
    with (
        Lock(open_folder(ledger_url(out)), out),
        pytest.raises(IngestError, match=rf"another job works on .*process {os.getpid()}"),
    ):
        run(folder, out)


@pytest.mark.parametrize(
    "held",
    [
        {"token": "t", "host": None, "pid": 1, "started": None, "user": "u", "since": 0},
        {"token": "t", "host": "here", "pid": 2**22 + 1, "started": "5", "user": "u", "since": 0},
        {"token": "t", "host": "here", "pid": "mine", "started": "5", "user": "u", "since": 0},
    ],
    ids=["another machine long ago", "a process that is gone", "a number used again"],
)
def test_a_stale_lock_is_taken_over(folder, tmp_path, held, wanted):
    import socket

    ledger = Path(ledger_url(str(tmp_path / "o.zarr")))
    ledger.mkdir()
    held = dict(held)
    if held["host"] == "here":
        held["host"] = socket.gethostname()
    if held["pid"] == "mine":
        held["pid"] = os.getpid()
    (ledger / "lock.json").write_text(json.dumps(held))
    os.utime(ledger / "lock.json", (time.time() - 600,) * 2)
    run(folder, tmp_path / "o.zarr")
    check(tmp_path / "o.zarr", wanted)
    assert not (ledger / "lock.json").exists()


def test_a_lock_of_another_machine_that_still_beats_is_respected(folder, tmp_path):
    ledger = Path(ledger_url(str(tmp_path / "o.zarr")))
    ledger.mkdir()
    (ledger / "lock.json").write_text(json.dumps({"token": "t", "host": "elsewhere", "pid": 1}))
    with pytest.raises(IngestError, match="elsewhere"):
        run(folder, tmp_path / "o.zarr")


def test_a_task_of_a_job_that_lost_its_lock_writes_nothing(folder, tmp_path, monkeypatch):
    from ingest import job

    real = job.gather

    def steal(plan, ledger, scratch):
        ledger.folder.put("lock.json", b'{"token": "another", "host": "elsewhere"}')
        return real(plan, ledger, scratch)

    monkeypatch.setattr(job, "gather", steal)
    with pytest.raises(IngestError, match="no longer holds the lock"):
        run(folder, tmp_path / "o.zarr")
    assert not list((tmp_path / "o.zarr").rglob("c/*"))


def test_the_first_fault_ends_the_job_where_asked(folder, tmp_path):
    with pytest.raises(IngestError, match=r"stopped at the first fault, as asked: .*this part is bad"):
        run(folder, tmp_path / "o.zarr", {"bad_every": 4}, on_error="stop")


@pytest.mark.parametrize(
    ("max_bad", "ends"), [(0, True), (2, True), (3, False), ("10%", True), ("30%", False)]
)
def test_more_faults_than_allowed_end_the_job(folder, tmp_path, max_bad, ends):
    report = tmp_path / "faults.jsonl"
    if ends:
        with pytest.raises(IngestError, match="max_bad"):
            run(folder, tmp_path / "o.zarr", {"bad_every": 4}, max_bad=max_bad, report=report)
        assert report.read_text().count("keyed-bad") > 0
    else:
        assert run(folder, tmp_path / "o.zarr", {"bad_every": 4}, max_bad=max_bad).exit_code == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_bad": "many"}, "max_bad"),
        ({"on_error": "ignore"}, "on_error"),
        ({"memory_limit": "100MiB"}, "memory limit is 100 MiB"),
        ({"memory_limit": "500MiB", "shard": 1 << 24, "chunk": 1 << 20}, "memory limit is 500 MiB"),
        ({"codec": "zip"}, "codec"),
        ({"chunk": 10, "shard": 25}, "multiple"),
    ],
)
def test_choices_that_cannot_work_fail_before_any_work(folder, tmp_path, options, words):
    columns = np.zeros(1 << 24 if "shard" in options and options["shard"] > 25 else 8)
    np.save(tmp_path / "x.npy", columns)
    with pytest.raises(ConfigError, match=words) as caught:
        ingest.ingest("npy", tmp_path / "x.npy", tmp_path / "o.zarr", workers=0, **options)
    assert isinstance(caught.value, MemoryLimitError) == ("memory_limit" in options)
    assert not (tmp_path / "o.zarr").exists()


def test_a_worker_that_dies_is_replaced(folder, tmp_path, wanted):
    (tmp_path / "dead").touch()
    options = {"dead": str(tmp_path / "dead")}
    result = run(folder, tmp_path / "o.zarr", options, workers=2)
    assert not (tmp_path / "dead").exists()
    assert result.exit_code == 0
    a, b = chunkstore.open_store(tmp_path / "o.zarr"), chunkstore.open_store(tmp_path / "reference.zarr")
    np.testing.assert_array_equal(a.read("value", 0, a.n_obs), b.read("value", 0, b.n_obs))


@pytest.mark.cluster
def test_ctrl_c_leaves_a_store_that_resumes(folder, tmp_path):
    command = (  # what runs in the background of a shell has been told to ignore the signal
        "import ingest, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "ingest.ingest('keyed_source:KeyedSource', sys.argv[1], sys.argv[2], "
        "{'slow': 0.1, 'part_rows': 20}, workers=0, chunk=16, shard=64, resume=True)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[2])])}
    out = tmp_path / "o.zarr"
    running = subprocess.Popen(
        [sys.executable, "-c", command, str(folder), str(out)], env=environment, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not list(Path(ledger_url(str(out))).glob("parts.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert b"KeyboardInterrupt" in told
    assert not (Path(ledger_url(str(out))) / "lock.json").exists()
    subprocess.run([sys.executable, "-c", command, str(folder), str(out)], env=environment, check=True)
    assert chunkstore.open_store(out).n_obs == 600


def test_what_desktops_leave_in_any_folder_is_in_nobodys_way(folder, tmp_path, wanted):
    run(folder, tmp_path / "o.zarr")
    (tmp_path / "o.zarr" / ".DS_Store").write_text("x")
    (tmp_path / "o.zarr" / "value" / "._c").write_text("x")
    run(folder, tmp_path / "o.zarr", overwrite=True)
    check(tmp_path / "o.zarr", wanted)


def test_a_store_that_another_job_finished_meanwhile_is_not_removed(folder, tmp_path, monkeypatch):
    real = Lock.acquire
    monkeypatch.setattr(Lock, "acquire", lambda self: (_other(), real(self)))

    def _other():
        monkeypatch.setattr(Lock, "acquire", real)
        run(folder, tmp_path / "o.zarr")

    with pytest.raises(StoreExistsError, match="already a store"):
        run(folder, tmp_path / "o.zarr")
    assert chunkstore.open_store(tmp_path / "o.zarr").n_obs == 600
    assert run(folder, tmp_path / "o.zarr", resume=True).exit_code == 0


def test_a_store_that_another_job_made_is_not_told_to_be_this_ones(folder, tmp_path):
    run(folder, tmp_path / "o.zarr")
    np.save(tmp_path / "x.npy", np.arange(9.0))
    ingest.ingest("npy", tmp_path / "x.npy", tmp_path / "other.zarr", workers=0)
    shutil.rmtree(tmp_path / "o.zarr")
    shutil.copytree(tmp_path / "other.zarr", tmp_path / "o.zarr")
    with pytest.raises(StoreExistsError, match="another job made it"):
        run(folder, tmp_path / "o.zarr", resume=True)


def test_inputs_in_another_order_are_told_to_be_just_that(tmp_path):
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(3.0))
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    ingest.ingest("npy", files, tmp_path / "o.zarr", workers=0)
    with pytest.raises(InputError, match=r"in another order: input 0 was .*a\.npy and is .*b\.npy now"):
        ingest.ingest("npy", files[::-1], tmp_path / "o.zarr", workers=0, resume=True)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"report": "none/faults.jsonl"}, "in none that exists"),
        ({"report": "o.zarr/faults.jsonl"}, "lies in the output or its ledger"),
        ({"report": "o.zarr.ledger/report.json"}, "lies in the output or its ledger"),
        ({"tmp_dir": "o.zarr"}, "tmp_dir .* lies in the output"),
        ({"tmp_dir": "o.zarr/x"}, "tmp_dir .* lies in the output"),
    ],
)
def test_places_that_cannot_work_are_refused_before_any_work(folder, tmp_path, how, words):
    with pytest.raises(ConfigError, match=words):
        run(folder, tmp_path / "o.zarr", **{name: tmp_path / place for name, place in how.items()})
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_urls_of_files_name_the_places_that_stores_name(folder, tmp_path):
    (tmp_path / "my work").mkdir()
    work = f"file://{tmp_path}/my%20work"
    run(folder, f"{work}/o.zarr", {"bad_every": 4}, report=f"{work}/faults.jsonl", tmp_dir=f"{work}/tmp")
    assert chunkstore.open_store(f"{work}/o.zarr").n_obs > 0
    assert {p.name for p in (tmp_path / "my work").iterdir()} >= {"o.zarr", "o.zarr.ledger", "faults.jsonl"}
    assert "keyed-bad" in (tmp_path / "my work" / "faults.jsonl").read_text()


def test_options_of_object_stores_of_inputs_do_not_forbid_a_folder(folder, tmp_path, wanted):
    run(folder, tmp_path / "o.zarr", storage_options={"anon": True})
    check(tmp_path / "o.zarr", wanted)


def test_all_faults_that_receipts_tell_are_reported_when_an_earlier_task_is_not_done(tmp_path, monkeypatch):
    from ingest import job

    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.arange(64.0))
    cut = tmp_path / "3.npy"
    cut.write_bytes(cut.read_bytes()[:-80])
    monkeypatch.setattr(job, "make_runner", lambda *_: Backward())
    with pytest.raises(IngestError, match="max_bad"):
        ingest.ingest(
            "npy", tmp_path, tmp_path / "o.zarr", workers=0, chunk=16, shard=16, max_bad=0,
            report=tmp_path / "faults.jsonl",
        )  # fmt: skip
    assert "npy-truncated" in (tmp_path / "faults.jsonl").read_text()


class Backward(SerialRunner):
    """Runs the last task first."""

    def map(self, work, tasks, count=None):
        yield from super().map(work, list(tasks)[::-1], count)


def test_of_two_that_find_one_lock_stale_only_one_gets_it(tmp_path, monkeypatch):
    folder = open_folder(str(tmp_path))
    folder.put("lock.json", b'{"token": "t", "host": "elsewhere"}')
    os.utime(tmp_path / "lock.json", (time.time() - 600,) * 2)
    first, second = Lock(folder, "o.zarr"), Lock(folder, "o.zarr")
    real = Lock._stale

    def slow(self, held):
        stale = real(self, held)
        if self is second:  # it has looked, and the first acts before it does
            monkeypatch.setattr(Lock, "_stale", real)
            first.acquire()
        return stale

    monkeypatch.setattr(Lock, "_stale", slow)
    try:
        with pytest.raises(IngestError, match="another job works on"):
            second.acquire()
        assert first.held()
        assert not second.held()
    finally:
        first.release()


def test_a_lock_that_somebody_removed_as_stale_at_the_same_moment_is_not_believed(tmp_path, monkeypatch):
    folder = open_folder(str(tmp_path))
    folder.put("lock.json", b'{"token": "t", "host": "elsewhere"}')
    os.utime(tmp_path / "lock.json", (time.time() - 600,) * 2)
    monkeypatch.setattr("time.sleep", lambda _: folder.put("lock.json", b'{"token": "other"}'))
    with pytest.raises(IngestError, match="at the same moment"):
        Lock(folder, "o.zarr").acquire()


@pytest.mark.parametrize("after", ["create", "start"])
def test_whoever_was_interrupted_as_the_lock_was_taken_can_take_it_again(tmp_path, monkeypatch, after):
    folder = open_folder(str(tmp_path))
    owner, name = {"create": (LocalFolder, "create"), "start": (threading.Thread, "start")}[after]
    real = getattr(owner, name)

    def interrupted(*args):
        real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            Lock(folder, "o.zarr").acquire()
    assert not (tmp_path / "lock.json").exists()
    with Lock(folder, "o.zarr") as lock:
        assert lock.held()


def test_a_lock_of_this_process_that_no_job_holds_is_stale(tmp_path, monkeypatch):
    folder = open_folder(str(tmp_path))
    left = Lock(folder, "o.zarr")
    left.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "delete", lambda *_: None)  # interrupted, or stuck in storage that hung
        left.release()
    assert (tmp_path / "lock.json").exists()
    with Lock(folder, "o.zarr") as lock:
        assert lock.held()
        with pytest.raises(IngestError, match="another job works on"):
            Lock(folder, "o.zarr").acquire()
        assert lock.held()


def test_a_lock_whose_answer_was_lost_is_ones_own(tmp_path, monkeypatch):
    folder = open_folder(str(tmp_path))
    real = LocalFolder.create

    def create(self, name, data):
        real(self, name, data)
        return real(self, name, data)  # as a client that asks again after an answer that did not come

    monkeypatch.setattr(LocalFolder, "create", create)
    with Lock(folder, "o.zarr") as lock:
        assert lock.held()


def test_a_number_of_another_container_of_the_same_name_says_nothing(tmp_path):
    import socket

    folder = open_folder(str(tmp_path))
    held = {"token": "t", "host": socket.gethostname(), "machine": "another", "pid": 2**22 + 1}
    folder.put("lock.json", json.dumps(held).encode())
    with pytest.raises(IngestError, match="another job works on"):
        Lock(folder, "o.zarr").acquire()
    os.utime(tmp_path / "lock.json", (time.time() - 600,) * 2)
    with Lock(folder, "o.zarr") as lock:
        assert lock.held()


def test_a_job_that_cannot_give_its_lock_back_has_ended_as_it_has(folder, tmp_path, monkeypatch, caplog):
    real = LocalFolder.get

    def get(self, name):
        if name == "lock.json" and (tmp_path / "o.zarr.ledger" / "report.json").exists():
            raise OSError("503 Slow Down")
        return real(self, name)

    monkeypatch.setattr(LocalFolder, "get", get)
    assert run(folder, tmp_path / "o.zarr").exit_code == 0
    assert "cannot give back the lock" in caplog.text


@pytest.mark.parametrize("damage", ['{"exit_code": 0}', '{"exit_code": 0, "rows": 3}', "[]", "{"])
def test_a_report_that_is_damaged_is_made_again(folder, tmp_path, damage):
    told = run(folder, tmp_path / "o.zarr").summary()
    (tmp_path / "o.zarr.ledger" / "report.json").write_text(damage)
    again = run(folder, tmp_path / "o.zarr", resume=True).summary()
    assert again.splitlines()[1:] == told.splitlines()[1:]


def test_options_of_object_stores_reach_the_source_that_reads_them():
    from ingest.api import _given

    secret = {"key": "k"}
    assert _given("avro", {"sequence_per": "file"}, secret)["storage_options"] == secret
    assert _given("avro", {"storage_options": {"key": "own"}}, secret)["storage_options"] == {"key": "own"}
    assert _given("npy", {"field": "x"}, secret) == {"field": "x"}

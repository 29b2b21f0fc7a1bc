"""What somebody may lay beside a store: pipes, folders and links in the place of ledger and scratch."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import ingest
from chunkstore.errors import ChunkstoreError, IngestError
from ingest.folder import LocalFolder
from ingest.ledger import ledger_url

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


def run(tmp_path, out, **how):
    return ingest.ingest("npy", [tmp_path / "a.npy"], out, {}, workers=0, chunk=16, shard=64, **how)


@pytest.fixture
def broken_off(tmp_path):
    """Return a store that is not complete, and its ledger."""
    np.save(tmp_path / "a.npy", np.arange(300, dtype="i2"))
    out = tmp_path / "o.zarr"
    run(tmp_path, out)
    root = json.loads((out / "zarr.json").read_text())
    root["attributes"]["chunkstore"]["status"] = "incomplete"
    (out / "zarr.json").write_text(json.dumps(root))
    return out, Path(ledger_url(str(out)))


@pytest.fixture
def victim(tmp_path):
    folder = tmp_path / "victim"
    for name in ("seg", "000", "c/0"):
        (folder / name).mkdir(parents=True)
        (folder / name / "precious").write_text("mine")
    return folder


@pytest.fixture(autouse=True)
def bell():
    """End a test that hangs in a system call."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("how", ["resume", "overwrite"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
@pytest.mark.parametrize("name", ["plan.json", "lock.json", "report.json", "write/000/000000.json"])
def test_what_is_no_file_in_a_ledger_hangs_nothing_and_is_named(
    broken_off, victim, tmp_path, name, kind, how
):
    out, ledger = broken_off
    path = ledger / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(victim / "seg/precious")
    try:
        run(tmp_path, out, **{how: True})
    except ChunkstoreError as error:
        assert len(str(error)) < 2000  # noqa: PT017
    assert (victim / "seg/precious").read_text() == "mine"


@pytest.mark.parametrize("how", ["resume", "overwrite"])
@pytest.mark.parametrize("name", ["scratch", "write", "stage", "store:c", "store:.partial"])
def test_a_folder_that_is_a_link_leads_nothing_out(broken_off, victim, tmp_path, name, how):
    out, ledger = broken_off
    path = ledger / name
    if name == "store:c":  # the chunks of the longest field
        path = max(out.glob("*/c"), key=lambda p: sum(f.stat().st_size for f in p.iterdir()))
    elif name == "store:.partial":
        path = out / ".partial"
    if path.is_dir():
        shutil.rmtree(path)
    path.symlink_to(victim)
    before = sorted(victim.rglob("*"))
    try:
        run(tmp_path, out, **{how: True})
    except ChunkstoreError as error:
        assert len(str(error)) < 2000  # noqa: PT017
    assert sorted(victim.rglob("*")) == before


def test_a_folder_reads_and_writes_files_of_its_own_only(tmp_path, victim):
    folder = LocalFolder(str(tmp_path / "f"))
    folder.put("a/b", b"12")
    (tmp_path / "f/seg").symlink_to(victim / "seg")
    (tmp_path / "f/one").symlink_to(victim / "seg/precious")
    for call in (
        lambda: folder.get("seg/precious"),
        lambda: folder.get("one"),
        lambda: folder.put("seg/new", b"1"),
        lambda: folder.put("one", b"1"),
        lambda: folder.create("seg/new", b"1"),
        lambda: folder.array("seg/precious", 0, np.dtype("u1"), 2),
        lambda: folder.get("a"),
        lambda: folder.put("a", b"1"),
    ):
        with pytest.raises(IngestError, match=r"symbolic link|not a file|is a folder"):
            call()
    folder.delete("one")
    folder.delete_all("seg")
    folder.delete_all()
    assert (victim / "seg/precious").read_text() == "mine"
    assert not (tmp_path / "f").exists()


def test_a_ledger_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folder = LocalFolder(str(tmp_path / "link/f"))
    folder.put("a/b", b"12")
    assert folder.get("a/b") == b"12"
    assert list(folder.names()) == ["a/b"]

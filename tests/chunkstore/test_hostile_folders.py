"""Folders that look like stores: pipes, devices, folders and huge sparse files in the place of objects."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import chunkstore
from chunkstore.errors import ChunkstoreError, FormatError
from chunkstore.places import PARTIAL, LocalPlace, MemoryPlace

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
OBJECTS = ("zarr.json", "x/c/0", "id/c/0", "rowsize/c/0", "k/c/0", "gap_start/zarr.json")
#: opens a store and reads all there is, in a process that can be ended if it hangs
READ = """
import re, sys, chunkstore
from pathlib import Path
from chunkstore.verify import verify_store
for use in (lambda s: s.read("x", 0, s.n_obs), lambda s: list(s.sequences.ids), lambda s: s.sequences.rowsize,
            lambda s: s.sequences.column("k"), lambda s: s.gaps):
    try:
        use(chunkstore.open_store(sys.argv[1]))
    except chunkstore.ChunkstoreError as error:
        print(type(error).__name__, error)
try:
    print("sound" if verify_store(sys.argv[1], deep=True).ok else "damaged")
except chunkstore.ChunkstoreError as error:
    print("damaged", error)
# not ru_maxrss, which a child has of its parent
print(int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


@pytest.fixture
def path(tmp_path):
    with chunkstore.StoreWriter(tmp_path / "s.zarr", {"x": "f4"}, chunk=16, shard=64) as out:
        for i in range(3):
            out.write(f"s{i}", {"x": np.arange(40 + i)}, labels={"k": "ab"[i % 2]}, gaps=[(3, 5)])
    return tmp_path / "s.zarr"


def read(path):
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    *told, memory = done.stdout.splitlines()
    return told, int(memory)


def lay(kind, path, objects):
    for key in objects:
        (path / key).unlink()
        if kind == "pipe":
            os.mkfifo(path / key)
        else:
            (path / key).mkdir()


@pytest.mark.parametrize("kind", ["pipe", "folder"])
@pytest.mark.parametrize("objects", [[o] for o in OBJECTS] + [list(OBJECTS[1:])], ids="+".join)
def test_what_is_no_file_hangs_nothing_and_is_named(kind, objects, path):
    lay(kind, path, objects)
    told, _ = read(path)
    assert told
    if objects != ["gap_start/zarr.json"]:  # the root holds a copy of it
        assert told[-1].startswith("damaged")


def test_a_document_of_gigabytes_is_refused_before_it_is_read(path):
    with (path / "zarr.json").open("r+b") as file:
        file.truncate(8 << 30)
    told, memory = read(path)
    assert any("8,589,934,592 bytes" in line for line in told)
    assert memory < 1000


@pytest.mark.parametrize("key", ["id/c/0", "k/c/0"])
def test_texts_of_gigabytes_are_refused_before_they_are_read(path, key):
    with (path / key).open("r+b") as file:
        file.truncate(8 << 30)
    told, memory = read(path)
    assert told[-1].startswith("damaged")
    assert memory < 1000


def test_every_place_refuses_more_than_was_asked_for(tmp_path):
    for place in (LocalPlace(tmp_path / "a"), MemoryPlace("hostile-most")):
        place.put("a", b"12345")
        assert place.get("a", 5) == b"12345"
        with pytest.raises(FormatError, match="5 bytes, more than the 4"):
            place.get("a", 4)


@pytest.mark.parametrize("link", [PARTIAL, f"{PARTIAL}/x", "x", "x/c"])
def test_links_in_an_unfinished_store_lead_no_write_and_no_removal_out_of_it(tmp_path, link):
    """A victim's folder that happens to hold what our keys are called."""
    victim = tmp_path / "victim"
    for key in ("x/c/0", "c/0", "0"):
        (victim / key).mkdir(parents=True)
        (victim / key / "precious").write_text("mine")
    before = sorted(p for p in victim.rglob("*"))
    place = LocalPlace(tmp_path / "s.zarr")
    (tmp_path / "s.zarr" / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "s.zarr" / link).symlink_to(victim)
    for call in (
        lambda: place.put("x/c/0", b"1234"),
        lambda: place.sweep_object("x/c/0"),
        lambda: place.delete("x/c/0"),
        lambda: place.get("x/c/0/precious"),
        place.sweep,
    ):
        try:
            call()
        except FormatError as error:
            assert "symbolic link" in str(error)  # noqa: PT017
        assert sorted(p for p in victim.rglob("*")) == before
    place.clear()
    assert sorted(p for p in victim.rglob("*")) == before


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 5000, "..", "a/../../b", "", "con/", "\x1b[2J"])
def test_fields_of_forged_names_end_in_an_error_of_ours(path, tmp_path, name):
    root = json.loads((path / "zarr.json").read_text())
    own = root["attributes"]["chunkstore"]
    arrays = root["consolidated_metadata"]["metadata"]
    arrays[name] = arrays["x"]
    own["fields"] = [name if f == "x" else f for f in own["fields"]]
    (path / "zarr.json").write_text(json.dumps(root))
    try:
        store = chunkstore.open_store(path)
        for field in store.fields:
            store.read(field, 0, 10)
    except ChunkstoreError as error:
        str(error).encode("utf-8")
        assert len(str(error)) < 5000  # noqa: PT017
    done = subprocess.run(
        [sys.executable, "-m", "chunkstore.cli", "info", str(path)],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert b"\x1b[2J" not in done.stdout + done.stderr
    shutil.rmtree(path)

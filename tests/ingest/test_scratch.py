"""Scratch is believed only as far as its checksums go: a flipped bit never reaches a store."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.codecs import checksum
from chunkstore.errors import IngestError
from ingest import ingest, job, scratch
from ingest.exchange import SegmentRef
from ingest.folder import LocalFolder
from ingest.scratch import DamagedScratchError, SegmentReader, page_rows, page_sums

SUPPORT = str(Path(__file__).parent / "support")
SOURCE = "keyed_source:KeyedSource"


@pytest.fixture(autouse=True)
def support(monkeypatch):
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setattr("ingest.plan.stage_target", lambda total: 5000)
    yield
    for name in ("keyed_source", "trees"):
        sys.modules.pop(name, None)


def tree(folder):
    from trees import tree as found

    return found(folder)


def run(folder, out, **more):
    options = {"order": "sort", "key_order": "sorted", "part_rows": 300, "batch_rows": 100}
    return ingest(SOURCE, str(folder / "*.npz"), out, options, workers=0, chunk=64, shard=512, **more)


@pytest.fixture
def folder(tmp_path):
    from keyed_source import make_files

    make_files(tmp_path / "in", files=3, rows=700, keys=5)
    return tmp_path / "in"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("at", [0, 900, -1])
def test_a_flipped_bit_in_scratch_ends_clearly_and_resume_stages_it_anew(folder, tmp_path, monkeypatch, at):
    run(folder, tmp_path / "wanted.zarr")
    real = job.gather

    def gather(plan, ledger, scratch):
        found = real(plan, ledger, scratch)
        path = Path(scratch.url, "seg", "000000-0000")
        flip(path, at)  # the first byte, a later one, a sum
        return found

    with monkeypatch.context() as patch:
        patch.setattr(job, "gather", gather)
        with pytest.raises(IngestError, match=r"seg/000000-0000 in scratch .* is damaged.*--resume"):
            run(folder, tmp_path / "o.zarr")
    run(folder, tmp_path / "o.zarr", resume=True)
    assert tree(tmp_path / "o.zarr") == tree(tmp_path / "wanted.zarr")


def test_a_flipped_bit_in_a_table_of_slices_ends_clearly_and_resumes(folder, tmp_path, monkeypatch):
    run(folder, tmp_path / "wanted.zarr")
    real = job.gather

    def gather(plan, ledger, scratch):
        flip(Path(scratch.url, "seg", "000000-0000.idx"), 140)
        return real(plan, ledger, scratch)

    with monkeypatch.context() as patch:
        patch.setattr(job, "gather", gather)
        with pytest.raises(IngestError, match=r"\.idx in scratch .* is damaged.*--resume"):
            run(folder, tmp_path / "o.zarr")
    run(folder, tmp_path / "o.zarr", resume=True)
    assert tree(tmp_path / "o.zarr") == tree(tmp_path / "wanted.zarr")


def test_segments_that_have_changed_places_are_seen(tmp_path, monkeypatch):
    from keyed_source import make_files

    make_files(tmp_path / "in", files=1, rows=600, keys=1)
    with np.load(tmp_path / "in" / "part0.npz") as first:
        moved = {**first, "value": first["value"] + 1000}
    np.savez(tmp_path / "in" / "part1.npz", **moved)
    run(tmp_path / "in", tmp_path / "wanted.zarr")
    real = job.gather

    def gather(plan, ledger, scratch):
        found = real(plan, ledger, scratch)
        one, two = (Path(scratch.url, "seg", f"{task:06d}-0000") for task in (0, 2))
        one_data, two_data = one.read_bytes(), two.read_bytes()
        assert len(one_data) == len(two_data)
        one.write_bytes(two_data)
        two.write_bytes(one_data)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(job, "gather", gather)
        with pytest.raises(IngestError, match=r"seg/00000\d-0000 in scratch .* is damaged.*--resume"):
            run(tmp_path / "in", tmp_path / "o.zarr")
    for _ in range(2):  # each names the segment that it met
        try:
            run(tmp_path / "in", tmp_path / "o.zarr", resume=True)
            break
        except IngestError:
            continue
    assert tree(tmp_path / "o.zarr") == tree(tmp_path / "wanted.zarr")


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 400),
    items=st.integers(0, 3),
    at=st.integers(0, 10**6),
    span=st.tuples(st.integers(0, 399), st.integers(1, 400)),
    single=st.booleans(),
)
def test_damage_is_seen_exactly_where_a_touched_page_has_it(tmp_path_factory, rows, items, at, span, single):
    folder = LocalFolder(str(tmp_path_factory.mktemp("scratch")))
    values = np.arange(rows * max(1, items), dtype="<i4").reshape((rows, items) if items else rows)
    data = values.reshape(-1).view(np.uint8)
    width = 4 * max(1, items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch, "PAGE", 64)
        sums = page_sums([data], width)
        wrong = data.copy()
        at %= wrong.size
        wrong[at] ^= 1
        folder.put("s", wrong.tobytes() + sums.tobytes())
        ref = SegmentRef(
            "s", rows, {"x": (0, "<i4", items, 0)}, (data.size, sums.size, checksum(sums.tobytes()))
        )
        reader = SegmentReader(folder, ref)
        found, base = reader.column("x", 0, rows)
        low = span[0] % rows
        length = min(span[1], rows - low)
        touched = np.arange(low, low + length)
        if single:
            asked = (touched, None)
        else:
            asked = (np.array([low]), np.array([length]))
        step = page_rows(width)
        hit = at // width // step in set((touched // step).tolist())
        if hit:
            with pytest.raises(DamagedScratchError, match="'x'"):
                reader.check("x", found, base, *asked)
        else:
            reader.check("x", found, base, *asked)
        SegmentReader(folder, replace(ref, sums=None)).check("x", found, base, *asked)  # an older scratch


def test_every_read_of_scratch_that_is_not_local_is_checked_again():
    data = np.arange(9_000.0)
    sums = page_sums([data.view(np.uint8)], 8)
    stored = data.tobytes() + sums.tobytes()
    ref = SegmentRef(
        "s", data.size, {"x": (0, "<f8", 0, 0)}, (data.nbytes, len(sums), checksum(sums.tobytes()))
    )
    reads = []

    class Remote:
        url = "memory"

        def array(self, name, offset, dtype, count):
            spoiled = bytearray(stored[offset : offset + count])
            if offset == 0 and reads.count(0) == 1:
                spoiled[8] ^= 1
            reads.append(offset)
            return np.frombuffer(bytes(spoiled), dtype)

    reader, rows = SegmentReader(Remote(), ref), np.array([1])
    reader.check("x", *reader.column("x", 0, 3), rows)
    values, base = reader.column("x", 0, 3)
    with pytest.raises(DamagedScratchError, match="'x'"):
        reader.check("x", values, base, rows)

"""Receipts and segments of very many tasks: in order, a bounded number ahead, a few integers each."""

from __future__ import annotations

import threading
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.exchange import SegmentRef, Segments
from ingest.ledger import _AHEAD, SHELF, Ledger, in_order

COLUMNS = st.dictionaries(
    st.sampled_from(["x", "time", "__lost__"]),
    st.tuples(st.integers(0, 2**40), st.sampled_from(["<f4", "<i8"]), st.integers(0, 3), st.integers(0, 99)),
)


@pytest.mark.parametrize("url", ["s3://bucket/out.zarr.ledger", "/data/out.zarr.ledger"])
def test_what_is_read_ahead_comes_in_order_and_is_bounded(url):
    begun, lock = [], threading.Lock()

    def read(index):
        with lock:
            begun.append(index)
        time.sleep(0.002 * (index % 3))
        return index * 10

    taken = []
    for value in in_order(url, read, range(300)):
        taken.append(value)
        assert len(begun) <= len(taken) + _AHEAD + 1
    assert taken == [10 * i for i in range(300)]
    assert sorted(begun) == list(range(300))


def test_whoever_stops_reading_waits_for_no_more_than_what_has_begun():
    begun = []

    def read(index):
        begun.append(index)
        time.sleep(0.01)
        return index

    found = in_order("s3://bucket/x", read, range(10**9))
    assert next(found) == 0
    found.close()
    assert len(begun) <= 2 * _AHEAD


def test_a_shelf_lists_its_own_receipts_only(tmp_path):
    ledger = Ledger(str(tmp_path / "o.zarr.ledger"), plan="p")
    wanted = {0, 7, SHELF - 1, SHELF, 5 * SHELF + 3, 1000 * SHELF + 7}
    for index in wanted:
        ledger.record("write", index, {"rows": index})
    ledger.record("stage", 3, {})
    (tmp_path / "o.zarr.ledger/write/000/notes.txt").write_text("mine")
    (tmp_path / "o.zarr.ledger/write/000/004000.json").write_text("not of this shelf")
    found = [i for low in range(0, 1001 * SHELF, SHELF) for i in ledger.recorded("write", low)]
    assert found == sorted(wanted)
    assert [ledger.receipt("write", i)["rows"] for i in found] == found


@given(st.lists(st.tuples(st.integers(0, 2**50), COLUMNS, st.none() | st.tuples(*[st.integers(0, 9)] * 3))))
def test_segments_come_out_as_they_went_in(told):
    refs = [SegmentRef(f"seg/{i}", rows, columns, sums) for i, (rows, columns, sums) in enumerate(told)]
    segments = Segments()
    for ref in refs:
        segments.append(ref.to_json())
    assert list(segments) == refs
    assert [list(ref.columns) for ref in segments] == [list(ref.columns) for ref in refs]
    assert segments[1:] == refs[1:]


def test_one_more_segment_is_some_integers():
    def held(count):
        tracemalloc.start()
        segments = Segments()
        for i in range(count):
            columns = {f"x{c}": (c * 4096 + i, "<f8", 0, c + i) for c in range(9)}
            segments.append(SegmentRef(f"seg/{i:06d}-0000", 512 + i, columns, (i * 70_000, 99, i)).to_json())
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size

    assert (held(4000) - held(1000)) / 3000 < 400

"""The walk over block headers: what is taken, what is damage, and where it goes on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.sources.avro.container import Concatenated, HeaderError, printable, read_header, walk
from ingest.sources.avro.inputs import open_input

LONG = '"long"'


def opened(tmp_path, data):
    path = tmp_path / "a.avro"
    path.write_bytes(data)
    return open_input(str(path))


def walked(source, **options):
    header = read_header(source)
    tables = list(walk(source, header, **options))
    counts = np.concatenate([t.counts for t in tables] or [np.empty(0, np.int64)])
    return counts.tolist(), [d for t in tables for d in t.damage], tables


def blocks(avro, sizes):
    return [
        (len(s) // 2 if isinstance(s, bytes) else s, s if isinstance(s, bytes) else bytes(s)) for s in sizes
    ]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 300), max_size=40), remote=st.booleans())
def test_all_blocks_are_found_wherever_windows_end(avro, tmp_path_factory, sizes, remote):
    data = avro.container(LONG, [(n + 1, bytes(n)) for n in sizes])
    with opened(tmp_path_factory.mktemp("walk"), data) as source:
        source.remote = remote
        counts, damage, tables = walked(source)
        assert counts == [n + 1 for n in sizes]
        assert not damage
        if sizes:
            heads = np.concatenate([t.heads for t in tables])
            middle = int(heads[len(sizes) // 2])
            later, damage, _ = walked(source, start=middle, first=len(sizes) // 2)
            assert (later, damage) == (counts[len(sizes) // 2 :], [])


def test_large_blocks_are_stepped_over_without_reading_them(avro, tmp_path):
    with opened(tmp_path, avro.container(LONG, [(1, bytes(300_000))] * 30)) as source:
        asked = []
        read = source.read
        source.read = lambda offset, length: asked.append(length) or read(offset, length)
        counts, damage, _ = walked(source)
        assert counts == [1] * 30
        assert not damage
        assert sum(asked[1:]) < 30 * 100 + 2 * (1 << 20)


def test_a_block_of_no_rows_is_passed(avro, tmp_path):
    with opened(tmp_path, avro.container(LONG, [(2, b"\0\0"), (0, b""), (0, b"xyz"), (1, b"\0")])) as source:
        assert walked(source)[:2] == ([2, 0, 0, 1], [])


def test_the_walk_goes_on_behind_a_block_whose_size_is_wrong(avro, tmp_path):
    good = avro.container(LONG, [(5, b"12345"), (7, b"1234567"), (3, b"123")])
    bad = good.replace(avro.zigzag(7) + avro.zigzag(7), avro.zigzag(7) + avro.zigzag(60))
    with opened(tmp_path, bad) as source:
        counts, damage, _ = walked(source)
        assert counts == [5, 3]
        assert [(d.code, d.rows, d.block) for d in damage] in (
            [("avro-sync-mismatch", 7, 1)],
            [("avro-truncated", 7, 1)],
        )


def test_only_the_block_before_a_damaged_marker_is_lost(avro, tmp_path):
    data = bytearray(avro.container(LONG, [(5, b"12345"), (7, b"1234567"), (3, b"123"), (2, b"12")]))
    at = data.index(b"1234567") + 7 + 3
    data[at] ^= 1
    with opened(tmp_path, bytes(data)) as source:
        counts, damage, _ = walked(source)
        assert counts == [5, 3, 2]
        assert [(d.code, d.rows) for d in damage] == [("avro-sync-mismatch", 7)]


def test_the_marker_of_the_last_block_may_be_what_is_damaged(avro, tmp_path):
    data = bytearray(avro.container(LONG, [(5, b"12345"), (7, b"1234567")]))
    data[-1] ^= 1
    with opened(tmp_path, bytes(data)) as source:
        counts, damage, _ = walked(source)
        assert (counts, [(d.code, d.rows) for d in damage]) == ([5], [("avro-sync-mismatch", 7)])


@pytest.mark.parametrize("cut", range(1, 42))
def test_a_file_cut_anywhere_keeps_the_blocks_before(avro, tmp_path, cut):
    data = avro.container(LONG, [(5, b"12345"), (4, b"1234567")])
    with opened(tmp_path, data[:-cut]) as source:
        counts, damage, _ = walked(source)
        inside = 1 + 1 + 7 + 16
        assert counts == ([5] if cut <= inside else [])
        assert [d.code for d in damage] == ([] if cut == inside else ["avro-truncated"])


def test_a_second_container_is_named_with_its_place(avro, tmp_path):
    first = avro.container(LONG, [(5, b"12345")])
    with opened(tmp_path, first + avro.container(LONG, [(6, b"123456")])) as source:
        counts, damage, _ = walked(source)
        assert counts == [5]
        assert [(type(d), d.start) for d in damage] == [(Concatenated, len(first))]


@pytest.mark.parametrize("count", [-1, -(1 << 62), 10**9, 1 << 62])
@pytest.mark.parametrize("size", [-1, 5, 1 << 31, (1 << 62)])
def test_forged_numbers_end_in_damage_not_in_an_allocation(avro, tmp_path, count, size):
    data = avro.container(LONG, [(1, b"\0")]) + avro.zigzag(count) + avro.zigzag(size) + b"12345" + avro.SYNC
    with opened(tmp_path, data) as source:
        counts, damage, _ = walked(source)
        if count >= 0 and size == 5:
            assert counts == [1, count]  # a claim: the scan bounds it
        else:
            assert counts == [1]
            assert damage[0].code in ("avro-block-header", "avro-truncated")


def test_numbers_of_more_than_ten_bytes_are_damage(avro, tmp_path):
    data = avro.container(LONG, [(1, b"\0")]) + b"\xff" * 30 + avro.SYNC
    with opened(tmp_path, data) as source:
        counts, damage, _ = walked(source)
        assert (counts, damage[0].code) == ([1], "avro-block-header")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "avro-empty"),
        (b"Ob", "avro-not-container"),
        (b"PK\3\4 a zip file", "avro-not-container"),
        (b"Obj\1", "avro-header"),
        (b"Obj\1\2\x16avro.schema\xfe\xff\xff\xff\x0f", "avro-header"),
        (b"Obj\1" + b"\xff" * 12, "avro-header"),
        (b"Obj\1\0" + bytes(16), "avro-header"),
    ],
)
def test_what_is_no_container_has_a_name(tmp_path, data, code):
    with opened(tmp_path, data) as source, pytest.raises(HeaderError) as error:
        read_header(source)
    assert error.value.code == code


def test_metadata_without_end_are_not_gathered(avro, tmp_path):
    entries = b"".join(b"\6" + i.to_bytes(3, "big") + b"\0" for i in range(70_000))
    data = b"Obj\1" + avro.zigzag(70_000) + entries + b"\0" + bytes(16)
    with opened(tmp_path, data) as source, pytest.raises(HeaderError, match="claims 70000 entries"):
        read_header(source)


def test_metadata_need_not_be_text(avro, tmp_path):
    with opened(tmp_path, avro.container(LONG, [], extra={b"\xff\xfe": b"\x00\xff"})) as source:
        assert read_header(source).schema == b'"long"'


def test_what_comes_from_a_file_is_printed_safely():
    assert printable("a\x1b[31m\n" + "x" * 500).startswith("a\\x1b[31m\\x0a")
    assert len(printable("x" * 500)) == 200


def test_a_remote_file_is_walked_through_ranges(avro, tmp_path):
    import fsspec

    data = avro.container(LONG, [(n, bytes(n)) for n in range(1, 2000)])
    fsspec.filesystem("memory").pipe("/walk/a.avro", data)
    with open_input("memory://walk/a.avro") as source:
        counts, damage, _ = walked(source)
    assert (counts, damage) == (list(range(1, 2000)), [])


def test_markers_of_several_blocks_in_a_row_may_be_damaged(avro, tmp_path):
    sizes = [5, 7, 3, 1, 2]
    data = bytearray(avro.container(LONG, [(n, bytes([n]) * n) for n in sizes]))
    for n in (7, 3, 2):
        data[data.index(bytes([n]) * n + avro.SYNC) + n + 2] ^= 64
    with opened(tmp_path, bytes(data)) as source:
        counts, damage, _ = walked(source)
        assert counts == [5, 1]
        assert [(d.code, d.rows) for d in damage] == [("avro-sync-mismatch", n) for n in (7, 3, 2)]


@pytest.mark.parametrize(("size", "requests"), [(1_000, 3), (60_000, 8), (3_000_000, 12)])
def test_a_remote_scan_asks_seldom(avro, size, requests):
    """About a request for 4 MiB, or one for each larger block: never one for each small block."""

    class Remote:
        url, identity, remote = "memory://x", "1", True

        def __init__(self, data):
            self.data, self.size, self.calls = data, len(data), 0

        def read(self, offset, length):
            self.calls += 1
            return self.data[offset : offset + length]

    count = 300 if size < 1_000_000 else 8
    source = Remote(avro.container('"bytes"', [(1, avro.zigzag(size) + bytes(size))] * count))
    header = read_header(source)
    assert sum(len(table) for table in walk(source, header)) == count
    assert source.calls <= requests

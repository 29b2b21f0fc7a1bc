"""Every row once: what each kind of damage costs, against a count of the blocks as they were written."""

from __future__ import annotations

import json

import pytest

import chunkstore
import ingest

SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "key", "type": "string"}, {"name": "x", "type": "double"}],
}
#: rows of the blocks of the damaged file; all different, so that a block lost or told twice shows
SIZES = (11, 23, 37, 41, 53)
CLEAN = 64
WAYS = {
    "file": {"sequence_per": "file"},
    "all": {"sequence_per": "all"},
    "key": {"sequence_key": "key"},
}


def blocks(avro, codec, sizes):
    """(rows, encoded bytes) of blocks whose keys are interleaved."""
    found, at = [], 0
    for n in sizes:
        data = b"".join(
            avro.zigzag(2) + b"k" + b"abc"[i % 3 : i % 3 + 1] + bytes(8) for i in range(at, at + n)
        )
        found.append((n, avro.compress(codec, data)))
        at += n
    return found


def whole(avro, codec, pieces):
    return bytes(avro.container(json.dumps(SCHEMA), pieces, codec))


def marker(avro, codec, made, at):
    """The marker behind one block is wrong."""
    ends = len(whole(avro, codec, made[: at + 1]))
    data = bytearray(whole(avro, codec, made))
    data[ends - 16 : ends] = b"\xee" * 16
    return bytes(data), made[at][0], made[at][0]


def undecodable(avro, codec, made, at):
    """A block's bytes are no rows, or do not decompress."""
    rows, data = made[at]
    return whole(avro, codec, [*made[:at], (rows, b"\xff" * len(data)), *made[at + 1 :]]), rows, rows


def one_more(avro, codec, made, at):
    """A block claims one row more than it holds: nothing of it is believed."""
    rows, data = made[at]
    return whole(avro, codec, [*made[:at], (rows + 1, data), *made[at + 1 :]]), rows + 1, rows


def one_less(avro, codec, made, at):
    """A block claims one row less than it holds."""
    rows, data = made[at]
    return whole(avro, codec, [*made[:at], (rows - 1, data), *made[at + 1 :]]), rows - 1, rows


def impossible(avro, codec, made, at):
    """A block claims what no block can hold: said, but none of it is counted as a row that was there."""
    return whole(avro, codec, [*made[:at], (10**9, b""), *made[at:]]), 0, 0


def cut(avro, codec, made, at):
    """The file ends inside a block: those behind it left no trace."""
    end = len(whole(avro, codec, made[: at + 1])) - 16 - 2
    return whole(avro, codec, made)[:end], made[at][0], sum(n for n, _ in made[at:])


def cut_in_the_marker(avro, codec, made, at):
    end = len(whole(avro, codec, made[: at + 1])) - 5
    return whole(avro, codec, made)[:end], made[at][0], sum(n for n, _ in made[at:])


def followed_by_another(avro, codec, made, at):
    """Two containers in one file: the rows of the second are named, and not read."""
    return whole(avro, codec, made[:at]) + whole(avro, codec, made[at:]), *(
        2 * (sum(n for n, _ in made[at:]),)
    )


def a_bad_block_and_a_cut(avro, codec, made, at):
    last = len(made) - 1
    rows, data = made[0]
    pieces = [(rows, b"\xff" * len(data)), *made[1:]]
    end = len(whole(avro, codec, pieces)) - 16 - 2
    lost = made[0][0] + made[last][0]
    return whole(avro, codec, pieces)[:end], lost, lost


DAMAGE = (
    marker,
    undecodable,
    one_more,
    one_less,
    impossible,
    cut,
    cut_in_the_marker,
    followed_by_another,
    a_bad_block_and_a_cut,
)


@pytest.mark.parametrize(("codec", "part_bytes"), [("null", 150), ("deflate", "8MiB")])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
def test_rows_in_are_the_rows_that_are_there_each_once(avro, tmp_path, damage, codec, way, part_bytes):
    made = blocks(avro, codec, SIZES)
    at = 2
    data, lost, gone = damage(avro, codec, made, at)
    for name in ("a", "c"):
        (tmp_path / f"{name}.avro").write_bytes(whole(avro, codec, blocks(avro, codec, (CLEAN,))))
    (tmp_path / "b.avro").write_bytes(data)
    files = [str(tmp_path / f"{n}.avro") for n in "abc"]
    result = ingest.ingest_avro(
        files,
        tmp_path / "o.zarr",
        workers=0,
        chunk=8,
        shard=32,
        part_bytes=part_bytes,
        report=str(tmp_path / "faults.jsonl"),
        **WAYS[way],
    )
    own = {f["file"]: f for f in result.report["files"]}
    for clean in (files[0], files[2]):
        assert (own[clean]["rows_in"], own[clean]["stored"]) == (CLEAN, CLEAN)
    bad = own[files[1]]
    stored = sum(SIZES) - gone
    assert (bad["stored"], bad["gap"] + bad["quarantined"]) == (stored, lost)
    assert bad["rows_in"] == stored + lost
    if way == "key":
        assert bad["gap"] == 0
    assert not {"rows-unaccounted", "rows-unclaimed"} & set(result.report["faults"])
    # the lines of the report say the same, row by row
    lines = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert sum(f["claimed_rows"] for f in lines) == lost
    assert {f["file"] for f in lines} == {files[1]}
    store = chunkstore.open_store(tmp_path / "o.zarr")
    assert store.n_obs == 2 * CLEAN + stored + bad["gap"]
    assert sum(int(b - a) for a, b in store.gaps) == bad["gap"]


def test_rows_are_counted_where_a_block_may_hold_them_and_not_where_it_cannot(avro, tmp_path):
    made = blocks(avro, "null", SIZES)
    forged = bytearray(whole(avro, "null", made[:2]))
    # the last block claims 10^11 rows of 10 bytes in 2^40 bytes, and the file ends
    forged += avro.zigzag(10**11) + avro.zigzag(10**11 + 5) + b"abc"
    (tmp_path / "forged.avro").write_bytes(forged)
    (tmp_path / "large.avro").write_bytes(whole(avro, "null", made))
    for per in ({"sequence_per": "file"}, {"sequence_key": "key"}):
        got = avro.read(tmp_path / "forged.avro", **per)
        assert got.rows == sum(SIZES[:2])
        assert [(f.code, f.rows) for f in got.faults] == [("avro-truncated", 0)]
        assert "100000000000 rows" in got.faults[0].message
        got = avro.read(tmp_path / "large.avro", max_block_bytes=430, **per)
        assert [(f.code, f.rows) for f in got.faults] == [("avro-block-claim", n) for n in (41, 53)]
        assert "raise max_block_bytes" in got.faults[0].message

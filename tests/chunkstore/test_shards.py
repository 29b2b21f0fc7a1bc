"""A shard that comes chunk by chunk is the shard that comes whole."""

from __future__ import annotations

import threading
import time as clock
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.errors import ConfigError, IngestError
from chunkstore.layout import FieldSpec, Layout
from chunkstore.pool import ENCODERS, WorkerPool
from chunkstore.shards import Chunk, add_chunks
from chunkstore.skeleton import create_store, open_skeleton


def skeleton(place, n_obs, fields, codec="default"):
    layout = Layout(n_obs=n_obs, chunk=8, shard=24)
    create_store(place, fields=fields, layout=layout, codec=codec, overwrite=True)
    return open_skeleton(place)


@settings(max_examples=20, deadline=None)
@given(
    n_obs=st.integers(1, 60),
    codec=st.sampled_from(["none", "lz4", "zstd:1", "blosc-lz4:5"]),
    empty=st.booleans(),
    seed=st.integers(0, 9),
)
def test_chunk_by_chunk_gives_the_same_object(tmp_path_factory, n_obs, codec, empty, seed):
    fields = [FieldSpec("x", "float32"), FieldSpec("v", "int16", items=3)]
    made = skeleton(tmp_path_factory.mktemp("s") / "a.zarr", n_obs, fields, codec)
    random = np.random.default_rng(seed)
    for shard in range(made.layout.n_shards):
        low, high = made.layout.shard_range(shard)
        x = np.full(high - low, np.nan, "f4") if empty else random.random(high - low, "f4")
        v = random.integers(-9, 9, (high - low, 3)).astype("i2")
        whole = [made.write_shard(name, shard, values) for name, values in (("x", x), ("v", v))]
        writers = [made.begin_shard(name, shard) for name in "xv"]
        for at in range(0, high - low, 8):
            pieces = [x[at : at + 8].copy(), v[at : at + 8].copy()]
            add_chunks([Chunk(w, p) for w, p in zip(writers, pieces, strict=True)])
            for piece in pieces:
                piece[:] = 0  # they may be changed afterwards
        assert [made.store_shard(writer) for writer in writers] == whole


def test_a_chunk_that_is_not_the_next_one_is_refused(tmp_path):
    made = skeleton(tmp_path / "a.zarr", 20, [FieldSpec("x", "float32")])
    writer = made.begin_shard("x", 0)
    with pytest.raises(ConfigError, match=r"float32\[8\], got float32\[7\]"):
        add_chunks([Chunk(writer, np.zeros(7, "f4"))])
    with pytest.raises(ConfigError, match="got float64"):
        add_chunks([Chunk(writer, np.zeros(8, "f8"))])
    add_chunks([Chunk(writer, np.ones(8, "f4"))])
    with pytest.raises(ConfigError, match="has 8 of its 20 obs"):
        made.store_shard(writer)
    assert made.shard_checksum("x", 0) is None
    with pytest.raises(ConfigError, match="there is no shard 1"):
        made.begin_shard("x", 1)


def test_several_chunks_of_a_shard_may_come_at_once(tmp_path):
    fields = [FieldSpec("x", "f4"), FieldSpec("y", "i2")]
    made = skeleton(tmp_path / "s.zarr", 20, fields)
    x, y = np.arange(20, dtype="f4"), np.arange(20, dtype="i2")
    whole = [made.write_shard("x", 0, x), made.write_shard("y", 0, y)]
    one, two = made.begin_shard("x", 0), made.begin_shard("y", 0)
    add_chunks([Chunk(one, x[:8]), Chunk(two, y[:8]), Chunk(one, x[8:16]), Chunk(one, x[16:])])
    add_chunks([Chunk(two, y[8:16]), Chunk(two, y[16:])])
    assert [made.store_shard(one), made.store_shard(two)] == whole
    assert made.shard_checksum("x", 0) == (whole[0].nbytes, whole[0].checksum)
    with pytest.raises(ConfigError, match="the chunk at 8 of shard 0"):
        add_chunks([Chunk(one := made.begin_shard("x", 0), x[:8]), Chunk(one, x[:7])])
    assert one.filled == 0


def test_what_is_to_follow_a_chunk_is_done_once_before_its_values_may_change(tmp_path):
    made = skeleton(tmp_path / "s.zarr", 20, [FieldSpec(name, "f4") for name in "xyz"])
    writers = [made.begin_shard(name, 0) for name in "xyz"]
    seen: dict[str, list[float]] = {name: [] for name in "xyz"}
    for low, high in ((0, 8), (8, 16), (16, 20)):
        pieces = [np.arange(low, high, dtype="f4") + 100 * i for i in range(3)]
        add_chunks(
            [
                Chunk(writer, piece, partial(lambda name, p: seen[name].extend(p.tolist()), name, piece))
                for name, writer, piece in zip("xyz", writers, pieces, strict=True)
            ]
        )
        for piece in pieces:
            piece[:] = -1
    assert seen == {name: (np.arange(20) + 100.0 * i).tolist() for i, name in enumerate("xyz")}


def test_what_follows_a_chunk_may_refuse_it(tmp_path):
    made = skeleton(tmp_path / "s.zarr", 20, [FieldSpec("x", "f4"), FieldSpec("y", "f4")])

    def refuse() -> None:
        raise IngestError("times go back")

    with pytest.raises(IngestError, match="times go back"):
        add_chunks(
            [
                Chunk(made.begin_shard("y", 0), np.ones(8, "f4")),
                Chunk(made.begin_shard("x", 0), np.ones(8, "f4"), refuse),
            ]
        )
    assert made.shard_checksum("x", 0) is None


def test_where_a_chunk_is_refused_no_other_is_read_any_more(tmp_path):
    made = skeleton(tmp_path / "s.zarr", 20, [FieldSpec("x", "f4"), FieldSpec("y", "f4")])
    begun, done = threading.Event(), []

    def refuse() -> None:
        begun.wait(2 if ENCODERS.workers > 1 else 0)
        raise IngestError("times go back")

    def slow() -> None:
        begun.set()
        clock.sleep(0.3)
        done.append(True)

    with pytest.raises(IngestError, match="times go back"):
        add_chunks(
            [
                Chunk(made.begin_shard("x", 0), np.ones(8, "f4"), refuse),
                Chunk(made.begin_shard("y", 0), np.ones(8, "f4"), slow),
            ]
        )
    assert bool(done) == begun.is_set()


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("codec", ["none", "zstd:1"])
def test_the_checksum_of_a_shard_tells_it_from_all_others(tmp_path, codec, checksums):
    """A crc32c of data that hold their own crc32c follows from their lengths alone."""
    made = create_store(
        tmp_path / "s.zarr",
        fields=[FieldSpec("x", "i4")],
        layout=Layout(n_obs=72, chunk=8, shard=24),
        codec=codec,
        checksums=checksums,
    )
    shards = [made.write_shard("x", i, np.arange(24, dtype="i4") + 24 * i) for i in range(2)]
    assert shards[0].nbytes == shards[1].nbytes
    assert shards[0].checksum != shards[1].checksum
    paths = [tmp_path / "s.zarr" / shard.key for shard in shards]
    good = [path.read_bytes() for path in paths]
    for path, data in zip(paths, reversed(good), strict=True):
        path.write_bytes(data)  # they change places
    for i, shard in enumerate(shards):
        assert made.shard_checksum("x", i) == (shard.nbytes, shards[1 - i].checksum)
    for at in range(len(good[0])):
        damaged = bytearray(good[0])
        damaged[at] ^= 1
        paths[0].write_bytes(damaged)
        assert made.shard_checksum("x", 0) != (shards[0].nbytes, shards[0].checksum)
    paths[0].write_bytes(good[0])
    assert made.shard_checksum("x", 0) == (shards[0].nbytes, shards[0].checksum)
    for length in (0, 3, len(good[0]) - 1):
        paths[0].write_bytes(good[0][:length])
        assert made.shard_checksum("x", 0) == (length, None)


def test_chunks_of_blosc_are_the_same_bytes_in_any_thread(tmp_path):
    from numcodecs import blosc

    meta = skeleton(tmp_path / "s.zarr", 20, [FieldSpec("x", "f8")], "blosc-lz4:5").arrays["x"]
    values = np.round(np.random.default_rng(0).standard_normal(1 << 20), 2)
    blosc.use_threads = True  # another user of the process may ask for it
    here = meta.codec.encode(values)
    others = WorkerPool("test", 3).each(meta.codec.encode, [values] * 6)
    assert {here} == set(others)

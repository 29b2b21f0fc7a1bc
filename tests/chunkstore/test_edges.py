"""Numbers at the edges: offsets beyond 2^31 and 2^40, a million sequences, one of 10^11, chunks of one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import chunkstore
from chunkstore.errors import ConfigError
from chunkstore.finish import finish_store
from chunkstore.layout import FieldSpec
from chunkstore.loader import WindowLoader
from chunkstore.permute import permutation
from chunkstore.segments import cut_segments
from chunkstore.skeleton import create_store
from chunkstore.verify import verify_store
from chunkstore.windows import WindowIndex, WindowSpec


def sparse(url, rowsize, *, chunk=1 << 16, shard=1 << 20, written=()):
    """Make a store of which only the shards ``written`` hold anything: each value is its obs modulo 2^15."""
    n = int(np.sum(rowsize))
    skeleton = create_store(
        url, fields=[FieldSpec("x", "int16")], n_obs=n, chunk=chunk, shard=shard, codec="zstd", overwrite=True
    )
    for index in written:
        low, high = skeleton.layout.shard_range(index)
        skeleton.write_shard("x", index, (np.arange(low, high) % (1 << 15)).astype("i2"))
    finish_store(
        url,
        rowsize=np.asarray(rowsize, np.int64),
        ids=[f"s{i}" for i in range(len(rowsize))],
        columns={},
        gaps=np.zeros((0, 2), np.int64),
        statistics={},
    )
    return chunkstore.open_store(url)


@pytest.mark.parametrize("n", [2**31 + 77, 2**40 + 77, 10**11])
def test_the_far_end_of_one_huge_sequence_is_read_and_cut(n):
    shard = 1 << 20
    last = (n - 1) // shard
    store = sparse("memory://edge-huge", [5, n - 5], written=[0, last])
    assert store.n_obs == n
    assert store.sequences.offsets.tolist() == [0, 5, n]
    tail = store.read("x", n - 70, n)
    assert (tail == np.arange(n - 70, n) % (1 << 15)).all()
    assert (store.read("x", n // 2, n // 2 + 10) == 0).all()
    index = WindowIndex([store.segments()], WindowSpec(512, stride=3))
    assert index.n_windows == (n - 5 - 512) // 3 + 1
    found = index.locate(np.array([0, 1, index.n_windows - 1]))
    assert found.sequence.tolist() == [1, 1, 1]
    assert (found.start - found.start[0]).tolist() == [0, 3, 3 * (index.n_windows - 1)]
    dataset = store.to_xarray()
    assert dataset.sizes["obs"] == n


@pytest.mark.parametrize("n", [2**31 + 1, 10**11, 2**40 + 3])
def test_a_permutation_of_that_many_stays_one(n):
    order = permutation(n, 7)
    ids = np.concatenate([np.arange(500), n - 1 - np.arange(500)]).astype(np.int64)
    found = order.apply(ids)
    assert len(set(found.tolist())) == 1000
    assert found.min() >= 0
    assert found.max() < n
    assert (order.inverse(found) == ids).all()


def test_a_loader_serves_batches_of_ten_to_the_eleven_windows():
    store = sparse("memory://edge-loader", [10**11])
    with WindowLoader(store, WindowSpec(64), batch_size=16, memory_limit="16MiB") as loader:
        assert loader.n_windows == 10**11 - 63
        batches = list(itertools.islice(loader.batches(0), 4))
        starts = np.concatenate([b["start"] for b in batches])
        assert len(set(starts.tolist())) == 64
        assert starts.max() > 2**32
        assert starts.max() <= 10**11 - 64
        assert loader.n_batches() == -(-(10**11 - 63) // 16)


def test_a_million_sequences_of_length_one():
    store = sparse("memory://edge-million", np.ones(10**6, np.int64), written=[0])
    segments = store.segments()
    assert len(segments.start) == 10**6
    with WindowLoader(store, WindowSpec(1), batch_size=4096, memory_limit="64MiB") as loader:
        assert loader.n_windows == 10**6
        seen = np.zeros(10**6, bool)
        for batch in loader.batches(0):
            assert (batch["x"][:, 0, 0] == batch["sequence"] % (1 << 15)).all()
            assert not seen[batch["sequence"]].any()
            seen[batch["sequence"]] = True
        assert seen.all()
    with pytest.raises(ConfigError, match="longest"):
        WindowLoader(store, WindowSpec(2), batch_size=8)


@pytest.mark.parametrize(
    ("length", "stride", "chunk"),
    [(40, 1, 7), (40, 100, 1), (39, 1, 1), (8, 40, 1), (1, 1, 1), (1, 39, 5), (40, 10**12, 64)],
)
def test_windows_as_long_as_a_sequence_strides_beyond_them_and_chunks_of_one_obs(length, stride, chunk):
    sizes = [40, 39, 40, 0, 1]
    url = "memory://edge-windows"
    with chunkstore.StoreWriter(url, {"x": "i4"}, chunk=chunk, shard=3 * chunk, overwrite=True) as out:
        for number, size in enumerate(sizes):
            out.write(f"s{number}", {"x": number * 100 + np.arange(size)})
    wanted = sorted((s, at) for s, n in enumerate(sizes) for at in range(0, n - length + 1, stride))
    with WindowLoader(
        chunkstore.open_store(url), WindowSpec(length, stride=stride), batch_size=3, memory_limit="1MiB"
    ) as loader:
        found = []
        for batch in loader.batches(0):
            first = batch["sequence"] * 100 + batch["start"]
            assert (batch["x"][:, 0] == first[:, None] + np.arange(length)).all()
            found += zip(batch["sequence"].tolist(), batch["start"].tolist(), strict=True)
    assert sorted(found) == wanted
    assert loader.n_windows == len(wanted)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 0]])
def test_nothing_at_all_is_written_read_verified_shown_and_refused_by_name(sizes):
    url = "memory://edge-empty"
    with chunkstore.StoreWriter(
        url, {"x": "f4", "n": FieldSpec("n", "i2", nullable=True)}, overwrite=True
    ) as out:
        for number, _ in enumerate(sizes):
            out.write(f"s{number}", {"x": [], "n": []}, labels={"kind": "none"})
    store = chunkstore.open_store(url)
    assert (store.n_obs, store.n_sequences) == (0, len(sizes))
    assert store.read("x", 0, 0).shape == (0,)
    assert len(store.segments().start) == 0
    assert store.statistics["x"].count == 0
    assert store.to_xarray().sizes["obs"] == 0
    assert verify_store(url, deep=True).ok
    assert "0 obs" in repr(store)
    assert store._repr_html_()
    assert len(cut_segments(store.sequences.offsets).start) == 0
    with pytest.raises(ConfigError, match="window"):
        WindowLoader(store, WindowSpec(4), batch_size=2)

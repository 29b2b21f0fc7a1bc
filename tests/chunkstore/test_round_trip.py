"""Whatever is written is read back, value for value, whatever the lengths, dtypes and codecs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import chunkstore
from chunkstore import FieldSpec, StoreWriter, create_store, finish_store, open_store

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "float32", "float64"]
CODECS = ["none", "lz4", "zstd", "zstd:7", "blosc-lz4", "blosc-zstd:1", "pcodec", "default"]
_names = itertools.count()


def bits(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values).tobytes()


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    codec=st.sampled_from(CODECS),
    items=st.sampled_from([0, 0, 1, 3]),
    chunk=st.integers(1, 9),
    per_shard=st.integers(1, 4),
    checksums=st.booleans(),
)
def test_any_sequences_of_any_dtype_and_codec_come_back(
    data, dtype, codec, items, chunk, per_shard, checksums
):
    shard = chunk * per_shard
    edges = st.sampled_from([0, 1, chunk, shard, shard + 1, 2 * shard, 3 * shard - 1])
    lengths = data.draw(st.lists(edges | st.integers(0, 3 * shard), max_size=5), label="lengths")
    field = FieldSpec("x", dtype, items=items)
    parts = [data.draw(hnp.arrays(dtype, field.shape(n)), label=f"values of {n}") for n in lengths]
    url = f"memory://round-{next(_names)}"
    with StoreWriter(url, [field], codec=codec, chunk=chunk, shard=shard, checksums=checksums) as out:
        for i, part in enumerate(parts):
            out.write(f"s{i}", {"x": part})
    store = open_store(url)
    whole = np.concatenate([np.empty(field.shape(0), dtype), *parts])
    assert store.n_obs == len(whole)
    assert store.sequences.rowsize.tolist() == lengths
    assert bits(store.read("x", 0, store.n_obs)) == bits(whole)
    for offset, part in zip(store.sequences.offsets.tolist(), parts, strict=False):
        assert bits(store.read("x", offset, offset + len(part))) == bits(part)
    low = data.draw(st.integers(0, store.n_obs), label="low")
    high = data.draw(st.integers(low, store.n_obs), label="high")
    assert bits(store.read("x", low, high)) == bits(whole[low:high])
    assert chunkstore.verify_store(url, deep=True).findings == []


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    codec=st.sampled_from(CODECS),
    items=st.sampled_from([0, 2]),
)
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_both_engines_and_plain_zarr_read_the_same(tmp_path_factory, data, dtype, codec, items):
    field = FieldSpec("x", dtype, items=items)
    values = data.draw(hnp.arrays(dtype, field.shape(data.draw(st.integers(1, 60)))))
    url = tmp_path_factory.mktemp("engines") / "a.zarr"
    with StoreWriter(url, [field], codec=codec, chunk=4, shard=16) as out:
        out.write("a", {"x": values})
    for engine in ("direct", "zarrs"):
        store = open_store(url, engine=engine)
        assert store.engine["x"].name == engine
        assert bits(store.read("x", 0, store.n_obs)) == bits(values)
        assert bits(store.read("x", 1, store.n_obs)) == bits(values[1:])
    assert bits(zarr.open_array(url / "x", mode="r")[...]) == bits(values)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_many_ranges_in_one_call_are_the_same_as_one_by_one(data):
    n = 200
    url = f"memory://ranges-{next(_names)}"
    with StoreWriter(url, {"x": "i4"}, chunk=8, shard=32, codec="zstd") as out:
        out.write("a", {"x": np.arange(n)})
    starts = data.draw(st.lists(st.integers(0, n), max_size=20))
    stops = [data.draw(st.integers(s, min(n, s + 50))) for s in starts]
    outs = [np.full(b - a, -1, "i4") for a, b in zip(starts, stops, strict=True)]
    open_store(url).read_ranges("x", starts, stops, outs)
    for a, b, got in zip(starts, stops, outs, strict=True):
        assert got.tolist() == list(range(a, b))


def test_reads_decode_into_strided_outputs_too(tmp_path):
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4"}, chunk=8, shard=64) as out:
        out.write("a", {"x": np.arange(100)})
    for engine in ("direct", "zarrs"):
        target = np.zeros((100, 2), "f4")
        open_store(tmp_path / "a.zarr", engine=engine).read_into("x", 0, 100, target[:, 1])
        assert target[:, 1].tolist() == list(range(100))
        assert not target[:, 0].any()


def test_a_fill_value_that_is_not_bit_for_bit_the_fill_is_stored(tmp_path):
    odd = np.array([0x7FC00001, 0xFFC00000], dtype="u4").view("f4")  # two NaN that are not the fill value
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4"}, chunk=2, shard=2) as out:
        out.write("a", {"x": odd})
    assert bits(open_store(tmp_path / "a.zarr").read("x", 0, 2)) == bits(odd)


def test_chunks_and_shards_that_are_all_fill_are_not_stored(tmp_path):
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4", "n": "i8"}, chunk=2, shard=4) as out:
        out.write("a", {"x": [np.nan] * 4 + [1, 2, np.nan, np.nan], "n": [0] * 8})
    store = open_store(tmp_path / "a.zarr")
    stored = sorted(
        p.relative_to(tmp_path / "a.zarr").as_posix() for p in (tmp_path / "a.zarr").glob("*/c/*")
    )
    assert [s for s in stored if s[0] in "xn"] == ["x/c/1"]
    assert store.stored_bytes("x", 1).astype(bool).tolist() == [True, False]
    assert store.stored_bytes("x", 0).tolist() == [0, 0]
    assert store.read("n", 0, 8).tolist() == [0] * 8


def test_a_store_is_byte_for_byte_the_same_whatever_the_pieces(tmp_path):
    rng = np.random.default_rng(5)
    values = rng.normal(size=5000).astype("f4")
    ends = {"a.zarr": [5000], "b.zarr": [1, 700, 701, 4999, 5000]}
    for name, stops in ends.items():
        with StoreWriter(tmp_path / name, {"x": "f4"}, chunk=64, shard=512, codec="blosc-lz4") as out:
            out.begin("one", labels={"kind": "dog"})
            for low, high in itertools.pairwise([0, *stops]):
                out.extend({"x": values[low:high]})

    def content(root):
        return {
            p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()
        }

    first, second = content(tmp_path / "a.zarr"), content(tmp_path / "b.zarr")
    assert first.keys() == second.keys()
    assert [k for k in first if first[k] != second[k]] == []


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(1, 40),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 399), st.integers(1, 400)), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_chunks_that_lie_as_they_are_read_the_same_whole_and_in_part(
    tmp_path_factory, chunk, items, spans, checksums, local
):
    values = np.arange(400 * max(1, items), dtype="i2").reshape((400, items) if items else 400)
    url = (
        str(tmp_path_factory.mktemp("straight") / "s.zarr") if local else f"memory://straight-{next(_names)}"
    )
    spec = [FieldSpec("x", "int16", items=items)]
    skeleton = create_store(
        url, fields=spec, n_obs=400, codec="none", chunk=chunk, shard=4 * chunk, checksums=checksums
    )
    for shard in range(skeleton.layout.n_shards):
        low, high = skeleton.layout.shard_range(shard)
        skeleton.write_shard("x", shard, values[low:high])
    finish_store(url, rowsize=[400], ids=["a"])
    store = open_store(url)
    starts = [a for a, _ in spans]
    stops = [min(400, a + n) for a, n in spans]
    outs = [np.full((b - a, *values.shape[1:]), -1, "i2") for a, b in zip(starts, stops, strict=True)]
    store.read_ranges("x", starts, stops, outs)
    for a, b, out in zip(starts, stops, outs, strict=True):
        assert np.array_equal(out, values[a:b])

"""One store of several holds the rows, labels, gaps and statistics of all."""

from __future__ import annotations

import numpy as np
import pytest

import chunkstore
import ingest
from chunkstore.errors import ConfigError, InputError
from chunkstore.layout import FieldSpec

FIELDS = [FieldSpec("x", "float32"), FieldSpec("n", "int64", nullable=True), FieldSpec("v", "int16", items=2)]


@pytest.fixture
def stores(tmp_path):
    made = []
    number = 0
    for k, sizes in enumerate(((5, 0, 9), (7,), (30, 2))):
        path = tmp_path / f"s{k}.zarr"
        with chunkstore.StoreWriter(path, fields=FIELDS, chunk=4, shard=8, codec="lz4") as out:
            for i, size in enumerate(sizes):
                x = np.arange(number, number + size, dtype=np.float32)
                number += size
                arrays = {"x": x, "n": x.astype(np.int64) * 2, "v": np.stack([x, -x], 1).astype(np.int16)}
                arrays["n_valid"] = x % 3 != 0
                labels = {"kind": ("cat", "dog")[i % 2]} | ({"extra": i} if k == 2 else {})
                out.write(f"{k}-{i}", arrays, labels=labels, gaps=[(1, 3)] if size > 6 else [])
        made.append(path)
    return made


def test_rows_ids_labels_gaps_and_statistics_are_those_of_all(stores, tmp_path):
    told = ingest.merge(stores, tmp_path / "all.zarr", chunk=8, shard=16)
    assert told.endswith("6 sequences, 53 obs from 3 stores")
    store = chunkstore.open_store(tmp_path / "all.zarr")
    assert list(store.sequences.ids) == ["0-0", "0-1", "0-2", "1-0", "2-0", "2-1"]
    assert store.sequences.rowsize.tolist() == [5, 0, 9, 7, 30, 2]
    x = np.arange(53)
    np.testing.assert_array_equal(store.read("x", 0, 53), x)
    valid = store.read("n_valid", 0, 53)
    np.testing.assert_array_equal(valid, x % 3 != 0)
    np.testing.assert_array_equal(store.read("n", 0, 53)[valid], (x * 2)[valid])
    np.testing.assert_array_equal(store.read("v", 0, 53), np.stack([x, -x], 1))
    assert list(store.sequences.column("kind")) == ["cat", "dog", "cat", "cat", "cat", "dog"]
    extra = store.sequences.column("extra")
    assert list(extra) == ["", "", "", "", "0", "1"]
    assert store.sequences.codes("extra").tolist() == [-1, -1, -1, -1, 0, 1]
    assert store.gaps.tolist() == [[6, 8], [15, 17], [22, 24]]
    gone = np.zeros(53, bool)
    for a, b in store.gaps.tolist():
        gone[a:b] = True
    assert store.statistics["x"].max == 52
    assert list(store.sequences.column("store")) == ["s0", "s0", "s0", "s1", "s2", "s2"]


def test_the_same_id_twice_needs_a_prefix(stores, tmp_path):
    with pytest.raises(ConfigError, match=r"'0-0' is in two stores; use --prefix"):
        ingest.merge([stores[0], stores[0]], tmp_path / "all.zarr")
    again = tmp_path / "copy"
    again.mkdir()
    import shutil

    shutil.copytree(stores[0], again / "t.zarr")
    ingest.merge([stores[0], again / "t.zarr"], tmp_path / "all.zarr", prefix=True)
    ids = chunkstore.open_store(tmp_path / "all.zarr").sequences.ids
    assert list(ids)[::3] == ["s0/0-0", "t/0-0"]


def test_other_fields_are_refused_by_name(stores, tmp_path):
    with chunkstore.StoreWriter(tmp_path / "y.zarr", fields={"x": "f8"}) as out:
        out.write("a", {"x": np.arange(3.0)})
    with pytest.raises(ConfigError, match="differ in n, v, x"):
        ingest.merge([stores[0], tmp_path / "y.zarr"], tmp_path / "all.zarr")


def test_nothing_to_merge_and_merging_into_a_part_are_errors(stores, tmp_path):
    with pytest.raises(InputError, match="no stores"):
        ingest.merge([], tmp_path / "all.zarr")
    with pytest.raises(ConfigError, match="one of the stores to merge"):
        ingest.merge(stores, stores[0])

"""Nulls of integers reach a network as NaN, through both datasets and any plan of memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import chunkstore
from chunkstore import FieldSpec, StoreWriter, WindowSpec, open_store
from chunkstore.loader import WindowLoader

N = 97


@pytest.fixture
def held(tmp_path):
    """A store of two sequences with a nullable integer, a nullable vector and a float."""
    draw = np.random.default_rng(3)
    values = draw.integers(-9, 9, N).astype("i2")
    known = draw.random(N) < 0.7
    specs = [FieldSpec("n", "int16", nullable=True), FieldSpec("x", "float32")]
    x = draw.random(N).astype("f4")
    with StoreWriter(str(tmp_path / "s.zarr"), specs, chunk=8, shard=16) as out:
        for name, part in (("a", slice(0, 40)), ("b", slice(40, N))):
            out.write(name, {"n": np.ma.array(values[part], mask=~known[part]), "x": x[part]})
    return open_store(str(tmp_path / "s.zarr")), np.where(known, values, np.nan), x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("memory", "whole"), [("1MiB", True), (768, False)])
def test_nulls_of_integers_are_nan_in_every_window(held, dtype, memory, whole):
    store, wanted, x = held
    with WindowLoader(
        [store], WindowSpec(5), fields=["n", "x"], batch_size=7, dtype=dtype, memory_limit=memory
    ) as loader:
        assert loader.plan.whole == whole
        seen = 0
        for batch in loader.batches(0):
            at = store.sequences.offsets[batch["sequence"]] + batch["start"]
            steps = at[:, None] + np.arange(5)
            np.testing.assert_array_equal(batch["x"][:, 0], wanted[steps])
            np.testing.assert_array_equal(batch["x"][:, 1], x[steps])
            seen += len(at)
    assert seen == N - 8


def test_batches_of_integers_keep_what_is_stored(held):
    store, wanted, _ = held
    with WindowLoader([store], WindowSpec(1), fields=["n"], batch_size=200, dtype=None) as loader:
        batch = next(iter(loader.batches(0)))
    assert batch["x"].dtype == np.int16
    at = store.sequences.offsets[batch["sequence"]] + batch["start"]
    np.testing.assert_array_equal(batch["x"][:, 0, 0], np.nan_to_num(wanted[at]))


def test_datasets_by_number_say_nan_too(held):
    pytest.importorskip("torch")
    store, wanted, _ = held
    assert pickle.loads(pickle.dumps(chunkstore.WindowDataset(store, 5, fields=["n"])))[3]
    sample = chunkstore.WindowDataset(store, 5, fields=["n"])[3]
    np.testing.assert_array_equal(sample["x"][0], wanted[3:8])

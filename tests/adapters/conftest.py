"""A store whose classes can be learned, for training that must get somewhere."""

from __future__ import annotations

import numpy as np
import pytest

import chunkstore


@pytest.fixture(scope="session")
def waves(tmp_path_factory):
    """Return a store of 24 recordings of two channels: class "slow" or "fast" by their frequency.

    Two thirds of each class are the part "train" of a split, the others "valid".
    """
    path = tmp_path_factory.mktemp("waves") / "waves.zarr"
    rng = np.random.default_rng(11)
    with chunkstore.StoreWriter(path, fields={"a": "float32", "b": "float32"}, chunk=128, shard=512) as out:
        for number in range(24):
            kind = ("slow", "fast")[number % 2]
            at = np.arange(int(rng.integers(200, 300)))
            wave = np.sin(at * {"slow": 0.1, "fast": 0.9}[kind] + rng.uniform(0, 6))
            noise = rng.normal(0, 0.1, (2, len(at)))
            fields = {"a": (wave + noise[0]).astype("f4"), "b": (0.5 * wave + noise[1]).astype("f4")}
            out.write(f"r{number:02d}", fields, labels={"kind": kind})
    store = chunkstore.open_store(path)
    store.add_split("train/valid", by="label", on="kind", fractions=[2 / 3, 1 / 3])
    return chunkstore.open_store(path)

"""Another store at the place of one that is open: its name stays, and says nothing of what is there."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from chunkstore import StateError, StoreWriter, open_store


def write(path, *sizes, sign=1):
    """Write a store of +1 and -1 in turn, which has the same statistics whatever the sign; open it."""
    with StoreWriter(path, fields={"x": "f4"}, chunk=16, shard=32, overwrite=True) as out:
        for number, size in enumerate(sizes):
            out.write(f"s{number}", {"x": sign * (-1.0) ** np.arange(size)})
    store = open_store(path)
    assert sum(store.sequences.rowsize) == store.n_obs  # the table is read when it is asked for
    assert not len(store.gaps)
    return store


@pytest.fixture
def old(tmp_path):
    return write(tmp_path / "s.zarr", 40, 60)


def test_a_store_that_was_pickled_is_not_taken_for_the_one_at_its_place(tmp_path, old):
    """A worker would serve what is there now under labels and splits of what was there."""
    data = pickle.dumps(old)
    assert pickle.loads(data).n_obs == 100
    write(tmp_path / "s.zarr", 60, 40)
    with pytest.raises(StateError, match="was replaced"):
        pickle.loads(data)


def test_splits_that_are_added_do_not_make_another_store(old):
    data = pickle.dumps(old)
    old.add_split("train/val", fractions=[0.5, 0.5])
    assert set(pickle.loads(data).splits) == {"train/val"}


def test_a_split_of_a_store_is_not_kept_in_the_one_at_its_place(tmp_path, old):
    new = write(tmp_path / "s.zarr", 30, 30, 40)
    with pytest.raises(StateError, match="was replaced"):
        old.add_split("train/val", by="position", fractions=[0.5, 0.5])
    assert not open_store(new.url).splits


def test_a_part_is_not_looked_for_in_the_store_at_the_place(tmp_path, old):
    write(tmp_path / "s.zarr", 30, 30, 40).add_split("train/val", by="position", fractions=[0.5, 0.5])
    with pytest.raises(StateError, match="was replaced"):
        old.segments("train")


def test_dask_does_not_take_values_of_one_store_for_those_of_the_next(tmp_path, old):
    """What the roots say is all the same, and by the names of its arrays dask knows what it has kept."""
    pytest.importorskip("dask")
    name = old.to_xarray().x.data.name
    assert name == old.to_xarray().x.data.name
    new = write(tmp_path / "s.zarr", 40, 60, sign=-1)
    assert dict(new.attrs) == dict(old.attrs)
    assert new.to_xarray().x.data.name != name

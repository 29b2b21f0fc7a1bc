"""Arguments that are whole numbers are never cut down to one."""

from __future__ import annotations

import numpy as np
import pytest

from chunkstore import ConfigError, FieldSpec, Layout, WindowLoader, WindowSpec, from_xarray
from chunkstore.distributed import find_place
from chunkstore.numbers import whole_number

NONE = [2.7, 2.0, "2", True, None, float("nan"), np.float64(2), np.True_]


@pytest.mark.parametrize("value", NONE)
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ConfigError, match="stride must be a whole number"):
        whole_number("stride", value)


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3)])
def test_numbers_of_numpy_are_whole(value):
    found = whole_number("stride", value, 1)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("name", ["batch_size", "seed", "lane_groups", "world_size"])
@pytest.mark.parametrize("value", NONE)
def test_a_loader_takes_no_part_of_a_number(small_store, name, value):
    with pytest.raises(ConfigError, match=f"{name} must be a whole number"):
        WindowLoader(small_store, WindowSpec(2), **{"batch_size": 4, name: value})


def test_a_loader_takes_numbers_of_numpy(small_store):
    with WindowLoader(
        small_store, WindowSpec(np.int32(2)), batch_size=np.int64(4), seed=np.uint8(7), lane_groups=np.int8(1)
    ) as loader:
        assert (type(loader.batch_size), type(loader.seed), type(loader.lane_groups)) == (int, int, int)


def test_places_layouts_fields_and_blocks_take_no_part_of_a_number(small_store):
    for rank, size in ((0.5, 2), (0, 2.5), (True, 2), ("0", "2")):
        with pytest.raises(ConfigError, match="must be a whole number"):
            find_place(rank, size)
    for sizes in ((10.5, 2, 4), (10, 2.5, 5.0), (10, 2, True)):
        with pytest.raises(ConfigError, match="must be a whole number"):
            Layout(*sizes)
    with pytest.raises(ConfigError, match="items of field 'x' must be a whole number"):
        FieldSpec("x", "f4", items=2.5)
    with pytest.raises(ConfigError, match="phase"):
        WindowSpec(2, phase=True)
    with pytest.raises(ConfigError, match="block must be a whole number"):
        from_xarray(small_store.to_xarray(), "memory://numbers", block=True)


def test_epochs_and_ranks_are_no_parts_of_a_number(small_store):
    with WindowLoader(small_store, WindowSpec(2), batch_size=4) as loader:
        for name, value in (("epoch", 1.5), ("rank", 0.5), ("world_size", 1.5)):
            with pytest.raises(ConfigError, match=f"{name} must be a whole number"):
                list(loader.batches(**{"epoch": 0, name: value}))

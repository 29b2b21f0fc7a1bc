"""Arguments that are whole numbers are never cut down to one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from chunkstore import (
    ConfigError,
    EpochSchedule,
    FieldSpec,
    Layout,
    WindowDataset,
    WindowIndex,
    WindowLoader,
    WindowSpec,
    ZarrWindowDataset,
    from_xarray,
    permutation,
)
from chunkstore.distributed import find_place
from chunkstore.numbers import whole_number, whole_numbers

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


@pytest.mark.parametrize(
    "values", [[1.0], ["1"], [True], [None], 2.5, [2**63], [1, 2**70], np.array([[1.5]])]
)
def test_arrays_with_a_part_of_a_number_are_refused(values):
    with pytest.raises(ConfigError, match=r"draws must be (a )?whole numbers?"):
        whole_numbers("draws", values)


@pytest.mark.parametrize(
    "values",
    [
        range(3),
        [0, 1, 2],
        torch.arange(3),
        [torch.tensor(k) for k in range(3)],
        (np.int8(0), 1, np.uint64(2)),
        np.arange(3, dtype="u2"),
        np.arange(3),
    ],
)
def test_arrays_of_whole_numbers_become_int64(values):
    found = whole_numbers("draws", values, 0)
    assert (found.dtype, found.tolist()) == (np.int64, [0, 1, 2])
    with pytest.raises(ConfigError, match="draws must be 1 or more, got 0"):
        whole_numbers("draws", values, 1)


#: calls with one argument that is no number at all, a negative one, or one beyond its range
CALLS = {
    "permutation of a part": lambda s, _: permutation(5.5, 0),
    "permutation key": lambda s, _: permutation(5, 0.5),
    "permutation key part": lambda s, _: permutation(5, (0, 0.5)),
    "permutation value": lambda s, _: permutation(5, 0)(0.5),
    "permutation inverse": lambda s, _: permutation(5, 0).inverse([0.5]),
    "read": lambda s, _: s.read("x", 0.5, 2),
    "read text": lambda s, _: s.read("x", 0, "2"),
    "read a truth": lambda s, _: s.read("x", False, 2),
    "read into": lambda s, _: s.read_into("x", 0, 2.0, np.empty(2, "f4")),
    "read into a list": lambda s, _: s.read_into("x", 0, 2, [0, 0]),
    "read ranges": lambda s, _: s.read_ranges("x", [0.5], [2.5], [np.empty(2, "f4")]),
    "read ranges of other numbers": lambda s, _: s.read_ranges("x", [0, 1], [2], [np.empty(2, "f4")]),
    "stored bytes": lambda s, _: s.stored_bytes("x", 0.5),
    "stored bytes before": lambda s, _: s.stored_bytes("x", -1),
    "stored bytes behind": lambda s, _: s.stored_bytes("x", 99),
    "epoch before": lambda _, b: b.batches(epoch=-1),
    "epoch behind": lambda _, b: b.batches(epoch=2**31),
    "start_batch": lambda _, b: b.batches(0, start_batch=1.5),
    "start_batch before": lambda _, b: b.batches(0, start_batch=-1),
    "start_draws": lambda _, b: b.batches(0, start_draws=[0.5]),
    "start_draws before": lambda _, b: b.batches(0, start_draws=[-4]),
    "start_draws behind": lambda _, b: b.batches(0, start_draws=[10**6]),
    "first_group": lambda _, b: b.batches(0, first_group=0.5),
    "first_group behind": lambda _, b: b.batches(0, first_group=1),
    "groups": lambda _, b: b.batches(0, groups=[0.0]),
    "groups twice": lambda _, b: b.batches(0, groups=[0, 0]),
    "n_batches": lambda _, b: b.n_batches(world_size=1.5),
    "n_batches of none": lambda _, b: b.n_batches(world_size=0),
    "n_batches of a rank": lambda _, b: b.n_batches(2, 2),
    "n_draws": lambda _, b: b.n_draws(0.5),
    "n_draws before": lambda _, b: b.n_draws(-1),
    "n_draws behind": lambda _, b: b.n_draws(1),
    "schedule": lambda _, b: b.schedule(0.5),
    "schedule before": lambda _, b: b.schedule(-1),
    "counts": lambda *_: EpochSchedule([4.5, 4], key=0),
    "counts before": lambda *_: EpochSchedule([-4, 8], key=0),
    "counts behind": lambda *_: EpochSchedule([2**62, 2**62], key=0),
    "key": lambda *_: EpochSchedule([4], key=0.5),
    "lanes": lambda *_: EpochSchedule([4], key=0, lanes=1.5),
    "passes": lambda *_: EpochSchedule([4], key=0, passes=0),
    "draws": lambda *_: EpochSchedule([4], key=0).items([0.5]),
    "group": lambda *_: EpochSchedule([4], key=0).needs(group=1),
    "rank": lambda *_: EpochSchedule([4], key=0).needs(rank=1),
    "start": lambda *_: EpochSchedule([4], key=0).needs(start=0.5),
    "locate": lambda s, b: b.index.locate([0.5]),
    "ids_of": lambda s, b: b.index.ids_of([0], [0.5]),
    "count_before": lambda s, b: b.index.count_before([0], [0.5]),
    "a window beyond all": lambda s, _: WindowIndex(s.segments(), WindowSpec(2**63)),
    "a stride beyond all": lambda s, _: WindowIndex(s.segments(), WindowSpec(2, stride=2**63)),
    "a phase beyond all": lambda s, _: WindowIndex(s.segments(), WindowSpec(2, phase=2**63)),
    "a window by its part": lambda s, _: WindowDataset(s, 2)[0.5],
    "a window by a truth": lambda s, _: WindowDataset(s, 2)[True],
    "a window by a name": lambda s, _: WindowDataset(s, 2)["a"],
    "windows by a slice": lambda s, _: WindowDataset(s, 2)[0:2],
    "windows in two axes": lambda s, _: WindowDataset(s, 2).batch([[0, 1]]),
    "set_epoch": lambda s, _: ZarrWindowDataset(s, 2).set_epoch(-1),
    "set_epoch behind": lambda s, _: ZarrWindowDataset(s, 2).set_epoch(2**32),
    "ahead": lambda s, _: ZarrWindowDataset(s, 2, ahead=-1),
    "shuffle": lambda s, _: ZarrWindowDataset(s, 2, shuffle="no"),
    "drop_last": lambda s, _: ZarrWindowDataset(s, 2, drop_last=0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_numbers_of_public_calls_are_whole_and_within_their_range(small_store, call):
    with WindowLoader(small_store, WindowSpec(2), batch_size=4) as loader, pytest.raises(ConfigError):
        call(small_store, loader)


def test_numbers_of_numpy_make_the_order_and_the_state_that_their_values_make(small_store):
    plain = {"stride": 1, "phase": 1, "seed": 3, "lane_groups": 2, "shuffle": True, "target_offset": 1}
    numpys = {name: np.asarray(value)[()] for name, value in plain.items()}
    states = []
    for options, n in ((plain, 2), (numpys, np.uint8(2))):
        dataset = ZarrWindowDataset(
            small_store,
            n,
            batch_size=n,
            sampling={"per_sequence": n},
            targets="x",
            target_length=n,
            **options,
        )
        batches = [batch["start"].tolist() for batch in dataset]
        states.append(json.dumps([batches, dataset.state_dict()]))
        with WindowLoader(
            small_store, WindowSpec(n, phase=n), batch_size=n, sampling={"per_sequence": n}
        ) as one:
            states[-1] += one.fingerprint
    assert states[0] == states[1]

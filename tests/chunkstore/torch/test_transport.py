"""Batches in slots of shared memory: what arrives is what was sent, and slots are used again."""

from __future__ import annotations

import copy
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

from chunkstore.torch import transport
from chunkstore.torch.transport import HEAD, SharedBatch


@pytest.fixture(autouse=True)
def no_slots():
    transport._mine.clear()
    transport._theirs.clear()
    yield
    transport._mine.clear()
    transport._theirs.clear()


def sent(batch):
    return ForkingPickler.loads(ForkingPickler.dumps(SharedBatch(batch)))


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(100_000).float().reshape(10, 1, -1),
        torch.arange(100_000, dtype=torch.int16).reshape(-1, 4).T,
        torch.arange(8),
        torch.tensor([True, False]),
        torch.zeros(0, 3),
        torch.tensor(3.5, dtype=torch.float64),
        torch.arange(9000).bfloat16(),
        torch.ones(3, dtype=torch.bfloat16),
        "words",
        [1, 2],
    ],
    ids=lambda v: f"{v.dtype} {tuple(v.shape)}" if isinstance(v, torch.Tensor) else repr(v),
)
def test_what_arrives_is_what_was_sent(value):
    batch = sent({"value": value, "position": torch.tensor([0, 1])})
    assert type(batch) is dict
    got = batch["value"]
    if isinstance(value, torch.Tensor):
        assert (got.dtype, got.shape) == (value.dtype, value.shape)
        assert torch.equal(got, value)
        got += 1 if got.dtype != torch.bool else True  # it is the receiver's own
    else:
        assert got == value


def test_what_is_kept_stays_as_it_came_and_shared_memory_stays_small():
    kept = [sent({"x": torch.full((50_000,), number)})["x"] for number in range(20)]
    assert [int(x[-1]) for x in kept] == list(range(20))
    assert all(bool((x == x[0]).all()) for x in kept)
    slots = transport._own_slots()._slots
    assert len(slots) <= transport.LEASED + 1
    view = kept[0][7:]
    del kept
    for number in range(100, 110):
        sent({"x": torch.full((50_000,), number)})
    assert bool((view == 0).all())  # a view holds its slot, too
    assert sum(int(slot[0]) for slot in slots) == 1
    del view
    assert sum(int(slot[0]) for slot in slots) == 0


def test_a_slot_is_used_again_once_its_contents_are_let_go_of():
    for number in range(5):
        assert torch.equal(sent({"x": torch.full((50_000,), number)})["x"], torch.full((50_000,), number))
    assert len(transport._own_slots()._slots) == 1
    waiting = [ForkingPickler.dumps(SharedBatch({"x": torch.full((50_000,), n)})) for n in range(3)]
    assert len(transport._own_slots()._slots) == 3
    assert [int(ForkingPickler.loads(m)["x"][0]) for m in waiting] == [0, 1, 2]


def test_a_smaller_batch_fits_into_a_larger_slot():
    sent({"x": torch.zeros(50_000)})
    assert torch.equal(sent({"x": torch.arange(20_000)})["x"], torch.arange(20_000))
    (slot,) = transport._own_slots()._slots
    assert len(slot) == HEAD + 200_000


def test_slots_of_a_process_that_has_ended_are_given_back():
    transport._theirs[2**22 + 1, 7] = {}  # no process has such a number
    sent({"x": torch.zeros(50_000)})
    assert list(transport._theirs) == [transport._own_slots().origin]


def test_a_copy_stays_a_batch_on_its_way():
    batch = SharedBatch({"x": torch.zeros(2)})
    assert type(copy.copy(batch)) is SharedBatch

"""Batches in slots of shared memory: what arrives is what was sent, and slots are used again."""

from __future__ import annotations

import copy
import os
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

from chunkstore.torch import transport
from chunkstore.torch.transport import HEAD, SLOTS, SharedBatch, SlotBuffers


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
        torch.full((8,), 1j, dtype=torch.complex64).conj(),
        torch.full((9000,), 1j, dtype=torch.complex64).conj(),
        torch.full((9000,), 1j, dtype=torch.complex64).conj().imag,
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


@pytest.mark.parametrize(("size", "leases"), [(50_000, 8), (400_000, 3)])  # int64: 12 MiB hold three of these
def test_what_is_kept_stays_as_it_came_and_shared_memory_stays_small(size, leases):
    kept = [sent({"x": torch.full((size,), number)})["x"] for number in range(20)]
    assert [int(x[-1]) for x in kept] == list(range(20))
    assert all(bool((x == x[0]).all()) for x in kept)
    slots = transport._own_slots().slots
    assert len(slots) <= leases + 1
    view = kept[0][7:]
    del kept
    for number in range(100, 110):
        sent({"x": torch.full((size,), number)})
    assert bool((view == 0).all())  # a view holds its slot, too
    assert sum(int(slot.values[0]) for slot in slots) == 1
    del view
    assert sum(int(slot.values[0]) for slot in slots) == 0


def test_a_slot_is_used_again_once_its_contents_are_let_go_of():
    for number in range(5):
        assert torch.equal(sent({"x": torch.full((50_000,), number)})["x"], torch.full((50_000,), number))
    assert len(transport._own_slots().slots) == 1
    waiting = [ForkingPickler.dumps(SharedBatch({"x": torch.full((50_000,), n)})) for n in range(3)]
    assert len(transport._own_slots().slots) == 3
    assert [int(ForkingPickler.loads(m)["x"][0]) for m in waiting] == [0, 1, 2]


def test_a_smaller_batch_fits_into_a_larger_slot():
    sent({"x": torch.zeros(50_000)})
    assert torch.equal(sent({"x": torch.arange(20_000)})["x"], torch.arange(20_000))
    (slot,) = transport._own_slots().slots
    assert len(slot.memory) == HEAD + 200_000


def test_batches_that_grow_and_grow_take_no_slot_each():
    kept = sent({"x": torch.full((5_000,), 7)})["x"]
    for number in range(3 * SLOTS):
        assert torch.equal(sent({"x": torch.arange(8192 + number)})["x"], torch.arange(8192 + number))
    assert len(transport._own_slots().slots) == SLOTS
    assert len(transport._own_slots()._by_place) == SLOTS
    assert bool((kept == 7).all())  # what somebody holds stays where it is


def test_slots_of_a_process_that_has_ended_are_given_back():
    transport._theirs[2**22 + 1, 7] = {}  # no process has such a number
    sent({"x": torch.zeros(50_000)})
    assert list(transport._theirs) == [transport._own_slots().origin]


def test_a_copy_stays_a_batch_on_its_way():
    batch = SharedBatch({"x": torch.zeros(2)})
    assert type(copy.copy(batch)) is SharedBatch


def cut(value=1.0, shape=(50, 1000)):
    """A tensor whose values were cut in a slot, as a worker's windows are."""
    array = SlotBuffers().empty(shape, "f4")
    array[...] = value
    return torch.from_numpy(array)


def test_what_was_cut_in_a_slot_is_sent_without_a_copy():
    for number in range(6):
        batch = SharedBatch({"x": cut(number), "start": torch.arange(50)})
        message = ForkingPickler.dumps(batch)
        batch.clear()  # the worker lets go
        assert bool((ForkingPickler.loads(message)["x"] == number).all())
        assert len(transport._own_slots().slots) == 1


HOLDERS = {
    "the tensor": lambda x: x,
    "a batch of it": lambda x: {"x": x},
    "a view": lambda x: x[3],
    "a reshaped view": lambda x: x.reshape(-1),
    "an array": lambda x: x.numpy(),
    "a view of an array": lambda x: x.numpy()[7:],
    "the same memory": lambda x: x.detach(),
    "its storage": lambda x: x.untyped_storage(),
    "a capsule": torch.utils.dlpack.to_dlpack,
    "a graph": lambda x: (x * torch.ones(1, requires_grad=True)).sum(),
    "a closure": lambda x: lambda: x,
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_what_a_transform_keeps_is_sent_as_a_copy(hold):
    batch = SharedBatch({"x": cut(1.0)})
    kept = hold(batch["x"])
    place = batch["x"].data_ptr()
    message = ForkingPickler.dumps(batch)
    batch.clear()
    got = ForkingPickler.loads(message)["x"]
    assert len(transport._own_slots().slots) == 2
    assert bool((got == 1).all())
    got += 5  # what the loop writes is not seen where it was kept
    for number in range(4):  # nor what is cut later
        cut(number)
    (slot,) = (s for s in transport._own_slots().slots if s.look.place == place)
    assert bool((slot.memory[HEAD:].view(torch.float32) == 1).all())
    del kept
    assert cut().data_ptr() == place  # free again


def test_two_names_of_one_tensor_are_two_tensors_of_the_receiver():
    x = cut(2.0)
    batch = SharedBatch({"x": x, "same": x})
    del x
    got = ForkingPickler.loads(ForkingPickler.dumps(batch))
    got["x"] += 1
    assert bool((got["same"] == 2).all())


def test_a_batch_that_is_sent_twice_arrives_twice():
    batch = SharedBatch({"x": cut(3.0)})
    one, two = (ForkingPickler.loads(ForkingPickler.dumps(batch))["x"] for _ in range(2))
    one += 1
    assert bool((two == 3).all())


def test_a_slot_is_not_cut_in_before_both_sides_have_let_go():
    batch = SharedBatch({"x": cut(1.0)})
    message = ForkingPickler.dumps(batch)
    batch.clear()
    on_its_way = cut(2.0)  # lies elsewhere
    got = ForkingPickler.loads(message)["x"]
    later = cut(3.0)
    assert bool((got == 1).all())
    assert len({x.data_ptr() for x in (on_its_way, later)}) == 2
    assert len(transport._own_slots().slots) == 3


def test_where_torch_does_not_count_holders_everything_is_copied(monkeypatch):
    monkeypatch.setattr(transport, "_ALONE", ())
    batch = SharedBatch({"x": cut(1.0)})
    got = ForkingPickler.loads(ForkingPickler.dumps(batch))["x"]
    batch["x"] += 1
    assert bool((got == 1).all())


def test_kinds_of_batches_are_told_once_and_may_be_many():
    lengths = [int(n) for n in np.random.default_rng(0).integers(1, 300, 200)]
    first, again = [
        [len(bytes(ForkingPickler.dumps(SharedBatch({"start": torch.zeros(9), "word": n})))) for n in (1, 2)]
        for _ in range(2)
    ]
    assert max(first[1:] + again) < first[0]
    for n in lengths:
        got = sent({"start": torch.arange(n), "x": torch.full((n, 2), n)})
        assert torch.equal(got["start"], torch.arange(n))
        assert torch.equal(got["x"], torch.full((n, 2), n))
    assert len(transport._own_slots()._schemas) == transport.SCHEMAS
    assert len(transport._theirs[transport._own_slots().origin].schemas) <= transport.SCHEMAS


def test_small_arrays_of_a_worker_are_plain_ones():
    assert SlotBuffers().empty((7, 3), "f4").flags.owndata
    assert not transport._own_slots().slots


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_batch_that_a_forked_child_lets_go_of_stays_as_it_is_for_its_parent():
    batch = sent({"x": torch.arange(100_000)})
    child = os.fork()
    if child == 0:
        del batch
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for n in range(3):
        sent({"x": torch.full((100_000,), n)})
    assert torch.equal(batch["x"], torch.arange(100_000))

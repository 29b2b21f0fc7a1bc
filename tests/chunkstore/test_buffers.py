"""Memory of batches: never given out twice while anybody holds it, used again afterwards."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from chunkstore.buffers import LEAST, BatchBuffers
from chunkstore.loader import WindowLoader
from chunkstore.windows import WindowSpec

if TYPE_CHECKING:
    from pathlib import Path

SIDE = 1024  # a float32 square of it takes 4 MiB, far above LEAST


def test_what_somebody_holds_is_never_given_out_again() -> None:
    buffers = BatchBuffers()
    held = []
    for value in range(12):
        array = buffers.empty((SIDE, SIDE), "f4")
        array[...] = value
        held.append(array[value:] if value % 2 else array)  # a view is a holder too
        if value % 3 == 0:
            held[value] = None
    for value, array in enumerate(held):
        assert array is None or (array == value).all()


def test_a_buffer_that_came_back_serves_the_next_batch_of_its_size_or_less() -> None:
    buffers = BatchBuffers()
    place = buffers.empty((SIDE, SIDE), "f4").ctypes.data
    smaller = buffers.empty((SIDE // 2, SIDE), "f4")
    assert smaller.ctypes.data == place
    assert smaller.shape == (SIDE // 2, SIDE)
    assert smaller.dtype == np.float32
    assert smaller.flags.c_contiguous
    assert smaller.flags.writeable


def test_a_larger_batch_lets_smaller_buffers_go() -> None:
    buffers = BatchBuffers()
    buffers.empty((SIDE, SIDE), "f4")
    larger = buffers.empty((2 * SIDE, SIDE), "f4")
    larger[...] = 1
    assert larger.nbytes == 8 * SIDE * SIDE


def test_no_more_than_a_few_buffers_wait() -> None:
    buffers = BatchBuffers(keep=2)
    many = [buffers.empty((SIDE, SIDE), "f4") for _ in range(5)]
    many.clear()
    assert len(buffers._free) == 2
    buffers.clear()
    assert not buffers._free


@pytest.mark.parametrize("shape", [(0,), (3,), (LEAST // 8 - 1,)])
def test_small_arrays_are_plain_ones(shape: tuple[int, ...]) -> None:
    array = BatchBuffers().empty(shape, "i8")
    assert array.shape == shape
    assert array.flags.owndata


def test_a_copy_of_the_buffers_holds_none() -> None:
    buffers = BatchBuffers(keep=3)
    buffers.empty((SIDE, SIDE), "f4")
    copy = pickle.loads(pickle.dumps(buffers))
    assert (copy.keep, copy._free) == (3, [])


def test_threads_that_take_and_let_go_never_share_a_buffer() -> None:
    buffers = BatchBuffers()
    wrong = []

    def work(number: int) -> None:
        for turn in range(200):
            array = buffers.empty((LEAST,), "u1")
            array[...] = (number * 31 + turn) % 251
            if not (array == (number * 31 + turn) % 251).all():
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_batches_that_a_loop_keeps_stay_as_they_were(tmp_path: Path) -> None:
    from chunkstore import StoreWriter, open_store

    values = np.arange(200_000, dtype=np.float32)
    with StoreWriter(tmp_path / "s.zarr", {"v": "f4"}) as out:
        out.write("a", {"v": values})
    with WindowLoader(open_store(tmp_path / "s.zarr"), WindowSpec(4096, stride=512), batch_size=32) as loader:
        kept = [(b["x"][::2], b["start"][::2]) for epoch in range(3) for b in loader.batches(epoch)]
    assert len(kept) > 20
    for x, start in kept:
        np.testing.assert_array_equal(x[:, 0], values[start[:, None] + np.arange(4096)])

"""The map-style view: the same windows under numbers, for evaluation and samplers of others."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler

from chunkstore import StoreWriter
from chunkstore.errors import ConfigError
from chunkstore.torch import WindowDataset, ZarrWindowDataset

SIZES = (150, 40, 333, 8, 260, 0, 97, 512)
W = 24
STARTS = [(s, p) for s, n in enumerate(SIZES) for p in range(n - W + 1)]


def places(batch):
    return batch["sequence"].tolist(), batch["start"].tolist()


def test_windows_are_numbered_in_the_order_of_the_store(store):
    windows = WindowDataset(store, W, fields="x")
    assert len(windows) == len(STARTS)
    batch = windows.batch(range(len(windows)))
    assert list(zip(batch["sequence"].tolist(), batch["start"].tolist(), strict=True)) == STARTS


@settings(max_examples=30, deadline=None)
@given(numbers=st.lists(st.integers(-len(STARTS), len(STARTS) - 1), min_size=1, max_size=20))
def test_any_windows_in_any_order_hold_what_the_store_holds(store, numbers):
    windows = WindowDataset(store, W, fields=["x", "v", "n"], cache=4096)
    for number, sample in zip(numbers, windows.__getitems__(numbers), strict=True):
        sequence, start = STARTS[number]
        first = int(store.sequences.offsets[sequence]) + start
        assert (int(sample["sequence"]), int(sample["start"]), int(sample["length"])) == (sequence, start, W)
        assert np.array_equal(sample["x"][0].numpy(), store.read("x", first, first + W))
        assert np.array_equal(sample["x"][1:3].numpy().T, store.read("v", first, first + W))
        assert np.array_equal(sample["x"][3].numpy(), store.read("n", first, first + W) * 0.5)


@pytest.mark.parametrize(
    "options",
    [
        {"targets": "x", "target_length": 3},
        {"targets": "kind", "labels": ["weight"]},
        {"short": "pad", "normalize": "store", "window": 100},
        {"channels": "last", "dtype": None, "fields": "n"},
        {"stride": 5, "phase": 2, "targets": ["n", "x"], "target_offset": 10, "target_length": 20},
    ],
    ids=["forecast", "labels", "padded", "as stored", "phase"],
)
def test_it_agrees_with_the_training_reader_on_every_window(store, options):
    options = {"window": W, "fields": ["x", "v"], **options}
    window = options.pop("window")
    windows = WindowDataset(store, window, **options)
    dataset = ZarrWindowDataset(store, window, batch_size=100, **options)
    every = windows.batch(range(len(windows)))
    number = {place: i for i, place in enumerate(zip(*places(every), strict=True))}
    for batch in dataset:
        ids = [number[place] for place in zip(*places(batch), strict=True)]
        same = windows.batch(ids)
        for key, value in same.items():
            assert torch.equal(value, batch[key]), key


def test_several_stores_have_one_numbering(two_paths):
    windows = WindowDataset(two_paths, W, fields="x")
    batch = windows.batch(range(len(windows)))
    sequence = batch["sequence"] + 4 * batch["store"]
    assert list(zip(sequence.tolist(), batch["start"].tolist(), strict=True)) == STARTS
    at = batch["start"][:, None] + torch.arange(W)
    assert torch.equal(batch["x"][:, 0], (sequence[:, None] * 1000 + at).float())


def test_a_dataloader_with_a_sampler_of_others_and_workers_reads_it(path):
    windows = WindowDataset(path, W, fields="x")
    order = torch.Generator().manual_seed(3)
    loader = DataLoader(
        windows,
        batch_size=50,
        sampler=RandomSampler(windows, generator=order),
        num_workers=2,
        multiprocessing_context="forkserver",
    )
    seen = []
    for batch in loader:
        at = batch["start"][:, None] + torch.arange(W)
        assert torch.equal(batch["x"][:, 0], (batch["sequence"][:, None] * 1000 + at).float())
        seen += zip(batch["sequence"].tolist(), batch["start"].tolist(), strict=True)
    assert sorted(seen) == STARTS


def test_what_windows_share_is_read_once(store, monkeypatch):
    windows = WindowDataset(store, W, fields="x")
    opened = windows.recipe.stores[0]
    asked = []
    original = type(opened).read_ranges

    def counted(self, field, starts, stops, outs):
        asked.append(list(starts))
        return original(self, field, starts, stops, outs)

    monkeypatch.setattr(type(opened), "read_ranges", counted)
    windows.__getitems__([0, 1, 2, 3])
    windows.__getitems__([2, 5])
    assert asked == [[0]]


def test_the_cache_keeps_no_more_than_its_limit(store):
    windows = WindowDataset(store, W, fields="x", cache=1000)
    for number in range(0, len(windows), 97):
        windows[number]
    cache = windows._reader._cache
    assert sum(rows.nbytes for rows in cache._kept.values()) == cache._bytes <= 1000


def test_a_transform_that_raises_names_the_window(store):
    def broken(sample):
        raise ValueError("no")

    windows = WindowDataset(store, W, fields="x", transform=broken)
    with pytest.raises(ValueError, match="no") as caught:
        windows[200]
    assert "in the transform of window 200: 's2' [56, 80)" in caught.value.__notes__[0]


@pytest.mark.parametrize("number", [len(STARTS), -len(STARTS) - 1])
def test_a_number_beyond_the_end_is_an_index_error(store, number):
    with pytest.raises(IndexError):
        WindowDataset(store, W)[number]


def test_a_random_phase_is_refused(store):
    with pytest.raises(ConfigError, match="renumber"):
        WindowDataset(store, W, phase="random")


def test_it_survives_a_pickle_without_its_cache(store):
    windows = WindowDataset(store, W, fields="x")
    windows[0]
    again = pickle.loads(pickle.dumps(windows))
    assert len(pickle.dumps(windows)) < 20_000
    assert torch.equal(again[5]["x"], windows[5]["x"])


def test_a_target_that_lies_behind_all_of_a_padded_window_is_padding():
    with StoreWriter("memory://mapped-short", {"x": "f4"}, overwrite=True) as out:
        out.write("a", {"x": [1, 2, 3]})
    windows = WindowDataset(
        "memory://mapped-short", 4, targets="x", target_offset=4, target_length=2, short="pad"
    )
    one = windows[0]
    assert one["x"].tolist() == [[1, 2, 3, 0]]
    assert one["y"].tolist() == [[0, 0]]

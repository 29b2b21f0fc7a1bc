"""The loader that counts: states, epochs, devices; workers are tested with the other processes."""

from __future__ import annotations

import json
from multiprocessing import forkserver

import pytest
import torch

from chunkstore.errors import ConfigError
from chunkstore.torch import TrainingLoader, ZarrWindowDataset

W = 24
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def rows(batch):
    return list(zip(batch["sequence"].tolist(), batch["start"].tolist(), strict=True))


@pytest.mark.parametrize("device", [None, "cpu", pytest.param("cuda", marks=NO_GPU)])
def test_a_state_counts_what_the_loop_was_handed(store, device):
    loader = TrainingLoader(ZarrWindowDataset(store, W, batch_size=64), device=device)
    whole = [rows(batch) for batch in loader]
    loader.set_epoch(0)
    for number, batch in enumerate(loader):
        assert batch["x"].device.type == (device or "cpu")
        assert batch["position"].device.type == "cpu"
        state = json.loads(json.dumps(loader.state_dict()))
        assert state == loader.dataset.state_dict(batch)
        if number == 3:
            break
    again = TrainingLoader(ZarrWindowDataset(store, W, batch_size=64))
    again.load_state_dict(state)
    assert [rows(batch) for batch in again] == whole[4:]


def test_before_the_first_batch_the_state_is_that_of_the_epoch_to_come(store):
    loader = TrainingLoader(ZarrWindowDataset(store, W, batch_size=64))
    loader.set_epoch(4)
    assert loader.state_dict()["epoch"] == 4
    assert loader.state_dict()["drawn"] == [0]


def test_a_loop_that_is_interrupted_before_its_first_batch_loses_nothing(store):
    def interrupted(batch):
        raise KeyboardInterrupt

    loader = TrainingLoader(ZarrWindowDataset(store, W, batch_size=64))
    for number, _ in enumerate(loader):
        if number == 3:
            break
    state = loader.state_dict()
    again = TrainingLoader(ZarrWindowDataset(store, W, batch_size=64, transform=interrupted))
    again.load_state_dict(state)
    with pytest.raises(KeyboardInterrupt):
        next(iter(again))
    assert again.state_dict() == state


def test_a_newer_iteration_ends_the_older_and_its_count(store):
    loader = TrainingLoader(ZarrWindowDataset(store, W, batch_size=64))
    older, newer = iter(loader), iter(loader)
    next(older), next(newer)
    with pytest.raises(ConfigError, match="a newer one over the same loader"):
        next(older)
    assert (loader.state_dict()["epoch"], loader.state_dict()["drawn"]) == (1, [64])


def test_a_batch_size_of_its_own_is_refused(store):
    with pytest.raises(ConfigError, match="belongs to the dataset"):
        TrainingLoader(ZarrWindowDataset(store, W), batch_size=8)


def test_a_device_that_is_not_here_is_refused(store):
    with pytest.raises(ConfigError, match="device='nope' cannot hold tensors here"):
        TrainingLoader(ZarrWindowDataset(store, W, batch_size=64), device="nope")


def test_a_device_that_keeps_no_values_is_refused(store):
    with pytest.raises(ConfigError, match="device='meta' cannot hold tensors here"):
        ZarrWindowDataset(store, W, device="meta")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NO_GPU)])
def test_what_is_no_tensor_goes_to_the_loop_as_it_is(store, device):
    dataset = ZarrWindowDataset(store, W, batch_size=64, transform=lambda b: {**b, "note": ["text"]})
    assert next(iter(TrainingLoader(dataset, device=device)))["note"] == ["text"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_workers": 1.5}, "num_workers must be a whole number"),
        ({"num_workers": -1}, "num_workers must be 0 or more"),
        ({"num_workers": 1, "multiprocessing_context": "thread"}, "this system has .*spawn"),
    ],
)
def test_what_cannot_be_is_said_when_the_loader_is_made(store, options, told):
    with pytest.raises(ConfigError, match=told):
        TrainingLoader(ZarrWindowDataset(store, W), **options)


def test_a_dataset_of_others_is_refused():
    with pytest.raises(ConfigError, match="got list"):
        TrainingLoader([1, 2])


def test_what_the_fork_server_was_told_to_load_stays(store, monkeypatch):
    monkeypatch.setattr(forkserver._forkserver, "_preload_modules", ["__main__", "json"])
    for _ in range(2):
        TrainingLoader(ZarrWindowDataset(store, W), num_workers=1)
    loads = forkserver._forkserver._preload_modules
    assert loads == ["__main__", "json", "chunkstore.torch", "chunkstore.loader"]

"""fastai: a Learner really trains on windows from a store."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("fastai", reason="make test-adapters has fastai in an environment of its own")

from fastai.callback.progress import ProgressCallback
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import accuracy

from chunkstore.fastai import data_loaders
from chunkstore.torch import ZarrWindowDataset


def datasets(store, **options):
    options = {"targets": "kind", "stride": 4, "batch_size": 32, "normalize": "store", **options}
    return (
        ZarrWindowDataset(store, 64, split="train", **options),
        ZarrWindowDataset(store, 64, split="valid", shuffle=False, **options),
    )


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 16, 9, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 2)
    )


def learner(dls):
    learn = Learner(dls, model(), loss_func=CrossEntropyLossFlat(), metrics=accuracy, lr=1e-2)
    learn.remove_cb(ProgressCallback)
    return learn


def test_a_learner_learns_the_classes(waves):
    dls = data_loaders(*datasets(waves), device=torch.device("cpu"))
    assert (dls.c, dls.vocab) == (2, ("fast", "slow"))
    learn = learner(dls)
    with learn.no_bar(), learn.no_logging():
        before = learn.validate()
        learn.fit(3)
        after = learn.validate()
    assert after[0] < before[0] / 2
    assert after[1] > 0.9


def test_predictions_come_in_the_order_of_the_store(waves):
    train, valid = datasets(waves)
    learn = learner(data_loaders(train, valid, device=torch.device("cpu")))
    with learn.no_bar():
        predictions, targets = learn.get_preds()
    assert len(predictions) == valid.n_windows
    assert torch.equal(targets, torch.cat([batch["y"] for batch in valid]))


def test_every_epoch_has_an_order_of_its_own_and_looking_at_a_batch_begins_none(waves):
    train, valid = datasets(waves)
    dls = data_loaders(train, valid, device=torch.device("cpu"))
    shown = dls.one_batch()[0]
    first = [x for x, _ in dls.train]
    assert torch.equal(first[0], shown)
    assert train.epoch == 1
    assert not torch.equal(next(iter(dls.train))[0], shown)


def test_training_goes_on_from_the_state_of_a_loader(waves):
    train, _ = datasets(waves)
    dl = data_loaders(train, device=torch.device("cpu")).train
    seen = []
    for number, (x, _) in enumerate(dl):
        seen.append(x)
        if number == 2:
            state = dl.state_dict()
    again = data_loaders(datasets(waves)[0], device=torch.device("cpu")).train
    again.load_state_dict(state)
    assert all(torch.equal(a, b) for a, (b, _) in zip(seen[3:], again, strict=True))

"""tsai: TSTPlus with masked pre-training, and with CutMix, really trains on windows from a store."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("tsai", reason="make test-adapters has tsai in an environment of its own")

from fastai.metrics import accuracy

from chunkstore.errors import ConfigError
from chunkstore.torch import ZarrWindowDataset
from chunkstore.tsai import data_loaders


@pytest.fixture
def loaders(waves):
    def make(**options):
        options = {"stride": 8, "batch_size": 32, "normalize": "store", **options}
        train = ZarrWindowDataset(waves, 48, split="train", **options)
        valid = ZarrWindowDataset(waves, 48, split="valid", shuffle=False, **options)
        return data_loaders(train, valid, device=torch.device("cpu"))

    return make


SMALL = {"n_layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32}


def fitted(dls, epochs, **options):
    from tsai.learner import ts_learner
    from tsai.models.TSTPlus import TSTPlus

    torch.manual_seed(0)
    learn = ts_learner(dls, TSTPlus, lr=3e-3, arch_config=SMALL, **options)
    with learn.no_bar(), learn.no_logging():
        learn.fit(epochs)
    return learn


def test_tsai_finds_what_it_asks_of_its_own_loaders(loaders):
    dls = loaders(targets="kind")
    assert (dls.vars, dls.len, dls.c, dls.d, dls.cat) == (2, 48, 2, None, True)
    assert dls.cws.tolist() == [0.5, 0.5]
    forecast = loaders(targets="a", target_length=6)
    assert (forecast.c, forecast.d, forecast.cat) == (1, [1, 6], False)


def test_masked_pretraining_learns_to_fill_in_and_its_weights_serve_classes(loaders, tmp_path):
    from tsai.callback.MVP import MVP

    mask = MVP(r=0.3, target_dir=str(tmp_path), fname="pretrained")
    learn = fitted(loaders(), 6, cbs=[mask])
    losses = [row[0] for row in learn.recorder.values]
    assert losses[-1] < 0.9 * losses[0]
    tuned = fitted(loaders(targets="kind"), 3, metrics=accuracy, weights_path=tmp_path / "pretrained.pth")
    assert tuned.recorder.values[-1][-1] > 0.8


def test_cutmix_trains_classes(loaders):
    from tsai.data.mixed_augmentation import CutMix1d

    learn = fitted(loaders(targets="kind"), 6, metrics=accuracy, cbs=[CutMix1d()])
    assert learn.recorder.values[-1][-1] > 0.8


def test_a_forecast_of_several_steps_trains(loaders):
    learn = fitted(loaders(targets=["a", "b"], target_length=3, normalize_targets="store"), 4)
    losses = [row[0] for row in learn.recorder.values]
    assert losses[-1] < losses[0]


def test_channels_last_are_refused(waves):
    with pytest.raises(ConfigError, match="channels='first'"):
        data_loaders(ZarrWindowDataset(waves, 48, channels="last"))

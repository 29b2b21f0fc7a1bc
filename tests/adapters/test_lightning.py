"""Lightning: a Trainer really trains, and its checkpoints know which windows it has seen."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="make test-adapters has lightning in an environment of its own")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from chunkstore.lightning import WindowDataModule
from chunkstore.torch import ZarrWindowDataset


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv1d(2, 16, 9, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 2)
        )
        self.seen = []

    def training_step(self, batch, _):
        self.seen.append((self.current_epoch, batch["sequence"].tolist(), batch["start"].tolist()))
        return nn.functional.cross_entropy(self.net(batch["x"]), batch["y"])

    def validation_step(self, batch, _):
        right = (self.net(batch["x"]).argmax(1) == batch["y"]).float().mean()
        self.log("right", right, batch_size=len(batch["y"]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


class StopAt(Callback):
    """Save a checkpoint after a step and stop."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True
            raise KeyboardInterrupt


def module(store, **options):
    options = {"targets": "kind", "stride": 4, "batch_size": 32, "normalize": "store", **options}
    return WindowDataModule(
        ZarrWindowDataset(store, 64, split="train", **options),
        ZarrWindowDataset(store, 64, split="valid", shuffle=False, **options),
    )


def trainer(tmp_path, **options):
    return Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **options,
    )


def test_a_trainer_learns_the_classes_and_every_epoch_differs(waves, tmp_path):
    model, data = Classifier(), module(waves)
    fit = trainer(tmp_path, max_epochs=3)
    fit.fit(model, datamodule=data)
    assert float(fit.callback_metrics["right"]) > 0.9
    n = len(data.train_dataloader())
    assert len(model.seen) == 3 * n
    assert model.seen[0][1:] != model.seen[n][1:]


@pytest.mark.parametrize("step", [3, 15])
def test_a_checkpoint_in_mid_epoch_goes_on_behind_the_last_batch(waves, tmp_path, step):
    whole = Classifier()
    trainer(tmp_path, max_epochs=2).fit(whole, datamodule=module(waves))
    first = Classifier()
    path = tmp_path / "stopped.ckpt"
    with suppress(KeyboardInterrupt, SystemExit):  # as the signal that stops a run
        trainer(tmp_path, max_epochs=2, callbacks=[StopAt(step, path)]).fit(first, datamodule=module(waves))
    assert first.seen == whole.seen[:step]
    second = Classifier()
    trainer(tmp_path, max_epochs=2).fit(second, datamodule=module(waves), ckpt_path=path)
    assert second.seen == whole.seen[step:]

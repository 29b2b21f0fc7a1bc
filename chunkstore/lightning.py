"""Lightning: a ``DataModule`` whose checkpoints know which windows the training has seen.

Needs ``pip install lightning``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkstore.errors import MissingDependencyError
from chunkstore.torch import TrainingLoader

try:
    from lightning.pytorch import LightningDataModule
except ImportError as error:
    raise MissingDependencyError("this adapter needs lightning; run: pip install lightning") from error

if TYPE_CHECKING:
    from chunkstore.torch import ZarrWindowDataset

__all__ = ["WindowDataModule"]


class WindowDataModule(LightningDataModule):  # type: ignore[misc]  # lightning is not always there
    """Window datasets for a ``Trainer``.

    Each rank finds its place by itself; Lightning puts no sampler of its own before a dataset that
    gives ready batches. A checkpoint in mid-epoch goes on behind the last batch that was trained.

    Parameters
    ----------
    train : ZarrWindowDataset
        For ``fit``.
    valid, test, predict : ZarrWindowDataset, optional
        For the other loops; give them ``shuffle=False``.
    num_workers : int, default 0
        See :class:`chunkstore.torch.TrainingLoader`.
    **options
        Of :class:`chunkstore.torch.TrainingLoader`.

    Examples
    --------
    .. code-block:: python

        Trainer(max_epochs=3).fit(model, datamodule=WindowDataModule(train, valid))
    """

    def __init__(
        self,
        train: ZarrWindowDataset,
        valid: ZarrWindowDataset | None = None,
        test: ZarrWindowDataset | None = None,
        predict: ZarrWindowDataset | None = None,
        *,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self._loaders = {
            name: TrainingLoader(dataset, num_workers=num_workers, **options)
            for name, dataset in (("train", train), ("valid", valid), ("test", test), ("predict", predict))
            if dataset is not None
        }

    def train_dataloader(self) -> TrainingLoader:
        """Return the loader of ``train``, the same one every time: it counts."""
        return self._loaders["train"]

    def val_dataloader(self) -> TrainingLoader | list[Any]:
        """Return the loader of ``valid``, or none."""
        return self._loaders.get("valid", [])

    def test_dataloader(self) -> TrainingLoader | list[Any]:
        """Return the loader of ``test``, or none."""
        return self._loaders.get("test", [])

    def predict_dataloader(self) -> TrainingLoader | list[Any]:
        """Return the loader of ``predict``, or none."""
        return self._loaders.get("predict", [])

    def state_dict(self) -> dict[str, Any]:
        """Return where the training stands; part of Lightning's checkpoints."""
        return {"train": self._loaders["train"].state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on behind what the checkpoint had seen."""
        self._loaders["train"].load_state_dict(state_dict["train"])

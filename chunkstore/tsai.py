"""tsai: fastai loaders with the attributes that tsai asks of its own.

tsai's models and callbacks (``TSTPlus``, the masked pre-training of ``MVP``, ``CutMix1d``) read
``vars``, ``len``, ``c``, ``d`` and ``cat`` from the loaders. Needs ``pip install tsai``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError
from chunkstore.fastai import WindowDL
from chunkstore.fastai import data_loaders as fastai_loaders

if TYPE_CHECKING:
    import torch

    from chunkstore.torch import ZarrWindowDataset

__all__ = ["TSWindowDL", "data_loaders"]


class TSWindowDL(WindowDL):
    """A :class:`~chunkstore.fastai.WindowDL` that a tsai learner takes for one of its own."""

    @property
    def vars(self) -> int:
        """Channels of ``x``."""
        return len(self.dataset.channel_names)

    @property
    def len(self) -> int:
        """Obs of a window."""
        length: int = self.dataset.recipe.window.length
        return length

    @property
    def cat(self) -> bool:
        """Whether ``y`` is a class."""
        columns = self.dataset.recipe.y_labels
        return len(columns) == 1 and columns[0].categories is not None

    @property
    def c(self) -> int:
        """Number of classes, or 1 where ``y`` is numbers (their shape is ``d``) or absent."""
        return len(self.vocab) if self.cat else 1

    @property
    def d(self) -> int | list[int] | None:
        """Shape of ``y`` for one window where it is numbers; None for classes, one number or no ``y``."""
        if self.cat or self.dataset.recipe.target.is_empty:
            return None
        shape = list(self.one_batch()[-1].shape[1:])
        return None if not shape else shape[0] if len(shape) == 1 else shape

    @property
    def cws(self) -> torch.Tensor | None:
        """Weight of each class, the rarer the heavier; float32[classes], summing to 1; by sequences."""
        if not self.cat:
            return None
        import torch

        codes = self.dataset.recipe.y_labels[0].values
        counts = torch.bincount(torch.as_tensor(codes[codes >= 0]), minlength=self.c).clamp(min=1)
        weights = counts.sum() / counts
        return (weights / weights.sum()).to(self.device)


def data_loaders(
    train: ZarrWindowDataset,
    valid: ZarrWindowDataset | None = None,
    *,
    device: Any = None,
    **options: Any,
) -> Any:
    """Return loaders for ``tsai.learner.ts_learner``.

    Parameters
    ----------
    train, valid : ZarrWindowDataset
        Datasets of the training and the validation part, channels first.
    device : torch.device, optional
        Where batches are put.
    **options
        Of :class:`~chunkstore.fastai.WindowDL`.

    Raises
    ------
    ConfigError
        If a dataset has its channels last.

    Examples
    --------
    Masked pre-training, then classes:

    .. code-block:: python

        dls = data_loaders(ZarrWindowDataset(store, 512, targets="species"), valid)
        ts_learner(dls, TSTPlus, cbs=[MVP(r=0.15)]).fit(10)
        ts_learner(dls, TSTPlus, metrics=accuracy, cbs=[CutMix1d()]).fit(10)
    """
    for dataset in (train, valid):
        if dataset is not None and dataset.axes != "first":
            raise ConfigError(
                "tsai's models read [batch, channel, window]; make the dataset with channels='first'"
            )
    return fastai_loaders(train, valid, device=device, cls=TSWindowDL, **options)

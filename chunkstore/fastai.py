"""fastai: ``DataLoaders`` over window datasets, for a ``Learner``.

Needs ``pip install fastai`` (with the torch and torchvision that fit each other).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError, MissingDependencyError
from chunkstore.torch import TrainingLoader, ZarrWindowDataset

try:
    from fastai.data.core import DataLoaders, Pipeline
    from fastai.data.load import DataLoader
    from fastai.torch_core import to_device
except ImportError as error:
    raise MissingDependencyError("this adapter needs fastai; run: pip install fastai") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["WindowDL", "data_loaders"]


class WindowDL(DataLoader):  # type: ignore[misc]  # fastai has no types
    """One fastai loader: ``(x, y)`` of every batch of a dataset, on the learner's device.

    Parameters
    ----------
    dataset : ZarrWindowDataset
        Gives ready batches in its own order.
    x, y : str
        Keys of the batch; a batch without ``y`` is ``(x,)``.
    num_workers : int, default 0
        See :class:`chunkstore.torch.TrainingLoader`.
    device : torch.device, optional
        Where batches are put.
    after_batch : callable or sequence of callables, optional
        fastai's batch transforms.
    """

    def __init__(
        self,
        dataset: ZarrWindowDataset,
        *,
        x: str = "x",
        y: str = "y",
        num_workers: int = 0,
        device: Any = None,
        after_batch: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
    ) -> None:
        if not isinstance(dataset, ZarrWindowDataset):
            raise ConfigError(f"a WindowDL reads a ZarrWindowDataset, got {type(dataset).__name__}")
        self.windows = TrainingLoader(dataset, num_workers=num_workers)
        self._options = {"x": x, "y": y, "num_workers": num_workers, "after_batch": after_batch}
        self._keys = (x, y)
        super().__init__(dataset, bs=None, num_workers=0, device=device, after_batch=Pipeline(after_batch))

    n_inp = 1

    @property
    def c(self) -> int:
        """Number of classes of a label, else of the values that ``y`` has for a window."""
        columns = self.dataset.recipe.y_labels
        if len(columns) == 1 and columns[0].categories is not None:
            return len(columns[0].categories)
        target = self.one_batch()[-1]
        return int(target[0].numel())

    @property
    def loss_func(self) -> Any:
        """Cross entropy for classes, the mean squared error for numbers; asked for where none is given."""
        from fastai.losses import CrossEntropyLossFlat, MSELossFlat

        return CrossEntropyLossFlat() if hasattr(self, "vocab") else MSELossFlat()

    @property
    def vocab(self) -> tuple[str, ...]:
        """The words that the codes of ``y`` stand for."""
        columns = self.dataset.recipe.y_labels
        if len(columns) != 1 or columns[0].categories is None:
            raise AttributeError("vocab: y is not a label")
        words: tuple[str, ...] = columns[0].categories
        return words

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.windows:
            yield self._pair(batch)

    def get_idxs(self) -> list[int]:
        """Return the places of windows in what predictions come as: those of the dataset's own order."""
        return list(range(self.dataset.n_windows))

    def one_batch(self) -> tuple[Any, ...]:
        """Return the first batch of the epoch to come, without beginning it."""
        return self._pair(self.dataset.peek())

    def new(self, dataset: ZarrWindowDataset | None = None, cls: Any = None, **options: Any) -> WindowDL:
        """Return a loader like this one over another dataset; order and batches are the dataset's own."""
        known = {k: v for k, v in options.items() if k in self._options or k == "device"}
        made: WindowDL = (cls or type(self))(
            self.dataset if dataset is None else dataset, **{"device": self.device, **self._options, **known}
        )
        return made

    def _pair(self, batch: dict[str, Any]) -> tuple[Any, ...]:
        pair = tuple(batch[key] for key in self._keys if key in batch)
        if self.device is not None:
            pair = to_device(pair, self.device)
        done: tuple[Any, ...] = self.after_batch(pair)
        return done

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands; see :meth:`chunkstore.torch.TrainingLoader.state_dict`."""
        return self.windows.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind what ``state`` had consumed."""
        self.windows.load_state_dict(state)


def data_loaders(
    train: ZarrWindowDataset,
    valid: ZarrWindowDataset | None = None,
    *,
    device: Any = None,
    cls: type[WindowDL] = WindowDL,
    **options: Any,
) -> Any:
    """Return fastai ``DataLoaders`` for a ``Learner``.

    Parameters
    ----------
    train, valid : ZarrWindowDataset
        Datasets of the training and the validation part; give the latter ``shuffle=False``.
    device : torch.device, optional
        Where batches are put; fastai's default device if not given.
    **options
        Of :class:`WindowDL`.

    Examples
    --------
    Training three epochs with a model of one's own:

    .. code-block:: python

        dls = data_loaders(
            ZarrWindowDataset(store, 512, targets="species", split="train"),
            ZarrWindowDataset(store, 512, targets="species", split="valid", shuffle=False),
        )
        Learner(dls, model, loss_func=CrossEntropyLossFlat(), metrics=accuracy).fit(3)
    """
    from fastai.torch_core import default_device

    device = default_device() if device is None else device
    loaders = [cls(dataset, device=device, **options) for dataset in (train, valid) if dataset is not None]
    return DataLoaders(*loaders, device=device)

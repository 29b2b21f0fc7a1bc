"""Windows by number as tensors: the map-style dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch.utils.data import Dataset

from chunkstore.errors import ConfigError
from chunkstore.mapped import WindowReader
from chunkstore.numbers import whole_numbers
from chunkstore.provenance import Where, locate_batch
from chunkstore.recipe import Cutting, check_plain, plan_recipe, resolve_stores
from chunkstore.torch.tensors import scales_of, to_host, to_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    Sample = dict[str, torch.Tensor]

__all__ = ["WindowDataset"]


class WindowDataset(Dataset["Sample"]):
    """Every window of the stores under a number, in the order of (store, start).

    For evaluation, debugging and samplers of others; training reads far faster through
    :class:`ZarrWindowDataset`. Samples have the keys of its batches without the batch axis. A
    DataLoader asks for a whole batch at once (``__getitems__``); what its windows share is read once.

    Parameters
    ----------
    stores, window, stride, phase, short, fields, targets, target_offset, target_length, labels
        As for :class:`ZarrWindowDataset`; a phase must be a number.
    split, dtype, channels, normalize, normalize_targets, storage_options
        As for :class:`ZarrWindowDataset`.
    transform : callable, optional
        Called with each sample, returns the sample that is handed out.
    cache : int or str, default "64MiB"
        Bytes of decoded chunks to keep.

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> windows = WindowDataset(small_store(), window=2)
    >>> len(windows)
    7
    >>> windows[0]["x"].shape, int(windows[-1]["sequence"])
    (torch.Size([1, 2]), 2)
    """

    def __init__(
        self,
        stores: Any,
        window: int,
        *,
        stride: int = 1,
        phase: int = 0,
        short: Literal["drop", "pad", "error"] = "drop",
        fields: str | Sequence[str] | None = None,
        targets: str | Sequence[str] | None = None,
        target_offset: int | None = None,
        target_length: int | None = None,
        labels: str | Sequence[str] | None = None,
        split: str | None = None,
        dtype: Any = "float32",
        channels: Literal["first", "last"] = "first",
        normalize: Any = None,
        normalize_targets: Any = None,
        transform: Callable[[Sample], Sample] | None = None,
        cache: int | str = "64MiB",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(phase, (int, np.integer)):
            raise ConfigError(f"phase={phase!r} would renumber the windows; give a number of obs")
        cutting = Cutting(
            window=window,
            stride=stride,
            phase=phase,
            short=short,
            fields=fields,
            targets=targets,
            target_offset=target_offset,
            target_length=target_length,
            labels=labels,
            dtype=dtype,
            channels=channels,
            normalize=normalize,
            normalize_targets=normalize_targets,
        )
        check_plain(dtype, transform)
        self.recipe = plan_recipe(resolve_stores(stores, storage_options), cutting)
        self.transform = transform
        self._reader = WindowReader(self.recipe, split=split, dtype=dtype, channels=channels, cache=cache)
        self._scales = scales_of(self.recipe, channels)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Name of each channel of ``x``; items of vectors as ``field[0]``."""
        return self.recipe.channel_names

    def __len__(self) -> int:
        return self._reader.index.n_windows

    def batch(self, ids: Any) -> Sample:
        """Return windows as one batch, without ``transform``.

        Parameters
        ----------
        ids : sequence of int [batch]
            Numbers of windows; negative ones count from the end.

        Raises
        ------
        IndexError
            If a number is not in ``range(-len(self), len(self))``.
        """
        numbers = whole_numbers("numbers of windows", ids)
        if numbers.ndim != 1:
            raise ConfigError(f"numbers of windows must be a flat sequence, got shape {numbers.shape}")
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        arrays, room = self._reader.read(numbers)
        batch = {key: to_tensor(value) for key, value in arrays.items()}
        for key, offset, scale in self._scales:
            scale.apply(batch[key], room - offset if offset else room)
        return batch

    def __getitem__(self, number: int) -> Sample:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Sample]:
        """Return the samples of several windows, read together."""
        batch = self.batch(numbers)
        samples = [{key: value[row] for key, value in batch.items()} for row in range(len(numbers))]
        if self.transform is None:
            return samples
        out = []
        for row, sample in enumerate(samples):
            try:
                out.append(self.transform(sample))
            except Exception as error:
                one = {key: value[row : row + 1] for key, value in batch.items()}
                error.add_note(f"in the transform of window {numbers[row]}: {self.where(one)}")
                raise
        return out

    def where(self, batch: Mapping[str, Any]) -> Where:
        """Return the store, sequence, obs and time of each window of a batch."""
        keys = ("store", "sequence", "start", "length")
        return locate_batch(self.recipe.stores, {k: to_host(batch[k]) for k in keys if k in batch})

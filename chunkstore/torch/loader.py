"""A DataLoader that knows what the training loop has consumed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from chunkstore.errors import ConfigError
from chunkstore.numbers import whole_number
from chunkstore.state import Position, make_state
from chunkstore.torch.dataset import ZarrWindowDataset
from chunkstore.torch.device import put_ahead, torch_device
from chunkstore.torch.transport import forget_gone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Batch = dict[str, torch.Tensor]

__all__ = ["TrainingLoader"]

SMALL_BATCH = 4 << 20  # bytes up to which four batches of a worker may lie in shared memory


class TrainingLoader(DataLoader["Batch"]):
    """A DataLoader over a :class:`ZarrWindowDataset` that knows what the loop has consumed.

    With ``num_workers=0``, the fast way, threads decode and make batches ahead. Worker processes
    pay off where a transform costs more than a training step; they are started by ``forkserver``.

    Parameters
    ----------
    dataset : ZarrWindowDataset
        Its ``lane_groups`` must be a multiple of ``num_workers``.
    num_workers : int, default 0
        Worker processes.
    multiprocessing_context : str, default "forkserver"
        ``"forkserver"`` or ``"spawn"``.
    persistent_workers : bool, default True
        Keep workers, and the blocks resident in them, from one epoch to the next.
    device : str or torch.device, optional
        Where batches are put, but for ``position``; on a GPU the copy of the next batch, from pinned
        memory and in a stream of its own, runs beside the step.
    **options
        Of :class:`torch.utils.data.DataLoader`: ``pin_memory``, ``timeout``, ``prefetch_factor`` (batches on
        their way from each worker: 4, or 2 where a batch takes more than 4 MiB) ...

    Examples
    --------
    >>> from chunkstore.torch import ZarrWindowDataset
    >>> from chunkstore.examples import small_store
    >>> dataset = ZarrWindowDataset(small_store(), window=2, batch_size=4)
    >>> loader = TrainingLoader(dataset)
    >>> for batch in loader:
    ...     state = loader.state_dict()  # counts this batch and none that was fetched ahead
    ...     break
    >>> loader.load_state_dict(state)
    >>> len(list(loader))
    1
    """

    def __init__(
        self,
        dataset: ZarrWindowDataset,
        *,
        num_workers: int = 0,
        multiprocessing_context: Any = "forkserver",
        persistent_workers: bool = True,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(dataset, ZarrWindowDataset):
            raise ConfigError(
                f"a TrainingLoader reads a ZarrWindowDataset, got {type(dataset).__name__}; others are for "
                "torch's DataLoader"
            )
        if options.pop("batch_size", None) is not None:
            raise ConfigError("batch_size belongs to the dataset, which makes ready batches; set it there")
        num_workers = whole_number("num_workers", num_workers, 0)
        if num_workers:
            # a worker that computes in Python sends late: with four batches on their way none waits
            options.setdefault("prefetch_factor", 4 if _batch_bytes(dataset) <= SMALL_BATCH else 2)
            options |= {
                "multiprocessing_context": _context(multiprocessing_context),
                "persistent_workers": persistent_workers,
            }
        self._device = torch_device(device)
        if self._device is not None and self._device.type == "cuda":
            options.setdefault("pin_memory", True)
        super().__init__(dataset, batch_size=None, num_workers=num_workers, **options)
        self._position: torch.Tensor | None = None  # behind the last batch
        self._latest: object = None  # of the iterations begun

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # what is yielded is what counts
        self._latest = this = object()
        self._position = torch.tensor(self._upcoming.to_numbers())
        forget_gone()
        batches: Iterator[Batch] = super().__iter__()
        if self._device is not None:
            batches = put_ahead(batches, self._device)
        while True:
            if self._latest is not this:
                raise ConfigError("this iteration has ended: a newer one over the same loader took over")
            batch = next(batches, None)
            if batch is None:
                return
            self._position = batch["position"]
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration serve ``epoch``."""
        self._windows.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands: behind the last batch that this loader handed out."""
        if self._position is None:
            position = self._upcoming
        else:
            position = Position.from_numbers(self._position.tolist())
        return make_state(position, self._windows.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on behind what ``state`` had consumed."""
        before = self._windows.plan
        self._windows.load_state_dict(state)
        self._position = None
        if self._windows.plan != before:
            self._iterator = None  # workers that live on know the old plan alone

    @property
    def _upcoming(self) -> Position:
        return self._windows._clock.upcoming  # noqa: SLF001 - two halves of one thing

    @property
    def _windows(self) -> ZarrWindowDataset:
        dataset: Any = self.dataset
        return dataset  # type: ignore[no-any-return]  # checked in __init__


def _batch_bytes(dataset: ZarrWindowDataset) -> int:
    """Bytes of the windows of one batch."""
    return dataset._stream.loader.batch_bytes  # noqa: SLF001 - two halves of one thing


def _context(name: Any) -> Any:
    """Return the start method by name; a fork server that has imported us starts workers in no time."""
    if not isinstance(name, str):
        return name
    try:
        context = multiprocessing.get_context(name)
    except ValueError as error:
        known = ", ".join(multiprocessing.get_all_start_methods())
        raise ConfigError(
            f"multiprocessing_context={name!r} is none here; this system has {known}"
        ) from error
    if name == "forkserver":
        # what the program has asked for stays; nothing public tells what that is
        asked = getattr(multiprocessing.forkserver._forkserver, "_preload_modules", ["__main__"])  # noqa: SLF001
        context.set_forkserver_preload(list(dict.fromkeys([*asked, "chunkstore.torch", "chunkstore.loader"])))
    return context

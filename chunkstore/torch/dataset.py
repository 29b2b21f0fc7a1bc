"""Shuffled windows as batches of tensors: the dataset of a training loop.

Binds :mod:`chunkstore.stream` (which windows, in which order) to torch: tensors, scales and
transforms, worker processes, checkpoints.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data import IterableDataset, default_collate

from chunkstore.ahead import Passed, ahead_of, depth_of
from chunkstore.distributed import Place, find_place, find_worker
from chunkstore.epochs import EpochClock
from chunkstore.errors import ConfigError, ForkError, StateError
from chunkstore.numbers import whole_number
from chunkstore.provenance import Where, locate_batch
from chunkstore.recipe import Cutting, check_plain, chosen_sampling, plan_recipe, resolve_stores
from chunkstore.state import Position, Rotation, epoch_number, make_state, read_state
from chunkstore.stream import Order, WindowStream
from chunkstore.torch.device import DeviceArena, torch_device
from chunkstore.torch.tensors import scales_of, to_host, to_tensor
from chunkstore.torch.transport import SharedBatch, SlotBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    Batch = dict[str, torch.Tensor]

__all__ = ["ZarrWindowDataset"]


class ZarrWindowDataset(IterableDataset["Batch"]):
    """Ready batches of windows in a keyed order; give it to a DataLoader with ``batch_size=None``.

    A batch is a dict of tensors:

    =============  =====================================================================================
    ``x``          [batch, channel, window] (or [batch, window, channel]); zeros behind ``length``
    ``y``          [batch, channel, target_length], or int64[batch] for a label; only with ``targets``
    ``length``     int64[batch], valid obs of the window
    ``sequence``   int64[batch], sequence within its store
    ``start``      int64[batch], first obs within the sequence
    ``store``      int64[batch], only for several stores
    labels         one [batch] each, under their own names
    ``repeated``   bool[batch], True for rows that only fill up the last batch; only with
                   ``drop_last=False`` and several ranks
    ``position``   int64[2 + lane_groups], where the epoch stands behind this batch; ``state_dict(batch)``
                   makes a checkpoint of it
    =============  =====================================================================================

    Parameters
    ----------
    stores : str, path, ChunkStore, or several
        Where the data is; several act as one, their fields matched by name.
    window : int
        Obs in a window.
    stride : int, default 1
        Obs between the starts of neighbouring windows.
    phase : int or "random", optional
        Obs left out at the start of each segment, or drawn anew each epoch.
    short : {"drop", "pad", "error"}
        What happens to segments shorter than the window: left out, filled up with zeros behind
        ``length``, or refused.
    fields : str or sequence of str, optional
        Fields that make the channels of ``x``; by default all that hold quantities.
    targets : str or sequence of str, optional
        Fields, or labels of the sequence, that make ``y``.
    target_offset : int, optional
        First obs of ``y``, counted from the window's first obs. Default 0, or ``window`` where only
        ``target_length`` is given (what comes next).
    target_length : int, optional
        Obs of ``y``. Default ``window`` at offset 0, else 1.
    labels : str or sequence of str, optional
        Columns of the sequences carried with each window; text as codes (see :meth:`categories`).
    batch_size : int, default 64
        Windows in a batch of one rank.
    split : str, optional
        Name of a split that is stored in the store.
    sampling : optional
        Where windows start: ``"all"``; ``{"per_sequence": n}`` for n random ones of each sequence an
        epoch; ``{"balance": label, "n": draws}`` for every class equally often; ``{"stores": [2, 1]}`` for
        two windows of one store to one of another; ``{"weights": ...}`` in :mod:`chunkstore.sampling`.
    shuffle : bool, default True
        Draw a new order every epoch; False gives the order of the store.
    seed : int, default 0
        Key of all orders.
    lanes, passes : int or "auto"
        Blocks that a batch draws from, and visits to each block in an epoch.
    lane_groups : int, default 1
        Parts that the lanes are dealt into; a multiple of the number of DataLoader workers. The
        order depends on it, and never on the number of workers.
    memory_limit : int or str, default "512MiB"
        Bytes that resident blocks may take on this rank, all workers together.
    dtype : str or None, default "float32"
        Of ``x`` and ``y``; integers with a scale factor are scaled. None keeps the stored dtype.
    channels : {"first", "last"}
        Order of the axes of ``x`` and ``y``.
    normalize : "store", mapping or pair, optional
        Scale of ``x``: the stores' statistics, {field: (mean, std)}, or (mean, std) for all channels.
    normalize_targets : optional
        The same for a ``y`` of fields; its padding stays 0 too.
    transform : callable, optional
        Called with each batch, a dict, returns the dict that is handed out; runs ahead of the loop.
    drop_last : bool, default False
        Leave out a last batch that is not full. Otherwise it is short, and of the same length on
        every rank: rows that are missing are repeated and marked.
    rank, world_size : int, optional
        Found in ``torch.distributed`` or the environment; give both to override.
    device : str or torch.device, optional
        Device that mirrors the resident blocks (as many bytes again) and where windows are cut;
        batches are then there, but for ``position``. Not with worker processes.
    on_bad_chunk : {"raise", "skip"}
        What a chunk that cannot be decoded does.
    ahead : int or "auto"
        Batches made ahead in a thread; 0 makes each when it is asked for. ``"auto"``: 2 to 16, which take
        16 MiB at most, and a quarter of ``memory_limit`` at most, unless two take more. They count with
        those that the loop has just let go of. Workers make none ahead.
    storage_options : mapping, optional
        For stores given by URL.

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> dataset = ZarrWindowDataset(small_store(), window=2, batch_size=4)
    >>> len(dataset)
    2
    >>> batch = next(iter(dataset))
    >>> batch["x"].shape
    torch.Size([4, 1, 2])
    """

    def __init__(
        self,
        stores: Any,
        window: int,
        *,
        stride: int = 1,
        phase: Any = None,
        short: Literal["drop", "pad", "error"] = "drop",
        fields: str | Sequence[str] | None = None,
        targets: str | Sequence[str] | None = None,
        target_offset: int | None = None,
        target_length: int | None = None,
        labels: str | Sequence[str] | None = None,
        batch_size: int = 64,
        split: str | None = None,
        sampling: Any = "all",
        shuffle: bool = True,
        seed: int = 0,
        lanes: int | str = "auto",
        passes: int | str = "auto",
        lane_groups: int = 1,
        memory_limit: int | str = "512MiB",
        dtype: Any = "float32",
        channels: Literal["first", "last"] = "first",
        normalize: Any = None,
        normalize_targets: Any = None,
        transform: Callable[[Batch], Batch] | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device | None = None,
        on_bad_chunk: Literal["raise", "skip"] = "raise",
        ahead: int | Literal["auto"] = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        find_place(rank, world_size)  # refuse now what cannot be
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
        self.device = torch_device(device)
        recipe = plan_recipe(resolve_stores(stores, storage_options), cutting)
        order = Order(
            batch_size=batch_size,
            split=split,
            sampling=chosen_sampling(recipe, sampling, split),
            shuffle=shuffle,
            seed=seed,
            lanes=lanes,
            passes=passes,
            lane_groups=lane_groups,
            memory_limit=memory_limit,
            drop_last=drop_last,
            on_bad_chunk=on_bad_chunk,
        )
        self.recipe = recipe
        self.transform = transform
        self.ahead = ahead if ahead == "auto" else whole_number("ahead", ahead, 0)
        self.axes = channels
        self._given = (rank, world_size)
        self._place: Place | None = None
        self._stream = WindowStream(recipe, order, dtype=dtype, channels=channels, arena=self._arena())
        self._clock = EpochClock(order.lane_groups)
        self._consumed = Passed()  # position behind the last batch that was handed out
        # in a DataLoader worker: groups of a state of its own that was loaded, groups it serves
        self._groups: tuple[int, ...] | None = None
        self._serves: tuple[int, ...] = ()
        self._scales = scales_of(recipe, channels)
        _ = self._loader  # what cannot work, such as a window that is too long, is said here and now

    def _arena(self) -> Any:
        return "numpy" if self.device is None else DeviceArena(self.device)

    # ---- what it is

    def __repr__(self) -> str:
        window, stores = self.recipe.window, ", ".join(str(store.url) for store in self.stores)
        return (
            f"<{type(self).__name__}: windows of {window.length} obs, one every {window.stride}, "
            f"of {', '.join(self.fields)} in {stores}>"
        )

    def _repr_html_(self) -> str:
        from chunkstore.notebook import windows_html

        return windows_html(self)

    @property
    def stores(self) -> tuple[Any, ...]:
        """The open stores."""
        return self.recipe.stores

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of ``x``."""
        return self.recipe.fields

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Name of each channel of ``x``; items of vectors as ``field[0]``."""
        return self.recipe.channel_names

    @property
    def n_windows(self) -> int:
        """Windows in an epoch, of all ranks together."""
        return int(self._loader.n_windows)

    @property
    def plan(self) -> Any:
        """What was chosen for lanes, passes, blocks and memory, and why."""
        return self._loader.plan

    @property
    def _loader(self) -> Any:
        self._stream.world_size = self.place.world_size
        return self._stream.loader

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that a checkpoint must agree about, by name."""
        self._stream.world_size = self.place.world_size
        return self._stream.fingerprint()

    @property
    def place(self) -> Place:
        """Rank and world size of this process."""
        if find_worker() is not None and self._place is not None:
            return self._place
        return find_place(*self._given)

    def categories(self, label: str) -> tuple[str, ...]:
        """Return the words that the codes of a label stand for."""
        for column in (*self.recipe.labels, *self.recipe.y_labels):
            if column.name == label:
                return column.categories or ()
        raise ConfigError(
            f"{label!r} is not among the labels of this dataset; give labels=[{label!r}] when it is made"
        )

    def where(self, batch: Mapping[str, Any]) -> Where:
        """Return the store, sequence, obs and time of each window of a batch."""
        return locate_batch(self.recipe.stores, {k: to_host(batch[k]) for k in _PROVENANCE if k in batch})

    def peek(self) -> Batch:
        """Return the first batch of the epoch to come, without beginning it; ends an iteration under way."""
        self._refuse_fork()
        position = Position.start(self._clock.upcoming.epoch, self._stream.order.lane_groups)
        made = self._make(position, None, None)
        try:
            return next(made)[0]
        finally:
            made.close()

    # ---- epochs and checkpoints

    @property
    def epoch(self) -> int:
        """Epoch that the next iteration serves."""
        return self._clock.upcoming.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration serve ``epoch``, from its start or from where a loaded state stands."""
        self._clock.set_epoch(epoch_number(epoch))

    def state_dict(self, batch: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return where training stands, as a few JSON values.

        Parameters
        ----------
        batch : mapping, optional
            The last batch that the loop consumed. Needed where something between this dataset and
            the loop fetches ahead (DataLoader workers, a framework's prefetcher); without it, the
            last batch that left this dataset counts.

        Raises
        ------
        StateError
            If worker processes read this dataset and no batch is given: what they fetched ahead
            must not be counted.
        """
        worker = find_worker()
        if batch is not None:
            if "position" not in batch:
                raise StateError("this batch has no 'position'; pass one as this dataset handed it out")
            position = Position.from_numbers(to_host(batch["position"]).tolist())
            if position.turn == _NOT_WHOLE:
                raise StateError(
                    "this epoch was resumed by the workers' own states (StatefulDataLoader), so a batch does "
                    "not know the whole position; use the state_dict() of that loader"
                )
        elif worker is None and self._clock.served_by_workers:
            raise StateError(
                "worker processes read this dataset and have fetched ahead of the loop; pass the last batch: "
                "dataset.state_dict(batch), or use chunkstore.torch.TrainingLoader, which counts"
            )
        else:
            position = self._consumed.beside or self._clock.upcoming
        speaks_for = None
        if worker is not None:
            speaks_for = (worker[1], self._serves)
        return make_state(position, self.fingerprint, speaks_for)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on behind what ``state`` had consumed.

        World size and batch size may differ from those that the state was saved with.

        Raises
        ------
        StateError
            If the state is of another dataset; the message names each difference.
        """
        worker = find_worker()
        theirs = state.get("fingerprint") if isinstance(state, dict) else None
        chosen = self._stream.left_open(theirs) if isinstance(theirs, dict) else {}
        mine = {**self.fingerprint, **chosen}
        position, groups = read_state(state, mine, None if worker is None else worker[1])
        replanned = self._stream.adopt(chosen)
        left = self._rotation().n_draws
        if len(position.drawn) != len(left) or any(d > n for d, n in zip(position.drawn, left, strict=True)):
            raise StateError(
                f"the state is damaged: {position.drawn} draws consumed of {left}; pass what state_dict() "
                "returned, unchanged"
            )
        self._groups = groups
        self._consumed = Passed()
        self._clock.resume(position, replanned=replanned)

    # ---- iteration

    def __len__(self) -> int:
        """Return the batches of this rank in a whole epoch."""
        order = self._stream.order
        return self._rotation().count(Position.start(0, order.lane_groups))

    def _rotation(self) -> Rotation:
        return self._stream.rotation(self.place)

    def __iter__(self) -> Iterator[Batch]:
        _refuse_batching()
        worker = find_worker()
        if worker is not None:
            self._refuse_fork()
            if self.device is not None:
                raise ConfigError(
                    f"device={str(self.device)!r} keeps blocks on the device, which worker processes cannot "
                    "share; use num_workers=0 (threads decode ahead), or leave device out"
                )
            self._check_groups(worker)
            _end_with_trainer()
        position = self._clock.begin()
        self._consumed = Passed(position)
        groups, self._groups = self._groups, None
        if worker is not None:
            self._serves = groups or self._rotation().groups_of(*worker, position.turn)
            self._loader.cut_in(SlotBuffers())
        made = self._make(position, worker, groups)
        return self._serve(made) if worker is not None else ahead_of(made, self._depth(), self._consumed)

    def _depth(self) -> int:
        """Return how many batches are made ahead."""
        loader = self._loader
        depth = depth_of(loader.batch_bytes, loader.plan.memory_limit) if self.ahead == "auto" else self.ahead
        loader.keep_batches(max(4, depth + 1))
        return depth

    def _serve(self, made: Generator[tuple[Batch, Position], None, None]) -> Iterator[Batch]:
        """Yield the batches of a worker; what is sent where it lies must be held by nobody here."""
        try:
            self._clock.check_plan()
            for batch, behind in made:
                self._clock.serving()
                self._consumed.beside = behind
                sent = [SharedBatch(batch) if type(batch) is dict else batch]
                del batch
                yield sent.pop()
        finally:
            made.close()

    def _make(
        self, position: Position, worker: tuple[int, int] | None, groups: tuple[int, ...] | None
    ) -> Generator[tuple[Batch, Position], None, None]:
        """Yield finished batches; runs ahead of the loop."""
        raw = self._stream.batches(position, self.place, worker, groups)
        try:
            for arrays, room, behind in raw:
                batch = {key: to_tensor(value) for key, value in arrays.items()}
                for key, offset, scale in self._scales:
                    scale.apply(batch[key], room - offset if offset else room)
                if self.device is not None:
                    batch = {key: value.to(self.device, non_blocking=True) for key, value in batch.items()}
                numbers = behind.to_numbers()
                if groups is not None:
                    numbers[1] = _NOT_WHOLE
                batch["position"] = torch.from_numpy(np.array(numbers, np.int64))
                done = [(self._transformed(batch), behind)]
                del batch, arrays
                yield done.pop()
        finally:
            raw.close()

    def _transformed(self, batch: Batch) -> Batch:
        if self.transform is None:
            return batch
        position = batch["position"]
        try:
            batch = self.transform(batch)
        except Exception as error:
            error.add_note(f"in the transform of a batch with windows of {self.where(batch)}")
            raise
        if not hasattr(batch, "setdefault"):
            raise ConfigError(
                f"transform returned {type(batch).__name__} where the batch is expected, a dict: put what it "
                "makes under names of its own, and return the batch"
            )
        batch.setdefault("position", position)
        return batch

    def _check_groups(self, worker: tuple[int, int]) -> None:
        groups, count = self._stream.order.lane_groups, worker[1]
        if groups % count:
            raise ConfigError(
                f"{count} DataLoader workers cannot share lane_groups={groups}; set lane_groups to a "
                f"multiple of {count} (the order depends on it), or use num_workers=0 (threads decode ahead)"
            )

    def _refuse_fork(self) -> None:
        decoded = self._stream.decoded_in
        if decoded is not None and decoded != os.getpid():
            raise ForkError(
                "this DataLoader worker was forked from a process that has decoded with this dataset: "
                "it could hang; give the DataLoader multiprocessing_context='forkserver' (or 'spawn'), "
                "or use num_workers=0, where threads decode ahead"
            )

    def close(self) -> None:
        """End threads and give memory back; iterating opens them again."""
        self._stream.close()

    def __getstate__(self) -> dict[str, Any]:
        place = self.place
        self._stream.world_size = place.world_size
        return {**self.__dict__, "_place": place, "_consumed": Passed(), "_groups": None}


def _refuse_batching() -> None:
    """Refuse to be read by a DataLoader that would stack ready batches once more.

    Nothing tells a dataset how it will be read, so this looks at who asks for the iterator: torch's
    fetcher (torchdata's has the same names), perhaps through the ``__iter__`` of a subclass. A
    ``collate_fn`` of the user's own may know what it does with several batches.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to see the asker
    for _ in range(5):
        if frame.f_back is None:
            return
        frame = frame.f_back
        asker = frame.f_locals.get("self")
        if getattr(asker, "auto_collation", False) and getattr(asker, "collate_fn", 0) is default_collate:
            raise ConfigError(
                "this dataset makes ready batches, and a DataLoader with a batch_size (1 if none is given) "
                "would stack those once more; write DataLoader(dataset, batch_size=None), and give the "
                "batch_size to the dataset"
            )


_NOT_WHOLE = -1  # in the place of the turn: the batch does not know the whole position
_PROVENANCE = ("store", "sequence", "start", "length")


def _end_with_trainer() -> None:
    """Let this worker end when the process that trains is gone, even killed.

    A worker's parent is the fork server, which lives as long as its workers: without this, both would
    outlive a trainer that was killed.
    """
    trainer = multiprocessing.parent_process()
    if trainer is None or any(t.name == _WATCH for t in threading.enumerate()):
        return

    def watch() -> None:
        trainer.join()
        os._exit(1)

    threading.Thread(target=watch, name=_WATCH, daemon=True).start()


_WATCH = "chunkstore-watch"

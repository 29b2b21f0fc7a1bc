"""One dataset's batches as numpy arrays: a recipe, an order, and the loader of this process.

Binds :class:`~chunkstore.recipe.Recipe` to :class:`~chunkstore.loader.WindowLoader`, and adds what
is known of the sequences. Decides what a checkpoint must agree about. No torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from chunkstore.distributed import find_worker
from chunkstore.errors import ConfigError, CorruptDataError, StateError
from chunkstore.layout import parse_bytes
from chunkstore.numbers import whole_number
from chunkstore.rows import RowPlanner
from chunkstore.sampling import parse_sampling
from chunkstore.schedule import ORDER_VERSION
from chunkstore.state import Position, Rotation

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from chunkstore.distributed import Place
    from chunkstore.loader import WindowLoader
    from chunkstore.recipe import Recipe

__all__ = ["Order", "WindowStream"]


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that decides which window comes when, and how much memory that may take."""

    batch_size: int
    """Windows in a batch of one rank."""
    split: str | None = None
    """Name of a stored split, or None for everything."""
    sampling: Any = "all"
    """Where windows start: see :class:`~chunkstore.loader.WindowLoader`."""
    shuffle: bool = True
    """Whether the order is drawn anew each epoch, or that of the store."""
    seed: int = 0
    """Key of all orders."""
    lanes: int | str = "auto"
    """Blocks that a batch draws from."""
    passes: int | str = "auto"
    """Visits to each block in an epoch."""
    lane_groups: int = 1
    """Parts that worker processes may share the lanes by."""
    blocks: tuple[int, ...] | None = None
    """Block lengths of an earlier plan that must be kept: (chunk, block, chunk, block, ...)."""
    memory_limit: int | str = "512MiB"
    """Bytes that resident blocks may take, of all workers of a rank together."""
    drop_last: bool = False
    """Whether a batch that is not full is left out."""
    on_bad_chunk: Literal["raise", "skip"] = "raise"
    """``"raise"`` or ``"skip"``."""

    def __post_init__(self) -> None:
        # numpy's numbers and truths cannot be written as JSON
        for name, least in (("batch_size", 1), ("lane_groups", 1), ("seed", None)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        for name in ("shuffle", "drop_last"):
            if not isinstance(given := getattr(self, name), (bool, np.bool_)):
                raise ConfigError(f"{name} must be True or False, got {given!r}")
            object.__setattr__(self, name, bool(given))


class _Draws(NamedTuple):
    """Which draws of an epoch a batch consists of, all ranks together."""

    epoch: int
    group: int
    first: int
    draws: int


class WindowStream:
    """Batches of numpy arrays, from any position of any epoch.

    Parameters
    ----------
    recipe
        What is cut.
    order
        In which order.
    dtype
        Of ``x`` and ``y``; None keeps that of the fields.
    channels
        ``"first"`` for [batch, channel, window], ``"last"`` for [batch, window, channel].
    arena
        Where resident blocks live: see :class:`~chunkstore.loader.WindowLoader`.
    """

    def __init__(
        self, recipe: Recipe, order: Order, *, dtype: Any, channels: Literal["first", "last"], arena: Any
    ) -> None:
        self.recipe = recipe
        self.order = order
        self._asked = order  # what was left to be chosen stays so, whatever a checkpoint has chosen
        self._dtype = dtype
        self._channels = channels
        self._arena = arena
        self._loader: WindowLoader | None = None
        self._owner = (0, 0)  # process and world size that the loader was made for
        self._plan: tuple[Any, ...] | None = None  # lanes, passes, blocks: the trainer's
        self._trainer_fingerprint = ""
        self.world_size = 1
        """Ranks that share the order; set before the loader is used."""
        self.decoded_in: int | None = None
        """Process that has decoded chunks for this stream, if any."""

    @property
    def loader(self) -> WindowLoader:
        """The loader of this process, opened on first use."""
        if self._loader is None or self._owner != (os.getpid(), self.world_size):
            self.close()
            limit = parse_bytes(self.order.memory_limit)
            if find_worker() is None or self._plan is None:
                self._loader = self._open(limit, self.order)
            else:
                lanes, passes, blocks = self._plan
                self._loader = self._open(
                    limit, replace(self.order, lanes=lanes, passes=passes, blocks=blocks)
                )
                if self._loader.fingerprint != self._trainer_fingerprint:
                    self._loader.close()
                    self._loader = None
                    raise StateError(
                        "a worker finds other windows than the process that trains: a store, or its split, "
                        "was replaced since the dataset was made; make the dataset anew"
                    )
            self._owner = (os.getpid(), self.world_size)
        return self._loader

    def _open(self, limit: int, order: Order) -> WindowLoader:
        from chunkstore.loader import WindowLoader

        return WindowLoader(
            self.recipe.stores,
            self.recipe.window,
            fields=self.recipe.fields,
            targets=self.recipe.target.cut,
            batch_size=order.batch_size,
            split=order.split,
            sampling=order.sampling,
            shuffle=order.shuffle,
            seed=order.seed,
            lanes=order.lanes,
            passes=order.passes,
            lane_groups=order.lane_groups,
            blocks=order.blocks,
            memory_limit=limit,
            drop_last=order.drop_last,
            on_bad_chunk=order.on_bad_chunk,
            dtype=self._dtype,
            channels=self._channels,
            arena=self._arena,
            world_size=self.world_size,
        )

    def rotation(self, place: Place) -> Rotation:
        """Return which lane group each batch of an epoch comes from."""
        self.world_size = place.world_size
        groups = range(self.order.lane_groups)
        return Rotation(
            tuple(self.loader.n_draws(g) for g in groups),
            step=self.order.batch_size * place.world_size,
            drop_last=self.order.drop_last,
        )

    def fingerprint(self) -> dict[str, Any]:
        """Return, by name and as JSON values, what a checkpoint must agree about."""
        window, order, plan = self.recipe.window, self.order, self.loader.plan
        stores = [s.fingerprint for s in self.recipe.stores]
        return {
            "stores": stores[0] if len(stores) == 1 else f"{len(stores)} stores, {_digest(stores)}",
            "windows": int(self.loader.n_windows),
            "window": window.length,
            "stride": window.stride,
            "horizon": window.horizon,
            "short": window.short,
            "phase": _plain(window.phase),
            "split": order.split,
            **({} if self.loader.part is None else {"part": self.loader.part}),
            "sampling": _plain(parse_sampling(order.sampling)),
            "shuffle": order.shuffle,
            "seed": order.seed,
            "lanes": int(plan.lanes),
            "passes": int(plan.passes),
            "blocks": list(plan.blocks),
            "lane_groups": order.lane_groups,
            "order": ORDER_VERSION,
        }

    def left_open(self, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
        """Return lanes, passes and blocks of a checkpoint, as far as they were left to be chosen.

        None in a worker: those that chose, the process that trains, would not learn of it.
        """
        if find_worker() is not None and self._plan is not None:
            return {}
        names = [name for name in ("lanes", "passes") if getattr(self._asked, name) == "auto"]
        names += ["blocks"] if self._asked.blocks is None else []
        return {name: fingerprint[name] for name in names if name in fingerprint}

    def adopt(self, chosen: Mapping[str, Any]) -> bool:
        """Take what :meth:`left_open` gave; return whether that changes the order.

        Raises
        ------
        ConfigError
            If it cannot be had with these ranks and this memory limit; all then stays as it was.
        StateError
            If no plan gives it.
        """
        mine = self.fingerprint()
        if all(mine[name] == value for name, value in chosen.items()):
            return False
        before, blocks = self.order, chosen.get("blocks", ())
        damaged = StateError(
            f"the state is damaged: no plan has {dict(chosen)}; pass what state_dict() returned, unchanged"
        )
        if not isinstance(blocks, (list, tuple)):
            raise damaged
        try:
            self._use(replace(self._asked, **{**chosen, "blocks": tuple(blocks) or self._asked.blocks}))
            mine = self.fingerprint()
            if any(mine[name] != value for name, value in chosen.items()):
                raise damaged
        except BaseException:
            self._use(before)
            raise
        return True

    def _use(self, order: Order) -> None:
        self.close()
        self.order = order

    def batches(
        self,
        position: Position,
        place: Place,
        worker: tuple[int, int] | None = None,
        groups: Sequence[int] | None = None,
    ) -> Generator[tuple[dict[str, Any], NDArray[np.int64], Position], None, None]:
        """Yield each batch that is left of the epoch, with more that belongs to it.

        That is the room of each window (obs to the end of its segment), and the position of the whole loader
        behind the batch.

        Parameters
        ----------
        position
            Where the epoch stands.
        place
            Rank and world size.
        worker
            Number and count, in a DataLoader worker.
        groups
            Lane groups of a worker that goes on by itself; the position then counts those alone.
        """
        self.world_size = place.world_size
        self.decoded_in = os.getpid()
        rotation = self.rotation(place)
        number, count = worker or (0, 1)
        if groups is None:
            serves = rotation.groups_of(number, count, position.turn)
            plan: Iterator[tuple[int, int, Position]] = (
                (g, n, p) for w, g, n, p in rotation.deliveries(position, count) if w == number
            )
        else:
            serves = tuple(groups)
            plan = _alone(rotation, position, serves)
        batches = self.loader.batches(
            position.epoch,
            rank=place.rank,
            world_size=place.world_size,
            groups=serves,
            start_draws=position.drawn,
            first_group=position.turn,
        )
        fresh = True  # no row of this rank yet that could be repeated
        try:
            for batch, (group, draws, behind) in zip(batches, plan, strict=True):
                got = batch.pop("group"), batch.pop("draws")
                assert got == (group, draws), (
                    f"the loader served (group, draws) {got}, planned {group, draws}"
                )
                if fresh and "repeated" in batch and batch["repeated"].all():
                    self._borrow(batch, _Draws(position.epoch, group, behind.drawn[group] - draws, draws))
                else:
                    fresh = False
                room = batch.pop("room")  # a label may have that name
                self.recipe.add_labels(batch)
                yield batch, room, behind
        finally:
            batches.close()

    def _borrow(self, batch: dict[str, Any], draws: _Draws) -> None:
        """Fill a batch that is nothing but repeated rows with rows that the other ranks get of it.

        A rank has rows of its own to repeat, but for a first batch of fewer draws than ranks: of an epoch of
        few windows, or of one that goes on just before a lane group's end.
        """
        from chunkstore.mapped import PlaceReader

        loader = self.loader
        items, schedule = loader.order(draws.epoch)
        planner = RowPlanner(loader.blocks, items, schedule, draws.draws, 0, 1)
        theirs = planner.take(draws.group, draws.first, draws.draws)
        reader = PlaceReader(self.recipe, dtype=self._dtype, channels=self._channels, cache=0)
        rows = len(batch["start"])
        lent, lost = [], []
        for row in range(draws.draws):
            try:
                lent.append(reader.read_places(theirs.part(row, row + 1)))
            except CorruptDataError as error:
                if self.order.on_bad_chunk == "raise":
                    raise
                lost.append(error)
            if len(lent) == rows:
                break
        if not lent:
            raise lost[0]
        put = getattr(self._arena, "put", np.asarray)
        for key in lent[0]:
            values = np.concatenate([one[key] for one in lent])[np.arange(rows) % len(lent)]
            batch[key] = put(values) if key in loader.cuts else values

    def close(self) -> None:
        """End the loader's threads and give its memory back."""
        loader, self._loader = self._loader, None
        if loader is not None and self._owner[0] == os.getpid():
            loader.close()

    def __getstate__(self) -> dict[str, Any]:
        plan = self.loader.plan
        chosen = (plan.lanes, plan.passes, plan.blocks)
        return {
            **self.__dict__,
            "_loader": None,
            "decoded_in": None,
            "_plan": chosen,
            "_trainer_fingerprint": self.loader.fingerprint,
        }


def _alone(
    rotation: Rotation, position: Position, groups: Sequence[int]
) -> Generator[tuple[int, int, Position], None, None]:
    for group, _, draws in rotation.batches(position, groups):
        position = position.after(group, draws)
        yield group, draws, position


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return a JSON value that stands for ``value``: itself where it is short, else its digest."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if hasattr(value, "__array__"):  # a Series or a tensor: of a long one not all is printed
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.hasobject:  # its bytes are addresses
        value = value.tolist()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)} {hashlib.sha256(value.tobytes()).hexdigest()[:16]}"
    if isinstance(value, (list, tuple)) and len(value) > 8:
        return f"{len(value)} values, {_digest([_plain(v) for v in value])}"
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in sorted(value.items())}
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return repr(value)

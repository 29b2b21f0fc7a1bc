"""Batches of shuffled windows as numpy arrays: schedule + residency + gather.

Binds the pure rooms (:mod:`~chunkstore.windows`, :mod:`~chunkstore.sampling`,
:mod:`~chunkstore.schedule`, :mod:`~chunkstore.budget`) to stores and to the arena. Decides what a batch
holds; tensors, labels, scales and training state are left to :mod:`chunkstore.torch`.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from chunkstore.budget import Plan, Sizes, ahead_of, block_lengths, given_blocks, make_plan
from chunkstore.buffers import BatchBuffers
from chunkstore.channels import (
    all_fields,
    check_fields,
    describe_sampling,
    no_window_text,
    out_dtype,
    scale_of,
    target_cuts,
)
from chunkstore.errors import ConfigError, CorruptDataError, MemoryLimitError
from chunkstore.forks import new_lock
from chunkstore.gather import cut_rows, cut_windows, places_of
from chunkstore.layout import parse_bytes
from chunkstore.nulls import resident_dtypes, with_nan
from chunkstore.numbers import whole_number, whole_numbers
from chunkstore.permute import derive_key, sides
from chunkstore.resident import Counters, Residency
from chunkstore.rows import (
    Clock,
    NeededRanges,
    RowPlanner,
    Rows,
    SequenceStarts,
    Turns,
    WholeBlocks,
    skip_batches,
    turns_of_full,
)
from chunkstore.sampling import n_draws, parse_sampling, population
from chunkstore.schedule import ORDER_VERSION, Blocks, EpochSchedule, group_offsets
from chunkstore.session import Session
from chunkstore.state import Position, Rotation, epoch_number
from chunkstore.targets import Cut, names_of
from chunkstore.windows import WindowIndex, WindowSpec, with_horizon

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import DTypeLike, NDArray

    from chunkstore.sampling import Population
    from chunkstore.segments import Segments

__all__ = ["WindowLoader", "capacity_of"]

Batch = dict[str, Any]
_Stack = tuple["NDArray[Any]", "NDArray[np.int64]"]
sides(np.int64(1))  # loads the runtime of compiled code with the imports, instead of with the first batch
UNLIMITED = 2**62


class WindowLoader:
    """Shuffled batches of windows from compressed stores far larger than memory.

    Parameters
    ----------
    stores : ChunkStore or sequence of ChunkStore
        Several act as one; fields are matched by name.
    window : WindowSpec
        Length, stride, horizon, phase, and what happens to short segments.
    fields : sequence of str, optional
        Channels of ``"x"``, in this order; all fields that hold numbers by default.
    targets : Cut, sequence of str, or mapping of str to Cut, optional
        Further cuts of the same windows: ``"y"``, or the names given.
    batch_size : int
        Windows in a batch of one rank.
    split : str, optional
        Name of a stored split.
    sampling : {"all"}, PerSequence, Weighted or their short forms
        See :func:`chunkstore.sampling.parse_sampling`.
    shuffle : bool
        False for the order of the store (of each lane group).
    seed : int
        Key of all orders.
    lanes, passes : int or "auto"
        Blocks drawn from at the same time, all ranks together, and visits of a block an epoch. What
        ``"auto"`` chose is in :attr:`plan`.
    lane_groups : int
        Streams of draws with lanes of their own, one or several for each worker process.
    memory_limit : int or str
        Bytes that the arena may take, all lane groups together.
    dtype : dtype or None
        Of the batches; integers with a scale factor are scaled if it is a float. None keeps what is
        stored (by numpy's promotion where fields differ).
    channels : {"first", "last"}
        ``[batch, channel, window]`` or ``[batch, window, channel]``.
    drop_last : bool
        Leave out a last batch that is not full.
    on_bad_chunk : {"raise", "skip"}
        Raise :class:`~chunkstore.errors.CorruptDataError` at the batch that needs a chunk which cannot
        be read, or replace its windows by others of the batch, and count them.
    arena : {"numpy"} or callable
        ``arena(shape, dtype)`` returns the array that a field's resident values lie in. If it has a
        method ``loaded(array, start, stop)``, that is called when a range has been filled; ``empty``
        and ``cut``, where it has them, stand for ``numpy.empty`` and ``gather.cut_windows``.
    world_size : int
        Ranks that ``lanes="auto"`` must be able to serve.
    blocks : sequence of int, optional
        ``plan.blocks`` of an earlier loader whose order must be kept under another memory limit.

    Raises
    ------
    ConfigError
        Nothing to draw, or options that do not fit together.
    MemoryLimitError
        If the limit is too small; the message says the least that would do.
    UnknownNameError
        A field that a store does not have.

    Notes
    -----
    One iteration at a time: a newer one takes over, and the older ends with an error when it is asked
    for its next batch. Threads live from the first batch of an iteration to its end.

    Examples
    --------
    >>> from chunkstore.windows import WindowSpec
    >>> from chunkstore.examples import small_store
    >>> store = small_store()
    >>> with WindowLoader(store, WindowSpec(2), fields=["x"], batch_size=4) as loader:
    ...     batches = list(loader.batches(epoch=0))
    >>> [b["x"].shape for b in batches]
    [(4, 1, 2), (3, 1, 2)]
    """

    def __init__(
        self,
        stores: Any,
        window: WindowSpec,
        *,
        fields: Sequence[str] | None = None,
        targets: Cut | Sequence[str] | Mapping[str, Cut] | None = None,
        batch_size: int,
        split: str | None = None,
        sampling: Any = "all",
        shuffle: bool = True,
        seed: int = 0,
        lanes: int | str = "auto",
        passes: int | str = "auto",
        lane_groups: int = 1,
        memory_limit: int | str = "512MiB",
        dtype: DTypeLike | None = "float32",
        channels: Literal["first", "last"] = "first",
        drop_last: bool = False,
        on_bad_chunk: Literal["raise", "skip"] = "raise",
        arena: Any = "numpy",
        world_size: int = 1,
        blocks: Sequence[int] | None = None,
    ) -> None:
        self.stores: tuple[Any, ...] = tuple(stores) if isinstance(stores, (list, tuple)) else (stores,)
        if not self.stores:
            raise ConfigError("there is no store to read; give at least one")
        batch_size = whole_number("batch_size", batch_size, 1)
        lane_groups = whole_number("lane_groups", lane_groups, 1)
        world_size = whole_number("world_size", world_size, 1)
        seed = whole_number("seed", seed)
        if channels not in ("first", "last"):
            raise ConfigError(f"channels={channels!r} is not known; use 'first' or 'last'")
        if on_bad_chunk not in ("raise", "skip"):
            raise ConfigError(f"on_bad_chunk={on_bad_chunk!r} is not known; use 'raise' or 'skip'")
        strange = [store for store in self.stores if not hasattr(store, "fields")]
        if strange:
            raise ConfigError(f"a loader reads open stores, got {strange[0]!r:.120}; open it with open_store")
        if not isinstance(window, WindowSpec):
            raise ConfigError(f"window must be a WindowSpec, got {window!r:.120}; write WindowSpec(length)")
        if not (split is None or isinstance(split, str)):
            raise ConfigError(f"split must be the name of a part, got {split!r:.120}")
        if arena != "numpy" and not callable(arena):
            raise ConfigError(
                f"arena={arena!r:.120} is not known; use 'numpy', or a function of shape and dtype"
            )
        names = all_fields(self.stores[0]) if fields is None else names_of("fields", fields)
        self.cuts = {"x": Cut(names, 0, window.length)} | target_cuts(targets, window.length)
        self.field_names = tuple(dict.fromkeys(n for cut in self.cuts.values() for n in cut.fields))
        check_fields(self.stores, self.field_names)
        self.window = with_horizon(window, max(cut.horizon(window.length) for cut in self.cuts.values()))
        self.batch_size, self.drop_last = batch_size, drop_last
        self.shuffle, self.seed = shuffle, seed
        self.lane_groups = lane_groups
        self.sampling = parse_sampling(sampling)
        self._channels_last = channels == "last"
        self._skip = on_bad_chunk
        self._allocate = arena
        self._empty = getattr(arena, "empty", None)
        self._cut = getattr(arena, "cut", cut_windows)
        self._dtypes = {key: out_dtype(self.stores, cut.fields, dtype) for key, cut in self.cuts.items()}
        self._shapes = {key: self._shape_of(cut) for key, cut in self.cuts.items()}
        self._resident_dtypes = resident_dtypes(
            self.stores, [(cut.fields, self._dtypes[key]) for key, cut in self.cuts.items()]
        )
        self._scales = {
            (key, name): scale_of(self.stores[0], name)
            for key, cut in self.cuts.items()
            for name in cut.fields
            if dtype is not None and np.dtype(dtype).kind == "f"
        }
        segments = [s.segments(split) for s in self.stores]
        self.index = WindowIndex(segments, self.window)
        if self.index.n_windows == 0:
            raise ConfigError(no_window_text(self.window, segments))
        #: Where the chosen part of the stores lies, in 16 hexadecimal digits; None if all of them is used.
        self.part = None if split is None else _part(segments)
        self._n_draws = n_draws(self.index, self.sampling)
        self.group_first = group_offsets(self._n_draws, self.lane_groups)
        self._offsets = SequenceStarts(self.stores)
        self.plan = self._make_plan(parse_bytes(memory_limit), lanes, passes, world_size, blocks)
        self.blocks = self._make_blocks()
        self._schedules: dict[int, tuple[Population, EpochSchedule]] = {}
        self._residency: Residency | None = None
        self._residency_groups = 0
        self._buffers = {key: BatchBuffers() for key in self.cuts}
        self._making = new_lock()

    # ---- what there is

    @property
    def n_windows(self) -> int:
        """Windows that an epoch draws, of all ranks and lane groups together."""
        return self._n_draws

    def n_draws(self, group: int = 0) -> int:
        """Return the draws of one lane group in an epoch, of all ranks together."""
        group = whole_number("group", group, 0)
        if group >= self.lane_groups:
            raise ConfigError(f"group {group} is not one of {self.lane_groups} lane groups")
        return int(self.group_first[group + 1] - self.group_first[group])

    def n_batches(self, rank: int = 0, world_size: int = 1) -> int:
        """Return the batches of an epoch; the same for every rank, by arithmetic alone."""
        _, world_size = _rank_of(rank, world_size)
        return self._rotation(world_size).count(Position.start(0, self.lane_groups))

    @property
    def bytes_per_obs(self) -> int:
        """Decoded bytes of one obs, all fields that are read together."""
        fields = self.stores[0].fields
        return sum(max(1, fields[n].items) * d.itemsize for n, d in self._resident_dtypes.items())

    @property
    def batch_bytes(self) -> int:
        """Bytes of the cut windows of a full batch."""
        each = (math.prod(self._shapes[key]) * np.dtype(self._dtypes[key]).itemsize for key in self.cuts)
        return self.batch_size * sum(each)

    @property
    def fingerprint(self) -> str:
        """What decides the order, as 32 hexadecimal digits: stores, windows, sampling, seed, plan."""
        parts: list[bytes | str] = [
            f"order {ORDER_VERSION}",
            *[str(s.fingerprint) for s in self.stores],
            repr(self.window),
            self.part or "",
            self.index.first.tobytes(),
            *describe_sampling(self.sampling),
            repr((self.shuffle, self.seed, self.plan.lanes, self.plan.passes)),
            repr((self.lane_groups, self.plan.blocks)),
        ]
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(part if isinstance(part, bytes) else part.encode())
        return digest.hexdigest()

    @property
    def counters(self) -> Counters:
        """What this loader has decoded, waited for and replaced so far."""
        return self._residency.counters if self._residency is not None else Counters()

    def schedule(self, epoch: int) -> EpochSchedule:
        """Return the order of an epoch."""
        return self.order(epoch_number(epoch))[1]

    # ---- set up

    def _make_plan(
        self, limit: int, lanes: int | str, passes: int | str, world_size: int, blocks: Sequence[int] | None
    ) -> Plan:
        chunk = [int(s.layout.chunk) for s in self.stores]
        n_obs = [int(s.layout.n_obs) for s in self.stores]
        lengths = block_lengths(chunk) if blocks is None else given_blocks(blocks, chunk)
        cut = Blocks.of(self.index, [lengths[c] for c in chunk], n_obs)
        touched = int((cut.stop - cut.start).sum())
        width = self.bytes_per_obs
        sizes = Sizes(
            tuple(n_obs), tuple(chunk), touched, width, self.window.length, self.window.span, self._n_draws
        )
        return make_plan(
            sizes,
            limit,
            batch_size=self.batch_size,
            lanes=lanes,
            passes=passes,
            lane_groups=self.lane_groups,
            world_size=world_size,
            shuffle=self.shuffle,
            blocks=blocks,
        )

    def _make_blocks(self) -> Blocks:
        lengths = [self.plan.block_of(int(s.layout.chunk)) for s in self.stores]
        return Blocks.of(self.index, lengths, [int(s.layout.n_obs) for s in self.stores])

    def order(self, epoch: int) -> tuple[Population, EpochSchedule]:
        """Return the items of an epoch and their order; kept for the epoch that was asked for last."""
        kept = self._schedules.get(epoch)
        if kept is None:
            self._schedules = {}  # what was kept goes before the next is made
            items = population(self.index, self.blocks, self.sampling, seed=self.seed, epoch=epoch)
            made = EpochSchedule(
                np.array([self._n_draws]) if self.plan.full else items.counts,
                key=derive_key(self.seed, epoch, "order"),
                lanes=self.plan.lanes,
                passes=max(1, self.plan.passes),
                lane_groups=self.lane_groups,
                shuffle=self.shuffle,
            )
            kept = (items, made)
            self._schedules = {epoch: kept}
        return kept

    def _rotation(self, world_size: int) -> Rotation:
        groups = tuple(self.n_draws(g) for g in range(self.lane_groups))
        return Rotation(groups, step=self.batch_size * world_size, drop_last=self.drop_last)

    def _resident(self, groups: int) -> Residency:
        """Return the residency, sized for a share of the lane groups; made on first use."""
        with self._making:  # or two iterations that begin side by side would each make one
            return self._made(groups)

    def _made(self, groups: int) -> Residency:
        if self._residency is not None and self._residency_groups != groups and not self.plan.whole:
            self.close()
        residency = self._residency
        if residency is None:
            plan = self.plan
            self._residency_groups = groups
            if not plan.whole and groups < self.lane_groups:
                share = max(plan.slots * groups // self.lane_groups, 1)
                plan = replace(plan, slots=share, arena_bytes=share * plan.arena_bytes // plan.slots)
            obs = (
                int((self.blocks.stop - self.blocks.start).sum())
                if plan.whole
                else plan.slots * plan.slot_obs
            )
            arrays, stacks = self._arena(obs)
            hook = getattr(self._allocate, "loaded", None)
            self._residency = residency = Residency(
                with_nan(self.stores, self._resident_dtypes),
                self.field_names,
                arrays,
                self.blocks,
                plan,
                on_bad_chunk=self._skip,
                loaded=None if hook is None else lambda name, a, b: hook(arrays[name], a, b),
                stacks=stacks,
            )
        return residency

    def _shape_of(self, cut: Cut) -> tuple[int, int]:
        """Return the shape of one window of a cut in a batch."""
        width = sum(max(1, self.stores[0].fields[name].items) for name in cut.fields)
        return (cut.length, width) if self._channels_last else (width, cut.length)

    def _arena(self, obs: int) -> tuple[dict[str, NDArray[Any]], dict[str, _Stack]]:
        """Return room for ``obs`` of each field; scalar fields of one dtype are rows of a stack."""
        specs = {name: self.stores[0].fields[name] for name in self.field_names}
        dtypes = self._resident_dtypes
        stacks: dict[str, _Stack] = {}
        if self._allocate != "numpy":
            return {n: self._allocate(spec.shape(obs), dtypes[n]) for n, spec in specs.items()}, stacks
        arrays = {n: np.empty(s.shape(obs), dtypes[n]) for n, s in specs.items() if s.items}
        for dtype in {dtypes[n] for n, s in specs.items() if not s.items}:
            names = [n for n, s in specs.items() if not s.items and dtypes[n] == dtype]
            stack = np.empty((len(names), obs), dtype)
            arrays |= dict(zip(names, stack, strict=True))
            for key, cut in self.cuts.items():
                plain = all(self._scales.get((key, n)) is None for n in cut.fields)
                if plain and set(cut.fields) <= set(names):
                    stacks[key] = (stack, np.array([names.index(n) for n in cut.fields], np.int64))
        return arrays, stacks

    # ---- iteration

    def batches(
        self,
        epoch: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        groups: Sequence[int] | None = None,
        start_draws: Sequence[int] | None = None,
        first_group: int = 0,
        start_batch: int = 0,
    ) -> Generator[Batch, None, None]:
        """Yield the batches of an epoch, or what is left of it.

        Parameters
        ----------
        epoch : int
            With the seed, the key of the order.
        rank, world_size : int
            Of the draws of each global batch, the rank gets every ``world_size``-th.
        groups : sequence of int, optional
            Lane groups to serve, all by default: a worker process serves some.
        start_draws : sequence of int, optional
            Draws of each lane group (all of them) that have been consumed, all ranks together.
        first_group : int
            Lane group whose batch is next.
        start_batch : int
            Batches of this iteration to leave out: neither read nor counted through, however many.

        Yields
        ------
        dict
            ``"x"`` [batch, channel, window] and further cuts; ``"sequence"``, ``"start"`` (obs within
            the sequence), ``"length"`` (obs that exist), ``"room"`` (obs to the end of the segment),
            ``"store"`` (for several stores), int64[batch];
            ``"group"`` and ``"draws"``: lane group of the batch and its draws, all ranks together;
            ``"repeated"`` bool[batch], for several ranks with ``drop_last=False``: rows that only make all
            ranks' batches equally long.

        Raises
        ------
        ConfigError
            If lanes cannot be shared by the ranks, an argument is out of its range, or a newer iteration took
            over.
        CorruptDataError
            At the batch that needs a chunk which cannot be read.
        ForkError
            In a forked child of the process that made the loader.
        """
        epoch = epoch_number(epoch)
        rank, world_size = _rank_of(rank, world_size)
        every = range(self.lane_groups)
        serve = tuple(every) if groups is None else tuple(whole_numbers("groups", groups).tolist())
        drawn = (0,) * len(every)
        if start_draws is not None:
            drawn = tuple(whole_numbers("start_draws", start_draws, 0).tolist())
        first_group = whole_number("first_group", first_group)
        if (
            len(drawn) != len(every)
            or any(d > self.n_draws(g) for g, d in zip(every, drawn, strict=True))
            or len({*serve, first_group} & set(every)) < len({*serve, first_group})
            or len(set(serve)) < len(serve)
        ):
            raise ConfigError(
                f"start_draws {drawn}, groups {serve} and first_group {first_group} do not fit "
                f"{self.lane_groups} lane groups of {[self.n_draws(g) for g in every][:8]} draws"
            )
        skip = whole_number("start_batch", start_batch, 0)
        return self._iterate(epoch, rank, world_size, serve, Position(epoch, first_group, drawn), skip)

    def _iterate(  # noqa: PLR0917 - all of them, from one place
        self, epoch: int, rank: int, world_size: int, serve: tuple[int, ...], position: Position, skip: int
    ) -> Generator[Batch, None, None]:
        rotation = self._rotation(world_size)
        position = skip_batches(rotation, position, serve, skip)
        items, schedule = self.order(epoch)
        clock = Clock(rotation, position, serve)
        rows = RowPlanner(self.blocks, items, schedule, rotation.step, rank, world_size, self._offsets)
        residency = self._resident(len(serve))
        residency.check_process()
        held = capacity_of(residency.plan, schedule, len(serve), world_size)
        ranges: Callable[[int], list[tuple[int, int]]]
        if self.plan.full:
            schedule.needs(group=serve[0] if serve else 0, rank=rank, world_size=world_size)
            turns = turns_of_full(rows, clock, serve, self.window.span)
            ranges = WholeBlocks(self.blocks, turns)
        else:
            turns = Turns.of(schedule, clock, serve, rank, world_size)
            ranges = NeededRanges(self.blocks, self.window.span, items, schedule, turns)
        session = Session(residency, turns.block, turns.first, turns.last, ranges, held)
        try:
            for group, first, draws in rotation.batches(position, serve):
                yield self._batch(session, rows, clock, group, first, draws)
        finally:
            session.close()

    def _batch(  # noqa: PLR0917 - all of them, from one place
        self, session: Session, rows: RowPlanner, clock: Clock, group: int, first: int, draws: int
    ) -> Batch:
        world = rows.world_size
        mine = rows.take(group, first, draws)
        n = len(mine)
        full = -(-draws // world)
        outs = {key: self.empty(key, full) for key in self.cuts}
        stop = first + draws
        at, done = first, 0
        residency = session.residency
        beyond = clock.moment(group, stop - 1) + 1
        while at < stop:
            reached = session.reach(beyond)
            if reached >= beyond:
                upto, end, left = stop, n, beyond
            else:
                upto = clock.draw_of(group, reached, stop)
                end = min(n, max(0, -(-(upto - first - rows.rank) // world)))
                left = clock.moment(group, upto - 1) + 1
            if end > done:
                self._gather(residency, mine, done, end, outs)
            session.leave(left)
            at, done = upto, end
        if residency.counters.bad_chunks:
            mine = self._replace(residency, mine, outs)
        batch: Batch = dict(outs)
        batch["sequence"], batch["start"] = mine.sequence, mine.within
        batch["length"], batch["room"] = mine.length, mine.room
        if len(self.stores) > 1:
            batch["store"] = mine.store
        if world > 1 and not self.drop_last:
            batch["repeated"] = np.arange(full) >= n
        if n < full:
            _repeat(batch, n, full, rows.kept)
        if n and world > 1 and not self.drop_last:
            rows.kept = {key: value[-1] + 0 for key, value in batch.items() if key != "repeated"}
        batch["group"], batch["draws"] = group, draws
        return batch

    def cut_in(self, buffers: BatchBuffers) -> None:
        """Let batches lie in memory of the caller's from now on."""
        self._buffers = dict.fromkeys(self.cuts, buffers)

    def keep_batches(self, n: int) -> None:
        """Let memory of up to ``n`` batches wait for its next use, instead of going back to the system."""
        for buffers in self._buffers.values():
            buffers.keep = n

    def empty(self, key: str, n: int) -> NDArray[Any]:
        """Return room for the cut ``key`` of ``n`` windows."""
        make = self._empty or self._buffers[key].empty
        made: NDArray[Any] = make((n, *self._shapes[key]), self._dtypes[key])
        return made

    def _gather(
        self, residency: Residency, rows: Rows, low: int, high: int, outs: dict[str, NDArray[Any]]
    ) -> None:
        """Fill rows [low, high) of a batch."""
        part = rows.part(low, high)
        last = self._channels_last
        for key, cut in self.cuts.items():
            if key in residency.stacks:
                stack, which = residency.stacks[key]
                cut_rows(stack, which, residency.origin, part, cut.offset, outs[key], low, last)
                continue
            place, valid = places_of(residency.origin, part, cut.offset, cut.length)
            channel, out = 0, outs[key][low:high]
            for name in cut.fields:
                array = residency.arrays[name]
                scale = self._scales.get((key, name))
                self._cut(array, place, valid, out, channel, channels_last=last, scale=scale)
                channel += 1 if array.ndim == 1 else array.shape[1]

    def _replace(self, residency: Residency, rows: Rows, outs: dict[str, NDArray[Any]]) -> Rows:
        """Replace windows on bad chunks by good ones of the same batch; return the rows as they are then."""
        bad = _on_bad(residency, rows, self.window.span)
        n_bad = int(bad.sum())
        if not n_bad:
            return rows
        good = np.flatnonzero(~bad)
        if not len(good):
            raise CorruptDataError(
                f"all {len(bad)} windows of a batch lie on chunks that cannot be read, so none can stand for "
                "them: repair the store (`chunkstore verify`)"
            )
        lost = np.flatnonzero(bad)
        source = good[np.arange(n_bad) % len(good)]
        for out in outs.values():
            out[lost] = out[source]
        with residency.lock:
            residency.counters.windows_replaced += n_bad
        return rows.replaced(lost, source)

    # ---- the end

    def close(self) -> None:
        """End threads of an iteration and give the arena back; the loader may be used again."""
        residency, self._residency = self._residency, None
        for buffers in self._buffers.values():
            buffers.clear()
        session = None if residency is None else residency.session  # which may end in a thread meanwhile
        if session is not None:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_residency": None, "_schedules": {}, "_making": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _making=new_lock())


def _rank_of(rank: int, world_size: int) -> tuple[int, int]:
    rank, world_size = whole_number("rank", rank), whole_number("world_size", world_size, 1)
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is not one of {world_size} ranks")
    return rank, world_size


def capacity_of(plan: Plan, schedule: EpochSchedule, groups: int, world_size: int) -> int:
    """Return how many pieces a session may hold: lanes and what is read ahead."""
    if plan.whole:
        return UNLIMITED
    lanes = groups * max(1, schedule.lanes_per_group // (world_size if schedule.shuffle else 1))
    if plan.slots < lanes + 1:
        raise MemoryLimitError(
            f"{lanes} lanes of this process need at least {lanes + 1} slots, the memory limit of "
            f"{plan.memory_limit} bytes holds {plan.slots}: the least that would do is "
            f"{(lanes + 1) * (plan.arena_bytes // plan.slots)} bytes; raise memory_limit or lower lanes"
        )
    return min(plan.slots, lanes + max(ahead_of(lanes), min(lanes, 32)))


def _part(segments: Sequence[Segments]) -> str:
    """Say which obs of the stores are chosen: two parts of as many windows may be others."""
    digest = hashlib.blake2b(digest_size=8)
    for here in segments:
        digest.update(len(here).to_bytes(8, "little") + here.start.tobytes() + here.stop.tobytes())
    return digest.hexdigest()


def _on_bad(residency: Residency, rows: Rows, span: int) -> NDArray[np.bool_]:
    """Return which windows lie on a chunk that could not be read."""
    with residency.lock:
        found = sorted(residency.counters.bad_chunks)
    start, room = rows.start, rows.room
    bad = np.zeros(len(rows), bool)
    for number in sorted({store for store, _ in found}):
        chunks = np.array([c for s, c in found if s == number])
        at = np.flatnonzero(rows.store == number)
        c = residency.chunk[number]
        end = start[at] + np.minimum(room[at], span) - 1
        bad[at] = np.searchsorted(chunks, start[at] // c) < np.searchsorted(chunks, end // c, side="right")
    return bad


def _repeat(batch: Batch, n: int, full: int, kept: dict[str, NDArray[Any]]) -> None:
    """Fill rows from ``n`` on: with the batch's own rows, or with a row kept from the batch before."""
    for key, rows in batch.items():
        if key == "repeated":
            continue
        value = rows
        if len(rows) < full:
            batch[key] = value = np.concatenate([rows, np.zeros(full - n, rows.dtype)])
        if n:
            value[n:] = value[np.arange(full - n) % n]
        else:
            value[n:] = kept.get(key, 0)

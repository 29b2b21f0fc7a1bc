"""Batches of shuffled windows as numpy arrays: schedule + residency + gather.

Binds the pure rooms (:mod:`~chunkstore.windows`, :mod:`~chunkstore.sampling`,
:mod:`~chunkstore.schedule`, :mod:`~chunkstore.budget`) to stores and to the arena. Decides what a batch
holds; tensors, labels, scales and training state are left to :mod:`chunkstore.torch`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from chunkstore.budget import Plan, Sizes, ahead_of, make_plan
from chunkstore.errors import ConfigError, CorruptDataError, MemoryLimitError, UnknownNameError
from chunkstore.gather import cut_windows
from chunkstore.layout import parse_bytes
from chunkstore.permute import derive_key
from chunkstore.resident import Counters, Residency, Session
from chunkstore.sampling import n_draws, parse_sampling, population
from chunkstore.schedule import Blocks, EpochSchedule, group_offsets
from chunkstore.state import Position, Rotation
from chunkstore.targets import Cut
from chunkstore.windows import WindowIndex, WindowSpec, with_horizon

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from types import TracebackType

    from numpy.typing import DTypeLike, NDArray

    from chunkstore.sampling import Population
    from chunkstore.schedule import Needs

__all__ = ["WindowLoader"]

Batch = dict[str, Any]
PLAN_DRAWS = 16384  # draws scheduled in one call
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
        method ``loaded(array, start, stop)``, that is called when a range has been filled.
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
    >>> store = getfixture("small_store")
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
        if batch_size < 1:
            raise ConfigError(f"batch_size must be 1 or more, got {batch_size}")
        if channels not in ("first", "last"):
            raise ConfigError(f"channels={channels!r} is not known; use 'first' or 'last'")
        if on_bad_chunk not in ("raise", "skip"):
            raise ConfigError(f"on_bad_chunk={on_bad_chunk!r} is not known; use 'raise' or 'skip'")
        if lane_groups < 1:
            raise ConfigError(f"lane_groups must be 1 or more, got {lane_groups}")
        names = tuple(fields) if fields is not None else _all_fields(self.stores[0])
        self.cuts = {"x": Cut(names, 0, window.length)} | _target_cuts(targets, window.length)
        self._field_names = tuple(dict.fromkeys(n for cut in self.cuts.values() for n in cut.fields))
        _check_fields(self.stores, self._field_names)
        self.window = with_horizon(window, max(cut.horizon(window.length) for cut in self.cuts.values()))
        self.batch_size, self.drop_last = int(batch_size), drop_last
        self.shuffle, self.seed = shuffle, int(seed)
        self.lane_groups = int(lane_groups)
        self.sampling = parse_sampling(sampling)
        self._channels_last = channels == "last"
        self._skip = on_bad_chunk
        self._allocate = arena
        self._dtypes = {key: _out_dtype(self.stores, cut.fields, dtype) for key, cut in self.cuts.items()}
        self._scales = {
            (key, name): _scale(self.stores[0], name)
            for key, cut in self.cuts.items()
            for name in cut.fields
            if dtype is not None and np.dtype(dtype).kind == "f"
        }
        self.index = WindowIndex([s.segments(split) for s in self.stores], self.window)
        if self.index.n_windows == 0:
            longest = max(
                (int((s.stop - s.start).max(initial=0)) for s in (x.segments(split) for x in self.stores)),
                default=0,
            )
            raise ConfigError(
                f"there is no window: it needs {self.window.span} obs (length {self.window.length} + horizon "
                f"{self.window.horizon}), the longest segment has {longest}; lower the window, or use short='pad'"
            )
        self._n_draws = n_draws(self.index, self.sampling)
        self.group_first = group_offsets(self._n_draws, self.lane_groups)
        self._offsets = _Offsets(self.stores)
        self.plan = self._make_plan(parse_bytes(memory_limit), lanes, passes, int(world_size), blocks)
        self.blocks = self._make_blocks()
        self._schedules: dict[int, tuple[Population, EpochSchedule]] = {}
        self._residency: Residency | None = None
        self._served: tuple[int, int] = (0, 0)

    # ---- what there is

    @property
    def n_windows(self) -> int:
        """Windows that an epoch draws, of all ranks and lane groups together."""
        return self._n_draws

    def n_draws(self, group: int = 0) -> int:
        """Return the draws of one lane group in an epoch, of all ranks together."""
        return int(self.group_first[group + 1] - self.group_first[group])

    def n_batches(self, rank: int = 0, world_size: int = 1) -> int:
        """Return the batches of an epoch; the same for every rank, by arithmetic alone."""
        del rank
        return self._rotation(world_size).count(Position.start(0, self.lane_groups))

    @property
    def fingerprint(self) -> str:
        """What decides the order, as 32 hexadecimal digits: stores, windows, sampling, seed, plan."""
        parts = [
            *[str(s.fingerprint) for s in self.stores],
            repr(self.window),
            self.index.first.tobytes(),
            repr(self.sampling)
            if not hasattr(self.sampling, "weights")
            else repr(np.asarray(self.sampling.weights)),
            f"{self.shuffle} {self.seed} {self.plan.lanes} {self.plan.passes} {self.lane_groups} {self.plan.blocks}",
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
        return self._epoch(epoch)[1]

    # ---- set up

    def _make_plan(
        self, limit: int, lanes: int | str, passes: int | str, world_size: int, blocks: Sequence[int] | None
    ) -> Plan:
        chunk = [int(s.layout.chunk) for s in self.stores]
        n_obs = [int(s.layout.n_obs) for s in self.stores]
        lengths = dict(zip(blocks[::2], blocks[1::2], strict=True)) if blocks is not None else {}
        cut = Blocks.of(self.index, [lengths.get(c, c) for c in chunk], n_obs)
        touched = int((cut.stop - cut.start).sum())
        width = sum(self.stores[0].fields[n].bytes_per_obs for n in self._field_names)
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

    def _epoch(self, epoch: int) -> tuple[Population, EpochSchedule]:
        if epoch not in self._schedules:
            items = population(self.index, self.blocks, self.sampling, seed=self.seed, epoch=epoch)
            made = EpochSchedule(
                items.counts,
                key=derive_key(self.seed, epoch, "order"),
                lanes=self.plan.lanes,
                passes=self.plan.passes,
                lane_groups=self.lane_groups,
                shuffle=self.shuffle,
            )
            self._schedules = {epoch: (items, made)}
        return self._schedules[epoch]

    def _rotation(self, world_size: int) -> Rotation:
        groups = tuple(self.n_draws(g) for g in range(self.lane_groups))
        return Rotation(groups, step=self.batch_size * world_size, drop_last=self.drop_last)

    def _resident(self, groups: int) -> Residency:
        """Return the residency, sized for a share of the lane groups; made on first use."""
        if self._residency is None:
            plan = self.plan
            if not plan.whole and groups < self.lane_groups:
                share = max(plan.slots * groups // self.lane_groups, 1)
                plan = replace(plan, slots=share, arena_bytes=share * plan.arena_bytes // plan.slots)
            obs = (
                int((self.blocks.stop - self.blocks.start).sum())
                if plan.whole
                else plan.slots * plan.slot_obs
            )
            arrays: dict[str, NDArray[Any]] = {}
            for name in self._field_names:
                spec = self.stores[0].fields[name]
                arrays[name] = self._array(spec.shape(obs), spec.np_dtype)
            hook = getattr(self._allocate, "loaded", None)
            self._residency = Residency(
                self.stores,
                self._field_names,
                arrays,
                self.blocks,
                plan,
                on_bad_chunk=self._skip,
                loaded=None if hook is None else lambda name, a, b: hook(arrays[name], a, b),
            )
        return self._residency

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if self._allocate == "numpy":
            return np.empty(shape, dtype)
        made: NDArray[Any] = self._allocate(shape, dtype)
        return made

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
            Batches of this iteration to leave out, without reading for them.

        Yields
        ------
        dict
            ``"x"`` [batch, channel, window] and further cuts; ``"sequence"``, ``"start"`` (obs within
            the sequence), ``"length"`` (obs that exist), ``"store"`` (for several stores), int64[batch];
            ``"group"`` and ``"draws"``: lane group of the batch and its draws, all ranks together;
            ``"repeated"`` bool[batch], for several ranks with ``drop_last=False``: rows that only make all
            ranks' batches equally long.

        Raises
        ------
        ConfigError
            If lanes cannot be shared by the ranks, or a newer iteration took over.
        CorruptDataError
            At the batch that needs a chunk which cannot be read.
        ForkError
            In a forked child of the process that made the loader.
        """
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is not one of {world_size} ranks")
        serve = tuple(range(self.lane_groups)) if groups is None else tuple(groups)
        drawn = tuple(start_draws) if start_draws is not None else (0,) * self.lane_groups
        if len(drawn) != self.lane_groups or not set(serve) <= set(range(self.lane_groups)):
            raise ConfigError(
                f"start_draws {drawn} and groups {serve} do not fit the {self.lane_groups} lane groups of the loader"
            )
        return self._iterate(epoch, rank, world_size, serve, Position(epoch, first_group, drawn), start_batch)

    def _iterate(
        self, epoch: int, rank: int, world_size: int, serve: tuple[int, ...], position: Position, skip: int
    ) -> Generator[Batch, None, None]:
        rotation = self._rotation(world_size)
        plan = list(_limited(rotation.batches(position, serve), skip)) if skip else None
        if plan is not None:
            drawn = list(position.drawn)
            for g, first, draws in plan:
                drawn[g] = first + draws
            turn = (plan[-1][0] + 1) % self.lane_groups if plan else position.turn
            position = Position(epoch, turn, tuple(drawn))
        items, schedule = self._epoch(epoch)
        clock = _Clock(rotation, position, serve)
        pieces = _Pieces.of(schedule, clock, serve, rank, world_size)
        residency = self._resident(len(serve))
        residency.check_process()
        held = _capacity(residency.plan, schedule, len(serve), world_size)
        session = Session(
            residency,
            pieces.block,
            pieces.first,
            pieces.last,
            _Ranges(self, items, schedule, pieces),
            held,
        )
        try:
            rows = _Rows(self, items, schedule, rank, world_size)
            for group, first, draws in rotation.batches(position, serve):
                yield self._batch(session, rows, clock, group, first, draws)
        finally:
            session.close()

    def _batch(
        self, session: Session, rows: _Rows, clock: _Clock, group: int, first: int, draws: int
    ) -> Batch:
        world = rows.world_size
        mine = rows.take(group, first, draws)
        n = len(mine.start)
        full = -(-draws // world)
        outs = {key: self._empty(key, full) for key in self.cuts}
        stop = first + draws
        at, done = first, 0
        residency = session.residency
        while at < stop:
            upto = clock.draw_of(group, session.reach(clock.moment(group, stop - 1) + 1), stop)
            end = min(n, max(0, -(-(upto - first - rows.rank) // world)))
            if end > done:
                self._gather(residency, mine, slice(done, end), outs)
            session.leave(clock.moment(group, upto - 1) + 1)
            at, done = upto, end
        if residency.counters.bad_chunks:
            self._replace(residency, mine, outs)
        length = np.minimum(mine.room, self.window.length)
        start = mine.start - self._offsets.of(mine.store, mine.sequence)
        batch: Batch = dict(outs)
        batch |= {"sequence": mine.sequence, "start": start, "length": length}
        if len(self.stores) > 1:
            batch["store"] = mine.store
        if world > 1 and not self.drop_last:
            batch["repeated"] = np.arange(full) >= n
        if n < full:
            _repeat(batch, n, full, rows.kept)
        elif world > 1 and not self.drop_last:
            rows.kept = {key: value[-1].copy() for key, value in batch.items()}
        return batch | {"group": group, "draws": draws}

    def _empty(self, key: str, n: int) -> NDArray[Any]:
        cut = self.cuts[key]
        width = sum(max(1, self.stores[0].fields[name].items) for name in cut.fields)
        shape = (n, cut.length, width) if self._channels_last else (n, width, cut.length)
        return np.empty(shape, self._dtypes[key])

    def _gather(self, residency: Residency, rows: _Mine, part: slice, outs: dict[str, NDArray[Any]]) -> None:
        at = residency.origin[rows.block[part]] + rows.start[part]
        room = rows.room[part]
        for key, cut in self.cuts.items():
            channel = 0
            place = at + cut.offset if cut.offset else at
            valid = np.clip(room - cut.offset, 0, cut.length)
            for name in cut.fields:
                array = residency.arrays[name]
                cut_windows(
                    array,
                    place,
                    valid,
                    outs[key][part],
                    channel,
                    channels_last=self._channels_last,
                    scale=self._scales.get((key, name)),
                )
                channel += 1 if array.ndim == 1 else array.shape[1]

    def _replace(self, residency: Residency, rows: _Mine, outs: dict[str, NDArray[Any]]) -> None:
        """Replace windows on bad chunks by good ones of the same batch."""
        bad = _on_bad(residency, rows, self.window.span)
        n_bad = int(bad.sum())
        if not n_bad:
            return
        good = np.flatnonzero(~bad)
        if not len(good):
            raise CorruptDataError(
                f"all {len(bad)} windows of a batch lie on chunks that cannot be read, so none can stand for them: "
                "repair the store (`chunkstore verify`)"
            )
        lost = np.flatnonzero(bad)
        source = good[np.arange(n_bad) % len(good)]
        for out in outs.values():
            out[lost] = out[source]
        for name in ("store", "sequence", "start", "room", "block"):
            values = getattr(rows, name)
            values[lost] = values[source]
        with residency.lock:
            residency.counters.windows_replaced += n_bad

    # ---- the end

    def close(self) -> None:
        """End threads of an iteration and give the arena back; the loader may be used again."""
        residency, self._residency = self._residency, None
        if residency is not None and residency.session is not None:
            residency.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_residency": None, "_schedules": {}}


class _Mine:
    """Rows of one batch of one rank: int64 arrays of one length."""

    __slots__ = ("block", "room", "sequence", "start", "store")

    def __init__(self, store: Any, sequence: Any, start: Any, room: Any, block: Any) -> None:
        self.store, self.sequence, self.start, self.room, self.block = store, sequence, start, room, block


class _Rows:
    """Rows of batches, scheduled many batches at a time."""

    def __init__(
        self, loader: WindowLoader, items: Population, schedule: EpochSchedule, rank: int, world_size: int
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._items, self._schedule = items, schedule
        self._step = loader.batch_size * world_size
        self._cursor = schedule.cursor()
        self._ahead: dict[int, tuple[int, int, _Mine]] = {}
        self.kept: dict[str, NDArray[Any]] = {}

    def take(self, group: int, first: int, draws: int) -> _Mine:
        """Return the rank's rows of draws [first, first + draws) of a group."""
        have = self._ahead.get(group)
        if have is None or not (have[0] <= first and first + draws <= have[1]):
            have = self._ahead[group] = self._plan(group, first, draws)
        low, _, rows = have
        a = -(-(first - low) // self.world_size)
        b = a + len(range(self.rank, draws, self.world_size))
        return _Mine(
            *(getattr(rows, name)[a:b].copy() for name in ("store", "sequence", "start", "room", "block"))
        )

    def _plan(self, group: int, first: int, draws: int) -> tuple[int, int, _Mine]:
        base = int(self._schedule.group_first[group])
        end = int(self._schedule.group_first[group + 1]) - base
        many = max(1, PLAN_DRAWS * self.world_size // self._step) * self._step
        stop = min(end, first + max(many, draws))
        numbers = base + np.arange(first + self.rank, stop, self.world_size)
        item, piece = self._schedule.items(numbers, self._cursor)
        places = self._items.index.locate(self._items.windows(item))
        block = self._schedule.block[piece]
        return first, stop, _Mine(places.store, places.sequence, places.start, places.room, block)


class _Clock:
    """Moments: the order in which an iteration over several lane groups serves their draws.

    Batch n of each group is served before batch n + 1 of any; the moment of a draw counts (batch, turn
    of its group, place within the batch).
    """

    def __init__(self, rotation: Rotation, position: Position, serve: tuple[int, ...]) -> None:
        n = len(position.drawn)
        order = [g for k in range(n) if (g := (position.turn + k) % n) in set(serve)]
        self.turn = {g: k for k, g in enumerate(order)}
        self.start = position.drawn
        self.step, self.groups = rotation.step, len(order)
        self.stop = {
            g: position.drawn[g]
            + (
                rotation.left(g, position.drawn[g]) * rotation.step
                if rotation.drop_last
                else rotation.n_draws[g] - position.drawn[g]
            )
            for g in order
        }

    def moment(self, group: int, draw: int) -> int:
        """Return the moment of a draw of a group."""
        batch, within = divmod(draw - self.start[group], self.step)
        return (batch * self.groups + self.turn[group]) * self.step + within

    def moments(self, group: int, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the moments of draws of a group."""
        batch, within = np.divmod(draws - self.start[group], self.step)
        return (batch * self.groups + self.turn[group]) * self.step + within

    def draw_of(self, group: int, moment: int, most: int) -> int:
        """Return the first draw of the group, at most ``most``, whose moment is not before ``moment``."""
        turn, within = divmod(moment, self.step)
        batch, ours = divmod(turn, self.groups)
        mine = self.turn[group]
        if ours > mine:
            batch, within = batch + 1, 0
        elif ours < mine:
            within = 0
        return min(most, self.start[group] + batch * self.step + within)


class _Pieces:
    """Pieces that an iteration needs, in the order of need, by moment."""

    __slots__ = ("block", "first", "last", "piece")

    def __init__(self, piece: Any, block: Any, first: Any, last: Any) -> None:
        self.piece, self.block, self.first, self.last = piece, block, first, last

    @classmethod
    def of(
        cls, schedule: EpochSchedule, clock: _Clock, serve: tuple[int, ...], rank: int, world_size: int
    ) -> _Pieces:
        parts = []
        for g in serve:
            needs: Needs = schedule.needs(group=g, rank=rank, world_size=world_size, start=clock.start[g])
            keep = needs.first < clock.stop[g]
            last = np.minimum(needs.last[keep], clock.stop[g] - 1)
            parts.append(
                (
                    needs.piece[keep],
                    needs.block[keep],
                    clock.moments(g, needs.first[keep]),
                    clock.moments(g, last),
                )
            )
        piece, block, first, last = (np.concatenate(c) for c in zip(*parts, strict=True))
        order = np.argsort(first, kind="stable")
        return cls(piece[order], block[order], first[order], last[order])


class _Ranges:
    """What obs a piece needs: all from its block's first window to its last, or those of few windows."""

    def __init__(
        self, loader: WindowLoader, items: Population, schedule: EpochSchedule, pieces: _Pieces
    ) -> None:
        self._span = loader.window.span
        self._items, self._schedule, self._pieces = items, schedule, pieces
        self._blocks = loader.blocks

    def __call__(self, i: int) -> list[tuple[int, int]]:
        schedule, items = self._schedule, self._items
        piece, block = int(self._pieces.piece[i]), int(self._pieces.block[i])
        store, start, stop = (
            int(v[block]) for v in (self._blocks.store, self._blocks.start, self._blocks.stop)
        )
        few = int(schedule.count[piece])
        if few * self._span >= stop - start:
            ids = items.index.count_before([store, store], [start, stop]) - np.array([0, 1])
            ends = items.index.locate(ids)
            return [(int(ends.start[0]), int(ends.start[1] + min(ends.room[1], self._span)))]
        wanted = items.index.locate(items.windows(schedule.piece_items(piece)))
        begin = np.sort(wanted.start)
        order = np.argsort(wanted.start, kind="stable")
        end = np.maximum.accumulate((wanted.start + np.minimum(wanted.room, self._span))[order])
        new = np.flatnonzero(begin[1:] > end[:-1]) + 1
        begins = begin[np.concatenate([[0], new])]
        ends = end[np.concatenate([new - 1, [len(end) - 1]])]
        return list(zip(begins.tolist(), ends.tolist(), strict=True))


class _Offsets:
    """First obs of every sequence of every store, on one axis."""

    def __init__(self, stores: Sequence[Any]) -> None:
        parts = [np.asarray(s.sequences.offsets, np.int64) for s in stores]
        self._flat = np.concatenate(parts)
        sizes = np.array([len(p) for p in parts], np.int64)
        self._base = np.cumsum(sizes) - sizes

    def of(self, store: NDArray[np.int64], sequence: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first obs of sequences, within their stores."""
        return self._flat[self._base[store] + sequence]


def _limited(batches: Iterator[tuple[int, int, int]], n: int) -> Iterator[tuple[int, int, int]]:
    for _ in range(n):
        batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _capacity(plan: Plan, schedule: EpochSchedule, groups: int, world_size: int) -> int:
    """Return how many pieces a session may hold: lanes and what is read ahead."""
    if plan.whole:
        return UNLIMITED
    lanes = groups * max(1, schedule.lanes_per_group // (world_size if schedule.shuffle else 1))
    if plan.slots < lanes + 1:
        raise MemoryLimitError(
            f"{lanes} lanes of this process need at least {lanes + 1} slots, the memory limit of {plan.memory_limit} "
            f"bytes holds {plan.slots}: the least that would do is "
            f"{(lanes + 1) * (plan.arena_bytes // plan.slots)} bytes; raise memory_limit or lower lanes"
        )
    return min(plan.slots, lanes + max(ahead_of(lanes), min(lanes, 32)))


def _on_bad(residency: Residency, rows: _Mine, span: int) -> NDArray[np.bool_]:
    """Return which windows lie on a chunk that could not be read."""
    with residency.lock:
        found = sorted(residency.counters.bad_chunks)
    bad = np.zeros(len(rows.start), bool)
    for number in sorted({store for store, _ in found}):
        chunks = np.array([c for s, c in found if s == number])
        at = np.flatnonzero(rows.store == number)
        c = residency.chunk[number]
        end = rows.start[at] + np.minimum(rows.room[at], span) - 1
        bad[at] = np.searchsorted(chunks, rows.start[at] // c) < np.searchsorted(
            chunks, end // c, side="right"
        )
    return bad


def _repeat(batch: Batch, n: int, full: int, kept: dict[str, NDArray[Any]]) -> None:
    """Fill rows from ``n`` on: with the batch's own rows, or with a row kept from the batch before."""
    for key, value in batch.items():
        if key == "repeated":
            continue
        if len(value) < full:
            batch[key] = value = np.concatenate([value, np.zeros(full - n, value.dtype)])
        if n:
            value[n:] = value[np.arange(full - n) % n]
        else:
            value[n:] = kept.get(key, 0)


def _all_fields(store: Any) -> tuple[str, ...]:
    names = tuple(
        name
        for name, spec in store.fields.items()
        if spec.categories is None and " since " not in (spec.units or "")
    )
    if not names:
        raise ConfigError(
            f"{_url(store)} has no field that makes an x; it has {', '.join(store.fields) or 'none'}"
        )
    return names


def _url(store: Any) -> str:
    return str(getattr(store, "url", store))


def _target_cuts(targets: Cut | Sequence[str] | Mapping[str, Cut] | None, length: int) -> dict[str, Cut]:
    if targets is None:
        return {}
    if isinstance(targets, Cut):
        return {"y": targets}
    if isinstance(targets, Mapping):
        return dict(targets)
    return {"y": Cut((targets,) if isinstance(targets, str) else tuple(targets), 0, length)}


def _check_fields(stores: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse fields that a store lacks, or that differ between stores in what an arena must know."""
    for store in stores:
        for name in names:
            spec, wanted = store.fields.get(name), stores[0].fields.get(name)
            if spec is None or wanted is None:
                raise UnknownNameError(
                    f"{_url(store)} has no field {name!r}; it has {', '.join(store.fields)}"
                )
            mine = (spec.np_dtype, spec.items, spec.scale_factor)
            if mine != (wanted.np_dtype, wanted.items, wanted.scale_factor):
                raise ConfigError(
                    f"field {name!r} is {spec.dtype} x {spec.items} (scale {spec.scale_factor}) in {_url(store)} "
                    f"and {wanted.dtype} x {wanted.items} (scale {wanted.scale_factor}) in {_url(stores[0])}; stores "
                    "that are read as one must store a field alike"
                )


def _out_dtype(stores: Sequence[Any], names: Sequence[str], dtype: DTypeLike | None) -> np.dtype[Any]:
    if dtype is not None:
        return np.dtype(dtype)
    common: np.dtype[Any] = np.result_type(*[stores[0].fields[n].np_dtype for n in names])
    return common


def _scale(store: Any, name: str) -> float | None:
    factor = store.fields[name].scale_factor
    return None if factor is None else float(factor)

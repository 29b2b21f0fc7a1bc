"""What an epoch would be like, before any training: how well it mixes, what it reads, what it holds.

Plays the real schedule against the real rules of residency without reading a value. Says beside each
figure of mixing what a perfect shuffle of all windows would have.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.loader import WindowLoader, capacity_of
from chunkstore.permute import permutation
from chunkstore.resident import Residency
from chunkstore.rows import Clock, NeededRanges, Turns
from chunkstore.session import next_use
from chunkstore.state import Position, Rotation
from chunkstore.text import human_bytes
from chunkstore.windows import WindowSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chunkstore.sampling import Population
    from chunkstore.schedule import EpochSchedule

__all__ = ["Mixing", "Simulation", "simulate"]

BATCHES = 2000  # batches looked at, the last ones of the epoch always among them
PIECES = 50_000  # pieces played against residency; the rest of a longer epoch is taken to be alike


@dataclass(frozen=True, slots=True)
class Mixing:
    """How many distinct things a batch holds, over the batches of an epoch."""

    mean: float
    """On average."""
    p1: float
    """In the worst hundredth."""
    min: int
    """In the worst batch."""
    perfect: float
    """On average, in batches of a perfect shuffle."""

    @classmethod
    def of(cls, found: NDArray[np.int64], perfect: NDArray[np.int64]) -> Mixing:
        """Summarise counts, one a batch."""
        if not len(found):
            return cls(0.0, 0.0, 0, 0.0)
        return cls(
            float(found.mean()), float(np.percentile(found, 1)), int(found.min()), float(perfect.mean())
        )


@dataclass(frozen=True, slots=True)
class Simulation:
    """What an epoch is like; plain values."""

    windows: int
    """Windows drawn, all ranks together."""
    batches: int
    """Batches of each rank."""
    blocks: int
    """Blocks that windows start in."""
    plan: dict[str, Any]
    """Lanes, passes, blocks, slots, and why."""
    distinct_blocks: Mixing
    """Blocks in a global batch."""
    distinct_sequences: Mixing
    """Sequences in a global batch."""
    spread: float
    """Part of the epoch between a block's first and last window: the median of blocks with several."""
    spread_perfect: float
    """The same of a perfect shuffle."""
    gap: float
    """Draws from one window of a block to its next: the median."""
    gap_perfect: float
    """The same of a perfect shuffle."""
    arena_bytes: int
    """Bytes of the arena: the most that resident blocks take."""
    batch_bytes: int
    """Bytes of a batch."""
    order_bytes: int
    """Bytes that the epoch's order takes."""
    decoded_bytes: int
    """Bytes decoded in a first epoch by one rank."""
    stored_bytes: int | None
    """Bytes that have to be read for that; None where the stores do not say."""
    loads: int
    """Times that a block is loaded in a first epoch by one rank."""
    data_bytes: int
    """Bytes of all obs that windows touch, decoded."""
    exact: bool
    """Whether the whole epoch was played; otherwise reads are scaled from its beginning."""

    @property
    def peak_bytes(self) -> int:
        """Arena, order, and three batches: what the process needs above its imports, codecs aside."""
        return self.arena_bytes + self.order_bytes + 3 * self.batch_bytes

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self) | {"peak_bytes": self.peak_bytes}

    def to_text(self) -> str:
        """Return some lines for people."""
        arena, order, batch = map(human_bytes, (self.arena_bytes, self.order_bytes, self.batch_bytes))
        read = human_bytes(self.decoded_bytes)
        if self.stored_bytes is not None:
            read += f" ({human_bytes(self.stored_bytes)} stored)"
        about = "" if self.exact else "about "
        times = self.decoded_bytes / max(1, self.data_bytes)
        plan = self.plan
        lines = (
            f"{self.windows:,} windows in {self.batches:,} batches, from {self.blocks:,} blocks",
            f"plan      {plan['lanes']} lanes, {plan['passes']} passes: {plan['reason']}",
            f"blocks    {_said(self.distinct_blocks)}",
            f"sequences {_said(self.distinct_sequences)}",
            f"a block   spreads over {self.spread:.0%} of the epoch (perfect {self.spread_perfect:.0%})",
            f"windows   of a block {self.gap:,.0f} draws apart (perfect {self.gap_perfect:,.0f})",
            f"memory    {human_bytes(self.peak_bytes)} at most: blocks {arena}, order {order}, batch {batch}",
            f"reading   {about}{read} an epoch, {times:.2f} times what windows touch",
            f"loads     {about}{self.loads:,} of blocks",
        )
        return "\n".join(lines)


def _said(mixing: Mixing) -> str:
    worst = f"p1 {mixing.p1:.0f}, min {mixing.min}"
    return f"{mixing.mean:.1f} in a batch ({worst}); perfect shuffle {mixing.perfect:.1f}"


def simulate(
    stores: Any,
    window: WindowSpec | int,
    *,
    stride: int = 1,
    batch_size: int = 64,
    world_size: int = 1,
    epoch: int = 0,
    **options: Any,
) -> Simulation:
    """Play an epoch without reading it.

    Parameters
    ----------
    stores : ChunkStore or sequence of ChunkStore
        As for :class:`~chunkstore.loader.WindowLoader`.
    window : WindowSpec or int
        The window, or its length in obs.
    stride : int
        Obs between starts, where ``window`` is a length.
    batch_size, world_size : int
        Windows in a batch of one rank, and the number of ranks.
    epoch : int
        Which epoch to play.
    **options
        Whatever :class:`~chunkstore.loader.WindowLoader` takes: ``split``, ``sampling``, ``lanes``,
        ``passes``, ``memory_limit`` ...

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> found = simulate(small_store(), 2, batch_size=4, fields=["x"])
    >>> found.windows, found.batches
    (7, 2)
    """
    spec = window if isinstance(window, WindowSpec) else WindowSpec(window, stride=stride)
    with WindowLoader(stores, spec, batch_size=batch_size, world_size=world_size, **options) as loader:
        items, schedule = loader.order(epoch)
        step = batch_size * world_size
        mixed = _mixing(loader, items, schedule, step)
        reads = _reads(loader, items, schedule, world_size)
        batch = {key: loader.empty(key, batch_size) for key in loader.cuts}
        return Simulation(
            windows=loader.n_windows,
            batches=loader.n_batches(0, world_size),
            blocks=int(np.count_nonzero(items.counts)),
            plan=loader.plan.to_json(),
            arena_bytes=loader.plan.arena_bytes,
            batch_bytes=sum(a.nbytes for a in batch.values()),
            order_bytes=sum(v.nbytes for v in vars(schedule).values() if isinstance(v, np.ndarray)),
            data_bytes=int((loader.blocks.stop - loader.blocks.start).sum()) * loader.bytes_per_obs,
            **mixed,
            **reads,
        )


def _mixing(loader: WindowLoader, items: Population, schedule: EpochSchedule, step: int) -> dict[str, Any]:
    """Compare batches, spread and gaps of windows with those of a perfect shuffle."""
    starts = np.concatenate(
        [
            np.arange(low, high - step + 1, step)
            for low, high in zip(schedule.group_first[:-1], schedule.group_first[1:], strict=True)
        ]
    )
    if len(starts) > BATCHES:
        some = np.linspace(0, len(starts) - 1, BATCHES - 50).astype(int)
        starts = starts[np.unique(np.concatenate([some, np.arange(len(starts) - 50, len(starts))]))]
    perfect = permutation(max(1, schedule.n_draws), (loader.seed, "perfect"))
    first = np.concatenate([[0], np.cumsum(items.counts)])
    blocks: list[NDArray[np.int64]] = []
    sequences: list[NDArray[np.int64]] = []
    for some in np.array_split(starts, max(1, len(starts) * step // 1_000_000)):
        draws = (some[:, None] + np.arange(step)).ravel()
        drawn, _ = schedule.items(draws)
        ideal = perfect.apply(draws)
        found = [np.searchsorted(first, chosen, side="right") - 1 for chosen in (drawn, ideal)]
        shape = (-1, step)
        blocks.append(np.stack([_distinct(b.reshape(shape)) for b in found], axis=1))
        names = [_sequence_numbers(items, chosen) for chosen in (drawn, ideal)]
        sequences.append(np.stack([_distinct(n.reshape(shape)) for n in names], axis=1))
    counted = np.concatenate(blocks) if blocks else np.zeros((0, 2), np.int64)
    named = np.concatenate(sequences) if sequences else np.zeros((0, 2), np.int64)
    n = items.counts[items.counts > 1]
    usual = float(np.median(n)) if len(n) else 1.0
    # a window of n in random places: the range of n uniform numbers, and the median of a geometric one
    ideal_spread = (usual - 1) / (usual + 1) if len(n) else 0.0
    ideal_gap = float(np.ceil(np.log(2) * schedule.n_draws / usual)) if len(n) else 0.0
    spread, gap = (ideal_spread, ideal_gap) if loader.plan.full else _distances(schedule)
    return {
        "distinct_blocks": Mixing.of(counted[:, 0], counted[:, 1]),
        "distinct_sequences": Mixing.of(named[:, 0], named[:, 1]),
        "spread": spread,
        "spread_perfect": ideal_spread,
        "gap": gap,
        "gap_perfect": ideal_gap,
    }


def _distinct(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    ordered = np.sort(rows, axis=1)
    counts: NDArray[np.int64] = 1 + (np.diff(ordered, axis=1) != 0).sum(axis=1)
    return counts


def _sequence_numbers(items: Population, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    at = items.index.locate(items.windows(chosen))
    return at.store * 2**40 + at.sequence


def _distances(schedule: EpochSchedule) -> tuple[float, float]:
    """Return the median spread of blocks (a part of the epoch) and gap of their windows (in draws)."""
    block = schedule.block
    low = schedule.draws_of(schedule.lane, schedule.at)
    high = schedule.draws_of(schedule.lane, schedule.at + schedule.count - 1)
    held = np.flatnonzero(schedule.counts > 1)
    if not len(held):
        return 0.0, 0.0
    first = np.full(len(schedule.counts), schedule.n_draws)
    last = np.zeros(len(schedule.counts), np.int64)
    np.minimum.at(first, block, low)
    np.maximum.at(last, block, high)
    spread = float(np.median((last - first)[held])) / max(1, schedule.n_draws)
    # within a visit a block is drawn once in each turn of the lanes
    stays = schedule.count.sum() - len(schedule.count) >= len(schedule.count)
    gap = float(schedule.lanes_per_group) if stays else spread * schedule.n_draws
    return spread, gap


def _reads(
    loader: WindowLoader, items: Population, schedule: EpochSchedule, world_size: int
) -> dict[str, Any]:
    """Play the pieces of rank 0 against an empty residency, as threads do that read ahead without delay."""
    groups = tuple(range(loader.lane_groups))
    sizes = tuple(loader.n_draws(g) for g in groups)
    stored: int | None = 0
    known: dict[tuple[int, str, int], NDArray[np.int64]] = {}
    if loader.plan.full:
        for number, store in enumerate(loader.stores):
            mine = loader.blocks.store == number
            edges = zip(loader.blocks.start[mine], loader.blocks.stop[mine], strict=True)
            parts = [np.arange(a // store.layout.chunk, -(-b // store.layout.chunk)) for a, b in edges]
            chunks = np.concatenate(parts) if parts else np.empty(0, np.int64)
            stored = None if stored is None else _add_stored(stored, loader, number, chunks, known)
        obs = int((loader.blocks.stop - loader.blocks.start).sum())
        return {
            "decoded_bytes": obs * loader.bytes_per_obs,
            "stored_bytes": stored,
            "loads": len(loader.blocks),
            "exact": True,
        }
    rotation = Rotation(sizes, step=loader.batch_size * world_size, drop_last=False)
    clock = Clock(rotation, Position.start(0, len(groups)), groups)
    turns = Turns.of(schedule, clock, groups, 0, world_size)
    ranges = NeededRanges(loader.blocks, loader.window.span, items, schedule, turns)
    empty = {
        name: np.empty(loader.stores[0].fields[name].shape(0), loader.stores[0].fields[name].np_dtype)
        for name in loader.field_names
    }
    residency = Residency(loader.stores, loader.field_names, empty, loader.blocks, loader.plan)
    residency.begin(turns.block)
    after = next_use(turns.block)
    leaving = np.argsort(turns.last, kind="stable")
    n = min(len(turns.block), PIECES)
    held = capacity_of(loader.plan, schedule, len(groups), world_size)
    gone, decoded = 0, 0
    for i in range(n):
        # threads read ahead as far as they may: what is released then decides what has to leave
        while i - gone >= held:
            residency.release(int(turns.block[leaving[gone]]))
            gone += 1
        jobs = residency.take(i, int(turns.block[i]), ranges(i), int(after[i])) or []
        for job in jobs:
            obs = sum(b - a for a, b in job.ranges)
            decoded += obs * loader.bytes_per_obs
            if stored is not None:
                stored = _add_stored(stored, loader, job.store, job.chunks, known)
            residency.finish(job)
    scale = len(turns.block) / max(1, n)
    return {
        "decoded_bytes": int(decoded * scale),
        "stored_bytes": None if stored is None else int(stored * scale),
        "loads": int(residency.counters.loads * scale),
        "exact": n == len(turns.block),
    }


def _add_stored(
    total: int,
    loader: WindowLoader,
    number: int,
    chunks: NDArray[np.int64],
    known: dict[tuple[int, str, int], NDArray[np.int64]],
) -> int | None:
    """Add the stored bytes of chunks of all fields; None where the store does not say."""
    store = loader.stores[number]
    ask = getattr(store, "stored_bytes", None)
    if ask is None:
        return None
    per_shard = store.layout.shard // store.layout.chunk
    shards: Sequence[int] = np.unique(chunks // per_shard).tolist()
    for name in loader.field_names:
        for shard in shards:
            if (number, name, shard) not in known:
                known[number, name, shard] = np.asarray(ask(name, shard))
            mine = chunks[chunks // per_shard == shard] % per_shard
            total += int(known[number, name, shard][mine].sum())
    return total

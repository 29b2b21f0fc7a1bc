"""How a memory limit becomes blocks, lanes, passes and slots: decided once, before anything is read.

Two ways to be resident:

- *whole*: everything that windows touch fits, once for each lane group, as each may be served by a worker
  process of its own. Chunks lie in the arena as they lie in the store, each is decoded once in the life
  of the loader. If lanes and passes are left to be chosen, the order is then a full shuffle of all
  windows: nothing is won by less.
- *slots*: the arena is divided into slots of one block and its halo, the ``span - 1`` obs behind it
  that its last windows still need.

Pure. What was chosen, and why, is a :class:`Plan`: plain values, recorded in a training state.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import ConfigError, MemoryLimitError
from chunkstore.numbers import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Plan", "Sizes", "make_plan"]

MAX_PASSES = 8  # chosen by itself where blocks are read again for every pass
FULL_LANES = 8  # of each lane group and rank of a full shuffle
WHOLE_VISIT = 64  # windows of a visit where nothing is read again
CHUNKS_A_BLOCK = 8  # at most, where memory would allow longer blocks
BLOCKS_A_LANE = 8  # at least, before blocks are made longer


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a plan is made from: lengths in obs, one for each store."""

    n_obs: tuple[int, ...]
    """Obs of each store."""
    chunk: tuple[int, ...]
    """Chunk length of each store."""
    touched: int
    """Obs of all blocks that windows touch where everything fits, stores together, halos included."""
    bytes_per_obs: int
    """Decoded bytes of one obs, fields together."""
    length: int
    """Obs of a window."""
    span: int
    """Obs of a window and its horizon."""
    n_draws: int
    """Windows an epoch draws."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was chosen for the order and the memory of a loader, and why.

    The order of an epoch depends on ``lanes``, ``passes``, ``lane_groups`` and ``blocks``; the rest is
    how this process serves it.
    """

    lanes: int
    """Blocks drawn from at the same time, all ranks and lane groups together."""
    passes: int
    """Visits of a block in an epoch; 0 for a full shuffle."""
    lane_groups: int
    """Streams of draws with lanes of their own."""
    blocks: tuple[int, ...]
    """Block length of each distinct chunk length, in obs: as (chunk, block, chunk, block, ...)."""
    full: bool
    """Whether the order is a full shuffle of all windows (``passes`` is then 0); only where ``whole``."""
    whole: bool
    """Whether everything fits: each chunk is then decoded once in the life of the loader."""
    slots: int
    """Places for resident blocks in the arena; 0 where ``whole``."""
    slot_obs: int
    """Obs of a slot: block and halo."""
    arena_bytes: int
    """Bytes of the arena."""
    memory_limit: int
    """Bytes that were allowed."""
    reason: str
    """Why, in a sentence or two."""

    def block_of(self, chunk: int) -> int:
        """Return the block length of stores with this chunk length."""
        return dict(zip(self.blocks[::2], self.blocks[1::2], strict=True))[chunk]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self) | {"blocks": list(self.blocks)}


def ahead_of(lanes: int) -> int:
    """Return how many slots beyond the lanes a rank keeps for blocks that are decoded ahead."""
    return max(2, lanes // 8)


def make_plan(
    sizes: Sizes,
    limit: int,
    *,
    batch_size: int,
    lanes: int | str = "auto",
    passes: int | str = "auto",
    lane_groups: int = 1,
    world_size: int = 1,
    shuffle: bool = True,
    blocks: Sequence[int] | None = None,
) -> Plan:
    """Choose blocks, lanes and passes for a memory limit.

    Parameters
    ----------
    sizes : Sizes
        Of the data and the window.
    limit : int
        Bytes for the arena of one rank (its lane groups together).
    batch_size : int
        Windows in a batch of one rank.
    lanes, passes : int or "auto"
        As given by the user.
    lane_groups, world_size : int
        Lanes become a multiple of their product.
    shuffle : bool
        False needs one lane in each lane group and one pass, whatever ``lanes`` and ``passes`` say.
    blocks : sequence of int, optional
        Block lengths of an earlier plan that must be kept.

    Raises
    ------
    MemoryLimitError
        If the limit is too small; the message says the least that would do.
    ConfigError
        If lanes do not fit groups and ranks, or are not a number.
    """
    lanes, passes = _given("lanes", lanes, 1), _given("passes", passes, 0)
    if not shuffle:
        lanes, passes = "auto", 1
    share = lane_groups * world_size
    if isinstance(lanes, int) and lanes % share:
        raise ConfigError(
            f"lanes ({lanes}) must be a multiple of lane_groups x world_size = {lane_groups} x {world_size}"
        )
    everything = sizes.touched * sizes.bytes_per_obs
    whole = everything * lane_groups <= limit
    if passes == 0 and not whole:
        each = f" in each of {lane_groups} lane groups, {everything * lane_groups} together"
        raise MemoryLimitError(
            f"memory_limit is {limit} bytes; a full shuffle (passes=0) needs everything that windows touch, "
            f"{everything} bytes{each if lane_groups > 1 else ''}: raise memory_limit, or use passes='auto'"
        )
    full = shuffle and whole and (passes == 0 or (passes == "auto" and lanes == "auto"))
    chunks = sorted(set(sizes.chunk))
    halo = sizes.span - 1
    of_stores = list(zip(sizes.chunk, sizes.n_obs, strict=True))

    def slot_obs(of: dict[int, int]) -> int:
        return max(
            (
                min(of[c], n) + min(halo, max(0, n - of[c]))
                for c, n in zip(sizes.chunk, sizes.n_obs, strict=True)
            ),
            default=1,
        )

    def n_blocks(of: dict[int, int]) -> int:
        return sum(-(-n // of[c]) for c, n in of_stores)

    wanted = batch_size if lanes == "auto" else int(lanes) // world_size
    if not shuffle:
        wanted = lane_groups
    chosen = block_lengths(chunks)
    if blocks is not None:
        chosen = given_blocks(blocks, chunks)
    elif not whole:
        for factor in range(2, CHUNKS_A_BLOCK + 1):
            longer = block_lengths(chunks, factor)
            group = max(1, wanted // lane_groups)
            slots = max(wanted + ahead_of(wanted), lane_groups * (group + ahead_of(group)))
            fits = limit // (slot_obs(longer) * sizes.bytes_per_obs) >= slots
            if not fits or n_blocks(longer) < BLOCKS_A_LANE * wanted * world_size:
                break
            chosen = longer
    total = n_blocks(chosen)
    block_text = "/".join(str(b) for b in sorted(set(chosen.values())))
    if whole:
        per_rank = _even(max(1, wanted // lane_groups)) * lane_groups if lanes == "auto" else wanted
        reason = (
            f"everything that windows touch ({sizes.touched} obs of {sizes.bytes_per_obs} bytes) fits, "
            f"so each chunk is decoded once; {per_rank} lanes a rank, blocks of {block_text} obs"
        )
        if full:
            # any multiple would do: the lanes of a full shuffle only have to be shared by ranks
            per_rank = lane_groups * FULL_LANES if lanes == "auto" else wanted
            reason = (
                f"all that windows touch ({sizes.touched} obs of {sizes.bytes_per_obs} bytes) fits: each "
                "chunk is decoded once, and the order is a full shuffle of all windows"
            )
            passes = 0
        slots = slot = 0
        arena = sizes.touched * sizes.bytes_per_obs
    else:
        slot = slot_obs(chosen)
        slot_bytes = slot * sizes.bytes_per_obs
        room = limit // slot_bytes
        least = 1 if lanes == "auto" or not shuffle else int(lanes) // share
        need = lane_groups * (least + ahead_of(least))
        if room < need:
            all_of_it = everything * lane_groups
            if all_of_it <= need * slot_bytes:
                raise MemoryLimitError(
                    f"memory_limit is {limit} bytes, the least that would do is {all_of_it}: all that "
                    f"windows touch, {sizes.touched} obs x {sizes.bytes_per_obs} bytes"
                    f"{f' for each of {lane_groups} lane groups' * (lane_groups > 1)}, which is less than "
                    f"{need} slots of {slot} obs; raise memory_limit, lower lanes, or read fewer fields"
                )
            raise MemoryLimitError(
                f"memory_limit is {limit} bytes, the least that would do is {need * slot_bytes}: "
                f"{need} slots of {slot} obs (a block of {block_text} and {halo} behind it) x "
                f"{sizes.bytes_per_obs} bytes, for {least} lanes in each of {lane_groups} lane groups and "
                "what is read ahead; raise memory_limit, lower lanes, or read fewer fields"
            )
        per_group = least
        if lanes == "auto" and shuffle:
            most = max(1, min(wanted // lane_groups, total // (2 * share)))
            while per_group < most and lane_groups * (per_group + 1 + ahead_of(per_group + 1)) <= room:
                per_group += 1
            per_group = _even(per_group)
        per_rank = per_group * lane_groups
        slots = min(
            room, lane_groups * (per_group + max(ahead_of(per_group), min(total, room // lane_groups)))
        )
        slots = min(slots, max(total, need))
        arena = slots * slot_bytes
        why = "as many as a batch has windows" if per_rank >= batch_size else "as many as the limit holds"
        if lanes != "auto":
            why = "as given"
        reason = (
            f"{per_rank} lanes a rank ({why}) and {slots - per_rank} slots for what is read ahead or kept, "
            f"each a block of {block_text} obs and {halo} behind it"
        )
    if passes == "auto":
        passes, text = _choose_passes(sizes, whole, per_rank, batch_size, total)
        reason += f"; {passes} pass{'es' if passes > 1 else ''}: {text}"
    return Plan(
        lanes=per_rank * (world_size if shuffle else 1),  # an order that is not drawn knows no ranks
        passes=int(passes) if shuffle else 1,
        lane_groups=lane_groups,
        blocks=tuple(x for c in chunks for x in (c, chosen[c])),
        full=full,
        whole=whole,
        slots=slots,
        slot_obs=slot,
        arena_bytes=arena,
        memory_limit=limit,
        reason=reason,
    )


def given_blocks(blocks: Sequence[int], chunks: Sequence[int]) -> dict[int, int]:
    """Return the block length of each chunk length, of blocks given as (chunk, block, chunk, block, ...).

    Raises
    ------
    ConfigError
        If a chunk length of the stores is missing, or a block does not consist of whole chunks.

    Examples
    --------
    >>> given_blocks([16, 64, 48, 48], chunks=[16, 48])
    {16: 64, 48: 48}
    """
    numbers = [whole_number("the length of a block", n, 1) for n in blocks]
    lengths = dict(zip(numbers[::2], numbers[1::2], strict=False))
    if len(numbers) % 2 or sorted(lengths) != sorted(set(chunks)) or any(b % c for c, b in lengths.items()):
        raise ConfigError(
            f"blocks={tuple(numbers)} are none of stores with chunks of {sorted(set(chunks))} obs; give "
            "(chunk, block, ...), each block a multiple of its chunk, as plan.blocks has them"
        )
    return lengths


def block_lengths(chunks: Sequence[int], factor: int = 1) -> dict[int, int]:
    """Return block lengths near ``factor`` of the longest chunks, for each chunk length a multiple of it.

    Examples
    --------
    >>> block_lengths([16, 40], factor=2)
    {16: 80, 40: 80}
    """
    target = factor * max(chunks)
    return {c: max(1, target // c) * c for c in sorted(set(chunks))}


def _even(lanes: int) -> int:
    """Return a few lanes less, so that 2, 4 or 8 ranks could share them: a run may go on with other ranks."""
    return lanes // 8 * 8 if lanes >= 8 else 1 << (lanes.bit_length() - 1)


def _choose_passes(sizes: Sizes, whole: bool, lanes: int, batch: int, blocks: int) -> tuple[int, str]:
    draws_a_block = max(1, sizes.n_draws // max(1, blocks))
    if whole:
        passes = int(np.clip(draws_a_block // WHOLE_VISIT, 1, 1024))
        return passes, "they cost nothing where nothing is read twice"
    # bytes decoded for a window (own block and a chunk of halo) against the bytes of the window itself
    obs_a_block = max(sizes.chunk)
    affordable = draws_a_block * sizes.length // (8 * 2 * obs_a_block)
    wished = -(-2 * batch // max(1, lanes))
    passes = int(np.clip(min(affordable, wished), 1, MAX_PASSES))
    if passes == 1:
        return 1, "a block is read once"
    return passes, "lanes are few or windows overlap much, so reading again is cheap and mixes better"


def _given(name: str, value: int | str, least: int) -> Any:
    if value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ConfigError(f"{name}={value!r} is not known; use a number from {least}, or 'auto'")
    return int(value)

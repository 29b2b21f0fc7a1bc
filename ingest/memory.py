"""How much memory a worker needs, and the lengths of chunks and shards that follow from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chunkstore.errors import ConfigError, MemoryLimitError
from chunkstore.layout import FieldSpec, Layout
from ingest.rows import has_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.protocol import CutRule

__all__ = ["BASE_MEMORY", "Choices", "aside_bytes", "choose_layout", "row_bytes", "widest", "write_memory"]

_MIB = 1024 * 1024
#: bytes of a worker before any data: Python, numpy, zarr, dask, a compiled decoder
BASE_MEMORY = 384 * _MIB


@dataclass(frozen=True, slots=True)
class Choices:
    """What the person who runs the job chooses, apart from the source's own options."""

    chunk: int | str | None = None
    """Obs decoded at once, or bytes as text; ``None`` for the default."""
    shard: int | str | None = None
    """Obs in one stored object, or bytes as text; ``None`` for the largest that fits, 64 MiB at most."""
    codec: str = "default"
    """Compression of all fields."""
    memory_limit: int = 2048 * _MIB
    """Peak bytes of one worker."""
    on_error: str = "quarantine"
    """``quarantine`` and go on, or ``stop`` at the first fault that loses rows."""
    max_bad: int | str | None = None
    """Faults, or share of rows, after which the job gives up."""

    def __post_init__(self) -> None:
        if self.on_error not in {"quarantine", "stop"}:
            raise ConfigError(f"on_error is {self.on_error!r}; it is 'quarantine' or 'stop'")


def row_bytes(fields: Sequence[FieldSpec]) -> int:
    """Return the decoded bytes of one obs of all fields, masks included.

    Examples
    --------
    >>> row_bytes([FieldSpec("a", "float32", items=3), FieldSpec("n", "int64", nullable=True)])
    21
    """
    return sum(f.bytes_per_obs + has_mask(f) for f in fields)


def widest(fields: Sequence[FieldSpec]) -> int:
    """Return the decoded bytes of one obs of the widest field."""
    return max((f.bytes_per_obs for f in fields), default=1)


def aside_bytes(order: str, time_field: str | None, cut: CutRule | None) -> int:
    """Return the bytes an obs that a write task holds beside the values, to sort, compare and cut."""
    sort = 56 if order == "sort" else 0
    return sort + (10 if time_field is not None else 0) + (2 if cut is not None else 0)


def write_memory(
    shard: int, fields: Sequence[FieldSpec], part_memory: int, *, staged: bool, aside: int = 0
) -> int:
    """Return the peak bytes of a worker that writes shards of ``shard`` obs.

    A placed source decodes all fields at once, so a shard of each is held; from scratch they come one after
    the other. Encoding needs the compressed chunks and the assembled object beside the values.
    """
    encode = 2 * widest(fields) * shard
    if not staged:
        return BASE_MEMORY + part_memory + (row_bytes(fields) + aside) * shard + encode
    return BASE_MEMORY + (widest(fields) + aside) * shard + encode + 16 * _MIB


def choose_layout(
    n_obs: int,
    fields: Sequence[FieldSpec],
    choices: Choices,
    part_memory: int = 0,
    *,
    staged: bool = False,
    aside: int = 0,
) -> Layout:
    """Choose chunk and shard lengths that keep a worker within its memory limit.

    Where the shard is not given it is 1/32 of the data, at least 4 and at most 64 MiB of the widest field,
    and less if the memory limit asks for it: never a matter of how many workers there are.

    Raises
    ------
    MemoryLimitError
        If the shard asked for, or a single chunk, does not fit.

    Examples
    --------
    >>> choose_layout(10**9, [FieldSpec("x", "float32")], Choices())
    Layout(n_obs=1000000000, chunk=65536, shard=16777216)
    >>> choose_layout(10**9, [FieldSpec("x", "float32")], Choices(memory_limit=500 * 2**20))
    Layout(n_obs=1000000000, chunk=65536, shard=10092544)
    """
    base = Layout.plan(n_obs, fields, choices.chunk, choices.shard)
    limit = choices.memory_limit

    def need(shard: int) -> int:
        return write_memory(min(shard, max(n_obs, 1)), fields, part_memory, staged=staged, aside=aside)

    if choices.shard is not None:
        if need(base.shard) > limit:
            raise MemoryLimitError(
                f"a shard of {base.shard} obs needs {mib(need(base.shard))} a worker and the memory limit "
                f"is {mib(limit)}; lower the shard or raise memory_limit"
            )
        return base
    if need(base.chunk) > limit:
        raise MemoryLimitError(
            f"a worker needs at least {mib(need(base.chunk))} and the memory limit is {mib(limit)}; raise "
            "memory_limit, or lower the chunk"
        )
    width = widest(fields)
    wanted = min(max(n_obs // 32, 4 * _MIB // width), 64 * _MIB // width)
    chunks = max(1, wanted // base.chunk)
    if need(chunks * base.chunk) > limit:
        low, high = 1, chunks
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if need(middle * base.chunk) <= limit else (low, middle)
        chunks = low
    return replace(base, shard=chunks * base.chunk)


def mib(nbytes: int) -> str:
    return f"{-(-nbytes // _MIB)} MiB"

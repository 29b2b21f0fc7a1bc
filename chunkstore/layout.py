"""Fields, dtypes, chunk and shard lengths: all arithmetic along ``obs`` that needs no file.

What a store looks like is decided here, as small frozen values; the store room binds them to
Zarr arrays. Pure: integers and numpy, never a file, a thread or a clock.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import ConfigError
from chunkstore.numbers import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["FieldSpec", "Layout", "check_name", "parse_bytes"]

_BYTES = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\s*$", re.IGNORECASE)
_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}\Z")
#: names of arrays that the format itself uses
RESERVED = frozenset(
    {"obs", "sequence", "gap", "rowsize", "id", "gap_start", "gap_stop", "chunkstore", "zarr.json"}
)
#: dtypes that a field can have
_DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16"}
    | {"float32", "float64"}
)
#: chunks in a shard that is planned by bytes: its index then takes 64 KiB
_MOST_CHUNKS = 4096


def check_name(name: str, what: str) -> None:
    """Refuse a name that cannot stand for an array of the store.

    Raises
    ------
    ConfigError
        If it is reserved, or holds anything but letters, digits, ``_``, ``.`` and ``-``.
    """
    if not isinstance(name, str) or not _NAME.match(name) or name in RESERVED or name.startswith("__"):
        raise ConfigError(
            f"{name!r:.120} cannot name {what}: use letters, digits, '_', '.', '-', "
            f"and none of {', '.join(sorted(RESERVED))}"
        )


def parse_bytes(value: int | str) -> int:
    """Return a number of bytes given as an integer or as text such as ``"512MiB"``.

    Raises
    ------
    ConfigError
        If the text is not a size.

    Examples
    --------
    >>> parse_bytes("512MiB"), parse_bytes("1.5 kB"), parse_bytes(7)
    (536870912, 1500, 7)
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if value < 0:
            raise ConfigError(f"a size must not be negative, got {value}")
        return int(value)
    found = _BYTES.match(value) if isinstance(value, str) else None
    if not found:
        raise ConfigError(f"{value!r} is not a size in bytes; write an integer, or text such as '512MiB'")
    number, prefix, binary = found.groups()
    base = 1024 if binary else 1000
    return int(Fraction(number) * base ** " kmgtp".index(prefix.lower() or " "))


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One quantity along ``obs``: one Zarr array of the store.

    Examples
    --------
    >>> FieldSpec("lpc", "float32", items=12).bytes_per_obs
    48
    """

    name: str
    """Name of the Zarr array; dotted paths of nested Avro records are kept as they are."""
    dtype: str
    """Numpy's name of the stored dtype: bool, (u)int8..64, float16..64."""
    items: int = 0
    """Length of the vector that every obs holds; 0 for a scalar."""
    units: str | None = None
    """Units as CF writes them, e.g. ``"m s-1"``, or ``"milliseconds since 1970-01-01"``."""
    long_name: str | None = None
    """What a person would call it."""
    nullable: bool = False
    """Whether a boolean array ``<name>_valid`` stands beside it (floats use NaN instead)."""
    scale_factor: float | None = None
    """What a stored integer is multiplied with to give the quantity (int16 audio, decimals)."""
    categories: tuple[str, ...] | None = None
    """Words that the stored integer codes stand for, in the order of their codes."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Further attributes of the array, JSON values."""

    def __post_init__(self) -> None:
        check_name(self.name, "a field")
        try:
            known = np.dtype(self.dtype).name in _DTYPES
        except TypeError:
            known = False
        if not known:
            raise ConfigError(
                f"field {self.name!r} has dtype {self.dtype}; a field holds bool, integers or floats "
                "(give text as categories)"
            )
        whole_number(f"items of field {self.name!r}", self.items, 0)
        if self.categories is not None:
            self._check_categories(self.categories)

    def _check_categories(self, words: tuple[str, ...]) -> None:
        if self.np_dtype.kind not in "iu":
            raise ConfigError(
                f"field {self.name!r} of {self.dtype} has categories; their codes need an integer dtype"
            )
        if len(words) - 1 > np.iinfo(self.np_dtype).max:
            raise ConfigError(
                f"field {self.name!r}: {self.dtype} holds no codes for {len(words)} categories; widen it"
            )
        if not all(isinstance(w, str) for w in words) or len(set(words)) != len(words):
            raise ConfigError(f"field {self.name!r}: its categories {words!r:.120} must be different words")

    @property
    def np_dtype(self) -> np.dtype[Any]:
        """The stored dtype."""
        return np.dtype(self.dtype)

    @property
    def bytes_per_obs(self) -> int:
        """Decoded bytes of one obs."""
        return self.np_dtype.itemsize * max(1, self.items)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions of the array."""
        return ("obs", f"{self.name}_item") if self.items else ("obs",)

    def shape(self, n_obs: int) -> tuple[int, ...]:
        """Shape of ``n_obs`` values of this field."""
        return (n_obs, self.items) if self.items else (n_obs,)


@dataclass(frozen=True, slots=True)
class Layout:
    """One chunk length and one shard length along ``obs``, shared by all fields.

    Examples
    --------
    >>> layout = Layout(n_obs=10, chunk=2, shard=4)
    >>> layout.n_shards, layout.shard_range(2), layout.shard_of(7)
    (3, (8, 10), 1)
    """

    n_obs: int
    """Length of the ``obs`` axis."""
    chunk: int
    """Obs decoded at once."""
    shard: int
    """Obs in one stored object; a multiple of ``chunk``."""

    def __post_init__(self) -> None:
        for name in ("n_obs", "chunk", "shard"):
            whole_number(name, getattr(self, name))
        if self.n_obs < 0:
            raise ConfigError(f"a store cannot hold {self.n_obs} obs")
        if self.chunk < 1 or self.shard < self.chunk or self.shard % self.chunk:
            raise ConfigError(
                f"a shard of {self.shard} obs must be a multiple of the chunk of {self.chunk} obs, "
                "both at least 1"
            )

    @property
    def n_chunks(self) -> int:
        """Number of chunks along ``obs``, the last one possibly short."""
        return -(-self.n_obs // self.chunk)

    @property
    def n_shards(self) -> int:
        """Number of shards along ``obs``, the last one possibly short."""
        return -(-self.n_obs // self.shard)

    def chunk_of(self, obs: int) -> int:
        """Index of the chunk that holds ``obs``."""
        return obs // self.chunk

    def shard_of(self, obs: int) -> int:
        """Index of the shard that holds ``obs``."""
        return obs // self.shard

    def chunk_range(self, index: int) -> tuple[int, int]:
        """Half-open range [start, stop) of obs in chunk ``index``."""
        return index * self.chunk, min((index + 1) * self.chunk, self.n_obs)

    def shard_range(self, index: int) -> tuple[int, int]:
        """Half-open range [start, stop) of obs in shard ``index``."""
        return index * self.shard, min((index + 1) * self.shard, self.n_obs)

    @classmethod
    def plan(
        cls,
        n_obs: int,
        fields: Iterable[FieldSpec],
        chunk: int | str | None = None,
        shard: int | str | None = None,
    ) -> Layout:
        """Choose lengths: integers are obs, text such as ``"1MiB"`` is decoded bytes of the widest field.

        By default a chunk is 256 KiB and a shard 64 MiB of the widest field. Lengths given in
        bytes are rounded down to a power of two of obs (chunks) or a multiple of the chunk (shards).

        Examples
        --------
        >>> Layout.plan(10**6, [FieldSpec("x", "float32")])
        Layout(n_obs=1000000, chunk=65536, shard=16777216)
        """
        width = max((f.bytes_per_obs for f in fields), default=1)

        def obs(value: int | str | None, default: int) -> int:
            if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
                return int(value)
            return max(1, (default if value is None else parse_bytes(value)) // width)

        chunk_obs = obs(chunk, 256 * 1024)
        if not isinstance(chunk, (int, np.integer)):
            chunk_obs = 2 ** int(math.log2(chunk_obs))
        shard_obs = obs(shard, 64 * 1024 * 1024)
        if not isinstance(shard, (int, np.integer)):
            most = 2**20 if shard is not None else _MOST_CHUNKS
            shard_obs = min(max(1, shard_obs // chunk_obs), most) * chunk_obs
        return cls(n_obs, chunk_obs, shard_obs)

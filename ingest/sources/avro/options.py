"""Everything a user may ask of the Avro source, as one frozen value of JSON types."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError
from chunkstore.layout import parse_bytes
from chunkstore.numbers import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AvroOptions"]

_PER = ("file", "record", "all")
_TUPLES = ("sequence_key", "fields", "exclude", "labels", "cut_on")


@dataclass(frozen=True, slots=True)
class AvroOptions:
    """How Avro files become sequences of obs.

    A record is an obs, or (``sequence_per="record"``) a sequence whose obs are the items of its arrays.
    Names of fields are dotted paths: ``lpc.c00`` is field ``c00`` of the record in field ``lpc``.

    Raises
    ------
    ConfigError
        If options contradict each other.

    Examples
    --------
    >>> AvroOptions.from_mapping({"sequence_key": "station", "time": "time"}).sequence_key
    ('station',)
    """

    sequence_key: tuple[str, ...] = ()
    """Fields whose values name the sequence of a record; their ids are joined with ``/``."""
    sequence_per: str | None = None
    """``file``, ``record``, or ``all`` (the whole input is one sequence)."""
    time: str | None = None
    """The field that orders obs inside a sequence."""
    fields: tuple[str, ...] | None = None
    """Fields to store, a record's name standing for all in it; None: all that can be stored."""
    exclude: tuple[str, ...] = ()
    """Fields not to store."""
    labels: tuple[str, ...] = ()
    """Fields, constant in a sequence, that become columns along ``sequence``."""
    on_disorder: str = "keep"
    """Time going back inside a sequence: ``error``, ``keep`` or ``sort``."""
    cut_on: tuple[str, ...] = ()
    """Fields, numbers or text, a change of whose value starts a new sequence."""
    max_gap: int | float | str | None = None
    """Largest step of the time field inside a sequence: in its own unit, or text such as ``"10s"``."""
    on_drift: str = "fail"
    """Schemas that differ: ``fail``, or ``union`` (every field of any file)."""
    reader_schema: Any = None
    """Path of a schema file, or the schema itself as JSON value; all files are resolved to it."""
    null_values: Mapping[str, int] = field(default_factory=dict)
    """Integer field -> value that stands for null, in place of a mask."""
    vector_lengths: Mapping[str, int] = field(default_factory=dict)
    """Array field -> length of its vectors; by default as the first records have it."""
    obs_axis: str = "auto"
    """Which of two nested arrays holds the obs of a record: ``outer``, ``inner``, ``auto`` (what varies)."""
    decoder: str = "auto"
    """``auto``, ``kernel`` or ``fastavro``."""
    check_text: bool = True
    """Whether text that nobody asks for must be valid UTF-8 too; its block is quarantined if not."""
    max_block_bytes: int | str = "256MiB"
    """Largest block, encoded or decoded."""
    max_ratio: int = 1000
    """Decoded bytes for each encoded byte above which a block of more than 16 MiB is refused."""
    part_bytes: int | str = "8MiB"
    """Encoded bytes that one task reads."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to fsspec for remote inputs."""
    inner_obs: tuple[str, ...] = ()
    """Set by the scan: fields whose inner arrays hold the obs."""

    def __post_init__(self) -> None:
        for name in (*_TUPLES, "inner_obs"):
            value = getattr(self, name)
            if isinstance(value, str):
                value = tuple(v.strip() for v in value.split(",") if v.strip())
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        if self.sequence_per is not None and self.sequence_per not in _PER:
            raise ConfigError(f"sequence_per is {self.sequence_per!r}; it must be one of {', '.join(_PER)}")
        if self.sequence_key and self.sequence_per in ("file", "all"):
            raise ConfigError(
                f"sequence_key {'/'.join(self.sequence_key)!r} and sequence_per {self.sequence_per!r} "
                "exclude each other"
            )
        if not self.sequence_key and self.sequence_per is None:
            raise ConfigError(
                "say what a sequence is: sequence_key=FIELD, or sequence_per='file', 'record' or 'all'"
            )
        for name, allowed in (
            ("on_disorder", ("error", "keep", "sort")),
            ("on_drift", ("fail", "union")),
            ("decoder", ("auto", "kernel", "fastavro")),
            ("obs_axis", ("auto", "outer", "inner")),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}"
                )
        if isinstance(self.reader_schema, os.PathLike):
            object.__setattr__(self, "reader_schema", os.fspath(self.reader_schema))
        for name, least in (("null_values", None), ("vector_lengths", 1)):
            for path, number in dict(getattr(self, name)).items():
                whole_number(f"{name}[{path!r}]", number, least)
        if self.obs_axis != "auto" and self.sequence_per != "record":
            raise ConfigError(f"obs_axis={self.obs_axis!r} needs sequence_per='record'")
        if self.max_gap is not None and self.time is None:
            raise ConfigError("max_gap needs the time field: give time=FIELD")
        if self.on_disorder != "keep" and self.time is None:
            raise ConfigError(f"on_disorder={self.on_disorder!r} needs the time field: give time=FIELD")
        for name in ("max_block_bytes", "part_bytes"):
            if parse_bytes(getattr(self, name)) < 1:
                raise ConfigError(f"{name} must be at least 1 byte")
        whole_number("max_ratio", self.max_ratio, 1)

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> AvroOptions:
        """Make options of JSON values.

        Raises
        ------
        ConfigError
            If there is an option of another name.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise ConfigError(
                f"the Avro source has no option {unknown[0]!r}; it has "
                f"{', '.join(sorted(known - {'inner_obs'}))}"
            )
        return cls(**dict(options))

    def to_mapping(self) -> dict[str, Any]:
        """Return the options as JSON values, the way :meth:`from_mapping` takes them."""
        out = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in out.items()}

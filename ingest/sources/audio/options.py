"""The options of the audio source: frozen, checked, and JSON on the way to the workers."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError
from chunkstore.layout import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AudioOptions", "parse_seconds"]

_SECONDS = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)?\s*$")
_UNITS = {"ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_seconds(value: float | str, name: str = "a duration") -> float:
    """Return seconds given as a number or as text such as ``"60s"``, ``"500 ms"``, ``"2h"``.

    Examples
    --------
    >>> parse_seconds("60s"), parse_seconds("500 ms"), parse_seconds(2.5)
    (60.0, 0.5, 2.5)
    """
    if isinstance(value, str):
        found = _SECONDS.match(value)
        if not found:
            raise ConfigError(f"{name} is {value!r}; write seconds, or text such as '60s' or '5min'")
        value = float(found[1]) * _UNITS[found[2]]
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value} s; it must be above 0")
    return float(value)


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """What the audio source is asked for.

    Examples
    --------
    >>> AudioOptions(rate=32000, channels="mean").dtype
    'int16'
    >>> AudioOptions.from_json({"rate": 32000, "segment": "60s"}).segment
    60.0
    """

    rate: int | None = None
    """Sample rate of the store in Hz; None keeps the files' own, which must then agree."""
    channels: str | int = "mean"
    """``mean`` of all, ``first``, the index of one (from 0), or ``error`` where a file has several."""
    dtype: str = "int16"
    """``int16`` (full scale 32768) or ``float32``."""
    field: str = "audio"
    """Name of the field in the store."""
    label_from: str | None = None
    """``parent``: the folder of the file; ``regex``: the first group of ``label_regex``; None: no label."""
    label_regex: str | None = None
    """Searched in the sequence id; its named groups become columns, else group 1 the label."""
    metadata: str | None = None
    """CSV or parquet file with one row a file; its columns are joined along ``sequence``."""
    metadata_key: str | None = None
    """Column of the metadata that names the file: its id, its name, or its name without suffix."""
    empty: str = "keep"
    """Recordings without a sample: ``keep`` as sequences of length 0, ``skip``, or ``error``."""
    segment: float | str | None = None
    """Cut recordings into sequences of so many seconds (``"60s"``); None leaves them whole."""
    silence: float | None = None
    """Level in dB of full scale below which sound is kept out as a gap; None keeps all."""
    silence_min: float | str = 1.0
    """Shortest silence, in seconds, that becomes a gap."""
    nonfinite: str = "quarantine"
    """Files with NaN or infinite samples: ``quarantine``, or ``zero`` those samples and count them."""
    damaged: str = "keep"
    """Files that lost something in the middle or at their end: ``keep`` the rest, or ``quarantine``."""
    max_peak: float = 1000.0
    """Samples beyond so many times full scale are no audio: the file is quarantined."""
    max_duration: float | str = "48h"
    """Longest recording that is decoded, in seconds: the limit for files that expand without end."""
    time_regex: str | None = None
    """Finds the start time in a file's name; None knows the usual recorders' names."""
    quality: str = "HQ"
    """Of resampling, as soxr names it: QQ, LQ, MQ, HQ, VHQ."""
    isolate: bool = True
    """Whether decoding runs in a process of its own, so that a crash or a hang costs one file."""
    timeout: float | str = 60.0
    """Seconds without any progress after which a decoder is stopped."""
    decoder_memory: int | str = "2GiB"
    """Memory that a decoder process may use for its data."""
    own_rate: bool = False
    """Set by the scan: no rate was asked for, so that a file of another one is not converted."""

    def __post_init__(self) -> None:
        for name in ("silence_min", "max_duration", "timeout"):
            object.__setattr__(self, name, parse_seconds(getattr(self, name), name))
        if self.segment is not None:
            object.__setattr__(self, "segment", parse_seconds(self.segment, "segment"))
        object.__setattr__(self, "decoder_memory", parse_bytes(self.decoder_memory))
        if self.rate is not None and not 1 <= self.rate <= 10_000_000:
            raise ConfigError(f"rate is {self.rate} Hz; it must be between 1 and 10,000,000")
        if self.rate is not None:
            if self.rate != int(self.rate):
                raise ConfigError(f"rate is {self.rate} Hz; it must be a whole number")
            object.__setattr__(self, "rate", int(self.rate))
        if isinstance(self.channels, str) and self.channels.isdecimal():
            object.__setattr__(self, "channels", int(self.channels))
        if self.channels not in ("mean", "first", "error") and not (
            isinstance(self.channels, int) and self.channels >= 0
        ):
            raise ConfigError(f"channels is {self.channels!r}; choose mean, first, error or an index from 0")
        self._choice("dtype", ("int16", "float32"))
        self._choice("empty", ("keep", "skip", "error"))
        self._choice("nonfinite", ("quarantine", "zero"))
        self._choice("damaged", ("keep", "quarantine"))
        self._choice("quality", ("QQ", "LQ", "MQ", "HQ", "VHQ"))
        if self.label_from not in (None, "parent", "regex"):
            raise ConfigError(f"label_from is {self.label_from!r}; choose parent or regex")
        if (self.label_from == "regex") != (self.label_regex is not None):
            raise ConfigError("label_from='regex' and label_regex belong together; give both or neither")
        for name in ("label_regex", "time_regex"):
            pattern = getattr(self, name)
            try:
                groups = re.compile(pattern).groups if pattern is not None else 1
            except re.error as err:
                raise ConfigError(f"{name} {pattern!r} is no regular expression: {err}") from err
            if not groups:
                raise ConfigError(f"{name} {pattern!r} has no group; put what is meant in parentheses")
        if (self.metadata is None) != (self.metadata_key is None):
            raise ConfigError("metadata and metadata_key belong together; give both or neither")
        if self.silence is not None and self.silence > 0:
            raise ConfigError(f"silence is {self.silence} dB; a level below full scale is negative")
        if self.silence is None and self.silence_min != 1.0:
            raise ConfigError(
                f"silence_min={self.silence_min:g} needs the level: give silence, e.g. silence=-60"
            )

    def _choice(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise ConfigError(f"{name} is {getattr(self, name)!r}; choose {' or '.join(allowed)}")

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> AudioOptions:
        """Make options from JSON values; unknown names are an error that lists the known ones."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            mine = ", ".join(sorted(known - {"own_rate"}))
            raise ConfigError(f"audio has no option {unknown[0]!r}; it has {mine}")
        return cls(**options)

    def to_json(self) -> dict[str, Any]:
        """Return all options as JSON values."""
        return asdict(self)

    @property
    def text(self) -> str:
        """The same as JSON text, made once for all files."""
        return _text(self)


@lru_cache(maxsize=16)
def _text(options: AudioOptions) -> str:
    return json.dumps(options.to_json())

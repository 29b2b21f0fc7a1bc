"""One file from its bytes to stored samples in a spool file, with everything counted on the way.

The result is written to a spool before anything of it is handed on, so that a file is stored
whole or not at all, and a second decoder can start from nothing where the first one fails.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest.sources.audio.choose import candidates
from ingest.sources.audio.decode import DecodeError, Note
from ingest.sources.audio.files import local_copy
from ingest.sources.audio.quantise import Quantiser, clean
from ingest.sources.audio.resample import Resampler, mix
from ingest.sources.audio.spool import SpoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingest.sources.audio.decode import Decoder
    from ingest.sources.audio.options import AudioOptions
    from ingest.sources.audio.spool import Spool

__all__ = ["Converted", "Failure", "convert"]


@dataclass(frozen=True, slots=True)
class Converted:
    """What came of a file."""

    rows: int
    """Samples in the spool."""
    rate: int
    """Hz of the file."""
    channels: int
    """Channels of the file."""
    frames: int
    """Frames decoded."""
    claimed: int
    """Frames that the header claims; -1 where none."""
    container: str
    """By content."""
    codec: str
    """Name of the coding."""
    decoder: str
    """Decoder and version."""
    clipped: int
    """Samples that did not fit."""
    nonfinite: int
    """NaN and infinities among the values of the file."""
    peak: float
    """Largest absolute sample at the rate of the store, as a fraction of full scale."""
    notes: tuple[Note, ...] = ()
    """What differs from what the file says of itself."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Converted:
        """Make it again from JSON values."""
        return cls(**{**value, "notes": tuple(Note(**note) for note in value["notes"])})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a file can't be used."""

    code: str
    """As in ``CODES`` of the source."""
    message: str
    """One clear sentence."""
    offset: int | None = None
    """Byte offset, where known."""
    tried: tuple[str, ...] = field(default=())
    """What further decoders said."""


#: Notes that condemn a file where ``damaged="quarantine"``.
_LOST = frozenset({"audio-damaged", "audio-truncated"})


def _one(
    decoder: Decoder, container: str, spool: Spool, options: AudioOptions, alive: Callable[[], None]
) -> Converted:
    """Run one decoder to its end."""
    rate = options.rate or decoder.rate
    if options.own_rate and decoder.rate != rate:  # its header is not read at the scan, or is wrong
        raise DecodeError(
            "audio-rate",
            f"it has {decoder.rate} Hz, the others {rate}; choose a rate for all, e.g. rate={rate}",
        )
    resampler = Resampler(decoder.rate, rate, options.quality)
    quantiser = Quantiser(options.dtype)
    limit = int(float(options.max_duration) * decoder.rate)
    frames = nonfinite = rows = 0

    def write(samples: np.ndarray[Any, Any]) -> int:
        spool.write(samples)
        return len(samples)

    for block in decoder.blocks():
        frames += len(block)
        if frames > limit:
            raise DecodeError(
                "audio-too-long",
                f"it decodes to more than {options.max_duration:g} s; raise max_duration if meant",
            )
        finite, bad = clean(block)
        nonfinite += bad
        rows += write(quantiser.push(resampler.push(mix(finite, options.channels))))
        if quantiser.peak > options.max_peak:
            raise DecodeError(
                "audio-out-of-range",
                f"a sample is {quantiser.peak:.3g} times full scale, above max_peak {options.max_peak:g}",
            )
        alive()
    rows += write(quantiser.push(resampler.push(np.zeros(0, np.float32), last=True)))
    if nonfinite and options.nonfinite == "quarantine":
        raise DecodeError(
            "audio-nonfinite", f"{nonfinite} of {frames * decoder.channels} values are NaN or infinite"
        )
    if options.damaged == "quarantine":
        for note in decoder.notes:
            if note.code in _LOST:
                raise DecodeError(note.code, note.message, note.offset)
    return Converted(
        rows=rows,
        rate=decoder.rate,
        channels=decoder.channels,
        frames=frames,
        claimed=decoder.claimed,
        container=container,
        codec=decoder.codec,
        decoder=decoder.name,
        clipped=quantiser.clipped,
        nonfinite=nonfinite,
        peak=quantiser.peak,
        notes=tuple(decoder.notes),
    )


#: What another decoder can't change.
_FINAL = _LOST | {"audio-channels", "audio-nonfinite", "audio-out-of-range", "audio-too-long", "audio-rate"}


def convert(
    file: str, spool: Spool, options: AudioOptions, alive: Callable[[], None] = lambda: None
) -> Converted | Failure:
    """Decode, mix, resample and quantise a file into a spool; never raises for what is in the file.

    Parameters
    ----------
    file : str
        Path or URL.
    spool : Spool
        Emptied, then written from its start.
    options : AudioOptions
        With ``rate`` set, unless the file's own rate is wanted.
    alive : callable
        Called after every block.

    Raises
    ------
    MissingDependencyError
        If no decoder for the file is installed.
    SpoolError
        If the spool can't be written.
    """
    first: DecodeError | None = None
    tried: list[str] = []
    try:
        with local_copy(file, alive) as path:
            for container, opener in candidates(path):
                spool.rewind()
                try:
                    made = _one(opener(), container, spool, options, alive)
                except DecodeError as err:
                    first = first or err
                    tried.append(err.message)
                    if err.code in _FINAL:
                        first = err
                        break
                except ImportError as err:
                    if first is None:
                        raise
                    tried.append(str(err))
                else:
                    if first is not None and first.code != "audio-unsupported":
                        note = Note("audio-second-decoder", f"{made.decoder} decoded it; {first.message}")
                        made = replace(made, notes=(*made.notes, note))
                    return made
    except DecodeError as err:
        first = err
    except SpoolError:
        raise
    except (OSError, ValueError, MemoryError) as err:
        first = first or DecodeError("audio-unreadable", f"it can't be read: {err or type(err).__name__}")
    assert first is not None
    return Failure(first.code, first.message, first.offset, tuple(t for t in tried if t != first.message))

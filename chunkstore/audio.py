"""Hear and export what a store holds: spans of audio fields as WAV, FLAC, or a player in a notebook.

Decides how stored numbers become a sound file; leaves reading to the store. WAV is written here, in
blocks, and needs no library; FLAC needs soundfile. A player is HTML with the WAV inside it, which every
notebook shows.
"""

from __future__ import annotations

import base64
import html
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.clock import sample_rates
from chunkstore.errors import ConfigError, MissingDependencyError, UnknownNameError
from chunkstore.origins import spare_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chunkstore.layout import FieldSpec
    from chunkstore.opened import OpenStore

__all__ = ["Sound", "export", "play", "sample_rate", "wav_bytes"]

_BLOCK = 1 << 18
_MAX_SECONDS = 300.0


def sample_rate(store: OpenStore, id: str, field: str) -> float:  # noqa: A002 - the format's own word
    """Return the sample rate of a sequence in Hz.

    It stands in the column ``sample_rate`` of the sequence, or in the attribute of that name of the
    field or of the store.

    Raises
    ------
    ConfigError
        If nothing states it.
    """
    rate = float(sample_rates(store, field)[store.sequences.index_of(id)])
    if not rate > 0:
        raise ConfigError(f"nothing states the sample rate of {id!r} in {store.url}; it can't be played")
    return rate


def _field(store: OpenStore, field: str | None) -> FieldSpec:
    if field is None:
        if len(store.fields) == 1:
            return next(iter(store.fields.values()))
        if "audio" in store.fields:
            return store.fields["audio"]
        raise ConfigError(f"the store has several fields ({', '.join(store.fields)}); name the one to hear")
    if field not in store.fields:
        raise UnknownNameError(f"there is no field {field!r}; the store has {', '.join(store.fields)}")
    return store.fields[field]


@dataclass(frozen=True, slots=True)
class _Span:
    """What will be heard: a range of obs and how its numbers are scaled."""

    store: OpenStore
    spec: FieldSpec
    low: int
    high: int
    rate: int

    @property
    def whole(self) -> bool:
        """Whether the stored numbers are 16-bit samples as they stand."""
        return self.spec.dtype == "int16"

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield int16 or float32 [n] or [n, items], full scale 1.0 for floats; in bounded memory."""
        for at in range(self.low, self.high, _BLOCK):
            values = self.store.read(self.spec.name, at, min(at + _BLOCK, self.high))
            if self.whole:
                yield values
            else:
                yield (values * (self.spec.scale_factor or 1.0)).astype(np.float32)


def _span(
    store: OpenStore,
    id: str,  # noqa: A002 - the format's own word
    start: float,
    stop: float | None,
    field: str | None,
) -> _Span:
    spec = _field(store, field)
    at = store.sequences.index_of(id)
    first, rows = int(store.sequences.offsets[at]), int(store.sequences.rowsize[at])
    rate = sample_rate(store, id, spec.name)
    if round(rate) < 1:
        raise ConfigError(f"{id!r} has {rate:g} obs a second; a sound needs at least 1")
    low, high = round(start * rate), rows if stop is None else round(stop * rate)
    if not 0 <= low <= high <= rows:
        raise ConfigError(
            f"seconds {start:g} to {'the end' if stop is None else f'{stop:g}'} are not within {id!r}, which "
            f"is {rows / rate:g} s long"
        )
    return _Span(store, spec, first + low, first + high, round(rate))


def _wav_header(frames: int, rate: int, channels: int, *, whole: bool) -> bytes:
    """Return the 44 bytes (58 for floats) before the samples of a WAV file."""
    width = 2 if whole else 4
    nbytes = frames * channels * width
    fmt = struct.pack(
        "<HHIIHH", 1 if whole else 3, channels, rate, rate * channels * width, channels * width, 8 * width
    )
    chunks = b"fmt " + struct.pack("<I", len(fmt) + 2 * (not whole)) + fmt + b"\0\0" * (not whole)
    if not whole:
        chunks += b"fact" + struct.pack("<II", 4, frames)
    chunks += b"data" + struct.pack("<I", nbytes)
    size = 4 + len(chunks) + nbytes + (nbytes & 1)
    if size > 0xFFFFFFFF:
        raise ConfigError(
            f"{frames} samples make a WAV file of {size} bytes, above 4 GiB; export less at once"
        )
    return b"RIFF" + struct.pack("<I", size) + b"WAVE" + chunks


def wav_bytes(samples: NDArray[Any], rate: int) -> bytes:
    """Return samples as a WAV file.

    Parameters
    ----------
    samples : ndarray
        int16, or floats of full scale 1.0, [n] or [n, channels].
    rate : int
        Hz.

    Examples
    --------
    >>> raw = wav_bytes(np.array([0, 1, -1], np.int16), 8000)
    >>> raw[:4], len(raw)
    (b'RIFF', 50)
    """
    whole = samples.dtype == np.int16
    values = np.ascontiguousarray(samples, "<i2" if whole else "<f4")
    channels = 1 if values.ndim == 1 else values.shape[1]
    return _wav_header(len(values), rate, channels, whole=whole) + values.tobytes()


@dataclass(frozen=True, slots=True)
class Sound:
    """A span of sound that a notebook shows as a player.

    Examples
    --------
    >>> Sound(np.zeros(8000, np.int16), 8000, "silence")
    Sound('silence', 1 s at 8000 Hz)
    """

    samples: NDArray[Any]
    """int16, or float32 of full scale 1.0; [n] or [n, channels]."""
    rate: int
    """Hz."""
    title: str = ""
    """What is written above the player."""

    def __repr__(self) -> str:
        return f"Sound({self.title!r}, {len(self.samples) / self.rate:g} s at {self.rate} Hz)"

    def wav(self) -> bytes:
        """Return the sound as a WAV file."""
        return wav_bytes(self.samples, self.rate)

    def _repr_html_(self) -> str:
        """Return a player with the sound inside it."""
        data = base64.b64encode(self.wav()).decode("ascii")
        return (
            f'<figure style="margin:0"><figcaption>{html.escape(self.title)}</figcaption>'
            f'<audio controls src="data:audio/wav;base64,{data}"></audio></figure>'
        )


def play(
    store: OpenStore,
    id: str,  # noqa: A002 - the format's own word
    start: float = 0.0,
    stop: float | None = None,
    *,
    field: str | None = None,
) -> Sound:
    """Return a span of a sequence as a sound: the last value of a notebook's cell becomes a player.

    Parameters
    ----------
    store : ChunkStore
    id : str
        Id of the sequence.
    start, stop : float
        In seconds from the start of the sequence; ``stop=None`` is its end.
    field : str, optional
        The field to hear, where the store has several.

    Raises
    ------
    ConfigError
        If the span is not within the sequence, is longer than 300 s, or has no sample rate.
    UnknownNameError
        If there is no such sequence or field.

    Examples
    --------
    >>> import chunkstore
    >>> spec = chunkstore.FieldSpec("audio", "int16", scale_factor=1 / 32768, attrs={"sample_rate": 8000})
    >>> with chunkstore.StoreWriter("memory://doc-play", fields=[spec], overwrite=True) as out:
    ...     out.write("robin", {"audio": np.arange(16000, dtype="i2")})
    >>> play(chunkstore.open_store("memory://doc-play"), "robin", 0.5, 1.5)
    Sound('robin, 0.5 s to 1.5 s', 1 s at 8000 Hz)
    """
    span = _span(store, id, start, stop, field)
    seconds = (span.high - span.low) / span.rate
    if seconds > _MAX_SECONDS:
        raise ConfigError(
            f"{seconds:g} s are too long for a player (at most {_MAX_SECONDS:g} s); give start and stop, "
            "or export"
        )
    blocks = list(span.blocks())
    samples = np.concatenate(blocks) if blocks else np.zeros(0, np.int16 if span.whole else np.float32)
    return Sound(samples, span.rate, f"{id}, {start:g} s to {start + seconds:g} s")


def export(
    store: OpenStore,
    id: str,  # noqa: A002 - the format's own word
    path: str | os.PathLike[str],
    start: float = 0.0,
    stop: float | None = None,
    *,
    field: str | None = None,
) -> Path:
    """Write a span of a sequence to a ``.wav`` or ``.flac`` file, in bounded memory.

    int16 fields are written bit for bit. Other fields are scaled by their ``scale_factor`` and written as
    32-bit float (WAV) or clipped to 24 bits (FLAC, which holds integers only).

    Parameters
    ----------
    store, id, start, stop, field
        As in :func:`play`, of any length.
    path : str or path
        The suffix decides the format.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    MissingDependencyError
        If FLAC is asked for and soundfile is not installed.
    ConfigError
        If the suffix is neither, the span is not within the sequence, or the file would lie in the store.

    Examples
    --------
    >>> import chunkstore, tempfile
    >>> spec = chunkstore.FieldSpec("audio", "int16", attrs={"sample_rate": 8000})
    >>> with chunkstore.StoreWriter("memory://doc-export", fields=[spec], overwrite=True) as out:
    ...     out.write("robin", {"audio": np.arange(16000, dtype="i2")})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = export(chunkstore.open_store("memory://doc-export"), "robin", folder + "/a.wav", 0.5, 1.5)
    ...     file.name, file.stat().st_size
    ('a.wav', 16044)
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in (".wav", ".flac"):
        raise ConfigError(f"{target.name!r} ends in neither .wav nor .flac; other formats are not written")
    spare_store(store, target)
    span = _span(store, id, start, stop, field)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        (_write_wav if kind == ".wav" else _write_flac)(partial, span)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _write_wav(path: Path, span: _Span) -> None:
    channels = max(1, span.spec.items)
    with path.open("wb") as file:
        file.write(_wav_header(span.high - span.low, span.rate, channels, whole=span.whole))
        for block in span.blocks():
            file.write(np.ascontiguousarray(block, "<i2" if span.whole else "<f4").tobytes())


def _write_flac(path: Path, span: _Span) -> None:
    try:
        import soundfile
    except ImportError as err:
        raise MissingDependencyError("writing FLAC needs soundfile: pip install 'chunkstore[audio]'") from err
    subtype = "PCM_16" if span.whole else "PCM_24"
    with soundfile.SoundFile(
        path, "w", span.rate, max(1, span.spec.items), format="FLAC", subtype=subtype
    ) as file:
        for block in span.blocks():
            file.write(block)

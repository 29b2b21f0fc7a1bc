"""Recordings made by the real encoders, for the demo, the tutorials and anyone without data.

Decided here: what the made-up sensors and birds sound like. Everything is drawn from a seed, so that
two runs write the same values.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import MissingDependencyError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["AVRO_CODECS", "SONGS", "make_avro", "make_birds"]

#: Compressions of the Avro files, one after the other.
AVRO_CODECS = ("null", "deflate", "snappy", "bzip2")
#: Species -> (lowest and highest pitch in Hz, notes a second, trill in Hz): invented, easy to tell apart.
SONGS = {
    "chirper": (2500.0, 3500.0, 6.0, 0.0),
    "trilled-reed": (4000.0, 4500.0, 2.0, 40.0),
    "low-whistler": (900.0, 1500.0, 1.0, 0.0),
    "sweeper": (2000.0, 6000.0, 3.0, 0.0),
}
_START = 1_672_531_200_000  # 2023-01-01T00:00 UTC, in milliseconds since 1970
_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "namespace": "org.example.weather",
    "fields": [
        {"name": "station", "type": "string"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "temp", "type": ["null", "double"], "doc": "air temperature in degree Celsius"},
        {"name": "humid", "type": ["null", "double"], "doc": "relative humidity in percent"},
        {"name": "wind_speed", "type": ["null", "double"], "doc": "wind speed in m/s"},
        {"name": "pressure", "type": "double", "doc": "air pressure in hPa"},
    ],
}


def make_avro(
    folder: str | os.PathLike[str], *, stations: int = 3, hours: int = 8760, seed: int = 0
) -> list[str]:
    """Write hourly readings of some weather stations, interleaved, in four Avro files.

    Parameters
    ----------
    folder : path
        Where the files go; made where it is missing.
    stations, hours : int
        How many stations, and how many readings each gives.
    seed : int
        Seed of all noise.

    Returns
    -------
    list of str
        The files, one for each of ``AVRO_CODECS``, in the order of time.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [Path(file).name for file in make_avro(folder, hours=40)]
    ['readings-0-null.avro', 'readings-1-deflate.avro', 'readings-2-snappy.avro', 'readings-3-bzip2.avro']
    """
    import fastavro

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    schema = fastavro.parse_schema(_SCHEMA)
    values = _weather(stations, hours, seed)
    bounds = np.linspace(0, hours, len(AVRO_CODECS) + 1).astype(int)
    files = []
    for index, codec in enumerate(AVRO_CODECS):
        file = place / f"readings-{index}-{codec}.avro"
        with file.open("wb") as out:
            rows = _rows(values, range(bounds[index], bounds[index + 1]))
            fastavro.writer(out, schema, rows, codec=codec, sync_marker=bytes([seed % 256]) * 16)
        files.append(str(file))
    return files


def _weather(stations: int, hours: int, seed: int) -> np.ndarray:
    """float64[stations, hours, 4]: temperature, humidity, wind, pressure, with lost readings as NaN."""
    rng = np.random.default_rng([seed, 1])
    clock = np.arange(hours)
    day = np.sin(2 * np.pi * (clock / 24 - 0.3))
    year = -np.cos(2 * np.pi * clock / 8766)
    shape = (stations, hours)
    front = np.empty(shape)  # what passes through in days: the same noise drives all four
    noise = rng.normal(size=shape)
    state = np.zeros(stations)
    for hour in range(hours):
        state = 0.98 * state + 0.2 * noise[:, hour]
        front[:, hour] = state
    level = rng.normal(10, 3, (stations, 1))
    temperature = level + 9 * year + 4 * day + 3 * front + 0.3 * rng.normal(size=shape)
    humidity = np.clip(70 - 12 * day - 8 * front + 2 * rng.normal(size=shape), 0, 100)
    wind = np.abs(4 + 2 * front + rng.normal(size=shape))
    pressure = 1013 - 8 * front + 0.5 * rng.normal(size=shape)
    values = np.round(np.stack([temperature, humidity, wind, pressure], axis=-1), 2)
    values[..., :3][rng.random((*shape, 3)) < 0.01] = np.nan
    return values


def _rows(values: np.ndarray, hours: range) -> Iterator[dict[str, Any]]:
    for hour in hours:
        for station in range(len(values)):
            readings = [None if np.isnan(v) else float(v) for v in values[station, hour]]
            yield {
                "station": f"station-{station}",
                "time": _START + hour * 3_600_000,
                "temp": readings[0],
                "humid": readings[1],
                "wind_speed": readings[2],
                "pressure": readings[3],
            }


def make_birds(
    folder: str | os.PathLike[str], *, clips: int = 6, seconds: float = 5.0, rate: int = 32000, seed: int = 0
) -> list[str]:
    """Write clips of invented bird songs, one folder a species, as wav, flac, ogg and mp3.

    Parameters
    ----------
    folder : path
        Where the folders of the species go.
    clips : int
        Clips a species.
    seconds : float
        Nominal length; each clip differs by up to a tenth.
    rate : int
        Sample rate in Hz.
    seed : int
        Seed of all noise.

    Returns
    -------
    list of str
        The files, by species.

    Raises
    ------
    MissingDependencyError
        ``soundfile`` is not installed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = make_birds(folder, clips=4, seconds=0.2)
    >>> len(files), [Path(f).suffix for f in files[:4]]
    (16, ['.wav', '.flac', '.ogg', '.mp3'])
    """
    try:
        import soundfile
    except ImportError as error:
        raise MissingDependencyError(
            "writing audio needs soundfile: pip install 'chunkstore[audio]'"
        ) from error
    files = []
    for number, species in enumerate(SONGS):
        place = Path(folder) / species
        place.mkdir(parents=True, exist_ok=True)
        for clip in range(clips):
            rng = np.random.default_rng([seed, number, clip])
            samples = _song(species, int(seconds * rate * rng.uniform(0.9, 1.1)), rate, rng)
            suffix = ("wav", "flac", "ogg", "mp3")[clip % 4]
            file = place / f"{species}-{clip:02d}.{suffix}"
            soundfile.write(file, samples, rate)
            files.append(str(file))
    return files


def _song(species: str, frames: int, rate: int, rng: np.random.Generator) -> np.ndarray:
    """float32[frames] in [-1, 1]: notes that glide between two pitches, over wind noise."""
    low, high, notes, trill = SONGS[species]
    clock = np.arange(frames) / rate
    beat = (clock * notes * rng.uniform(0.9, 1.1) + rng.random()) % 1.0
    pitch = (low + (high - low) * beat) * rng.uniform(0.95, 1.05)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    loud = np.sin(np.pi * beat) ** 2
    if trill:
        loud = loud * (0.5 + 0.5 * np.sin(2 * np.pi * trill * clock))
    noise = np.convolve(rng.normal(size=frames + 7), np.ones(8) / 8, "valid")[:frames]
    return (0.4 * loud * np.sin(phase) + 0.05 * noise).astype(np.float32)

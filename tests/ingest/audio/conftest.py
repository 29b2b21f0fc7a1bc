"""Made recordings and one way to read them, for all tests of audio."""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from ingest.sources.audio import AudioSource
from ingest.sources.audio.isolate import pool

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Reading:
    """What came of reading some files, by the name of the file."""

    samples: dict = field(default_factory=dict)
    labels: dict = field(default_factory=dict)
    lost: dict = field(default_factory=dict)
    faults: list = field(default_factory=list)
    scan: object = None

    def codes(self, action: str | None = None) -> list[str]:
        return sorted(f.code for f in self.faults if action in (None, f.action))

    @property
    def only(self) -> np.ndarray:
        (values,) = self.samples.values()
        return values


def read(files, **options) -> Reading:
    """Scan and read files as the engine does: a source for the scan, another made from its options."""
    options.setdefault("isolate", False)
    scan = AudioSource(**options).scan([str(f) for f in files])
    worker = AudioSource(**scan.options)
    result = Reading(scan=scan, faults=list(scan.faults))
    for part in scan.parts:
        for batch in worker.read(part):
            assert len(batch.columns[worker.options.field]) == batch.rows
            result.faults.extend(batch.faults)
            for key in batch.keys:
                done = result.samples.setdefault(key, [])
                at = sum(map(len, done))
                done.append(batch.columns[worker.options.field])
                result.lost.setdefault(key, []).extend((at + a, at + b) for a, b in batch.lost)
                result.labels.setdefault(key, {}).update({n: v[0] for n, v in batch.labels.items()})
    result.samples = {key: np.concatenate(parts) for key, parts in result.samples.items()}
    return result


def encode(values, rate: int, kind: str, subtype: str) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, values, rate, format=kind, subtype=subtype)
    return out.getvalue()


def wav16(values, rate: int = 8000) -> bytes:
    """A WAV by the standard library, from integers: int16[frames] or int16[frames, channels]."""
    values = np.asarray(values, "<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1 if values.ndim == 1 else values.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(values.tobytes())
    return out.getvalue()


def tone(frames: int, rate: int = 8000, seed: int = 0) -> np.ndarray:
    """Some sound that no codec finds trivial: float32[frames]."""
    t = np.arange(frames) / rate
    rng = np.random.default_rng(seed)
    sweep = 0.4 * np.sin(2 * np.pi * (200 + 40 * t) * t)
    return (sweep + 0.05 * rng.standard_normal(frames)).astype(np.float32)


class Make:
    """The helpers, as one fixture."""

    read = staticmethod(read)
    encode = staticmethod(encode)
    wav16 = staticmethod(wav16)
    tone = staticmethod(tone)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


@pytest.fixture
def make(tmp_path):
    return Make(tmp_path)


@pytest.fixture(scope="session", autouse=True)
def _no_process_stays():
    yield
    pool.close()

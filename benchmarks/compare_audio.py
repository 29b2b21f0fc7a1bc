"""Five-second crops of long recordings: files, caches of arrays, and this project.

``python -m benchmarks.compare_audio`` generates recordings of 5 to 300 seconds at 32 kHz, writes them as ogg,
flac and npy, and measures crops a second, the first batch of 32, peak memory and bytes on disk.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from benchmarks.harness import Probe, Subject, main
from benchmarks.peers.audio import AudioTask

#: name | function of ``peers`` | environment | file | packages | setting
READERS = """
decode all, crop (ogg)   | audio:decode_all         | loaders | ogg  | soundfile          | soundfile.read of the whole file
soundfile seek (ogg)     | audio:soundfile_seek     | loaders | ogg  | soundfile          | soundfile.read(frames, start)
soundfile seek (flac)    | audio:soundfile_seek     | loaders | flac | soundfile          | the same on flac
librosa (ogg)            | audio:librosa_load       | loaders | ogg  | librosa soundfile  | librosa.load(offset, duration, sr=None)
PyAV seek (ogg)          | audio:pyav               | loaders | ogg  | av                 | seek, decode, drop the head
PyAV seek (flac)         | audio:pyav               | loaders | flac | av                 | the same on flac
torchcodec (ogg)         | audio:torchcodec         | loaders | ogg  | torchcodec torch   | get_samples_played_in_range, padded where short
HF datasets Audio (ogg)  | audio:datasets           | loaders | ogg  | datasets torchcodec | Audio(), get_samples_played_in_range
HF datasets undecoded    | audio:datasets_undecoded | loaders | ogg  | datasets soundfile | Audio(decode=False), soundfile seek
npy, opened each time    | audio:npy_open           | loaders | npy  | numpy              | np.load(mmap_mode='r') of float32 a crop
npy, maps kept open      | audio:npy_kept           | loaders | npy  | numpy              | the same, one map a recording for ever
LitData read_window      | audio:litdata            | loaders | npy  | litdata            | decoded int16, TemporalArrayLoader
ours                     | ours:crops               | own     | npy  | zarr zarrs         | int16 store, 4 random crops a recording an epoch, 128 MiB
"""  # noqa: E501 - a table


def crops(probe: Probe, reader: str, seconds: float = 3.0, **task: Any) -> None:
    """Rates, first batch and memory of one reader."""
    asked = AudioTask(**task)
    module, name = reader.split(":")
    opened = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)(asked)
    probe.evict(opened.path)
    probe.stream(opened.batches, len, seconds=seconds, slices=6)
    probe.disk(opened.path)
    probe.set(audio_seconds=float(asked.seconds().sum()))


def subjects(quick: bool) -> list[Subject]:
    """One row a reader."""
    found = []
    for line in READERS.strip().splitlines():
        name, reader, venv, suffix, packages, setting = (cell.strip() for cell in line.split("|"))
        params = {"reader": reader, "suffix": suffix, "recordings": 24 if quick else 48}
        target = "benchmarks.compare_audio:crops"
        found.append(Subject(name, target, params, venv, setting, "crops", tuple(packages.split()), 400))
    return found


if __name__ == "__main__":
    sys.exit(main("compare_audio", subjects))

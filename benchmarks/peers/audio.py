"""Readers of crops of audio: five seconds at 32 kHz, anywhere in recordings of 5 to 300 seconds.

A function ``reader(task)`` returns an `Opened` whose batches are float32[crops, frames]. Each epoch takes one
crop of every recording, in a shuffled order.
"""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import atomic_folder
from benchmarks.harness import work_dir
from benchmarks.peers.task import Opened, apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RATE = 32_000


@dataclass(frozen=True, slots=True)
class AudioTask:
    """The recordings and the crops."""

    recordings: int = 48
    frames: int = 5 * RATE
    batch_size: int = 32
    seed: int = 0
    workers: int = 0
    suffix: str = "ogg"

    def seconds(self) -> np.ndarray:
        """float[recordings]: most are short, some are five minutes."""
        return 5 + 295 * np.random.default_rng(self.seed).random(self.recordings) ** 3

    @property
    def lengths(self) -> np.ndarray:
        """int64[recordings], in frames."""
        return (self.seconds() * RATE).astype(np.int64)

    def place(self, kind: str) -> Path:
        return work_dir() / "stores" / f"audio-{kind}-{self.recordings}-{self.seed}"

    def files(self, suffix: str | None = None) -> list[Path]:
        """The recordings as files of one format, made on the first call."""
        suffix = suffix or self.suffix
        folder = apart(f"audio:make_{suffix}", self, self.place(suffix))
        return sorted(folder.glob(f"*.{suffix}"))

    def crops(self) -> Iterator[tuple[int, int]]:
        """(recording, start) without end: every recording once an epoch."""
        rng, lengths = np.random.default_rng(), self.lengths
        while True:
            for k in rng.permutation(self.recordings):
                yield int(k), int(rng.integers(0, lengths[k] - self.frames + 1))


def sound(task: AudioTask, k: int) -> np.ndarray:
    """int16[frames] of one recording: calls that sweep over brownish noise."""
    rng = np.random.default_rng([task.seed, k])
    n = int(task.lengths[k])
    t = np.arange(n, dtype=np.float32) / RATE
    noise = np.convolve(rng.standard_normal(n).astype(np.float32), np.ones(16, np.float32) / 16, "same")
    pitch = 2000 + 1500 * np.sin(2 * np.pi * (0.3 + 0.1 * (k % 7)) * t)
    call = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) * np.clip(np.sin(2 * np.pi * t / 3), 0, 1) ** 4
    return ((0.05 * noise + 0.2 * call) * 32767).astype(np.int16)


def _make(task: AudioTask, out: Path, suffix: str, write: Callable[[Path, np.ndarray], None]) -> None:
    with atomic_folder(out) as partial:
        partial.mkdir()
        for k in range(task.recordings):
            write(partial / f"{k:04d}.{suffix}", sound(task, k))


def _write_sound(path: Path, x: np.ndarray) -> None:
    import soundfile

    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        for start in range(0, len(x), 1 << 16):  # its Vorbis encoder dies of very long blocks
            file.write(x[start : start + (1 << 16)])


def make_ogg(task: AudioTask, out: Path) -> None:
    _make(task, out, "ogg", _write_sound)


def make_flac(task: AudioTask, out: Path) -> None:
    _make(task, out, "flac", _write_sound)


def make_npy(task: AudioTask, out: Path) -> None:
    _make(task, out, "npy", lambda path, x: np.save(path, x.astype(np.float32) / 32768))


def _batched(task: AudioTask, cut: Callable[[int, int], np.ndarray]) -> Callable[[], Iterator[np.ndarray]]:
    def start() -> Iterator[np.ndarray]:
        crops = task.crops()
        while True:
            batch = np.empty((task.batch_size, task.frames), np.float32)
            for row in batch:
                row[:] = cut(*next(crops))
            yield batch

    return start


def _opened(task: AudioTask, cut: Callable[[int, int], np.ndarray], path: Path) -> Opened:
    return Opened(_batched(task, cut), lambda batch: batch[:, :4], path, crops=True)


def decode_all(task: AudioTask) -> Opened:
    """Decode the file, then crop: the first thing one writes."""
    import soundfile

    files = task.files()
    return _opened(
        task,
        lambda k, start: soundfile.read(files[k], dtype="float32")[0][start : start + task.frames],
        files[0].parent,
    )


def soundfile_seek(task: AudioTask) -> Opened:
    import soundfile

    files = task.files()
    return _opened(
        task,
        lambda k, start: soundfile.read(files[k], task.frames, start, dtype="float32")[0],
        files[0].parent,
    )


def librosa_load(task: AudioTask) -> Opened:
    import librosa

    files = task.files()

    def cut(k: int, start: int) -> np.ndarray:
        return librosa.load(files[k], sr=None, offset=start / RATE, duration=task.frames / RATE)[0][
            : task.frames
        ]

    return _opened(task, cut, files[0].parent)


def pyav(task: AudioTask) -> Opened:
    """Seek to the page before, decode, drop what stands before the crop."""
    import av

    files = task.files()

    def cut(k: int, start: int) -> np.ndarray:
        with av.open(str(files[k])) as container:
            stream = container.streams.audio[0]
            container.seek(max(0, int((start / RATE - 0.2) / stream.time_base)), stream=stream)
            parts, at, have = [], None, 0
            for frame in container.decode(stream):
                values = frame.to_ndarray().reshape(-1)
                if values.dtype.kind == "i":
                    values = values.astype(np.float32) / np.iinfo(values.dtype).max
                if at is None:
                    at = round(float(frame.pts * stream.time_base) * RATE) if frame.pts is not None else 0
                    have = at
                parts.append(values)
                have += len(values)
                if have >= start + task.frames:
                    break
            return _full(np.concatenate(parts)[max(0, start - (at or 0)) :], task.frames)

    return _opened(task, cut, files[0].parent)


def _full(values: np.ndarray, frames: int) -> np.ndarray:
    """As many frames as asked for: FFmpeg gives fewer once in some thousand seeks in ogg."""
    return np.pad(values[:frames], (0, max(0, frames - len(values))))


def _played(decoder: Any, start: int, frames: int) -> np.ndarray:
    """A crop by a decoder of torchcodec."""
    played = decoder.get_samples_played_in_range(start / RATE, (start + frames) / RATE)
    return _full(played.data[0].numpy(), frames)


def torchcodec(task: AudioTask) -> Opened:
    from torchcodec.decoders import AudioDecoder

    files = task.files()

    def cut(k: int, start: int) -> np.ndarray:
        return _played(AudioDecoder(files[k]), start, task.frames)

    return _opened(task, cut, files[0].parent)


def npy_open(task: AudioTask) -> Opened:
    """Memory-mapped float32, opened for each crop."""
    files = task.files("npy")
    return _opened(
        task, lambda k, start: np.load(files[k], mmap_mode="r")[start : start + task.frames], files[0].parent
    )


def npy_kept(task: AudioTask) -> Opened:
    """The same with every map kept open."""
    files = task.files("npy")
    maps = [np.load(file, mmap_mode="r") for file in files]
    return _opened(task, lambda k, start: maps[k][start : start + task.frames], files[0].parent)


def _litdata_record(k: int, task: AudioTask) -> Any:
    return {"x": sound(task, k)}


def make_litdata(task: AudioTask, out: Path) -> None:
    import litdata
    from litdata.streaming.temporal import TemporalArrayLoader

    with atomic_folder(out) as partial:
        litdata.optimize(
            fn=functools.partial(_litdata_record, task=task),
            inputs=list(range(task.recordings)),
            output_dir=str(partial),
            chunk_bytes="64MB",
            num_workers=1,
            item_loader=TemporalArrayLoader(),
        )


def litdata(task: AudioTask) -> Opened:
    """Decoded int16 recordings, ``read_window``."""
    import litdata as ld
    from litdata.streaming.temporal import TemporalArrayLoader

    out = apart("audio:make_litdata", task, task.place("litdata"))
    data = ld.StreamingDataset(str(out), item_loader=TemporalArrayLoader())

    def cut(k: int, start: int) -> np.ndarray:
        return data.read_window(k, start=start, frames=task.frames)["x"].astype(np.float32) / 32768

    return _opened(task, cut, out)


def make_datasets(task: AudioTask, out: Path) -> None:
    from datasets import Audio, Dataset

    with atomic_folder(out) as partial:
        names = [str(path) for path in task.files()]
        Dataset.from_dict({"audio": names}).cast_column("audio", Audio(decode=False)).save_to_disk(
            str(partial)
        )


def datasets(task: AudioTask) -> Opened:
    """``Audio()`` gives a decoder of torchcodec, which is asked for the crop."""
    from datasets import Audio, load_from_disk

    out = apart("audio:make_datasets", task, task.place(f"datasets-{task.suffix}"))
    data = load_from_disk(str(out)).cast_column("audio", Audio())

    def cut(k: int, start: int) -> np.ndarray:
        return _played(data[k]["audio"], start, task.frames)

    return _opened(task, cut, out)


def datasets_undecoded(task: AudioTask) -> Opened:
    """``Audio(decode=False)``, the file's seek by soundfile."""
    import soundfile
    from datasets import Audio, load_from_disk

    out = apart("audio:make_datasets", task, task.place(f"datasets-{task.suffix}"))
    data = load_from_disk(str(out)).cast_column("audio", Audio(decode=False))

    def cut(k: int, start: int) -> np.ndarray:
        return soundfile.read(io.BytesIO(data[k]["audio"]["bytes"]), task.frames, start, dtype="float32")[0]

    return _opened(task, cut, out)

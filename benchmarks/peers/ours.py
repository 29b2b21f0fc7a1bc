"""This project on the same tasks as the peers beside it; imported in its own environment only."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import work_dir
from benchmarks.peers.task import Opened, Task, apart

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from benchmarks.peers.audio import AudioTask
    from benchmarks.peers.tables import AvroTask


def compiled(kind: str) -> None:
    """Let another process compile what numba compiles once after an install, and keeps on the disk."""
    import chunkstore

    folder = Path(chunkstore.__file__).parent
    files = [*folder.rglob("*.py"), *(folder.parent / "ingest").rglob("*.py")]
    state = hashlib.sha256(repr([(f.name, f.stat().st_mtime_ns) for f in sorted(files)]).encode()).hexdigest()
    apart(
        f"ours:compile_{kind}",
        Task(4, 600, 1, 50, 16),
        work_dir() / "stores" / f"compiled-{kind}-{state[:16]}",
    )


def compile_windows(task: Task, out: Path) -> None:
    """Draw one batch of every kind that is measured here."""
    from chunkstore.sampling import PerSequence

    for options in ({}, {"passes": 8}, {"sampling": PerSequence(1)}):
        next(iter(_open(task, **options).batches()))
    out.touch()


def compile_ingest(task: Task, out: Path) -> None:
    """Fill a store from a few rows."""
    from benchmarks.peers.tables import AvroTask

    for interleaved in (False, True):
        rows = AvroTask(files=2, rows=50, devices=2, interleaved=interleaved)
        _fill(rows, out.with_name(f"{out.name}-{interleaved}.zarr"), 0)
    out.touch()


# ---- windows ------------------------------------------------------------------------------------


def names(task: Task) -> list[str]:
    """A field a channel, as Avro gives them."""
    return [f"c{k:02d}" for k in range(task.channels)]


def make_store(task: Task, out: Path) -> None:
    """A store of all recordings, with the defaults of the project."""
    from chunkstore import StoreWriter

    x = task.array()
    partial = out.with_name(out.name + ".partial")
    with StoreWriter(partial, dict.fromkeys(names(task), "float32"), overwrite=True) as writer:
        for k in range(task.sequences):
            rows = x[k * task.sequence_obs : (k + 1) * task.sequence_obs]
            writer.write(f"recording-{k:04d}", {name: rows[:, c] for c, name in enumerate(names(task))})
    partial.rename(out)


def _store(task: Task) -> Path:
    return apart("ours:make_store", task, task.place("ours.zarr"))


def _loader(task: Task, **options: Any) -> Opened:
    compiled("windows")
    return _open(task, **options)


def _open(task: Task, **options: Any) -> Opened:
    from chunkstore import WindowLoader, WindowSpec, open_store

    out = _store(task)
    loader = WindowLoader(
        [open_store(out)],
        WindowSpec(task.length),
        fields=names(task),
        batch_size=task.batch_size,
        seed=task.seed,
        memory_limit=task.memory,
        **options,
    )
    epochs = itertools.count()
    return Opened(lambda: loader.batches(next(epochs)), lambda b: b["x"][:, 0, :4], out)


def loader(task: Task) -> Opened:
    """Defaults: lanes and passes as the project chooses them."""
    return _loader(task)


def eight_passes(task: Task) -> Opened:
    """Eight visits to every block in an epoch: more mixing for more reading."""
    return _loader(task, passes=8)


def dataloader(task: Task) -> Opened:
    """Through torch, as a training loop sees it."""
    from torch.utils.data import DataLoader

    from chunkstore import ZarrWindowDataset

    out = _store(task)
    dataset = ZarrWindowDataset(
        out, task.length, fields=names(task), batch_size=task.batch_size, memory_limit=task.memory
    )
    flow = DataLoader(dataset, batch_size=None, num_workers=task.workers)
    return Opened(lambda: iter(flow), lambda b: b["x"][:, 0, :4].numpy(), out)


# ---- audio --------------------------------------------------------------------------------------


def make_audio(task: AudioTask, out: Path) -> None:
    """The int16 samples of all recordings in one store."""
    from benchmarks.peers.audio import RATE, sound
    from chunkstore import FieldSpec, StoreWriter

    spec = FieldSpec("audio", "int16", scale_factor=1 / 32768)
    partial = out.with_name(out.name + ".partial")
    with StoreWriter(partial, [spec], attrs={"sample_rate": RATE}, overwrite=True) as writer:
        for k in range(task.recordings):
            writer.write(f"{k:04d}", {"audio": sound(task, k)})
    partial.rename(out)


def crops(task: AudioTask) -> Opened:
    """Four crops of every recording an epoch, anywhere in it."""
    from chunkstore import WindowLoader, WindowSpec, open_store
    from chunkstore.sampling import PerSequence

    compiled("windows")
    out = apart("ours:make_audio", task, task.place("ours.zarr"))
    loader = WindowLoader(
        [open_store(out)],
        WindowSpec(task.frames),
        fields=["audio"],
        batch_size=task.batch_size,
        sampling=PerSequence(4),
        seed=task.seed,
        memory_limit="128MiB",  # half of what the samples take
    )
    epochs = itertools.count()

    def start() -> Iterator[np.ndarray]:
        for batch in loader.batches(next(epochs)):
            yield batch["x"][:, 0]

    return Opened(start, lambda b: b[:, :4], out, crops=True)


# ---- ingest -------------------------------------------------------------------------------------


def prepare_ingest() -> None:
    """Before the clock of a filler of ours starts."""
    compiled("ingest")


def _fill(task: AvroTask, out: Path, workers: int | None) -> int:
    import ingest
    from benchmarks.peers.tables import FIELDS

    folder = task.paths()[0].parent
    result = ingest.ingest_avro(folder, out, sequence_key="device", fields=list(FIELDS), workers=workers)
    return int(result.report["rows"]["stored"])


def ingest_avro(task: AvroTask, out: Path) -> int:
    """As many workers as cores: the default."""
    return _fill(task, out, None)


def ingest_avro_here(task: AvroTask, out: Path) -> int:
    """``workers=0``: everything in this process."""
    return _fill(task, out, 0)


def ingest_audio(task: AudioTask, out: Path) -> int:
    """Decode, resample to 16 kHz, store int16."""
    import ingest

    result = ingest.ingest_audio(task.files()[0].parent, out, rate=16_000)
    return int(result.report["rows"]["stored"])

"""The windows that every reader is asked for, and what a reader answers with."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import recording
from benchmarks.harness import work_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Opened", "Task", "Windows", "apart", "crop", "dataloader", "first_of_rows", "samples"]


@dataclass(frozen=True, slots=True)
class Task:
    """The data and the windows that all readers are asked for."""

    sequences: int = 100
    """Recordings of ``sequence_obs`` each, end to end; no window crosses their ends."""
    sequence_obs: int = 131_072
    channels: int = 4
    length: int = 512
    batch_size: int = 256
    workers: int = 0
    """Worker processes of a torch DataLoader, where the reader uses one."""
    seed: int = 0
    memory: int = 512 << 20
    """Bytes a reader with a memory option is given."""

    @property
    def n_obs(self) -> int:
        return self.sequences * self.sequence_obs

    @property
    def windows_a_sequence(self) -> int:
        return self.sequence_obs - self.length + 1

    @property
    def n_windows(self) -> int:
        return self.sequences * self.windows_a_sequence

    @property
    def sample_obs(self) -> int:
        """Obs of one stored sample, for readers of whole samples."""
        return min(8 * self.length, self.sequence_obs)

    def array(self) -> np.ndarray:
        """The memory-mapped recording, float32[n_obs, channels]."""
        return np.load(recording(self.n_obs, self.channels, self.seed), mmap_mode="r")

    def start_of(self, window: Any) -> Any:
        """Absolute obs where window number ``window`` starts; integers or arrays of them."""
        return window // self.windows_a_sequence * self.sequence_obs + window % self.windows_a_sequence

    def place(self, reader: str) -> Path:
        """Where a reader's copy of the data lies."""
        return (
            work_dir()
            / "stores"
            / f"{reader}-{self.n_obs}x{self.channels}-{self.sequence_obs}-{self.sample_obs}"
        )


@dataclass
class Opened:
    """A reader ready to be asked."""

    batches: Callable[[], Iterator[Any]]
    """Starts an epoch."""
    first: Callable[[Any], np.ndarray]
    """float[windows, 4]: the first four values of channel 0 of every window of a batch."""
    path: Path
    """What it reads from the disk."""
    crops: bool = False
    """Whether it takes random crops instead of enumerating windows."""


def apart(target: str, task: Any, out: Path) -> Path:
    """Make ``out`` in a process of its own, so that what that takes does not count as the reader's.

    ``target`` is ``"module:function"`` of this package, called as ``function(task, out)``.
    """
    if not out.exists():
        kind = f"{type(task).__module__}:{type(task).__name__}"
        order = [sys.executable, "-m", "benchmarks.peers", target, kind, json.dumps(asdict(task)), str(out)]
        done = subprocess.run(order, check=False, capture_output=True, text=True)
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
            raise RuntimeError(f"could not prepare the data: {lines[-1]}")
    return out


def samples(task: Task) -> Iterator[np.ndarray]:
    x = task.array()
    for start in range(0, task.n_obs, task.sample_obs):
        yield np.ascontiguousarray(x[start : start + task.sample_obs])


def crop(sample: Any, length: int) -> Any:
    start = np.random.randint(0, len(sample) - length + 1)  # noqa: NPY002 - what users of these loaders write
    return sample[start : start + length]


def first_of_rows(batch: Any) -> np.ndarray:
    """[windows, obs, channels] -> the first four values of channel 0."""
    return np.asarray(batch[:, :4, 0])


def dataloader(dataset: Any, task: Task, **more: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        batch_size=task.batch_size,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        **more,
    )


class Windows:
    """Map-style dataset: one window an index, cut by ``cut(start)``."""

    def __init__(self, task: Task, cut: Callable[[int], Any]) -> None:
        self.task, self.cut = task, cut

    def __len__(self) -> int:
        return self.task.n_windows

    def __getitem__(self, window: int) -> Any:
        return self.cut(self.task.start_of(int(window)))

"""Shuffled windows of long recordings: this project beside everything a user would pick instead.

``python -m benchmarks.compare_windows`` measures, for three shapes of window, windows a second
(of wall time and of processor time), the first batch, peak memory, bytes on disk, how many distinct regions
of the data a batch of 256 mixes, and, on a small recording, whether an epoch draws every window exactly once.
"""

from __future__ import annotations

import importlib
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.data import Places, recording
from benchmarks.harness import Probe, Subject, main
from benchmarks.peers.task import Opened, Task

#: the data is cut into this many regions; a full permutation puts 200 of them into a batch of 256
REGIONS = 500
SMALL = {"sequences": 8, "sequence_obs": 1024, "batch_size": 64}
SHAPES = {
    "512x4": {"length": 512, "channels": 4, "sequences": 100},
    "64x40": {"length": 64, "channels": 40, "sequences": 24},
    "4096x1": {"length": 4096, "channels": 1, "sequences": 100},
}

#: name | function of ``peers`` | environment | workers | packages | resumes | setting
READERS = """
all in memory              | arrays:memory            | own     | 0 | numpy              | by hand | the ceiling: a strided view, one fancy index a batch
memory map, fancy index    | arrays:memmap_fancy      | own     | 0 | numpy              | by hand | the same over np.load(mmap_mode='r')
ours                       | ours:loader              | own     | 0 | zarr zarrs numcodecs | yes   | WindowLoader, defaults, 512 MiB
ours, 8 passes             | ours:eight_passes        | own     | 0 | zarr zarrs numcodecs | yes   | WindowLoader, passes=8, 512 MiB
ours, torch                | ours:dataloader          | own     | 0 | torch zarr zarrs   | yes     | ZarrWindowDataset in a DataLoader, 0 workers
memory map + DataLoader    | arrays:memmap_dataloader | loaders | 0 | torch              | no      | a window an index, shuffle=True, 0 workers
memory map + DataLoader, 2 | arrays:memmap_dataloader | loaders | 2 | torch              | no      | the same, 2 workers
tsai                       | arrays:tsai              | tsai    | 0 | tsai torch         | no      | TSUnwindowedDatasets, TSDataLoaders, 0 workers
LitData crops              | stored:litdata           | loaders | 0 | litdata torch      | yes     | samples of 8 windows, shuffle=True, 64 MB chunks
LitData crops, 2           | stored:litdata           | loaders | 2 | litdata torch      | yes     | the same, 2 workers
LitData read_window        | stored:litdata_windows   | loaders | 0 | litdata torch      | no      | TemporalArrayLoader, a window an index
streaming crops            | stored:streaming         | loaders | 0 | mosaicml-streaming | yes     | MDS, samples of 8 windows, py1e
streaming crops, 2         | stored:streaming         | loaders | 2 | mosaicml-streaming | yes     | the same, 2 workers
WebDataset crops           | stored:webdataset        | loaders | 0 | webdataset         | no      | shuffle(1000) of samples of 8 windows
WebDataset cut             | stored:webdataset_cut    | loaders | 0 | webdataset         | no      | all windows of a sample, buffer of 20,000
HF datasets crops          | stored:datasets          | loaders | 0 | datasets pyarrow   | no      | Arrow, with_format('numpy'), 0 workers
grain crops                | stored:grain             | loaders | 0 | grain array-record | yes     | ArrayRecord group_size:1, MapDataset.shuffle
xbatcher                   | arrays:xbatcher          | loaders | 0 | xbatcher xarray    | no      | BatchGenerator with overlap, first 200,000 windows
zarr                       | arrays:zarr              | loaders | 0 | zarr numcodecs     | no      | 64 KiB chunks, one read a window, 0 workers
zarr + zarrs               | arrays:zarr_pipeline     | loaders | 0 | zarr zarrs         | no      | the same with the zarrs pipeline
tensorstore                | arrays:tensorstore       | loaders | 0 | tensorstore        | by hand | 512 KiB chunks, 512 MiB cache, a batch in flight
insitubatch                | arrays:insitubatch       | arrays  | 0 | insitubatch zarr   | no      | a shifted view an obs, blocks of 16 chunks, first 2 M obs
annbatch crops             | arrays:annbatch          | arrays  | 0 | annbatch zarr      | no      | rows of 8 windows, 8-row chunks, 64 preloaded
"""  # noqa: E501 - a table


@dataclass(frozen=True, slots=True)
class Reader:
    """A row of the table above."""

    name: str
    function: str
    venv: str
    workers: int
    packages: tuple[str, ...]
    resumes: str
    setting: str


def readers() -> list[Reader]:
    """The table, parsed."""
    rows = [[cell.strip() for cell in line.split("|")] for line in READERS.strip().splitlines()]
    return [Reader(r[0], r[1], r[2], int(r[3]), tuple(r[4].split()), r[5], r[6]) for r in rows]


#: readers that the quick run leaves out: the second worker count, and those that take long to prepare
YARDSTICKS = {"all in memory", "memory map + DataLoader", "ours"}
LONG = {"insitubatch"}  # a minute before its first batch
SLOW = {"streaming crops, 2", "LitData crops, 2", "memory map + DataLoader, 2", "zarr + zarrs"}


def _open(reader: str, task: Task) -> Opened:
    module, name = reader.split(":")
    return getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)(task)


def speed(probe: Probe, reader: str, resumes: str, seconds: float = 3.0, **task: Any) -> None:
    """Rates, first batch, memory, then the mixing of the batches that follow."""
    asked = Task(**task)
    recording(asked.n_obs, asked.channels, asked.seed)
    Places(asked.n_obs, asked.channels, asked.seed)
    probe.start()
    opened = _open(reader, asked)
    probe.evict(opened.path)
    probe.stream(opened.batches, lambda b: len(opened.first(b)), seconds=seconds, slices=6, warmup_s=0.5)
    probe.disk(opened.path)
    probe.set(crops=opened.crops, resumes=resumes, n_windows=asked.n_windows)
    if not probe.turn:
        probe.set(**_mixing(opened, asked))


def _mixing(opened: Opened, task: Task, batches: int = 200, seconds: float = 1.5) -> dict[str, Any]:
    places = Places(task.n_obs, task.channels, task.seed)
    width = task.n_obs / REGIONS
    distinct, lost, end = [], 0, time.monotonic() + seconds
    for number, batch in enumerate(opened.batches()):
        at = places.of(opened.first(batch))
        lost += int((at < 0).sum())
        distinct.append(len(np.unique(at // width)))
        if number >= batches or (time.monotonic() > end and number >= 3):
            break
    whole = distinct[:-1] or distinct
    return {
        "regions_a_batch": float(np.mean(whole)),
        "regions_a_batch_p1": float(np.percentile(whole, 1)),
        "batches_mixed": len(whole),
        "windows_not_found": lost,
    }


def once(probe: Probe, reader: str, resumes: str, **task: Any) -> None:
    """One epoch of a small recording: how often each window was drawn; three where some were not, or cross.

    A last batch that is not full and left out holds others each time. So what is missed is counted among all
    windows that a reader has shown in any epoch, those that cross two recordings too.
    """
    asked = Task(**task)
    opened = _open(reader, asked)
    places = Places(asked.n_obs, asked.channels, asked.seed)
    legal = asked.start_of(np.arange(asked.n_windows))
    probe.start()
    epochs: list[np.ndarray] = []
    while len(epochs) < 3:
        drawn = np.concatenate([places.of(opened.first(batch)) for batch in opened.batches()])
        epochs.append(np.bincount(drawn + 1, minlength=asked.n_obs + 1))
        if opened.crops or (len(drawn) == asked.n_windows and (epochs[0][legal + 1] == 1).all()):
            break
    probe.set(
        n_windows=asked.n_windows,
        **counted(np.stack(epochs), legal + 1),
        crops=opened.crops,
        resumes=resumes,
    )


def counted(times: np.ndarray, legal: np.ndarray) -> dict[str, Any]:
    """What epochs hold: ``times[epoch, place]`` says how often each place was drawn; the worst epoch counts.

    >>> counted(np.array([[0, 1, 1, 0, 1], [0, 0, 1, 1, 1]]), np.array([1, 2]))  # 3 and 4 cross
    {'drawn': 3, 'missed': 1, 'repeated': 0, 'crossing': 2, 'exactly_once': False}
    """
    shown = times.any(axis=0)
    shown[legal] = True
    crossing = shown.copy()
    crossing[legal] = False
    return {
        "drawn": int(times.sum(axis=1).max()),
        "missed": int((times[:, shown] == 0).sum(axis=1).max()),
        "repeated": int((times[:, legal] > 1).sum(axis=1).max()),
        "crossing": int(crossing.sum()),
        "exactly_once": bool((times[:, legal] == 1).all() and not crossing.any()),
    }


def subjects(quick: bool) -> list[Subject]:
    """Speed for each shape, then the small epoch; ``quick`` keeps one shape, and ours of the others."""
    found = []
    for shape, form in SHAPES.items():
        size = form | ({"sequences": 16} if quick else {})
        for reader in readers():
            if quick and (reader.name in SLOW | LONG or (shape != "512x4" and reader.name not in YARDSTICKS)):
                continue
            if shape != "512x4" and reader.workers:
                continue
            found.append(_subject(reader, "speed", shape, size, 150))
    small = {"length": 512, "channels": 4} | SMALL
    return found + [
        _subject(reader, "once", "once", small, 120)
        for reader in readers()
        if not (reader.workers or reader.name in SLOW or (quick and not reader.name.startswith("ours")))
    ]


def _subject(reader: Reader, function: str, table: str, size: dict[str, Any], timeout_s: float) -> Subject:
    params = {"reader": reader.function, "workers": reader.workers, "resumes": reader.resumes} | size
    target = f"benchmarks.compare_windows:{function}"
    return Subject(
        reader.name,
        target,
        params,
        reader.venv,
        reader.setting,
        table,
        reader.packages,
        timeout_s,
        once=function == "once",
    )


if __name__ == "__main__":
    sys.exit(main("compare_windows", subjects))

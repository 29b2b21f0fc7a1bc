"""Stores of growing size, and this project's loader over them."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import recording
from benchmarks.harness import work_dir
from benchmarks.peers.ours import compiled
from benchmarks.peers.task import apart

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.harness import Probe


@dataclass(frozen=True, slots=True)
class Size:
    """How big everything is; each plot changes one of these."""

    obs: int = 1 << 26
    sequences: int = 64
    stores: int = 1
    lanes: int = 128
    workers: int = 0
    ranks: int = 1
    length: int = 512
    batch_size: int = 256
    memory_limit: int = 128 << 20
    """Half of what the obs take: nothing is flat only because everything fits."""

    def place(self, number: int) -> Path:
        name = f"growth-{self.obs}-{self.sequences}-{number}of{self.stores}.zarr"
        return work_dir() / "stores" / name


def make_stores(size: Size, out: Path) -> None:
    """All stores of a size: one field, the obs and the sequences dealt evenly among them."""
    from chunkstore import StoreWriter

    x = np.load(recording(size.obs, 1), mmap_mode="r")[:, 0]
    edges = np.linspace(0, size.obs, size.sequences + 1).astype(np.int64)
    share = np.array_split(np.arange(size.sequences), size.stores)
    for number in reversed(range(size.stores)):  # the first store, which is asked for, appears last
        place = size.place(number)
        partial = place.with_name(place.name + ".partial")
        with StoreWriter(partial, {"x": "float32"}, overwrite=True) as writer:
            for k in share[number]:
                writer.write(f"{k:07d}", {"x": x[edges[k] : edges[k + 1]]})
        partial.rename(place)


def _loader(size: Size, lanes: int | str) -> Any:
    from chunkstore import WindowLoader, WindowSpec, open_store

    opened = [open_store(size.place(number)) for number in range(size.stores)]
    return WindowLoader(
        opened,
        WindowSpec(size.length),
        fields=["x"],
        batch_size=size.batch_size,
        lanes=lanes,
        passes=1,
        memory_limit=size.memory_limit,
    )


def torch_loader(size: Size) -> Any:
    """A DataLoader with as many workers and lane groups as the size says."""
    from torch.utils.data import DataLoader

    from chunkstore import ZarrWindowDataset

    dataset = ZarrWindowDataset(
        [size.place(number) for number in range(size.stores)],
        size.length,
        fields=["x"],
        batch_size=size.batch_size,
        lanes=size.lanes,
        passes=1,
        memory_limit=size.memory_limit,
        lane_groups=max(1, size.workers),
    )
    spawn = {"multiprocessing_context": "spawn", "persistent_workers": True} if size.workers else {}
    return DataLoader(dataset, batch_size=None, num_workers=size.workers, **spawn)


def plan_ns(loader: Any, size: Size, draws: int = 1 << 14, rounds: int = 12) -> list[float]:
    """Nanoseconds in which it is decided which window a draw shows and where it lies; one number a round."""
    from chunkstore.rows import RowPlanner

    planner = RowPlanner(loader.blocks, *loader.order(0), size.batch_size, 0, 1, loader._offsets)
    draws, took = min(draws, loader.n_draws() // rounds), []
    for turn in range(rounds):
        begin = time.perf_counter()
        planner.rows(0, turn * draws, (turn + 1) * draws)
        took.append((time.perf_counter() - begin) / max(draws, 1) * 1e9)
    return took[2:]


def ours(probe: Probe, axis: str, value: int, seconds: float = 3.0, **more: Any) -> None:
    """Set-up, first batch, rate and memory with one size changed."""
    size = Size(**(more | {axis: value}))
    apart("growth:make_stores", size, size.place(0))
    compiled("windows")
    probe.evict(*(size.place(number) for number in range(size.stores)))
    probe.start()
    begin = time.perf_counter()
    if axis == "workers":
        flow = torch_loader(size)
        batches = lambda: iter(flow)  # noqa: E731 - one line reads best here
    else:
        loader = _loader(size, size.lanes)
        epochs = itertools.count()
        batches = lambda: loader.batches(next(epochs), rank=0, world_size=size.ranks)  # noqa: E731
    probe.add("setup_s", time.perf_counter() - begin)
    probe.stream(batches, lambda b: len(b["x"]), seconds=seconds, slices=4)
    probe.set(axis=axis, value=value)
    if axis != "workers":
        for took in plan_ns(loader, size):
            probe.add("plan_ns", took)

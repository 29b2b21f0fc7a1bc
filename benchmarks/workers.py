"""What does it cost to have batches made by worker processes? ``python -m benchmarks.workers``.

Two readers, without workers and with two: a window an index over a memory map, whose batches (2 MiB) torch
collates, and ours, whose batches (512 KiB) come whole. Nothing is done to a batch, so what a worker adds is
seen: processor time of the process of the loop and of the workers for each batch, pages that the kernel had
to provide, and calls of read and write. Linux only, from ``/proc``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data import recording
from benchmarks.harness import Probe, Subject, main
from benchmarks.usage import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def standing(pid: int) -> tuple[float, float, int, int]:
    """User and system seconds of a process so far, pages it was given, calls of read and write."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    calls = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return (
        int(stat[11]) / _TICK,
        int(stat[12]) / _TICK,
        int(stat[7]),
        int(calls["syscr"]) + int(calls["syscw"]),
    )


def cost(probe: Probe, batches: Callable[[], Iterator[Any]], seconds: float, batch_size: int) -> None:
    """Draw batches, and say for each what it cost the loop's own process, and all others below it."""
    probe.start()
    flow = batches()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        next(flow)
    before = {pid: standing(pid) for pid in tree(os.getpid())}
    began, n = time.perf_counter(), 0
    while time.perf_counter() - began < seconds * probe.scale:
        next(flow)
        n += 1
    took = time.perf_counter() - began
    own, others = [0.0] * 4, [0.0] * 4
    for pid, earlier in before.items():
        into = own if pid == os.getpid() else others
        for k, (now, then) in enumerate(zip(standing(pid), earlier, strict=True)):
            into[k] += (now - then) / n
    probe.add("per_s", n * batch_size / took)
    for where, (user, system, pages, calls) in (("loop", own), ("workers", others)):
        probe.add(f"{where}_user_ms", user * 1e3)
        probe.add(f"{where}_system_ms", system * 1e3)
        probe.add(f"{where}_pages", pages)
        probe.add(f"{where}_calls", calls)


def endless(start: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from start()


def memory_map(probe: Probe, workers: int, seconds: float = 4.0) -> None:
    """As the row *memory map + DataLoader* of windows of 512 x 4."""
    from benchmarks.peers import arrays
    from benchmarks.peers.task import Task

    task = Task(sequences=16, workers=workers)
    recording(task.n_obs, task.channels, task.seed)
    opened = arrays.memmap_dataloader(task)
    cost(probe, lambda: endless(opened.batches), seconds, task.batch_size)


def ours(probe: Probe, workers: int, seconds: float = 4.0) -> None:
    """As the rows of growth by workers, on 4 million obs."""
    from benchmarks.peers.growth import Size, torch_loader
    from benchmarks.peers.ours import compiled
    from benchmarks.peers.task import apart

    size = Size(obs=1 << 22, workers=workers)
    apart("growth:make_stores", size, size.place(0))
    compiled("windows")
    flow = torch_loader(size)
    cost(probe, lambda: endless(lambda: iter(flow)), seconds, size.batch_size)


SUBJECTS = [
    Subject(
        name if not n else f"{name}, {n}", target, {"workers": n}, venv, setting, "workers", packages, 120
    )
    for name, target, venv, setting, packages in (
        (
            "memory map + DataLoader",
            "benchmarks.workers:memory_map",
            "loaders",
            "512 obs of 4 channels",
            ("torch",),
        ),
        ("ours, torch", "benchmarks.workers:ours", "own", "512 obs of one field", ("torch",)),
    )
    for n in (0, 2)
]


if __name__ == "__main__":
    sys.exit(main("workers", SUBJECTS))

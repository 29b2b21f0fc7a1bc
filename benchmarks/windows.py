"""Shuffled windows from a compressed store: the numbers that this project promises.

``python -m benchmarks.windows [--quick] [--only NAME ...]`` prints what was promised beside what was
measured and writes ``benchmarks/results/windows.json`` unless only some were asked for. Data: 13 million
obs x 4 float32 in 24 sequences of uneven lengths, blosc-zstd; windows of 512 at stride 1, batches of 256,
``memory_limit`` 64 MiB.

Rates are measured in turns of half a second in one process and compared turn by turn, so that other work
on the machine spoils a turn and not a ratio. Where it is busy throughout, look at the ratios of the processor
time of the loop's own thread: what decodes does so in other threads.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import count, pairwise

import numpy as np
from numpy.lib.stride_tricks import as_strided

from benchmarks.harness import Turn, about, keep, work_dir

W, B, LIMIT = 512, 256, "64MiB"
FIELDS = ("a", "b", "c", "d")
CHUNK, SHARD = 16_384, 16_384 * 40
N_OBS, N_SEQUENCES, TILES = SHARD * 20, 24, 50


# ---- data


def lengths(n_obs=N_OBS, sequences=N_SEQUENCES):
    """Uneven lengths, from a fixed seed."""
    share = np.random.default_rng(3).dirichlet(np.full(sequences, 2.0))
    sizes = np.maximum(2 * W, (share * n_obs).astype(int))
    sizes[np.argmax(sizes)] += n_obs - sizes.sum()
    return sizes


def store_path():
    """Random walks of two decimals, as sensors give them; written once."""
    import chunkstore

    path = work_dir() / "windows-13m.zarr"
    if not path.exists():
        rng = np.random.default_rng(0)
        with chunkstore.StoreWriter(
            str(path), fields=dict.fromkeys(FIELDS, "f4"), chunk=CHUNK, shard=SHARD, codec="blosc-zstd"
        ) as out:
            for q, n in enumerate(lengths()):
                walks = {f: np.cumsum(rng.standard_normal(n, dtype="f4")) * 0.1 for f in FIELDS}
                out.write(f"s{q}", {f: v.round(2).astype("f4") for f, v in walks.items()})
    return path


def tiled_path():
    """The same store 50 times over: its shards linked, not copied."""
    import chunkstore
    from chunkstore.layout import FieldSpec

    base, path = store_path(), work_dir() / "windows-650m.zarr"
    if not (path / "done").exists():
        specs = [FieldSpec(f, "float32") for f in FIELDS]
        chunkstore.create_store(
            str(path),
            fields=specs,
            n_obs=N_OBS * TILES,
            chunk=CHUNK,
            shard=SHARD,
            codec="blosc-zstd",
            overwrite=True,
        )
        for f in FIELDS:
            (path / f / "c").mkdir(parents=True, exist_ok=True)
            for tile in range(TILES):
                for shard in range(N_OBS // SHARD):
                    os.link(
                        base / f / "c" / str(shard), path / f / "c" / str(tile * (N_OBS // SHARD) + shard)
                    )
        rowsize = np.tile(lengths(), TILES)
        chunkstore.finish_store(str(path), rowsize=rowsize, ids=[f"s{i}" for i in range(len(rowsize))])
        (path / "done").touch()
    return path


def npy_path():
    path = work_dir() / "windows-13m.npy"
    if not path.exists():
        import chunkstore

        store = chunkstore.open_store(str(store_path()))
        np.save(path, np.stack([store.read(f, 0, N_OBS) for f in FIELDS], axis=1))
    return path


def make_loader(path, **options):
    import chunkstore
    from chunkstore.loader import WindowLoader
    from chunkstore.windows import WindowSpec

    options = {"batch_size": B, "memory_limit": LIMIT, "fields": FIELDS} | options
    return WindowLoader(chunkstore.open_store(str(path)), WindowSpec(W), **options)


# ---- rates in turns


def endless(loader):
    for epoch in count():
        yield from loader.batches(epoch)


def in_memory():
    """The limit: one fancy index into a strided view of everything in memory."""
    values = np.load(npy_path())
    view = as_strided(values, (N_OBS - W + 1, W, len(FIELDS)), (16, 16, 4), writeable=False)
    rng = np.random.default_rng(1)
    while True:
        yield view[rng.integers(0, N_OBS - W + 1, B)]


class MapStyle:
    """What many write first: a memory map, a list of starts, one window an item."""

    def __init__(self):
        edges = np.concatenate([[0], np.cumsum(lengths())])
        self.starts = np.concatenate([np.arange(a, b - W + 1) for a, b in pairwise(edges)])
        self.values = None

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        if self.values is None:
            self.values = np.load(npy_path(), mmap_mode="r")
        at = self.starts[i]
        return np.array(self.values[at : at + W])


def map_style(workers):
    import torch

    torch.set_num_threads(1)
    sampler = torch.utils.data.RandomSampler(MapStyle())
    loader = torch.utils.data.DataLoader(MapStyle(), B, sampler=sampler, num_workers=workers)
    while True:
        yield from loader


def rates(turns, seconds):
    streams = {
        "in memory": in_memory(),
        "P=1": endless(make_loader(store_path(), passes=1)),
        "P=8": endless(make_loader(store_path(), passes=8)),
        "memmap, workers 0": map_style(0),
        "memmap, workers 2": map_style(2),
    }
    found = {name: [] for name in streams}
    cpu = {name: [] for name in streams}
    for turn in range(turns + 1):
        for name, stream in streams.items():
            next(stream)
            began, busy, n = time.perf_counter(), time.thread_time(), 0
            while (took := time.perf_counter() - began) < seconds:
                next(stream)
                n += 1
            if turn:
                found[name].append(n * B / took)
                cpu[name].append(n * B / (time.thread_time() - busy))
    for stream in streams.values():
        stream.close()
    limit = np.array(found["in memory"])
    maps = np.maximum(found["memmap, workers 0"], found["memmap, workers 2"])
    ratio = lambda a, b: statistics.median((np.array(a) / b).tolist())  # noqa: E731
    return {
        "windows/s": {name: round(statistics.median(v)) for name, v in found.items()},
        "windows/s of the loop's own processor time": {
            name: round(statistics.median(cpu[name])) for name in ("in memory", "P=1", "P=8")
        },
        "P=1 / in memory, processor time": ratio(cpu["P=1"], np.array(cpu["in memory"])),
        "P=8 / in memory, processor time": ratio(cpu["P=8"], np.array(cpu["in memory"])),
        "P=1 / in memory": ratio(found["P=1"], limit),
        "P=8 / in memory": ratio(found["P=8"], limit),
        "P=1 / best memmap": ratio(found["P=1"], maps),
        "P=8 / best memmap": ratio(found["P=8"], maps),
    }


# ---- first batch and memory, each in a process of its own


def child(path, passes, seconds):
    import psutil

    import chunkstore.loader
    import chunkstore.store  # noqa: F401 - the imports before which nothing is counted

    me = psutil.Process()
    base = me.memory_info().rss
    began = time.perf_counter()
    batches = endless(make_loader(path, passes=passes))
    next(batches)
    first = time.perf_counter() - began
    peak, last = 0, 0.0
    while time.perf_counter() - began < seconds:
        next(batches)
        if time.perf_counter() - last > 0.02:
            last = time.perf_counter()
            peak = max(peak, me.memory_info().rss)
    batches.close()
    print(json.dumps({"first batch s": first, "peak above imports MB": (peak - base) / 1e6}))


def in_child(*args):
    order = [sys.executable, "-m", "benchmarks.windows", "--child", *map(str, args)]
    out = subprocess.run(order, check=True, capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def footprint(repeats, seconds):
    rows = {}
    for name, path in (("13 M obs", store_path()), ("650 M obs", tiled_path())):
        for passes in (1, 8):
            runs = [in_child(path, passes, seconds) for _ in range(repeats)]
            rows[f"{name}, P={passes}"] = {
                "first batch s": statistics.median(r["first batch s"] for r in runs),
                "peak above imports MB": max(r["peak above imports MB"] for r in runs),
            }
    return rows


# ---- order


def constant(repeats):
    """Cost of one window of the schedule and the index, from 10**6 to 10**11 obs."""
    from chunkstore.sampling import population
    from chunkstore.schedule import Blocks, EpochSchedule
    from chunkstore.segments import cut_segments
    from chunkstore.windows import WindowIndex, WindowSpec

    draws = 1 << 19
    made = {}
    for power in (6, 7, 8, 9, 10, 11):
        n = 10**power
        index = WindowIndex(cut_segments(np.concatenate([[0], np.cumsum(lengths(n))])), WindowSpec(W))
        blocks = Blocks.of(index, [65_536], [n])
        began = time.perf_counter()
        items = population(index, blocks, "all", seed=0, epoch=0)
        schedule = EpochSchedule(items.counts, key=0, lanes=64)
        made[power] = (items, schedule, schedule.cursor(), time.perf_counter() - began)
    times = {power: [] for power in made}
    for turn in range(repeats + 1):
        for power, (items, schedule, cursor, _) in made.items():
            at = (turn * draws) % (schedule.n_draws - draws)
            began = time.perf_counter()
            for low in range(at, at + draws, 16_384):
                item, _ = schedule.items(np.arange(low, low + 16_384), cursor)
                items.index.locate(items.windows(item))
            if turn:
                times[power].append((time.perf_counter() - began) / draws * 1e9)
    base = np.array(times[6])
    rows = {
        f"1e{p} obs": {
            "ns/window": statistics.median(t),
            "against 1e6": statistics.median((np.array(t) / base).tolist()),
            "made in s": made[p][3],
        }
        for p, t in times.items()
    }
    gc.collect()
    return rows


def distinct():
    """Distinct blocks a batch, of all full batches of an epoch."""
    rows = {}
    for name, path in (("13 M obs", store_path()), ("650 M obs", tiled_path())):
        for passes in (1, 8):
            with make_loader(path, passes=passes) as loader:
                schedule, lanes = loader.schedule(0), loader.plan.lanes
                full = schedule.n_draws // B
                parts = []
                for low in range(0, full, 2000):
                    some = np.arange(low * B, min(low + 2000, full) * B)
                    held = np.sort(schedule.block[schedule.items(some)[1]].reshape(-1, B), axis=1)
                    parts.append(1 + (np.diff(held, axis=1) != 0).sum(axis=1))
                found = np.concatenate(parts)
                rows[f"{name}, P={passes}"] = {
                    "lanes": lanes,
                    "blocks a lane": len(loader.blocks) / lanes,
                    "mean": float(found.mean()),
                    "p1": float(np.percentile(found, 1)),
                    "min": int(found.min()),
                    "p1 / min(batch, lanes)": float(np.percentile(found, 1)) / min(B, lanes),
                }
    return rows


# ---- training


def quality(seeds):
    from benchmarks.quality import compare

    return compare(seeds)


def say(name, rows):
    print(f"\n{name}")
    for key, value in rows.items():
        text = (
            value
            if not isinstance(value, dict)
            else "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items())
        )
        print(f"  {key:24} {text:.4g}" if isinstance(text, float) else f"  {key:24} {text}", flush=True)


PROMISED = {
    "rates": "P=1 at least 0.8 of in memory, P=8 at least 0.6, both at least 4 times the best memmap",
    "footprint": "first batch within 0.5 s; peak at most 64 MiB + 150 MB, the same for 50 times the data",
    "constant": "within 20 % from 1e6 to 1e11 obs",
    "distinct": "p1 at least 0.9 x min(batch, lanes); at P=8 where there are 20 blocks a lane",
    "quality": "held-out loss of one epoch within 0.5 % of a full shuffle, mean of the seeds",
}
TIMED = ("rates", "footprint", "constant")


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns and seeds; nothing is stored")
    parser.add_argument("--only", nargs="*", choices=list(PROMISED), default=list(PROMISED))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child[0], int(asked.child[1]), float(asked.child[2]))
        return
    quick = asked.quick
    run = {
        "rates": lambda: rates(4 if quick else 15, 0.5),
        "footprint": lambda: footprint(1 if quick else 3, 3 if quick else 8),
        "constant": lambda: constant(3 if quick else 9),
        "distinct": distinct,
        "quality": lambda: quality(2 if quick else 20),
    }
    head, found = about("windows", quick=quick), {}
    turn = Turn()  # no other benchmark at the same time
    for name in asked.only:
        if name in TIMED:
            turn.take()
        found[name] = run[name]()
        turn.rest(done=True)
        say(f"{name}: promised {PROMISED[name]}", found[name])
    if set(asked.only) == set(PROMISED):
        keep(head | {"promised": PROMISED}, found)


if __name__ == "__main__":
    main()

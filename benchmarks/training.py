"""Numbers of training: is a step ever kept waiting, do workers pay, how fast are crops of audio.

    python -m benchmarks.training step      batches into a small conv net on the processor
    python -m benchmarks.training workers   0 and 2 workers with a Python transform of 1 ms a batch
    python -m benchmarks.training audio     5-second crops of 300 recordings beside .npy maps and soundfile

``--quick`` takes less data. Compare the ratios of one run; the readers take turns, the best round of each
counts. Data is made once, in ``benchmarks/work``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.harness import ROOT, about, alone, keep, work_dir
from chunkstore import FieldSpec, StoreWriter, open_store
from chunkstore.torch import TrainingLoader, ZarrWindowDataset

DATA = Path(os.environ.get("CHUNKSTORE_TEST_DATA") or ROOT.parent / "shared" / "data")
RATE = 32_000
CROP = 5 * RATE


# ---- batches into a training step


def signals(n_obs: int) -> Path:
    """A store of 24 sequences of 4 noisy channels, blosc-zstd."""
    path = work_dir() / f"training-{n_obs}.zarr"
    if not path.exists():
        rng = np.random.default_rng(0)
        names = [f"c{i}" for i in range(4)]
        partial = path.with_suffix(".partial.zarr")
        with StoreWriter(
            partial, dict.fromkeys(names, "f4"), codec="blosc-zstd", chunk="64KiB", overwrite=True
        ) as out:
            edges = np.sort(rng.choice(np.arange(1, n_obs), 23, replace=False))
            for number, size in enumerate(np.diff([0, *edges, n_obs])):
                walk = np.cumsum(rng.normal(size=(4, size)), axis=1).round(1).astype("f4")
                out.write(f"s{number}", dict(zip(names, walk, strict=True)))
        partial.rename(path)
    return path


def conv_net(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, width, 9, stride=4),
        nn.ReLU(),
        nn.Conv1d(width, width, 9, stride=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(width, 4),
    )


def bench_step(*, quick: bool) -> dict:
    """2,000 steps; a step that takes longer than making a batch should never wait for one."""
    torch.set_num_threads(1)
    path = signals(1_000_000 if quick else 8_000_000)
    dataset = ZarrWindowDataset(
        path, 512, batch_size=256, memory_limit="64MiB", targets="c0", target_length=1
    )
    steps = 500 if quick else 2000

    def alone_s() -> float:
        usual, dataset.ahead = dataset.ahead, 0
        flow = iter(dataset)
        for _ in range(20):
            next(flow)
        begin = time.perf_counter()
        for _ in range(200):
            next(flow)
        took = (time.perf_counter() - begin) / 200
        flow.close()
        dataset.ahead = usual
        return took

    load = alone_s()
    model = conv_net(24)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def step(batch: dict[str, torch.Tensor]) -> None:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch["x"])[:, :1], batch["y"][:, :, 0])
        loss.backward()
        optimizer.step()

    held = dataset.peek()
    for _ in range(20):
        step(held)
    begin = time.perf_counter()
    for _ in range(50):
        step(held)
    bare = (time.perf_counter() - begin) / 50
    waits, durations, spent = [], [], []
    flow = iter(dataset)
    for number in range(steps + 20):
        busy, asked = time.thread_time(), time.perf_counter()  # the slower clock outside what the other times
        batch = next(flow, None)
        if batch is None:
            flow = iter(dataset)
            batch = next(flow)
        got, busy = time.perf_counter(), time.thread_time() - busy
        step(batch)
        if number >= 20:
            waits.append(got - asked)
            spent.append(busy)
            durations.append(time.perf_counter() - asked)
    flow.close()
    median = statistics.median(durations)
    return {
        "steps": steps,
        "batch_alone_ms": load * 1e3,
        "step_alone_ms": bare * 1e3,
        "step_median_ms": median * 1e3,
        "wait_mean_ms": statistics.fmean(waits) * 1e3,
        "wait_median_ms": statistics.median(waits) * 1e3,
        # what the loop's own thread computed while it asked: all there is on a machine with other work
        "wait_cpu_mean_ms": statistics.fmean(spent) * 1e3,
        "hidden_share": 1 - statistics.fmean(waits) / load,
        "hidden_share_median": 1 - statistics.median(waits) / load,
        "longest_wait_in_median_steps": max(waits) / median,
        "waits_above_1_median_step": sum(w > median for w in waits),
    }


# ---- workers


class Slow:
    """A Python transform that computes for 1 ms."""

    def __call__(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        end = time.thread_time() + 1e-3
        while time.thread_time() < end:
            pass
        return batch


def bench_workers(*, quick: bool) -> dict:
    """Batches a second of 0 and 2 workers, rounds in turns."""
    path = signals(1_000_000 if quick else 8_000_000)
    found: dict[str, dict] = {}
    for size in (64, 256):
        options = {"batch_size": size, "lane_groups": 2, "memory_limit": "128MiB", "transform": Slow()}
        loaders = {
            str(n): TrainingLoader(ZarrWindowDataset(path, 512, **options), num_workers=n) for n in (0, 2)
        }
        rates: dict[str, list[float]] = {name: [] for name in loaders}
        flows = {name: iter(loader) for name, loader in loaders.items()}
        for flow in flows.values():
            for _ in range(30):
                next(flow)
        for _ in range(3):
            for name, flow in flows.items():
                for _ in range(20):
                    next(flow)  # what was fetched ahead while the other had its turn
                begin = time.perf_counter()
                for _ in range(200):
                    next(flow)
                rates[name].append(200 / (time.perf_counter() - begin))
        best = {name: max(r) for name, r in rates.items()}
        found[f"batch {size}"] = {
            "batches_per_s": best,
            "medians": {n: statistics.median(r) for n, r in rates.items()},
            "ratio": best["2"] / best["0"],
        }
        flows.clear()
        for loader in loaders.values():
            loader._iterator = None
    return found


# ---- crops of audio


def recordings(n: int) -> tuple[list[np.ndarray], list[str]]:
    """int16 recordings of 5 to 300 s at 32 kHz, log-uniform, cut from a real soundscape if there is one."""
    rng = np.random.default_rng(5)
    source = DATA / "audio" / "soundscape" / "soundscape.flac"
    if source.exists():
        import soundfile

        sound = soundfile.read(source, dtype="int16")[0]
    else:
        sound = (np.cumsum(rng.normal(size=120 * RATE)) % 2000 - 1000).astype("i2")
    lengths = np.exp(rng.uniform(np.log(5), np.log(300), n))
    out = []
    for seconds in lengths:
        size, start = int(seconds * RATE), int(rng.integers(len(sound)))
        out.append(np.resize(np.roll(sound, -start), size))
    return out, [f"r{i:03d}" for i in range(n)]


def make_audio(n: int, n_ogg: int) -> Path:
    folder = work_dir() / f"training-audio-{n}"
    if folder.exists():
        return folder
    import soundfile

    sounds, names = recordings(n)
    partial = folder.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    spec = [FieldSpec("audio", "int16", scale_factor=1 / 32768)]
    # chunks of two seconds: a crop needs about three of them and a half
    for codec in ("default", "none"):
        with StoreWriter(
            partial / f"{codec}.zarr", spec, codec=codec, chunk="128KiB", shard="16MiB", overwrite=True
        ) as out:
            for name, sound in zip(names, sounds, strict=True):
                out.write(name, {"audio": sound})
    for name, sound in zip(names, sounds, strict=True):
        np.save(partial / f"{name}.npy", (sound / np.float32(32768)).astype("f4"))
    for name, sound in list(zip(names, sounds, strict=True))[:n_ogg]:
        with soundfile.SoundFile(
            partial / f"{name}.ogg", "w", RATE, 1, format="OGG", subtype="VORBIS"
        ) as file:
            for at in range(0, len(sound), RATE):
                file.write(sound[at : at + RATE])
    partial.rename(folder)
    return folder


def crops_of(lengths: dict[str, int], order: list[str], batch: int, read, rng) -> int:
    """One random crop of each recording, batches of float32 [batch, 1, CROP], short ones padded."""
    done = 0
    for at in range(0, len(order), batch):
        names = order[at : at + batch]
        out = np.zeros((len(names), 1, CROP), np.float32)
        for row, name in enumerate(names):
            size = lengths[name]
            start = int(rng.integers(max(1, size - CROP + 1)))
            part = read(name, start, min(CROP, size))
            out[row, 0, : len(part)] = part
        done += len(torch.from_numpy(out))
    return done


def bench_audio(*, quick: bool) -> dict:
    """Crops a second; files are in the page cache for everybody."""
    import soundfile

    n, n_ogg = (60, 12) if quick else (300, 40)
    folder = make_audio(n, n_ogg)
    names = [f"r{i:03d}" for i in range(n)]
    open_maps = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names}
    lengths = {name: len(m) for name, m in open_maps.items()}
    rng = np.random.default_rng(1)

    def seek(name: str, start: int, size: int) -> np.ndarray:
        with soundfile.SoundFile(folder / f"{name}.ogg") as file:
            file.seek(start)
            return file.read(size, dtype="float32")

    def shuffled(of: list[str]) -> list[str]:
        return [of[i] for i in rng.permutation(len(of))]

    def maps(read, of: list[str]):
        return lambda: crops_of(lengths, shuffled(of), 32, read, rng)

    def ours(codec: str, dataset_options: dict):
        dataset = ZarrWindowDataset(
            folder / f"{codec}.zarr", CROP, sampling={"per_sequence": 1}, short="pad", batch_size=32,
            **dataset_options,
        )  # fmt: skip
        return lambda: sum(len(batch["x"]) for batch in dataset)

    limited = {"memory_limit": "256MiB"}
    readers = {
        "ours, default codec": ours("default", limited),
        "ours, codec none": ours("none", limited),
        "np.load for every crop": maps(
            lambda f, a, k: np.load(folder / f"{f}.npy", mmap_mode="r")[a : a + k], names
        ),
        "maps that stay open": maps(lambda f, a, k: open_maps[f][a : a + k], names),
    }
    readers["soundfile seek and crop"] = maps(seek, names[:n_ogg])
    rates: dict[str, list[float]] = {name: [] for name in readers}
    per_cpu: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(10):
        for name, epoch in readers.items():
            begin, spent = time.perf_counter(), time.process_time()
            count = sum(epoch() for _ in range(1 if "soundfile" in name else 3))
            if turn:  # the first warms files and caches
                rates[name].append(count / (time.perf_counter() - begin))
                per_cpu[name].append(count / (time.process_time() - spent))
    best = {name: max(r) for name, r in rates.items()}
    cpu = {name: max(r) for name, r in per_cpu.items()}

    def ratios(of: dict[str, list[float]]) -> dict[str, float]:
        # of each turn, since the speed of memory drifts; the median of all turns
        def over(one: str, other: str) -> float:
            return statistics.median(a / b for a, b in zip(of[one], of[other], strict=True))

        return {
            "default_over_npload": over("ours, default codec", "np.load for every crop"),
            "default_over_soundfile": over("ours, default codec", "soundfile seek and crop"),
            "none_over_open_maps": over("ours, codec none", "maps that stay open"),
        }

    npy = sum(f.stat().st_size for f in folder.glob("*.npy"))

    def disk(codec: str) -> int:
        return sum(f.stat().st_size for f in (folder / f"{codec}.zarr").rglob("*") if f.is_file())

    plan = open_store(folder / "default.zarr")
    return {
        "recordings": n,
        "seconds_of_audio": plan.n_obs / RATE,
        "crops_per_s": best,
        "medians": {name: statistics.median(r) for name, r in rates.items()},
        "bytes": {"npy float32": npy, "default": disk("default"), "none": disk("none")},
        "default_bytes_over_npy": disk("default") / npy,
        "ratios": ratios(rates),
        "crops_per_cpu_s": cpu,
        "ratios_per_cpu_s": ratios(per_cpu),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training")
    parser.add_argument("what", nargs="*", choices=["step", "workers", "audio", []], default=[])
    parser.add_argument("--quick", action="store_true", help="less data; nothing is stored")
    parser.add_argument("--out", type=Path, help="JSON file; benchmarks/results/training.json by default")
    asked = parser.parse_args()
    benches = {"step": bench_step, "workers": bench_workers, "audio": bench_audio}
    head, found = about("training", " ".join(asked.what), quick=asked.quick), {}
    for name in asked.what or benches:
        with alone():
            found[name] = benches[name](quick=asked.quick)
        print(name, json.dumps(found[name], indent=1), flush=True)
    if asked.out or not asked.what:
        keep(head, found, out=asked.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

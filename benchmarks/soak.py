"""Work for a long time, stopped at random, and watch what grows: memory, threads, open files.

``python -m benchmarks.soak training --minutes 60`` reads epochs of a store with random stops, resumes from
states and dropped iterators; ``python -m benchmarks.soak ingest --minutes 60`` runs jobs in processes that
are killed at random moments and resumed, and compares the bytes. Both print a line a minute and end with 1
if something grew, or if a window or a byte was wrong.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import fastavro
import numpy as np
import psutil

import chunkstore
import ingest

#: what may be more at the end than after the first fifth of the time
MOST_BYTES, MOST_THREADS, MOST_FILES = 64 << 20, 2, 4
WINDOW = 64


def standing():
    """Return bytes of this process, its threads and its open files."""
    gc.collect()
    me = psutil.Process()
    return me.memory_info().rss, me.num_threads(), me.num_fds()


class Watch:
    """Compares what stands now with what stood after the first fifth of the time."""

    def __init__(self, minutes):
        self.began, self.seconds = time.monotonic(), 60 * minutes
        self.base = None
        self.told = 0.0

    @property
    def over(self):
        return time.monotonic() - self.began > self.seconds

    def look(self, text):
        now = time.monotonic() - self.began
        if self.base is None and now > self.seconds / 5:
            self.base = standing()
        if now - self.told > 60:
            self.told = now
            rss, threads, files = standing()
            print(
                f"{now / 60:5.1f} min: {rss / 2**20:.0f} MiB, {threads} threads, {files} files; {text}",
                flush=True,
            )

    def verdict(self, text):
        end = standing()
        base = self.base or end
        grown = [e - b for e, b in zip(end, base, strict=True)]
        ok = all(g <= m for g, m in zip(grown, (MOST_BYTES, MOST_THREADS, MOST_FILES), strict=True))
        lasted = (time.monotonic() - self.began) / 60
        print(
            f"{lasted:.1f} minutes, {text}; grown by {grown[0] / 2**20:.1f} MiB, "
            f"{grown[1]} threads, {grown[2]} files: {'nothing grows' if ok else 'IT GROWS'}",
            flush=True,
        )
        return 0 if ok else 1


def training(minutes, seed):
    """Epochs with random stops, resumes, other batch sizes, dropped iterators, new datasets."""
    from chunkstore.torch import ZarrWindowDataset

    luck = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    sizes = [luck.randrange(0, 30_000) for _ in range(12)]
    with chunkstore.StoreWriter(folder / "a.zarr", {"x": "f4"}, chunk=1024, shard=16384) as out:
        for number, size in enumerate(sizes):
            out.write(f"s{number}", {"x": np.arange(size) % 4096 + 4096 * number})
    every = sum(max(0, n - WINDOW + 1) for n in sizes)
    common = {"fields": "x", "memory_limit": "256KiB", "lanes": 8, "passes": 2, "seed": 1}
    watch, epochs, stops, windows = Watch(minutes), 0, 0, 0
    dataset, state, seen = ZarrWindowDataset(folder / "a.zarr", WINDOW, batch_size=256, **common), None, 0
    try:
        while not watch.over:
            if luck.random() < 0.3:
                dataset.close()
                dataset = ZarrWindowDataset(
                    folder / "a.zarr", WINDOW, batch_size=luck.choice([64, 256, 512]), **common
                )
            if state is not None:
                dataset.load_state_dict(json.loads(state))
            stop = luck.randrange(1, 2 * every // 256)
            for count, batch in enumerate(dataset):
                first = batch["start"] % 4096 + 4096 * batch["sequence"]
                if not (batch["x"][:, 0, 0] == first).all():
                    sys.exit(f"a wrong window in epoch {epochs}")
                seen += len(first)
                windows += len(first)
                if count == stop:
                    state = json.dumps(dataset.state_dict())
                    stops += 1
                    break
                watch.look(f"{epochs} epochs, {stops} stops, {windows:,} windows")
            else:
                if seen != every:
                    sys.exit(f"epoch {epochs} served {seen} windows of {every}")
                epochs, seen, state = epochs + 1, 0, None
                dataset.set_epoch(epochs)
        dataset.close()
        return watch.verdict(f"{epochs} epochs, {stops} stops and resumes, {windows:,} windows")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tree(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def placed(folder, out, resume):
    """A job that knows the place of every row before it reads one."""
    return ingest.ingest(
        "npy",
        folder / "npy",
        out,
        {"part_rows": 4000},
        workers=0,
        chunk=512,
        shard=4096,
        resume=resume,
    )


def staged(folder, out, resume):
    """A job that learns lengths while it reads, through scratch: keys mixed over all files."""
    return ingest.ingest_avro(
        folder / "avro", out, sequence_key=["who"], workers=0, chunk=512, shard=4096, resume=resume
    )


def inputs(folder):
    """Write the inputs of both jobs."""
    (folder / "npy").mkdir()
    (folder / "avro").mkdir()
    fields = [("who", "string"), ("value", "double")]
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }
    for i in range(40):
        np.save(folder / f"npy/{i}.npy", np.random.default_rng(i).standard_normal(20_000).astype("f4"))
    for i in range(20):
        rows = [{"who": f"w{(i * k) % 7}", "value": 1000.0 * i + k} for k in range(2000)]
        with (folder / f"avro/{i}.avro").open("wb") as out:
            fastavro.writer(out, schema, rows)


def begin(job, folder, out, resume):
    """Run a job in a child that has imported everything: a kill falls into its work, not into imports."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = job(folder, out, resume).exit_code
    except BaseException as error:
        Path(f"{out}.error").write_text(repr(error))
    finally:
        os._exit(code)


def wait(pid, limit=None):
    """Return the exit code of a child, or None if it was killed after ``limit`` seconds."""
    began = time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if limit is not None and time.monotonic() - began > limit:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.0005)


def ingest_cycles(minutes, seed):
    """A job in a process of its own, killed (-9) at random, resumed until it ends, compared byte by byte."""
    luck = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    inputs(folder)
    usual, wanted = {}, {}
    for job in (placed, staged):
        for name in ("first", "wanted"):  # the first compiles and caches
            began = time.monotonic()
            out = folder / f"{job.__name__}-{name}.zarr"
            if wait(begin(job, folder, out, False)) != 0:
                sys.exit(Path(f"{out}.error").read_text())
            usual[job], wanted[job] = time.monotonic() - began, tree(out)
            shutil.rmtree(out)
            shutil.rmtree(f"{out}.ledger")
    watch, jobs, kills = Watch(minutes), 0, 0
    try:
        while not watch.over:
            job = luck.choice([placed, staged])
            out, resume = folder / f"o{jobs}.zarr", False
            while True:
                limit = luck.uniform(0.02, 1.2) * usual[job] if luck.random() < 0.85 else None
                code = wait(begin(job, folder, out, resume), limit)
                if code is not None:
                    break
                kills, resume = kills + 1, True
            if code:
                sys.exit(f"job {jobs} ({job.__name__}) ended with {code}: {Path(f'{out}.error').read_text()}")
            got = tree(out)
            if got != wanted[job]:
                differ = sorted(k for k in {*got, *wanted[job]} if got.get(k) != wanted[job].get(k))
                sys.exit(f"job {jobs} ({job.__name__}) led to other bytes: {differ[:5]}")
            if Path(f"{out}.ledger/scratch").exists():
                sys.exit(f"job {jobs} ({job.__name__}) left its scratch behind")
            shutil.rmtree(out)
            shutil.rmtree(f"{out}.ledger")
            jobs += 1
            watch.look(f"{jobs} jobs, {kills} kills")
        left = sorted(p.name for p in folder.iterdir() if p.name not in ("npy", "avro"))
        if left:
            sys.exit(f"left behind: {left}")
        return watch.verdict(f"{jobs} jobs, {kills} kills, all with the bytes of an undisturbed one")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(argv=None):
    """Run one of the two."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description="Work long, watch what grows."
    )
    parser.add_argument("what", choices=["training", "ingest"])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    return (training if asked.what == "training" else ingest_cycles)(asked.minutes, asked.seed)


if __name__ == "__main__":
    sys.exit(main())

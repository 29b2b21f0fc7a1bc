"""One ingest, disturbed: kill a worker, the client or everything at a random moment, resume, compare.

``python tests/ingest/support/kills.py 30`` does it 30 times and prints a line each.
"""

# the path is set before what it leads to is imported
# ruff: noqa: E402

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[3])]

import numpy as np
from cluster import Cluster, client
from keyed_source import make_files
from trees import tree

import ingest

KEYED = "keyed_source:KeyedSource"


def make_inputs(folder):
    """Two jobs: staged with sorting, and placed."""
    folder = Path(folder)
    make_files(folder / "keyed", files=6, rows=600, keys=9)
    (folder / "npy").mkdir()
    for i in range(6):
        np.save(folder / "npy" / f"{i}.npy", np.arange(i * 10_000, i * 10_000 + 3000 + i, dtype=np.float64))
    shape = {"chunk": 64, "shard": 256}
    return [
        {
            "source": KEYED,
            "inputs": str(folder / "keyed"),
            "options": {"order": "sort", "bad_every": 9, "slow": 0.03, "max_gap": 60},
            **shape,
        },
        {
            "source": "keyed_source:SlowNpy",
            "inputs": str(folder / "npy"),
            "options": {"part_rows": 500},
            **shape,
        },
    ]


def undisturbed(job, out):
    """The same job with one worker, from beginning to end."""
    asked = {k: v for k, v in job.items() if k not in {"source", "inputs", "options"}}
    result = ingest.ingest(job["source"], job["inputs"], out, job["options"], workers=1, **asked)
    return tree(out), result.exit_code


def disturbed(job, out, seed, cluster, longest=2.5):
    """Run the job, kill at random, resume until it ends; return (what was killed, exit code)."""
    luck = random.Random(seed)
    told = []
    code = None
    resume = False
    for attempt in range(8):
        cluster.raise_up()
        log = str(out) + ".log"
        running = client({**job, "out": str(out), "scheduler": cluster.address, "resume": resume}, log)
        try:
            # the first attempts are disturbed, once or more; the last are let go
            while attempt < 4:
                time.sleep(0.6 + luck.random() * longest)
                if running.poll() is not None:
                    break
                victim = luck.choice(["worker", "worker", "client", "all"])
                told.append(victim)
                if victim == "worker":
                    cluster.kill(luck.choice(cluster.workers))
                    cluster.raise_up()
                    continue
                cluster.kill(running)
                if victim == "all":
                    cluster.kill_all()
                break
            code = running.wait(timeout=90)
        finally:
            if running.poll() is None:
                cluster.kill(running)
        if code in {0, 3}:
            return told, code
        resume = True
    raise AssertionError(f"seed {seed}: exit code {code} after {told}: {Path(log).read_text()[-2000:]}")


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    cluster = Cluster(3)
    same = 0
    try:
        jobs = make_inputs(folder / "in")
        wanted = [undisturbed(job, folder / f"ref{i}.zarr") for i, job in enumerate(jobs)]
        for seed in range(runs):
            which = seed % len(jobs)
            out = folder / f"run{seed}.zarr"
            began = time.monotonic()
            told, code = disturbed(jobs[which], out, seed, cluster)
            equal = (tree(out), code) == wanted[which]
            same += equal
            deep = verify(out)
            print(
                f"run {seed:2d} {('staged', 'placed')[which]}: killed {', '.join(told) or 'nothing'}; "
                f"{'the same bytes' if equal else 'OTHER BYTES'}; verify {deep}; "
                f"{time.monotonic() - began:.1f} s",
                flush=True,
            )
            shutil.rmtree(out)
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{same} of {runs} runs ended with the bytes of an undisturbed run")
    sys.exit(same != runs)


def verify(out):
    try:
        from chunkstore.verify import verify_store
    except ImportError:
        return "not built"
    report = verify_store(str(out), deep=True)
    return "clean" if getattr(report, "ok", report) else f"NOT CLEAN {report}"


if __name__ == "__main__":
    main()

"""Programs that the tests start as processes of their own; results are lines of JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch

from chunkstore.torch import TrainingLoader, ZarrWindowDataset

W = 24


def rows(batch):
    keep = ~batch["repeated"] if "repeated" in batch else torch.ones(len(batch["start"]), dtype=torch.bool)
    return list(zip(batch["sequence"][keep].tolist(), batch["start"][keep].tolist(), strict=True))


def one_rank(rank, world, folder, path, state, steps, batch_size):
    """Train ``steps`` steps in a gloo group (all that is left for -1); write what was seen and the state."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/group-{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    dataset = ZarrWindowDataset(path, W, batch_size=batch_size, lanes=8)
    assert dataset.place.origin == "torch.distributed"
    if state is not None:
        dataset.load_state_dict(state)
    seen, lengths = [], []
    weight = torch.zeros(1)
    for number, batch in enumerate(dataset):
        weight += batch["x"].mean()
        torch.distributed.all_reduce(weight)  # hangs where ranks have unequal numbers of batches
        seen.append(rows(batch))
        lengths.append(len(batch["start"]))
        if number + 1 == steps:
            break
    result = {"seen": seen, "lengths": lengths, "state": dataset.state_dict()}
    Path(folder, f"{world}-{rank}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


def ranks(path, folder):
    """Go through one epoch at 4 ranks, then 2, then 1, each from the state of the one before."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "chunkstore.torch", "chunkstore.loader"])
    state = None
    for world, steps, batch_size in ((4, 5, 10), (2, 7, 15), (1, -1, 64)):
        group = [
            context.Process(target=one_rank, args=(r, world, folder, path, state, steps, batch_size))
            for r in range(world)
        ]
        for process in group:
            process.start()
        for process in group:
            process.join(90)
            assert process.exitcode == 0, process.exitcode
        results = [json.loads(Path(folder, f"{world}-{r}.json").read_text()) for r in range(world)]
        assert all(r["state"] == results[0]["state"] for r in results)
        assert all(r["lengths"] == results[0]["lengths"] for r in results)
        state = results[0]["state"]
        print(json.dumps({"world": world, "seen": [r["seen"] for r in results]}), flush=True)


def train(path, log, workers):
    """Train slowly, a line of what was seen and the state after every step; go on from the last line."""
    dataset = ZarrWindowDataset(path, W, batch_size=32, lane_groups=2)
    loader = TrainingLoader(dataset, num_workers=int(workers), prefetch_factor=4 if int(workers) else None)
    lines = Path(log).read_text().splitlines() if Path(log).exists() else []
    if lines:
        loader.load_state_dict(json.loads(lines[-1])["state"])
    with Path(log).open("a", encoding="utf-8") as out:
        for batch in loader:
            children = [p.pid for p in multiprocessing.active_children()]
            out.write(
                json.dumps(
                    {"seen": rows(batch), "state": loader.state_dict(), "pids": [os.getpid(), *children]}
                )
                + "\n"
            )
            out.flush()
            time.sleep(0.02)


if __name__ == "__main__":
    {"ranks": ranks, "train": train}[sys.argv[1]](*sys.argv[2:])

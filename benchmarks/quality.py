"""Does the order cost training anything? A small real task, trained one epoch in four orders.

Task: from 24 hours of the weather of a station, its next 12 hours of temperature (the recordings of
``shared/data``: three stations, one year). The last fifth of each station is held out. A store of 48
chunks, of which the memory limit holds a few, against a full in-memory shuffle and the order of
the store; same model, same start, same seeds.

    python -m benchmarks.quality
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np

FIELDS = ("temp", "dewp", "humid", "pressure", "wind_speed")
WINDOW, AHEAD, BATCH, CHUNK = 24, 12, 32, 512


def recordings():
    """Return float32[hours, fields] of each station; missing hours as the last value seen."""
    import os

    import fastavro

    root = os.environ.get("CHUNKSTORE_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
    rows = []
    for path in sorted(Path(root, "avro", "weather-drift").glob("*.avro")):
        with path.open("rb") as file:
            rows += list(fastavro.reader(file))
    found = {}
    for station in sorted({r["station"] for r in rows}):
        mine = sorted((r for r in rows if r["station"] == station), key=lambda r: r["time"])
        values = np.array([[np.nan if r[f] is None else r[f] for f in FIELDS] for r in mine], np.float64)
        for column in values.T:
            known = np.flatnonzero(~np.isnan(column))
            at = np.maximum(np.searchsorted(known, np.arange(len(column)), side="right") - 1, 0)
            column[:] = column[known[at]]
        found[station] = values
    everything = np.concatenate(list(found.values()))
    mean, std = everything.mean(axis=0), everything.std(axis=0)
    return {k: ((v - mean) / std).astype("f4") for k, v in found.items()}


def train(batches, held_out, seed):
    """Train a small network on (x, y) batches in the order given; return the held-out loss."""
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(WINDOW * len(FIELDS), AHEAD))
    torch.nn.init.zeros_(model[1].weight)
    n = len(batches)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 * (1 + np.cos(np.pi * min(i, n) / n)))
    for x, y in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        rate.step()
    with torch.no_grad():
        return float(torch.nn.functional.mse_loss(model(held_out[0]), held_out[1]))


def compare(seeds=5):
    """Return held-out losses by order: of each seed, their mean, and against the full shuffle."""
    import torch

    import chunkstore
    from chunkstore.loader import WindowLoader
    from chunkstore.targets import Cut
    from chunkstore.windows import WindowIndex, WindowSpec

    torch.set_num_threads(1)
    data = recordings()
    part = {k: (v[: len(v) * 4 // 5], v[len(v) * 4 // 5 :]) for k, v in data.items()}
    held = [cut(v, np.arange(len(v) - WINDOW - AHEAD + 1)) for _, v in part.values()]
    held_out = tuple(torch.from_numpy(np.concatenate(c)) for c in zip(*held, strict=True))
    spec = WindowSpec(WINDOW, horizon=AHEAD)
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "weather.zarr")
        with chunkstore.StoreWriter(
            url, fields=dict.fromkeys(FIELDS, "f4"), chunk=CHUNK, shard=CHUNK * 16
        ) as out:
            for k, (v, _) in part.items():
                out.write(k, dict(zip(FIELDS, v.T, strict=True)))
        store = chunkstore.open_store(url)
        limit = (CHUNK + WINDOW + AHEAD - 1) * 4 * len(FIELDS)

        def ours(slots, seed, **options):
            with WindowLoader(
                store, spec, fields=FIELDS, targets=Cut(("temp",), WINDOW, AHEAD), batch_size=BATCH, seed=seed,
                memory_limit=limit * slots, drop_last=True, **options,
            ) as loader:  # fmt: skip
                return [(b["x"], b["y"][:, 0]) for b in loader.batches(0)]

        everything = np.concatenate([v for v, _ in part.values()])
        index = WindowIndex(store.segments(), spec)

        def shuffled(seed):
            starts = index.locate(np.random.default_rng(seed).permutation(index.n_windows)).start
            full = len(starts) // BATCH
            return [cut(everything, s) for s in starts[: full * BATCH].reshape(full, BATCH)]

        orders = {
            "full shuffle": shuffled,
            "ours, a third of the store": lambda seed: ours(14, seed),
            "ours, a third, P=4": lambda seed: ours(14, seed, passes=4),
            "ours, all of it": lambda seed: ours(99, seed),
            "order of the store": lambda seed: ours(99, seed, shuffle=False),
        }
        losses = {name: [train(make(s), held_out, s) for s in range(seeds)] for name, make in orders.items()}
    base = statistics.mean(losses["full shuffle"])
    return {
        name: {
            "mean": statistics.mean(v),
            "against full shuffle": statistics.mean(v) / base - 1,
            "std of seeds": statistics.pstdev(v) / base,
        }
        for name, v in losses.items()
    }


def cut(values, starts):
    """Return (x, y) of windows at ``starts``: float32[n, fields, window] and float32[n, ahead]."""
    x = values[starts[:, None] + np.arange(WINDOW)].swapaxes(1, 2)
    return np.ascontiguousarray(x), values[starts[:, None] + WINDOW + np.arange(AHEAD), 0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    print(json.dumps(compare(2 if asked.quick else asked.seeds), indent=1))

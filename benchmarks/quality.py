"""Does the order cost training anything? A small real task, trained one epoch in several orders.

Task: predict the next 8 samples of a soundscape (two minutes of birds, ``shared/data``) from the 64 before
them; every fifth of 25 stretches is held out. A store of 281 chunks, of which the memory limit holds a
part, against a full in-memory shuffle and the order of the store; same model, same starts, same seeds.

    python -m benchmarks.quality
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np

WINDOW, AHEAD, STRIDE, BATCH, CHUNK = 64, 8, 16, 256, 16_384


def recording():
    """Return float32[samples], of unit variance."""
    import soundfile

    root = os.environ.get("CHUNKSTORE_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
    (path,) = Path(root, "audio", "soundscape").glob("*.flac")
    samples = soundfile.read(path, dtype="float32", always_2d=True)[0].mean(axis=1)
    return (samples / samples.std()).astype("f4")


def train(batches, held_out, seed):
    """Train a small network on (x, y) batches in the order given; return the held-out loss."""
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(WINDOW, 32), torch.nn.GELU(), torch.nn.Linear(32, AHEAD))
    mean = torch.optim.swa_utils.AveragedModel(model)  # of the second half: less noise of the last steps
    n = len(batches)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 * (1 + np.cos(np.pi * min(i, n) / n)))
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        rate.step()
        if step >= n // 2:
            mean.update_parameters(model)
    with torch.no_grad():
        return float(torch.nn.functional.mse_loss(mean(held_out[0]), held_out[1]))


def compare(seeds=20):
    """Return held-out losses by order: of each seed, their mean, and against the full shuffle."""
    import torch

    import chunkstore
    from chunkstore.loader import WindowLoader
    from chunkstore.targets import Cut
    from chunkstore.windows import WindowIndex, WindowSpec

    torch.set_num_threads(1)
    stretches = np.array_split(recording(), 25)
    known = np.concatenate([s for i, s in enumerate(stretches) if i % 5 != 2])
    held = [cut(s, np.arange(0, len(s) - WINDOW - AHEAD, 32)) for s in stretches[2::5]]
    held_out = tuple(torch.from_numpy(np.concatenate(v)) for v in zip(*held, strict=True))
    spec = WindowSpec(WINDOW, stride=STRIDE, horizon=AHEAD)
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "soundscape.zarr")
        with chunkstore.StoreWriter(url, fields={"x": "f4"}, chunk=CHUNK, shard=CHUNK * 16) as out:
            for i, s in enumerate(stretches):
                if i % 5 != 2:
                    out.write(f"stretch {i}", {"x": s})
        store = chunkstore.open_store(url)

        def ours(seed, share=1.01, **options):
            with WindowLoader(
                store, spec, targets=Cut(("x",), WINDOW, AHEAD), batch_size=BATCH, seed=seed,
                memory_limit=int(len(known) * 4 * share), drop_last=True, **options,
            ) as loader:  # fmt: skip
                return [(b["x"][:, 0], b["y"][:, 0]) for b in loader.batches(0)]

        index = WindowIndex(store.segments(), spec)

        def shuffled(seed):
            starts = index.locate(np.random.default_rng(seed).permutation(index.n_windows)).start
            full = len(starts) // BATCH
            return [cut(known, s) for s in starts[: full * BATCH].reshape(full, BATCH)]

        orders = {
            "full shuffle": shuffled,
            "a third resident": lambda seed: ours(seed, 1 / 3),
            "a third resident, P=4": lambda seed: ours(seed, 1 / 3, passes=4),
            "a tenth resident": lambda seed: ours(seed, 0.1),
            "all resident": ours,
            "order of the store": lambda seed: ours(seed, shuffle=False),
        }
        losses = {name: [train(make(s), held_out, s) for s in range(seeds)] for name, make in orders.items()}
    full = np.array(losses["full shuffle"])
    base = float(full.mean())
    return {
        name: {
            "mean": statistics.mean(v),
            "against full shuffle": statistics.mean(v) / base - 1,
            # of the difference from the full shuffle of the same seed, thus of the same first weights
            "standard error": float(np.std(v - full, ddof=1)) / base / len(v) ** 0.5 if len(v) > 1 else None,
            "std of seeds": statistics.pstdev(v) / base,
        }
        for name, v in losses.items()
    }


def cut(values, starts):
    """Return (x, y) of windows at ``starts``: float32[n, window] and float32[n, ahead]."""
    both = values[starts[:, None] + np.arange(WINDOW + AHEAD)]
    return both[:, :WINDOW], both[:, WINDOW:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    print(json.dumps(compare(2 if asked.quick else asked.seeds), indent=1))

"""The data of the benchmarks: generated here, from a seed, kept in the work folder.

A recording of ``channels`` sensors: slow waves and noise on a 12-bit grid, so that it compresses as
sensor data does (neither zeros nor pure noise), and so that four values in a row tell where in the
data a window starts (48 bits for a few million places).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import work_dir

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Places", "atomic_folder", "key_of", "recording"]

_BLOCK = 1 << 18


def _values(block: int, n: int, channels: int, seed: int) -> np.ndarray:
    """float32[n, channels] of one block, on a grid of 1/256 between -8 and 8."""
    rng = np.random.default_rng([seed, block])
    t = (np.arange(n) + block * _BLOCK)[:, None]
    speed = 1e-4 * 1.7 ** (np.arange(channels) % 16)
    waves = 3 * np.sin(speed * t + np.arange(channels))
    noise = rng.standard_normal((n, channels), dtype=np.float32)
    return np.clip(np.round((waves + noise) * 256), -2048, 2047).astype(np.float32) / 256


def recording(n_obs: int, channels: int, seed: int = 0) -> Path:
    """``.npy`` of float32[n_obs, channels]; made on the first call."""
    path = work_dir() / "data" / f"recording-{n_obs}x{channels}-{seed}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        out = np.lib.format.open_memmap(partial, "w+", np.float32, (n_obs, channels))
        for block, start in enumerate(range(0, n_obs, _BLOCK)):
            stop = min(start + _BLOCK, n_obs)
            out[start:stop] = _values(block, stop - start, channels, seed)
        out.flush()
        del out
        partial.rename(path)
    return path


def key_of(first: np.ndarray) -> np.ndarray:
    """int64[windows] from float[windows, 4]: the first four values of channel 0."""
    return ((first * 256).astype(np.int64) + 2048) @ (1 << np.array([36, 24, 12, 0], np.int64))


class Places:
    """Where in a recording a window starts, found by its first four values of channel 0."""

    def __init__(self, n_obs: int, channels: int, seed: int = 0) -> None:
        path = recording(n_obs, channels, seed)
        table = path.with_suffix(".places.npy")
        if not table.exists():
            x = np.load(path, mmap_mode="r")[:, 0]
            keys = key_of(np.lib.stride_tricks.sliding_window_view(np.asarray(x), 4))
            order = np.argsort(keys, kind="stable")
            partial = table.with_suffix(f".{os.getpid()}.partial")
            with partial.open("wb") as file:
                np.save(file, np.stack([keys[order], order]))
            partial.rename(table)
        self.keys, self.order = np.load(table, mmap_mode="r")

    def of(self, first: np.ndarray) -> np.ndarray:
        """int64[windows], absolute obs; -1 where the values are nowhere in the data."""
        keys = key_of(first)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.order[at], -1)


class atomic_folder:  # noqa: N801 - reads as a verb in `with atomic_folder(path) as partial`
    """Fill a folder under another name; it appears under its own only when complete."""

    def __init__(self, path: Path) -> None:
        self.path, self.partial = path, path.with_name(f"{path.name}.{os.getpid()}.partial")

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.partial

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.partial.rename(self.path)

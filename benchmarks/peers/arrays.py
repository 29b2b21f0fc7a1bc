"""Readers of arrays: numpy, torch, tsai, and everything that reads Zarr. They enumerate windows.

A function ``peer(task)`` prepares its own copy of the data once, in another process, with the sizes that
its documentation recommends, and returns an `Opened`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import atomic_folder, recording
from benchmarks.peers.task import Opened, Task, Windows, apart, dataloader, first_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def memory(task: Task) -> Opened:
    """The ceiling: everything in memory, one fancy index into a strided view a batch."""
    x = np.array(task.array())
    view = np.lib.stride_tricks.sliding_window_view(x, task.length, axis=0)
    path = recording(task.n_obs, task.channels, task.seed)
    return Opened(lambda: _fancy(view, task), lambda b: b[:, 0, :4], path)


def memmap_fancy(task: Task) -> Opened:
    """The same over a memory-mapped file: what an expert writes by hand."""
    view = np.lib.stride_tricks.sliding_window_view(task.array(), task.length, axis=0)
    path = recording(task.n_obs, task.channels, task.seed)
    return Opened(lambda: _fancy(view, task), lambda b: b[:, 0, :4], path)


def _fancy(view: np.ndarray, task: Task) -> Iterator[np.ndarray]:
    order = np.random.default_rng(task.seed).permutation(task.n_windows)
    for at in range(0, task.n_windows, task.batch_size):
        yield view[task.start_of(order[at : at + task.batch_size])]


class _MemmapCut:
    def __init__(self, task: Task) -> None:
        self.x, self.length = task.array(), task.length

    def __call__(self, start: int) -> Any:
        import torch

        return torch.from_numpy(np.array(self.x[start : start + self.length]))


def memmap_dataloader(task: Task) -> Opened:
    loader = dataloader(Windows(task, _MemmapCut(task)), task, shuffle=True)
    return Opened(lambda: iter(loader), first_of_rows, recording(task.n_obs, task.channels, task.seed))


# ---- tsai ---------------------------------------------------------------------------------------


def tsai(task: Task) -> Opened:
    """Its unwindowed dataset and loader; it knows one series, so windows cross the recordings' ends."""
    from tsai.data.core import TSDataLoaders
    from tsai.data.unwindowed import TSUnwindowedDataset, TSUnwindowedDatasets

    x = task.array()
    dataset = TSUnwindowedDataset(x, y=None, window_size=task.length, stride=1, seq_first=True)
    splits = (np.arange(len(dataset)), np.arange(task.batch_size))
    both = TSUnwindowedDatasets(dataset, splits=splits)
    loaders = TSDataLoaders.from_dsets(
        both.train, both.valid, bs=[task.batch_size] * 2, num_workers=task.workers
    )
    return Opened(
        lambda: iter(loaders.train),
        lambda b: np.asarray((b[0] if isinstance(b, (tuple, list)) else b)[:, 0, :4]),
        recording(task.n_obs, task.channels, task.seed),
    )


def _make_zarr(task: Task, out: Path, chunk: int, *, sharded: bool = True) -> None:
    import zarr

    with atomic_folder(out) as partial:
        group = zarr.open_group(str(partial), mode="w")
        array = group.create_array(
            "x",
            shape=(task.n_obs, task.channels),
            dtype="float32",
            chunks=(chunk, task.channels),
            shards=(min(chunk * 64, task.n_obs), task.channels) if sharded else None,
            compressors=zarr.codecs.BloscCodec(cname="zstd", clevel=3, shuffle="shuffle"),
            dimension_names=("obs", "channel"),
        )
        x = task.array()
        step = min(chunk * 64, task.n_obs)
        for start in range(0, task.n_obs, step):
            array[start : start + step] = x[start : start + step]
        zarr.consolidate_metadata(str(partial))


def _chunk(task: Task, bytes_: int) -> int:
    """Obs of a chunk of about ``bytes_``, a power of two, no longer than a recording."""
    obs = 1 << max(6, (bytes_ // (4 * task.channels)).bit_length() - 1)
    return min(obs, task.sequence_obs)


def make_zarr_small(task: Task, out: Path) -> None:
    _make_zarr(task, out, _chunk(task, 64 << 10))


def make_zarr_large(task: Task, out: Path) -> None:
    _make_zarr(task, out, _chunk(task, 512 << 10), sharded=False)


class _ZarrCut:
    def __init__(self, path: Path, length: int) -> None:
        self.path, self.length, self.x = str(path), length, None

    def __call__(self, start: int) -> Any:
        import torch
        import zarr

        if self.x is None:
            self.x = zarr.open_group(self.path, mode="r")["x"]
        return torch.from_numpy(self.x[start : start + self.length])


def zarr(task: Task) -> Opened:
    """One read a window, chunks of 64 KiB (small, as random access wants them) in shards of 64."""
    out = apart("arrays:make_zarr_small", task, task.place("zarr-small"))
    spawn = {"multiprocessing_context": "spawn"} if task.workers else {}
    loader = dataloader(Windows(task, _ZarrCut(out, task.length)), task, shuffle=True, **spawn)
    return Opened(lambda: iter(loader), first_of_rows, out)


def zarr_pipeline(task: Task) -> Opened:
    """The same with the zarrs codec pipeline switched on, as its documentation says."""
    import zarr as z

    z.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    return zarr(task)


def xbatcher(task: Task) -> Opened:
    """``BatchGenerator`` of overlapping windows under its map-style torch dataset."""
    import xarray
    from xbatcher import BatchGenerator
    from xbatcher.loaders.torch import MapDataset

    out = apart("arrays:make_zarr_small", task, task.place("zarr-small"))
    x = xarray.open_zarr(str(out), chunks=None)["x"]
    if task.sequences > 1:  # it has no ragged sequences, and its index of every window takes minutes
        x = x[: min(task.n_obs, 200_000 + task.length)]
    generator = BatchGenerator(
        x,
        input_dims={"obs": task.length, "channel": task.channels},
        input_overlap={"obs": task.length - 1},
        preload_batch=False,
    )
    loader = dataloader(MapDataset(generator), task, shuffle=True)
    return Opened(lambda: iter(loader), first_of_rows, out)


def tensorstore(task: Task) -> Opened:
    """All reads of a batch in flight at once, and a cache of decoded chunks of the memory given."""
    import tensorstore as ts

    out = apart("arrays:make_zarr_large", task, task.place("zarr-large"))
    x = ts.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(out / "x")}},
        context=ts.Context({"cache_pool": {"total_bytes_limit": task.memory}}),
        recheck_cached_data="open",
        read=True,
    ).result()
    epochs = itertools.count()

    def start() -> Iterator[np.ndarray]:
        order = np.random.default_rng(next(epochs)).permutation(task.n_windows)
        for at in range(0, task.n_windows, task.batch_size):
            starts = task.start_of(order[at : at + task.batch_size])
            reads = [x[int(s) : int(s) + task.length].read() for s in starts]
            yield np.stack([read.result() for read in reads])

    return Opened(start, first_of_rows, out)


def insitubatch(task: Task) -> Opened:
    """A window as ``length`` shifted views of one array, shuffled within blocks of 16 chunks."""
    from insitubatch import InSituDataset, obstore_store, open_geometries, split_by_chunk

    out = apart("arrays:make_zarr_large", task, task.place("zarr-large"))
    store = obstore_store(out.resolve().as_uri())
    base = open_geometries(store, variables=["x"])["x"]
    labels = [f"x{k}" for k in range(task.length)]
    geometries = {label: base.shift(k) for k, label in enumerate(labels)}
    few = (0, min(task.n_obs, 2_000_000))  # it plans every shifted view: all the data takes minutes
    manifest = split_by_chunk(base, fractions=(1.0, 0.0, 0.0), sample_range=few)
    dataset = InSituDataset(
        store, manifest, geometries=geometries, batch_size=task.batch_size, block_chunks=16
    )
    epochs = itertools.count()

    def start() -> Iterator[np.ndarray]:
        dataset.set_epoch(next(epochs))
        for batch in dataset.train:
            yield batch.stack(labels)  # noqa: PD013 - a batch of insitubatch, not a table

    return Opened(start, first_of_rows, out)


def make_annbatch(task: Task, out: Path) -> None:
    import anndata
    import pandas as pd
    import zarr as z

    rows = task.n_obs // task.sample_obs
    width = task.sample_obs * task.channels
    with atomic_folder(out) as partial:
        partial.mkdir()
        group = z.open_group(str(partial), mode="w")
        small = anndata.AnnData(
            X=np.asarray(task.array()).reshape(rows, width),
            obs=pd.DataFrame(index=[str(k) for k in range(rows)]),
        )
        del group
        small.write_zarr(str(partial / "data.zarr"), chunks=(8, width))


def annbatch(task: Task) -> Opened:
    """Rows of whole samples, chunks of 8 rows, 32 chunks preloaded, zarrs switched on; a crop a row."""
    import anndata
    import zarr as z
    from annbatch import Loader

    z.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    out = apart("arrays:make_annbatch", task, task.place("annbatch"))
    group = z.open_group(str(out / "data.zarr"), mode="r")
    loader = Loader(
        batch_size=task.batch_size, chunk_size=8, preload_nchunks=64, shuffle=True, preload_to_gpu=False
    ).add_adata(anndata.AnnData(X=group["X"], obs=anndata.io.read_elem(group["obs"])))

    def start() -> Iterator[np.ndarray]:
        for batch in loader:
            rows = np.asarray(batch["X"]).reshape(-1, task.sample_obs, task.channels)
            starts = np.random.randint(0, task.sample_obs - task.length + 1, len(rows))  # noqa: NPY002
            yield np.stack([row[s : s + task.length] for row, s in zip(rows, starts, strict=True)])

    return Opened(start, first_of_rows, out, crops=True)

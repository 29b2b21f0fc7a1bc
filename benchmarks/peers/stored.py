"""Readers of stored samples: LitData, MosaicML streaming, WebDataset, Hugging Face datasets, grain.

They know whole samples and no windows inside them. A copy of every overlapping window would be
``length`` times the data, so each stores samples of eight windows, and takes one random crop of a sample
each time it is drawn, as the users of these libraries do.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import atomic_folder
from benchmarks.peers.task import Opened, Task, Windows, apart, crop, dataloader, first_of_rows, samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _litdata_sample(index: int, task: Task) -> Any:
    start = index * task.sample_obs
    return {"x": np.array(task.array()[start : start + task.sample_obs])}


def make_litdata(task: Task, out: Path, *, loader: Any = None) -> None:
    import litdata

    with atomic_folder(out) as partial:
        inputs = list(range(task.n_obs // task.sample_obs))
        more = {"item_loader": loader} if loader else {}
        litdata.optimize(
            fn=functools.partial(_litdata_sample, task=task),
            inputs=inputs,
            output_dir=str(partial),
            chunk_bytes="64MB",
            num_workers=1,
            **more,
        )


def litdata(task: Task) -> Opened:
    import litdata as ld

    out = apart("stored:make_litdata", task, task.place("litdata"))

    class Crops(ld.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return crop(super().__getitem__(index)["x"], task.length)

    dataset = Crops(str(out), shuffle=True, drop_last=False)
    kept = {"persistent_workers": True} if task.workers else {}
    loader = ld.StreamingDataLoader(dataset, batch_size=task.batch_size, num_workers=task.workers, **kept)
    return Opened(lambda: iter(loader), first_of_rows, out, crops=True)


def _litdata_track(index: int, task: Task) -> Any:
    start = index * task.sequence_obs
    return {"x": np.array(task.array()[start : start + task.sequence_obs])}


def make_litdata_windows(task: Task, out: Path) -> None:
    import litdata
    from litdata.streaming.temporal import TemporalArrayLoader

    with atomic_folder(out) as partial:
        litdata.optimize(
            fn=functools.partial(_litdata_track, task=task),
            inputs=list(range(task.sequences)),
            output_dir=str(partial),
            chunk_bytes="64MB",
            num_workers=1,
            item_loader=TemporalArrayLoader(),
        )


class _LitCut:
    def __init__(self, task: Task, out: Path) -> None:
        self.task, self.out, self.dataset = task, str(out), None

    def __call__(self, start: int) -> Any:
        import torch

        if self.dataset is None:
            import litdata as ld
            from litdata.streaming.temporal import TemporalArrayLoader

            self.dataset = ld.StreamingDataset(self.out, item_loader=TemporalArrayLoader())
        sequence, within = divmod(start, self.task.sequence_obs)
        return torch.as_tensor(self.dataset.read_window(sequence, start=within, frames=self.task.length)["x"])


def litdata_windows(task: Task) -> Opened:
    """Whole tracks and ``read_window``, its newer door for windows; the sampler is ours."""
    out = apart("stored:make_litdata_windows", task, task.place("litdata-tracks"))
    loader = dataloader(Windows(task, _LitCut(task, out)), task, shuffle=True)
    return Opened(lambda: iter(loader), first_of_rows, out)


def _images_apart() -> None:
    """Let ``streaming`` be imported beside a CPU torch.

    It imports torchvision for its image classes; the torchvision of the package index is built for CUDA, and
    refuses a CPU torch. Nothing of it is used here, so its missing operators are declared, empty.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        import torch

        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _images_apart.library = library  # type: ignore[attr-defined]  # it unloads when collected


def make_streaming(task: Task, out: Path) -> None:
    _images_apart()
    from streaming import MDSWriter

    with (
        atomic_folder(out) as partial,
        MDSWriter(
            out=str(partial), columns={"x": f"ndarray:float32:{task.sample_obs},{task.channels}"}
        ) as writer,
    ):
        for sample in samples(task):
            writer.write({"x": sample})


def streaming(task: Task) -> Opened:
    _images_apart()
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    out = apart("stored:make_streaming", task, task.place("streaming"))

    class Crops(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return crop(super().__getitem__(index)["x"], task.length)

    dataset = Crops(local=str(out), shuffle=True, batch_size=task.batch_size, num_canonical_nodes=1)
    kept = {"persistent_workers": True} if task.workers else {}
    loader = StreamingDataLoader(dataset, batch_size=task.batch_size, num_workers=task.workers, **kept)
    return Opened(lambda: iter(loader), first_of_rows, out, crops=True)


def make_webdataset(task: Task, out: Path) -> None:
    import webdataset as wds

    with atomic_folder(out) as partial:
        partial.mkdir()
        with wds.ShardWriter(str(partial / "shard-%06d.tar"), maxsize=64e6, verbose=0) as sink:
            for number, sample in enumerate(samples(task)):
                sink.write({"__key__": f"{number:08d}", "x.npy": sample})


def _webdataset(task: Task) -> tuple[Any, Path]:
    import webdataset as wds

    out = apart("stored:make_webdataset", task, task.place("webdataset"))
    shards = sorted(str(path) for path in out.glob("*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=100, empty_check=False)
    return dataset, out


def webdataset(task: Task) -> Opened:
    """A shuffle buffer of 1000 samples, then a crop of each."""
    import webdataset as wds

    dataset, out = _webdataset(task)
    dataset = dataset.shuffle(1000).decode().to_tuple("x.npy").map(lambda s: crop(s[0], task.length))
    loader = wds.WebLoader(
        dataset.batched(task.batch_size, collation_fn=np.stack), batch_size=None, num_workers=task.workers
    )
    return Opened(lambda: iter(loader), first_of_rows, out, crops=True)


def webdataset_cut(task: Task) -> Opened:
    """Every window of every sample, mixed in a buffer; windows that cross two samples are lost."""
    import webdataset as wds

    dataset, out = _webdataset(task)
    room = max(task.batch_size * 4, min(20_000, task.memory // (task.length * task.channels * 4)))

    def cut(stream: Iterator[Any]) -> Iterator[np.ndarray]:
        for (sample,) in stream:
            for start in range(len(sample) - task.length + 1):
                yield sample[start : start + task.length]

    dataset = dataset.decode().to_tuple("x.npy").compose(cut).shuffle(room)
    loader = wds.WebLoader(
        dataset.batched(task.batch_size, collation_fn=np.stack), batch_size=None, num_workers=task.workers
    )
    return Opened(lambda: iter(loader), first_of_rows, out)


def make_datasets(task: Task, out: Path) -> None:
    from datasets import Array2D, Dataset, Features

    shape = Array2D(shape=(task.sample_obs, task.channels), dtype="float32")

    def rows(task: Task) -> Iterator[Any]:
        for sample in samples(task):
            yield {"x": sample}

    with atomic_folder(out) as partial:
        cache = partial.with_name(partial.name + ".cache")
        made = Dataset.from_generator(
            rows, features=Features({"x": shape}), gen_kwargs={"task": task}, cache_dir=str(cache)
        )
        made.save_to_disk(str(partial))
        shutil.rmtree(cache, ignore_errors=True)


def datasets(task: Task) -> Opened:
    """Arrow on disk, memory-mapped, ``with_format("numpy")``, the DataLoader's shuffle."""
    from datasets import load_from_disk

    out = apart("stored:make_datasets", task, task.place("datasets"))
    data = load_from_disk(str(out)).with_format("numpy")

    class Crops:
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: int) -> Any:
            return crop(data[int(index)]["x"], task.length)

    loader = dataloader(Crops(), task, shuffle=True)
    return Opened(lambda: iter(loader), first_of_rows, out, crops=True)


def make_grain(task: Task, out: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    with atomic_folder(out) as partial:
        partial.mkdir()
        writer = ArrayRecordWriter(str(partial / "data.array_record"), "group_size:1")
        for sample in samples(task):
            writer.write(sample.tobytes())
        writer.close()


def grain(task: Task) -> Opened:
    import grain.python as pygrain

    out = apart("stored:make_grain", task, task.place("grain"))
    source = pygrain.ArrayRecordDataSource([str(out / "data.array_record")])

    class Crop(pygrain.RandomMapTransform):
        def random_map(self, element: bytes, rng: np.random.Generator) -> np.ndarray:
            sample = np.frombuffer(element, np.float32).reshape(-1, task.channels)
            start = rng.integers(0, len(sample) - task.length + 1)
            return sample[start : start + task.length]

    epochs = itertools.count()

    def start() -> Iterator[Any]:
        dataset = pygrain.MapDataset.source(source).seed(next(epochs)).shuffle().random_map(Crop())
        flow = dataset.to_iter_dataset().batch(task.batch_size)
        if task.workers:
            flow = flow.mp_prefetch(pygrain.MultiprocessingOptions(num_workers=task.workers))
        return iter(flow)

    return Opened(start, first_of_rows, out, crops=True)

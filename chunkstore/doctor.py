"""Look at this machine and installation, and say what we would change.

Decided here: what is looked at and when a finding deserves advice. Nothing is changed, nothing is
sent anywhere; the disk measurement writes one temporary file and removes it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Diagnosis", "Finding", "examine"]

#: Libraries by what they are for; the second name is the extra that brings it ("" for core).
LIBRARIES = {
    "numpy": "",
    "zarr": "",
    "zarrs": "",
    "numcodecs": "",
    "google-crc32c": "",
    "xarray": "",
    "dask": "",
    "distributed": "",
    "fsspec": "",
    "fastavro": "",
    "numba": "",
    "cramjam": "",
    "pandas": "",
    "torch": "torch",
    "soundfile": "audio",
    "soxr": "audio",
    "av": "audio-extra",
    "obstore": "cloud",
    "pcodec": "pcodec",
    "plotly": "report",
    "jinja2": "report",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Examples
    --------
    >>> Finding("start method", "fork", advice="use spawn").ok
    False
    """

    name: str
    value: str
    """For people, units included."""
    number: float | None = None
    """For programs, where the value is a measurement; the unit stands in ``unit``."""
    unit: str = ""
    advice: str = ""
    """What we would change; empty where nothing."""

    @property
    def ok(self) -> bool:
        """Whether there is nothing to advise."""
        return not self.advice


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was found, by section."""

    sections: dict[str, list[Finding]] = field(default_factory=dict)

    @property
    def advice(self) -> list[str]:
        """What we would change, one sentence each."""
        return [f.advice for found in self.sections.values() for f in found if f.advice]

    def to_json(self) -> dict[str, Any]:
        """Return the findings as JSON values."""
        return {
            "sections": {name: [asdict(f) for f in found] for name, found in self.sections.items()},
            "advice": self.advice,
        }

    def show(self) -> None:
        """Print the findings as tables, the advice last."""
        from rich.console import Console
        from rich.table import Table

        console = Console(soft_wrap=False)
        for name, found in self.sections.items():
            table = Table(title=name, title_justify="left", show_header=False, box=None, pad_edge=False)
            table.add_column(style="cyan", no_wrap=True)
            table.add_column()
            for f in found:
                table.add_row(f.name, f.value if f.ok else f"[yellow]{f.value}[/]")
            console.print(table)
            console.print()
        if not self.advice:
            console.print("Nothing to change.")
        for sentence in self.advice:
            console.print(f"[yellow]-[/] {sentence}")


def examine(*, measure: bool = True, folder: str | os.PathLike[str] | None = None) -> Diagnosis:
    """Look at versions, fast paths, process start, resources and speeds.

    Parameters
    ----------
    measure : bool
        Whether to measure memory, decoding and disk (two to five seconds).
    folder : path, optional
        Where the disk is measured; the current directory if not given.

    Returns
    -------
    Diagnosis
        Findings by section, with advice.

    Examples
    --------
    >>> diagnosis = examine(measure=False)
    >>> [f.value for f in diagnosis.sections["versions"] if f.name == "python"]
    ['3...']
    """
    place = Path(folder) if folder is not None else Path.cwd()
    sections = {
        "versions": list(_versions()),
        "fast paths": list(_fast_paths()),
        "processes": list(_processes()),
        "resources": list(_resources(place)),
    }
    if measure:
        sections["speed here"] = list(_speeds(place))
    return Diagnosis(sections)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions() -> Iterator[Finding]:
    from chunkstore import __version__

    yield Finding("chunkstore", __version__)
    yield Finding("python", platform.python_version())
    yield Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    for name, extra in LIBRARIES.items():
        found = _version(name)
        if found is not None:
            yield Finding(name, found)
        elif extra:
            yield Finding(name, f"not installed (pip install 'chunkstore[{extra}]')")
        else:
            yield Finding(
                name, "missing", advice=f"{name} is missing: pip install --force-reinstall chunkstore"
            )


def _imports(name: str) -> str:
    """Return an empty text if the module can be imported, else why not."""
    try:
        importlib.import_module(name)
    except Exception as error:  # a shared library that does not load raises anything
        return f"{type(error).__name__}: {error}"
    return ""


def _fast_paths() -> Iterator[Finding]:
    why = _imports("zarrs")
    yield Finding(
        "zarrs codec pipeline",
        "active" if not why else f"not usable: {why}",
        advice="" if not why else "reading falls back on zarr's own pipeline, which is slower",
    )
    import google_crc32c

    kind = google_crc32c.implementation
    yield Finding(
        "crc32c",
        f"{kind} implementation",
        advice="" if kind == "c" else "google-crc32c has no compiled part here; checksums will be slow",
    )
    why = _imports("numba")
    yield Finding(
        "compiled Avro decoder",
        "active" if not why else f"not usable: {why}",
        advice="" if not why else "Avro is decoded by fastavro, which is many times slower",
    )
    if not why:
        yield _numba_cache()
    yield _torch()


def _numba_cache() -> Finding:
    from numba.core import config

    folder = getattr(config, "CACHE_DIR", "") or str(Path(__file__).parent)
    writable = os.access(folder, os.W_OK)
    return Finding(
        "compiled code is kept",
        f"in {folder}" if writable else f"no: {folder} is not writable",
        advice=""
        if writable
        else "each process compiles anew (some seconds): set NUMBA_CACHE_DIR to a folder you own",
    )


def _torch() -> Finding:
    if _version("torch") is None:
        return Finding("torch", "not installed; windows come as numpy arrays")
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return Finding("torch", f"{torch.__version__}, CUDA: {names}")
    return Finding("torch", f"{torch.__version__}, CPU only, {torch.get_num_threads()} threads")


def _processes() -> Iterator[Finding]:
    import multiprocessing
    import threading

    method = (
        multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_context().get_start_method()
    )
    yield Finding(
        "start method of processes",
        method,
        advice="worker processes start by fork here: with num_workers > 0 pass "
        "multiprocessing_context='forkserver' (or 'spawn') to the DataLoader; a forked child of a process "
        "that has decoded can't use its stores and says so"
        if method == "fork"
        else "",
    )
    yield Finding("threads in this process", str(threading.active_count()))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"):
        if name in os.environ:
            yield Finding(name, os.environ[name])


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def memory_limit() -> tuple[int, str]:
    """Return the bytes of memory this process may use, and who says so (the machine or its cgroup)."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0, "unknown"
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < total:
            return int(text), "cgroup"
    return total, "machine"


def _resources(place: Path) -> Iterator[Finding]:
    yield Finding("CPUs", f"{usable_cpus()} usable of {os.cpu_count()}")
    total, who = memory_limit()
    yield Finding("memory", f"{human_bytes(total)} ({who})", total, "bytes")
    for name, folder in (
        ("disk here", place),
        ("scratch", Path(tempfile.gettempdir())),
        ("shared memory", Path("/dev/shm")),  # noqa: S108 - looked at, never written
    ):
        if not folder.is_dir():
            continue
        usage = shutil.disk_usage(folder)
        low = name != "shared memory" and usage.free < 2**30
        yield Finding(
            name,
            f"{human_bytes(usage.free)} free of {human_bytes(usage.total)} at {folder}",
            usage.free,
            "bytes",
            advice=f"less than 1 GiB is free at {folder}; an ingest needs room for the store and its scratch"
            if low
            else "",
        )
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield Finding(
            "open files",
            f"{soft} (may be raised to {hard})",
            soft,
            "files",
            advice="fewer than 1024 files may be open at once; raise it with `ulimit -n 4096`"
            if soft < 1024
            else "",
        )


def _best(work: Callable[[], object], repeat: int = 3) -> float:
    """Seconds of the quickest of some runs."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)


def _speeds(place: Path) -> Iterator[Finding]:
    source = np.ones(64 * 2**20, np.uint8)
    target = np.empty_like(source)
    rate = source.nbytes / _best(lambda: np.copyto(target, source))
    yield Finding("memory copy", f"{human_bytes(rate)}/s", rate, "bytes/s")

    data = np.arange(4 * 2**20, dtype=np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(data, 512)
    starts = np.random.default_rng(0).integers(0, len(windows), 4096)
    rate = len(starts) / _best(lambda: windows[starts])
    yield Finding("windows of 512 float32, gathered", f"{rate:,.0f} windows/s, one thread", rate, "windows/s")

    yield from _decoding()
    try:
        yield from _disk(place)
    except OSError as error:
        yield Finding("disk here", f"not measured: {error}", advice=f"{place} is not writable: {error}")


def _decoding() -> Iterator[Finding]:
    from numcodecs.blosc import Blosc
    from numcodecs.zstd import Zstd

    steps = np.random.default_rng(0).normal(size=2**20).astype("float32")
    values = np.round(np.cumsum(steps), 2).astype("float32")
    for name, codec in (("blosc-lz4", Blosc("lz4", 5, Blosc.SHUFFLE)), ("zstd", Zstd(3))):
        packed = codec.encode(values)
        out = np.empty_like(values)
        rate = values.nbytes / _best(lambda c=codec, p=packed, o=out: c.decode(p, o))  # type: ignore[misc]
        yield Finding(f"decoding {name}", f"{human_bytes(rate)}/s a thread", rate, "bytes/s")


def _disk(place: Path) -> Iterator[Finding]:
    block = np.random.default_rng(0).bytes(2**20)
    size = 64
    with tempfile.NamedTemporaryFile(dir=place, prefix=".chunkstore-doctor-") as file:
        start = time.perf_counter()
        for _ in range(size):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        rate = size * 2**20 / (time.perf_counter() - start)
        yield Finding("disk, writing", f"{human_bytes(rate)}/s at {place}", rate, "bytes/s")
        cold = hasattr(os, "posix_fadvise")
        if cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        with Path(file.name).open("rb", buffering=0) as again:
            while again.read(2**20):
                pass
        rate = size * 2**20 / (time.perf_counter() - start)
        yield Finding(
            "disk, reading",
            f"{human_bytes(rate)}/s" + ("" if cold else " (from the cache)"),
            rate,
            "bytes/s",
            advice="this disk reads less than 100 MB/s: prefer a codec with a high ratio (zstd, pcodec), or "
            "copy the store to a faster disk before training"
            if rate < 100e6
            else "",
        )

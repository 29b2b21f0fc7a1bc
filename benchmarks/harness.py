"""The one harness of all benchmarks: what is run, how it is timed, where the numbers go.

A **subject** is a function ``f(probe, **params)``, named as text (``"benchmarks.windows:ours"``),
that runs in a fresh process of the Python of its environment, so that no peer's threads, caches or
imports touch another's. It asks its `Probe` for time::

    def ours(probe, n_obs, batch_size):
        loader = ...                                    # not timed
        probe.stream(lambda: iter(loader), len, seconds=5)

    SUBJECTS = [Subject("ours", "benchmarks.example:ours", {"n_obs": 1_000_000, "batch_size": 256})]
    if __name__ == "__main__":
        raise SystemExit(main("example", SUBJECTS))

``python -m benchmarks.example`` then runs every subject (``--quick``, ``--only NAME``,
``--repeats N``, ``--out FILE``), prints a table and writes ``benchmarks/results/example.json``.

Rules: warm-up is not counted; a number is a median of repeats, with its quartiles; subjects take turns
(all of them once, then all of them again), so that a noisy minute spoils a repeat and not a subject; peak
memory is that of the whole process tree from `Probe.start` on; only one benchmark runs at a time. On a
machine with other work, compare ratios within one run and ``per_cpu_s`` before the rates.

Inside a subject only the standard library and numpy are needed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.usage import Usage, disk_bytes, evict, memory, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "Probe",
    "Subject",
    "Turn",
    "alone",
    "machine",
    "main",
    "measure",
    "quartiles",
    "run_all",
    "work_dir",
]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def work_dir() -> Path:
    """Folder of generated data and peers' environments: ``$CHUNKSTORE_BENCH_WORK``, else benchmarks/work."""
    folder = Path(os.environ.get("CHUNKSTORE_BENCH_WORK") or ROOT / "benchmarks" / "work")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of a table: a function in a process of its own."""

    name: str
    """What the row is called."""
    target: str
    """``"package.module:function"``; called as ``function(probe, **params)``."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""
    venv: str = "own"
    """Environment whose Python runs it: ``"own"``, or a name that ``benchmarks/setup.py`` knows."""
    setting: str = ""
    """How it is used, in a few words, for the page."""
    table: str = ""
    """Which table of the question the row belongs to."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions are recorded."""
    timeout_s: float = 600.0
    """After this long its process tree is ended and the row says so."""

    def python(self) -> Path:
        """The interpreter of its environment; may not exist."""
        return (
            Path(sys.executable)
            if self.venv == "own"
            else work_dir() / f"venv-{self.venv}" / "bin" / "python"
        )


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and count of repeats.

    >>> quartiles([3.0, 1.0, 2.0, 10.0])
    {'median': 2.5, 'low': 1.5, 'high': 6.5, 'n': 4}
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    lower, upper = ordered[:half] or ordered, ordered[-half:] if half else ordered
    return {
        "median": statistics.median(ordered),
        "low": statistics.median(lower),
        "high": statistics.median(upper),
        "n": len(ordered),
    }


class Probe:
    """What a subject measures itself with; lives in the subject's process."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.lists: dict[str, list[float]] = {}
        self.values: dict[str, Any] = {}
        self.started: float | None = None

    def start(self) -> None:
        """Preparation ends here: peak memory counts from now on. Called by the timers if not by hand."""
        if self.started is None:
            self.started = time.monotonic()

    def add(self, name: str, value: float) -> None:
        """One repeat of a measured number."""
        self.lists.setdefault(name, []).append(float(value))

    def set(self, **values: Any) -> None:
        """Facts that are not repeated: counts, bytes on disk, yes and no, settings."""
        self.values.update(values)

    def disk(self, path: str | os.PathLike[str], name: str = "disk_bytes") -> None:
        """Record the bytes of a file or folder."""
        self.values[name] = disk_bytes(path)

    def evict(self, path: str | os.PathLike[str]) -> None:
        """Drop the cached pages of a file or folder, and record whether that was possible."""
        self.values["cold"] = evict(path)

    def _record(self, spent: Usage, units: float) -> None:
        self.add("per_s", units / max(spent.wall_s, 1e-9))
        if spent.cpu_s > 0.05:  # the counters tick 100 times a second
            self.add("per_cpu_s", units / spent.cpu_s)
        self.add("seconds", spent.wall_s)
        self.values["read_bytes"] = self.values.get("read_bytes", 0) + spent.read_calls_bytes
        self.values["read_disk_bytes"] = self.values.get("read_disk_bytes", 0) + spent.read_disk_bytes
        self.values["units"] = self.values.get("units", 0) + units

    def stream(
        self,
        batches: Callable[[], Iterable[Any]],
        count: Callable[[Any], int] = len,
        *,
        seconds: float = 5.0,
        slices: int = 5,
        warmup_s: float = 1.0,
        see: Callable[[Any], None] | None = None,
    ) -> None:
        """Draw batches for ``seconds`` in ``slices`` equal times; a rate each. An ended stream starts again.

        Records ``first_batch_s`` (from asking for an iterator to the first batch), then ``per_s`` and
        ``per_cpu_s`` in units a second. ``count(batch)`` says how many units a batch holds, ``see``
        is handed the batches of the warm-up.
        """
        self.start()
        seconds, warmup_s = seconds * self.scale, warmup_s * self.scale
        begin = time.perf_counter()
        turning = iter(batches())
        batch = next(turning)
        self.add("first_batch_s", time.perf_counter() - begin)
        if see:
            see(batch)

        def endless() -> Iterator[Any]:
            nonlocal turning
            while True:
                drawn = 0
                for item in turning:
                    drawn += 1
                    yield item
                if not drawn:
                    raise RuntimeError("the stream holds no batch")
                turning = iter(batches())

        flow = endless()
        while time.perf_counter() - begin < warmup_s:
            batch = next(flow)
            if see:
                see(batch)
        whole, total = usage(), 0
        for _ in range(slices):
            before, units = usage(), 0
            end = time.perf_counter() + seconds / slices
            while time.perf_counter() < end:
                units += count(next(flow))
            self._record(usage() - before, units)
            total += units
        if "per_cpu_s" not in self.lists:  # every slice used less than the counters can tell
            self.add("per_cpu_s", total / max((usage() - whole).cpu_s, 0.01))

    def job(
        self,
        work: Callable[[], Any],
        units: float = 1,
        *,
        repeats: int = 1,
        warmup: int = 0,
        before: Callable[[], Any] | None = None,
    ) -> Any:
        """Call ``work`` ``repeats`` times (``before`` each, not timed); ``per_s`` is ``units`` a second."""
        self.start()
        result = None
        for turn in range(-warmup, repeats):
            if before:
                before()
            earlier = usage()
            result = work()
            if turn >= 0:
                self._record(usage() - earlier, units)
        return result


class _Watch(threading.Thread):
    """Samples the memory of a process tree until told to stop."""

    def __init__(self, pid: int, every_s: float = 0.1) -> None:
        super().__init__(daemon=True)
        self.pid, self.every_s = pid, every_s
        self.samples: list[tuple[float, int, int]] = []
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(self.every_s):
            with contextlib.suppress(OSError):
                self.samples.append((time.monotonic(), *memory(self.pid)))


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


class Turn:
    """The machine's benchmark lock (``$CHUNKSTORE_BENCH_LOCK``, else a file in the temp folder).

    It is kept for a few minutes of subjects and then passed on, so that several runs share a machine.
    """

    def __init__(self, seconds: float = 150.0) -> None:
        self.seconds = seconds
        self._file: Any = None
        self._since = 0.0

    def take(self) -> None:
        """Wait for the lock, unless it is held."""
        if self._file is not None:
            return
        with contextlib.suppress(ImportError):
            import fcntl

            place = (
                os.environ.get("CHUNKSTORE_BENCH_LOCK")
                or Path(tempfile.gettempdir()) / "chunkstore-bench.lock"
            )
            self._file = Path(place).open("a")  # noqa: SIM115 - it is held across calls
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._since = time.monotonic()

    def rest(self, *, done: bool = False) -> None:
        """Pass the lock on if it was held long enough, or if all is done."""
        if self._file is not None and (done or time.monotonic() - self._since > self.seconds):
            self._file.close()
            self._file = None
            time.sleep(0 if done else 0.5)  # whoever waits comes first


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the machine's benchmark lock for the whole of a block."""
    turn = Turn()
    turn.take()
    try:
        yield
    finally:
        turn.rest(done=True)


def measure(subject: Subject, scale: float = 1.0) -> dict[str, Any]:
    """Run one subject once; its record, or a record whose ``gap`` says why there is none."""
    record: dict[str, Any] = asdict(subject)
    if not subject.python().exists():
        return record | {"gap": f"environment {subject.venv!r} is not installed: python -m benchmarks.setup"}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        order = json.dumps(record | {"scale": scale, "answer": str(answer)})
        env = os.environ | {"PYTHONPATH": str(ROOT), "CHUNKSTORE_BENCH_WORK": str(work_dir())}
        env.setdefault("PYTHONWARNINGS", "ignore")
        log = (Path(folder) / "log").open("w+")
        child = subprocess.Popen(
            [subject.python(), "-m", "benchmarks.harness", order],
            cwd=ROOT,
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        watch = _Watch(child.pid)
        watch.start()
        try:
            child.wait(subject.timeout_s)
        except subprocess.TimeoutExpired:
            record["gap"] = f"did not finish within {subject.timeout_s:.0f} s"
        finally:
            watch.done.set()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # workers that outlived it
            child.wait()
        if answer.exists():
            record |= json.loads(answer.read_text())
        elif "gap" not in record:
            log.seek(0)
            lines = log.read().strip().splitlines()
            last = _plain(lines[-1]) if lines else "no output"
            record["gap"] = f"ended with status {child.returncode}: {last}"
        watch.join()
        log.close()
    since = record.pop("started", None) or 0.0
    held = [(own, mapped) for when, own, mapped in watch.samples if when >= since]
    if held and "gap" not in record:
        record["peak_bytes"] = max(own for own, _ in held)
        record["peak_mapped_bytes"] = max(mapped for _, mapped in held)
    return record


def _plain(text: str) -> str:
    """One line without the paths of this machine."""
    for place in (work_dir(), ROOT):
        text = text.replace(f"{place.resolve()}{os.sep}", "").replace(f"{place}{os.sep}", "")
    return " ".join(text.split())[:400]


def _child(order: str) -> int:
    asked = json.loads(order)
    probe = Probe(asked["scale"])
    module, name = asked["target"].split(":")
    try:
        getattr(importlib.import_module(module), name)(probe, **asked["params"])
    except Exception as error:
        traceback.print_exc()
        text = _plain(f"{type(error).__name__}: {error}")
        Path(asked["answer"]).write_text(json.dumps({"gap": text}))
        return 1
    answer = {
        "lists": probe.lists,
        "values": probe.values,
        "started": probe.started,
        "versions": {"python": platform.python_version()} | _versions([*asked["packages"], "numpy"]),
    }
    partial = Path(asked["answer"] + ".partial")
    partial.write_text(json.dumps(answer))
    partial.rename(asked["answer"])
    return 0


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    info = {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    with contextlib.suppress(OSError, ValueError):
        info["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return info


def _merge(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One record of a subject's repeats: lists joined and summed up, the worst peak, the last facts."""
    good = [record for record in records if "gap" not in record]
    if not good:
        return records[-1]
    merged = dict(good[-1])
    lists: dict[str, list[float]] = {}
    for record in good:
        for name, values in record["lists"].items():
            lists.setdefault(name, []).extend(values)
    merged["lists"] = {name: [float(f"{v:.6g}") for v in values] for name, values in lists.items()}
    merged["summary"] = {name: quartiles(values) for name, values in merged["lists"].items()}
    for name in ("peak_bytes", "peak_mapped_bytes"):
        if any(name in record for record in good):
            merged[name] = max(record.get(name, 0) for record in good)
    if len(good) < len(records):
        merged["failed_repeats"] = len(records) - len(good)
    return merged


def run_all(
    subjects: Sequence[Subject],
    *,
    repeats: int,
    scale: float,
    keep: Callable[[list[dict[str, Any]]], Any] | None = None,
) -> list[dict[str, Any]]:
    """Measure subjects in turns, ``repeats`` times each; a gap is tried once only.

    ``keep`` is handed what there is after each of them, so that a run that is ended early leaves something.
    """
    records: dict[int, list[dict[str, Any]]] = {}
    lock = Turn()
    try:
        for turn in range(repeats):
            for place, subject in enumerate(subjects):
                if turn and "gap" in records[place][-1]:
                    continue
                lock.take()
                record = measure(subject, scale)
                lock.rest()
                records.setdefault(place, []).append(record)
                if keep:
                    keep([_merge(records[k]) for k in sorted(records)])
                line = f"[{turn + 1}/{repeats}] {subject.table} {subject.name}: {_line(record)}"
                print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
    finally:
        lock.rest(done=True)
    return [_merge(records[place]) for place in sorted(records)]


def _line(record: Mapping[str, Any]) -> str:
    if "gap" in record:
        return f"gap: {record['gap']}"
    parts = [f"{name} {quartiles(v)['median']:.4g}" for name, v in record["lists"].items()]
    if "peak_bytes" in record:
        parts.append(f"peak {record['peak_bytes'] / 2**20:.0f} MiB")
    return ", ".join(parts)


def _commit() -> str:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()
    return "unknown"


def main(
    question: str,
    subjects: Sequence[Subject] | Callable[[bool], Sequence[Subject]],
    argv: Sequence[str] | None = None,
    *,
    repeats: int = 3,
    facts: Callable[[list[dict[str, Any]]], Mapping[str, Any]] | None = None,
) -> int:
    """Command line of a benchmark module; the exit status.

    ``subjects`` may be a function of ``quick``; ``facts`` derives further entries of the JSON from
    the records.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{question}")
    parser.add_argument(
        "--quick", action="store_true", help="smaller data and shorter times: minutes for everything"
    )
    parser.add_argument(
        "--only", action="append", default=[], help="part of a subject's name or table; repeatable"
    )
    parser.add_argument(
        "--repeats", type=int, help=f"processes a subject (default {repeats}; 1 with --quick)"
    )
    parser.add_argument(
        "--out", type=Path, help="result file (default benchmarks/results; work folder with --quick)"
    )
    parser.add_argument("--list", action="store_true", help="name the subjects and stop")
    asked = parser.parse_args(argv)
    chosen = list(subjects(asked.quick) if callable(subjects) else subjects)
    if asked.only:
        chosen = [s for s in chosen if any(part in f"{s.table} {s.name}" for part in asked.only)]
    if asked.list:
        for subject in chosen:
            print(f"{subject.table:20} {subject.name:36} {subject.venv:10} {subject.setting}")
        return 0
    turns = asked.repeats or (1 if asked.quick else repeats)
    about = machine()
    began = time.time()
    folder = work_dir() / "quick" if asked.quick or asked.only else RESULTS
    out = asked.out or folder / f"{question}.json"
    out.parent.mkdir(parents=True, exist_ok=True)

    def write(records: list[dict[str, Any]], path: Path) -> None:
        result = {
            "question": question,
            "command": f"python -m benchmarks.{question}" + (" --quick" if asked.quick else ""),
            "quick": asked.quick,
            "date": time.strftime("%Y-%m-%d", time.gmtime(began)),
            "commit": _commit(),
            "machine": about,
            "repeats": turns,
            "took_s": round(time.time() - began, 1),
            "subjects": records,
        }
        path.write_text(json.dumps(result | dict(facts(records) if facts else {}), indent=1) + "\n")

    unfinished = work_dir() / f"{question}.unfinished.json"
    records = run_all(
        chosen,
        repeats=turns,
        scale=0.4 if asked.quick else 1.0,
        keep=lambda records: write(records, unfinished),
    )
    write(records, out)
    unfinished.unlink(missing_ok=True)
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(_child(sys.argv[1]))

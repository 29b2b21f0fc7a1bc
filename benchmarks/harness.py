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

Rules: warm-up is not counted; a number is the median of its repeats, with the least and the greatest;
subjects take turns (all of them once, then all of them again, tables and rows each time from another place
on), so that a noisy minute spoils a repeat and not a subject, and ratios are of one turn, in which the rows
of a table follow each other; peak memory is that of the whole process tree from `Probe.start` on; only one
benchmark runs at a time. On a machine with other work, compare ratios within one run and ``per_cpu_s``
before the rates.

Inside a subject only the standard library and numpy are needed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
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

from benchmarks.probe import Probe
from benchmarks.usage import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "Probe",
    "Subject",
    "Turn",
    "about",
    "alone",
    "keep",
    "machine",
    "main",
    "measure",
    "run_all",
    "summed_up",
    "work_dir",
]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: a table of more rows takes minutes, in which a machine changes
LONG = 6


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
    once: bool = False
    """Counts facts and no times: one process answers, however many repeats are asked for."""

    def python(self) -> Path:
        """The interpreter of its environment; may not exist."""
        return (
            Path(sys.executable)
            if self.venv == "own"
            else work_dir() / f"venv-{self.venv}" / "bin" / "python"
        )


def summed_up(runs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Median, least, greatest and count: of the medians of several processes, or of the values of one.

    >>> summed_up([[1.0, 2.0, 9.0], [4.0], [3.0, 3.0]])
    {'median': 3.0, 'low': 2.0, 'high': 4.0, 'n': 3}
    >>> summed_up([[3.0, 1.0]])
    {'median': 2.0, 'low': 1.0, 'high': 3.0, 'n': 2}
    """
    values = [statistics.median(run) for run in runs] if len(runs) > 1 else list(runs[0])
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "n": len(values)}


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


def measure(subject: Subject, scale: float = 1.0, turn: int = 0) -> dict[str, Any]:
    """Run one subject once; its record, or a record whose ``gap`` says why there is none."""
    record: dict[str, Any] = asdict(subject)
    if not subject.python().exists():
        return record | {"gap": f"environment {subject.venv!r} is not installed: python -m benchmarks.setup"}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        order = json.dumps(record | {"scale": scale, "turn": turn, "answer": str(answer)})
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
    probe = Probe(asked["scale"], asked["turn"])
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


def _merge(records: Sequence[dict[str, Any]], turns: Sequence[int] = ()) -> dict[str, Any]:
    """One record of a subject's repeats: lists joined and summed up, the worst peak, the last facts.

    The list ``turns`` of a number holds the median of each turn (the mean of those of two processes), None
    where there is none: what was measured near each other in time can be divided. Bytes read and the units
    they were read for are added up: a rate needs both.
    """
    good = [record for record in records if "gap" not in record]
    if not good:
        return records[-1]
    merged = dict(good[-1])
    runs: dict[str, list[list[float]]] = {}
    for record in good:
        for name, values in record["lists"].items():
            runs.setdefault(name, []).append([float(f"{v:.6g}") for v in values])
    merged["lists"] = {name: [v for values in lists for v in values] for name, lists in runs.items()}
    merged["summary"] = {name: summed_up(lists) for name, lists in runs.items()}
    turn_of = turns or range(len(records))
    merged["turns"] = {}
    for name in runs:
        of: list[list[float]] = [[] for _ in range(max(turn_of) + 1)]
        for turn, record in zip(turn_of, records, strict=True):
            if name in record.get("lists", {}):
                of[turn].append(statistics.median(record["lists"][name]))
        merged["turns"][name] = [float(f"{statistics.fmean(v):.6g}") if v else None for v in of]
    merged["processes"] = len(good)
    merged["values"] = {name: value for record in good for name, value in record["values"].items()}
    for name in ("read_bytes", "read_disk_bytes", "units"):
        if name in merged["values"]:
            merged["values"][name] = sum(record["values"].get(name, 0) for record in good)
    for name in ("peak_bytes", "peak_mapped_bytes"):
        if any(name in record for record in good):
            merged[name] = max(record.get(name, 0) for record in good)
    if len(good) < len(records):
        merged["failed_repeats"] = len(records) - len(good)
    return merged


def rotated(n: int, turn: int, turns: int) -> list[int]:
    """The order of ``n`` rows in a turn: the same round, begun at another row each turn.

    >>> [rotated(6, turn, 3) for turn in range(3)]
    [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 0, 1], [4, 5, 0, 1, 2, 3]]
    """
    first = turn * n // max(turns, 1)
    return [(first + k) % n for k in range(n)]


def order_of(subjects: Sequence[Subject], turn: int, turns: int) -> list[int]:
    """The order of rows in a turn: tables rotated, and rows within each.

    All ratios of a table have its row *ours*, so that it comes once more, half a long table away.

    >>> rows = [Subject(name, "m:f", table=table) for table, name in ("a1", "a2", "b1", "b2")]
    >>> [order_of(rows, turn, 2) for turn in range(2)]
    [[0, 1, 2, 3], [3, 2, 1, 0]]
    """
    rows: dict[str, list[int]] = {}
    for place, subject in enumerate(subjects):
        rows.setdefault(subject.table, []).append(place)
    found = []
    for k in rotated(len(rows), turn, turns):
        mine = list(rows.values())[k]
        ordered = [mine[at] for at in rotated(len(mine), turn, turns)]
        for at, place in enumerate(ordered):
            if subjects[place].name == "ours" and not subjects[place].once and len(ordered) > LONG:
                ordered.insert((at + len(ordered) // 2) % len(ordered), place)
                break
        found += ordered
    return found


def run_all(
    subjects: Sequence[Subject],
    *,
    repeats: int,
    scale: float,
    keep: Callable[[list[dict[str, Any]]], Any] | None = None,
) -> list[dict[str, Any]]:
    """Measure subjects in turns, ``repeats`` times each; a gap, and what counts facts, is tried once only.

    Each turn starts at another table, and at another row of each. ``keep`` is handed what there is after
    each of them, so that a run that is ended early leaves something.
    """
    records: dict[int, list[dict[str, Any]]] = {}
    turns: dict[int, list[int]] = {}
    merged = lambda: [_merge(records[place], turns[place]) for place in sorted(records)]  # noqa: E731
    lock = Turn()
    try:
        for turn in range(repeats):
            for place in order_of(subjects, turn, repeats):
                subject = subjects[place]
                if place in records and (subject.once or "gap" in records[place][-1]):
                    continue
                lock.take()
                record = measure(subject, scale, turn)
                lock.rest()
                records.setdefault(place, []).append(record)
                turns.setdefault(place, []).append(turn)
                if keep:
                    keep(merged())
                line = f"[{turn + 1}/{repeats}] {subject.table} {subject.name}: {_line(record)}"
                print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
    finally:
        lock.rest(done=True)
    return merged()


def _line(record: Mapping[str, Any]) -> str:
    if "gap" in record:
        return f"gap: {record['gap']}"
    parts = [f"{name} {statistics.median(v):.4g}" for name, v in record["lists"].items()]
    if "peak_bytes" in record:
        parts.append(f"peak {record['peak_bytes'] / 2**20:.0f} MiB")
    return ", ".join(parts)


def _commit() -> str:
    """The commit that runs; ``+changes`` where a file of Python is not as it was committed."""
    git = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        commit = git(["git", "rev-parse", "--short", "HEAD"]).stdout.strip()
        changed = git(["git", "status", "--porcelain", "--", "*.py"]).stdout.strip()
        return commit + ("+changes" if changed else "")
    return "unknown"


def about(question: str, more: str = "", *, quick: bool = False) -> dict[str, Any]:
    """What stands at the head of every result: question, command, machine, date, commit, before the work.

    >>> about("store", "codecs", quick=True)["command"]
    'python -m benchmarks.store codecs --quick'
    """
    return {
        "question": question,
        "command": " ".join(["python -m", f"benchmarks.{question}", *more.split(), *["--quick"] * quick]),
        "quick": quick,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _commit(),
        "machine": machine(),
    }


def keep(head: Mapping[str, Any], found: Mapping[str, Any], name: str = "", out: Path | None = None) -> None:
    """Write ``found`` below its `about`: to ``out``, else (unless it was quick) as the result ``name``."""
    if out is None and head["quick"]:
        return
    out = out or RESULTS / f"{name or head['question']}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**head, "found": found}, indent=1) + "\n")
    print(f"wrote {out}")


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
    more = "" if asked.quick or turns == repeats else f"--repeats {turns}"
    head, began = about(question, more, quick=asked.quick), time.time()
    folder = work_dir() / "quick" if asked.quick or asked.only else RESULTS
    out = asked.out or folder / f"{question}.json"
    out.parent.mkdir(parents=True, exist_ok=True)

    def write(records: list[dict[str, Any]], path: Path) -> None:
        result = {
            **head,
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

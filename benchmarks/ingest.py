"""The ingest engine: memory, workers, overhead, and the plan of a very large job.

    python -m benchmarks.ingest memory     peak of every process for inputs 1, 4 and 16 times as large
    python -m benchmarks.ingest workers    2 workers against 1, on Avro and on audio
    python -m benchmarks.ingest overhead   share of a job that is not decode, compress or I/O
    python -m benchmarks.ingest plan       plan of 1,000 files of 1 GB: 40 million blocks
    python -m benchmarks.ingest devices    10,000 devices over 500 files, rows out of order, sorted
    python -m benchmarks.ingest tasks      tasks of next to nothing, 20,000 of them (--tasks N for another
                                           number), broken off near the end and resumed

Inputs are made here: Avro containers of one block repeated, and tones as Ogg. Processes are watched through
``/proc``; anonymous memory is what the promise is about, pages of mapped scratch files belong to the system.
Results are printed and written to ``benchmarks/results/ingest-*.json``.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import Turn, about, keep, work_dir

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
MIB = 1024 * 1024
SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        *({"name": f"x{i}", "type": "double"} for i in range(8)),
    ],
}
ROW_BYTES = 8 * 9
BLOCK_ROWS = 40_000
SYNC = bytes(range(16))


def folder(name: str) -> Path:
    place = work_dir() / "ingest" / name
    place.mkdir(parents=True, exist_ok=True)
    return place


def zigzag(n: int) -> bytes:
    n = (n << 1) ^ (n >> 63)
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def block(seed: int, devices: int, start: int) -> bytes:
    """One block of rows, encoded by fastavro."""
    import fastavro

    random = np.random.default_rng(seed)
    values = np.round(random.standard_normal((BLOCK_ROWS, 8)) * 256) / 256
    out = io.BytesIO()
    for i in range(BLOCK_ROWS):
        row = {"device": f"d{i % devices:05d}", "time": start + i // devices * 1000}
        row |= {f"x{k}": float(values[i, k]) for k in range(8)}
        fastavro.schemaless_writer(out, SCHEMA, row)
    return out.getvalue()


def avro_file(path: Path, blocks: int, seed: int, devices: int = 4, codec: str = "null") -> Path:
    """A container of one block repeated: it decodes like any other, and is made at the speed of the disk."""
    if path.exists():
        return path
    head = b"Obj\x01" + zigzag(2)
    for key, value in (("avro.schema", json.dumps(SCHEMA).encode()), ("avro.codec", codec.encode())):
        head += zigzag(len(key)) + key.encode() + zigzag(len(value)) + value
    head += zigzag(0) + SYNC
    data = block(seed, devices, 1_600_000_000_000)
    if codec == "deflate":
        data = zlib.compress(data, 6, -15)
    whole = zigzag(BLOCK_ROWS) + zigzag(len(data)) + data + SYNC
    partial = path.with_suffix(".partial")
    with partial.open("wb") as out:
        out.write(head)
        for _ in range(blocks):
            out.write(whole)
    partial.rename(path)
    return path


def avro_inputs(decoded: int, files: int, codec: str = "null") -> list[str]:
    place = folder("avro" if codec == "null" else f"avro-{codec}")
    blocks = max(1, decoded // files // (ROW_BYTES * BLOCK_ROWS))
    return [str(avro_file(place / f"b{blocks}-{i}.avro", blocks, i, codec=codec)) for i in range(files)]


def audio_inputs(seconds: int, files: int) -> list[str]:
    import soundfile

    place = folder("audio")
    found = []
    for i in range(files):
        path = place / f"s{seconds}-{i}.ogg"
        if not path.exists():
            random = np.random.default_rng(i)
            t = np.arange(seconds * 44_100) / 44_100
            tone = 0.3 * np.sin(2 * np.pi * (200 + 50 * i) * t) + 0.05 * random.standard_normal(t.size)
            partial = place / f"{i}.partial"
            with soundfile.SoundFile(partial, "w", 44_100, 1, format="OGG", subtype="VORBIS") as out:
                for low in range(0, tone.size, 65_536):  # libsndfile's encoder overflows on long writes
                    out.write(tone[low : low + 65_536])
            partial.rename(path)
        found.append(str(path))
    return found


def again(inputs: list[str], times: int) -> list[str]:
    """The same files under ``times`` names each: more to do without more on the disk."""
    found = []
    for n in range(times):
        for path in map(Path, inputs):
            link = path.with_name(f"{n}-{path.name}")
            if not link.exists():
                link.hardlink_to(path)
            found.append(str(link))
    return found


class Watch(threading.Thread):
    """Peak memory of every process under one: pid -> (anonymous, resident) bytes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peaks: dict[int, tuple[int, int]] = {}
        self.done = threading.Event()

    def tree(self) -> list[int]:
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    todo += [int(c) for c in task.read_text().split()]
                except OSError:
                    continue
        return found

    def run(self) -> None:
        while not self.done.wait(0.02):
            for pid in self.tree():
                try:
                    text = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                held = {
                    line.split()[0]: int(line.split()[1]) * 1024 for line in text.splitlines() if "kB" in line
                }
                anonymous, resident = held.get("RssAnon:", 0), held.get("VmRSS:", 0)
                before = self.peaks.get(pid, (0, 0))
                self.peaks[pid] = (max(before[0], anonymous), max(before[1], resident))


def run(kind: str, inputs: list[str], workers: int, watch: bool = False, **asked) -> dict:
    """One ingest in a process of its own; its report, wall seconds and peaks."""
    out = folder("out") / "o.zarr"
    for leftover in (out, Path(str(out) + ".ledger")):
        shutil.rmtree(leftover, ignore_errors=True)
    command = (
        "import json, sys, ingest, chunkstore\n"
        "a = json.loads(sys.stdin.read())\n"
        "run = getattr(ingest, 'ingest_' + a['kind'])\n"
        "r = run(a['inputs'], a['out'], workers=a['workers'], **a['asked'])\n"
        "print(json.dumps(dict(r.report, files=len(r.report['files']))))\n"
    )
    order = {"kind": kind, "inputs": inputs, "out": str(out), "workers": workers, "asked": asked}
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    watcher = Watch(child.pid) if watch else None
    if watcher:
        watcher.start()
    told, _ = child.communicate(json.dumps(order))
    seconds = time.monotonic() - began
    if watcher:
        watcher.done.set()
        watcher.join()
    if child.returncode:
        raise SystemExit(f"the ingest ended with {child.returncode}")
    report = json.loads(told.splitlines()[-1])
    shutil.rmtree(out)
    report["wall"] = seconds
    report["peaks"] = sorted(watcher.peaks.values(), reverse=True) if watcher else []
    return report


AVRO = {"sequence_per": "file", "time": "time", "exclude": "device"}
KEYED = {"sequence_key": "device", "time": "time"}


def memory(quick: bool) -> dict:
    base = 64 * MIB if quick else 256 * MIB
    limit = "1GiB"
    rows = []
    for way, asked in (("placed", AVRO), ("staged", KEYED)):
        for times in (1, 4, 16):
            inputs = avro_inputs(base * times, 4 * times)
            report = run("avro", inputs, 2, watch=True, memory_limit=limit, **asked)
            worst = report["peaks"][0]
            rows.append(
                {
                    "way": way,
                    "times": times,
                    "decoded": report["bytes_decoded"],
                    "promised": report["memory_a_worker"],
                    "limit": 1024 * MIB,
                    "peak_anonymous": worst[0],
                    "peak_resident": worst[1],
                    "seconds": round(report["wall"], 1),
                }
            )
            print(
                f"{way:<6} x{times:<2} decoded {rows[-1]['decoded'] / MIB:7.0f} MiB: promised "
                f"{rows[-1]['promised'] / MIB:5.0f} MiB, worst process {worst[0] / MIB:5.0f} MiB anonymous "
                f"({worst[1] / MIB:.0f} resident), {rows[-1]['seconds']} s",
                flush=True,
            )
    ok = all(r["peak_anonymous"] <= r["limit"] for r in rows)
    return {"rows": rows, "within_limit": ok}


def workers(quick: bool) -> dict:
    """Long enough that the second in which a worker starts is a small share."""
    size, times = (256, 1) if quick else (2048, 3)
    jobs = {
        "avro": ("avro", again(avro_inputs(size * MIB, 8, "deflate"), times), AVRO),
        "avro by key": ("avro", avro_inputs(times * size * MIB, 8, "deflate"), KEYED),
        "audio": ("audio", again(audio_inputs(60 if quick else 240, 16), 2 * times), {"rate": 32_000}),
    }
    found = {}
    for name, (kind, inputs, asked) in jobs.items():
        took: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for _ in range(1 if quick else 2):
            for n in (1, 2):
                report = run(kind, inputs, n, **asked)
                seconds = report["seconds"]
                took[n].append((seconds.get("stage", 0.0) + seconds.get("write", 0.0), report["wall"]))
        one, two = (min(took[n]) for n in (1, 2))
        ratio, whole = one[0] / two[0], one[1] / two[1]
        found[name] = {
            "one": one[0],
            "two": two[0],
            "ratio": ratio,
            "wall": [one[1], two[1]],
            "wall_ratio": whole,
        }
        print(
            f"{name:<12} stage and write: 1 worker {one[0]:6.2f} s, 2 workers {two[0]:6.2f} s, "
            f"{ratio:.2f} times; whole command {one[1]:.2f} s and {two[1]:.2f} s, {whole:.2f} times",
            flush=True,
        )
    return found


class Spent:
    """CPU seconds of watched calls, by what they do; of each by the clock of the thread that runs it.

    What a watched call calls counts as its own.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.lock = threading.Lock()
        self.inside = threading.local()
        self.undo: list[Callable[[], None]] = []

    def add(self, what: str, began: float) -> None:
        with self.lock:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.thread_time() - began

    def _put(self, owner, name: str, call) -> None:
        plain = getattr(owner, name)
        setattr(owner, name, call(plain))
        self.undo.append(lambda: setattr(owner, name, plain))

    def watch(self, what: str, owner, name: str) -> None:
        """Time a function."""
        self._put(owner, name, functools.partial(self._timed, what))

    def _timed(self, what: str, plain):
        def call(*a, **k):
            if getattr(self.inside, "it", False):
                return plain(*a, **k)
            self.inside.it, began = True, time.thread_time()
            try:
                return plain(*a, **k)
            finally:
                self.add(what, began)
                self.inside.it = False

        return call

    def watch_taking(self, what: str, owner, name: str) -> None:
        """Time a generator while it makes what it yields."""

        step = self._timed(what, next)

        def timed(plain):
            def call(*a, **k):
                made = plain(*a, **k)
                while True:
                    one = step(made, None)
                    if one is None:
                        return
                    yield one

            return call

        self._put(owner, name, timed)

    def watch_giving(self, what: str, owner, name: str) -> None:
        """Time a method that writes a stream, but not what makes the pieces of it."""

        def timed(plain):
            def call(this, key, pieces):
                if getattr(self.inside, "it", False):
                    return plain(this, key, pieces)
                making, left = 0.0, iter(pieces)

                def watched():
                    nonlocal making
                    while True:
                        began = time.thread_time()
                        piece = next(left, None)
                        making += time.thread_time() - began
                        if piece is None:
                            return
                        yield piece

                began = time.thread_time()
                try:
                    return plain(this, key, watched())
                finally:
                    self.add(what, began + making)

            return call

        self._put(owner, name, timed)

    def stop(self) -> None:
        while self.undo:
            self.undo.pop()()


def overhead(quick: bool) -> dict:
    """Share of a job's CPU seconds outside decode, compress and the calls that read, write, sync and remove.

    Each job runs as in a worker of the default cluster, where the processes are the parallelism and the
    thread that fills a chunk encodes it, and with as many threads that encode as there are cores, as where
    there are no workers. Handing work to these, statistics, order, grouping by key and checksums are the
    engine's. The dearest are named by one more turn, in which they are watched too, which costs some time
    itself.
    """
    import ingest
    from chunkstore import places, shards
    from ingest import folder as folders
    from ingest.sources.audio.source import AudioSource
    from ingest.sources.avro import AvroSource
    from ingest.sources.avro import inputs as inputs_of_avro

    spent = Spent()
    for source in (AvroSource, AudioSource):
        spent.watch_taking("read and decode", source, "read")
    spent.watch("read to scan", inputs_of_avro.LocalInput, "read")
    spent.watch("compress", shards._Encoder, "encode")
    spent.watch("write", places.LocalPlace, "put_parts")
    spent.watch("sync", places, "_sync")
    spent.watch_giving("scratch and ledger", folders.LocalFolder, "put_stream")
    spent.watch("remove scratch", folders.LocalFolder, "delete_all")
    found: dict[str, dict] = {}
    size = 512 * MIB if quick else 2048 * MIB
    jobs: dict[str, tuple[Callable[..., ingest.IngestResult], list[str], dict]] = {
        f"{way}, {codec}": (ingest.ingest_avro, avro_inputs(size, 8, codec), asked)
        for codec in ("null", "deflate")
        for way, asked in (("placed", AVRO), ("staged", KEYED))
    }
    jobs["audio, vorbis"] = ingest.ingest_audio, audio_inputs(30 if quick else 240, 16), {"rate": 32_000}
    threads = shards.ENCODERS.workers
    for name, (job, inputs, asked) in jobs.items():
        found[name] = {}
        for encoders in sorted({1, threads}):
            shards.ENCODERS.workers = encoders
            told = "as in a worker" if encoders == 1 else f"{encoders} threads encode"
            best = found[name][told] = _quietest(spent, job, inputs, asked, 3 if quick else 5)
            most = ", ".join(
                f"{what} {best[what]:.2f}" for what in spent.seconds if best.get(what, 0) >= 0.005
            )
            more = ", ".join(f"{what} {s:.2f}" for what, s in best["of_the_rest"].items())
            print(
                f"{name}, {told}: {best['cpu_seconds']:.2f} CPU s in {best['wall']:.2f} s ({most}), "
                f"everything else {best['rest']:.2f}, {best['share']:.1%} (of it, watched once more: {more})",
                flush=True,
            )
    shards.ENCODERS.workers = threads
    spent.stop()
    return found


def _quietest(spent: Spent, job: Callable, inputs: list[str], asked: dict, turns: int) -> dict:
    """The quietest of some turns: the first compiles and warms up, the last tells the parts of the rest."""
    import ingest
    from benchmarks.usage import usage
    from chunkstore import statistics
    from ingest import grouping, scratch, stage, write

    out, best, parts = folder("out") / "o.zarr", {}, Spent()
    for turn in range(turns):
        spent.seconds.clear()
        if turn == turns - 1:
            parts.watch("statistics", statistics.Gathering, "add")
            parts.watch("order", write._Shard, "look")
            parts.watch("whole chunks of batches", write._Filling, "_gathered")
            parts.watch("grouping", stage._Stager, "_grouped")
            parts.watch("grouping", grouping.Grouping, "gather")
            parts.watch("checksums of scratch", stage, "page_sums")
            parts.watch("checksums of scratch", scratch.SegmentReader, "_check_page")
        for leftover in (out, Path(f"{out}.ledger")):
            shutil.rmtree(leftover, ignore_errors=True)
        tree, began, clock = usage().cpu_s, time.process_time(), time.perf_counter()
        report = job(inputs[:1] if turn == 0 else inputs, out, workers=0, shard="64MiB", **asked).report
        whole, wall = time.process_time() - began, time.perf_counter() - clock
        # decoders of sound have processes of their own; /proc counts those in steps of 10 ms
        others = max(0.0, usage().cpu_s - tree - whole) if job is ingest.ingest_audio else 0.0
        whole += others
        spent.seconds["read and decode"] += others
        if 0 < turn < turns - 1 and (not best or whole < best["cpu_seconds"]):
            named = {what: round(s, 3) for what, s in spent.seconds.items()}
            rest = whole - sum(spent.seconds.values())
            best = {"cpu_seconds": whole, "wall": wall, "rows": report["obs"], **named}
            best |= {"rest": rest, "share": rest / whole}
    parts.stop()
    shutil.rmtree(out)
    best["of_the_rest"] = {what: round(s, 3) for what, s in parts.seconds.items() if s >= 0.0005}
    return best


def plan(quick: bool) -> dict:
    """1,000 files of 1 GB in blocks of 25 kB, as the Avro scan makes parts of them, then the plan."""
    from chunkstore.layout import FieldSpec
    from ingest.dry import tell_plan
    from ingest.memory import Choices
    from ingest.plan import make_plan
    from ingest.protocol import Part, Scan

    files, blocks = (100, 40_000) if quick else (1000, 40_000)
    began = time.perf_counter()
    parts: list[Part] = []
    random = np.random.default_rng(0)
    for f in range(files):
        rows = random.integers(400, 600, blocks)
        size = rows * 50
        offsets = np.cumsum(size) - size
        group = np.unique(np.searchsorted(offsets, np.arange(0, offsets[-1], 16 * MIB)))
        ends = np.append(group[1:], blocks)
        before = np.concatenate([[0], np.cumsum(rows)])
        for a, b in zip(group.tolist(), ends.tolist(), strict=True):
            parts.append(
                Part(
                    len(parts),
                    f"s3://bucket/readings/{f:05d}.avro",
                    "1000000000-1700000000",
                    int(size[a:b].sum()),
                    int(before[b] - before[a]),
                    200 * MIB,
                    f,
                    {"offset": int(offsets[a]), "blocks": b - a},
                )
            )
    scanned = time.perf_counter() - began
    scan = Scan(
        "avro",
        (FieldSpec("time", "int64"), *(FieldSpec(f"x{i}", "float32") for i in range(4))),
        parts,
        keys=tuple(f"{f:05d}" for f in range(files)),
        placed=True,
        time_field="time",
    )
    began = time.perf_counter()
    made = make_plan(scan, Choices())
    size = sum(len(line) for line in made.lines())
    text = tell_plan(made, 64)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(text)
    print(
        f"{files * blocks:,} blocks in {len(parts):,} parts: parts {scanned:.1f} s, plan {seconds:.1f} s "
        f"({size / MIB:.0f} MiB of lines), peak {peak / MIB:.0f} MiB"
    )
    return {"blocks": files * blocks, "parts": len(parts), "scan": scanned, "plan": seconds, "peak": peak}


def devices(quick: bool) -> dict:
    """10,000 devices over 500 files, rows out of order: sorted by the exchange."""
    sys.path.insert(0, str(ROOT / "tests" / "ingest" / "support"))
    from keyed_source import make_files

    import chunkstore
    import ingest

    files, keys, rows = (50, 1000, 2000) if quick else (500, 10_000, 4000)
    place = folder(f"devices-{files}")
    if not (place / "done").exists():
        columns = make_files(place, files=files, rows=rows, keys=keys)
        np.savez(place / "all.npy", **columns)
        (place / "all.npy.npz").rename(place / "done")
    with np.load(place / "done") as data:
        key, when, value = data["key"], data["time"], data["value"]
    out = folder("out") / "o.zarr"
    began = time.perf_counter()
    options = {"order": "sort", "key_order": "sorted", "part_rows": 4000, "batch_rows": 4000}
    result = ingest.ingest(
        "keyed_source:KeyedSource", str(place / "*.npz"), out, options, workers=2, overwrite=True
    )
    seconds = time.perf_counter() - began
    store = chunkstore.open_store(out)
    order = np.lexsort((np.arange(key.size), when, key))
    ids = [int(i[3:]) for i in store.sequences.ids]
    equal = (
        ids == sorted(set(key.tolist()))
        and np.array_equal(store.read("time", 0, store.n_obs), when[order])
        and np.array_equal(store.read("value", 0, store.n_obs), value[order], equal_nan=True)
    )
    print(
        f"{keys:,} devices, {files} files, {key.size:,} rows in {seconds:.1f} s: "
        f"{'equal to' if equal else 'NOT EQUAL to'} a sort in memory"
    )
    shutil.rmtree(out)
    return {"rows": int(key.size), "seconds": seconds, "equal": bool(equal), **result.report["seconds"]}


class Counted:
    """A source of many parts of 16 numbers that costs nothing to read; a write task reads four."""

    name = "counted"

    def __init__(self, tasks: int = 1) -> None:
        self.tasks = tasks

    def identity(self, file: str) -> str:  # noqa: ARG002 (as the protocol has it)
        return "0"

    def scan(self, inputs):
        from chunkstore.layout import FieldSpec
        from ingest.parts import Parts
        from ingest.protocol import Part, Scan

        parts = Parts(Part(i, inputs[0], "0", 64, 16, 4096, 0) for i in range(4 * self.tasks))
        return Scan(
            self.name,
            (FieldSpec("x", "int32"),),
            parts,
            keys=("all",),
            placed=True,
            options={"tasks": self.tasks},
        )

    def read(self, part):
        from ingest.protocol import Batch

        yield Batch({"x": np.arange(16, dtype=np.int32) + part.index}, 16)


TASKS = """
import json, pathlib, sys, threading, time
import distributed
import ingest, chunkstore
from ingest.progress import Progress

count, place, inputs, resume = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "resume"
most, stop = {"known": 0, "client": 0, "worker": 0}, threading.Event()


def resident(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def watch():
    while not stop.wait(0.25):
        for scheduler in list(distributed.Scheduler._instances):
            most["known"] = max(most["known"], len(scheduler.tasks))
        most["client"] = max(most["client"], resident("self"))
        for pid in pathlib.Path("/proc/self/task").glob("*/children"):
            for child in pid.read_text().split():
                most["worker"] = max(most["worker"], resident(child))


class UntilNearTheEnd(Progress):
    def show(self, event):
        if not resume and event == "task" and self.stage == "write" and self.done == count - 10:
            raise KeyboardInterrupt


thread = threading.Thread(target=watch)
thread.start()
began, cpu, shown = time.perf_counter(), time.process_time(), UntilNearTheEnd()
told = {}
try:
    r = ingest.ingest("benchmarks.ingest:Counted", inputs, place, {"tasks": count}, workers=2, chunk=64,
                      shard=64, overwrite=not resume, resume=resume, progress=shown)
except KeyboardInterrupt:
    told["right"] = True
else:
    store = chunkstore.open_store(place)
    ends = [int(store.read("x", i, i + 1)[0]) for i in (0, store.n_obs - 1)]
    told["right"] = ends == [0, 4 * count + 14] and r.report["write_tasks"] == count == store.n_obs // 64
told |= {"seconds": time.perf_counter() - began, "client_cpu": time.process_time() - cpu}
told |= {**most, **shown.seconds}
stop.set()
thread.join()
print(json.dumps(told))
"""


def tasks(quick: bool, counts: tuple[int, ...] = ()) -> dict:
    """Jobs of very many tasks: seconds, CPU and memory of client, scheduler and workers; then resumed."""
    rows = []
    place = folder("tasks")
    inputs = place / "in.counted"
    inputs.write_bytes(b"0")
    for count in counts or ((400, 4000) if quick else (2000, 20_000)):
        out = place / "o.zarr"
        for how in ("anew", "resume"):
            command = [sys.executable, "-c", TASKS, str(count), str(out), str(inputs), how]
            told = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
            row = {"tasks": count, "how": how, **json.loads(told.splitlines()[-1])}
            rows.append(row)
            what = "all but 10" if how == "anew" else "   resumed"
            print(
                f"{count:>9,} tasks, {what}: {row['seconds']:7.1f} s, "
                f"{1e3 * row['client_cpu'] / count:.2f} ms of CPU each in client and scheduler, at most "
                f"{row['known']} handfuls known to the scheduler, client and scheduler "
                f"{row['client'] / MIB:.0f} MiB, a worker {row['worker'] / MIB:.0f} MiB, "
                f"values {'right' if row['right'] else 'WRONG'}",
                flush=True,
            )
        shutil.rmtree(out)
        shutil.rmtree(str(out) + ".ledger", ignore_errors=True)
    first, last = rows[0], rows[-2]
    if first["tasks"] == last["tasks"]:  # nothing to compare with
        return {"rows": rows}
    grown = {w: (last[w] - first[w]) / (last["tasks"] - first["tasks"]) for w in ("client", "worker")}
    told = f"{grown['client']:.0f} bytes of client and scheduler, {grown['worker']:.0f} of a worker"
    print(f"one more task: {told}")
    return {"rows": rows, "bytes_a_task": grown}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {
        "memory": memory,
        "workers": workers,
        "overhead": overhead,
        "plan": plan,
        "devices": devices,
        "tasks": tasks,
    }
    parser.add_argument("what", nargs="*", choices=[*parts, []], default=[], help="all by default")
    parser.add_argument("--quick", action="store_true", help="smaller inputs, one repeat; nothing is stored")
    parser.add_argument("--tasks", type=int, action="append", default=[], help="number of tasks of `tasks`")
    asked = parser.parse_args()
    if asked.tasks:
        parts["tasks"] = functools.partial(tasks, counts=tuple(asked.tasks))
    turn = Turn()
    for name in asked.what or parts:
        turn.take()
        more = "".join(f" --tasks {n}" for n in asked.tasks) if name == "tasks" else ""
        head = about("ingest", name + more, quick=asked.quick)
        try:
            found = parts[name](asked.quick)
        finally:
            turn.rest(done=True)
        keep(head, found, f"ingest-{name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

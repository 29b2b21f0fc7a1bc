"""Numbers of the store: reading against other readers, codecs on real recordings, opening at the extremes.

    python -m benchmarks.store [read] [codecs] [open] [--out FILE]

Ratios are of one run; the best of several rounds is taken for each reader, the rounds alternate, and
every reader's values are compared with the truth. tensorstore is measured where it is installed.
"""

from __future__ import annotations

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zarr

from benchmarks.harness import about, alone, keep
from chunkstore import FieldSpec, StoreWriter, create_store, finish_store, open_store
from chunkstore.arrays import ArrayMeta
from chunkstore.shards import encode_shard

DATA = Path(os.environ.get("CHUNKSTORE_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
BLOCK = 4 * 1024 * 1024  # obs of float32: 16 MiB
CODECS = ["none", "lz4", "zstd:1", "zstd", "blosc-lz4", "blosc-zstd:1", "blosc-zstd", "pcodec"]


def sensor_like(n: int) -> np.ndarray:
    """Return a drifting signal with a resolution of 0.01, as accelerometers give."""
    rng = np.random.default_rng(0)
    return (np.cumsum(rng.normal(size=n)) % 1000).astype("f4").round(2)


def bench_read(folder: Path, rounds: int) -> dict:
    """Read blocks of 16 MiB in order from one blosc-lz4 store."""
    n = 24 * 1024 * 1024
    values = sensor_like(n)
    found: dict[str, dict] = {}
    for label, shard in (("shards of 64 MiB", "64MiB"), ("shards of 16 MiB", "16MiB")):
        path = folder / f"read-{shard}.zarr"
        with StoreWriter(path, {"x": "f4"}, codec="blosc-lz4", chunk="256KiB", shard=shard) as out:
            out.write("a", {"x": values})
        plain = zarr.open_array(path / "x", mode="r")
        ours = open_store(path)
        out_block = np.empty(BLOCK, "f4")

        def read_ours(at, store=ours, target=out_block):
            store.read_into("x", at, at + BLOCK, target)
            return target

        readers = {
            "zarr-python, default pipeline": lambda at, a=plain: a[at : at + BLOCK],
            "chunkstore": read_ours,
        }
        for engine in ("direct", "zarrs"):
            store = open_store(path, engine=engine)
            readers[f"chunkstore, engine={engine}"] = lambda at, s=store: read_ours(at, s)
        try:
            import tensorstore as ts
        except ImportError:
            print("tensorstore is not installed: pip install tensorstore")
        else:
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / "x")}}
            context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
            array = ts.open(spec, read=True, open=True, context=context).result()
            readers["tensorstore"] = lambda at, a=array: a[at : at + BLOCK].read().result()
        starts = range(0, n, BLOCK)
        best, cpu = dict.fromkeys(readers, float("inf")), dict.fromkeys(readers, float("inf"))
        for name, read in readers.items():
            for at in starts:
                assert np.array_equal(read(at), values[at : at + BLOCK]), name
        for _ in range(rounds):
            for name, read in readers.items():
                begun, used = time.perf_counter(), time.process_time()
                for at in starts:
                    read(at)
                best[name] = min(best[name], time.perf_counter() - begun)
                cpu[name] = min(cpu[name], time.process_time() - used)
        found[label] = {
            name: {
                "GB/s": round(values.nbytes / best[name] / 1e9, 2),
                "GB/cpu-s": round(values.nbytes / cpu[name] / 1e9, 2),
            }
            for name in readers
        }
        base = best["chunkstore"]
        print(f"\nblocks of 16 MiB from a blosc-lz4 store, {label}, chunks of 256 KiB")
        for name, took in best.items():
            print(
                f"  {name:32s} {values.nbytes / took / 1e9:6.2f} GB/s "
                f"{values.nbytes / cpu[name] / 1e9:6.2f} GB/cpu-s   chunkstore: {took / base:5.2f} times"
            )
    return found


def bench_scattered(folder: Path, rounds: int) -> dict:
    """Read 32 scattered chunks in one call, and one crop a call."""
    n, chunk = 8 * 1024 * 1024, 16384
    values = np.random.default_rng(1).integers(-3000, 3000, n).astype("i2")
    path = folder / "scattered.zarr"
    with StoreWriter(path, {"x": "i2"}, codec="blosc-lz4", chunk=chunk, shard=n // 4) as out:
        out.write("a", {"x": values})
    starts = np.random.default_rng(2).integers(0, n // chunk, 32) * chunk
    plain, ours, pipe = (
        zarr.open_array(path / "x", mode="r"),
        open_store(path),
        open_store(path, engine="zarrs"),
    )
    outs = list(np.empty((32, chunk), "i2"))
    raw = _zarrs_array(pipe)

    def one_by_one(array):
        for at, target in zip(starts.tolist(), outs, strict=True):
            target[:] = array[at : at + chunk]

    readers = {
        "zarr-python, default pipeline": lambda: one_by_one(plain),
        "zarrs pipeline": lambda: one_by_one(raw),
        "chunkstore.read_ranges": lambda: ours.read_ranges("x", starts, starts + chunk, outs),
    }
    best = dict.fromkeys(readers, float("inf"))
    for _ in range(rounds * 3):
        for name, read in readers.items():
            begun = time.perf_counter()
            read()
            best[name] = min(best[name], time.perf_counter() - begun)
            assert all(np.array_equal(o, values[s : s + chunk]) for o, s in zip(outs, starts, strict=True))
    print("\n32 scattered chunks of 16,384 int16 from a blosc-lz4 store")
    base = best["chunkstore.read_ranges"]
    for name, took in best.items():
        print(f"  {name:32s} {32 / took:9.0f} chunks/s   read_ranges is {took / base:5.2f} times as fast")
    return {name: round(32 / took) for name, took in best.items()}


def _zarrs_array(store):
    store._engine("x")
    return store._zarrs["x"]


def recordings() -> dict[str, np.ndarray]:
    """Return real recordings, and a made signal where there are none."""
    found = {"made float32 (0.01 steps)": sensor_like(4_000_000)}
    if not (DATA / "README.md").is_file():
        print(f"no recordings at {DATA}: codecs are measured on made signals only")
        return found
    import fastavro

    for name in ("gait", "heart", "weather"):
        rows = []
        for path in sorted(glob.glob(str(DATA / "avro" / name / "*.avro"))):
            try:
                with open(path, "rb") as file:
                    rows += list(fastavro.reader(file))
            except ValueError:  # a codec whose library is not installed
                continue
        keys = [k for k, v in rows[0].items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
        columns = [np.array([np.nan if r[k] is None else r[k] for r in rows], dtype="f4") for k in keys]
        found[f"{name}, float32"] = np.tile(
            np.concatenate(columns), max(1, 2_000_000 // (len(rows) * len(columns)))
        )
    try:
        import soundfile
    except ImportError:
        return found
    clips = [
        soundfile.read(p, dtype="int16", always_2d=True)[0][:, 0]
        for p in sorted(glob.glob(str(DATA / "audio/esc10/*/*.ogg")))[:40]
    ]
    if clips:
        found["esc10, int16"] = np.concatenate(clips)
    scapes = [p for p in sorted(glob.glob(str(DATA / "audio/soundscape/*"))) if p.endswith(".flac")]
    if scapes:
        found["soundscape, int16"] = soundfile.read(scapes[0], dtype="int16", always_2d=True)[0][
            :4_000_000, 0
        ]
    return found


def bench_codecs(folder: Path, rounds: int) -> dict:
    """Ratio and speed of each codec on each recording, one thread decoding."""
    table: dict[str, dict] = {}
    for title, values in recordings().items():
        table[title] = {}
        print(f"\n{title}: {values.nbytes / 1e6:.0f} MB, chunks of 256 KiB")
        for codec in CODECS:
            chunk = 256 * 1024 // values.dtype.itemsize
            shard = -(-len(values) // chunk) * chunk
            meta = ArrayMeta.build(
                "x", (len(values),), ("obs",), values.dtype.name, chunk=chunk, shard=shard, codec=codec
            )
            encode = decode = float("inf")
            for _ in range(rounds):
                begun = time.perf_counter()
                stored = b"".join(encode_shard(meta, values))
                encode = min(encode, time.perf_counter() - begun)
            path = folder / "codec.zarr"
            with StoreWriter(
                path, {"x": values.dtype}, codec=codec, chunk=chunk, shard=shard, overwrite=True
            ) as out:
                out.write("a", {"x": values})
            store, target = open_store(path, engine="direct"), np.empty_like(values)
            for _ in range(rounds):
                begun = time.perf_counter()
                store.read_into("x", 0, len(values), target)
                decode = min(decode, time.perf_counter() - begun)
            assert np.array_equal(target, values, equal_nan=True)
            row = {
                "ratio": round(values.nbytes / len(stored), 2),
                "encode GB/s": round(values.nbytes / encode / 1e9, 2),
                "decode GB/s": round(values.nbytes / decode / 1e9, 2),
            }
            table[title][codec] = row
            print(
                f"  {codec:14s} ratio {row['ratio']:5.2f}   encode {row['encode GB/s']:5.2f}   "
                f"decode {row['decode GB/s']:5.2f} GB/s"
            )
    return table


OPEN = """
import sys, time
import chunkstore.store, chunkstore.segments, chunkstore.splits, numcodecs
def peak():  # in KiB; unlike getrusage it starts anew at exec
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
begun = time.perf_counter()
store = chunkstore.store.open_store(sys.argv[1])
segments = store.segments()
took = time.perf_counter() - begun
after = peak()
print(len(segments), store.n_obs, took, (after - before) / 1024, after / 1024)
"""


def bench_open(folder: Path) -> dict:
    """Open a store of a million sequences, and one whose obs axis claims 10**12, each in a fresh process."""
    n = 1_000_000
    create_store(folder / "million.zarr", fields=[FieldSpec("x", "f4")], n_obs=100 * n)
    finish_store(
        folder / "million.zarr", rowsize=np.full(n, 100), ids=[f"recording-{i:07d}" for i in range(n)]
    )
    trillion = 10**12
    create_store(folder / "trillion.zarr", fields=[FieldSpec("x", "f4")], n_obs=trillion)
    finish_store(
        folder / "trillion.zarr", rowsize=np.full(1000, trillion // 1000), ids=[f"r{i}" for i in range(1000)]
    )
    found = {}
    for name in ("million", "trillion"):
        done = subprocess.run(
            [sys.executable, "-c", OPEN, str(folder / f"{name}.zarr")],
            capture_output=True,
            text=True,
            check=True,
        )
        segments, obs, took, grown, peak = (float(v) for v in done.stdout.split())
        found[name] = {"seconds": round(took, 3), "MB grown": round(grown, 1), "MB peak": round(peak, 1)}
        print(
            f"\nopening {segments:,.0f} sequences of {obs:,.0f} obs and building segments: {took:.3f} s, "
            f"{grown:.0f} MB more than the imports, {peak:.0f} MB in all"
        )
    begun = time.perf_counter()
    store = open_store(folder / "trillion.zarr")
    segments = store.segments()
    windows = int((segments.stop - segments.start - 512 + 1).sum())
    print(f"windows of 512 at stride 1 in it: {windows:,} in {time.perf_counter() - begun:.4f} s; {store!r}")
    found["trillion"]["windows"] = windows
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", choices=["read", "codecs", "open", []], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, help="JSON file; benchmarks/results/store.json where all is asked for"
    )
    parser.add_argument("--quick", action="store_true", help="one round; nothing is stored")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    wanted = options.what or ["read", "codecs", "open"]
    head, found = about("store", " ".join(options.what), quick=options.quick), {}
    with alone(), tempfile.TemporaryDirectory(prefix="chunkstore-bench-") as scratch:
        if "read" in wanted:
            found["read"] = bench_read(Path(scratch), rounds)
            found["scattered"] = bench_scattered(Path(scratch), rounds)
        if "codecs" in wanted:
            found["codecs"] = bench_codecs(Path(scratch), min(3, rounds))
        if "open" in wanted:
            found["open"] = bench_open(Path(scratch))
    if options.out or not options.what:
        keep(head, found, out=options.out)


if __name__ == "__main__":
    main()

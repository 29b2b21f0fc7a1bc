"""Audio: which codec, how many bytes, how fast an ingest, how much memory. Run on real recordings.

    python -m benchmarks.audio codecs     ratio, encode and decode speed of every codec of the store
    python -m benchmarks.audio bytes      bytes of a store of default settings against float32 .npy
    python -m benchmarks.audio ingest     1 and 2 workers against the bare loop of decode and resample
    python -m benchmarks.audio memory     peak of the decoding process from 10 seconds to 3 hours

Recordings: the folder of the tests (``CHUNKSTORE_TEST_DATA``, or ``../shared/data``). Speeds are of one
thread, medians of repeats that take turns; compare them within one run only.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import ROOT, about, alone, keep
from ingest.sources.audio import AudioSource, isolate

DATA = Path(os.environ.get("CHUNKSTORE_TEST_DATA") or ROOT.parent / "shared" / "data") / "audio"
CHUNK = 131_072
RATE = 32_000


def recordings(*patterns: str) -> list[str]:
    return [str(p) for pattern in patterns for p in sorted(DATA.glob(pattern))]


def decoded(files: list[str], rate: int | None, dtype: str = "int16") -> np.ndarray:
    """All samples of some files, one after the other, as a store holds them."""
    source = AudioSource(rate=rate, dtype=dtype, isolate=False)
    scan = source.scan(files)
    reader = AudioSource(**scan.options)
    return np.concatenate([b.columns["audio"] for part in scan.parts for b in reader.read(part)])


def flac_bytes(values: np.ndarray) -> bytes:
    import io

    import soundfile

    out = io.BytesIO()
    soundfile.write(out, values, RATE, format="FLAC", subtype="PCM_16")
    return out.getvalue()


def flac_values(raw: bytes) -> np.ndarray:
    import io

    import soundfile

    return soundfile.read(io.BytesIO(raw), dtype="int16")[0]


def codec_subjects(dtype: np.dtype) -> dict[str, tuple]:
    """name -> (encode, decode); each store codec as the store itself uses it, checksum included."""
    from chunkstore.codecs import codec_chain, parse_chain

    names = ["none", "lz4", "zstd:1", "zstd:3", "zstd:9", "blosc-lz4:1", "blosc-lz4:5", "blosc-lz4:9"]
    names += ["blosc-zstd:1", "blosc-zstd:3", "blosc-zstd:7", "pcodec:4", "pcodec:8"]
    subjects = {}
    for name in names:
        codec = parse_chain(codec_chain(name, dtype), dtype)

        def decode(raw: bytes, out: np.ndarray, codec=codec) -> None:
            codec.decode_into(raw, out)

        subjects[name] = (codec.encode, decode)
    if dtype == np.int16:

        def flac(raw: bytes, out: np.ndarray) -> None:
            out[:] = flac_values(raw)

        subjects["FLAC (no Zarr codec)"] = (flac_bytes, flac)
    return subjects


def measure_codecs(values: np.ndarray, repeats: int) -> dict[str, dict[str, float]]:
    chunks = [np.ascontiguousarray(c) for c in np.array_split(values, max(1, len(values) // CHUNK))]
    subjects = codec_subjects(values.dtype)
    encoded = {name: [bytes(encode(c)) for c in chunks] for name, (encode, _) in subjects.items()}
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in subjects}
    outs = [np.empty_like(c) for c in chunks]
    for _ in range(repeats):
        for name, (encode, decode) in subjects.items():
            start = time.perf_counter()
            for chunk in chunks:
                encode(chunk)
            middle = time.perf_counter()
            for raw, out in zip(encoded[name], outs, strict=True):
                decode(raw, out)
            times[name][0].append(middle - start)
            times[name][1].append(time.perf_counter() - middle)
    for out, chunk in zip(outs, chunks, strict=True):
        assert np.array_equal(out, chunk)
    mb = values.nbytes / 1e6
    return {
        name: {
            "share_of_int16": sum(map(len, raw)) / values.nbytes,
            "share_of_float32_npy": sum(map(len, raw)) / (4 * values.size),
            "encode_MB_s": mb / statistics.median(times[name][0]),
            "decode_MB_s": mb / statistics.median(times[name][1]),
        }
        for name, raw in encoded.items()
    }


def codecs(repeats: int, *, quick: bool) -> dict[str, object]:
    sets = {
        "esc10, 32 kHz int16": decoded(recordings("esc10/**/*.ogg"), RATE),
        "soundscape, 48 kHz int16": decoded(recordings("soundscape/*.flac"), 48_000),
        "speech and digits, 16 kHz int16": decoded(recordings("speech/*", "digits/*.wav"), 16_000),
    }
    result: dict[str, object] = {}
    for title, whole in sets.items():
        values = whole[: 8 * CHUNK] if quick else whole
        table = measure_codecs(values, repeats)
        result[title] = table
        print(f"\n{title}: {values.size} samples, chunks of {CHUNK}")
        print(f"{'codec':22} {'of int16':>9} {'of f32 npy':>10} {'encode MB/s':>12} {'decode MB/s':>12}")
        for name, row in table.items():
            print(
                f"{name:22} {row['share_of_int16']:9.3f} {row['share_of_float32_npy']:10.3f} "
                f"{row['encode_MB_s']:12.0f} {row['decode_MB_s']:12.0f}"
            )
    return result


def stored_bytes(repeats: int, *, quick: bool) -> dict[str, object]:
    from ingest import ingest_audio

    result: dict[str, object] = {}
    sets = [
        ("esc10", recordings("esc10/**/*.ogg"), RATE),
        ("soundscape", recordings("soundscape/*.flac"), 48_000),
        ("both", recordings("esc10/**/*.ogg", "soundscape/*.flac"), RATE),
    ]
    for title, files, rate in sets[:1] if quick else sets:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "a.zarr"
            ingest_audio(files, out, rate=rate, workers=1)
            stored = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
            samples = decoded(files, rate).size
        ratio = stored / (4 * samples)
        result[title] = {"stored": stored, "float32_npy": 4 * samples, "ratio": ratio}
        print(
            f"{title:12} {stored:12} bytes stored, {4 * samples:12} as float32 .npy: "
            f"{ratio:.3f} (at most 0.45)"
        )
    return result


def bare_loop(files: list[str]) -> int:
    """What anyone would write: decode whole, mix, resample whole, keep nothing."""
    import soundfile
    import soxr

    total = 0
    for file in files:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
        total += len(soxr.resample(samples.mean(axis=1), rate, RATE))
    return total


def through_source(files: list[str]) -> int:
    """The same through the source alone: decoder process, checks, counts, int16; nothing written."""
    source = AudioSource(rate=RATE)
    scan = source.scan(files)
    reader = AudioSource(**scan.options)
    total = sum(batch.rows for part in scan.parts for batch in reader.read(part))
    isolate.pool.close()
    return total


def cpu_seconds() -> float:
    """CPU time of this process and of all children that have ended."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def one_way(folder: str, way: str) -> None:
    """Do the work once in this fresh process; print wall and CPU seconds and samples."""
    from ingest import ingest_audio

    inputs = [str(p) for p in sorted(Path(folder, "in").rglob("*.ogg"))]
    with tempfile.TemporaryDirectory(dir=folder) as out:
        wall, cpu = time.perf_counter(), cpu_seconds()
        if way == "bare loop":
            samples = bare_loop(inputs)
        elif way == "source alone":
            samples = through_source(inputs)
        else:
            result = ingest_audio(inputs, Path(out) / "a.zarr", rate=RATE, workers=int(way[0]))
            samples = result.report["obs"]
        print(time.perf_counter() - wall, cpu_seconds() - cpu, samples)


def ingest_speed(repeats: int, *, quick: bool) -> dict[str, object]:
    """Each way in a fresh process, by turns; the start of workers and decoder processes is part of it."""
    copies = int(os.environ.get("AUDIO_BENCH_COPIES") or (1 if quick else 12))
    ways = ["bare loop", "source alone", "1 worker", "2 workers"]
    seen: dict[str, list[list[float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        for copy in range(copies):
            for file in recordings("esc10/**/*.ogg", "soundscape/*.ogg"):
                link = Path(folder) / "in" / str(copy) / Path(file).name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file)
        for _ in range(repeats):
            for way in ways:
                text = subprocess.run(
                    [sys.executable, "-m", "benchmarks.audio", "_one", folder, way],
                    check=True,
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                ).stdout
                seen[way].append([float(n) for n in text.split()])
    middle = {
        way: [statistics.median(column) for column in zip(*rows, strict=True)] for way, rows in seen.items()
    }
    sound = middle["bare loop"][2] / RATE
    print(f"{sound:.0f} s of sound in {81 * copies} ogg files; load of the machine {os.getloadavg()[0]:.1f}")
    for way, (wall, cpu, _) in middle.items():
        print(f"{way:13} {wall:7.2f} s, {cpu:7.2f} s of CPU, {sound / wall:6.0f} times real time")
    wall = {way: row[0] for way, row in middle.items()}
    cpu = {way: row[1] for way, row in middle.items()}
    print(f"2 workers against 1: {wall['1 worker'] / wall['2 workers']:.2f} (at least 1.8)")
    print(f"2 workers against the bare loop: {wall['bare loop'] / wall['2 workers']:.2f} (at least 0.9)")
    for way in ("source alone", "1 worker"):
        print(f"CPU of the bare loop against {way}: {cpu['bare loop'] / cpu[way]:.2f}")
    return {"wall_cpu_samples": seen, "sound_s": sound, "load": os.getloadavg()[0]}


def long_file(folder: Path, seconds: int, suffix: str) -> Path:
    import soundfile

    path = folder / f"noise-{seconds}.{suffix}"
    if path.exists():
        return path
    rng = np.random.default_rng(seconds)
    minute = (rng.standard_normal(8000 * 10) * 0.1).astype(np.float32)
    partial = path.with_suffix(".part")
    kind = {"ogg": ("OGG", "VORBIS"), "flac": ("FLAC", "PCM_16"), "wav": ("WAV", "PCM_16")}[suffix]
    with soundfile.SoundFile(partial, "w", 8000, 1, format=kind[0], subtype=kind[1]) as file:
        for _ in range(seconds // 10):
            file.write(minute)
    partial.rename(path)
    return path


def memory(repeats: int, *, quick: bool) -> dict[str, object]:
    """Peak memory of a decoding process and of its owner for files of 10 seconds to 3 hours."""
    from benchmarks.harness import work_dir

    folder = work_dir() / "audio"
    folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, object] = {}
    for suffix in ("wav", "flac", "ogg"):
        for seconds in (10, 600) if quick else (10, 600, 10_800):
            path = long_file(folder, seconds, suffix)
            text = subprocess.run(
                [sys.executable, "-m", "benchmarks.audio", "_peak", str(path)],
                check=True,
                cwd=ROOT,
                capture_output=True,
                text=True,
            ).stdout
            child, owner = (int(n) for n in text.split())
            result[f"{suffix} {seconds} s"] = {"decoder_MB": child / 1e3, "owner_MB": owner / 1e3}
            print(f"{suffix:5} {seconds:6} s: decoder {child / 1e3:7.1f} MB, owner {owner / 1e3:7.1f} MB")
    return result


def peak_of(path: str) -> None:
    """Read one file through the isolated decoder; print the peaks of both processes in kB."""
    source = AudioSource(rate=16_000)
    scan = source.scan([path])
    reader = AudioSource(**scan.options)
    for _ in reader.read(scan.parts[0]):
        pass
    process = isolate.pool.take(int(reader.options.decoder_memory))
    status = Path(f"/proc/{process.pid}/status").read_text()
    child = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    process.close()
    print(child, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    work = {"codecs": codecs, "bytes": stored_bytes, "ingest": ingest_speed, "memory": memory}
    parser.add_argument("what", nargs="*", metavar="PART", help=f"{', '.join(work)}; all by default")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repeat of less; nothing is stored")
    args = parser.parse_args()
    if args.what[:1] == ["_one"]:
        one_way(args.what[1], args.what[2])
        return 0
    if args.what[:1] == ["_peak"]:
        peak_of(args.what[1])
        return 0
    if strange := sorted({*args.what} - {*work}):
        parser.error(f"there is no part {strange[0]!r}; parts: {', '.join(work)}")
    if not DATA.is_dir():
        print(f"no recordings at {DATA}, so nothing was measured; set CHUNKSTORE_TEST_DATA")
        return 0 if args.quick else 2
    for name in args.what or work:
        with alone():
            head = about("audio", name, quick=args.quick)
            keep(head, work[name](1 if args.quick else args.repeats, quick=args.quick), f"audio-{name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Fuzz a target for a while: ``python -m fuzz.run [TARGET ...] [--seconds 60] [--corpus FOLDER]``.

With atheris installed the fuzzer is guided by coverage (libFuzzer), keeps a corpus and stops at the
first input that crashes, hangs (60 s) or takes 4 GiB; it is written to ``FOLDER/TARGET-crash-*``.
Without atheris inputs are mutated at random, seeded. An input that was found becomes a file of
``tests/fuzz/inputs/TARGET``.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
#: modules whose functions numba compiles: what guides the fuzzer cannot stand in them
COMPILED = (
    "ingest.sources.avro.kernel",
    "ingest.sources.avro.walk_kernel",
    "chunkstore.dealing",
    "chunkstore.gather",
    "chunkstore.permute",
    "chunkstore.schedule",
)
NAMES = ("avro-file", "avro-kernel", "audio-header", "store-root", "chunk", "ledger")


def has_atheris() -> bool:
    """Whether the coverage-guided fuzzer is installed."""
    from importlib.util import find_spec

    return find_spec("atheris") is not None


def guided(name: str, seconds: float, corpus: Path) -> None:
    """Fuzz one target with libFuzzer; the process ends with it."""
    import atheris

    instrument = {
        "avro-file": ["ingest.sources.avro"],
        "avro-kernel": ["ingest.sources.avro", "fuzz.targets"],
        "audio-header": ["ingest.sources.audio"],
        "store-root": ["chunkstore"],
        "chunk": ["chunkstore"],
        "ledger": ["ingest"],
    }[name]
    with atheris.instrument_imports(include=instrument, exclude=list(COMPILED)):
        from fuzz.targets import TARGETS

        target = TARGETS[name]
        for seed in target.seeds():
            target.run(seed)  # modules are imported at their first use; and kernels are compiled now
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    known = ROOT / "tests/fuzz/inputs" / name
    for i, seed in enumerate([*target.seeds(), *(p.read_bytes() for p in sorted(known.glob("*")))]):
        (folder / f"seed-{i}").write_bytes(seed)
    words = corpus / f"{name}.dict"
    quoted = ("".join(f"\\x{b:02x}" for b in word) for word in target.words)
    words.write_text("".join(f'"{word}"\n' for word in quoted))
    options = [
        f"-max_total_time={seconds:.0f}",
        "-timeout=60",
        "-rss_limit_mb=4096",
        "-max_len=65536",
        f"-dict={words}",
    ]
    options += [f"-artifact_prefix={corpus}/{name}-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(folder)], target.run)
    atheris.Fuzz()


def unguided(name: str, seconds: float, seed: int) -> int:
    """Mutate inputs at random for a while; return how many were tried."""
    from fuzz.targets import TARGETS, mutate

    target = TARGETS[name]
    luck = random.Random(f"{name} {seed}")
    pool = target.seeds()
    tried, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        data = mutate(luck.choice(pool), luck, target.words)
        try:
            target.run(data)
        except BaseException:
            print(f"{name}: this input fails: {data[:2000]!r}", flush=True)
            raise
        tried += 1
        if luck.random() < 0.02:
            pool.append(data)
    return tried


def main() -> int:
    """Fuzz every target that was asked for, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description="Fuzz what reads hostile bytes.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(NAMES))
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--corpus", type=Path, default=ROOT / "fuzz/corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unguided", action="store_true", help="without atheris, even if it is there")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names = asked.targets or list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(NAMES)}")
    if asked.here:
        guided(names[0], asked.seconds, asked.corpus)
    if asked.unguided or not has_atheris():
        if not asked.unguided:
            print("atheris is not installed: mutating at random, without coverage")
        for name in names:
            tried = unguided(name, asked.seconds, asked.seed)
            print(f"{name}: {tried} inputs in {asked.seconds:.0f} s, none failed", flush=True)
        return 0
    failed = []
    for name in names:
        arguments = ["--here", name, "--seconds", str(asked.seconds), "--corpus", str(asked.corpus)]
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.run", *arguments],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        stats = [line for line in done.stderr.splitlines() if "number_of_executed" in line or "cov:" in line]
        print(f"{name}: exit {done.returncode}; {'; '.join(stats[-2:])}", flush=True)
        if done.returncode:
            failed.append(name)
            print(done.stdout[-2000:], done.stderr[-4000:], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run every question, then write the page: ``python -m benchmarks [--quick] [QUESTION ...]``.

One question after the other, each in a process of its own; one that fails is said at the end, and the
exit status is then 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import ROOT

#: modules that are no question of their own
PARTS = {
    *(
        "__init__",
        "__main__",
        "check",
        "compare_runs",
        "data",
        "harness",
        "numbers",
        "page",
        "plots",
        "probe",
    ),
    *("quality", "quotes", "setup", "soak", "usage", "winners"),
}
#: the order of a whole run: what the page shows first, then what is behind it, last what takes longest
ORDER = (
    *("compare_windows", "compare_audio", "compare_ingest", "compare_growth", "workers"),
    *("store", "windows", "training", "audio", "avro", "ingest"),
)
#: a quick run asks for these parts of a question only: all of them take longer than minutes
QUICK_PARTS = {"ingest": ("overhead", "plan"), "audio": ("codecs", "bytes"), "windows": ("--only", "rates")}


def questions() -> list[str]:
    """Names of the modules that answer one, in the order of a whole run."""
    found = {path.stem for path in Path(__file__).parent.glob("*.py")} - PARTS
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def main(argv: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the benchmarks.")
    parser.add_argument(
        "--quick", action="store_true", help="smaller data; nothing is stored and the page stays as it is"
    )
    parser.add_argument("names", nargs="*", metavar="QUESTION", help=", ".join(questions()))
    asked = parser.parse_args(argv)
    failed, started = [], time.monotonic()
    for name in asked.names or questions():
        print(f"== {name}", flush=True)
        began = time.monotonic()
        order = [sys.executable, "-m", f"benchmarks.{name}"]
        if asked.quick:
            order += ["--quick", *QUICK_PARTS.get(name, ())]
        if subprocess.run(order, cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - began:.0f} s", flush=True)
    if not asked.quick:
        subprocess.run([sys.executable, "-m", "benchmarks.page"], cwd=ROOT, check=True)
    print(f"took {(time.monotonic() - started) / 60:.0f} minutes")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return min(len(failed), 1)


if __name__ == "__main__":
    raise SystemExit(main())

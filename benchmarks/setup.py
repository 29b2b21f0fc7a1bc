"""Install the peers, each group in an environment of its own: ``python -m benchmarks.setup [GROUP ...]``.

Groups are the files ``requirements-GROUP.txt`` beside this one; the versions are pinned there. What can't
be installed is said, and becomes a stated gap in the tables; the exit status is then 1. Environments go
below the work folder (``$CHUNKSTORE_BENCH_WORK``, else benchmarks/work) and need about 5 GB. The CPU build of
torch is enough; a plain install may bring several gigabytes of CUDA libraries, so point pip to it first.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import work_dir

HERE = Path(__file__).parent
#: groups whose packages need a newer Python than ours does
PYTHONS = {"arrays": (3, 12)}


def groups() -> list[str]:
    """Names of the groups, in the order of their files."""
    return sorted(path.stem.removeprefix("requirements-") for path in HERE.glob("requirements-*.txt"))


def find_python(least: tuple[int, int]) -> str | None:
    """An interpreter of at least this version: this one, one on the PATH, or one that pyenv keeps."""
    if sys.version_info >= least:
        return sys.executable
    places = os.environ.get("PATH", "").split(os.pathsep)
    places += sorted(str(path) for path in (Path.home() / ".pyenv" / "versions").glob("*/bin"))
    runs = functools.partial(subprocess.run, capture_output=True, check=False)
    for minor in range(least[1], least[1] + 4):
        for place in places:
            found = Path(place) / f"python3.{minor}"
            if found.exists() and not runs([found, "-V"]).returncode:
                return str(found)
    return None


def install(group: str) -> str | None:
    """Make the environment of a group unless it is there and up to date; what went wrong, or None."""
    wanted = HERE / f"requirements-{group}.txt"
    venv = work_dir() / f"venv-{group}"
    stamp = venv / ".installed"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return None
    python = find_python(PYTHONS.get(group, (3, 11)))
    if python is None:
        return "needs Python {}.{} or newer on the PATH".format(*PYTHONS[group])
    if not (venv / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(wanted)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        return next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), "pip failed")
    stamp.write_text(digest)
    return None


def main(argv: list[str] | None = None) -> int:
    """Install the named groups, or all; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.setup", description="Install the peers.")
    parser.add_argument("groups", nargs="*", default=groups(), metavar="GROUP", help=", ".join(groups()))
    failed = 0
    for group in parser.parse_args(argv).groups:
        problem = install(group)
        print(f"{group}: {problem or 'ready'}", flush=True)
        failed += problem is not None
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())

"""Build wheel and sdist, check them, and test the wheel outside the tree.

Dependencies are taken from the environment that runs this; the packages themselves are not: they are
installed from the wheel into a folder of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: tests that need nothing of the tree but themselves
TESTS = (
    "tests/chunkstore/test_package.py",
    "tests/chunkstore/test_round_trip.py",
    "tests/test_first_light.py",
)


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command, or end with its exit status."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, check=False, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Build, look inside, install, test."""
    with tempfile.TemporaryDirectory(prefix="dist-check-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT)
        (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        with zipfile.ZipFile(wheel) as archive:
            tops = {n.split("/")[0] for n in archive.namelist()}
        extra = {t for t in tops if not t.endswith(".dist-info")} - {"chunkstore", "ingest"}
        if extra or "chunkstore" not in tops:
            sys.exit(f"the wheel holds {sorted(tops)}")
        with tarfile.open(sdist) as tar:
            inside = {n.partition("/")[2] for n in tar.getnames()}
        lost = [t for t in (*TESTS, "LICENSE", "pyproject.toml", "docs/store-format.md") if t not in inside]
        if lost:
            sys.exit(f"the sdist lacks {lost}")
        run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder / "site", wheel)
        for test in (*TESTS, "tests/conftest.py", "pyproject.toml"):
            target = folder / "away" / test
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / test, target)
        site = str(folder / "site")
        code = (
            f"import chunkstore, ingest; assert chunkstore.__file__.startswith({site!r}), chunkstore.__file__"
        )
        run(sys.executable, "-c", code, cwd=folder / "away", PYTHONPATH=site)
        arguments = ["-q", "-p", "no:cacheprovider", "tests"]
        data = os.environ.get("CHUNKSTORE_TEST_DATA") or str(ROOT.parent / "shared/data")
        away = {"cwd": folder / "away", "PYTHONPATH": site, "CHUNKSTORE_TEST_DATA": data}
        run(sys.executable, "-m", "pytest", *arguments, **away)
        run(folder / "site/bin/chunkstore", "--version", cwd=folder / "away", PYTHONPATH=site)
        print(f"{wheel.name} and {sdist.name} are sound")


if __name__ == "__main__":
    main()

"""The Makefile says what to install where Python or venv is missing, from a folder of any name."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on the PATH")


def make(folder, *words):
    return subprocess.run(
        ["make", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def clone(tmp_path):
    """A folder with blanks and a quote in its name, with what the Makefile looks at."""
    folder = tmp_path / "it's a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def python(folder, body):
    """A stand-in for an interpreter."""
    file = folder.parent / "fakepython"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return f"PYTHON={file}"


@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_missing_venv_is_named_with_its_package(clone, target):
    fake = python(clone, 'case "$1" in -c) exit 0;; -m) echo "No module named venv" >&2; exit 1;; esac')
    seen = make(clone, target, fake)
    assert seen.returncode != 0
    assert "apt-get install python3-venv" in seen.stdout
    assert not (clone / ".venv").exists()


def test_an_old_python_is_named_as_such(clone):
    seen = make(clone, "test", python(clone, "exit 1"))
    assert seen.returncode != 0
    assert "needs Python 3.11 or newer" in seen.stdout


def test_no_python_at_all_is_said(clone):
    seen = make(clone, "test", "PYTHON=")
    assert seen.returncode != 0
    assert "needs Python 3.11 or newer" in seen.stdout


def test_make_alone_lists_what_there_is(clone):
    seen = make(clone)
    assert seen.returncode == 0
    assert "make demo" in seen.stdout
    assert "make test" in seen.stdout

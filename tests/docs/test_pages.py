"""Every snippet on the site and in the README runs, in a fresh folder, as its reader would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import page as runner  # noqa: E402 - lies beside this file

PAGES = sorted(
    p
    for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if not {"_build", "generated"} & set(p.parts)
    and any(language in ("python", "console") for _, language, _ in runner.blocks(p.read_text()))
)


PAGES += sorted((ROOT / "docs").rglob("*.ipynb"))


def run_page(page, folder, *more):
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "COLUMNS": "110",
    }
    child = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "page.py"), str(page), *more],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert child.returncode == 0, child.stdout[-4000:] + child.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_snippet_of_a_page_runs(page, tmp_path):
    run_page(page, tmp_path)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.data
@pytest.mark.parametrize("name", ["sensors", "birds"])
def test_a_tutorial_also_runs_on_real_recordings(name, tmp_path, shared_data):
    run_page(ROOT / "docs" / "tutorials" / f"{name}.md", tmp_path, str(shared_data))


def test_fences_are_found_with_their_language_and_line():
    text = "a\n```python\nx = 1\n```\n\n````text\n```python\n```\n````\n"
    assert list(runner.blocks(text)) == [(3, "python", "x = 1\n"), (7, "text", "```python\n```\n")]

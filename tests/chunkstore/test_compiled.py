"""What is compiled is kept on disk for as long as the source says the same, in whatever file that stands."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys

import pytest

import chunkstore
import ingest
from chunkstore.compiled import stamp_of

KERNEL = """
from chunkstore.compiled import njit
from values import FACTOR, added

@njit(cache=True)
def made(n):
    return FACTOR * n + added(n)
"""
VALUES = """
from chunkstore.compiled import njit

FACTOR = {}

@njit(cache=True)
def added(n):
    return n + {}
"""


def test_a_function_is_not_kept_beyond_what_it_takes_from_other_files(tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
        "NUMBA_CACHE_DIR": str(tmp_path / "kept"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def run(*values):
        file, text = tmp_path / "values.py", VALUES.format(*values)
        if not file.exists() or file.read_text() != text:  # older numba knows files by their time
            file.write_text(text)
        code = "import kernel; print(kernel.made(10), sum(kernel.made.stats.cache_hits.values()))"
        command = [sys.executable, "-c", code]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        return tuple(map(int, told.split()))

    assert run(1, 1) == (21, 0)
    assert run(1, 1) == (21, 1)  # kept
    assert run(2, 1)[0] == 31
    assert run(2, 5)[0] == 35


def compiled():
    for package in (chunkstore, ingest):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.rpartition(".")[2] in {"fastai", "tsai", "lightning", "__main__"}:
                continue
            try:
                module = importlib.import_module(found.name)
            except ImportError:
                continue
            for name, value in vars(module).items():
                if hasattr(value, "py_func") and value.py_func.__module__ == module.__name__:
                    yield f"{found.name}.{name}", value


def test_all_that_we_compile_is_known_by_what_it_takes_from_other_files():
    found = dict(compiled())
    assert {"chunkstore.permute.permute_one", "ingest.sources.avro.kernel.decode_blocks"} <= set(found)
    for name, function in found.items():
        cache = function._cache
        if hasattr(cache, "_cache_file"):
            assert cache._cache_file._source_stamp != cache._impl.locator.get_source_stamp(), name


@pytest.mark.parametrize("name", ["END", "MAX_MARKS"])
def test_the_kernel_is_known_by_its_opcodes(monkeypatch, name):
    from ingest.sources.avro import kernel

    before = stamp_of(kernel.decode_blocks)
    monkeypatch.setattr(kernel, name, getattr(kernel, name) + 1)
    assert stamp_of(kernel.decode_blocks) != before

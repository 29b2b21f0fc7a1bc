"""The front door: what it promises, and that it opens quickly."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import chunkstore

HEAVY = {"torch", "zarr", "dask", "xarray", "numba", "pandas"}


@pytest.mark.parametrize("name", sorted(set(chunkstore.__all__) - {"__version__"}))
def test_every_promised_name_is_there(name):
    home = chunkstore._HOMES[name]
    if home == "torch":
        pytest.importorskip("torch")
    assert getattr(chunkstore, name) is getattr(importlib.import_module(f"chunkstore.{home}"), name)


def test_the_promise_is_all_that_dir_adds():
    assert set(chunkstore.__all__) <= set(dir(chunkstore))
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = chunkstore.no_such_thing


def test_importing_it_imports_nothing_heavy():
    code = f"import sys, chunkstore; print(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_opening_and_reading_imports_no_zarr_where_our_reader_does_it(tmp_path):
    with chunkstore.StoreWriter(tmp_path / "a.zarr", {"x": "f4"}, chunk=4, shard=8) as out:
        out.write("a", {"x": [1, 2, 3]})
    code = (
        "import sys, chunkstore\n"
        "store = chunkstore.open_store(sys.argv[1], engine='direct')\n"
        "store.read('x', 0, 3), store.segments(), store.statistics\n"
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "a.zarr")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"

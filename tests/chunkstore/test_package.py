"""The front door: what it promises, and that it opens quickly."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

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


def _imported(module: Path, names: set[str]) -> set[str]:
    """Return the modules of the package that a module imports when it runs, in functions too."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(module.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "chunkstore":
            home = (node.module or "").removeprefix("chunkstore").removeprefix(".")
            found |= {home} if home else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("chunkstore.") for alias in node.names}
        waiting.extend(ast.iter_child_nodes(node))
    return found & names


def test_no_module_imports_itself_through_others():
    files = {p.stem: p for p in Path(chunkstore.__file__).parent.glob("*.py") if p.stem != "__init__"}
    imports = {name: _imported(path, set(files)) for name, path in files.items()}
    while imports:
        free = {name for name, needed in imports.items() if not needed & set(imports)}
        assert free, f"these import each other in a circle: {sorted(imports)}"
        imports = {name: needed for name, needed in imports.items() if name not in free}

"""What docs/security.md promises of the code: no pickle, eval or shell where data passes, no prints."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(p for name in ("chunkstore", "ingest") for p in (ROOT / name).rglob("*.py"))
#: libraries by which bytes become code
CODE = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml", "code"}
#: where a process of our own interpreter is started, without a shell
STARTERS = {"ingest/local.py", "ingest/sources/audio/isolate.py"}
CALLS = {"eval", "exec", "compile", "print", "input", "breakpoint"}


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def dotted(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_bytes_of_a_file_can_become_code(path):
    name = path.relative_to(ROOT).as_posix()
    wrong = []
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            wrong += [m for m in modules if m.split(".")[0] in CODE]
            wrong += [m for m in modules if m.split(".")[0] == "subprocess" and name not in STARTERS]
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        keywords = {k.arg: k.value for k in node.keywords}
        if called in CALLS or called in {"os.system", "os.popen", "torch.load", "pd.read_pickle"}:
            wrong.append(called)
        if "shell" in keywords:
            wrong.append(f"{called}(shell=)")
        if called in {"np.load", "numpy.load", "np.lib.format.read_array"}:
            given = keywords.get("allow_pickle")
            if not (isinstance(given, ast.Constant) and given.value is False) and "mmap_mode" not in keywords:
                wrong.append(f"{called} without allow_pickle=False")
        if any(
            isinstance(k, ast.Constant) and k.value is True
            for a, k in keywords.items()
            if a == "allow_pickle"
        ):
            wrong.append(f"{called}(allow_pickle=True)")
    assert wrong == [], name


def test_the_check_itself_sees_something():
    assert len(SOURCES) > 80
    loads = [p for p in SOURCES if "allow_pickle=False" in p.read_text()]
    assert loads


def test_loggers_are_those_of_their_modules_and_quiet_by_default():
    roots = {"logging.warning", "logging.error", "logging.info", "logging.basicConfig"}
    wrong = [
        (path.relative_to(ROOT).as_posix(), dotted(node.func))
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and dotted(node.func) in roots
    ]
    assert wrong == [("chunkstore/cli.py", "logging.basicConfig")]

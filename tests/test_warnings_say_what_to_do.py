"""Every warning of the packages names what to do next.

A person who reads a warning in a log asks one thing: must I do something? Each names an option, a verb or a
thing to look at, or says that nothing need be done. The texts are found in the syntax trees of all modules.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: what a person does next, or the words that say that nothing has to be done
ADVICE = re.compile(
    r"\b(pass|give|set|run|choose|rename|convert|lower|look|see|check|install|use|free|ask|let|"
    r"nothing need be done)\b"
)
LEVELS = {"warn", "warning", "error", "critical", "exception"}


def loggers(tree):
    """Names that are bound to ``logging.getLogger(...)`` anywhere in a module."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith("getLogger")
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def texts(node):
    """All constant text within an expression, joined."""
    return "".join(
        n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )


def warnings_of(path):
    """Yield (line, text) of each call that warns."""
    tree = ast.parse(path.read_text("utf-8"))
    known = loggers(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        owner, _, verb = name.rpartition(".")
        if name in {"warn", "warnings.warn"} or (owner in known and verb in LEVELS):
            yield node.lineno, texts(node.args[0]) if node.args else ""


FOUND = [
    (f"{path.relative_to(ROOT)}:{line}", text)
    for package in ("chunkstore", "ingest")
    for path in sorted((ROOT / package).rglob("*.py"))
    for line, text in warnings_of(path)
]


def test_warnings_are_found_at_all():
    assert len(FOUND) > 8
    assert not list(warnings_of(ROOT / "chunkstore/layout.py"))


@pytest.mark.parametrize(("where", "text"), FOUND, ids=[w for w, _ in FOUND])
def test_every_warning_names_what_to_do(where, text):
    assert ADVICE.search(text), f"{where} warns {text!r} and does not say what to do"
    assert "\n" not in text


@pytest.mark.parametrize("how", ["print", "sys.stdout.write", "sys.stderr.write", "logging.warning"])
def test_libraries_speak_through_their_own_loggers_only(how):
    """The command line and what it shows may print; nothing else does, and the root logger is left alone."""
    screens = {"cli.py", "commands.py", "info.py", "doctor.py", "demo.py", "progress.py", "report.py"}
    for package in ("chunkstore", "ingest"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name in screens:
                continue
            calls = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)]
            assert [f"{path}:{n.lineno}" for n in calls if ast.unparse(n.func) == how] == []

"""Run every snippet of one documentation page, in order, as a reader would.

``python page.py PAGE`` runs in the current directory: blocks marked ``python`` share one namespace,
lines that start with ``$ `` in blocks marked ``console`` go to the shell. Other blocks are text.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL
)


def blocks(text: str):
    """Yield (line, language, body) for every fenced block of a page."""
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield line, found["info"].strip(), found["body"]


def cells(text: str):
    """Yield (number, source) for every code cell of a notebook."""
    for number, cell in enumerate(json.loads(text)["cells"]):
        if cell["cell_type"] == "code":
            yield number, "".join(cell["source"])


def run_notebook(page: Path) -> int:
    """Run the cells of a notebook, showing the last value of each, and return how many ran."""
    space = {"__name__": "__main__"}
    count = 0
    for number, source in cells(page.read_text()):
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        name = f"{page}, cell {number}"
        exec(compile(tree, name, "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)
            shown = value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
            print(f"cell {number}: {type(value).__name__}, {len(shown)} characters")
        count += 1
    return count


def run(page: Path) -> int:
    """Run the snippets of ``page`` and return how many ran."""
    if page.suffix == ".ipynb":
        return run_notebook(page)
    space = {"__name__": "__main__"}
    count = 0
    for line, language, body in blocks(page.read_text()):
        if language == "python":
            code = compile("\n" * (line - 1) + body, str(page), "exec")
            exec(code, space)
            count += 1
        elif language == "console":
            lines = iter(body.splitlines())
            for text in lines:
                if not text.startswith("$ "):
                    continue
                command = text
                while command.endswith("\\"):
                    command = command[:-1] + next(lines).removeprefix("> ")
                print(command, flush=True)
                subprocess.run(command[2:], shell=True, check=True, timeout=240)
                count += 1
    return count


def use_real_recordings(folder: Path) -> None:
    """Let the pages' makers of recordings hand out real ones: a folder with avro/weather and audio/esc10."""
    from ingest import recordings

    recordings.make_avro = lambda place, **_: Path(place).symlink_to(folder / "avro" / "weather")
    recordings.make_birds = lambda place, **_: Path(place).symlink_to(folder / "audio" / "esc10")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        use_real_recordings(Path(sys.argv[2]))
    print(f"{run(Path(sys.argv[1]))} snippets ran")

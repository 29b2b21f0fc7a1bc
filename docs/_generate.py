"""Pages of the reference that are made from the code: the command line and the fault codes.

Run by ``conf.py`` before every build, so that they cannot fall behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def write_all(folder: Path) -> None:
    """Write every generated page, touching only files whose text has changed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("command-line.md", command_line()), ("fault-codes.md", fault_codes())):
        file = folder / name
        if not file.is_file() or file.read_text() != text:
            file.write_text(text)


def command_line() -> str:
    """One section a verb: its help, its arguments and its options."""
    import typer

    from chunkstore import cli

    cli._load_verbs(cli.app)  # noqa: SLF001 - the same door that the console script uses
    root: Any = typer.main.get_command(cli.app)
    lines = [
        "# Command line",
        "",
        "Every verb has `--help` with an example. `--debug` may stand anywhere: it shows an error's trace.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {code} | {text} |" for code, text in cli.EXIT_CODES.items()),
        "",
    ]
    for path, command in _commands("chunkstore", root):
        lines += _section(path, command)
    return "\n".join(lines).rstrip() + "\n"


def _commands(path: str, command: Any) -> list[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        return [(path, command)]
    found: list[tuple[str, Any]] = []
    order = getattr(command, "list_commands", None)
    for name in order(None) if order else sorted(children):
        found += _commands(f"{path} {name}", children[name])
    return found


def _section(path: str, command: Any) -> list[str]:
    lines = [f"## {path}", "", (command.help or "").strip().replace("\f", ""), ""]
    rows = []
    for param in command.params:
        if param.name == "help":
            continue
        if param.param_type_name == "argument":
            name = f"`{param.name.upper()}`" + (" ..." if param.nargs == -1 else "")
        else:
            name = ", ".join(f"`{o}`" for o in (*param.opts, *param.secondary_opts))
        default = (
            ""
            if param.default in (None, False, ()) or callable(param.default)
            else f" Default: `{param.default}`."
        )
        text = (getattr(param, "help", None) or "").replace("|", "\\|").replace("\n", " ")
        rows.append(f"| {name} | {text}{' Required.' if param.required else ''}{default} |")
    if rows:
        lines += ["| argument or option | meaning |", "|---|---|", *rows, ""]
    return lines


def fault_codes() -> str:
    """Every code that may stand in an ingest report, with its sentence."""
    lines = [
        "# Fault codes",
        "",
        "Codes in the report of an ingest (`--report FILE`, one JSON object a line). They are stable.",
        "",
        "| code | meaning |",
        "|---|---|",
    ]
    from ingest.faults import codes

    lines += [f"| `{code}` | {text} |" for code, text in sorted(codes().items())]
    return "\n".join(lines) + "\n"

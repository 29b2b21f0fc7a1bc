"""The command line: one typer app, its borders, and the door for other packages' verbs.

Decided here: how an error becomes one line and an exit code, what ``--debug`` and ``--version``
do, and how verbs of other packages are found (entry points of the group ``chunkstore.cli``, each
a function ``register(app)``). The verbs themselves stand in :mod:`chunkstore.commands`.

Exit codes: 0 clean; 1 failed; 2 usage (an option, a name or a place that cannot be used);
3 finished, with data put in quarantine; 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chunkstore import __version__
from chunkstore.errors import (
    ChunkstoreError,
    ConfigError,
    InputError,
    NotAStoreError,
    StoreExistsError,
    UnknownNameError,
)
from chunkstore.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import EntryPoint

__all__ = ["EXIT_CODES", "app", "exit_code", "main", "run"]

logger = logging.getLogger(__name__)

#: What the numbers mean, for help pages and the reference.
EXIT_CODES = {
    0: "clean",
    1: "failed",
    2: "usage: an option, a name or a place that cannot be used",
    3: "finished, with data put in quarantine",
    130: "interrupted; an ingest goes on with `--resume`",
}

_USAGE_ERRORS = (ConfigError, NotAStoreError, StoreExistsError, UnknownNameError, InputError)
# typer carries its own click or uses the installed one, depending on its version; its public
# exception leads to the bases of either.
_UsageError, _ClickException = typer.BadParameter.__mro__[1:3]

#: The order in which verbs are listed: from files to a store, what is asked of it, what is made of it, help.
FAMILY = ("scan", "ingest", "info", "verify", "simulate", "report", "split", "merge", "demo", "doctor")


class _Family(typer.core.TyperGroup):
    """Lists verbs in the order of their use, and those of other packages behind them."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # click's or typer's
        names = super().list_commands(ctx)
        return sorted(names, key=lambda n: FAMILY.index(n) if n in FAMILY else len(FAMILY))


app = typer.Typer(
    name="chunkstore",
    cls=_Family,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Chunked stores of time series and audio, and shuffled training windows from them.\n\n"
        "Start with `chunkstore demo`, or with `chunkstore scan` on your own Avro files. "
        "Exit codes: 0 clean, 1 failed, 2 usage, 3 finished with data in quarantine."
    ),
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"chunkstore {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the trace of an error, and log more. Stands anywhere.")
    ] = False,
) -> None:
    # Both are dealt with before a verb runs: --version by its callback, --debug by `run`.
    del version, debug


def exit_code(error: BaseException) -> int:
    """Return the exit code that an exception leads to.

    Parameters
    ----------
    error : BaseException
        What a verb raised.

    Returns
    -------
    int
        2 for what the caller can put right on the command line, 130 for an interrupt, else 1.

    Examples
    --------
    >>> exit_code(ConfigError("window 0")), exit_code(OSError("disk full"))
    (2, 1)
    """
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, (*_USAGE_ERRORS, _UsageError)):
        return 2
    return 1


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code, with errors as one line on stderr.

    Parameters
    ----------
    args : sequence of str, optional
        The arguments after the program's name; those of this process if not given.

    Returns
    -------
    int
        See ``EXIT_CODES``.

    Examples
    --------
    >>> run(["--version"])
    chunkstore ...
    0
    """
    words = list(sys.argv[1:] if args is None else args)
    debug, words = _take_debug(words)
    logging.basicConfig(format="chunkstore: %(message)s", level=logging.WARNING)
    if debug:
        for name in ("chunkstore", "ingest"):
            logging.getLogger(name).setLevel(logging.DEBUG)
    _load_verbs(app)
    try:
        result = app(args=words, prog_name="chunkstore", standalone_mode=False)
    except BrokenPipeError:  # `chunkstore info X | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exception(error)
        text = _one_line(error, words)
        if text:
            sys.stderr.write(f"chunkstore: {text}\n")
        return exit_code(error if not isinstance(error, typer.Abort) else KeyboardInterrupt())
    code = result if isinstance(result, int) and not isinstance(result, bool) else 0
    if code == 130:  # newer versions of typer turn an interrupt into this number by themselves
        sys.stderr.write("chunkstore: interrupted\n")
    return code


def main() -> None:
    """Entry point of the console script ``chunkstore``."""
    sys.exit(run())


def _take_debug(words: list[str]) -> tuple[bool, list[str]]:
    """Take ``--debug`` out of the options wherever it stands (what follows ``--`` is not an option)."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word != "--debug"]
    debug = len(options) < end or os.environ.get("CHUNKSTORE_DEBUG", "0") not in ("", "0")
    return debug, options + words[end:]


def _one_line(error: BaseException, words: Sequence[str]) -> str:
    """Return what went wrong and what to do next, in one line."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return "interrupted"
    if isinstance(error, _ClickException):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "chunkstore"
        message = printable(" ".join(error.format_message().split()), 4000)  # type: ignore[attr-defined]
        # no verb at all: typer has already shown the help
        message += _forgotten_dashes(words, message)
        message += "" if message.endswith(("?", ".")) else "."
        return f"{message} See: {path} --help" if words and message != "." else ""
    message = printable(" ".join(str(error).split()), 4000) or type(error).__name__
    if isinstance(error, ChunkstoreError):
        return message + _forgotten_dashes(words, message)
    if isinstance(error, (OSError, ImportError, MemoryError)):
        return f"{type(error).__name__}: {message}"
    return f"unexpected {type(error).__name__}: {message} (--debug shows the trace; please report it)"


def _forgotten_dashes(words: Sequence[str], message: str) -> str:
    """Return a question where a word that was refused is the name of an option of the verb.

    Examples
    --------
    >>> _forgotten_dashes(["info", "sensors.zarr", "json"], "Got unexpected extra argument(s) (json)")
    '; did you mean --json?'
    """
    _load_verbs(app)
    command: Any = typer.main.get_command(app)
    options: set[str] = set()
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    refused = set(re.findall(r"[\w-]+", message))  # messages write options as they are typed
    named = [(word, f"--{word.replace('_', '-')}") for word in words]
    meant = [option for word, option in named if option in options and {word, option} & refused]
    return f"; did you mean {' and '.join(dict.fromkeys(meant))}?" if meant else ""


_loaded: set[str] = set()


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return list(entry_points(group="chunkstore.cli"))


def _load_verbs(target: typer.Typer) -> None:
    """Register our verbs and those of installed packages, once in a process."""
    from chunkstore import commands

    if "chunkstore" not in _loaded:
        _loaded.add("chunkstore")
        commands.register(target)
    for entry in _entry_points():
        if entry.name in _loaded:
            continue
        _loaded.add(entry.name)
        try:
            entry.load()(target)
        except Exception as error:  # a broken add-on must not take our own verbs with it
            logger.debug("verbs of %s", entry.name, exc_info=True)
            sys.stderr.write(
                f"chunkstore: the verbs of {entry.value} cannot be loaded: {type(error).__name__}: {error}\n"
            )


if __name__ == "__main__":
    main()

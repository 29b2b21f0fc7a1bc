"""The verbs that `chunkstore` itself brings: thin functions that parse, call and print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["register"]

_JSON = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of this package to ``app``."""
    for verb in (doctor,):
        app.command()(verb)


def doctor(
    json: _JSON = False,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the measurements of disk and memory.")] = False,
) -> None:
    """Look at this machine and installation: versions, fast paths, fork state, speeds, advice.

    Example: `chunkstore doctor --json`
    """
    from chunkstore import doctor as room

    found = room.examine(measure=not quick)
    _print(found.to_json() if json else None, found.show)


def _print(value: Any, show: Callable[[], None]) -> None:
    """Print JSON where there is a value, else what ``show`` prints."""
    if value is None:
        show()
        return
    import json

    typer.echo(json.dumps(value, indent=2, allow_nan=False))

"""The verbs that `chunkstore` itself brings: thin functions that parse, call and print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["register"]

_Store = Annotated[str, typer.Argument(metavar="STORE", help="Folder or URL of a store.")]
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of this package to ``app``."""
    for verb in (info, report, doctor):
        app.command()(verb)


def info(
    store: _Store,
    json: _JSON = False,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Also look at a store whose writing has not finished.")
    ] = False,
) -> None:
    """Show what is in a store and how it lies on disk, on one screen.

    Example: `chunkstore info sensors.zarr`
    """
    import chunkstore
    from chunkstore import info as room

    with chunkstore.open_store(store, allow_incomplete=allow_incomplete) as opened:
        found = room.describe(opened)
    _print(found if json else None, lambda: room.show(found))


def report(
    store: _Store,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path("report.html"),
    window: Annotated[
        int | None, typer.Option(help="Length of training windows in obs: shows some, and how well they mix.")
    ] = None,
    stride: Annotated[int, typer.Option(help="Obs between the starts of windows.")] = 1,
    batch_size: Annotated[int, typer.Option(help="Windows a batch.")] = 256,
    split: Annotated[str | None, typer.Option(help="Part of a split that the windows come from.")] = None,
    memory_limit: Annotated[str, typer.Option(help="Memory that training may use.")] = "512MiB",
    field: Annotated[list[str] | None, typer.Option(help="Field to draw; may be repeated.")] = None,
    examples: Annotated[int, typer.Option(help="Sequences and windows to show.")] = 4,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of examples.")] = 0,
) -> None:
    """Write a self-contained page about a store: lengths, labels, fields, gaps, examples, sounds.

    Example: `chunkstore report sounds.zarr -o report.html --window 32000 --stride 16000`
    """
    import chunkstore
    from chunkstore.report import ReportOptions, write_report

    options = ReportOptions(
        title=title,
        fields=tuple(field or ()),
        window=window,
        stride=stride,
        batch_size=batch_size,
        split=split,
        memory_limit=memory_limit,
        examples=examples,
        seed=seed,
    )
    with chunkstore.open_store(store) as opened:
        page = write_report(opened, out, options)
    typer.echo(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")


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

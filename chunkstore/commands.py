"""The verbs that `chunkstore` itself brings: thin functions that parse, call and print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chunkstore.errors import ConfigError
from chunkstore.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["register"]

_Store = Annotated[str, typer.Argument(metavar="STORE", help="Folder or URL of a store.")]
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of this package to ``app``."""
    for verb in (info, verify, split, simulate, report, doctor):
        app.command()(verb)


def info(
    store: _Store,
    *,
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


def verify(
    store: _Store,
    *,
    deep: Annotated[bool, typer.Option("--deep", help="Also read, decode and check every chunk.")] = False,
    json: _JSON = False,
) -> None:
    """Check that a store is whole: its metadata, its shards, and with --deep every chunk's checksum.

    Exits with 1 where something is wrong. Example: `chunkstore verify sensors.zarr --deep`
    """
    from chunkstore.text import human_bytes
    from chunkstore.verify import verify_store

    with _progress("checking shards") as step:
        result = verify_store(store, deep=deep, progress=step)

    def show() -> None:
        for finding in result.findings:
            place = "".join(
                f" {name} {value}"
                for name, value in (("shard", finding.shard), ("chunk", finding.chunk))
                if value is not None
            )
            where = f"{finding.array}{place}: " if finding.array else ""
            _say(f"{finding.code}: {where}{finding.message}")
        checked = f"{result.objects:,} objects, {human_bytes(result.nbytes)}"
        checked += f", {result.chunks:,} chunks decoded" if deep else "; --deep also decodes every chunk"
        wrong = len(result.findings)
        _say(f"{store}: {'whole' if result.ok else f'{wrong} finding(s)'} ({checked})")

    _print(result.to_json() if json else None, show)
    if not result.ok:
        raise typer.Exit(1)


def split(
    store: _Store,
    parts: Annotated[
        str | None,
        typer.Argument(
            metavar="PARTS", help="Names of the parts, such as train/val/test; none lists the splits."
        ),
    ] = None,
    *,
    by: Annotated[
        str,
        typer.Option(
            help="sequence (at random), group (together), label (same shares), time (cut at instants) or "
            "position (each sequence cut at the same shares of its length)."
        ),
    ] = "sequence",
    on: Annotated[
        str | None, typer.Option(help="Column along sequence that holds the groups or labels.")
    ] = None,
    fractions: Annotated[
        str | None, typer.Option(help="Share of each part, such as 0.8,0.1,0.1; equal if not given.")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="Instant to cut at, instead of fractions; once for each cut. For time."),
    ] = None,
    embargo: Annotated[int, typer.Option(help="Obs left out on each side of a cut within a sequence.")] = 0,
    embargo_time: Annotated[
        str, typer.Option(help="Time left out on each side of each cut, such as '2 h'. For time.")
    ] = "0 s",
    window: Annotated[int, typer.Option(help="Length of windows that the audit assumes, in obs.")] = 1,
    horizon: Annotated[int, typer.Option(help="Forecast horizon that the audit assumes, in obs.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the choice.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a split of that name.")] = False,
    json: _JSON = False,
) -> None:
    """Divide a store into parts for training and testing, keep that in the store, and audit it.

    Exits with 1 where an obs is seen by two parts. Example:
    `chunkstore split sensors.zarr train/val/test --by time --fractions 0.7,0.2,0.1 --embargo 64 --window 64`
    """
    import chunkstore

    with chunkstore.open_store(store) as opened:
        if parts is not None:
            shares = _floats(fractions) if fractions is not None else None
            opened.add_split(
                parts,
                by=by,
                fractions=shares,
                on=on,
                at=at or None,
                embargo=embargo,
                embargo_time=embargo_time,
                seed=seed,
                overwrite=overwrite,
            )
        audit = opened.audit_splits(window=window, horizon=horizon)
        found: dict[str, Any] = {
            "splits": {
                name: {
                    **s.rule(),
                    "n_obs": s.n_obs,
                    "windows": dict(audit.windows[name]),
                    "spans": dict(audit.spans.get(name, {})),
                }
                for name, s in opened.splits.items()
            },
            "ok": audit.ok,
            "findings": list(audit.findings),
            "warnings": list(audit.warnings),
        }

    def show() -> None:
        if not found["splits"]:
            _say(f"{store} has no split yet; name the parts to make one: train/val/test")
        for name, s in found["splits"].items():
            rule = f"by {s['by']}" + (f" on {s['on']}" if s["on"] else "")
            _say(f"{name} ({rule})")
            for part, n in s["n_obs"].items():
                span = s["spans"].get(part)
                when = f", {span[0]} to {span[1]}" if span else ""
                _say(f"  {part}: {n:,} obs, {s['windows'][part]:,} windows of {window} at stride 1{when}")
        if parts is not None and by == "time" and found["splits"][parts]["by"] == "position":
            typer.echo("note: nothing in this store tells the time, so each sequence was cut by position")
        for sentence in (*audit.findings, *audit.warnings):
            _say(f"{'LEAK' if sentence in audit.findings else 'note'}: {sentence}")

    _print(found if json else None, show)
    if not audit.ok:
        raise typer.Exit(1)


def simulate(
    store: _Store,
    *,
    window: Annotated[int, typer.Option(help="Length of windows in obs.")],
    stride: Annotated[int, typer.Option(help="Obs between the starts of windows.")] = 1,
    batch_size: Annotated[int, typer.Option(help="Windows in a batch of one rank.")] = 64,
    world_size: Annotated[int, typer.Option(help="Number of ranks.")] = 1,
    split: Annotated[str | None, typer.Option(help="Part of a split that the windows come from.")] = None,
    field: Annotated[list[str] | None, typer.Option(help="Field to read; may be repeated.")] = None,
    memory_limit: Annotated[str, typer.Option(help="Memory of a rank for resident blocks.")] = "512MiB",
    lanes: Annotated[str, typer.Option(help="Blocks drawn from at once, or auto.")] = "auto",
    passes: Annotated[str, typer.Option(help="Visits of each block in an epoch, or auto.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the order.")] = 0,
    epoch: Annotated[int, typer.Option(help="Which epoch to play.")] = 0,
    json: _JSON = False,
) -> None:
    """Play an epoch without reading it: how well batches mix beside a perfect shuffle, memory, reading.

    Example: `chunkstore simulate sensors.zarr --window 512 --batch-size 256 --memory-limit 1GiB`
    """
    import chunkstore
    from chunkstore.simulate import simulate as play

    with chunkstore.open_store(store) as opened:
        found = play(
            opened,
            window,
            stride=stride,
            batch_size=batch_size,
            world_size=world_size,
            split=split,
            fields=field or None,
            memory_limit=memory_limit,
            lanes=_whole("lanes", lanes),
            passes=_whole("passes", passes),
            seed=seed,
            epoch=epoch,
        )
    _print(found.to_json() if json else None, lambda: _say(found.to_text()))


def _whole(name: str, text: str) -> int | str:
    """Return a whole number, or ``auto``."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--{name} {text!r} is neither a whole number nor 'auto'") from None


def report(
    store: _Store,
    *,
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
    _say(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")


def doctor(
    *,
    json: _JSON = False,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the measurements of disk and memory.")] = False,
) -> None:
    """Look at this machine and installation: versions, fast paths, fork state, speeds, advice.

    Example: `chunkstore doctor --json`
    """
    from chunkstore import doctor as room

    found = room.examine(measure=not quick)
    _print(found.to_json() if json else None, found.show)


def _floats(text: str) -> list[float]:
    """Return the numbers of a list such as ``0.8,0.1,0.1``."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{text!r} is not a list of numbers; write 0.8,0.1,0.1") from None


def _say(text: str) -> None:
    """Print a line, in which names that files made up do no harm."""
    typer.echo(printable(text, 8000))


def _print(value: Any, show: Callable[[], None]) -> None:
    """Print JSON where there is a value, else what ``show`` prints."""
    if value is None:
        show()
        return
    import json

    typer.echo(json.dumps(value, indent=2, allow_nan=False))


class _progress:  # noqa: N801 - used like a function
    """A bar on stderr where that is a screen: ``with _progress(text) as step: step(done, total)``."""

    def __init__(self, text: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.bar.add_task(text, total=None)

    def __enter__(self) -> Callable[[int, int], None]:
        self.bar.start()
        return lambda done, total: self.bar.update(self.task, completed=done, total=total)

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()

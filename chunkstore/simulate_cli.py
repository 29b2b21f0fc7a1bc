"""The verb ``chunkstore simulate``: parses, calls :func:`chunkstore.simulate.simulate`, prints."""

from __future__ import annotations

from typing import Annotated, Any

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb to ``app``."""
    app.command()(simulate)


def simulate(  # noqa: PLR0917 - typer gives them by name
    stores: Annotated[list[str], typer.Argument(metavar="STORE...", help="Stores; several act as one.")],
    window: Annotated[int, typer.Option(help="Obs in a window.")],
    stride: Annotated[int, typer.Option(help="Obs between the starts of windows.")] = 1,
    batch_size: Annotated[int, typer.Option(help="Windows in a batch of one rank.")] = 64,
    horizon: Annotated[int, typer.Option(help="Obs behind a window that must exist too.")] = 0,
    field: Annotated[
        list[str] | None, typer.Option(help="A field; give it again for more. All by default.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="A stored split.")] = None,
    sampling: Annotated[str, typer.Option(help="'all' or 'per_sequence=N'.")] = "all",
    short: Annotated[
        str, typer.Option(help="'drop', 'pad' or 'error': segments shorter than a window.")
    ] = "drop",
    lanes: Annotated[str, typer.Option(help="Blocks drawn from at the same time, or 'auto'.")] = "auto",
    passes: Annotated[str, typer.Option(help="Visits to each block an epoch, or 'auto'.")] = "auto",
    lane_groups: Annotated[int, typer.Option(help="Parts of the lanes for worker processes.")] = 1,
    world_size: Annotated[int, typer.Option(help="Ranks.")] = 1,
    memory_limit: Annotated[str, typer.Option(help="Bytes for resident blocks of one rank.")] = "512MiB",
    seed: Annotated[int, typer.Option(help="Key of the order.")] = 0,
    epoch: Annotated[int, typer.Option(help="Which epoch to play.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Play an epoch without reading it: how well it mixes, what it reads, what it holds.

    Example: `chunkstore simulate sensors.zarr --window 512 --batch-size 256 --memory-limit 64MiB`
    """
    import json as text

    import chunkstore
    from chunkstore.simulate import simulate as play
    from chunkstore.windows import WindowSpec

    spec = WindowSpec(window, stride=stride, horizon=horizon, short=short)  # type: ignore[arg-type]
    opened: list[Any] = [chunkstore.open_store(url) for url in stores]
    try:
        found = play(
            opened,
            spec,
            batch_size=batch_size,
            world_size=world_size,
            epoch=epoch,
            fields=field or None,
            split=split,
            sampling=sampling,
            lanes=_number(lanes),
            passes=_number(passes),
            lane_groups=lane_groups,
            memory_limit=memory_limit,
            seed=seed,
        )
    finally:
        for store in opened:
            store.close()
    typer.echo(text.dumps(found.to_json(), indent=1) if json else found.to_text())


def _number(value: str) -> int | str:
    return int(value) if value.isdigit() else value

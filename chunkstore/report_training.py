"""The sections of a report that speak of training: example windows, and how well they are mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore import figures, info
from chunkstore.errors import ConfigError
from chunkstore.text import human_bytes

if TYPE_CHECKING:
    from chunkstore.report_section import ReportOptions, Section
    from chunkstore.store import ChunkStore

__all__ = ["fill_shuffle", "fill_windows"]


def _spec(options: ReportOptions) -> Any:
    from chunkstore.windows import WindowSpec

    if options.window is None:
        raise ConfigError("example windows need a length: give `window`")
    return WindowSpec(options.window, stride=options.stride)


def fill_windows(section: Section, store: ChunkStore, names: list[str], options: ReportOptions) -> None:
    """Draw the first windows of a shuffled epoch, as training would see them."""
    from chunkstore.loader import WindowLoader

    numeric = [
        n
        for n in names
        if not store.fields[n].items
        and store.fields[n].categories is None
        and " since " not in (store.fields[n].units or "")
    ][:3]
    if not numeric or not options.examples:
        return
    with WindowLoader(
        [store],
        _spec(options),
        fields=numeric,
        batch_size=options.examples,
        split=options.split,
        seed=options.seed,
        memory_limit=options.memory_limit,
    ) as loader:
        total = loader.n_windows
        batch = next(iter(loader.batches(0)), None)
    of = f" of part {options.split!r}" if options.split else ""
    every = "at each obs" if options.stride == 1 else f"every {options.stride:,} obs"
    section.text.append(
        f"{total:,} windows{of} of {options.window:,} obs, one {every}. "
        "Drawn here are the first of a shuffled epoch."
    )
    if batch is None:
        return
    x = np.asarray(batch["x"])
    many = len(numeric) > 1
    for row in range(len(x)):
        name = str(store.sequences.ids[int(batch["sequence"][row])])
        series = {}
        for channel, field in enumerate(numeric):
            values = x[row, channel].astype(np.float64)
            statistics = store.statistics.get(field)
            if many and statistics is not None and statistics.std:
                values = (values - statistics.mean) / statistics.std
            series[field] = _thinned(values)
        step = max(1, x.shape[-1] // 2000)
        section.add(
            figures.lines(
                np.arange(0, x.shape[-1], step)[: len(next(iter(series.values())))],
                series,
                f"{name} from obs {int(batch['start'][row]):,}",
                x_name="obs in the window",
                y_name="scaled" if many else info.told_units(store.fields[numeric[0]].units) or numeric[0],
                height=200,
            )
        )


def fill_shuffle(section: Section, store: ChunkStore, options: ReportOptions) -> None:
    """Say how well batches mix, beside a perfect shuffle of all windows."""
    from chunkstore.simulate import simulate

    found = simulate(
        store,
        _spec(options),
        batch_size=options.batch_size,
        split=options.split,
        seed=options.seed,
        memory_limit=options.memory_limit,
    )
    if not found.windows or not found.batches:
        section.text.append("There is no window to draw.")
        return
    size = f"{found.windows:,} windows in {found.batches:,} batches of {options.batch_size:,}"
    order = f"{found.plan['lanes']:,} lanes, {found.plan['passes']:,} passes"
    whole = found.plan.get("full")
    section.text.append(
        f"An epoch of {size}, played without reading." + ("" if whole else f" Order: {order}.")
    )
    section.text.append(f"Why: {found.plan['reason']}.")
    rows = [
        ["blocks in a batch", *_mixing(found.distinct_blocks)],
        ["sequences in a batch", *_mixing(found.distinct_sequences)],
        [
            "part of the epoch that a block's windows spread over",
            f"{found.spread:.0%}",
            "",
            "",
            f"{found.spread_perfect:.0%}",
        ],
        ["draws between windows of one block", f"{found.gap:,.0f}", "", "", f"{found.gap_perfect:,.0f}"],
    ]
    head = ["", "mean", "worst hundredth", "worst", "perfect shuffle"]
    times = found.decoded_bytes / max(1, found.data_bytes)
    read = ("" if found.exact else "about ") + human_bytes(found.decoded_bytes)
    note = (
        f"A first epoch decodes {read}, {times:.2f} times what windows touch, "
        f"in at most {human_bytes(found.peak_bytes)} of memory."
    )
    section.tables.append({"head": head, "left": [0], "rows": rows, "note": note})
    section.add(
        figures.bars(
            ["blocks in a batch", "sequences in a batch"],
            {
                "here": [found.distinct_blocks.mean, found.distinct_sequences.mean],
                "perfect shuffle": [found.distinct_blocks.perfect, found.distinct_sequences.perfect],
            },
            "Distinct blocks and sequences a batch mixes",
        )
    )


def _mixing(mixing: Any) -> list[str]:
    return [f"{mixing.mean:.1f}", f"{mixing.p1:.0f}", f"{mixing.min}", f"{mixing.perfect:.1f}"]


def _thinned(values: np.ndarray, most: int = 2000) -> np.ndarray:
    """Every n-th value, so that a long window does not weigh down the page."""
    return values[:: max(1, len(values) // most)]

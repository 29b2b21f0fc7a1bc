"""A page about a store that a person would send to a colleague: one file, no network.

Decided here: which sections there are and what each says. Samples come from :mod:`chunkstore.survey`,
figures from :mod:`chunkstore.figures`, numbers from :mod:`chunkstore.info`; the page itself is the template
``report.html.j2``.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore import __version__, figures, info, survey
from chunkstore.errors import MissingDependencyError
from chunkstore.origins import spare_store
from chunkstore.ragged import overview
from chunkstore.report_section import ReportOptions, Section
from chunkstore.text import counted, human_bytes, printable

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from chunkstore.figures import Figure
    from chunkstore.store import ChunkStore

__all__ = ["ReportOptions", "Section", "write_report"]

logger = logging.getLogger(__name__)

#: Fields that are drawn where none are named.
MOST_FIELDS = 12


def write_report(
    store: ChunkStore, out: str | os.PathLike[str], options: ReportOptions | None = None
) -> Path:
    """Write a self-contained HTML page about a store.

    The time it takes does not grow with the store: fields are sampled in whole chunks, and every
    figure says what it was made from.

    Parameters
    ----------
    store : ChunkStore
        An open, complete store.
    out : path
        The file to write.
    options : ReportOptions, optional
        What to show.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    MissingDependencyError
        plotly or jinja2 is not installed.
    UnknownNameError
        A field or split is not in the store.
    ConfigError
        The file would lie in the store.

    Examples
    --------
    >>> import tempfile
    >>> from chunkstore.examples import small_store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_report(small_store(), Path(folder) / "report.html")
    ...     page.stat().st_size > 1_000_000  # plotly's script is inside
    True
    """
    spare_store(store, out)
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependencyError(
            "a report needs plotly and jinja2: pip install 'chunkstore[report]'"
        ) from error
    options = options or ReportOptions()
    found = info.describe(store)
    sections = [s for s in _sections(store, found, options) if s.text or s.tables or s.figures]
    number = 0
    for section in sections:
        for item in section.figures:
            item.key = f"figure-{number}"
            number += 1
    template = jinja2.Environment(autoescape=True).from_string(
        (Path(__file__).parent / "report.html.j2").read_text(encoding="utf-8")
    )
    page = template.render(
        title=options.title or store.url.rstrip("/").rsplit("/", 1)[-1],
        subtitle=_subtitle(found),
        cards=_cards(found),
        sections=sections,
        footer=f"Made by chunkstore {__version__} from {store.url}, fingerprint {found['fingerprint']}.",
        version=__version__,
        plotly=figures.plotly_script().replace("</script", "<\\/script"),
    )
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    logger.info("report of %s: %d figures, %d bytes", store.url, number, len(page))
    return path


def _subtitle(found: Mapping[str, Any]) -> str:
    names = [f["name"] for f in found["fields"]]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"Fields: {shown}."


def _cards(found: Mapping[str, Any]) -> list[dict[str, str]]:
    raw = sum(f["bytes"] for f in found["fields"])
    stored = sum(f["bytes_stored"] for f in found["fields"])
    sequences, gaps = found["sequences"], found["gaps"]
    faults = found["faults"] if isinstance(found["faults"], dict) else {}
    median = f"median {sequences['rowsize']['median']:,.0f} obs"
    return [
        {"name": "Sequences", "value": f"{sequences['count']:,}", "detail": median},
        {"name": "Obs", "value": f"{found['n_obs']:,}", "detail": counted(len(found["fields"]), "field")},
        {"name": "Raw", "value": human_bytes(raw), "detail": "decoded"},
        {
            "name": "Stored",
            "value": human_bytes(stored),
            "detail": f"{raw / stored:.2f} times smaller" if stored else "nothing stored",
        },
        {"name": "Gaps", "value": f"{gaps['count']:,}", "detail": f"{gaps['fraction']:.2%} of all obs"},
        {"name": "Faults", "value": f"{_count(faults):,}", "detail": "met while ingesting"},
    ]


def _count(faults: Mapping[str, Any]) -> int:
    return sum(v for v in faults.values() if isinstance(v, int))


def _sections(store: ChunkStore, found: Mapping[str, Any], options: ReportOptions) -> Iterator[Section]:
    names = list(options.fields) or list(store.fields)[:MOST_FIELDS]
    for name in names:
        if name not in store.fields:
            store.read(name, 0, 0)  # raises, naming what there is
    yield _lengths(store)
    yield _labels(store)
    yield _fields(store, found, names)
    yield _missing(store, found, names)
    yield _examples(store, names, options)
    if options.window is not None:
        from chunkstore.report_training import fill_shuffle, fill_windows

        windows, shuffle = Section("windows", "Training windows"), Section("shuffle", "Shuffle")
        fill_windows(windows, store, names, options)
        fill_shuffle(shuffle, store, options)
        yield windows
        yield shuffle
    yield _storage(store, found)
    yield _splits(found)
    yield _origin(found)


def _lengths(store: ChunkStore) -> Section:
    section = Section("lengths", "Sequence lengths")
    rowsize = store.sequences.rowsize
    empty = int((rowsize == 0).sum())
    h = survey.histogram(rowsize[rowsize > 0])
    one = "All sequences have" if len(rowsize) > 1 else "The one sequence has"
    if len(rowsize) and rowsize.min() == rowsize.max():
        section.text.append(f"{one} {int(rowsize[0]):,} obs.")
    else:
        note = f"all {len(rowsize):,} sequences"
        section.add(figures.histogram(h.counts, h.edges, "Obs a sequence", x="obs", log=h.log, note=note))
    if empty:
        section.text.append(f"{empty:,} sequences have no obs at all.")
    return section


def _labels(store: ChunkStore) -> Section:
    section = Section("labels", "Labels")
    table = store.sequences
    alike, own = [], []
    for name in table.columns:
        balance = survey.label_balance(store, name)
        if balance is None and table.is_categorical(name):
            own.append(f"{name} ({counted(len(table.categories(name)), 'value')})")
        if balance is not None and balance.distinct < 2:
            alike.append(f"{name} ({balance.values[0]})" if balance.values else name)
        if balance is None or balance.distinct < 2:
            continue
        more = balance.distinct - len(balance.values)
        note = f"the {len(balance.values)} most frequent; {more:,} more are not shown" if more else ""
        series = {"sequences": balance.sequences}
        section.add(figures.bars(balance.values, series, name, x="sequences", note=note))
    if own:
        section.text.append(
            f"Not drawn, for they have about as many values as there are sequences: {_few(own)}."
        )
    if alike:
        section.text.append(f"Not drawn, for they are the same everywhere: {_few(alike)}.")
    return section


def _few(names: list[str], most: int = 20) -> str:
    shown = ", ".join(printable(n, 80) for n in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _fields(store: ChunkStore, found: Mapping[str, Any], names: list[str]) -> Section:
    section = Section("fields", "Fields")
    head, rows = info.field_rows(dict(found))
    keep = [
        head.index(h) for h in ("field", "dtype", "units", "count", "missing", "min", "mean", "max", "std")
    ]
    section.tables.append(
        {
            "head": [head[i] for i in keep],
            "left": [0, 1, 2],
            "rows": [[r[i] for i in keep] for r in rows],
            "note": "",
        }
    )
    left = len(store.fields) - len(names)
    if left > 0:
        section.text.append(f"{len(names)} fields are drawn, {left} more are in the table only.")
    for name in names:
        section.add(_field_figure(store, name))
    return section


def _field_figure(store: ChunkStore, name: str) -> Figure:
    spec = store.fields[name]
    sample = survey.field_sample(store, name)
    if spec.items:
        with np.errstate(over="ignore", invalid="ignore"):
            count = np.maximum(np.isfinite(sample.values).sum(axis=0), 1)
            mean = np.nansum(sample.values, axis=0) / count
            std = np.sqrt(np.nansum((sample.values - mean) ** 2, axis=0) / count)
            band = (mean - std, mean + std)
        return figures.lines(
            np.arange(spec.items),
            {"mean": mean},
            f"{name}: mean of each item, with one standard deviation",
            x_name="item",
            y_name=info.told_units(spec.units),
            envelope={"mean": band},
            note=sample.note,
        )
    words = ("false", "true") if spec.dtype == "bool" else spec.categories
    if words is not None:
        counts = np.bincount(sample.values.astype(np.int64), minlength=len(words))
        order = np.argsort(-counts, kind="stable")[:25]
        return figures.bars(
            [words[i] for i in order],
            {"obs": counts[order].tolist()},
            name,
            x="obs",
            note=sample.note,
        )
    clock = info.is_time(spec.units)
    h = survey.histogram(sample.values, linear=clock)
    edges = h.edges
    if spec.units and clock:
        dates = info.dates_of(spec.units, edges)
        edges = edges if dates is None else dates
    elif spec.scale_factor is not None:  # the quantity that the integers stand for, as in the table
        edges = edges * spec.scale_factor
        if spec.scale_factor < 0:
            h, edges = replace(h, counts=h.counts[::-1], log=False), edges[::-1]
    note = sample.note
    if h.beyond:
        note += ("; " if note else "") + f"{h.beyond:,} values lie outside what is drawn"
    return figures.histogram(
        h.counts,
        edges,
        _titled(spec),
        x=info.told_units(spec.units),
        log=h.log,
        note=note,
    )


def _titled(spec: Any) -> str:
    return (
        f"{spec.name}: {spec.long_name}" if spec.long_name and spec.long_name != spec.name else str(spec.name)
    )


def _missing(store: ChunkStore, found: Mapping[str, Any], names: list[str]) -> Section:
    section = Section("missing", "Missing data")
    gaps = found["gaps"]
    if gaps["count"]:
        section.text.append(
            f"{gaps['count']:,} gaps hold {gaps['n_obs']:,} obs ({gaps['fraction']:.3%}) whose data was "
            "lost. No window touches them."
        )
    if not store.n_obs:
        return section
    missing = survey.missing_over_obs(store, names)
    total = missing.fraction.mean(axis=1)
    if not total.any():
        section.text.append("Nothing is missing in the fields that are drawn.")
        return section
    some = [i for i in range(len(names)) if total[i] > 0]
    section.add(
        figures.heatmap(
            missing.fraction[some],
            "Fraction missing over the store",
            x=missing.start,
            y=[names[i] for i in some],
            x_name="obs",
            scale="YlOrRd",
            bar="missing",
            limits=(0.0, max(0.01, float(missing.fraction.max()))),
            note=missing.note,
            wide=True,
            height=120 + 26 * len(some),
        )
    )
    return section


def _examples(store: ChunkStore, names: list[str], options: ReportOptions) -> Section:
    section = Section("examples", "Example sequences")
    chosen = survey.example_sequences(store, options.examples, options.seed)
    if not chosen:
        return section
    section.text.append(
        f"{len(chosen)} of {store.n_sequences:,} sequences: the longest, a median one, and random ones."
        if store.n_sequences > len(chosen)
        else "All sequences."
    )
    heard = [n for n in names if survey.audio_rate(store, n)]
    for index in chosen:
        if heard and survey.audio_rate(store, heard[0], index):
            section.add(*_sound(store, heard[0], index, options.seconds))
        else:
            section.add(_series(store, names, index))
    return section


def _name_of(store: ChunkStore, index: int) -> str:
    table = store.sequences
    telling = [
        c for c in table.columns if table.is_categorical(c) and len(table.categories(c)) * 2 <= len(table)
    ]
    label = str(table.column(telling[0])[index]) if telling else ""
    name = str(table.ids[index])
    return f"{name} ({label})" if label and label not in name else name


def _series(store: ChunkStore, names: list[str], index: int) -> Figure:
    """Draw up to four scalar fields of one sequence, each scaled by its own spread."""
    low, high = store.sequences.offsets[index : index + 2].tolist()
    skip = {
        n
        for n in names
        if store.fields[n].categories is not None or " since " in (store.fields[n].units or "")
    }
    drawn = [n for n in names if not store.fields[n].items and n not in skip][:4]
    vector = [n for n in names if store.fields[n].items]
    if not drawn and vector:
        spec = store.fields[vector[0]]
        view = overview(store, vector[0], low, high, points=400)
        return figures.heatmap(
            view["mean"].values.T,
            f"{_name_of(store, index)}: {vector[0]}",
            x=view["obs_start"].values - low,
            y=np.arange(spec.items),
            x_name="obs",
            y_name="item",
            bar=info.told_units(spec.units),
        )
    lines: dict[str, np.ndarray] = {}
    bands: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    x = np.zeros(0, np.int64)
    for name in drawn or names[:1]:
        view = overview(store, name, low, high, points=500)
        x = view["obs_start"].values - low
        middle, spread = 0.0, 1.0
        if len(drawn) > 1:
            known = view["mean"].values[np.isfinite(view["mean"].values)]
            middle = float(known.mean()) if len(known) else 0.0
            spread = float(known.std()) or 1.0 if len(known) else 1.0
        lines[name] = (view["mean"].values - middle) / spread
        if view.attrs["bin_length"] > 1:
            bands[name] = ((view["min"].values - middle) / spread, (view["max"].values - middle) / spread)
    spec = store.fields[next(iter(lines))]
    scaled = len(drawn) > 1
    return figures.lines(
        x,
        lines,
        _name_of(store, index),
        x_name=f"obs, of {high - low:,}",
        y_name="scaled" if scaled else (info.told_units(spec.units) or spec.name),
        envelope=bands if len(lines) == 1 else None,
        note=f"each point stands for {view.attrs['bin_length']:,} obs"
        if view.attrs["bin_length"] > 1
        else "",
    )


def _sound(store: ChunkStore, name: str, index: int, seconds: float) -> tuple[Figure, str]:
    """Return the spectrogram and the sound of the first seconds of a sequence."""
    from chunkstore import sound

    rate = survey.audio_rate(store, name, index) or 1.0
    low, high = store.sequences.offsets[index : index + 2].tolist()
    stop = min(high, low + max(1, int(seconds * rate)))
    samples = sound.as_float(store.read(name, low, stop), store.fields[name].scale_factor)
    levels, times, pitches = sound.spectrogram(samples, rate)
    cut = f"the first {seconds:g} s of {(high - low) / rate:.1f} s" if stop < high else ""
    figure = figures.heatmap(
        levels,
        _name_of(store, index),
        x=times,
        y=pitches,
        x_name="seconds",
        y_name="kHz",
        scale="Magma",
        limits=(-90, 0),
        note=cut,
        height=220,
    )
    return figure, sound.data_url(samples, rate)


def _storage(store: ChunkStore, found: Mapping[str, Any]) -> Section:
    section = Section("storage", "On disk")
    layout = found["layout"]
    section.text.append(
        f"{counted(layout['n_chunks'], 'chunk')} of {layout['chunk']:,} obs in "
        f"{counted(layout['n_shards'], 'shard')} of {layout['shard']:,} obs, for each field."
    )
    shown = sorted(found["fields"], key=lambda f: -f["bytes"])[:20]
    exact = all(f["bytes_stored_exact"] for f in found["fields"])
    note = "" if exact else f"estimated from {info.MOST_SHARDS} shards a field"
    section.tables.append(
        {
            "head": ["field", "codec", "read by", "raw", "stored", "ratio"],
            "left": [0, 1, 2],
            "rows": [
                [
                    f["name"],
                    f["codec"],
                    f["engine"]["name"],
                    human_bytes(f["bytes"]),
                    human_bytes(f["bytes_stored"]),
                    f"{f['ratio']:.2f}" if f["ratio"] else "-",
                ]
                for f in found["fields"]
            ],
            "note": note,
        }
    )
    series = {"raw": [f["bytes"] for f in shown], "stored": [f["bytes_stored"] for f in shown]}
    if store.n_obs:
        section.add(figures.bars([f["name"] for f in shown], series, "Bytes a field", x="bytes"))
    return section


def _splits(found: Mapping[str, Any]) -> Section:
    section = Section("splits", "Splits")
    rows = [
        [name, part, f"{p['n_obs']:,}", f"{p['sequences']:,}"]
        for name, parts in found["splits"].items()
        for part, p in parts.items()
    ]
    if rows:
        head = ["split", "part", "obs", "sequences"]
        section.tables.append({"head": head, "left": [0, 1], "rows": rows, "note": ""})
    return section


def _origin(found: Mapping[str, Any]) -> Section:
    section = Section("origin", "Where it came from")
    rows = [list(r) for r in info.provenance_rows(dict(found))]
    if isinstance(found["faults"], dict):
        rows += [[f"fault {code}", str(count)] for code, count in sorted(found["faults"].items())]
    if rows:
        section.tables.append({"head": ["fact", "value"], "left": [0, 1], "rows": rows, "note": ""})
    return section

"""What a store is, as one JSON value, and that value as tables.

Decided here: what belongs on one screen. :func:`describe` gathers, :func:`show` prints; the notebook and the
report use the same value. Nothing here reads data: only metadata, the table of sequences, and the
indices of at most ``MOST_SHARDS`` shards a field.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.splits import load_splits, part_segments
from chunkstore.text import counted, human_bytes, human_number, human_seconds, printable

if TYPE_CHECKING:
    from chunkstore.opened import OpenStore

__all__ = ["describe", "ingest_report", "show", "stored_bytes"]

logger = logging.getLogger(__name__)

#: Shard indices that are read to add up a field's stored bytes; beyond, the sum is an estimate.
MOST_SHARDS = 64
#: Ids shown of the first and of the last sequences.
MOST_IDS = 3
#: Labels shown of each column.
MOST_LABELS = 12


def describe(store: OpenStore) -> dict[str, Any]:
    """Return what a store is, as JSON values.

    Parameters
    ----------
    store : ChunkStore
        An open store, complete or not.

    Returns
    -------
    dict
        ``url``, ``status``, ``format``, ``fingerprint``, ``n_obs``, ``layout``, ``fields`` (a list, one
        object each: dtype, units, codec, bytes raw and stored with those of its mask, statistics),
        ``sequences``, ``splits``, ``gaps``, ``faults`` and ``provenance``.

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> found = describe(small_store())
    >>> found["n_obs"], found["sequences"]["count"], found["fields"][0]["name"]
    (10, 3, 'x')
    """
    own = dict(store.attrs.get("chunkstore", {}))
    complete = store.status == "complete"
    told = ingest_report(store) if complete else {}
    # the ledger knows more, e.g. how long it took; without it the store itself still says what was lost
    kept = own.get("provenance")
    provenance = dict(kept) if isinstance(kept, dict) else {}
    faults = provenance.pop("faults", {})
    if told:
        provenance.pop("rows", None)
    return {
        "url": store.url,
        "status": store.status,
        "format": own.get("format"),
        "fingerprint": own.get("fingerprint"),
        "n_obs": store.n_obs,
        "layout": {
            "chunk": store.layout.chunk,
            "shard": store.layout.shard,
            "n_chunks": store.layout.n_chunks,
            "n_shards": store.layout.n_shards,
        },
        "fields": [_field(store, name) for name in store.fields],
        "sequences": _sequences(store) if complete else None,
        "splits": _splits(store) if complete else {},
        "gaps": _gaps(store) if complete else None,
        "faults": told.get("faults", faults),
        "provenance": {**provenance, **_ingest(told)},
        "attributes": {k: v for k, v in store.attrs.items() if k != "chunkstore"},
    }


def ingest_report(store: OpenStore) -> dict[str, Any]:
    """Return what an ingest left in the ledger beside the store (``STORE.ledger/report.json``), if anything.

    A ledger may be deleted, and a store copied without it; one that tells of another store is ignored.

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> ingest_report(small_store())
    {}
    """
    from chunkstore.errors import ChunkstoreError
    from chunkstore.places import open_place

    url, options = store._arguments[:2]  # noqa: SLF001 - the same place and credentials
    try:
        data = open_place(f"{str(url).rstrip('/')}.ledger", options).get("report.json")
        found = json.loads(data) if data is not None else {}
    except (OSError, ValueError, ChunkstoreError) as error:
        logger.debug("no report beside %s: %s", store.url, error)
        return {}
    if not isinstance(found, dict) or (found.get("obs"), found.get("sequences")) != (
        store.n_obs,
        store.n_sequences,
    ):
        return {}
    return found


def _ingest(told: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an ingest's report that tells where the data came from."""
    rows, files = told.get("rows"), told.get("files")
    if not isinstance(rows, dict) or not isinstance(files, list):
        return {}
    seconds = told.get("seconds")
    return {
        "ingest": {
            "files": len(files),
            "first_file": files[0].get("file") if files and isinstance(files[0], dict) else None,
            "rows": ", ".join(f"{name} {count:,}" for name, count in rows.items()),
            "bytes": told.get("bytes_in"),
            "seconds": seconds.get("all") if isinstance(seconds, dict) else None,
            "workers": told.get("workers"),
        }
    }


def stored_bytes(store: OpenStore, field: str, most: int = MOST_SHARDS) -> tuple[int, bool]:
    """Return the stored bytes of a field or mask, and whether all were counted (or estimated from a sample).

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> stored_bytes(small_store(), "x")[1]
    True
    """
    n = store.layout.n_shards
    if n <= most:
        return sum(int(store.stored_bytes(field, i).sum()) for i in range(n)), True
    picks = np.unique(np.linspace(0, n - 1, most).astype(np.int64)).tolist()
    total = obs = 0
    for i in picks:
        low, high = store.layout.shard_range(i)
        total += int(store.stored_bytes(field, i).sum())
        obs += high - low
    return round(total * store.n_obs / max(1, obs)), False


def _field(store: OpenStore, name: str) -> dict[str, Any]:
    spec = store.fields[name]
    raw = spec.bytes_per_obs * store.n_obs
    stored, exact = stored_bytes(store, name)
    if name in store.masks:  # a part of it
        mask, exact_mask = stored_bytes(store, store.masks[name])
        raw, stored, exact = raw + store.n_obs, stored + mask, exact and exact_mask
    engine = store.engine[name]
    statistics = store.statistics.get(name)
    return {
        "name": name,
        "dtype": spec.dtype,
        "items": spec.items,
        "units": spec.units,
        "long_name": spec.long_name,
        "scale_factor": spec.scale_factor,
        "nullable": spec.nullable,
        "categories": list(spec.categories) if spec.categories is not None else None,
        "codec": _codec(store, name),
        "bytes": raw,
        "bytes_stored": stored,
        "bytes_stored_exact": exact,
        "ratio": raw / stored if stored else None,
        "engine": {"name": engine.name, "reason": engine.reason},
        "statistics": None
        if statistics is None
        else {
            key: _plain(getattr(statistics, key)) for key in ("count", "nulls", "min", "max", "mean", "std")
        },
    }


def _codec(store: OpenStore, name: str) -> str:
    """Return the codec of a field as it would be asked for: ``blosc-lz4:5``, ``zstd:3``, ``none``."""
    codec = store._array(name).codec  # noqa: SLF001 - of the same room
    config = codec.compressor.get_config() if codec.compressor is not None else {}
    parts = [codec.name]
    if codec.name == "blosc":
        parts = [config["cname"]] if config["shuffle"] == 0 else ["blosc", config["cname"]]
    level = config.get("clevel", config.get("level"))
    text = "-".join(p for p in parts if p)
    return text if level is None else f"{text}:{level}"


def _plain(value: Any) -> Any:
    """Return numpy's numbers as Python's, with None for what JSON cannot hold."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.generic,)):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _sequences(store: OpenStore) -> dict[str, Any]:
    table = store.sequences
    rowsize = table.rowsize
    n = len(rowsize)
    quantiles = np.quantile(rowsize, [0, 0.5, 1]).tolist() if n else [0, 0, 0]
    return {
        "count": n,
        "empty": int((rowsize == 0).sum()),
        "rowsize": {
            "min": int(quantiles[0]),
            "median": float(quantiles[1]),
            "max": int(quantiles[2]),
            "mean": float(rowsize.mean()) if n else 0.0,
        },
        "columns": [_column(store, name) for name in table.columns],
        "first_ids": [str(i) for i in table.ids[:MOST_IDS]],
        "last_ids": [str(i) for i in table.ids[max(MOST_IDS, n - MOST_IDS) :]],
    }


def _column(store: OpenStore, name: str) -> dict[str, Any]:
    table = store.sequences
    found: dict[str, Any] = {"name": name, "units": table.attrs(name).get("units")}
    if table.is_categorical(name):
        words, codes = table.categories(name), table.codes(name)
        counts = np.bincount(codes[codes >= 0], minlength=len(words))
        own = len(words) > MOST_LABELS and len(words) * 2 > len(
            codes
        )  # nearly every sequence has its own: counts say nothing
        order = np.argsort(-counts, kind="stable")[: 1 if own else MOST_LABELS]
        return {
            **found,
            "kind": "label",
            "distinct": len(words),
            "none": int((codes < 0).sum()),
            "counts": {words[i]: int(counts[i]) for i in order},
        }
    values = table.column(name)
    if values.dtype == object:
        texts = [v for v in values[:1000].tolist() if v]
        return {**found, "kind": "text", "first": texts[:1], "distinct": None}
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    span = [_plain(known.min()), _plain(known.max())] if len(known) else [None, None]
    return {**found, "kind": str(values.dtype), "min": span[0], "max": span[1]}


def _splits(store: OpenStore) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, split in load_splits(store).items():
        found[name] = {
            part: {
                "n_obs": int((segments.stop - segments.start).sum()),
                "sequences": len(np.unique(segments.sequence)),
            }
            for part in split.parts
            for segments in (part_segments(store, f"{name}:{part}"),)
        }
    return found


def _gaps(store: OpenStore) -> dict[str, Any]:
    gaps = store.gaps
    lost = int((gaps[:, 1] - gaps[:, 0]).sum()) if len(gaps) else 0
    return {"count": len(gaps), "n_obs": lost, "fraction": lost / store.n_obs if store.n_obs else 0.0}


def headline(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the few lines that say what a store is: pairs of a name and a text."""
    sequences, layout = found["sequences"], found["layout"]
    raw = sum(f["bytes"] for f in found["fields"])
    stored = sum(f["bytes_stored"] for f in found["fields"])
    about = "" if all(f["bytes_stored_exact"] for f in found["fields"]) else "about "
    lines = [("obs", f"{found['n_obs']:,}")]
    if sequences:
        size = sequences["rowsize"]
        empty = f", {sequences['empty']:,} empty" if sequences["empty"] else ""
        same = size["min"] == size["max"]
        span = f"{size['min']:,}" if same else f"{size['min']:,} to {size['max']:,}"
        middle = "" if same else f" (median {size['median']:,.0f}{empty})"
        lines.append(
            (
                "sequences",
                f"{sequences['count']:,} of {span} obs{middle}",
            )
        )
        if sequences["count"]:
            lines.append(("ids", _ids(sequences)))
    ratio = f", {raw / stored:.2f} times smaller" if stored else ""
    chunks = f"{counted(layout['n_chunks'], 'chunk')} of {layout['chunk']:,} obs"
    shards = f"{counted(layout['n_shards'], 'shard')} of {layout['shard']:,} obs"
    lines += [
        ("bytes", f"{human_bytes(raw)} raw, {about}{human_bytes(stored)} stored{ratio}"),
        ("on disk", f"{chunks} in {shards}, a field"),
    ]
    for f in found["fields"]:
        s = f["statistics"]
        if is_time(f["units"]) and s and s["min"] is not None and not isinstance(s["min"], list):
            dates = _dates(f["units"], s["min"], s["max"])
            lines += [(f["name"], dates)] if dates else []
    gaps = found["gaps"]
    if gaps and gaps["count"]:
        lines.append(("gaps", f"{gaps['count']:,} with {gaps['n_obs']:,} obs ({gaps['fraction']:.2%})"))
    for code, count in sorted(found["faults"].items()) if isinstance(found["faults"], dict) else []:
        lines.append(("fault", f"{code}: {count}"))
    left = _left_out(found["attributes"])
    if left:
        lines.append(("left out", left))
    if found["status"] != "complete":
        lines.append(("status", f"{found['status']}: writing has not finished"))
    return lines


def _ids(sequences: dict[str, Any]) -> str:
    """Return the first and the last ids, and how many stand between them."""
    first, last = ([printable(repr(i), 48) for i in sequences[k]] for k in ("first_ids", "last_ids"))
    between = sequences["count"] - len(first) - len(last)
    return ", ".join([*first, *([f"... {between:,} more ..."] if between else []), *last])


def _left_out(attributes: dict[str, Any]) -> str:
    """Return the fields of the source that the ingest did not store, though nobody said so."""
    left = attributes.get("avro_fields_left")
    if not isinstance(left, dict):
        return ""
    silent = ("key or label", "excluded", "not asked for")
    return ", ".join(f"{name} ({reason})" for name, reason in left.items() if reason not in silent)


def field_rows(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the table of fields: its head, and one row a field."""
    head = [
        "field",
        "dtype",
        "units",
        "count",
        "missing",
        "min",
        "mean",
        "max",
        "std",
        "codec",
        "stored",
        "ratio",
    ]
    rows = []
    for f in found["fields"]:
        s = f["statistics"] or {}
        dtype = f"{f['dtype']}[{f['items']}]" if f["items"] else f["dtype"]
        clock = is_time(f["units"])
        if f["categories"] is not None:
            dtype = f"{len(f['categories'])} words"
        rows.append(
            [
                f["name"],
                dtype,
                told_units(f["units"]),
                _total(s.get("count")),
                _total(s.get("nulls")),
                *(["-"] * 4 if clock or f["categories"] is not None else _measures(s, f["scale_factor"])),
                f["codec"],
                human_bytes(f["bytes_stored"]),
                f"{f['ratio']:.2f}" if f["ratio"] else "-",
            ]
        )
    return head, rows


def told_units(units: str | None) -> str:
    """Return units as people write them behind a number: nothing for pure numbers and for times.

    Examples
    --------
    >>> told_units("degC"), told_units("1"), told_units("seconds since 1970-01-01")
    ('degC', '', '')
    """
    return "" if units in (None, "1") or is_time(units) else str(units)


def is_time(units: str | None) -> bool:
    """Whether units are those of a CF time, such as ``seconds since 1970-01-01``."""
    return units is not None and " since " in units


def _measures(s: dict[str, Any], factor: float | None) -> list[str]:
    """Return least, mean, largest and spread, of the quantity that scaled integers stand for."""
    ends = (min, max) if factor is None or factor >= 0 else (max, min)
    found = zip(("min", "mean", "max", "std"), (ends[0], _mean, ends[1], _mean), strict=True)
    texts = [_extreme(_times(s.get(name), factor), join) for name, join in found]
    return texts if ends[0] is min else [texts[2], texts[1], texts[0], texts[3].removeprefix("-")]


def _times(value: Any, factor: float | None) -> Any:
    if factor is None or value is None:
        return value
    if isinstance(value, list):
        return [_times(v, factor) for v in value]
    return value * factor


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _total(value: Any) -> str:
    if value is None:
        return "-"
    return f"{sum(value) if isinstance(value, list) else value:,}"


def _extreme(value: Any, join: Any) -> str:
    if isinstance(value, list):
        known = [v for v in value if v is not None]
        return human_number(join(known)) if known else "-"
    return human_number(value)


def column_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return one line for each column along ``sequence``: its name and what stands in it."""
    lines = []
    for c in (found["sequences"] or {}).get("columns", []):
        units = f" {c['units']}" if c["units"] and not is_time(c["units"]) and c["units"] != "1" else ""
        if c["kind"] == "label":
            shown = ", ".join(
                f"{printable(word, 40) or '(empty)'} {count:,}" for word, count in c["counts"].items()
            )
            if not c["distinct"]:
                lines.append((c["name"], f"no label, on {c['none']:,} sequences"))
                continue
            more = c["distinct"] - len(c["counts"])
            text = f"{counted(c['distinct'], 'label')}: {shown}" + (f" and {more:,} more" if more > 0 else "")
            if more and len(c["counts"]) == 1:
                text = f"{c['distinct']:,} labels, such as {printable(next(iter(c['counts'])), 40)}"
            if c["none"]:
                text += f"; {c['none']:,} without"
        elif c["kind"] == "text":
            text = f"text, such as {printable(repr(c['first'][0]), 60)}" if c["first"] else "text, all empty"
        else:
            text = _span(c) + units
        lines.append((c["name"], text))
    return lines


def _span(column: dict[str, Any]) -> str:
    low, high = column["min"], column["max"]
    units = column["units"] or ""
    if low is None or high is None:
        return "no value"
    if is_time(units):
        dates = _dates(units, low, high)
        if dates:
            return dates
    if low == high:
        return human_number(low)
    return f"{human_number(low)} to {human_number(high)}"


def dates_of(units: str, values: Any) -> np.ndarray | None:
    """Return CF times as datetime64[same shape], or None where numpy knows no such unit or origin.

    Examples
    --------
    >>> dates_of("hours since 2024-03-01", [0, 1.5])
    array(['2024-03-01T00:00:00.000000', '2024-03-01T01:30:00.000000'],
          dtype='datetime64[us]')
    """
    unit, _, origin = units.partition(" since ")
    known = {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
    code: Any = {**known, "days": "D", "hours": "h", "minutes": "m"}.get(unit)
    if code is None:
        return None
    try:
        start = np.datetime64(origin.strip().replace(" ", "T").removesuffix("Z"))
        numbers = np.asarray(values)
        if numbers.dtype.kind == "f":  # parts of a unit count, to the microsecond
            ticks = np.round(numbers * (np.timedelta64(1, code) / np.timedelta64(1, "us")))
            if not (np.abs(ticks) < 2**62).all():
                return None
            dates = start + ticks.astype("timedelta64[us]")
        else:
            dates = start + numbers.astype(f"timedelta64[{code}]")
    except (ValueError, OverflowError):
        return None
    found: np.ndarray = dates
    return found


def _dates(units: str, low: float, high: float) -> str | None:
    """Return CF times as dates, where numpy knows the unit."""
    ends = dates_of(units, np.array([low, high]))
    return None if ends is None else " to ".join(dict.fromkeys(_short(str(e)) for e in ends))


def _short(date: str) -> str:
    """Return a date without the zeros that its unit brings."""
    date = date.rstrip("0").rstrip(".") if "." in date else date
    date = date.removesuffix("T00:00:00").removesuffix("T00:00").removesuffix("T00")
    return date.removesuffix(":00") if date.count(":") == 2 else date


def show(found: dict[str, Any]) -> None:
    """Print what :func:`describe` found, on one screen."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(
        f"[bold]{escape(printable(found['url'], 400))}[/] [dim]format {found['format']}, {found['status']}[/]"
    )
    console.print(_pairs(headline(found)))
    for table in _field_tables(found, console.width):
        console.print()
        console.print(table)
    columns = column_rows(found)
    if columns:
        console.print("\n[bold]along sequence[/]")
        console.print(_pairs(columns))
    if found["splits"]:
        console.print("\n[bold]splits[/]")
        console.print(_pairs(split_rows(found)))
    notes = provenance_rows(found)
    if notes:
        console.print("\n[bold]provenance[/]")
        console.print(_pairs(notes))


def _field_tables(found: dict[str, Any], width: int) -> list[Any]:
    """One table of the fields where the screen is wide, else one of values and one of storage, or three."""
    from rich.markup import escape
    from rich.table import Table

    head, rows = field_rows(found)
    # columns that say nothing here only take room
    empty = {"missing": ("0", "-"), "units": ("",)}
    keep = [i for i in range(len(head)) if any(r[i] not in empty.get(head[i], ("-",)) for r in rows)]
    disk = [i for i in keep if head[i] in ("codec", "stored", "ratio")]
    values = [i for i in keep if i not in disk]
    groups = [keep] if width >= 120 else [values, [0, *disk]]
    if width < 120 and sum(2 + max(len(row[i]) for row in [head, *rows]) for i in values) - 2 > width:
        counts = [i for i in values if head[i] in ("field", "dtype", "units", "count", "missing")]
        groups = [counts, [0, *(i for i in values if i not in counts)], [0, *disk]]
    tables = []
    for group in groups:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i in group:
            left = head[i] in ("field", "dtype", "units", "codec")
            wide = min(24, max(len(row[i]) for row in rows)) if i == 0 else None
            table.add_column(
                head[i], justify="left" if left else "right", no_wrap=i > 0, overflow="fold", min_width=wide
            )
        for row in rows:
            table.add_row(*(escape(printable(row[i])) for i in group))
        tables.append(table)
    return tables


def split_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return one line a split: its name and the size of its parts."""
    return [
        (
            name,
            ", ".join(
                f"{part} {p['n_obs']:,} obs in {p['sequences']:,} sequences" for part, p in parts.items()
            ),
        )
        for name, parts in found["splits"].items()
    ]


def provenance_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return where the store came from, one line a fact, long values cut."""
    lines: list[tuple[str, str]] = []

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else key, inner)
        elif value not in (None, "", [], {}):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            if name.endswith("seconds") and isinstance(value, (int, float)):
                text = human_seconds(float(value))
            elif name.endswith("bytes") and isinstance(value, int):
                text = human_bytes(value)
            lines.append((name, text if len(text) <= 160 else text[:157] + "..."))

    walk("", found["provenance"])
    return lines


def _pairs(lines: list[tuple[str, str]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines:
        table.add_row(escape(printable(name)), escape(printable(text, 2000)))
    return table

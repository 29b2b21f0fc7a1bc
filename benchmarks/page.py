"""Write the page of the documentation from the stored results: ``python -m benchmarks.page``.

Everything on the page that is a number comes from ``benchmarks/results/*.json``; the sentences that say why
a peer wins are here, and a peer that wins without one is named as open. Growth is drawn as SVG.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from benchmarks.compare_growth import AXES
from benchmarks.harness import RESULTS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    Record = Mapping[str, Any]

PAGE = ROOT / "docs" / "benchmarks.md"
TEMPLATE = ROOT / "benchmarks" / "page.md"
PLOTS = ROOT / "docs" / "_static"

#: why a peer can be ahead of us, by the start of its name
REASONS = {
    "all in memory": "everything is decoded in memory before the clock starts; the ceiling, possible only "
    "while the data fits there",
    "memory map, fancy index": "uncompressed, and every page of the file is cached after the first "
    "touch; once a file is larger than memory, every batch waits for hundreds of random pages",
    "memory map + DataLoader": "nothing to decode and no block to fill before the first batch",
    "tsai": "nothing to decode and no block to fill before the first batch",
    "WebDataset cut": "its buffer holds windows of a few neighbouring samples, so all copies hit the "
    "processor's cache, and a batch mixes very few places",
    "npy": "uncompressed float32 in the page cache: nothing to decode, for several times the bytes on disk",
    "LitData": "uncompressed chunks are memory-mapped in place, so there is nothing to decode",
    "HF datasets crops": "Arrow is memory-mapped: nothing to decode before the first batch",
    "zarr": "one window needs one small chunk; nothing else is read or held",
    "tensorstore": "only the small reads of one batch are in flight; nothing is read ahead",
    "annbatch": "a batch needs a few rows of chunks only, and nothing is read ahead",
    "streaming": "samples are stored uncompressed and read as they are asked for",
    "WebDataset crops": "the tar is read from its start, sample by sample; nothing else is held",
    "grain": "records are compressed whole, and only one is held at a time",
    "insitubatch": "it reads with a codec setting that packs closer than our default, chosen for speed",
    "xbatcher": "one window needs one small chunk; nothing else is read or held",
    "DataFusion": "a table engine in one process: no workers to start, no plan, no ledger, no check of what "
    "was stored; all rows are sorted in memory",
    "polars": "a table engine in one process: no workers to start, no plan, no ledger, no check of what was "
    "stored; all rows are sorted in memory",
    "fastavro loop": "a loop in one process holds lists of the columns asked for and nothing else",
    "soundfile + soxr loop": "no workers to start, no plan, no checks; with few recordings that decides",
    "librosa loop": "one process, one recording at a time",
    "soundfile seek": "it opens one file and decodes a few pages of it: nothing is kept between crops",
    "PyAV seek": "it opens one file and decodes a few pages of it: nothing is kept between crops",
    "HF datasets undecoded": "compressed files stay compressed, and nothing is kept between crops",
    "decode all": "compressed files stay compressed, and nothing is kept between crops",
    "librosa": "compressed files stay compressed, and nothing is kept between crops",
}


def number(value: float | None, digits: int = 3) -> str:
    """Short, with a thousands mark: three digits that count.

    >>> number(1234567.0), number(0.01234), number(12.0), number(None)
    ('1,230,000', '0.0123', '12', '-')
    """
    if value is None:
        return "-"
    if value == 0:
        return "0"
    rounded = round(value, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{rounded:,.0f}" if abs(rounded) >= 100 or rounded == int(rounded) else f"{rounded:g}"


def mebibytes(value: float | None) -> str:
    """MiB, without a unit.

    >>> mebibytes(1 << 20)
    '1'
    """
    return number(None if value is None else value / 2**20)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A Markdown table; columns in ``right`` are aligned to the right.

    >>> print(table(["a", "b"], [["x", "1"]], right=[1]))
    | a | b |
    |---|--:|
    | x | 1 |
    """
    marks = ["--:" if k in set(right) else "---" for k in range(len(head))]
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(marks)}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def middle(record: Record, name: str) -> float | None:
    """Median of a repeated number, or None."""
    found = record.get("summary", {}).get(name)
    return None if found is None else found["median"]


def spread(record: Record, name: str = "per_s") -> str:
    """Half the distance of the quartiles, as a share of the median."""
    found = record.get("summary", {}).get(name)
    return (
        "-"
        if not found or found["n"] < 2
        else f"+-{(found['high'] - found['low']) / 2 / found['median']:.0%}"
    )


def shown(record: Record) -> str:
    """The name of a row; a number behind it counts workers.

    >>> shown({"name": "streaming crops, 2"}), shown({"name": "tsai"})
    ('streaming crops (2 workers)', 'tsai')
    """
    name, comma, workers = record["name"].rpartition(", ")
    return f"{name} ({workers} workers)" if comma and workers.isdecimal() else record["name"]


def fact(record: Record, name: str) -> Any:
    """A fact of a record, or None."""
    return record.get("values", {}).get(name)


def rows_of(result: Mapping[str, Any], name: str) -> list[Record]:
    """Records of one table, the fastest first, gaps last."""
    found = [record for record in result["subjects"] if record["table"] == name]
    return sorted(found, key=lambda record: -(middle(record, "per_s") or 0))


def below(result: Mapping[str, Any]) -> str:
    """The line under a table: how to make it again, and on what it was made."""
    about = result["machine"]
    load = about.get("load_before")
    return (
        f"`{result['command']}` · {result['date']}, commit {result['commit']}, {about['processor']}, "
        f"{about['cores']} cores, {number((about.get('memory_bytes') or 0) / 2**30)} GiB, "
        f"Python {about['python']}, load {load} before the start, {result['repeats']} "
        f"process{'' if result['repeats'] == 1 else 'es'} a row"
    )


def _share(record: Record, own: Record, name: str) -> str:
    theirs, mine = middle(record, name), middle(own, name)
    return number(theirs / mine, 2) if theirs and mine else "-"


def _rates(result: Mapping[str, Any], name: str, unit: str, *, batches: bool = True) -> str:
    head = [
        "how" if unit == "rows" else "reader",
        f"{unit}/s",
        "spread",
        "x ours",
        "x ours per CPU s",
        "peak MiB",
        "disk MiB",
    ]
    if batches:
        head.insert(5, "first batch s")
    records = rows_of(result, name)
    own = next((record for record in records if record["name"] == "ours"), {})
    rows = []
    for record in records:
        if "gap" in record:
            continue
        rate = middle(record, "per_s") or 0.0
        row = [
            f"**{record['name']}**" if record["name"].startswith("ours") else shown(record),
            number(rate),
            spread(record),
            _share(record, own, "per_s"),
            _share(record, own, "per_cpu_s"),
            mebibytes(record.get("peak_bytes")),
            mebibytes(fact(record, "disk_bytes")),
        ]
        if batches:
            row.insert(5, number(middle(record, "first_batch_s"), 2))
        rows.append(row)
    return table(head, rows, right=range(1, len(head)))


def gaps(result: Mapping[str, Any]) -> str:
    """What could not be measured, and why."""
    tables: dict[str, set[str]] = {}
    for record in result["subjects"]:
        tables.setdefault(record["name"], set()).add(record["table"])
    lines = {
        f"- {r['name']}{' in ' + r['table'] if len(tables[r['name']]) > 1 else ''}: {r['gap']}"
        for r in result["subjects"]
        if "gap" in r
    }
    return "\n".join(["Gaps, stated by the run itself:", "", *sorted(lines)]) if lines else ""


def reason(name: str) -> str:
    """Why a peer may win."""
    found = [start for start in REASONS if name.startswith(start)]
    return REASONS[max(found, key=len)] if found else "the reason is open"


#: why peers are ahead in what is no rate; the same for all of them
ELSEWHERE = {
    "first batch": "they fill no blocks before the first batch; ours reads as many blocks as a batch has "
    "windows, so that already the first batch is mixed well",
    "peak memory": "they keep little between batches, or the data and nothing else, and pages of mapped "
    "files are not counted; ours keeps decoded blocks up to its memory limit and makes batches ahead",
    "bytes on disk": "their codecs pack closer than our default, which is chosen for the speed of reading; "
    "`codec=` picks another",
}

#: the same where a store is filled and there are no batches
FILLING = {
    "peak memory": "one process, one recording at a time; ours starts worker processes, each with an "
    "interpreter and libraries of its own",
}

#: what no ``codec=`` of ours does
LOSSY = "; ogg is smaller still since it is lossy, which no codec of a store is"


def _ahead(
    result: Mapping[str, Any], tables: Iterable[str], *, batches: bool
) -> dict[str, dict[str, list[str]]]:
    """{what: {peer: ["2x in 512x4", ...]}} for all that peers are ahead of ours in."""
    found: dict[str, dict[str, list[str]]] = {}
    tables = list(tables)
    for name in tables:
        records = [record for record in rows_of(result, name) if "gap" not in record]
        ours = next((record for record in records if record["name"] == "ours"), None)
        for record in records:
            if ours is None or record["name"].startswith("ours"):
                continue
            pairs = [
                ("rate", middle(record, "per_s"), middle(ours, "per_s")),
                ("rate per CPU s", middle(record, "per_cpu_s"), middle(ours, "per_cpu_s")),
                ("peak memory", ours.get("peak_bytes"), record.get("peak_bytes")),
                ("bytes on disk", fact(ours, "disk_bytes"), fact(record, "disk_bytes")),
            ]
            if batches:
                pairs.append(("first batch", middle(ours, "first_batch_s"), middle(record, "first_batch_s")))
            for what, more, less in pairs:
                if more and less and more > less * 1.05:
                    where = f" in {name.replace(', ', ' ')}" if len(tables) > 1 else ""
                    peers = found.setdefault(what, {})
                    peers.setdefault(shown(record), []).append(f"{number(more / less, 2)}x{where}")
    return found


def winners(result: Mapping[str, Any], tables: Iterable[str], *, batches: bool = True) -> str:
    """Every peer that is ahead of ours in something by more than a twentieth, with the reason."""
    found = _ahead(result, tables, batches=batches)
    lines = []
    for what in ("rate", "rate per CPU s"):
        for peer, won in found.get(what, {}).items():
            lines.append(f"- **{what}: {peer}**, {', '.join(won)}. Why: {reason(peer)}.")
    for what, why in (ELSEWHERE | ({} if batches else FILLING)).items():
        if peers := found.get(what):
            if what == "bytes on disk" and any("ogg" in peer for peer in peers):
                why += LOSSY  # noqa: PLW2901 - one sentence more
            told = "; ".join(f"{peer} {', '.join(won)}" for peer, won in peers.items())
            lines.append(f"- **{what}**: {told}. Why: {why}.")
    return "\n".join(lines) or "No peer is ahead in any number of these tables."


def _epochs(result: Mapping[str, Any]) -> str:
    speed = {record["name"]: record for record in rows_of(result, "512x4")}
    rows = []
    for record in rows_of(result, "once"):
        mixed = speed.get(record["name"], {})
        if "gap" in record:
            continue
        if fact(record, "crops"):
            once = "no: random crops"
        elif fact(record, "exactly_once"):
            once = "yes"
        else:
            once = f"no: {fact(record, 'missed')} missed, {fact(record, 'crossing')} cross two recordings"
        regions = fact(mixed, "regions_a_batch")
        rows.append(
            [
                f"**{record['name']}**" if record["name"].startswith("ours") else record["name"],
                "-" if regions is None else f"{regions:.0f} ({fact(mixed, 'regions_a_batch_p1'):.0f})",
                once,
                str(fact(record, "resumes")),
                record["setting"],
                ", ".join(f"{k} {v}" for k, v in record["versions"].items() if k not in {"python", "numpy"}),
            ]
        )
    head = ["reader", "regions a batch (p1)", "every window once", "resumes", "how it is used", "version"]
    return table(head, rows, right=[1])


# ---- growth -------------------------------------------------------------------------------------


def _line(points: Sequence[tuple[float, float]], box: tuple[float, float, float, float], unit: str) -> str:
    """One panel of a plot: x on a scale of powers, y from zero."""
    left, top, width, height = box
    logs = [math.log10(max(x, 0.5)) for x, _ in points]
    low, high = min(logs), max(logs)
    most = max(y for _, y in points) * 1.15 or 1.0
    at = [
        (left + width * ((lx - low) / (high - low or 1)), top + height * (1 - y / most))
        for lx, (_, y) in zip(logs, points, strict=True)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    parts = [
        f'<line x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top + height}" stroke="#888"/>',
        f'<polyline points="{path}" fill="none" stroke="#2a6fb0" stroke-width="2"/>',
        f'<text x="{left}" y="{top - 10}" fill="#666" font-weight="bold">{unit}</text>',
    ]
    for (x, y), (value, amount) in zip(at, points, strict=True):
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#2a6fb0"/>',
            f'<text x="{x:.1f}" y="{y - 7:.1f}" fill="#666" text-anchor="middle">{number(amount)}</text>',
            f'<text x="{x:.1f}" y="{top + height + 15}" fill="#666" text-anchor="middle">{value:,.0f}</text>',
        ]
    return "\n".join(parts)


def plot(axis: str, records: Sequence[Record]) -> str:
    """SVG of two panels: rate and peak memory against one size."""
    records = sorted(records, key=lambda record: fact(record, "value"))
    rate = [(fact(r, "value"), (middle(r, "per_s") or 0) / 1000) for r in records]
    held = [(fact(r, "value"), r.get("peak_bytes", 0) / 2**20) for r in records]
    head = 'viewBox="0 0 700 210" font-family="sans-serif" font-size="11" role="img"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {head} aria-label="rate and memory against {axis}">',
            _line(rate, (50, 40, 250, 120), "thousand windows/s"),
            _line(held, (400, 40, 250, 120), "peak MiB"),
            f'<text x="350" y="205" fill="#666" text-anchor="middle">{axis}</text>',
            "</svg>",
        ]
    )


def _growth(result: Mapping[str, Any], plots: Path) -> str:
    parts = []
    for axis in AXES:
        records = [r for r in result["subjects"] if r["table"] == axis and "gap" not in r]
        if len(records) < 2:
            continue
        name = f"growth-{axis}.svg"
        (plots / name).write_text(plot(axis, records) + "\n")
        rows = [
            [
                number(fact(r, "value"), 9),
                number(middle(r, "setup_s"), 2),
                number(middle(r, "first_batch_s"), 2),
                number(middle(r, "per_s")),
                mebibytes(r.get("peak_bytes")),
            ]
            for r in sorted(records, key=lambda r: fact(r, "value"))
        ]
        head = [axis, "set-up s", "first batch s", "windows/s", "peak MiB"]
        parts += [
            f"### {axis.capitalize()}",
            f"![rate and memory against {axis}](_static/{name})",
            table(head, rows, right=range(5)),
        ]
    return "\n\n".join(parts)


# ---- the page -----------------------------------------------------------------------------------


def directive(line: str, results: Mapping[str, Mapping[str, Any]], plots: Path) -> str:
    """What a line such as ``@rates compare_windows; 512x4; windows`` of the template stands for."""
    kind, _, rest = line.removeprefix("@").partition(" ")
    question, *more = (part.strip() for part in rest.split(";"))
    result = results.get(question)
    if result is None:
        return f"*Not measured yet: `python -m benchmarks.{question}`.*" if kind == "rates" else ""
    if kind == "rates":
        name, unit = more
        if all("gap" in record for record in rows_of(result, name)):
            return f"*Not measured yet: `python -m benchmarks.{question}`.*"
        return f"{_rates(result, name, unit, batches=question != 'compare_ingest')}\n\n{below(result)}"
    if kind == "winners":
        return winners(result, more, batches=question != "compare_ingest")
    if kind == "growth":
        return f"{_growth(result, plots)}\n\n{below(result)}"
    return {"epochs": _epochs, "gaps": gaps}[kind](result)


def page(template: str, results: Mapping[str, Mapping[str, Any]], plots: Path) -> str:
    """The whole page in Markdown; draws the plots into ``plots``."""
    lines = [directive(x, results, plots) if x.startswith("@") else x for x in template.splitlines()]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write page and plots from what is stored."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("compare_*.json"))}
    PLOTS.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(TEMPLATE.read_text(), results, PLOTS))
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

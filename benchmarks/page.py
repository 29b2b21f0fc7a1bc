"""Write the page of the documentation from the stored results: ``python -m benchmarks.page [--check]``.

Everything on the page that is a number comes from ``benchmarks/results/*.json``, and so do the figures that
other pages quote (`benchmarks.quotes`). ``--check`` writes nothing and fails where a page says otherwise.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.compare_growth import AXES
from benchmarks.harness import RESULTS, ROOT
from benchmarks.numbers import (
    below,
    fact,
    mebibytes,
    middle,
    number,
    ours_over,
    own_row,
    peak,
    read_a_unit,
    rows_of,
    shown,
    spread,
    table,
)
from benchmarks.plots import plot
from benchmarks.quotes import pages, quoted
from benchmarks.winners import winners

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAGE = ROOT / "docs" / "benchmarks.md"
TEMPLATE = ROOT / "benchmarks" / "page.md"
PLOTS = ROOT / "docs" / "_static"

#: what stands behind a gap, by the start of the peer's name; the run itself knows only the last error
GAPS = {
    (
        "torchcodec",
        "HF datasets Audio",
    ): "torchcodec loads FFmpeg 4 to 8 of the system, such as Debian's package `ffmpeg`; `Audio()` of HF "
    "datasets decodes with it",
    (
        "insitubatch",
    ): "it plans a shifted view for every obs of a window before the first batch, and 4,096 are too many",
}


# ---- tables -------------------------------------------------------------------------------------


def _rates(result: Mapping[str, Any], name: str, unit: str, *, batches: bool = True) -> str:
    """A table of rates; ``unit`` is in the plural."""
    records = rows_of(result, name)
    own = own_row(records)
    rows = []
    for record in records:
        if "gap" in record:
            continue
        row = [
            shown(record),
            number(middle(record, "per_s")),
            spread(record),
            number(ours_over(record, own)),
            number(ours_over(record, own, "per_cpu_s")),
            number(middle(record, "first_batch_s"), 2),
            read_a_unit(record),
            mebibytes(peak(record)),
            mebibytes(fact(record, "disk_bytes")),
        ]
        rows.append(row)
    single = unit.removesuffix("s")
    head = [
        "how" if not batches else "reader",
        f"{unit}/s",
        "spread %",
        "ours/row",
        "ours/row per CPU s",
        "first batch s",
        f"read B a {single} (disk)",
        "peak MiB",
        "disk MiB",
    ]
    if not batches:
        head, rows = head[:5] + head[6:], [row[:5] + row[6:] for row in rows]
    return table(head, rows, right=range(1, len(head)))


def gaps(result: Mapping[str, Any]) -> str:
    """What could not be measured, and why; empty where there is nothing to say."""
    tables: dict[str, set[str]] = {}
    for record in result["subjects"]:
        tables.setdefault(record["name"], set()).add(record["table"])
    lines = set()
    for r in result["subjects"]:
        if "gap" in r:
            where = f" in {r['table']}" if len(tables[r["name"]]) > 1 else ""
            why = next((why for names, why in GAPS.items() if r["name"].startswith(names)), "")
            lines.add(f"- {r['name']}{where}: {r['gap']}" + (f" ({why})" if why else ""))
    return "\n".join(["Gaps, stated by the run itself:", "", *sorted(lines)]) if lines else ""


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
            missed, crossing = fact(record, "missed"), fact(record, "crossing")
            once = f"no: {missed:,} missed, {crossing:,} cross two recordings"
        regions = fact(mixed, "regions_a_batch")
        rows.append(
            [
                shown(record),
                "-" if regions is None else f"{regions:.0f} ({fact(mixed, 'regions_a_batch_p1'):.0f})",
                once,
                str(fact(record, "resumes")),
                record["setting"],
                ", ".join(f"{k} {v}" for k, v in record["versions"].items() if k not in {"python", "numpy"}),
            ]
        )
    head = ["reader", "regions a batch (p1)", "every window once", "resumes", "how it is used", "version"]
    return table(head, rows, right=[1])


def _settings(result: Mapping[str, Any], name: str) -> str:
    """How the rows of a table are used, and which versions; in the order in which they are told."""
    rows = [
        [
            shown(record),
            record["setting"],
            ", ".join(f"{k} {v}" for k, v in record["versions"].items() if k not in {"python", "numpy"}),
        ]
        for record in result["subjects"]
        if record["table"] == name and "gap" not in record
    ]
    return table(["row", "how it is used", "version"], rows)


#: what stands under the table of a growing size
BELOW = {
    "sequences": "What a window costs more with more sequences (a second divided by the rate) is above all "
    "the search for its own among them: *plan ns*, a bisection in tables that stay in the processor's first "
    "cache with 64 sequences, and not with 100,000. Besides, sequences of 671 obs have a tenth fewer windows "
    "of 64, for which the same blocks are decoded. Where more is copied for each window than 64 obs, both "
    "weigh less.",
}


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
                f"{fact(r, 'value'):,}",
                number(middle(r, "setup_s"), 2),
                number(middle(r, "first_batch_s"), 2),
                number(middle(r, "per_s")),
                spread(r),
                number(middle(r, "plan_ns"), 2),
                read_a_unit(r),
                mebibytes(peak(r)),
            ]
            for r in sorted(records, key=lambda r: fact(r, "value"))
        ]
        head = [
            axis,
            "set-up s",
            "first batch s",
            "windows/s",
            "spread %",
            "plan ns",
            "read B a window (disk)",
            "peak MiB",
        ]
        parts += [
            f"### {axis.capitalize()}",
            f"![rate and memory against {axis}](_static/{name})",
            table(head, rows, right=range(len(head))),
            below(result),
            *([BELOW[axis]] if axis in BELOW else []),
        ]
    return "\n\n".join(parts)


def _workers(result: Mapping[str, Any]) -> str:
    """What a batch costs without workers and with some, by process."""
    rows = []
    for record in result["subjects"]:
        if "gap" in record:
            continue
        loop, workers = (
            [middle(record, f"{where}_{what}") for what in ("user_ms", "system_ms", "pages", "calls")]
            for where in ("loop", "workers")
        )
        some = bool(record["params"]["workers"])
        rows.append(
            [
                shown(record),
                number(middle(record, "per_s")),
                *(number(value, 2) for value in loop[:2]),
                *(number(value, 2) if some else "-" for value in workers[:2]),
                *(f"{(a or 0) + (b or 0):.0f}" for a, b in zip(loop[2:], workers[2:], strict=True)),
            ]
        )
    head = ["reader", "windows/s", "loop: user ms", "system ms", "workers: user ms", "system ms"]
    head += ["pages given", "reads and writes"]
    return f"{table(head, rows, right=range(1, len(head)))}\n\n{below(result)}"


# ---- the page -----------------------------------------------------------------------------------


def directive(line: str, results: Mapping[str, Mapping[str, Any]], plots: Path) -> str:
    """What a line such as ``@rates compare_windows; 512x4; windows`` of the template stands for."""
    kind, _, rest = line.removeprefix("@").partition(" ")
    question, *more = (part.strip() for part in rest.split(";"))
    result = results.get(question)
    if result is None:
        missing = f"*Not measured yet: `python -m benchmarks.{question}`.*"
        return missing if kind in {"rates", "workers"} else ""
    if kind == "rates":
        name, unit = more
        if all("gap" in record for record in rows_of(result, name)):
            return f"*Not measured yet: `python -m benchmarks.{question}`.*"
        return f"{_rates(result, name, unit, batches=question != 'compare_ingest')}\n\n{below(result)}"
    if kind == "winners":
        return winners(result, more, batches=question != "compare_ingest")
    if kind == "growth":
        return _growth(result, plots)
    if kind == "workers":
        return _workers(result)
    if kind == "settings":
        return _settings(result, more[0])
    return {"epochs": _epochs, "gaps": gaps}[kind](result)


def page(template: str, results: Mapping[str, Mapping[str, Any]], plots: Path) -> str:
    """The whole page in Markdown; draws the plots into ``plots``."""
    lines = [directive(x, results, plots) if x.startswith("@") else x for x in template.splitlines()]
    whole = "\n".join(lines)
    while "\n\n\n" in whole:  # of directives that have nothing to say
        whole = whole.replace("\n\n\n", "\n\n")
    return whole.rstrip() + "\n"


def stored() -> dict[str, Any]:
    """All results that there are, by the names of their files."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def written(results: Mapping[str, Mapping[str, Any]], plots: Path) -> dict[Path, str]:
    """{page: its text}, of the page of the benchmarks and of all that quote figures."""
    found = {PAGE: quoted(page(TEMPLATE.read_text(), results, plots), results)}
    for path in pages():
        if path != PAGE and "<!-- measured:" in (text := path.read_text()):
            found[path] = quoted(text, results)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Write page, plots and quoted figures; with ``--check`` only say what differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description="Write the page.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page differs")
    asked = parser.parse_args(argv)
    if asked.check:
        wrong = stale()
        for path in wrong:
            print(f"{path.relative_to(ROOT)} differs from benchmarks/results: python -m benchmarks.page")
        return min(len(wrong), 1)
    PLOTS.mkdir(parents=True, exist_ok=True)
    for path, text in written(stored(), PLOTS).items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def stale() -> list[Path]:
    """Pages and plots that differ from what the stored results give."""
    with tempfile.TemporaryDirectory() as folder:
        plots = Path(folder)
        wanted = written(stored(), plots) | {PLOTS / p.name: p.read_text() for p in sorted(plots.iterdir())}
    return [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]


if __name__ == "__main__":
    raise SystemExit(main())

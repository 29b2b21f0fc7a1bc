"""Do two runs agree? ``python -m benchmarks.compare_runs A B``: folders of results, say of two machines.

Times depend on the machine, ratios should not. For every row of every table that both folders hold, the ratio
ours/row is formed in each (for the tables of growth first point/point), and the two are compared. What was
counted (does an epoch hold every window once?) must be the same. Ends with 1 where a ratio of one run lies
more than the tolerance from that of the other, where a fact differs, or where a row is in one run only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.numbers import fact, number, own_row, turned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.numbers import Record

__all__ = ["Agreement", "Ratio", "agreements", "main", "ratios"]

#: ratios of two machines may differ by this share
TOLERANCE = 0.2
#: what an epoch of a reader is; the same on every machine
FACTS = ("exactly_once", "missed", "repeated", "crossing")
NUMBERS = {"per_s": "rates", "per_cpu_s": "rates per second of processor time"}

Row = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours divided by a row."""

    value: float
    """The median of the turns."""
    low: float
    """The least of a turn; of results that hold no turns our slowest repeat by the fastest of the row."""
    high: float
    """The greatest, or our fastest repeat by the slowest of the row."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """One row of both runs."""

    row: Row
    """Question, table, name."""
    first: str
    """What the first run has: a ratio, facts, or why there is nothing."""
    second: str
    """The same of the second."""
    change: float | None
    """Second ratio divided by the first; None where there are not two."""
    agrees: bool
    """Whether they are as near as is asked for."""
    overlap: bool = False
    """Whether the repeats of the two runs overlap, so that noise may be all that differs."""

    def line(self) -> str:
        """As it is printed."""
        question, table, name = self.row
        change = "" if self.change is None else f"{(self.change - 1) * 100:+.0f} %"
        where = f"{question.removeprefix('compare_')} {table}"
        noise = "  (repeats overlap)" if self.overlap and not self.agrees else ""
        return (
            f"{'ok  ' if self.agrees else 'DIFF'} {where:26} {name:28} "
            f"{self.first:>12} {self.second:>12} {change:>7}{noise}"
        ).rstrip()


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """The comparisons of a folder; those without a row *ours* to divide by are none."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("compare_*.json"))}
    if not found:
        raise FileNotFoundError(
            f"{folder} holds no compare_*.json: give a folder of results, such as benchmarks/results"
        )
    return found


def _base(records: Sequence[Record]) -> Record:
    """What the rows of a table are divided by: ours, or the first point of a growing size."""
    if all(fact(record, "axis") for record in records if "gap" not in record):
        return next((record for record in records if "gap" not in record), {})
    return own_row(records)


def ratios(result: Mapping[str, Any], number: str = "per_s") -> Iterator[tuple[str, str, Ratio | str]]:
    """(table, name, ours/row) of every row; a text in place of a ratio: facts, or why there is none."""
    tables: dict[str, list[Record]] = {}
    for record in result["subjects"]:
        tables.setdefault(record["table"], []).append(record)
    for table, records in tables.items():
        base = _base(records)
        for record in records:
            value: Ratio | str
            of_turns = turned(base, record, number)
            if "gap" in record:
                value = "gap"
            elif record.get("once") or not record.get("summary"):
                value = " ".join(str(fact(record, name)) for name in FACTS)
            elif record is base:
                continue
            elif len(of_turns) > 1:
                value = Ratio(statistics.median(of_turns), min(of_turns), max(of_turns))
            elif of_turns:
                own, other = base["summary"][number], record["summary"][number]
                value = Ratio(of_turns[0], own["low"] / other["high"], own["high"] / other["low"])
            else:
                value = "no ratio"
            yield table, record["name"], value


def agreements(
    first: Mapping[str, Mapping[str, Any]],
    second: Mapping[str, Mapping[str, Any]],
    *,
    number: str = "per_s",
    tolerance: float = TOLERANCE,
) -> list[Agreement]:
    """Every row of either run, in the order of the first; questions asked in one run only are left out.

    A tolerance of 0.2 lets the greater of two ratios be 1.2 times the less.
    """
    both = [
        {
            (question, t, n): value
            for question in run
            if question in other
            for t, n, value in ratios(run[question], number)
        }
        for run, other in ((first, second), (second, first))
    ]
    return [
        _agreement(row, both[0].get(row, "no row"), both[1].get(row, "no row"), tolerance)
        for row in dict.fromkeys([*both[0], *both[1]])
    ]


def _agreement(row: Row, a: Ratio | str, b: Ratio | str, tolerance: float) -> Agreement:
    if isinstance(a, Ratio) and isinstance(b, Ratio):
        change = b.value / a.value
        near, overlap = max(change, 1 / change) <= 1 + tolerance, a.low <= b.high and b.low <= a.high
        return Agreement(row, number(a.value), number(b.value), change, near, overlap)
    if row[1] == "once" and isinstance(a, str) and isinstance(b, str) and a != "no row" != b:
        return Agreement(row, "counted", "the same" if a == b else "otherwise", None, a == b)
    shown = [number(x.value) if isinstance(x, Ratio) else x for x in (a, b)]
    return Agreement(row, shown[0], shown[1], None, a == b)


def versions_of(run: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """{package: its versions, of all environments}."""
    versions: dict[str, set[str]] = {}
    for result in run.values():
        for record in result["subjects"]:
            for package, version in record.get("versions", {}).items():
                versions.setdefault(package, set()).add(version)
    return {package: "/".join(sorted(found)) for package, found in sorted(versions.items())}


def about(name: str, run: Mapping[str, Mapping[str, Any]]) -> str:
    """Machine, commit, repeats and versions of a run."""
    lines = [f"{name}:"]
    for question, result in run.items():
        m, n, quick = result["machine"], result["repeats"], ", quick" if result.get("quick") else ""
        memory = number((m.get("memory_bytes") or 0) / 2**30)
        lines.append(
            f"  {question.removeprefix('compare_'):8} {result['date']}, commit {result['commit']}, "
            f"{m['processor']}, {m['cores']} cores, {memory} GiB, {m.get('system')}, Python {m['python']}, "
            f"load {m.get('load_before')}, {n} process{'' if n == 1 else 'es'} a row{quick}"
        )
    told = ", ".join(f"{package} {version}" for package, version in versions_of(run).items())
    return "\n".join([*lines, f"  versions {told}"])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 0 where all agrees, 1 where something does not, 2 where a folder holds no results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare_runs",
        description="Do two runs of the benchmarks agree in their ratios?",
    )
    parser.add_argument(
        "first", type=Path, metavar="A", help="folder of results, such as a copy of benchmarks/results"
    )
    parser.add_argument("second", type=Path, metavar="B", help="folder of the other results")
    parser.add_argument(
        "--number",
        choices=NUMBERS,
        default="per_s",
        help="rates of wall time (default), or of processor time",
    )
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, help=f"share that ratios may differ by ({TOLERANCE})"
    )
    asked = parser.parse_args(argv)
    try:
        runs = [results(asked.first), results(asked.second)]
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    for name, run in zip("AB", runs, strict=True):
        print(about(f"{name}, {(asked.first, asked.second)['AB'.index(name)]}", run))
    for name, run, other in (("A", runs[0], runs[1]), ("B", runs[1], runs[0])):
        for question in run:
            if question not in other:
                print(f"only in {name}, not compared: {question}")
    if len({bool(result.get("quick")) for run in runs for result in run.values()}) > 1:
        print("a quick run has other sizes: its ratios are not those of a full one")
    versions = [versions_of(run) for run in runs]
    for package in sorted(versions[0].keys() & versions[1].keys()):
        if versions[0][package] != versions[1][package]:
            print(f"other versions: {package} {versions[0][package]} in A, {versions[1][package]} in B")
    found = agreements(runs[0], runs[1], number=asked.number, tolerance=asked.tolerance)
    print(f"\nours/row of {NUMBERS[asked.number]}; growth: first point/point\n")
    print(f"     {'table':26} {'row':28} {'A':>12} {'B':>12} {'B/A':>7}")
    for agreement in found:
        print(agreement.line())
    differ = [a for a in found if not a.agrees]
    near = sum(a.change is not None and a.agrees for a in found)
    compared = sum(a.change is not None for a in found)
    print(
        f"\n{near} of {compared} ratios within {asked.tolerance:.0%}; "
        f"{len(differ)} of {len(found)} rows differ"
    )
    return min(len(differ), 1)


if __name__ == "__main__":
    raise SystemExit(main())

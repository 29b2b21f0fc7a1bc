"""How results are read and printed: medians, spreads, shares, and numbers of three digits that count."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Record = Mapping[str, Any]

__all__ = [
    "below",
    "fact",
    "mebibytes",
    "middle",
    "number",
    "ours_over",
    "own_row",
    "peak",
    "read_a_unit",
    "rows_of",
    "shown",
    "spread",
    "table",
    "told",
    "turned",
]


def number(value: float | None, digits: int = 3) -> str:
    """``digits`` digits that count, with thousands marks; always as many, so that columns read evenly.

    >>> number(1234567.0), number(33.0), number(0.01234), number(0.0), number(None)
    ('1,230,000', '33.0', '0.0123', '0', '-')
    >>> number(0.9996), number(0.2, 2)
    ('1.00', '0.20')
    """
    if value is None:
        return "-"
    if value == 0:
        return "0"
    rounded = round(value, digits - 1 - math.floor(math.log10(abs(value))))
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, decimals)}f}"


def mebibytes(value: float | None) -> str:
    """MiB, without a unit.

    >>> mebibytes(1 << 20)
    '1.00'
    """
    return number(None if value is None else value / 2**20)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A Markdown table; columns in ``right`` are aligned to the right.

    >>> print(table(["a", "b"], [["x", "1"]], right=[1]))
    | a | b |
    |---|--:|
    | x | 1 |
    """
    right = set(right)
    marks = ["--:" if k in right else "---" for k in range(len(head))]
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(marks)}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def told(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a question without rows found; all of a result that has no head.

    >>> told({"question": "store", "found": {"a": 1}}), told({"a": 1})
    ({'a': 1}, {'a': 1})
    """
    return result.get("found", result)


def middle(record: Record, name: str) -> float | None:
    """Median of a repeated number, or None."""
    found = record.get("summary", {}).get(name)
    return None if found is None else float(found["median"])


def spread(record: Record, name: str = "per_s") -> str:
    """How far the least and the greatest repeat lie from the median, in percent; no line breaks between.

    >>> spread({"summary": {"per_s": {"median": 100.0, "low": 97.0, "high": 104.0, "n": 3}}})
    '-3\xa0+4'
    """
    found = record.get("summary", {}).get(name)
    if not found or found["n"] < 2:
        return "-"
    low, high = (abs(found[end] / found["median"] - 1) * 100 for end in ("low", "high"))
    return f"-{low:.0f}\N{NO-BREAK SPACE}+{high:.0f}"


def fact(record: Record, name: str) -> Any:
    """A fact of a record, or None."""
    return record.get("values", {}).get(name)


def peak(record: Record) -> float | None:
    """Peak memory of the process tree, in bytes."""
    return record.get("peak_bytes")


def read_a_unit(record: Record) -> str:
    """Bytes a window (row, crop) that read calls returned, and in brackets those that came from the disk.

    >>> read_a_unit({"values": {"read_bytes": 300, "read_disk_bytes": 1024, "units": 100}})
    '3.00 (10.2)'
    """
    units = fact(record, "units")
    if not units or fact(record, "read_bytes") is None:
        return "-"
    calls, disk = (fact(record, name) / units for name in ("read_bytes", "read_disk_bytes"))
    return f"{_small(calls)} ({_small(disk)})"


def _small(value: float) -> str:
    return "<0.1" if 0 < value < 0.1 else number(value)


def shown(record: Record) -> str:
    """The name of a row; a number behind it counts workers, ours is bold.

    >>> shown({"name": "streaming crops, 2"}), shown({"name": "ours"})
    ('streaming crops (2 workers)', '**ours**')
    """
    name, comma, workers = record["name"].rpartition(", ")
    name = f"{name} ({workers} workers)" if comma and workers.isdecimal() else str(record["name"])
    return f"**{name}**" if name.startswith("ours") else name


def rows_of(result: Mapping[str, Any], name: str) -> list[Record]:
    """Records of one table, the fastest first, gaps last."""
    found = [record for record in result["subjects"] if record["table"] == name]
    return sorted(found, key=lambda record: -(middle(record, "per_s") or 0))


def own_row(records: Iterable[Record]) -> Record:
    """The row *ours* of a table; empty where it is a gap."""
    return next((r for r in records if r["name"] == "ours" and "gap" not in r), {})


def turned(own: Record, record: Record, name: str = "per_s") -> list[float]:
    """Ours divided by a row in each turn that has both, which minutes part at most; else of their medians.

    >>> own, row = {"turns": {"per_s": [8.0, None, 9.0]}}, {"turns": {"per_s": [4.0, 5.0, 3.0]}}
    >>> turned(own, row), turned(own, {})
    ([2.0, 3.0], [])
    """
    pairs = [(r.get("turns") or {}).get(name) or [] for r in (own, record)]
    found = [mine / theirs for mine, theirs in zip(*pairs, strict=False) if mine and theirs]
    mine, theirs = middle(own, name), middle(record, name)
    return found or ([mine / theirs] if mine and theirs else [])


def ours_over(record: Record, own: Record, name: str = "per_s") -> float | None:
    """How many times as fast as a row ours is, the median of the turns."""
    found = turned(own, record, name)
    return statistics.median(found) if found else None


def below(result: Mapping[str, Any]) -> str:
    """The line under a table: how to make it again, and on what it was made."""
    about, n = result["machine"], result["repeats"]
    return (
        f"`{result['command']}` · {result['date']}, commit {result['commit']}, {about['processor']}, "
        f"{about['cores']} cores, {number((about.get('memory_bytes') or 0) / 2**30)} GiB, "
        f"Python {about['python']}, load {about.get('load_before')} before the start, "
        f"{n} process{'' if n == 1 else 'es'} a row"
    )

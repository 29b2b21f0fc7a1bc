"""What differs between two plans, in words: why a job cannot be resumed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingest.inputs import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ingest.protocol import Part

__all__ = ["changed_files", "difference"]


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what differs between two plans' JSON, one clear line each.

    Examples
    --------
    >>> difference({"codec": "zstd", "hash": "a"}, {"codec": "lz4", "hash": "b"})
    ["codec was 'zstd' and is 'lz4' now"]
    """
    found = []
    for name in sorted({*old, *new} - {"hash"}):
        before, now = old.get(name), new.get(name)
        if before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            found += [f"{name}.{line}" for line in difference(before, now)]
        elif isinstance(before, list) and isinstance(now, list) and name == "fields":
            found.append(_lists(name, before, now))
        elif name == "parts_sha256":
            found.append("the inputs changed (see which below)")
        elif name != "keys_sha256" or old.get("parts_sha256") == new.get("parts_sha256"):
            found.append(f"{name} was {before!r} and is {now!r} now")
    return found


def _lists(name: str, before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    old = {b["name"]: b for b in before}
    new = {n["name"]: n for n in now}
    gone = [n for n in old if n not in new]
    come = [n for n in new if n not in old]
    other = [n for n in old if n in new and old[n] != new[n]]
    words = [f"{w} {', '.join(x)}" for w, x in (("without", gone), ("with", come), ("changed", other)) if x]
    return f"{name}: {'; '.join(words) or 'in another order'}"


def changed_files(old: Iterator[Any], new: Sequence[Part], most: int = 5) -> list[str]:
    """Return which inputs came, went or changed, as lines; ``old`` are the rows of ``parts.jsonl``."""
    before = {row[1]: row[2] for row in old}
    now = {p.file: p.identity for p in new}
    lines = [f"new: {shown(f)}" for f in now if f not in before]
    lines += [f"gone: {shown(f)}" for f in before if f not in now]
    lines += [f"changed: {shown(f)}" for f in now if f in before and before[f] != now[f]]
    if not lines and list(before) != list(now):
        at = next(i for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b)
        was, is_now = list(before)[at], list(now)[at]
        lines = [f"in another order: input {at} was {shown(was)} and is {shown(is_now)} now"]
    more = len(lines) - most
    return lines[:most] + ([f"and {more} more"] if more > 0 else [])

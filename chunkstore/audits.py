"""Audit the splits of a store: that no obs, no group and no time is seen by two parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chunkstore.clock import clock_of, show_instant
from chunkstore.errors import ConfigError
from chunkstore.segments import Segments, cut_segments
from chunkstore.splits import groups_of, load_splits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from chunkstore.opened import OpenStore
    from chunkstore.splits import SplitSet

__all__ = ["SplitAudit", "audit_splits"]


@dataclass(frozen=True)
class SplitAudit:
    """What :func:`audit_splits` found."""

    ok: bool
    """Whether no obs is visible to two parts of one split."""
    findings: tuple[str, ...]
    """What breaks that, one sentence each."""
    warnings: tuple[str, ...]
    """Parts nearer to each other in one sequence than a window and its horizon reach."""
    visible: Mapping[str, Mapping[str, int]]
    """split -> part -> obs that its windows see."""
    windows: Mapping[str, Mapping[str, int]]
    """split -> part -> number of windows at stride 1."""
    spans: Mapping[str, Mapping[str, tuple[str, str] | None]]
    """For splits by time: split -> part -> first and last instant that its windows see, ISO text in UTC."""


def audit_splits(store: OpenStore, *, window: int = 1, horizon: int = 0) -> SplitAudit:
    """Prove that no obs is visible to windows of two parts of a split.

    A window of ``window`` obs and its ``horizon`` lie in one segment, so a part sees the segments
    that are long enough, whole. For splits by group, no group may stand in two parts. For splits by time,
    no part may see an instant that a later part sees or that lies behind it; this reads the clock of the
    whole store.

    Parameters
    ----------
    store : ChunkStore
    window, horizon : int
        In obs.

    Returns
    -------
    SplitAudit
    """
    if window < 1 or horizon < 0:
        raise ConfigError(f"window={window} must be 1 or more, horizon={horizon} 0 or more")
    findings: list[str] = []
    warnings: list[str] = []
    visible: dict[str, dict[str, int]] = {}
    windows: dict[str, dict[str, int]] = {}
    spans: dict[str, dict[str, tuple[str, str] | None]] = {}
    offsets = store.sequences.offsets
    for name, split in load_splits(store).items():
        seen: list[NDArray[np.int64]] = []
        visible[name], windows[name] = {}, {}
        for i, part in enumerate(split.parts):
            segments = cut_segments(offsets, gaps=store.gaps, ranges=split.ranges(part))
            long = segments.stop - segments.start >= window + horizon
            start, stop = segments.start[long], segments.stop[long]
            visible[name][part] = int((stop - start).sum())
            windows[name][part] = int((stop - start - (window + horizon) + 1).sum())
            rows = np.stack([start, stop, np.full(len(start), i), segments.sequence[long]], axis=1)
            seen.append(rows)
        rows = np.concatenate(seen) if seen else np.empty((0, 4), np.int64)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        overlap = np.flatnonzero(rows[1:, 0] < rows[:-1, 1])
        for at in overlap[:10].tolist():
            a, b = rows[at], rows[at + 1]
            findings.append(
                f"split {name!r}: obs [{b[0]}, {min(a[1], b[1])}) are seen by "
                f"{split.parts[a[2]]} and {split.parts[b[2]]}"
            )
        near = (rows[1:, 2] != rows[:-1, 2]) & (rows[1:, 3] == rows[:-1, 3])
        distance = rows[1:, 0] - rows[:-1, 1]
        close = np.flatnonzero(near & (distance < window - 1 + horizon))
        if len(close):
            least = int(distance[close].min())
            warnings.append(
                f"split {name!r}: parts come as near as {least} obs within a sequence, {len(close)} times; "
                f"windows reach {window - 1 + horizon}: use embargo={-(-(window - 1 + horizon) // 2)} or more"
            )
        if split.by == "group" and split.on is not None:
            findings.extend(_groups_in_two(store, split))
        if split.by == "time" and split.clock is not None:
            spans[name], late = _times_in_two(store, split, rows)
            findings.extend(late)
    return SplitAudit(not findings, tuple(findings), tuple(warnings), visible, windows, spans)


def _times_in_two(
    store: OpenStore, split: SplitSet, rows: NDArray[np.int64]
) -> tuple[dict[str, tuple[str, str] | None], list[str]]:
    """Return the span of each part, and a sentence for each part that sees what a later part is to see."""
    clock = clock_of(store)
    if clock is None or clock.name != split.clock:
        return {}, [f"split {split.name!r} was cut by {split.clock!r}, which the store has no longer"]
    seen = Segments(rows[:, 3], rows[:, 0], rows[:, 1])
    spans = clock.extents(seen, rows[:, 2], len(split.parts))
    found, last, last_part = [], None, ""
    for part, span in zip(split.parts, spans, strict=True):
        if span is None:
            continue
        if last is not None and span[0] <= last:
            found.append(
                f"split {split.name!r}: {last_part} sees obs up to {show_instant(last)}, "
                f"{part} sees obs from {show_instant(span[0])} on"
            )
        if last is None or span[1] > last:
            last, last_part = span[1], part
    shown = [None if s is None else (show_instant(s[0]), show_instant(s[1])) for s in spans]
    return dict(zip(split.parts, shown, strict=True)), found


def _groups_in_two(store: OpenStore, split: SplitSet) -> list[str]:
    """Return a sentence for each group whose sequences stand in two parts."""
    offsets = store.sequences.offsets[:-1]
    at = np.searchsorted(split.start, offsets, side="right") - 1
    inside = (at >= 0) & (len(split.start) > 0)
    part = np.full(len(offsets), -1, dtype=np.int64)
    if len(split.start):
        inside &= offsets < split.stop[np.maximum(at, 0)]
        part[inside] = split.part[at[inside]]
    names, group = groups_of(store.sequences, str(split.on))
    long = store.sequences.rowsize > 0
    pairs = np.unique(np.stack([group[long], part[long]], axis=1), axis=0)
    at, count = np.unique(pairs[:, 0], return_counts=True)
    found = []
    for index in at[count > 1][:10].tolist():
        parts = [split.parts[p] if p >= 0 else "none" for p in pairs[pairs[:, 0] == index, 1].tolist()]
        found.append(f"split {split.name!r}: group {names[index]!r} stands in {' and '.join(parts)}")
    return found

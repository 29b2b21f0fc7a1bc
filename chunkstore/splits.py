"""Splits: which obs each part of a split may see, kept in the store by name, and audited.

A split is a list of half-open ranges of ``obs``, each with its part. Choosing is pure arithmetic
over sequences, keyed by (seed, id), so that the same call gives the same split anywhere; only
keeping it writes.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.errors import ConfigError, FormatError, UnknownNameError, UnsupportedError
from chunkstore.segments import check_ranges, cut_segments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from chunkstore.store import ChunkStore

__all__ = ["SplitAudit", "SplitSet", "add_split", "audit_splits", "find_part", "load_splits"]

_PART: Final = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$")


@dataclass(frozen=True)
class SplitSet:
    """One split: its rule, and the ranges that the rule gave."""

    name: str
    parts: tuple[str, ...]
    by: str
    """``sequence``, ``group``, ``label`` or ``time``."""
    on: str | None
    """The column of groups or labels."""
    fractions: tuple[float, ...]
    """Share of each part; what they leave below 1 is seen by no part."""
    embargo: int
    """Obs left out on each side of a cut in time."""
    seed: int
    start: NDArray[np.int64]
    """Start of each range, ascending."""
    stop: NDArray[np.int64]
    part: NDArray[np.int64]
    """Index into ``parts`` of each range."""

    def ranges(self, part: str) -> NDArray[np.int64]:
        """Return the half-open ranges of a part: int64[R, 2], ascending.

        Raises
        ------
        UnknownNameError
            If the split has no such part.
        """
        if part not in self.parts:
            raise UnknownNameError(
                f"split {self.name!r} has no part {part!r}; it has {', '.join(self.parts)}"
            )
        mine = self.part == self.parts.index(part)
        return np.stack([self.start[mine], self.stop[mine]], axis=1)

    @property
    def n_obs(self) -> dict[str, int]:
        """Obs of each part, gaps included."""
        sizes = self.stop - self.start
        return {p: int(sizes[self.part == i].sum()) for i, p in enumerate(self.parts)}

    def rule(self) -> dict[str, Any]:
        """Return what stands in the attributes of the store, without the array's name."""
        return {
            "parts": list(self.parts),
            "by": self.by,
            "on": self.on,
            "fractions": list(self.fractions),
            "embargo": self.embargo,
            "seed": self.seed,
        }


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


def keyed_order(ids: Sequence[str], seed: int) -> NDArray[np.int64]:
    """Return the indices of ids in an order that depends on (seed, id) alone.

    Examples
    --------
    >>> keyed_order(["a", "b", "c"], 0).tolist() == keyed_order(["a", "b", "c"], 0).tolist()
    True
    """
    key = int(seed).to_bytes(16, "little", signed=True)
    digests = [hashlib.blake2b(i.encode("utf-8"), digest_size=16, key=key).digest() for i in ids]
    return np.array(sorted(range(len(ids)), key=digests.__getitem__), dtype=np.int64)


def _counts(n: int, fractions: Sequence[float]) -> list[int]:
    """Share n among parts: as near to the fractions as whole numbers allow, the largest remainder first.

    Examples
    --------
    >>> _counts(10, [0.8, 0.2]), _counts(3, [0.5, 0.25, 0.25])
    ([8, 2], [1, 1, 1])
    """
    exact = [n * f for f in fractions]
    counts = [math.floor(e + 1e-9) for e in exact]
    total = min(n, round(sum(exact)))
    by_remainder = sorted(
        range(len(exact)), key=lambda i: (counts[i] - exact[i], -counts[i] if exact[i] else 1, -i)
    )
    for i in by_remainder[: max(0, total - sum(counts))]:
        counts[i] += 1
    return counts


def _by_sequence(order: NDArray[np.int64], n: int, fractions: Sequence[float]) -> NDArray[np.int64]:
    assigned = np.full(n, -1, dtype=np.int64)
    at = 0
    for part, count in enumerate(_counts(len(order), fractions)):
        assigned[order[at : at + count]] = part
        at += count
    return assigned


def _by_group(groups: NDArray[Any], fractions: Sequence[float], seed: int) -> NDArray[np.int64]:
    """Give each group, in keyed order, to the part that lacks most of its share."""
    names, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = keyed_order([str(name) for name in names], seed)
    shares = [*fractions]
    rest = 1 - sum(shares)
    if rest > 1e-9:
        shares.append(rest)
    lacking = [f * len(groups) for f in shares]
    chosen = np.empty(len(names), dtype=np.int64)
    for group in sorted(order.tolist(), key=lambda g: -int(sizes[g])):
        part = max(range(len(lacking)), key=lambda p: (lacking[p], -p))
        chosen[group] = part if part < len(fractions) else -1
        lacking[part] -= int(sizes[group])
    found: NDArray[np.int64] = chosen[inverse]
    return found


def _by_time(
    offsets: NDArray[np.int64], fractions: Sequence[float], embargo: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut every sequence at the same shares of its length."""
    lengths = np.diff(offsets)
    edges = np.concatenate([[0.0], np.cumsum(fractions)])
    whole = abs(edges[-1] - 1) < 1e-9
    cuts = np.floor(lengths[:, None] * edges[None, :] + 1e-9).astype(np.int64)
    if whole:
        cuts[:, -1] = lengths
    start, stop = cuts[:, :-1].copy(), cuts[:, 1:].copy()
    start[:, 1:] += embargo
    stop[:, :-1] -= embargo
    part = np.broadcast_to(np.arange(len(fractions)), start.shape)
    keep = start < stop
    start, stop = start + offsets[:-1, None], stop + offsets[:-1, None]
    return start[keep], stop[keep], part[keep].astype(np.int64)


def _merged(
    start: NDArray[np.int64], stop: NDArray[np.int64], part: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Join neighbours of one part; empty ranges and those of no part go."""
    keep = (part >= 0) & (start < stop)
    start, stop, part = start[keep], stop[keep], part[keep]
    if not len(start):
        return start, stop, part
    joined = (start[1:] == stop[:-1]) & (part[1:] == part[:-1])
    first, last = np.concatenate([[True], ~joined]), np.concatenate([~joined, [True]])
    return start[first], stop[last], part[first]


def choose(
    store: ChunkStore,
    name: str,
    *,
    by: str,
    fractions: Sequence[float] | None,
    on: str | None,
    embargo: int,
    seed: int,
    parts: Sequence[str] | None,
) -> SplitSet:
    """Choose a split without keeping it; arguments as of :func:`add_split`."""
    names = tuple(parts) if parts is not None else tuple(name.split("/"))
    if not names or len(set(names)) != len(names) or not all(_PART.match(p) for p in names):
        raise ConfigError(
            f"the parts {names} of split {name!r} must be different words; name it like 'train/val'"
        )
    shares = [1 / len(names)] * len(names) if fractions is None else [float(f) for f in fractions]
    if len(shares) != len(names) or not all(0 <= f <= 1 for f in shares) or sum(shares) > 1 + 1e-9:
        raise ConfigError(
            f"split {name!r} has {len(names)} parts and fractions {shares}; "
            "give one for each, summing to 1 at most"
        )
    if by not in ("sequence", "group", "label", "time"):
        raise ConfigError(f"by={by!r} is none of 'sequence', 'group', 'label', 'time'")
    if (by in ("group", "label")) != (on is not None):
        raise ConfigError(f"by={by!r} {'needs' if on is None else 'takes no'} on=, a column along sequence")
    if embargo < 0 or (embargo and by != "time"):
        raise ConfigError(f"embargo={embargo} is for by='time', in obs")
    table = store.sequences
    offsets = table.offsets
    if by == "time":
        start, stop, part = _merged(*_by_time(offsets, shares, embargo))
    else:
        order = keyed_order(table.ids.tolist(), seed)
        if by == "sequence":
            assigned = _by_sequence(order, len(table), shares)
        elif by == "group":
            assigned = _by_group(table.column(str(on)).astype(str), shares, seed)
        else:
            labels = table.column(str(on)).astype(str)
            assigned = np.full(len(table), -1, dtype=np.int64)
            for value in np.unique(labels):
                mine = order[labels[order] == value]
                chosen = _by_sequence(np.arange(len(mine)), len(mine), shares)
                assigned[mine] = chosen
        start, stop, part = _merged(offsets[:-1], offsets[1:], assigned)
    return SplitSet(name, names, by, on, tuple(shares), embargo, seed, start, stop, part)


def add_split(
    store: ChunkStore,
    name: str,
    *,
    by: str = "sequence",
    fractions: Sequence[float] | None = None,
    on: str | None = None,
    embargo: int = 0,
    seed: int = 0,
    parts: Sequence[str] | None = None,
    overwrite: bool = False,
) -> SplitSet:
    """Choose a split and keep it in the store.

    Parameters
    ----------
    store : ChunkStore
    name : str
        ``"train/val"``: the parts, unless ``parts`` names them.
    by : {"sequence", "group", "label", "time"}
        Whole sequences at random; all sequences of one group together; the same shares of each
        label; or every sequence cut at the same shares of its length, the first part first.
    fractions : sequence of float, optional
        Share of each part; equal by default.
    on : str, optional
        The column along ``sequence`` that holds groups or labels.
    embargo : int
        For ``by="time"``: obs left out on each side of a cut; at least window length - 1 + horizon.
    seed : int
        What keys the choice.
    parts : sequence of str, optional
        Names of the parts where ``name`` is not made of them.
    overwrite : bool
        Replace a split of that name.

    Raises
    ------
    ConfigError
        If the rule cannot be used, or there is a split of that name.

    Examples
    --------
    >>> import chunkstore
    >>> with chunkstore.StoreWriter("memory://doc-split", fields={"x": "f4"}, overwrite=True) as out:
    ...     for name in "abcd":
    ...         out.write(name, {"x": np.zeros(10)})
    >>> store = chunkstore.open_store("memory://doc-split")
    >>> store.add_split("train/val", by="time", fractions=[0.6, 0.4], embargo=1).n_obs
    {'train': 20, 'val': 12}
    >>> store.segments("val").start
    array([ 7, 17, 27, 37])
    """
    from chunkstore.metadata import parse_root, write_root
    from chunkstore.plain import write_plain

    place = store._place  # noqa: SLF001 - splits are part of the store
    if place.read_only:
        raise UnsupportedError(f"{store.url} is read-only; add splits where it is written")
    made = choose(store, name, by=by, fractions=fractions, on=on, embargo=embargo, seed=seed, parts=parts)
    root = parse_root(place)
    known: dict[str, Any] = dict(root.own.get("splits", {}))
    if name in known and not overwrite:
        raise ConfigError(f"store {store.url} has a split {name!r} already; use overwrite=True to replace it")
    used = {s["array"] for s in known.values()} | {n.rpartition("_")[0] for n in root.arrays}
    label = next(f"split{i}" for i in range(len(used) + 1) if f"split{i}" not in used)
    old = known.get(name)
    arrays = dict(root.arrays)
    for suffix, values in (("start", made.start), ("stop", made.stop), ("part", made.part)):
        meta = write_plain(
            place,
            f"{label}_{suffix}",
            values,
            label,
            data_type="int64",
            attributes={"long_name": f"{suffix} of each range of split {name}"},
        )
        arrays[meta.name] = meta
    known[name] = {"array": label, **made.rule()}
    gone = [f"{old['array']}_{s}" for s in ("start", "stop", "part")] if old else []
    for key in gone:
        arrays.pop(key, None)
    own = {**root.own, "splits": known}
    write_root(place, {**root.attributes, "chunkstore": own}, arrays.values())
    for array in gone:
        for key, _ in list(place.walk(array)):
            place.delete(key)
    store._refresh()  # noqa: SLF001
    return made


def load_splits(store: ChunkStore) -> Mapping[str, SplitSet]:
    """Return the splits that are kept in a store.

    Raises
    ------
    FormatError
        If their ranges overlap, leave ``obs`` or name parts that do not exist.
    """
    from chunkstore.reader import read_plain

    kept: dict[str, SplitSet] = store._split_cache  # noqa: SLF001
    root = store._root  # noqa: SLF001
    for name, rule in dict(root.own.get("splits", {})).items():
        if name in kept:
            continue
        start, stop, part = (
            read_plain(store._place, root.arrays[f"{rule['array']}_{s}"])  # noqa: SLF001
            for s in ("start", "stop", "part")
        )
        if not len(start) == len(stop) == len(part):
            raise FormatError(f"store {store.url}: the arrays of split {name!r} differ in length")
        check_ranges(
            np.stack([start, stop], axis=1), store.n_obs, f"store {store.url}, split {name!r}: range"
        )
        if len(part) and (part.min() < 0 or part.max() >= len(rule["parts"])):
            raise FormatError(f"store {store.url}: split {name!r} names parts that it does not have")
        try:
            kept[name] = SplitSet(
                name,
                tuple(rule["parts"]),
                str(rule.get("by")),
                rule.get("on"),
                tuple(float(f) for f in rule.get("fractions", ())),
                int(rule.get("embargo", 0)),
                int(rule.get("seed", 0)),
                start,
                stop,
                part,
            )
        except (TypeError, ValueError) as err:
            raise FormatError(f"store {store.url}: the rule of split {name!r} is damaged: {err}") from None
    return dict(kept)


def find_part(store: ChunkStore, wanted: str) -> NDArray[np.int64]:
    """Return the ranges of a part: ``"train"``, or ``"name:train"`` where several splits have it.

    Raises
    ------
    UnknownNameError
        If no split has it, or several have.
    """
    splits = load_splits(store)
    name, colon, part = wanted.rpartition(":")
    if colon:
        if name not in splits:
            raise UnknownNameError(
                f"store {store.url} has no split {name!r}; it has {', '.join(splits) or 'none'}"
            )
        return splits[name].ranges(part)
    having = [s for s in splits.values() if wanted in s.parts]
    if len(having) == 1:
        return having[0].ranges(wanted)
    known = ", ".join(f"{s.name}:{p}" for s in splits.values() for p in s.parts) or "none"
    what = "no split with" if not having else f"{len(having)} splits with"
    raise UnknownNameError(f"store {store.url} has {what} a part {wanted!r}; there are: {known}")


def audit_splits(store: ChunkStore, *, window: int = 1, horizon: int = 0) -> SplitAudit:
    """Prove that no obs is visible to windows of two parts of a split.

    A window of ``window`` obs and its ``horizon`` lie in one segment, so a part sees the segments
    that are long enough, whole. For splits by group, no group may stand in two parts.

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
    return SplitAudit(not findings, tuple(findings), tuple(warnings), visible, windows)


def _groups_in_two(store: ChunkStore, split: SplitSet) -> list[str]:
    """Return a sentence for each group whose sequences stand in two parts."""
    offsets = store.sequences.offsets[:-1]
    at = np.searchsorted(split.start, offsets, side="right") - 1
    inside = (at >= 0) & (len(split.start) > 0)
    part = np.full(len(offsets), -1, dtype=np.int64)
    if len(split.start):
        inside &= offsets < split.stop[np.maximum(at, 0)]
        part[inside] = split.part[at[inside]]
    groups = store.sequences.column(str(split.on)).astype(str)
    long = store.sequences.rowsize > 0
    found = []
    for group in np.unique(groups):
        parts = np.unique(part[(groups == group) & long])
        if len(parts) > 1:
            names = [split.parts[p] if p >= 0 else "none" for p in parts.tolist()]
            found.append(f"split {split.name!r}: group {str(group)!r} stands in {' and '.join(names)}")
    return found[:10]

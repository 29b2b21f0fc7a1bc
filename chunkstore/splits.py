"""Splits: which obs each part of a split may see, kept in the store by name, and audited.

A split is a list of half-open ranges of ``obs``, each with its part. Choosing is pure arithmetic
over sequences, keyed by (seed, id), so that the same call gives the same split anywhere; only
keeping it writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import math
import os
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.clock import clock_of, parse_duration, show_instant
from chunkstore.errors import (
    ConfigError,
    CorruptDataError,
    FormatError,
    UnknownNameError,
    UnsupportedError,
)
from chunkstore.forks import new_lock
from chunkstore.metadata import parse_root, write_root
from chunkstore.plain import write_plain
from chunkstore.reader import read_plain
from chunkstore.segments import Segments, check_ranges, cut_segments

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkstore.clock import Clock
    from chunkstore.opened import OpenStore
    from chunkstore.places import Place
    from chunkstore.sequences import SequenceTable

__all__ = ["SplitSet", "add_split", "find_part", "groups_of", "load_splits"]

logger = logging.getLogger(__name__)

#: Splits are kept one after the other: each rewrites the root that the last one wrote.
_KEEPING: Final = new_lock()
#: Rules that cut within sequences, so that an embargo has a meaning.
_CUTS: Final = ("time", "position")
_PART: Final = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*\Z")


@dataclass(frozen=True)
class SplitSet:
    """One split: its rule, and the ranges that the rule gave."""

    name: str
    parts: tuple[str, ...]
    by: str
    """``sequence``, ``group``, ``label``, ``time`` (cut at instants) or ``position`` (shares of lengths)."""
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
    clock: str | None = None
    """For ``time``: the field or column that told the time."""
    at: tuple[str, ...] = ()
    """For ``time``: the instants of the cuts, ISO text in UTC."""
    embargo_time: float = 0.0
    """For ``time``: seconds left out on each side of a cut."""

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
        found: dict[str, Any] = {
            "parts": list(self.parts),
            "by": self.by,
            "on": self.on,
            "fractions": list(self.fractions),
            "embargo": self.embargo,
            "seed": self.seed,
        }
        if self.clock is not None:
            found |= {"clock": self.clock, "at": list(self.at), "embargo_time": self.embargo_time}
        return found


def keyed_order(ids: Sequence[str], seed: int) -> NDArray[np.int64]:
    """Return the indices of ids in an order that depends on (seed, id) alone.

    Examples
    --------
    >>> keyed_order(["a", "b", "c"], 0).tolist() == keyed_order(["a", "b", "c"], 0).tolist()
    True
    """
    try:
        key = int(seed).to_bytes(16, "little", signed=True)
    except OverflowError:
        raise ConfigError(f"seed={seed} must lie in -2**127..2**127 - 1") from None
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


def groups_of(table: SequenceTable, column: str) -> tuple[list[str], NDArray[np.int64]]:
    """Return the different values of a column as text, and the index of each sequence's among them.

    Sequences without a label are a group of their own, with the empty text as its name.
    """
    if table.is_categorical(column):
        codes = table.codes(column).astype(np.int64)
        used, inverse = np.unique(codes, return_inverse=True)
        words = table.categories(column)
        return [words[c] if c >= 0 else "" for c in used.tolist()], inverse.astype(np.int64)
    seen: dict[str, int] = {}  # a dictionary, since numpy's text drops what ends in NUL
    values = [seen.setdefault(str(v), len(seen)) for v in table.column(column).tolist()]
    order = sorted(seen)
    rank = np.empty(len(seen), dtype=np.int64)
    rank[[seen[name] for name in order]] = np.arange(len(order))
    return order, rank[np.asarray(values, dtype=np.int64)]


def _by_group(
    names: Sequence[str], inverse: NDArray[np.int64], fractions: Sequence[float], seed: int
) -> NDArray[np.int64]:
    """Give each group, in keyed order, to the part that lacks most of its share."""
    sizes = np.bincount(inverse, minlength=len(names))
    order = keyed_order(names, seed)
    shares = [*fractions]
    rest = 1 - sum(shares)
    if rest > 1e-9:
        shares.append(rest)
    lacking = [f * len(inverse) for f in shares]
    chosen = np.empty(len(names), dtype=np.int64)
    for group in sorted(order.tolist(), key=lambda g: -int(sizes[g])):
        part = max(range(len(lacking)), key=lambda p: (lacking[p], -p))
        chosen[group] = part if part < len(fractions) else -1
        lacking[part] -= int(sizes[group])
    found: NDArray[np.int64] = chosen[inverse]
    return found


def _by_label(
    order: NDArray[np.int64], inverse: NDArray[np.int64], fractions: Sequence[float]
) -> NDArray[np.int64]:
    """Share the sequences of each label, taken in a given order."""
    assigned = np.full(len(order), -1, dtype=np.int64)
    by_label = order[np.argsort(inverse[order], kind="stable")]
    for mine in np.split(by_label, np.cumsum(np.bincount(inverse))[:-1]):
        assigned[mine] = _by_sequence(np.arange(len(mine)), len(mine), fractions)
    return assigned


def _by_position(
    offsets: NDArray[np.int64], fractions: Sequence[float], embargo: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut every sequence at the same shares of its length, whenever it was recorded."""
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


def _instants(
    clock: Clock, name: str, parts: int, fractions: Sequence[float] | None, at: Sequence[Any] | None
) -> list[int]:
    """Return where to cut, in nanoseconds since 1970: between the parts, and where fractions leave a rest."""
    if at is not None:
        cuts = [clock.instant(v) for v in at]
        if len(cuts) != parts - 1 or any(a >= b for a, b in itertools.pairwise(cuts)):
            raise ConfigError(
                f"split {name!r} has {parts} parts; at= takes {parts - 1} instants between them, ascending, "
                f"got {[show_instant(c) for c in cuts]}"
            )
        return cuts
    span = clock.span()
    if span is None:
        raise ConfigError(f"no obs of the store has a time that is known, so {name!r} cannot be cut by time")
    low, high = span
    shares = [Fraction(f).limit_denominator(10**9) for f in fractions or ()]
    edges = [low + math.ceil(sum(shares[: i + 1]) * (high - low)) for i in range(parts)]
    return edges[:-1] if sum(shares) >= 1 - Fraction(1, 10**8) else edges


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
    store: OpenStore,
    name: str,
    *,
    by: str,
    fractions: Sequence[float] | None = None,
    on: str | None = None,
    at: Sequence[Any] | None = None,
    embargo: int = 0,
    embargo_time: str | float | dt.timedelta | np.timedelta64 = 0,
    seed: int = 0,
    parts: Sequence[str] | None = None,
) -> SplitSet:
    """Choose a split without keeping it; arguments as of :func:`add_split`."""
    names = tuple(parts) if parts is not None else tuple(name.split("/"))
    if (
        not names
        or len(set(names)) != len(names)
        or not all(isinstance(p, str) and _PART.match(p) for p in names)
    ):
        raise ConfigError(
            f"the parts {names} of split {name!r} must be different words; name it like 'train/val'"
        )
    try:
        shares = [1 / len(names)] * len(names) if fractions is None else [float(f) for f in fractions]
    except (TypeError, ValueError):
        raise ConfigError(f"split {name!r}: fractions={fractions!r} are not numbers") from None
    if len(shares) != len(names) or not all(0 <= f <= 1 for f in shares) or sum(shares) > 1 + 1e-9:
        raise ConfigError(
            f"split {name!r} has {len(names)} parts and fractions {shares}; "
            "give one for each, summing to 1 at most"
        )
    if by not in ("sequence", "group", "label", "time", "position"):
        raise ConfigError(f"by={by!r} is none of 'sequence', 'group', 'label', 'time', 'position'")
    if (by in ("group", "label")) != (on is not None):
        raise ConfigError(f"by={by!r} {'needs' if on is None else 'takes no'} on=, a column along sequence")
    if not isinstance(embargo, (int, np.integer)) or embargo < 0 or (embargo and by not in _CUTS):
        raise ConfigError(f"embargo={embargo!r} is for by='time' and by='position': a whole number of obs")
    margin = parse_duration(embargo_time)
    if (margin or at is not None) and by != "time":
        raise ConfigError(f"at= and embargo_time= are for by='time', got by={by!r}")
    if at is not None and fractions is not None:
        raise ConfigError("give either fractions= or at=, the instants to cut at")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise ConfigError(f"seed={seed!r} must be a whole number")
    seed = int(seed)
    clock = clock_of(store) if by == "time" else None
    if by == "time" and clock is None:
        if margin or at is not None:
            raise ConfigError(
                f"store {store.url} has no clock for at= or embargo_time=: no field 'time' in units such as "
                "'seconds since 1970-01-01', and no columns 'start_time' and 'sample_rate'"
            )
        logger.info("store %s has no clock: split %s cuts each sequence by position", store.url, name)
        by = "position"
    table = store.sequences
    offsets = table.offsets
    cuts: list[int] = []
    if clock is not None:
        cuts = _instants(clock, name, len(names), shares, at)
        ranges = clock.cut(cuts, len(names), int(embargo), margin)
    elif by == "position":
        ranges = _by_position(offsets, shares, int(embargo))
    elif by == "group":
        assigned = _by_group(*groups_of(table, str(on)), shares, seed)
        ranges = offsets[:-1], offsets[1:], assigned
    else:
        order = keyed_order(table.ids.tolist(), seed)
        if by == "sequence":
            assigned = _by_sequence(order, len(table), shares)
        else:
            assigned = _by_label(order, groups_of(table, str(on))[1], shares)
        ranges = offsets[:-1], offsets[1:], assigned
    return SplitSet(
        name,
        names,
        by,
        on,
        () if at is not None else tuple(shares),
        int(embargo),
        seed,
        *_merged(*ranges),
        clock=None if clock is None else clock.name,
        at=tuple(map(show_instant, cuts)),
        embargo_time=margin / 1e9,
    )


def add_split(
    store: OpenStore,
    name: str,
    *,
    by: str = "sequence",
    fractions: Sequence[float] | None = None,
    on: str | None = None,
    at: Sequence[str | int | dt.datetime | np.datetime64] | None = None,
    embargo: int = 0,
    embargo_time: str | float | dt.timedelta | np.timedelta64 = 0,
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
    by : {"sequence", "group", "label", "time", "position"}
        Whole sequences at random; all sequences of one group together; the same shares of each
        label; ``time``: all sequences cut at the same instants, the past first; ``position``: every
        sequence cut at the same shares of its own length, the first part first, whenever it was
        recorded. ``time`` needs a clock: a field ``time``, or columns ``start_time`` and ``sample_rate``.
        A store without one is cut by position, and the split says so in its ``by``.
    fractions : sequence of float, optional
        Share of each part, equal by default: of sequences; for ``time`` of the span from the first
        instant in the store to the last; for ``position`` of the obs of each sequence.
    on : str, optional
        The column along ``sequence`` that holds groups or labels. Sequences without a value are kept
        together, like one group or label.
    at : sequence, optional
        For ``time``, instead of fractions: the instants between the parts, one less than there are
        parts. A datetime or ISO text (UTC where it names no zone), or whole numbers in the unit of the
        field ``time`` (seconds since 1970 for ``start_time``). An obs at the instant is in the later part.
    embargo : int
        For ``time`` and ``position``: obs left out on each side of a cut that falls within a sequence.
        Windows never cross a cut; windows of two parts lie as far apart as they reach where this is at
        least half of window length - 1 + horizon.
    embargo_time : str, number or timedelta, optional
        For ``time``: how much time is left out on each side of every cut, in all sequences: seconds, or
        ``"2 h"``.
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
    StateError
        If another store stands at the place since this one was opened.

    Examples
    --------
    >>> import chunkstore
    >>> with chunkstore.StoreWriter("memory://doc-split", fields={"x": "f4"}, overwrite=True) as out:
    ...     for name in "abcd":
    ...         out.write(name, {"x": np.zeros(10)})
    >>> store = chunkstore.open_store("memory://doc-split")
    >>> store.add_split("train/val", by="position", fractions=[0.6, 0.4], embargo=1).n_obs
    {'train': 20, 'val': 12}
    >>> store.segments("val").start
    array([ 7, 17, 27, 37])
    """
    place = store._place  # noqa: SLF001 - splits are part of the store
    if place.read_only:
        raise UnsupportedError(f"{store.url} is read-only; add splits where it is written")
    made = choose(
        store,
        name,
        by=by,
        fractions=fractions,
        on=on,
        at=at,
        embargo=embargo,
        embargo_time=embargo_time,
        seed=seed,
        parts=parts,
    )
    with only_writer(place):
        store._check_same(parse_root(place).lasting)  # noqa: SLF001 - of another store it says nothing
        _keep(place, made, overwrite=overwrite)
    store._refresh()  # noqa: SLF001
    return made


def _keep(place: Place, made: SplitSet, *, overwrite: bool) -> None:
    """Write the arrays of a split, then the root that names them, then remove what it replaces."""
    name, root = made.name, parse_root(place)
    known: dict[str, Any] = dict(root.own.get("splits", {}))
    if name in known and not overwrite:
        raise ConfigError(f"store {place.url} has a split {name!r} already; use overwrite=True to replace it")
    old = known.get(name)
    before = old["array"] if old else None
    taken = {n.rpartition("_")[0] for n in root.arrays} - {before}
    # named after what they hold: two writers at once, on two machines, never mix their arrays
    stem = f"split_{_digest(made)}"
    label = next(n for n in (stem, *(f"{stem}.{i}" for i in range(len(taken)))) if n not in taken)
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
    gone = [f"{before}_{s}" for s in ("start", "stop", "part")] if before not in (None, label) else []
    for key in gone:
        arrays.pop(key, None)
    place.settle(*(f"{label}_{suffix}" for suffix in ("start", "stop", "part")))
    own = {**root.own, "splits": known}
    write_root(place, {**root.attributes, "chunkstore": own}, arrays.values())
    for array in gone:
        for key, _ in list(place.walk(array)):
            place.delete(key)
    place.sweep()


def _digest(made: SplitSet) -> str:
    digest = hashlib.blake2b(repr((made.name, made.rule())).encode(), digest_size=6)
    for values in (made.start, made.stop, made.part):
        digest.update(values.astype("<i8").tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def only_writer(place: Place) -> Iterator[None]:
    """Hold off others who would change the root of a store, in this process and, in a folder, in others."""
    with _KEEPING:
        try:
            import fcntl
        except ImportError:  # pragma: no cover - not on Windows
            yield
            return
        if place.kind != "local":
            yield
            return
        handle = os.open(place.url, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError as err:  # some network file systems know no locks
                logger.info("store %s cannot be locked: %s", place.url, err)
            yield
        finally:
            os.close(handle)


def load_splits(store: OpenStore) -> Mapping[str, SplitSet]:
    """Return the splits that are kept in a store.

    Raises
    ------
    FormatError
        If their ranges overlap, leave ``obs`` or name parts that do not exist.
    """
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
                rule.get("clock"),
                tuple(str(t) for t in rule.get("at", ())),
                float(rule.get("embargo_time", 0)),
            )
        except (TypeError, ValueError) as err:
            raise FormatError(f"store {store.url}: the rule of split {name!r} is damaged: {err}") from None
    return dict(kept)


def part_segments(store: OpenStore, wanted: str) -> Segments:
    """Return the stretches of a part in which windows may live; see :func:`find_part`."""
    return cut_segments(store.sequences.offsets, gaps=store.gaps, ranges=find_part(store, wanted))


def find_part(store: OpenStore, wanted: str) -> NDArray[np.int64]:
    """Return the ranges of a part: ``"train"``, or ``"name:train"`` where several splits have it.

    Raises
    ------
    UnknownNameError
        If no split has it, or several have.
    """
    try:
        return _find_part(store, wanted)
    except (UnknownNameError, CorruptDataError):
        before = store.attrs["chunkstore"].get("splits")
        store._refresh()  # noqa: SLF001 - another handle may have added or replaced it since this one was opened
        if store.attrs["chunkstore"].get("splits") == before:
            raise
        return _find_part(store, wanted)


def _find_part(store: OpenStore, wanted: str) -> NDArray[np.int64]:
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

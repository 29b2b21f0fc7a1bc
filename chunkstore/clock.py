"""When each obs was: the clock of a store, and where instants cut its sequences.

A store has a clock where a field tells the time of each obs (see :func:`time_field`) or where each
sequence states its start and its sample rate. Instants are compared as whole numbers, in the unit of
the field or in nanoseconds, so that no rounding puts an obs on the wrong side of a cut.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.errors import ConfigError
from chunkstore.segments import cut_segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkstore.layout import FieldSpec
    from chunkstore.opened import OpenStore
    from chunkstore.segments import Segments

__all__ = [
    "Clock",
    "FieldClock",
    "RateClock",
    "clock_of",
    "decode_times",
    "parse_duration",
    "parse_units",
    "sample_rates",
    "time_field",
    "unit_nanoseconds",
]

#: Obs whose times are held at once.
_BLOCK: Final = 1 << 20
_UNITS: Final = {
    "ns": 1,
    "nanosecond": 1,
    "us": 10**3,
    "microsecond": 10**3,
    "ms": 10**6,
    "millisecond": 10**6,
    "s": 10**9,
    "sec": 10**9,
    "second": 10**9,
    "min": 60 * 10**9,
    "minute": 60 * 10**9,
    "h": 3600 * 10**9,
    "hr": 3600 * 10**9,
    "hour": 3600 * 10**9,
    "d": 86400 * 10**9,
    "day": 86400 * 10**9,
}
_DURATION: Final = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*$", re.IGNORECASE)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
#: What stands for "the time of this obs is not known" among parts.
_UNKNOWN: Final = -2
_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1
#: Seconds on either side of 1970 that nanoseconds can count.
_REACH: Final = 9.2e9
_NAT: Final = np.datetime64("NaT", "ns")


def unit_nanoseconds(text: str) -> int | None:
    """Return the nanoseconds of a unit of time, in full or as a symbol, or None where it is none.

    Examples
    --------
    >>> unit_nanoseconds("ms"), unit_nanoseconds("milliseconds"), unit_nanoseconds("metre")
    (1000000, 1000000, None)
    """
    text = text.strip().lower()
    return _UNITS.get(text, _UNITS.get(text.removesuffix("s")))


def parse_duration(value: str | float | dt.timedelta | np.timedelta64) -> int:
    """Return a length of time in nanoseconds; numbers are seconds.

    Raises
    ------
    ConfigError
        If it is negative or cannot be understood.

    Examples
    --------
    >>> parse_duration("2 h"), parse_duration(1.5), parse_duration(np.timedelta64(3, "ms"))
    (7200000000000, 1500000000, 3000000)
    """
    found: int | None = None
    if isinstance(value, np.timedelta64):
        found = None if np.isnat(value) else int(value.astype("timedelta64[ns]").astype(np.int64))
    elif isinstance(value, dt.timedelta):
        found = value // dt.timedelta(microseconds=1) * 1000
    elif isinstance(value, str):
        match = _DURATION.match(value)
        unit = unit_nanoseconds(match[2]) if match else None
        if match and unit:
            found = round(Fraction(match[1]) * unit)
    elif isinstance(value, (int, float, np.number)) and math.isfinite(value):
        found = round(Fraction(float(value)) * 10**9)
    if found is None or found < 0:
        raise ConfigError(
            f"{value!r} is not a length of time; write seconds, or text such as '90 s' or '2 h'"
        )
    return found


def parse_instant(value: Any) -> int | None:
    """Return nanoseconds since 1970 of a date and time (UTC unless it says another zone), or None.

    Examples
    --------
    >>> parse_instant("1970-01-02"), parse_instant("1970-01-01T01:00:00+01:00"), parse_instant("soon")
    (86400000000000, 0, None)
    """
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return None
        step, count = np.datetime_data(value.dtype)
        if step in ("Y", "M", "W", "generic"):
            value, step, count = value.astype("datetime64[D]"), "D", 1
        scale = unit_nanoseconds({"D": "d"}.get(step, step))
        return None if scale is None else int(value.astype(np.int64)) * count * scale
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value.strip().removesuffix(" UTC"))
        except ValueError:
            text = value.strip().removesuffix("Z").replace(" ", "T")
            if (
                not text[:5].strip("+-").isdecimal()
            ):  # numpy takes "now", "today" and "NaT" for instants as well
                return None
            try:  # more digits of a second than datetime holds, or hours of one digit
                return parse_instant(np.datetime64(text))
            except ValueError:
                return None
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001 - the zone comes next
    if not isinstance(value, dt.datetime):
        return None
    aware = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    return (aware - _EPOCH) // dt.timedelta(microseconds=1) * 1000


def parse_units(units: str | None) -> tuple[int, int] | None:
    """Return (nanoseconds in a unit, nanoseconds of its origin since 1970) of CF units, or None.

    Examples
    --------
    >>> parse_units("milliseconds since 1970-01-02"), parse_units("m s-1")
    ((1000000, 86400000000000), None)
    """
    unit, since, origin = (units or "").partition(" since ")
    scale, zero = unit_nanoseconds(unit), parse_instant(origin)
    return None if not since or scale is None or zero is None else (scale, zero)


def decode_times(values: NDArray[Any], units: str | None) -> NDArray[np.datetime64] | None:
    """Return datetime64[ns] of integers in CF units such as ``"milliseconds since 1970-01-01"``.

    None where the units say no calendar time; NaT where nanoseconds cannot count so far.

    Examples
    --------
    >>> decode_times(np.array([1500, 2**62]), "milliseconds since 2013-01-01")
    array(['2013-01-01T00:00:01.500000000',                           'NaT'],
          dtype='datetime64[ns]')
    """
    found = parse_units(units)
    return None if found is None else _decode(values, *found)


def _decode(values: NDArray[Any], scale: int, origin: int) -> NDArray[np.datetime64]:
    least = min(_MOST, max(_LEAST, -((_MOST + origin) // scale)))
    most = min(_MOST, max(_LEAST, (_MOST - origin) // scale))
    whole = values.astype(np.int64)
    wrapped = (origin - _LEAST) % 2**64 + _LEAST  # sums that fit are right even where their parts do not
    counted = (whole * scale + wrapped).view("datetime64[ns]")
    return np.where((whole >= least) & (whole <= most), counted, _NAT)


def show_instant(nanoseconds: int) -> str:
    """Return an instant as ISO text in UTC, with no more digits than it needs.

    Examples
    --------
    >>> show_instant(1_500_000_000), show_instant(0)
    ('1970-01-01T00:00:01.5Z', '1970-01-01T00:00:00Z')
    """
    seconds, rest = divmod(nanoseconds, 10**9)
    digits = f".{rest:09d}".rstrip("0") if rest else ""
    try:
        return f"{(_EPOCH + dt.timedelta(seconds=seconds)).strftime('%Y-%m-%dT%H:%M:%S')}{digits}Z"
    except OverflowError:
        return f"{seconds}{digits} s since 1970"


@dataclass(frozen=True)
class Clock:
    """Where instants fall: what both kinds of clocks can say."""

    store: OpenStore
    name: str
    """The field or column that tells the time."""

    def instant(self, value: Any) -> int:
        """Return nanoseconds since 1970 of a date and time, or of a number in the clock's own unit."""
        if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64)):
            return self._own(int(value))
        found = parse_instant(value)
        if found is None:
            raise ConfigError(
                f"at={value!r} is not an instant; give a datetime, ISO text such as '2024-05-01T12:00', or a "
                f"whole number in the unit of {self.name!r}"
            )
        return found

    def _own(self, value: int) -> int:
        raise NotImplementedError

    def span(self) -> tuple[int, int] | None:
        """Return the first and the last instant of the store; None where no obs has a known time."""
        every = cut_segments(self.store.sequences.offsets, gaps=self.store.gaps)
        return self.extents(every, np.zeros(len(every), np.int64), 1)[0]

    def extents(
        self, segments: Segments, part: NDArray[np.int64], parts: int
    ) -> list[tuple[int, int] | None]:
        """Return the first and last instant of the segments of each part."""
        raise NotImplementedError

    def times(self, sequence: NDArray[np.int64], obs: NDArray[np.int64]) -> NDArray[np.datetime64]:
        """Return when obs were, which are counted from the start of their sequence.

        Parameters
        ----------
        sequence, obs : int64[n]
            Which sequence, and which obs in it.

        Returns
        -------
        datetime64[ns][n]
            NaT where the time is not known.
        """
        raise NotImplementedError

    def cut(
        self, cuts: Sequence[int], parts: int, embargo: int, margin: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Cut all sequences at instants.

        Parameters
        ----------
        cuts : sequence of int
            Nanoseconds since 1970, ascending: ``parts - 1``, or one more that ends the last part.
        parts : int
            How many parts there are.
        embargo : int
            Obs left out on each side of a cut between parts that falls within a sequence.
        margin : int
            Nanoseconds left out on each side of every cut between parts.

        Returns
        -------
        start, stop, part : int64 arrays
            Ranges of obs; part *k* lies from cut *k - 1* on, before cut *k*.
            What has no known time is in none.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class FieldClock(Clock):
    """A field ``time`` with one instant an obs, in any order."""

    scale: int
    """Nanoseconds in a unit."""
    origin: int
    """Nanoseconds since 1970 at which the unit counts 0."""

    def _own(self, value: int) -> int:
        return value * self.scale + self.origin

    def first_value(self, instant: int) -> int:
        """Return the least stored value that is not before an instant."""
        return min(_MOST, max(_LEAST, -((self.origin - instant) // self.scale)))

    def _blocks(self) -> Iterator[tuple[int, NDArray[Any], NDArray[np.bool_]]]:
        """Yield (first obs, times, whether each is known); what stands in gaps is not."""
        mask = self.store.masks.get(self.name)
        gaps = self.store.gaps
        for low in range(0, self.store.n_obs, _BLOCK):
            high = min(low + _BLOCK, self.store.n_obs)
            times = self.store.read(self.name, low, high)
            known = self.store.read(mask, low, high) if mask else np.ones(high - low, dtype=bool)
            first, last = np.searchsorted(gaps[:, 1], low, "right"), np.searchsorted(gaps[:, 0], high, "left")
            for start, stop in gaps[first:last].tolist():
                known[max(0, start - low) : max(0, stop - low)] = False
            yield low, times, known

    def extents(  # noqa: D102 - said in Clock
        self, segments: Segments, part: NDArray[np.int64], parts: int
    ) -> list[tuple[int, int] | None]:
        found: list[tuple[int, int] | None] = [None] * parts
        if not len(segments):
            return found
        for low, times, known in self._blocks():
            obs = np.arange(low, low + len(times))
            at = np.searchsorted(segments.start, obs, side="right") - 1
            inside = known & (at >= 0) & (obs < segments.stop[np.maximum(at, 0)])
            for i in np.unique(part[at[inside]]).tolist():
                mine = times[inside & (part[at] == i)]
                first, last = self._own(int(mine.min())), self._own(int(mine.max()))
                old = found[i]
                found[i] = (first, last) if old is None else (min(first, old[0]), max(last, old[1]))
        return found

    def times(self, sequence: NDArray[np.int64], obs: NDArray[np.int64]) -> NDArray[np.datetime64]:  # noqa: D102
        at = self.store.sequences.offsets[sequence] + obs
        found = _decode(self._read(self.name, at), self.scale, self.origin)
        mask = self.store.masks.get(self.name)
        return found if mask is None else np.where(self._read(mask, at), found, _NAT)

    def _read(self, field: str, at: NDArray[np.int64]) -> NDArray[Any]:
        """Return the values of single obs."""
        dtype = self.store.fields[self.name].np_dtype if field == self.name else np.dtype(bool)
        found = np.empty(len(at), dtype)
        self.store.read_ranges(
            field, at.tolist(), (at + 1).tolist(), [found[i : i + 1] for i in range(len(at))]
        )
        return found

    def cut(  # noqa: D102 - said in Clock
        self, cuts: Sequence[int], parts: int, embargo: int, margin: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        offsets = self.store.sequences.offsets
        if not self.store.n_obs:
            return offsets[:0], offsets[:0], offsets[:0]
        edges = np.array([self.first_value(c) for c in cuts], dtype=np.int64)
        left = [(self.first_value(c - margin), self.first_value(c + margin)) for c in cuts[: parts - 1]]
        label_at: list[NDArray[np.int64]] = []
        labels: list[NDArray[Any]] = []
        out_at: list[NDArray[np.int64]] = []
        outs: list[NDArray[Any]] = []
        for low, times, known in self._blocks():
            label = np.where(known, np.searchsorted(edges, times, side="right"), _UNKNOWN)
            out = ~known
            for first, last in left:
                out |= (times >= first) & (times < last)
            for values, at, found in ((label, label_at, labels), (out, out_at, outs)):
                change = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
                at.append(low + change)
                found.append(values[change])
        start, part, sequence = _runs(np.concatenate(label_at), np.concatenate(labels), offsets)
        stop = np.append(start[1:], offsets[-1])
        border = (sequence[1:] == sequence[:-1]) & (part[1:] != part[:-1])
        border &= (np.minimum(part[1:], part[:-1]) >= 0) & (np.maximum(part[1:], part[:-1]) < parts)
        where, of = start[1:][border], sequence[1:][border]
        around = [np.maximum(where - embargo, offsets[of]), np.minimum(where + embargo, offsets[of + 1])]
        marks, is_out = np.concatenate(out_at), np.concatenate(outs)
        unseen = [marks[is_out], np.append(marks[1:], offsets[-1])[is_out]]
        removed = _union(np.concatenate([np.stack(around, axis=1), np.stack(unseen, axis=1)]))
        rows = []
        for i in range(parts):
            ranges = np.stack([start[part == i], stop[part == i]], axis=1)
            kept = cut_segments(offsets, gaps=removed, ranges=ranges)
            rows.append(np.stack([kept.start, kept.stop, np.full(len(kept), i)], axis=1))
        table = np.concatenate(rows)
        table = table[np.argsort(table[:, 0], kind="stable")]
        return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()


def _runs(
    at: NDArray[np.int64], labels: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (start, label, sequence) of runs of one label, cut where sequences begin.

    Obs of unknown time take the label of those before them in their sequence, so that a cut behind a gap
    is found where the gap ends.
    """
    start = np.unique(np.concatenate([at, offsets[:-1]]))
    start = start[start < offsets[-1]]
    label = labels[np.searchsorted(at, start, side="right") - 1]
    sequence = np.searchsorted(offsets, start, side="right") - 1
    source = np.maximum.accumulate(np.where(label != _UNKNOWN, np.arange(len(label)), 0))
    carried = np.where(sequence[source] == sequence, label[source], _UNKNOWN)
    return start, carried, sequence


def _union(ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ranges that are ascending and apart and cover the same obs."""
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    if not len(ranges):
        return ranges
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    first = np.concatenate([[True], ranges[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([ranges[first, 0], reach[last]], axis=1)


@dataclass(frozen=True)
class RateClock(Clock):
    """Sequences that state their start and their sample rate."""

    begin: NDArray[np.int64]
    """Nanoseconds since 1970 of the first obs of each sequence."""
    rate: NDArray[np.float64]
    """Obs a second; NaN where start or rate is not known."""
    scale: int = 10**9
    """Nanoseconds in a unit of the column that states the start."""
    origin: int = 0
    """Nanoseconds since 1970 at which that unit counts 0."""

    def _own(self, value: int) -> int:
        return value * self.scale + self.origin

    def _time(self, sequence: NDArray[np.int64], obs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the instant of obs that are counted from the start of their sequence."""
        return self.begin[sequence] + _elapsed(obs, self.rate[sequence])

    def _position(self, instant: int) -> NDArray[np.int64]:
        """Return how many obs of each sequence lie before an instant; 0 where the clock is not known."""
        lengths = np.diff(self.store.sequences.offsets)
        known = np.flatnonzero(~np.isnan(self.rate))
        found = np.zeros(len(lengths), dtype=np.int64)
        low, high = np.zeros(len(known), np.int64), lengths[known].astype(np.int64)
        while (low < high).any():  # times ascend within a sequence: the least obs not before the instant
            middle = (low + high) // 2
            before = (self._time(known, middle) < instant) & (low < high)
            low, high = np.where(before, middle + 1, low), np.where(before | (low >= high), high, middle)
        found[known] = low
        return found

    def extents(  # noqa: D102 - said in Clock
        self, segments: Segments, part: NDArray[np.int64], parts: int
    ) -> list[tuple[int, int] | None]:
        found: list[tuple[int, int] | None] = []
        base = self.store.sequences.offsets[segments.sequence]
        known = ~np.isnan(self.rate[segments.sequence])
        for i in range(parts):
            mine = np.flatnonzero(known & (part == i))
            if not len(mine):
                found.append(None)
                continue
            of = segments.sequence[mine]
            first = self._time(of, segments.start[mine] - base[mine])
            last = self._time(of, segments.stop[mine] - 1 - base[mine])
            found.append((int(first.min()), int(last.max())))
        return found

    def times(self, sequence: NDArray[np.int64], obs: NDArray[np.int64]) -> NDArray[np.datetime64]:  # noqa: D102
        found = np.full(len(sequence), _NAT)
        known = ~np.isnan(self.rate[sequence])
        found[known] = self._time(sequence[known], obs[known]).view("datetime64[ns]")
        return found

    def cut(  # noqa: D102 - said in Clock
        self, cuts: Sequence[int], parts: int, embargo: int, margin: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        offsets = self.store.sequences.offsets
        lengths = np.diff(offsets)
        start = np.zeros((len(lengths), parts), dtype=np.int64)
        stop = np.broadcast_to(lengths[:, None], start.shape).copy()
        for i, instant in enumerate(cuts):
            at = self._position(instant)
            if i == parts - 1:
                stop[:, i] = at
                continue
            obs = np.where((at > 0) & (at < lengths), embargo, 0)
            stop[:, i] = np.minimum(self._position(instant - margin), at - obs)
            start[:, i + 1] = np.maximum(self._position(instant + margin), at + obs)
        # an embargo may reach over a short part into the next
        start = np.maximum.accumulate(start, axis=1)
        stop = np.minimum.accumulate(stop[:, ::-1], axis=1)[:, ::-1]
        keep = (start < stop) & ~np.isnan(self.rate)[:, None]
        part = np.broadcast_to(np.arange(parts), start.shape)
        base = offsets[:-1, None]
        return (start + base)[keep], (stop + base)[keep], part[keep].astype(np.int64)


def _elapsed(obs: NDArray[np.int64], rate: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the nanoseconds from the start of a sequence to some obs: exact for whole rates and periods.

    Examples
    --------
    >>> _elapsed(np.array([3 * 10**8 + 1]), np.array([3.0]))
    array([100000000333333333])
    """
    period = 1e9 / rate
    whole = np.rint(period)
    even = np.abs(period - whole) <= 4 * np.finfo(np.float64).eps * period  # as 1 / 60 Hz is one a minute
    a_second = np.where(rate == np.rint(rate), rate, 0).astype(np.int64)
    seconds, rest = np.divmod(obs, np.maximum(a_second, 1))
    steps = np.where(
        a_second > 0,
        seconds * 10**9 + np.rint(rest * period).astype(np.int64),
        np.rint(obs * period).astype(np.int64),
    )
    return np.where(even, obs * whole.astype(np.int64), steps)


def time_field(fields: Mapping[str, FieldSpec]) -> str | None:
    """Return the name of the field that says when each obs was, or None.

    It holds instants: integers in CF units, one an obs. Of several such fields it is the one with the CF
    attribute ``axis: "T"``, else the one named ``time``; none where neither decides.

    Examples
    --------
    >>> from chunkstore.layout import FieldSpec
    >>> when = FieldSpec("ts", "int64", units="seconds since 2020-01-01")
    >>> time_field({"ts": when, "x": FieldSpec("x", "float32")})
    'ts'
    >>> time_field({"ts": when, "sent": when}) is None
    True
    """
    names = [name for name, spec in fields.items() if _holds_instants(spec)]
    chosen = [name for name in names if fields[name].attrs.get("axis") == "T"]
    if len(chosen) != 1:
        chosen = ["time"] if "time" in names else names
    return chosen[0] if len(chosen) == 1 else None


def _holds_instants(spec: FieldSpec) -> bool:
    if spec.np_dtype.kind not in "iu" or spec.dtype == "uint64" or spec.items:
        return False
    calendar = str(spec.attrs.get("calendar", "standard"))
    return parse_units(spec.units) is not None and calendar in (
        "standard",
        "gregorian",
        "proleptic_gregorian",
    )


def clock_of(store: OpenStore) -> Clock | None:
    """Return the clock of a store, or None where nothing says when its obs were.

    Examples
    --------
    >>> import chunkstore
    >>> units = "seconds since 2020-01-01"
    >>> with chunkstore.StoreWriter(
    ...     "memory://doc-clock", [chunkstore.FieldSpec("time", "int64", units=units)], overwrite=True
    ... ) as out:
    ...     out.write("a", {"time": [0, 60, 120]})
    >>> clock = clock_of(chunkstore.open_store("memory://doc-clock"))
    >>> [show_instant(t) for t in clock.span()]
    ['2020-01-01T00:00:00Z', '2020-01-01T00:02:00Z']
    """
    name = time_field(store.fields)
    units = parse_units(store.fields[name].units) if name is not None else None
    if name is not None and units is not None:
        return FieldClock(store, name, *units)
    table = store.sequences
    if "start_time" not in table.columns:
        return None
    begin: NDArray[Any] = table.column("start_time")
    if begin.dtype.kind not in "iuf":
        return None
    rate = sample_rates(store)
    scale, origin = parse_units(table.attrs("start_time").get("units")) or (10**9, 0)
    begins = np.asarray(begin, dtype=np.float64) * (scale / 1e9) + origin / 1e9
    with np.errstate(over="ignore"):
        lasts = np.diff(table.offsets) / rate
    known = (np.abs(begins) < _REACH / 2) & (lasts < _REACH / 2)  # what nanoseconds can count; NaN is neither
    if not known.any():
        return None
    if begin.dtype.kind == "f":
        whole = np.rint(np.where(known, begins, 0) * 1e6).astype(np.int64) * 1000
    else:
        whole = np.where(known, begin, 0).astype(np.int64) * scale + origin
    return RateClock(store, "start_time", whole, np.where(known, rate, np.nan), scale, origin)


#: Hz in other units that a rate may be stated in
_HERTZ: Final = {"mHz": 1e-3, "kHz": 1e3, "kilohertz": 1e3, "MHz": 1e6, "megahertz": 1e6, "GHz": 1e9}


def sample_rates(store: OpenStore, field: str | None = None) -> NDArray[np.float64]:
    """Return the sample rate of each sequence in Hz, NaN where nothing states one that is positive.

    It is the column ``sample_rate``, in Hz if it does not state kHz or the like; where that is not known, the
    attribute of that name of the field (of the first that has one, if none is named), else of the store.

    Examples
    --------
    >>> from chunkstore import examples
    >>> sample_rates(examples.small_store()).shape
    (3,)
    """
    rates = np.full(store.n_sequences, np.nan)
    specs = store.fields.values() if field is None else [store.fields[field]]
    for attrs in (*(spec.attrs for spec in specs), store.attrs):
        rate = attrs.get("sample_rate")
        if isinstance(rate, (int, float)) and 0 < rate < math.inf:
            rates[:] = float(rate)
            break
    columns = store.sequences.columns
    if "sample_rate" in columns and store.sequences.column("sample_rate").dtype.kind in "iuf":
        units = store.sequences.attrs("sample_rate").get("units")
        own = np.asarray(store.sequences.column("sample_rate"), dtype=np.float64) * _HERTZ.get(
            str(units).strip(), 1.0
        )
        rates = np.where((own > 0) & np.isfinite(own), own, rates)
    return rates

"""Questions to ragged data in bounded memory: statistics a sequence, selection, overviews.

Decided here: how a pass over ``obs`` is cut into blocks and how what a block says about a sequence is
joined with what the next one says. Reading is left to the store. Python loops run over blocks; numpy
runs over the obs and the sequences of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.clock import FieldClock, clock_of, parse_instant, sample_rates
from chunkstore.errors import ConfigError, UnknownNameError
from chunkstore.layout import parse_bytes
from chunkstore.views import described

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import xarray as xr

    from chunkstore.clock import Clock
    from chunkstore.store import ChunkStore

__all__ = ["Selection", "overview", "select", "summarize", "values_and_mask"]

MEASURES = ("count", "mean", "std", "min", "max", "sum")


@dataclass(slots=True)
class _Moments:
    """What is known of each group so far: float64[n] or float64[n, items], extremes in the stored dtype."""

    count: np.ndarray
    mean: np.ndarray
    spread: np.ndarray  # sum of squared deviations from the mean
    low: np.ndarray
    high: np.ndarray
    total: np.ndarray

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Moments:
        low, high = _extremes(dtype)
        total = np.float64 if dtype.kind == "f" else np.int64
        return cls(
            np.zeros(shape, np.int64),
            np.zeros(shape),
            np.zeros(shape),
            np.full(shape, high, dtype),
            np.full(shape, low, dtype),
            np.zeros(shape, total),
        )

    def join(self, at: np.ndarray | slice, other: _Moments) -> None:
        """Join ``other`` into the groups ``at`` (each group at most once)."""
        count = self.count[at] + other.count
        safe = np.maximum(count, 1)
        delta = other.mean - self.mean[at]
        self.spread[at] += other.spread + delta**2 * (self.count[at] * other.count / safe)
        self.mean[at] += delta * (other.count / safe)
        self.count[at] = count
        self.low[at] = np.minimum(self.low[at], other.low)
        self.high[at] = np.maximum(self.high[at], other.high)
        self.total[at] += other.total

    def at(self, index: np.ndarray) -> _Moments:
        """Return the groups ``index``."""
        return _Moments(*(getattr(self, name)[index] for name in self.__slots__))

    def measure(self, name: str) -> np.ndarray:
        """Return one measure, NaN (or 0 for counts and sums) where there is no value."""
        none = self.count == 0
        if name == "count":
            return self.count
        if name == "sum":
            return self._exact_total()
        if name == "std":
            return np.where(none, np.nan, np.sqrt(self.spread / np.maximum(self.count, 1)))
        if name == "mean":
            return np.where(none, np.nan, self.mean)
        values = self.low if name == "min" else self.high
        return np.where(none, np.nan, values) if none.any() else values

    def _exact_total(self) -> np.ndarray:
        """Return the sums, as float64 where int64 cannot hold one of them: it has wrapped around then."""
        about = self.mean * self.count
        return about if self.total.dtype.kind == "i" and (np.abs(about) > 2**62).any() else self.total


def _extremes(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    if dtype.kind == "b":
        return False, True
    limits = np.iinfo(dtype)
    return limits.min, limits.max


def summarize(
    store: ChunkStore,
    field: str,
    how: str | Sequence[str] = ("count", "mean", "std", "min", "max"),
    *,
    by: str | None = None,
    memory_limit: int | str = "256MiB",
) -> xr.Dataset:
    """Return statistics of one field for each sequence, or for each value of a label, in one pass.

    Missing values (NaN, masked, in a gap) do not count. The whole store is read once, block by block,
    so that a terabyte needs no more memory than a megabyte.

    Parameters
    ----------
    store : ChunkStore
        An open store.
    field : str
        Name of the field.
    how : str or sequence of str
        Measures: ``count``, ``mean``, ``std`` (population), ``min``, ``max``, ``sum``. Sums of integers are
        exact up to 2**62, and float64 beyond; extremes of integers are float64 where a group has no value.
    by : str, optional
        A label along ``sequence``; sequences of one value are taken together.
    memory_limit : int or str
        Bytes that one block may take while it is worked on.

    Returns
    -------
    xarray.Dataset
        One variable a measure over ``sequence`` (with ``id`` as coordinate) or over ``by``;
        vectors keep their items as the second dimension.

    Raises
    ------
    UnknownNameError
        No such field or label.
    ConfigError
        No such measure.

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> store = small_store()
    >>> summarize(store, "x", "max")["max"].values.tolist()
    [2.0, 6.0, 9.0]
    >>> summarize(store, "x", "count", by="kind")["count"].to_series().to_dict()
    {'a': 7, 'b': 3}
    """
    measures = (how,) if isinstance(how, str) else tuple(how)
    for name in measures:
        if name not in MEASURES:
            raise ConfigError(f"{name!r} is not a measure; there are {', '.join(MEASURES)}")
    spec = _field(store, field)
    n = store.n_sequences
    shape = (n, spec.items) if spec.items else (n,)
    moments = _Moments.empty(shape, spec.np_dtype)
    # float64 copy, deviation and mask beside the values themselves
    width = spec.bytes_per_obs + 26 * max(1, spec.items)
    for start, stop in _blocks(store, width, memory_limit):
        values, valid = values_and_mask(store, field, start, stop)
        first, starts = _sequences_of(store.sequences.offsets, start, stop)
        if len(starts):
            with np.errstate(over="ignore", invalid="ignore"):  # infinities, and squares beyond float64
                moments.join(first, _of_block(values, valid, starts))

    import xarray as xr

    items = (f"{field}_item",) if spec.items else ()
    if by is None:
        dims = ("sequence", *items)
        coords: dict[str, Any] = {"id": ("sequence", np.asarray(store.sequences.ids, dtype=object))}
    else:
        categories = list(store.sequences.categories(by))
        moments = _grouped(moments, store.sequences.codes(by), len(categories))
        dims = (by, *items)
        coords = {by: np.asarray(categories, dtype=object)}
    data = {name: (dims, moments.measure(name), _attrs(spec, name)) for name in measures}
    return xr.Dataset(data, coords=coords, attrs={"field": field})


def _attrs(spec: Any, measure: str) -> dict[str, Any]:
    attrs: dict[str, Any] = {"long_name": f"{measure} of {spec.long_name or spec.name}"}
    if spec.units and measure != "count":
        attrs["units"] = spec.units
    return attrs


def _field(store: ChunkStore, field: str) -> Any:
    try:
        return store.fields[field]
    except KeyError:
        raise UnknownNameError(
            f"{store.url} has no field {field!r}; it has {', '.join(store.fields) or 'none'}"
        ) from None


def _blocks(store: ChunkStore, width: int, memory_limit: int | str) -> Iterator[tuple[int, int]]:
    """Ranges of whole chunks that fit the limit (one chunk where even that does not)."""
    chunk = store.layout.chunk
    length = max(1, parse_bytes(memory_limit) // max(1, width) // chunk) * chunk
    for start in range(0, store.n_obs, length):
        yield start, min(start + length, store.n_obs)


def values_and_mask(store: ChunkStore, field: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a range, and which of them count (not NaN, masked or in a gap), of one shape."""
    values = store.read(field, start, stop)
    valid = ~np.isnan(values) if values.dtype.kind == "f" else np.ones(values.shape, bool)
    if field in store.masks:
        mask = store.read(store.masks[field], start, stop).astype(bool)
        valid &= mask if mask.ndim == valid.ndim else mask[:, None]
    gaps = np.asarray(store.gaps).reshape(-1, 2)
    first = int(np.searchsorted(gaps[:, 1], start, "right"))
    for low, high in gaps[first:]:
        if low >= stop:
            break
        valid[max(low, start) - start : high - start] = False
    return values, valid


def _sequences_of(offsets: np.ndarray, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequences that have obs in [start, stop) and where in the block each starts."""
    first = int(np.searchsorted(offsets, start, "right")) - 1
    last = int(np.searchsorted(offsets, stop, "left"))
    edges = np.clip(offsets[first : last + 1], start, stop) - start
    held = np.flatnonzero(np.diff(edges) > 0)
    return first + held, edges[held]


def _of_block(values: np.ndarray, valid: np.ndarray, starts: np.ndarray) -> _Moments:
    """Moments of the runs of a block that begin at ``starts``."""
    low, high = _extremes(values.dtype)
    lengths = np.diff(np.append(starts, len(values)))
    count = np.add.reduceat(valid, starts, dtype=np.int64)
    numbers = np.where(valid, values, 0).astype(np.float64)
    mean = np.add.reduceat(numbers, starts) / np.maximum(count, 1)
    numbers -= np.repeat(mean, lengths, axis=0)
    numbers[~valid] = 0
    np.square(numbers, out=numbers)
    spread = np.add.reduceat(numbers, starts)
    total_type = np.float64 if values.dtype.kind == "f" else np.int64
    return _Moments(
        count,
        mean,
        spread,
        np.minimum.reduceat(np.where(valid, values, values.dtype.type(high)), starts),
        np.maximum.reduceat(np.where(valid, values, values.dtype.type(low)), starts),
        np.add.reduceat(np.where(valid, values, 0), starts, dtype=total_type),
    )


def _grouped(moments: _Moments, codes: np.ndarray, n: int) -> _Moments:
    """Join sequences of one code; those without one (code -1) belong to no group."""
    out = _Moments.empty((n, *moments.count.shape[1:]), moments.low.dtype)
    for code in range(n):  # one step a label, numpy over its sequences
        part = moments.at(np.flatnonzero(codes == code))
        if not len(part.count):
            continue
        count = part.count.sum(axis=0)
        mean = (part.mean * part.count).sum(axis=0) / np.maximum(count, 1)
        spread = (part.spread + part.count * (part.mean - mean) ** 2).sum(axis=0)
        out.join(
            np.array([code]),
            _Moments(
                count[None],
                mean[None],
                spread[None],
                part.low.min(axis=0)[None],
                part.high.max(axis=0)[None],
                part.total.sum(axis=0)[None],
            ),
        )
    return out


def overview(
    store: ChunkStore,
    field: str,
    start: int = 0,
    stop: int | None = None,
    *,
    points: int = 1000,
    memory_limit: int | str = "256MiB",
) -> xr.Dataset:
    """Return a long stretch of a field as at most ``points`` bins of min, mean and max, for plotting.

    Parameters
    ----------
    store : ChunkStore
        An open store.
    field : str
        Name of the field.
    start, stop : int
        Half-open range of ``obs``; the whole store if not given.
    points : int
        Most bins to return.
    memory_limit : int or str
        Bytes that one block may take while it is worked on.

    Returns
    -------
    xarray.Dataset
        ``min``, ``mean``, ``max`` and ``count`` over ``bin``, with ``obs_start`` (first obs of each bin).

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> overview(small_store(), "x", points=5)["max"].values.tolist()
    [1.0, 3.0, 5.0, 7.0, 9.0]
    """
    stop = store.n_obs if stop is None else stop
    if not 0 <= start <= stop <= store.n_obs:
        raise ConfigError(f"[{start}, {stop}) is not a range of the store's {store.n_obs} obs")
    if points < 1:
        raise ConfigError(f"an overview needs at least 1 point, got {points}")
    spec = _field(store, field)
    length = max(1, -(-(stop - start) // points))
    edges = np.arange(start, stop, length)
    moments = _Moments.empty((len(edges), spec.items) if spec.items else (len(edges),), spec.np_dtype)
    width = spec.bytes_per_obs + 26 * max(1, spec.items)
    bounds = np.append(edges, stop)
    for low, high in _blocks(store, width, memory_limit):
        a, b = max(low, start), min(high, stop)
        if a < b:
            values, valid = values_and_mask(store, field, a, b)
            bins, starts = _sequences_of(bounds, a, b)
            with np.errstate(over="ignore", invalid="ignore"):
                moments.join(bins, _of_block(values, valid, starts))

    import xarray as xr

    dims = ("bin", f"{field}_item") if spec.items else ("bin",)
    return xr.Dataset(
        {name: (dims, moments.measure(name), _attrs(spec, name)) for name in ("min", "mean", "max", "count")},
        coords={"obs_start": ("bin", edges)},
        attrs={"field": field, "bin_length": length},
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """Parts of some sequences, in the order of the store: all int64 arrays of one length."""

    store: ChunkStore
    sequence: np.ndarray
    """Index of the sequence."""
    start: np.ndarray
    """First obs (absolute)."""
    stop: np.ndarray
    """One past the last obs (absolute)."""

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self.sequence)

    @property
    def n_obs(self) -> int:
        """Number of obs selected."""
        return int((self.stop - self.start).sum())

    def _gaps(self) -> np.ndarray:
        """Return the gaps of the parts, counted along the selection: int64[G, 2]."""
        gaps, found = self.store.gaps, []
        base = np.cumsum(self.stop - self.start) - (self.stop - self.start)
        for start, stop, at in zip(self.start.tolist(), self.stop.tolist(), base.tolist(), strict=True):
            first, last = (
                np.searchsorted(gaps[:, 1], start, "right"),
                np.searchsorted(gaps[:, 0], stop, "left"),
            )
            found.append(np.clip(gaps[first:last], start, stop) - start + at)
        return np.concatenate([np.empty((0, 2), np.int64), *found])

    def read(self, field: str) -> Iterator[np.ndarray]:
        """Yield the values of each part, one after the other."""
        for start, stop in zip(self.start.tolist(), self.stop.tolist(), strict=True):
            yield self.store.read(field, start, stop)

    def to_xarray(self) -> xr.Dataset:
        """Return the selection as a ragged Dataset of its own, read into memory.

        Values are as stored, with what decodes them in their attributes (``xarray.decode_cf`` applies it):
        scale factors, units of times, and masks, which stand beside their fields.
        """
        import xarray as xr

        data = {}
        for name in (*self.store.fields, *self.store.masks.values()):
            dims, dtype, attrs = described(self.store, name)
            shape = (0, *self.store.read(name, 0, 0).shape[1:])
            data[name] = (dims, np.concatenate([np.empty(shape, dtype), *self.read(name)]), attrs)
        for name, values in zip(("gap_start", "gap_stop"), self._gaps().T, strict=True):
            data[name] = (("gap",), values, {})
        ids = np.asarray(self.store.sequences.ids, dtype=object)[self.sequence]
        coords: dict[str, Any] = {"id": ("sequence", ids)}
        for name in self.store.sequences.columns:
            coords[name] = ("sequence", np.asarray(self.store.sequences.column(name))[self.sequence])
        data["rowsize"] = (("sequence",), self.stop - self.start, {"sample_dimension": "obs"})
        return xr.Dataset(data, coords=coords)


def select(
    store: ChunkStore,
    *,
    ids: Iterable[str] | None = None,
    labels: dict[str, Any] | None = None,
    time: tuple[Any, Any] | None = None,
) -> Selection:
    """Select sequences by id and label, and a stretch of each by time.

    Parameters
    ----------
    store : ChunkStore
        An open store.
    ids : iterable of str, optional
        Sequences to keep; all if not given.
    labels : dict, optional
        Column along ``sequence`` -> the value, or a list of values, to keep.
    time : tuple of two, optional
        Half-open range [from, to) of anything ``numpy.datetime64`` takes, or of seconds since the start of
        each sequence where it has no calendar time; None leaves a side open.

    Returns
    -------
    Selection
        The parts, lazily: nothing but times is read.

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> chosen = select(small_store(), labels={"kind": "a"})
    >>> chosen.sequence.tolist(), chosen.n_obs
    ([0, 1], 7)
    """
    table = store.sequences
    keep = np.ones(store.n_sequences, bool)
    if ids is not None:
        chosen = np.array([table.index_of(i) for i in ids], dtype=np.int64)
        keep[:] = False
        keep[chosen] = True
    for name, wanted in (labels or {}).items():
        if name not in table.columns:
            raise UnknownNameError(
                f"{store.url} has no label {name!r}; it has {', '.join(table.columns) or 'none'}"
            )
        many = wanted if isinstance(wanted, (list, tuple, set, np.ndarray)) else [wanted]
        keep &= np.isin(np.asarray(table.column(name)), list(many))
    index = np.flatnonzero(keep)
    offsets = np.asarray(table.offsets)
    start, stop = offsets[index].copy(), offsets[index + 1].copy()
    if time is not None:
        clock = clock_of(store)
        for i, sequence in enumerate(index.tolist()):
            low, high = _time_range(store, clock, sequence, time)
            start[i], stop[i] = start[i] + low, start[i] + high
        some = stop > start
        index, start, stop = index[some], start[some], stop[some]
    return Selection(store, index, start, stop)


def _time_range(
    store: ChunkStore, clock: Clock | None, sequence: int, time: tuple[Any, Any]
) -> tuple[int, int]:
    """Half-open range of obs within a sequence whose time lies in [from, to)."""
    name = store.sequences.ids[sequence]
    low, high = store.sequences.offsets[sequence : sequence + 2].tolist()
    ticks: np.ndarray
    bounds: list[Any]
    if isinstance(clock, FieldClock):
        ticks, known = store.read(clock.name, low, high), None
        if clock.name in store.masks:
            known = store.read(store.masks[clock.name], low, high)
        if known is not None and not known.all():
            raise ConfigError(f"sequence {name!r} has obs without a time; select by obs instead")
        bounds = [None if t is None else clock.first_value(_instant(t)) for t in time]
    else:
        obs, own = np.arange(high - low), np.full(high - low, sequence)
        times = None if clock is None else clock.times(own, obs)
        rate = sample_rates(store)[sequence]
        if times is not None and not np.isnat(times).any():
            ticks = times.astype(np.int64)
            bounds = [None if t is None else _instant(t) for t in time]
        elif not np.isnan(rate):
            ticks = obs / rate
            bounds = [None if t is None else _seconds(t, name) for t in time]
        else:
            raise ConfigError(
                f"nothing tells the time of sequence {name!r} in {store.url}; select by obs instead"
            )
    if (ticks[1:] < ticks[:-1]).any():
        raise ConfigError(f"the clock of sequence {name!r} goes back; select by obs instead")
    first, last = (
        default if bound is None else int(np.searchsorted(ticks, bound, "left"))
        for bound, default in zip(bounds, (0, len(ticks)), strict=True)
    )
    return first, max(first, last)


def _instant(value: Any) -> int:
    """Return nanoseconds since 1970 of what numpy takes for an instant."""
    found = parse_instant(value)
    if found is None:
        try:
            found = int(np.datetime64(value, "ns").astype(np.int64))
        except (ValueError, TypeError, OverflowError):
            raise ConfigError(f"time={value!r} is not an instant; give a datetime, or ISO text") from None
    return found


def _seconds(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"time={value!r}: when sequence {name!r} began is not known; give seconds since its start"
        ) from None

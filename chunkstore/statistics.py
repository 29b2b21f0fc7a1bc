"""Statistics of one field: gathered from pieces, merged in the order of shards.

Sums are kept as (count, mean, sum of squared deviations) and merged by the rule of Chan, Golub
and LeVeque, which loses no digits where values are large and close together. Merging the same
pieces in the same order gives the same bits, whatever the number of workers. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["FieldStatistics", "Gathering"]

#: count, nulls, infinite, min, max, mean and m2 of one item
_Item = tuple[int, int, int, int | float | None, int | float | None, float, float]
_NOTHING: _Item = (0, 0, 0, None, None, 0.0, 0.0)

#: Rows that are summed together; fewer of long vectors.
_BLOCK = 4096
#: Distances of int64 from here on do not fit into one.
_FAR = 2**63


@dataclass(frozen=True, slots=True)
class FieldStatistics:
    """Count, nulls, min, max, mean and std of a field; one entry an item for vectors.

    NaN and masked values are nulls. Infinities count as values, stand in min and max, and are left
    out of mean and std.

    Examples
    --------
    >>> a = FieldStatistics.from_values(np.array([1.0, 2.0, np.nan]))
    >>> b = FieldStatistics.from_values(np.array([6.0]))
    >>> both = a.merge(b)
    >>> both.count, both.nulls, both.min, both.max, both.mean
    (3, 1, 1.0, 6.0, 3.0)
    >>> FieldStatistics.from_json(both.to_json()) == both
    True
    """

    counts: tuple[int, ...]
    """Values that are not null, of each item."""
    null_counts: tuple[int, ...]
    infinite_counts: tuple[int, ...]
    minima: tuple[int | float | None, ...]
    maxima: tuple[int | float | None, ...]
    means: tuple[float, ...]
    """Of the finite values; 0 where there are none."""
    m2s: tuple[float, ...]
    """Sum of squared deviations from the mean, of the finite values."""
    vector: bool = False
    """Whether the field holds vectors: the short names then give lists."""

    @classmethod
    def empty(cls, items: int = 0) -> FieldStatistics:
        """Return the statistics of no values."""
        n = items or 1
        return cls((0,) * n, (0,) * n, (0,) * n, (None,) * n, (None,) * n, (0.0,) * n, (0.0,) * n, items > 0)

    @classmethod
    def from_values(cls, values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> FieldStatistics:
        """Gather from values [n] or [n, items]; ``valid`` [n] or [n, items] is False at nulls."""
        values = np.asarray(values)
        gathering = Gathering(values.shape[1] if values.ndim == 2 else 0, vector=values.ndim == 2)
        gathering.add(values, valid)
        return gathering.result()

    def merge(self, other: FieldStatistics) -> FieldStatistics:
        """Return the statistics of both; the order matters to the last bit only."""
        if self.vector != other.vector or len(self.counts) != len(other.counts):
            raise ConfigError(
                f"statistics of {len(self.counts)} and {len(other.counts)} items cannot be merged"
            )
        pairs = zip(self._items(), other._items(), strict=True)
        return _made([_merged(a, b) for a, b in pairs], self.vector)

    def _items(self) -> Iterator[_Item]:
        return zip(
            self.counts,
            self.null_counts,
            self.infinite_counts,
            self.minima,
            self.maxima,
            self.means,
            self.m2s,
            strict=True,
        )

    def _shown(self, values: tuple[Any, ...]) -> Any:
        return list(values) if self.vector else values[0]

    @property
    def count(self) -> Any:
        """Values that are not null: int, or a list with one an item."""
        return self._shown(self.counts)

    @property
    def nulls(self) -> Any:
        """NaN or masked values."""
        return self._shown(self.null_counts)

    @property
    def infinite(self) -> Any:
        """Values that are plus or minus infinity."""
        return self._shown(self.infinite_counts)

    @property
    def min(self) -> Any:
        """Least value; None where there is none."""
        return self._shown(self.minima)

    @property
    def max(self) -> Any:
        """Greatest value; None where there is none."""
        return self._shown(self.maxima)

    @property
    def _finite(self) -> list[int]:
        return [c - i for c, i in zip(self.counts, self.infinite_counts, strict=True)]

    @property
    def mean(self) -> Any:
        """Mean of the finite values; None where there are none."""
        return self._shown(tuple(m if n else None for m, n in zip(self.means, self._finite, strict=True)))

    @property
    def std(self) -> Any:
        """Standard deviation of the finite values, dividing by their count; None where there are none."""
        return self._shown(
            tuple(math.sqrt(m / n) if n else None for m, n in zip(self.m2s, self._finite, strict=True))
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: ``count nulls infinite min max mean std m2``, lists for vectors."""
        return {
            "count": self.count,
            "nulls": self.nulls,
            "infinite": self.infinite,
            "min": self._shown(tuple(_number(v) for v in self.minima)),
            "max": self._shown(tuple(_number(v) for v in self.maxima)),
            "mean": self.mean,
            "std": self._shown(tuple(_number(v) for v in _listed(self.std))),
            "m2": self._shown(tuple(_number(v) for v in self.m2s)),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> FieldStatistics:
        """Return the statistics that :meth:`to_json` wrote.

        Raises
        ------
        FormatError
            If something is missing or of another type.
        """
        try:
            vector = isinstance(found["count"], list)

            def column(name: str, kind: type) -> tuple[Any, ...]:
                values = found[name] if vector else [found[name]]
                return tuple(None if v is None else kind(v) for v in values)

            counts = column("count", int)
            lists = [
                column("nulls", int),
                column("infinite", int),
                column("min", _parsed),  # type: ignore[arg-type]
                column("max", _parsed),  # type: ignore[arg-type]
                tuple(0.0 if v is None else v for v in column("mean", float)),
                column("m2", float),
            ]
            if any(len(values) != len(counts) for values in lists) or any(c < 0 for c in counts):
                raise FormatError("its lists differ in length, or a count is negative")
            nulls, infinite, low, high, mean, m2 = lists
            return cls(counts, nulls, infinite, low, high, mean, m2, vector)
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise FormatError(f"statistics {found!r:.120} cannot be understood: {err}") from None


class Gathering:
    """Statistics of values that come in pieces: the same bits however they are cut.

    Examples
    --------
    >>> gathering = Gathering()
    >>> for piece in np.split(np.arange(100_000.0), [7, 70_000]):
    ...     gathering.add(piece)
    >>> gathering.result() == FieldStatistics.from_values(np.arange(100_000.0))
    True
    """

    def __init__(self, items: int = 0, *, vector: bool | None = None) -> None:
        self._vector = items > 0 if vector is None else vector
        self._n = items if self._vector else 1
        self._before: list[_Item] = [_NOTHING] * self._n
        self._sums: _Sums | None = None

    def add(self, values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> None:
        """Take values [n] or [n, items], and where they are not null, bool [n] or [n, items].

        Raises
        ------
        ConfigError
            If mask and values differ in length.
        """
        values = np.asarray(values)
        valid = None if valid is None else np.asarray(valid, bool)
        if valid is not None and valid.shape[:1] != values.shape[:1]:
            raise ConfigError(f"a mask of {valid.shape} does not fit values of {values.shape}")
        if not values.size:
            return
        if self._sums is None or self._sums.dtype != values.dtype:
            self._before = self._all()
            self._sums = _Sums(self._n, values.dtype)
        self._sums.add(values, valid)

    def _all(self) -> list[_Item]:
        if self._sums is None:
            return self._before
        return [_merged(a, b) for a, b in zip(self._before, self._sums.items(), strict=True)]

    def result(self) -> FieldStatistics:
        """Return the statistics of all that came."""
        return _made(self._all(), self._vector)


class _Sums:
    """Sums of values of one dtype, in blocks of a fixed number of rows (see :mod:`chunkstore.moments`).

    The compiled sums take float64. What is none becomes it a few blocks at a time; integers of 64 bits as
    their distance from the first: float64 holds the distances of instants in nanoseconds, not the instants.
    """

    def __init__(self, items: int, dtype: np.dtype[Any]) -> None:
        from chunkstore import moments  # numba: only where there is something to sum

        self.dtype = dtype
        self._n = items
        self._gather = moments.gather_blocks
        self._plain = items == 1 and dtype == np.float64 and dtype.isnative
        self._origins: list[_Origin] | None = None
        if dtype.kind in "iu" and dtype.itemsize == 8:
            self._origins = [_Origin() for _ in range(items)]
        self._block = min(_BLOCK, max(_BLOCK // 16, 16 * _BLOCK // items))
        self._done = 0
        self._counts = np.zeros((items, 3), np.int64)
        self._ends = np.full((items, 2), (np.inf, -np.inf))
        self._levels = np.zeros((items, moments.LEVELS), np.int64), np.zeros((items, moments.LEVELS, 2))
        spare = np.empty(self._block)
        self._fixed = moments.fixed
        self._no_mask = moments.fixed(np.empty(0, bool))
        work = np.empty((4, moments.LANES)), spare, moments.fixed(spare)
        self._state = (self._counts, self._ends, *self._levels, *work)
        self._room = np.empty(0)
        self._rows = 0
        self._held = np.empty((items, self._block))
        self._held_valid = np.ones((items, self._block), bool)

    def add(self, values: NDArray[Any], valid: NDArray[np.bool_] | None) -> None:
        """Take [n] or [n, items]: whole blocks where they lie; what makes none yet is held back."""
        block, at, end = self._block, 0, len(values)
        plain = self._plain and values.flags.c_contiguous
        few = block * max(1, 8 * _BLOCK // (block * self._n))
        while at < end:
            n = end - at
            if self._rows or n < block:
                n = min(n, block - self._rows)
                self._hold(values[at : at + n], None if valid is None else valid[at : at + n])
            else:
                n = n // block * block if plain else min(n // block * block, few)
                part, kept = values[at : at + n], None if valid is None else valid[at : at + n]
                self._take(part if plain else self._columns(part, kept), None if kept is None else kept.T)
            at += n

    def _hold(self, values: NDArray[Any], valid: NDArray[np.bool_] | None) -> None:
        at, self._rows = self._rows, self._rows + len(values)
        self._fill(self._held[:, at : self._rows], values, valid)
        self._held_valid[:, at : self._rows] = True if valid is None else valid.T
        if self._rows == self._block:
            self._rows = 0
            self._take(self._held, self._held_valid)

    def _columns(self, values: NDArray[Any], valid: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        """Return some blocks of rows as float64[items, n], good until the next are asked for."""
        need = len(values) * self._n
        if self._room.size < need:
            self._room = np.empty(need)
        out = self._room[:need].reshape(self._n, len(values))
        self._fill(out, values, valid)
        return out

    def _fill(self, out: NDArray[Any], values: NDArray[Any], valid: NDArray[np.bool_] | None) -> None:
        if self._origins is None:
            np.copyto(out, values.T)
            return
        for i, origin in enumerate(self._origins):
            kept = None if valid is None else (valid if valid.ndim == 1 else valid[:, i])
            origin.distances(values if values.ndim == 1 else values[:, i], kept, out[i])

    def _take(self, values: NDArray[np.float64], valid: NDArray[np.bool_] | None) -> None:
        """Take whole blocks, float64[items, n] or [n]."""
        told = self._no_mask if valid is None else self._fixed(valid)
        self._gather(self._fixed(values), told, self._n, self._block, self._done, *self._state)
        self._done += values.size // (self._n * self._block)

    def items(self) -> list[_Item]:
        """Return what was counted."""
        counts, ends, blocks = self._counts.copy(), self._ends.copy(), self._done
        sizes, sums = (levels.copy() for levels in self._levels)
        if self._rows:
            held, told = (self._fixed(part[:, : self._rows]) for part in (self._held, self._held_valid))
            state = (counts, ends, sizes, sums, *self._state[4:])
            self._gather(held, told, self._n, self._block, blocks, *state)
            blocks += 1
        found = []
        for i, (count, nulls, infinite) in enumerate(counts.tolist()):
            whole = _NOTHING
            for level in range(blocks.bit_length()):
                if blocks >> level & 1:
                    whole = _merged((int(sizes[i, level]), 0, 0, None, None, *sums[i, level].tolist()), whole)
            low, high = self._extremes(i, ends[i].tolist()) if count else (None, None)
            mean, m2 = whole[5:]
            if self._origins is not None and count:
                mean += self._origins[i].base
            found.append((count, nulls, infinite, low, high, mean, m2))
        return found

    def _extremes(self, item: int, ends: list[float]) -> tuple[int | float, int | float]:
        if self._origins is not None:
            return self._origins[item].low, self._origins[item].high
        kind = {"f": float, "b": bool}.get(self.dtype.kind, int)
        return kind(ends[0]), kind(ends[1])


@dataclass(slots=True)
class _Origin:
    """The integer that others of an item are told as distances from, and their extremes, exact."""

    base: int = 0
    low: int = 0
    high: int = 0
    known: bool = False

    def distances(self, values: NDArray[Any], valid: NDArray[np.bool_] | None, out: NDArray[Any]) -> None:
        """Write values - base as float64; whatever where they are null."""
        from chunkstore import moments  # as in _Sums

        known = values if valid is None else values[valid]
        if not len(known):
            out[:] = 0.0
            return
        if not self.known:
            first = int(known[0])
            self.base, self.low, self.high, self.known = first, first, first, True
        kind = values.dtype.newbyteorder("=")
        base = np.array(self.base, kind)
        if valid is None and kind == values.dtype and values.flags.c_contiguous:
            low, high = moments.distances(moments.fixed(values), base[()], out)
        else:
            low, high = int(known.min()), int(known.max())
            out[:] = (values - base).view(np.int64)  # as they are, if within 2**63
        self.low, self.high = min(self.low, low), max(self.high, high)
        if high - self.base >= _FAR or self.base - low > _FAR:
            wrapped = (values >= base) != ((values - base).view(np.int64) >= 0)
            out[wrapped] = values[wrapped].astype(np.float64) - float(self.base)


def _made(items: Sequence[_Item], vector: bool) -> FieldStatistics:
    if not items:
        return FieldStatistics((), (), (), (), (), (), (), vector)
    counts, nulls, infinite_counts, lows, highs, means, m2s = zip(*items, strict=True)
    return FieldStatistics(counts, nulls, infinite_counts, lows, highs, means, m2s, vector)


def _merged(one: _Item, other: _Item) -> _Item:
    count, nulls, infinite, low, high, mean, m2 = one
    count2, nulls2, infinite2, low2, high2, mean2, m22 = other
    a, b = count - infinite, count2 - infinite2
    if not a:
        mean, m2 = mean2, m22
    elif b:
        delta = mean2 - mean
        if math.isinf(delta):  # values near the end of float64
            mean = mean * (a / (a + b)) + mean2 * (b / (a + b))
        else:
            mean += delta * (b / (a + b))
        m2 = m2 + m22 + delta * delta * (a * (b / (a + b)))
    return (
        count + count2,
        nulls + nulls2,
        infinite + infinite2,
        _pick(min, low, low2),
        _pick(max, high, high2),
        mean,
        m2,
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pick(choose: Any, a: int | float | None, b: int | float | None) -> int | float | None:
    if a is None or b is None:
        return b if a is None else a
    picked: int | float = choose(a, b)
    return picked


def _number(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _parsed(value: Any) -> Any:
    if isinstance(value, str):
        return {"Infinity": math.inf, "-Infinity": -math.inf}[value]
    if not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value

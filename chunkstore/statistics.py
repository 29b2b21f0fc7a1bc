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

_BLOCK = 1 << 16
#: Integers up to here are float64 values.
_EXACT = 2**53


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
        self._items: list[_Item] = [_NOTHING] * (items if self._vector else 1)
        self._held: NDArray[Any] | None = None
        self._held_valid: NDArray[np.bool_] | None = None
        self._rows = 0
        self._room = np.empty(0)

    def add(self, values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> None:
        """Take values [n] or [n, items], and where they are not null, bool [n] or [n, items].

        Raises
        ------
        ConfigError
            If mask and values differ in length.
        """
        values = np.asarray(values)
        valid = None if valid is None else np.asarray(valid)
        if valid is not None and valid.shape[:1] != values.shape[:1]:
            raise ConfigError(f"a mask of {valid.shape} does not fit values of {values.shape}")
        low = 0
        while low < len(values):
            high = min(len(values), low + _BLOCK - self._rows)
            part, mask = values[low:high], None if valid is None else valid[low:high]
            low = high
            if len(part) == _BLOCK:
                self._block(part, mask)  # blocks bound the memory of the float64 copies
                continue
            self._hold(part, mask)
            if self._rows == _BLOCK:
                self._flush()

    def _hold(self, values: NDArray[Any], valid: NDArray[np.bool_] | None) -> None:
        """Keep what does not make a block yet."""
        if self._held is None or self._held.dtype != values.dtype:
            self._flush()
            self._held = np.empty((_BLOCK, *values.shape[1:]), values.dtype)
        at, self._rows = self._rows, self._rows + len(values)
        self._held[at : self._rows] = values
        if valid is not None and self._held_valid is None:
            self._held_valid = np.ones((_BLOCK, *valid.shape[1:]), bool)
        if self._held_valid is not None:
            self._held_valid[at : self._rows] = True if valid is None else valid

    def _flush(self) -> None:
        if self._held is not None and self._rows:
            valid = self._held_valid
            rows, self._rows = self._rows, 0
            self._block(self._held[:rows], None if valid is None else valid[:rows])

    def result(self) -> FieldStatistics:
        """Return the statistics of all that came."""
        self._flush()
        return _made(self._items, self._vector)

    def _block(self, values: NDArray[Any], valid: NDArray[np.bool_] | None) -> None:
        columns = [values] if values.ndim == 1 else [values[:, i] for i in range(values.shape[1])]
        for i, column in enumerate(columns):
            keep = None if valid is None else (valid if valid.ndim == 1 else valid[:, i])
            self._items[i] = _merged(self._items[i], self._column(column, keep))

    def _column(self, column: NDArray[Any], keep: NDArray[np.bool_] | None) -> _Item:
        known = column if keep is None else column[keep]
        infinite = 0
        finite = known
        # NaN and infinity show in the extremes: data without them, the common case, is not copied
        low, high = _ends(known)
        if known.dtype.kind == "f" and low is not None and not (math.isfinite(low) and math.isfinite(high)):
            known = known[~np.isnan(known)]
            ok = np.isfinite(known)
            infinite = int(len(known) - np.count_nonzero(ok))
            finite = known if not infinite else known[ok]
            low, high = _ends(known)
        base = 0
        if known.dtype.kind in "iu" and low is not None and high is not None and max(-low, high) > _EXACT:
            base = int(low)  # instants in nanoseconds: float64 holds their differences, not themselves
            finite = known.astype(np.uint64) - np.array(low, known.dtype).astype(np.uint64)
        mean, m2 = self._moments(finite) if len(finite) else (0.0, 0.0)
        return len(known), len(column) - len(known), infinite, low, high, mean + base, m2

    def _moments(self, values: NDArray[Any]) -> tuple[float, float]:
        """Return the mean and the sum of squared deviations (infinite on overflow), in few passes."""
        n = len(values)
        if len(self._room) < n:
            self._room = np.empty(n)
        off = self._room[:n]  # one piece of memory that stays in the cache
        with np.errstate(over="ignore", invalid="ignore"):
            if values.dtype == np.float64:
                wide = values
            else:
                np.copyto(off, values)
                wide = off
            mean = float(wide.sum()) / n
            if not math.isfinite(mean):
                mean = float((wide / n).sum())
            np.subtract(wide, mean, out=off)
            rest = float(off.sum()) / n  # takes the rounding of the first pass back
            # not np.dot: its last bits depend on the number of BLAS threads, which workers differ in
            m2 = float(np.einsum("i,i->", off, off))
            if math.isfinite(rest):
                mean += rest
                m2 = max(0.0, m2 - rest * rest * n)
            return mean, m2


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


def _ends(values: NDArray[Any]) -> tuple[Any, Any]:
    return (values.min().item(), values.max().item()) if len(values) else (None, None)


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

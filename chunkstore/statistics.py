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
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["FieldStatistics"]

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
        if valid is not None and np.asarray(valid).shape[:1] != values.shape[:1]:
            raise ConfigError(f"a mask of {np.asarray(valid).shape} does not fit values of {values.shape}")
        result = cls.empty(values.shape[1] if values.ndim == 2 else 0)
        for low in range(0, len(values), _BLOCK):  # blocks bound the memory of the float64 copies
            part = values[low : low + _BLOCK]
            mask = None if valid is None else np.asarray(valid)[low : low + _BLOCK]
            result = result.merge(cls._block(part, mask))
        return result

    @classmethod
    def _block(cls, values: NDArray[Any], valid: NDArray[np.bool_] | None) -> FieldStatistics:
        columns = [values] if values.ndim == 1 else [values[:, i] for i in range(values.shape[1])]
        found = []
        for i, column in enumerate(columns):
            keep = None if valid is None else (valid if valid.ndim == 1 else valid[:, i])
            known = column if keep is None else column[keep]
            infinite = 0
            finite = known
            # NaN and infinity show in the extremes: data without them, the common case, is not copied
            low, high = _ends(known)
            if known.dtype.kind == "f" and low is not None and not np.isfinite([low, high]).all():
                known = known[~np.isnan(known)]
                ok = np.isfinite(known)
                infinite = int(len(known) - np.count_nonzero(ok))
                finite = known if not infinite else known[ok]
                low, high = _ends(known)
            base = 0
            if known.dtype.kind in "iu" and low is not None and high is not None and max(-low, high) > _EXACT:
                base = int(low)  # instants in nanoseconds: float64 holds their differences, not themselves
                finite = known.astype(np.uint64) - np.array(low, known.dtype).astype(np.uint64)
            mean, m2 = _moments(finite) if len(finite) else (0.0, 0.0)
            mean += base
            found.append((len(known), len(column) - len(known), infinite, low, high, mean, m2))
        if not found:
            return cls((), (), (), (), (), (), (), True)
        counts, nulls, infinite_counts, lows, highs, means, m2s = zip(*found, strict=True)
        return cls(counts, nulls, infinite_counts, lows, highs, means, m2s, values.ndim == 2)

    def merge(self, other: FieldStatistics) -> FieldStatistics:
        """Return the statistics of both; the order matters to the last bit only."""
        if self.vector != other.vector or len(self.counts) != len(other.counts):
            raise ConfigError(
                f"statistics of {len(self.counts)} and {len(other.counts)} items cannot be merged"
            )
        means, m2s = [], []
        for i in range(len(self.counts)):
            a = self.counts[i] - self.infinite_counts[i]
            b = other.counts[i] - other.infinite_counts[i]
            if not a or not b:
                means.append(self.means[i] if a else other.means[i])
                m2s.append(self.m2s[i] if a else other.m2s[i])
                continue
            delta = other.means[i] - self.means[i]
            if math.isinf(delta):  # values near the end of float64
                means.append(self.means[i] * (a / (a + b)) + other.means[i] * (b / (a + b)))
            else:
                means.append(self.means[i] + delta * (b / (a + b)))
            m2s.append(self.m2s[i] + other.m2s[i] + delta * delta * (a * (b / (a + b))))
        return FieldStatistics(
            tuple(map(sum, zip(self.counts, other.counts, strict=True))),
            tuple(map(sum, zip(self.null_counts, other.null_counts, strict=True))),
            tuple(map(sum, zip(self.infinite_counts, other.infinite_counts, strict=True))),
            tuple(_pick(min, a, b) for a, b in zip(self.minima, other.minima, strict=True)),
            tuple(_pick(max, a, b) for a, b in zip(self.maxima, other.maxima, strict=True)),
            tuple(means),
            tuple(m2s),
            self.vector,
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


def _ends(values: NDArray[Any]) -> tuple[Any, Any]:
    return (values.min().item(), values.max().item()) if len(values) else (None, None)


def _moments(values: NDArray[Any]) -> tuple[float, float]:
    """Return the mean and the sum of squared deviations (infinite on overflow), in few passes."""
    n = len(values)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = values.astype(np.float64, copy=False)
        mean = float(wide.sum()) / n
        if not math.isfinite(mean):
            mean = float((wide / n).sum())
        off = np.subtract(wide, mean, out=None if wide is values else wide)
        rest = float(off.sum()) / n  # takes the rounding of the first pass back
        # not np.dot: its last bits depend on the number of BLAS threads, which workers differ in
        m2 = float(np.einsum("i,i->", off, off))
        if math.isfinite(rest):
            mean += rest
            m2 = max(0.0, m2 - rest * rest * n)
        return mean, m2


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

"""What a report shows of a store, taken by samples whose size does not grow with the store.

Decided here: which chunks, sequences and labels stand for all, and what is said about the choice. Every
result carries how much of the store it was made from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chunkstore.clock import sample_rates
from chunkstore.ragged import values_and_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkstore.store import ChunkStore

__all__ = ["Histogram", "Labels", "Missing", "audio_rate", "example_sequences", "field_sample", "histogram"]


_FASTEST = 10_000_000  # Hz; beyond, a number is no rate of sound


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of some whole chunks, evenly spread over a field."""

    values: np.ndarray
    """[n] or [n, items], missing ones left out for scalars, NaN for vectors."""
    obs: int
    """Obs that were read."""
    of: int
    """Obs that there are."""

    @property
    def note(self) -> str:
        """What was read, in words; empty where it was everything."""
        if self.obs >= self.of:
            return ""
        return f"from {self.obs:,} of {self.of:,} obs, in chunks spread evenly"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between edges."""

    counts: np.ndarray
    """int64[n]"""
    edges: np.ndarray
    """float64[n + 1]"""
    log: bool
    """Whether the edges grow by a factor."""
    beyond: int = 0
    """Values outside the edges (extremes left out so that the rest can be seen)."""


@dataclass(frozen=True, slots=True)
class Labels:
    """How many sequences and obs each value of a label has, the most frequent first."""

    values: list[str]
    sequences: list[int]
    obs: list[int]
    distinct: int
    """All values that there are, shown or not."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Fraction of missing obs along ``obs``."""

    fraction: np.ndarray
    """float64[fields, bins] in 0..1"""
    start: np.ndarray
    """int64[bins], first obs of each bin"""
    note: str


def spread_chunks(n_obs: int, chunk: int, most: int) -> list[tuple[int, int]]:
    """Return at most ``most`` whole chunks, spread evenly, as ranges of obs.

    Examples
    --------
    >>> spread_chunks(100, 10, 3)
    [(0, 10), (40, 50), (90, 100)]
    """
    total = -(-n_obs // chunk)
    if total <= most:
        picks = range(total)
    else:
        picks = np.unique(np.linspace(0, total - 1, most).astype(np.int64)).tolist()
    return [(i * chunk, min((i + 1) * chunk, n_obs)) for i in picks]


def field_sample(store: ChunkStore, field: str, budget: int = 32 * 2**20) -> Sample:
    """Return values of chunks spread evenly over a field, at most ``budget`` bytes of them."""
    spec = store.fields[field]
    chunk = store.layout.chunk
    most = max(2, budget // max(1, chunk * spec.bytes_per_obs))
    parts, read = [], 0
    for start, stop in spread_chunks(store.n_obs, chunk, most):
        values, valid = values_and_mask(store, field, start, stop)
        read += stop - start
        if spec.items:
            values = np.where(valid, values, np.nan).astype(np.float64)
        else:
            values = values[valid]
        parts.append(values)
    empty = np.empty(spec.shape(0), spec.np_dtype)
    return Sample(np.concatenate([empty, *parts]), read, store.n_obs)


def histogram(
    values: np.ndarray, bins: int = 60, *, tails: float = 0.0005, linear: bool = False
) -> Histogram:
    """Return a histogram whose bins can be seen.

    Integers of few distinct values get a bin each; positive values that span more than three decades get
    bins that grow by a factor; and rare extremes that would squeeze the rest into one bin are counted
    beside it. ``linear`` keeps bins of one width, as for dates, whose origin means nothing.

    Examples
    --------
    >>> histogram(np.array([0, 1, 1, 3])).counts.tolist()
    [1, 2, 0, 1]
    """
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not len(finite):
        return Histogram(np.zeros(1, np.int64), np.array([0.0, 1.0]), False)
    low, high = float(finite.min()), float(finite.max())
    if high / 2 - low / 2 > np.finfo(np.float64).max / 2:  # farther apart than float64 can say
        near = histogram(finite / 4, bins, tails=tails, linear=linear)
        return replace(near, edges=near.edges * 4)
    if values.dtype.kind in "biu" and high - low < bins:
        edges = np.arange(low - 0.5, high + 1.5)
    elif low == high:
        edges = np.array([low - 0.5, high + 0.5])
    elif low > 0 and high / low > 1000 and not linear:
        edges = np.geomspace(low, high, bins + 1)
        edges[0], edges[-1] = low, high
    else:
        inner = np.quantile(finite, [tails, 1 - tails]).tolist()
        if inner[1] > inner[0] and (high - low) > 4 * (inner[1] - inner[0]):
            low, high = inner
        if values.dtype.kind in "iu" and high - low < 1000 * bins:  # as many whole numbers in each bin
            step = -(-(high - low + 1) // bins)
            edges = np.arange(np.floor(low) - 0.5, high + step, step)
        else:
            edges = np.linspace(low, high, bins + 1)
    counts, edges = np.histogram(finite.astype(np.uint8) if finite.dtype == bool else finite, edges)
    return Histogram(
        counts,
        edges,
        bool(edges[0] > 0 and edges[-1] > 1000 * edges[0] and not linear),
        len(finite) - int(counts.sum()),
    )


def label_balance(store: ChunkStore, name: str, most: int = 25) -> Labels | None:
    """Return the balance of a label or a column of small integers; None where values hardly repeat."""
    table = store.sequences
    if table.is_categorical(name):
        codes, words = table.codes(name), [*table.categories(name), "(none)"]
        codes = np.where(codes < 0, len(words) - 1, codes)
        if len(words) - 1 > max(2, len(codes) // 2):  # as good as an id: there is no balance to see
            return None
    else:
        column = table.column(name)
        if column.dtype.kind not in "iub" or not len(column) or np.abs(column).max() > 1000:
            return None  # measurements and free text have no balance to see
        found, inverse = np.unique(column, return_inverse=True)
        codes = inverse.astype(np.int32)
        words = [str(w) for w in found]
        if len(words) > 20:
            return None
    sequences = np.bincount(codes, minlength=len(words))
    obs = np.bincount(codes, weights=table.rowsize, minlength=len(words)).astype(np.int64)
    order = np.argsort(-sequences, kind="stable")
    order = order[sequences[order] > 0]
    shown = order[:most]
    return Labels(
        [words[i] or "(empty)" for i in shown], sequences[shown].tolist(), obs[shown].tolist(), len(order)
    )


def missing_over_obs(store: ChunkStore, fields: Sequence[str], bins: int = 120) -> Missing:
    """Return the fraction of missing values along ``obs``, from one chunk a bin where there are many."""
    n, chunk = store.n_obs, store.layout.chunk
    edges = np.unique(np.linspace(0, n, min(bins, max(1, n)) + 1).astype(np.int64))
    fraction = np.zeros((len(fields), len(edges) - 1))
    length = int(np.diff(edges).max(initial=0))
    sampled = length > 2 * chunk
    for row, field in enumerate(fields):
        for column, (a, b) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            stop = min(b, a + chunk) if sampled else b
            _, valid = values_and_mask(store, field, a, stop)
            fraction[row, column] = 1 - valid.mean() if valid.size else 0
    note = f"from the first {chunk:,} obs of each of {len(edges) - 1} bins" if sampled else ""
    return Missing(fraction, edges[:-1], note)


def example_sequences(store: ChunkStore, count: int = 4, seed: int = 0) -> list[int]:
    """Return the indices of some sequences that are not empty: the median, the longest, and random ones."""
    rowsize = store.sequences.rowsize
    held = np.flatnonzero(rowsize > 0)
    if len(held) <= count:
        return [int(i) for i in held]
    median = held[np.argpartition(rowsize[held], len(held) // 2)[len(held) // 2]]
    chosen = [int(held[np.argmax(rowsize[held])]), int(median)]
    rng = np.random.default_rng(seed)
    for index in rng.permutation(held).tolist():
        if len(set(chosen)) >= count:
            break
        if index not in chosen:
            chosen.append(index)
    return list(dict.fromkeys(chosen))[:count]


def audio_rate(store: ChunkStore, field: str, index: int | None = None) -> float | None:
    """Return the sample rate in Hz of a field that can be heard, or None.

    A field can be heard where it is scalar, the store states its ``sample_rate``, and that is at least 4 kHz.
    Of one sequence if ``index`` names it, else of the first that can be heard.
    """
    spec = store.fields[field]
    if spec.items or spec.categories is not None:
        return None
    rates = sample_rates(store, field)
    rates = rates if index is None else rates[index : index + 1]
    heard = rates[(rates >= 4000) & (rates <= _FASTEST)]
    return float(heard[0]) if len(heard) else None

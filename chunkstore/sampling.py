"""Which windows an epoch draws: all of them, n random ones a sequence, or weighted with replacement.

Decides how many items each block has and which window each item is; never in what order they come
(:mod:`chunkstore.schedule`). Every choice is keyed by (seed, epoch) and by the sequence it concerns, so
it is the same everywhere. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkstore.errors import ConfigError
from chunkstore.permute import MAX_N, derive_key, mix_keys, permute_many

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from chunkstore.schedule import Blocks
    from chunkstore.windows import WindowIndex

__all__ = ["PerSequence", "Population", "Weighted", "parse_sampling", "population"]


@dataclass(frozen=True, slots=True)
class PerSequence:
    """``n`` random windows of each sequence an epoch; none twice while a sequence has enough."""

    n: int = 1
    """Windows of each sequence."""

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, (int, np.integer)) or self.n < 1:
            raise ConfigError(
                f"per_sequence draws a whole number of windows of each sequence, at least 1, got {self.n!r}"
            )
        object.__setattr__(self, "n", int(self.n))


@dataclass(frozen=True, eq=False)
class Weighted:
    """Windows drawn with replacement, in proportion to a weight of their sequence."""

    weights: ArrayLike | Sequence[ArrayLike]
    """A number from 0 for each sequence of the store, or such an array for each store."""
    n: int | None = None
    """Draws of an epoch; as many as there are windows by default."""
    by: Literal["window", "sequence"] = "window"
    """Whether the weight is that of each window of the sequence, or of the sequence as a whole."""

    def __post_init__(self) -> None:
        if self.by not in ("window", "sequence"):
            raise ConfigError(f"by={self.by!r} is not known; use 'window' or 'sequence'")
        if self.n is not None and (
            isinstance(self.n, bool) or not isinstance(self.n, (int, np.integer)) or self.n < 1
        ):
            raise ConfigError(f"an epoch has a whole number of draws, at least 1, got n={self.n!r}")
        object.__setattr__(self, "n", None if self.n is None else int(self.n))
        if self.n is not None and self.n > MAX_N:
            raise ConfigError(f"an epoch has at most 2**48 draws, got n={self.n}")


Sampling = Literal["all"] | PerSequence | Weighted


def parse_sampling(value: Any) -> Sampling:
    """Return the sampling that a user's words mean.

    Parameters
    ----------
    value : str, mapping, PerSequence or Weighted
        ``"all"``, ``"per_sequence"``, ``"per_sequence=3"``, ``{"per_sequence": 3}``,
        ``{"weights": [...], "n": 1000, "by": "sequence"}``, or one of the classes.

    Raises
    ------
    ConfigError
        If it means nothing.

    Notes
    -----
    Datasets of :mod:`chunkstore.torch` also take ``{"balance": label, "n": 1000}``, every class of a label
    equally often, and ``{"stores": [2, 1], "n": 1000}``, the share of each store: they know labels and
    stores, and make a :class:`Weighted` of either before it comes here.

    Examples
    --------
    >>> parse_sampling("per_sequence=3")
    PerSequence(n=3)
    """
    if value is None or value == "all":
        return "all"
    if isinstance(value, (PerSequence, Weighted)):
        return value
    if isinstance(value, str):
        name, _, number = value.partition("=")
        if name.strip() == "per_sequence" and (not number or number.strip().isdecimal()):
            return PerSequence(int(number or 1))
    if isinstance(value, Mapping):
        if set(value) == {"per_sequence"}:
            return PerSequence(value["per_sequence"])
        if "weights" in value and set(value) <= {"weights", "n", "by"}:
            return Weighted(**value)
    raise ConfigError(
        f"sampling={value!r} is not known; use 'all', 'per_sequence=n', or {{'weights': [...], 'n': draws}}"
    )


class Population:
    """The items of one epoch: windows in the order of blocks, some perhaps absent or repeated."""

    counts: NDArray[np.int64]
    """Items of each block."""
    index: WindowIndex
    """The windows of this epoch (its phase drawn)."""

    def __init__(self, counts: NDArray[np.int64], index: WindowIndex) -> None:
        self.counts, self.index = counts, index

    def windows(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the window id of each item."""
        return items


class _Chosen(Population):
    """Items listed one by one."""

    def __init__(self, counts: NDArray[np.int64], index: WindowIndex, ids: NDArray[np.int64]) -> None:
        super().__init__(counts, index)
        self._ids = ids

    def windows(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._ids[items]


class _Cells(Population):
    """Random windows of cells: stretches of ids within one block and one segment."""

    def __init__(  # noqa: PLR0917 - all of them, from one place
        self,
        counts: NDArray[np.int64],
        index: WindowIndex,
        low: NDArray[np.int64],
        size: NDArray[np.int64],
        first: NDArray[np.int64],
        key: int,
    ) -> None:
        super().__init__(counts, index)
        self._low, self._size, self._first, self._key = low, size, first, key

    def windows(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        cell = np.searchsorted(self._first, items, side="right") - 1
        drawn = mix_keys(self._key, items) >> np.uint64(1)
        return self._low[cell] + (drawn % self._size[cell].astype(np.uint64)).astype(np.int64)


def n_draws(index: WindowIndex, sampling: Sampling) -> int:
    """Return the number of draws of an epoch; the same for every epoch."""
    if isinstance(sampling, PerSequence):
        return len(index.sequence_ranges()[0]) * sampling.n
    if isinstance(sampling, Weighted) and sampling.n is not None:
        return sampling.n
    return index.n_windows


def population(
    index: WindowIndex, blocks: Blocks, sampling: Sampling, *, seed: int, epoch: int
) -> Population:
    """Return the items of an epoch.

    Parameters
    ----------
    index : WindowIndex
        All windows.
    blocks : Blocks
        The blocks that own them.
    sampling : {"all"}, PerSequence or Weighted
        What to draw.
    seed, epoch : int
        The key of every choice.

    Raises
    ------
    ConfigError
        If weights do not fit the sequences, are negative, or leave nothing to draw.
    """
    index = index.with_phase(mix_keys(derive_key(seed, epoch, "phase"), np.arange(len(index.start))))
    edges = blocks.first_ids(index)
    if isinstance(sampling, PerSequence):
        ids = _per_sequence(index, sampling.n, derive_key(seed, epoch, "per sequence"))
        return _Chosen(np.diff(np.searchsorted(ids, edges)), index, ids)
    if isinstance(sampling, Weighted):
        return _weighted(index, edges, sampling, derive_key(seed, epoch, "weights"))
    return Population(np.diff(edges), index)


def _per_sequence(index: WindowIndex, n: int, key: int) -> NDArray[np.int64]:
    """Return n window ids of each sequence, sorted."""
    store, sequence, first, count = index.sequence_ranges()
    if not len(first):
        return np.empty(0, np.int64)
    nth = np.tile(np.arange(n), len(first))
    of = np.repeat(np.arange(len(first)), n)
    keys = mix_keys(key, store * (2**40) + sequence)
    rounds = nth // count[of]
    drawn = permute_many(nth % count[of], count[of], keys[of] + mix_keys(key, rounds))
    ids: NDArray[np.int64] = np.sort(first[of] + drawn)
    return ids


def sequence_weights(index: WindowIndex, weighted: Weighted) -> NDArray[np.float64]:
    """Return the weight of one window of each segment, float64[segments]."""
    weights = weighted.weights
    several = isinstance(weights, Sequence) and len(weights) > 0 and np.ndim(weights[0]) == 1
    parts: list[Any] = list(weights) if several else [weights]  # type: ignore[arg-type]
    try:
        arrays = [np.asarray(w, np.float64) for w in parts]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"weights must be numbers, or arrays of them: {error}") from None
    if any(a.ndim != 1 for a in arrays):
        raise ConfigError("weights must be one number for each sequence, or such an array for each store")
    if len(arrays) != index.n_stores:
        raise ConfigError(f"weights are given for {len(arrays)} stores, there are {index.n_stores}")
    lengths = np.array([len(a) for a in arrays], np.int64)
    store, sequence, _, count = index.sequence_ranges()
    beyond = np.flatnonzero(sequence >= lengths[store])
    if len(beyond):
        at = beyond[0]
        raise ConfigError(
            f"store {store[at]} has {lengths[store[at]]} weights but a sequence {sequence[at]}; "
            "give one for every sequence of the store"
        )
    flat = np.concatenate(arrays)
    if not np.isfinite(flat).all() or (flat < 0).any():
        raise ConfigError("weights must be finite numbers from 0")
    base = np.cumsum(lengths) - lengths
    weight: NDArray[np.float64] = flat[base[index.store] + index.sequence]
    if weighted.by == "sequence":
        order = np.searchsorted(index.sequence_ranges()[2], index.first[:-1], side="right") - 1
        weight = weight / count[order]
    return weight


def _weighted(index: WindowIndex, edges: NDArray[np.int64], weighted: Weighted, key: int) -> Population:
    """Share an epoch's draws among cells in proportion to weight x windows, each rounded up or down."""
    weight = sequence_weights(index, weighted)
    cuts = np.unique(np.concatenate([edges, index.first]))
    low, size = cuts[:-1], np.diff(cuts)
    mass = np.cumsum(weight[index.segment_of(low)] * size) if len(low) else np.zeros(0)
    total = float(mass[-1]) if len(mass) else 0.0
    if not total > 0:
        raise ConfigError("no window has a weight above 0: nothing to draw")
    n = n_draws(index, weighted)
    shift = (key >> 11) * 2.0**-53
    upto = np.floor(mass / total * n + shift).astype(np.int64)
    upto[mass >= total] = n
    counts = np.diff(np.concatenate([[0], np.minimum(upto, n)]))
    first = np.concatenate([[0], np.cumsum(counts)])
    of_block = np.diff(np.searchsorted(low, edges))
    per_block = np.diff(first[np.concatenate([[0], np.cumsum(of_block)])])
    return _Cells(per_block, index, low, size, first, key)

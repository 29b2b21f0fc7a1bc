"""Windows without an index: ids <-> (store, sequence, start) by arithmetic over segments.

Decides which windows there are, and the number each is known by. How they are ordered is left to
:mod:`chunkstore.schedule`, which of them an epoch draws to :mod:`chunkstore.sampling`.

Ids run in the order of (store, start). Memory is O(segments), never O(windows). Pure.

::

    segment    |----------------------------|      stop
    id 0        [ length  ][horizon]
    id 1          . stride .[ length  ][horizon]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from chunkstore.errors import ConfigError
from chunkstore.numbers import whole_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["WindowIndex", "WindowPlaces", "WindowSpec"]

Short = Literal["drop", "pad", "error"]
MOST = 2**60  # obs, of anything: so that sums stay below 2**63


class SegmentArrays(Protocol):
    """What is asked of the segments of one store; :class:`chunkstore.segments.Segments` has it."""

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Index of the sequence of each segment."""

    @property
    def start(self) -> NDArray[np.int64]:
        """First obs of each segment, ascending."""

    @property
    def stop(self) -> NDArray[np.int64]:
        """One past the last obs of each segment."""


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The shape of a window, in obs.

    Examples
    --------
    >>> WindowSpec(512, stride=64, horizon=24).span
    536
    """

    length: int
    """Obs of a window."""
    stride: int = 1
    """Obs from one start to the next."""
    horizon: int = 0
    """Obs behind the window that must exist too (what a forecast is compared with)."""
    short: Short = "drop"
    """What becomes of segments shorter than ``length + horizon``: left out, one padded window, an error."""
    phase: int | Literal["random"] = 0
    """Obs before the first start of a segment; ``"random"`` draws one for each segment and epoch."""

    def __post_init__(self) -> None:
        lengths = (self.length, self.stride, self.horizon)
        if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in lengths):
            raise ConfigError(
                f"length, stride and horizon of a window are whole numbers of obs, got {lengths}"
            )
        for name in ("length", "stride", "horizon"):  # numpy's numbers look and travel otherwise
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.length < 1 or self.stride < 1 or self.horizon < 0:
            raise ConfigError(
                f"a window of length {self.length}, stride {self.stride} and horizon {self.horizon} cannot "
                "be: length and stride are at least 1, the horizon at least 0"
            )
        if self.short not in ("drop", "pad", "error"):
            raise ConfigError(f"short={self.short!r} is not known; use 'drop', 'pad' or 'error'")
        whole = isinstance(self.phase, (int, np.integer)) and not isinstance(self.phase, bool)
        if self.phase != "random" and not (whole and self.phase >= 0):
            raise ConfigError(f"phase={self.phase!r} is not known; use a number of obs from 0, or 'random'")
        if whole:
            object.__setattr__(self, "phase", int(self.phase))
        most = max(self.span, self.stride, int(self.phase) if whole else 0)
        if most > MOST:
            raise ConfigError(
                f"a window of {most} obs or steps of as many fit into no store; give 2**60 at most"
            )

    @property
    def span(self) -> int:
        """Obs from a window's first to the last of its horizon."""
        return self.length + self.horizon


@dataclass(frozen=True, slots=True)
class WindowPlaces:
    """Where windows are: int64 arrays of one length."""

    store: NDArray[np.int64]
    """Index of the store."""
    sequence: NDArray[np.int64]
    """Index of the sequence within its store."""
    start: NDArray[np.int64]
    """First obs of the window, absolute within its store."""
    room: NDArray[np.int64]
    """Obs from ``start`` to the end of the segment: what a padded window may read."""


class WindowIndex:
    """All windows of one or several stores, numbered from 0.

    Parameters
    ----------
    segments : segments, or sequence of segments
        Those of each store (see :class:`chunkstore.segments.Segments`).
    spec : WindowSpec
        The shape of a window.
    offsets : int64 array, optional
        Obs before the first start of each segment, for a phase that differs from one to the next.

    Raises
    ------
    ConfigError
        If ``short="error"`` and a segment is too short; the message says how many and how short.

    Notes
    -----
    With ``phase="random"`` a segment of ``n`` obs has ``max(1, (n - span) // stride)`` windows, one
    fewer than there would be room for at phase 0 at most, so that every phase has the same number
    and an epoch's length does not change from one to the next.

    Examples
    --------
    >>> from chunkstore.segments import cut_segments
    >>> index = WindowIndex(cut_segments(np.array([0, 5, 7, 12])), WindowSpec(4))
    >>> index.n_windows
    4
    >>> index.locate([0, 1, 2, 3]).start
    array([0, 1, 7, 8])
    >>> index.ids_of([0, 0], [8, 9])  # 9 is no start: its window would cross the end
    array([ 3, -1])
    """

    def __init__(
        self,
        segments: SegmentArrays | Sequence[SegmentArrays],
        spec: WindowSpec,
        *,
        offsets: NDArray[np.int64] | None = None,
    ) -> None:
        parts: Sequence[SegmentArrays] = [segments] if hasattr(segments, "start") else segments  # type: ignore[list-item]
        sizes = [len(p.start) for p in parts]
        store = np.repeat(np.arange(len(parts), dtype=np.int64), sizes)
        sequence, start, stop = (
            np.concatenate([np.asarray(getattr(p, name), np.int64) for p in parts] or [np.empty(0, np.int64)])
            for name in ("sequence", "start", "stop")
        )
        length = stop - start
        span, stride = spec.span, spec.stride
        short = length < span
        if spec.short == "error" and short.any():
            raise ConfigError(
                f"{int(short.sum())} of {len(start)} segments are shorter than a window of {span} obs "
                f"(length {spec.length} + horizon {spec.horizon}), the shortest has {int(length.min())}; "
                "lower the window, or use short='drop' or short='pad'"
            )
        self.spec = spec
        if spec.phase == "random" and stride > 1:
            count = np.maximum(1, (length - span) // stride)
        elif spec.phase == "random":
            count = length - span + 1
        else:
            count = (length - span - int(spec.phase)) // stride + 1
        count = np.where(short, np.int64(spec.short == "pad"), np.maximum(count, 0))
        count = np.where(length > 0, count, 0)
        keep = count > 0
        self.n_segments_left_out = int(np.count_nonzero(~keep))
        self.store, self.sequence = store[keep], sequence[keep]
        self.start, self.stop = start[keep], stop[keep]
        self.count = count[keep]
        self._padded = short[keep]
        if offsets is None:
            phase = 0 if spec.phase == "random" else int(spec.phase)
            self.offset = np.where(self._padded, np.int64(0), np.int64(phase))
        else:
            self.offset = np.asarray(offsets, np.int64)
        self.first = np.concatenate([[0], np.cumsum(self.count)]).astype(np.int64)
        # one axis for all stores, one free place between two: a store's base plus its obs
        ends = np.zeros(len(parts) + 1, np.int64)
        for at, part in enumerate(parts):
            ends[at + 1] = ends[at] + (int(part.stop[-1]) if len(part.stop) else 0) + 1
        self._base = ends
        self._axis = self.start + ends[self.store] if len(self.store) else self.start

    @property
    def n_windows(self) -> int:
        """Number of windows."""
        return int(self.first[-1])

    @property
    def n_stores(self) -> int:
        """Number of stores."""
        return len(self._base) - 1

    def with_phase(self, keys: NDArray[np.uint64]) -> WindowIndex:
        """Return the index of an epoch: a phase for each segment, drawn by one 64-bit key each.

        Ids and their number stay; only where windows start differs. Itself where the phase is fixed.
        """
        if self.spec.phase != "random" or self.spec.stride == 1:
            return self
        room = np.minimum(self.stop - self.start - self.spec.span + 1, self.spec.stride)
        drawn = ((keys >> np.uint64(32)) * np.maximum(room, 1).astype(np.uint64)) >> np.uint64(32)
        index = object.__new__(WindowIndex)
        index.__dict__.update(self.__dict__)
        index.offset = np.where(self._padded, np.int64(0), drawn.astype(np.int64))
        return index

    def locate(self, ids: ArrayLike) -> WindowPlaces:
        """Return where windows are.

        Parameters
        ----------
        ids : array of int
            Each in ``range(n_windows)``.

        Returns
        -------
        WindowPlaces
            Store, sequence, start and room of each.
        """
        ids = whole_numbers("window ids", ids)
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= self.n_windows):
            raise IndexError(f"window ids {ids.min()} to {ids.max()} are not all in range({self.n_windows})")
        at = self.segment_of(ids)
        start = self.start[at] + self.offset[at] + (ids - self.first[at]) * self.spec.stride
        return WindowPlaces(self.store[at], self.sequence[at], start, self.stop[at] - start)

    def segment_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index (among segments that have windows) of the segment of each window."""
        return np.searchsorted(self.first, ids, side="right") - 1

    def ids_of(self, store: ArrayLike, start: ArrayLike) -> NDArray[np.int64]:
        """Return the ids of the windows that start there, -1 where none does; int64, same shape."""
        store, start = np.broadcast_arrays(whole_numbers("store", store), whole_numbers("start", start))
        if not len(self.start):
            return np.full(start.shape, -1, np.int64)
        at = self._segment_at(store, start)
        safe = np.maximum(at, 0)
        ahead = start - self.start[safe] - self.offset[safe]
        nth = ahead // self.spec.stride
        good = (at >= 0) & (self.store[safe] == store) & (ahead >= 0) & (nth * self.spec.stride == ahead)
        good &= nth < self.count[safe]
        return np.where(good, self.first[safe] + nth, -1)

    def count_before(self, store: ArrayLike, obs: ArrayLike) -> NDArray[np.int64]:
        """Return how many windows start before ``obs`` of ``store``: the id of the first that does not."""
        store, obs = np.broadcast_arrays(whole_numbers("store", store), whole_numbers("obs", obs))
        if not len(self.start):
            return np.zeros(obs.shape, np.int64)
        at = self._segment_at(store, obs - 1)
        safe = np.maximum(at, 0)
        ahead = obs - self.start[safe] - self.offset[safe]
        within = np.clip(-(-ahead // self.spec.stride), 0, self.count[safe])
        within = np.where(self.store[safe] == store, within, self.count[safe])
        return np.where(at >= 0, self.first[safe] + within, 0)

    def _segment_at(self, store: NDArray[np.int64], obs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the last segment that begins at or before ``obs`` of ``store``; -1 if none does."""
        axis = self._base[store] + np.minimum(obs, self._base[store + 1] - self._base[store] - 1)
        at: NDArray[np.int64] = np.searchsorted(self._axis, axis, side="right") - 1
        return at

    def sequence_ranges(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (store, sequence, first id, number of windows) of each sequence that has windows."""
        if not len(self.store):
            empty = np.empty(0, np.int64)
            return empty, empty, empty, empty
        new = np.concatenate([[True], (np.diff(self.store) != 0) | (np.diff(self.sequence) != 0)])
        at = np.flatnonzero(new)
        first = self.first[at]
        return self.store[at], self.sequence[at], first, np.diff(np.append(first, self.n_windows))


def with_horizon(spec: WindowSpec, horizon: int) -> WindowSpec:
    """Return ``spec`` with a horizon of at least ``horizon`` obs."""
    return spec if horizon <= spec.horizon else replace(spec, horizon=horizon)

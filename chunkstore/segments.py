"""Segments: the stretches of ``obs`` in which windows may live.

A segment is what is left of a sequence once gaps are cut out and a split has chosen its part.
Pure: int64 arrays in, int64 arrays out, all work vectorised over sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chunkstore.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Segments", "check_ranges", "cut_segments"]


@dataclass(frozen=True)
class Segments:
    """Int64 arrays of one length: ``start`` ascending, no overlap, never across a border.

    Examples
    --------
    >>> segments = cut_segments(np.array([0, 5, 8]), gaps=np.array([[2, 3]]))
    >>> segments.sequence, segments.start, segments.stop
    (array([0, 0, 1]), array([0, 3, 5]), array([2, 5, 8]))
    """

    sequence: NDArray[np.int64]
    """Index of the sequence of each segment."""
    start: NDArray[np.int64]
    """First obs, absolute."""
    stop: NDArray[np.int64]
    """One past the last obs, absolute."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def n_obs(self) -> int:
        """Obs in all segments together."""
        return int((self.stop - self.start).sum())


def check_ranges(ranges: NDArray[np.int64], n_obs: int, what: str) -> None:
    """Refuse half-open ranges that are empty, overlap, are out of order or leave [0, n_obs).

    Raises
    ------
    FormatError
        If they do; the message names the first that does.
    """
    if not len(ranges):
        return
    start, stop = ranges[:, 0], ranges[:, 1]
    bad = (start >= stop) | (start < 0) | (stop > n_obs)
    bad[1:] |= start[1:] < stop[:-1]
    if bad.any():
        at = int(np.argmax(bad))
        raise FormatError(
            f"{what} {at} is [{start[at]}, {stop[at]}): these must be ascending, apart, not empty, "
            f"and inside [0, {n_obs})"
        )


def cut_segments(
    offsets: NDArray[np.int64],
    *,
    gaps: NDArray[np.int64] | None = None,
    ranges: NDArray[np.int64] | None = None,
) -> Segments:
    """Cut sequences at gaps and keep what lies in ``ranges``.

    Parameters
    ----------
    offsets : int64[S + 1]
        Where each sequence starts, and the end of the last.
    gaps : int64[G, 2], optional
        Half-open ranges that no segment touches, ascending and apart.
    ranges : int64[R, 2], optional
        Half-open ranges to keep, ascending and apart; everything by default.

    Returns
    -------
    Segments
        In the order of ``obs``; stretches without obs are left out.
    """
    offsets = np.asarray(offsets, dtype=np.int64)
    n_obs = int(offsets[-1])
    cuts = [offsets]
    if gaps is not None and len(gaps):
        cuts.append(np.asarray(gaps, dtype=np.int64).reshape(-1))
    if ranges is not None:
        cuts.append(np.asarray(ranges, dtype=np.int64).reshape(-1))
    edges = np.sort(np.concatenate(cuts), kind="stable") if len(cuts) > 1 else offsets
    edges = edges[np.concatenate([[True], edges[1:] != edges[:-1]])]
    edges = edges[(edges >= 0) & (edges <= n_obs)]
    start, stop = edges[:-1], edges[1:]
    keep = np.ones(len(start), dtype=bool)
    if gaps is not None and len(gaps):
        keep &= ~_inside(start, np.asarray(gaps, dtype=np.int64))
    if ranges is not None:
        keep &= _inside(start, np.asarray(ranges, dtype=np.int64).reshape(-1, 2))
    start, stop = start[keep], stop[keep]
    sequence = np.searchsorted(offsets, start, side="right") - 1
    if ranges is not None and len(start):  # neighbouring ranges of one split do not cut each other
        joined = (start[1:] == stop[:-1]) & (sequence[1:] == sequence[:-1])
        first = np.concatenate([[True], ~joined])
        last = np.concatenate([~joined, [True]])
        start, stop, sequence = start[first], stop[last], sequence[first]
    return Segments(sequence.astype(np.int64), start, stop)


def _inside(obs: NDArray[np.int64], ranges: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each obs lies in one of the ranges, which are ascending and apart."""
    if not len(ranges):
        return np.zeros(len(obs), dtype=bool)
    at = np.searchsorted(ranges[:, 0], obs, side="right") - 1
    found: NDArray[np.bool_] = (at >= 0) & (obs < ranges[np.maximum(at, 0), 1])
    return found

"""Grouping: where each row of some batches goes, so that the rows of one key stand together.

A counting sort, which keeps the order of the rows of a key, in compiled code with the interpreter's lock
free. Values move once, batch by batch, straight to their place. What rows mean is decided in
:mod:`ingest.stage`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.compiled import njit
from chunkstore.moments import fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Grouping", "group"]

#: slices up to which each is sorted for itself, which gains where it is almost in order
FEW_SLICES = 256


@njit(cache=True, nogil=True)
def _count(codes: Any, counts: Any) -> None:
    for code in codes:
        counts[code] += 1


@njit(cache=True, nogil=True)
def _place(codes: Any, cursor: Any, places: Any) -> None:
    for i in range(codes.size):
        at = cursor[codes[i]]
        places[i] = at
        cursor[codes[i]] = at + 1


@njit(cache=True, nogil=True)
def _scatter(values: Any, places: Any, out: Any) -> None:
    for i in range(places.size):
        out[places[i]] = values[i]


@dataclass
class Grouping:
    """Where the rows of some batches go."""

    keys: np.ndarray
    """int64[k]: key of each slice, in their order."""
    rows: np.ndarray
    """int64[k]: rows of each slice, more than none."""
    sizes: list[int]
    """Rows of each batch."""
    places: list[np.ndarray | int]
    """Of each batch: int32[n] with the place of each row, or that of the first if they stay together."""
    moved: bool
    """Whether any row leaves its place."""

    def gather(self, pieces: Sequence[np.ndarray], out: np.ndarray) -> np.ndarray:
        """Copy a column, one piece a batch, to where its rows belong in ``out``, and return that.

        Examples
        --------
        >>> found = group([(np.array([1, 0, 1], np.int32), 3), (0, 2)], np.array([0, 1]))
        >>> found.gather([np.array([10, 20, 30]), np.array([40, 50])], np.empty(5, int)).tolist()
        [20, 40, 50, 10, 30]
        """
        for values, places in zip(pieces, self.places, strict=True):
            if isinstance(places, int):
                out[places : places + len(values)] = values
            elif out.ndim == 1:
                same = values if values.dtype == out.dtype else values.astype(out.dtype)
                width = f"u{out.dtype.itemsize}"
                _scatter(fixed(same).view(width), places, out.view(width))
            else:
                out[places] = values
        return out

    def ungather(self, values: np.ndarray) -> list[np.ndarray]:
        """Return a column as batches again: what :meth:`gather` makes ``values`` of.

        Examples
        --------
        >>> found = group([(np.array([1, 0, 1], np.int32), 3), (0, 2)], np.array([0, 1]))
        >>> [piece.tolist() for piece in found.ungather(np.array([20, 40, 50, 10, 30]))]
        [[10, 20, 30], [40, 50]]
        """
        pairs = zip(self.places, self.sizes, strict=True)
        return [values[at : at + n] if isinstance(at, int) else values[at] for at, n in pairs]

    def sort(self, times: np.ndarray) -> np.ndarray | None:
        """Sort the rows of each slice by time, rows of one time in their order.

        Parameters
        ----------
        times : array[n]
            Gathered as the rows stand now.

        Returns
        -------
        array[n] or None
            The times sorted; None where they were, and nothing moved.

        Examples
        --------
        >>> found = group([(np.array([1, 0, 1, 0], np.int32), 4)], np.array([0, 1]))
        >>> found.sort(found.gather([np.array([7, 3, 5, 2])], np.empty(4, int))).tolist()
        [2, 3, 5, 7]
        >>> found.places
        [array([3, 1, 2, 0], dtype=int32)]
        """
        ends = np.cumsum(self.rows)
        back = _backward(times)
        back[ends[:-1] - 1] = False
        if not back.any():
            return None
        if self.rows.size > FEW_SLICES:
            order = np.lexsort((times, np.repeat(np.arange(self.rows.size), self.rows)))
        else:
            order = np.arange(times.size)
            for low, high in zip((ends - self.rows).tolist(), ends.tolist(), strict=True):
                if back[low : high - 1].any():
                    order[low:high] = low + np.argsort(times[low:high], kind="stable")
        moved = np.empty(times.size, np.int32)
        moved[order] = np.arange(times.size, dtype=np.int32)
        for i, (places, n) in enumerate(zip(self.places, self.sizes, strict=True)):
            self.places[i] = moved[places : places + n] if isinstance(places, int) else moved[places]
        self.moved = True
        return times[order]


def _backward(times: np.ndarray) -> np.ndarray:
    """Whether each but the first is to come before its neighbour when sorted: NaN stand last."""
    back: np.ndarray = times[1:] < times[:-1]
    if times.dtype.kind == "f":
        none = np.isnan(times)
        if none.any():
            back |= none[:-1] & ~none[1:]
    return back


def group(codes: Sequence[tuple[np.ndarray | int, int]], rank: np.ndarray) -> Grouping:
    """Put the rows of some batches in the order of their keys.

    Parameters
    ----------
    codes : sequence of (int32[n] or int, n)
        Of each batch the key of each row, or the one of all, and its rows.
    rank : int64[keys]
        Place of each key in the order of all.

    Examples
    --------
    >>> found = group([(np.array([1, 0, 1], np.int32), 3), (0, 2)], np.array([1, 0]))
    >>> found.keys.tolist(), found.rows.tolist(), found.places
    ([1, 0], [2, 3], [array([0, 2, 1], dtype=int32), 3])
    """
    counts = np.zeros(rank.size, np.int64)
    for code, n in codes:
        if isinstance(code, int):
            counts[code] += n
        else:
            _count(fixed(code), counts)
    by_rank = np.empty_like(rank)
    by_rank[rank] = np.arange(rank.size)
    keys = by_rank[counts[by_rank] > 0]
    rows = counts[keys]
    cursor = np.zeros(rank.size, np.int64)
    cursor[keys] = np.cumsum(rows) - rows
    found: list[np.ndarray | int] = []
    at, moved = 0, False
    for code, n in codes:
        one = int(keys[0]) if keys.size == 1 else code
        if isinstance(one, int):
            place = int(cursor[one])
            cursor[one] += n
            found.append(place)
            moved |= place != at
        else:
            places = np.empty(n, np.int32)
            _place(fixed(one), cursor, places)
            found.append(places)
            moved = True
        at += n
    return Grouping(keys, rows, [n for _, n in codes], found, moved)

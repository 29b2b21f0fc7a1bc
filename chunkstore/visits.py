"""Visits of blocks: which parts of which blocks are visited, in which keyed random order.

- A block of n items has ``P * n / usual`` visits, so that small ones are not read P times for a handful of
  windows each; its visits stand in different passes.
- Short visits (blocks of a few items) are nested in long ones, at even distances: however many there are,
  a lane never plays them in a row. The long block stays where it is meanwhile (:func:`_nest`)::

      |aaaaa|b|aaaaaa|c|aaaaa|eeeee|f|eeeee

- The order is random among visits of like size, and even across sizes.

Which lane plays which visit, and when, is left to :mod:`chunkstore.dealing`. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chunkstore.permute import derive_key, mix_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Visits", "integers", "plan_visits"]

FUZZ = 0.3  # sizes within 30 % count as alike
GOLDEN = 0.6180339887498949
SHORT = 8  # a short visit has at most this part of the usual items,
NESTED = 4  # and all short ones together have at most this part of all items


class Visits(NamedTuple):
    """Visits in the order in which they are dealt, perhaps with others nested in them: arrays of integers.

    Visit v is the parts ``whole[v]`` to ``whole[v + 1]``, played one after the other; the first is its own.
    """

    block: NDArray[Any]
    """The block of each part."""
    rank: NDArray[Any]
    """First of the block's items, in the block's own random order."""
    items: NDArray[Any]
    """How many of them."""
    whole: NDArray[Any]
    """First part of each visit."""


def plan_visits(counts: NDArray[np.int64], key: int, passes: int, lanes: int) -> Visits:
    """Return all visits of an epoch, pass after pass, in keyed random order.

    A block of n items has ``P * n / usual`` visits (at least one, at most P), so that small blocks are
    not read P times for a handful of windows each. At least two visits a lane where items suffice.

    Parameters
    ----------
    counts : int64 array
        Items of each block.
    key : int
        64-bit key of the epoch.
    passes, lanes : int
        P, and the number of lanes.

    Examples
    --------
    >>> visits = plan_visits(np.array([4, 4, 2]), key=1, passes=2, lanes=1)
    >>> sorted(zip(visits.block.tolist(), visits.rank.tolist(), visits.items.tolist()))
    [(0, 0, 2), (0, 2, 2), (1, 0, 2), (1, 2, 2), (2, 0, 2)]
    """
    blocks = np.flatnonzero(counts)
    n = counts[blocks]
    if not len(n):
        empty = np.empty(0, np.int64)
        return Visits(empty, empty, empty, empty)
    total = int(n.sum())
    usual = float((n.astype(np.float64) ** 2).sum() / total)
    if total < 2 * lanes * usual:
        passes = max(passes, min(math.ceil(2 * lanes * usual / total), total))
    each = np.clip(np.rint(passes * (n / usual)).astype(np.int64), 1, np.minimum(passes, n))
    # blocks of few visits have them in different passes; like sizes are shared evenly among passes
    kind = integers(len(counts), int(n.max()))
    shift = np.zeros(len(n), np.int64)
    if passes > 1:
        shift[np.lexsort((mix_keys(key, blocks), n))] = np.arange(len(n)) % passes
    parts = []
    for p in range(passes):
        turn = (p + shift) % passes
        nth = turn * each // passes
        due = np.flatnonzero((turn + 1) * each // passes > nth)
        due = due[_even_order(n[due] / each[due], mix_keys(derive_key(key, p), blocks[due]))]
        low = nth[due] * n[due] // each[due]
        high = (nth[due] + 1) * n[due] // each[due]
        *made, opens = _nest(blocks[due], low, high - low, derive_key(key, "nest", p))
        parts.append((*(column.astype(kind) for column in made), opens))
    block, rank, items, opens = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Visits(block, rank, items, np.flatnonzero(opens).astype(integers(len(opens))))


def integers(*most: int) -> type[np.int32 | np.int64]:
    """Return the shorter type that holds all of some numbers."""
    return np.int32 if max(most) < 2**31 else np.int64


def _nest(
    block: NDArray[np.int64], rank: NDArray[np.int64], items: NDArray[np.int64], key: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the visits of a pass as (block, rank, items, whether a visit begins), short ones nested in long.

    Long visits are laid end to end, short ones put in at equal distances, in keyed random order.
    """
    n = len(items)
    total = int(items.sum())
    usual = float((items.astype(np.float64) ** 2).sum()) / max(1, total)
    if n == 0 or int(items.min()) * SHORT > usual:
        return block, rank, items, np.ones(n, bool)
    by_size = np.argsort(items, kind="stable")
    sizes = items[by_size]
    fit = (np.cumsum(sizes) * NESTED <= total) & (sizes * SHORT <= usual)
    n_short = int(np.count_nonzero(fit))
    if n_short == 0:
        return block, rank, items, np.ones(n, bool)
    short = by_size[:n_short]
    noise = mix_keys(key, block[short])
    short = short[np.argsort(noise, kind="stable")]
    shift = float(noise[0] >> np.uint64(11)) * 2.0**-53
    is_long = np.ones(n, bool)
    is_long[short] = False
    own = np.flatnonzero(is_long)
    edges = np.concatenate([[0], np.cumsum(items[own])])
    place = ((np.arange(n_short) + shift) * (edges[-1] / n_short)).astype(np.int64)
    host = np.clip(np.searchsorted(edges, place, side="right") - 1, 0, len(own) - 1)
    place = np.clip(place, edges[host] + 1, np.maximum(edges[host + 1] - 1, edges[host] + 1))
    # what is played: pieces of long visits, cut at the places, and short ones between them
    cuts = np.unique(np.concatenate([edges[:-1], place]))
    cuts = cuts[cuts < edges[-1]]
    length = np.diff(np.append(cuts, edges[-1]))
    of = np.searchsorted(edges, cuts, side="right") - 1
    at = np.concatenate([cuts, place])
    late = np.concatenate(
        [np.ones(len(cuts), np.int64), np.zeros(n_short, np.int64)]
    )  # a cut is behind its short
    order = np.lexsort((late, at))
    return (
        np.concatenate([block[own[of]], block[short]])[order],
        np.concatenate([rank[own[of]] + cuts - edges[of], rank[short]])[order],
        np.concatenate([length, items[short]])[order],
        np.concatenate([cuts == edges[of], np.zeros(n_short, bool)])[order],
    )


def _even_order(size: NDArray[np.float64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return a keyed random order in which every stretch holds small and large visits alike.

    Visits are sorted by size (made fuzzy, ties broken by key), and the i-th is put at the fractional
    part of ``i * golden ratio``. Where all sizes are equal that is a random order like any other.
    """
    noise = (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53
    if len(size) < 2 or float(size.min()) == float(size.max()):
        return np.argsort(noise, kind="stable")
    ranked = np.argsort(size * (1 + FUZZ * noise) + 1e-9 * noise, kind="stable")
    place = np.empty(len(size))
    place[ranked] = (float(noise[ranked[0]]) + np.arange(len(size)) * GOLDEN) % 1.0
    return np.argsort(place, kind="stable")

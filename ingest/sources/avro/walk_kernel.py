"""The compiled inner loop of the walk over block headers (see ``container``)."""

# ruff: noqa: PLR0917 - compiled code takes many plain arguments
from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from chunkstore.compiled import njit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DONE",
    "FULL",
    "NEED",
    "NEGATIVE",
    "SYNC",
    "TRUNCATED",
    "VARINT",
    "inlined",
    "jit",
    "walk_window",
]

DONE, NEED, FULL, VARINT, NEGATIVE, TRUNCATED, SYNC = range(7)


def jit(function: Callable[..., Any], *, inline: bool = False) -> Callable[..., Any]:
    """Compile with numba: GIL released, kept on disk where there is a place for it."""
    return cast("Callable[..., Any]", njit(nogil=True, cache=True, forceinline=inline)(function))


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile into the callers: arrays are not handed over one by one."""
    return jit(function, inline=True)


@jit
def walk_window(
    window: np.ndarray,
    base: int,
    state: np.ndarray,
    stop: int,
    total: int,
    sync: np.ndarray,
    heads: np.ndarray,
    payloads: np.ndarray,
    counts: np.ndarray,
    sizes: np.ndarray,
) -> int:
    """Follow block headers as far as one window of the file reaches.

    Parameters
    ----------
    window : uint8[n]
        Bytes of the file from offset ``base``.
    state : int64[6]
        In and out: offset of the next header, blocks found, then for a block whose sync marker is
        still to be checked: 1, payload offset, count, size.
    stop, total : int
        Where to stop, and the size of the file.
    sync : uint8[16]
    heads, payloads, counts, sizes : int64[capacity]
        Out: blocks with a good marker.

    Returns
    -------
    int
        DONE, NEED (more bytes at the offset in state[0] or, with state[2] set, at the marker), FULL, or
        what is wrong with the block at state[0].
    """
    end = base + window.size
    while True:
        head = state[0]
        if state[2] == 0:
            if head >= stop:
                return DONE
            at = head
            for which in range(2):
                value = np.uint64(0)
                shift = np.uint64(0)
                length = 0
                while True:
                    if at >= end or at < base:
                        if at >= total:
                            return TRUNCATED
                        return NEED
                    byte = np.uint64(window[at - base])
                    at += 1
                    length += 1
                    if length == 10 and byte > np.uint64(1):
                        return VARINT
                    value |= (byte & np.uint64(127)) << shift
                    if byte < np.uint64(128):
                        break
                    shift += np.uint64(7)
                number = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
                if which == 0:
                    state[4] = number
                else:
                    state[5] = number
            if state[4] < 0 or state[5] < 0:
                return NEGATIVE
            state[3] = at
            if state[5] > total - at - 16:
                return TRUNCATED
            state[2] = 1
        marker = state[3] + state[5]
        if marker < base or marker + 16 > end:
            return NEED
        for i in range(16):
            if window[marker - base + i] != sync[i]:
                return SYNC
        n = state[1]
        if n >= heads.size:
            return FULL
        heads[n] = head
        payloads[n] = state[3]
        counts[n] = state[4]
        sizes[n] = state[5]
        state[1] = n + 1
        state[0] = marker + 16
        state[2] = 0

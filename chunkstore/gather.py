"""Cutting windows out of an arena: one compiled copy a batch and field, conversion and padding fused.

Decides nothing: positions in, values out. The loops run without the interpreter's lock, so that they
go on while other threads decode or schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.compiled import njit
from chunkstore.rows import BLOCK, ROOM, START

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkstore.rows import Rows

__all__ = ["cut_rows", "cut_windows", "places_of"]


@njit(cache=True, nogil=True)
def _scalar_first(arena: Any, at: Any, valid: Any, out: Any, channel: Any, scale: Any) -> None:  # noqa: PLR0917 - a compiled kernel
    """``scale`` is a number, or None for a copy: compiled once for each."""
    width = out.shape[2]
    for b in range(at.size):
        start, n = at[b], min(valid[b], width)
        source, row = arena[start : start + n], out[b, channel]
        if scale is None:
            for w in range(n):
                row[w] = source[w]
        else:
            for w in range(n):
                row[w] = source[w] * scale
        for w in range(n, width):
            row[w] = 0


@njit(cache=True, nogil=True)
def _scalars_first(stack: Any, which: Any, at: Any, valid: Any, out: Any) -> None:
    width = out.shape[2]
    for b in range(at.size):
        start, n = at[b], min(valid[b], width)
        for c in range(which.size):
            source, row = stack[which[c], start : start + n], out[b, c]
            for w in range(n):
                row[w] = source[w]
            for w in range(n, width):
                row[w] = 0


@njit(cache=True, nogil=True)
def _scalars_last(stack: Any, which: Any, at: Any, valid: Any, out: Any) -> None:
    """Four fields in one pass: what is written lies together."""
    width = out.shape[1]
    for b in range(at.size):
        start, n = at[b], min(valid[b], width)
        rows = out[b]
        c = 0
        while c + 4 <= which.size:
            one, two = stack[which[c], start : start + n], stack[which[c + 1], start : start + n]
            three, four = stack[which[c + 2], start : start + n], stack[which[c + 3], start : start + n]
            for w in range(n):
                rows[w, c] = one[w]
                rows[w, c + 1] = two[w]
                rows[w, c + 2] = three[w]
                rows[w, c + 3] = four[w]
            c += 4
        while c < which.size:
            one = stack[which[c], start : start + n]
            for w in range(n):
                rows[w, c] = one[w]
            c += 1
        for w in range(n, width):
            for i in range(which.size):
                rows[w, i] = 0


@njit(cache=True, nogil=True)
def _vector_first(arena: Any, at: Any, valid: Any, out: Any, channel: Any, scale: Any) -> None:  # noqa: PLR0917 - a compiled kernel
    width = out.shape[2]
    for b in range(at.size):
        start, n = at[b], min(valid[b], width)
        source = arena[start : start + n]
        for i in range(arena.shape[1]):
            row = out[b, channel + i]
            for w in range(n):
                row[w] = source[w, i] * scale
            for w in range(n, width):
                row[w] = 0


# vectors of 2, 3 and 4 items, channels first: a distance known to the compiler takes them apart in registers


@njit(cache=True, nogil=True)
def _pairs_first(arena: Any, at: Any, valid: Any, out: Any, channel: Any, scale: Any) -> None:  # noqa: PLR0917 - a compiled kernel
    width = out.shape[2]
    for b in range(at.size):
        start, n = at[b], min(valid[b], width)
        source = arena[start : start + n].reshape(-1)
        one = out[b, channel, :n]
        two = out[b, channel + 1, :n]
        for w in range(n):
            one[w] = source[2 * w] * scale
            two[w] = source[2 * w + 1] * scale
        out[b, channel : channel + 2, n:] = 0


@njit(cache=True, nogil=True)
def _triples_first(arena: Any, at: Any, valid: Any, out: Any, channel: Any, scale: Any) -> None:  # noqa: PLR0917 - a compiled kernel
    width = out.shape[2]
    for b in range(at.size):
        start, n = at[b], min(valid[b], width)
        source = arena[start : start + n].reshape(-1)
        one = out[b, channel, :n]
        two = out[b, channel + 1, :n]
        three = out[b, channel + 2, :n]
        for w in range(n):
            one[w] = source[3 * w] * scale
            two[w] = source[3 * w + 1] * scale
            three[w] = source[3 * w + 2] * scale
        out[b, channel : channel + 3, n:] = 0


@njit(cache=True, nogil=True)
def _fours_first(arena: Any, at: Any, valid: Any, out: Any, channel: Any, scale: Any) -> None:  # noqa: PLR0917 - a compiled kernel
    width = out.shape[2]
    for b in range(at.size):
        start, n = at[b], min(valid[b], width)
        source = arena[start : start + n].reshape(-1)
        one = out[b, channel, :n]
        two = out[b, channel + 1, :n]
        three = out[b, channel + 2, :n]
        four = out[b, channel + 3, :n]
        for w in range(n):
            one[w] = source[4 * w] * scale
            two[w] = source[4 * w + 1] * scale
            three[w] = source[4 * w + 2] * scale
            four[w] = source[4 * w + 3] * scale
        out[b, channel : channel + 4, n:] = 0


@njit(cache=True, nogil=True)
def _scalar_last(arena: Any, at: Any, valid: Any, out: Any, channel: Any, scale: Any) -> None:  # noqa: PLR0917 - a compiled kernel
    width = out.shape[1]
    for b in range(at.size):
        start, n = at[b], min(valid[b], width)
        source, rows = arena[start : start + n], out[b]
        for w in range(n):
            rows[w, channel] = source[w] * scale
        for w in range(n, width):
            rows[w, channel] = 0


@njit(cache=True, nogil=True)
def _vector_last(arena: Any, at: Any, valid: Any, out: Any, channel: Any, scale: Any) -> None:  # noqa: PLR0917 - a compiled kernel
    width = out.shape[1]
    items = arena.shape[1]
    for b in range(at.size):
        start, n = at[b], min(valid[b], width)
        source, rows = arena[start : start + n], out[b]
        for w in range(n):
            for i in range(items):
                rows[w, channel + i] = source[w, i] * scale
        for w in range(n, width):
            for i in range(items):
                rows[w, channel + i] = 0


@njit(cache=True, nogil=True)
def _vector_only(arena: Any, at: Any, valid: Any, out: Any) -> None:
    """One vector field alone, channels last, no conversion: each window is one run of memory."""
    width = out.shape[1]
    items = arena.shape[1]
    flat = arena.reshape(-1)
    for b in range(at.size):
        start, n = at[b] * items, min(valid[b], width) * items
        row, source = out[b].reshape(-1), flat[start : start + n]
        for w in range(n):
            row[w] = source[w]
        for w in range(n, width * items):
            row[w] = 0


_VECTORS_FIRST = {2: _pairs_first, 3: _triples_first, 4: _fours_first}


@njit(cache=True, nogil=True)
def _places(origin: Any, table: Any, low: Any, high: Any, offset: Any, width: Any) -> Any:  # noqa: PLR0917 - a compiled kernel
    at, valid = np.empty(high - low, np.int64), np.empty(high - low, np.int64)
    for i in range(high - low):
        at[i] = origin[table[BLOCK, low + i]] + table[START, low + i] + offset
        valid[i] = max(0, min(table[ROOM, low + i] - offset, width))
    return at, valid


@njit(cache=True, nogil=True)
def _rows_first(  # noqa: PLR0917 - a compiled kernel
    stack: Any, which: Any, origin: Any, table: Any, low: Any, high: Any, offset: Any, out: Any, row: Any
) -> None:
    at, valid = _places(origin, table, low, high, offset, out.shape[2])
    _scalars_first(stack, which, at, valid, out[row : row + high - low])


@njit(cache=True, nogil=True)
def _rows_last(  # noqa: PLR0917 - a compiled kernel
    stack: Any, which: Any, origin: Any, table: Any, low: Any, high: Any, offset: Any, out: Any, row: Any
) -> None:
    at, valid = _places(origin, table, low, high, offset, out.shape[1])
    _scalars_last(stack, which, at, valid, out[row : row + high - low])


def _half(*arrays: NDArray[Any]) -> bool:
    """Whether one of some arrays holds float16, of which compiled loops know nothing."""
    return any(a.dtype == np.float16 for a in arrays)


def _cut_halves(  # noqa: PLR0917 - as the kernels, from one place
    arena: NDArray[Any],
    at: NDArray[np.int64],
    valid: NDArray[np.int64],
    out: NDArray[Any],
    channel: int,
    factor: Any,
    *,
    channels_last: bool,
) -> None:
    """Copy windows as :func:`cut_windows` does, by numpy."""
    width, values = out.shape[1 if channels_last else 2], arena.reshape(len(arena), -1)
    steps = np.arange(width)
    inside = steps < valid[:, None]
    cut = values[np.where(inside, at[:, None] + steps, 0)].astype(out.dtype) * factor
    cut[~inside] = 0
    rows = out if channels_last else out.swapaxes(1, 2)
    rows[:, :, channel : channel + values.shape[1]] = cut


def places_of(
    origin: NDArray[np.int64], rows: Rows, offset: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where in the arena windows begin, and how many of their obs exist: int64[rows] each.

    Parameters
    ----------
    origin : int64[blocks]
        What is added to an obs of a block to find it in the arena.
    rows : Rows
        The windows.
    offset, width : int
        First obs of the cut, from the window's first on, and its length.
    """
    at, valid = _places(origin, rows.table, rows.low, rows.high, offset, width)
    return at, valid


def cut_rows(  # noqa: PLR0917 - once a batch: every argument by name costs
    stack: NDArray[Any],
    which: NDArray[np.int64],
    origin: NDArray[np.int64],
    rows: Rows,
    offset: int,
    out: NDArray[Any],
    row: int = 0,
    channels_last: bool = False,
) -> None:
    """Copy windows of several scalar fields of one dtype: places and values in one call.

    Parameters
    ----------
    stack : array[fields, obs]
        Resident values, C-contiguous.
    which : int64[channels]
        Row of ``stack`` of each channel.
    origin : int64[blocks]
        What is added to an obs of a block to find it in the arena.
    rows : Rows
        The windows.
    offset : int
        First obs of the cut, from the window's first on.
    out : array[batch, channels, width] or array[batch, width, channels]
        The batch, C-contiguous.
    row : int
        First row of ``out`` that is filled.
    channels_last : bool
        Which of the two shapes ``out`` has.

    Examples
    --------
    >>> from chunkstore.rows import Rows
    >>> table = np.zeros((7, 1), np.int64)
    >>> table[START], table[ROOM] = 1, 4
    >>> out, stack = np.empty((1, 2, 3), np.int64), np.arange(10).reshape(2, 5)
    >>> cut_rows(stack, np.array([1, 0]), np.array([0]), Rows(table, 0, 1), 0, out)
    >>> out.tolist()
    [[[6, 7, 8], [1, 2, 3]]]
    """
    if _half(stack, out):
        at, valid = places_of(origin, rows, offset, out.shape[1 if channels_last else 2])
        for channel, field in enumerate(which.tolist()):
            cut_windows(
                stack[field], at, valid, out[row : row + len(rows)], channel, channels_last=channels_last
            )
        return
    kernel = _rows_last if channels_last else _rows_first
    kernel(stack, which, origin, rows.table, rows.low, rows.high, offset, out, row)


def cut_windows(
    arena: NDArray[Any],
    at: NDArray[np.int64],
    valid: NDArray[np.int64],
    out: NDArray[Any],
    channel: int,
    *,
    channels_last: bool = False,
    scale: float | None = None,
) -> None:
    """Copy one field's windows into a batch.

    Parameters
    ----------
    arena : array[obs] or array[obs, items]
        Resident values of the field, C-contiguous.
    at : int64[batch]
        Where in the arena each window begins.
    valid : int64[batch]
        Obs of each window that exist; the rest is filled with 0.
    out : array[batch, channels, width] or array[batch, width, channels]
        The batch, C-contiguous; values are converted to its dtype.
    channel : int
        First channel that the field fills.
    channels_last : bool
        Which of the two shapes ``out`` has.
    scale : float, optional
        What each value is multiplied with.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((2, 1, 3), np.float32)
    >>> cut_windows(np.arange(10, dtype=np.int16), np.array([0, 8]), np.array([3, 2]), out, 0, scale=0.5)
    >>> out.tolist()
    [[[0.0, 0.5, 1.0]], [[4.0, 4.5, 0.0]]]
    """
    vector = arena.ndim == 2
    plain = scale is None
    factor = out.dtype.type(1 if scale is None else scale)
    if _half(arena, out):
        _cut_halves(arena, at, valid, out, channel, factor, channels_last=channels_last)
    elif not channels_last and not vector:
        _scalar_first(arena, at, valid, out, channel, None if plain else factor)
    elif not channels_last:
        _VECTORS_FIRST.get(arena.shape[1], _vector_first)(arena, at, valid, out, channel, factor)
    elif not vector:
        _scalar_last(arena, at, valid, out, channel, factor)
    elif plain and out.dtype == arena.dtype and out.shape[2] == arena.shape[1]:
        _vector_only(arena, at, valid, out)
    else:
        _vector_last(arena, at, valid, out, channel, factor)

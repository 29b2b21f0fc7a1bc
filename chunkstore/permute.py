"""Keyed permutations of ``range(n)``: random access, O(1) memory, thousands of values a call.

A permutation is a Feistel network over a grid of ``a x b`` cells, ``a`` and ``b`` near the square
root of ``n``, so that at most ``2 * sqrt(n)`` cells lie outside ``range(n)``: a value that lands
there walks on, which is rare. Eight rounds; four leave structure that a test can see. Nothing is
stored but ``n`` and a 64-bit key, so the same key gives the same order in every process.

Pure: integers and numpy. The loops are compiled by numba, without the interpreter's lock.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.compiled import njit
from chunkstore.errors import ConfigError
from chunkstore.numbers import whole_number, whole_numbers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["MAX_N", "TILE", "Permutation", "derive_key", "mix_keys", "permutation", "permute_tile", "tile"]

#: the largest domain of a permutation
MAX_N = 2**48
ROUND_PAIRS = 4  # eight rounds
TILE = 512  # values permuted side by side

_U32 = np.uint64(32)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)


@njit(cache=True, nogil=True, inline="always")
def _round(value: Any, key: Any, salt: Any, modulus: Any) -> Any:
    """Return a pseudo-random number below ``modulus`` (at most 2**24) from value, key and round."""
    z = (value + salt) ^ key
    z = z * _M1
    z = (z ^ (z >> _U32)) * _M2
    return ((z >> _U32) * modulus) >> _U32


@njit(cache=True, nogil=True)
def sides(n: Any) -> Any:
    """Return the sides (a, b) of the grid for ``n`` values: a * b >= n, both near its root."""
    a: Any = max(np.int64(math.sqrt(np.float64(n))), np.int64(1))
    while a * a < n:
        a += 1
    return np.uint64(a), np.uint64((n + a - 1) // a)


@njit(cache=True, nogil=True)
def permute_one(x: Any, n: Any, a: Any, b: Any, key: Any) -> Any:
    """Permute one value; everything uint64; (a, b) from :func:`sides`."""
    while True:
        left = x // b
        right = x - left * b
        salt = _STEP
        for _ in range(ROUND_PAIRS):
            left += _round(right, key, salt, a)
            if left >= a:
                left -= a
            salt += _STEP
            right += _round(left, key, salt, b)
            if right >= b:
                right -= b
            salt += _STEP
        x = left * b + right
        if x < n:
            return x


@njit(cache=True, nogil=True)
def _unpermute_one(x: Any, n: Any, a: Any, b: Any, key: Any) -> Any:
    while True:
        left = x // b
        right = x - left * b
        salt = _STEP * np.uint64(2 * ROUND_PAIRS)
        for _ in range(ROUND_PAIRS):
            step = _round(left, key, salt, b)
            right = right - step if right >= step else right + b - step
            salt -= _STEP
            step = _round(right, key, salt, a)
            left = left - step if left >= step else left + a - step
            salt -= _STEP
        x = left * b + right
        if x < n:
            return x


@njit(cache=True, nogil=True)
def tile() -> Any:
    """Return room for :func:`permute_tile`: rows (value, n, a, b, key) and two for its own use."""
    return np.empty((7, TILE), np.uint64)


@njit(cache=True, nogil=True)
def permute_tile(room: Any, m: Any) -> None:
    """Permute the first ``m`` values of a :func:`tile` in place, each as :func:`permute_one` does.

    Round after round over all of them, so that the processor works on several at a time.
    """
    x, n, a, b, key, left, right = room[0], room[1], room[2], room[3], room[4], room[5], room[6]
    for i in range(m):
        left[i] = x[i] // b[i]
        right[i] = x[i] - left[i] * b[i]
    salt = _STEP
    for _ in range(ROUND_PAIRS):
        for i in range(m):
            moved = left[i] + _round(right[i], key[i], salt, a[i])
            left[i] = moved - a[i] if moved >= a[i] else moved
        salt += _STEP
        for i in range(m):
            moved = right[i] + _round(left[i], key[i], salt, b[i])
            right[i] = moved - b[i] if moved >= b[i] else moved
        salt += _STEP
    for i in range(m):
        y = left[i] * b[i] + right[i]
        x[i] = y if y < n[i] else permute_one(y, n[i], a[i], b[i], key[i])


@njit(cache=True, nogil=True)
def _apply(x: Any, n: Any, key: Any, out: Any) -> None:
    a, b = sides(n)
    room = tile()
    room[1], room[2], room[3], room[4] = np.uint64(n), a, b, key
    for low in range(0, x.size, TILE):
        m = min(TILE, x.size - low)
        for i in range(m):
            room[0, i] = np.uint64(x[low + i])
        permute_tile(room, m)
        for i in range(m):
            out[low + i] = np.int64(room[0, i])


@njit(cache=True, nogil=True)
def _invert(x: Any, n: Any, key: Any, out: Any) -> None:
    a, b = sides(n)
    for i in range(x.size):
        out[i] = _unpermute_one(np.uint64(x[i]), np.uint64(n), a, b, key)


@njit(cache=True, nogil=True)
def _apply_many(x: Any, n: Any, key: Any, out: Any) -> None:
    last = np.int64(-1)
    a = _ONE
    b = _ONE
    room = tile()
    for low in range(0, x.size, TILE):
        m = min(TILE, x.size - low)
        for i in range(m):
            if n[low + i] != last:
                last = n[low + i]
                a, b = sides(last)
            room[0, i], room[1, i] = np.uint64(x[low + i]), np.uint64(last)
            room[2, i], room[3, i], room[4, i] = a, b, key[low + i]
        permute_tile(room, m)
        for i in range(m):
            out[low + i] = np.int64(room[0, i])


def derive_key(*parts: int | str) -> int:
    """Return a 64-bit key made of integers and words, the same in every process.

    Examples
    --------
    >>> derive_key(0, 1) == derive_key(0, 1), derive_key(0, 1) == derive_key(1, 0)
    (True, False)
    """
    text = "\x1f".join(f"{type(p).__name__[0]}{p}" for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix_keys(key: int, values: ArrayLike) -> NDArray[np.uint64]:
    """Return one 64-bit key for each of ``values`` (integers below 2**63), all from one key.

    Examples
    --------
    >>> len(set(mix_keys(7, range(1000)).tolist()))
    1000
    """
    z = np.asarray(values, np.int64).astype(np.uint64)
    z = (z + _ONE) * _STEP + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    return z ^ (z >> np.uint64(31))


def permute_many(x: NDArray[np.int64], n: NDArray[np.int64], key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Permute ``x[i]`` within ``range(n[i])`` under ``key[i]``, for every i; all of one length."""
    out = np.empty(x.shape, np.int64)
    _apply_many(x, n, key, out)
    return out


@dataclass(frozen=True, slots=True)
class Permutation:
    """A bijection of ``range(n)``; made by :func:`permutation`."""

    n: int
    """Number of values."""
    key: int
    """64-bit key."""

    def __call__(self, x: int) -> int:
        """Return the image of one value."""
        return int(self.apply([x])[0])

    def apply(self, x: ArrayLike) -> NDArray[np.int64]:
        """Return the images of an array of values, int64, of the same shape."""
        return self._run(_apply, x)

    def inverse(self, x: ArrayLike) -> NDArray[np.int64]:
        """Return what :meth:`apply` maps to ``x``, int64, of the same shape."""
        return self._run(_invert, x)

    def _run(self, kernel: Any, x: ArrayLike) -> NDArray[np.int64]:
        values = np.ascontiguousarray(whole_numbers("values", x))
        if values.size and (int(values.min()) < 0 or int(values.max()) >= self.n):
            raise IndexError(f"values {values.min()} to {values.max()} are not all within range({self.n})")
        out = np.empty(values.size, np.int64)
        kernel(values.ravel(), self.n, np.uint64(self.key), out)
        return out.reshape(values.shape)


def permutation(n: int, key: int | tuple[int | str, ...]) -> Permutation:
    """Return the keyed permutation of ``range(n)``.

    Parameters
    ----------
    n : int
        Number of values, 1 to 2**48.
    key : int or tuple
        An integer, or parts such as ``(seed, epoch, "blocks")`` to make one of.

    Raises
    ------
    ConfigError
        If ``n`` is outside its range, or a number is no whole one.

    Examples
    --------
    >>> p = permutation(5, key=(0, "demo"))
    >>> sorted(p.apply(range(5)).tolist())
    [0, 1, 2, 3, 4]
    >>> p.inverse(p.apply([3, 1, 4])).tolist()
    [3, 1, 4]
    """
    n = whole_number("n", n)
    if not 1 <= n <= MAX_N:
        raise ConfigError(f"a permutation has 1 to 2**48 values, got {n}")
    if isinstance(key, tuple):
        return Permutation(n, derive_key(*[p if isinstance(p, str) else whole_number("key", p) for p in key]))
    return Permutation(n, whole_number("key", key) % 2**64)

"""Whole numbers among arguments: what is none is refused, never cut down to one."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["whole_number", "whole_numbers"]


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return an argument as an int.

    Parameters
    ----------
    name : str
        What an error calls it.
    value : int
        Python's or numpy's.
    least : int, optional
        The smallest value that can be used.

    Raises
    ------
    ConfigError
        If it is no whole number (2.0, True and "2" are none), or less than ``least``.

    Examples
    --------
    >>> whole_number("stride", np.int16(3), 1)
    3
    >>> whole_number("stride", 2.5)
    Traceback (most recent call last):
    chunkstore.errors.ConfigError: stride must be a whole number, got 2.5
    """
    if isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be a whole number, got {value!r}") from None
    if least is not None and number < least:
        raise ConfigError(f"{name} must be {least} or more, got {number}")
    return number


def whole_numbers(name: str, values: Any, least: int | None = None) -> NDArray[np.int64]:
    """Return an argument of many whole numbers as an int64 array; the argument itself where it is one.

    Parameters
    ----------
    name : str
        What an error calls it.
    values : array of int
        An array, a sequence, a range, or one number.
    least : int, optional
        The smallest value that can be used.

    Raises
    ------
    ConfigError
        If one is no whole number of 64 bits, or less than ``least``.

    Examples
    --------
    >>> whole_numbers("draws", range(3)), whole_numbers("draws", [])
    (array([0, 1, 2]), array([], dtype=int64))
    >>> whole_numbers("draws", [0, 0.5])
    Traceback (most recent call last):
    chunkstore.errors.ConfigError: one of draws must be a whole number, got 0.5
    """
    found = np.asarray(values)
    if found.dtype != np.int64:
        kind = found.dtype.kind
        if kind == "O" or (kind not in "iu" and not isinstance(values, np.ndarray)):
            # one by one: tensors, or kinds that have nothing in common but a float
            each = [
                whole_number(f"one of {name}", v) for v in np.asarray(values, object).reshape(-1).tolist()
            ]
            found, kind = np.array(each, object).reshape(found.shape), "i"
        if found.size and (kind not in "iu" or not -(2**63) <= int(found.min()) <= int(found.max()) < 2**63):
            raise ConfigError(f"{name} must be whole numbers, got {values!r:.120}")
        found = found.astype(np.int64)
    if least is not None and found.size and int(found.min()) < least:
        raise ConfigError(f"{name} must be {least} or more, got {int(found.min())}")
    return found

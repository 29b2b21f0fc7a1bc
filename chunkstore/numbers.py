"""Whole numbers among arguments: what is none is refused, never cut down to one."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from chunkstore.errors import ConfigError

__all__ = ["whole_number"]


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

"""Compiling with numba, and keeping what was compiled on disk for as long as it is what the source says.

numba knows a function that it has kept by the file in which it stands. What the function takes from other
files, constants and other compiled functions, lies frozen in the machine code: after an upgrade that changes
those alone it would go on with the old ones. Here they are part of what a kept function is known by.
"""

from __future__ import annotations

import hashlib
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["njit"]

_OURS: Final = ("chunkstore", "ingest")
_CONSTANTS: Final = (bool, int, float, complex, str, bytes, np.generic)


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles; arguments as of ``numba.njit``.

    Where there is no folder to keep anything in, each process compiles anew.

    Examples
    --------
    >>> @njit(nogil=True)
    ... def twice(n):
    ...     return 2 * n
    >>> twice(21)
    42
    """

    def decorated(function: Callable[..., Any]) -> Any:
        try:
            made: Any = numba.njit(**options)(function)
        except RuntimeError:
            if not options.get("cache"):
                raise
            made = numba.njit(**{**options, "cache": False})(function)
        file = _kept_in(made)
        if file is not None:
            file._source_stamp = stamp_of(made)  # noqa: SLF001 - nothing public tells what is fresh
        return made

    return decorated


def _kept_in(made: Any) -> Any:
    """Return where numba looks for a function that it has kept; None where it keeps none."""
    file = getattr(getattr(made, "_cache", None), "_cache_file", None)
    return file if hasattr(file, "_source_stamp") else None


def stamp_of(made: Any) -> bytes:
    """Return what a compiled function is known by: its file, and what it takes from others.

    Names that are not there yet are set further down in the same file, which counts as a whole.
    """
    told = [repr(getattr(_kept_in(made), "_source_stamp", None))]
    names = sorted(_names(made.py_func.__code__))
    for name in names:
        value = made.py_func.__globals__.get(name)
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in _OURS:
            told += [_told(f"{name}.{inner}", vars(value).get(inner)) for inner in names]
        elif value is not made:
            told.append(_told(name, value))
    return hashlib.sha256("".join(told).encode()).digest()


def _names(code: CodeType) -> set[str]:
    """Return the names that a function, or one within it, looks up."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _told(name: str, value: Any) -> str:
    """Return a text for what is frozen into machine code, empty for what is not."""
    if isinstance(value, np.ndarray):
        return f"{name}={value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()};"
    if isinstance(value, _CONSTANTS) or (
        isinstance(value, tuple) and all(isinstance(one, _CONSTANTS) for one in value)
    ):
        return f"{name}={value!r};"
    if hasattr(value, "py_func"):  # it has a stamp of its own already
        return f"{name}:{getattr(_kept_in(value), '_source_stamp', None)!r};"
    return ""

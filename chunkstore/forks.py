"""Locks that a forked child finds open, and things that live on while others come and go.

A child has the locks of its parent as they were, and none of the threads that would open them again.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Final, Generic, TypeVar

__all__ = ["Living", "new_lock", "new_rlock"]

T = TypeVar("T")
L = TypeVar("L")


class Living(Generic[T]):
    """Things as long as somebody else holds them; may be listed while threads add to it.

    A ``WeakSet`` may not, and a fork can come at any moment.

    Examples
    --------
    >>> living, lock = Living(), threading.Lock()
    >>> living.add(lock)
    >>> living.listed() == [lock]
    True
    >>> del lock
    >>> living.listed()
    []
    """

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[Any]] = {}

    def add(self, item: T) -> None:
        """Remember a thing, by its identity."""
        key, refs = id(item), self._refs

        def gone(ref: weakref.ref[Any]) -> None:
            if refs.get(key) is ref:
                refs.pop(key, None)

        refs[key] = weakref.ref(item, gone)

    def listed(self) -> list[T]:
        """Return what is there now."""
        found = (ref() for ref in list(self._refs.values()))  # a list of a dict's values is made in one piece
        return [item for item in found if item is not None]


def new_lock() -> threading.Lock:
    """Return a lock that is open in a forked child.

    Examples
    --------
    >>> with new_lock():
    ...     pass
    """
    return _known(threading.Lock())


def new_rlock() -> threading.RLock:
    """Return a lock that its holder may take again, and that is open in a forked child."""
    return _known(threading.RLock())


def _known(lock: L) -> L:
    _LOCKS.add(lock)
    return lock


def _open_all() -> None:
    for lock in _LOCKS.listed():
        lock._at_fork_reinit()  # noqa: SLF001 - as the standard library does with its own


_LOCKS: Final[Living[Any]] = Living()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_all)

"""Whether the garbage collector is at work in this thread: what it finalizes then must wait for nobody.

It may run in the middle of anything, so with any lock held: whoever waits there for a thread that wants this
lock waits for ever.
"""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_collecting"]

_BUSY: Final[set[int]] = set()


def is_collecting() -> bool:
    """Whether this thread is collecting garbage now.

    Examples
    --------
    >>> is_collecting()
    False
    """
    return threading.get_ident() in _BUSY


def _note(
    phase: str,
    _: dict[str, Any],
    busy: set[int] = _BUSY,
    me: Callable[[], int] = threading.get_ident,
) -> None:
    """Hear of a collection; names are bound early, since modules are emptied at the end of a program."""
    (busy.add if phase == "start" else busy.discard)(me())


gc.callbacks.append(_note)

"""Whether the garbage collector is at work: what it finalizes then must wait for nobody.

It may run in the middle of anything, so with any lock held: whoever waits there for a thread that wants this
lock waits for ever.
"""

from __future__ import annotations

import gc
import threading
from typing import Any, Final

__all__ = ["is_collecting"]

#: What each phase was told last; that which came last stands last.
_PHASES: Final[dict[str, Any]] = {"start": None, "stop": None}
#: The same of each thread by itself, in no order.
_OWN: Final = threading.local()


def is_collecting() -> bool:
    """Whether this thread is collecting garbage now.

    Only one thread does at a time. It was told of it what all were told last.

    Examples
    --------
    >>> is_collecting()
    False
    """
    return list(_PHASES)[-1:] == ["start"] and getattr(_OWN, "start", None) is _PHASES.get("start")


# Methods of built-in things, and no function of ours: a KeyboardInterrupt would be met in there, and be lost
gc.callbacks += [_PHASES.pop, _PHASES.__setitem__, _OWN.__setattr__]

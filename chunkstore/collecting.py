"""Whether the garbage collector is at work: what it finalizes then must wait for nobody.

It may run in the middle of anything, so with any lock held: whoever waits there for a thread that wants this
lock waits for ever.
"""

from __future__ import annotations

import gc
from typing import Any, Final

__all__ = ["is_collecting"]

#: What it said last stands last.
_PHASES: Final[dict[str, Any]] = {"start": None, "stop": None}


def is_collecting() -> bool:
    """Whether some thread of this process, as a rule this one, is collecting garbage now.

    Examples
    --------
    >>> is_collecting()
    False
    """
    return list(_PHASES)[-1:] == ["start"]


# Methods of a dict, and no function of ours: a KeyboardInterrupt would be met in there, and be lost
gc.callbacks += [_PHASES.pop, _PHASES.__setitem__]

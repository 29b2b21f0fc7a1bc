"""Steps of time from row to row: counted in one compiled visit, the interpreter's lock free meanwhile."""

from __future__ import annotations

from typing import Any

from numba import njit

__all__ = ["count_steps"]


@njit(cache=True, nogil=True)
def count_steps(times: Any, edges: Any, gap: Any) -> Any:
    """Count pairs of neighbours of one sequence.

    Parameters
    ----------
    times : int64[n] or float64[n]
        Never written to.
    edges : int64[k]
        Places at which a sequence begins, from 1 to n - 1: the pair with the row before does not count.
    gap : int64 or float64
        A step forward that is longer is far.

    Returns
    -------
    tuple of int
        Steps back, steps of nothing, far steps.

    Examples
    --------
    >>> import numpy as np
    >>> times = np.array([0, 5, 5, 3, 90, 0])
    >>> times.flags.writeable = False
    >>> count_steps(times, np.array([5]), 50)
    (1, 1, 1)
    """
    back = same = far = 0
    before, after = times[:-1], times[1:]
    for i in range(before.size):
        a, b = before[i], after[i]
        back += b < a
        same += b == a
        far += _is_far(a, b, gap)
    for edge in edges:
        a, b = times[edge - 1], times[edge]
        back -= b < a
        same -= b == a
        far -= _is_far(a, b, gap)
    return back, same, far


@njit(cache=True, nogil=True)
def _is_far(a: Any, b: Any, gap: Any) -> Any:
    step = b - a
    return (b > a) & ((step > gap) | (step < 0))  # a step that wraps is the farthest of all

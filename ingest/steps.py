"""Steps of time from row to row: counted in one compiled visit, the interpreter's lock free meanwhile."""

from __future__ import annotations

from typing import Any

from chunkstore.compiled import njit

__all__ = ["count_steps"]


@njit(cache=True, nogil=True)
def count_steps(times: Any, spans: Any, edges: Any, gap: Any) -> Any:
    """Count pairs of neighbours of one sequence.

    Parameters
    ----------
    times : int64[n] or float64[n]
        Never written to.
    spans : uint64[n] or float64[n]
        The same, to be subtracted: uint64 holds the longest step of int64.
    edges : int64[k]
        Places at which a sequence begins, from 1 to n - 1: the pair with the row before does not count.
    gap : uint64 or float64
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
    >>> count_steps(times, times.view(np.uint64), np.array([5]), np.uint64(50))
    (1, 1, 1)
    """
    back = same = far = 0
    before, after, low, high = times[:-1], times[1:], spans[:-1], spans[1:]
    for i in range(before.size):
        a, b = before[i], after[i]
        back += b < a
        same += b == a
        far += (b > a) & (high[i] - low[i] > gap)
    for edge in edges:
        a, b = times[edge - 1], times[edge]
        back -= b < a
        same -= b == a
        far -= (b > a) & (spans[edge] - spans[edge - 1] > gap)
    return back, same, far

"""A store small enough to check by hand, for examples and first tries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from chunkstore.store import ChunkStore

__all__ = ["small_store"]


def small_store(url: str = "memory://chunkstore-example") -> ChunkStore:
    """Write and open a store of 3 sequences and 10 obs.

    Its one field ``x`` counts 0 to 9. The sequences ``s0``, ``s1`` and ``s2`` have 3, 4 and 3 obs and
    the labels ``kind`` a, a and b.

    Parameters
    ----------
    url : str
        Where it is written; the memory of this process if not given.

    Examples
    --------
    >>> store = small_store()
    >>> store.sequences.rowsize.tolist(), store.read("x", 0, 4).tolist()
    ([3, 4, 3], [0.0, 1.0, 2.0, 3.0])
    """
    import chunkstore

    values = np.arange(10, dtype=np.float32)
    with chunkstore.StoreWriter(url, fields={"x": "float32"}, overwrite=True) as out:
        for name, kind, low, high in (("s0", "a", 0, 3), ("s1", "a", 3, 7), ("s2", "b", 7, 10)):
            out.write(name, {"x": values[low:high]}, labels={"kind": kind})
    return chunkstore.open_store(url)

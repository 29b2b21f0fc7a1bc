"""Where the windows of a batch came from: store, sequence, obs and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from chunkstore.store import ChunkStore

__all__ = ["Where", "locate_batch"]


@dataclass(frozen=True, slots=True)
class Where:
    """Provenance of each window of a batch, in its order."""

    url: tuple[str, ...]
    """Place of the store."""
    id: tuple[str, ...]
    """Id of the sequence."""
    start: npt.NDArray[np.int64]
    """First obs, counted from the start of the sequence; int64[batch]."""
    stop: npt.NDArray[np.int64]
    """One past the last valid obs; int64[batch]."""
    time: npt.NDArray[np.datetime64] | None
    """Time of the first obs, datetime64[ns][batch]; NaT where unknown, None where no store has a clock."""

    def __len__(self) -> int:
        return len(self.id)

    def __str__(self) -> str:
        shown = [f"{i!r} [{a}, {b})" for i, a, b in zip(self.id, self.start, self.stop, strict=True)]
        return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def locate_batch(stores: Sequence[ChunkStore], batch: Mapping[str, Any]) -> Where:
    """Return where the windows of ``batch`` came from.

    Parameters
    ----------
    stores
        The stores, as the dataset has them.
    batch
        A batch with ``sequence``, ``start``, ``length`` (and ``store`` for several); arrays or tensors.
    """
    sequence, start, length = (np.asarray(batch[k]).astype(np.int64) for k in ("sequence", "start", "length"))
    store = np.asarray(batch["store"]) if "store" in batch else np.zeros(len(sequence), np.int64)
    ids: list[str] = [""] * len(sequence)
    times = np.full(len(sequence), np.datetime64("NaT", "ns"))
    clock = False
    for at in np.unique(store).tolist():
        rows = np.flatnonzero(store == at)
        table = stores[at].sequences
        for row in rows.tolist():
            ids[row] = str(table.ids[sequence[row]])
        found = _times(stores[at], sequence[rows], start[rows])
        if found is not None:
            times[rows] = found
            clock = True
    urls = tuple(str(stores[at].url) for at in store.tolist())
    return Where(urls, tuple(ids), start, start + length, times if clock else None)


_UNITS = {
    "seconds": 10**9,
    "milliseconds": 10**6,
    "microseconds": 10**3,
    "nanoseconds": 1,
    "minutes": 60 * 10**9,
    "hours": 3600 * 10**9,
    "days": 86400 * 10**9,
}


def decode_times(values: npt.NDArray[Any], units: str | None) -> npt.NDArray[np.datetime64] | None:
    """Return datetime64[ns] of integers in CF units such as ``"milliseconds since 1970-01-01"``.

    None where the units say no calendar time.

    Examples
    --------
    >>> decode_times(np.array([1500]), "milliseconds since 2013-01-01")
    array(['2013-01-01T00:00:01.500000000'], dtype='datetime64[ns]')
    """
    unit, since, origin = (units or "").partition(" since ")
    if not since or unit not in _UNITS:
        return None
    zero = np.datetime64(origin.strip().removesuffix("Z").removesuffix("UTC").strip().replace(" ", "T"), "ns")
    return np.asarray(zero + (values.astype(np.int64) * _UNITS[unit]).astype("timedelta64[ns]"))


def _times(
    store: ChunkStore, sequence: npt.NDArray[np.int64], start: npt.NDArray[np.int64]
) -> npt.NDArray[np.datetime64] | None:
    """Return the time of some obs: read from the clock field, else start plus obs at the rate."""
    if "time" in store.fields:
        at = store.sequences.offsets[sequence] + start
        values = np.concatenate([store.read("time", int(i), int(i) + 1) for i in at])
        return decode_times(values, store.fields["time"].units)
    return None

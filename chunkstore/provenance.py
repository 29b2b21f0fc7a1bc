"""Where the windows of a batch came from: store, sequence, obs and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.clock import clock_of, sample_rates, show_instant

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
    seconds: npt.NDArray[np.float64] | None
    """Seconds from the start of the sequence to the first obs, float64[batch]; NaN where the sample rate is
    unknown, None where no store states one."""

    def __len__(self) -> int:
        return len(self.id)

    def __str__(self) -> str:
        shown = [self._told(row) for row in range(min(5, len(self)))]
        return ", ".join(shown) + (f" and {len(self) - 5} more" if len(self) > 5 else "")

    def _told(self, row: int) -> str:
        text = f"{self.id[row]!r} [{self.start[row]}, {self.stop[row]})"
        if self.time is not None and not np.isnat(self.time[row]):
            return f"{text} from {show_instant(int(self.time[row].astype(np.int64)))}"
        if self.seconds is not None and not np.isnan(self.seconds[row]):
            return f"{text} from {self.seconds[row]:g} s"
        return text


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
    seconds = np.full(len(sequence), np.nan)
    for at in np.unique(store).tolist():
        rows = np.flatnonzero(store == at)
        table = stores[at].sequences
        for row in rows.tolist():
            ids[row] = str(table.ids[sequence[row]])
        seconds[rows] = start[rows] / sample_rates(stores[at])[sequence[rows]]
        clock = clock_of(stores[at])
        if clock is not None:
            times[rows] = clock.times(sequence[rows], start[rows])
    urls = tuple(str(stores[at].url) for at in store.tolist())
    return Where(
        urls,
        tuple(ids),
        start,
        start + length,
        None if np.isnat(times).all() else times,
        None if np.isnan(seconds).all() else seconds,
    )

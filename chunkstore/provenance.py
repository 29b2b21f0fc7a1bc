"""Where the windows of a batch came from: store, sequence, obs and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.clock import time_field

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
    seconds = np.full(len(sequence), np.nan)
    for at in np.unique(store).tolist():
        rows = np.flatnonzero(store == at)
        table = stores[at].sequences
        for row in rows.tolist():
            ids[row] = str(table.ids[sequence[row]])
        rates = _rates(stores[at], sequence[rows])
        seconds[rows] = start[rows] / rates
        found = _times(stores[at], sequence[rows], start[rows], rates)
        if found is not None:
            times[rows] = found
    urls = tuple(str(stores[at].url) for at in store.tolist())
    return Where(
        urls,
        tuple(ids),
        start,
        start + length,
        None if np.isnat(times).all() else times,
        None if np.isnan(seconds).all() else seconds,
    )


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


def _rates(store: ChunkStore, sequence: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the sample rate of sequences in Hz, NaN where nothing states one."""
    table = store.sequences
    if "sample_rate" in table.columns:
        rates = np.asarray(table.column("sample_rate"), np.float64)[sequence]
        return np.where(rates > 0, rates, np.nan)
    stated = [
        a["sample_rate"]
        for a in (*(f.attrs for f in store.fields.values()), store.attrs)
        if "sample_rate" in a
    ]
    return np.full(len(sequence), float(stated[0]) if stated else np.nan)


def _times(
    store: ChunkStore,
    sequence: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    rates: npt.NDArray[np.float64],
) -> npt.NDArray[np.datetime64] | None:
    """Return the time of some obs: read from the clock field, else start time and rate."""
    clock = time_field(store.fields)
    if clock is not None:
        at = store.sequences.offsets[sequence] + start
        outs = [np.empty(1, store.fields[clock].np_dtype) for _ in at]
        store.read_ranges(clock, at.tolist(), (at + 1).tolist(), outs)
        return decode_times(np.concatenate(outs), store.fields[clock].units)
    if "start_time" not in store.sequences.columns:
        return None
    began = np.asarray(store.sequences.column("start_time"))[sequence]
    if began.dtype.kind not in "iuf":
        return None
    known = np.isfinite(began) & np.isfinite(rates)
    whole = np.rint(np.where(known, began, 0) * 1e6).astype("datetime64[us]").astype("datetime64[ns]")
    steps = np.rint(np.where(known, start * (1e9 / rates), 0)).astype("timedelta64[ns]")
    return np.where(known, whole + steps, np.datetime64("NaT", "ns"))

"""Batches as the engine wants them: every column there, of the right dtype, and every row accounted for.

A source may leave out a column that a batch knows nothing of, or a mask where nothing is null. Here
they are filled in, and what breaks the protocol is an error that names the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import IngestError
from ingest.protocol import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chunkstore.layout import FieldSpec
    from ingest.protocol import Batch, Part

__all__ = [
    "Account",
    "column_of",
    "empty_column",
    "fill_lost",
    "has_mask",
    "lost_mask",
    "mask_name",
    "null_of",
]


def mask_name(field: str) -> str:
    """Return the name of the array that says where a nullable field has values."""
    return f"{field}_valid"


def has_mask(spec: FieldSpec) -> bool:
    """Whether nulls of a field are kept in an array of their own; floats use NaN.

    Examples
    --------
    >>> from chunkstore.layout import FieldSpec
    >>> has_mask(FieldSpec("n", "int64", nullable=True)), has_mask(FieldSpec("x", "float32", nullable=True))
    (True, False)
    """
    return spec.nullable and spec.np_dtype.kind != "f"


def null_of(spec: FieldSpec) -> Any:
    """Return what stands for no value: NaN for floats, else zero."""
    return np.nan if spec.np_dtype.kind == "f" else spec.np_dtype.type(0)


def empty_column(spec: FieldSpec, n: int) -> np.ndarray:
    """Return ``n`` rows without values."""
    return np.full(spec.shape(n), null_of(spec), spec.np_dtype)


def column_of(batch: Batch, spec: FieldSpec, part: Part) -> np.ndarray:
    """Return the values of a field in a batch, checked.

    Raises
    ------
    IngestError
        If shape or dtype are not what the scan promised.
    """
    values = batch.columns.get(spec.name)
    if values is None:
        return empty_column(spec, batch.rows)
    if values.shape != spec.shape(batch.rows):
        raise IngestError(
            f"{part.file}: field {spec.name!r} came with shape {values.shape}, promised was "
            f"{spec.shape(batch.rows)}"
        )
    if values.dtype != spec.np_dtype:
        if not np.can_cast(values.dtype, spec.np_dtype, "safe"):
            raise IngestError(
                f"{part.file}: field {spec.name!r} came as {values.dtype}, promised was {spec.dtype}"
            )
        values = values.astype(spec.np_dtype)
    return values


def mask_of(batch: Batch, spec: FieldSpec) -> np.ndarray:
    """Return where a nullable field has values in a batch."""
    mask = batch.columns.get(mask_name(spec.name))
    if mask is None:
        return np.full(batch.rows, spec.name in batch.columns)
    return np.asarray(mask, bool)


def lost_mask(batch: Batch) -> np.ndarray | None:
    """Return bool[rows], True where a row stands for lost data; ``None`` where none does."""
    if not batch.lost:
        return None
    mask = np.zeros(batch.rows, bool)
    for start, stop in batch.lost:
        mask[start:stop] = True
    return mask


def differs(kept: Any, found: Any) -> bool:
    """Whether two values of a label disagree; NaN agrees with NaN.

    Examples
    --------
    >>> differs(1, 1), differs("a", "b"), differs(float("nan"), float("nan"))
    (False, True, False)
    """
    both_nan = kept != kept and found != found  # noqa: PLR0124  # only NaN is not itself
    return bool(kept != found and not both_nan)


def fill_lost(times: np.ndarray, lost: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return times with which sorting keeps lost rows where they are, and which slices are lost as a whole.

    A lost row has the time of the row before it in its slice, the first ones that of the row behind them.
    Where all is lost nothing is known.

    Parameters
    ----------
    times, lost : array[n], bool[n]
        Of slices that stand one after the other.
    sizes : int64[k]
        Rows of each slice, more than none.

    Examples
    --------
    >>> times, lost = np.array([0, 5, 0, 0, 9, 7]), np.array([True, False, True, True, False, True])
    >>> [found.tolist() for found in fill_lost(times, lost, np.array([3, 2, 1]))]
    [[5, 5, 5, 9, 9, 7], [False, False, True]]
    """
    ends = np.cumsum(sizes)
    whole = np.add.reduceat((~lost).astype(np.int64), ends - sizes) == 0
    rows = np.arange(times.size)
    before = np.maximum.accumulate(np.where(lost, -1, rows))
    behind = np.minimum.accumulate(np.where(lost, times.size, rows)[::-1])[::-1]
    begins = np.repeat(ends - sizes, sizes)
    at = np.where(before >= begins, before, np.where(np.repeat(whole, sizes), rows, behind))
    filled: np.ndarray = times[at]
    return filled, whole


@dataclass(slots=True)
class Account:
    """Where the rows of one part went; ``rows_in = stored + gap + quarantined`` always."""

    part: int
    """Index of the part."""
    file: str
    """Its input."""
    rows_in: int = 0
    """Rows claimed, or met where nothing is claimed."""
    stored: int = 0
    """Rows whose data is in the store."""
    gap: int = 0
    """Rows that have a place in the store but no data."""
    quarantined: int = 0
    """Rows that are not in the store."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {  # asdict would copy them deeply, at ten times the cost
            "part": self.part,
            "file": self.file,
            "rows_in": self.rows_in,
            "stored": self.stored,
            "gap": self.gap,
            "quarantined": self.quarantined,
        }


def settle(part: Part, good: int, gap: int, faults: Sequence[Fault]) -> tuple[Account, list[Fault]]:
    """Close the account of a part.

    Rows that faults name without giving them a place were lost; if claims, rows and faults do not add up, the
    difference is a fault of its own, so that nothing vanishes in silence. A claim that is an estimate proves
    nothing: there the rows that came, and those that faults name, are all there are.

    Examples
    --------
    >>> from ingest.protocol import Part
    >>> faults = [Fault("x", "f", "m", rows=2), Fault("y", "f", "m", rows=1, action="gap")]
    >>> account, more = settle(Part(0, "f", "", 0, 10, 0), good=6, gap=1, faults=faults)
    >>> account.rows_in, account.stored, account.gap, account.quarantined
    (10, 6, 1, 3)
    >>> [(f.code, f.rows) for f in more]
    [('rows-unaccounted', 1)]
    """
    outside = sum(f.rows for f in faults if f.action == "quarantined")
    if gap and not any(f.action == "gap" for f in faults):
        outside = max(0, outside - gap)  # the source calls rows that have a place quarantined
    extra: list[Fault] = []
    quarantined = outside
    rows_in = good + gap + quarantined
    missing = part.claimed - rows_in
    if part.claimed >= 0 and missing != 0 and not part.estimate:
        if missing > 0:
            extra.append(
                Fault(
                    "rows-unaccounted",
                    part.file,
                    f"{missing} of {part.claimed} claimed rows are neither stored nor named by a fault",
                    rows=missing,
                )
            )
            quarantined += missing
            rows_in = part.claimed
        else:
            extra.append(
                Fault(
                    "rows-unclaimed",
                    part.file,
                    f"{-missing} rows more than the {part.claimed} claimed are stored",
                    rows=0,
                    action="kept",
                )
            )
    return Account(part.index, part.file, rows_in, good, gap, quarantined), extra


def total(accounts: Iterable[Account]) -> Account:
    """Return the sum of accounts."""
    whole = Account(-1, "")
    for one in accounts:
        whole.rows_in += one.rows_in
        whole.stored += one.stored
        whole.gap += one.gap
        whole.quarantined += one.quarantined
    return whole

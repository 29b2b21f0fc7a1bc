"""What a source and the engine say to each other: small frozen values and one protocol.

A *source* knows one format. It scans inputs without decoding them, and later reads one *part*
(a contiguous slice of one input) into *batches* of columns. It knows nothing of stores, shards,
dask or the ledger. The engine plans, stages, places, writes and reports, and knows no format.

Two ways lead from parts to obs:

* **placed**: the scan states for every part which sequence it belongs to and how many rows it
  will give (``Part.sequence``, ``Part.claimed``). The place of each row is then arithmetic, nothing
  is staged, and a part that turns out damaged leaves a gap of its claimed length.
* **staged**: lengths or keys are known only after decoding. Every part is decoded once into
  scratch; counts per (part, key), prefix-summed, say where its rows go.

This module imports numpy, ``chunkstore.layout`` and nothing else of the project.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from chunkstore.layout import FieldSpec

__all__ = ["Batch", "ColumnSpec", "CutRule", "Fault", "Part", "Scan", "Source"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with an input, in one line of the report."""

    code: str
    """Stable, e.g. ``"avro-sync-mismatch"``; listed in ``ingest.faults.CODES``."""
    file: str
    """Path or URL of the input."""
    message: str
    """One clear sentence."""
    offset: int | None = None
    """Byte offset in the input, where known."""
    block: int | None = None
    """Index of the Avro block, where there is one."""
    rows: int = 0
    """Rows (or frames) that were claimed and are not stored."""
    action: str = "quarantined"
    """What was done: ``quarantined``, ``gap``, ``skipped``, ``kept`` (a warning: data stored as it is)."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One column along ``sequence`` that a source promises."""

    name: str
    dtype: str
    """Numpy's name, or ``"string"``."""
    units: str | None = None
    long_name: str | None = None
    categorical: bool = False
    """A label: strings with a dictionary of codes."""


@dataclass(frozen=True, slots=True)
class Part:
    """A contiguous slice of one input: what one call of :meth:`Source.read` decodes."""

    index: int
    """Place in the order of all parts; rows of one sequence follow this order."""
    file: str
    """Path or URL."""
    identity: str
    """Size and mtime or etag, as ``Source.identity`` gives it again before reading."""
    nbytes: int
    """Encoded bytes that will be read."""
    claimed: int
    """Rows that the input claims for this part and that reading it answers for; -1 where it claims nothing.

    Rows that a fault of the scan gives up already are no part of it, unless they keep a place.
    """
    memory: int
    """Peak bytes that reading this part needs, decoded batch included."""
    sequence: int = -1
    """Index into ``Scan.keys`` for placed sources; -1 where keys are found while reading."""
    payload: Mapping[str, Any] = field(default_factory=dict)
    """What the source needs to find the slice again: JSON values only."""
    estimate: bool = False
    """Whether ``claimed`` is a guess for the plan only (a length in an audio header): the rows that come are
    the rows there are, and the source names a wrong claim itself."""


@dataclass(frozen=True, slots=True)
class CutRule:
    """Where a sequence is cut into several, once its rows are in order.

    Applied by the engine while it writes: cutting moves nothing, it only sets ``rowsize``.
    """

    on_change: tuple[str, ...] = ()
    """Columns a change of whose value starts a new sequence."""
    max_gap: float | None = None
    """Difference of the time field, in its own unit, above which a new sequence starts."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a source found without decoding payload."""

    source: str
    """Name of the source, as in ``ingest.sources``."""
    fields: tuple[FieldSpec, ...]
    """Fields the store will have, in order."""
    parts: Sequence[Part]
    """All parts in their order: a list, or :class:`ingest.parts.Parts`, which keeps a million in tens of
    megabytes, or any lazy sequence."""
    keys: tuple[str, ...] = ()
    """Sequence ids in their order, for placed sources."""
    placed: bool = False
    """Whether every part states its sequence and rows."""
    columns: tuple[ColumnSpec, ...] = ()
    """Columns along ``sequence`` that the batches will fill."""
    key_labels: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of columns known already, one for each of ``keys``."""
    time_field: str | None = None
    """The field that orders obs in a sequence, if there is one."""
    order: str = "keep"
    """``keep`` (order of the inputs), ``sort`` by the time field, or ``error`` when it goes back."""
    cut: CutRule | None = None
    """Where sequences are cut after ordering."""
    faults: tuple[Fault, ...] = ()
    """What was wrong already at the scan."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """All options of the source, JSON values: enough to make it again in a worker."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Decoder libraries and their versions."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Attributes for the root of the store, JSON values."""
    key_order: str = "input"
    """Order of sequences that are found while reading: ``input`` (as they first appear), or ``sorted``
    (natural order of their ids), which lets keys that are spread over all inputs be gathered in long runs."""
    key_once: bool = False
    """Whether each of a batch's ``keys`` is a sequence of its own, met once: two that read the same are
    two sequences, the later one with a number behind its id."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows decoded from one part, in the order of the input."""

    columns: Mapping[str, np.ndarray]
    """field name -> values [rows] or [rows, items]; masks as ``<field>_valid`` (True: a value)."""
    rows: int
    """Number of rows."""
    keys: tuple[str, ...] = ()
    """Ids of the sequences met in this batch (staged sources)."""
    codes: np.ndarray | None = None
    """int32[rows], index into ``keys``; None where all rows belong to ``keys[0]``, or to the part's."""
    labels: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """sequence column -> one value for each of ``keys``; None where this batch does not know it."""
    lost: tuple[tuple[int, int], ...] = ()
    """Half-open ranges [start, stop) of rows that stand for lost data: they become gaps."""
    faults: tuple[Fault, ...] = ()
    """What was wrong in the stretch of input that this batch covers."""


@runtime_checkable
class Source(Protocol):
    """One format. Made anew in each worker by ``ingest.sources.open_source(name, options)``.

    A source may also have a method ``warm()``: local workers call it while the inputs are scanned, with the
    options as they were given, for it to load libraries or start what decoding needs.
    """

    name: str

    def scan(self, inputs: Sequence[str]) -> Scan:
        """Look at the inputs without decoding payload, and say what they hold.

        Raises ``InputError`` or ``ConfigError`` for whatever can be known to be wrong before work starts.
        """
        ...

    def identity(self, file: str) -> str:
        """Size and mtime, or etag, of an input as it is now."""
        ...

    def read(self, part: Part) -> Iterator[Batch]:
        """Decode one part, in bounded memory, in order.

        Never raises for damaged data: that is a fault in a batch. For a placed part the rows of all
        batches, lost ones included, sum to ``part.claimed``. A key that has no rows (an empty recording) may
        come in a batch of 0 rows: it becomes a sequence of length 0.
        """
        ...

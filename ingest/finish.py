"""The last step: receipts to sequences, labels, gaps, statistics, and a store that is complete.

One process reads all receipts of the write tasks in the order of their shards. What a store says never
depends on which worker did what, or when: everything here is a fold over receipts in a fixed order.
"""

from __future__ import annotations

from array import array
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import IngestError
from chunkstore.sequences import ColumnData
from chunkstore.skeleton import finish_store
from chunkstore.statistics import FieldStatistics
from ingest.faults import fault_to_json
from ingest.order import Joiner
from ingest.protocol import ColumnSpec, Fault
from ingest.rows import differs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ingest.ledger import Ledger
    from ingest.plan import Plan
    from ingest.tally import Tally

__all__ = ["Finished", "Sequences", "conflict", "cut_sequences", "finish", "repeats"]


@dataclass(frozen=True)
class Sequences:
    """Sequences before any cut."""

    ids: Sequence[str]
    """Id of each."""
    rowsize: np.ndarray
    """int64[S]: obs of each."""
    labels: Mapping[str, Mapping[int, Any]]
    """Column -> {place of the sequence: value}."""


@dataclass
class Finished:
    """What the receipts said, for the report."""

    sequences: int = 0
    """Sequences in the store."""
    obs: int = 0
    """Length of ``obs``."""
    gaps: int = 0
    """Ranges of lost data."""
    cuts: int = 0
    """Cuts inside sequences."""
    backward: int = 0
    """Times that go back inside a sequence."""
    duplicates: int = 0
    """Times that repeat inside a sequence."""
    bytes_stored: int = 0
    """Bytes of all shards."""
    faults: list[Fault] = field(default_factory=list)
    """What came to light when all was put together."""

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, without the faults."""
        return {k: v for k, v in asdict(self).items() if k != "faults"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Finished:
        """Return what :meth:`to_json` wrote."""
        return cls(**value)


def cut_sequences(
    ids: Sequence[str], rowsize: np.ndarray, cuts: Sequence[int]
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Cut sequences at obs; return (ids, rowsize, place of the sequence that each piece came from).

    Pieces are numbered from 0 within their sequence: ``id#0``, ``id#1``.

    Examples
    --------
    >>> cut_sequences(["a", "b"], np.array([4, 3]), [2, 5])
    (['a#0', 'a#1', 'b#0', 'b#1'], array([2, 2, 1, 2]), array([0, 0, 1, 1]))
    """
    offsets = np.concatenate([[0], np.cumsum(rowsize)])
    where = np.asarray(cuts, np.int64)
    own = np.searchsorted(offsets, where, side="right") - 1
    pieces = 1 + np.bincount(own, minlength=len(ids)) if where.size else np.ones(len(ids), np.int64)
    origin = np.repeat(np.arange(len(ids)), pieces)
    starts = np.sort(np.concatenate([offsets[:-1], where]), kind="stable")
    lengths = np.diff(np.append(starts, offsets[-1])).astype(np.int64)
    number = np.arange(origin.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    sign = "#"
    while any(sign in one for one in ids):
        sign += "#"
    return (
        [f"{ids[o]}{sign}{n}" for o, n in zip(origin.tolist(), number.tolist(), strict=True)],
        lengths,
        origin,
    )


def finish(
    plan: Plan,
    ledger: Ledger,
    *,
    store: str,
    sequences: Sequences,
    write_tasks: int,
    faults: Sequence[Fault],
    tally: Tally,
    storage_options: Mapping[str, Any],
) -> Finished:
    """Fold all receipts, into ``tally`` too, and make the store complete."""
    done = Finished(faults=list(faults))
    offsets = np.concatenate([[0], np.cumsum(sequences.rowsize)]).astype(np.int64)
    joiner = Joiner(offsets, plan.cut)
    statistics: dict[str, FieldStatistics] = {}
    stored: dict[str, array[int]] = {}
    gaps: list[list[int]] = []
    labels: dict[str, dict[int, Any]] = {k: dict(v) for k, v in sequences.labels.items()}
    if not plan.placed:
        tally.read(ledger, plan, write_tasks)
    for receipt in ledger.receipts("write", write_tasks):
        if plan.placed:
            tally.add(receipt)
        for name, pairs in receipt["labels"].items():
            column = labels.setdefault(name, {})
            for place, value in pairs:
                if differs(column.setdefault(place, value), value):
                    done.faults.append(conflict(sequences.ids[place], name, column[place], value))
        for shard in receipt["shards"]:
            joiner.add(shard["order"])
            for low, high in shard["gaps"]:
                if gaps and gaps[-1][1] == low:
                    gaps[-1][1] = high
                else:
                    gaps.append([low, high])
            for name, found in shard["stats"].items():
                own = FieldStatistics.from_json(found)
                statistics[name] = statistics[name].merge(own) if name in statistics else own
            for name, what in shard["objects"].items():
                indices = stored.setdefault(name, array("q"))
                if what is not None:
                    indices.append(shard["shard"])
                    done.bytes_stored += what[0]
    if plan.order == "error" and joiner.where is not None:
        late = int(np.searchsorted(offsets, joiner.where, side="right")) - 1
        raise IngestError(
            f"times of {sequences.ids[late]!r} go back at obs {joiner.where}; ask for the rows to be sorted, "
            "or for their order to be kept"
        )
    for spec in plan.fields:
        statistics.setdefault(spec.name, FieldStatistics.empty(spec.items))
    if plan.time_field is not None and (untimed := sum(statistics[plan.time_field].null_counts)):
        what = f"{untimed} obs have no {plan.time_field}"
        if plan.order == "sort":
            whole = next(f for f in plan.fields if f.name == plan.time_field).np_dtype.kind != "f"
            what += "; sorted by time they stand " + ("where 0 would" if whole else "behind the others")
        done.faults.append(Fault("time-missing", store, what, action="kept"))
    ids: Sequence[str] = sequences.ids
    rowsize = sequences.rowsize
    origin = None
    if plan.cut is not None:
        ids, rowsize, origin = cut_sequences(ids, rowsize, joiner.cuts)
    columns = _columns(plan, labels, len(sequences.ids), origin)
    if gaps:
        columns["lost_obs"] = _lost(gaps, rowsize)
    done.sequences, done.obs, done.gaps = len(ids), int(offsets[-1]), len(gaps)
    done.cuts, done.backward, done.duplicates = len(joiner.cuts), joiner.backward, joiner.duplicates
    # first the ledger: whenever the store is complete, what the report needs is there
    kept = {
        "done": done.to_json(),
        "more": [fault_to_json(f) for f in done.faults],
        "write_tasks": write_tasks,
    }
    ledger.put_json("finished.json", kept)
    finish_store(
        store,
        rowsize=rowsize,
        ids=[_written(i) for i in ids],
        columns=columns,
        gaps=np.array(gaps, np.int64).reshape(-1, 2),
        statistics=statistics,
        provenance={
            "plan": plan.content,
            "source": plan.source,
            "versions": dict(plan.versions),
            **tally.to_json(done.faults),
        },
        stored=stored,
        storage_options=storage_options,
    )
    return done


def _written(text: str) -> str:
    r"""Return a text as UTF-8 can hold it: bytes of a file's name that are no text are written as ``\xff``.

    Examples
    --------
    >>> print(_written("caf\udce9.wav"))
    caf\xe9.wav
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        except UnicodeEncodeError:
            return text.encode("utf-8", "backslashreplace").decode()
    return text


def conflict(key: str, name: str, kept: Any, found: Any) -> Fault:
    """Return the fault of a label that two parts state differently."""
    return Fault(
        "label-conflict",
        key,
        f"sequence {key!r} has {name} {kept!r} and also {found!r}; the first is kept",
        action="kept",
    )


def repeats(ids: Sequence[str]) -> list[Fault]:
    """Return the fault of ids that several records had, where each record is a sequence."""
    if not ids:
        return []
    named = ", ".join(repr(i) for i in ids[:5]) + (", ..." if len(ids) > 5 else "")
    message = (
        f"{len(ids)} id(s) belong to several records ({named}); the later ones have a number behind them"
    )
    return [Fault("duplicate-id", ids[0], message, action="kept")]


def _columns(
    plan: Plan, labels: Mapping[str, Mapping[int, Any]], n: int, origin: np.ndarray | None
) -> dict[str, ColumnData]:
    specs = list(plan.columns)
    known = {c.name for c in specs}
    specs += [_guess(name, labels[name].values()) for name in sorted(labels) if name not in known]
    columns = {}
    for spec in specs:
        told = plan.key_labels.get(spec.name, ())
        found = labels.get(spec.name, {})
        values = [found.get(i, told[i] if i < len(told) else None) for i in range(n)]
        if origin is not None:
            values = [values[o] for o in origin.tolist()]
        dtype = spec.dtype
        if dtype == "string":
            values = [_written(v) if isinstance(v, str) else v for v in values]
        if dtype != "string" and np.dtype(dtype).kind != "f" and any(v is None for v in values):
            exact = all(v is None or abs(int(v)) <= 1 << 53 for v in values)
            dtype = "float64" if exact else "string"  # what is not known is NaN, where floats hold the rest
            if not exact:
                values = [None if v is None else str(v) for v in values]
        columns[spec.name] = ColumnData(
            spec.name, values, dtype, spec.categorical, spec.units, spec.long_name
        )
    return columns


def _guess(name: str, values: Iterable[Any]) -> ColumnSpec:
    """Return the kind of a column that the scan did not promise, by its values."""
    kinds = {type(v) for v in values}
    if kinds <= {bool}:
        return ColumnSpec(name, "bool")
    if kinds <= {int}:
        return ColumnSpec(name, "int64")
    if kinds <= {int, float}:
        return ColumnSpec(name, "float64")
    return ColumnSpec(name, "string", categorical=True)


def _lost(gaps: Sequence[Sequence[int]], rowsize: np.ndarray) -> ColumnData:
    """Obs of each sequence that lie in gaps."""
    ranges = np.array(gaps, np.int64).reshape(-1, 2)
    before = np.concatenate([[0], np.cumsum(ranges[:, 1] - ranges[:, 0])])
    edges = np.concatenate([[0], np.cumsum(rowsize)])
    at = np.searchsorted(ranges[:, 0], edges, side="right")
    inside = np.where(at > 0, np.minimum(edges - ranges[at - 1, 0], ranges[at - 1, 1] - ranges[at - 1, 0]), 0)
    up_to = np.where(at > 0, before[np.maximum(at - 1, 0)] + inside, 0)
    return ColumnData("lost_obs", np.diff(up_to), "int64", long_name="obs of the sequence that lie in gaps")

"""The plan: what will be read, what the store will hold, how the work is cut. Pure, hashed, readable.

A plan is made from a scan and a few choices, and never changes. Its hash covers everything that
decides a byte of the store: source and options, decoder versions, fields, inputs with their
identities, parts, layout. Two plans can be compared, and the difference said in words. Lengths of chunk
and shard of staged sources are decided once the rows are counted, by :func:`choose_layout` as well.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

import chunkstore
from chunkstore.errors import ConfigError, IngestError, MemoryLimitError
from chunkstore.finish import check_names
from ingest.memory import BASE_MEMORY, Choices, aside_bytes, choose_layout, mib, write_memory
from ingest.parts import Parts, plain
from ingest.place import group_by_bytes, place_parts, task_borders
from ingest.rows import has_mask, mask_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chunkstore.layout import FieldSpec, Layout
    from ingest.place import PartPlaces
    from ingest.protocol import ColumnSpec, CutRule, Fault, Scan

__all__ = ["Job", "Plan", "digest", "make_plan"]

_MIB = 1024 * 1024
#: most bytes that staging gathers before it writes them to scratch
SEGMENT = 64 * _MIB
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Job:
    """What every task of a job is told: places, source, fields. Small, and the same for all."""

    store: str
    """URL of the store."""
    ledger: str
    """URL of the ledger."""
    scratch: str
    """URL of the scratch folder."""
    storage_options: Mapping[str, Any]
    """Options of object stores."""
    plan: str
    """The plan's hash."""
    token: str
    """The lock's token: a task of a job that lost its lock writes nothing."""
    source: str
    """Name of the source."""
    options: Mapping[str, Any]
    """Options of the source."""
    fields: tuple[FieldSpec, ...]
    """Fields of the store."""
    time_field: str | None
    """The field that orders obs."""
    order: str
    """``keep``, ``sort`` or ``error``."""
    cut: CutRule | None
    """Where sequences are cut."""
    segment: int
    """Bytes of decoded rows that staging gathers before it writes them to scratch."""
    layout: Layout | None = None
    """Lengths along obs, once known."""
    on_error: str = "quarantine"
    """Whether a fault that loses rows ends the job."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What workers must have, see :mod:`ingest.versions`."""


@dataclass(frozen=True)
class Plan:
    """What will be done; see the module.

    Use :func:`make_plan`; :meth:`to_json` is what the file holds.
    """

    source: str
    """Name of the source."""
    options: Mapping[str, Any]
    """All options of the source."""
    versions: Mapping[str, str]
    """Decoder libraries and their versions."""
    fields: tuple[FieldSpec, ...]
    """Fields of the store."""
    columns: tuple[ColumnSpec, ...]
    """Columns along ``sequence``."""
    parts: Parts
    """Everything to be read, in order."""
    keys: tuple[str, ...]
    """Sequence ids known at the scan."""
    key_labels: Mapping[str, tuple[Any, ...]]
    """Columns known at the scan, one value for each of ``keys``."""
    key_order: str
    """``input`` or ``sorted``."""
    key_once: bool
    """Whether keys that read the same are sequences of their own."""
    placed: bool
    """Whether rows are written straight to their place, without staging."""
    time_field: str | None
    """The field that orders obs."""
    order: str
    """``keep``, ``sort`` or ``error``."""
    cut: CutRule | None
    """Where sequences are cut."""
    attrs: Mapping[str, Any]
    """Attributes of the store."""
    faults: tuple[Fault, ...]
    """What the scan found wrong."""
    choices: Choices
    """What the person chose."""
    layout: Layout | None
    """Lengths along obs; ``None`` until staged rows are counted."""
    places: PartPlaces | None = None
    """Where placed parts go."""
    groups: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    """int64[G + 1]: parts of each staging task."""
    part_memory: int = 0
    """Peak bytes that reading one part needs."""
    nbytes: int = 0
    """Encoded bytes of all parts."""
    claimed: int = 0
    """Rows claimed by all parts that claim any."""
    parts_hash: str = ""
    """SHA-256 of the lines of the parts."""
    segment: int = SEGMENT
    """Bytes that staging gathers before it writes them to scratch."""

    def head(self) -> dict[str, Any]:
        """Return everything but the parts, as JSON values; what the hash is made of."""
        return {
            "format": FORMAT,
            "source": self.source,
            # credentials have no place in a file, and do not decide a byte
            "options": {k: v for k, v in self.options.items() if k != "storage_options"},
            "versions": dict(self.versions),
            "fields": [field_to_json(f) for f in self.fields],
            "columns": [
                {k: getattr(c, k) for k in ("name", "dtype", "units", "long_name", "categorical")}
                for c in self.columns
            ],
            "time_field": self.time_field,
            "order": self.order,
            "key_order": self.key_order,
            "key_once": self.key_once,
            "cut": None
            if self.cut is None
            else {"on_change": list(self.cut.on_change), "max_gap": self.cut.max_gap},
            "attrs": dict(self.attrs),
            "way": "placed" if self.placed else "staged",
            # receipts are kept by task: another cut of the work is another plan
            "tasks_sha256": hashlib.sha256(self._cut_of_work().tobytes()).hexdigest(),
            "engine": chunkstore.__version__,
            "sequences_known": len(self.keys),
            "keys_sha256": digest([[list(self.keys)], sorted(self.key_labels.items())]),
            "files": len(self.parts.files),
            "parts": len(self.parts),
            "parts_sha256": self.parts_hash,
            "bytes_in": self.nbytes,
            "rows_claimed": self.claimed,
            "codec": self.choices.codec,
            "layout": None
            if self.layout is None
            else {"n_obs": self.layout.n_obs, "chunk": self.layout.chunk, "shard": self.layout.shard},
            "layout_asked": {"chunk": self.choices.chunk, "shard": self.choices.shard}
            if self.layout is None
            else None,
        }

    def _cut_of_work(self) -> np.ndarray:
        if self.layout is None or self.places is None:
            return self.groups
        return task_borders(self.layout, self.places.start)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of :meth:`head`."""
        return digest(self.head())

    @cached_property
    def content(self) -> str:
        """SHA-256 of what decides the bytes of the store: the hash without the cut of the work."""
        return digest({k: v for k, v in self.head().items() if k != "tasks_sha256"})

    def to_json(self) -> dict[str, Any]:
        """Return what ``plan.json`` holds."""
        return {**self.head(), "hash": self.hash}

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of ``parts.jsonl``."""
        for block in self.parts.blocks():
            yield from block.splitlines(keepends=True)

    @property
    def aside(self) -> int:
        """Bytes an obs that a write task holds beside the values."""
        return aside_bytes(self.order, self.time_field, self.cut)

    @cached_property
    def memory(self) -> int:
        """Peak bytes of a worker."""
        stage = 0 if self.placed else BASE_MEMORY + self.part_memory + 2 * self.segment
        layout = self.layout
        if layout is None:
            # rows are not counted yet: the largest shard that the choices allow
            rows = self.claimed if (self.parts.claimed >= 0).all() else 1 << 40
            layout = choose_layout(rows, self.fields, self.choices, 0, staged=True, aside=self.aside)
        shard = min(layout.shard, max(1, layout.n_obs))
        write = write_memory(shard, self.fields, self.part_memory, staged=not self.placed, aside=self.aside)
        return max(stage, write)

    @property
    def n_stage_tasks(self) -> int:
        """Number of staging tasks; 0 for placed sources."""
        return 0 if self.placed else self.groups.size - 1


def digest(value: Any) -> str:
    """Return the SHA-256 of JSON values, whatever the order of their keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=plain)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def field_to_json(spec: FieldSpec) -> dict[str, Any]:
    """Return a field as JSON values."""
    return {
        "name": spec.name,
        "dtype": spec.dtype,
        "items": spec.items,
        "units": spec.units,
        "long_name": spec.long_name,
        "nullable": spec.nullable,
        "scale_factor": spec.scale_factor,
        "categories": None if spec.categories is None else list(spec.categories),
        "attrs": dict(spec.attrs),
    }


def make_plan(scan: Scan, choices: Choices) -> Plan:
    """Turn a scan into a plan.

    Raises
    ------
    IngestError
        If the scan contradicts itself.
    MemoryLimitError
        If the work does not fit into the memory limit.
    """
    _check(scan)
    parts = scan.parts if isinstance(scan.parts, Parts) else _kept(scan)
    sha = hashlib.sha256()
    for block in parts.blocks():
        sha.update(block)
    n = len(parts)
    nbytes, claimed, sequence = parts.nbytes, parts.claimed, parts.sequence
    memory = int(parts.memory.max(initial=0))
    staged = not scan.placed or scan.order == "sort"
    limit = choices.memory_limit
    if BASE_MEMORY + memory > limit:
        worst = parts[int(parts.memory.argmax())].file
        raise MemoryLimitError(
            f"reading {worst} needs {mib(BASE_MEMORY + memory)} a worker and the memory limit is "
            f"{mib(limit)}; raise memory_limit"
        )
    layout = None
    places = None
    if scan.placed:
        if n and (claimed.min() < 0 or sequence.min() < 0 or sequence.max() >= len(scan.keys)):
            raise IngestError(
                f"source {scan.source!r} says its parts are placed, but not where all of them go"
            )
        places = place_parts(sequence, claimed, len(scan.keys))
        layout = choose_layout(
            places.n_obs,
            scan.fields,
            choices,
            memory,
            staged=staged,
            aside=aside_bytes(scan.order, scan.time_field, scan.cut),
        )
    segment = min(SEGMENT, max(_MIB, (limit - BASE_MEMORY - memory) // 3))
    return Plan(
        source=scan.source,
        options=scan.options,
        versions=scan.versions,
        fields=tuple(scan.fields),
        columns=tuple(scan.columns),
        parts=parts,
        keys=tuple(scan.keys),
        key_labels=scan.key_labels,
        key_order=scan.key_order,
        key_once=scan.key_once,
        placed=not staged,
        time_field=scan.time_field,
        order=scan.order,
        cut=scan.cut,
        attrs=scan.attrs,
        faults=tuple(scan.faults),
        choices=choices,
        layout=None if staged else layout,
        places=None if staged else places,
        groups=group_by_bytes(nbytes, stage_target(int(nbytes.sum()))) if staged else np.zeros(1, np.int64),
        part_memory=memory,
        nbytes=int(nbytes.sum()),
        claimed=int(claimed[claimed > 0].sum()),
        parts_hash=sha.hexdigest(),
        segment=segment,
    )


def _kept(scan: Scan) -> Parts:
    try:
        return Parts(scan.parts)
    except IngestError as error:
        raise IngestError(f"source {scan.source!r}: {error}") from None


def stage_target(total: int) -> int:
    """Return the encoded bytes of one staging task: 1/64 of the inputs, within 256 KiB and 16 MiB."""
    return min(16 * _MIB, max(256 * 1024, total // 64))


def _check(scan: Scan) -> None:
    names = [f.name for f in scan.fields]
    if len(set(names)) != len(names):
        raise IngestError(f"source {scan.source!r} names a field twice: {', '.join(names)}")
    if not names:
        raise ConfigError("no field is left to store; choose at least one")
    masks = [mask_name(f.name) for f in scan.fields if has_mask(f)]
    codes = [f"{c.name}_code" for c in scan.columns if c.categorical and c.dtype == "string"]
    # the last step adds "lost_obs" where there are gaps
    check_names([*names, *masks, *(c.name for c in scan.columns), *codes, "lost_obs"])
    if scan.order not in {"keep", "sort", "error"}:
        raise ConfigError(f"order is {scan.order!r}; it is 'keep', 'sort' or 'error'")
    if scan.order != "keep" and scan.time_field is None:
        raise ConfigError(f"order {scan.order!r} needs a time field; name one, or choose 'keep'")
    if scan.time_field is not None and scan.time_field not in names:
        raise ConfigError(f"the time field {scan.time_field!r} is none of the fields: {', '.join(names)}")
    if any(f.items for f in scan.fields if f.name == scan.time_field):
        raise ConfigError(f"the time field {scan.time_field!r} holds vectors; a time is one number")
    if scan.cut is not None and scan.cut.max_gap is not None:
        if scan.time_field is None:
            raise ConfigError("cutting at gaps of time needs a time field")
        if not scan.cut.max_gap >= 0:
            raise ConfigError(f"max_gap is {scan.cut.max_gap}; a step of time is 0 or more")
    for name, values in scan.key_labels.items():
        if len(values) != len(scan.keys):
            raise IngestError(f"column {name!r} has {len(values)} values for {len(scan.keys)} sequences")

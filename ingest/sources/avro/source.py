"""The Avro source: scan files, then read parts of them into batches of columns.

Sequences by file, or the whole input as one, are *placed*: the rows of a block are claimed in its
header, so every row's place is known before anything is decoded, and a bad block leaves a gap. Sequences by
key or by record are *staged*: keys and lengths are found while reading.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import InputError, SourceChangedError, UnsupportedError
from chunkstore.forks import new_lock
from ingest.protocol import Batch, ColumnSpec, CutRule, Fault, Scan
from ingest.sources.avro import codecs, schema
from ingest.sources.avro.columns import default_lengths, leaves, make_plan, time_step
from ingest.sources.avro.container import BlockTable, Header, printable, read_header, walk
from ingest.sources.avro.drift import load_schema, resolve_schemas
from ingest.sources.avro.faults import CODES, STATUS_CODES
from ingest.sources.avro.inputs import open_input
from ingest.sources.avro.options import AvroOptions
from ingest.sources.avro.parts import KEYED_ROWS, PartTable
from ingest.sources.avro.peek import array_lengths
from ingest.sources.avro.rows import RowMaker, null_marks
from ingest.sources.avro.survey import believed, limits_of, lost_rows, survey_file
from ingest.versions import versions_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from chunkstore.layout import FieldSpec
    from ingest.protocol import Part
    from ingest.sources.avro.columns import Column, Plan
    from ingest.sources.avro.decoded import Decoder
    from ingest.sources.avro.inputs import Input
    from ingest.sources.avro.survey import FileSurvey

__all__ = ["AvroSource"]

logger = logging.getLogger(__name__)

_RAW = 4 << 20
_ARENA = 8 << 20
_LOOKS = 64
_CACHED = 64
#: fields that an attribute names, and characters of a schema that one holds
_LISTED, _LONGEST = 500, 1 << 18
#: bytes of columns that one block may become
_COLUMNS = 1 << 30


class AvroSource:
    """Avro object container files, local or remote.

    Parameters
    ----------
    **options
        See :class:`ingest.sources.avro.options.AvroOptions`; JSON values.

    Examples
    --------
    >>> AvroSource(sequence_per="file").name
    'avro'
    """

    name = "avro"
    CODES = CODES
    #: of the files of a folder; any file that is named itself is looked into
    suffixes = (".avro",)

    def __init__(self, **options: Any) -> None:
        self.options = AvroOptions.from_mapping(options)
        self._plans: tuple[schema.Node, Plan] | None = None
        self._decoders: OrderedDict[bytes, tuple[Decoder, int]] = OrderedDict()
        self._headers: OrderedDict[tuple[str, str], Header] = OrderedDict()
        self._lock = new_lock()

    @property
    def placed(self) -> bool:
        """Whether the place of every row is known from block headers."""
        return self.options.sequence_per in ("file", "all")

    # ------------------------------------------------------------------ scan

    def identity(self, file: str) -> str:
        """Size and mtime, or etag, of an input as it is now."""
        with open_input(file, self.options.storage_options) as source:
            return source.identity

    def survey(self, inputs: Sequence[str]) -> list[FileSurvey]:
        """Scan every file; see ``survey.survey_file``."""
        action = "gap" if self.placed else "quarantined"
        known: dict[bytes, tuple[bytes, schema.Node]] = {}
        return [survey_file(url, self.options, action=action, known=known) for url in inputs]

    def scan(self, inputs: Sequence[str]) -> Scan:
        """Look at the inputs without decoding more than a few records.

        Raises
        ------
        InputError
            If there is nothing to read, or schemas differ and no rule for that was given.
        ConfigError
            If options do not fit the schemas.
        MissingDependencyError
            If the library of a codec is missing.
        """
        return self.scan_surveys(self.survey(inputs))

    def scan_surveys(self, surveys: Sequence[FileSurvey]) -> Scan:
        """Make the scan of what :meth:`survey` found."""
        good = [s for s in surveys if s.readable]
        faults = [f for s in surveys for f in s.faults]
        if not good:
            first = "; ".join(f"{f.file}: {f.message}" for f in faults[:3])
            raise InputError(
                f"none of {len(surveys)} input(s) is a readable Avro file" + (f" ({first})" if first else "")
            )
        used: dict[str, list[str]] = {}
        for s in good:
            assert s.header is not None
            used.setdefault(s.header.codec, []).append(s.url)
        for codec, files in used.items():
            codecs.require(codec, files)
        reader, notes = resolve_schemas(good, self.options)
        lengths = self.lengths(good, default=default_lengths(reader))
        plan = make_plan(reader, self.options, lengths)
        options = self.options.to_mapping() | {
            "reader_schema": schema.to_json(reader),
            "fields": [c.path for c in plan.columns],
            "exclude": [],
            "vector_lengths": {
                c.path: c.items
                for c in plan.columns
                if "[]" in c.steps and c.items and c.kind not in ("fixed", "duration")
            },
            "inner_obs": [c.path for c in plan.columns if c.inner_obs],
            "on_drift": "union",
        }
        parts = PartTable(good, self.options, plan)
        return Scan(
            source=self.name,
            fields=tuple(self._spec(c) for c in plan.columns),
            parts=parts,
            keys=parts.keys,
            placed=self.placed,
            columns=tuple(
                ColumnSpec(k.name, k.dtype, k.units, categorical=k.dtype == "string") for k in plan.labels
            ),
            time_field=self._time_name(plan),
            order=self.options.on_disorder,
            cut=self._cut(plan),
            # keys are spread over all files: in sorted segments each shard finds its rows in one run
            key_order="sorted" if self.options.sequence_key else "input",
            key_once=plan.per_record,
            faults=(*faults, *notes),
            options=options,
            versions=versions_of(("fastavro", "numba", "cramjam", "numpy")),
            attrs=_attrs(reader, plan),
        )

    def _time_name(self, plan: Plan) -> str | None:
        return self._column_name(plan, self.options.time) if self.options.time else None

    def _spec(self, column: Column) -> FieldSpec:
        """Say in the store which of several instants is the time: CF's ``axis``."""
        spec = column.spec()
        if column.path != self.options.time or " since " not in (spec.units or ""):
            return spec
        return dataclasses.replace(spec, attrs={**spec.attrs, "axis": "T"})

    @staticmethod
    def _column_name(plan: Plan, path: str) -> str:
        return next(c.name for c in plan.columns if c.path == path)

    def _cut(self, plan: Plan) -> CutRule | None:
        gap = self.options.max_gap
        if not self.options.cut_on and gap is None:
            return None
        step = None
        if gap is not None:
            name = self._time_name(plan)
            step = time_step(gap, next(c for c in plan.columns if c.name == name))
        texts = {".".join(k.steps): k.name for k in plan.cuts}
        names = [texts.get(p) or self._column_name(plan, p) for p in self.options.cut_on]
        marks = null_marks(plan, self.options.cut_on).values()
        return CutRule((*names, *marks), step)

    def lengths(
        self,
        good: Sequence[FileSurvey],
        *,
        per_record: bool | None = None,
        default: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Lengths of arrays that are the same in some records of every schema, by their steps.

        Arrays that no record has are as long as their ``default``.
        """
        if per_record is None:
            per_record = self.options.sequence_per == "record"
        found: dict[str, set[int]] = {}
        looks: dict[bytes, int] = {}
        for s in good:
            assert s.header is not None
            assert s.node is not None
            text = s.header.schema
            if text not in looks:
                looks[text] = 0 if any(leaf.depth for leaf in leaves(s.node)) else _LOOKS
            if looks[text] >= _LOOKS or not s.rows:
                continue
            for block, rows in self.sample(s):
                looks[text] += 1
                for steps, sizes in array_lengths(s.node, block, rows).items():
                    found.setdefault(".".join(steps), set()).update(sizes)
        if per_record:  # an array of obs may be empty, a vector may not
            found = {steps: n - {0} if steps.count("[]") == 1 else n for steps, n in found.items()}
        lengths = {steps: next(iter(n)) for steps, n in found.items() if len(n) == 1}
        return lengths | {steps: n for steps, n in (default or {}).items() if steps not in found}

    def sample(self, s: FileSurvey) -> Iterator[tuple[bytes | bytearray | memoryview, int]]:
        """Yield a few blocks of a file, decoded, with their rows."""
        assert s.header is not None
        limits = limits_of(self.options)
        slices = [s.slices[i] for i in sorted({0, len(s.slices) // 2, len(s.slices) - 1})]
        try:
            with open_input(s.url, self.options.storage_options) as source:
                for part in slices:
                    table = next(iter(walk(source, s.header, part.start, part.stop)))
                    rows = np.flatnonzero((table.counts > 0) & (table.sizes <= limits.max_block))
                    for i in (
                        rows[np.unique(np.linspace(0, rows.size - 1, 16).astype(int))].tolist()
                        if rows.size
                        else []
                    ):
                        size = int(table.sizes[i])
                        data = source.read(int(table.payloads[i]), size)
                        try:
                            yield (
                                codecs.decompress(s.header.codec, data, limits.decoded(size)),
                                int(table.counts[i]),
                            )
                        except codecs.CodecError:
                            continue
        except OSError:
            return

    # ------------------------------------------------------------------ read

    def read(self, part: Part) -> Iterator[Batch]:
        """Decode one part; see ``ingest.protocol.Source.read``.

        Raises
        ------
        SourceChangedError
            If the input is not what was scanned.
        """
        with open_input(part.file, self.options.storage_options) as source:
            if source.identity != part.identity:
                raise SourceChangedError(
                    f"{part.file} was {part.identity} (size:mtime) at the scan and is {source.identity} now; "
                    "scan again"
                )
            header = self._header(source)
            decoder, plan, least = self._decoder(header.schema)
            yield from _Reading(self, part, source, header, decoder, plan, least).batches()

    def _header(self, source: Input) -> Header:
        key = (source.url, source.identity)
        with self._lock:
            header = self._headers.get(key)
        if header is None:
            header = read_header(source)
            with self._lock:
                _keep(self._headers, key, header)
        return header

    def _reader(self) -> tuple[schema.Node, Plan]:
        if self._plans is None:
            assert self.options.reader_schema is not None, "a part is read with the options of the scan"
            node = load_schema(self.options.reader_schema)
            self._plans = node, make_plan(node, self.options, {})
        return self._plans

    def _decoder(self, text: bytes) -> tuple[Decoder, Plan, int]:
        with self._lock:
            reader, plan = self._reader()
            found = self._decoders.get(text)
        if found is None:
            writer = schema.parse(text)
            found = make_decoder(writer, reader, plan, self.options.decoder), writer.least()
            with self._lock:
                _keep(self._decoders, text, found)
        return found[0], plan, found[1]

    def __getstate__(self) -> dict[str, Any]:
        return self.options.to_mapping()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc] # made anew where it arrives


def _keep(cache: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    """Remember a value, and forget the oldest ones."""
    cache[key] = value
    while len(cache) > _CACHED:
        cache.popitem(last=False)


def make_decoder(writer: schema.Node, reader: schema.Node, plan: Plan, which: str) -> Decoder:
    """Make the kernel where it takes the schema, else fastavro.

    Raises
    ------
    UnsupportedError
        If the kernel is asked for and does not take the schema.
    """
    from ingest.sources.avro.fallback import FastavroDecoder

    if which != "fastavro":
        from ingest.sources.avro.kernel_decoder import KernelDecoder

        try:
            return KernelDecoder(writer, reader, plan)
        except UnsupportedError as error:
            if which == "kernel":
                raise
            logger.info("fastavro decodes %s: %s", writer.name or writer.kind, error)
    return FastavroDecoder(writer, reader, plan)


def _attrs(reader: schema.Node, plan: Plan) -> dict[str, Any]:
    """Say in the store what it was made of, as far as that is short."""
    left = dict(list(plan.left.items())[:_LISTED])
    if len(plan.left) > _LISTED:
        left["..."] = f"{len(plan.left) - _LISTED} more"
    out: dict[str, Any] = {"avro_fields_left": left}
    raw = schema.to_json(reader)
    if len(json.dumps(raw)) <= _LONGEST:
        out["avro_schema"] = raw
    return out


class _Reading:
    """One part being read: blocks in, batches out."""

    def __init__(  # noqa: PLR0917 # private: made in one place
        self,
        owner: AvroSource,
        part: Part,
        source: Input,
        header: Header,
        decoder: Decoder,
        plan: Plan,
        least: int,
    ) -> None:
        self.part, self.source, self.header, self.decoder = part, source, header, decoder
        self.limits = limits_of(owner.options)
        self.least = least
        self.plan = plan
        self.placed = owner.placed
        self.arena: bytearray | None = None
        """Room for decompressed blocks, used again and again."""
        self.maker = RowMaker(part, plan, placed=owner.placed, cut_on=owner.options.cut_on)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of the part."""
        payload = self.part.payload
        for table in walk(
            self.source, self.header, int(payload["start"]), int(payload["stop"]), int(payload["block"])
        ):
            good = believed(table.counts, table.sizes, self.header.codec, self.least, self.limits)
            begin = 0
            for at in np.flatnonzero(
                good & (table.counts > _COLUMNS // max(1, self.plan.row_bytes))
            ).tolist():
                yield from self._run(table, begin, at, good)
                yield from self._refuse(table, at)
                begin = at + 1
            yield from self._run(table, begin, len(table), good)
            for damage in table.damage:
                rows = lost_rows(damage, self.header.codec, self.least, self.limits)
                if rows:
                    yield from self.maker.gap(rows)

    def _refuse(self, table: BlockTable, at: int) -> Iterator[Batch]:
        """Give up a block whose rows would take more memory than any block may."""
        rows = int(table.counts[at])
        message = (
            f"the block's {rows} rows would take {rows * self.plan.row_bytes} bytes, more than {_COLUMNS}"
        )
        action = "gap" if self.placed else "quarantined"
        place = (int(table.heads[at]), table.first + at, rows, action)
        yield Batch({}, 0, faults=(Fault("avro-block-claim", self.part.file, message, *place),))
        yield from self.maker.gap(rows)

    def _run(self, table: BlockTable, begin: int, end: int, good: np.ndarray) -> Iterator[Batch]:
        """Read consecutive blocks in runs, by their encoded bytes and their rows' bytes."""
        # where rows have keys, all of them may be different
        width = max(1, self.plan.row_bytes, 4 * _RAW // KEYED_ROWS if self.plan.words else 0)
        cost = table.sizes + np.where(good, table.counts, 0) * width // 4
        ends = np.cumsum(cost)
        lo = begin
        while lo < end:
            spent = int(ends[lo - 1]) if lo else 0
            hi = min(end, max(lo + 1, int(np.searchsorted(ends, spent + _RAW, side="right"))))
            yield from self._slab(table, lo, hi, good)
            lo = hi

    def _slab(self, table: BlockTable, lo: int, hi: int, good: np.ndarray) -> Iterator[Batch]:
        base = int(table.payloads[lo])
        sizes = table.sizes[lo:hi]
        begins = table.payloads[lo:hi] - base
        use = good[lo:hi] & (table.counts[lo:hi] > 0)
        last = int(np.flatnonzero(use)[-1]) if use.any() else -1  # what nobody believes is not read
        raw = self.source.read(base, int(begins[last] + sizes[last])) if last >= 0 else b""
        if self.header.codec == "null":
            starts = begins.copy()
            stops = np.where(use & (begins + sizes <= len(raw)), begins + sizes, begins - 1)
            problems: dict[int, tuple[str, str]] = {
                int(i): ("avro-truncated", "the file is shorter than it was")
                for i in np.flatnonzero(use & (begins + sizes > len(raw)))
            }
            yield from self._decode(table, lo, hi, use, np.frombuffer(raw, np.uint8), starts, stops, problems)
            return
        view = memoryview(raw)
        i = 0
        while i < hi - lo:
            i = yield from self._packed(table, lo, hi, i, use, view, begins)

    def _packed(  # noqa: PLR0917 # private: one run of blocks
        self,
        table: BlockTable,
        lo: int,
        hi: int,
        i: int,
        use: np.ndarray,
        view: memoryview,
        begins: np.ndarray,
    ) -> Generator[Batch, None, int]:
        """Decompress blocks from the ``i``-th on into one arena, decode them; return the next block."""
        arena = bytearray(_ARENA + _ARENA // 2) if self.arena is None else self.arena
        starts: list[int] = []
        stops: list[int] = []
        problems: dict[int, tuple[str, str]] = {}
        total, j = 0, i
        while j < hi - lo and (j == i or total < _ARENA):
            starts.append(total)
            stops.append(total - 1)  # bad until it is good
            if use[j]:
                size = int(table.sizes[lo + j])
                data = view[int(begins[j]) : int(begins[j]) + size]
                limit = self.limits.decoded(size)
                try:
                    done = -1
                    with memoryview(arena) as room:
                        done = codecs.decompress_into(self.header.codec, data, room[total:], limit)
                    if done < 0:
                        more = codecs.decompress(self.header.codec, bytes(data), limit)
                        arena = arena[:total] + more + bytes(_ARENA // 4)
                        done = len(more)
                    total += done
                    stops[-1] = total
                except codecs.CodecError as error:
                    problems[j - i] = (error.code, str(error))
            j += 1
        self.arena = arena if len(arena) <= 4 * _ARENA else None
        decoded = self._decode(
            table,
            lo + i,
            lo + j,
            use[i:j],
            np.frombuffer(memoryview(arena)[:total], np.uint8),
            np.array(starts, np.int64),
            np.array(stops, np.int64),
            problems,
        )
        yield from decoded
        return j

    def _decode(  # noqa: PLR0917 # private: one run of blocks
        self,
        table: BlockTable,
        lo: int,
        hi: int,
        use: np.ndarray,
        arena: np.ndarray,
        starts: np.ndarray,
        stops: np.ndarray,
        problems: dict[int, tuple[str, str]],
    ) -> Iterator[Batch]:
        counts = np.where(use, table.counts[lo:hi], 0)
        decoded = self.decoder.decode(arena, starts, stops, counts)
        for i in np.flatnonzero(decoded.status).tolist():
            code = STATUS_CODES[int(decoded.status[i])]
            size, at = int(stops[i] - starts[i]), int(decoded.where[i])
            problems[i] = (code, f"{CODES[code]}: at byte {at} of the block's {size} decoded bytes")
        action = "gap" if self.placed else "quarantined"
        faults = [
            Fault(
                code,
                self.part.file,
                printable(message),
                int(table.heads[lo + i]),
                table.first + lo + i,
                int(counts[i]),
                action,
            )
            for i, (code, message) in sorted(problems.items())
        ]
        bad = np.zeros(hi - lo, bool)
        bad[list(problems)] = True
        yield self.maker.batch(decoded, counts, bad, faults)

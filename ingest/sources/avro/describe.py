"""What ``chunkstore scan`` says: schemas as trees, what becomes of fields, drift, faults, a command."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import ChunkstoreError, InputError, UnsupportedError
from ingest.sources.avro.columns import ITEM, Column, KeyColumn, Leaf, Plan, column_of, leaves
from ingest.sources.avro.container import printable
from ingest.sources.avro.drift import Drift, distinct, drift, merge, type_text
from ingest.sources.avro.options import AvroOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingest.protocol import Fault
    from ingest.sources.avro.schema import Node
    from ingest.sources.avro.source import AvroSource
    from ingest.sources.avro.survey import FileSurvey

__all__ = ["Description", "FieldLine", "describe", "scan_text"]

_TIMES = ("timestamp", "local-timestamp")
_TIME_NAMES = ("time", "timestamp", "ts", "t", "datetime", "date")
_MAX_LABELS = 24


@dataclass(frozen=True, slots=True)
class FieldLine:
    """One field of a schema and what it would become."""

    path: str
    type: str
    becomes: str


@dataclass(slots=True)
class Description:
    """What a scan found, ready to be written as text or JSON."""

    files: int = 0
    nbytes: int = 0
    rows: int = 0
    blocks: int = 0
    codecs: dict[str, int] = field(default_factory=dict)
    """Codec -> files."""
    schemas: list[tuple[str, int, int]] = field(default_factory=list)
    """(name, files, rows) of each schema that differs from the others."""
    fields: list[FieldLine] = field(default_factory=list)
    """Of the union of all schemas."""
    drift: list[Drift] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    decoder: str = ""
    """``kernel``, or ``fastavro`` and why."""
    command: str = ""
    """A command line to start from."""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "files": self.files,
            "bytes": self.nbytes,
            "rows": self.rows,
            "blocks": self.blocks,
            "codecs": dict(self.codecs),
            "schemas": [{"name": n, "files": f, "rows": r} for n, f, r in self.schemas],
            "fields": [{"path": x.path, "type": x.type, "becomes": x.becomes} for x in self.fields],
            "drift": [{"path": d.path, "types": dict(d.types)} for d in self.drift],
            "faults": [
                {"code": f.code, "file": f.file, "message": f.message, "rows": f.rows} for f in self.faults
            ],
            "decoder": self.decoder,
            "command": self.command,
            "note": self.note,
        }

    def text(self) -> str:
        """Return lines for a terminal."""
        out = [
            f"{self.files:,} files, {self.nbytes / 1e6:,.1f} MB, {self.rows:,} rows "
            f"in {self.blocks:,} blocks; " + ", ".join(f"{c} in {n:,}" for c, n in self.codecs.items())
        ]
        for name, files, rows in self.schemas:
            out.append(f"schema {name}: {files:,} file{'s' * (files != 1)}, {rows:,} rows")
        out += ["", *_tree(self.fields), ""]
        if self.drift:
            out.append(f"drift: {len(self.drift)} field(s) differ between files")
            out += [f"  {printable(str(d))}" for d in self.drift[:40]] + [""]
        if self.faults:
            codes = Counter(f.code for f in self.faults)
            out.append("faults: " + ", ".join(f"{c} {n:,}" for c, n in codes.items()))
            for f in self.faults[:20]:
                place = "" if f.offset is None else f" at byte {f.offset}"
                out.append(f"  {f.file}{place}: {f.message}" + (f" ({f.rows:,} rows)" if f.rows else ""))
            out.append("")
        out.append(f"decoder: {self.decoder}")
        if self.note:
            out.append(f"note: {self.note}")
        if self.command:
            out += ["", "to start from:", f"  {self.command}"]
        return "\n".join(out)


def _tree(fields: Sequence[FieldLine]) -> list[str]:
    """Lines of a tree: names by depth, types and what they become in columns."""
    rows: list[tuple[str, str, str]] = []
    last: list[str] = []
    for f in fields:
        steps = (printable(f.path, 120) or "(value)").split(".")
        for depth, step in enumerate(steps):
            if depth < len(steps) - 1 and last[: depth + 1] == steps[: depth + 1]:
                continue
            end = depth == len(steps) - 1
            rows.append(("  " * depth + step, f.type if end else "", f.becomes if end else ""))
        last = steps
    name = min(40, max((len(r[0]) for r in rows), default=0))
    kind = min(44, max((len(r[1]) for r in rows), default=0))
    return [f"  {n:<{name}}  {t:<{kind}}  {b}".rstrip() for n, t, b in rows]


def _becomes(column: Column | str) -> str:
    if isinstance(column, str):
        return f"- {column}"
    text = column.dtype + (f"[{column.items}]" if column.items else "")
    if column.symbols:
        text += f", codes of {len(column.symbols)} words"
    if column.units:
        text += f", {column.units}"
    if column.scale_factor is not None:
        text += f", times {column.scale_factor:g}"
    if column.masked:
        text += ", nulls by a mask"
    elif column.nullable:
        text += ", null as NaN"
    if column.inner_obs:
        text += ", obs along the inner arrays"
    return text


def describe(paths: Sequence[str], *, inputs: Sequence[str] = (), **options: Any) -> Description:
    """Scan files and say what they hold.

    Parameters
    ----------
    paths
        Paths or URLs of files.
    inputs
        What the user named them by, for the command that is suggested.
    **options
        Of ``AvroOptions``; what a sequence is need not be said.

    Raises
    ------
    InputError
        If there is no input.
    """
    from ingest.sources.avro.source import AvroSource

    if not paths:
        raise InputError("there is nothing to scan")
    given = dict(options)
    if not given.get("sequence_key") and not given.get("sequence_per"):
        given["sequence_per"] = "all"
    source = AvroSource(**given)
    surveys = source.survey(paths)
    good = [s for s in surveys if s.readable]
    out = Description(
        files=len(surveys),
        nbytes=sum(s.size for s in surveys),
        rows=sum(s.rows for s in surveys),
        blocks=sum(s.blocks for s in surveys),
        codecs=dict(Counter(s.header.codec for s in good if s.header)),
        faults=[f for s in surveys for f in s.faults],
    )
    if not good:
        out.decoder = "none: no file can be read"
        return out
    groups = distinct(good)
    out.schemas = [(n.name or type_text(n), len(f), sum(s.rows for s in f)) for n, f in groups]
    out.drift = drift(groups)
    node = groups[0][0]
    try:
        for other, files in groups[1:]:
            node = merge(node, other, f"{files[0].url}: ")
    except InputError as error:
        out.note = str(error)
    _fields(out, source, good, node, given, inputs)
    return out


def _fields(  # noqa: PLR0917 # private; each is needed
    out: Description,
    source: AvroSource,
    good: Sequence[FileSurvey],
    node: Node,
    given: Mapping[str, Any],
    inputs: Sequence[str],
) -> None:
    lengths = source.lengths(good)
    flat = AvroOptions.from_mapping(
        {**given, "sequence_per": "all", "sequence_key": (), "labels": (), "cut_on": (), "obs_axis": "auto"}
    )
    nested = AvroOptions.from_mapping({**given, "sequence_per": "record"})
    every = leaves(node)
    as_rows = [column_of(leaf, flat, lengths) for leaf in every]
    record_lengths = source.lengths(good, per_record=True)
    as_record = [column_of(leaf, nested, record_lengths) for leaf in every]
    # A record is a sequence where its arrays vary in length and nothing but labels stands beside them.
    ragged = any(
        isinstance(a, str) and isinstance(b, Column) for a, b in zip(as_rows, as_record, strict=True)
    )
    plain = any(
        isinstance(a, Column) and not leaf.depth and (a.dtype.startswith("float") or a.kind == "decimal")
        for leaf, a in zip(every, as_rows, strict=True)
    )
    per_record = given.get("sequence_per") == "record" or (ragged and not plain)
    chosen = as_record if per_record else as_rows
    words = _words(source, good, every)
    for leaf, column in zip(every, chosen, strict=True):
        text = _becomes(column)
        if leaf.path in words and isinstance(column, str):
            text = (
                f"key or label; {words[leaf.path][1]:,} different in {words[leaf.path][2]:,} rows looked at"
            )
        out.fields.append(FieldLine(leaf.path, type_text(leaf.node, leaf.nullable) + "[]" * leaf.depth, text))
    out.decoder = _decoder(good, node, [c for c in chosen if isinstance(c, Column)], per_record)
    out.command = _command(out, inputs or _short(good), every, chosen, words, per_record)


def _decoder(good: Sequence[FileSurvey], node: Node, columns: list[Column], per_record: bool) -> str:
    from ingest.sources.avro.source import make_decoder

    why: dict[str, int] = {}
    for writer, files in distinct(good):
        try:
            text = make_decoder(writer, node, Plan(tuple(columns), (), (), per_record), "kernel").name
        except UnsupportedError as error:
            text = f"fastavro ({error})"
        except ChunkstoreError as error:
            text = f"none ({error})"
        why[text] = why.get(text, 0) + len(files)
    if len(why) == 1:
        return next(iter(why))
    return "; ".join(f"{text} for {n:,} files" for text, n in why.items())


def _words(
    source: AvroSource, good: Sequence[FileSurvey], every: list[Leaf]
) -> dict[str, tuple[np.ndarray, int, int]]:
    """Text fields -> codes of the rows looked at, how many differ, and how many rows these were."""
    from ingest.sources.avro.source import make_decoder

    paths = [
        x
        for x in every
        if not x.depth
        and not x.reason
        and x.node.kind in ("string", "enum", "int", "long")
        and not x.node.logical
    ]
    keys = tuple(
        KeyColumn(x.path, x.steps, x.node.kind, "string", x.node.symbols) for x in paths[:_MAX_LABELS]
    )
    first = next((s for s in good if s.rows and s.node is not None), None)
    if first is None or not keys:
        return {}
    assert first.node is not None
    own = {x.path for x in leaves(first.node)}
    plan = Plan((), (), tuple(k for k in keys if k.name in own), False)
    for block, rows in source.sample(first):
        arena = np.frombuffer(block, np.uint8)
        one = np.zeros(1, np.int64)
        decoded = make_decoder(first.node, first.node, plan, "auto").decode(
            arena, one, one + arena.size, one + rows
        )
        if decoded.status[0]:
            continue
        out = {}
        for k in plan.labels:
            codes, values = decoded.dictionaries[".".join(k.steps)]
            kind = next(x.node.kind for x in paths if x.path == k.name)
            if kind in ("string", "enum") or len(values) < max(2, rows // 2):
                out[k.name] = (codes, len(values), rows)
        return out
    return {}


def _command(  # noqa: PLR0917 # private; each is needed
    out: Description,
    inputs: Sequence[str],
    every: list[Leaf],
    columns: list[Column | str],
    words: dict[str, tuple[np.ndarray, int, int]],
    per_record: bool,
) -> str:
    """Guess a command line: the key that repeats least but repeats, a time, labels that the key decides."""
    parts = ["chunkstore", "ingest", "avro", *map(shlex.quote, inputs), "-o", "OUT.zarr"]
    text = {x.path for x in every if x.node.kind == "string"}
    if per_record:
        parts += ["--sequence-per", "record"]
        key = next((p for p, (_, n, rows) in words.items() if p in text and n == rows), "")
    else:
        # a field that may be null seldom names a device; of equals the first in the schema
        sure = {x.path for x in every if not x.nullable}
        repeats = [
            (p in sure, n, p) for p, (_, n, rows) in words.items() if p in text and n <= max(1, rows // 2)
        ]
        key = max(repeats, key=lambda r: r[:2], default=(False, 0, ""))[2]
    if key:
        parts += ["--sequence-key", shlex.quote(key)]
        labels = [p for p, (codes, _, _) in words.items() if p != key and _decides(words[key][0], codes)]
        if labels and not per_record:
            parts += ["--labels", shlex.quote(",".join(labels[:4]))]
    elif not per_record:
        parts += ["--sequence-per", "file"]
    if per_record and (labels := [p for p in words if p != key]):
        parts += ["--labels", shlex.quote(",".join(labels[:4]))]
    time = _time(every, columns)
    if time:
        parts += ["--time", shlex.quote(time)]
    if out.drift:
        parts += ["--on-drift", "union"]
    return " ".join(parts)


def _decides(key: np.ndarray, label: np.ndarray) -> bool:
    """Whether every key has one label in the rows looked at, and there are fewer labels than rows."""
    first = np.full(int(key.max(initial=0)) + 1, -1, np.int64)
    first[key[::-1]] = label[::-1]
    return bool((first[key] == label).all()) and key.size > int(key.max(initial=0)) + 1


def _time(every: list[Leaf], columns: list[Column | str]) -> str:
    stored = [(x, c) for x, c in zip(every, columns, strict=True) if isinstance(c, Column) and not c.items]
    for x, _ in stored:
        if (x.node.logical or "").startswith(_TIMES):
            return x.path
    for x, c in stored:
        if (
            x.steps
            and x.steps[-1] != ITEM
            and x.steps[-1].lower() in _TIME_NAMES
            and c.dtype in ("int64", "float64")
        ):
            return x.path
    return ""


def _short(good: Sequence[FileSurvey]) -> list[str]:
    urls = [s.url for s in good]
    return urls if len(urls) <= 3 else [_folder(urls)]


def _folder(urls: Sequence[str]) -> str:
    common = os.path.commonprefix(list(urls))  # noqa: RUF071 # cut back to a folder below; URLs too
    return common[: common.rfind("/") + 1] or "."


def scan_text(paths: Sequence[str], *, inputs: Sequence[str] = (), **options: Any) -> str:
    """Return what ``chunkstore scan`` prints; see :func:`describe`."""
    return describe(paths, inputs=inputs, **options).text()

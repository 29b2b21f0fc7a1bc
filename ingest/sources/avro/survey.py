"""The scan of Avro files: headers, blocks and claims, without decoding payload.

Everything that is wrong with a file itself, or visible in its block headers, becomes a fault here, once;
reading meets the same damage again and reports only what decoding adds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from chunkstore.layout import parse_bytes
from ingest.protocol import Fault
from ingest.sources.avro import codecs
from ingest.sources.avro.container import (
    MAX_ROWS,
    Concatenated,
    Damage,
    Header,
    HeaderError,
    printable,
    read_header,
    walk,
)
from ingest.sources.avro.inputs import open_input
from ingest.sources.avro.schema import Node, SchemaError, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.sources.avro.container import BlockTable
    from ingest.sources.avro.inputs import Input
    from ingest.sources.avro.options import AvroOptions

__all__ = ["FileSurvey", "Slice", "believable", "believed", "file_ids", "survey_file"]

#: rows of 0 bytes that one block may claim
MAX_EMPTY_ROWS = 1 << 24


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive blocks of one file: what becomes a part."""

    start: int
    """Byte offset of the first block."""
    stop: int
    """Byte offset behind the last block or damaged stretch."""
    block: int
    """Index of the first block."""
    row: int
    """Rows of the file before it."""
    rows: int
    """Rows that are believed, damaged blocks included."""
    largest: int
    """Encoded bytes of the largest block."""
    most: int
    """Rows of the block that claims most."""
    lost: int = 0
    """Rows of damaged blocks among ``rows``, which the scan reports."""


@dataclass(slots=True)
class FileSurvey:
    """What the scan knows of one file."""

    url: str
    size: int = 0
    identity: str = ""
    header: Header | None = None
    """Without its metadata."""
    node: Node | None = None
    slices: list[Slice] = field(default_factory=list)
    blocks: int = 0
    rows: int = 0
    """Rows that are believed and will be read."""
    faults: list[Fault] = field(default_factory=list)

    @property
    def readable(self) -> bool:
        """Whether the header and the schema are good."""
        return self.node is not None


def limits_of(options: AvroOptions) -> codecs.Limits:
    """Make the limits on blocks from the options."""
    return codecs.Limits(max_block=parse_bytes(options.max_block_bytes), max_ratio=options.max_ratio)


def believable(count: int, size: int, codec: str, least: int, limits: codecs.Limits) -> bool:
    """Whether a block of ``size`` encoded bytes can hold ``count`` rows of at least ``least`` bytes.

    Examples
    --------
    >>> believable(10**9, 0, "null", 9, codecs.Limits())
    False
    """
    one = np.array([count]), np.array([size])
    return bool(count >= 0 and size >= 0 and believed(*one, codec, least, limits)[0])


def believed(
    counts: np.ndarray, sizes: np.ndarray, codec: str, least: int, limits: codecs.Limits
) -> np.ndarray:
    """Which blocks can hold the rows that they claim: bool[blocks]; see :func:`believable`."""
    if codec == "null":
        room = sizes.astype(np.float64)
    else:
        room = np.minimum(
            limits.max_block, np.maximum(limits.free, sizes.astype(np.float64) * limits.max_ratio)
        )
    rows = counts.astype(np.float64)
    fits = rows * least <= room if least else rows <= MAX_EMPTY_ROWS
    return np.asarray(fits & (counts < MAX_ROWS) & (sizes <= limits.max_block))


def _honest(count: int, size: int, codec: str, least: int, limits: codecs.Limits) -> int:
    """Rows that a block which is not taken stands for: its claim, where that many rows can be in it.

    A block above the largest size that is allowed may well hold what it says.
    """
    if count < 0 or size < 0 or count >= MAX_ROWS:
        return 0
    room = size if codec == "null" else max(limits.free, size * limits.max_ratio)
    return count if (count * least <= room if least else count <= MAX_EMPTY_ROWS) else 0


def _refusal(count: int, size: int, codec: str, limits: codecs.Limits) -> str:
    if size > limits.max_block:
        return (
            f"the block of {count} rows takes {size} bytes, more than the {limits.max_block} allowed; "
            "if it is meant, raise max_block_bytes"
        )
    return (
        f"the block claims {count} rows in {size} bytes ({codec}), which cannot be; "
        "nobody knows how many it holds"
    )


class _Shifted:
    """The rest of an input, as an input of its own."""

    def __init__(self, source: Input, offset: int) -> None:
        self.source, self.offset = source, offset
        self.url, self.identity, self.remote = source.url, source.identity, source.remote
        self.size = source.size - offset

    def read(self, offset: int, length: int) -> bytes:
        return self.source.read(self.offset + offset, length)


def _rest_rows(source: Input, offset: int, options: AvroOptions) -> int:
    """Rows that further containers in the same file claim, as far as that is believable."""
    total, hops = 0, 0
    while offset < source.size and hops < 10_000:
        view = _Shifted(source, offset)
        hops += 1
        try:
            header = read_header(view)  # type: ignore[arg-type]
            least = parse(header.schema).least()
        except (HeaderError, SchemaError, RecursionError):
            return total
        onward = -1
        for table in walk(view, header):  # type: ignore[arg-type]
            good = believed(table.counts, table.sizes, header.codec, least, limits_of(options))
            total += int(table.counts[good].sum())
            onward = max([onward, *(d.start for d in table.damage if isinstance(d, Concatenated))])
        if onward < 0:
            return total
        offset += onward
    return total


def _cut(table: BlockTable, good: np.ndarray, part_bytes: int, row: int) -> list[Slice]:
    """Group the blocks of a table; a group ends at multiples of ``part_bytes`` of the file."""
    if not len(table):
        return []
    ids = table.heads // part_bytes
    edges = np.concatenate([[0], np.flatnonzero(np.diff(ids)) + 1, [len(table)]])
    rows = np.where(good, table.counts, 0)
    before = np.concatenate([[0], np.cumsum(rows)])
    ends = table.payloads + table.sizes + 16
    out = []
    for lo, hi in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        out.append(
            Slice(
                start=int(table.heads[lo]),
                stop=int(ends[hi - 1]),
                block=table.first + lo,
                row=row + int(before[lo]),
                rows=int(before[hi] - before[lo]),
                largest=int(table.sizes[lo:hi].max()),
                most=int(rows[lo:hi].max()),
            )
        )
    return out


def survey_file(
    url: str,
    options: AvroOptions,
    *,
    action: str = "quarantined",
    known: dict[bytes, tuple[bytes, Node]] | None = None,
) -> FileSurvey:
    """Scan one file; never raises for what is wrong with it.

    Parameters
    ----------
    url
        Path or URL.
    options
        Limits and the size of parts.
    action
        What happens to damaged blocks whose claim is believed: ``gap`` or ``quarantined``.
    known
        Schemas of files before, which many thousands may share: parsed and kept once.
    """
    out = FileSurvey(url)
    known = {} if known is None else known
    try:
        with open_input(url, options.storage_options) as source:
            out.size, out.identity = source.size, source.identity
            out.header = header = read_header(source)
            if header.schema not in known:
                known[header.schema] = header.schema, parse(header.schema)
            text, out.node = known[header.schema]
            out.header = replace(header, schema=text, metadata={})
            if out.header.codec not in codecs.CODECS:
                name = printable(out.header.codec, 40)
                out.faults.append(Fault("avro-codec-unknown", url, f"there is no codec {name!r}"))
                out.node = None
                return out
            _survey_blocks(out, source, header, out.node, options, action)
    except HeaderError as error:
        out.faults.append(
            Fault(
                error.code,
                url,
                printable(str(error)),
                offset=error.offset,
                action="skipped" if error.code == "avro-empty" else "quarantined",
            )
        )
    except (SchemaError, RecursionError) as error:
        out.faults.append(Fault("avro-schema", url, printable(str(error))))
        out.node = None
    except (OSError, ValueError, ImportError) as error:
        out.faults.append(Fault("avro-unreadable", url, printable(f"{type(error).__name__}: {error}")))
        out.node = None
    return out


def _survey_blocks(  # noqa: PLR0917 # private
    out: FileSurvey, source: Input, header: Header, node: Node, options: AvroOptions, action: str
) -> None:
    limits, part_bytes, least = limits_of(options), parse_bytes(options.part_bytes), node.least()
    for table in walk(source, header):
        good = believed(table.counts, table.sizes, header.codec, least, limits)
        for i in np.flatnonzero(~good & (table.counts > 0)).tolist():
            count, size = int(table.counts[i]), int(table.sizes[i])
            message = _refusal(count, size, header.codec, limits)
            rows = _honest(count, size, header.codec, least, limits)
            out.faults.append(
                Fault("avro-block-claim", out.url, message, int(table.heads[i]), table.first + i, rows)
            )
        slices = _cut(table, good, part_bytes, out.rows)
        out.blocks += len(table)
        out.rows += sum(s.rows for s in slices)
        for damage in table.damage:
            rows = lost_rows(damage, header.codec, least, limits)
            stated = rows or _honest(damage.rows, damage.size, header.codec, least, limits)
            out.faults.append(_damage_fault(out.url, source, damage, stated, options, action if rows else ""))
            if slices:
                last = slices[-1]
                slices[-1] = Slice(
                    last.start,
                    damage.stop,
                    last.block,
                    last.row,
                    last.rows + rows,
                    last.largest,
                    max(last.most, rows),
                    last.lost + rows,
                )
            else:
                slices.append(Slice(damage.start, damage.stop, damage.block, out.rows, rows, 0, rows, rows))
            out.rows += rows
        out.slices.extend(slices)


def lost_rows(damage: Damage, codec: str, least: int, limits: codecs.Limits) -> int:
    """Rows that a damaged stretch stands for: its claim where that is believable, else 0."""
    if damage.rows < 0 or damage.size < 0:
        return 0
    return damage.rows if believable(damage.rows, damage.size, codec, least, limits) else 0


def _damage_fault(  # noqa: PLR0917 # private
    url: str, source: Input, damage: Damage, rows: int, options: AvroOptions, action: str
) -> Fault:
    message = damage.message
    if isinstance(damage, Concatenated):
        rows = _rest_rows(source, damage.start, options)
    elif damage.rows > rows:
        message += f"; that it has {damage.rows} rows, as it claims, cannot be"
    return Fault(damage.code, url, message, damage.start, damage.block, rows, action or "quarantined")


def file_ids(urls: Sequence[str]) -> list[str]:
    """Short ids for files: their names where those differ, else their paths from the common folder.

    Examples
    --------
    >>> file_ids(["/a/x.avro", "/a/y.avro"]), file_ids(["/a/1/x.avro", "/a/2/x.avro"])
    (['x', 'y'], ['1/x', '2/x'])
    """

    def trim(name: str) -> str:
        return name[: -len(".avro")] if name.lower().endswith(".avro") else name

    names = [trim(u.rstrip("/").rpartition("/")[2]) for u in urls]
    if len(set(names)) == len(names):
        return names
    folders = [u.rpartition("/")[0] + "/" for u in urls]
    common = os.path.commonprefix(folders)  # noqa: RUF071 # cut back to a folder below; URLs too
    common = common[: common.rfind("/") + 1]
    paths = [trim(u[len(common) :]) for u in urls]
    return paths if len(set(paths)) == len(paths) else _numbered(paths)


def _numbered(names: Sequence[str]) -> list[str]:
    """Give a number to what repeats: ``x#2``, where no file is called that."""
    taken, seen = set(names), set[str]()
    out = []
    for name in names:
        made, number = name, 1
        while made in seen or (number > 1 and made in taken):
            number += 1
            made = f"{name}#{number}"
        seen.add(made)
        out.append(made)
    return out

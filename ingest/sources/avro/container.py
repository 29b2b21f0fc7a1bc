"""The container of an Avro file: its header, and a walk over its blocks that decodes no payload.

Whatever a file says of itself is a claim. A block is taken only when its size fits the file and the
marker behind it is the file's own; a stretch where that is not so becomes a *damaged* entry with the
rows it claimed, and the walk goes on at the next marker. The same walk serves the scan (all blocks) and the
reading of a part (from one block to another): both find the same blocks.

Pure of schemas: what a block holds is decided elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ingest.sources.avro import walk_kernel as wk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest.sources.avro.inputs import Input

__all__ = ["BlockTable", "Concatenated", "Damage", "Header", "HeaderError", "read_header", "walk"]

MAGIC = b"Obj\x01"
SYNC_SIZE = 16
#: bytes of a header, schema included, that are read at most
MAX_HEADER = 64 << 20
#: entries of its metadata; some dozens are known to be used
MAX_ENTRIES = 1 << 16
#: rows above which a claim is not believed whatever else holds
MAX_ROWS = 1 << 40
_CAPACITY = 1 << 18
_CHAIN = 64  # blocks with damaged markers, one after the other, that are told apart
_SMALL = 64  # window that holds a marker and the next block's two numbers
_WIDE = 1 << 20


class HeaderError(Exception):
    """A file that is no Avro container; ``code`` is a fault code."""

    def __init__(self, code: str, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the first block."""

    schema: bytes
    """The writer's schema, JSON."""
    codec: str
    sync: bytes
    """The 16 bytes behind every block."""
    data_offset: int
    """Byte offset of the first block."""
    metadata: dict[str, bytes]
    """All metadata; values are bytes, keys that are not UTF-8 are escaped."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch [start, stop) of the file that holds no block that can be taken."""

    code: str
    message: str
    start: int
    stop: int
    block: int
    """Index of the block that would stand here."""
    rows: int
    """Rows that it claims; -1 where no number could be read."""
    size: int
    """Bytes that it claims; -1 where no number could be read."""


@dataclass(frozen=True, slots=True)
class Concatenated(Damage):
    """A second container begins at ``start``."""


@dataclass(frozen=True, slots=True)
class BlockTable:
    """A run of consecutive blocks, int64[n] each; damaged stretches lie between them."""

    heads: np.ndarray
    """Byte offset of the block's first number."""
    payloads: np.ndarray
    """Byte offset of the encoded bytes."""
    counts: np.ndarray
    """Rows claimed."""
    sizes: np.ndarray
    """Encoded bytes."""
    first: int
    """Index in the file of the first block."""
    damage: tuple[Damage, ...] = ()
    """Damaged stretches behind these blocks and before the next table's."""

    def __len__(self) -> int:
        return int(self.heads.size)


class _Cursor:
    """Bytes of the header, read as they are needed."""

    def __init__(self, source: Input) -> None:
        self.source = source
        self.data = source.read(0, 1 << 16)
        self.at = 0

    def take(self, n: int) -> bytes:
        if n > MAX_HEADER or self.at + n > MAX_HEADER:
            raise HeaderError("avro-header", f"the header claims {n} bytes at offset {self.at}", self.at)
        if self.at + n > self.source.size:
            raise HeaderError(
                "avro-header",
                f"the header ends at byte {self.source.size}, {n} bytes are wanted at {self.at}",
                self.at,
            )
        if self.at + n > len(self.data):
            self.data += self.source.read(len(self.data), max(self.at + n - len(self.data), 1 << 20))
        out = self.data[self.at : self.at + n]
        if len(out) < n:
            raise HeaderError("avro-header", "the header is cut off", self.at)
        self.at += n
        return out

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise HeaderError("avro-header", "a number in the header is longer than ten bytes", self.at)
        return (value >> 1) ^ -(value & 1)


def read_header(source: Input) -> Header:
    """Read what stands before the first block.

    Raises
    ------
    HeaderError
        If the input is no Avro container.
    """
    if source.size == 0:
        raise HeaderError("avro-empty", "the file holds no byte", 0)
    cursor = _Cursor(source)
    if cursor.data[:4] != MAGIC:
        raise HeaderError(
            "avro-not-container", f"the file begins with {cursor.data[:4]!r}, not with {MAGIC!r}", 0
        )
    cursor.at = 4
    metadata: dict[str, bytes] = {}
    entries = 0
    while count := cursor.number():
        if count < 0:
            count = -count
            cursor.number()
        entries += count
        if entries > MAX_ENTRIES:
            raise HeaderError("avro-header", f"the header claims {entries} entries", cursor.at)
        for _ in range(count):
            lengths: list[bytes] = []
            for _part in range(2):
                n = cursor.number()
                if n < 0:
                    raise HeaderError("avro-header", f"the header claims a length of {n}", cursor.at)
                lengths.append(cursor.take(n))
            metadata[lengths[0].decode("utf-8", "backslashreplace")] = lengths[1]
    sync = cursor.take(SYNC_SIZE)
    if "avro.schema" not in metadata:
        raise HeaderError("avro-header", "the header has no entry 'avro.schema'", 4)
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "backslashreplace") or "null"
    return Header(metadata["avro.schema"], codec, sync, cursor.at, metadata)


def _find(source: Input, needle: bytes, start: int) -> int:
    """Offset of ``needle`` at or behind ``start``, or -1."""
    step = 4 << 20
    at = start
    while at < source.size:
        data = source.read(at, step)
        found = data.find(needle)
        if found >= 0:
            return at + found
        if len(data) < step:
            return -1
        at += step - len(needle) + 1
    return -1


_MESSAGES = {
    wk.VARINT: ("avro-block-header", "a number of the block's header is longer than ten bytes"),
    wk.NEGATIVE: ("avro-block-header", "the block claims {count} rows in {size} bytes"),
    wk.TRUNCATED: (
        "avro-truncated",
        "the block claims {size} bytes at offset {payload}, the file ends at {total}",
    ),
    wk.SYNC: ("avro-sync-mismatch", "no sync marker at offset {marker}, where the block should end"),
}


class _Walk:
    """State of one walk; see :func:`walk`."""

    def __init__(self, source: Input, header: Header, start: int, stop: int, first: int) -> None:
        self.source = source
        self.sync = header.sync
        self.stop = stop
        self.index = first
        self.state = np.zeros(6, np.int64)
        self.state[0] = start
        self.marker = np.frombuffer(header.sync, np.uint8)
        self.base = 0
        self.window = np.empty(0, np.uint8)
        self.origin = start
        # A request to a store takes as long as some megabytes do: blocks are jumped over where they are
        # larger than that, and read along with their neighbours where they are not.
        self.least, self.most = (_WIDE // 16, 4 * _WIDE) if source.remote else (_SMALL, _WIDE)
        self.far = 2 * _WIDE if source.remote else _WIDE // 32

    def fetch(self, found: int) -> bool:
        """Read the window that the kernel asks for; False where the file is shorter than it was."""
        state = self.state
        at = int(state[3] + state[5] if state[2] else state[0])
        blocks = self.index + found
        walked = at - self.origin
        length = self.least if not blocks or walked / blocks > self.far else self.most
        data = self.source.read(at, length)
        same = at == self.base and len(data) <= self.window.size
        self.base, self.window = at, np.frombuffer(data, np.uint8)
        return not same

    def damage(self, status: int) -> Damage:
        """Name what is wrong at the current block and set the walk behind it."""
        state, source = self.state, self.source
        head, payload = int(state[0]), int(state[3])
        known = status in (wk.SYNC, wk.NEGATIVE) or (status == wk.TRUNCATED and payload > head)
        count, size = (int(state[4]), int(state[5])) if known else (-1, -1)
        if source.read(head, 4) == MAGIC:
            self.state[0] = self.stop
            return Concatenated(
                "avro-concatenated",
                f"a second container begins at offset {head}; split the file there to read the rest",
                head,
                source.size,
                self.index,
                -1,
                -1,
            )
        code, text = _MESSAGES[status]
        message = text.format(
            count=count, size=size, payload=payload, marker=payload + size, total=source.size
        )
        if status == wk.TRUNCATED and not known:
            message = f"the file ends at {source.size}, inside the header of the block at offset {head}"
        found = _find(source, self.sync, head)
        resume = source.size if found < 0 else found + SYNC_SIZE
        if status == wk.SYNC and (found < 0 or found > payload + size):
            # Perhaps only the marker is damaged: then the next block's marker was found, or the file ends.
            behind = payload + size + SYNC_SIZE
            if self._block_ends(behind, found):
                resume = behind
        self.state[0] = resume
        return Damage(code, message, head, resume, self.index, count, size)

    def _block_ends(self, head: int, marker: int) -> bool:
        """Whether blocks from ``head`` on lead exactly to ``marker`` (-1: to the end of the file).

        The markers between may be damaged too; each of those blocks is looked at again in its turn.
        """
        one = np.empty(1, np.int64)
        total = self.source.size
        for _ in range(_CHAIN):
            if marker < 0 and head == total:
                return True
            state = np.zeros(6, np.int64)
            state[0] = head
            data = np.frombuffer(self.source.read(head, 20), np.uint8)
            # A marker that no block has: the kernel stops at the end of this one, whatever stands there.
            wk.walk_window(data, head, state, total, total, ~self.marker, one, one, one, one)
            if not state[2]:  # no two numbers, or more bytes than there are
                return False
            ends = int(state[3] + state[5])
            if ends == marker:
                return True
            if 0 <= marker < ends:
                return False
            head = ends + SYNC_SIZE
        return False


def walk(
    source: Input, header: Header, start: int | None = None, stop: int | None = None, first: int = 0
) -> Iterator[BlockTable]:
    """Yield the blocks from one offset to another, in order, in tables of bounded length.

    Parameters
    ----------
    source
        The input.
    header
        Its header, as :func:`read_header` gives it.
    start, stop
        Byte offsets of block starts; by default all blocks.
    first
        Index of the block at ``start``.

    Yields
    ------
    BlockTable
        Up to 262,144 blocks, then the damaged stretches behind them.
    """
    stop = source.size if stop is None else stop
    state = _Walk(source, header, header.data_offset if start is None else start, stop, first)
    while True:
        arrays = [np.empty(_CAPACITY, np.int64) for _ in range(4)]
        state.state[1] = 0
        begin = state.index
        while True:
            status = wk.walk_window(
                state.window, state.base, state.state, stop, source.size, state.marker, *arrays
            )
            if status == wk.NEED and state.fetch(int(state.state[1])):
                continue
            break
        if status == wk.NEED:  # the file became shorter while it was walked
            status = wk.TRUNCATED
        found = int(state.state[1])
        state.index += found
        damage: tuple[Damage, ...] = ()
        if status not in (wk.DONE, wk.FULL):
            state.state[2] = 0
            damage = (state.damage(status),)
            state.index += 1
        if found or damage:
            heads, payloads, counts, sizes = (a[:found].copy() for a in arrays)
            yield BlockTable(heads, payloads, counts, sizes, begin, damage)
        if status == wk.DONE or int(state.state[0]) >= stop:
            return


_SAFE = re.compile(r"[^\x20-\x7e]")


def printable(text: str, limit: int = 200) -> str:
    r"""Make text of a file fit for one line of a report.

    Examples
    --------
    >>> print(printable("a" + chr(10) + "b"))
    a\x0ab
    """
    text = _SAFE.sub(lambda m: f"\\x{ord(m.group()):02x}", text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."

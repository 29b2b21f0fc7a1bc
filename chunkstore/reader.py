"""Read ranges of one array straight from its stored objects.

The index of a shard is read once, checked and kept; a range then costs one positioned read for
chunks that lie together, and one decode a chunk into the caller's array. Every byte that is used
has passed a crc32c. Decides nothing about which engine reads what: see ``chunkstore.store``.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.arrays import fill_value
from chunkstore.codecs import ChunkDamageError, checksum, zstd_size
from chunkstore.errors import CorruptDataError
from chunkstore.forks import new_rlock
from chunkstore.pool import DECODERS, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from chunkstore.arrays import ArrayMeta
    from chunkstore.places import Blob, Place

__all__ = [
    "ArrayReader",
    "IndexCache",
    "Shard",
    "decode_strings",
    "encode_strings",
    "grouped",
    "parse_shard",
    "read_plain",
]

#: What the index of a shard says of a chunk that is not stored.
ABSENT: Final = 2**64 - 1
#: Chunks nearer than this in an object are read at once, in bytes.
_NEAR: Final = 16 * 1024
#: No single read is longer than this, in bytes: what is read is decoded while the cache still holds it,
#: and a large range has work for several threads.
_LONGEST_READ: Final = 1024 * 1024
#: Chunks that one call can fill: systems take 1,024 buffers at most, two a chunk.
MOST_STRAIGHT: Final = 500
#: Ranges that decode to at least so many bytes are shared among threads.
_PARALLEL_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shard:
    """A stored object whose index has been checked."""

    blob: Blob
    offsets: NDArray[np.uint64]
    """Where each chunk starts in the object; ``ABSENT`` where it is not stored."""
    lengths: NDArray[np.uint64]
    """Stored bytes of each chunk; ``ABSENT`` where it is not stored."""

    @property
    def nbytes(self) -> int:
        """Bytes that keeping this in memory takes."""
        return int(self.offsets.nbytes + self.lengths.nbytes) + 256


def parse_shard(blob: Blob, n_chunks: int) -> Shard:
    """Check the index at the end of an object and return it.

    Raises
    ------
    ChunkDamageError
        If the object is too short, its index fails its checksum, or a chunk lies outside it.
    """
    length = 16 * n_chunks + 4
    if blob.size < length:
        raise ChunkDamageError(f"the object has {blob.size} bytes, its index alone takes {length}")
    tail = blob.tail[-length:]
    if len(tail) < length:
        raise ChunkDamageError(f"only {len(tail)} of the {length} bytes of its index can be read")
    stored, found = int.from_bytes(tail[-4:], "little"), checksum(tail[:-4])
    if stored != found:
        raise ChunkDamageError(f"the index fails its checksum: crc32c is {found:08x}, stored {stored:08x}")
    table = np.frombuffer(tail[:-4], dtype="<u8").reshape(n_chunks, 2).astype(np.uint64)
    offsets, lengths = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])
    present = offsets != ABSENT
    limit = np.uint64(blob.size - length)
    if (
        ((lengths != ABSENT) != present).any()
        or (offsets[present] > limit).any()
        or (lengths[present] > limit - offsets[present]).any()
    ):
        raise ChunkDamageError(f"the index points outside the {blob.size} bytes of the object")
    return Shard(blob, offsets, lengths)


class IndexCache:
    """Checked indices of the shards most recently read, within a bound of bytes. Thread-safe.

    The garbage collector or a handler of a signal may use it in the middle of what it does itself. Cleared
    there, it is empty a moment later.
    """

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        self.limit = limit
        self.held = 0
        self._lock = new_rlock()
        self._doomed = False
        self._shards: OrderedDict[tuple[str, int], Shard] = OrderedDict()

    def find(self, key: tuple[str, int]) -> Shard | None:
        """Return a shard that is kept, or None."""
        with self._lock:
            shard = self._kept().get(key)
            if shard is not None and key in self._shards:
                self._shards.move_to_end(key)
            return shard

    def keep(self, key: tuple[str, int], shard: Shard) -> None:
        """Keep a shard, letting go of those not used for longest."""
        with self._lock:
            old = self._kept().pop(key, None)
            more = shard.nbytes - (old.nbytes if old else 0)
            self.held += more
            self._shards[key] = shard
            while self.held > self.limit and len(self._shards) > 1:
                less = self._shards.popitem(last=False)[1].nbytes
                self.held -= less

    def clear(self) -> None:
        """Let go of everything."""
        self._doomed = True
        if not self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - no other way to tell
            with self._lock:
                self._kept()

    def _kept(self) -> OrderedDict[tuple[str, int], Shard]:
        if self._doomed:
            self._doomed = False
            self._shards.clear()
            self.held = 0
        return self._shards


@dataclass(slots=True)  # not frozen: there are many, and freezing triples what making one takes
class _Piece:
    """Part of one chunk that goes to one stretch of an output."""

    chunk: int
    """Index of the chunk along the whole array."""
    low: int
    high: int
    """Half-open range inside the chunk."""
    out: NDArray[Any]
    """Where the values go, [high - low] or [high - low, items]."""


@dataclass(slots=True)
class _Job:
    """One read of neighbouring chunks of one shard."""

    index: int
    """Index of the shard."""
    shard: Shard
    spans: list[tuple[int, int, int]]
    """(offset, stored bytes, chunk), ascending."""
    pieces: dict[int, list[_Piece]]
    """Where the values of each chunk go."""


class ArrayReader:
    """Reads one sharded array. Thread-safe: it holds nothing but the cache of indices."""

    def __init__(
        self,
        place: Place,
        meta: ArrayMeta,
        *,
        stored: Sequence[tuple[int, int]] | None = None,
        cache: IndexCache | None = None,
        describe: Callable[[int, int], str] | None = None,
    ) -> None:
        self.place = place
        self.meta = meta
        self.codec = meta.codec
        self._dtype = meta.dtype
        self._as_stored = self.codec.name == "none" and meta.dtype.newbyteorder("<") == meta.dtype
        self.fill = fill_value(meta.dtype)
        self.cache = cache or IndexCache()
        self._describe = describe
        self._stored = None if stored is None else np.asarray(stored, dtype=np.int64).reshape(-1, 2)

    def must_exist(self, shard: int) -> bool:
        """Whether the store's attributes say that this shard was written."""
        if self._stored is None or not len(self._stored):
            return False
        at = int(np.searchsorted(self._stored[:, 0], shard, side="right")) - 1
        return at >= 0 and shard < int(self._stored[at, 1])

    def shard(self, index: int) -> Shard | None:
        """Return shard ``index`` with its checked index, or None where nothing is stored.

        Raises
        ------
        CorruptDataError
            If the object is damaged, or is missing although the store says that it was written.
        """
        key = (self.meta.name, index)
        found = self.cache.find(key)
        if found is not None:
            return found
        n = self.meta.chunks_per_shard
        blob = self.place.blob(self.meta.key(index), 16 * n + 4)
        low, high = index * self.meta.shard, min((index + 1) * self.meta.shard, self.meta.shape[0])
        if blob is None:
            if self.must_exist(index):
                raise self.damage(low, high, "the shard is missing, though the store says it was written")
            return None
        try:
            found = parse_shard(blob, n)
        except ChunkDamageError as err:
            raise self.damage(low, high, str(err)) from None
        self.cache.keep(key, found)
        return found

    def damage(self, low: int, high: int, why: str, chunk: int | None = None) -> CorruptDataError:
        """Return the error for damaged obs [low, high): it names the store, field, place and sequences."""
        shard = low // self.meta.shard
        what = f"shard {shard}" if chunk is None else f"shard {shard}, chunk {chunk}"
        where = self._describe(low, high) if self._describe else ""
        return CorruptDataError(
            f"store {self.place.url}, field {self.meta.name!r}, {what} ({self.meta.key(shard)}), "
            f"obs [{low}, {high}){where}: {why}; run `chunkstore verify --deep` for the extent"
        )

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Decode obs [start, stop) into ``out``, [stop - start] or [stop - start, items]."""
        self.read_ranges([start], [stop], [out])

    def check_range(self, start: int, stop: int) -> None:
        """Check the crc32c of every chunk of [start, stop) without decoding.

        Raises
        ------
        CorruptDataError
            If one fails.
        """
        for chunk in range(start // self.meta.chunk, -(-stop // self.meta.chunk)):
            index, inner = divmod(chunk, self.meta.chunks_per_shard)
            shard = self.shard(index)
            if shard is None or int(shard.offsets[inner]) == ABSENT:
                continue
            at, length = int(shard.offsets[inner]), int(shard.lengths[inner])
            data = self._bytes(index, shard.blob, at, at + length)
            try:
                self.codec.verify(data)
            except ChunkDamageError as err:
                raise self._damaged(chunk, str(err)) from None

    def read_ranges(self, starts: Sequence[int], stops: Sequence[int], outs: Sequence[NDArray[Any]]) -> None:
        """Decode many ranges: each chunk is read and decoded once, however many ranges touch it."""
        chunk, per_shard = self.meta.chunk, self.meta.chunks_per_shard
        wanted: dict[int, list[_Piece]] = {}
        for start, stop, out in zip(starts, stops, outs, strict=True):
            at = start
            while at < stop:
                index = at // chunk
                low = index * chunk
                high = min(stop, low + chunk)
                piece = _Piece(index, at - low, high - low, out[at - start : high - start])
                wanted.setdefault(index // per_shard, []).append(piece)
                at = high
        jobs = [job for shard, pieces in wanted.items() for job in self._plan(shard, pieces)]
        decoded = self.meta.chunk_bytes * sum(len(job.spans) for job in jobs)
        if len(jobs) > 1 and (decoded >= _PARALLEL_BYTES or self.place.is_remote):
            DECODERS.each(self._run, jobs)
        else:
            for job in jobs:
                self._run(job)

    def _plan(self, index: int, pieces: list[_Piece]) -> list[_Job]:
        """Fill what is not stored, and return the reads that the rest of one shard needs."""
        shard = self.shard(index)
        if shard is None:
            for piece in pieces:
                piece.out[...] = self.fill
            return []
        first = index * self.meta.chunks_per_shard
        by_chunk: dict[int, list[_Piece]] = {}
        for piece in pieces:
            if int(shard.offsets[piece.chunk - first]) == ABSENT:
                piece.out[...] = self.fill
            else:
                by_chunk.setdefault(piece.chunk, []).append(piece)
        spans = sorted((int(shard.offsets[c - first]), int(shard.lengths[c - first]), c) for c in by_chunk)
        return [_Job(index, shard, group, by_chunk) for group in grouped(spans)]

    def _run(self, job: _Job) -> None:
        """Read one stretch of an object and decode its chunks."""
        if self._as_stored and self._fill(job):
            return
        base = job.spans[0][0]
        end = max(offset + length for offset, length, _ in job.spans)
        data = memoryview(self._bytes(job.index, job.shard.blob, base, end))
        for offset, length, chunk in job.spans:
            self._decode(chunk, data[offset - base : offset - base + length], length, job.pieces[chunk])

    def _bytes(self, index: int, blob: Blob, low: int, high: int) -> bytes | memoryview:
        """Return bytes [low, high) of a shard that was there when its index was read."""
        try:
            return blob.read([(low, high)])[0]
        except FileNotFoundError:
            first = index * self.meta.shard
            last = min(first + self.meta.shard, self.meta.shape[0])
            raise self.damage(first, last, "the shard vanished while open") from None

    def _fill(self, job: _Job) -> bool:
        """Read whole chunks that are stored as they are straight to where they go, and check them there.

        False where that cannot be done, or less was read than is stored: :meth:`_run` then goes on as usual.
        """
        if len(job.spans) > MOST_STRAIGHT:
            return False
        size, at = self.meta.chunk_bytes, job.spans[0][0]
        crc = self.codec.crc
        stored = size + (4 if crc else 0)
        outs: list[NDArray[Any]] = []
        for offset, length, chunk in job.spans:
            pieces = job.pieces[chunk]
            if offset != at or length != stored or len(pieces) != 1 or not self._takes(pieces[0]):
                return False
            outs.append(pieces[0].out.reshape(-1).view(np.uint8))
            at += length
        sums = np.empty((len(outs), 4), np.uint8)
        buffers = [b for out, told in zip(outs, sums, strict=True) for b in ((out, told) if crc else (out,))]
        try:
            if job.shard.blob.read_into(job.spans[0][0], buffers) != at - job.spans[0][0]:
                return False
        except FileNotFoundError:
            return False
        if crc:
            for out, told, (_, _, chunk) in zip(
                outs, sums.view("<u4")[:, 0].tolist(), job.spans, strict=True
            ):
                found = checksum(out)
                if found != told:
                    raise self._damaged(chunk, f"crc32c is {found:08x}, stored {told:08x}")
        return True

    def _takes(self, piece: _Piece) -> bool:
        """Whether a chunk is wanted whole, in the very form that it decodes to."""
        return (
            piece.high - piece.low == self.meta.chunk
            and piece.out.flags.c_contiguous
            and piece.out.dtype == self._dtype
        )

    def _damaged(self, chunk: int, why: str) -> CorruptDataError:
        low = chunk * self.meta.chunk
        high = min(low + self.meta.chunk, self.meta.shape[0])
        return self.damage(low, high, why, chunk % self.meta.chunks_per_shard)

    def _decode(self, chunk: int, data: memoryview, length: int, pieces: list[_Piece]) -> None:
        try:
            if len(data) != length:
                raise ChunkDamageError(f"{len(data)} bytes are there, the index says {length}")
            if len(pieces) == 1 and self._takes(pieces[0]):
                self.codec.decode_into(data, pieces[0].out)
                return
            whole = np.empty(self.meta.chunk_shape, self.meta.dtype)
            self.codec.decode_into(data, whole)
            for piece in pieces:
                piece.out[...] = whole[piece.low : piece.high]
        except ChunkDamageError as err:
            raise self._damaged(chunk, str(err)) from None


def grouped(spans: list[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Group (offset, length, chunk), sorted by offset, into reads of neighbours."""
    groups: list[list[tuple[int, int, int]]] = []
    base = end = 0
    for span in spans:
        offset, length, _ = span
        if groups and offset - end <= _NEAR and offset + length - base <= _LONGEST_READ:
            groups[-1].append(span)
        else:
            groups.append([span])
            base = end = offset
        end = max(end, offset + length)
    return groups


def encode_strings(values: Sequence[str]) -> bytes:
    """Return strings as the codec ``vlen-utf8`` writes them: a count, then length and bytes of each."""
    parts = [len(values).to_bytes(4, "little")]
    for value in values:
        data = value.encode("utf-8")
        parts += (len(data).to_bytes(4, "little"), data)
    return b"".join(parts)


def decode_strings(data: bytes | memoryview) -> list[str]:
    """Return the strings of a ``vlen-utf8`` chunk.

    Raises
    ------
    ChunkDamageError
        If a length points past the end, or the bytes are not UTF-8.

    Examples
    --------
    >>> decode_strings(encode_strings(["a", "", "bc"]))
    ['a', '', 'bc']
    """
    raw = bytes(data)
    if len(raw) < 4:
        raise ChunkDamageError("a chunk of strings has no count")
    count, at, found = int.from_bytes(raw[:4], "little"), 4, []
    if 4 * count > len(raw):
        raise ChunkDamageError(f"a chunk of {len(raw)} bytes claims {count} strings")
    try:
        for _ in range(count):
            end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
            if end > len(raw) or at + 4 > len(raw):
                raise ChunkDamageError("a string points past the end of its chunk")
            found.append(raw[at + 4 : end].decode("utf-8"))
            at = end
    except UnicodeDecodeError as err:
        raise ChunkDamageError(f"a string is not UTF-8: {err}") from None
    if at != len(raw):
        raise ChunkDamageError(f"{len(raw) - at} bytes follow the last string")
    return found


def read_plain(place: Place, meta: ArrayMeta) -> NDArray[Any]:
    """Read an array of plain chunks whole: what stands along ``sequence``, gaps and splits.

    Raises
    ------
    CorruptDataError
        If a chunk is damaged or missing.
    """

    def read(index: int) -> NDArray[Any]:
        count = min(meta.chunk, meta.shape[0] - index * meta.chunk)
        data = place.get(meta.key(index), 2 * MAX_TEXT)
        try:
            if data is None:
                raise ChunkDamageError("is missing, though such arrays are stored whole")
            if meta.is_string:
                return np.array(_decode_text(meta, data), dtype=object)[:count]
            whole = np.empty(meta.chunk_shape, meta.dtype)
            meta.codec.decode_into(data, whole)
            return whole[:count]
        except ChunkDamageError as err:
            raise CorruptDataError(
                f"store {place.url}, array {meta.name!r}, chunk {index} ({meta.key(index)}): {err}"
            ) from None

    if not meta.n_objects:
        return np.empty((0, *meta.shape[1:]), meta.dtype)
    parts = [read(0)]  # alone first: where that is missing, no more is asked for
    rest = range(1, meta.n_objects)
    parts += TABLES.each(read, rest) if place.is_remote else map(read, rest)
    return np.concatenate(parts)


#: Strings of one chunk never decode to more than this, in bytes.
MAX_TEXT: Final = 2**28


def _decode_text(meta: ArrayMeta, data: bytes) -> list[str]:
    body = meta.codec.verify(data)
    size = zstd_size(body)
    if size > MAX_TEXT:
        raise ChunkDamageError(f"a chunk of strings claims {size} bytes, more than {MAX_TEXT}")
    text = np.empty(size, np.uint8)
    try:
        meta.codec.compressor.decode(body, out=text)
    except Exception as err:
        raise ChunkDamageError(f"does not decode: {err}") from None
    found = decode_strings(text.tobytes())
    if len(found) != meta.chunk:
        raise ChunkDamageError(f"holds {len(found)} strings where {meta.chunk} are expected")
    return found

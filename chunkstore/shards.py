"""Whole shards: values become one object, written at once by one writer.

Chunks stand one after the other, then the index. The bytes depend on the values alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chunkstore.arrays import fill_value
from chunkstore.codecs import ChunkDamageError, checksum
from chunkstore.errors import ConfigError, UnknownNameError
from chunkstore.metadata import parse_root
from chunkstore.places import Blob, Place, open_place
from chunkstore.pool import ENCODERS
from chunkstore.reader import ABSENT, parse_shard

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkstore.arrays import ArrayMeta
    from chunkstore.layout import FieldSpec

__all__ = [
    "Chunk",
    "ShardReceipt",
    "ShardWriter",
    "StoreSkeleton",
    "add_chunks",
    "encode_shard",
    "open_skeleton",
]


@dataclass(frozen=True, slots=True)
class ShardReceipt:
    """What was written for one shard of one field."""

    key: str
    """Key of the object in the store."""
    nbytes: int
    """Its size; 0 where all values are the fill value and nothing is stored."""
    checksum: int | None
    """crc32c of the checksums of its chunks and index; None where nothing is stored. One of the whole object
    would say no more than lengths: data and their own crc32c always leave the same remainder."""


def _is_fill(values: NDArray[Any], fill: Any) -> bool:
    """Whether every value is, bit for bit, the fill value."""
    if not values.size:
        return True
    kind = np.dtype(f"u{values.dtype.itemsize}")
    bits, wanted = values.reshape(-1).view(kind), np.asarray(fill, values.dtype).reshape(1).view(kind)[0]
    return bool(bits[0] == wanted and bits[-1] == wanted and (bits == wanted).all())


def encode_shard(meta: ArrayMeta, values: NDArray[Any]) -> list[bytes]:
    """Return the object that holds ``values`` [<= shard] of a field, in pieces; none where all are fill.

    Chunks stand one after the other, then the index: offset and length of each as little-endian
    uint64, and a crc32c of the index.
    """
    encoder = _Encoder(meta)
    starts = range(0, len(values), meta.chunk)
    for data in ENCODERS.each(encoder.encode, (values[at : at + meta.chunk] for at in starts)):
        encoder.put(data)
    return encoder.parts()


class _Encoder:
    """The object of one shard, chunk by chunk."""

    def __init__(self, meta: ArrayMeta) -> None:
        self._meta = meta
        self._fill = fill_value(meta.dtype)
        self._little = meta.dtype.newbyteorder("<")
        self._chunks: list[bytes | None] = []

    def encode(self, values: NDArray[Any]) -> bytes | None:
        """Return a chunk, or None where all is fill; the last one of a store may be short."""
        meta = self._meta
        part = np.ascontiguousarray(values, dtype=self._little)
        if _is_fill(part, self._fill):
            return None
        if len(part) < meta.chunk:
            whole = np.full(meta.chunk_shape, self._fill, dtype=self._little)
            whole[: len(part)] = part
            part = whole
        return meta.codec.encode(part)

    def put(self, data: bytes | None) -> None:
        """Take the next chunk."""
        self._chunks.append(data)

    def parts(self) -> list[bytes]:
        """Return the whole object in pieces, none where there is nothing to store; lets go of the chunks."""
        chunks, self._chunks = self._chunks, []
        parts = [data for data in chunks if data is not None]
        if not parts:
            return []
        index = np.full((self._meta.chunks_per_shard, 2), ABSENT, dtype="<u8")
        there = [i for i, data in enumerate(chunks) if data is not None]
        lengths = np.array([len(data) for data in parts])
        index[there] = np.stack([np.cumsum(lengths) - lengths, lengths], axis=1)
        table = index.tobytes()
        return [*parts, table, checksum(table).to_bytes(4, "little")]


class Chunk(NamedTuple):
    """The next chunk of a shard."""

    writer: ShardWriter
    values: NDArray[Any]
    """[chunk] or [chunk, items]; the last one of a store may be short."""
    then: Callable[[], None] | None = None
    """Called when it is encoded, by the thread that has read it and has it in its cache."""


class ShardWriter:
    """One shard of one array, encoded chunk by chunk while its values are at hand.

    Nothing is stored before :meth:`StoreSkeleton.store_shard` takes it. Chunks come in order, each whole but
    the last of the shard; :func:`add_chunks` takes one of several arrays at a time.
    """

    def __init__(self, meta: ArrayMeta, field: str, shard_index: int, length: int) -> None:
        self.meta = meta
        self.field = field
        self.shard_index = shard_index
        self.length = length
        self.filled = 0
        self.encoder = _Encoder(meta)
        self._dtype, self._items = meta.dtype, meta.shape[1:]

    def check(self, values: NDArray[Any], at: int) -> None:
        """Raise ``ConfigError`` unless ``values`` are the chunk that begins with the ``at``-th obs."""
        shape, dtype = (min(self.meta.chunk, self.length - at), *self._items), values.dtype
        fits = dtype == self._dtype or dtype.newbyteorder("=") == self._dtype
        if values.shape != shape or not fits:
            raise ConfigError(
                f"the chunk at {at} of shard {self.shard_index} of field {self.field!r} takes "
                f"{self._dtype}{list(shape)}, got {dtype}{list(values.shape)}"
            )


def add_chunks(chunks: Sequence[Chunk]) -> None:
    """Encode the next chunks of some shards, side by side; the values may be changed afterwards.

    That holds where it fails, too. Several of one shard come in their order. To hand over more at a time
    costs less. What is to be done with a chunk ``then`` is done in this order for those of one shard only if
    they are handed over one by one.

    Raises
    ------
    ConfigError
        If values are not exactly the next chunk.
    """
    filled: dict[int, int] = {}
    for writer, values, _ in chunks:
        at = filled.get(id(writer), writer.filled)
        writer.check(values, at)
        filled[id(writer)] = at + len(values)
    for (writer, values, _), data in zip(chunks, ENCODERS.each(_encode, chunks), strict=True):
        writer.encoder.put(data)
        writer.filled += len(values)


def _encode(chunk: Chunk) -> bytes | None:
    data = chunk.writer.encoder.encode(chunk.values)
    if chunk.then is not None:
        chunk.then()
    return data


def _checksum_of(meta: ArrayMeta, chunks: Iterable[bytes | memoryview], index: bytes | memoryview) -> int:
    """Return the checksum of an object, of whose chunks and index each is as its own checksum says."""
    crc = 0
    for data in chunks:
        crc = checksum(data[-4:] if meta.codec.crc else data, crc)
    return checksum(index, crc)


class StoreSkeleton:
    """A store that is being written: writes whole shards and nothing else.

    Attributes
    ----------
    layout : Layout
    fields : mapping of str to FieldSpec
    arrays : mapping of str to ArrayMeta
        Fields and their masks.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        root = parse_root(place)
        self.url = place.url
        self.layout = root.layout
        self.fields: Mapping[str, FieldSpec] = dict(root.fields)
        self.masks: Mapping[str, str] = dict(root.masks)
        self.arrays: Mapping[str, ArrayMeta] = dict(root.arrays)
        self.status = root.status
        self.attrs: Mapping[str, Any] = dict(root.attributes)

    def _array(self, name: str) -> ArrayMeta:
        meta = self.arrays.get(name)
        if meta is None or not meta.sharded:
            raise UnknownNameError(
                f"store {self.url} has no field {name!r}; it has {', '.join(self.fields)}"
                + (f"; masks: {', '.join(self.masks.values())}" if self.masks else "")
            )
        return meta

    def write_shard(self, field: str, shard_index: int, values: NDArray[Any]) -> ShardReceipt:
        """Write a whole shard: all its obs, the last shard of the store up to ``n_obs``.

        What an earlier attempt left is removed first; the object appears at once or not at all.

        Parameters
        ----------
        field : str
            A field, or the mask of one.
        shard_index : int
        values : ndarray
            [obs of the shard] or [obs of the shard, items], of the field's dtype.

        Raises
        ------
        ConfigError
            If the values are not exactly the shard's.
        """
        low, high = self._range(shard_index)
        return self._write(field, shard_index, values, high - low)

    def _range(self, shard_index: int) -> tuple[int, int]:
        if not 0 <= shard_index < max(self.layout.n_shards, 1):
            raise ConfigError(
                f"store {self.url} has {self.layout.n_shards} shards, there is no shard {shard_index}"
            )
        return self.layout.shard_range(shard_index)

    def _open_array(self, field: str) -> ArrayMeta:
        if self.status != "incomplete":
            raise ConfigError(f"store {self.url} is complete; its shards are not written again")
        return self._array(field)

    def _write(self, field: str, shard_index: int, values: NDArray[Any], length: int) -> ShardReceipt:
        meta = self._open_array(field)
        values = np.asarray(values)
        if values.shape != (length, *meta.shape[1:]) or values.dtype.newbyteorder("=") != meta.dtype:
            raise ConfigError(
                f"shard {shard_index} of field {field!r} takes {meta.dtype}{[length, *meta.shape[1:]]}, "
                f"got {values.dtype}{list(values.shape)}; a shard is written whole or not at all"
            )
        return self._store(meta.key(shard_index), meta, encode_shard(meta, values))

    def begin_shard(self, field: str, shard_index: int) -> ShardWriter:
        """Return a writer of a whole shard that takes its values chunk by chunk; nothing is stored yet."""
        low, high = self._range(shard_index)
        return ShardWriter(self._open_array(field), field, shard_index, high - low)

    def store_shard(self, writer: ShardWriter) -> ShardReceipt:
        """Write a shard whose chunks have all come; like :meth:`write_shard` in all else.

        Raises
        ------
        ConfigError
            If chunks are missing.
        """
        if writer.filled != writer.length:
            raise ConfigError(
                f"shard {writer.shard_index} of field {writer.field!r} has {writer.filled} of its "
                f"{writer.length} obs; a shard is written whole or not at all"
            )
        meta = writer.meta
        return self._store(meta.key(writer.shard_index), meta, writer.encoder.parts())

    def _store(self, key: str, meta: ArrayMeta, parts: Sequence[bytes]) -> ShardReceipt:
        self._place.sweep_object(key)
        if not parts:
            self._place.delete(key)
            return ShardReceipt(key, 0, None)
        self._place.put_parts(key, parts)
        return ShardReceipt(key, sum(map(len, parts)), _checksum_of(meta, parts[:-2], parts[-1]))

    def shard_checksum(self, field: str, shard_index: int) -> tuple[int, int | None] | None:
        """Return (bytes, checksum) of the stored object of a shard, or None where there is none.

        The checksum is that of a receipt; None where the object is damaged.
        """
        meta = self._array(field)
        key = meta.key(shard_index)
        data = self._place.get(key)
        if data is None:
            return None
        view, room = memoryview(data), 16 * meta.chunks_per_shard + 4
        try:
            shard = parse_shard(Blob(self._place, key, len(data), data[-room:]), meta.chunks_per_shard)
            chunks, end = [], 0
            for at, length in zip(shard.offsets.tolist(), shard.lengths.tolist(), strict=True):
                if at == ABSENT:
                    continue
                if at != end:
                    return len(data), None
                end = at + length
                chunks.append(view[at:end])
                meta.codec.verify(chunks[-1])
        except ChunkDamageError:
            return len(data), None
        return len(data), _checksum_of(meta, chunks, view[-4:]) if end == len(data) - room else None

    def stored_shards(self, field: str) -> list[int]:
        """Return the indices of the shards of a field that are stored, ascending."""
        meta = self._array(field)
        suffix = "/0" if meta.items else ""
        found = []
        for key, _ in self._place.walk(f"{field}/c"):
            text = key[len(field) + 3 : len(key) - len(suffix)] if key.endswith(suffix) else ""
            if text.isascii() and text.isdigit():
                found.append(int(text))
        return sorted(found)


def open_skeleton(
    url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> StoreSkeleton:
    """Open a store that is being written, in a worker."""
    return StoreSkeleton(open_place(url, storage_options))

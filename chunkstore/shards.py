"""Whole shards: values become one object, written at once by one writer.

Chunks stand one after the other, then the index. The bytes depend on the values alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c
import numpy as np

from chunkstore.arrays import fill_value
from chunkstore.codecs import checksum
from chunkstore.errors import ConfigError, UnknownNameError
from chunkstore.metadata import parse_root
from chunkstore.places import Place, open_place
from chunkstore.pool import ENCODERS
from chunkstore.reader import ABSENT

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

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
    crc32c: int | None
    """Checksum of the whole object; None where nothing is stored."""


def _is_fill(values: NDArray[Any], fill: Any) -> bool:
    """Whether every value is, bit for bit, the fill value."""
    if not values.size:
        return True
    kind = np.dtype(f"u{values.dtype.itemsize}")
    bits, wanted = values.reshape(-1).view(kind), np.asarray(fill, values.dtype).reshape(1).view(kind)[0]
    return bool(bits[0] == wanted and bits[-1] == wanted and (bits == wanted).all())


def encode_shard(meta: ArrayMeta, values: NDArray[Any]) -> bytes | None:
    """Return the object that holds ``values`` [<= shard] of a field, or None where all are fill.

    Chunks stand one after the other, then the index: offset and length of each as little-endian
    uint64, and a crc32c of the index.
    """
    encoder = _Encoder(meta)
    starts = range(0, len(values), meta.chunk)
    for data in ENCODERS.each(encoder.encode, (values[at : at + meta.chunk] for at in starts)):
        encoder.put(data)
    parts = encoder.parts()
    return b"".join(parts) if parts else None


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
    count = max(1, min(ENCODERS.workers, len(chunks)))
    shares = [chunks[i::count] for i in range(count)]
    done = ENCODERS.each(_encode_all, shares)  # never this thread: see there
    for i, (writer, values, _) in enumerate(chunks):
        writer.encoder.put(done[i % count][i // count])
        writer.filled += len(values)


def _encode_all(chunks: Sequence[Chunk]) -> list[bytes | None]:
    encoded = []
    for writer, values, then in chunks:
        encoded.append(writer.encoder.encode(values))
        if then is not None:
            then()
    return encoded


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
        data = encode_shard(meta, values)
        return self._store(meta.key(shard_index), [] if data is None else [data])

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
        return self._store(writer.meta.key(writer.shard_index), writer.encoder.parts())

    def _store(self, key: str, parts: Sequence[bytes]) -> ShardReceipt:
        self._place.sweep_object(key)
        if not parts:
            self._place.delete(key)
            return ShardReceipt(key, 0, None)
        crc = 0
        for part in parts:
            crc = google_crc32c.extend(crc, part)
        self._place.put_parts(key, parts)
        return ShardReceipt(key, sum(map(len, parts)), crc)

    def shard_checksum(self, field: str, shard_index: int) -> tuple[int, int] | None:
        """Return (bytes, crc32c) of the stored object of a shard, or None where there is none."""
        data = self._place.get(self._array(field).key(shard_index))
        return None if data is None else (len(data), checksum(data))

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

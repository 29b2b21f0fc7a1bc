"""Whole shards: values become one object, written at once by one writer.

Chunks stand one after the other, then the index. The bytes depend on the values alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from chunkstore.arrays import ArrayMeta
    from chunkstore.layout import FieldSpec

__all__ = ["ShardReceipt", "StoreSkeleton", "encode_shard", "open_skeleton"]


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
    fill = fill_value(meta.dtype)
    little = meta.dtype.newbyteorder("<")
    values = np.ascontiguousarray(values, dtype=little)

    def encode(index: int) -> bytes | None:
        part = values[index * meta.chunk : (index + 1) * meta.chunk]
        if _is_fill(part, fill):
            return None
        if len(part) < meta.chunk:
            whole = np.full(meta.chunk_shape, fill, dtype=little)
            whole[: len(part)] = part
            part = whole
        return meta.codec.encode(part)

    index = np.full((meta.chunks_per_shard, 2), ABSENT, dtype="<u8")
    parts: list[bytes] = []
    at = 0
    pool = ENCODERS.get()
    running = [pool.submit(encode, i) for i in range(-(-len(values) // meta.chunk))]
    for i, future in enumerate(running):
        data = future.result()
        if data is not None:
            index[i] = (at, len(data))
            parts.append(data)
            at += len(data)
    if not parts:
        return None
    table = index.tobytes()
    return b"".join([*parts, table, checksum(table).to_bytes(4, "little")])


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
        low, high = self.layout.shard_range(shard_index)
        if not 0 <= shard_index < max(self.layout.n_shards, 1):
            raise ConfigError(
                f"store {self.url} has {self.layout.n_shards} shards, there is no shard {shard_index}"
            )
        return self._write(field, shard_index, values, high - low)

    def _write(self, field: str, shard_index: int, values: NDArray[Any], length: int) -> ShardReceipt:
        if self.status != "incomplete":
            raise ConfigError(f"store {self.url} is complete; its shards are not written again")
        meta = self._array(field)
        values = np.asarray(values)
        if values.shape != (length, *meta.shape[1:]) or values.dtype.newbyteorder("=") != meta.dtype:
            raise ConfigError(
                f"shard {shard_index} of field {field!r} takes {meta.dtype}{[length, *meta.shape[1:]]}, "
                f"got {values.dtype}{list(values.shape)}; a shard is written whole or not at all"
            )
        key = meta.key(shard_index)
        data = encode_shard(meta, values)
        self._place.sweep_object(key)
        if data is None:
            self._place.delete(key)
            return ShardReceipt(key, 0, None)
        self._place.put(key, data)
        return ShardReceipt(key, len(data), checksum(data))

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

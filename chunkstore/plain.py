"""Arrays that are not along ``obs``: columns, gaps, splits. Small, in plain chunks, stored whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.arrays import ArrayMeta, fill_value
from chunkstore.codecs import checksum
from chunkstore.errors import ConfigError
from chunkstore.metadata import dump_json
from chunkstore.reader import MAX_TEXT, encode_strings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from chunkstore.places import Place

__all__ = ["write_plain"]

#: Elements in a chunk of an array that is not along ``obs``.
PLAIN_CHUNK: Final = 65536


def write_plain(
    place: Place,
    name: str,
    values: NDArray[Any] | Sequence[str],
    dim: str,
    *,
    data_type: str,
    attributes: Mapping[str, Any] | None = None,
) -> ArrayMeta:
    """Write an array of plain chunks: along ``sequence``, ``gap`` or a split."""
    length = len(values)
    chunk = min(PLAIN_CHUNK, max(1, length))
    if data_type == "string":
        chunk = _text_chunk(name, values, chunk)
    meta = ArrayMeta.build(name, (length,), (dim,), data_type, chunk=chunk, attributes=attributes)
    for index in range(meta.n_objects):
        part = values[index * chunk : (index + 1) * chunk]
        if meta.is_string:
            texts = [*part, *[""] * (chunk - len(part))]
            stored = _encode_text(meta, texts)
        else:
            whole = np.full(chunk, fill_value(meta.dtype), dtype=meta.dtype)
            whole[: len(part)] = part
            stored = meta.codec.encode(whole)
        place.put(meta.key(index), stored)
    place.put(f"{name}/zarr.json", dump_json(meta.to_json()))
    return meta


def _text_chunk(name: str, values: Sequence[str] | NDArray[Any], chunk: int) -> int:
    """Return a length of chunks whose text a reader takes: halved while one would hold too much."""
    sizes = np.fromiter((4 * len(v) + 4 for v in values), dtype=np.int64, count=len(values))  # UTF-8 at most
    while len(sizes) and np.add.reduceat(sizes, np.arange(0, len(sizes), chunk)).max() > MAX_TEXT // 2:
        if chunk == 1:
            raise ConfigError(
                f"array {name!r} holds a text of {int(sizes.max()) // 4} characters; shorten it"
            )
        chunk //= 2
    return chunk


def _encode_text(meta: ArrayMeta, texts: Sequence[str]) -> bytes:
    try:
        raw = encode_strings(texts)
    except UnicodeEncodeError as err:
        raise ConfigError(
            f"array {meta.name!r}: {err.object!r:.80} is not text that UTF-8 can hold"
        ) from None
    data = bytes(meta.codec.compressor.encode(raw))
    return data + checksum(data).to_bytes(4, "little")

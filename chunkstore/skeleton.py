"""Make a store, write its shards, finish it: the steps that a job with many workers takes.

:func:`create_store` runs once and makes a store that is ``incomplete``; any number of workers then
:func:`open_skeleton` and write whole shards, each shard by one writer, in any order, again if need
be; :func:`finish_store` runs once and makes it complete. The bytes depend on the values alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import chunkstore
from chunkstore.arrays import MAX_CHUNK_BYTES, ArrayMeta, fill_value
from chunkstore.codecs import checksum, parse_name
from chunkstore.errors import (
    ConfigError,
    NotAStoreError,
    StoreExistsError,
    UnknownNameError,
    UnsupportedError,
)
from chunkstore.layout import RESERVED, FieldSpec, Layout, check_name
from chunkstore.places import LocalPlace, Place, open_place
from chunkstore.pool import ENCODERS
from chunkstore.reader import ABSENT, MAX_TEXT, encode_strings
from chunkstore.segments import check_ranges
from chunkstore.store import FORMAT, load_json, parse_root

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkstore.sequences import ColumnData
    from chunkstore.statistics import FieldStatistics

__all__ = ["ShardReceipt", "StoreSkeleton", "create_store", "finish_store", "open_skeleton"]

#: Elements in a chunk of an array that is not along ``obs``.
PLAIN_CHUNK: Final = 65536
CONVENTIONS: Final = "CF-1.11"


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
        if isinstance(self._place, LocalPlace):
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


def _dump(value: Any) -> bytes:
    """Return JSON bytes that depend on the value alone."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def field_attributes(spec: FieldSpec, *, mask: str | None) -> dict[str, Any]:
    """Return the attributes of a field's array."""
    found: dict[str, Any] = {}
    if spec.units is not None:
        found["units"] = spec.units
    if spec.long_name is not None:
        found["long_name"] = spec.long_name
    if spec.scale_factor is not None:
        found["scale_factor"] = float(spec.scale_factor)
    if spec.categories is not None:
        found["categories"] = list(spec.categories)
        if spec.categories and not any(not w or w.split() != [w] for w in spec.categories):
            found["flag_values"] = list(range(len(spec.categories)))
            found["flag_meanings"] = " ".join(spec.categories)
    if mask is not None:
        found["ancillary_variables"] = mask
    found.update(spec.attrs)
    return found


def _field_arrays(fields: Sequence[FieldSpec], layout: Layout, codec: str, crc: bool) -> list[ArrayMeta]:
    arrays = []
    for spec in fields:
        masked = spec.nullable and spec.np_dtype.kind != "f"
        mask = f"{spec.name}_valid" if masked else None
        common: Any = {"chunk": layout.chunk, "shard": layout.shard, "codec": codec, "crc": crc}
        arrays.append(
            ArrayMeta.build(
                spec.name,
                spec.shape(layout.n_obs),
                spec.dims,
                spec.np_dtype.name,
                attributes=field_attributes(spec, mask=mask),
                **common,
            )
        )
        if mask:
            about = {"long_name": f"whether {spec.name} holds a value"}
            arrays.append(
                ArrayMeta.build(mask, (layout.n_obs,), ("obs",), "bool", attributes=about, **common)
            )
    for meta in arrays:
        if meta.chunk_bytes > MAX_CHUNK_BYTES:
            raise ConfigError(
                f"a chunk of {meta.chunk} obs of field {meta.name!r} takes {meta.chunk_bytes} bytes, "
                f"at most {MAX_CHUNK_BYTES} can be decoded at once; lower `chunk`"
            )
    return arrays


def create_store(
    url: str | os.PathLike[str],
    *,
    fields: Sequence[FieldSpec],
    n_obs: int = 0,
    codec: str = "default",
    chunk: int | str | None = None,
    shard: int | str | None = None,
    layout: Layout | None = None,
    attrs: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    checksums: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> StoreSkeleton:
    """Make a store that is incomplete, with the arrays of all fields and nothing in them.

    Parameters
    ----------
    url : str or path
    fields : sequence of FieldSpec
    n_obs : int
        Length of ``obs``.
    codec : str
        One of :data:`chunkstore.codecs.CODECS`.
    chunk, shard : int or str, optional
        In obs (int), or in bytes of the widest field (``"1MiB"``).
    layout : Layout, optional
        Instead of ``n_obs``, ``chunk`` and ``shard``.
    attrs : mapping, optional
        Attributes of the root, JSON values.
    overwrite : bool
        Replace a store that is there. Anything else that is there is never removed.
    checksums : bool
        Whether each chunk ends in a crc32c.

    Raises
    ------
    StoreExistsError
        If something is there, and is not to be or cannot be replaced.
    ConfigError
        If a field, codec or length cannot be used.
    """
    parse_name(codec)
    specs = list(fields)
    if layout is None:
        layout = Layout.plan(n_obs, specs, chunk, shard)
    elif chunk is not None or shard is not None:
        raise ConfigError("give either a layout, or chunk and shard")
    arrays = _field_arrays(specs, layout, codec, checksums)
    _check_names([a.name for a in arrays])
    root_attrs = _root_attributes(attrs)
    place = open_place(url, storage_options)
    if place.read_only:
        raise UnsupportedError(f"{place.url} is read-only; write to a folder or an object store")
    own: dict[str, Any] = {
        "format": FORMAT,
        "status": "incomplete",
        "n_obs": layout.n_obs,
        "chunk": layout.chunk,
        "shard": layout.shard,
        "codec": codec,
        "fields": [f.name for f in specs],
        "columns": [],
        "writer": f"chunkstore {chunkstore.__version__}",
    }
    root = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"Conventions": CONVENTIONS, **root_attrs, "chunkstore": own},
    }
    data = _dump(root)
    _make_room(place, data, overwrite=overwrite)
    place.put("zarr.json", data)
    for meta in arrays:
        place.put(f"{meta.name}/zarr.json", _dump(meta.to_json()))
    return StoreSkeleton(place)


def _root_attributes(attrs: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(attrs or {})
    for name in ("chunkstore", "coordinates"):
        if name in found:
            raise ConfigError(f"the root attribute {name!r} belongs to the format; choose another name")
    try:
        _dump(found)
    except (TypeError, ValueError) as err:
        raise ConfigError(f"attributes must be JSON values: {err}") from None
    return found


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen or name in RESERVED:
            raise ConfigError(f"the name {name!r} would stand for two arrays; rename a field or column")
        seen.add(name)


def _make_room(place: Place, root: bytes, *, overwrite: bool) -> None:
    """Refuse what is there, or remove the store that is there: incomplete from the first moment."""
    if place.is_empty():
        return
    try:
        found = load_json(place, "zarr.json")
        is_ours = "chunkstore" in found["attributes"]
    except (TypeError, KeyError, ValueError):
        is_ours = False
    if not is_ours:
        raise StoreExistsError(
            f"{place.url} is not empty and is not a store of chunkstore; choose another output"
        )
    if not overwrite and not _never_made(place, found):
        raise StoreExistsError(f"there is already a store at {place.url}; use overwrite=True to replace it")
    place.put("zarr.json", root)
    place.clear(keep="zarr.json")


def _never_made(place: Place, root: Any) -> bool:
    """Whether a creation was broken off before all arrays were there, so that nothing can be lost."""
    own = root["attributes"]["chunkstore"]
    if not isinstance(own, dict) or own.get("status") != "incomplete":
        return False
    names = own.get("fields")
    return isinstance(names, list) and any(place.size(f"{n}/zarr.json") is None for n in names)


def open_skeleton(
    url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> StoreSkeleton:
    """Open a store that is being written, in a worker."""
    return StoreSkeleton(open_place(url, storage_options))


def _ranges(indices: Iterable[int]) -> list[list[int]]:
    """Return ascending indices as half-open ranges."""
    found: list[list[int]] = []
    for index in indices:
        if found and found[-1][1] == index:
            found[-1][1] += 1
        else:
            found.append([index, index + 1])
    return found


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
            stored = ENCODERS.get().submit(_encode_text, meta, texts).result()
        else:
            whole = np.full(chunk, fill_value(meta.dtype), dtype=meta.dtype)
            whole[: len(part)] = part
            stored = ENCODERS.get().submit(meta.codec.encode, whole).result()
        place.put(meta.key(index), stored)
    place.put(f"{name}/zarr.json", _dump(meta.to_json()))
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


def _column_arrays(place: Place, column: ColumnData, n: int) -> list[ArrayMeta]:
    if len(column.values) != n:
        raise ConfigError(f"column {column.name!r} has {len(column.values)} values for {n} sequences")
    about: dict[str, Any] = {}
    if column.units is not None:
        about["units"] = column.units
    if column.long_name is not None:
        about["long_name"] = column.long_name
    about.update(column.attrs)
    if column.dtype != "string":
        dtype = np.dtype(column.dtype)
        if dtype.kind not in "biuf":
            raise ConfigError(
                f"column {column.name!r} has dtype {column.dtype}; use numbers, bool or 'string'"
            )
        fill = np.nan if dtype.kind == "f" else None
        given = column.values
        if not isinstance(given, np.ndarray) or given.dtype == object:
            if fill is None and any(v is None for v in given):
                raise ConfigError(
                    f"column {column.name!r} of {dtype} has values that are not known; use a float"
                )
            given = np.array([fill if v is None else v for v in given], dtype=dtype)
        return [
            write_plain(
                place, column.name, given.astype(dtype), "sequence", data_type=dtype.name, attributes=about
            )
        ]
    texts = ["" if v is None else str(v) for v in column.values]
    made = [write_plain(place, column.name, texts, "sequence", data_type="string", attributes=about)]
    if column.categorical:
        words = sorted({str(v) for v in column.values if v is not None})
        code = {word: i for i, word in enumerate(words)}
        codes = np.array([-1 if v is None else code[str(v)] for v in column.values], dtype=np.int32)
        labels = {"long_name": f"code of {column.name}", "categories": words, "missing": -1}
        made.append(
            write_plain(place, f"{column.name}_code", codes, "sequence", data_type="int32", attributes=labels)
        )
    return made


def finish_store(
    url: str | os.PathLike[str],
    *,
    rowsize: Sequence[int] | NDArray[np.int64],
    ids: Sequence[str],
    columns: Mapping[str, ColumnData] | None = None,
    gaps: Sequence[tuple[int, int]] | NDArray[np.int64] = (),
    statistics: Mapping[str, FieldStatistics] | None = None,
    attrs: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    stored: Mapping[str, Iterable[int]] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    n_obs: int | None = None,
) -> None:
    """Write what stands along ``sequence``, the gaps and the root's metadata, and make the store complete.

    Runs in one process, once, last; running it again after it was broken off gives the same bytes.

    Parameters
    ----------
    rowsize : int64[S]
        Obs of each sequence; their sum is the length of ``obs``.
    ids : sequence of str
        One for each sequence, all different.
    columns : mapping of str to ColumnData, optional
    gaps : int64[G, 2], optional
        Half-open ranges of obs whose data was lost, ascending and apart.
    statistics : mapping of str to FieldStatistics, optional
    attrs : mapping, optional
        Attributes of the root, added to those of the creation.
    provenance : mapping, optional
        Kept in the ``chunkstore`` object: hash of the plan, versions of decoders. JSON values.
    stored : mapping of str to indices, optional
        Shards of each field and mask that a ledger knows to be stored. By default those that are there.
    n_obs : int, optional
        Another length of ``obs`` than at the creation (for writers that learn it last).

    Raises
    ------
    ConfigError
        If lengths do not fit together, or an id comes twice.
    """
    place = open_place(url, storage_options)
    skeleton = StoreSkeleton(place)
    if skeleton.status != "incomplete":
        raise ConfigError(f"store {place.url} is already complete")
    layout = skeleton.layout
    if n_obs is not None:
        layout = Layout(n_obs, layout.chunk, layout.shard)
    lengths = np.asarray(rowsize, dtype=np.int64).reshape(-1)
    if len(lengths) and lengths.min() < 0:
        raise ConfigError(f"sequence {int(np.argmin(lengths))} has a length of {int(lengths.min())}")
    total = sum(lengths.tolist())
    if total != layout.n_obs:
        raise ConfigError(f"rowsize sums to {total}, but the store has {layout.n_obs} obs")
    names = [str(i) for i in ids]
    if len(names) != len(lengths):
        raise ConfigError(f"{len(names)} ids for {len(lengths)} sequences")
    if len(set(names)) != len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise ConfigError(f"the id {twice!r} names two sequences; ids must differ")
    holes = np.asarray(gaps, dtype=np.int64).reshape(-1, 2)
    try:
        check_ranges(holes, layout.n_obs, "gap")
    except ValueError as err:
        raise ConfigError(str(err)) from None
    table = list((columns or {}).values())
    for column in table:
        check_name(column.name, "a column")
    _check_names(
        [*skeleton.arrays]
        + [c.name for c in table]
        + [f"{c.name}_code" for c in table if c.categorical and c.dtype == "string"]
    )
    for name in statistics or {}:
        if name not in skeleton.fields:
            raise UnknownNameError(f"statistics are given for {name!r}, which is no field of {place.url}")
    more = _root_attributes(attrs)

    arrays = [
        ArrayMeta(
            a.name,
            (layout.n_obs, *a.shape[1:]),
            a.dims,
            a.data_type,
            a.chunk,
            a.shard,
            True,
            a.codecs,
            a.attributes,
        )
        for a in skeleton.arrays.values()
        if a.sharded
    ]
    shards: dict[str, list[list[int]]] = {}
    for meta in arrays:
        there = skeleton.stored_shards(meta.name)
        if there and there[-1] >= layout.n_shards:
            raise ConfigError(f"field {meta.name!r} has a shard {there[-1]}, the store {layout.n_shards}")
        wanted = there if stored is None or meta.name not in stored else sorted(set(stored[meta.name]))
        if wanted != there:
            lost = sorted(set(wanted) ^ set(there))
            raise ConfigError(
                f"field {meta.name!r}: {len(lost)} shards differ between the ledger and the store, "
                f"first {lost[0]}; write them again"
            )
        shards[meta.name] = _ranges(there)
        if meta.shape != skeleton.arrays[meta.name].shape:
            place.put(f"{meta.name}/zarr.json", _dump(meta.to_json()))
    arrays.append(
        write_plain(
            place,
            "rowsize",
            lengths,
            "sequence",
            data_type="int64",
            attributes={"long_name": "number of obs of each sequence", "sample_dimension": "obs"},
        )
    )
    arrays.append(
        write_plain(
            place,
            "id",
            names,
            "sequence",
            data_type="string",
            attributes={"long_name": "name of each sequence", "cf_role": "timeseries_id"},
        )
    )
    for column in table:
        arrays.extend(_column_arrays(place, column, len(lengths)))
    for i, name in enumerate(("gap_start", "gap_stop")):
        about = {"long_name": ("first obs of each gap", "one past the last obs of each gap")[i]}
        arrays.append(
            write_plain(
                place, name, np.ascontiguousarray(holes[:, i]), "gap", data_type="int64", attributes=about
            )
        )
    own = dict(skeleton.attrs["chunkstore"])
    own.update(
        status="complete",
        n_obs=layout.n_obs,
        columns=[c.name for c in table],
        fingerprint=_fingerprint(layout, arrays, skeleton.fields, lengths, names, holes),
        shards=shards,
        statistics={k: statistics[k].to_json() for k in skeleton.fields if k in statistics}
        if statistics
        else {},
        splits={},
    )
    if provenance:
        own["provenance"] = dict(provenance)
    attributes = {k: v for k, v in skeleton.attrs.items() if k != "chunkstore"}
    coordinates = ["id", *[c.name for c in table], *_time_fields(skeleton.fields)]
    attributes |= {**more, "coordinates": " ".join(coordinates), "chunkstore": own}
    write_root(place, attributes, arrays)
    place.sweep()


def _time_fields(fields: Mapping[str, FieldSpec]) -> list[str]:
    """Return the fields that hold instants: integers with CF units of time, named ``time``."""
    return [n for n, f in fields.items() if n == "time" and f.units and " since " in f.units and not f.items]


def write_root(place: Place, attributes: Mapping[str, Any], arrays: Iterable[ArrayMeta]) -> None:
    """Write the root with the metadata of all arrays: the last step, and the only one readers see."""
    root = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": dict(attributes),
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": {a.name: a.to_json() for a in sorted(arrays, key=lambda a: a.name)},
        },
    }
    try:
        data = _dump(root)
    except (TypeError, ValueError) as err:
        raise NotAStoreError(f"the metadata of {place.url} are not JSON values: {err}") from None
    place.put("zarr.json", data)


def _fingerprint(  # noqa: PLR0917 - what is hashed, in its order
    layout: Layout,
    arrays: Sequence[ArrayMeta],
    fields: Mapping[str, FieldSpec],
    rowsize: NDArray[np.int64],
    ids: Sequence[str],
    gaps: NDArray[np.int64],
) -> str:
    """Return a hash of what decides which windows there are and what they hold."""
    digest = hashlib.sha256()
    described = {
        "format": FORMAT,
        "layout": [layout.n_obs, layout.chunk, layout.shard],
        "fields": [[a.name, a.data_type, a.items] for a in arrays if a.name in fields],
    }
    digest.update(_dump(described))
    for part in (
        rowsize.astype("<i8").tobytes(),
        encode_strings(ids),
        gaps.astype("<i8").tobytes(),
    ):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:32]

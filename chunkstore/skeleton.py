"""Make a store, write its shards, finish it: the steps that a job with many workers takes.

:func:`create_store` runs once and makes a store that is ``incomplete``; any number of workers then
:func:`open_skeleton` and write whole shards, each shard by one writer, in any order, again if need
be; :func:`finish_store` runs once and makes it complete. The bytes depend on the values alone.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from chunkstore import __version__
from chunkstore.arrays import MAX_CHUNK_BYTES, ArrayMeta
from chunkstore.codecs import parse_name
from chunkstore.errors import ConfigError, StoreExistsError, UnsupportedError
from chunkstore.finish import check_names, finish_store, root_attributes
from chunkstore.layout import FieldSpec, Layout, check_name
from chunkstore.metadata import FORMAT, dump_json, load_json
from chunkstore.places import Place, open_place
from chunkstore.shards import ShardReceipt, StoreSkeleton, open_skeleton

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

__all__ = ["ShardReceipt", "StoreSkeleton", "create_store", "finish_store", "open_skeleton"]

#: Attributes that would change what xarray makes of the stored values.
_READERS_OWN: Final = frozenset(
    {
        "_FillValue",
        "missing_value",
        "add_offset",
        "scale_factor",
        "_Unsigned",
        "_ARRAY_DIMENSIONS",
        "coordinates",
    }
    | {"valid_min", "valid_max", "valid_range", "dtype", "categories", "ancillary_variables"}
)
CONVENTIONS: Final = "CF-1.11"


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
    clash = sorted({*spec.attrs} & {*found, *_READERS_OWN})
    if clash:
        raise ConfigError(
            f"field {spec.name!r}: the attributes {clash} have a meaning of their own; rename them"
        )
    found.update(spec.attrs)
    return found


def _field_arrays(fields: Sequence[FieldSpec], layout: Layout, codec: str, crc: bool) -> list[ArrayMeta]:
    arrays = []
    for spec in fields:
        masked = spec.nullable and spec.np_dtype.kind != "f"
        mask = f"{spec.name}_valid" if masked else None
        if mask:
            check_name(mask, f"the mask of field {spec.name!r:.40}")
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
        Replace a store that is there, at once: not one that something still reads. Anything else that is
        there is never removed.
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
    check_names([a.name for a in arrays])
    root_attrs = root_attributes(attrs)
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
        "writer": f"chunkstore {__version__}",
        "token": uuid.uuid4().hex,
    }
    root = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"Conventions": CONVENTIONS, **root_attrs, "chunkstore": own},
    }
    data = dump_json(root)
    try:
        documents = {f"{meta.name}/zarr.json": dump_json(meta.to_json()) for meta in arrays}
    except (TypeError, ValueError) as err:
        raise ConfigError(f"attributes of fields must be JSON values: {err}") from None
    _make_room(place, data, overwrite=overwrite)
    place.put("zarr.json", data)
    for key, document in documents.items():
        place.put(key, document)
    return StoreSkeleton(place)


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

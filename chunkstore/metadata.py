"""The root of a store: what its ``zarr.json`` must say, read and checked, and written last.

Opening reads one object (an incomplete store: one more an array). Whatever breaks a rule of the
format is refused here by a :class:`~chunkstore.errors.FormatError`.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chunkstore.arrays import ArrayMeta
from chunkstore.errors import ConfigError, FormatError, NotAStoreError, StoreNotFoundError
from chunkstore.layout import FieldSpec, Layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chunkstore.places import Place

__all__ = ["FORMAT", "RootInfo", "dump_json", "load_json", "parse_root", "write_root"]

#: Version of the store format that is written, and the only one that is read.
FORMAT: Final = 1
_KNOWN_ATTRS: Final = ("units", "long_name", "scale_factor", "categories")
_DERIVED_ATTRS: Final = ("flag_values", "flag_meanings", "ancillary_variables")


@dataclass(frozen=True, slots=True)
class RootInfo:
    """What the root ``zarr.json`` says, checked."""

    status: str
    layout: Layout
    arrays: Mapping[str, ArrayMeta]
    fields: Mapping[str, FieldSpec]
    masks: Mapping[str, str]
    """Field name -> name of its mask."""
    columns: tuple[str, ...]
    attributes: Mapping[str, Any]
    """All attributes of the group."""

    @property
    def own(self) -> Mapping[str, Any]:
        """The ``chunkstore`` object of the attributes."""
        found: Mapping[str, Any] = self.attributes["chunkstore"]
        return found

    @property
    def lasting(self) -> str:
        """Hash of what the root of a complete store says for good: all but its splits."""
        own = {key: value for key, value in self.own.items() if key != "splits"}
        told = json.dumps({**self.attributes, "chunkstore": own}, sort_keys=True)
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


#: Bytes of one JSON document; that of a store of a thousand fields has about one million.
MAX_DOCUMENT: Final = 2**26


def load_json(place: Place, key: str) -> Any:
    """Return the JSON of an object, or None where there is none.

    Raises
    ------
    FormatError
        If it is not JSON, or longer than any metadata.
    """
    data = place.get(key, MAX_DOCUMENT)
    if data is None:
        return None
    try:
        return json.loads(data, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as err:
        raise FormatError(f"store {place.url}: {key} is not JSON: {err}") from None


def _finite(text: str) -> float:
    """Return a number of JSON; infinities are none, though ``1e999`` would become one."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text!r:.40} is too large a number")
    return value


def parse_root(place: Place) -> RootInfo:
    """Read and check the metadata of a store: one object, or one more an array where it is incomplete.

    Raises
    ------
    StoreNotFoundError, NotAStoreError, FormatError
    """
    root = load_json(place, "zarr.json")
    if root is None:
        if place.kind != "http" and place.is_empty():
            raise StoreNotFoundError(f"there is nothing at {place.url}")
        raise NotAStoreError(f"{place.url} is not a store: it has no zarr.json")
    attributes = root.get("attributes") if isinstance(root, dict) else None
    attributes = attributes if isinstance(attributes, dict) else {}
    own = attributes.get("chunkstore")
    if not isinstance(own, dict) or root.get("node_type") != "group":
        raise NotAStoreError(
            f"{place.url} is Zarr, but not a store of chunkstore: its root has no 'chunkstore' object; "
            "chunkstore.from_xarray writes one from any dataset"
        )
    try:
        return _parse_own(place, root, attributes, own)
    except FormatError as err:
        if str(err).startswith("store "):
            raise
        raise FormatError(f"store {place.url}: {err}") from None


def _parse_own(
    place: Place, root: Mapping[str, Any], attributes: Mapping[str, Any], own: Mapping[str, Any]
) -> RootInfo:
    if own.get("format") != FORMAT:
        raise FormatError(
            f"it has format {own.get('format')!r:.40}, this version reads {FORMAT}; upgrade chunkstore"
        )
    status = own.get("status")
    if status not in ("incomplete", "complete"):
        raise FormatError(f"status is {status!r:.40}; it must be 'incomplete' or 'complete'")

    def names(key: str) -> tuple[str, ...]:
        found = own.get(key, [])
        if not isinstance(found, list) or not all(isinstance(n, str) and n and "/" not in n for n in found):
            raise FormatError(f"{key} must be a list of names, found {found!r:.120}")
        if len(set(found)) != len(found):
            raise FormatError(f"{key} names something twice: {found!r:.120}")
        return tuple(found)

    numbers = [own.get(key) for key in ("n_obs", "chunk", "shard")]
    if not all(type(n) is int and 0 <= n <= 2**60 for n in numbers):
        raise FormatError(f"n_obs, chunk and shard are {numbers}; each must be an integer in 0..2**60")
    try:
        layout = Layout(*numbers)  # type: ignore[arg-type]
    except ConfigError as err:
        raise FormatError(str(err)) from None
    consolidated = root.get("consolidated_metadata")
    metadata = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    arrays: dict[str, ArrayMeta] = {}

    def array(name: str) -> ArrayMeta | None:
        found = metadata.get(name) if isinstance(metadata, dict) else load_json(place, f"{name}/zarr.json")
        if found is None:
            return None
        arrays[name] = ArrayMeta.parse(name, found)
        return arrays[name]

    fields: dict[str, FieldSpec] = {}
    masks: dict[str, str] = {}
    for name in names("fields"):
        meta = array(name)
        if meta is None:
            raise FormatError(f"field {name!r} has no array")
        mask = (
            array(f"{name}_valid") if meta.attributes.get("ancillary_variables") == f"{name}_valid" else None
        )
        for part in (meta, mask):
            if part is not None:
                _check_field(part, layout, status)
        if mask is not None:
            masks[name] = mask.name
        fields[name] = field_of(meta, nullable=mask is not None)
    if status == "incomplete":
        return RootInfo(status, layout, arrays, fields, masks, names("columns"), attributes)
    expected = {"rowsize": "int64", "id": "string", "gap_start": "int64", "gap_stop": "int64"}
    for name, data_type in expected.items():
        meta = array(name)
        if meta is None:
            raise FormatError(f"the array {name!r} is missing")
        if meta.data_type != data_type or meta.sharded or len(meta.shape) != 1:
            raise FormatError(f"the array {name!r} must be one-dimensional {data_type} in plain chunks")
    if arrays["rowsize"].shape != arrays["id"].shape or arrays["gap_start"].shape != arrays["gap_stop"].shape:
        raise FormatError("rowsize and id, gap_start and gap_stop must be of one length")
    for name in names("columns"):
        meta = array(name)
        if meta is None or meta.shape != arrays["rowsize"].shape or meta.sharded:
            raise FormatError(f"column {name!r} has no array of the length of rowsize")
        _check_attributes(meta)
        # a column of its own may have such a name: codes are none of the columns
        code = array(f"{name}_code") if meta.is_string and f"{name}_code" not in names("columns") else None
        if code is not None and (
            code.shape != meta.shape
            or code.data_type != "int32"
            or not isinstance(code.attributes.get("categories"), list)
        ):
            raise FormatError(f"{name}_code must be int32, as long as {name!r}, with its categories")
    for split in _splits(own).values():
        for suffix in ("start", "stop", "part"):
            meta = array(f"{split['array']}_{suffix}")
            if meta is None or meta.data_type != "int64" or len(meta.shape) != 1:
                raise FormatError(f"the array {split['array']}_{suffix} of a split is missing or not int64")
    return RootInfo(status, layout, arrays, fields, masks, names("columns"), attributes)


def _splits(own: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    found = own.get("splits", {})
    if not isinstance(found, dict) or not all(
        isinstance(s, dict)
        and isinstance(s.get("array"), str)
        and "/" not in s["array"]
        and isinstance(s.get("parts"), list)
        and all(isinstance(p, str) for p in s["parts"])
        for s in found.values()
    ):
        raise FormatError(f"splits must map names to objects with 'array' and 'parts', found {found!r:.120}")
    return found


def _check_field(meta: ArrayMeta, layout: Layout, status: str) -> None:
    if not meta.sharded or meta.is_string or (meta.chunk, meta.shard) != (layout.chunk, layout.shard):
        raise FormatError(
            f"field {meta.name!r} has chunks of {meta.chunk} in shards of {meta.shard}; "
            f"all fields of the store share {layout.chunk} and {layout.shard}"
        )
    if meta.dims[0] != "obs" or (status == "complete" and meta.shape[0] != layout.n_obs):
        raise FormatError(
            f"field {meta.name!r} has length {meta.shape[0]} along {meta.dims[0]!r}; "
            f"it must be {layout.n_obs} along 'obs'"
        )


def _check_attributes(meta: ArrayMeta) -> None:
    for name, kinds in (("units", str), ("long_name", str), ("scale_factor", (int, float))):
        found = meta.attributes.get(name)
        if found is not None and (not isinstance(found, kinds) or isinstance(found, bool)):
            raise FormatError(f"array {meta.name!r}: its attribute {name!r} is {found!r:.60}")


def field_of(meta: ArrayMeta, *, nullable: bool) -> FieldSpec:
    """Return the field that an array's metadata describes."""
    attributes = meta.attributes
    categories = attributes.get("categories")
    _check_attributes(meta)
    try:
        return FieldSpec(
            meta.name,
            meta.data_type,
            items=meta.items,
            units=attributes.get("units"),
            long_name=attributes.get("long_name"),
            nullable=nullable,
            scale_factor=attributes.get("scale_factor"),
            categories=None if categories is None else tuple(map(str, categories)),
            attrs={k: v for k, v in attributes.items() if k not in (*_KNOWN_ATTRS, *_DERIVED_ATTRS)},
        )
    except (ConfigError, TypeError) as err:
        raise FormatError(f"array {meta.name!r}: {err}") from None


def dump_json(value: Any) -> bytes:
    """Return JSON bytes that depend on the value alone."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


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
        data = dump_json(root)
    except (TypeError, ValueError) as err:
        raise NotAStoreError(f"the metadata of {place.url} are not JSON values: {err}") from None
    place.put("zarr.json", data)

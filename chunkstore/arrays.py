"""Metadata of one Zarr array of a store: built from what we want, checked against what we find.

The format allows few kinds of arrays (docs/store-format.md, "Arrays"); each is an
:class:`ArrayMeta`. Whatever stands in a ``zarr.json`` beyond that is refused here, by a
:class:`~chunkstore.errors.FormatError` that names the array and the rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.codecs import ChunkCodec, codec_chain, parse_chain
from chunkstore.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ArrayMeta", "fill_value"]

#: A store never has longer axes; keeps every product of offsets inside int64.
MAX_LENGTH: Final = 2**60
#: A shard never has more chunks: its index then takes 16 MiB.
MAX_CHUNKS_PER_SHARD: Final = 2**20
#: A chunk never decodes to more bytes; bounds what reading one obs of a store can cost.
MAX_CHUNK_BYTES: Final = 2**28
#: Chunks of arrays that are not along ``obs`` never hold more elements.
MAX_PLAIN_CHUNK: Final = 2**20
_DTYPES: Final = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16"}
    | {"float32", "float64"}
)
_STRING_CHAIN: Final = [
    {"name": "vlen-utf8"},
    {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    {"name": "crc32c"},
]
_INDEX_CODECS: Final = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]


def fill_value(dtype: np.dtype[Any]) -> Any:
    """Return what stands where nothing is stored: NaN for floats, else 0 or False."""
    return dtype.type(np.nan) if dtype.kind == "f" else dtype.type(0)


@dataclass(frozen=True, slots=True)
class ArrayMeta:
    """One array: of a field (sharded along ``obs``), or of a column, of gaps, of splits (plain chunks).

    Examples
    --------
    >>> meta = ArrayMeta.build("x", (10,), ("obs",), "float32", chunk=2, shard=4, codec="zstd")
    >>> meta.n_objects, meta.chunks_per_shard, meta.key(1)
    (3, 2, 'x/c/1')
    >>> ArrayMeta.parse("x", meta.to_json()) == meta
    True
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    data_type: str
    """Zarr's name of the dtype, or ``"string"``."""
    chunk: int
    """Length of an inner chunk along the first axis."""
    shard: int
    """Length of a stored object along the first axis; equal to ``chunk`` where not sharded."""
    sharded: bool
    codecs: tuple[Mapping[str, Any], ...]
    """The codecs of a chunk, as they stand in the metadata."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    codec: ChunkCodec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        dtype = np.dtype(np.uint8) if self.is_string else self.dtype
        chain = (
            [{"name": "bytes"}, *self.codecs[1:]] if self.is_string else self.codecs
        )  # the bytes of strings are compressed like bytes
        object.__setattr__(self, "codec", parse_chain(chain, dtype))

    @property
    def is_string(self) -> bool:
        """Whether the array holds variable-length strings."""
        return self.data_type == "string"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Numpy's dtype of the values; object for strings."""
        return np.dtype(object) if self.is_string else np.dtype(self.data_type)

    @property
    def items(self) -> int:
        """Length of the vector of each element; 0 for scalars."""
        return self.shape[1] if len(self.shape) == 2 else 0

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Shape of an inner chunk."""
        return (self.chunk, *self.shape[1:])

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of an inner chunk."""
        return math.prod(self.chunk_shape) * (1 if self.is_string else self.dtype.itemsize)

    @property
    def chunks_per_shard(self) -> int:
        """Number of inner chunks in a stored object."""
        return self.shard // self.chunk

    @property
    def n_objects(self) -> int:
        """Number of objects that may be stored."""
        return -(-self.shape[0] // self.shard)

    def key(self, index: int) -> str:
        """Key of the stored object ``index`` in the store."""
        return f"{self.name}/c/{index}" + ("/0" if len(self.shape) == 2 else "")

    @classmethod
    def build(
        cls,
        name: str,
        shape: tuple[int, ...],
        dims: tuple[str, ...],
        data_type: str,
        *,
        chunk: int,
        shard: int | None = None,
        codec: str = "zstd",
        crc: bool = True,
        attributes: Mapping[str, Any] | None = None,
    ) -> ArrayMeta:
        """Return the metadata of a new array; ``shard=None`` gives plain chunks."""
        chain: list[Any] = (
            list(_STRING_CHAIN) if data_type == "string" else codec_chain(codec, np.dtype(data_type), crc=crc)
        )
        return cls(
            name,
            shape,
            dims,
            data_type,
            chunk,
            shard or chunk,
            shard is not None,
            tuple(chain),
            attributes or {},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the content of the array's ``zarr.json``."""
        if self.is_string:
            fill: Any = ""
        elif self.data_type.startswith("float"):
            fill = "NaN"
        else:
            fill = False if self.data_type == "bool" else 0
        codecs: list[Any] = [dict(c) for c in self.codecs]
        if self.sharded:
            codecs = [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": list(self.chunk_shape),
                        "codecs": codecs,
                        "index_codecs": _INDEX_CODECS,
                        "index_location": "end",
                    },
                }
            ]
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.data_type,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [self.shard, *self.shape[1:]]},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill,
            "codecs": codecs,
            "attributes": dict(self.attributes),
            "dimension_names": list(self.dims),
            "storage_transformers": [],
        }

    @classmethod
    def parse(cls, name: str, found: Any) -> ArrayMeta:
        """Check the content of a ``zarr.json`` and return what it describes.

        Raises
        ------
        FormatError
            If it breaks a rule of the format.
        """

        def refuse(what: str) -> FormatError:
            return FormatError(f"array {name!r}: {what}")

        def config(value: Any, kind: str) -> Mapping[str, Any]:
            if not isinstance(value, dict) or value.get("name") != kind:
                raise refuse(f"expected {kind!r}, found {value!r:.120}")
            inner = value.get("configuration", {})
            if not isinstance(inner, dict):
                raise refuse(f"the configuration of {kind!r} is {inner!r:.120}")
            return inner

        def lengths(value: Any, low: int, what: str) -> tuple[int, ...]:
            if not isinstance(value, list) or not 1 <= len(value) <= 2:
                raise refuse(f"{what} is {value!r:.120}; it must have one or two lengths")
            if not all(type(n) is int and low <= n <= MAX_LENGTH for n in value):
                raise refuse(f"{what} is {value!r:.120}; each length must lie in {low}..2**60")
            return tuple(value)

        if not isinstance(found, dict) or found.get("zarr_format") != 3 or found.get("node_type") != "array":
            raise refuse("is not the metadata of a Zarr v3 array")
        shape = lengths(found.get("shape"), 0, "its shape")
        data_type = found.get("data_type")
        if data_type != "string" and (not isinstance(data_type, str) or data_type not in _DTYPES):
            raise refuse(f"data_type {data_type!r:.60} is none that the format knows")
        outer = lengths(
            config(found.get("chunk_grid"), "regular").get("chunk_shape"), 1, "the shape of its chunks"
        )
        if config(found.get("chunk_key_encoding"), "default").get("separator", "/") != "/":
            raise refuse("its chunk keys must be separated by '/'")
        if found.get("storage_transformers"):
            raise refuse("storage transformers are not allowed")
        dims = found.get("dimension_names")
        if not isinstance(dims, list) or len(dims) != len(shape) or not all(isinstance(d, str) for d in dims):
            raise refuse(f"dimension_names is {dims!r:.120}; every dimension needs its name")
        attributes = found.get("attributes", {})
        codecs = found.get("codecs")
        if not isinstance(attributes, dict) or not isinstance(codecs, list) or not codecs:
            raise refuse("attributes must be an object and codecs a list of at least one")
        fill = found.get("fill_value")
        expected: Any = "" if data_type == "string" else "NaN" if data_type.startswith("float") else 0
        if fill != expected or isinstance(fill, float):
            raise refuse(f"fill_value is {fill!r:.60}, the format says {expected!r}")

        inner, sharded = outer, isinstance(codecs[0], dict) and codecs[0].get("name") == "sharding_indexed"
        if sharded:
            settings = config(codecs[0], "sharding_indexed")
            inner = lengths(settings.get("chunk_shape"), 1, "the shape of its inner chunks")
            if len(codecs) != 1 or settings.get("index_location", "end") != "end":
                raise refuse("the index of a shard stands at its end, and no codec follows the sharding")
            if settings.get("index_codecs") != _INDEX_CODECS:
                raise refuse("the index of a shard must be little-endian with a crc32c")
            codecs = settings.get("codecs")
            if not isinstance(codecs, list) or not codecs:
                raise refuse("the shards name no codecs")
        if not len(shape) == len(outer) == len(inner) or not shape[1:] == outer[1:] == inner[1:]:
            raise refuse(f"shape {shape}, shards {outer} and chunks {inner} must agree beyond the first axis")
        if outer[0] % inner[0] or outer[0] // inner[0] > MAX_CHUNKS_PER_SHARD:
            raise refuse(
                f"a shard of {outer[0]} must be 1..{MAX_CHUNKS_PER_SHARD} times the chunk of {inner[0]}"
            )
        if not sharded and (outer[0] > MAX_PLAIN_CHUNK or len(shape) != 1):
            raise refuse(
                f"chunks of {outer} are not sharded; these hold at most {MAX_PLAIN_CHUNK}, in one dimension"
            )
        if data_type == "string" and (codecs[0] != {"name": "vlen-utf8"} or len(shape) != 1):
            raise refuse("strings stand in one dimension, by the codec vlen-utf8")
        try:
            meta = cls(
                name, shape, tuple(dims), data_type, inner[0], outer[0], sharded, tuple(codecs), attributes
            )
        except FormatError as err:
            raise refuse(str(err)) from None
        if meta.chunk_bytes > MAX_CHUNK_BYTES:
            raise refuse(f"a chunk decodes to {meta.chunk_bytes} bytes, more than {MAX_CHUNK_BYTES}")
        return meta

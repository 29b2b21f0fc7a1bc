"""Which code decodes a field: our own reader or the zarrs pipeline, and which part of a read.

zarrs checks the crc32c of a chunk only where it decodes a shard whole. So whole shards may go
through it, and parts of shards go direct, where every checksum is checked.
"""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chunkstore.codecs import has_pcodec
from chunkstore.errors import ConfigError
from chunkstore.forks import new_lock
from chunkstore.text import human_bytes

if TYPE_CHECKING:
    from chunkstore.arrays import ArrayMeta
    from chunkstore.places import Place

__all__ = ["EngineInfo", "choose_engine", "direct_works", "route", "usable_cores"]

logger = logging.getLogger(__name__)

#: Fewer decoded bytes go direct: the cost of a call of zarrs outweighs its threads (benchmarks/store.py).
_ZARRS_LEAST_BYTES: Final = 4 * 1024 * 1024
#: On 2 cores our own reader decoded faster than zarrs, with every codec (benchmarks/store.py). Ours decodes
#: on eight threads at most, zarrs on all cores: from eight on zarrs is taken: reasoned, not measured.
_ZARRS_LEAST_CORES: Final = 8


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Which code decodes a field, and why."""

    name: str
    """``zarrs`` (whole shards; the reason says what goes direct), or ``direct`` for everything."""
    reason: str


def choose_engine(place: Place, meta: ArrayMeta, wanted: str) -> tuple[EngineInfo, Any]:
    """Return what decodes an array, and the zarr array that does where it is zarrs.

    Raises
    ------
    ConfigError
        If zarrs was asked for and cannot read the array.
    """
    if wanted == "direct":
        return EngineInfo("direct", "asked for"), None
    if place.kind == "memory":
        return EngineInfo("direct", "zarrs does not read the memory of this process"), None
    if wanted == "auto" and direct_works(meta) and usable_cores() < _ZARRS_LEAST_CORES:
        why = (
            f"{usable_cores()} cores: zarrs is taken from {_ZARRS_LEAST_CORES} on; on 2, where both were "
            "measured, our reader is faster"
        )
        return EngineInfo("direct", why), None
    try:
        pipeline = zarrs_array(place, meta)
    except Exception as err:
        if wanted == "zarrs":
            raise ConfigError(
                f"store {place.url}, field {meta.name!r}: zarrs cannot read it: {err}"
            ) from None
        logger.info("store %s, field %s: zarrs does not apply: %s", place.url, meta.name, err)
        return EngineInfo("direct", f"zarrs does not apply: {err}"), None
    least = 0 if wanted == "zarrs" else _ZARRS_LEAST_BYTES
    if not direct_works(meta):
        return EngineInfo(
            "zarrs", "all reads: the library for decoding pcodec direct is not installed"
        ), pipeline
    if meta.codec.crc and meta.shard * meta.chunk_bytes // meta.chunk < least:
        size = human_bytes(meta.shard * meta.chunk_bytes // meta.chunk)
        why = f"shards of {size}: those below {human_bytes(least)} decode faster direct"
        return EngineInfo("direct", why), None
    if not meta.codec.crc:
        why = (
            "all ranges that are read one by one" if not least else f"reads of {human_bytes(least)} and more"
        )
        why += "; many at once, and smaller ones, go direct" if least else "; many at once go direct"
    else:
        why = "whole shards; parts of shards go direct, where each checksum is checked"
    return EngineInfo("zarrs", why), pipeline


def route(meta: ArrayMeta, engine: str, wanted: str, start: int, stop: int) -> list[tuple[str, int, int]]:
    """Cut a range of obs into parts, each with the engine that reads it."""
    if engine != "zarrs":
        return [("direct", start, stop)]
    if not direct_works(meta) or (not meta.codec.crc and wanted == "zarrs"):
        return [("zarrs", start, stop)]
    first, last = -(-start // meta.shard) * meta.shard, stop // meta.shard * meta.shard
    least = 0 if wanted == "zarrs" else _ZARRS_LEAST_BYTES
    width = meta.chunk_bytes // meta.chunk
    if not meta.codec.crc and (stop - start) * width >= least:
        return [("zarrs", start, stop)]
    if first >= last or meta.shard * width < least:
        return [("direct", start, stop)]
    parts = [("direct", start, first), ("zarrs", first, last), ("direct", last, stop)]
    return [part for part in parts if part[1] < part[2]]


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def direct_works(meta: ArrayMeta) -> bool:
    """Whether our own reader can decode an array: pcodec needs its library."""
    return meta.codec.name != "pcodec" or has_pcodec()


def zarrs_array(place: Place, meta: ArrayMeta) -> Any:
    """Return a zarr array that decodes through zarrs, or raise where it would fall back."""
    import zarr
    from zarr.core.array import AsyncArray
    from zarr.core.metadata import ArrayV3Metadata
    from zarr.storage import StorePath

    with (
        _CONFIG_LOCK,
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Numcodecs codecs are not in the Zarr version 3")
        warnings.filterwarnings("ignore", "Successfully reconstructed a store defined in another")
        described = meta.to_json()
        described["attributes"] = {}
        path = StorePath(place.zarr_store(), meta.name)
        inner = AsyncArray(metadata=ArrayV3Metadata.from_dict(described), store_path=path)
    pipeline = inner.codec_pipeline
    if type(pipeline).__name__ != "ZarrsCodecPipeline" or getattr(pipeline, "impl", None) is None:
        raise TypeError(f"the pipeline is {type(pipeline).__name__}")
    return zarr.Array(inner)


_CONFIG_LOCK: Final = new_lock()

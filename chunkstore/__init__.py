"""chunkstore: a storage layer and training reader for time series and audio.

Names are loaded when they are first used, so that ``import chunkstore`` stays quick and needs no
torch, zarr or dask.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: public name -> module that holds it
_HOMES = {
    "ChunkStore": "store",
    "ColumnData": "sequences",
    "EngineInfo": "engine",
    "EpochSchedule": "schedule",
    "FieldSpec": "layout",
    "FieldStatistics": "statistics",
    "Layout": "layout",
    "Segments": "segments",
    "StoreSkeleton": "skeleton",
    "StoreWriter": "writer",
    "WindowDataset": "torch",
    "WindowIndex": "windows",
    "WindowLoader": "loader",
    "WindowSpec": "windows",
    "ZarrWindowDataset": "torch",
    "create_store": "skeleton",
    "finish_store": "skeleton",
    "from_xarray": "convert",
    "open_skeleton": "skeleton",
    "open_store": "store",
    "permutation": "permute",
    "verify_store": "verify",
}
_ERRORS = (
    "ChunkstoreError",
    "ConfigError",
    "CorruptDataError",
    "ForkError",
    "FormatError",
    "IncompleteStoreError",
    "IngestError",
    "InputError",
    "MemoryLimitError",
    "MissingDependencyError",
    "NotAStoreError",
    "SourceChangedError",
    "StateError",
    "StoreExistsError",
    "StoreNotFoundError",
    "UnknownNameError",
    "UnsupportedError",
)
_HOMES.update(dict.fromkeys(_ERRORS, "errors"))

__all__ = [  # noqa: PLE0604 - the names of the lazy table
    "__version__",
    *sorted(_HOMES),
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'chunkstore' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"chunkstore.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


if TYPE_CHECKING:
    from chunkstore.convert import from_xarray as from_xarray
    from chunkstore.engine import EngineInfo as EngineInfo
    from chunkstore.errors import ChunkstoreError as ChunkstoreError
    from chunkstore.errors import ConfigError as ConfigError
    from chunkstore.errors import CorruptDataError as CorruptDataError
    from chunkstore.errors import ForkError as ForkError
    from chunkstore.errors import FormatError as FormatError
    from chunkstore.errors import IncompleteStoreError as IncompleteStoreError
    from chunkstore.errors import IngestError as IngestError
    from chunkstore.errors import InputError as InputError
    from chunkstore.errors import MemoryLimitError as MemoryLimitError
    from chunkstore.errors import MissingDependencyError as MissingDependencyError
    from chunkstore.errors import NotAStoreError as NotAStoreError
    from chunkstore.errors import SourceChangedError as SourceChangedError
    from chunkstore.errors import StateError as StateError
    from chunkstore.errors import StoreExistsError as StoreExistsError
    from chunkstore.errors import StoreNotFoundError as StoreNotFoundError
    from chunkstore.errors import UnknownNameError as UnknownNameError
    from chunkstore.errors import UnsupportedError as UnsupportedError
    from chunkstore.layout import FieldSpec as FieldSpec
    from chunkstore.layout import Layout as Layout
    from chunkstore.segments import Segments as Segments
    from chunkstore.sequences import ColumnData as ColumnData
    from chunkstore.skeleton import StoreSkeleton as StoreSkeleton
    from chunkstore.skeleton import create_store as create_store
    from chunkstore.skeleton import finish_store as finish_store
    from chunkstore.skeleton import open_skeleton as open_skeleton
    from chunkstore.statistics import FieldStatistics as FieldStatistics
    from chunkstore.store import ChunkStore as ChunkStore
    from chunkstore.store import open_store as open_store
    from chunkstore.writer import StoreWriter as StoreWriter

"""ingest: fills chunkstore stores from Avro, audio and other files, on one machine or a dask cluster.

Examples
--------
>>> import ingest
>>> sorted(ingest.__all__)[:3]
['IngestResult', 'ingest', 'ingest_audio']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingest.api import ingest, ingest_audio, ingest_avro, plan_ingest
    from ingest.job import IngestResult
    from ingest.merging import merge

__all__ = ["IngestResult", "ingest", "ingest_audio", "ingest_avro", "merge", "plan_ingest"]

_HOMES = {
    "IngestResult": "ingest.job",
    "ingest": "ingest.api",
    "ingest_audio": "ingest.api",
    "ingest_avro": "ingest.api",
    "merge": "ingest.merging",
    "plan_ingest": "ingest.api",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ingest' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

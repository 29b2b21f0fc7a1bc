"""Avro object container files as a source: a columnar decoder behind the protocol of ``ingest``.

Everything but the fault codes is imported when it is first asked for: the decoder brings numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ingest.sources.avro.faults import CODES

if TYPE_CHECKING:
    from ingest.sources.avro.describe import describe, scan_text
    from ingest.sources.avro.options import AvroOptions
    from ingest.sources.avro.source import AvroSource

__all__ = ["CODES", "AvroOptions", "AvroSource", "describe", "scan_text"]

_PLACES = {"AvroOptions": "options", "AvroSource": "source", "describe": "describe", "scan_text": "describe"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value  # also where the import has put the module of that name
    return value

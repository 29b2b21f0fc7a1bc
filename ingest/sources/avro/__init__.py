"""Avro object container files as a source: a columnar decoder behind the protocol of ``ingest``."""

from __future__ import annotations

from ingest.sources.avro.describe import describe, scan_text
from ingest.sources.avro.faults import CODES
from ingest.sources.avro.options import AvroOptions
from ingest.sources.avro.source import AvroSource

__all__ = ["CODES", "AvroOptions", "AvroSource", "describe", "scan_text"]

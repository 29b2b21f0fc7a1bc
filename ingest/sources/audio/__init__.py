"""Audio: every format people have, decoded once, with exact lengths and everything counted."""

from __future__ import annotations

from ingest.sources.audio.codes import CODES
from ingest.sources.audio.options import AudioOptions
from ingest.sources.audio.source import AudioSource

__all__ = ["CODES", "AudioOptions", "AudioSource"]

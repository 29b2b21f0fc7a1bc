"""PCM, float and G.711 in WAV, read without a library: its headers need more care than its samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest.sources.audio import riff
from ingest.sources.audio.decode import BLOCK_VALUES, DecodeError, Note, truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

    Samples = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["PcmDecoder"]


class PcmDecoder:
    """PCM, float and G.711 in any WAV container, read as it stands."""

    def __init__(self, path: str) -> None:
        self._path = path
        size = Path(path).stat().st_size
        with Path(path).open("rb") as file:
            try:
                self._facts = riff.read_facts(file, size)
            except riff.RiffError as err:
                raise DecodeError("audio-bad-header", str(err)) from err
        facts = self._facts
        if not facts.plain:
            raise DecodeError("audio-unsupported", f"WAV format tag 0x{facts.tag:04x} is not PCM")
        self.rate, self.channels, self.codec = facts.rate, facts.channels, facts.codec
        self.name, self.claimed = "chunkstore pcm", facts.claimed
        self.notes: list[Note] = []

    def _raw(self) -> Iterator[bytes]:
        facts = self._facts
        step = max(1, BLOCK_VALUES // facts.channels) * facts.block
        left = facts.frames * facts.block
        with Path(self._path).open("rb") as file:
            file.seek(facts.start)
            while left:
                raw = file.read(min(step, left))
                if len(raw) < min(step, left):
                    raise DecodeError("audio-changed", "the file became shorter while it was read")
                left -= len(raw)
                yield raw

    def _low(self) -> bool:
        """Whether 24-bit (or other) samples stand at the low end of wider bytes; looks at them all.

        They do where some byte below them is not zero, and those above are zero or repeat the sign.
        """
        facts = self._facts
        need = -(-facts.bits // 8)
        if facts.tag != 1 or need >= facts.width:
            return False
        low, zero, signed = False, True, True
        for raw in self._raw():
            octets = np.frombuffer(raw, np.uint8).reshape(-1, facts.width)
            octets = octets[:, ::-1] if facts.big else octets
            above, sign = octets[:, need:], np.where(octets[:, need - 1 : need] & 128, 255, 0)
            zero, signed = zero and not above.any(), signed and bool((above == sign).all())
            if not (zero or signed):
                return False
            low = low or bool(octets[:, : facts.width - need].any())
        return low

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels]."""
        facts = self._facts
        low = self._low()
        for raw in self._raw():
            yield riff.to_float32(raw, facts, low)
        if facts.stated < 0:
            self.notes.append(
                Note(
                    "audio-length-unstated",
                    f"the header leaves the length open; counted {facts.frames} frames",
                )
            )
        elif facts.claimed > facts.frames:
            self.notes.append(truncated(facts.claimed, facts.frames))
        if facts.more:
            self.notes.append(
                Note(
                    "audio-more-data",
                    f"{facts.more} bytes behind the samples seem to be samples too; they were not read",
                    offset=facts.start + facts.nbytes,
                )
            )

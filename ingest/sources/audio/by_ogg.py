"""Ogg, link by link, judged by a walk over its pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ingest.sources.audio import ogg
from ingest.sources.audio.by_sndfile import SndfileDecoder, Window
from ingest.sources.audio.decode import DecodeError, Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    Samples = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["OggDecoder"]


class OggDecoder:
    """Every link of an Ogg file, one after the other, compared with what its pages say."""

    def __init__(self, path: str) -> None:
        self._path = path
        with Path(path).open("rb") as file:
            self._walk = ogg.walk(file)
        links = [link for link in self._walk.links if link.codec]
        if not links:
            raise DecodeError(
                "audio-no-stream", "the Ogg file holds no stream of Vorbis, Opus, FLAC or Speex"
            )
        if any(link.streams > 1 for link in links):
            raise DecodeError("audio-unsupported", "the Ogg file holds several streams side by side")
        self._links = links
        first = self._open(links[0])
        self._first = first
        self.rate, self.channels, self.name = first.rate, first.channels, first.name
        self.codec = links[0].codec
        frames = [self._frames(link) for link in links]
        self.claimed = -1 if -1 in frames else sum(frames)
        self.notes: list[Note] = []

    def _frames(self, link: ogg.Link) -> int:
        return link.frames * self.rate // link.rate if link.frames >= 0 and link.rate else -1

    def _open(self, link: ogg.Link) -> SndfileDecoder:
        head = ogg.opus_page(link.head) if link.codec == "opus" else link.head
        if len(self._walk.links) == 1 and link.start == 0 and head == link.head:
            return SndfileDecoder(self._path)
        window = Window(self._path, link.start + len(link.head), link.stop, head)
        return SndfileDecoder(cast("BinaryIO", window))

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels]."""
        walk, total = self._walk, 0
        for index, link in enumerate(self._links):
            decoder = self._first if index == 0 else self._open(link)
            if (decoder.rate, decoder.channels) != (self.rate, self.channels):
                raise DecodeError(
                    "audio-format-changes",
                    f"link {index} of the chained Ogg has {decoder.channels} channels at {decoder.rate} Hz, "
                    f"the first {self.channels} at {self.rate}",
                    link.start,
                )
            for block in decoder.raw_blocks("float32"):
                total += len(block)
                yield block
        lost = sum(link.lost_pages for link in self._links)
        if walk.bad_count or lost or walk.junk_bytes:
            self.notes.append(
                Note(
                    "audio-damaged",
                    f"{walk.bad_count} Ogg pages fail their checksum, {lost} are missing, "
                    f"{walk.junk_bytes} bytes lie between pages; {total} of {self.claimed} "
                    "claimed frames were decoded",
                    walk.bad_pages[0] if walk.bad_pages else None,
                    max(0, self.claimed - total),
                )
            )
        elif walk.cut or not self._links[-1].ended:
            self.notes.append(
                Note(
                    "audio-truncated", f"the Ogg file breaks off; {total} frames were decoded before its end"
                )
            )
        elif self.claimed >= 0 and abs(self.claimed - total) > (self.codec == "opus") * len(self._links):
            self.notes.append(
                Note(
                    "audio-header-frames",
                    f"the Ogg pages claim {self.claimed} frames, {total} were decoded",
                    frames=max(0, self.claimed - total),
                )
            )
        if len(self._links) > 1:
            self.notes.append(
                Note(
                    "audio-chained",
                    f"the Ogg file is a chain of {len(self._links)} streams; all were decoded",
                )
            )

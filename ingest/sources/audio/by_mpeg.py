"""MPEG audio by one of two libraries, judged by a walk over its frames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ingest.sources.audio import mpeg
from ingest.sources.audio.by_av import AvDecoder
from ingest.sources.audio.by_sndfile import SndfileDecoder, Window
from ingest.sources.audio.decode import DecodeError, Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    Samples = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["Mp3Decoder"]


def _tag(size: int) -> bytes:
    """Make an empty ID3 tag: libsndfile takes its bytes for audio when it guesses a length."""
    size = min(size, 64 << 20)
    return b"ID3\x03\0\0" + bytes((size >> shift) & 127 for shift in (21, 14, 7, 0)) + bytes(size)


class Mp3Decoder:
    """MPEG audio by one of two libraries, compared with a walk over its frames."""

    def __init__(self, path: str, library: str) -> None:
        with Path(path).open("rb") as file:
            self._walk = mpeg.walk(file)
        walk = self._walk
        if not walk.frames:
            raise DecodeError("audio-no-frames", "no MPEG audio frame can be found in the file")
        if len(walk.rates) > 1:
            rates = ", ".join(map(str, walk.rates))
            raise DecodeError("audio-format-changes", f"the sample rate changes within the file: {rates} Hz")
        if len(walk.widths) > 1:  # libsndfile ends where they change
            raise DecodeError(
                "audio-format-changes",
                f"the channels change within the file: {walk.widths[0]}, then {walk.widths[1]}",
            )
        self._inner = AvDecoder(path) if library == "av" else self._sndfile(path)
        self.rate, self.channels, self.name = self._inner.rate, self._inner.channels, self._inner.name
        self.codec = "mp3"
        info = walk.info
        if info is None or info.frames < 0:
            self.claimed = -1
        else:
            per_frame = walk.samples // walk.frames
            self.claimed = max(0, info.frames * per_frame - max(0, info.delay) - max(0, info.padding))
        self.notes: list[Note] = []

    def _sndfile(self, path: str) -> SndfileDecoder | AvDecoder:
        """Open with libsndfile, which ends where it believes the end to be: tell it the truth.

        It takes the length from the information frame, else from the bit rate of the first frame. Where
        the former is wrong it is shown one that states what the walk counted; where the latter falls short,
        another decoder has to do.
        """
        walk, size = self._walk, Path(path).stat().st_size
        decoder = SndfileDecoder(path)
        stated = walk.info.frames if walk.info else -1
        if stated == walk.frames or (stated < 0 and decoder.claimed >= walk.samples):
            return decoder
        before = mpeg.stating(walk.first, walk.frames)
        if before is None and mpeg.is_free(walk.first[:4]):  # FFmpeg reads none of these
            before = _tag(2 * max(0, walk.samples - decoder.claimed) * size // walk.samples + 4096)
        if before is None:
            raise DecodeError(
                "audio-header-frames",
                f"libsndfile would end after {decoder.claimed} of the {walk.samples} frames that the "
                "MPEG frame headers are good for",
            )
        window = Window(path, walk.start, size, before)
        return SndfileDecoder(cast("BinaryIO", window))

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels]."""
        walk, count = self._walk, 0
        inner = self._inner
        for block in inner.raw_blocks("float32") if isinstance(inner, SndfileDecoder) else inner.blocks():
            count += len(block)
            yield block
        per_frame = walk.samples // walk.frames
        if walk.junk_bytes:
            start, stop = walk.junk[0]
            self.notes.append(
                Note(
                    "audio-damaged",
                    f"{walk.junk_bytes} bytes in {len(walk.junk)} places are no MPEG frame, first "
                    f"{stop - start} bytes at {start}; {count} frames were decoded, the frame headers "
                    f"are good for {walk.expected}",
                    start,
                    max(0, self.claimed - count) if self.claimed >= 0 else 0,
                )
            )
        elif walk.cut:
            self.notes.append(
                Note(
                    "audio-truncated",
                    f"the last MPEG frame is cut after {walk.cut} bytes; {count} frames were decoded"
                    + (f", the header claims {self.claimed}" if self.claimed >= 0 else ""),
                    frames=max(0, self.claimed - count) if self.claimed >= 0 else 0,
                )
            )
        elif abs(count - walk.expected) > 2 * per_frame:
            self.notes.append(
                Note(
                    "audio-damaged",
                    f"{count} frames were decoded, the MPEG frame headers are good for {walk.expected}",
                    frames=max(0, walk.expected - count),
                )
            )
        if self.claimed >= 0 and self.claimed != count and not walk.junk_bytes and not walk.cut:
            self.notes.append(
                Note(
                    "audio-header-frames",
                    f"the header claims {self.claimed} frames, {count} were decoded",
                    frames=max(0, self.claimed - count),
                )
            )

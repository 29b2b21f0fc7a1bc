"""What libsndfile reads, strictly in order; and files as it is meant to see them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from ingest.sources.audio import riff
from ingest.sources.audio.claims import read_claim
from ingest.sources.audio.decode import (
    BLOCK_VALUES,
    DecodeError,
    Note,
    reason,
    soundfile_module,
    truncated,
)
from ingest.sources.audio.sniff import HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    Samples = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["AiffDecoder", "ClaimingDecoder", "PackedWavDecoder", "SndfileDecoder", "Window"]


class SndfileDecoder:
    """Whatever libsndfile reads, start to end."""

    def __init__(self, source: str | BinaryIO) -> None:
        soundfile = soundfile_module()

        class Stream(soundfile.SoundFile):  # type: ignore[misc, name-defined]
            """Read in order only: python-soundfile seeks after every read where it may, and seeks lie."""

            def seekable(self) -> bool:
                return False

        try:
            self._file = Stream(source)
        except (soundfile.SoundFileError, RuntimeError, TypeError, ValueError, OverflowError) as err:
            raise DecodeError("audio-bad-header", f"libsndfile can't open it: {reason(err)}") from err
        self.rate, self.channels = int(self._file.samplerate), int(self._file.channels)
        self.codec = str(self._file.subtype).lower()
        self.name = f"libsndfile {soundfile.__libsndfile_version__}"
        frames = int(self._file.frames)
        self.claimed = frames if 0 <= frames < 1 << 40 else -1
        self.notes: list[Note] = []

    def raw_blocks(self, dtype: str) -> Iterator[np.ndarray[Any, Any]]:
        """Yield dtype[frames, channels]."""
        step = max(1, BLOCK_VALUES // self.channels)
        out = np.empty((step, self.channels), dtype)
        with self._file as file:
            while True:
                try:
                    count = file.buffer_read_into(out, dtype)
                except Exception as err:
                    raise DecodeError("audio-decode-error", f"libsndfile stopped: {reason(err)}") from err
                if count == 0:
                    return
                yield out[:count].copy()

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels]."""
        count = 0
        for block in self.raw_blocks("float32"):
            count += len(block)
            yield block
        if 0 <= self.claimed != count:
            self.notes.append(
                Note(
                    "audio-header-frames",
                    f"the header claims {self.claimed} frames, {count} were decoded",
                    frames=max(0, self.claimed - count),
                )
            )


class PackedWavDecoder(SndfileDecoder):
    """WAV in packets (ADPCM, GSM) by libsndfile, which gives all of the last one, filling included."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        size = Path(path).stat().st_size
        self._most = -1
        with Path(path).open("rb") as file, contextlib.suppress(riff.RiffError):
            facts = riff.read_facts(file, size)
            self._most, stated = facts.packed_frames, facts.packed_claimed
            if self._most >= 0 or facts.tag == riff.MPEG:  # of MPEG, libsndfile only guesses the length
                self.claimed = stated

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels]."""
        if self._most < 0:
            yield from super().blocks()
            return
        count = 0
        for block in self.raw_blocks("float32"):
            kept = block[: self._most - count]
            count += len(kept)
            if len(kept):
                yield kept
        if count < self.claimed:
            self.notes.append(truncated(self.claimed, count))


class _ShortDecoder(SndfileDecoder):
    """What libsndfile takes for short where it is cut: its header is asked here."""

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels]."""
        count = 0
        for block in self.raw_blocks("float32"):
            count += len(block)
            yield block
        if count < self.claimed:
            self.notes.append(truncated(self.claimed, count))


class AiffDecoder(_ShortDecoder):
    """AIFF by libsndfile."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        with Path(path).open("rb") as file:
            stated = riff.aiff_frames(file.read(HEAD_BYTES))
        if stated >= 0:
            self.claimed = stated


class ClaimingDecoder(_ShortDecoder):
    """AU, CAF and such by libsndfile; one that says its length is 0 is shown with an open length."""

    def __init__(self, path: str, container: str) -> None:
        size = Path(path).stat().st_size
        with Path(path).open("rb") as file:
            claim = read_claim(file, container, size)
        self._open = bool(claim.unstated)
        source = Window(path, claim.start, size, claim.unstated) if self._open else path
        super().__init__(cast("BinaryIO | str", source))
        self.claimed = max(self.claimed, claim.frames)

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels]."""
        yield from super().blocks()
        if self._open:
            text = "the header claims 0 bytes of samples; all that there is was decoded"
            self.notes.append(Note("audio-length-unstated", text))


class Window(io.RawIOBase):
    """Some bytes, then a range of a file, as one file: what a decoder is meant to see of it."""

    def __init__(self, path: str, start: int, stop: int, before: bytes = b"") -> None:
        self._file, self._start, self._before, self._at = Path(path).open("rb"), start, before, 0  # noqa: SIM115
        self._size = len(before) + stop - start

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def seekable(self) -> bool:
        """Whether it has places: yes, libsndfile asks for its length that way."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as there is something, and return the bytes."""
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        raw = self._before[self._at : self._at + count]
        if len(raw) < count:
            self._file.seek(self._start + self._at + len(raw) - len(self._before))
            raw += self._file.read(count - len(raw))
        view[: len(raw)] = raw
        self._at += len(raw)
        return len(raw)

    def close(self) -> None:
        """Close the file behind it."""
        self._file.close()
        super().close()

"""FLAC by one of two libraries, judged by its own checksum."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest.sources.audio import flac
from ingest.sources.audio.by_av import AvDecoder
from ingest.sources.audio.by_sndfile import SndfileDecoder
from ingest.sources.audio.decode import DecodeError, Note, truncated
from ingest.sources.audio.sniff import HEAD_BYTES, audio_head

if TYPE_CHECKING:
    from collections.abc import Iterator

    Samples = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["FlacDecoder"]


class _Digest:
    """MD5 of FLAC samples, fed with integers that fill 32 bits from the top."""

    def __init__(self, bits: int) -> None:
        import hashlib

        self._bits, self._md5 = bits, hashlib.md5(usedforsecurity=False)

    def update(self, block: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        width = -(-self._bits // 8)
        values = np.ascontiguousarray(block >> (32 - self._bits) if self._bits < 32 else block, "<i4")
        self._md5.update(np.ascontiguousarray(values.view(np.uint8).reshape(-1, 4)[:, :width]).data)

    @property
    def value(self) -> bytes:
        return self._md5.digest()


class FlacDecoder:
    """FLAC by one of two libraries, judged by the MD5 of the samples and the numbers of the frames."""

    def __init__(self, path: str, library: str) -> None:
        # "sndfile" hands doubts on to "av"; "only" is libsndfile where there is no PyAV
        size = Path(path).stat().st_size
        with Path(path).open("rb") as file:
            self._info = flac.stream_info(audio_head(file)[1])
            file.seek(max(0, size - 4 * HEAD_BYTES))
            self._tail = file.read(4 * HEAD_BYTES)
        self._library = library
        self._stopped: DecodeError | None = None
        self._inner: SndfileDecoder | AvDecoder = AvDecoder(path) if library == "av" else SndfileDecoder(path)
        info = self._info
        self.rate, self.channels, self.name = self._inner.rate, self._inner.channels, self._inner.name
        self.claimed = info.frames if info else -1
        self.codec = f"flac_s{info.bits}" if info else "flac"
        self.notes: list[Note] = []

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels]."""
        info, count = self._info, 0
        inner = self._inner
        last = flac.last_frame(self._tail, info) if info else None
        bits = info.bits if info else 0
        if last is not None and last.bits and self._library != "av":
            bits = last.bits  # libsndfile scales by what the frames say
        digest = _Digest(bits) if info and info.md5 else None
        raw = self._to_error(inner) if isinstance(inner, AvDecoder) else inner.raw_blocks("int32")
        for block in raw:
            count += len(block)
            if digest:
                digest.update(block)
            yield block.astype(np.float32) * np.float32(2.0**-31)
        self._judge(count, digest.value if digest else b"", last)
        if info and bits != info.bits:
            self.codec = f"flac_s{bits}"
            self.notes.append(
                Note(
                    "audio-header-format",
                    f"the header claims {info.bits}-bit samples, the frames hold {bits}",
                )
            )

    def _to_error(self, inner: AvDecoder) -> Iterator[np.ndarray[Any, Any]]:
        """Yield up to an error, which is no fault where it is the cut last frame: :meth:`_judge` knows."""
        try:
            yield from inner.int_blocks()
        except DecodeError as err:
            if err.code != "audio-decode-error":
                raise
            self._stopped = err

    def _judge(self, count: int, md5: bytes, last: flac.LastFrame | None) -> None:
        """Say what differs from the header's claims, or raise where the next decoder may do better."""
        info = self._info
        if info is None:
            return
        longer = Note("audio-header-frames", f"the header claims {info.frames} frames, {count} were decoded")
        wrong = Note("audio-flac-checksum", f"all {count} frames pass their checks but not the header's MD5")
        differs = 0 <= info.frames != count
        if info.md5 and info.md5 == md5:
            self.notes += [longer] * differs
            return
        whole = last is not None and count == last.start + last.samples
        if self._library == "only" and info.md5 and not differs:
            self.notes.append(wrong)
            return
        if self._library != "av":
            if info.md5:
                raise DecodeError("audio-flac-checksum", "the samples do not have the MD5 of the header")
            if differs or (info.frames < 0 and not whole):
                raise DecodeError(longer.code, f"the header claims {info.frames} frames, {count} came")
            return
        if self._stopped is None and (not differs or (whole and not 0 <= count < info.frames)):
            self.notes += [wrong] * bool(info.md5) + [longer] * differs
            return
        if count and last is not None and (whole or count == last.start) and count < info.frames:
            self.notes.append(truncated(info.frames, count))
            return
        if self._stopped is not None:
            raise self._stopped
        raise DecodeError(
            "audio-decode-error",
            f"{count} frames could be decoded, the header claims {info.frames} and the last frame ends at "
            f"{last.start + last.samples if last else 'no known place'}",
        )

"""What FFmpeg's libraries read through PyAV, packet by packet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest.sources.audio.decode import DecodeError, Note, av_module, reason, truncated
from ingest.sources.audio.ends import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    Samples = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["AvDecoder"]


def _opened(av: Any, path: str) -> Any:
    """Open a file whatever bytes its metadata hold: since PyAV 19 that is no choice any more."""
    try:
        return av.open(path, metadata_errors="replace")
    except TypeError:
        return av.open(path)


class AvDecoder:
    """Whatever PyAV (FFmpeg's libraries) reads: the first audio stream, packet by packet."""

    def __init__(self, path: str, container: str = "") -> None:
        av = av_module()
        size = Path(path).stat().st_size
        with Path(path).open("rb") as file:
            self._missing = missing(file, container, size)
        self._errors = (av.FFmpegError, ValueError, AttributeError, MemoryError)
        try:
            self._container = _opened(av, path)
            streams = self._container.streams.audio
            if not streams:
                raise DecodeError("audio-no-stream", "the file holds no audio stream")
            self._stream, self._others = streams[0], len(streams) - 1
            context = self._stream.codec_context
            if context is None:
                raise DecodeError("audio-unsupported", "FFmpeg has no decoder for its coding")
            context.options = {"err_detect": "crccheck+explode"}
            self.rate, self.channels = int(context.sample_rate or 0), int(context.layout.nb_channels or 0)
            self.codec = str(context.name)
        except self._errors as err:
            raise DecodeError("audio-bad-header", f"FFmpeg can't open it: {reason(err)}") from err
        if not (self.rate and self.channels):
            self._container.close()
            raise DecodeError("audio-bad-header", "FFmpeg finds neither sample rate nor channels in it")
        self.name = f"PyAV {av.__version__}"
        self.claimed = self._stated()
        self.notes: list[Note] = []

    def _stated(self) -> int:
        """Return the frames that the container claims, -1 where it claims none or only guesses."""
        kinds = set(self._container.format.name.split(","))
        if not kinds & {"mov", "mp4", "matroska", "webm", "asf", "caf", "wv", "tta", "ape"}:
            return -1
        stream = self._stream
        if stream.duration is not None and stream.time_base is not None:
            seconds = float(stream.duration * stream.time_base)
        elif self._container.duration is not None:
            seconds = self._container.duration / 1e6
        else:
            return -1
        return round(seconds * self.rate) if 0 < seconds < 1e8 else -1

    def _frames(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield [frames, channels] in the dtype of the codec."""
        kind = None
        with self._container as container:
            try:
                for frame in container.decode(self._stream):
                    now = (frame.sample_rate, frame.layout.nb_channels, frame.format.name)
                    if kind is None:
                        kind = now
                        if now[:2] != (self.rate, self.channels):
                            raise DecodeError(
                                "audio-format-changes",
                                f"the header claims {self.channels} channels at {self.rate} Hz, "
                                f"the first frame has {now[1]} at {now[0]}",
                            )
                    elif now != kind:
                        raise DecodeError(
                            "audio-format-changes",
                            f"the format changes within the file: {kind[1]} channels at {kind[0]} Hz "
                            f"({kind[2]}), then {now[1]} at {now[0]} ({now[2]})",
                        )
                    block = frame.to_ndarray()
                    yield block.T if frame.format.is_planar else block.reshape(-1, self.channels)
            except self._errors as err:
                raise DecodeError("audio-decode-error", f"FFmpeg stopped: {reason(err)}") from err

    def int_blocks(self) -> Iterator[np.ndarray[Any, np.dtype[np.int32]]]:
        """Yield int32[frames, channels] that fill 32 bits from the top (integer codecs only)."""
        for block in self._frames():
            if block.dtype == np.int16:
                yield block.astype(np.int32) << 16
            elif block.dtype == np.int32:
                yield block
            else:
                raise DecodeError("audio-unsupported", f"FFmpeg decodes this FLAC to {block.dtype}")

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels]."""
        count = 0
        for block in self._frames():
            count += len(block)
            if block.dtype.kind == "f":
                yield np.ascontiguousarray(block, np.float32)
            elif block.dtype == np.uint8:
                yield np.asarray((block.astype(np.float32) - 128) / 128, np.float32)
            else:
                scale = 2.0 ** (1 - 8 * block.dtype.itemsize)
                yield np.asarray(block * scale, np.float32)
        if self._others:
            message = f"the file holds {1 + self._others} streams of audio side by side; the first was read"
            self.notes.append(Note("audio-more-streams", message))
        if self._missing:
            message = f"the file ends {self._missing} bytes early; {count} frames were decoded"
            self.notes.append(Note("audio-truncated", message, frames=max(0, self.claimed - count)))
            return
        # containers round: a tenth of a second, or a hundredth of the whole, is no disagreement
        if self.claimed >= 0 and abs(self.claimed - count) > max(self.rate // 10, self.claimed // 100):
            if count < self.claimed:
                self.notes.append(truncated(self.claimed, count))
            else:
                message = f"the header claims {self.claimed} frames, {count} were decoded"
                self.notes.append(Note("audio-header-frames", message))

"""Decoders: a local file in, float32 blocks of [frames, channels] out, in order, in bounded memory.

Decides which decoder a container gets, and what each is checked against. libsndfile comes first;
PCM in WAV is read here, since its headers need more care than its samples; PyAV serves what
libsndfile can't, or where a check fails. Nothing is ever sought in a compressed stream.

A decoder that ends without an exception has been compared with what the file says of itself:
what differs stands in its ``notes``. A :class:`DecodeError` condemns the file, or hands it to the
next decoder of :func:`candidates`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

import numpy as np

from chunkstore.errors import MissingDependencyError
from ingest.sources.audio import flac, mpeg, ogg, riff
from ingest.sources.audio.sniff import HEAD_BYTES, sniff

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    Samples = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["BLOCK_VALUES", "AvDecoder", "DecodeError", "Decoder", "Note", "PcmDecoder", "candidates"]

#: Values (frames times channels) that a block holds at most.
BLOCK_VALUES = 1 << 16
#: Containers that libsndfile reads; all others need PyAV.
SNDFILE = frozenset({"riff", "w64", "aiff", "flac", "ogg", "mp3", "au", "caf", "voc", "nist"})


class DecodeError(Exception):
    """The file, or this decoder's view of it, can't be used."""

    def __init__(self, code: str, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.offset = code, message, offset


@dataclass(frozen=True, slots=True)
class Note:
    """Something that differs from what the file says of itself; the samples are kept."""

    code: str
    """As in ``CODES`` of the source."""
    message: str
    """One clear sentence."""
    offset: int | None = None
    """Byte offset, where known."""
    frames: int = 0
    """Frames claimed and not there."""


class Decoder(Protocol):
    """What all decoders have in common."""

    rate: int
    """Hz."""
    channels: int
    """Values a frame."""
    codec: str
    """Name of the coding."""
    name: str
    """Decoder and version."""
    claimed: int
    """Frames that the header claims, -1 where none."""
    notes: list[Note]
    """Filled when ``blocks`` is exhausted."""

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels], at most ``BLOCK_VALUES`` values each."""
        ...


def soundfile_module() -> Any:
    """Import soundfile or say how to get it."""
    try:
        import soundfile
    except ImportError as err:
        raise MissingDependencyError(
            "decoding audio needs soundfile: pip install 'chunkstore[audio]'"
        ) from err
    return soundfile


def av_module() -> Any:
    """Import PyAV or say how to get it."""
    try:
        import av
    except ImportError as err:
        raise MissingDependencyError("this audio needs PyAV: pip install 'chunkstore[audio-extra]'") from err
    av.logging.set_level(None)
    return av


def _reason(err: BaseException) -> str:
    """Say what a library said, without paths or its frames around it."""
    text = str(getattr(err, "strerror", None) or err) or type(err).__name__
    text = text.rsplit("': ", 1)[-1] if "Error opening" in text else text
    return text.strip().rstrip(".")


def _truncated(claimed: int, there: int) -> Note:
    return Note(
        "audio-truncated",
        f"the header claims {claimed} frames, the file ends after {there}",
        frames=max(0, claimed - there),
    )


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
        """Whether 24-bit (or other) samples stand at the low end of wider bytes; looks at them all."""
        facts = self._facts
        need = -(-facts.bits // 8)
        if facts.tag != 1 or need >= facts.width:
            return False
        spare = facts.width - need
        for raw in self._raw():
            octets = np.frombuffer(raw, np.uint8).reshape(-1, facts.width)
            low, high = octets[:, :spare], octets[:, -spare:]
            if facts.big:
                low, high = high, low
            if low.any():
                return bool(np.isin(high, (0, 255)).all())
        return False

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
            self.notes.append(_truncated(facts.claimed, facts.frames))


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
            raise DecodeError("audio-bad-header", f"libsndfile can't open it: {_reason(err)}") from err
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
                    raise DecodeError("audio-decode-error", f"libsndfile stopped: {_reason(err)}") from err
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
            self._info = flac.stream_info(file.read(HEAD_BYTES))
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
            self.notes.append(_truncated(info.frames, count))
            return
        if self._stopped is not None:
            raise self._stopped
        raise DecodeError(
            "audio-decode-error",
            f"{count} frames could be decoded, the header claims {info.frames} and the last frame ends at "
            f"{last.start + last.samples if last else 'no known place'}",
        )


class _Window(io.RawIOBase):
    """Some bytes, then a range of a file, as one file: what a decoder is meant to see of it."""

    def __init__(self, path: str, start: int, stop: int, before: bytes = b"") -> None:
        self._file, self._start, self._before, self._at = Path(path).open("rb"), start, before, 0  # noqa: SIM115
        self._size = len(before) + stop - start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
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
        self._file.close()
        super().close()


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
        whole = len(self._walk.links) == 1 and link.start == 0
        return SndfileDecoder(
            self._path if whole else cast("BinaryIO", _Window(self._path, link.start, link.stop))
        )

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
        walk = self._walk
        decoder = SndfileDecoder(path)
        stated = walk.info.frames if walk.info else -1
        if stated == walk.frames or (stated < 0 and decoder.claimed >= walk.samples):
            return decoder
        before = mpeg.stating(walk.first, walk.frames)
        if before is None:
            raise DecodeError(
                "audio-header-frames",
                f"libsndfile would end after {decoder.claimed} of the {walk.samples} frames that the "
                "MPEG frame headers are good for",
            )
        window = _Window(path, walk.start, Path(path).stat().st_size, before)
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


class AvDecoder:
    """Whatever PyAV (FFmpeg's libraries) reads: the first audio stream, packet by packet."""

    def __init__(self, path: str) -> None:
        av = av_module()
        self._errors = (av.FFmpegError, ValueError, AttributeError, MemoryError)
        try:
            self._container = av.open(path, metadata_errors="replace")
            streams = self._container.streams.audio
            if not streams:
                raise DecodeError("audio-no-stream", "the file holds no audio stream")
            self._stream = streams[0]
            context = self._stream.codec_context
            context.options = {"err_detect": "crccheck+explode"}
            self.rate, self.channels = int(context.sample_rate or 0), int(context.layout.nb_channels or 0)
            self.codec = str(context.name)
        except self._errors as err:
            raise DecodeError("audio-bad-header", f"FFmpeg can't open it: {_reason(err)}") from err
        if not (self.rate and self.channels):
            self._container.close()
            raise DecodeError("audio-bad-header", "FFmpeg finds neither sample rate nor channels in it")
        self.name = f"PyAV {av.__version__}"
        self.claimed = self._stated()
        self.notes: list[Note] = []

    def _stated(self) -> int:
        """Return the frames that the container claims, -1 where it claims none or only guesses."""
        kinds = set(self._container.format.name.split(","))
        if not kinds & {"mov", "mp4", "matroska", "webm", "asf", "caf"}:
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
                raise DecodeError("audio-decode-error", f"FFmpeg stopped: {_reason(err)}") from err

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
        # containers round: a tenth of a second, or a hundredth of the whole, is no disagreement
        if self.claimed >= 0 and abs(self.claimed - count) > max(self.rate // 10, self.claimed // 100):
            if count < self.claimed:
                self.notes.append(_truncated(self.claimed, count))
            else:
                message = f"the header claims {self.claimed} frames, {count} were decoded"
                self.notes.append(Note("audio-header-frames", message))


class AiffDecoder(SndfileDecoder):
    """AIFF by libsndfile, which takes a cut file for a short one: its header is asked here."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        with Path(path).open("rb") as file:
            stated = riff.aiff_frames(file.read(HEAD_BYTES))
        if stated >= 0:
            self.claimed = stated

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels]."""
        count = 0
        for block in self.raw_blocks("float32"):
            count += len(block)
            yield block
        if count < self.claimed:
            self.notes.append(_truncated(self.claimed, count))


def _has_av() -> bool:
    try:
        av_module()
    except MissingDependencyError:
        return False
    return True


def candidates(path: str | os.PathLike[str]) -> list[tuple[str, Callable[[], Decoder]]]:
    """List the decoders to try for a local file, by its content, first choice first.

    Returns
    -------
    list of (container, function that opens the decoder)
    """
    path = str(path)
    with Path(path).open("rb") as file:
        container = sniff(file.read(HEAD_BYTES))
    av = partial(AvDecoder, path)
    sndfile = partial(SndfileDecoder, path)
    if container is None:
        raise DecodeError("audio-unrecognised", "the content is of no kind of audio known here")
    table: dict[str, list[Callable[[], Decoder]]] = {
        "riff": [partial(PcmDecoder, path), sndfile, av],
        "w64": [partial(PcmDecoder, path), sndfile, av],
        "flac": [
            partial(FlacDecoder, path, kind) for kind in (("sndfile", "av") if _has_av() else ("only",))
        ],
        "ogg": [partial(OggDecoder, path), av],
        "mp3": [
            partial(Mp3Decoder, path, "sndfile"),
            partial(Mp3Decoder, path, "av"),
        ],
    }
    table["aiff"] = [partial(AiffDecoder, path), av]
    choice = table.get(container) or ([sndfile, av] if container in SNDFILE else [av])
    return [(container, opener) for opener in choice]

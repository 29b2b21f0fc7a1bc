"""MPEG audio (mp3) as a chain of frames: what its frames hold, against what its headers claim.

Decides how many samples the frames of a file are good for and where bytes between them are no frame.
Decodes nothing.
"""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = [
    "FrameHeader",
    "MpegWalk",
    "frame_header",
    "free_length",
    "id3_end",
    "info_frame",
    "is_free",
    "stating",
    "walk",
]

# kbit/s by (MPEG 1 or not, layer), for the 4 bits of a frame header; 0 is "free format", -1 forbidden
_KBITS = {
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, -1),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, -1),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, -1),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256, -1),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, -1),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, -1),
}
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}


class FrameHeader(NamedTuple):
    """What the 4 bytes before a frame say."""

    nbytes: int
    """Length of the frame, header included."""
    samples: int
    """Samples a channel."""
    rate: int
    """Hz."""
    channels: int
    """1 or 2."""
    layer: int
    """1, 2 or 3."""


def frame_header(header: bytes, free: int = 0) -> FrameHeader | None:
    """Read the 4 bytes of an MPEG audio frame header.

    Parameters
    ----------
    header : bytes
        Four bytes.
    free : int
        Bytes of a frame of free format, without padding, as :func:`free_length` finds them; 0 where there is
        none such.

    Returns
    -------
    The header, or None where this is none (free-format frames state no length, and count as none unless
    ``free`` says it).

    Examples
    --------
    >>> frame_header(bytes([0xFF, 0xFB, 0x90, 0x00]))
    FrameHeader(nbytes=417, samples=1152, rate=44100, channels=2, layer=3)
    >>> frame_header(b"RIFF") is None
    True
    """
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return None
    version, layer = (header[1] >> 3) & 3, 4 - ((header[1] >> 1) & 3)
    rate_index = (header[2] >> 2) & 3
    if version == 1 or layer == 4 or rate_index == 3:
        return None
    kbits = _KBITS[version == 3, layer][header[2] >> 4]
    if kbits < 0 or (kbits == 0 and not free):
        return None
    rate, padding = _RATES[version][rate_index], (header[2] >> 1) & 1
    channels = 1 if header[3] >> 6 == 3 else 2
    if kbits == 0:
        slot, samples = (4, 384) if layer == 1 else (1, 576 if layer == 3 and version != 3 else 1152)
        return FrameHeader(free + padding * slot, samples, rate, channels, layer)
    if layer == 1:
        return FrameHeader((12_000 * kbits // rate + padding) * 4, 384, rate, channels, layer)
    samples = 576 if layer == 3 and version != 3 else 1152
    return FrameHeader(samples * 125 * kbits // rate + padding, samples, rate, channels, layer)


def is_free(header: bytes) -> bool:
    """Whether 4 bytes begin a frame of free format: any bit rate, so that no length follows from it.

    Examples
    --------
    >>> is_free(bytes([0xFF, 0xFB, 0x00, 0x00])), is_free(bytes([0xFF, 0xFB, 0x90, 0x00]))
    (True, False)
    """
    return len(header) == 4 and header[2] >> 4 == 0 and frame_header(header, free=1) is not None


#: bytes of a frame of free format: 640 kbit/s at 8 kHz are 5,760
_LONGEST_FREE = 6000


def free_length(data: bytes | mmap.mmap, at: int) -> int:
    """Find how long the frames of free format are that begin here, without padding; 0 where none do.

    The next frame begins alike, and so does the one behind it, at the same distance.
    """
    start = data[at : at + 4]
    if not is_free(start):
        return 0
    padding = (start[2] >> 1) & 1
    stop = min(len(data), at + _LONGEST_FREE)
    found = at + 3
    while (found := data.find(start[:2], found + 1, stop)) >= 0:
        free = found - at - padding * (4 if (start[1] >> 1) & 3 == 3 else 1)
        where, count = found, 1
        while count < 3:
            head = data[where : where + 4]
            if len(head) < 4 or (head[:2], head[2] & 0xFC) != (start[:2], start[2] & 0xFC):
                break
            frame = frame_header(head, free)
            if frame is None:
                break
            where, count = where + frame.nbytes, count + 1
        if count == 3 or (count > 1 and where >= len(data)):
            return free
    return 0


def id3_end(head: bytes) -> int:
    """Return where an ID3v2 tag at the start ends (several may follow each other)."""
    at = 0
    while head[at : at + 3] == b"ID3" and len(head) >= at + 10:
        size = 0
        for byte in head[at + 6 : at + 10]:
            size = size << 7 | (byte & 0x7F)
        at += 10 + size + (10 if head[at + 5] & 0x10 else 0)
    return at


@dataclass(frozen=True, slots=True)
class Info:
    """What an encoder's information frame (Xing, Info, VBRI) claims."""

    frames: int
    """Audio frames; -1 where the tag does not say."""
    delay: int
    """Samples the encoder put before the audio; -1 where the tag does not say."""
    padding: int
    """Samples the encoder put after the audio; -1 where the tag does not say."""


def _tag_offset(frame: bytes, head: FrameHeader) -> int:
    """Return where the tag of an information frame stands: after the side information."""
    mpeg1 = (frame[1] >> 3) & 3 == 3
    return 4 + ((17 if head.channels == 1 else 32) if mpeg1 else (9 if head.channels == 1 else 17))


def info_frame(frame: bytes) -> Info | None:
    """Read the information frame that many encoders put first, or return None where it is audio."""
    head = frame_header(frame[:4], free=1)
    if head is None:
        return None
    at = _tag_offset(frame, head)
    if frame[at : at + 4] in (b"Xing", b"Info") and len(frame) >= at + 8:
        flags = int.from_bytes(frame[at + 4 : at + 8], "big")
        cursor, frames, delay, padding = at + 8, -1, -1, -1
        if flags & 1:
            frames = int.from_bytes(frame[cursor : cursor + 4], "big")
            cursor += 4
        cursor += 4 * bool(flags & 2) + 100 * bool(flags & 4) + 4 * bool(flags & 8)
        lame = frame[cursor : cursor + 24]
        if len(lame) == 24 and lame[:4] in (b"LAME", b"Lavf", b"Lavc", b"GOGO", b"L3.9"):
            delay, padding = lame[21] << 4 | lame[22] >> 4, (lame[22] & 15) << 8 | lame[23]
        return Info(frames, delay, padding)
    if frame[36:40] == b"VBRI" and len(frame) >= 54:
        return Info(int.from_bytes(frame[50:54], "big"), -1, -1)
    return None


def stating(first: bytes, frames: int) -> bytes | None:
    """Return an information frame that states ``frames`` instead; None where it has no place for that."""
    head = frame_header(first[:4], free=1)
    at = _tag_offset(first, head) if head else 0
    if first[at : at + 4] in (b"Xing", b"Info") and len(first) >= at + 12 and first[at + 7] & 1:
        return first[: at + 8] + frames.to_bytes(4, "big") + first[at + 12 :]
    return None


@dataclass(frozen=True, slots=True)
class MpegWalk:
    """What walking over all frames of a file found."""

    rate: int
    """Hz of the first frame."""
    channels: int
    """Of the first frame."""
    frames: int
    """Audio frames, the information frame left out."""
    samples: int
    """Samples a channel of all frames, delay and padding included."""
    info: Info | None
    """The information frame's claims."""
    junk: tuple[tuple[int, int], ...]
    """Byte ranges [start, stop) between frames that are neither frame nor tag (the first hundred)."""
    junk_bytes: int
    """All such bytes."""
    cut: int
    """Bytes of an unfinished frame at the end of the file."""
    first: bytes
    """The first frame, which may be the information frame."""
    start: int
    """First byte of the first audio frame."""
    rates: tuple[int, ...]
    """All rates met, in order of meeting."""
    widths: tuple[int, ...]
    """All numbers of channels met in audio frames, in order of meeting."""

    @property
    def expected(self) -> int:
        """Samples that a decoder which honours delay and padding gives."""
        if self.info is None or self.info.delay < 0:
            return self.samples
        return max(0, self.samples - self.info.delay - self.info.padding)


def _tag_end(data: mmap.mmap, at: int) -> int:
    """Return where a tag that starts here ends; ``at`` where there is none."""
    head = data[at : at + 32]
    if head[:3] == b"ID3":
        return at + id3_end(head)
    if head[:3] == b"TAG" and len(data) - at <= 128 + 32:
        return min(at + 128, len(data))
    if head[:8] == b"APETAGEX" and len(head) == 32:
        size = int.from_bytes(head[12:16], "little")
        return at + 32 + (size if head[23] & 0x20 else 0) if size < len(data) else at
    if head[:11] == b"LYRICSBEGIN":
        end = data.find(b"LYRICS200", at)
        return end + 9 if end >= 0 else at
    return at


def walk(file: BinaryIO) -> MpegWalk:
    """Walk over all frames of a local file; memory stays constant.

    The Python loop runs over frames, of 26 ms each: about a million a second.
    """
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size, at, frames, samples, cut, junk_bytes = len(data), 0, 0, 0, 0, 0
        first: FrameHeader | None = None
        info: Info | None = None
        opening, start = b"", 0
        junk: list[tuple[int, int]] = []
        rates: list[int] = []
        widths: list[int] = []
        synced = False
        free = tries = 0
        while at < size:
            head = frame_header(data[at : at + 4], free)
            if head is None and not free and not frames and tries < 8 and is_free(data[at : at + 4]):
                tries += 1
                free = free_length(data, at)
                head = frame_header(data[at : at + 4], free)
            if head is not None and not synced:  # the frame after it must agree, or it is chance
                after = at + head.nbytes
                following = frame_header(data[after : after + 4], free)
                if not (following and following.rate == head.rate and following.layer == head.layer) and not (
                    after >= size or _tag_end(data, after) > after
                ):
                    head = None
            if head is not None:
                if at + head.nbytes > size:
                    cut = size - at
                    break
                if first is None:
                    first = head
                    info = info_frame(data[at : at + head.nbytes])
                    opening = data[at : at + head.nbytes]
                if not (head is first and info is not None):
                    start = start if frames else at
                    frames += 1
                    samples += head.samples
                    if head.channels not in widths:
                        widths.append(head.channels)
                if head.rate not in rates and len(rates) < 8:
                    rates.append(head.rate)
                at, synced = at + head.nbytes, True
                continue
            end = _tag_end(data, at)
            if end > at:
                at, synced = end, False
                continue
            lost, synced = at, False
            at = _next_sync(data, at + 1)
            if data[lost:at].strip(b"\0"):  # runs of zeros are padding
                junk_bytes += at - lost
                if junk and junk[-1][1] == lost:
                    junk[-1] = (junk[-1][0], at)
                elif len(junk) < 100:
                    junk.append((lost, at))
    return MpegWalk(
        first.rate if first else 0,
        first.channels if first else 0,
        frames,
        samples,
        info,
        tuple(junk),
        junk_bytes,
        cut,
        opening,
        start,
        tuple(rates),
        tuple(widths),
    )


_SYNC = re.compile(rb"\xff|ID3|APETAGEX")
_SYNC_AT_END = re.compile(rb"\xff|ID3|APETAGEX|TAG|LYRICSBEGIN")


def _next_sync(data: mmap.mmap, at: int) -> int:
    """Return the next place that may start a frame or a tag."""
    found = (_SYNC_AT_END if len(data) - at <= 4096 else _SYNC).search(data, at)
    return found.start() if found else len(data)

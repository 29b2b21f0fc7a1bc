"""WAV in all its containers (RIFF, RIFX, RF64, BW64, W64): where the samples lie and how they are written.

Sizes in these headers are claims: recorders that lose power leave zeros, streaming encoders leave
all ones, copies break off. What is decided here is where the samples really are; what was claimed
is kept beside it. Holds the arithmetic of PCM too, since a WAV needs no library.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["RiffError", "WavFacts", "aiff_common", "aiff_frames", "read_facts", "to_float32"]

_NAMES = {
    1: "pcm",
    3: "float",
    6: "alaw",
    7: "ulaw",
    2: "adpcm_ms",
    0x11: "adpcm_ima",
    0x31: "gsm610",
    0x55: "mp3",
}
_MS, _IMA, _GSM = 2, 0x11, 0x31
MPEG = 0x55
#: coded in packets of one length, each of as many frames
_PACKETS = (_MS, _IMA, _GSM)
#: lengths that nobody came back to write; SoX, arecord, FFmpeg and others put the largest number that they
#: know in their place, some less a header and rounded down to whole frames
_LARGEST = (1 << 31, 1 << 32, 1 << 63, 1 << 64)
_ROUNDED = 1 << 13
#: bytes behind the last chunk that are worth a word
_STRAY = 1 << 16
_READ = (b"fmt ", b"ds64", b"LIST", b"bext", b"fact")
_W64_TAIL = b"\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"


class RiffError(ValueError):
    """The file has no readable format or no samples chunk; says which."""


@dataclass(frozen=True, slots=True)
class WavFacts:
    """Where the samples are and how they are written."""

    container: str
    """riff, rifx, rf64 or w64."""
    tag: int
    """Format tag, the one inside an EXTENSIBLE header where there is one."""
    bits: int
    """Bits that a sample is said to use."""
    width: int
    """Bytes that a sample takes."""
    rate: int
    """Hz."""
    channels: int
    """Samples a frame."""
    big: bool
    """Big-endian."""
    start: int
    """First byte of the samples."""
    nbytes: int
    """Bytes of samples that are there."""
    stated: int
    """Bytes of samples that the header claims; -1 where it leaves that open."""
    comment: str = ""
    """Text of the ICMT chunk."""
    origin: str = ""
    """Date and time of the bext chunk, ``YYYY-MM-DD HH:MM:SS``."""
    fact: int = -1
    """Frames that the fact chunk claims; -1 where there is none."""
    packet: int = 0
    """Bytes of a packet of a compressed stream."""
    packed: int = 0
    """Frames of a packet; 0 where the format does not say."""
    more: int = 0
    """Bytes behind the samples that seem to be samples too: other chunks of them, or no chunk at all."""

    @property
    def block(self) -> int:
        """Bytes of a frame."""
        return self.width * self.channels

    @property
    def frames(self) -> int:
        """Whole frames that are there."""
        return self.nbytes // self.block

    @property
    def claimed(self) -> int:
        """Frames that the header claims; -1 where it leaves that open."""
        return self.stated // self.block if self.stated >= 0 else -1

    def _packed(self, nbytes: int) -> int:
        """Frames that so many bytes of packets hold; -1 where that is not known."""
        if not (self.tag in _PACKETS and self.packed and self.packet):
            return -1
        full, rest = divmod(nbytes, self.packet)
        frames = full * self.packed
        lead = 4 * self.channels if self.tag == _IMA else 7 * self.channels
        if rest >= lead and self.tag == _IMA:
            frames += 1 + (rest - lead) // lead * 8
        elif rest >= lead and self.tag == _MS:
            frames += 2 + (rest - lead) * 2 // self.channels
        # the fact chunk says how much of the last packet counts; libsndfile divides by the channels once more
        told = max(0, frames - self.packed) < self.fact <= frames and self.fact != frames // self.channels
        return self.fact if told else frames

    @property
    def packed_frames(self) -> int:
        """Frames of a stream of packets, as far as it is there; -1 where that is not known."""
        return self._packed(self.nbytes)

    @property
    def packed_claimed(self) -> int:
        """Frames of a stream of packets, as its header has it; -1 where that is not known."""
        return self._packed(max(self.nbytes, self.stated))

    @property
    def codec(self) -> str:
        """For people, e.g. ``pcm_s16``."""
        name = _NAMES.get(self.tag, f"wav_0x{self.tag:04x}")
        if self.tag == 1:
            return f"pcm_{'u' if self.width == 1 else 's'}{self.width * 8}"
        return f"pcm_f{self.width * 8}" if self.tag == 3 else name

    @property
    def plain(self) -> bool:
        """Whether the samples are numbers as they stand, not a compressed stream."""
        return (
            (self.tag == 1 and 1 <= self.width <= 8)
            or (self.tag == 3 and self.width in (2, 4, 8))
            or (self.tag in (6, 7) and self.width == 1)
        )


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode("latin-1").strip()


def _comment(body: bytes) -> str:
    at = 4
    while body[:4] == b"INFO" and at + 8 <= len(body):
        size = int.from_bytes(body[at + 4 : at + 8], "little")
        if body[at : at + 4] == b"ICMT":
            return _text(body[at + 8 : at + 8 + size])
        at += 8 + size + (size & 1)
    return ""


def read_facts(file: BinaryIO, size: int) -> WavFacts:
    """Walk over the chunks of a WAV file of ``size`` bytes.

    At most ten thousand chunks are visited and 64 KiB of any but the samples' is read.

    Raises
    ------
    RiffError
        If there is no format, an impossible one, or no samples chunk.
    """
    file.seek(0)
    head = file.read(40)
    if head[:4] not in (b"RIFF", b"RIFX", b"RF64", b"BW64", b"riff"):
        raise RiffError("the file does not begin as a WAV does")
    wide = head[:4] == b"riff"
    big = head[:4] == b"RIFX"
    order = ">" if big else "<"
    rf64 = head[:4] in (b"RF64", b"BW64")
    at, long_data = (40 if wide else 12), -1
    fmt: bytes | None = None
    data: tuple[int, int, int] | None = None
    comment = origin = ""
    fact, more = -1, 0
    for _ in range(10_000):
        file.seek(at)
        header = file.read(24 if wide else 8)
        if len(header) < (24 if wide else 8):
            break
        name = header[:4]
        if wide:
            if header[4:16] != _W64_TAIL and name not in (b"fmt ", b"data", b"riff"):
                name = b""
            length, body_at = struct.unpack("<Q", header[16:])[0] - 24, at + 24
            if length < 0:
                break
        else:
            length, body_at = struct.unpack(order + "I", header[4:])[0], at + 8
        left = max(0, size - body_at)
        if name == b"data" and data is None:
            stated = long_data if rf64 and length == 0xFFFFFFFF and long_data >= 0 else length
            there, claim = min(stated, left), stated
            unstated = (
                stated > left if stated else left and not _chunk_follows(file, body_at, size, order, wide)
            )
            if unstated and (stated == 0 or any(0 <= most - stated <= _ROUNDED for most in _LARGEST)):
                there, claim = left, -1
            data, length = (body_at, there, claim), there
        elif data is not None and name == b"data":
            more += min(length, left)
        elif data is not None and _no_chunk(name, length, left, wide):
            more += size - at
            break
        else:
            body = file.read(min(length, 65536, left)) if name in _READ else b""
            if name == b"fmt " and fmt is None:
                fmt = body[:64]
            elif name == b"ds64" and len(body) >= 16:
                long_data = struct.unpack("<Q", body[8:16])[0]
            elif name == b"fact" and len(body) >= 4:
                fact = struct.unpack(order + "I", body[:4])[0]
            elif name == b"LIST" and not comment:
                comment = _comment(body)
            elif name == b"bext" and len(body) >= 338:
                origin = (_text(body[320:330]) + " " + _text(body[330:338])).strip()
        at = body_at + length + (-length % 8 if wide else length & 1)
        if length & 1 and not wide and data is None:
            file.seek(at - 1)
            if file.read(4) in (b"data", b"fmt "):  # some writers forget the pad byte
                at -= 1
        if at >= size:
            break
    if fmt is None or len(fmt) < 14:
        raise RiffError("the WAV file has no 'fmt ' chunk, or one of fewer than 14 bytes")
    if data is None:
        raise RiffError("the WAV file has no 'data' chunk")
    tag, channels, rate, _, block = struct.unpack(order + "HHIIH", fmt[:14])
    bits = struct.unpack(order + "H", fmt[14:16])[0] if len(fmt) >= 16 else 8
    valid = bits
    if tag == 0xFFFE and len(fmt) >= 28:
        valid = struct.unpack(order + "H", fmt[18:20])[0] or bits
        tag = struct.unpack(order + "I", fmt[24:28])[0]
    if not 1 <= channels <= 1024 or not 1 <= rate <= 100_000_000:
        raise RiffError(f"the WAV header claims {channels} channels at {rate} Hz")
    width = block // channels if block and block % channels == 0 else 0
    packed = struct.unpack(order + "H", fmt[18:20])[0] if tag in _PACKETS and len(fmt) >= 20 else 0
    if tag in (1, 3):
        need = -(-bits // 8)
        # more bytes than the bits need are meant where processors have such numbers, else the block is wrong
        width = width if width == need or (width > need and width in (2, 4, 8)) else need
        if not 1 <= width <= 8:
            raise RiffError(f"the WAV header claims {bits}-bit samples in {block} bytes a frame")
    return WavFacts(
        container="w64" if wide else head[:4].decode("ascii").lower(),
        tag=tag,
        bits=min(valid, bits) or bits,
        width=max(1, width),
        rate=rate,
        channels=channels,
        big=big,
        start=data[0],
        nbytes=data[1],
        stated=data[2],
        comment=comment,
        origin=origin,
        fact=fact,
        packet=block,
        packed=packed,
        more=more,
    )


def _no_chunk(name: bytes, length: int, left: int, wide: bool) -> bool:
    """Whether what stands behind the samples is no chunk, but another file or samples not accounted for.

    A few bytes of anything are often left there by programs that tag or copy files.
    """
    if name in (b"RIFF", b"RIFX", b"RF64", b"BW64", b"riff"):
        return True
    return not wide and left >= _STRAY and (length > left or not all(32 <= c < 127 for c in name))


def _chunk_follows(file: BinaryIO, at: int, size: int, order: str, wide: bool) -> bool:
    """Whether another chunk starts here, so that a length of 0 may be meant."""
    file.seek(at)
    header = file.read(24 if wide else 8)
    if wide:
        return len(header) == 24 and header[4:16] == _W64_TAIL
    if len(header) < 8 or not all(32 <= c < 127 for c in header[:4]):
        return False
    return bool(at + 8 + struct.unpack(order + "I", header[4:])[0] <= size)


def _g711(alaw: bool) -> np.ndarray[Any, np.dtype[np.float32]]:
    """All 256 values of G.711, as fractions of full scale."""
    code = np.arange(256, dtype=np.int64)
    if alaw:
        code ^= 0x55
        exponent, mantissa = (code >> 4) & 7, code & 15
        value = np.where(
            exponent == 0, mantissa * 16 + 8, (mantissa * 16 + 264) << np.maximum(exponent - 1, 0)
        )
        sign = np.where(code & 0x80, 1, -1)
    else:
        code = ~code & 0xFF
        value = (((code & 15) * 8 + 132) << ((code >> 4) & 7)) - 132
        sign = np.where(code & 0x80, -1, 1)
    return (sign * value / 32768.0).astype(np.float32)


def to_float32(raw: bytes, facts: WavFacts, low: bool = False) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Turn whole frames as they are written into fractions of full scale.

    Parameters
    ----------
    raw : bytes
        A whole number of frames.
    facts : WavFacts
        How they are written.
    low : bool
        Whether samples of fewer bits than their bytes hold stand at the low end (the standard
        wants them at the high end; some writers differ).

    Returns
    -------
    ndarray
        float32[frames, channels]. 8 to 24 bits are exact; 32 and more are rounded once.
    """
    width, order = facts.width, ">" if facts.big else "<"
    values: np.ndarray[Any, np.dtype[np.float32]]
    if facts.tag == 3:
        with np.errstate(over="ignore"):
            values = np.frombuffer(raw, f"{order}f{width}").astype(np.float32)
    elif facts.tag in (6, 7):
        values = _g711(facts.tag == 6)[np.frombuffer(raw, np.uint8)]
    elif width == 1:
        values = np.asarray((np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128, np.float32)
    elif width in (2, 4, 8) and not low:
        scale = 2.0 ** (1 - 8 * width)
        values = np.asarray(np.frombuffer(raw, f"{order}i{width}") * scale, np.float32)
    else:
        octets = np.frombuffer(raw, np.uint8).reshape(-1, width)
        if facts.big:
            octets = octets[:, ::-1]
        if low:
            octets = octets[:, : -(-facts.bits // 8)]
        wide = np.zeros((len(octets), 8), np.uint8)
        wide[:, 8 - octets.shape[1] :] = octets
        values = (wide.view("<i8")[:, 0] * 2.0**-63).astype(np.float32)
    return values.reshape(-1, facts.channels)


#: codings of AIFF-C with a frame for each that is claimed
_AIFC_PLAIN = (b"none", b"twos", b"sowt", b"fl32", b"fl64", b"in24", b"in32", b"raw ", b"alaw", b"ulaw", b"")


def aiff_common(head: bytes) -> tuple[int, int, int] | None:
    """Return (frames, Hz, channels) that the COMM chunk of an AIFF claims, or None where there is none.

    The frames are -1 where the samples are compressed: what is claimed then are packets, or nobody knows.
    """
    at = 12
    while at + 8 <= len(head):
        size = int.from_bytes(head[at + 4 : at + 8], "big")
        if head[at : at + 4] == b"COMM" and at + 26 <= len(head):
            channels = int.from_bytes(head[at + 8 : at + 10], "big")
            frames = int.from_bytes(head[at + 10 : at + 14], "big")
            exponent = int.from_bytes(head[at + 16 : at + 18], "big") & 0x7FFF
            mantissa = int.from_bytes(head[at + 18 : at + 26], "big")
            shift = exponent - 16383 - 63  # an 80-bit float
            if head[8:12] == b"AIFC" and head[at + 26 : at + 30].lower() not in _AIFC_PLAIN:
                frames = -1
            return frames, mantissa >> -shift if -64 < shift <= 0 else 0, channels
        at += 8 + size + (size & 1)
    return None


def aiff_frames(head: bytes) -> int:
    """Return the frames that an AIFF claims; -1 where it leaves that open."""
    found = aiff_common(head)
    return found[0] if found else -1

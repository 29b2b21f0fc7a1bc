"""FLAC's own claims: STREAMINFO at the head, and the numbers of the last frames at the tail.

Decodes nothing. The MD5 that STREAMINFO carries is the judge of every decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingest.sources.audio.mpeg import id3_end

__all__ = ["LastFrame", "StreamInfo", "last_frame", "stream_info"]


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The block that describes the whole stream."""

    rate: int
    """Hz."""
    channels: int
    """1 to 8."""
    bits: int
    """Bits a sample, 4 to 32."""
    frames: int
    """Claimed length; -1 where the header says 0 (unknown)."""
    md5: bytes
    """Of all samples as little-endian integers; empty where the encoder left it out."""
    min_block: int
    """Fewest samples a block."""
    max_block: int
    """Most samples a block."""


@dataclass(frozen=True, slots=True)
class LastFrame:
    """The last frame header near the end of the file whose checksum holds."""

    start: int
    """Position of its first sample, in samples."""
    samples: int
    """Samples in it."""
    bits: int
    """Bits a sample; 0 where the frame leaves that to STREAMINFO."""


def stream_info(head: bytes) -> StreamInfo | None:
    """Read STREAMINFO from the first bytes of a file, or return None where there is none.

    Blocks of other kinds before it are stepped over.
    """
    at = id3_end(head)
    if head[at : at + 4] != b"fLaC":
        return None
    at += 4
    for _ in range(64):
        kind, size = head[at : at + 1], int.from_bytes(head[at + 1 : at + 4], "big")
        if not kind or kind[0] & 0x7F > 6:
            return None
        if kind[0] & 0x7F == 0:
            block = head[at + 4 : at + 38]
            if len(block) < 34:
                return None
            packed = int.from_bytes(block[10:18], "big")
            md5 = block[18:34]
            return StreamInfo(
                rate=packed >> 44,
                channels=((packed >> 41) & 7) + 1,
                bits=((packed >> 36) & 31) + 1,
                frames=(packed & (2**36 - 1)) or -1,
                md5=md5 if any(md5) else b"",
                min_block=int.from_bytes(block[:2], "big"),
                max_block=int.from_bytes(block[2:4], "big"),
            )
        at += 4 + size
    return None


def _crc8_table() -> bytes:
    table = bytearray(256)
    for n in range(256):
        value = n
        for _ in range(8):
            value = (value << 1 ^ 0x07) & 0xFF if value & 0x80 else value << 1
        table[n] = value
    return bytes(table)


_CRC8 = _crc8_table()
_BITS = (0, 8, 12, 0, 16, 20, 24, 32)
_SIZES = {1: 192, 2: 576, 3: 1152, 4: 2304, 5: 4608, **{n: 256 << (n - 8) for n in range(8, 16)}}


def _frame_header(data: bytes, block: int, channels: int) -> LastFrame | None:
    """Read a frame header; ``block`` is the length of all blocks where they are numbered, not placed."""
    if len(data) < 16 or data[0] != 0xFF or data[1] & 0xFE != 0xF8:
        return None
    size_code, rate_code = data[2] >> 4, data[2] & 15
    assigned = data[3] >> 4
    if size_code == 0 or rate_code == 15 or assigned > 10 or data[3] & 1:
        return None
    if channels and channels != (assigned + 1 if assigned < 8 else 2):
        return None
    lead = data[4]
    extra = 0
    if lead >= 0xC0:
        extra = next((n for n in range(1, 7) if not lead << (n + 1) & 0x80), 6)
        number = lead & (0x3F >> extra)
    elif lead < 0x80:
        number = lead
    else:
        return None
    for byte in data[5 : 5 + extra]:
        if byte & 0xC0 != 0x80:
            return None
        number = number << 6 | (byte & 0x3F)
    at = 5 + extra
    if size_code in (6, 7):
        width = size_code - 5
        samples = int.from_bytes(data[at : at + width], "big") + 1
        at += width
    else:
        samples = _SIZES[size_code]
    at += {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    crc = 0
    for byte in data[:at]:
        crc = _CRC8[crc ^ byte]
    if at >= len(data) or crc != data[at]:
        return None
    bits = _BITS[data[3] >> 1 & 7]
    return LastFrame(number if data[1] & 1 else number * (block or samples), samples, bits)


def last_frame(tail: bytes, info: StreamInfo) -> LastFrame | None:
    """Find the last frame header within the last bytes of a file whose checksum holds.

    Where blocks are numbered (fixed length), a number counts blocks of ``max_block`` samples.
    """
    at = len(tail)
    while (at := tail.rfind(b"\xff", 0, at)) >= 0:
        found = _frame_header(tail[at : at + 16].ljust(16, b"\0"), info.max_block, info.channels)
        if found is not None:
            return found
    return None

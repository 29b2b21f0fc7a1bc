"""What the headers of AU, CAF, NIST and VOC claim: libsndfile takes a cut file of these for a short one.

Claims are compared and never believed; nothing is decoded.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import IO

__all__ = ["HeaderClaim", "read_claim"]

#: coding of an AU file -> bytes of a sample
_AU = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}


class HeaderClaim(NamedTuple):
    """What one header says."""

    frames: int = -1
    """Claimed frames; -1 where it leaves that open."""
    rate: int = 0
    """Hz; 0 where not known."""
    channels: int = 0
    """0 where not known."""
    unstated: bytes = b""
    """A header that leaves the length open, to be shown to a decoder in place of one that says 0."""
    start: int = 0
    """Where the samples begin, for such a header."""


def read_claim(file: IO[bytes], container: str, size: int) -> HeaderClaim:
    """Read the claims of an ``au``, ``caf``, ``nist`` or ``voc`` file of ``size`` bytes.

    Examples
    --------
    >>> import io
    >>> head = b".snd" + struct.pack(">IIIII", 24, 8, 3, 8000, 2)
    >>> read_claim(io.BytesIO(head + bytes(8)), "au", 32)[:3]
    (2, 8000, 2)
    """
    if container == "au":
        return _au(file, size)
    return _caf(file, size) if container == "caf" else {"nist": _nist, "voc": _voc}[container](file)


def _au(file: IO[bytes], size: int) -> HeaderClaim:
    file.seek(0)
    head = file.read(24)
    if len(head) < 24:
        return HeaderClaim()
    start, nbytes, coding, rate, channels = struct.unpack(">IIIII", head[4:])
    if not channels or rate > 1 << 30 or channels > 1024:
        return HeaderClaim()
    if nbytes == 0xFFFFFFFF:
        return HeaderClaim(-1, rate, channels)
    if nbytes == 0 and size > start >= 24:  # a recorder that never came back to write it
        return HeaderClaim(
            -1, rate, channels, head[:4] + struct.pack(">II", 24, 0xFFFFFFFF) + head[12:], start
        )
    width = _AU.get(coding, 0) * channels
    return HeaderClaim(nbytes // width if width else -1, rate, channels)


def _nist(file: IO[bytes]) -> HeaderClaim:
    file.seek(0)
    words = file.read(1024).decode("latin-1").split()
    found = dict(zip(words, words[2:], strict=False))

    def number(name: str) -> int:
        text = found.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1

    return HeaderClaim(number("sample_count"), max(0, number("sample_rate")), max(0, number("channel_count")))


def _voc(file: IO[bytes]) -> HeaderClaim:
    file.seek(20)
    at = int.from_bytes(file.read(2), "little")
    rate, channels = 0, 1
    for _ in range(1000):
        file.seek(at)
        head = file.read(16).ljust(16, b"\0")
        length = int.from_bytes(head[1:4], "little")
        if not head[0]:
            break
        if head[0] == 9:
            rate, frame = int.from_bytes(head[4:8], "little"), head[8] // 8 * head[9]
            return HeaderClaim((length - 12) // frame if frame and length >= 12 else -1, rate, head[9])
        if head[0] == 8:  # what it says goes before the rate of the sound that follows
            channels = head[7] + 1
            rate = 256_000_000 // (channels * (65536 - int.from_bytes(head[4:6], "little")))
        if head[0] == 1:
            frames = max(0, length - 2) // channels if head[5] == 0 else -1
            return HeaderClaim(frames, rate or 1_000_000 // (256 - head[4]), channels)
        at += 4 + length
    return HeaderClaim()


def _caf(file: IO[bytes], size: int) -> HeaderClaim:
    at, rate, channels = 8, 0, 0
    packet_bytes = packet_frames = 0
    data = -1
    for _ in range(1000):
        file.seek(at)
        head = file.read(12)
        if len(head) < 12:
            break
        name, length = head[:4], int.from_bytes(head[4:], "big", signed=True)
        body = file.read(min(max(0, length), 64))
        if name == b"desc" and len(body) >= 32:
            hertz, _, _, packet_bytes, packet_frames, channels, _ = struct.unpack(">d4sIIIII", body[:32])
            rate = int(hertz) if 1 <= hertz < 1 << 30 else 0
        elif name == b"pakt" and len(body) >= 24:
            return HeaderClaim(int.from_bytes(body[8:16], "big"), rate, channels)
        elif name == b"data":
            data = length
        if not 0 <= length <= size:  # to the end of the file, or what is no chunk
            break
        at += 12 + length
    if data >= 4 and packet_bytes and packet_frames == 1:
        return HeaderClaim((data - 4) // packet_bytes, rate, channels)
    return HeaderClaim(-1, rate, channels)

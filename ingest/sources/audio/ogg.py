"""Ogg as a chain of pages: which links follow each other, which pages are damaged, what is claimed.

An Ogg file may hold several complete streams one after the other ("chained"): decoders that
stop after the first link are short in silence. Decodes nothing.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["Link", "OggWalk", "identify", "last_granule", "opus_page", "opus_rate", "walk"]

_REVERSED = bytes(int(f"{n:08b}"[::-1], 2) for n in range(256))


def _crc(page: bytes) -> int:
    """Ogg's CRC-32 (its polynomial most significant bit first), through zlib's reflected one."""
    reflected = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(reflected.to_bytes(4, "little").translate(_REVERSED), "big")


def identify(packet: bytes) -> tuple[str, int, int, int]:
    """Read the first packet of a stream.

    Returns
    -------
    (codec, Hz of its clock, channels, samples before the first that is heard); the codec is
    empty for what is no audio.
    """
    if packet[:7] == b"\x01vorbis" and len(packet) >= 16:
        return "vorbis", int.from_bytes(packet[12:16], "little"), packet[11], 0
    if packet[:8] == b"OpusHead" and len(packet) >= 16:
        return "opus", 48_000, packet[9], int.from_bytes(packet[10:12], "little")
    if packet[:5] == b"\x7fFLAC" and len(packet) >= 13 + 4 + 13:
        packed = int.from_bytes(packet[27:35], "big")
        return "flac", packed >> 44, ((packed >> 41) & 7) + 1, 0
    if packet[:8] == b"Speex   " and len(packet) >= 52:
        return "speex", int.from_bytes(packet[36:40], "little"), packet[48], 0
    return "", 0, 0, 0


def opus_rate(packet: bytes) -> int:
    """Return the rate that libsndfile decodes Opus at: the first that holds what its first packet says.

    Examples
    --------
    >>> head = b"OpusHead" + bytes(4)
    >>> opus_rate(head + (22050).to_bytes(4, "little")), opus_rate(head + bytes(4))
    (24000, 48000)
    """
    stated = int.from_bytes(packet[12:16], "little")
    return next((rate for rate in (8000, 12_000, 16_000, 24_000) if 0 < stated <= rate), 48_000)


def opus_page(page: bytes) -> bytes:
    """Return the first page of an Opus stream, stating 48 kHz where it leaves the rate of its input open.

    libsndfile would decode at 8 kHz what states 0.
    """
    at = page.find(b"OpusHead") + 12
    if 0 < int.from_bytes(page[at : at + 4], "little") < 1 << 31:
        return page
    blank = page[:22] + bytes(4) + page[26:at] + (48_000).to_bytes(4, "little") + page[at + 4 :]
    return blank[:22] + _crc(blank).to_bytes(4, "little") + blank[26:]


@dataclass(slots=True)
class Link:
    """One complete stream of audio within the file."""

    start: int
    """First byte."""
    stop: int = 0
    """One past the last byte."""
    head: bytes = b""
    """Its first page."""
    codec: str = ""
    """Of its first audio stream."""
    rate: int = 0
    """Hz of its clock (48000 for Opus)."""
    channels: int = 0
    """Channels."""
    skip: int = 0
    """Samples before the first that is heard (Opus)."""
    serial: int = -1
    """Of the audio stream; -1 where there is none."""
    granule: int = -1
    """Last position that its pages state, in samples of the clock."""
    ended: bool = False
    """Whether a page says that it is the last."""
    streams: int = 0
    """Streams side by side."""
    pages: int = 0
    """Good pages of the audio stream."""
    lost_pages: int = 0
    """Numbers missing from the pages' count."""
    next_page: int = -1
    """Number that the next page should have."""

    @property
    def frames(self) -> int:
        """Frames that the pages claim, in samples of the clock; -1 where nothing is stated."""
        return max(0, self.granule - self.skip) if self.granule >= 0 else -1


@dataclass(frozen=True, slots=True)
class OggWalk:
    """What walking over all pages found."""

    links: tuple[Link, ...]
    """In the order of the file."""
    bad_pages: tuple[int, ...]
    """Byte offsets of pages that fail their checksum (the first hundred)."""
    bad_count: int
    """Pages that fail their checksum."""
    junk_bytes: int
    """Bytes between pages."""
    cut: bool
    """Whether the file ends within a page."""


def walk(file: BinaryIO) -> OggWalk:
    """Walk over all pages, checking each one's checksum; memory stays constant.

    The Python loop runs over pages, of about 4 kB each.
    """
    links: list[Link] = []
    bad: list[int] = []
    bad_count, junk, at, cut = 0, 0, 0, False
    opening = False
    file.seek(0)
    buffer = bytearray()
    ended = False

    def fill(count: int) -> bool:
        nonlocal ended
        while len(buffer) < count and not ended:
            more = file.read(1 << 20)
            ended = not more
            buffer.extend(more)
        return len(buffer) >= count

    def drop(count: int) -> None:
        nonlocal at
        del buffer[:count]
        at += count

    while fill(27) or buffer:
        if buffer[:4] != b"OggS":
            found = buffer.find(b"OggS", 1)
            count = found if found >= 0 else max(1, len(buffer) - 3)
            junk += count
            drop(count)
            continue
        if len(buffer) < 27 or not fill(27 + buffer[26]):
            cut = True
            break
        table = buffer[27 : 27 + buffer[26]]
        length = 27 + len(table) + sum(table)
        if not fill(length):
            cut = True
            break
        page = bytes(buffer[:length])
        stated = int.from_bytes(page[22:26], "little")
        if page[4] != 0 or _crc(page[:22] + bytes(4) + page[26:]) != stated:
            bad_count += 1
            if len(bad) < 100:
                bad.append(at)
            # its length may be the lie: look for the next page right behind its first letters
            found = buffer.find(b"OggS", 4)
            drop(found if found >= 0 else length)
            continue
        flags, serial = page[5], int.from_bytes(page[14:18], "little")
        granule, number = (
            int.from_bytes(page[6:14], "little", signed=True),
            int.from_bytes(page[18:22], "little"),
        )
        if flags & 2:
            if not opening:
                if links:
                    links[-1].stop = at
                links.append(Link(start=at, head=page))
            opening = True
            link = links[-1]
            link.streams += 1
            if link.serial < 0:
                first = sum(table[: 1 + next((i for i, n in enumerate(table) if n < 255), len(table))])
                codec, rate, channels, skip = identify(page[27 + len(table) :][:first])
                if codec:
                    link.codec, link.rate, link.channels, link.skip = codec, rate, channels, skip
                    link.serial, link.next_page = serial, number
        else:
            opening = False
        if links and serial == links[-1].serial:
            link = links[-1]
            link.lost_pages += (number - link.next_page) & 0xFFFFFFFF if number > link.next_page >= 0 else 0
            link.next_page = number + 1
            link.pages += 1
            link.ended = link.ended or bool(flags & 4)
            if granule >= 0:
                link.granule = max(link.granule, granule)
        drop(length)
    if links:
        links[-1].stop = at + len(buffer)
    return OggWalk(tuple(links), tuple(bad), bad_count, junk, cut)


def last_granule(tail: bytes, serial: int) -> int:
    """Find the last position that a stream's pages state within the last bytes of a file; -1 if none."""
    at = len(tail)
    while (at := tail.rfind(b"OggS", 0, at)) >= 0:
        page = tail[at : at + 18]
        if len(page) == 18 and int.from_bytes(page[14:18], "little") == serial:
            granule = int.from_bytes(page[6:14], "little", signed=True)
            if granule >= 0:
                return granule
    return -1

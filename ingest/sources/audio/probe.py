"""What the header of a file claims: length, rate, channels. Claims are never believed, only compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import IO, BinaryIO, cast

from ingest.sources.audio import flac, mpeg, ogg, riff
from ingest.sources.audio.claims import read_claim
from ingest.sources.audio.sniff import HEAD_BYTES, UNTAGGED, audio_head, sniff

__all__ = ["Claim", "probe"]

#: Longest claim that is taken for one: 2^40 frames is half a year at 48 kHz.
MAX_CLAIM = 1 << 40
#: No coding makes more of a byte: a FLAC frame of 65,535 zeros takes about 10.
MAX_FRAMES_A_BYTE = 8192


@dataclass(frozen=True, slots=True)
class Claim:
    """What a file says of itself."""

    container: str | None
    """As :func:`sniff.sniff` names it; None for what is no audio file known here."""
    frames: int = -1
    """Claimed frames; -1 where nothing (or nothing possible) is claimed."""
    rate: int = 0
    """Hz; 0 where not known before decoding."""
    channels: int = 0
    """0 where not known before decoding."""
    codec: str = ""
    """Name of the coding, where the header is read here."""
    comment: str = ""
    """Free text that recorders write (their start time, for instance)."""
    origin: str = ""
    """Date and time of origin, as the header has it."""
    note: str = ""
    """What is wrong with the header, in words; empty where nothing is."""


def _tail(file: IO[bytes], size: int) -> bytes:
    file.seek(max(0, size - HEAD_BYTES))
    return file.read(HEAD_BYTES)


def probe(file: IO[bytes], size: int) -> Claim:
    """Read what the header of a file of ``size`` bytes claims.

    Reads at most the first and the last 64 KiB (and the chunk headers of a WAV); runs no decoder, so that
    hostile files meet plain Python only.
    """
    start, head = audio_head(file)
    container = sniff(head) if head else "mp3"
    try:
        claim = Claim(container) if start and container in UNTAGGED else _read(container, file, head, size)
    except (ValueError, IndexError, OverflowError) as err:  # riff.RiffError is a ValueError
        return Claim(container, note=str(err))
    most = MAX_CLAIM if container in ("riff", "w64") else min(MAX_CLAIM, size * MAX_FRAMES_A_BYTE)
    frames = claim.frames if 0 <= claim.frames <= most else -1
    return replace(claim, frames=frames)


def _read(container: str | None, file: IO[bytes], head: bytes, size: int) -> Claim:
    if container in ("riff", "w64"):
        facts = riff.read_facts(cast("BinaryIO", file), size)
        frames = facts.claimed if facts.plain else facts.packed_claimed
        return Claim(container, frames, facts.rate, facts.channels, facts.codec, facts.comment, facts.origin)
    if container == "flac":
        info = flac.stream_info(head)
        if info is None:
            return Claim(container, note="the FLAC file has no STREAMINFO within its first 64 KiB")
        return Claim(container, info.frames, info.rate, info.channels, f"flac_s{info.bits}")
    if container == "ogg":
        table = head[27 : 27 + head[26]]
        packet = head[27 + len(table) :]
        codec, clock, channels, skip = ogg.identify(packet)
        if not codec:
            return Claim(container)
        rate = ogg.opus_rate(packet) if codec == "opus" else clock
        last = ogg.last_granule(_tail(file, size), int.from_bytes(head[14:18], "little"))
        frames = max(0, last - skip) * rate // (clock or 1) if last >= 0 else -1
        return Claim(container, frames, rate, channels, codec)
    if container == "mp3":
        return _mp3(head)
    if container == "aiff":
        return _aiff(head)
    if container in ("au", "caf", "nist", "voc"):
        found = read_claim(file, container, size)
        return Claim(container, found.frames, found.rate, found.channels, container)
    return Claim(container)


def _mp3(head: bytes) -> Claim:
    at = mpeg.id3_end(head)
    free = tries = 0
    while at < len(head) - 4:
        if not free and tries < 8 and mpeg.is_free(head[at : at + 4]):
            tries += 1
            free = mpeg.free_length(head, at)
        frame = mpeg.frame_header(head[at : at + 4], free)
        behind = at + (frame.nbytes if frame else 0)
        following = mpeg.frame_header(head[behind : behind + 4], free) if frame else None
        if frame and ((following and following.rate == frame.rate) or at + frame.nbytes >= len(head)):
            info = mpeg.info_frame(head[at : at + frame.nbytes])
            frames = -1
            if info and info.frames > 0:
                frames = info.frames * frame.samples - max(0, info.delay) - max(0, info.padding)
            return Claim("mp3", frames, frame.rate, frame.channels, f"mp{frame.layer}")
        at += 1
    return Claim("mp3")


def _aiff(head: bytes) -> Claim:
    found = riff.aiff_common(head)
    return Claim("aiff", *found, "aiff") if found else Claim("aiff")

"""What kind of file this is, from its first bytes and never from its name.

Decides one thing: the name of the container. What its header claims is :mod:`probe`'s subject, and
whether it decodes is found by decoding.
"""

from __future__ import annotations

from typing import IO

from ingest.sources.audio.mpeg import frame_header, free_length, id3_end, is_free

__all__ = ["HEAD_BYTES", "SUFFIXES", "UNTAGGED", "audio_head", "sniff"]

#: Bytes from the start of a file that :func:`sniff` wants to see.
HEAD_BYTES = 65536

#: Suffixes by which a folder is searched for audio; the content decides afterwards.
SUFFIXES = (
    *(".wav", ".wave", ".w64", ".rf64", ".bwf", ".aif", ".aiff", ".aifc", ".flac", ".ogg", ".oga", ".opus"),
    *(".spx", ".mp3", ".mp2", ".mpga", ".m4a", ".m4b", ".mp4", ".aac", ".caf", ".au", ".snd", ".wma"),
    *(".webm", ".mka", ".mkv", ".amr", ".3gp", ".ape", ".wv", ".tta", ".voc", ".nist", ".sph", ".ac3"),
)

#: Kinds that libraries and headers are read of from the first byte on: FFmpeg reads them behind a tag.
UNTAGGED = frozenset({"riff", "w64", "aiff", "ogg", "au", "caf", "voc", "nist"})

_W64 = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_ASF = b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c"

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (_W64, "w64"),
    (_ASF, "asf"),
    (b"\x1aE\xdf\xa3", "matroska"),
    (b"caff", "caf"),
    (b".snd", "au"),
    (b"#!AMR", "amr"),
    (b"wvpk", "wavpack"),
    (b"MAC ", "ape"),
    (b"TTA1", "tta"),
    (b"Creative Voice File", "voc"),
    (b"NIST_1A", "nist"),
    (b"\x0b\x77", "ac3"),
    (b"\x7f\xfe\x80\x01", "dts"),
    (b"FLV\x01", "flv"),
    (b".SoX", "sox"),
    (b"\x64\xa3\x01\0", "ircam"),
    (b"\x64\xa3\x02\0", "ircam"),
    (b"\0\x01\xa3\x64", "ircam"),
    (b"\0\x02\xa3\x64", "ircam"),
)


def _mpeg_frames(head: bytes) -> bool:
    """Whether two MPEG audio frames of one kind follow each other within the first bytes."""
    tries = 0
    for at in range(min(len(head) - 4, 8192)):
        if head[at] != 0xFF:
            continue
        frame = frame_header(head[at : at + 4])
        if frame is None:
            if tries < 8 and is_free(head[at : at + 4]):
                tries += 1
                if free_length(head, at):
                    return True
            continue
        second = head[at + frame.nbytes : at + frame.nbytes + 4]
        following = frame_header(second)
        if (following and following.rate == frame.rate) or (at == 0 and not second):
            return True
    return False


def audio_head(file: IO[bytes]) -> tuple[int, bytes]:
    """Return where a file begins behind ID3 tags, which may be megabytes, and ``HEAD_BYTES`` from there."""
    start = 0
    for _ in range(16):
        file.seek(start)
        head = file.read(HEAD_BYTES)
        end = id3_end(head)
        if not end:
            break
        start += end
    return start, head


def sniff(head: bytes) -> str | None:
    """Name the container of a file from its first bytes.

    Parameters
    ----------
    head : bytes
        The first bytes of the file, up to ``HEAD_BYTES``, as :func:`audio_head` gives them.

    Returns
    -------
    One of ``riff`` (with its variants RIFX, RF64 and BW64), ``w64``, ``aiff``, ``flac``, ``ogg``,
    ``mp3``, ``mp4``, ``matroska`` and so on, or None for what is no audio file known here.

    Examples
    --------
    >>> sniff(b"RIFF" + bytes(4) + b"WAVEfmt "), sniff(b"fLaC" + bytes(8)), sniff(b"# notes")
    ('riff', 'flac', None)
    """
    tag, kind = head[:4], head[8:12]
    if tag in (b"RIFF", b"RIFX", b"RF64", b"BW64") and kind == b"WAVE":
        return "riff"
    if tag == b"RIFF" and kind == b"AVI ":
        return "avi"
    if tag == b"FORM" and kind in (b"AIFF", b"AIFC"):
        return "aiff"
    if len(head) > 4 * 188 and all(head[at] == 0x47 for at in range(0, 5 * 188, 188)):
        return "mpegts"
    if head[4:8] == b"ftyp":
        return "mp4"
    if tag[:3] == b"ID3":
        end = id3_end(head)
        rest = head[end:]
        if rest[:4] == b"fLaC":
            return "flac"
        if end >= len(head) or _mpeg_frames(rest):
            return "mp3"
        return _adts(rest)
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    return _adts(head) or ("mp3" if _mpeg_frames(head) else None)


def _adts(head: bytes) -> str | None:
    """Name AAC in its bare stream: a 12-bit sync, layer 0, and a second frame where the first says."""
    if len(head) < 7 or head[0] != 0xFF or head[1] & 0xF6 != 0xF0:
        return None
    size = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    after = head[size : size + 2]
    return "aac" if size >= 7 and (len(after) < 2 or (after[0] == 0xFF and after[1] & 0xF6 == 0xF0)) else None

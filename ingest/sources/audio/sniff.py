"""What kind of file this is, from its first bytes and never from its name.

Decides one thing: the name of the container. What its header claims is :mod:`probe`'s subject, and
whether it decodes is found by decoding.
"""

from __future__ import annotations

from ingest.sources.audio.mpeg import frame_header, id3_end

__all__ = ["HEAD_BYTES", "SUFFIXES", "sniff"]

#: Bytes from the start of a file that :func:`sniff` wants to see.
HEAD_BYTES = 65536

#: Suffixes by which a folder is searched for audio; the content decides afterwards.
SUFFIXES = (
    *(".wav", ".wave", ".w64", ".rf64", ".bwf", ".aif", ".aiff", ".aifc", ".flac", ".ogg", ".oga", ".opus"),
    *(".spx", ".mp3", ".mp2", ".mpga", ".m4a", ".m4b", ".mp4", ".aac", ".caf", ".au", ".snd", ".wma"),
    *(".webm", ".mka", ".mkv", ".amr", ".3gp", ".ape", ".wv", ".tta", ".voc", ".nist", ".sph", ".ac3"),
)

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
)


def _mpeg_frames(head: bytes) -> bool:
    """Whether two MPEG audio frames of one kind follow each other within the first bytes."""
    for at in range(min(len(head) - 4, 8192)):
        if head[at] != 0xFF:
            continue
        frame = frame_header(head[at : at + 4])
        if frame is None:
            continue
        second = head[at + frame.nbytes : at + frame.nbytes + 4]
        following = frame_header(second)
        if (following and following.rate == frame.rate) or (at == 0 and not second):
            return True
    return False


def sniff(head: bytes) -> str | None:
    """Name the container of a file from its first bytes.

    Parameters
    ----------
    head : bytes
        The first bytes of the file, up to ``HEAD_BYTES``.

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
    if tag == b"FORM" and kind in (b"AIFF", b"AIFC"):
        return "aiff"
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

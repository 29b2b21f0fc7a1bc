"""How many bytes a container says it should have and has not: FFmpeg ends quietly where a file is cut."""

from __future__ import annotations

from typing import IO

__all__ = ["missing"]


#: what stands at the top of an mp4
_BOXES = frozenset(
    b"ftyp moov mdat moof mfra free skip wide sidx ssix styp udta uuid meta pdin prft emsg".split()
)


def missing(file: IO[bytes], container: str, size: int) -> int:
    """Return the bytes that a file of ``size`` bytes lacks at its end; 0 where none, or nobody knows.

    Knows ``mp4``, ``matroska`` and ``avi``.

    Examples
    --------
    >>> import io
    >>> box = (12).to_bytes(4, "big") + b"ftypM4A "
    >>> missing(io.BytesIO(box), "mp4", 12), missing(io.BytesIO(box), "mp4", 10)
    (0, 2)
    """
    if container == "mp4":
        return _mp4(file, size)
    if container == "matroska":
        return _matroska(file, size)
    if container == "avi":
        file.seek(4)
        stated = int.from_bytes(file.read(4), "little")
        return max(0, stated + 8 - size) if 0 < stated < 0xFFFFFFFF else 0
    return 0


def _mp4(file: IO[bytes], size: int) -> int:
    at = 0
    for _ in range(100_000):  # a fragmented file has two boxes a fragment
        file.seek(at)
        head = file.read(16)
        if len(head) < 8:
            return 0
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8 or head[4:8] not in _BOXES:  # 0: to the end of the file; else a tag or whatever
            return 0
        at += length
        if at > size:
            return at - size
    return 0


def _number(raw: bytes) -> tuple[int, int]:
    """Read a length as EBML has it: (bytes taken, value); the value is -1 where it is left open."""
    if not raw or not raw[0]:
        return 0, -1
    width = 9 - raw[0].bit_length()
    value = int.from_bytes(raw[:width], "big") & ((1 << 7 * width) - 1)
    return width, -1 if value == (1 << 7 * width) - 1 else value


def _matroska(file: IO[bytes], size: int) -> int:
    file.seek(0)
    head = file.read(256)
    width, length = _number(head[4:12])
    at = 4 + width + max(0, length)
    if head[at : at + 4] != b"\x18\x53\x80\x67":  # the segment, which holds all the rest
        return 0
    width, length = _number(head[at + 4 : at + 12])
    return max(0, at + 4 + width + length - size) if length >= 0 else 0

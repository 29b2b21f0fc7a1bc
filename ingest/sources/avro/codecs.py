"""Decompression of Avro blocks, bounded: what a block may become is decided before it is decompressed.

Each codec of the specification is one function ``(data, limit) -> bytes``. A block that
would grow beyond ``limit`` bytes is refused while it grows, never after.
"""

from __future__ import annotations

import importlib.util
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkstore.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CODECS", "CodecError", "Limits", "available", "decompress", "decompress_into", "require"]


class CodecError(Exception):
    """A block that does not decompress; ``code`` is a fault code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a block may be.

    Examples
    --------
    >>> Limits(max_block=1 << 30, max_ratio=100).decoded(5_000_000)
    500000000
    """

    max_block: int = 256 << 20
    """Bytes of one decoded block, and of one encoded block."""
    max_ratio: int = 1000
    """Decoded bytes for each encoded byte, for blocks of more than ``free`` decoded bytes."""
    free: int = 16 << 20
    """Decoded bytes below which the ratio is not looked at."""

    def decoded(self, encoded: int) -> int:
        """Bytes that a block of ``encoded`` bytes may decompress to."""
        return min(self.max_block, max(self.free, encoded * self.max_ratio))


def _bomb(limit: int, encoded: int) -> CodecError:
    return CodecError(
        "avro-bomb",
        f"the block of {encoded} bytes decompresses to more than {limit} bytes; if it is meant, raise "
        "max_block_bytes or max_ratio",
    )


def _stream(make: Callable[[], Any], data: bytes, limit: int) -> bytes:
    """Decompress with one of the standard library's objects, which know ``max_length``."""
    try:
        worker = make()
        out = bytes(worker.decompress(data, limit + 1))
    except Exception as error:
        raise CodecError("avro-decompress", f"the block does not decompress: {error}") from error
    if len(out) > limit:
        raise _bomb(limit, len(data))
    if not worker.eof:
        raise CodecError("avro-decompress", "the compressed block ends too early")
    return out


def _null(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise _bomb(limit, len(data))
    return data


def _deflate(data: bytes, limit: int) -> bytes:
    return _stream(lambda: zlib.decompressobj(-15), data, limit)


def _bzip2(data: bytes, limit: int) -> bytes:
    import bz2

    return _stream(bz2.BZ2Decompressor, data, limit)


def _xz(data: bytes, limit: int) -> bytes:
    import lzma

    return _stream(lambda: lzma.LZMADecompressor(memlimit=max(256 << 20, 2 * limit)), data, limit)


def _snappy(data: bytes, limit: int) -> bytearray:
    import cramjam

    if len(data) < 5:
        raise CodecError("avro-decompress", f"a snappy block needs at least 5 bytes, this has {len(data)}")
    body = memoryview(data)[:-4]
    try:
        size = int(cramjam.snappy.decompress_raw_len(body))
        if size > limit:
            raise _bomb(limit, len(data))
        out = bytearray(size)
        done = int(cramjam.snappy.decompress_raw_into(body, out))
    except CodecError:
        raise
    except Exception as error:
        raise CodecError("avro-decompress", f"the block does not decompress: {error}") from error
    if done != size:
        raise CodecError("avro-decompress", f"the snappy block holds {done} bytes and claims {size}")
    stored = int.from_bytes(data[-4:], "big")
    if zlib.crc32(out) != stored:
        raise CodecError(
            "avro-crc", f"the snappy block's CRC32 is {zlib.crc32(out):#010x}, stored {stored:#010x}"
        )
    return out


def _zstandard(data: bytes, limit: int) -> memoryview:
    import cramjam

    # The decoder writes into a buffer that is given: it is grown until the block fits or breaks the limit.
    size = min(limit, max(1 << 16, 8 * len(data)))
    while True:
        out = bytearray(size)
        try:
            done = int(cramjam.zstd.decompress_into(data, out))
        except Exception as error:
            if not _full(error):
                raise CodecError("avro-decompress", f"the block does not decompress: {error}") from error
            if size >= limit:
                raise _bomb(limit, len(data)) from error
            size = min(limit, 4 * size)
            continue
        return memoryview(out)[:done]


#: codec of the specification -> (function, module that it needs, what brings the module)
CODECS: dict[str, tuple[Callable[[bytes, int], bytes | bytearray | memoryview], str, str]] = {
    "null": (_null, "", ""),
    "deflate": (_deflate, "zlib", "a Python built with zlib"),
    "snappy": (_snappy, "cramjam", "pip install cramjam"),
    "zstandard": (_zstandard, "cramjam", "pip install cramjam"),
    "bzip2": (_bzip2, "bz2", "a Python built with bz2"),
    "xz": (_xz, "lzma", "a Python built with lzma"),
}


def available(codec: str) -> bool:
    """Whether blocks of ``codec`` can be decompressed here."""
    entry = CODECS.get(codec)
    return entry is not None and (not entry[1] or importlib.util.find_spec(entry[1]) is not None)


def require(codec: str, files: list[str]) -> None:
    """Make sure, while planning, that the library for ``codec`` is there.

    Raises
    ------
    MissingDependencyError
        With the codec, the files that need it and what to install.
    """
    if not available(codec):
        _, module, remedy = CODECS[codec]
        raise MissingDependencyError(
            f"codec {codec!r} of {len(files)} file(s), first {files[0]!r}, needs the module {module!r}: "
            f"{remedy}"
        )


def decompress(codec: str, data: bytes, limit: int) -> bytes | bytearray | memoryview:
    """Return the decoded bytes of one block.

    Parameters
    ----------
    codec
        One of :data:`CODECS`.
    data
        Encoded bytes.
    limit
        Largest decoded size that is accepted, in bytes.

    Raises
    ------
    CodecError
        If the block does not decompress, fails its checksum or breaks the limit.

    Examples
    --------
    >>> decompress("null", b"abc", limit=10)
    b'abc'
    """
    return CODECS[codec][0](data, limit)


def decompress_into(codec: str, data: memoryview, room: memoryview, limit: int) -> int:
    """Decompress one block to where its bytes are wanted; return how many they are, or -1 for want of room.

    Parameters
    ----------
    codec
        One of :data:`CODECS`.
    data
        Encoded bytes.
    room
        Where to write; what lies behind the decoded bytes may be overwritten too.
    limit
        Largest decoded size that is accepted, in bytes.

    Raises
    ------
    CodecError
        As :func:`decompress`.
    """
    if codec == "zstandard" and len(room):
        import cramjam

        try:
            return int(cramjam.zstd.decompress_into(data, room[:limit]))
        except Exception as error:
            if not _full(error):
                raise CodecError("avro-decompress", f"the block does not decompress: {error}") from error
            if len(room) >= limit:
                raise _bomb(limit, len(data)) from error
            return -1
    out = decompress(codec, bytes(data), limit)
    if len(out) > len(room):
        return -1
    room[: len(out)] = out
    return len(out)


def _full(error: Exception) -> bool:
    """Whether a decoder's error says that its output was too small."""
    return "whole buffer" in str(error) or "write zero" in str(error).lower()

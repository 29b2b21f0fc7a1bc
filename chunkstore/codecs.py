"""Codecs of chunks: which there are, how each stands in Zarr metadata, how bytes become values.

A codec is named by text (``"zstd:3"``) when a store is created, and by the list of codecs in the
array's metadata when it is read. Both become a :class:`ChunkCodec`, bound to one dtype, which
encodes and decodes one chunk. Decides nothing about files, shards or where a chunk lies.

Every chain here is read by the ``zarrs`` pipeline and by plain zarr-python; anything else is
refused at creation, so that no store is written that only a slow path can read.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np

from chunkstore.errors import ConfigError, FormatError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["CODECS", "ChunkCodec", "ChunkDamageError", "checksum", "codec_chain", "parse_chain"]

#: Codecs that a store may be created with, and what each is.
CODECS: Final[Mapping[str, str]] = {
    "default": "blosc-lz4, from the measurements in docs/store-format.md",
    "none": "the bytes as they are",
    "lz4": "LZ4 in a Blosc frame, without shuffle",
    "zstd": "Zstandard, level 3; `zstd:LEVEL` for another",
    "blosc-lz4": "LZ4 in a Blosc frame, shuffled; `blosc-lz4:LEVEL`",
    "blosc-zstd": "Zstandard in a Blosc frame, shuffled; `blosc-zstd:LEVEL`",
    "pcodec": "pcodec, level 8; `pcodec:LEVEL`; 8-bit fields and masks take blosc-zstd",
}
_LEVELS: Final = {
    "zstd": (3, 1, 22),
    "blosc-lz4": (5, 1, 9),
    "blosc-zstd": (3, 1, 9),
    "lz4": (5, 1, 9),
    "pcodec": (8, 1, 12),
}
_NAME: Final = re.compile(r"^([a-z0-9\-]+)(?::(\d+))?$")
_PCODEC_DTYPES: Final = frozenset({"u2", "u4", "u8", "i2", "i4", "i8", "f2", "f4", "f8"})


class ChunkDamageError(Exception):
    """A chunk whose bytes fail their checksum or do not decode; the reader adds the place."""


def checksum(data: bytes | bytearray | memoryview | NDArray[Any], before: int = 0) -> int:
    """Return the crc32c (Castagnoli) of a buffer, which follows data of the checksum ``before``.

    Examples
    --------
    >>> hex(checksum(b"123456789")), checksum(b"6789", checksum(b"12345")) == checksum(b"123456789")
    ('0xe3069283', True)
    """
    if isinstance(data, bytes):
        return int(google_crc32c.extend(before, data))
    view = np.frombuffer(data, dtype=np.uint8) if len(data) else np.empty(0, np.uint8)
    if view.flags.writeable:
        view = view.view()
        view.flags.writeable = False  # the library takes read-only buffers only
    return int(google_crc32c.extend(before, view))


def parse_name(name: str) -> tuple[str, int]:
    """Split ``"zstd:5"`` into its name and level, with the level's default where none is given.

    Raises
    ------
    ConfigError
        If there is no such codec, or the level is out of its range.

    Examples
    --------
    >>> parse_name("zstd:5"), parse_name("none")
    (('zstd', 5), ('none', 0))
    """
    found = _NAME.match(name) if isinstance(name, str) else None
    if not found or found[1] not in CODECS:
        raise ConfigError(
            f"there is no codec {name!r}; a store may use {', '.join(CODECS)} "
            "(others cannot be decoded by the fast pipeline)"
        )
    base, level = found[1], found[2]
    if base not in _LEVELS:
        if level is not None:
            raise ConfigError(f"codec {base!r} takes no level, got {name!r}")
        return base, 0
    default, low, high = _LEVELS[base]
    chosen = default if level is None else int(level)
    if not low <= chosen <= high:
        raise ConfigError(f"codec {name!r}: the level must lie in {low}..{high}")
    return base, chosen


def resolve(name: str, dtype: np.dtype[Any]) -> tuple[str, int]:
    """Return (codec, level) that a field of this dtype gets when the store is created with ``name``."""
    base, level = parse_name(name)
    if base == "default":
        return parse_name("blosc-lz4")
    if base == "pcodec" and dtype.str[1:] not in _PCODEC_DTYPES:
        return parse_name("blosc-zstd")
    return base, level


def _blosc(cname: str, level: int, dtype: np.dtype[Any], *, shuffled: bool) -> dict[str, Any]:
    shuffle = "noshuffle"
    if shuffled and dtype.itemsize > 1:
        shuffle = "bitshuffle" if dtype.kind in "iu" and dtype.itemsize == 2 else "shuffle"
    return {
        "name": "blosc",
        "configuration": {
            "typesize": dtype.itemsize,
            "cname": cname,
            "clevel": level,
            "shuffle": shuffle,
            "blocksize": 0,
        },
    }


def codec_chain(name: str, dtype: np.dtype[Any], *, crc: bool = True) -> list[dict[str, Any]]:
    """Return the Zarr metadata of the codecs that a chunk of this dtype passes.

    Examples
    --------
    >>> [c["name"] for c in codec_chain("zstd", np.dtype("f4"))]
    ['bytes', 'zstd', 'crc32c']
    """
    base, level = resolve(name, dtype)
    little: dict[str, Any] = {"name": "bytes"}
    if dtype.itemsize > 1:
        little["configuration"] = {"endian": "little"}
    chain = [little]
    if base == "lz4":
        chain.append(_blosc("lz4", level, dtype, shuffled=False))
    elif base == "blosc-lz4":
        chain.append(_blosc("lz4", level, dtype, shuffled=True))
    elif base == "blosc-zstd":
        chain.append(_blosc("zstd", level, dtype, shuffled=True))
    elif base == "zstd":
        chain.append({"name": "zstd", "configuration": {"level": level, "checksum": False}})
    elif base == "pcodec":
        _need_pcodec()
        chain = [
            {
                "name": "numcodecs.pcodec",
                "configuration": {
                    "level": level,
                    "mode_spec": "auto",
                    "delta_spec": "auto",
                    "paging_spec": "equal_pages_up_to",
                    "delta_encoding_order": None,
                    "equal_pages_up_to": 262144,
                },
            }
        ]
    if crc:
        chain.append({"name": "crc32c"})
    return chain


def has_pcodec() -> bool:
    """Whether the optional library ``pcodec`` is installed."""
    return importlib.util.find_spec("pcodec") is not None


def _need_pcodec() -> None:
    if not has_pcodec():
        raise MissingDependencyError("codec 'pcodec' needs a library: pip install 'chunkstore[pcodec]'")


@dataclass(frozen=True, slots=True)
class ChunkCodec:
    """Encodes and decodes one chunk of one dtype.

    Examples
    --------
    >>> codec = parse_chain(codec_chain("zstd", np.dtype("f4")), np.dtype("f4"))
    >>> out = np.empty(3, "f4")
    >>> codec.decode_into(codec.encode(np.arange(3, dtype="f4")), out)
    >>> out
    array([0., 1., 2.], dtype=float32)
    """

    dtype: np.dtype[Any]
    """Dtype of the values, in the byte order of this machine."""
    name: str
    """``none``, ``blosc``, ``zstd`` or ``pcodec``."""
    crc: bool
    """Whether a crc32c stands at the end of each chunk."""
    compressor: Any
    """The numcodecs object; None for ``none``, and for ``pcodec`` where its library is missing."""

    def encode(self, values: NDArray[Any]) -> bytes:
        """Return the stored bytes of a chunk; ``values`` [chunk] or [chunk, items]."""
        flat = np.ascontiguousarray(values, dtype=self.dtype.newbyteorder("<")).reshape(-1)
        if self.compressor is None:
            if self.name == "pcodec":
                _need_pcodec()
            data = flat.tobytes()
        else:
            if self.name == "blosc":
                _blosc_alone()
            data = bytes(self.compressor.encode(flat))
        if self.crc:
            data += checksum(data).to_bytes(4, "little")
        return data

    def verify(self, data: bytes | memoryview) -> memoryview:
        """Check the crc32c, where there is one, and return the bytes before it.

        Raises
        ------
        ChunkDamageError
            If the checksum does not match, or there is not even room for it.
        """
        view = memoryview(data)
        if not self.crc:
            return view
        if len(view) < 4:
            raise ChunkDamageError(f"{len(view)} bytes are too few for a checksum of 4")
        body, stored = view[:-4], int.from_bytes(view[-4:], "little")
        found = checksum(body)
        if found != stored:
            raise ChunkDamageError(f"crc32c is {found:08x}, stored {stored:08x}")
        return body

    def decode_into(self, data: bytes | memoryview, out: NDArray[Any]) -> None:
        """Check and decode the stored bytes of a chunk straight into ``out``, which is contiguous.

        Raises
        ------
        ChunkDamageError
            If the checksum fails, the bytes do not decode, or are not as many as ``out`` holds.
        """
        body = self.verify(data)
        flat = out.reshape(-1)
        if self.name == "none":
            if len(body) != out.nbytes:
                raise ChunkDamageError(f"{len(body)} bytes stand where {out.nbytes} are expected")
            flat.view(np.uint8)[:] = np.frombuffer(body, np.uint8)
        else:
            self._decompress(body, flat)
        if self.dtype.byteorder == ">" or (
            self.dtype.itemsize > 1 and self.name != "pcodec" and not _LITTLE
        ):  # pragma: no cover - needs a big-endian machine
            flat.byteswap(inplace=True)

    def _decompress(self, body: memoryview, flat: NDArray[Any]) -> None:
        if self.compressor is None:
            _need_pcodec()
        try:
            if self.name in ("blosc", "zstd"):
                claimed = _blosc_size(body) if self.name == "blosc" else zstd_size(body)
                if claimed != flat.nbytes:
                    raise ChunkDamageError(f"decodes to {claimed} bytes where {flat.nbytes} are expected")
            if self.name == "pcodec":
                _decompress_pcodec(body, flat)
                return
            decoded = self.compressor.decode(body, out=flat)
        except ChunkDamageError:
            raise
        except Exception as err:
            raise ChunkDamageError(f"does not decode: {err}") from err
        got = getattr(decoded, "nbytes", len(decoded))
        if got != flat.nbytes:
            raise ChunkDamageError(f"decodes to {got} bytes where {flat.nbytes} are expected")


_LITTLE: Final = np.dtype("=i2").newbyteorder("<") == np.dtype("=i2")


def _decompress_pcodec(body: memoryview, flat: NDArray[Any]) -> None:
    """Decode with pcodec itself: numcodecs does not say how many values there were."""
    from pcodec import standalone

    progress = standalone.simple_decompress_into(bytes(body), flat)
    if progress.n_processed != len(flat) or not progress.finished:
        there = "more" if progress.n_processed == len(flat) else progress.n_processed
        raise ChunkDamageError(f"decodes to {there} values where {len(flat)} are expected")


def _blosc_alone() -> None:
    """Keep Blosc to the thread that calls it: with threads of its own it gives other bytes each time.

    Its switch is one for the process; zarr-python turns it at its import, too.
    """
    from numcodecs import blosc

    blosc.use_threads = False


def _blosc_size(body: memoryview) -> int:
    """Return the decoded size that a Blosc frame claims, after checking that the frame is whole."""
    if len(body) < 16:
        raise ChunkDamageError(f"{len(body)} bytes are too few for a Blosc header of 16")
    if int.from_bytes(body[12:16], "little") != len(body):
        raise ChunkDamageError("the Blosc header states another length than the index")
    return int.from_bytes(body[4:8], "little")


def zstd_size(frame: memoryview) -> int:
    """Return the content size that a Zstandard frame states in its header.

    Raises
    ------
    ChunkDamageError
        If it is not such a frame, or states none.
    """
    if len(frame) < 6 or bytes(frame[:4]) != b"\x28\xb5\x2f\xfd":
        raise ChunkDamageError("is not a Zstandard frame")
    flags = frame[4]
    single, kind, dictionary = flags >> 5 & 1, flags >> 6, (0, 1, 2, 4)[flags & 3]
    width = (1 if single else 0, 2, 4, 8)[kind]
    at = 5 + (not single) + dictionary
    if not width or len(frame) < at + width:
        raise ChunkDamageError("the Zstandard frame does not state its size")
    return int.from_bytes(frame[at : at + width], "little") + (256 if width == 2 else 0)


def _configuration(codec: Mapping[str, Any]) -> Mapping[str, Any]:
    found = codec.get("configuration", {})
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=64)
def _compressor(name: str, settings: tuple[tuple[str, Any], ...]) -> Any:
    import numcodecs

    options = dict(settings)
    if name == "blosc":
        shuffle = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[options["shuffle"]]
        if options["cname"] not in ("lz4", "zstd"):
            raise FormatError(f"blosc with {options['cname']!r} is not a codec of the format")
        return numcodecs.Blosc(options["cname"], int(options["clevel"]), shuffle)
    if name == "zstd":
        return numcodecs.Zstd(int(options["level"]), bool(options.get("checksum", False)))
    if not has_pcodec():
        return None
    from numcodecs.pcodec import PCodec

    return PCodec(level=int(options.get("level", 8)))


def parse_chain(codecs: Sequence[Mapping[str, Any]], dtype: np.dtype[Any]) -> ChunkCodec:
    """Return the codec that the list in an array's metadata describes.

    Raises
    ------
    FormatError
        If the list is not one of the chains that the format allows.
    """
    try:
        names = [str(c["name"]) for c in codecs]
        crc = names[-1:] == ["crc32c"]
        kinds = names[:-1] if crc else names
        if kinds == ["numcodecs.pcodec"]:
            settings = _configuration(codecs[0])
            return ChunkCodec(dtype, "pcodec", crc, _compressor("pcodec", _frozen(settings)))
        if (
            kinds[:1] != ["bytes"]
            or len(kinds) > 2
            or (len(kinds) == 2 and kinds[1] not in ("blosc", "zstd"))
        ):
            raise FormatError(
                f"the codecs {names} are none that the format knows; it takes bytes, then blosc or zstd "
                "or nothing, or numcodecs.pcodec, then crc32c or nothing"
            )
        endian = _configuration(codecs[0]).get("endian", "little")
        if endian not in ("little", "big"):
            raise FormatError(f"the codec 'bytes' has endian {endian!r}")
        if endian == "big":
            raise FormatError("the format stores little-endian values, this array says big")
        if len(kinds) == 1:
            return ChunkCodec(dtype, "none", crc, None)
        return ChunkCodec(dtype, kinds[1], crc, _compressor(kinds[1], _frozen(_configuration(codecs[1]))))
    except FormatError:
        raise
    except Exception as err:
        raise FormatError(f"the codecs {codecs!r:.200} cannot be understood: {err}") from err


def _frozen(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(settings.items()))

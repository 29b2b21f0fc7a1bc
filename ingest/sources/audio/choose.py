"""Which decoders a file gets, by its content, first choice first."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from chunkstore.errors import MissingDependencyError
from ingest.sources.audio import voc
from ingest.sources.audio.by_av import AvDecoder
from ingest.sources.audio.by_flac import FlacDecoder
from ingest.sources.audio.by_mpeg import Mp3Decoder
from ingest.sources.audio.by_ogg import OggDecoder
from ingest.sources.audio.by_pcm import PcmDecoder
from ingest.sources.audio.by_sndfile import (
    AiffDecoder,
    ClaimingDecoder,
    PackedWavDecoder,
    SndfileDecoder,
    Window,
)
from ingest.sources.audio.decode import SNDFILE, DecodeError, av_module
from ingest.sources.audio.sniff import UNTAGGED, audio_head, sniff

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from ingest.sources.audio.decode import Decoder

__all__ = ["candidates"]


def _has_av() -> bool:
    try:
        av_module()
    except MissingDependencyError:
        return False
    return True


def _behind(path: str, start: int) -> Decoder:
    """Show libsndfile what stands behind a tag."""
    return SndfileDecoder(cast("BinaryIO", Window(path, start, Path(path).stat().st_size)))


def candidates(path: str | os.PathLike[str]) -> list[tuple[str, Callable[[], Decoder]]]:
    """List the decoders to try for a local file, by its content, first choice first.

    Returns
    -------
    list of (container, function that opens the decoder)
    """
    path = str(path)
    with Path(path).open("rb") as file:
        start, head = audio_head(file)
        container = sniff(head) if head else "mp3"  # a tag that goes on to the end
        plain = container != "voc" or voc.simple(file)
    if container is None:
        raise DecodeError("audio-unrecognised", "the content is of no kind of audio known here")
    av = partial(AvDecoder, path, container)
    sndfile = partial(SndfileDecoder, path)
    table: dict[str, list[Callable[[], Decoder]]] = {
        "riff": [partial(PcmDecoder, path), partial(PackedWavDecoder, path), av],
        "w64": [partial(PcmDecoder, path), partial(PackedWavDecoder, path), av],
        "flac": [
            partial(FlacDecoder, path, kind)
            for kind in (("sndfile", "av") if container == "flac" and _has_av() else ("only",))
        ],
        "ogg": [partial(OggDecoder, path), av],
        "mp3": [
            partial(Mp3Decoder, path, "sndfile"),
            partial(Mp3Decoder, path, "av"),
        ],
    }
    table["aiff"] = [partial(AiffDecoder, path), av]
    for name in ("au", "caf", "nist", "voc"):
        table[name] = [partial(ClaimingDecoder, path, name), av]
    if start and container in UNTAGGED:
        table[container] = [partial(_behind, path, start), av]
    if not plain:
        table["voc"] = [av]
    choice = table.get(container) or ([sndfile, av] if container in SNDFILE else [av])
    return [(container, opener) for opener in choice]

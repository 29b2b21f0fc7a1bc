"""Which decoders a file gets, by its content, first choice first."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chunkstore.errors import MissingDependencyError
from ingest.sources.audio.by_av import AvDecoder
from ingest.sources.audio.by_flac import FlacDecoder
from ingest.sources.audio.by_mpeg import Mp3Decoder
from ingest.sources.audio.by_ogg import OggDecoder
from ingest.sources.audio.by_pcm import PcmDecoder
from ingest.sources.audio.by_sndfile import AiffDecoder, SndfileDecoder
from ingest.sources.audio.decode import SNDFILE, DecodeError, av_module
from ingest.sources.audio.sniff import HEAD_BYTES, sniff

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


def candidates(path: str | os.PathLike[str]) -> list[tuple[str, Callable[[], Decoder]]]:
    """List the decoders to try for a local file, by its content, first choice first.

    Returns
    -------
    list of (container, function that opens the decoder)
    """
    path = str(path)
    with Path(path).open("rb") as file:
        container = sniff(file.read(HEAD_BYTES))
    av = partial(AvDecoder, path)
    sndfile = partial(SndfileDecoder, path)
    if container is None:
        raise DecodeError("audio-unrecognised", "the content is of no kind of audio known here")
    table: dict[str, list[Callable[[], Decoder]]] = {
        "riff": [partial(PcmDecoder, path), sndfile, av],
        "w64": [partial(PcmDecoder, path), sndfile, av],
        "flac": [
            partial(FlacDecoder, path, kind) for kind in (("sndfile", "av") if _has_av() else ("only",))
        ],
        "ogg": [partial(OggDecoder, path), av],
        "mp3": [
            partial(Mp3Decoder, path, "sndfile"),
            partial(Mp3Decoder, path, "av"),
        ],
    }
    table["aiff"] = [partial(AiffDecoder, path), av]
    choice = table.get(container) or ([sndfile, av] if container in SNDFILE else [av])
    return [(container, opener) for opener in choice]

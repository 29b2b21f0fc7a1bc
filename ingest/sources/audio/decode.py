"""What decoders have in common: a local file in, float32 blocks of [frames, channels] out.

In order, in bounded memory, and nothing is ever sought in a compressed stream. A decoder that ends
without an exception has been compared with what the file says of itself: what differs stands in its
``notes``. A :class:`DecodeError` condemns the file, or hands it to the next decoder that
:mod:`choose` names for its kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from chunkstore.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    Samples = np.ndarray[Any, np.dtype[np.float32]]

__all__ = [
    "BLOCK_VALUES",
    "SNDFILE",
    "DecodeError",
    "Decoder",
    "Note",
    "av_module",
    "reason",
    "soundfile_module",
    "truncated",
]

#: Values (frames times channels) that a block holds at most.
BLOCK_VALUES = 1 << 16
#: Containers that libsndfile reads; all others need PyAV.
SNDFILE = frozenset({"riff", "w64", "aiff", "flac", "ogg", "mp3", "au", "caf", "voc", "nist"})


class DecodeError(Exception):
    """The file, or this decoder's view of it, can't be used."""

    def __init__(self, code: str, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.offset = code, message, offset


@dataclass(frozen=True, slots=True)
class Note:
    """Something that differs from what the file says of itself; the samples are kept."""

    code: str
    """As in ``CODES`` of the source."""
    message: str
    """One clear sentence."""
    offset: int | None = None
    """Byte offset, where known."""
    frames: int = 0
    """Frames claimed and not there."""


class Decoder(Protocol):
    """What all decoders have in common."""

    rate: int
    """Hz."""
    channels: int
    """Values a frame."""
    codec: str
    """Name of the coding."""
    name: str
    """Decoder and version."""
    claimed: int
    """Frames that the header claims, -1 where none."""
    notes: list[Note]
    """Filled when ``blocks`` is exhausted."""

    def blocks(self) -> Iterator[Samples]:
        """Yield float32[frames, channels], at most ``BLOCK_VALUES`` values each."""
        ...


def soundfile_module() -> Any:
    """Import soundfile or say how to get it."""
    try:
        import soundfile
    except ImportError as err:
        raise MissingDependencyError(
            "decoding audio needs soundfile: pip install 'chunkstore[audio]'"
        ) from err
    return soundfile


def av_module() -> Any:
    """Import PyAV or say how to get it."""
    try:
        import av
    except ImportError as err:
        raise MissingDependencyError("this audio needs PyAV: pip install 'chunkstore[audio-extra]'") from err
    av.logging.set_level(None)
    return av


def reason(err: BaseException) -> str:
    """Say what a library said, without paths or its frames around it."""
    text = str(getattr(err, "strerror", None) or err) or type(err).__name__
    text = text.rsplit("': ", 1)[-1] if "Error opening" in text else text
    return text.strip().rstrip(".")


def truncated(claimed: int, there: int) -> Note:
    """Return the note that a file ends before its header says."""
    return Note(
        "audio-truncated",
        f"the header claims {claimed} frames, the file ends after {there}",
        frames=max(0, claimed - there),
    )

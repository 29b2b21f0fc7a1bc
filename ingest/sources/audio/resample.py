"""Channels and sample rate: from blocks of [frames, channels] to one line at the rate of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import MissingDependencyError
from ingest.sources.audio.decode import DecodeError

if TYPE_CHECKING:
    Samples = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["MAX_UPSAMPLING", "Resampler", "mix", "resampled_length"]

#: A few bytes that claim to be hours at 1 Hz must not become gigabytes.
MAX_UPSAMPLING = 64


def resampled_length(frames: int, source_rate: int, rate: int) -> int:
    """Return how many samples ``frames`` become: rounded to nearest, halves upwards.

    Examples
    --------
    >>> resampled_length(441, 44100, 32000), resampled_length(0, 44100, 32000)
    (320, 0)
    """
    return (frames * rate + source_rate // 2) // source_rate


def mix(block: Samples, channels: str | int) -> Samples:
    """Make one channel of several.

    Parameters
    ----------
    block : ndarray
        float32[frames, channels].
    channels : str or int
        ``mean``, ``first``, ``error``, or the index of one.

    Returns
    -------
    ndarray
        float32[frames], contiguous.

    Raises
    ------
    DecodeError
        If there are several and ``error`` was asked for, or the index does not exist.
    """
    count = block.shape[1]
    if channels == "error" and count > 1:
        raise DecodeError("audio-channels", f"the file has {count} channels; choose mean, first or an index")
    if isinstance(channels, int):
        if channels >= count:
            raise DecodeError(
                "audio-channels", f"channel {channels} was asked for, the file has {count} (from 0)"
            )
        return np.ascontiguousarray(block[:, channels])
    if count == 1 or channels == "first":
        return np.ascontiguousarray(block[:, 0])
    mean: Samples = block.mean(axis=1, dtype=np.float64).astype(np.float32)
    return mean


class Resampler:
    """A stream from one rate to another whose result does not depend on how it is cut into blocks.

    ``n`` samples become exactly ``resampled_length(n, source_rate, rate)``.
    """

    def __init__(self, source_rate: int, rate: int, quality: str = "HQ") -> None:
        self._in, self._out, self.given, self.made = source_rate, rate, 0, 0
        self._stream: Any = None
        if rate > MAX_UPSAMPLING * source_rate:
            raise DecodeError(
                "audio-rate",
                f"{source_rate} Hz would grow more than {MAX_UPSAMPLING}-fold on the way to {rate} Hz",
            )
        if source_rate != rate:
            try:
                import soxr
            except ImportError as err:
                raise MissingDependencyError(
                    "resampling needs soxr: pip install 'chunkstore[audio]'"
                ) from err
            try:
                self._stream = soxr.ResampleStream(source_rate, rate, 1, dtype="float32", quality=quality)
            except (ValueError, RuntimeError) as err:
                raise DecodeError("audio-rate", f"{source_rate} Hz can't become {rate} Hz: {err}") from err

    def push(self, block: Samples, last: bool = False) -> Samples:
        """Take float32[n], give what is ready; ``last`` closes the stream (``block`` may be empty)."""
        self.given += len(block)
        if self._stream is None:
            out = block
        elif last:
            # soxr ends as if silence followed, but rounds half a sample up or down as its floats fall: it is
            # given that silence, and cut at the promised length
            silence = np.zeros(2 + 2 * self._in // self._out, np.float32)
            out = self._stream.resample_chunk(np.concatenate([block, silence]), last=True)
            out = out[: resampled_length(self.given, self._in, self._out) - self.made]
        else:
            out = self._stream.resample_chunk(block)
        self.made += len(out)
        return out

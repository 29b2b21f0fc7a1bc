"""Samples as a picture and as something a browser plays. Pure but for the optional encoder."""

from __future__ import annotations

import base64
import io
import wave

import numpy as np

__all__ = ["as_float", "data_url", "spectrogram"]

#: Sample rates in Hz that mp3 knows.
_MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)


def as_float(samples: np.ndarray, scale: float | None = None) -> np.ndarray:
    """Return samples as float32 in about [-1, 1]; missing ones become silence.

    Examples
    --------
    >>> as_float(np.array([-32768, 0, 16384], "int16")).tolist()
    [-1.0, 0.0, 0.5]
    """
    if samples.dtype.kind in "iu":
        factor = scale if scale is not None else 1.0 / (1 << (8 * samples.dtype.itemsize - 1))
        return np.asarray(samples * factor, np.float32)
    return np.asarray(np.nan_to_num(samples.astype(np.float32) * (scale or 1.0)))


def spectrogram(
    samples: np.ndarray, rate: float, *, size: int = 512, columns: int = 500
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return levels, times and pitches of a stretch of sound.

    Parameters
    ----------
    samples : float32[n]
    rate : float
        In Hz.
    size : int
        Samples of one Fourier transform.
    columns : int
        Most columns of the picture.

    Returns
    -------
    levels : int8[size // 2 + 1, columns]
        In dB below the loudest, not under -90.
    times : float64[columns]
        In seconds, the middle of each transform.
    pitches : float64[size // 2 + 1]
        In kHz.

    Examples
    --------
    >>> tone = np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000)
    >>> levels, times, pitches = spectrogram(tone.astype("float32"), 8000)
    >>> pitches[levels.max(axis=1).argmax()]
    np.float64(1.0)
    """
    padded = np.pad(samples, (0, max(0, size - len(samples))))
    hop = max(size // 4, -(-(len(padded) - size) // max(1, columns - 1)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop] * np.hanning(size)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    loudest = power.max()
    level = 10 * np.log10(np.maximum(power / loudest if loudest > 0 else power, 1e-9))
    times = (np.arange(len(frames)) * hop + size / 2) / rate
    return np.round(level.T).astype(np.int8), times, np.fft.rfftfreq(size, 1 / rate) / 1000


def data_url(samples: np.ndarray, rate: float) -> str:
    """Return sound that a browser plays as a ``data:`` URL: mp3 where soundfile can write it, else WAV.

    Examples
    --------
    >>> data_url(np.zeros(800, "float32"), 8000).split(",")[0].startswith("data:audio/")
    True
    """
    clean = np.clip(samples, -1, 1).astype(np.float32)
    data, kind = b"", "mpeg"
    if round(rate) in _MP3_RATES and len(clean):
        data = _mp3(clean, round(rate))
    if not data:
        data, kind = _wav(clean, round(rate)), "wav"
    return f"data:audio/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _mp3(samples: np.ndarray, rate: int) -> bytes:
    try:
        import soundfile
    except (ImportError, OSError):
        return b""
    if "MP3" not in soundfile.available_formats():
        return b""
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format="MP3")
    return out.getvalue()


def _wav(samples: np.ndarray, rate: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())
    return out.getvalue()

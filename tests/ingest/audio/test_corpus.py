"""Every real file: exact length and values against an independent full decode, or the named fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import av
import numpy as np
import pytest
import soundfile
import soxr

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.data

#: Files whose fault is part of what they are for: name -> (action, code).
EXPECTED = {
    # libsndfile and FFmpeg agree that these hold no FLAC frame (claxon's fuzz corpus)
    "large_vendor_string.flac": ("quarantined", "audio-bad-header"),
    "large_vorbis_comment_block.flac": ("quarantined", "audio-bad-header"),
    "faulty-03_-_wrong_bit_depth.flac": ("kept", "audio-header-format"),
    "faulty-04_-_wrong_number_of_channels.flac": ("kept", "audio-second-decoder"),
    "faulty-05_-_wrong_total_number_of_samples.flac": ("kept", "audio-header-frames"),
    "faulty-06_-_missing_streaminfo_metadata_block.flac": ("quarantined", "audio-bad-header"),
    "faulty-08_-_blocksize_65536.flac": ("quarantined", "audio-decode-error"),
    "faulty-11_-_incorrect_metadata_block_length.flac": ("quarantined", "audio-bad-header"),
    "subset-22_-_12_bit_per_sample.flac": ("kept", "audio-second-decoder"),
    "subset-62_-_predictor_overflow_check,_20-bit.flac": ("kept", "audio-second-decoder"),
    "uncommon-02_-_increasing_number_of_channels.flac": ("quarantined", "audio-decode-error"),
    "uncommon-03_-_decreasing_number_of_channels.flac": ("quarantined", "audio-decode-error"),
    "uncommon-04_-_changing_bitdepth.flac": ("kept", "audio-header-format"),
    # floats of the range of int16
    "waveformatex-ieeefloat-44100Hz-mono.wav": ("quarantined", "audio-out-of-range"),
    "waveformatextensible-ieeefloat-44100Hz-mono.wav": ("quarantined", "audio-out-of-range"),
    "oom-48ae4cd061ff8578ad3f23dc87624bd365cf5216.wav": ("quarantined", "audio-bad-header"),
    "empty_2c.wav": ("kept", "audio-empty"),
    "test-44100Hz-le-1ch-4bytes-early-eof.wav": ("kept", "audio-truncated"),
    "test-44100Hz-le-1ch-4bytes-early-eof-no-data.wav": ("quarantined", "audio-bad-header"),
    "test-44100Hz-le-1ch-4bytes-incomplete-chunk.wav": ("quarantined", "audio-bad-header"),
}
#: What libsndfile reads wrongly: 24 bits at the low end of 4 bytes; more than 32 bits; lying lengths.
NOT_BY_SNDFILE = ("24bit-4byte", "36bit", "45bit", "53bit", "64bit", "uncommon-04")


def _by_soundfile(path: Path) -> tuple[np.ndarray, int]:
    with soundfile.SoundFile(path) as file:
        return file.read(dtype="float32", always_2d=True), file.samplerate


def _by_av(path: Path) -> tuple[np.ndarray, int]:
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        blocks = []
        for frame in container.decode(stream):
            values = frame.to_ndarray()
            values = values.T if frame.format.is_planar else values.reshape(-1, frame.layout.nb_channels)
            if values.dtype.kind == "i":
                values = (values * 2.0 ** (1 - 8 * values.dtype.itemsize)).astype(np.float32)
            elif values.dtype.kind == "u":
                values = (values.astype(np.float32) - 128) / 128
            blocks.append(values)
        return np.concatenate(blocks), stream.codec_context.sample_rate


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".csv")


def test_every_hard_case_is_exact_or_has_its_named_fault(shared_data, make):
    compared = 0
    for path in _files(shared_data / "audio-cases"):
        probe = make.read([path], rate=44100, dtype="float32", damaged="keep")
        expected = EXPECTED.get(path.name)
        if expected is None and (
            path.name.startswith("crash-") or (path.parent.name == "claxon" and len(path.stem) == 40)
        ):
            expected = ("quarantined", None)
        quarantined = [f for f in probe.faults if f.action == "quarantined"]
        if expected and expected[0] == "quarantined":
            assert len(quarantined) == 1, path.name
            assert expected[1] in (None, quarantined[0].code), path.name
            assert probe.samples == {}, path.name
            continue
        assert not quarantined, (path.name, quarantined)
        kept = {f.code for f in probe.faults}
        assert kept == set() if expected is None else expected[1] in kept, (path.name, kept)
        (labels,) = probe.labels.values()
        if labels["source_frames"] == 0:
            continue
        rate = int(labels["source_rate"])
        got = make.read([path], rate=rate, dtype="float32")
        by_sndfile = not labels["decoder"].startswith("PyAV") and not any(
            n in path.name for n in NOT_BY_SNDFILE
        )
        if not by_sndfile and not labels["decoder"].startswith("PyAV"):
            continue  # read by our own parser; compared with arithmetic of the test in test_riff
        truth, truth_rate = (_by_soundfile if by_sndfile else _by_av)(path)
        assert (truth_rate, truth.shape[1]) == (rate, labels["source_channels"]), path.name
        mixed = truth.mean(axis=1, dtype=np.float64).astype(np.float32) if truth.shape[1] > 1 else truth[:, 0]
        assert np.array_equal(got.only, mixed), path.name
        compared += 1
    assert compared > 80


@pytest.mark.parametrize("folder", ["audio/digits", "audio/speech", "audio/esc10"])
def test_every_recording_is_what_soundfile_decodes_and_soxr_resamples(shared_data, make, folder):
    files = _files(shared_data / folder)
    got = make.read(files, rate=16000, label_from="parent")
    assert got.faults == []
    assert len(got.samples) == len(files)
    for path in files:
        truth, rate = _by_soundfile(path)
        mixed = truth.mean(axis=1, dtype=np.float64).astype(np.float32) if truth.shape[1] > 1 else truth[:, 0]
        resampled = soxr.resample(mixed, rate, 16000) if rate != 16000 else mixed
        expected = np.clip(np.rint(resampled * np.float32(32768)), -32768, 32767)
        key = next(k for k in got.samples if path.as_posix().endswith(k))
        assert np.array_equal(got.samples[key], expected), path.name
        assert got.labels[key]["label"] == path.parent.name


def test_the_soundscape_has_one_length_in_three_formats(shared_data, make):
    files = _files(shared_data / "audio" / "soundscape")
    got = make.read(files, rate=48000)
    assert {key: len(values) for key, values in got.samples.items()} == {
        f"soundscape.{kind}": 5_760_000 for kind in ("flac", "mp3", "ogg")
    }
    assert got.faults == []
    truth, _ = soundfile.read(shared_data / "audio" / "soundscape" / "soundscape.flac", dtype="int16")
    assert np.array_equal(got.samples["soundscape.flac"], truth)
    for kind in ("mp3", "ogg"):
        close = np.corrcoef(got.samples[f"soundscape.{kind}"], truth)[0, 1]
        assert close > 0.9

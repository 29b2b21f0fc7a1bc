"""The table of what goes wrong with audio (issue 7), one test a row, with made inputs."""

from __future__ import annotations

import io
import struct
import sys

import av
import numpy as np
import pytest
import soundfile

from chunkstore.errors import ConfigError, InputError
from ingest.sources.audio import AudioSource, files


def test_vorbis_beyond_full_scale_is_clipped_and_counted_and_never_wraps(make):  # row 1
    loud = np.sign(make.tone(8000)) * np.float32(0.9999) + 0 * make.tone(8000)
    path = make.file("loud.ogg", make.encode(loud, 8000, "OGG", "VORBIS"))
    floats, _ = soundfile.read(path, dtype="float32")
    beyond = np.rint(floats * 32768)
    assert np.abs(floats).max() > 1.01, "the made file must overshoot for this test to mean anything"
    got = make.read([path], rate=8000)
    assert np.array_equal(got.only, np.clip(beyond, -32768, 32767).astype(np.int16))
    assert got.labels["loud.ogg"]["clipped"] == np.count_nonzero((beyond > 32767) | (beyond < -32768)) > 0
    assert got.labels["loud.ogg"]["peak"] == pytest.approx(np.abs(floats).max())


def test_float_wav_is_scaled_to_int16(make):  # row 2
    values = make.tone(500)
    path = make.file("f.wav", make.encode(values, 8000, "WAV", "FLOAT"))
    assert np.array_equal(make.read([path], rate=8000).only, np.rint(values * 32768).astype(np.int16))


def _mp3(make, frames=40_000, rate=44100):
    return make.encode(make.tone(frames, rate), rate, "MP3", "MPEG_LAYER_III")


def test_mp3_length_is_what_decodes_not_what_the_header_claims(make):  # rows 3 and 9
    raw = _mp3(make)
    at = max(raw.find(b"Xing"), raw.find(b"Info"))
    assert at > 0
    truth = make.read([make.file("good.mp3", raw)], rate=44100)
    assert truth.faults == []
    for claim in (0, 10, 10**6):
        lying = raw[: at + 8] + struct.pack(">I", claim) + raw[at + 12 :]
        got = make.read([make.file(f"{claim}.mp3", lying)], rate=44100)
        assert np.array_equal(got.only, truth.only)
        assert got.codes() == ["audio-header-frames"]
        assert got.faults[0].action == "kept"


def test_an_mp3_without_a_header_is_whole_although_its_bit_rate_falls(make):  # row 3
    # libsndfile takes the length from the first bit rate, and would stop there
    values = np.concatenate([make.tone(40_000, 44100), np.zeros(400_000, np.float32)])
    out = make.folder / "vbr.mp3"
    soundfile.write(out, values, 44100, format="MP3", bitrate_mode="VARIABLE", compression_level=0.3)
    raw = out.read_bytes()
    header = max(raw.find(b"Xing"), raw.find(b"Info"))
    second = raw.find(raw[:2], header)
    with av.open(io.BytesIO(raw[second:])) as container:
        frames = sum(frame.samples for frame in container.decode(audio=0))
    bare = make.file("bare.mp3", raw[second:])
    with soundfile.SoundFile(bare) as file:
        assert file.frames < frames, "the made file must be underestimated for this test to mean anything"
    got = make.read([bare], rate=44100)
    assert len(got.only) == frames
    assert got.codes() == ["audio-second-decoder"]
    assert got.labels["bare.mp3"]["decoder"].startswith("PyAV")


def test_an_id3_tag_and_its_padding_move_no_length(make):  # row 3
    raw = _mp3(make)
    tag = b"ID3\x04\0\0" + bytes([0, 4, 0, 0]) + bytes(4 << 14)
    plain = make.read([make.file("a.mp3", raw)], rate=44100)
    tagged = make.read([make.file("b.mp3", tag + raw + b"TAG" + bytes(125))], rate=44100)
    assert np.array_equal(plain.only, tagged.only)
    assert tagged.faults == []


def test_damage_inside_an_mp3_is_found_by_the_frame_walk_and_reported(make):  # row 4
    raw = bytearray(_mp3(make, 200_000))
    middle = len(raw) // 2
    raw[middle : middle + 400] = bytes([0x55]) * 400
    path = make.file("hurt.mp3", bytes(raw))
    got = make.read([path], rate=44100)
    (fault,) = [f for f in got.faults if f.code == "audio-damaged"]
    assert fault.action == "kept"
    assert middle - 1500 <= fault.offset <= middle + 400
    assert make.read([path], rate=44100, damaged="quarantine").codes("quarantined") == ["audio-damaged"]


def test_every_link_of_a_chained_ogg_is_decoded(make):  # row 5
    pieces = [make.encode(make.tone(n, seed=n), 8000, "OGG", "VORBIS") for n in (8000, 1, 3000)]
    got = make.read([make.file("chain.ogg", b"".join(pieces))], rate=8000, dtype="float32")
    apart = [
        make.read([make.file(f"{i}.ogg", p)], rate=8000, dtype="float32").only for i, p in enumerate(pieces)
    ]
    assert np.array_equal(got.only, np.concatenate(apart))
    assert len(got.only) == 11_001
    assert got.codes("kept") == ["audio-chained"]


def test_a_chain_that_changes_its_rate_is_quarantined_with_that_reason(make):  # row 5
    first = make.encode(make.tone(8000), 8000, "OGG", "VORBIS")
    second = make.encode(make.tone(8000), 16000, "OGG", "VORBIS")
    got = make.read([make.file("mixed.ogg", first + second)], rate=8000)
    assert got.codes("quarantined") == ["audio-format-changes"]
    assert "16000" in got.faults[0].message
    assert got.samples == {}


def _without_total(raw: bytes) -> bytes:
    flac = bytearray(raw)
    flac[21] &= 0xF0
    flac[22:26] = bytes(4)
    return bytes(flac)


@pytest.mark.parametrize("frames", [100_000, 4096, 4097, 5])
@pytest.mark.parametrize("md5", [True, False])
def test_flac_without_a_length_is_whole(make, frames, md5):  # rows 6 and 8
    values = np.rint(make.tone(frames) * 32767).astype(np.int16)
    raw = bytearray(_without_total(make.encode(values, 8000, "FLAC", "PCM_16")))
    if not md5:
        raw[26:42] = bytes(16)
    got = make.read([make.file("open.flac", bytes(raw))], rate=8000)
    assert np.array_equal(got.only, values)
    assert got.codes("quarantined") == []
    assert got.labels["open.flac"]["claimed_frames"] == -1


def test_opus_skips_its_lead_in_and_trims_its_end(make):  # row 10
    path = make.file("a.opus", make.encode(make.tone(48000, 48000), 48000, "OGG", "OPUS"))
    assert len(make.read([path], rate=48000).only) == 48000


@pytest.mark.parametrize("subtype", ["PCM_24", "PCM_32", "PCM_U8", "DOUBLE", "ULAW", "ALAW"])
@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "RF64", "W64"])
def test_every_depth_of_wav_keeps_its_precision(make, kind, subtype):  # row 11
    values = make.tone(999).reshape(333, 3)
    path = make.file("a.wav", make.encode(values, 8000, kind, subtype))
    truth, _ = soundfile.read(path, dtype="float32", always_2d=True)
    got = make.read([path], rate=8000, dtype="float32", channels=2)
    assert np.array_equal(got.only, truth[:, 2])
    assert got.faults == []


def test_24_bits_are_not_cut_to_16_before_they_are_rounded(make):  # row 11
    values = np.array([256 + 129, 256 + 127, -(256 + 129), 2**23 - 1], np.int32)
    raw = make.encode(values << 8, 8000, "WAV", "PCM_24")
    assert make.read([make.file("a.wav", raw)], rate=8000).only.tolist() == [2, 1, -2, 32767]


@pytest.mark.parametrize("content", [b"", "wav"])
def test_an_empty_recording_is_kept_skipped_or_an_error_by_choice(make, content):  # row 12
    empty = make.file("empty.wav", make.wav16([]) if content else b"")
    good = make.file("good.wav", make.wav16([1, 2, 3]))
    kept = make.read([empty, good], rate=8000)
    assert {k: len(v) for k, v in kept.samples.items()} == {"empty.wav": 0, "good.wav": 3}
    assert kept.codes("kept") == ["audio-empty"]
    skipped = make.read([empty, good], rate=8000, empty="skip")
    assert list(skipped.samples) == ["good.wav"]
    assert skipped.codes("skipped") == ["audio-empty"]
    assert make.read([empty, good], rate=8000, empty="error").codes("quarantined") == ["audio-empty"]


def test_an_mp3_that_cannot_sync_is_named_with_the_true_reason(make):  # rows 13 and 15
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 250, 20_000, dtype=np.uint8).tobytes()
    bare = make.file("no-sync.mp3", noise)
    tagged = make.file("tagged.mp3", b"ID3\x03\0\0\0\0\x07\x68" + bytes(1000) + noise)
    far = make.file("far.mp3", b"ID3\x03\0\0\0\x10\0\0" + bytes(1 << 18) + noise)
    got = make.read([bare, tagged, far], rate=8000)
    assert {(f.file, f.code) for f in got.faults} == {
        (str(bare), "audio-unrecognised"),
        (str(tagged), "audio-unrecognised"),
        (str(far), "audio-unrecognised"),
    }


def test_only_the_bad_files_are_quarantined_and_the_rest_is_as_without_them(make):  # row 14
    good = [make.file(f"good{i}.wav", make.wav16(np.arange(i * 10))) for i in range(1, 6)]
    flac = make.encode(make.tone(20_000), 8000, "FLAC", "PCM_16")
    broken = bytearray(flac)
    broken[len(flac) // 2 : len(flac) // 2 + 60] = bytes(60)
    bad = [
        make.file("bad.flac", bytes(broken)),
        make.file("text.wav", b"not audio at all " * 20),
        make.file("head.wav", b"RIFF\0\0\0\0WAVE"),
    ]
    mixed = make.read([good[0], bad[0], good[1], bad[1], *good[2:], bad[2]], rate=8000)
    alone = make.read(good, rate=8000)
    assert sorted(f.file for f in mixed.faults if f.action == "quarantined") == sorted(map(str, bad))
    assert list(mixed.samples) == list(alone.samples)
    assert all(np.array_equal(mixed.samples[k], alone.samples[k]) for k in alone.samples)


def test_channels_are_mixed_chosen_or_refused(make):  # row 16
    left, right = np.arange(0, 400, 4), np.arange(0, 800, 8)
    stereo = make.file("s.wav", make.wav16(np.stack([left, right], 1)))
    mono = make.file("m.wav", make.wav16(left))
    assert np.array_equal(make.read([stereo], rate=8000).only, (left + right) // 2)
    assert np.array_equal(make.read([stereo], rate=8000, channels="first").only, left)
    assert np.array_equal(make.read([stereo], rate=8000, channels=1).only, right)
    refused = make.read([stereo, mono], rate=8000, channels="error")
    assert list(refused.samples) == ["m.wav"]
    assert refused.codes("quarantined") == ["audio-channels"]
    missing = make.read([stereo, mono], rate=8000, channels=1)
    assert list(missing.samples) == ["s.wav"]
    assert "2 channels" in refused.faults[0].message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_counted_and_quarantined(make, value):  # row 18
    values = make.tone(1000)
    values[[3, 500]] = value
    path = make.file("nan.wav", make.encode(values, 8000, "WAV", "FLOAT"))
    got = make.read([path], rate=8000)
    assert got.codes("quarantined") == ["audio-nonfinite"]
    assert "2 of 1000" in got.faults[0].message
    assert got.samples == {}
    zeroed = make.read([path], rate=8000, nonfinite="zero")
    values[[3, 500]] = 0
    assert np.array_equal(zeroed.only, np.rint(values * 32768).astype(np.int16))
    assert zeroed.labels["nan.wav"]["nonfinite"] == 2


def test_samples_of_1e29_are_quarantined_and_mild_overshoot_is_not(make):  # row 18
    values = make.tone(1000)
    values[7] = 1e29
    wild = make.file("wild.wav", make.encode(values, 8000, "WAV", "FLOAT"))
    values[7] = 1.5
    mild = make.file("mild.wav", make.encode(values, 8000, "WAV", "FLOAT"))
    got = make.read([wild, mild], rate=8000)
    assert got.codes("quarantined") == ["audio-out-of-range"]
    assert got.labels["mild.wav"]["clipped"] == 1
    assert make.read([mild], rate=8000, dtype="float32").only[7] == np.float32(1.5)


def test_a_duration_in_the_metadata_that_disagrees_is_reported_and_the_audio_counts(make):  # row 19
    make.file("a.wav", make.wav16(np.zeros(8000)))
    make.file("b.wav", make.wav16(np.zeros(8000)))
    table = make.file("t.csv", b"file,duration\na.wav,1.0\nb.wav,5.0\n")
    files = [make.folder / "a.wav", make.folder / "b.wav"]
    got = make.read(files, rate=8000, metadata=str(table), metadata_key="file")
    assert [(f.code, f.file, f.action) for f in got.faults] == [
        ("audio-metadata-duration", str(files[1]), "kept")
    ]
    assert len(got.samples["b.wav"]) == 8000
    assert got.labels["b.wav"]["duration"] == 5.0


def test_the_content_decides_and_not_the_name(make):  # row 20
    values = np.arange(100)
    flac = make.file("a.mp3", make.encode(values.astype(np.int16), 8000, "FLAC", "PCM_16"))
    wav = make.file("b.flac", make.wav16(values))
    got = make.read([flac, wav], rate=8000)
    assert np.array_equal(got.samples["a.mp3"], values)
    assert np.array_equal(got.samples["b.flac"], values)
    assert got.labels["a.mp3"]["codec"] == "flac_s16"


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
def test_a_wav_whose_sizes_were_never_written_is_whole(make, size):
    raw = bytearray(make.wav16(np.arange(1000)))
    raw[4:8] = raw[40:44] = struct.pack("<I", size)
    got = make.read([make.file("a.wav", bytes(raw))], rate=8000)
    assert np.array_equal(got.only, np.arange(1000))
    assert got.codes() == ["audio-length-unstated"]


def _data(values):
    return b"data" + struct.pack("<I", 2 * len(values)) + values.astype("<i2").tobytes()


@pytest.mark.parametrize(
    ("behind", "nbytes"),
    [
        # libsndfile refuses the first two, FFmpeg reads the last chunk only: nobody reads them all
        (_data(np.arange(50)), 100),
        (b"LIST\4\0\0\0INFO" + _data(np.arange(50)) + _data(np.arange(7)), 114),
        (b"RIFF\x30\0\0\0WAVE" + _data(np.arange(18)), 56),  # a whole file behind it: 12 + 8 + 36 bytes
        (b"\x01\x02" * 40_000, 80_000),  # samples beyond a length of 32 bits that overran
    ],
)
def test_samples_behind_those_of_a_wav_are_told_of(make, behind, nbytes):
    got = make.read([make.file("a.wav", make.wav16(np.arange(1000)) + behind)], rate=8000)
    assert np.array_equal(got.only, np.arange(1000))
    assert got.codes("kept") == ["audio-more-data"]
    assert got.faults[0].message.startswith(f"{nbytes} bytes")


@pytest.mark.parametrize("behind", [b"TAG" + b" " * 125, b"\0" * 4000, b"id3 \2\0\0\0ab", b"\x12"])
def test_tags_and_stray_bytes_behind_a_wav_are_not(make, behind):
    got = make.read([make.file("a.wav", make.wav16(np.arange(1000)) + behind)], rate=8000)
    assert np.array_equal(got.only, np.arange(1000))
    assert got.codes() == []


def test_a_wav_that_claims_gigabytes_is_what_is_there(make):
    raw = bytearray(make.wav16(np.arange(1000)))
    raw[40:44] = struct.pack("<I", 0xF0000000)
    got = make.read([make.file("a.wav", bytes(raw[:1044]))], rate=8000)
    assert np.array_equal(got.only, np.arange(500))
    assert got.codes("kept") == ["audio-truncated"]
    assert got.faults[0].rows == 0xF0000000 // 2 - 500


@pytest.mark.parametrize(
    ("kind", "subtype"), [("OGG", "VORBIS"), ("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III")]
)
def test_a_truncated_file_keeps_what_is_there_and_says_so(make, kind, subtype):
    whole = make.encode(make.tone(200_000, 44100), 44100, kind, subtype)
    full = make.read([make.file("full", whole)], rate=44100, dtype="float32").only
    cut = make.read([make.file("cut", whole[: len(whole) * 2 // 3])], rate=44100, dtype="float32")
    assert "audio-truncated" in cut.codes("kept")
    assert 100_000 < len(cut.only) < 140_000
    same = len(cut.only) - 4096  # the last block of a lossy codec overlaps what is cut off
    assert np.array_equal(cut.only[:same], full[:same])
    assert make.read([make.folder / "cut"], rate=44100, damaged="quarantine").samples == {}


def test_damage_in_an_ogg_page_is_reported(make):
    raw = bytearray(make.encode(make.tone(200_000, 44100), 44100, "OGG", "VORBIS"))
    raw[len(raw) // 2] ^= 0x40
    got = make.read([make.file("hurt.ogg", bytes(raw))], rate=44100)
    assert {f.action for f in got.faults if f.code == "audio-damaged"} == {"kept"}
    assert len(got.only) < 200_000
    assert got.faults[0].rows == 200_000 - len(got.only)


def test_a_flac_that_claims_gigabytes_stays_small(make):
    raw = bytearray(make.encode(make.tone(20_000), 8000, "FLAC", "PCM_16"))
    raw[21] |= 0x0F
    raw[22:26] = b"\xff\xff\xff\xff"
    got = make.read([make.file("huge.flac", bytes(raw))], rate=8000)
    assert len(got.only) == 20_000
    assert "audio-header-frames" in got.codes("kept")


def test_what_decodes_without_end_is_stopped_at_the_longest_duration(make):
    path = make.file("long.flac", make.encode(np.zeros(80_000, np.int16), 8000, "FLAC", "PCM_16"))
    assert make.read([path], rate=8000, max_duration="9s").codes("quarantined") == ["audio-too-long"]
    assert len(make.read([path], rate=8000, max_duration="10s").only) == 80_000


def test_without_a_rate_the_files_must_agree(make):
    a, b = make.file("a.wav", make.wav16([1], 8000)), make.file("b.wav", make.wav16([1], 16000))
    assert make.read([a]).labels["a.wav"]["sample_rate"] == 8000
    with pytest.raises(ConfigError, match=r"8000 Hz in .*a.wav; 16000 Hz in .*b.wav"):
        make.read([a, b])
    with pytest.raises(InputError, match="no audio files"):
        make.read([])


def test_a_file_that_is_gone_or_a_folder_is_a_fault_of_its_own(make):
    good = make.file("a.wav", make.wav16([1]))
    got = make.read([good, make.folder / "gone.wav", make.folder], rate=8000)
    assert [f.code for f in got.faults] == ["audio-unreadable", "audio-unreadable"]
    assert [v.tolist() for v in got.samples.values()] == [[1]]


def test_a_file_that_goes_while_it_is_looked_at_is_a_fault_of_its_own(make, monkeypatch):
    stays, goes = (make.file(name, make.wav16(np.arange(9))) for name in ("a.wav", "b.wav"))
    identity = files.identity

    def gone(file):
        if file == str(goes):
            goes.unlink(missing_ok=True)
        return identity(file)

    monkeypatch.setattr(files, "identity", gone)
    got = make.read([goes, stays], rate=8000)
    assert got.codes("quarantined") == ["audio-unreadable"]
    assert set(got.samples) == {"a.wav"}


def test_a_file_given_twice_is_read_once(make):
    path = make.file("a.wav", make.wav16([1, 2]))
    got = make.read([path, path], rate=8000)
    assert got.codes("skipped") == ["audio-duplicate"]
    assert got.only.tolist() == [1, 2]


@pytest.mark.parametrize("keep", [44, 1000, 1999])
def test_a_cut_aiff_says_what_it_lost(make, keep):
    raw = make.encode(np.arange(1000).astype(np.int16), 8000, "AIFF", "PCM_16")
    start = len(raw) - 2000
    got = make.read([make.file("a.aiff", raw[: start + keep])], rate=8000)
    assert np.array_equal(got.only, np.arange(keep // 2))
    assert got.codes("kept") == ["audio-truncated"]
    assert got.faults[0].rows == 1000 - keep // 2


def test_a_cut_matroska_says_what_it_lost(make):
    path = make.folder / "whole.mka"
    with av.open(str(path), "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        for at in range(0, 80_000, 800):
            frame = av.AudioFrame.from_ndarray(
                np.full((1, 800), at // 10, np.int16), format="s16", layout="mono"
            )
            frame.sample_rate, frame.pts = 8000, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    raw = path.read_bytes()
    assert make.read([path], rate=8000).faults == []
    cut = make.read([make.file("cut.mka", raw[: len(raw) // 2])], rate=8000)
    assert [f.code for f in cut.faults] in (["audio-truncated"], ["audio-decode-error"])


@pytest.mark.parametrize("subtype", ["MS_ADPCM", "IMA_ADPCM", "GSM610"])
def test_compressed_wav_is_left_to_libsndfile_without_complaint(make, subtype):
    data = make.encode(make.tone(8000), 8000, "WAV", subtype)
    path = make.file("a.wav", data)
    truth, _ = soundfile.read(path, dtype="float32")
    got = make.read([path], rate=8000, dtype="float32")
    counted = int.from_bytes(
        data[data.index(b"fact") + 8 :][:4], "little"
    )  # of the last packet, not all counts
    assert np.array_equal(got.only, truth[:counted])
    assert got.faults == []
    assert got.labels["a.wav"]["decoder"].startswith("libsndfile")


def _with_wrong_md5(make, values):
    raw = bytearray(make.encode(values, 8000, "FLAC", "PCM_16"))
    raw[26] ^= 1
    return make.file("md5.flac", bytes(raw))


@pytest.mark.parametrize("with_av", [True, False])
def test_a_flac_whose_frames_are_sound_but_not_its_md5_is_kept_and_reported(make, monkeypatch, with_av):
    values = np.arange(20_000).astype(np.int16)
    path = _with_wrong_md5(make, values)
    if not with_av:
        monkeypatch.setitem(sys.modules, "av", None)
    got = make.read([path], rate=8000)
    assert np.array_equal(got.only, values)
    assert "audio-flac-checksum" in got.codes("kept")
    assert got.labels["md5.flac"]["decoder"].startswith("PyAV" if with_av else "libsndfile")


def test_hours_at_1_hz_do_not_become_gigabytes(make):
    path = make.file("bomb.wav", make.wav16(np.zeros(170_000), rate=1))
    got = make.read([path], rate=48000)
    assert got.codes("quarantined") == ["audio-rate"]
    assert "64-fold" in got.faults[0].message


def test_a_claim_that_no_coding_could_keep_is_no_claim(make):
    raw = bytearray(make.encode(np.arange(50).astype(np.int16), 8000, "FLAC", "PCM_16"))
    raw[21] |= 0x0F
    got = make.read([make.file("a.flac", bytes(raw))], rate=8000)
    assert got.scan.parts[0].claimed == -1


def test_files_behind_a_url_are_read_like_local_ones(make):
    import fsspec

    values = np.arange(500).astype(np.int16)
    with fsspec.open("memory://audio-tests/x/a.flac", "wb") as file:
        file.write(make.encode(values, 8000, "FLAC", "PCM_16"))
    got = make.read(["memory://audio-tests/x/a.flac", "memory://audio-tests/x/gone.flac"], rate=8000)
    assert np.array_equal(got.only, values)
    assert got.codes() == ["audio-unreadable"]
    source = AudioSource(**got.scan.options)
    (part,) = got.scan.parts
    assert source.identity(part.file) == part.identity

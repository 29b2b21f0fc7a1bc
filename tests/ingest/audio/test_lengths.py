"""Exact lengths and true reports of kinds whose headers and libraries mislead."""

from __future__ import annotations

import io
import struct
from itertools import product

import numpy as np
import pytest
import soundfile

from ingest.sources.audio import by_pcm, by_sndfile, ogg, source

av = pytest.importorskip("av")

X16 = (np.arange(1000) * 37 % 65536 - 32768).astype("<i2")
WANT = (X16 / 32768).astype(np.float32)
FLOAT = {"dtype": "float32"}


def chunk(name, body, pad=True):
    return name + struct.pack("<I", len(body)) + body + b"\0" * (pad and len(body) & 1)


def fmt(bits=16, block=2):
    return chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, 8000, 8000 * block, block, bits))


def riff(*chunks):
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def with_fact(data, frames):
    at = data.index(b"fact")
    return data[: at + 8] + struct.pack("<I", frames) + data[at + 12 :]


@pytest.mark.parametrize(
    ("subtype", "channels"),
    [("IMA_ADPCM", 1), ("IMA_ADPCM", 2), ("MS_ADPCM", 1), ("MS_ADPCM", 2), ("GSM610", 1)],
)
def test_a_wav_of_packets_is_as_long_as_its_fact_chunk_says(make, subtype, channels):
    values = np.repeat(make.tone(3000)[:, None], channels, axis=1)
    data = make.encode(values, 8000, "WAV", subtype)
    every, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    for fewer in (1, 7):
        frames = len(every) - fewer
        got = make.read([make.file("a.wav", with_fact(data, frames))], channels="first", **FLOAT)
        assert np.array_equal(got.only, every[:frames, 0])
        assert not got.faults
        assert got.labels["a.wav"]["claimed_frames"] == frames
    # one that speaks of no last packet is not believed
    got = make.read([make.file("a.wav", with_fact(data, 5))], channels="first", **FLOAT)
    assert len(got.only) == len(every)


@pytest.mark.parametrize(
    ("kind", "subtype", "most"),
    [
        (kind, subtype, most)
        for kind in ("WAV", "WAVEX", "W64", "RF64")
        for most, subtypes in {1: "GSM610", 2: "IMA_ADPCM MS_ADPCM", 6: "ULAW ALAW PCM_24 DOUBLE"}.items()
        for subtype in subtypes.split()
        if soundfile.check_format(kind, subtype)
    ],
)
def test_every_coding_in_every_kind_of_wav_is_what_soundfile_reads(make, monkeypatch, kind, subtype, most):
    for module in (by_pcm, by_sndfile):
        monkeypatch.setattr(module, "BLOCK_VALUES", 97)
    monkeypatch.setattr(source, "_BATCH_ROWS", 777)
    for channels, frames in product((1, most), (1, 321, 505, 506, 1017, 4001)):
        sound = np.linspace(1, 0.3, channels) * make.tone(frames)[:, None]
        data = make.encode(sound, 8000, kind, subtype)
        whole, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
        got = make.read([make.file("a.wav", data)], channels=channels - 1, **FLOAT)
        # soundfile gives all of the last packet; its fact chunk may say how much of that is sound
        assert len(got.only) in {frames, len(whole)}
        assert np.array_equal(got.only, whole[: len(got.only), channels - 1])
        assert not got.faults


def test_the_odd_byte_behind_gsm_is_no_packet(make):
    data = make.encode(make.tone(35 * 320), 8000, "WAV", "GSM610")
    at = data.index(b"data")
    packets = data[at + 8 : at + 8 + 35 * 65]
    head = data[: at + 4] + struct.pack("<I", len(packets))
    head = head[:4] + struct.pack("<I", len(head) + len(packets) + 1 - 8) + head[8:]
    got = make.read([make.file("a.wav", with_fact(head + packets + b"\0", 0))], **FLOAT)
    assert len(got.only) == 35 * 320
    assert not got.faults


@pytest.mark.parametrize("subtype", ["IMA_ADPCM", "MS_ADPCM", "GSM610"])
@pytest.mark.parametrize("share", [0.35, 0.5, 0.8])
def test_a_cut_wav_of_packets_keeps_what_is_true_and_says_so(make, subtype, share):
    data = make.encode(make.tone(6000), 8000, "WAV", subtype)
    whole, _ = soundfile.read(io.BytesIO(data), dtype="float32")
    got = make.read([make.file("a.wav", data[: int(len(data) * share)])], **FLOAT)
    assert 0 < len(got.only) < len(whole)
    assert np.array_equal(got.only, whole[: len(got.only)])
    assert got.codes("kept") == ["audio-truncated"]


def test_packets_that_an_aiff_counts_are_no_frames(make):
    data = make.encode(make.tone(6400), 8000, "AIFF", "IMA_ADPCM")
    # as the format has it: one for each packet of 64 samples
    at = data.index(b"COMM") + 10
    data = data[:at] + struct.pack(">I", 100) + data[at + 4 :]
    got = make.read([make.file("a.aifc", data)], **FLOAT)
    assert len(got.only) == 6400
    assert not got.faults


def voc(*blocks):
    head = b"Creative Voice File\x1a" + struct.pack("<HHH", 26, 0x010A, 0x1129)
    return (
        head
        + b"".join(bytes([kind]) + len(body).to_bytes(3, "little") + body for kind, body in blocks)
        + b"\0"
    )


NEW = struct.pack("<IBBHI", 8000, 16, 1, 4, 0)


@pytest.mark.parametrize("cuts", [(), (300,), (300, 700)], ids=len)
def test_a_voice_file_of_several_blocks_is_its_samples_alone(make, cuts):
    pieces = [p.tobytes() for p in np.split(X16, cuts)]
    data = voc((9, NEW + pieces[0]), *((2, p) for p in pieces[1:]))
    got = make.read([make.file("a.voc", data)], rate=8000, **FLOAT)
    assert np.array_equal(got.only, WANT)
    assert not got.codes("quarantined")


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [8000, 11025, 44100])
def test_a_voice_file_of_bytes_states_its_rate_and_channels(make, channels, rate):
    sound = np.repeat(make.tone(50)[:, None], channels, axis=1)
    path = make.file("a.voc", make.encode(sound, rate, "VOC", "PCM_U8"))
    got = make.read([path], channels="first", **FLOAT)
    assert np.array_equal(got.only, soundfile.read(path, dtype="float32", always_2d=True)[0][:, 0])
    assert got.labels["a.voc"]["sample_rate"] == soundfile.info(path).samplerate
    assert not got.faults


def au(size, start=24, coding=3):
    return (
        b".snd"
        + struct.pack(">IIIII", start, size, coding, 8000, 1)
        + bytes(start - 24)
        + X16.astype(">i2").tobytes()
    )


@pytest.mark.parametrize("start", [24, 32])
@pytest.mark.parametrize(
    ("size", "codes"),
    [
        (2000, []),
        (0xFFFFFFFF, []),
        (0, ["audio-length-unstated"]),
        (2002, ["audio-truncated"]),
        (1 << 30, ["audio-truncated"]),
    ],
)
def test_an_au_is_what_is_there_whatever_it_claims(make, start, size, codes):
    got = make.read([make.file("a.au", au(size, start))], **FLOAT)
    assert np.array_equal(got.only, WANT)
    assert got.codes() == codes


@pytest.mark.parametrize("kind", ["CAF", "NIST", "VOC", "AU"])
@pytest.mark.parametrize("cut", [1, 37, 1001])
def test_a_cut_file_says_what_it_lost(make, kind, cut):
    data = make.encode(WANT, 8000, kind, "PCM_16")
    whole = make.read([make.file("a.x", data)], rate=8000, **FLOAT)
    assert np.array_equal(whole.only, WANT)
    assert not whole.faults
    got = make.read([make.file("a.x", data[:-cut])], rate=8000, **FLOAT)
    assert np.array_equal(got.only, WANT[: len(got.only)])
    assert got.codes("kept") == ["audio-truncated"] * (len(got.only) < len(WANT))
    assert len(got.only) < len(WANT) or (kind, cut) == ("VOC", 1)  # a VOC ends with a byte of its own


def test_rates_of_au_caf_and_nist_are_read_from_their_headers(make):
    for kind in ("AU", "CAF", "NIST"):
        got = make.read([make.file("a.x", make.encode(WANT, 16000, kind, "PCM_16"))], **FLOAT)
        assert got.labels["a.x"]["sample_rate"] == 16000


@pytest.mark.parametrize("subtype", ["G721_32", "G723_24", "G723_40"])
def test_an_au_of_any_coding_states_its_rate(make, subtype):
    got = make.read([make.file("a.au", make.encode(WANT, 8000, "AU", subtype))], **FLOAT)
    assert got.labels["a.au"]["sample_rate"] == 8000
    assert len(got.only) >= len(WANT)


@pytest.mark.parametrize("most", [1 << 31, 1 << 32])
@pytest.mark.parametrize("less", [0, 1, 37, 4096, 4099])  # SoX: 2^31 - 4096, less what is no whole frame
def test_a_length_that_only_says_there_is_no_end_is_no_claim(make, most, less):
    data = struct.pack("<I", (most - less) & 0xFFFFFFFF) + X16.tobytes()
    got = make.read([make.file("a.wav", riff(fmt()) + b"data" + data)], **FLOAT)
    assert np.array_equal(got.only, WANT)
    assert [(f.code, f.rows) for f in got.faults] == [("audio-length-unstated", 0)]
    assert got.labels["a.wav"]["claimed_frames"] == -1


def test_quiet_samples_of_4_bytes_are_not_taken_for_24_bits_at_the_low_end(make):
    quiet = np.random.default_rng(0).integers(-(1 << 23), 1 << 23, 1 << 17).astype("<i4")
    for loud in (1 << 24, -(1 << 31)):
        values = np.append(quiet, np.int32(loud)).astype("<i4")  # in the last block of them all
        got = make.read([make.file("a.wav", riff(fmt(24, 4), chunk(b"data", values.tobytes())))], **FLOAT)
        assert np.array_equal(got.only, (values / 2**31).astype(np.float32))


@pytest.mark.parametrize(("kind", "codes"), [("W64", ["audio-more-data"]), ("CAF", [])])
def test_a_file_behind_a_file_costs_the_first_nothing(make, kind, codes):
    data = make.encode(WANT, 8000, kind, "PCM_16")
    got = make.read([make.file("a.x", data + data)], **FLOAT)
    assert np.array_equal(got.only, WANT)
    assert got.codes("kept") == codes == got.codes()


def test_channels_that_change_within_an_mp3_are_named(make):
    mono, stereo = (
        make.encode(np.repeat(make.tone(16_000)[:, None], n, axis=1), 16_000, "MP3", "MPEG_LAYER_III")
        for n in (1, 2)
    )
    for data in (mono + stereo, stereo + mono):  # libsndfile ends where they change
        got = make.read([make.file("a.mp3", data)], **FLOAT)
        assert got.codes("quarantined") == ["audio-format-changes"]
        assert "channels change" in got.faults[0].message


def pages(data, serial):
    """Take an Ogg file apart, and number its stream."""
    out, at = [], 0
    while at < len(data):
        table = data[at + 27 : at + 27 + data[at + 26]]
        stop = at + 27 + len(table) + sum(table)
        page = data[at : at + 14] + struct.pack("<I", serial) + data[at + 18 : at + 22] + bytes(4)
        page += data[at + 26 : stop]
        out.append(page[:22] + struct.pack("<I", ogg._crc(page)) + page[26:])
        at = stop
    return out


@pytest.mark.parametrize("rate", [8000, 16_000, 48_000])
def test_opus_has_the_rate_that_it_was_made_from(make, rate):
    path = make.file("a.opus", make.encode(make.tone(rate, rate), rate, "OGG", "OPUS"))
    got = make.read([path], **FLOAT)
    assert np.array_equal(got.only, soundfile.read(path, dtype="float32")[0])
    assert got.labels["a.opus"]["sample_rate"] == got.labels["a.opus"]["claimed_frames"] == rate
    assert not got.faults


@pytest.mark.parametrize("stated", [0, (1 << 32) - 1])
def test_opus_that_states_no_rate_keeps_its_whole_band(make, stated):
    noise = 0.1 * np.random.default_rng(0).standard_normal(48_000)
    data = make.encode(noise, 48_000, "OGG", "OPUS")
    at = data.index(b"OpusHead") + 12
    bare = data[:at] + struct.pack("<I", stated) + data[at + 4 :]  # libsndfile decodes this at 8 kHz
    path = make.file("b.opus", b"".join(pages(bare, 7)))
    whole = make.read([make.file("a.opus", data)], **FLOAT)
    for options in ({}, {"rate": 48_000}):
        got = make.read([path], **options, **FLOAT)
        assert np.array_equal(got.only, whole.only)
        assert not got.faults


def test_of_several_streams_side_by_side_the_first_is_read_and_the_others_are_told_of(make):
    sounds = [make.encode(make.tone(n, seed=n), 8000, "OGG", "VORBIS") for n in (30_000, 20_000)]
    first, second = (pages(data, serial) for serial, data in enumerate(sounds))
    side = b"".join([first[0], second[0], *first[1:-1], *second[1:], first[-1]])
    alone = make.read([make.file("a.ogg", sounds[0])], **FLOAT)
    got = make.read([make.file("b.ogg", side)], **FLOAT)
    assert len(got.only) == len(alone.only) == 30_000
    assert np.abs(got.only - alone.only).max() < 1e-4  # another decoder's
    assert got.codes("kept") == ["audio-more-streams"] == got.codes()


def test_a_coding_that_nobody_decodes_is_said_to_be_one(make):
    data = chunk(b"fmt ", struct.pack("<HHIIHH", 0x1234, 1, 8000, 16_000, 2, 16))
    got = make.read([make.file("a.wav", riff(data, chunk(b"data", X16.tobytes())))], rate=8000)
    assert got.codes("quarantined") == ["audio-unsupported"]
    assert got.faults[0].message.endswith("FFmpeg has no decoder for its coding")


def written(make, name, form, codec, frames=48_000, rate=48_000):
    path = make.folder / name
    with av.open(str(path), "w", format=form) as out:
        stream = out.add_stream(codec, rate=rate)
        stream.layout = "mono"
        values = (make.tone(frames, rate) * 32767).astype(np.int16)
        for at in range(0, frames, 960):
            frame = av.AudioFrame.from_ndarray(values[None, at : at + 960], "s16", "mono")
            frame.sample_rate, frame.pts = rate, at
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path, values


@pytest.mark.parametrize(
    ("name", "form", "codec"),
    [
        ("a.mka", "matroska", "pcm_s16le"),
        ("a.avi", "avi", "pcm_s16le"),
        ("b.mka", "matroska", "flac"),
    ],
)
@pytest.mark.parametrize("cut", [37, 3000])
def test_a_container_that_is_cut_a_little_says_so(make, name, form, codec, cut):
    path, values = written(make, name, form, codec)
    whole = make.read([path], rate=48_000)
    assert np.array_equal(whole.only, values)
    assert not whole.faults
    path.write_bytes(path.read_bytes()[:-cut])
    got = make.read([path], rate=48_000)
    assert np.array_equal(got.only, values[: len(got.only)])
    assert got.codes("kept") == ["audio-truncated"]


@pytest.mark.parametrize(("form", "codec"), [("mpegts", "mp2"), ("flv", "pcm_s16le"), ("avi", "pcm_s16le")])
def test_what_holds_video_too_is_known_by_its_content(make, form, codec):
    path, values = written(make, "recording", form, codec, rate=44_100)
    got = make.read([path], rate=44_100)
    assert not got.codes("quarantined")
    assert abs(len(got.only) - len(values)) < 3000


def free_format(frames, length=700, pad=lambda i: i % 3 == 0):
    """Silent frames of free format: a header, side information of zeros, and as many bytes as one likes."""
    return b"".join(
        bytes([0xFF, 0xFB, 0x00 | 2 * pad(i), 0xC0]) + bytes(length - 4 + pad(i)) for i in range(frames)
    )


@pytest.mark.parametrize(
    "before", [b"", b"ID3\x03\0\0\0\x10\0\0" + bytes(1 << 18)], ids=["bare", "a large tag"]
)
def test_mp3_of_free_format_is_read(make, before):
    got = make.read([make.file("a.mp3", before + free_format(40))], **FLOAT)
    assert len(got.only) == 40 * 1152
    assert not got.only.any()
    assert got.labels["a.mp3"]["source_rate"] == 44_100
    assert not got.faults


def test_random_bytes_are_no_free_format(make):
    noise = np.random.default_rng(3).integers(0, 256, 200_000, dtype=np.uint8).tobytes()
    got = make.read([make.file("a.mp3", b"\xff\xfb\x00\xc0" + noise)], rate=8000)
    assert got.codes() == ["audio-unrecognised"]


@pytest.mark.parametrize("size", [100, 1 << 18])
@pytest.mark.parametrize("kind", ["FLAC", "WAV", "AIFF", "OGG"])
def test_what_stands_behind_a_tag_is_known_however_large_the_tag_is(make, kind, size):
    data = make.encode(WANT, 8000, kind, "VORBIS" if kind == "OGG" else "PCM_16")
    tag = b"ID3\x03\0\0" + bytes((size >> shift) & 127 for shift in (21, 14, 7, 0)) + bytes(size)
    bare = make.read([make.file("a.x", data)], rate=8000, **FLOAT)
    got = make.read([make.file("a.x", tag + data)], rate=8000, **FLOAT)
    assert np.array_equal(got.only, bare.only)
    assert not got.faults


@pytest.mark.parametrize("block", [7, 3, 5, 0])
def test_a_block_that_no_sample_fits_is_not_believed(make, block):
    got = make.read([make.file("a.wav", riff(fmt(16, block), chunk(b"data", X16.tobytes())))], **FLOAT)
    assert np.array_equal(got.only, WANT)


def test_a_pad_byte_that_was_forgotten_hides_nothing(make):
    data = riff(fmt(), chunk(b"LIST", b"INFOabc", pad=False), chunk(b"data", X16.tobytes()))
    got = make.read([make.file("a.wav", data)], **FLOAT)
    assert np.array_equal(got.only, WANT)
    assert not got.faults


def test_a_wavpack_that_ends_with_a_whole_block_says_what_it_lost(make):
    path, _ = written(make, "a.wv", "wv", "wavpack", frames=200_000)
    data = path.read_bytes()
    whole = make.read([path], rate=48_000)
    assert len(whole.only) == 200_000
    assert not whole.faults
    path.write_bytes(data[: data.rindex(b"wvpk")])
    got = make.read([path], rate=48_000)
    assert 0 < len(got.only) < 200_000
    assert np.array_equal(got.only, whole.only[: len(got.only)])
    assert got.codes() == ["audio-truncated"]


def test_without_a_rate_a_file_whose_header_is_not_read_must_agree_too(make):
    wav = make.file("a.wav", make.encode(WANT, 16_000, "WAV", "PCM_16"))
    for rate, codes in ((16_000, []), (48_000, ["audio-rate"])):
        path, _ = written(make, "b.mka", "matroska", "pcm_s16le", rate=rate)
        got = make.read([wav, path])
        assert got.codes("quarantined") == codes
        assert set(got.samples) == ({"a.wav"} if codes else {"a.wav", "b.mka"})
    assert set(make.read([wav, path], rate=16_000).samples) == {"a.wav", "b.mka"}


def test_a_tag_behind_an_mp4_is_no_missing_end(make):
    path, values = written(make, "a.mp4", "mp4", "aac")
    whole = path.read_bytes()
    for tail in (b"TAG" + bytes(125), bytes(100), b"some words"):
        path.write_bytes(whole + tail)
        got = make.read([path], rate=48_000)
        assert abs(len(got.only) - len(values)) < 3000
        assert not got.faults
    path.write_bytes(whole[:-1])
    assert "audio-truncated" in make.read([path], rate=48_000).codes()

"""The small rooms of the audio source, each against an independent oracle."""

from __future__ import annotations

import io
import itertools
import struct

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingest.sources.audio import flac, mpeg, ogg, riff
from ingest.sources.audio.probe import probe
from ingest.sources.audio.quantise import Quantiser, clean
from ingest.sources.audio.resample import Resampler, mix, resampled_length
from ingest.sources.audio.segment import overlaps, peaks, segments, silent_ranges
from ingest.sources.audio.sniff import sniff

RATES = st.sampled_from([8000, 11025, 16000, 22050, 32000, 44100, 48000, 96000, 192000, 3000])


# -- resampling -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(data=st.data(), source=RATES, target=RATES, frames=st.integers(0, 20_000), seed=st.integers(0, 99))
@example(data=None, source=3000, target=44_100, frames=25, seed=0)  # 367.5 samples
def test_a_stream_of_any_blocks_is_the_one_shot_result_of_the_promised_length(
    data, source, target, frames, seed
):
    values = np.random.default_rng(seed).standard_normal(frames).astype(np.float32)
    cuts = sorted(data.draw(st.lists(st.integers(0, frames), max_size=5))) if data else []
    resampler = Resampler(source, target)
    pieces = [resampler.push(block) for block in np.split(values, cuts)]
    pieces.append(resampler.push(values[:0], last=True))
    got = np.concatenate(pieces)
    assert len(got) == (frames * target + source // 2) // source == resampled_length(frames, source, target)
    whole = values if source == target or not frames else soxr.resample(values, source, target)
    assert np.array_equal(got[: len(whole)], whole)
    half = 2 * frames * target % (2 * source) == source  # which soxr rounds up or down as its floats fall
    assert len(got) - len(whole) in ((0, 1) if half else (0,))
    if len(got) > len(whole):
        silence = np.zeros(source, np.float32)
        assert np.array_equal(
            got, soxr.resample(np.concatenate([values, silence]), source, target)[: len(got)]
        )


@pytest.mark.parametrize("frames", range(12))
def test_the_shortest_recordings_have_their_promised_length(frames):
    resampler = Resampler(44100, 16000)
    out = [resampler.push(np.ones(frames, np.float32)), resampler.push(np.ones(0, np.float32), last=True)]
    assert sum(map(len, out)) == (frames * 16000 + 22050) // 44100


def test_the_mean_of_channels_is_taken_in_double_precision():
    block = np.array([[1.0, 2**-24, 2**-24]], np.float32)
    assert mix(block, "mean")[0] == np.float32((1 + 2**-23) / 3)


# -- quantising -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), max_size=50), st.integers(0, 50))
def test_rounding_and_counting_do_not_depend_on_blocks(values, cut):
    block = np.array(values, np.float32)
    quantiser = Quantiser("int16")
    got = np.concatenate([quantiser.push(block[:cut]), quantiser.push(block[cut:])])
    exact = [round(float(v) * 32768) for v in block]  # Python rounds halves to even as well
    assert got.tolist() == [min(32767, max(-32768, v)) for v in exact]
    assert quantiser.clipped == sum(not -32768 <= v <= 32767 for v in exact)
    assert quantiser.peak == max((abs(float(v)) for v in block), default=0.0)


def test_int16_survives_the_way_through_float32():
    every = np.arange(-32768, 32768).astype(np.int16)
    quantiser = Quantiser("int16")
    assert np.array_equal(quantiser.push(every.astype(np.float32) / 32768), every)
    assert quantiser.clipped == 0


def test_what_is_no_number_is_counted_before_any_filter_sees_it():
    block, bad = clean(np.array([[1, np.nan], [np.inf, -np.inf]], np.float32))
    assert bad == 3
    assert block.tolist() == [[1, 0], [0, 0]]


# -- segments and silence -----------------------------------------------------------------------------


@given(st.integers(0, 1000), st.none() | st.integers(1, 300))
def test_segments_cover_every_row_once(rows, length):
    pieces = segments(rows, length)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == rows
    assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))
    if length:
        assert all(stop - start == length for start, stop in pieces[:-1])


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=80), st.integers(1, 9), st.integers(1, 30))
def test_silence_is_where_no_step_reaches_the_level(values, step, shortest):
    block = np.array(values, np.int16)
    found = silent_ranges(peaks(block, step), 3, step, shortest, len(block))
    quiet = np.concatenate(
        [
            np.full(len(part), np.abs(part).max() < 3)
            for part in np.split(block, range(step, len(block), step))
        ]
    )
    marked = np.zeros(len(block), bool)
    for start, stop in found:
        assert stop - start >= shortest
        assert quiet[start:stop].all()
        marked[start:stop] = True
    runs = np.flatnonzero(np.diff(np.concatenate([[0], quiet & ~marked, [0]]))).reshape(-1, 2)
    assert all(stop - start < shortest for start, stop in runs)


def test_the_lowest_int16_is_loud():
    assert peaks(np.array([-32768, 0], np.int16), 2).tolist() == [32768.0]


def test_overlaps_are_counted_from_the_start_of_the_range():
    assert overlaps([(0, 10), (20, 30)], 5, 25) == ((0, 5), (15, 20))
    assert overlaps([(0, 5)], 5, 10) == ()


# -- WAV ----------------------------------------------------------------------------------------------


def _facts(raw: bytes) -> riff.WavFacts:
    return riff.read_facts(io.BytesIO(raw), len(raw))


def _wav(fmt: bytes, data: bytes, tag: bytes = b"RIFF") -> bytes:
    order = ">" if tag == b"RIFX" else "<"
    body = b"WAVEfmt " + struct.pack(order + "I", len(fmt)) + fmt
    body += b"data" + struct.pack(order + "I", len(data)) + data
    return tag + struct.pack(order + "I", len(body)) + body


@pytest.mark.parametrize("bits", [8, 12, 16, 20, 24, 32, 36, 48, 53, 64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_integers_of_any_width_are_fractions_of_full_scale(bits, order):
    width = -(-bits // 8)
    numbers = [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 2 ** (bits - 2)]
    shifted = [n << (8 * width - bits) for n in numbers]
    if width == 1:
        data = bytes(n + 128 for n in shifted)
    else:
        byteorder = "little" if order == "<" else "big"
        data = b"".join(n.to_bytes(width, byteorder, signed=True) for n in shifted)
    fmt = struct.pack(order + "HHIIHH", 1, 1, 8000, 8000 * width, width, bits)
    raw = _wav(fmt, data, b"RIFF" if order == "<" else b"RIFX")
    facts = _facts(raw)
    got = riff.to_float32(raw[facts.start : facts.start + facts.nbytes], facts)[:, 0]
    assert got.tolist() == [float(np.float32(n / 2 ** (bits - 1))) for n in numbers]


def test_24_bits_at_the_low_end_of_4_bytes_are_told_from_the_high_end(make):
    numbers = np.array([-96, 23052, 2**23 - 1, -8360672], "<i4")
    fmt = struct.pack("<HHIIHH", 1, 1, 8000, 32000, 4, 24)
    low = make.file("low.wav", _wav(fmt, (numbers & 0xFFFFFF).astype("<i4").tobytes()))
    extended = make.file("extended.wav", _wav(fmt, numbers.tobytes()))
    high = make.file("high.wav", _wav(fmt, (numbers << 8).tobytes()))
    expected = (numbers / 2**23).astype(np.float32)
    got = make.read([low, extended, high], rate=8000, dtype="float32")
    assert all(np.array_equal(values, expected) for values in got.samples.values())


def test_all_values_of_g711_are_those_of_libsndfile(make):
    codes = np.arange(256, dtype=np.uint8).tobytes()
    for tag, subtype in ((6, "ALAW"), (7, "ULAW")):
        raw = _wav(struct.pack("<HHIIHH", tag, 1, 8000, 8000, 1, 8), codes)
        facts = _facts(raw)
        truth, _ = soundfile.read(
            io.BytesIO(codes), dtype="float32", samplerate=8000, channels=1, format="RAW", subtype=subtype
        )
        assert np.array_equal(riff.to_float32(codes, facts)[:, 0], truth)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.sampled_from([b"RIFF", b"RIFX", b"RF64", b"BW64"]))
def test_no_header_makes_the_walk_over_chunks_fail_otherwise_than_by_name(noise, tag):
    raw = tag + b"\0\0\0\0WAVE" + noise
    try:
        facts = _facts(raw)
    except riff.RiffError:
        return
    assert 0 <= facts.start <= len(raw)
    assert facts.start + facts.nbytes <= len(raw)


def test_a_chunk_that_claims_everything_is_not_read_into_memory():
    raw = b"RIFF\0\0\0\0WAVEJUNK" + struct.pack("<I", 0xFFFFFFF0) + bytes(100)
    with pytest.raises(riff.RiffError, match="no 'fmt ' chunk"):
        _facts(raw)


def test_an_empty_data_chunk_before_another_chunk_is_empty_and_not_unknown(make):
    fmt = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    raw = _wav(fmt, b"") + b"LIST" + struct.pack("<I", 4) + b"INFO"
    got = make.read([make.file("a.wav", raw)], rate=8000)
    assert len(got.only) == 0
    assert got.codes() == ["audio-empty"]


def test_samples_before_the_format_and_odd_chunks_are_found():
    data = np.arange(5, dtype="<i2").tobytes()
    fmt = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    body = b"WAVEodd!" + struct.pack("<I", 3) + b"xyz\0" + b"data" + struct.pack("<I", len(data)) + data + fmt
    raw = b"RIFF" + struct.pack("<I", len(body)) + body
    assert (_facts(raw).frames, _facts(raw).rate) == (5, 8000)


# -- Ogg, FLAC, MPEG ------------------------------------------------------------------------------------


def test_the_walk_over_pages_accepts_what_encoders_write_and_finds_each_damaged_page(make):
    raw = make.encode(make.tone(100_000, 44100), 44100, "OGG", "VORBIS")
    good = ogg.walk(io.BytesIO(raw))
    (link,) = good.links
    assert (link.codec, link.rate, link.channels, link.frames, link.ended) == (
        "vorbis",
        44100,
        1,
        100_000,
        True,
    )
    assert (good.bad_count, good.junk_bytes, good.cut, link.lost_pages) == (0, 0, False, 0)
    starts = [at for at in range(len(raw)) if raw[at : at + 4] == b"OggS"]
    for start in starts[3:-1]:
        hurt = bytearray(raw)
        hurt[start + 60] ^= 1
        seen = ogg.walk(io.BytesIO(bytes(hurt)))
        assert seen.bad_pages == (start,)
        assert seen.links[0].lost_pages == 1


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400))
def test_no_bytes_make_the_walks_fail_or_run_on(noise):
    for raw in (noise, b"OggS\0\2" + noise, b"OggS" + noise + b"OggS" + noise):
        ogg.walk(io.BytesIO(raw))
    for head in (b"fLaC", b"RIFF\0\0\0\0WAVE", b"FORM\0\0\0\0AIFFCOMM", b"ID3", b"\xff\xfb", b""):
        sniff(head + noise)
        probe(io.BytesIO(head + noise), len(head + noise))


@settings(deadline=None, max_examples=30)
@given(
    frames=st.integers(1, 40_000),
    bits=st.sampled_from(["PCM_16", "PCM_24", "PCM_S8"]),
    channels=st.integers(1, 3),
)
def test_the_last_frame_of_a_flac_ends_where_its_header_says(frames, bits, channels):
    values = np.random.default_rng(frames).standard_normal((frames, channels)) * 0.1
    out = io.BytesIO()
    soundfile.write(out, values, 44100, format="FLAC", subtype=bits)
    info = flac.stream_info(out.getvalue())
    last = flac.last_frame(out.getvalue()[-65536:], info)
    assert (info.frames, info.channels) == (frames, channels)
    assert last.start + last.samples == frames


def test_the_walk_over_mpeg_frames_counts_what_decodes(make, tmp_path):
    raw = make.encode(make.tone(50_000, 44100), 44100, "MP3", "MPEG_LAYER_III")
    path = make.file("a.mp3", raw)
    with path.open("rb") as file:
        found = mpeg.walk(file)
    assert found.expected == 50_000 == len(soundfile.read(path)[0])
    assert (found.junk, found.cut, found.rates) == ((), 0, (44100,))
    path.write_bytes(b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + raw + b"TAG" + bytes(125))
    with path.open("rb") as file:
        tagged = mpeg.walk(file)
    assert (tagged.frames, tagged.junk_bytes, tagged.expected) == (found.frames, 0, 50_000)


def test_junk_between_frames_does_not_move_the_first_of_them(make):
    """Found by fuzzing: a decoder that was told the true length then began behind the junk."""
    frame = b"\xff\xfb\x90\x00" + bytes(413)
    path = make.file("a.mp3", b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + frame * 3 + b"junk" * 9 + frame * 3)
    with path.open("rb") as file:
        found = mpeg.walk(file)
    assert (found.frames, found.start, found.junk) == (6, 20, ((20 + 3 * 417, 20 + 3 * 417 + 36),))


@pytest.mark.parametrize("head", [b"", b"\xff\xfeFF", b"FORM"])
def test_what_is_no_wav_is_refused_as_one(head):
    body = head.ljust(12, b"\0") + b"fmt " + bytes(12)
    with pytest.raises(riff.RiffError, match="does not begin as a WAV"):
        riff.read_facts(io.BytesIO(body), len(body))


@settings(deadline=None, max_examples=100)
@given(noise=st.binary(min_size=1, max_size=3000))
def test_no_bytes_make_the_walk_over_frames_fail(tmp_path_factory, noise):
    path = tmp_path_factory.getbasetemp() / "noise.mp3"
    path.write_bytes(noise + b"\xff\xfb\x90\x00" + noise)
    with path.open("rb") as file:
        mpeg.walk(file)


@pytest.mark.parametrize(
    ("kind", "subtype", "name"),
    [
        *(
            ("WAV", "PCM_16", "riff"),
            ("W64", "PCM_16", "w64"),
            ("RF64", "PCM_16", "riff"),
            ("AIFF", "PCM_16", "aiff"),
        ),
        *(
            ("FLAC", "PCM_16", "flac"),
            ("OGG", "VORBIS", "ogg"),
            ("OGG", "OPUS", "ogg"),
            ("AU", "PCM_16", "au"),
        ),
        *(
            ("CAF", "PCM_16", "caf"),
            ("MP3", "MPEG_LAYER_III", "mp3"),
            ("VOC", "PCM_16", "voc"),
            ("NIST", "PCM_16", "nist"),
        ),
    ],
)
def test_every_container_is_known_by_its_content_and_its_claim_is_read(make, kind, subtype, name):
    rate = 48000 if subtype == "OPUS" else 44100
    raw = make.encode(make.tone(3000, rate), rate, kind, subtype)
    claim = probe(io.BytesIO(raw), len(raw))
    assert claim.container == name == sniff(raw)
    if name in ("riff", "w64", "aiff", "flac", "ogg", "mp3"):
        assert (claim.frames, claim.rate, claim.channels) == (3000, rate, 1)
    got = make.read([make.file("a", raw)], rate=rate)
    assert len(got.only) == 3000
    assert got.faults == []


def test_megabytes_of_junk_are_walked_over_once(make):
    raw = make.encode(make.tone(50_000, 44100), 44100, "MP3", "MPEG_LAYER_III")
    half = len(raw) // 2
    junk = b"\xff\x00" * 200_000 + bytes(1 << 22)
    path = make.file("a.mp3", raw[:half] + junk + raw[half:])
    with path.open("rb") as file:
        found = mpeg.walk(file)
    assert found.junk_bytes >= 400_000
    assert found.frames > 30

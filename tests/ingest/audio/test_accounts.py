"""Every frame once: what a job reports of files whose headers lie or whose ends are missing."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import soundfile

import ingest

RATE = 44_100
#: faults that say a recording has another length than its header claims
LENGTH = {
    "audio-chained",
    "audio-damaged",
    "audio-header-frames",
    "audio-length-unstated",
    "audio-truncated",
    "rows-unaccounted",
    "rows-unclaimed",
}


def mp3_that_claims(make, frames):
    raw = make.encode(make.tone(40_000, RATE), RATE, "MP3", "MPEG_LAYER_III")
    at = max(raw.find(b"Xing"), raw.find(b"Info"))
    assert at > 0
    return raw[: at + 8] + struct.pack(">I", frames) + raw[at + 12 :]


def wav_that_claims(make, frames):
    raw = make.wav16(np.arange(1000), RATE)
    return raw[:40] + struct.pack("<I", 2 * frames) + raw[44:]


def cut(make, kind, subtype):
    raw = make.encode(make.tone(40_000, RATE), RATE, kind, subtype)
    return raw[: len(raw) * 2 // 3]


def flac_that_claims(make, frames):
    raw = bytearray(make.encode(make.tone(40_000, RATE), RATE, "FLAC", "PCM_16"))
    # STREAMINFO: 36 bits of the number of samples end at byte 26
    raw[22:26] = struct.pack(">I", frames)
    return bytes(raw)


KINDS = {
    "mp3, less": lambda m: mp3_that_claims(m, 3),
    "mp3, none": lambda m: mp3_that_claims(m, 0),
    "mp3, more": lambda m: mp3_that_claims(m, 10**5),
    "wav, less": lambda m: wav_that_claims(m, 600),
    "wav, more": lambda m: wav_that_claims(m, 5000),
    "wav, cut": lambda m: cut(m, "WAV", "PCM_16"),
    "flac, less": lambda m: flac_that_claims(m, 39_000),
    "flac, more": lambda m: flac_that_claims(m, 41_000),
    "flac, cut": lambda m: cut(m, "FLAC", "PCM_16"),
    "ogg, cut": lambda m: cut(m, "OGG", "VORBIS"),
    "chain": lambda m: 2 * m.encode(m.tone(20_000, RATE), RATE, "OGG", "VORBIS"),
    "nan": lambda m: m.encode(np.full(500, np.nan, np.float32), RATE, "WAV", "FLOAT"),
    "noise": lambda m: b"nothing that sounds" * 50,
}


@pytest.mark.parametrize("rate", [RATE, 8000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_length_is_told_once_and_every_frame_counts_once(make, tmp_path, kind, rate):
    good = make.file("good.wav", make.wav16(np.arange(700), RATE))
    bad = make.file("bad", KINDS[kind](make))
    result = ingest.ingest_audio(
        [str(good), str(bad)],
        tmp_path / "o.zarr",
        rate=rate,
        isolate=False,
        workers=0,
        report=str(tmp_path / "faults.jsonl"),
    )
    own = {f["file"]: f for f in result.report["files"]}.get(str(bad))
    faults = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert {f["file"] for f in faults} <= {str(bad)}
    lengths = [f for f in faults if f["code"] in LENGTH]
    assert len(lengths) <= 1, [f["code"] for f in lengths]
    assert not {f["code"] for f in faults} & {"rows-unaccounted", "rows-unclaimed"}
    whole = result.report["rows"]
    assert whole["rows_in"] == whole["stored"] + whole["gap"] + whole["quarantined"]
    if own is None:
        assert kind == "noise"
        return
    assert own["rows_in"] == own["stored"] + own["quarantined"]
    assert own["quarantined"] == sum(f["claimed_rows"] for f in faults if f["action"] == "quarantined")
    if kind == "nan":
        assert own["stored"] == 0
        assert own["quarantined"] == (500 if rate == RATE else round(500 * rate / RATE))
    elif kind != "wav, less":
        assert own["stored"] > 0 or own["quarantined"] > 0
        assert len(faults) >= 1


def test_the_claim_that_was_wrong_is_said_in_the_store_and_in_the_fault(make, tmp_path):
    bad = make.file("bad.mp3", mp3_that_claims(make, 10**5))
    truth, _ = soundfile.read(
        make.file("good.mp3", make.encode(make.tone(40_000, RATE), RATE, "MP3", "MPEG_LAYER_III"))
    )
    result = ingest.ingest_audio(
        [str(bad)], tmp_path / "o.zarr", rate=RATE, isolate=False, workers=0, report=str(tmp_path / "f.jsonl")
    )
    (fault,) = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert fault["code"] == "audio-header-frames"
    (own,) = result.report["files"]
    assert own["rows_in"] == own["stored"] == len(truth)
    assert result.exit_code == 0

"""Hearing and exporting what a store holds."""

from __future__ import annotations

import base64
import io
import re
import sys

import numpy as np
import pytest
import soundfile

import chunkstore
from chunkstore import audio
from chunkstore.errors import ConfigError, MissingDependencyError, UnknownNameError

RATE = 8000
LONG = np.random.default_rng(0).integers(-(2**15), 2**15, 600_000).astype(np.int16)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    url = tmp_path_factory.mktemp("audio") / "a.zarr"
    fields = [
        chunkstore.FieldSpec("audio", "int16", scale_factor=1 / 32768, attrs={"sample_rate": RATE}),
        chunkstore.FieldSpec("pair", "float32", items=2),
    ]
    with chunkstore.StoreWriter(url, fields=fields) as out:
        for name, values, rate in (
            ("a", LONG[:1000], 8000.0),
            ("long", LONG, 16000.0),
            ("b <&>", LONG[:80], 8000.0),
        ):
            pair = np.stack([values, -(values // 2)], 1).astype(np.float32) / 32768
            out.write(name, {"audio": values, "pair": pair}, columns={"sample_rate": rate})
    with chunkstore.open_store(url) as opened:
        yield opened


def test_a_span_is_exactly_the_stored_samples(store):
    sound = store.play("long", 0.5, 2.0)
    assert sound.rate == 16000
    assert np.array_equal(sound.samples, LONG[8000:32000])
    values, rate = soundfile.read(io.BytesIO(sound.wav()), dtype="int16")
    assert rate == 16000
    assert np.array_equal(values, LONG[8000:32000])


def test_the_player_holds_the_sound_and_escapes_the_title(store):
    page = audio.play(store, "b <&>")._repr_html_()
    assert "b &lt;&amp;&gt;, 0 s to 0.01 s" in page
    data = re.search(r"base64,([^\"]+)\"", page)[1]
    assert np.array_equal(soundfile.read(io.BytesIO(base64.b64decode(data)), dtype="int16")[0], LONG[:80])


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_int16_is_exported_bit_for_bit(store, tmp_path, kind):
    file = store.export("long", tmp_path / f"out.{kind}")
    values, rate = soundfile.read(file, dtype="int16")
    assert rate == 16000
    assert np.array_equal(values, LONG)
    assert [p.name for p in tmp_path.iterdir()] == [f"out.{kind}"]


def test_float_vectors_become_channels(store, tmp_path):
    expected = np.stack([LONG[:1000], -(LONG[:1000] // 2)], 1).astype(np.float32) / 32768
    wav, _ = soundfile.read(audio.export(store, "a", tmp_path / "x.wav", field="pair"), dtype="float32")
    assert np.array_equal(wav, expected)
    flac, _ = soundfile.read(audio.export(store, "a", tmp_path / "x.flac", field="pair"), dtype="float32")
    assert np.abs(flac - expected).max() <= 2**-23


def test_an_empty_span_is_an_empty_file(store, tmp_path):
    assert len(soundfile.read(audio.export(store, "a", tmp_path / "x.wav", 0.05, 0.05))[0]) == 0
    assert len(audio.play(store, "a", 0.05, 0.05).samples) == 0


@pytest.mark.parametrize("span", [(-1, None), (0.1, 0.05), (0, 0.2), (0.2, None)])
def test_a_span_outside_the_sequence_says_how_long_it_is(store, span):
    with pytest.raises(ConfigError, match=r"'a', which is 0\.125 s long"):
        audio.play(store, "a", *span)


def test_what_does_not_exist_or_cannot_be_played_is_named(store, tmp_path):
    with pytest.raises(UnknownNameError, match="nobody"):
        audio.play(store, "nobody")
    with pytest.raises(UnknownNameError, match="'sound'; the store has audio, pair"):
        audio.play(store, "a", field="sound")
    with pytest.raises(ConfigError, match=r"neither .wav nor .flac"):
        audio.export(store, "a", tmp_path / "x.mp3")
    with chunkstore.StoreWriter(tmp_path / "silent.zarr", fields={"x": "f4"}) as out:
        out.write("a", {"x": np.zeros(3, np.float32)})
    with (
        chunkstore.open_store(tmp_path / "silent.zarr") as mute,
        pytest.raises(ConfigError, match="sample rate"),
    ):
        audio.play(mute, "a")


def test_a_long_span_is_refused_for_a_player_with_both_numbers(store, monkeypatch):
    monkeypatch.setattr(audio, "_MAX_SECONDS", 10.0)
    with pytest.raises(ConfigError, match=r"37\.5 s are too long for a player \(at most 10 s\)"):
        audio.play(store, "long")


def test_flac_without_soundfile_says_what_to_install(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'chunkstore\[audio\]'"):
        audio.export(store, "a", tmp_path / "x.flac")
    assert list(tmp_path.iterdir()) == []
    audio.export(store, "a", tmp_path / "x.wav")


def test_a_sequence_has_a_time_coordinate_from_its_rate_and_start(store, tmp_path):
    plain = store.sequence("long")
    assert np.array_equal(plain.time.values, np.arange(600_000) / 16000)
    assert plain.time.attrs["units"] == "s"
    with chunkstore.StoreWriter(tmp_path / "t.zarr", fields={"x": "i2"}, attrs={"sample_rate": 32000}) as out:
        out.write("a", {"x": [1, 2, 3]}, columns={"start_time": 1533495600.25})
        out.write("b", {"x": [1]}, columns={"start_time": np.nan})
    with chunkstore.open_store(tmp_path / "t.zarr") as opened:
        first = np.datetime64("2018-08-05T19:00:00.250", "ns")
        assert (
            opened.sequence("a").time.values.tolist()
            == (first + np.arange(3) * np.timedelta64(31250, "ns")).tolist()
        )
        assert opened.sequence("b").time.values.tolist() == [0.0]


def test_what_is_too_slow_for_a_sound_is_refused():
    with chunkstore.StoreWriter("memory://audio-slow", {"x": "f4"}, overwrite=True) as out:
        out.write("a", {"x": np.zeros(3)}, columns={"sample_rate": 0.1})
    with pytest.raises(ConfigError, match=r"'a' has 0\.1 obs a second"):
        chunkstore.open_store("memory://audio-slow").play("a")

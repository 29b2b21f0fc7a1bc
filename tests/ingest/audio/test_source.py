"""Labels, metadata, segments and options of the audio source; and the source under the engine."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import chunkstore
from chunkstore.errors import ConfigError, InputError, MissingDependencyError, UnknownNameError
from ingest import ingest_audio
from ingest.sources import open_source
from ingest.sources.audio import CODES, AudioOptions, AudioSource, metadata
from ingest.sources.audio.metadata import recording_ids, start_time


def test_ids_are_paths_below_the_common_folder_and_unique():
    assert recording_ids(["/d/x/a.wav", "/d/y/a.wav", "/d/b.wav"]) == ["x/a.wav", "y/a.wav", "b.wav"]
    assert recording_ids(["s3://bucket/a/1.wav", "s3://bucket/a/2.wav"]) == ["1.wav", "2.wav"]
    assert recording_ids(["/d/a.wav", "/d/a.wav/b.wav"]) == ["a.wav", "a.wav/b.wav"]
    assert recording_ids(["a.wav"]) == ["a.wav"]


def test_labels_come_from_the_folder_or_from_a_pattern(make):
    files = [make.file(f"{n}/{n}_x{i}.wav", make.wav16([i])) for n in ("rain", "sea") for i in range(2)]
    parent = make.read(files, rate=8000, label_from="parent")
    assert [v["label"] for v in parent.labels.values()] == ["rain", "rain", "sea", "sea"]
    (column,) = [c for c in parent.scan.columns if c.name == "label"]
    assert column.categorical
    pattern = make.read(files, rate=8000, label_from="regex", label_regex=r"_x(\d)")
    assert [v["label"] for v in pattern.labels.values()] == ["0", "1", "0", "1"]
    named = make.read(files, rate=8000, label_from="regex", label_regex=r"(?P<what>\w+)_x(?P<take>1)")
    assert [(v.get("what"), v.get("take")) for v in named.labels.values()] == [
        (None, None),
        ("rain", "1"),
        (None, None),
        ("sea", "1"),
    ]


@pytest.mark.parametrize(
    ("name", "comment", "origin", "expected"),
    [
        ("20180805_190000.WAV", "", "", "2018-08-05T19:00:00"),
        ("S4A_20210924T061500Z.flac", "", "", "2021-09-24T06:15:00"),
        ("site-2021-09-24_06-15-00.123.wav", "", "", "2021-09-24T06:15:00.123"),
        ("SM4$20210924$061500.wav", "", "", "2021-09-24T06:15:00"),
        ("x.wav", "", "2017-10-06 21:23:15", "2017-10-06T21:23:15"),
        (
            "20200101_000000.wav",
            "Recorded at 10:00:00 28/05/2024 (UTC) by AudioMoth",
            "",
            "2024-05-28T10:00:00",
        ),
        ("x.wav", "Recorded at 10:00:00.250 28/05/2024 (UTC-3:30) by", "", "2024-05-28T13:30:00.250"),
        ("20211399_061500.wav", "", "", None),
        ("12345678901234567.wav", "", "", None),
        ("LOCA_2021_09_24_652_3.wav", "", "", None),
    ],
)
def test_start_times_are_read_from_header_and_name(name, comment, origin, expected):
    found = start_time(name, comment, origin)
    if expected is None:
        assert found is None
    else:
        assert found == pytest.approx(pd.Timestamp(expected, tz="UTC").timestamp(), abs=1e-6)


def test_a_pattern_of_ones_own_finds_the_start(make):
    path = make.file("rec.d1999.12.31.t235959.wav", make.wav16([0]))
    got = make.read([path], rate=8000, time_regex=r"d(\d{4}\.\d\d\.\d\d\.t\d{6})")
    assert got.labels[path.name]["start_time"] == pd.Timestamp("1999-12-31T23:59:59Z").timestamp()


TABLE = """name,species,count,weight,wild,note
a.wav,robin,1,0.5,True,x
sub/b,wren,2,,False,
nowhere.wav,owl,3,1.5,True,y
c.wav,robin,4,2.5,True,z
"""


@pytest.mark.parametrize("kind", ["csv", "parquet", "tsv"])
def test_columns_of_a_table_are_joined_typed_and_what_does_not_match_is_listed(make, kind):
    names = ["a.wav", "sub/b.wav", "c.wav", "d.wav"]
    files = [make.file(n, make.wav16([1])) for n in names]
    path = make.folder / f"table.{kind}"
    frame = pd.read_csv(make.file("source.csv", TABLE.replace("sub/b,", "b,").encode()))
    if kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="," if kind == "csv" else "\t")
    got = make.read(files, rate=8000, metadata=str(path), metadata_key="name")
    assert got.labels["a.wav"]["species"] == "robin"
    assert got.labels["sub/b.wav"]["species"] == "wren"  # by its name without suffix
    assert got.labels["c.wav"]["count"] == 4
    assert math.isnan(got.labels["sub/b.wav"]["weight"])
    assert got.labels["sub/b.wav"]["wild"] is False
    assert got.labels["sub/b.wav"]["note"] == ""
    assert "species" not in got.labels["d.wav"]
    assert {c.name: (c.dtype, c.categorical) for c in got.scan.columns[-5:]} == {
        "species": ("string", False),
        "count": ("int64", False),
        "weight": ("float64", False),
        "wild": ("bool", False),
        "note": ("string", False),
    }
    assert [(f.code, f.action) for f in got.faults] == [
        ("audio-metadata-unmatched", "skipped"),
        ("audio-metadata-missing", "kept"),
    ]
    assert "nowhere.wav" in got.faults[0].message
    assert got.faults[1].file.endswith("d.wav")


def test_few_different_words_become_categories():
    frame = pd.DataFrame(
        {"k": list("abcd"), "w": ["x", "y", "x", "y"], "codec": [1, 2, 3, 4], "dist (m)": [1.0] * 4}
    )
    columns = [metadata._column(str(n), frame[n], frozenset({"codec"}))[0] for n in frame.columns]
    assert [(c.name, c.categorical) for c in columns] == [
        ("k", False),
        ("w", True),
        ("metadata_codec", False),
        ("dist__m_", False),
    ]
    assert columns[3].long_name == "dist (m)"


def test_a_table_that_cannot_be_joined_is_an_error_in_one_sentence(make):
    path = make.file("a.wav", make.wav16([1]))
    twice = make.file("twice.csv", b"name,x\na.wav,1\na.wav,2\n")
    with pytest.raises(InputError, match=r"two rows with name = 'a.wav' \(rows 0 and 1\)"):
        make.read([path], rate=8000, metadata=str(twice), metadata_key="name")
    with pytest.raises(UnknownNameError, match="no column 'file'; it has name, x"):
        make.read([path], rate=8000, metadata=str(twice), metadata_key="file")
    with pytest.raises(InputError, match="no metadata file"):
        make.read([path], rate=8000, metadata="nowhere.csv", metadata_key="name")


def test_segments_remember_their_place(make):
    values = np.arange(25_000, dtype=np.int16)
    path = make.file("s_20200101_000000.wav", make.wav16(values))
    got = make.read([path], rate=8000, segment="1s")
    assert {k: len(v) for k, v in got.samples.items()} == {
        f"s_20200101_000000.wav#{i}": n for i, n in enumerate((8000, 8000, 8000, 1000))
    }
    assert np.array_equal(np.concatenate(list(got.samples.values())), values)
    assert [v["offset"] for v in got.labels.values()] == [0, 8000, 16000, 24000]
    began = pd.Timestamp("2020-01-01T00:00:00Z").timestamp()
    assert [v["start_time"] - began for v in got.labels.values()] == [0, 1, 2, 3]
    assert {v["recording"] for v in got.labels.values()} == {path.name}
    assert {v["source_frames"] for v in got.labels.values()} == {25_000}


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_silence_becomes_gaps_only_where_asked_for(make, dtype):
    values = np.full(80_000, 3000, np.int16)
    values[16_000:40_000] = 3
    values[60_000:63_000] = 0  # shorter than a second
    path = make.file("a.wav", make.wav16(values))
    assert make.read([path], rate=8000, dtype=dtype).lost == {"a.wav": []}
    got = make.read([path], rate=8000, dtype=dtype, silence=-60)
    assert got.lost == {"a.wav": [(16_000, 40_000)]}
    assert len(got.only) == 80_000
    pieces = make.read([path], rate=8000, dtype=dtype, silence=-60, segment=3)
    assert [pieces.lost[k] for k in pieces.samples] == [[(16_000, 24_000)], [(0, 16_000)], [], []]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0}, "rate is 0 Hz"),
        ({"channels": "both"}, "channels is 'both'"),
        ({"channels": -1}, "channels is -1"),
        ({"dtype": "int24"}, "dtype is 'int24'; choose int16 or float32"),
        ({"label_from": "name"}, "label_from is 'name'"),
        ({"label_from": "regex"}, "belong together"),
        ({"label_from": "regex", "label_regex": "("}, "no regular expression"),
        ({"label_from": "regex", "label_regex": "a"}, "has no group"),
        ({"metadata": "a.csv"}, "belong together"),
        ({"segment": "0s"}, "must be above 0"),
        ({"segment": "soon"}, "segment is 'soon'"),
        ({"silence": 3}, "silence is 3 dB"),
        ({"silence_min": "2s"}, "silence_min=2 needs the level"),
        ({"empty": "maybe"}, "empty is 'maybe'"),
        ({"quality": "best"}, "quality is 'best'"),
        ({"speed": 2}, "audio has no option 'speed'; it has channels, "),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        open_source("audio", options)


@pytest.mark.parametrize("name", ["source", "codec", "peak"])
def test_no_label_is_written_over_what_every_recording_has(make, name):
    path = make.file("robin_1.wav", make.wav16(range(9)))
    with pytest.raises(ConfigError, match=f"the group '{name}' of label_regex"):
        make.read([path], label_from="regex", label_regex=f"(?P<{name}>[a-z]+)_")


def test_options_survive_the_way_to_a_worker():
    options = AudioOptions(
        rate=8000, channels="2", segment="1min", silence=-60, silence_min="500ms", decoder_memory="1GiB"
    )
    assert options == AudioOptions.from_json(options.to_json())
    assert (options.channels, options.segment, options.decoder_memory) == (2, 60.0, 1 << 30)


def test_a_missing_library_is_found_before_any_work(make, monkeypatch):
    import sys

    wav, ogg = make.file("a.wav", make.wav16([1])), make.file("a.ogg", b"OggS" + bytes(60))
    mp4 = make.file("a.m4a", b"\0\0\0\x18ftypM4A " + bytes(60))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingDependencyError, match=r"chunkstore\[audio-extra\]"):
        AudioSource(rate=8000).scan([str(wav), str(mp4)])
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingDependencyError, match=r"chunkstore\[audio\]"):
        AudioSource(rate=8000).scan([str(wav), str(ogg)])
    assert make.read([wav], rate=8000).only.tolist() == [1]  # a WAV needs no library


def test_every_code_that_the_source_can_report_is_listed():
    import re
    from pathlib import Path

    import ingest.sources.audio as package

    used = set()
    for file in Path(package.__file__).parent.glob("*.py"):
        used |= set(re.findall(r'"(audio-[a-z0-9-]+)"', file.read_text()))
    assert used == set(CODES)


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [("m4a", "aac"), ("webm", "libopus"), ("mka", "pcm_s16le"), ("wma", "wmav2"), ("aac", "aac")],
)
def test_what_libsndfile_does_not_know_is_decoded_by_pyav(make, suffix, codec):
    import av

    path = make.folder / f"a.{suffix}"
    with av.open(
        str(path), "w", format={"wma": "asf", "mka": "matroska", "aac": "adts"}.get(suffix)
    ) as container:
        stream = container.add_stream(codec, rate=48000, layout="mono")
        stream.bit_rate = 96_000
        for at in range(0, 48000, 960):
            block = (make.tone(48000, 48000)[at : at + 960] * 32767).astype(np.int16)
            frame = av.AudioFrame.from_ndarray(block[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts = 48000, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    got = make.read([path], rate=48000, dtype="float32")
    assert got.faults == []
    with av.open(str(path)) as container:
        blocks = [frame.to_ndarray() for frame in container.decode(audio=0)]
    truth = np.concatenate(blocks, axis=1)[0]
    if truth.dtype == np.int16:
        truth = truth.astype(np.float32) / 32768
    assert np.array_equal(got.only, truth)
    assert abs(len(truth) - 48000) <= 4096
    assert got.labels[path.name]["decoder"].startswith("PyAV")


# -- under the engine -----------------------------------------------------------------------------------


def _tree(folder) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.slow
def test_2000_files_with_20_bad_ones_lose_exactly_those_20(make):
    rng = np.random.default_rng(5)
    good = [make.file(f"in/{i:04}.wav", make.wav16(rng.integers(-99, 99, i % 50))) for i in range(1980)]
    flac = make.encode(make.tone(9000), 8000, "FLAC", "PCM_16")
    kinds = [
        (b"RIFF\0\0\0\0WAVEfmt ", "audio-bad-header"),
        (rng.bytes(500), "audio-unrecognised"),
        (b"<html>404</html>", "audio-unrecognised"),
        (flac[:5000] + bytes(90) + flac[5090:], "audio-decode-error"),
        (make.encode(np.array([0, np.nan], np.float32), 8000, "WAV", "FLOAT"), "audio-nonfinite"),
    ]
    bad = {str(make.file(f"in/{i * 97:04}b.wav", kinds[i % 5][0])): kinds[i % 5][1] for i in range(20)}
    report = make.folder / "faults.jsonl"
    result = ingest_audio(make.folder / "in", make.folder / "all.zarr", rate=8000, workers=0, report=report)
    assert result.exit_code == 3
    lines = pd.read_json(report, lines=True)
    lost = lines[lines.action == "quarantined"]
    assert dict(zip(lost.file, lost.code, strict=True)) == bad
    clean = ingest_audio(good, make.folder / "good.zarr", rate=8000, workers=0)
    assert clean.exit_code == 0
    with (
        chunkstore.open_store(make.folder / "all.zarr") as one,
        chunkstore.open_store(make.folder / "good.zarr") as two,
    ):
        assert one.n_sequences == two.n_sequences == 1980
        assert list(one.sequences.ids) == list(two.sequences.ids)
        assert np.array_equal(one.sequences.rowsize, two.sequences.rowsize)
        assert np.array_equal(one.read("audio", 0, one.n_obs), two.read("audio", 0, two.n_obs))


@pytest.mark.cluster
@pytest.mark.slow
def test_the_store_is_the_same_for_any_number_of_workers(make):
    for i in range(12):
        kind, subtype = [("OGG", "VORBIS"), ("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III")][i % 3]
        make.file(f"in/{i % 2}/{i}.x.wav", make.encode(make.tone(5000 * i + 1, seed=i), 44100, kind, subtype))
    options = {
        "rate": 16000,
        "label_from": "parent",
        "silence": -40,
        "segment": 1,
        "shard": 65536,
        "chunk": 8192,
    }
    trees = []
    for workers in (0, 1, 3):
        out = make.folder / f"{workers}.zarr"
        ingest_audio(make.folder / "in", out, workers=workers, **options)
        trees.append(_tree(out))
    assert trees[0] == trees[1] == trees[2]


def test_the_page_on_audio_lists_every_code():
    from pathlib import Path

    page = Path(__file__).parents[3] / "docs" / "explanation" / "audio.md"
    assert {code for code in CODES if f"| `{code}` |" in page.read_text()} == set(CODES)


def test_the_result_does_not_depend_on_any_block_length(make, monkeypatch):
    from ingest.sources.audio import by_pcm, by_sndfile, source

    stereo = np.stack([make.tone(30_000, 44100), make.tone(30_000, 44100, seed=1)], 1)
    stereo[5000:20_000] *= 0.01
    files = [
        make.file(f"a.{kind}", make.encode(stereo, 44100, kind, subtype))
        for kind, subtype in (
            ("WAV", "PCM_24"),
            ("OGG", "VORBIS"),
            ("FLAC", "PCM_16"),
            ("MP3", "MPEG_LAYER_III"),
        )
    ]
    options = {"rate": 16000, "segment": 0.3, "silence": -20, "silence_min": 0.1}
    expected = make.read(files, **options)
    assert any(expected.lost.values())
    for values, rows in ((2, 1 << 18), (999, 100), (1 << 20, 4096)):
        monkeypatch.setattr(by_pcm, "BLOCK_VALUES", values)
        monkeypatch.setattr(by_sndfile, "BLOCK_VALUES", values)
        monkeypatch.setattr(source, "_BATCH_ROWS", rows)
        got = make.read(files, **options)
        assert repr(got.labels) == repr(expected.labels)
        assert {k: v.tobytes() for k, v in got.samples.items()} == {
            k: v.tobytes() for k, v in expected.samples.items()
        }
        for key, lost in got.lost.items():
            marks = [np.zeros(len(got.samples[key]), bool) for _ in range(2)]
            for mark, ranges in zip(marks, (lost, expected.lost[key]), strict=True):
                for start, stop in ranges:
                    mark[start:stop] = True
            assert np.array_equal(*marks)


@pytest.mark.parametrize("way", ["{}", "rain/{}", "audio/rain/{}", "audio\\rain\\{}", "./rain/{}"])
@pytest.mark.parametrize("suffix", ["", ".wav"])
def test_a_row_names_its_file_by_as_much_of_its_path_as_it_likes(make, way, suffix):
    files = [make.file(f"audio/rain/{n:04d}.wav", make.wav16(np.zeros(n + 1))) for n in range(3)]
    lines = [way.format(f"{n:04d}{suffix}") + f",{n}" for n in range(3)]
    table = make.file("m.csv", ("file,x\n" + "\n".join(lines)).encode())
    got = make.read(files, metadata=str(table), metadata_key="file")
    assert not got.faults
    assert {k: v["x"] for k, v in got.labels.items()} == {f"{n:04d}.wav": n for n in range(3)}


def test_a_name_that_two_files_have_names_neither(make):
    files = [
        make.file(f"{folder}/1.wav", make.wav16(np.zeros(3))) for folder in ("a/rain", "b/rain", "b/sea")
    ]
    table = make.file("m.csv", b"file,x\n1,1\nrain/1.wav,2\nsea/1.wav,3\n,4\n,5\n")
    got = make.read(files, metadata=str(table), metadata_key="file")
    assert got.codes() == ["audio-metadata-missing"] * 2 + ["audio-metadata-unmatched"] * 4
    assert [v["x"] for k, v in sorted(got.labels.items()) if "x" in v] == [3]


def test_zeros_in_front_are_kept(make):
    files = [make.file(f"{n:04d}.wav", make.wav16(np.zeros(3))) for n in range(2)]
    table = make.file("m.csv", b"file,site,n,f\n0000,007,1,0.5\n0001,010,2,0\n")
    got = make.read(files, metadata=str(table), metadata_key="file")
    assert [v["site"] for _, v in sorted(got.labels.items())] == ["007", "010"]
    assert [(v["n"], v["f"]) for _, v in sorted(got.labels.items())] == [(1, 0.5), (2, 0.0)]


def test_columns_whose_names_clash_are_told_apart_at_the_scan(make):
    files = [make.file(f"{n}.wav", make.wav16(np.zeros(3))) for n in range(4)]
    head = "file,species,species_code,audio,gap_start,a b,a/b,codec,__x,-y"
    table = make.file("m.csv", (head + "".join(f"\n{n},w,2,3,4,5,6,7,8,9" for n in range(4))).encode())
    got = make.read(files, metadata=str(table), metadata_key="file")
    values = got.labels["0.wav"]
    names = ("species", "metadata_species_code", "metadata_audio", "metadata_gap_start", "a_b")
    assert [values[n] for n in names] == ["w", 2, 3, 4, 5]
    assert [values[n] for n in ("metadata_a_b", "metadata_codec", "_x", "_y")] == [6, 7, 8, 9]
    out = make.folder / "o.zarr"
    result = ingest_audio(files, out, metadata=str(table), metadata_key="file", isolate=False, workers=0)
    assert result.exit_code == 0

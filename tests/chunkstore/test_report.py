"""The report is one file that a browser shows without the network and without complaints."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import chunkstore
from chunkstore import FieldSpec, cli, errors, info
from chunkstore.report import ReportOptions, _sections, write_report

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from browser import needs_chromium, visit


@pytest.fixture(scope="module")
def sensors(tmp_path_factory):
    """Thirty sequences of every kind of field, with gaps, missing values and a hostile label."""
    place = tmp_path_factory.mktemp("report") / "sensors.zarr"
    fields = [
        FieldSpec("time", "int64", units="milliseconds since 1970-01-01"),
        FieldSpec("temp", "float64", units="degC", long_name="air temperature"),
        FieldSpec("steps", "int32", nullable=True),
        FieldSpec("lpc", "float32", items=12),
        FieldSpec("state", "int8", categories=("walk", "</script><b>freeze")),
    ]
    rng = np.random.default_rng(0)
    with chunkstore.StoreWriter(place, fields=fields, chunk=256, shard=1024) as out:
        for i in range(30):
            n = int(rng.integers(60, 900))
            temp = np.cumsum(rng.normal(size=n))
            temp[rng.random(n) < 0.05] = np.nan
            data = {
                "time": np.arange(n) * 1000,
                "temp": temp,
                "steps": rng.integers(0, 9, n),
                "steps_valid": rng.random(n) > 0.1,
                "lpc": rng.normal(size=(n, 12)),
                "state": (rng.random(n) > 0.9).astype("int8"),
            }
            label = ["north", "<img src=x onerror=alert(1)>", "south"][i % 3]
            out.write(f"dev-{i}", data, labels={"site": label}, gaps=[(10, 20)] if i % 4 == 0 else [])
    return place


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """Four tones of a second or less."""
    place = tmp_path_factory.mktemp("report") / "sounds.zarr"
    spec = FieldSpec("audio", "int16", scale_factor=1 / 32768, attrs={"sample_rate": 8000})
    with chunkstore.StoreWriter(place, fields=[spec], chunk=1024, shard=4096) as out:
        for i, n in enumerate((8000, 4000, 100, 8000)):
            tone = 12000 * np.sin(2 * np.pi * 440 * (i + 1) * np.arange(n) / 8000)
            out.write(f"tone-{i}", {"audio": tone.astype("int16")}, labels={"note": "ab"[i % 2]})
    return place


def page_of(place, tmp_path, **options):
    with chunkstore.open_store(place) as store:
        return write_report(store, tmp_path / "report.html", ReportOptions(**options))


def test_the_page_needs_nothing_from_outside(sensors, tmp_path):
    text = page_of(sensors, tmp_path).read_text()
    outside = re.findall(r"<(?:script|link|img|audio)[^>]*(?:src|href)=\"(?!data:)([^\"]*)", text)
    assert outside == []
    assert "default-src 'none'" in text


def test_a_field_that_tells_the_time_is_drawn_over_dates(tmp_path):
    place = tmp_path / "clock.zarr"
    # 2024-03-01 to 2024-03-11, a reading every hour
    hours = 1_709_251_200_000 + np.arange(240) * 3_600_000
    fields = [FieldSpec("time", "int64", units="milliseconds since 1970-01-01")]
    with chunkstore.StoreWriter(place, fields=fields) as out:
        out.write("a", {"time": hours})
    with chunkstore.open_store(place) as store:
        sections = {s.key: s for s in _sections(store, info.describe(store), ReportOptions())}
    (item,) = sections["fields"].figures
    drawn = json.loads(item.figure.data)
    assert drawn["layout"]["xaxis"]["type"] == "date"
    (trace,) = drawn["data"]
    assert (trace["x"][0], trace["x"][-1]) == ("2024-03-01T01:59:30.000", "2024-03-10T21:00:30.000")
    assert trace["customdata"][0] == "2024-03-01 00:00 to 2024-03-01 03:59"


def test_labels_cannot_break_out_of_the_page(sensors, tmp_path):
    text = page_of(sensors, tmp_path).read_text()
    assert "<img src=x" not in text
    assert "</script><b>" not in text


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390], ids=["wide", "narrow"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_draws_every_figure_and_complains_of_nothing(sensors, tmp_path, width, dark):
    page = page_of(sensors, tmp_path, window=64, stride=16, batch_size=32)
    ask = {
        "overflow": "document.documentElement.scrollWidth - window.innerWidth",
        "plots": "document.querySelectorAll('.plot').length",
        "drawn": "document.querySelectorAll('.plot .main-svg').length > 0 && "
        "[...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg'))",
        "paper": "getComputedStyle(document.body).backgroundColor",
        "ink": "document.querySelector('.plot .xtick text').style.fill",
        "alert": "document.querySelectorAll('img').length",
    }
    seen = visit(page, width=width, dark=dark, ready="document.body.dataset.drawn", ask=ask)
    assert seen.errors == []
    assert [u for u in seen.requests if not u.startswith(("file:", "data:", "blob:"))] == []
    assert seen.values["overflow"] <= 0
    assert seen.values["plots"] >= 10
    assert seen.values["drawn"]
    assert seen.values["alert"] == 0
    assert seen.values["paper"] == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    assert seen.values["ink"] == ("rgb(228, 232, 236)" if dark else "rgb(29, 39, 51)")


@needs_chromium
def test_sounds_can_be_played(sounds, tmp_path):
    page = page_of(sounds, tmp_path)
    ask = {"seconds": "[...document.querySelectorAll('audio')].map(a => a.duration)"}
    ready = (
        "[...document.querySelectorAll('audio')].every(a => a.readyState >= 1) && document.body.dataset.drawn"
    )
    seen = visit(page, ready=ready, ask=ask)
    assert seen.errors == []
    assert len(seen.values["seconds"]) == 4
    assert max(seen.values["seconds"]) == pytest.approx(1.0, abs=0.1)  # mp3 pads its ends


def test_a_store_without_sequences_still_has_a_page(tmp_path):
    with chunkstore.StoreWriter(tmp_path / "s.zarr", fields={"x": "float32"}):
        pass
    assert page_of(tmp_path / "s.zarr", tmp_path).stat().st_size > 0


def test_a_million_sequences_are_sampled_and_it_is_said(tmp_path):
    n = 1_000_000
    place = tmp_path / "many.zarr"
    spec = FieldSpec("x", "int32")
    skeleton = chunkstore.create_store(place, fields=[spec], n_obs=3 * n, chunk=2**14, shard=2**20)
    for shard in range(skeleton.layout.n_shards):
        low, high = skeleton.layout.shard_range(shard)
        skeleton.write_shard("x", shard, np.arange(low, high, dtype="int32"))
    kinds = chunkstore.ColumnData("kind", [f"k{i % 40}" for i in range(n)], categorical=True)
    ids = [str(i) for i in range(n)]
    lengths = np.full(n, 3) + np.where(np.arange(n) % 2, 1, -1)
    chunkstore.finish_store(place, rowsize=lengths, ids=ids, columns={"kind": kinds})
    text = page_of(place, tmp_path, examples=2).read_text()
    assert "all 1,000,000 sequences" in text
    assert "2 of 1,000,000 sequences" in text
    assert "the 25 most frequent; 15 more are not shown" in text
    assert len(text) < 6_500_000


def test_an_unknown_field_is_named(sensors, tmp_path):
    with pytest.raises(errors.UnknownNameError, match="nope"):
        page_of(sensors, tmp_path, fields=("nope",))


@pytest.mark.parametrize("options", [{"window": 0}, {"stride": 0}, {"examples": -1}])
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(errors.ConfigError):
        ReportOptions(**options)


def test_the_verb_writes_the_page(sounds, tmp_path, capsys):
    assert cli.run(["report", str(sounds), "-o", str(tmp_path / "out" / "page.html"), "--examples", "1"]) == 0
    assert "page.html" in capsys.readouterr().out
    assert (tmp_path / "out" / "page.html").is_file()


def test_labels_that_are_not_drawn_are_named(tmp_path):
    with chunkstore.StoreWriter(tmp_path / "a.zarr", {"x": "f4"}) as out:
        for i in range(9):
            labels = {"name": f"clip {i}", "site": "moor", "kind": "ab"[i % 2]}
            out.write(str(i), {"x": [1.0]}, labels=labels)
    store = chunkstore.open_store(tmp_path / "a.zarr")
    section = next(s for s in _sections(store, info.describe(store), ReportOptions()) if s.key == "labels")
    assert [item.figure.title for item in section.figures] == ["kind"]
    assert section.text == [
        "Not drawn, for they have about as many values as there are sequences: name (9 values).",
        "Not drawn, for they are the same everywhere: site (moor).",
    ]


EXTREMES = [
    (FieldSpec("x", "float64"), [-1.7e308, 1.7e308, 0.0]),
    (FieldSpec("x", "float32"), [np.inf, -np.inf, np.nan]),
    (FieldSpec("x", "float64", items=2), [[np.nan, 1e308], [np.nan, -1e308], [np.nan, np.inf]]),
    (FieldSpec("x", "int16", scale_factor=-0.5), [1, 2, 3]),
    (FieldSpec("x", "int64", units="milliseconds since 1970-01-01"), [0, 2**62, -(2**62)]),
    (FieldSpec("x", "int32", units="days since 0001-01-01"), [0, 2**31 - 1, 1]),
    (FieldSpec("x", "int64", attrs={"sample_rate": 1e308}), [1, 2, 3]),
    (FieldSpec("x", "uint64"), np.array([0, 2**64 - 1, 5], "u8")),
]


@pytest.mark.parametrize(("field", "values"), EXTREMES)
def test_a_page_is_made_of_the_strangest_values(field, values, tmp_path):
    with chunkstore.StoreWriter("memory://report-extremes", [field], overwrite=True) as out:
        out.write("a", {"x": values})
    page = write_report(chunkstore.open_store("memory://report-extremes"), tmp_path / "a.html")
    assert page.stat().st_size > 1_000_000

"""What `chunkstore info` and notebooks say of a store is what was written."""

import json

import numpy as np
import pytest

import chunkstore
from chunkstore import FieldSpec, cli, examples, info, notebook


@pytest.fixture
def place(tmp_path):
    """Three sequences, two fields, a label, a gap: numbers that can be checked by hand."""
    url = tmp_path / "some store.zarr"
    fields = [
        FieldSpec("temp", "float32", units="degC", long_name="air temperature"),
        FieldSpec("state", "int8", categories=("walk", "stop")),
    ]
    with chunkstore.StoreWriter(url, fields=fields, chunk=4, shard=8) as out:
        for name, n, site in (("a", 5, "north"), ("b", 0, "north"), ("c", 7, "<i>south</i>")):
            values = np.arange(n, dtype=np.float32)
            values[1:2] = np.nan
            gaps = [(2, 4)] if n == 7 else []
            out.write(name, {"temp": values, "state": np.arange(n) % 2}, labels={"site": site}, gaps=gaps)
    return url


def test_the_description_is_json_and_true(place):
    found = info.describe(chunkstore.open_store(place))
    json.dumps(found, allow_nan=False)
    assert found["n_obs"] == 12
    assert found["layout"] == {"chunk": 4, "shard": 8, "n_chunks": 3, "n_shards": 2}
    assert found["sequences"]["count"] == 3
    assert found["sequences"]["empty"] == 1
    assert found["sequences"]["rowsize"] == {"min": 0, "median": 5.0, "max": 7, "mean": 4.0}
    assert found["gaps"] == {"count": 1, "n_obs": 2, "fraction": 2 / 12}
    temp, state = found["fields"]
    assert temp["units"] == "degC"
    assert temp["bytes"] == 48
    assert temp["statistics"]["max"] == 6
    assert state["categories"] == ["walk", "stop"]
    (site,) = [c for c in found["sequences"]["columns"] if c["name"] == "site"]
    assert site["distinct"] == 2


def test_stored_bytes_are_those_of_the_chunks_on_disk(place):
    store = chunkstore.open_store(place)
    total, exact = info.stored_bytes(store, "temp")
    on_disk = sum(
        f.stat().st_size for f in (place / "temp").rglob("*") if f.is_file() and f.name != "zarr.json"
    )
    assert exact
    assert 0 < total < on_disk


def test_the_mask_of_a_field_counts_among_its_bytes():
    fields = [FieldSpec("steps", "int32", nullable=True)]
    rng = np.random.default_rng(0)
    with chunkstore.StoreWriter("memory://masked", fields=fields, codec="none", overwrite=True) as out:
        out.write("a", {"steps": rng.integers(0, 9, 1000), "steps_valid": rng.random(1000) > 0.5})
    store = chunkstore.open_store("memory://masked")
    (found,) = info.describe(store)["fields"]
    assert found["bytes"] == 1000 * (4 + 1)
    parts = [info.stored_bytes(store, name)[0] for name in ("steps", "steps_valid")]
    assert min(parts) > 0
    assert found["bytes_stored"] == sum(parts)


@pytest.mark.parametrize(
    ("units", "values", "dates"),
    [
        ("seconds since 1970-01-01", [86400], ["1970-01-02T00:00:00"]),
        ("milliseconds since 1970-01-01T00:00:00Z", [1704067200123], ["2024-01-01T00:00:00.123"]),
        ("days since 2000-02-28", [1.5], ["2000-02-29T12:00:00.000000"]),  # a leap year
        ("minutes since 2024-01-01 06:00", [90], ["2024-01-01T07:30"]),
        ("months since 2000-01-01", [1], None),
        ("seconds since the flood", [1], None),
    ],
)
def test_numbers_of_a_clock_are_told_as_dates(units, values, dates):
    found = info.dates_of(units, values)
    assert (None if found is None else [str(d) for d in found]) == dates


def test_no_number_is_cut_off_on_a_narrow_screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    fields = [FieldSpec("discharge", "float32", units="m3 s-1"), FieldSpec("n", "int32", nullable=True)]
    rng = np.random.default_rng(0)
    values = rng.lognormal(0, 3, 2_000_000).astype("f4")
    valid = rng.random(2_000_000) > 0.5
    with chunkstore.StoreWriter("memory://narrow", fields=fields, overwrite=True) as out:
        out.write("a", {"discharge": values, "n": np.arange(2_000_000), "n_valid": valid})
    found = info.describe(chunkstore.open_store("memory://narrow"))
    info.show(found)
    words = capsys.readouterr().out.split()
    head, rows = info.field_rows(found)
    assert set(head) - {"ratio"} <= set(words)
    assert {cell for row in rows for name, cell in zip(head, row, strict=True) if name != "stored"} <= {
        "",
        *words,
        "m3 s-1",
    }


@pytest.mark.parametrize("codec", ["none", "lz4:5", "zstd:3", "zstd:9", "blosc-lz4:5", "blosc-zstd:3"])
def test_a_codec_is_shown_as_it_was_asked_for(codec):
    with chunkstore.StoreWriter("memory://codec", fields={"x": "f4"}, codec=codec, overwrite=True) as out:
        out.write("a", {"x": np.arange(9)})
    found = info.describe(chunkstore.open_store("memory://codec"))
    assert found["fields"][0]["codec"] == codec


def test_many_shards_are_estimated_from_some_and_it_is_said(tmp_path):
    with chunkstore.StoreWriter(tmp_path / "s.zarr", fields={"x": "int32"}, chunk=8, shard=8) as out:
        out.write("a", {"x": np.random.default_rng(0).integers(0, 2**31, 8 * 40)})
    store = chunkstore.open_store(tmp_path / "s.zarr")
    (all_of_it, exact), (some, sampled) = info.stored_bytes(store, "x"), info.stored_bytes(store, "x", most=5)
    assert exact
    assert not sampled
    assert abs(some - all_of_it) < 0.1 * all_of_it


def test_one_screen_says_it_all(place, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.run(["info", str(place)]) == 0
    out = capsys.readouterr().out
    for text in ("3 of 0 to 7 obs", "1 empty", "temp", "degC", "2 words", "north 2", "1 with 2 obs"):
        assert text in out
    assert len(out.splitlines()) < 45


def test_json_is_for_programs(place, capsys):
    assert cli.run(["info", str(place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sequences"]["count"] == 3


def test_an_incomplete_store_is_refused_unless_asked_for(tmp_path, capsys):
    chunkstore.create_store(tmp_path / "s.zarr", fields=[FieldSpec("x", "float32")], n_obs=10)
    assert cli.run(["info", str(tmp_path / "s.zarr")]) == 1
    assert "incomplete" in capsys.readouterr().err
    assert cli.run(["info", str(tmp_path / "s.zarr"), "--allow-incomplete"]) == 0
    assert "writing has not finished" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["info", "nothing-here"], ["info", "."], ["report", "."]])
def test_a_place_without_a_store_is_one_line_and_exit_2(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert cli.run(words) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_notebook_shows_the_same_and_nothing_escapes(place):
    html = chunkstore.open_store(place)._repr_html_()
    assert "degC" in html
    assert "<i>south</i>" not in html
    assert "&lt;i&gt;south&lt;/i&gt;" in html
    assert "<script" not in html


def test_times_are_shown_as_dates():
    assert info._dates("milliseconds since 1970-01-01", 0, 60_000) == "1970-01-01 to 1970-01-01T00:01"
    assert info._dates("fortnights since 1970-01-01", 0, 1) is None


def test_a_dataset_shows_its_facts():
    assert "<td style='white-space:normal'>7 &lt; 8</td>" in notebook.dataset_html(
        "D", [("windows", "7 < 8")]
    )


def test_faults_and_rows_come_from_the_ledger_beside_the_store(place):
    ledger = place.with_name(place.name + ".ledger")
    ledger.mkdir()
    told = {
        "obs": 12,
        "sequences": 3,
        "faults": {"avro-truncated": 2},
        "rows": {"rows_in": 14, "stored": 12},
        "files": [{"file": "a.avro"}, {"file": "b.avro"}],
        "seconds": {"all": 3.5},
    }
    (ledger / "report.json").write_text(json.dumps(told))
    found = info.describe(chunkstore.open_store(place))
    assert found["faults"] == {"avro-truncated": 2}
    assert ("fault", "avro-truncated: 2") in info.headline(found)
    assert ("ingest.rows", "rows_in 14, stored 12") in info.provenance_rows(found)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"obs": 13, "sequences": 3, "faults": {"x": 1}}', '{"obs": 12}']
)
def test_a_ledger_of_something_else_is_ignored(place, text):
    ledger = place.with_name(place.name + ".ledger")
    ledger.mkdir()
    (ledger / "report.json").write_text(text)
    assert info.describe(chunkstore.open_store(place))["faults"] == {}


def test_a_dataset_of_windows_shows_windows_order_memory_and_store(place):
    pytest.importorskip("torch")
    windows = chunkstore.ZarrWindowDataset(place, 3, fields=["temp"], batch_size=2)
    html = windows._repr_html_()
    assert f"{windows.n_windows:,} an epoch" in html
    assert "512.0 MiB allowed" in html
    assert "Store " in html


def test_fields_that_an_ingest_left_out_by_itself_are_named(tmp_path):
    left = {"note": "string values are not numbers", "station": "key or label", "x2": "excluded"}
    with chunkstore.StoreWriter(
        str(tmp_path / "s.zarr"), {"x": "f4"}, attrs={"avro_fields_left": left}
    ) as out:
        out.write("a", {"x": [1.0]})
    found = info.describe(chunkstore.open_store(str(tmp_path / "s.zarr")))
    assert dict(info.headline(found))["left out"] == "note (string values are not numbers)"


def test_a_dataset_says_what_it_is_without_reading():
    pytest.importorskip("torch")
    windows = chunkstore.ZarrWindowDataset(examples.small_store(), 2, stride=3)
    assert "windows of 2 obs, one every 3, of x in " in repr(windows)


@pytest.mark.parametrize(
    ("n", "told"),
    [
        (1, "'s0'"),
        (3, "'s0', 's1', 's2'"),
        (5, "'s0', 's1', 's2', 's3', 's4'"),
        (6, "'s0', 's1', 's2', 's3', 's4', 's5'"),
        (1234, "'s0', 's1', 's2', ... 1,228 more ..., 's1231', 's1232', 's1233'"),
    ],
)
def test_the_first_and_last_ids_are_shown(n, told):
    with chunkstore.StoreWriter("memory://info-ids", {"x": "f4"}, overwrite=True) as out:
        for i in range(n):
            out.write(f"s{i}", {"x": [1.0]})
    found = info.describe(chunkstore.open_store("memory://info-ids"))
    assert dict(info.headline(found))["ids"] == told

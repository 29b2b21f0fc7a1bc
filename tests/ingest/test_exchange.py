"""Interleaved keys through scratch: equal to an in-memory sort by pandas, however the work is cut."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import chunkstore
import ingest
from chunkstore.errors import IngestError
from ingest.inputs import natural_key

SUPPORT = str(Path(__file__).parent / "support")


@pytest.fixture(autouse=True)
def small_work(monkeypatch):
    """Tiny segments and staging tasks, and the test source within reach."""
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setattr("ingest.plan.SEGMENT", 4000)
    monkeypatch.setattr("ingest.plan.stage_target", lambda total: 5000)
    yield
    for name in ("keyed_source", "trees"):
        sys.modules.pop(name, None)


def run(folder, out, options=None, **how):
    how = {"workers": 0, "chunk": 16, "shard": 64, **how}
    return ingest.ingest("keyed_source:KeyedSource", folder, out, options or {}, **how)


def expected(columns, *, sort, key_order="input"):
    """Sequences as pandas makes them: id -> frame of its rows, in order."""
    frame = pd.DataFrame({k: list(v) if v.ndim == 2 else v for k, v in columns.items()})
    names = [f"dev{k}" for k in frame["key"].drop_duplicates()]
    if key_order == "sorted":
        names.sort(key=natural_key)
    found = {}
    for name in names:
        rows = frame[frame["key"] == int(name[3:])]
        found[name] = rows.sort_values("time", kind="stable") if sort else rows
    return found


def check(store, wanted):
    assert sorted(store.sequences.ids) == sorted(wanted)
    offsets = store.sequences.offsets
    for i, name in enumerate(store.sequences.ids):
        rows = wanted[name]
        a, b = int(offsets[i]), int(offsets[i + 1])
        assert b - a == len(rows)
        for field in ("time", "value", "flag"):
            np.testing.assert_array_equal(store.read(field, a, b), rows[field].to_numpy())
        np.testing.assert_array_equal(
            store.read("pair", a, b), np.array(rows["pair"].tolist()).reshape(-1, 2)
        )
        valid = store.read("count_valid", a, b)
        np.testing.assert_array_equal(valid, rows["count_valid"].to_numpy())
        np.testing.assert_array_equal(store.read("count", a, b), np.where(valid, rows["count"].to_numpy(), 0))


@pytest.mark.parametrize("key_order", ["input", "sorted"])
@pytest.mark.parametrize("order", ["keep", "sort"])
@pytest.mark.parametrize("seed", [0, 1])
def test_mixed_rows_come_out_as_pandas_sorts_them(tmp_path, order, key_order, seed):
    from keyed_source import make_files

    columns = make_files(tmp_path / "in", files=5, rows=300, keys=7, seed=seed)
    result = run(tmp_path / "in", tmp_path / "o.zarr", {"order": order, "key_order": key_order})
    assert result.exit_code == 0
    store = chunkstore.open_store(tmp_path / "o.zarr")
    wanted = expected(columns, sort=order == "sort", key_order=key_order)
    assert list(store.sequences.ids) == list(wanted)
    check(store, wanted)
    assert list(store.sequences.column("home")) == [f"home{int(i[3:]) % 3}" for i in wanted]
    assert list(store.sequences.column("size")) == [int(i[3:]) for i in wanted]
    report = result.report
    assert report["rows"] == {"rows_in": 1500, "stored": 1500, "gap": 0, "quarantined": 0}
    told = [np.diff(rows["time"]) for rows in wanted.values()]
    assert report["times_backward"] == sum((d < 0).sum() for d in told)
    assert report["times_duplicate"] == sum((d == 0).sum() for d in told)


@pytest.mark.parametrize("lost_every", [0, 4])
def test_large_clusters_are_merged_a_shard_at_a_time(tmp_path, monkeypatch, lost_every):
    from keyed_source import make_files
    from trees import tree

    make_files(tmp_path / "in", files=4, rows=300, keys=2, disorder=0.6)
    options = {"order": "sort", "lost_every": lost_every}
    run(tmp_path / "in", tmp_path / "whole.zarr", options)
    monkeypatch.setattr("ingest.assemble.MERGE_WHOLE", 0)
    run(tmp_path / "in", tmp_path / "o.zarr", options)
    assert tree(tmp_path / "o.zarr") == tree(tmp_path / "whole.zarr")


def test_statistics_are_those_of_the_values(tmp_path):
    from keyed_source import make_files

    columns = make_files(tmp_path / "in", files=3, rows=300, keys=3)
    run(tmp_path / "in", tmp_path / "o.zarr")
    statistics = chunkstore.open_store(tmp_path / "o.zarr").statistics
    value = columns["value"]
    assert statistics["value"].count == np.count_nonzero(~np.isnan(value))
    assert statistics["value"].nulls == np.count_nonzero(np.isnan(value))
    assert statistics["value"].mean == pytest.approx(np.nanmean(value))
    assert statistics["value"].std == pytest.approx(np.nanstd(value))
    valid = columns["count"][columns["count_valid"]]
    assert (statistics["count"].min, statistics["count"].max) == (valid.min(), valid.max())
    assert statistics["count"].count == len(valid)


def test_bad_parts_are_counted_and_the_rest_is_stored(tmp_path):
    from keyed_source import make_files

    columns = make_files(tmp_path / "in", files=2, rows=300, keys=3)
    report = tmp_path / "faults.jsonl"
    result = run(tmp_path / "in", tmp_path / "o.zarr", {"bad_every": 3}, report=report)
    assert result.exit_code == 3
    kept = np.concatenate([np.full(50, i % 3 != 1) for i in range(12)])
    check(
        chunkstore.open_store(tmp_path / "o.zarr"),
        expected({k: v[kept] for k, v in columns.items()}, sort=False),
    )
    assert result.report["rows"] == {"rows_in": 600, "stored": 400, "gap": 0, "quarantined": 200}
    assert result.report["faults"] == {"keyed-bad": 4}
    lines = report.read_text().splitlines()
    assert len(lines) == 4
    assert all('"code": "keyed-bad"' in line for line in lines)


@pytest.mark.parametrize("order", ["keep", "sort"])
def test_lost_rows_become_gaps_that_nothing_moves(tmp_path, order):
    from keyed_source import make_files

    columns = make_files(tmp_path / "in", files=2, rows=300, keys=2, disorder=0)
    result = run(tmp_path / "in", tmp_path / "o.zarr", {"lost_every": 4, "order": order, "part_rows": 50})
    assert result.exit_code == 3
    assert result.report["rows"] == {"rows_in": 600, "stored": 591, "gap": 9, "quarantined": 0}
    store = chunkstore.open_store(tmp_path / "o.zarr")
    assert sum(b - a for a, b in store.gaps.tolist()) == 9
    assert store.sequences.column("lost_obs").sum() == 9
    lost = np.concatenate([[r for i in range(12) if i % 4 == 2 for r in range(i * 50 + 1, i * 50 + 4)]])
    gone = np.zeros(store.n_obs, bool)
    for a, b in store.gaps.tolist():
        gone[a:b] = True
    value = store.read("value", 0, store.n_obs)
    assert np.isnan(value[gone]).all()
    alive = np.delete(columns["value"], lost)
    np.testing.assert_array_equal(np.sort(value[~gone]), np.sort(alive))
    assert store.statistics["value"].count + store.statistics["value"].nulls == 591


@pytest.mark.parametrize(
    "cut", [{"max_gap": 50}, {"cut_on": ["flag"]}, {"cut_on": ["flag", "pair"], "max_gap": 9}]
)
def test_cuts_fall_where_the_rule_says(tmp_path, cut):
    from keyed_source import make_files

    columns = make_files(tmp_path / "in", files=3, rows=200, keys=3)
    result = run(tmp_path / "in", tmp_path / "o.zarr", {"order": "sort", **cut})
    wanted = {}
    for name, rows in expected(columns, sort=True).items():
        starts = np.zeros(len(rows), bool)
        if "max_gap" in cut:
            starts[1:] |= np.diff(rows["time"]) > cut["max_gap"]
        for column in cut.get("cut_on", ()):
            values = np.array(rows[column].tolist()).reshape(len(rows), -1)
            starts[1:] |= (values[1:] != values[:-1]).any(axis=1)
        pieces = np.split(np.arange(len(rows)), np.flatnonzero(starts))
        for n, piece in enumerate(p for p in pieces if len(p)):
            wanted[f"{name}#{n}"] = rows.iloc[piece]
    store = chunkstore.open_store(tmp_path / "o.zarr")
    assert list(store.sequences.ids) == list(wanted)
    check(store, wanted)
    assert list(store.sequences.column("size")) == [int(i[3:].split("#")[0]) for i in wanted]
    assert result.report["cuts"] == len(wanted) - 3


def test_times_that_go_back_are_an_error_where_order_is_demanded(tmp_path):
    from keyed_source import make_files

    make_files(tmp_path / "in", files=2, rows=100, keys=2)
    with pytest.raises(IngestError, match="times go back at obs"):
        run(tmp_path / "in", tmp_path / "o.zarr", {"order": "error"})


def test_a_backward_step_between_shards_is_seen_as_well(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    n = 128
    time = np.arange(n)
    time[64:] -= 10
    np.savez(
        folder / "a.npz",
        key=np.zeros(n, int),
        time=time,
        value=np.arange(n, dtype=float),
        pair=np.zeros((n, 2), np.int32),
        count=np.zeros(n, np.int64),
        flag=np.zeros(n, np.int8),
    )
    with pytest.raises(IngestError, match=r"dev0.*obs 64"):
        run(folder, tmp_path / "o.zarr", {"order": "error"})


def test_sorted_inputs_are_never_merged(tmp_path, monkeypatch):
    from keyed_source import make_files

    columns = make_files(tmp_path / "in", files=4, rows=200, keys=3, disorder=0, gap=0)
    monkeypatch.setattr("ingest.assemble.Assembly._name", lambda *_: pytest.fail("merged"))
    run(tmp_path / "in", tmp_path / "o.zarr", {"order": "sort"})
    check(chunkstore.open_store(tmp_path / "o.zarr"), expected(columns, sort=True))


def test_nothing_is_left_in_scratch(tmp_path):
    from keyed_source import make_files

    make_files(tmp_path / "in", files=2, rows=100, keys=2)
    run(tmp_path / "in", tmp_path / "o.zarr", tmp_dir=tmp_path / "tmp")
    assert [p for p in (tmp_path / "tmp").rglob("*") if p.is_file()] == []
    assert not list(tmp_path.glob("*.ledger/scratch"))


def test_empty_inputs_make_an_empty_store(tmp_path):
    from keyed_source import make_files

    make_files(tmp_path / "in", files=2, rows=0, keys=2)
    result = run(tmp_path / "in", tmp_path / "o.zarr")
    store = chunkstore.open_store(tmp_path / "o.zarr")
    assert (result.exit_code, store.n_obs, store.n_sequences) == (0, 0, 0)


def test_sequences_that_the_scan_knows_keep_their_order_and_their_labels(tmp_path):
    for name in "cab":
        np.save(tmp_path / f"{name}.npy", np.array([3.0, 1.0, 2.0]) + ord(name))
    inputs = [tmp_path / f"{name}.npy" for name in "cab"]
    ingest.ingest("keyed_source:SortedNpy", inputs, tmp_path / "o.zarr", {"field": "x"}, workers=0)
    store = chunkstore.open_store(tmp_path / "o.zarr")
    assert list(store.sequences.ids) == ["c", "a", "b"]
    assert list(store.sequences.column("place")) == [0, 1, 2]
    wanted = [ord(name) + i for name in "cab" for i in (1.0, 2.0, 3.0)]
    assert store.read("x", 0, 9).tolist() == wanted


@pytest.mark.parametrize("order", ["keep", "sort"])
def test_a_column_that_only_cuts_may_come_in_wider_numbers_later(tmp_path, order):
    folder = tmp_path / "in"
    folder.mkdir()
    for f, (kind, modes) in enumerate([("int8", [0, 0, 1, 1]), ("int64", [257, 257, 1, 1])]):
        np.savez(
            folder / f"{f}.npz",
            key=np.zeros(4, int),
            time=np.arange(4) + 4 * f,
            value=np.zeros(4),
            pair=np.zeros((4, 2), np.int32),
            count=np.zeros(4, np.int64),
            flag=np.zeros(4, np.int8),
            mode=np.array(modes, kind),
        )
    options = {"order": order, "cut_on": ["mode"], "part_rows": 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingest.plan.stage_target", lambda total: 1)
        run(folder, tmp_path / "o.zarr", options)
    assert chunkstore.open_store(tmp_path / "o.zarr").sequences.rowsize.tolist() == [2, 2, 2, 2]

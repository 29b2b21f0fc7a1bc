"""One store of several holds the rows, labels, gaps and statistics of all."""

from __future__ import annotations

import numpy as np
import pytest

import chunkstore
import ingest
from chunkstore.errors import ConfigError, InputError
from chunkstore.layout import FieldSpec

FIELDS = [FieldSpec("x", "float32"), FieldSpec("n", "int64", nullable=True), FieldSpec("v", "int16", items=2)]


@pytest.fixture
def stores(tmp_path):
    made = []
    number = 0
    for k, sizes in enumerate(((5, 0, 9), (7,), (30, 2))):
        path = tmp_path / f"s{k}.zarr"
        with chunkstore.StoreWriter(path, fields=FIELDS, chunk=4, shard=8, codec="lz4") as out:
            for i, size in enumerate(sizes):
                x = np.arange(number, number + size, dtype=np.float32)
                number += size
                arrays = {"x": x, "n": x.astype(np.int64) * 2, "v": np.stack([x, -x], 1).astype(np.int16)}
                arrays["n_valid"] = x % 3 != 0
                labels = {"kind": ("cat", "dog")[i % 2]} | ({"extra": i} if k == 2 else {})
                out.write(f"{k}-{i}", arrays, labels=labels, gaps=[(1, 3)] if size > 6 else [])
        made.append(path)
    return made


def test_rows_ids_labels_gaps_and_statistics_are_those_of_all(stores, tmp_path):
    told = ingest.merge(stores, tmp_path / "all.zarr", chunk=8, shard=16)
    assert told.endswith("6 sequences, 53 obs from 3 stores")
    store = chunkstore.open_store(tmp_path / "all.zarr")
    assert list(store.sequences.ids) == ["0-0", "0-1", "0-2", "1-0", "2-0", "2-1"]
    assert store.sequences.rowsize.tolist() == [5, 0, 9, 7, 30, 2]
    x = np.arange(53)
    np.testing.assert_array_equal(store.read("x", 0, 53), x)
    valid = store.read("n_valid", 0, 53)
    np.testing.assert_array_equal(valid, x % 3 != 0)
    np.testing.assert_array_equal(store.read("n", 0, 53)[valid], (x * 2)[valid])
    np.testing.assert_array_equal(store.read("v", 0, 53), np.stack([x, -x], 1))
    assert list(store.sequences.column("kind")) == ["cat", "dog", "cat", "cat", "cat", "dog"]
    extra = store.sequences.column("extra")
    assert list(extra) == ["", "", "", "", "0", "1"]
    assert store.sequences.codes("extra").tolist() == [-1, -1, -1, -1, 0, 1]
    assert store.gaps.tolist() == [[6, 8], [15, 17], [22, 24]]
    gone = np.zeros(53, bool)
    for a, b in store.gaps.tolist():
        gone[a:b] = True
    assert store.statistics["x"].max == 52
    assert list(store.sequences.column("store")) == ["s0", "s0", "s0", "s1", "s2", "s2"]


def test_the_same_id_twice_needs_a_prefix(stores, tmp_path):
    with pytest.raises(ConfigError, match=r"'0-0' is in two stores; use --prefix"):
        ingest.merge([stores[0], stores[0]], tmp_path / "all.zarr")
    again = tmp_path / "copy"
    again.mkdir()
    import shutil

    shutil.copytree(stores[0], again / "t.zarr")
    ingest.merge([stores[0], again / "t.zarr"], tmp_path / "all.zarr", prefix=True)
    ids = chunkstore.open_store(tmp_path / "all.zarr").sequences.ids
    assert list(ids)[::3] == ["s0/0-0", "t/0-0"]


def test_other_fields_are_refused_by_name(stores, tmp_path):
    with chunkstore.StoreWriter(tmp_path / "y.zarr", fields={"x": "f8"}) as out:
        out.write("a", {"x": np.arange(3.0)})
    with pytest.raises(ConfigError, match="differ in n, v, x"):
        ingest.merge([stores[0], tmp_path / "y.zarr"], tmp_path / "all.zarr")


def test_nothing_to_merge_and_merging_into_a_part_are_errors(stores, tmp_path):
    with pytest.raises(InputError, match="no stores"):
        ingest.merge([], tmp_path / "all.zarr")
    with pytest.raises(ConfigError, match="one of the stores to merge"):
        ingest.merge(stores, stores[0])


def small(path, fields, **columns):
    """One store of one sequence, named like it, of two obs."""
    about = columns.pop("about", {})
    labels = columns.pop("labels", None)
    with chunkstore.StoreWriter(
        path, fields=fields, overwrite=True, codec=columns.pop("codec", "default")
    ) as out:
        for name, units in about.items():
            out.describe_column(name, units=units)
        data = {f.name: [2, 4] for f in fields}
        out.write(str(path).rsplit("/", 1)[-1], data, columns=columns, labels=labels)
    return path


X = FieldSpec("x", "int16")


@pytest.mark.parametrize("spelling", ["./s0.zarr", "link.zarr", "file://{}/s0.zarr", "s0.zarr/"])
def test_a_store_is_never_merged_onto_itself_however_it_is_spelt(stores, tmp_path, monkeypatch, spelling):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.zarr").symlink_to("s0.zarr")
    with pytest.raises(ConfigError, match="one of the stores to merge"):
        ingest.merge(["s0.zarr", "s1.zarr"], spelling.format(tmp_path), overwrite=True)
    assert chunkstore.verify_store("s0.zarr", deep=True).ok


def test_the_codec_is_that_of_the_first_store(tmp_path):
    parts = [small(tmp_path / "a", [X], codec="zstd:7"), small(tmp_path / "b", [X])]
    ingest.merge(parts, tmp_path / "all")
    assert chunkstore.open_store(tmp_path / "all").attrs["chunkstore"]["codec"] == "zstd:7"


@pytest.mark.parametrize(
    ("one", "other"),
    [({"scale_factor": 0.5}, {"scale_factor": 0.25}), ({}, {"attrs": {"calendar": "noleap"}})],
)
def test_values_that_mean_something_else_are_not_joined(tmp_path, one, other):
    parts = [
        small(tmp_path / name, [FieldSpec("x", "int16", **about)])
        for name, about in (("a", one), ("b", other))
    ]
    with pytest.raises(ConfigError, match="differ in x"):
        ingest.merge(parts, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_sample_rates_that_differ_become_a_column(tmp_path):
    parts = [
        small(tmp_path / str(rate), [FieldSpec("x", "int16", attrs={"sample_rate": rate, "gain": 3})])
        for rate in (8000, 16000)
    ]
    ingest.merge(parts, tmp_path / "all")
    store = chunkstore.open_store(tmp_path / "all")
    assert store.fields["x"].attrs == {"gain": 3}
    assert [store.play(i).rate for i in store.sequences.ids] == [8000, 16000]


def test_columns_keep_their_units_and_every_digit(tmp_path):
    big = 2**60 + 1
    parts = [
        small(tmp_path / "a", [X], height=1.5, number=big, about={"height": "m"}),
        small(tmp_path / "b", [X], height=2.5, about={"height": "m"}),
    ]
    ingest.merge(parts, tmp_path / "all")
    table = chunkstore.open_store(tmp_path / "all").sequences
    assert table.attrs("height")["units"] == "m"
    assert table.column("number").tolist() == [str(big), ""]
    other = small(tmp_path / "c", [X], height=0.1, about={"height": "km"})
    with pytest.raises(ConfigError, match="units 'm', 'km'"):
        ingest.merge([parts[0], other], tmp_path / "more")


def test_stores_of_one_name_are_told_apart_by_their_folders(tmp_path):
    parts = []
    for folder in ("p", "q"):
        (tmp_path / folder).mkdir()
        parts.append(small(tmp_path / folder / "x.zarr", [X]))
    ingest.merge(parts, tmp_path / "all", prefix=True)
    table = chunkstore.open_store(tmp_path / "all").sequences
    assert table.ids.tolist() == ["p/x/x.zarr", "q/x/x.zarr"]
    assert table.column("store").tolist() == ["p/x", "q/x"]
    with pytest.raises(ConfigError, match="given twice"):
        ingest.merge([parts[0], parts[0]], tmp_path / "more", prefix=True)


def test_a_field_may_be_called_store_and_statistics_may_be_missing(tmp_path):
    field = FieldSpec("store", "int16")
    chunkstore.create_store(tmp_path / "b", fields=[field], n_obs=0)
    chunkstore.finish_store(tmp_path / "b", rowsize=[0], ids=["b"])
    ingest.merge([small(tmp_path / "a", [field]), tmp_path / "b"], tmp_path / "all")
    store = chunkstore.open_store(tmp_path / "all")
    assert store.read("store", 0, 2).tolist() == [2, 4]
    assert not store.statistics
    assert not store.sequences.columns


def test_names_that_would_meet_are_found_before_anything_is_removed(tmp_path):
    kept = small(tmp_path / "all", [X])
    parts = [small(tmp_path / "a", [X], kind_code=3), small(tmp_path / "b", [X], labels={"kind": "dog"})]
    with pytest.raises(ConfigError, match="'kind_code' would stand for two arrays"):
        ingest.merge(parts, kept, overwrite=True)
    assert chunkstore.verify_store(kept, deep=True).ok

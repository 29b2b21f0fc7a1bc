"""Datasets become stores with the numbers that their files hold, and come back as they were."""

from __future__ import annotations

import itertools
import logging
import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from chunkstore import ConfigError, FieldSpec, StoreWriter, from_xarray, open_store, verify_store

_names = itertools.count()


def place():
    return f"memory://convert-{next(_names)}"


def on_disk(tmp_path, dataset, **encoding):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # xarray advises a fill value; files without one are the case here
        dataset.to_zarr(tmp_path / "foreign.zarr", encoding=encoding, consolidated=False)
    return xr.open_zarr(tmp_path / "foreign.zarr", consolidated=False)


def test_scaled_integers_stay_integers(tmp_path):
    # 0.0 to 0.4 in steps of a tenth: 0, 1, 2 ... in the file
    dataset = xr.Dataset({"p": ("time", np.arange(5) * 0.1, {"units": "hPa"})})
    found = on_disk(tmp_path, dataset, p={"dtype": "int16", "scale_factor": 0.1})
    store = from_xarray(found, place(), obs="time", chunk=2, shard=4)
    spec = store.fields["p"]
    assert (spec.dtype, spec.scale_factor, spec.units, spec.nullable) == ("int16", 0.1, "hPa", False)
    assert store.read("p", 0, 5).tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(store.to_xarray().p.values, found.p.values)


def test_what_a_fill_value_stands_for_becomes_a_mask(tmp_path):
    dataset = xr.Dataset({"p": ("time", np.array([1.0, np.nan, 2.5]))})
    found = on_disk(tmp_path, dataset, p={"dtype": "int16", "scale_factor": 0.5, "_FillValue": -999})
    store = from_xarray(found, place(), obs="time")
    assert store.read("p", 0, 3).tolist() == [2, 0, 5]
    assert store.read("p_valid", 0, 3).tolist() == [True, False, True]
    assert (store.statistics["p"].count, store.statistics["p"].nulls) == (2, 1)
    raw = xr.open_zarr(tmp_path / "foreign.zarr", consolidated=False, mask_and_scale=False)
    again = from_xarray(raw, place(), obs="time")
    assert again.fields["p"] == store.fields["p"]
    assert again.read("p", 0, 3).tolist() == [2, 0, 5]


def test_an_offset_and_vectors_with_holes_are_stored_as_floats(tmp_path):
    dataset = xr.Dataset(
        {
            "t": ("time", np.array([273.0, 274.5])),
            "v": (("time", "uv"), np.array([[1.0, np.nan], [2.0, 3.0]])),
        }
    )
    found = on_disk(
        tmp_path,
        dataset,
        t={"dtype": "int16", "scale_factor": 0.5, "add_offset": 273.0},
        v={"dtype": "int16", "_FillValue": -1},
    )
    store = from_xarray(found, place(), obs="time")
    assert store.read("t", 0, 2).tolist() == [273.0, 274.5]
    assert np.array_equal(store.read("v", 0, 2), dataset.v.values, equal_nan=True)


def test_floats_that_their_encoding_cannot_hold_are_refused():
    dataset = xr.Dataset({"p": ("time", np.array([0.5, 0.7]))})
    dataset.p.encoding = {"dtype": "int16", "scale_factor": 0.5}
    with pytest.raises(ConfigError, match=r"'p' holds .*0.7.*drop_encoding"):
        from_xarray(dataset, place(), obs="time")
    store = from_xarray(dataset.drop_encoding(), place(), obs="time")
    assert store.read("p", 0, 2).tolist() == [0.5, 0.7]
    dataset["p"][1] = 1e9  # 2e9 halves are more than int16 has
    with pytest.raises(ConfigError, match="drop_encoding"):
        from_xarray(dataset, place(), obs="time")


def test_instants_keep_their_unit_where_it_fits_them(tmp_path):
    hours = pd.date_range("2020-01-01", periods=3, freq="h")
    dataset = xr.Dataset({"x": ("time", np.zeros(3))}, coords={"time": hours})
    store = from_xarray(on_disk(tmp_path, dataset), place(), obs="time")
    assert store.fields["time"].units.startswith("hours since 2020-01-01")
    assert store.read("time", 0, 3).tolist() == [0, 1, 2]
    assert np.array_equal(store.sequence("0").time.values, hours.values)
    finer = dataset.assign_coords(time=hours + pd.Timedelta("1ns"))
    finer.time.encoding = {"units": "hours since 2020-01-01", "dtype": "int64"}
    store = from_xarray(finer, place(), obs="time")
    assert store.fields["time"].units == "nanoseconds since 1970-01-01"
    assert np.array_equal(store.sequence("0").time.values, finer.time.values)
    holed = dataset.assign_coords(time=hours.where(hours != hours[1]))
    store = from_xarray(holed, place(), obs="time")
    assert store.read("time_valid", 0, 3).tolist() == [True, False, True]


def test_a_store_comes_back_as_itself_through_xarray(tmp_path):
    fields = [
        FieldSpec("audio", "int16", scale_factor=1 / 32768, attrs={"sample_rate": 8000}),
        FieldSpec("steps", "int32", nullable=True),
        FieldSpec("level", "int16", scale_factor=0.01, nullable=True),
        FieldSpec("state", "uint8", categories=("on", "off now")),
        FieldSpec("time", "int64", units="milliseconds since 1970-01-01"),
        FieldSpec("acc", "float32", items=3, units="m s-2"),
    ]
    rng = np.random.default_rng(1)
    with StoreWriter(tmp_path / "a", fields, chunk=4, shard=8, attrs={"title": "walks"}) as out:
        out.describe_column("height", units="m", long_name="height of the person")
        for i, (word, n) in enumerate([("", 5), (None, 0), ("dog", 9), ("日本", 3)]):
            out.write(
                f"s{i}",
                {
                    "audio": rng.integers(-(2**15), 2**15, n),
                    "steps": np.ma.array(np.arange(n), mask=np.arange(n) == 1),
                    "level": np.ma.array(np.arange(n), mask=np.arange(n) == 2),
                    "state": ["off now"] * n,
                    "time": np.arange(n) * 250,
                    "acc": rng.normal(size=(n, 3)),
                },
                labels={"kind": word},
                columns={"height": 1.5 + i},
                gaps=[(1, 2), (3, 4)] if n > 3 else [],
            )
    first = open_store(tmp_path / "a")
    for dataset in (first.to_xarray(), xr.open_zarr(tmp_path / "a")):
        second = from_xarray(dataset, place(), chunk=4, shard=8, block=3)
        assert dict(second.fields) == dict(first.fields)
        for name in (*first.fields, *first.masks.values()):
            assert np.array_equal(second.read(name, 0, 17), first.read(name, 0, 17)), name
        assert np.array_equal(second.gaps, first.gaps)
        assert second.statistics == first.statistics
        assert second.sequences.rowsize.tolist() == [5, 0, 9, 3]
        assert second.sequences.codes("kind").tolist() == [0, -1, 1, 2]
        assert second.sequences.categories("kind") == ("", "dog", "日本")
        assert second.sequences.attrs("height") == {"units": "m", "long_name": "height of the person"}
        assert second.attrs["title"] == "walks"
        assert verify_store(second.url, deep=True).findings == []


def test_what_is_known_of_each_sequence_keeps_its_meaning():
    dataset = xr.Dataset(
        {
            "x": (("person", "obs"), np.zeros((3, 4))),
            "kind": ("person", np.array(["a", None, np.nan], dtype=object)),
            "raw": ("person", np.array([b"x", b"y", b"z"])),
            "born": ("person", np.array(["1970-01-02", "NaT", "2000-01-01"], "M8[s]")),
            "age": ("person", [1, 2, 3], {"units": "years"}),
        },
        coords={"person": ["p", "q", "r"]},
    )
    table = from_xarray(dataset, place(), sequence="person").sequences
    assert table.codes("kind").tolist() == [0, -1, -1]
    assert table.column("raw").tolist() == ["x", "y", "z"]
    assert table.column("born").tolist() == ["1970-01-02T00:00:00Z", "", "2000-01-01T00:00:00Z"]
    assert (table.column("age").tolist(), table.attrs("age")) == ([1, 2, 3], {"units": "years"})
    assert table.ids.tolist() == ["p", "q", "r"]


def test_one_sequence_keeps_its_scalars(tmp_path):
    with StoreWriter(tmp_path / "a", {"x": "f4"}) as out:
        out.write("walk", {"x": [1, 2]}, labels={"kind": "dog"}, columns={"rate": 50.0})
    one = from_xarray(open_store(tmp_path / "a").sequence("walk"), place())
    assert one.sequences.ids.tolist() == ["walk"]
    assert one.sequences.column("rate").tolist() == [50.0]
    assert one.sequences.categories("kind") == ("dog",)


def test_codes_with_cf_flags_become_categories():
    flags = {"flag_values": np.array([0, 1], "i1"), "flag_meanings": "idle walk"}
    other = {"flag_values": np.array([1, 2], "i1"), "flag_meanings": "idle walk"}
    codes = np.array([0, 1, 1], "i1")
    dataset = xr.Dataset({"a": ("obs", codes, flags), "b": ("obs", codes, other)})
    store = from_xarray(dataset, place())
    assert store.fields["a"].categories == ("idle", "walk")
    assert store.fields["b"].categories is None
    assert store.to_xarray().b.attrs["flag_meanings"] == "idle walk"


def test_what_is_left_out_is_said(caplog):
    dataset = xr.Dataset({"x": ("obs", np.zeros(3))}, coords={"station": ("where", [1, 2]), "height": 3.0})
    with caplog.at_level(logging.WARNING):
        store = from_xarray(dataset, place(), obs="obs")
    assert "station" in caplog.text
    assert "height" not in caplog.text
    assert store.sequences.column("height").tolist() == [3.0]


def test_a_time_beside_the_coordinate_of_obs_keeps_its_name():
    dataset = xr.Dataset(
        {"time": ("obs", np.array([5, 6], "M8[s]")), "x": ("obs", [1.0, 2.0])}, coords={"obs": [10, 20]}
    )
    store = from_xarray(dataset, place())
    assert store.read("time", 0, 2).tolist() == [5, 6]
    assert store.read("obs_coordinate", 0, 2).tolist() == [10, 20]


def test_a_block_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="block"):
        from_xarray(xr.Dataset({"x": ("obs", [1.0])}), place(), block=0)


def test_of_two_variables_that_could_name_sequences_the_other_stays_a_column():
    values = ("station", np.array(["a", "b"], object))
    for first in ({"id": values, "station": [10, 20]}, {"station": [10, 20], "id": values}):
        ds = xr.Dataset({"x": (("station", "time"), np.zeros((2, 3)))}, coords=first)
        store = from_xarray(ds, place(), sequence="station", obs="time")
        assert store.sequences.ids.tolist() == ["a", "b"]
        assert store.sequences.column("station").tolist() == [10, 20]


def test_vectors_without_items_and_negative_lengths_are_refused():
    with pytest.raises(ConfigError, match="no items along 'k'"):
        from_xarray(xr.Dataset({"x": (("obs", "k"), np.zeros((3, 0)))}), place())
    lengths = ("s", np.array([5, -2]), {"sample_dimension": "obs"})
    with pytest.raises(ConfigError, match="length of sequence 1 is -2"):
        from_xarray(xr.Dataset({"x": ("obs", np.arange(3.0)), "n": lengths}), place())


def test_the_value_that_does_not_fit_its_encoding_is_named():
    packed = xr.Variable("obs", np.array([1.0, 1e9]), encoding={"dtype": "int16", "scale_factor": 1.0})
    with pytest.raises(ConfigError, match=r"1000000000\.0"):
        from_xarray(xr.Dataset({"x": packed}), place(), obs="obs")


@pytest.mark.parametrize(
    "index",
    [5, -1, np.int64(3), slice(None, None, -1), slice(18, 2, -3), slice(3, 3), slice(0, 20, 7), [1, 15]],
)
def test_a_view_is_indexed_like_any_array(index):
    url = place()
    with StoreWriter(url, {"x": "i4", "v": "2i4"}, chunk=4, shard=8) as out:
        out.write("a", {"x": np.arange(20), "v": np.arange(40).reshape(20, 2)})
    found = open_store(url).to_xarray()
    assert np.array_equal(found.x[index].values, np.arange(20)[index])
    assert np.array_equal(found.v[index].values, np.arange(40).reshape(20, 2)[index])
    assert np.array_equal(found.v[index, 1].values, np.arange(40).reshape(20, 2)[index, 1])


def test_a_dataset_that_still_reads_a_store_never_replaces_it(tmp_path, monkeypatch):
    url = tmp_path / "a.zarr"
    with StoreWriter(url, fields={"x": "f4"}) as out:
        out.write("a", {"x": np.arange(8)})
    (tmp_path / "link").symlink_to(url)
    monkeypatch.chdir(tmp_path)

    def plainly(path, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return xr.open_zarr(path, consolidated=False, **options)

    bare = plainly(url)
    bare.encoding.clear()
    datasets = [
        open_store(url).to_xarray(),
        open_store("link").to_xarray().isel(obs=slice(0, 4)) * 2,
        plainly(url),
        plainly(url, chunks=None),
        plainly("link/"),
        bare,
        plainly(tmp_path, group="a.zarr"),
        xr.apply_ufunc(lambda x: x + 1, bare, dask="parallelized", output_dtypes=["f4"], keep_attrs=True),
    ]
    before = sorted((p, p.read_bytes()) for p in url.rglob("*") if p.is_file())
    for dataset in datasets:
        for place_ in (url, "a.zarr/", "link", f"{tmp_path}/b/../a.zarr", url.as_uri()):
            with pytest.raises(ConfigError, match="has still to read"):
                from_xarray(dataset, place_, obs="obs", overwrite=True)
    assert sorted((p, p.read_bytes()) for p in url.rglob("*") if p.is_file()) == before
    other = from_xarray(datasets[0], tmp_path / "other.zarr", overwrite=True)
    assert other.read("x", 0, 8).tolist() == list(range(8))
    assert from_xarray(datasets[3].load(), url, overwrite=True).read("x", 0, 8).tolist() == list(range(8))


def test_a_dataset_never_replaces_the_store_in_memory_that_it_reads():
    url = place()
    with StoreWriter(url, fields={"x": "f4"}) as out:
        out.write("a", {"x": np.arange(8)})
    with pytest.raises(ConfigError, match="has still to read"):
        from_xarray(open_store(url).to_xarray(), url + "/", overwrite=True)
    assert open_store(url).read("x", 0, 8).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("dtype", "value"), [("int64", 2.0**63), ("uint64", 2.0**64), ("int16", 32768.0), ("int16", np.inf)]
)
def test_a_float_just_past_its_stored_integers_is_refused(tmp_path, dtype, value):
    dataset = xr.Dataset({"x": ("obs", np.array([1.0, value]))})
    dataset["x"].encoding = {"dtype": dtype, "scale_factor": 1.0}
    with pytest.raises(ConfigError, match=f"which is no {dtype}"):
        from_xarray(dataset, tmp_path / "s.zarr")


def test_the_least_stored_integer_comes_back(tmp_path):
    dataset = xr.Dataset({"x": ("obs", np.array([1.0, -(2.0**63)]))})
    dataset["x"].encoding = {"dtype": "int64", "scale_factor": 1.0}
    assert from_xarray(dataset, tmp_path / "s.zarr").read("x", 0, 2).tolist() == [1, -(2**63)]


def test_names_alone_make_no_codes_of_a_foreign_variable(caplog):
    """A place without a country code is not a place without a country, and its zip code is kept."""
    dataset = xr.Dataset(
        {
            "x": (("site", "time"), np.zeros((2, 4))),
            "zip": ("site", [1, 2]),
            "zip_code": ("site", [8001, 8002]),
            "country": ("site", np.array(["ch", "de"], object)),
            "rowsize": ("site", [7, 7]),
        }
    )
    store = from_xarray(dataset, place(), obs="time", sequence="site")
    assert store.sequences.column("zip_code").tolist() == [8001, 8002]
    assert "rowsize; rename it" in caplog.text
    dataset["country_code"] = ("site", [-1, 49])
    with pytest.raises(ConfigError, match="'country_code' cannot stand beside the label"):
        from_xarray(dataset, place(), obs="time", sequence="site")

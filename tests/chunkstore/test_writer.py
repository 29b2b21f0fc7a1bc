"""Appending sequences: what is taken, what is refused, and what a failure leaves."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import chunkstore
from chunkstore import (
    ColumnData,
    ConfigError,
    FieldSpec,
    FieldStatistics,
    IncompleteStoreError,
    StoreExistsError,
    StoreWriter,
    UnknownNameError,
    create_store,
    finish_store,
    from_xarray,
    open_skeleton,
    open_store,
    verify_store,
)


def test_an_exception_inside_leaves_a_store_that_readers_refuse(tmp_path):
    def write():
        with StoreWriter(tmp_path / "a.zarr", {"x": "f4"}) as out:
            out.write("a", {"x": [1, 2]})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    with pytest.raises(IncompleteStoreError, match="incomplete"):
        open_store(tmp_path / "a.zarr")


def test_an_existing_output_is_refused_and_replaced_only_where_it_is_a_store(tmp_path):
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4"}) as out:
        out.write("a", {"x": [1]})
    with pytest.raises(StoreExistsError, match="overwrite"):
        StoreWriter(tmp_path / "a.zarr", {"x": "f4"})
    with StoreWriter(tmp_path / "a.zarr", {"y": "i2"}, overwrite=True) as out:
        out.write("b", {"y": [5]})
    assert list(open_store(tmp_path / "a.zarr").fields) == ["y"]
    assert verify_store(tmp_path / "a.zarr", deep=True).ok
    precious = tmp_path / "home"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years")
    with pytest.raises(StoreExistsError, match="not a store"):
        StoreWriter(precious, {"x": "f4"}, overwrite=True)
    assert (precious / "thesis.txt").read_text() == "years"


def test_a_creation_that_was_broken_off_is_made_again(tmp_path):
    field = FieldSpec("x", "f4")
    create_store(tmp_path / "a.zarr", fields=[field], n_obs=4)
    with pytest.raises(StoreExistsError):
        create_store(tmp_path / "a.zarr", fields=[field], n_obs=4)
    (tmp_path / "a.zarr/x/zarr.json").unlink()
    create_store(tmp_path / "a.zarr", fields=[field], n_obs=4)
    finish_store(tmp_path / "a.zarr", rowsize=[4], ids=["a"])
    with StoreWriter(tmp_path / "a.zarr", {"y": "f4"}, overwrite=True) as out:
        out.write("b", {"y": [1]})
    assert not (tmp_path / "a.zarr/x").exists()


@pytest.mark.parametrize(
    "attrs", [{"_FillValue": 0.0}, {"a": float("nan")}, {"a": object()}, {"scale_factor": 2}]
)
def test_attributes_that_would_break_other_readers_are_refused_before_anything_is_there(tmp_path, attrs):
    with pytest.raises(ConfigError, match="attributes"):
        StoreWriter(tmp_path / "a.zarr", [FieldSpec("x", "f4", attrs=attrs)])
    assert not (tmp_path / "a.zarr").exists()


def test_nullable_integers_keep_every_digit_and_their_nulls(tmp_path):
    big = 2**60 + 1
    field = FieldSpec("n", "int64", nullable=True)
    with StoreWriter(tmp_path / "a.zarr", [field]) as out:
        out.write("masked", {"n": np.ma.masked_array([big, 7, 3], mask=[False, True, False])})
        out.write("mask beside", {"n": [1, big], "n_valid": [False, True]})
        out.write("no nulls", {"n": [4]})
    store = open_store(tmp_path / "a.zarr")
    assert store.fields["n"].nullable
    assert store.masks == {"n": "n_valid"}
    assert store.read("n_valid", 0, 6).tolist() == [True, False, True, False, True, True]
    assert store.read("n", 0, 6).tolist() == [big, 0, 3, 0, big, 4]
    stats = store.statistics["n"]
    assert (stats.count, stats.nulls, stats.min, stats.max) == (4, 2, 3, big)
    assert store.to_xarray().n.attrs["ancillary_variables"] == "n_valid"


def test_words_of_a_field_become_codes(tmp_path):
    field = FieldSpec("state", "uint8", categories=("idle", "walk", "run"))
    with StoreWriter(tmp_path / "a.zarr", [field]) as out:
        out.write("a", {"state": ["run", "idle", "walk"]})
        with pytest.raises(ConfigError, match="no category 'fly'"):
            out.write("b", {"state": ["fly"]})
    store = open_store(tmp_path / "a.zarr")
    assert store.read("state", 0, 3).tolist() == [2, 0, 1]
    assert store.fields["state"].categories == ("idle", "walk", "run")
    attrs = xr.open_zarr(tmp_path / "a.zarr").state.attrs
    assert attrs["flag_meanings"] == "idle walk run"


def test_labels_columns_and_gaps_stand_along_their_axes(tmp_path):
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4"}, chunk=4, shard=8, attrs={"title": "t"}) as out:
        out.write(
            "a",
            {"x": np.arange(10)},
            labels={"kind": "dog"},
            columns={"rate": 100, "file": "a.npy"},
            gaps=[(2, 4)],
        )
        out.write("b", {"x": np.arange(5)}, columns={"rate": 200})
        out.write(
            "c",
            {"x": np.arange(5)},
            labels={"kind": "cat"},
            columns={"rate": 100, "file": "c.npy"},
            gaps=[(0, 5)],
        )
    store = open_store(tmp_path / "a.zarr")
    table = store.sequences
    assert table.columns == ("kind", "rate", "file")
    assert table.column("kind").tolist() == ["dog", "", "cat"]
    assert table.codes("kind").tolist() == [1, -1, 0]
    assert table.categories("kind") == ("cat", "dog")
    assert table.column("rate").tolist() == [100, 200, 100]
    assert store.gaps.tolist() == [[2, 4], [15, 20]]
    segments = store.segments()
    assert list(zip(segments.sequence, segments.start, segments.stop, strict=True)) == [
        (0, 0, 2),
        (0, 4, 10),
        (1, 10, 15),
    ]
    assert store.statistics["x"].count == 13
    assert store.attrs["title"] == "t"
    frame = table.to_pandas()
    assert frame.loc["c", "start"] == 15
    assert frame.kind.isna().tolist() == [False, True, False]
    assert table.to_xarray().rate.values.tolist() == [100, 200, 100]


REFUSED = {
    "a field is missing": (UnknownNameError, {"x": [1]}, {}),
    "a field is unknown": (UnknownNameError, {"x": [1], "v": [[1, 2]], "z": [1]}, {}),
    "lengths differ": (ConfigError, {"x": [1, 2], "v": [[1, 2]]}, {}),
    "items differ": (ConfigError, {"x": [1], "v": [[1, 2, 3]]}, {}),
    "a scalar": (ConfigError, {"x": 1, "v": [[1, 2]]}, {}),
    "text for numbers": (ConfigError, {"x": ["a"], "v": [[1, 2]]}, {}),
    "complex for floats": (ConfigError, {"x": [1j], "v": [[1, 2]]}, {}),
    "floats for integers": (ConfigError, {"x": [1], "v": [[1.5, 2]]}, {}),
    "integers that do not fit": (ConfigError, {"x": [1], "v": [[1, 40000]]}, {}),
    "a gap beyond the end": (ConfigError, {"x": [1], "v": [[1, 2]]}, {"gaps": [(0, 2)]}),
    "gaps that overlap": (ConfigError, {"x": [1, 2], "v": [[1, 2]] * 2}, {"gaps": [(0, 2), (1, 2)]}),
    "a label named like a field": (ConfigError, {"x": [1], "v": [[1, 2]]}, {"labels": {"x": "a"}}),
    "a label named like nothing good": (ConfigError, {"x": [1], "v": [[1, 2]]}, {"labels": {"../k": "a"}}),
    "a label that is a list": (ConfigError, {"x": [1], "v": [[1, 2]]}, {"labels": {"k": ["a"]}}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_the_writer_goes_on(case):
    error, data, more = REFUSED[case]
    url = "memory://refused"
    with StoreWriter(url, {"x": "f4", "v": "2i2"}, overwrite=True) as out:
        out.write("good", {"x": [1], "v": [[1, 2]]})
        with pytest.raises(error, match="bad"):
            out.write("bad", data, **more)
        out.write("also good", {"x": [2], "v": [[3, 4]]})
    store = open_store(url)
    assert store.sequences.ids.tolist() == ["good", "also good"]
    assert store.read("v", 0, 2).tolist() == [[1, 2], [3, 4]]
    assert store.sequences.columns == ()


def test_an_id_names_one_sequence():
    with StoreWriter("memory://twice", {"x": "f4"}, overwrite=True) as out:
        out.write("a", {"x": [1]})
        with pytest.raises(ConfigError, match="once"):
            out.write("a", {"x": [1]})


@pytest.mark.parametrize("codec", ["gzip", "zstd:99", "none:3", "blosc-snappy", "", 7])
def test_a_codec_that_the_fast_path_cannot_read_is_refused_at_creation(codec, tmp_path):
    with pytest.raises(ConfigError, match="codec"):
        StoreWriter(tmp_path / "a.zarr", {"x": "f4"}, codec=codec)
    assert not (tmp_path / "a.zarr").exists()


@pytest.mark.parametrize(("chunk", "shard"), [(0, 4), (3, 4), (8, 4), (-1, 4), ("x", 4)])
def test_lengths_that_do_not_fit_are_refused(chunk, shard):
    with pytest.raises(ConfigError):
        StoreWriter("memory://lengths", {"x": "f4"}, chunk=chunk, shard=shard, overwrite=True)


def test_chunks_and_shards_are_given_in_bytes_or_obs(tmp_path):
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4", "v": "4f4"}, chunk="1KiB", shard="64KiB") as out:
        out.write("a", {"x": [1], "v": [[1, 2, 3, 4]]})
    assert (out.layout.chunk, out.layout.shard) == (64, 4096)


def test_many_fields_keep_the_buffers_within_the_memory_limit():
    fields = {f"f{i}": "f8" for i in range(100)}
    out = StoreWriter("memory://wide", fields, memory_limit="64MiB", overwrite=True)
    assert out.layout.shard * 800 <= 32 * 2**20


def test_a_memmap_larger_than_a_block_streams_through(tmp_path):
    values = np.arange(700_000, dtype="f4").reshape(-1, 2)
    np.save(tmp_path / "a.npy", values)
    with StoreWriter(tmp_path / "a.zarr", {"x": "2f4"}) as out:
        out.write("a", {"x": np.load(tmp_path / "a.npy", mmap_mode="r")})
    assert np.array_equal(open_store(tmp_path / "a.zarr").read("x", 0, 350_000), values)


def test_shards_written_by_many_in_any_order_and_twice_are_the_same_bytes(tmp_path):
    rng = np.random.default_rng(3)
    values = rng.normal(size=(1000, 2)).astype("f4")
    field = FieldSpec("x", "float32", items=2, units="m")

    def make(name, order):
        url = tmp_path / name
        create_store(url, fields=[field], n_obs=1000, chunk=32, shard=128)
        receipts = {}
        for shard in order:
            receipts[shard] = open_skeleton(url).write_shard(
                "x", shard, values[shard * 128 : (shard + 1) * 128]
            )
        for shard, receipt in receipts.items():
            assert open_skeleton(url).shard_checksum("x", shard) == (receipt.nbytes, receipt.checksum)
        finish_store(
            url,
            rowsize=[400, 600],
            ids=["a", "b"],
            columns={"k": ColumnData("k", ["x", "y"], categorical=True)},
        )
        return {p.relative_to(url): p.read_bytes() for p in url.rglob("*") if p.is_file()}

    assert make("a.zarr", range(8)) == make("b.zarr", [7, 3, 3, 0, 1, 2, 6, 5, 4, 0])
    assert verify_store(tmp_path / "b.zarr", deep=True).ok


def test_a_shard_is_written_whole_or_not_at_all(tmp_path):
    skeleton = create_store(tmp_path / "a.zarr", fields=[FieldSpec("x", "f4")], n_obs=10, chunk=2, shard=4)
    with pytest.raises(ConfigError, match="written whole"):
        skeleton.write_shard("x", 0, np.zeros(3, "f4"))
    with pytest.raises(ConfigError, match="written whole"):
        skeleton.write_shard("x", 0, np.zeros(4, "f8"))
    with pytest.raises(ConfigError, match="no shard 3"):
        skeleton.write_shard("x", 3, np.zeros(4, "f4"))
    skeleton.write_shard("x", 2, np.ones(2, "f4"))
    assert skeleton.write_shard("x", 1, np.full(4, np.nan, "f4")).checksum is None


def test_a_shard_that_becomes_all_fill_is_removed(tmp_path):
    skeleton = create_store(tmp_path / "a.zarr", fields=[FieldSpec("x", "i4")], n_obs=4, chunk=2, shard=4)
    skeleton.write_shard("x", 0, np.ones(4, "i4"))
    skeleton.write_shard("x", 0, np.zeros(4, "i4"))
    assert skeleton.shard_checksum("x", 0) is None


FINISHES = {
    "rowsize that does not sum": {"rowsize": [3, 3], "ids": ["a", "b"]},
    "a negative length": {"rowsize": [12, -2], "ids": ["a", "b"]},
    "too few ids": {"rowsize": [5, 5], "ids": ["a"]},
    "an id twice": {"rowsize": [5, 5], "ids": ["a", "a"]},
    "a gap beyond obs": {"rowsize": [10], "ids": ["a"], "gaps": [(5, 11)]},
    "a column of another length": {"rowsize": [10], "ids": ["a"], "columns": {"k": ColumnData("k", [])}},
    "a column named like a field": {"rowsize": [10], "ids": ["a"], "columns": {"x": ColumnData("x", ["v"])}},
    "a shard that the ledger knows and is gone": {"rowsize": [10], "ids": ["a"], "stored": {"x": [0, 1]}},
    "an attribute of the format's": {"rowsize": [10], "ids": ["a"], "attrs": {"chunkstore": 1}},
    "an attribute that is no JSON": {"rowsize": [10], "ids": ["a"], "attrs": {"a": object()}},
}


@pytest.mark.parametrize("case", FINISHES)
def test_a_store_that_does_not_fit_together_is_not_finished(case, tmp_path):
    skeleton = create_store(tmp_path / "a.zarr", fields=[FieldSpec("x", "i4")], n_obs=10, chunk=2, shard=4)
    skeleton.write_shard("x", 0, np.ones(4, "i4"))
    with pytest.raises(ConfigError):
        finish_store(tmp_path / "a.zarr", **FINISHES[case])
    with pytest.raises(IncompleteStoreError):
        open_store(tmp_path / "a.zarr")
    finish_store(tmp_path / "a.zarr", rowsize=[10], ids=["a"])
    assert open_store(tmp_path / "a.zarr").n_obs == 10


def test_a_finished_store_is_not_written_again(tmp_path):
    create_store(tmp_path / "a.zarr", fields=[FieldSpec("x", "i4")], n_obs=2)
    finish_store(tmp_path / "a.zarr", rowsize=[2], ids=["a"])
    with pytest.raises(ConfigError, match="complete"):
        open_skeleton(tmp_path / "a.zarr").write_shard("x", 0, np.zeros(2, "i4"))
    with pytest.raises(ConfigError, match="already complete"):
        finish_store(tmp_path / "a.zarr", rowsize=[2], ids=["a"])


def test_leftovers_of_killed_writers_are_gone_in_the_end(tmp_path):
    skeleton = create_store(tmp_path / "a.zarr", fields=[FieldSpec("x", "i4")], n_obs=2)
    left = tmp_path / "a.zarr/.partial/x/c/0~123-456"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    skeleton.write_shard("x", 0, np.ones(2, "i4"))
    assert not left.exists()
    finish_store(tmp_path / "a.zarr", rowsize=[2], ids=["a"])
    assert not (tmp_path / "a.zarr/.partial").exists()


def test_a_dataset_with_datetimes_and_two_dimensions_becomes_a_store(tmp_path):
    time = np.datetime64("2024-01-01") + np.arange(100) * np.timedelta64(20, "ms")
    ds = xr.Dataset(
        {
            "acc": (("person", "time", "axis"), np.arange(600.0).reshape(2, 100, 3)),
            "on": (("person", "time"), np.arange(200).reshape(2, 100) % 2 == 0),
        },
        coords={
            "time": time,
            "person": ["ann", "bob"],
            "group": ("person", ["g", "h"]),
            "age": ("person", [30, 40]),
        },
    )
    store = from_xarray(ds, tmp_path / "a.zarr", obs="time", sequence="person", block=32)
    assert store.sequences.ids.tolist() == ["ann", "bob"]
    assert store.sequences.column("group").tolist() == ["g", "h"]
    assert store.sequences.column("age").tolist() == [30, 40]
    one = store.sequence("bob")
    assert np.array_equal(one.acc.values, ds.acc.sel(person="bob").values)
    assert (one.time.values == time).all()


def test_our_own_view_becomes_the_same_store_again(tmp_path):
    with StoreWriter(tmp_path / "a.zarr", {"x": "f4"}, chunk=8, shard=16) as out:
        out.write("a", {"x": np.arange(30)}, labels={"kind": "dog"})
        out.write("b", {"x": np.arange(5)}, labels={"kind": "cat"})
    first = open_store(tmp_path / "a.zarr")
    second = chunkstore.from_xarray(first.to_xarray(), tmp_path / "b.zarr", chunk=8, shard=16)
    assert second.fingerprint == first.fingerprint
    assert second.sequences.categories("kind") == ("cat", "dog")
    assert np.array_equal(second.read("x", 0, 35), first.read("x", 0, 35))


def test_texts_of_any_size_stay_within_what_a_reader_takes(tmp_path):
    ids = [f"{i}-" + "x" * 100_000 for i in range(700)]
    create_store(tmp_path / "a.zarr", fields=[FieldSpec("x", "f4")], n_obs=0)
    finish_store(tmp_path / "a.zarr", rowsize=[0] * 700, ids=ids)
    store = open_store(tmp_path / "a.zarr")
    assert store.sequences.ids.tolist() == ids
    assert store._root.arrays["id"].n_objects > 1


def test_a_label_and_a_column_never_share_a_name():
    with StoreWriter("memory://writer-shared", {"x": "f4"}, overwrite=True) as out:
        with pytest.raises(ConfigError, match="'kind' is taken"):
            out.write("a", {"x": [1]}, labels={"kind": "dog"}, columns={"kind": 3})
        out.write("a", {"x": [1]}, labels={"kind": "dog"})
    assert open_store("memory://writer-shared").sequences.column("kind").tolist() == ["dog"]


def test_fields_come_as_any_mapping_or_iterable():
    with StoreWriter("memory://writer-one", {"x": "f4", "v": "3i2"}, overwrite=True) as out:
        out.write("a", {"x": [1], "v": [[1, 2, 3]]})
    fields = open_store("memory://writer-one").fields
    with StoreWriter("memory://writer-same", fields, overwrite=True) as out:
        assert dict(out.fields) == dict(fields)
    with StoreWriter("memory://writer-same", (f for f in fields.values()), overwrite=True) as out:
        assert dict(out.fields) == dict(fields)


@pytest.mark.parametrize(
    "numbers", [(5, 2**63 + 1), (np.int64(5), np.uint64(2**63 + 1)), (0, 2**64 - 1), (np.int8(1), 2**62 + 1)]
)
def test_whole_numbers_of_a_column_keep_every_digit(numbers):
    with StoreWriter("memory://writer-digits", {"x": "f4"}, overwrite=True) as out:
        for i, number in enumerate(numbers):
            out.write(str(i), {"x": [1]}, columns={"n": number})
    assert [int(v) for v in open_store("memory://writer-digits").sequences.column("n")] == list(
        map(int, numbers)
    )


@pytest.mark.parametrize("field", ["f4", np.dtype(("f4", (3,)))])
def test_obs_without_items_are_refused_and_not_taken_for_no_obs(field):
    with StoreWriter("memory://writer-none", {"x": field}, overwrite=True) as out:
        with pytest.raises(ConfigError, match=r"has shape \(3, 0\)"):
            out.write("a", {"x": np.zeros((3, 0), "f4")})
        out.write("b", {"x": []})
    with pytest.raises(ConfigError, match="1 item or more"):
        StoreWriter("memory://writer-none", {"x": np.dtype(("f4", (0,)))}, overwrite=True)


def test_a_column_holds_no_number_that_no_array_can_hold():
    out = StoreWriter("memory://writer-long", {"x": "f4"}, overwrite=True)
    with pytest.raises(ConfigError, match="give text or a number"):
        out.write("a", {"x": [1]}, columns={"n": np.longdouble(5)})


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_shard_whose_counting_is_interrupted_is_counted_once(monkeypatch, error):
    """The values of one field were counted when it came, and came again with the next attempt."""
    count, counted = FieldStatistics.from_values, []

    def interrupted(values, valid=None):
        counted.append(len(values))
        if len(counted) == 2:
            raise error
        return count(values, valid)

    with StoreWriter("memory://counted", {"x": "f4", "y": "f4"}, overwrite=True, chunk=8, shard=8) as out:
        out.write("a", {"x": [1] * 4, "y": [1] * 4})
        with monkeypatch.context() as patch:
            patch.setattr(FieldStatistics, "from_values", staticmethod(interrupted))
            with pytest.raises(error):
                out.write("b", {"x": [9] * 4, "y": [9] * 4})
        out.write("b", {"x": [3] * 4, "y": [3] * 4})
    store = open_store("memory://counted")
    for name in ("x", "y"):
        assert (store.statistics[name].count, store.statistics[name].mean) == (8, 2.0)
        assert store.read(name, 0, 8).tolist() == [1] * 4 + [3] * 4


def test_a_writer_that_was_interrupted_between_an_id_and_its_length_does_not_go_on():
    class Ids(list):
        def append(self, value):
            super().append(value)
            raise MemoryError

    out = StoreWriter("memory://half", {"x": "f4"}, overwrite=True)
    out.write("a", {"x": [1]})
    out._ids = Ids(out._ids)
    with pytest.raises(MemoryError):
        out.write("b", {"x": [2, 3]})
    with pytest.raises(ConfigError, match="has failed within a sequence"):
        out.write("c", {"x": [4]})


def test_a_column_whose_name_ends_in_code_makes_no_label_of_another(tmp_path):
    """Labels have codes under such a name; a column of anybody's may have one as well."""
    columns = {"zip": 8, "zip_code": 8001, "country": "ch", "country_code": 41, "kind": "a", "kind_code": "b"}
    with StoreWriter(tmp_path / "s.zarr", fields={"x": "f4"}) as out:
        out.write("s", {"x": [1]}, columns=columns, labels={"place": "shore"})
    table = open_store(tmp_path / "s.zarr").sequences
    assert {name: table.column(name)[0] for name in columns} == columns
    assert [name for name in table.columns if table.is_categorical(name)] == ["place"]
    assert set(table.to_pandas().columns) == {"rowsize", "start", "place", *columns}
    assert verify_store(tmp_path / "s.zarr").ok

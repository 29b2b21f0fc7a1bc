"""What is written comes back as what it was, or is refused while it can still be mended."""

from __future__ import annotations

import itertools
import json
import threading

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chunkstore import ConfigError, FieldSpec, StoreExistsError, StoreWriter, open_store, verify_store
from chunkstore.statistics import FieldStatistics
from chunkstore.values import _exact

_names = itertools.count()


def writer(*fields, **options):
    url = f"memory://values-{next(_names)}"
    return StoreWriter(url, list(fields) or {"x": "f4"}, **options), url


def kept(spec, values, **more):
    out, url = writer(spec)
    with out:
        out.write("a", {spec.name: values, **more})
    store = open_store(url)
    assert verify_store(url, deep=True).ok
    mask = store.masks.get(spec.name)
    read = store.read(spec.name, 0, store.n_obs).tolist()
    return read if mask is None else (read, store.read(mask, 0, store.n_obs).tolist())


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "m", "h", "D"])
def test_datetimes_become_whole_numbers_in_the_units_of_their_field(unit):
    spec = FieldSpec("time", "int64", units="milliseconds since 2020-01-01")
    days = np.array(["2020-01-01", "2020-01-03", "2019-12-31"], "M8[D]").astype(f"M8[{unit}]")
    assert kept(spec, days) == [0, 2 * 86400_000, -86400_000]


def test_datetimes_that_the_units_cannot_hold_are_refused():
    fine = np.array(["2020-01-01T00:00:00.0005"], "M8[us]")
    for units, values, why in (
        ("milliseconds since 1970-01-01", fine, "no whole number"),
        ("m s-1", fine, "name units"),
        (None, fine, "name units"),
        ("nanoseconds since 1970-01-01", np.array(["9999-01-01"], "M8[s]"), "too far away"),
        ("milliseconds since 1970-01-01", np.array(["NaT"], "M8[ms]"), "not nullable"),
    ):
        with pytest.raises(ConfigError, match=why):
            kept(FieldSpec("time", "int64", units=units), values)
    assert kept(FieldSpec("lag", "int32", units="s"), np.array([3000], "m8[ms]")) == [3]


def test_nat_none_and_masked_values_are_nulls():
    spec = FieldSpec("time", "int64", units="days since 2000-01-01", nullable=True)
    assert kept(spec, np.array(["2000-01-02", "NaT"], "M8[D]")) == ([1, 0], [True, False])
    assert kept(FieldSpec("n", "int32", nullable=True), [1, None, 3]) == ([1, 0, 3], [True, False, True])
    words = FieldSpec("e", "uint8", nullable=True, categories=("a", "None"))
    assert kept(words, ["None", None, "a"]) == ([1, 0, 0], [True, False, True])
    with pytest.raises(ConfigError, match="not nullable"):
        kept(FieldSpec("n", "int32"), [1, None])
    found = kept(FieldSpec("f", "float32"), [1.0, None])
    assert found[0] == 1.0
    assert np.isnan(found[1])
    both = kept(
        FieldSpec("n", "int8", nullable=True),
        np.ma.array([1, 2, 3], mask=[1, 0, 0]),
        n_valid=[True, False, True],
    )
    assert both == ([0, 0, 3], [False, False, True])


@pytest.mark.parametrize(
    ("spec", "values", "why"),
    [
        (
            FieldSpec("v", "int32", items=2, nullable=True),
            np.ma.array([[1, 2]], mask=[[0, 1]]),
            "part is masked",
        ),
        (FieldSpec("e", "uint8", categories=("a", "b")), [0, 7], "code 7"),
        (FieldSpec("e", "int8", categories=("a", "b")), [0, -1], "code -1"),
        (FieldSpec("x", "float32"), [1e300], "too large for float32"),
        (FieldSpec("x", "float16"), [1e5], "too large for float16"),
        (FieldSpec("x", "float32"), [[1.0], [2.0, 3.0]], "is no array"),
    ],
)
def test_values_that_would_change_are_refused(spec, values, why):
    with pytest.raises(ConfigError, match=why):
        kept(spec, values)


def test_infinities_are_values():
    assert kept(FieldSpec("x", "float32"), [np.inf, -np.inf, 1.0]) == [np.inf, -np.inf, 1.0]


@pytest.mark.parametrize(
    ("dtype", "words"), [("float32", ("a",)), ("uint8", tuple(map(str, range(257)))), ("uint8", ("a", "a"))]
)
def test_categories_that_no_code_can_tell_apart_are_refused(dtype, words):
    with pytest.raises(ConfigError):
        FieldSpec("e", dtype, categories=words)


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"columns": {"n": 2**53 + 1}}, {}, "holds all of them exactly"),
        ({}, {"columns": {"n": 2**53 + 1}}, "holds all of them exactly"),
        ({"columns": {"n": 2**53 + 1}}, {"columns": {"n": 0.5}}, "holds all of them exactly"),
        ({"columns": {"n": 2**63}}, {"columns": {"n": -1}}, "holds all of them exactly"),
        ({}, {"columns": {"n": np.datetime64("2020")}}, "ISO text"),
        ({}, {"columns": {"n": b"bytes"}}, "text or a number"),
        ({}, {"columns": {"n": 1j}}, "text or a number"),
        ({}, {"labels": {"k": "\ud800"}}, "UTF-8"),
        ({}, {"labels": {"k": "a"}, "columns": {"k_code": 1}}, "k_code"),
        ({"columns": {"k_code": 1}}, {"labels": {"k": "a"}}, "k_code"),
        ({"labels": {"k": "a"}}, {"columns": {"k_code": 1}}, "k_code"),
    ],
)
def test_what_no_column_can_hold_is_refused_at_once_and_the_writer_goes_on(first, second, why):
    out, url = writer()
    with out:
        out.write("a", {"x": [1]}, **first)
        with pytest.raises(ConfigError, match=why):
            out.write("b", {"x": [2]}, **second)
        out.write("c", {"x": [3]}, columns={"n": 1} if "n" in first.get("columns", {}) else {})
    store = open_store(url)
    assert store.sequences.ids.tolist() == ["a", "c"]
    assert store.read("x", 0, 2).tolist() == [1, 3]
    if "n" in store.sequences.columns:
        assert store.sequences.column("n").tolist() == [first["columns"]["n"], 1]


def test_an_id_that_is_no_text_is_refused_before_anything_is_written():
    out, _ = writer()
    with pytest.raises(ConfigError, match="UTF-8"):
        out.write("\udcff", {"x": [1]})


def test_a_value_that_is_wrong_late_in_a_long_sequence_leaves_nothing_of_it():
    out, url = writer(FieldSpec("e", "uint8", categories=("a", "b")))
    words = np.array(["a"] * 300_000)  # the writer converts 2**18 at once
    words[290_000] = "z"
    with out:
        with pytest.raises(ConfigError, match="no category 'z'"):
            out.write("bad", {"e": words}, labels={"k": "v"})
        out.write("good", {"e": ["b"]})
    store = open_store(url)
    assert (store.n_obs, store.sequences.columns, store.read("e", 0, 1).tolist()) == (1, (), [1])
    assert verify_store(url, deep=True).ok


def test_a_gap_never_reaches_into_the_next_sequence():
    out, _ = writer()
    out.begin("a")
    out.mark_gaps([(0, 10)])
    out.extend({"x": [1, 2, 3]})
    with pytest.raises(ConfigError, match=r"gap \[0, 10\) is not inside its 3 obs"):
        out.begin("b")
    with pytest.raises(ConfigError, match="gap"):
        out.close()
    out, _ = writer()
    with pytest.raises(ConfigError, match="begin a sequence"):
        out.mark_gaps([(0, 1)])


def test_a_gap_is_marked_before_its_obs_are_counted():
    out, _ = writer(chunk=2, shard=2)
    out.begin("a")
    out.extend({"x": [1, 2, 3]})
    with pytest.raises(ConfigError, match="written already"):
        out.mark_gaps([(1, 2)])
    out.mark_gaps([(2, 3)])


def test_a_shard_that_fails_once_is_counted_once(monkeypatch):
    out, url = writer(FieldSpec("x", "float32"), FieldSpec("y", "float32"), chunk=2, shard=4)
    real, calls = out._skeleton._write, []

    def fails_once(name, *rest):
        calls.append(name)
        if len(calls) == 2:
            raise OSError("no space left")
        return real(name, *rest)

    monkeypatch.setattr(out._skeleton, "_write", fails_once)
    with out:
        with pytest.raises(OSError, match="no space"):
            out.write("a", {"x": [1, 2, 3, 4], "y": [1, 2, 3, 4]})
        out.write("a", {"x": [5, 6, 7, 8, 9], "y": [5, 6, 7, 8, 9]})
    store = open_store(url)
    assert store.read("x", 0, 5).tolist() == [5, 6, 7, 8, 9]
    assert (store.statistics["x"].count, store.statistics["x"].mean) == (5, 7)
    assert verify_store(url, deep=True).ok


def test_two_writers_of_one_place_never_mix_their_values(tmp_path):
    first = StoreWriter(tmp_path / "s", {"x": "f4"})
    second = StoreWriter(tmp_path / "s", {"x": "f4"}, overwrite=True)
    first.write("a", {"x": [1, 2, 3]})
    second.write("b", {"x": [9] * 5})
    with pytest.raises(StoreExistsError, match="another writer"):
        first.close()
    second.close()
    store = open_store(tmp_path / "s")
    assert (store.sequences.ids.tolist(), store.read("x", 0, 5).tolist()) == (["b"], [9] * 5)
    assert "token" not in store.attrs["chunkstore"]
    assert verify_store(tmp_path / "s", deep=True).ok


@pytest.mark.parametrize("place", ["memory", "local"])
def test_splits_that_are_added_at_once_are_all_kept(place, tmp_path):
    url = f"memory://values-{next(_names)}" if place == "memory" else str(tmp_path / "s")
    with StoreWriter(url, {"x": "f4"}) as out:
        for i in range(20):
            out.write(str(i), {"x": np.ones(10)})
    stores = [open_store(url) for _ in range(6)]
    made, errors = {}, []

    def add(i):
        try:
            made[f"a{i}/b{i}"] = stores[i].add_split(f"a{i}/b{i}", seed=i)
        except Exception as err:
            errors.append(err)

    threads = [threading.Thread(target=add, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = open_store(url).splits
    assert sorted(found) == sorted(made)
    for name, split in made.items():
        assert np.array_equal(found[name].start, split.start)
        assert np.array_equal(found[name].part, split.part)
    assert verify_store(url, deep=True).findings == []


def test_names_are_short_enough_for_masks_and_codes_too():
    with pytest.raises(ConfigError, match="the mask of field"):
        writer(FieldSpec("x" * 200, "int32", nullable=True))
    out, _ = writer()
    with pytest.raises(ConfigError, match="the codes of label"):
        out.write("a", {"x": [1]}, labels={"k" * 200: "v"})


def test_a_handle_finds_splits_that_another_has_added_or_replaced_since():
    out, url = writer()
    with out:
        for i in range(10):
            out.write(str(i), {"x": [i]})
    old, new = open_store(url), open_store(url)
    new.add_split("train/val", fractions=[0.5, 0.5])
    assert old.segments("train").n_obs == 5
    third = open_store(url)
    new.add_split("train/val", fractions=[0.8, 0.2], overwrite=True)
    assert third.segments("train").n_obs == 8


def test_what_pandas_holds_is_taken_as_it_is_meant():
    import pandas as pd

    nullable = FieldSpec("n", "int32", nullable=True)
    assert kept(nullable, pd.Series([1, None], dtype="Int32")) == ([1, 0], [True, False])
    assert kept(FieldSpec("e", "int8", categories=("a", "b")), pd.Categorical(["b", "a"])) == [1, 0]
    hours = pd.date_range("1970-01-01T01:00", periods=2, freq="h", tz="Europe/Paris")  # UTC+1 in 1970
    units = "hours since 1970-01-01"
    assert kept(FieldSpec("t", "int64", units=units), hours) == [0, 1]
    assert kept(FieldSpec("t", "int64", units=units), pd.Series(hours.tz_convert(None))) == [0, 1]


@pytest.mark.parametrize("what", ["label", "fingerprint", "statistics"])
def test_verify_finds_what_a_store_says_twice_and_not_alike(tmp_path, what):
    for name, words in (("a", ["dog", "cat"]), ("b", ["cat", "dog"])):
        with StoreWriter(tmp_path / name, {"x": "f4"}) as out:
            for i, word in enumerate(words):
                out.write(str(i), {"x": [i]}, labels={"k": word})
    if what == "label":
        (tmp_path / "a/k/c/0").write_bytes((tmp_path / "b/k/c/0").read_bytes())
    else:
        root = json.loads((tmp_path / "a/zarr.json").read_text())
        own = root["attributes"]["chunkstore"]
        if what == "fingerprint":
            own["fingerprint"] = "0" * 32
        else:
            own["statistics"]["x"]["count"] = 7
        (tmp_path / "a/zarr.json").write_text(json.dumps(root))
    (finding,) = verify_store(tmp_path / "a").findings
    assert {"label": "k and k_code differ in 2", "fingerprint": "0" * 32, "statistics": "count 7"}[what] in (
        finding.message
    )


def test_the_spread_of_instants_in_nanoseconds_is_not_rounded_away():
    steps = np.arange(200_000, dtype=np.int64) * 7
    base = 1_600_000_000_000_000_000  # September 2020
    found = FieldStatistics.from_values(steps + base)
    assert found.std == pytest.approx(float(np.std(steps)), rel=1e-3)
    assert found.mean == pytest.approx(base + float(np.mean(steps)), rel=1e-15)
    one = FieldStatistics.from_values(steps[:1000] + base)
    assert one.std == pytest.approx(float(np.std(steps[:1000])), rel=1e-12)
    wide = np.array([-(2**63), 2**63 - 1], np.int64)
    assert FieldStatistics.from_values(wide).std == pytest.approx(2.0**63, rel=1e-12)


def test_labels_are_told_apart_to_the_last_character():
    out, url = writer()
    words = ["a", "a\0", "", None, "a b", "é", "e\u0301"]
    with out:
        for i, word in enumerate(words):
            out.write(str(i), {"x": [i]}, labels={"k": word})
    store = open_store(url)
    split = store.add_split("train/val", by="group", on="k", parts=[f"p{i}" for i in range(7)])
    assert sorted(split.part.tolist()) == list(range(7))
    assert store.audit_splits().ok


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("float16", 2049),
        ("float32", 2**24 + 1),
        ("float32", -(2**24) - 1),
        ("float64", 1_700_000_000_000_000_001),
    ],
)
def test_whole_numbers_that_a_float_would_round_are_refused(dtype, number):
    with pytest.raises(ConfigError, match="would round"):
        kept(FieldSpec("x", dtype), [number])
    assert kept(FieldSpec("x", dtype), [number - 1 if number > 0 else number + 1]) == [
        number - (1 if number > 0 else -1)
    ]
    assert kept(FieldSpec("x", dtype), [float(number)]) == [float(np.dtype(dtype).type(number))]


@given(
    st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]).flatmap(
        lambda d: st.tuples(st.just(d), st.lists(st.integers(np.iinfo(d).min, np.iinfo(d).max), min_size=1))
    ),
    st.sampled_from(["float16", "float32", "float64"]),
)
@settings(max_examples=200)
def test_floats_that_are_no_longer_the_integers_given_are_known(case, to):
    dtype, numbers = case
    whole = np.array(numbers, dtype)
    with np.errstate(over="ignore"):
        floats = whole.astype(to)
    assume(np.isfinite(floats).all())
    assert _exact(whole, floats) == all(int(f) == n for f, n in zip(floats, numbers, strict=True))

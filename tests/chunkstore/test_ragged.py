"""Statistics, selection and overviews of ragged data, against plain numpy over each sequence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore import FieldSpec, errors, ragged

MEASURES = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max, "sum": np.sum, "count": len}


def write(url, parts, spec, *, chunk=4, gaps=None, masks=None, labels=None):
    """A store whose sequence i holds parts[i]."""
    with chunkstore.StoreWriter(url, fields=[spec], chunk=chunk, shard=4 * chunk, overwrite=True) as out:
        for i, values in enumerate(parts):
            data = {spec.name: values}
            if masks is not None:
                data[f"{spec.name}_valid"] = masks[i]
            out.write(
                f"s{i}",
                data,
                labels={"kind": labels[i]} if labels else {},
                gaps=gaps[i] if gaps else [],
            )
    return chunkstore.open_store(url)


def check(found, parts, names):
    for name in names:
        for i, values in enumerate(parts):
            got = found[name].values[i]
            if len(values) == 0:
                assert got == 0 if name in ("count", "sum") else np.isnan(got)
            else:
                np.testing.assert_allclose(got, MEASURES[name](values), rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 23), min_size=1, max_size=12),
    chunk=st.integers(1, 7),
    limit=st.sampled_from([1, 300, "1MiB"]),
    offset=st.sampled_from([0.0, 1e7]),
    seed=st.integers(0, 99),
)
def test_each_sequence_gets_what_numpy_says_of_it_whatever_the_blocks(lengths, chunk, limit, offset, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(offset, 1, n) for n in lengths]
    for values in parts:
        values[rng.random(len(values)) < 0.2] = np.nan
    store = write("memory://test-ragged", parts, FieldSpec("x", "float64"), chunk=chunk)
    found = ragged.summarize(store, "x", list(MEASURES), memory_limit=limit)
    known = [values[~np.isnan(values)] for values in parts]
    for name in ("count", "min", "max", "mean", "sum"):
        check(found, known, [name])
    spread = np.array([v.std() if len(v) else np.nan for v in known])
    np.testing.assert_allclose(found["std"], spread, rtol=1e-6, atol=1e-7)


def test_masked_integers_and_gaps_do_not_count():
    parts = [np.arange(10), np.arange(100, 106)]
    masks = [np.arange(10) != 9, np.ones(6, bool)]
    spec = FieldSpec("x", "int32", nullable=True)
    store = write("memory://test-ragged-mask", parts, spec, masks=masks, gaps=[[], [(0, 2)]])
    found = ragged.summarize(store, "x", list(MEASURES))
    check(found, [np.arange(9), np.arange(102, 106)], MEASURES)


def test_large_integers_keep_their_extremes_and_sums():
    big = np.array([2**53 + 1, 2**53 + 3], np.int64)
    store = write("memory://test-ragged-big", [big], FieldSpec("x", "int64"))
    found = ragged.summarize(store, "x", ["min", "max", "sum"])
    assert [int(found[m][0]) for m in ("min", "max", "sum")] == [2**53 + 1, 2**53 + 3, 2**54 + 4]


def test_vectors_keep_their_items():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 3)) for n in (5, 9, 0)]
    store = write("memory://test-ragged-vector", parts, FieldSpec("v", "float64", items=3))
    found = ragged.summarize(store, "v", "mean")["mean"]
    assert found.dims == ("sequence", "v_item")
    np.testing.assert_allclose(found[:2], [p.mean(axis=0) for p in parts[:2]])


def test_sequences_of_one_label_are_taken_together():
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=n) for n in (5, 9, 0, 7)]
    labels = ["b", "a", "c", "b"]
    store = write("memory://test-ragged-by", parts, FieldSpec("x", "float64"), labels=labels)
    found = ragged.summarize(store, "x", list(MEASURES), by="kind")
    assert found["kind"].values.tolist() == ["a", "b", "c"]
    check(found, [parts[1], np.concatenate([parts[0], parts[3]]), parts[2]], MEASURES)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 90), points=st.integers(1, 100), data=st.data())
def test_an_overview_keeps_every_peak(n, points, data):
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    values = np.random.default_rng(n).normal(size=n)
    store = write("memory://test-overview", [values], FieldSpec("x", "float64"))
    found = ragged.overview(store, "x", start, stop, points=points, memory_limit=1)
    edges = found["obs_start"].values.tolist()
    assert len(edges) <= points
    for i, low in enumerate(edges):
        piece = values[low : [*edges, stop][i + 1]]
        assert found["max"].values[i] == piece.max()
        assert found["min"].values[i] == piece.min()
        assert found["count"].values[i] == len(piece)


@pytest.fixture
def clocked():
    """Two sequences with a clock in milliseconds, one reading a minute, from 2024 and 2025."""
    starts = [np.datetime64("2024-01-01", "ms"), np.datetime64("2025-01-01", "ms")]
    spec = [FieldSpec("time", "int64", units="milliseconds since 1970-01-01"), FieldSpec("x", "float32")]
    url = "memory://test-select"
    with chunkstore.StoreWriter(url, fields=spec, chunk=8, shard=16, overwrite=True) as out:
        for name, start in zip("ab", starts, strict=True):
            clock = start.astype(np.int64) + 60_000 * np.arange(60)
            out.write(name, {"time": clock, "x": np.arange(60)}, labels={"site": name.upper()})
    return chunkstore.open_store(url)


def test_time_selects_half_open_stretches(clocked):
    chosen = ragged.select(clocked, time=("2024-01-01T00:10", "2024-01-01T00:20"))
    assert chosen.sequence.tolist() == [0]
    assert [v.tolist() for v in chosen.read("x")] == [list(range(10, 20))]


def test_a_side_of_the_time_may_be_open(clocked):
    assert ragged.select(clocked, time=("2024-06-01", None)).n_obs == 60
    assert ragged.select(clocked, time=(None, "2025-01-01T00:01")).n_obs == 61


def test_ids_and_labels_select_sequences(clocked):
    assert ragged.select(clocked, ids=["b"]).sequence.tolist() == [1]
    assert ragged.select(clocked, labels={"site": ["A", "C"]}).sequence.tolist() == [0]
    assert len(ragged.select(clocked, ids=["b"], labels={"site": "A"})) == 0


def test_a_selection_is_a_ragged_dataset_of_its_own(clocked):
    found = ragged.select(clocked, ids=["b"]).to_xarray()
    assert found["rowsize"].values.tolist() == [60]
    assert found["site"].values.tolist() == ["B"]
    assert found.sizes["obs"] == 60


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: ragged.summarize(s, "y"), errors.UnknownNameError),
        (lambda s: ragged.summarize(s, "x", "median"), errors.ConfigError),
        (lambda s: ragged.summarize(s, "x", by="nope"), errors.UnknownNameError),
        (lambda s: ragged.overview(s, "x", points=0), errors.ConfigError),
        (lambda s: ragged.overview(s, "x", 5, 3), errors.ConfigError),
        (lambda s: ragged.select(s, labels={"nope": 1}), errors.UnknownNameError),
        (lambda s: ragged.select(s, ids=["nope"]), errors.UnknownNameError),
    ],
)
def test_what_is_not_there_is_named(clocked, call, error):
    with pytest.raises(error):
        call(clocked)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("uint64", [2**63, 2**63 - 1, 1]), ("int64", [2**62] * 3), ("int64", [-(2**62)] * 3)],
)
def test_a_sum_that_no_integer_holds_is_a_float_and_not_another_number(dtype, values):
    store = write("memory://ragged-sums", [np.array(values, dtype)], FieldSpec("x", dtype))
    found = ragged.summarize(store, "x", "sum")["sum"].values
    np.testing.assert_allclose(found, [float(sum(values))], rtol=1e-12)


def test_a_selection_as_a_dataset_keeps_nulls_scale_and_gaps():
    spec = FieldSpec("x", "int32", nullable=True, scale_factor=0.5)
    parts = [np.arange(4), np.arange(10, 16)]
    masks = [np.array([1, 0, 1, 1], bool), np.array([1, 1, 1, 1, 0, 1], bool)]
    store = write("memory://ragged-whole", parts, spec, masks=masks, gaps=[[], [(1, 3)]], labels=["a", "b"])
    for chosen in (ragged.select(store), ragged.select(store, labels={"kind": "b"})):
        made = chunkstore.from_xarray(chosen.to_xarray(), "memory://ragged-again", overwrite=True)
        ids = made.sequences.ids.tolist()
        for name in ids:
            one, other = made.sequence(name), store.sequence(name)
            np.testing.assert_array_equal(one.x.values, other.x.values)
            np.testing.assert_array_equal(one.x_valid.values, other.x_valid.values)
        base = 0 if len(ids) == 1 else 4
        assert made.gaps.tolist() == [[base + 1, base + 3]]


def test_a_stretch_of_time_reads_times_alone_and_knows_times_beyond_all_calendars(monkeypatch):
    fields = [FieldSpec("time", "int64", units="milliseconds since 1970-01-01"), FieldSpec("x", "float32")]
    with chunkstore.StoreWriter("memory://ragged-far", fields, overwrite=True) as out:
        out.write("a", {"time": [-(2**62), 0, 1500, 2**62], "x": np.arange(4)})
    store = chunkstore.open_store("memory://ragged-far")
    read, asked = store.read, []
    monkeypatch.setattr(store, "read", lambda name, a, b: (asked.append(name), read(name, a, b))[1])
    chosen = ragged.select(store, time=("1970-01-01T00:00:01", None))
    assert (chosen.start.tolist(), chosen.stop.tolist()) == ([2], [4])
    assert set(asked) == {"time"}
    assert store.sequence("a").time.values.tolist() == [-(2**62), 0, 1500, 2**62]  # no calendar has them
    assert store.to_xarray().time.values.tolist()[3] == 2**62


def test_a_stretch_of_time_of_a_store_that_tells_none_is_refused_in_words():
    for name, columns, words in (
        ("none", {}, "nothing tells the time of sequence 'a'"),
        ("rate", {"sample_rate": 2.0}, "give seconds since its start"),
    ):
        with chunkstore.StoreWriter(f"memory://ragged-{name}", {"x": "f4"}, overwrite=True) as out:
            out.write("a", {"x": np.arange(4)}, columns=columns)
        store = chunkstore.open_store(f"memory://ragged-{name}")
        with pytest.raises(errors.ConfigError, match=words):
            ragged.select(store, time=("1970-01-01", None))
    assert ragged.select(store, time=(0.5, 1.5)).start.tolist() == [1]
    with chunkstore.StoreWriter("memory://ragged-start", {"x": "f4"}, overwrite=True) as out:
        out.write("a", {"x": np.arange(4)}, columns={"sample_rate": 2.0, "start_time": 10.0})
    store = chunkstore.open_store("memory://ragged-start")
    assert ragged.select(store, time=("1970-01-01T00:00:11", None)).start.tolist() == [2]
    with pytest.raises(errors.ConfigError, match="not an instant"):
        ragged.select(store, time=("soon", None))


@pytest.mark.parametrize("values", [[np.inf, -np.inf, 1.0], [np.inf] * 3, [1.7e308, -1.7e308, 0.0]])
def test_infinities_and_the_ends_of_float64_are_summarized_without_complaint(values):
    store = write("memory://ragged-ends", [np.array(values)], FieldSpec("x", "float64"))
    found = ragged.summarize(store, "x")
    assert found["count"].values.tolist() == [3]
    assert found["max"].values.tolist() == [max(values)]
    assert ragged.overview(store, "x", points=1)["min"].values.tolist() == [min(values)]

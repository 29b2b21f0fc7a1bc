"""Splits by time: instants cut all sequences alike, whatever order, gaps and nulls the clock has."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore import ConfigError, FieldSpec, StoreWriter, open_store, verify_store
from chunkstore.channels import all_fields
from chunkstore.clock import (
    _elapsed,
    clock_of,
    decode_times,
    parse_duration,
    parse_instant,
    parse_units,
    sample_rates,
    time_field,
)

_names = itertools.count()
MINUTE = "minutes since 2020-01-01"


def timed(times, *, nullable=False, masks=None, gaps=None, units=MINUTE):
    """Return a store whose field ``time`` holds the given lists, one a sequence."""
    url = f"memory://clock-{next(_names)}"
    fields = [FieldSpec("time", "int64", units=units, nullable=nullable), FieldSpec("x", "float32")]
    with StoreWriter(url, fields, chunk=4, shard=8) as out:
        for i, values in enumerate(times):
            data = {"time": np.array(values, np.int64), "x": np.zeros(len(values))}
            if nullable:
                data["time_valid"] = np.array(masks[i], bool)
            out.write(f"s{i}", data, gaps=(gaps or {}).get(i, ()))
    return open_store(url)


def seen_by(store, split):
    """Return for each obs the set of parts whose segments hold it, one obs after the other."""
    seen = [set() for _ in range(store.n_obs)]
    for part in split.parts:
        segments = store.segments(f"{split.name}:{part}")
        for start, stop in zip(segments.start.tolist(), segments.stop.tolist(), strict=True):
            for obs in range(start, stop):
                seen[obs].add(part)
    return seen


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_each_obs_goes_to_the_part_of_its_instant_one_by_one(data):
    times = data.draw(st.lists(st.lists(st.integers(0, 30), max_size=25), min_size=1, max_size=5))
    if data.draw(st.booleans()):
        times = [sorted(t) for t in times]
    masks = [[data.draw(st.booleans()) for _ in t] for t in times]
    gaps = {}
    for i, t in enumerate(times):
        edges = sorted(data.draw(st.sets(st.integers(0, len(t)), max_size=4)))
        gaps[i] = list(zip(edges[::2], edges[1::2], strict=False))
    store = timed(times, nullable=True, masks=masks, gaps=gaps)
    cuts = sorted(data.draw(st.sets(st.integers(-1, 31), min_size=2, max_size=2)))
    margin = data.draw(st.integers(0, 5))
    made = store.add_split("a/b/c", by="time", at=cuts, embargo_time=dt.timedelta(minutes=margin))
    assert (made.by, made.clock) == ("time", "time")
    expected = []
    for i, t in enumerate(times):
        for k, value in enumerate(t):
            lost = not masks[i][k] or any(low <= k < high for low, high in gaps[i])
            near = any(c - margin <= value < c + margin for c in cuts)
            expected.append(set() if lost or near else {"abc"[sum(value >= c for c in cuts)]})
    assert seen_by(store, made) == expected
    audit = store.audit_splits(window=1)
    assert audit.ok, audit.findings
    assert verify_store(store.url, deep=True).findings == []


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    times=st.lists(st.lists(st.integers(0, 40), max_size=30).map(sorted), min_size=1, max_size=4),
    cut=st.integers(-1, 41),
    embargo=st.integers(0, 8),
)
def test_an_embargo_in_obs_is_left_out_around_cuts_within_a_sequence(times, cut, embargo):
    store = timed(times)
    made = store.add_split("a/b", by="time", at=[cut], embargo=embargo)
    expected = []
    for t in times:
        at = sum(v < cut for v in t)
        reach = embargo if 0 < at < len(t) else 0
        expected += [set() if at - reach <= k < at + reach else {"ab"[k >= at]} for k in range(len(t))]
    assert seen_by(store, made) == expected


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_starts_and_rates_cut_like_the_instants_that_they_mean(data):
    url = f"memory://clock-{next(_names)}"
    known, lengths = [], []
    with StoreWriter(url, {"x": "i1"}, chunk=4, shard=8) as out:
        for i in range(data.draw(st.integers(1, 5))):
            n = data.draw(st.integers(0, 40))
            begin = data.draw(st.one_of(st.just(math.nan), st.integers(0, 40).map(float)))
            rate = data.draw(st.sampled_from([0.5, 1.0, 3.0, 44100.0]))
            out.write(f"s{i}", {"x": np.zeros(n, int)}, columns={"start_time": begin, "sample_rate": rate})
            known.append((begin, rate))
            lengths.append(n)
    store = open_store(url)
    if all(math.isnan(b) for b, _ in known):
        assert clock_of(store) is None
        return
    cut, margin, embargo = (
        data.draw(st.integers(-1, 70)),
        data.draw(st.integers(0, 3)),
        data.draw(st.integers(0, 4)),
    )
    made = store.add_split("a/b", by="time", at=[cut], embargo_time=margin, embargo=embargo)
    assert made.clock == "start_time"
    expected = []
    for (begin, rate), n in zip(known, lengths, strict=True):
        at = [int(begin * 1e9) + round(k * 1e9 / rate) for k in range(n)] if begin == begin else []
        first = sum(t < cut * 10**9 for t in at)
        reach = embargo if 0 < first < n else 0
        for k in range(n):
            out = not at or first - reach <= k < first + reach
            out = out or (cut - margin) * 10**9 <= at[k] < (cut + margin) * 10**9
            expected.append(set() if out else {"ab"[at[k] >= cut * 10**9]})
    assert seen_by(store, made) == expected
    assert store.audit_splits().ok


def test_fractions_share_the_span_of_the_whole_store_not_each_sequence():
    # sequence 0 lies wholly in the first half of the span 0..100, sequence 2 wholly in the second
    store = timed([range(40), range(30, 70), range(61, 101)])
    made = store.add_split("train/val", by="time", fractions=[0.5, 0.5])
    assert made.at == ("2020-01-01T00:50:00Z",)
    assert made.n_obs == {"train": 40 + 20, "val": 20 + 40}
    spans = store.audit_splits().spans["train/val"]
    assert spans["train"] == ("2020-01-01T00:00:00Z", "2020-01-01T00:49:00Z")
    assert spans["val"] == ("2020-01-01T00:50:00Z", "2020-01-01T01:40:00Z")
    by_position = store.add_split("a/b", by="position", fractions=[0.5, 0.5])
    assert (by_position.by, by_position.n_obs) == ("position", {"a": 60, "b": 60})


def test_fractions_that_leave_a_rest_end_the_last_part_at_an_instant():
    store = timed([range(101)])
    made = store.add_split("train/val", by="time", fractions=[0.5, 0.2])
    assert made.ranges("val").tolist() == [[50, 70]]
    assert store.add_split("a/b/c", by="time", fractions=[0.7, 0.15, 0.15]).n_obs == {
        "a": 70,
        "b": 15,
        "c": 16,
    }


def test_what_stands_in_gaps_and_nulls_does_not_stretch_the_span():
    store = timed(
        [[0, 10, 10**6, 20, 30]], nullable=True, masks=[[False, True, True, True, True]], gaps={0: [(2, 3)]}
    )
    made = store.add_split("train/val", by="time", fractions=[0.5, 0.5])
    assert made.at == ("2020-01-01T00:20:00Z",)
    assert (made.ranges("train").tolist(), made.ranges("val").tolist()) == ([[1, 2]], [[3, 5]])


def test_a_store_without_a_clock_is_cut_by_position_and_says_so():
    url = f"memory://clock-{next(_names)}"
    with StoreWriter(url, {"x": "f4"}) as out:
        out.write("a", {"x": np.zeros(10)})
    store = open_store(url)
    assert store.add_split("train/val", by="time").by == "position"
    assert open_store(url).splits["train/val"].clock is None
    for more in ({"at": ["2020"]}, {"embargo_time": 3}):
        with pytest.raises(ConfigError, match="has no clock"):
            store.add_split("a/b", by="time", **more)


def test_the_audit_finds_a_part_that_sees_the_future():
    store = timed([range(40), range(30, 70)])
    split = store.add_split("train/val", by="time", fractions=[0.5, 0.5])
    leak = type(split)(
        **{**split.__dict__, "start": np.array([0, 40]), "stop": np.array([40, 80]), "part": np.array([0, 1])}
    )
    store._split_cache["train/val"] = leak
    assert "train sees obs up to 2020-01-01T00:39:00Z, val sees obs from" in store.audit_splits().findings[0]


@pytest.mark.parametrize(
    "at",
    [[], ["2020-01-01", "2020-01-02"], ["soon"], [None], [1.5], [np.datetime64("NaT", "s")]],
)
def test_instants_that_cannot_be_used_are_refused(at):
    store = timed([range(10)])
    with pytest.raises(ConfigError):
        store.add_split("a/b", by="time", at=at)
    with pytest.raises(ConfigError, match="either"):
        store.add_split("a/b", by="time", at=[3], fractions=[0.5, 0.5])
    with pytest.raises(ConfigError, match="ascending"):
        store.add_split("a/b/c", by="time", at=[5, 5])


def test_instants_are_read_in_every_usual_form():
    day = 86400 * 10**9
    same = [
        "1970-01-02", "1970-01-02T00:00Z", "1970-01-02 00:00:00 UTC", "1970-01-02T02:00+02:00",
        dt.datetime(1970, 1, 2),  # noqa: DTZ001 - without a zone it is UTC
        dt.datetime(1970, 1, 2, tzinfo=dt.UTC), dt.date(1970, 1, 2),
        np.datetime64("1970-01-02"), np.datetime64("1970-01-02T00:00:00.000000000"),
    ]  # fmt: skip
    assert {parse_instant(v) for v in same} == {day}
    assert parse_instant("0001-01-01") == -62135596800 * 10**9  # seconds from year 1 to 1970
    assert parse_units("hours since 1970-01-02 00:00:00.0") == (3600 * 10**9, day)
    assert parse_units("days since soon") is None
    assert parse_units(None) is None
    assert [parse_duration(v) for v in ("2 h", "90s", 0.5, dt.timedelta(days=1), "3 minutes")] == [
        7200 * 10**9, 90 * 10**9, 5 * 10**8, day, 180 * 10**9,
    ]  # fmt: skip
    for bad in ("-1 s", "2 moons", -1, float("nan"), None):
        with pytest.raises(ConfigError):
            parse_duration(bad)


def test_other_calendars_and_units_are_no_clock():
    for units, attrs in (("m", {}), ("days since 2000-01-01", {"calendar": "360_day"})):
        url = f"memory://clock-{next(_names)}"
        with StoreWriter(url, [FieldSpec("time", "int64", units=units, attrs=attrs)]) as out:
            out.write("a", {"time": [1, 2]})
        assert clock_of(open_store(url)) is None


UNITS = "milliseconds since 1970-01-01"


@pytest.mark.parametrize(
    ("specs", "told"),
    [
        ([FieldSpec("ts", "int64", units=UNITS)], "ts"),
        ([FieldSpec("ts", "int64", units=UNITS), FieldSpec("time", "int64", units=UNITS)], "time"),
        ([FieldSpec("a", "int64", units=UNITS), FieldSpec("b", "int64", units=UNITS)], None),
        (
            [FieldSpec("a", "int64", units=UNITS), FieldSpec("b", "int64", units=UNITS, attrs={"axis": "T"})],
            "b",
        ),
        ([FieldSpec("time", "int64", units="s")], None),
    ],
)
def test_the_field_that_tells_the_time_need_not_be_named_time(specs, told):
    assert time_field({spec.name: spec for spec in specs}) == told


def test_a_clock_of_any_name_cuts_by_time_is_a_coordinate_and_no_channel():
    url = f"memory://clock-{next(_names)}"
    with StoreWriter(url, [FieldSpec("ts", "int64", units=UNITS), FieldSpec("x", "float32")]) as out:
        out.write("a", {"ts": np.arange(10), "x": np.zeros(10)})
    store = open_store(url)
    assert store.add_split("train/val", by="time").clock == "ts"
    assert "ts" in store.to_xarray().coords
    assert store.sequence("a").coords["ts"].values[3] == np.datetime64("1970-01-01T00:00:00.003")
    assert all_fields(store) == ("x",)


@pytest.mark.parametrize("text", ["now", "today", "NaT", "", "since"])
def test_words_are_no_instants(text):
    assert parse_instant(text) is None
    assert parse_units(f"seconds since {text}") is None


def test_instants_that_nanoseconds_cannot_count_are_unknown():
    most = 2**63 - 1
    given = np.array([most // 10**9, most // 10**9 + 1, -(most // 10**9) - 1, most], np.int64)
    assert np.isnat(decode_times(given, "seconds since 1970-01-01")).tolist() == [False, True, True, True]
    # an origin beyond what nanoseconds count, from which the values lead back (Julian days of 1970)
    back = decode_times(np.array([-2914695]), "days since 9950-03-03")
    assert back[0] == np.datetime64("9950-03-03") - np.timedelta64(2914695, "D")


@pytest.mark.parametrize("rate", ["fast", None, -1.0, 0, float("nan"), True, [1]])
def test_a_rate_that_is_none_is_not_known(rate):
    url = "memory://clock-forged-rate"
    field = FieldSpec("x", "float32", attrs={"sample_rate": rate})
    try:
        with chunkstore.StoreWriter(url, [field], overwrite=True) as out:
            out.write("a", {"x": np.zeros(4)}, columns={"start_time": 1.5})
    except chunkstore.ChunkstoreError:
        return  # not even written
    store = chunkstore.open_store(url)
    known = 1.0 if rate is True else np.nan
    np.testing.assert_equal(sample_rates(store), [known])
    assert (clock_of(store) is None) == np.isnan(known)


def test_starts_and_rates_beyond_all_clocks_are_unknown_and_not_wrapped():
    url = "memory://clock-far"
    with chunkstore.StoreWriter(url, {"x": "f4"}, overwrite=True) as out:
        for i, (start, rate) in enumerate([(0.0, 2.0), (1e30, 2.0), (0.0, 1e-300), (-1e12, 1.0)]):
            out.write(f"s{i}", {"x": np.zeros(4)}, columns={"start_time": start, "sample_rate": rate})
    clock = clock_of(chunkstore.open_store(url))
    times = clock.times(np.arange(4), np.full(4, 3))
    assert np.isnat(times).tolist() == [False, True, True, True]
    assert times[0] == np.datetime64("1970-01-01T00:00:01.5")


def test_a_time_that_is_missing_is_not_told():
    url = "memory://clock-missing"
    fields = [FieldSpec("time", "int64", units="seconds since 1970-01-01", nullable=True)]
    with chunkstore.StoreWriter(url, fields, overwrite=True) as out:
        out.write("a", {"time": np.ma.masked_array([1, 2, 3], [False, True, False])})
    clock = clock_of(chunkstore.open_store(url))
    assert np.isnat(clock.times(np.zeros(3, np.int64), np.arange(3))).tolist() == [False, True, False]


@settings(max_examples=300, deadline=None)
@given(
    rate=st.one_of(
        st.integers(1, 400_000).map(lambda n: (float(n), Fraction(n))),
        st.integers(1, 10**6).map(lambda seconds: (1 / seconds, Fraction(1, seconds))),
        st.integers(1, 10**4).map(lambda ms: (1000 / ms, Fraction(1000, ms))),
    ),
    seconds=st.integers(0, 4 * 10**9),
    nth=st.integers(0, 10**6),
)
def test_instants_of_whole_rates_and_periods_are_exact_however_long_a_sequence_is(rate, seconds, nth):
    stored, true = rate
    obs = min(int(seconds * true) + nth, int(9 * 10**9 * true))  # as far as nanoseconds count
    found = int(_elapsed(np.array([obs]), np.array([stored]))[0])
    exact = obs * 10**9 / true
    assert abs(found - exact) <= Fraction(1, 2)


def test_a_start_is_read_in_the_unit_that_its_column_states():
    url = "memory://clock-start-units"
    starts = {"s": 86_400, "milliseconds since 1970-01-01": 86_400_001, "days since 1970-01-01": 1.5}
    for units, start in starts.items():
        with StoreWriter(url, {"x": "f4"}, overwrite=True) as out:
            out.describe_column("start_time", units=units)
            out.write("a", {"x": np.zeros(2)}, columns={"start_time": start, "sample_rate": 1.0})
        clock = clock_of(open_store(url))
        expected = {"s": 86_400 * 10**9, "days since 1970-01-01": 129_600 * 10**9}.get(
            units, 86_400_001 * 10**6
        )
        assert clock.span() == (expected, expected + 10**9)


def test_a_rate_that_is_unknown_for_one_sequence_is_that_of_the_field():
    url = "memory://clock-rates"
    fields = [FieldSpec("x", "float32", attrs={"sample_rate": 4000}), FieldSpec("y", "float32")]
    with StoreWriter(url, fields, overwrite=True) as out:
        out.write("a", {"x": [1, 2], "y": [1, 2]}, columns={"sample_rate": 8000.0})
        out.write("b", {"x": [1, 2], "y": [1, 2]})
    store = open_store(url)
    np.testing.assert_equal(sample_rates(store), [8000, 4000])
    np.testing.assert_equal(sample_rates(store, "y"), [8000, np.nan])
    assert store.sequence("b").time.values.tolist() == [0, 1 / 4000]
    assert [store.play(i, field="x").rate for i in "ab"] == [8000, 4000]


@pytest.mark.parametrize(("units", "factor"), [(None, 1), ("Hz", 1), ("kHz", 1000), ("mHz", 0.001)])
def test_rates_are_in_the_units_that_their_column_states(tmp_path, units, factor):
    with StoreWriter(tmp_path / "s.zarr", fields={"x": "f4"}) as out:
        out.describe_column("sample_rate", units=units)
        out.write("a", {"x": [0, 0]}, columns={"sample_rate": 44.1})
    np.testing.assert_allclose(sample_rates(open_store(tmp_path / "s.zarr")), [44.1 * factor])

"""Where windows came from: ids, obs and times, by an irregular clock or a sample rate."""

from __future__ import annotations

import numpy as np
import pytest

import chunkstore
from chunkstore.clock import decode_times
from chunkstore.layout import FieldSpec
from chunkstore.provenance import locate_batch

BATCH = {"sequence": np.array([1, 0, 1]), "start": np.array([0, 2, 3]), "length": np.array([2, 2, 1])}


def two_sequences(name, fields, data, columns=({}, {})):
    with chunkstore.StoreWriter(f"memory://provenance-{name}", fields, overwrite=True) as out:
        out.write("a", {k: v[:4] for k, v in data.items()}, columns=columns[0])
        out.write("b", {k: v[4:] for k, v in data.items()}, columns=columns[1])
    return chunkstore.open_store(f"memory://provenance-{name}")


def test_ids_and_obs_are_named():
    where = locate_batch([two_sequences("plain", {"x": "f4"}, {"x": np.zeros(8)})], BATCH)
    assert where.id == ("b", "a", "b")
    assert where.start.tolist() == [0, 2, 3]
    assert where.stop.tolist() == [2, 4, 4]
    assert str(where) == "'b' [0, 2), 'a' [2, 4), 'b' [3, 4)"
    assert where.time is None
    assert where.seconds is None
    assert len(where) == 3


def test_an_irregular_clock_gives_the_time_of_each_window():
    ticks = np.array([0, 7, 9, 100, 5, 6, 1000, 86_400_000])
    spec = [FieldSpec("x", "float32"), FieldSpec("time", "int64", units="milliseconds since 2013-01-01")]
    where = locate_batch([two_sequences("clock", spec, {"x": np.zeros(8), "time": ticks})], BATCH)
    expected = ["2013-01-01T00:00:00.005", "2013-01-01T00:00:00.009", "2013-01-02"]
    assert where.time.tolist() == np.array(expected, "datetime64[ns]").tolist()


def test_a_sample_rate_gives_seconds_and_with_a_start_the_time():
    columns = ({"sample_rate": 2.0, "start_time": 1.5}, {"sample_rate": 4.0, "start_time": np.nan})
    where = locate_batch([two_sequences("rate", {"x": "f4"}, {"x": np.zeros(8)}, columns)], BATCH)
    assert where.seconds.tolist() == [0.0, 1.0, 0.75]
    assert np.isnat(where.time).tolist() == [True, False, True]
    assert where.time[1] == np.datetime64("1970-01-01T00:00:02.5")


def test_one_rate_may_stand_for_all():
    spec = [FieldSpec("x", "float32", attrs={"sample_rate": 8})]
    where = locate_batch([two_sequences("one-rate", spec, {"x": np.zeros(8)})], BATCH)
    assert where.seconds.tolist() == [0.0, 0.25, 0.375]


@pytest.mark.parametrize(
    ("value", "units", "expected"),
    [
        (1, "hours since 2013-01-01 12:00:00", "2013-01-01T13"),
        (2, "days since 1970-01-01", "1970-01-03"),
        (3, "microseconds since 1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000003"),
    ],
)
def test_units_of_cf_are_decoded(value, units, expected):
    assert decode_times(np.array([value]), units)[0] == np.datetime64(expected)


@pytest.mark.parametrize("units", [None, "s", "metres since lunch", "fortnights since 1970-01-01"])
def test_other_units_say_no_time(units):
    assert decode_times(np.array([1]), units) is None


def test_printing_says_when_windows_begin_where_that_is_known():
    columns = ({"sample_rate": 2.0, "start_time": 1.5}, {"sample_rate": 4.0, "start_time": np.nan})
    where = locate_batch([two_sequences("told", {"x": "f4"}, {"x": np.zeros(8)}, columns)], BATCH)
    assert str(where) == (
        "'b' [0, 2) from 0 s, 'a' [2, 4) from 1970-01-01T00:00:02.5Z, 'b' [3, 4) from 0.75 s"
    )

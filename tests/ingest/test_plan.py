"""Plans are values: hashed, compared, and within the memory that was given."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import ConfigError, IngestError, MemoryLimitError
from chunkstore.layout import FieldSpec
from ingest.difference import changed_files, difference
from ingest.memory import BASE_MEMORY, Choices, choose_layout, write_memory
from ingest.plan import make_plan
from ingest.protocol import ColumnSpec, CutRule, Part, Scan

MIB = 1 << 20
FIELDS = (FieldSpec("x", "float32"), FieldSpec("n", "int64", nullable=True))


def scan(parts=3, **changes):
    made = {
        "source": "npy",
        "fields": FIELDS,
        "parts": [Part(i, f"f{i}", "1", 100, 10, 1000, i % 2, {"at": i}) for i in range(parts)],
        "keys": ("a", "b"),
        "placed": True,
        "options": {"field": "x"},
    }
    return Scan(**{**made, **changes})


def test_the_same_scan_makes_the_same_plan():
    assert make_plan(scan(), Choices()).hash == make_plan(scan(), Choices()).hash


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": 4},
        {"options": {"field": "y"}},
        {"keys": ("a", "c")},
        {"versions": {"numpy": "9"}},
        {"attrs": {"title": "t"}},
        {"fields": (FIELDS[0],)},
    ],
)
def test_whatever_decides_the_bytes_decides_the_hash(changes):
    assert make_plan(scan(**changes), Choices()).hash != make_plan(scan(), Choices()).hash


def test_credentials_are_not_in_the_plan():
    told = scan(options={"field": "x", "storage_options": {"secret": "hunter2"}})
    assert "hunter2" not in json.dumps(make_plan(told, Choices()).to_json())


def test_a_plan_can_be_written_and_read():
    plan = make_plan(scan(), Choices())
    assert json.loads(json.dumps(plan.to_json())) == plan.to_json()
    rows = [json.loads(line) for line in plan.lines()]
    assert [r[1] for r in rows] == ["f0", "f1", "f2"]
    assert rows[1][-1] == {"at": 1}


def test_differences_are_told_in_words():
    a, b = make_plan(scan(), Choices()), make_plan(scan(fields=(FIELDS[1],)), Choices(codec="lz4"))
    told = difference(a.to_json(), b.to_json())
    assert "codec was 'default' and is 'lz4' now" in told
    assert "fields: without x" in told


def test_changed_inputs_are_named():
    old = [[0, "a", "1"], [1, "b", "1"], [2, "c", "1"]]
    new = [Part(0, "a", "1", 0, 0, 1), Part(1, "b", "2", 0, 0, 1), Part(2, "d", "1", 0, 0, 1)]
    assert changed_files(iter(old), new) == ["new: d", "gone: c", "changed: b"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"order": "sort"}, ConfigError),
        ({"order": "backwards"}, ConfigError),
        ({"time_field": "t"}, ConfigError),
        ({"fields": ()}, ConfigError),
        ({"fields": (FieldSpec("t", "float64", items=2),), "time_field": "t"}, ConfigError),
        ({"time_field": "n", "cut": CutRule(max_gap=-1)}, ConfigError),
        ({"time_field": "n", "cut": CutRule(max_gap=float("nan"))}, ConfigError),
        ({"fields": (FIELDS[0], FIELDS[0])}, IngestError),
        ({"key_labels": {"kind": ("cat",)}}, IngestError),
        ({"parts": [Part(1, "f", "1", 1, 1, 1, 0)]}, IngestError),
        ({"parts": [Part(0, "f", "1", 1, -1, 1, 0)]}, IngestError),
        ({"parts": [Part(0, "f", "1", 1, 1, 1, 7)]}, IngestError),
    ],
)
def test_scans_that_contradict_themselves_are_refused(changes, error):
    told = scan(**{k: v for k, v in changes.items() if k != "parts"})
    if "parts" in changes:
        told = Scan(**{**{f: getattr(told, f) for f in told.__slots__}, "parts": changes["parts"]})
    with pytest.raises(error):
        make_plan(told, Choices())


@pytest.mark.parametrize("name", ["kind_code", "n_valid", "x", "lost_obs", "rowsize"])
def test_a_column_in_the_place_of_an_array_of_the_store_is_refused_before_any_work(name):
    columns = (ColumnSpec("kind", "string", categorical=True), ColumnSpec(name, "int64"))
    with pytest.raises(ConfigError, match=f"the name '{name}' would stand for two arrays"):
        make_plan(scan(columns=columns), Choices())


def test_a_part_larger_than_the_limit_is_named():
    huge = [Part(0, "huge.avro", "1", 1, 1, 3 << 30, 0)]
    with pytest.raises(MemoryLimitError, match=r"reading huge\.avro needs 3456 MiB"):
        make_plan(Scan("npy", FIELDS, huge, keys=("a",), placed=True), Choices())


@given(
    st.integers(0, 10**12),
    st.integers(BASE_MEMORY + 80 * MIB, 8 << 30),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([0, 34]),
)
def test_layouts_keep_the_memory_promise(n_obs, limit, fields, staged, aside):
    specs = [FieldSpec(f"f{i}", "float64") for i in range(fields)]
    choices = Choices(memory_limit=limit)
    layout = choose_layout(n_obs, specs, choices, 8 * MIB, staged=staged, aside=aside)
    assert write_memory(min(layout.shard, max(1, n_obs)), specs, 8 * MIB, staged=staged, aside=aside) <= limit
    assert layout.shard * 8 <= 64 * MIB
    assert layout.n_obs == n_obs


def test_the_layout_does_not_depend_on_anything_but_data_and_choices():
    small = choose_layout(10**6, FIELDS, Choices())
    assert small.n_shards > 1
    assert choose_layout(10**10, FIELDS, Choices()).shard * 8 == 64 * MIB


def test_masks_count_as_memory():
    with_mask = write_memory(1000, FIELDS, 0, staged=False)
    without = write_memory(1000, (FIELDS[0], FieldSpec("n", "int64")), 0, staged=False)
    assert with_mask - without == 1000
    assert np.dtype(bool).itemsize == 1

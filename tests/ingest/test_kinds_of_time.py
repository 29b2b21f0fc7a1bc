"""Times of any dtype, with all that they may hold: sorted as numpy sorts the whole, cut alike everywhere."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkstore
import ingest

SUPPORT = str(Path(__file__).parent / "support")
SPECIAL = {
    "f": [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -1.5],
    "i": [-(2**63), -(2**63) + 1, 2**63 - 1, 0, -1, 2**53 + 1, 2**53],
    "u": [0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**53 + 1],
}


@pytest.fixture(autouse=True)
def support(monkeypatch):
    monkeypatch.syspath_prepend(SUPPORT)
    yield
    sys.modules.pop("keyed_source", None)


def write(folder, files, kind):
    """Write files of (key, time) and return the columns of all, in the order of the inputs."""
    folder.mkdir()
    number = 0
    made = []
    for f, rows in enumerate(files):
        n = len(rows)
        columns = {
            "key": np.array([k for k, _ in rows], np.int64),
            "time": np.array([t for _, t in rows], kind),
            "value": np.arange(number, number + n, dtype=np.float64),
            "pair": np.zeros((n, 2), np.int32),
            "count": np.zeros(n, np.int64),
            "flag": np.zeros(n, np.int8),
        }
        number += n
        np.savez(folder / f"part{f:03d}.npz", **columns)
        made.append(columns)
    return {name: np.concatenate([m[name] for m in made]) for name in made[0]}


@st.composite
def inputs(draw):
    kind = draw(st.sampled_from(["float64", "float32", "int64", "uint64", "int32"]))
    letter = np.dtype(kind).kind
    limits = None if letter == "f" else np.iinfo(kind)
    special = [v for v in SPECIAL[letter] if limits is None or limits.min <= v <= limits.max]
    small = st.integers(0, 9).map(float if letter == "f" else int)
    time = st.one_of(small, st.sampled_from(special))
    files = draw(
        st.lists(
            st.lists(st.tuples(st.integers(0, 2), time), min_size=1, max_size=12), min_size=1, max_size=6
        )
    )
    if draw(st.booleans()):  # every file in order: whole slices stand alone or overlap
        files = [sorted(f, key=lambda row: (row[1] != row[1], row[1])) for f in files]
    return kind, files, draw(st.sampled_from([0, 1 << 20])), draw(st.sampled_from([2, 5, 50]))


@settings(max_examples=40, deadline=None)
@given(given=inputs())
def test_rows_are_sorted_as_numpy_sorts_the_whole(tmp_path_factory, given):
    kind, files, whole, part_rows = given
    folder = tmp_path_factory.mktemp("times")
    columns = write(folder / "in", files, kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SUPPORT)
        patch.setattr("ingest.assemble.MERGE_WHOLE", whole)
        patch.setattr("ingest.plan.stage_target", lambda total: 300)
        patch.setattr("ingest.plan.SEGMENT", 300)
        options = {"order": "sort", "time_kind": kind, "part_rows": part_rows}
        out = folder / "o.zarr"
        ingest.ingest("keyed_source:KeyedSource", folder / "in", out, options, workers=0, chunk=2, shard=6)
    store = chunkstore.open_store(out)
    assert store.n_obs == len(columns["key"])
    offsets = store.sequences.offsets
    for i, name in enumerate(store.sequences.ids):
        rows = np.flatnonzero(columns["key"] == int(name[3:]))
        rows = rows[np.argsort(columns["time"][rows], kind="stable")]
        a, b = int(offsets[i]), int(offsets[i + 1])
        np.testing.assert_array_equal(store.read("value", a, b), columns["value"][rows])
        np.testing.assert_array_equal(store.read("time", a, b), columns["time"][rows])


@pytest.mark.parametrize(
    ("kind", "times", "gap"),
    [
        ("float32", [0.1, 0.2, 0.3, 3.3, 3.4, 6.6, 6.7, 9.9], 0.1),
        ("float32", [0.0, 16777216.0, 33554436.0, 33554440.0, 50331660.0, 50331664.0], 16777219.0),
        ("int32", [-(2**31), 2**31 - 1, 2**31 - 1, 2**31 - 1], 2.0**33),
        ("int8", [-128, 127, 127, 127], 1000),
        ("int64", [0, 2**53 + 1, 2**54 + 2, 2**54 + 2], float(2**53)),
        ("int64", [-(2**63), 2**63 - 1, 2**63 - 1], 2.0**64),
        ("uint64", [0, 2**53 + 1, 2**64 - 1, 2**64 - 1], float(2**53)),
    ],
)
def test_a_cut_does_not_depend_on_where_shards_end(tmp_path, kind, times, gap):
    columns = write(tmp_path / "in", [[(0, t) for t in times]], kind)
    exact = [t.item() for t in columns["time"]]
    wanted = [i for i in range(1, len(exact)) if exact[i] - exact[i - 1] > gap]
    for shard in (1, 2, 3, 64):
        out = tmp_path / f"{shard}.zarr"
        options = {"order": "keep", "time_kind": kind, "max_gap": gap}
        ingest.ingest(
            "keyed_source:KeyedSource", tmp_path / "in", out, options, workers=0, chunk=1, shard=shard
        )
        assert chunkstore.open_store(out).sequences.offsets[1:-1].tolist() == wanted

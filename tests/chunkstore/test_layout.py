"""Lengths of chunks and shards, names and sizes: all arithmetic, checked against counting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore import ConfigError, FieldSpec, Layout
from chunkstore.layout import check_name, parse_bytes


@given(n_obs=st.integers(0, 500), chunk=st.integers(1, 20), times=st.integers(1, 5))
def test_chunks_and_shards_tile_obs_exactly(n_obs, chunk, times):
    layout = Layout(n_obs, chunk, chunk * times)
    for count, span, of in (
        (layout.n_chunks, layout.chunk_range, layout.chunk_of),
        (layout.n_shards, layout.shard_range, layout.shard_of),
    ):
        covered = [obs for i in range(count) for obs in range(*span(i))]
        assert covered == list(range(n_obs))
        assert all(of(obs) == i for i in range(count) for obs in range(*span(i)))


@given(
    widths=st.lists(st.sampled_from([1, 2, 4, 8, 48, 4096]), min_size=1, max_size=4),
    chunk=st.none() | st.integers(1, 10**6) | st.sampled_from(["1KiB", "64KiB", "3MB"]),
    shard=st.none() | st.sampled_from(["1MiB", "64MiB", "5GB"]),
)
def test_a_planned_layout_always_holds_together(widths, chunk, shard):
    fields = [FieldSpec(f"f{i}", "uint8", items=w) for i, w in enumerate(widths)]
    layout = Layout.plan(10**9, fields, chunk, shard)
    assert layout.shard % layout.chunk == 0
    assert layout.shard // layout.chunk <= 2**20
    if isinstance(chunk, str):
        assert layout.chunk == 1 or layout.chunk * max(widths) <= parse_bytes(chunk)


@pytest.mark.parametrize("arguments", [(-1, 1, 1), (5, 0, 1), (5, 2, 3), (5, 4, 2), (5, -1, -1)])
def test_lengths_that_do_not_fit_are_refused(arguments):
    with pytest.raises(ConfigError):
        Layout(*arguments)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1k", 1000), ("2 KiB", 2048), ("1.5MiB", 1572864), ("3g", 3 * 10**9)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 furlong", "1e3", None, True, 1.5, -1])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError):
        parse_bytes(text)


BAD_NAMES = [
    "",
    " ",
    "a b",
    "a/b",
    "../a",
    ".a",
    "-a",
    "__a",
    "obs",
    "rowsize",
    "zarr.json",
    "a\n",
    "ä",
    "a" * 201,
    7,
    None,
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_cannot_stand_for_an_array_is_refused(name):
    with pytest.raises(ConfigError, match="cannot name"):
        check_name(name, "a field")


@pytest.mark.parametrize("name", ["x", "a.b", "a-b", "_x", "x__y", "1st", "A" * 200])
def test_other_names_are_taken(name):
    assert FieldSpec(name, "f4").name == name


@pytest.mark.parametrize("dtype", ["complex64", "U5", "O", "M8[ns]", "f16", "nonsense", "V4"])
def test_a_dtype_that_a_field_cannot_have_is_refused(dtype):
    with pytest.raises(ConfigError, match="dtype"):
        FieldSpec("x", dtype)
    with pytest.raises(ConfigError, match="items"):
        FieldSpec("x", "f4", items=-1)


def test_sizes_are_exact_however_many_digits_they_have():
    assert parse_bytes("9007199254740993") == 9007199254740993
    assert parse_bytes("9" * 400) == 10**400 - 1

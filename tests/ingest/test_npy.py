"""Headers of .npy files that mean harm, or something else than numbers by row."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import ingest
from chunkstore import open_store
from chunkstore.errors import ConfigError, UnsupportedError
from ingest.sources.npy import NpySource


def raw(header, data=b"", version=(1, 0)):
    text = header.encode() + b"\n"
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text + data


def array(shape, data=b"", descr="'<f8'", **how):
    return raw(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}", data, **how)


@pytest.mark.parametrize(
    "content",
    [
        array("(-5,)", bytes(40)),
        array("(5, -5)", bytes(40)),
        array("(5, 0)"),
        array("()", bytes(8)),
        array("(5,)", bytes(40), descr="()"),
        array("(5,)", bytes(40), descr="'|O'"),
        array("(5,)", bytes(80), descr="'<f16'"),
        array("(5,)", bytes(40), version=(9, 9)),
        array(f"({1 << 40},)", bytes(40)),  # parts for so many rows would take all memory
        array(f"(2, {1 << 50})", bytes(40)),
        raw("{[]: 1}"),
        raw("(" * 5000),
        raw("{'descr': '<f8'}"),
    ],
)
def test_a_header_of_any_kind_costs_its_own_file_only(tmp_path, content):
    np.save(tmp_path / "good.npy", np.arange(5.0))
    (tmp_path / "bad.npy").write_bytes(content)
    scan = NpySource().scan([str(tmp_path / name) for name in ("bad.npy", "good.npy")])
    assert [fault.code for fault in scan.faults] == ["npy-unreadable"]
    assert [(part.claimed, scan.keys[part.sequence]) for part in scan.parts] == [(5, "good")]


def test_a_file_cut_short_keeps_the_place_of_its_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100.0))
    data = (tmp_path / "a.npy").read_bytes()
    for keep in (0, 1, 50):
        (tmp_path / "a.npy").write_bytes(data[: 128 + 8 * keep])
        result = ingest.ingest("npy", tmp_path / "a.npy", tmp_path / "out.zarr", workers=0, overwrite=True)
        assert result.report["faults"] == {"npy-truncated": 1}
        store = open_store(tmp_path / "out.zarr")
        assert store.read("x", 0, keep).tolist() == list(range(keep))
        assert store.gaps.tolist() == [[keep, 100]]


def test_what_is_not_on_a_disk_is_refused_in_one_sentence():
    with pytest.raises(UnsupportedError, match="read from disks only"):
        NpySource().scan(["s3://bucket/a.npy"])


@pytest.mark.parametrize(
    ("options", "name"), [({"rate": -1.0}, "rate"), ({"rate": 0}, "rate"), ({"part_rows": 2.5}, "part_rows")]
)
def test_options_that_cannot_be_are_refused_by_name(options, name):
    with pytest.raises(ConfigError, match=name):
        NpySource(**options)

"""What a store says of its making when the ledger beside it is gone."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import chunkstore
import ingest
from chunkstore.info import describe


@pytest.fixture(autouse=True)
def _inputs(tmp_path):
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.arange(50.0))
    raw = (tmp_path / "1.npy").read_bytes()
    (tmp_path / "1.npy").write_bytes(raw[:-80])  # the last 10 rows
    (tmp_path / "3.npy").write_bytes(b"no array")


def run(tmp_path, name, **how):
    return ingest.ingest("npy", str(tmp_path), tmp_path / name, {}, chunk=8, shard=16, **how)


def test_faults_and_rows_are_told_without_the_ledger_as_with_it(tmp_path):
    result = run(tmp_path, "o.zarr", workers=0)
    with_ledger = describe(chunkstore.open_store(tmp_path / "o.zarr"))
    shutil.rmtree(tmp_path / "o.zarr.ledger")
    without = describe(chunkstore.open_store(tmp_path / "o.zarr"))
    assert without["faults"] == with_ledger["faults"] == {"npy-truncated": 1, "npy-unreadable": 1}
    assert without["provenance"]["rows"] == dict(result.report["rows"])
    assert without["provenance"]["rows"] == {"rows_in": 150, "stored": 140, "gap": 10, "quarantined": 0}
    json.dumps(without)


def test_what_it_says_does_not_depend_on_how_it_was_run(tmp_path):
    run(tmp_path, "a.zarr", workers=0)
    run(tmp_path, "b.zarr", workers=2)
    a, b = ((tmp_path / n / "zarr.json").read_bytes() for n in ("a.zarr", "b.zarr"))
    assert a == b

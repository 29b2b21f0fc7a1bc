"""Workers that have other versions than the client write nothing."""

from __future__ import annotations

import numpy as np
import pytest

import chunkstore
import ingest
from chunkstore.errors import IngestError
from ingest.versions import check_versions, versions_here


def test_other_versions_are_named_with_both_sides():
    here = versions_here(["numpy", "libsndfile"])
    check_versions(here)
    with pytest.raises(IngestError, match=rf"numpy {np.__version__}, not 1\.0; install the same"):
        check_versions(here | {"numpy": "1.0"})
    with pytest.raises(IngestError, match="no-such-library none, not 2"):
        check_versions({"no-such-library": "2"})


def test_a_job_ends_where_workers_have_another_version_than_the_client(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.arange(100.0))
    with monkeypatch.context() as patch:
        patch.setattr(chunkstore, "__version__", "9.9.9")
        with pytest.raises(IngestError, match=r"other versions.*chunkstore .*, not 9\.9\.9"):
            ingest.ingest("npy", tmp_path / "a.npy", tmp_path / "o.zarr", workers=1)
    ingest.ingest("npy", tmp_path / "a.npy", tmp_path / "o.zarr", workers=1, overwrite=True)
    store = chunkstore.open_store(tmp_path / "o.zarr")
    assert np.array_equal(store.read(next(iter(store.fields)), 0, 100), np.arange(100.0))

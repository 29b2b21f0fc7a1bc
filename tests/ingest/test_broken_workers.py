"""Worker processes of dask whose storage fails: the store is the undisturbed one, or the job says why not.

Faults are injected within the workers, where the work is done. The client, which holds the plan and puts
the store together, is disturbed in ``test_broken_storage.py``.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

import chunkstore
import ingest
from chunkstore.errors import ChunkstoreError, IngestError
from chunkstore.testing import Faults, break_storage, mend_storage
from chunkstore.verify import verify_store
from ingest.testing import break_folders

SUPPORT = Path(__file__).parent / "support"
#: where a fault strikes (calls of the store, of scratch, of the ledger), and what it is
CASES = {
    "the store is slow and fails": ("store", {"latency": 0.002, "error": 0.05}),
    "writes of the store are torn": ("store", {"torn": 0.1}),
    "scratch is slow and fails": ("scratch", {"latency": 0.002, "error": 0.1, "limit": 9}),
    "writes of scratch are torn": ("scratch", {"torn": 0.1}),
    "reads of scratch are short": ("scratch", {"short": 0.1, "limit": 9}),
    "reads of scratch are flipped": ("scratch", {"flip": 0.1, "limit": 9}),
    "scratch loses a part of what it took": ("scratch", {"lying": 0.1}),
    "the ledger fails": ("ledger", {"error": 0.05}),
    "writes of the ledger are torn": ("ledger", {"torn": 0.1}),
}


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SUPPORT))
        from cluster import Cluster

        made = Cluster(2)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def client(cluster):
    import distributed

    with distributed.Client(cluster.address, set_as_default=False) as made:
        made.wait_for_workers(2, timeout=60)
        yield made


@pytest.fixture(scope="module")
def folder(cluster, tmp_path_factory):
    from keyed_source import make_files

    made = tmp_path_factory.mktemp("in")
    make_files(made, files=3, rows=120, keys=3)
    return made


def run(folder, out, **how):
    options = {"order": "sort", "part_rows": 40}
    return ingest.ingest("keyed_source:KeyedSource", folder, out, options, chunk=16, shard=64, **how)


@pytest.fixture(scope="module")
def wanted(folder, tmp_path_factory):
    from trees import tree

    out = tmp_path_factory.mktemp("wanted") / "o.zarr"
    run(folder, out, workers=0)
    return tree(out)


@pytest.mark.cluster
@pytest.mark.parametrize("case", CASES)
def test_what_strikes_a_worker_costs_time_and_no_byte(
    case, cluster, client, folder, wanted, tmp_path, monkeypatch
):
    from trees import tree

    monkeypatch.setattr("ingest.run.time.sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.01)))
    monkeypatch.setattr("ingest.run.PAUSES", (0.0, 0.01, 0.01, 0.01))
    monkeypatch.setattr("ingest.plan.SEGMENT", 4000)
    monkeypatch.setattr("ingest.plan.stage_target", lambda total: 2000)
    where, how = CASES[case]
    told = Counter()
    for seed in range(2):
        out = tmp_path / f"o{seed}.zarr"
        faults = Faults(seed=seed, **how)
        broke, url = {
            "store": (break_storage, str(out)),
            "scratch": (break_folders, f"{out}.ledger/scratch"),
            "ledger": (break_folders, f"{out}.ledger"),
        }[where]
        client.run(broke, url, faults)
        try:
            for attempt in range(40):  # each may end at its first fault, and three workers have nine each
                try:
                    run(folder, out, scheduler=cluster.address, resume=attempt > 0)
                    break
                except IngestError as error:
                    with pytest.raises(ChunkstoreError):
                        chunkstore.open_store(out)  # not before it is whole
                    assert "--resume" in str(error) or "injected" in str(error)  # noqa: PT017
            else:
                pytest.fail("forty attempts were not enough")
        finally:
            for faults_of_worker in client.run(mend_storage).values():
                told.update(fault.kind for fault in faults_of_worker)
        assert tree(out) == wanted
        assert verify_store(out, deep=True).ok
    assert set(told) == set(how) - {"latency", "limit"}

"""What a worker keeps, where several of its threads run tasks."""

from __future__ import annotations

from types import SimpleNamespace

from ingest import worker
from ingest.ledger import Ledger


def test_threads_of_many_jobs_pass_the_fence_side_by_side(tmp_path, monkeypatch):
    """One of them forgets all looks at locks, while another asks for its own."""

    class Forgetting(dict):
        def __contains__(self, key):
            found = super().__contains__(key)
            self.clear()
            return found

    monkeypatch.setattr(worker, "LocalFolder", type(None))  # a look is believed a while
    monkeypatch.setattr(worker, "_fenced", Forgetting())
    ledger = Ledger(str(tmp_path))
    ledger.put_json("lock.json", {"token": "t"})
    job = SimpleNamespace(token="t", store="o.zarr")
    for _ in range(3):
        worker.fence(job, ledger)

"""Very many tasks: one more costs the client a few numbers, and workers and scheduler nothing at all."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import pytest

import chunkstore
import ingest
from chunkstore.errors import IngestError

sys.path.insert(0, str(Path(__file__).parent / "support"))
from many import PARTS, ROWS, Answering

OPTIONS = {"chunk": PARTS * ROWS, "shard": PARTS * ROWS, "progress": "silent"}


def run(tmp_path, tasks, runner=None, monkeypatch=None, workers=0, **options):
    source = tmp_path / "in.many"
    source.write_bytes(b"0")
    if runner is not None:
        monkeypatch.setattr("ingest.job.make_runner", lambda *_: runner)
    out = tmp_path / f"{tasks}.zarr"
    return ingest.ingest(
        "many:ManySource", source, out, {"tasks": tasks}, workers=workers, **OPTIONS, **options
    )


@pytest.mark.slow
def test_one_more_task_costs_the_client_less_than_a_kilobyte(tmp_path, monkeypatch):
    """Scan, plan, handing out, receipts and report. What was measured: see the page on benchmarks."""

    def peak(tasks):
        tracemalloc.start()
        runner = Answering()
        result = run(tmp_path, tasks, runner, monkeypatch)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (runner.done, result.report["write_tasks"]) == (tasks, tasks)
        assert result.report["obs"] == tasks * PARTS * ROWS
        return most

    peak(20)  # what is imported on the way
    assert (peak(10_000) - peak(1_000)) / 9_000 < 1000


def test_resuming_does_only_what_is_missing(tmp_path, monkeypatch):
    tasks, most = 1203, 1150
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, tasks, Answering(most), monkeypatch)
    (tmp_path / f"{tasks}.zarr.ledger/write/000/000007.json").unlink()
    runner = Answering()
    result = run(tmp_path, tasks, runner, monkeypatch, resume=True)
    assert runner.done == tasks - most + 1
    assert result.report["rows"]["stored"] == result.report["obs"] == tasks * PARTS * ROWS
    again = run(tmp_path, tasks, Answering(0), monkeypatch, resume=True)
    assert again.report == result.report


def test_a_receipt_that_is_lost_at_the_end_is_told(tmp_path, monkeypatch):
    class Losing(Answering):
        def map(self, work, tasks, count=None):
            yield from super().map(work, tasks, count)
            (tmp_path / "30.zarr.ledger/write/000/000007.json").unlink()

    with pytest.raises(IngestError, match="lost the receipt of write task 7; run again with --resume"):
        run(tmp_path, 30, Losing(), monkeypatch)
    runner = Answering()
    run(tmp_path, 30, runner, monkeypatch, resume=True)
    assert runner.done == 1


@pytest.mark.cluster
def test_values_of_tasks_that_are_handed_out_together_are_right(tmp_path):
    result = run(tmp_path, 600, workers=2)
    store = chunkstore.open_store(result.store)
    assert store.read("x", 0, store.n_obs).tolist() == list(range(600 * PARTS * ROWS))

"""Merging takes memory for the rows of a shard, not for all that they are merged with."""

from __future__ import annotations

import tracemalloc

import numpy as np

from ingest.assemble import Assembly, Slices
from ingest.exchange import SegmentRef
from ingest.folder import LocalFolder


def test_a_small_shard_amid_a_long_cluster_takes_little(tmp_path):
    runs, rows, n = 8, 60_000, 5_000
    folder = LocalFolder(str(tmp_path))
    times = [np.sort(np.random.default_rng(i).integers(0, 10**9, rows)) for i in range(runs)]
    for i, run in enumerate(times):
        folder.put(f"s{i}", run.tobytes())
    segments = tuple(SegmentRef(f"s{i}", rows, {"t": (0, "<i8", 0, 0)}) for i in range(runs))
    each = np.arange(runs)
    slices = Slices(segments, each, 0 * each, rows * np.arange(runs + 1), 0 * each)
    start = 200_000
    tracemalloc.start()
    found = Assembly(
        slices, folder, start, start + n, time_field="t", take=np.empty, give=lambda array: None
    ).column("t", None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.tolist() == np.sort(np.concatenate(times))[start : start + n].tolist()
    assert peak < 80 * n + (1 << 20)

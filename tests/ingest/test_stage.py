"""Staging stays within what a plan promises for it, however narrow its rows are."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from chunkstore.layout import FieldSpec
from ingest import stage as staging
from ingest.protocol import Batch, Part

SEGMENT = 2 << 20
ROWS = 5000


class Sink:
    """Scratch that keeps nothing."""

    def put_stream(self, name, pieces):
        return sum(len(piece) for piece in pieces)

    def put(self, name, data):
        pass


@pytest.mark.parametrize(
    ("fields", "order", "lost"),
    [
        ({"x": "int8"}, "keep", ()),
        ({"t": "int64", "x": "int8"}, "sort", ()),
        ({"t": "int64", "x": "int8"}, "sort", ((0, 9),)),
        ({"t": "float64", "x": "float64", "y": "float64"}, "sort", ()),
    ],
)
def test_a_segment_takes_twice_its_bytes_at_most(monkeypatch, fields, order, lost):
    monkeypatch.setattr(staging, "scratch_of", lambda job: Sink())
    specs = tuple(FieldSpec(name, dtype) for name, dtype in fields.items())
    time = "t" if order == "sort" else None
    job = SimpleNamespace(fields=specs, cut=None, order=order, time_field=time, segment=SEGMENT)
    random = np.random.default_rng(0)

    def fill():
        work = staging._Stager(job, staging.StageTask(0, (), None, "input"))
        while len(work.segments) < 2:
            columns = {f.name: random.integers(0, 99, ROWS).astype(f.np_dtype) for f in specs}
            codes = random.integers(0, 400, ROWS).astype(np.int32)
            work.add(
                Part(0, "f", "", 0, -1, 0),
                Batch(columns, ROWS, tuple(map(str, range(400))), codes, lost=lost),
                None,
            )

    fill()  # compiles
    tracemalloc.start()
    fill()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.2 * SEGMENT  # and the batches, which the source's own promise counts

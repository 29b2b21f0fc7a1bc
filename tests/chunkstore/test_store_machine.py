"""A writer, its readers and their splits against a model that is a dictionary of lists."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chunkstore import ConfigError, IncompleteStoreError, StoreWriter, open_store, verify_store

_names = itertools.count()


class StoreMachine(RuleBasedStateMachine):
    """Sequences are appended, whole, in pieces or wrongly; then the store is split and read."""

    @initialize(
        codec=st.sampled_from(["none", "zstd", "blosc-lz4"]), chunk=st.integers(1, 5), times=st.integers(1, 3)
    )
    def begin(self, codec, chunk, times):
        self.url = f"memory://machine-{next(_names)}"
        self.writer = StoreWriter(self.url, {"x": "i4"}, codec=codec, chunk=chunk, shard=chunk * times)
        self.model: dict[str, list[int]] = {}
        self.labels: dict[str, str | None] = {}
        self.gaps: list[tuple[int, int]] = []
        self.splits: set[str] = set()
        self.store = None
        self.counter = itertools.count()

    def fresh(self, n):
        return [next(self.counter) for _ in range(n)]

    @property
    def n_obs(self):
        return sum(map(len, self.model.values()))

    @precondition(lambda self: self.store is None)
    @rule(
        n=st.integers(0, 20),
        label=st.sampled_from(["a", "b", None]),
        gap=st.tuples(st.integers(0, 20), st.integers(1, 5)),
    )
    def write(self, n, label, gap):
        name, values, base = f"s{len(self.model)}", self.fresh(n), self.n_obs
        low, high = gap[0], gap[0] + gap[1]
        inside = high <= n
        self.writer.write(name, {"x": values}, labels={"k": label}, gaps=[(low, high)] if inside else [])
        self.model[name], self.labels[name] = values, label
        if inside:
            self.gaps.append((base + low, base + high))

    @precondition(lambda self: self.store is None)
    @rule(pieces=st.lists(st.integers(0, 7), max_size=4))
    def write_in_pieces(self, pieces):
        name = f"s{len(self.model)}"
        self.model[name], self.labels[name] = [], None
        self.writer.begin(name)
        for n in pieces:
            values = self.fresh(n)
            self.writer.extend({"x": values})
            self.model[name] += values

    @precondition(lambda self: self.store is None)
    @rule()
    def write_wrongly(self):
        with pytest.raises(ConfigError):
            self.writer.write("wrong", {"x": [[1, 2]]}, labels={"k": "lost"})

    @precondition(lambda self: self.store is None)
    @rule()
    def finish(self):
        with pytest.raises(IncompleteStoreError):
            open_store(self.url)
        self.writer.close()
        self.store = open_store(self.url)

    @precondition(lambda self: self.store is not None)
    @rule(seed=st.integers(0, 3), by=st.sampled_from(["sequence", "time"]))
    def split(self, seed, by):
        name = f"{by}{seed}"
        self.store.add_split(name, parts=["train", "val"], by=by, seed=seed, overwrite=True)
        self.splits.add(name)

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data())
    def read(self, data):
        whole = list(itertools.chain(*self.model.values()))
        low = data.draw(st.integers(0, len(whole)))
        high = data.draw(st.integers(low, len(whole)))
        assert self.store.read("x", low, high).tolist() == whole[low:high]

    @precondition(lambda self: self.store is not None)
    @rule()
    def open_again(self):
        self.store = open_store(self.url)

    @invariant()
    def a_finished_store_is_the_model(self):
        if getattr(self, "store", None) is None:
            return
        store = self.store
        assert store.sequences.ids.tolist() == list(self.model)
        assert store.sequences.rowsize.tolist() == [len(v) for v in self.model.values()]
        assert store.gaps.tolist() == [list(g) for g in self.gaps]
        if "k" in store.sequences.columns:
            assert store.sequences.column("k").tolist() == [v or "" for v in self.labels.values()]
        assert set(store.splits) == self.splits
        lost = {obs for low, high in self.gaps for obs in range(low, high)}
        for name in self.splits:
            seen = [
                obs
                for part in ("train", "val")
                for a, b in zip(
                    store.segments(f"{name}:{part}").start, store.segments(f"{name}:{part}").stop, strict=True
                )
                for obs in range(int(a), int(b))
            ]
            assert len(seen) == len(set(seen)) == store.n_obs - len(lost)
        assert store.audit_splits(3).ok

    def teardown(self):
        if getattr(self, "store", None) is not None:
            assert verify_store(self.url, deep=True).findings == []


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestStoreMachine = StoreMachine.TestCase

PEAK = """
import sys
import numpy as np
from chunkstore import StoreWriter, verify_store
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
with StoreWriter(sys.argv[1] + ".warm", {"x": "f4"}) as out:  # loads what is loaded once: compiled code
    out.write("warm", {"x": np.zeros(1000)})
with StoreWriter(sys.argv[1], {"x": "f4"}, memory_limit="32MiB") as out:
    out.write("warm", {"x": np.zeros(1000)})
    before = peak()
    out.begin("long")
    for i in range(200):
        out.extend({"x": np.full(262144, i, "f4")})
print((peak() - before) // 1024)
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="this system does not tell the peak of memory"
)
def test_writing_two_hundred_megabytes_stays_within_the_memory_limit(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "a.zarr")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert int(done.stdout) < 64
    assert np.unique(open_store(tmp_path / "a.zarr").read("x", 1000, 1000 + 200 * 262144)).tolist() == list(
        range(200)
    )

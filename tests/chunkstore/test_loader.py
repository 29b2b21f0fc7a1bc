"""Batches of windows: right values, every window once, for any ranks, groups, stops and stores.

Every value encodes (store, sequence, position), so that a wrong window says where it came from.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore import StoreWriter, open_store
from chunkstore.ahead import Passed, ahead_of
from chunkstore.errors import (
    ConfigError,
    CorruptDataError,
    ForkError,
    MemoryLimitError,
    UnknownNameError,
)
from chunkstore.layout import FieldSpec, Layout
from chunkstore.loader import WindowLoader
from chunkstore.recipe import Cutting, plan_recipe
from chunkstore.resident import Residency
from chunkstore.sampling import PerSequence
from chunkstore.schedule import EpochSchedule
from chunkstore.segments import Segments, cut_segments
from chunkstore.state import Rotation
from chunkstore.targets import Cut
from chunkstore.windows import WindowSpec


class MemoryStore:
    """A store in memory that counts decoded chunks, and may be slow or damaged on purpose."""

    def __init__(self, rowsizes, chunk=16, *, number=0, gaps=None, bad=(), latency=0.0):
        offsets = np.concatenate([[0], np.cumsum(rowsizes)]).astype(np.int64)
        sequence = np.repeat(np.arange(len(rowsizes)), rowsizes)
        position = np.arange(offsets[-1]) - offsets[sequence]
        self.url = f"memory-{number}"
        self.n_obs = int(offsets[-1])
        self.layout = Layout(self.n_obs, chunk, chunk)
        self.fields = {
            "a": FieldSpec("a", "float32"),
            "b": FieldSpec("b", "int16", scale_factor=0.5),
            "v": FieldSpec("v", "float32", items=2),
        }
        self.data = {
            "a": (number * 100_000 + sequence * 1000 + position).astype("f4"),
            "b": (position % 3000).astype("i2"),
            "v": np.stack([sequence, position], axis=1).astype("f4"),
        }
        self.sequences = SimpleNamespace(offsets=offsets, ids=[f"s{i}" for i in range(len(rowsizes))])
        self._gaps = None if gaps is None else np.array(gaps)
        self.fingerprint = f"{number} {rowsizes} {chunk}"
        self.bad, self.latency = set(bad), latency
        self.decoded = {}
        self._lock = threading.Lock()

    def segments(self, split=None):
        return cut_segments(self.sequences.offsets, gaps=self._gaps)

    def read_into(self, field, start, stop, out):
        if self.latency:
            time.sleep(self.latency)
        c = self.layout.chunk
        for chunk in range(start // c, (stop - 1) // c + 1):
            with self._lock:
                self.decoded[field, chunk] = self.decoded.get((field, chunk), 0) + 1
            if chunk in self.bad:
                raise CorruptDataError(f"chunk {chunk} of {field} fails its checksum")
        out[...] = self.data[field][start:stop]

    def read_ranges(self, field, starts, stops, outs):
        for start, stop, out in zip(starts, stops, outs, strict=True):
            self.read_into(field, start, stop, out)


def check_batch(batch, length, field_values=True):
    """Check "x" of field "a" against what the row says it is; return (store, sequence, start) of rows."""
    n = len(batch["sequence"])
    store = batch.get("store", np.zeros(n, np.int64))
    first = store * 100_000 + batch["sequence"] * 1000 + batch["start"]
    want = first[:, None] + np.arange(length)
    want = np.where(np.arange(length) < batch["length"][:, None], want, 0)
    assert (batch["x"][:, 0] == want).all()
    return list(zip(store.tolist(), batch["sequence"].tolist(), batch["start"].tolist(), strict=True))


def windows_of(stores, spec):
    return {
        (number, int(q), int(at - s.sequences.offsets[q]))
        for number, s in enumerate(stores)
        for q, start, stop in zip(
            *(getattr(s.segments(), k) for k in ("sequence", "start", "stop")), strict=True
        )
        for at in range(start, stop - spec.span + 1, spec.stride)
    }


rowsizes = st.lists(st.integers(1, 90), min_size=1, max_size=6).filter(lambda r: max(r) >= 12)


@st.composite
def cases(draw):
    stores = [
        MemoryStore(
            draw(rowsizes),
            draw(st.sampled_from([1, 7, 16, 64])),
            number=number,
            gaps=draw(st.sampled_from([None, [[4, 6]]])),
        )
        for number in range(draw(st.sampled_from([1, 1, 2])))
    ]
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    options = {
        "batch_size": draw(st.integers(1, 20)),
        "lane_groups": groups,
        "passes": draw(st.sampled_from(["auto", 1, 3])),
        "memory_limit": draw(st.sampled_from([1500, 4000, "1MiB"])),
        "seed": draw(st.integers(0, 9)),
        "shuffle": draw(st.sampled_from([True, True, False])),
    }
    spec = WindowSpec(
        draw(st.integers(1, 12)), stride=draw(st.integers(1, 9)), horizon=draw(st.integers(0, 2))
    )
    return stores, spec, options


def make(stores, spec, options, **more):
    try:
        return WindowLoader(stores, spec, fields=["a"], **(options | more))
    except MemoryLimitError:
        return WindowLoader(stores, spec, fields=["a"], **(options | more | {"memory_limit": "1MiB"}))


@given(cases())
@settings(max_examples=80)
def test_every_window_is_served_exactly_once_an_epoch_with_its_own_values(case):
    stores, spec, options = case
    want = windows_of(stores, spec)
    if not want:
        return
    with make(stores, spec, options) as loader:
        epochs = []
        for epoch, few in enumerate(
            (64, 0)
        ):  # windows are looked for among all segments, or those of a block
            with patch("chunkstore.rows.FEW_SEGMENTS", few):
                rows = [row for batch in loader.batches(epoch) for row in check_batch(batch, spec.length)]
            assert len(rows) == len(want) == loader.n_windows
            assert set(rows) == want
            epochs.append(rows)
        if len(want) > 12 and options["shuffle"]:
            assert epochs[0] != epochs[1]


@given(cases(), st.data())
@settings(max_examples=60)
def test_stopped_anywhere_and_resumed_with_another_world_size_the_union_is_the_epoch(case, data):
    stores, spec, options = case
    want = windows_of(stores, spec)
    if not want:
        return
    lanes = options["lane_groups"] * 4
    few = patch("chunkstore.rows.FEW_SEGMENTS", data.draw(st.sampled_from([0, 64])))
    with few, make(stores, spec, options, lanes=lanes, memory_limit="1MiB") as loader:
        rows, drawn, turn = [], [0] * loader.lane_groups, 0
        for world in [*data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=3)), 1]:
            last = world == 1 and len(rows) > 0
            stop = None if last else data.draw(st.integers(0, 3))
            parts = []
            for rank in range(world):
                got = loader.batches(0, rank=rank, world_size=world, start_draws=drawn, first_group=turn)
                parts.append([b for _, b in zip(range(10**9 if stop is None else stop), got, strict=False)])
                got.close()
            assert len({len(p) for p in parts}) == 1
            for batches in zip(*parts, strict=True):
                assert len({(b["group"], b["draws"]) for b in batches}) == 1
                drawn[batches[0]["group"]] += batches[0]["draws"]
                turn = (batches[0]["group"] + 1) % loader.lane_groups
                for b in batches:
                    kept = ~b["repeated"] if "repeated" in b else np.ones(len(b["start"]), bool)
                    rows += [r for r, k in zip(check_batch(b, spec.length), kept, strict=True) if k]
        for group in range(loader.lane_groups):
            drawn[group] = min(drawn[group], loader.n_draws(group))
        for batch in loader.batches(0, start_draws=drawn, first_group=turn):
            rows += check_batch(batch, spec.length)
        assert len(rows) == len(want)
        assert set(rows) == want


@pytest.mark.parametrize("groups", [1, 2])
def test_ranks_of_any_number_merge_to_the_same_global_batches(groups):
    store = MemoryStore([300, 90, 210])
    spec = WindowSpec(8)

    def batches(world):
        parts = []
        for rank in range(world):
            with WindowLoader(
                store, spec, fields=["a"], batch_size=16 // world, lanes=16, lane_groups=groups, passes=2,
                memory_limit=6000, drop_last=True,
            ) as loader:  # fmt: skip
                parts.append([check_batch(b, 8) for b in loader.batches(3, rank=rank, world_size=world)])
        return [
            [row for rows in zip(*batch, strict=True) for row in rows] for batch in zip(*parts, strict=True)
        ]

    alone = batches(1)
    assert len(alone) > 20
    for world in (2, 4, 8):
        assert batches(world) == alone


def test_what_fits_is_a_full_shuffle_for_any_number_of_ranks():
    stores = [MemoryStore([300, 90, 210], chunk=16), MemoryStore([100], chunk=10, number=1)]
    spec = WindowSpec(40, stride=3)

    def batches(world):
        parts = []
        for rank in range(world):
            with WindowLoader(stores, spec, fields=["a"], batch_size=16 // world, drop_last=True) as loader:
                assert loader.plan.full
                parts.append([check_batch(b, 40) for b in loader.batches(1, rank=rank, world_size=world)])
        whole = [[row for rows in zip(*b, strict=True) for row in rows] for b in zip(*parts, strict=True)]
        return [row for batch in whole for row in batch]

    alone = batches(1)
    assert len(alone) == len(set(alone)) == len(windows_of(stores, spec)) // 16 * 16
    for world in (2, 4, 8):
        assert batches(world) == alone
    for store in stores:
        assert max(store.decoded.values()) == 15  # fifteen loaders, each decoded each chunk once


def test_starting_at_a_batch_gives_the_rest_of_the_same_epoch_without_reading_what_is_before():
    store = MemoryStore([5000], chunk=50)
    with WindowLoader(store, WindowSpec(10), fields=["a"], batch_size=50, memory_limit=4000) as loader:
        whole = [check_batch(b, 10) for b in loader.batches(0)]
        before = sum(store.decoded.values())
        assert [check_batch(b, 10) for b in loader.batches(0, start_batch=90)] == whole[90:]
        assert sum(store.decoded.values()) - before < before / 3


class EndlessStore:
    """Twenty thousand million obs, all 1, that lie nowhere; reads are counted."""

    def __init__(self, n_obs=2 * 10**10, chunk=1 << 22):
        self.url, self.n_obs, self.fingerprint = "endless", n_obs, "endless"
        self.layout = Layout(n_obs, chunk, chunk)
        self.fields = {"a": FieldSpec("a", "uint8")}
        self.sequences = SimpleNamespace(offsets=np.array([0, n_obs]), ids=["s"])
        self.decoded = 0

    def segments(self, split=None):
        return cut_segments(self.sequences.offsets)

    def read_into(self, field, start, stop, out):
        self.decoded += 1
        out[...] = 1


def test_starting_after_a_thousand_million_batches_is_no_more_work_than_starting_after_ten(monkeypatch):
    """Work is counted: draws that are scheduled, batches that are gone through, ranges that are read."""
    found = {}
    for skip in (10, 10**9):
        work = {"draws": 0, "batches": 0}
        items, batches = EpochSchedule.items, Rotation.batches

        def counted_items(self, draws, cursor=None, work=work, items=items):
            work["draws"] += np.size(draws)
            return items(self, draws, cursor)

        def counted_batches(self, position, groups=None, work=work, batches=batches):
            for batch in batches(self, position, groups):
                work["batches"] += 1
                yield batch

        with monkeypatch.context() as patch:
            patch.setattr(EpochSchedule, "items", counted_items)
            patch.setattr(Rotation, "batches", counted_batches)
            store = EndlessStore()
            with WindowLoader(
                store, WindowSpec(8), batch_size=16, lanes=2, passes=1, memory_limit=5 * (2**22 + 8)
            ) as loader:
                assert loader.n_batches() > 10**9
                running = loader.batches(0, start_batch=skip)
                first = next(running)
                draws = np.arange(16 * skip, 16 * skip + 16)
                ids, _ = items(loader.schedule(0), draws)
                assert first["start"].tolist() == loader.index.locate(ids).start.tolist()
                running.close()
            assert store.decoded < 10  # what lanes hold and what is read ahead, of 4768 blocks
        found[skip] = work
    assert found[10] == found[10**9]
    assert found[10]["batches"] == 1


def test_a_store_that_fits_is_decoded_once_in_the_life_of_the_loader():
    store = MemoryStore([700, 45, 300], chunk=32)
    with WindowLoader(store, WindowSpec(40), fields=["a", "v"], batch_size=16) as loader:
        assert loader.plan.whole
        for epoch in range(3):
            for batch in loader.batches(epoch):
                check_batch(batch, 40)
    assert set(store.decoded.values()) == {1}


def test_a_block_that_is_resident_is_not_decoded_again():
    # 16 blocks, 14 slots: what an epoch ends with is there for the next
    store = MemoryStore([1024], chunk=64)
    slot = (64 + 7) * 4
    with WindowLoader(
        store, WindowSpec(8), fields=["a"], batch_size=32, lanes=4, passes=4, memory_limit=14 * slot
    ) as loader:
        assert not loader.plan.whole
        for epoch in range(3):
            for batch in loader.batches(epoch):
                check_batch(batch, 8)
        loads = loader.counters.loads
    # three epochs of four passes of sixteen blocks; all but a few are found where they are
    assert 16 <= loads <= 3 * 16


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_long_block_that_short_ones_interrupt_stays_where_it_is(lanes):
    # 160 blocks, four of five with 3 windows, the others with 57: visits to those are interrupted, and go on
    tiny = np.random.default_rng(0).random(160) < 0.8
    gaps = [(64 * i + 10, 64 * (i + 1)) for i in np.flatnonzero(tiny)]
    store = MemoryStore([64 * 160], chunk=64, gaps=gaps)
    least = (lanes + 2) * (64 + 7) * 4
    with WindowLoader(
        store, WindowSpec(8), fields=["a"], batch_size=16, lanes=lanes, passes=1, memory_limit=least
    ) as loader:
        assert sum(len(check_batch(b, 8)) for b in loader.batches(0)) == loader.n_windows
        assert len(loader.schedule(0).at) > 160 + 100
        assert loader.counters.loads <= 160 + 2 * lanes


def test_what_is_behind_a_block_is_copied_from_its_neighbour_where_that_is_resident():
    store = MemoryStore([400], chunk=16)  # 25 blocks of a chunk, and 3 obs of the next
    with WindowLoader(
        store, WindowSpec(4), fields=["a"], batch_size=8, lanes=8, passes=4, memory_limit=15 * 19 * 4
    ) as loader:
        assert not loader.plan.whole
        for epoch in range(3):
            for batch in loader.batches(epoch):
                check_batch(batch, 4)
        decoded, loads = loader.counters.chunks_decoded, loader.counters.loads
    assert decoded < 1.85 * loads  # nearly 2 for each load without


def test_a_neighbour_that_is_damaged_does_not_hide_it_and_is_told_of_once(caplog):
    store = MemoryStore([400], chunk=16, bad=[7])
    with WindowLoader(
        store, WindowSpec(4), fields=["a"], batch_size=8, lanes=8, passes=2, memory_limit=15 * 19 * 4,
        on_bad_chunk="skip",
    ) as loader:  # fmt: skip
        for epoch in range(2):
            for batch in loader.batches(epoch):
                starts = [start for _, _, start in check_batch(batch, 4)]
                assert all(s + 4 <= 7 * 16 or s >= 8 * 16 for s in starts)
        assert loader.counters.windows_replaced == 2 * 19
    assert [r.message for r in caplog.records].count(caplog.records[0].message) == len(caplog.records) == 1


def test_the_arena_stays_within_the_limit():
    store = MemoryStore([100_000], chunk=500)
    with WindowLoader(store, WindowSpec(20), fields=["a"], batch_size=64, memory_limit=100_000) as loader:
        next(loader.batches(0))
        held = sum(a.nbytes for a in loader._residency.arrays.values())
        assert held == loader.plan.arena_bytes <= 100_000


def test_the_arena_stays_within_the_limit_beside_a_store_of_long_chunks():
    class Sparse(MemoryStore):
        """A store of which a split uses a little of every part."""

        def segments(self, split=None):
            whole = super().segments()
            return Segments(whole.sequence, whole.start + 16, whole.start + 32)

    stores = [MemoryStore([4096], chunk=4096), Sparse([4096] * 64, chunk=16, number=1)]
    with WindowLoader(stores, WindowSpec(8), fields=["a"], batch_size=8, memory_limit=60_000) as loader:
        next(loader.batches(0))
        assert sum(a.nbytes for a in loader._residency.arrays.values()) == loader.plan.arena_bytes <= 60_000


@pytest.mark.parametrize("blocks", [[16], [16, 24], [16, 0], [16, 16, 32, 32], [], "x"])
def test_blocks_that_are_none_of_the_stores_are_refused(blocks):
    with pytest.raises(ConfigError, match="block"):
        WindowLoader(MemoryStore([300]), WindowSpec(8), batch_size=8, blocks=blocks)


def test_blocks_that_few_windows_touch_read_only_the_chunks_they_need():
    store = MemoryStore([10_000] * 4, chunk=10)
    with WindowLoader(
        store, WindowSpec(25), fields=["a"], batch_size=4, sampling=PerSequence(3), memory_limit=30_000,
        blocks=(10, 1000), lanes=4,
    ) as loader:  # fmt: skip
        rows = [r for b in loader.batches(0) for r in check_batch(b, 25)]
    assert len(rows) == 12
    assert sum(store.decoded.values()) <= 12 * 4  # a window of 25 obs touches at most four chunks of 10


def test_several_stores_of_other_chunk_lengths_act_as_one():
    stores = [
        MemoryStore([200], 16, number=0),
        MemoryStore([90, 70], 50, number=1),
        MemoryStore([40], 7, number=2),
    ]
    spec = WindowSpec(9, stride=2)
    for limit in (3000, "1MiB"):
        with WindowLoader(stores, spec, fields=["a"], batch_size=8, memory_limit=limit) as loader:
            rows = [r for b in loader.batches(0) for r in check_batch(b, 9)]
            assert set(rows) == windows_of(stores, spec)
            assert len(rows) == loader.n_windows


def test_thousands_of_stores_act_as_one():
    stores = [MemoryStore([20], 32, number=i) for i in range(2000)]
    with WindowLoader(stores, WindowSpec(20), fields=["b"], batch_size=100, dtype=None) as loader:
        batches = list(loader.batches(0))
    assert sorted(np.concatenate([b["store"] for b in batches]).tolist()) == list(range(2000))


def test_crops_of_short_recordings_are_padded_with_zeros_and_say_how_long_they_are():
    store = MemoryStore([5, 100, 12])
    with WindowLoader(
        store,
        WindowSpec(12, short="pad"),
        fields=["a"],
        batch_size=2,
        sampling="per_sequence",
        memory_limit=1000,
    ) as loader:
        for epoch in range(3):
            batches = list(loader.batches(epoch))
            assert [len(b["start"]) for b in batches] == [2, 1]
            rows = [r for b in batches for r in check_batch(b, 12)]
            assert sorted(q for _, q, _ in rows) == [0, 1, 2]
            length = {
                int(q): int(n) for b in batches for q, n in zip(b["sequence"], b["length"], strict=True)
            }
            assert length == {0: 5, 1: 12, 2: 12}


def test_fields_targets_scales_and_both_orders_of_channels():
    store = MemoryStore([60])
    options = {"fields": ["v", "b"], "targets": Cut(("a",), offset=6, length=3), "batch_size": 5}
    with WindowLoader(store, WindowSpec(4), **options) as loader:
        first = next(loader.batches(0))
    with WindowLoader(store, WindowSpec(4), channels="last", **options) as loader:
        last = next(loader.batches(0))
    start = first["start"][:, None]
    assert first["x"].shape == (5, 3, 4)
    assert (first["x"][:, 1] == start + np.arange(4)).all()
    assert (first["x"][:, 2] == (start + np.arange(4)) * 0.5).all()
    assert (first["y"][:, 0] == start + 6 + np.arange(3)).all()
    assert (last["x"] == first["x"].swapaxes(1, 2)).all()
    assert (last["y"] == first["y"].swapaxes(1, 2)).all()


def test_without_a_dtype_fields_keep_theirs_and_mixed_ones_promote():
    store = MemoryStore([60])
    with WindowLoader(store, WindowSpec(4), fields=["b"], batch_size=5, dtype=None) as loader:
        batch = next(loader.batches(0))
        assert batch["x"].dtype == np.int16
        assert (batch["x"][:, 0] == batch["start"][:, None] + np.arange(4)).all()
    with WindowLoader(store, WindowSpec(4), fields=["a", "b"], batch_size=5, dtype=None) as loader:
        assert next(loader.batches(0))["x"].dtype == np.float32


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_rank_has_as_many_batches_and_repeated_rows_are_marked(drop_last):
    store = MemoryStore([50])
    with WindowLoader(
        store, WindowSpec(5), fields=["a"], batch_size=4, lanes=8, drop_last=drop_last
    ) as loader:  # 46 windows, 16 a global batch
        assert loader.n_batches(world_size=4) == (2 if drop_last else 3)
        real = []
        for rank in range(4):
            batches = list(loader.batches(0, rank=rank, world_size=4))
            assert [len(b["start"]) for b in batches] == ([4, 4] if drop_last else [4, 4, 4])
            for b in batches:
                rows = check_batch(b, 5)
                assert ("repeated" in b) != drop_last
                real += [
                    r for r, again in zip(rows, b.get("repeated", [False] * 9), strict=False) if not again
                ]
        assert len(real) == len(set(real)) == (32 if drop_last else 46)


def test_a_last_batch_of_fewer_rows_than_ranks_repeats_the_row_before():
    store = MemoryStore([22])
    with WindowLoader(store, WindowSpec(5), fields=["a"], batch_size=4, lanes=4) as loader:  # 18 = 16 + 2
        last = [list(loader.batches(0, rank=rank, world_size=4))[-1] for rank in range(4)]
    assert [b["repeated"].tolist() for b in last] == [[False], [False], [True], [True]]
    for b in last:
        check_batch(b, 5)


def test_a_batch_without_a_row_of_its_own_repeats_one_of_a_batch_that_was_not_full():
    store = MemoryStore([207])
    options = {"fields": ["a"], "batch_size": 2, "lane_groups": 2, "lanes": 8}
    with WindowLoader(store, WindowSpec(8), **options) as loader:
        assert [loader.n_draws(g) for g in (0, 1)] == [100, 100]
        for rank in range(1, 4):
            first, second = loader.batches(0, rank=rank, world_size=4, start_draws=[95, 99])
            assert (first["repeated"].tolist(), second["repeated"].tolist()) == ([False, True], [True])
            assert check_batch(second, 8) == check_batch(first, 8)[:1]
            assert second["length"].tolist() == [8]


def test_a_slow_store_gives_the_same_batches():
    quick = MemoryStore([400], chunk=32)
    slow = MemoryStore([400], chunk=32, latency=0.003)
    got = []
    for store in (quick, slow):
        with WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=1500) as loader:
            got.append([check_batch(b, 8) for b in loader.batches(0)])
    assert got[0] == got[1]


# ---- damage


def test_a_damaged_chunk_is_an_error_at_the_batch_that_needs_it_and_not_before():
    healthy = MemoryStore([400, 400], chunk=40)
    damaged = MemoryStore([400, 400], chunk=40, bad=[13])
    options = {"fields": ["a"], "batch_size": 16, "memory_limit": 2000, "lanes": 4}
    with WindowLoader(healthy, WindowSpec(8), **options) as loader:
        wants = [
            any(13 in (at // 40, (at + 7) // 40) for at in (b["sequence"] * 400 + b["start"]).tolist())
            for b in loader.batches(0)
        ]
    with WindowLoader(damaged, WindowSpec(8), **options) as loader:
        served = []
        with pytest.raises(CorruptDataError, match=r"memory-0: sequence 's1' from obs .* field a: chunk 13"):
            served.extend(loader.batches(0))
        served = list(zip(loader.batches(0), range(wants.index(True) // 2), strict=False))
    # the block that borders on the chunk is read with it, so the error may come a little before
    assert len(served) == wants.index(True) // 2 > 0
    assert not decode_threads()


def test_skipping_replaces_windows_on_bad_chunks_and_counts_them():
    store = MemoryStore([400, 400], chunk=40, bad=[13, 2])
    with WindowLoader(
        store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=2000, lanes=4, on_bad_chunk="skip"
    ) as loader:
        rows = [r for b in loader.batches(0) for r in check_batch(b, 8)]
        assert len(rows) == loader.n_windows == 2 * 393
        lost = {r for r in windows_of([store], WindowSpec(8)) if {2, 13} & touched(r, 40)}
        assert not lost & set(rows)
        assert loader.counters.windows_replaced == len(lost) == 2 * 47
        assert set(loader.counters.bad_chunks) == {(0, 2), (0, 13)}


def touched(row, chunk):
    at = row[1] * 400 + row[2]
    return set(range(at // chunk, (at + 7) // chunk + 1))


def test_where_nothing_can_be_read_skipping_is_an_error_too():
    store = MemoryStore([100], chunk=10, bad=range(10))
    with (
        WindowLoader(store, WindowSpec(5), fields=["a"], batch_size=8, on_bad_chunk="skip") as loader,
        pytest.raises(CorruptDataError, match="none can stand for them"),
    ):
        next(loader.batches(0))


@pytest.mark.parametrize("damage", ["flip", "delete"])
def test_a_damaged_or_deleted_shard_of_a_real_store_is_named(tmp_path, damage):
    path = tmp_path / "s.zarr"
    values = np.random.default_rng(0).standard_normal(4000).astype("f4")
    with chunkstore.StoreWriter(str(path), fields={"x": "f4"}, chunk=100, shard=1000) as out:
        out.write("only", {"x": values})
    shard = sorted(p for p in (path / "x").rglob("*") if p.is_file() and p.name != "zarr.json")[2]
    if damage == "delete":
        shard.unlink()
    else:
        raw = bytearray(shard.read_bytes())
        raw[50] ^= 0xFF
        shard.write_bytes(bytes(raw))
    with (
        WindowLoader(chunkstore.open_store(str(path)), WindowSpec(10), batch_size=64) as loader,
        pytest.raises(CorruptDataError, match=r"s\.zarr: sequence 'only' from obs .* field x"),
    ):
        list(loader.batches(0))
    assert not decode_threads()


# ---- a clean life


def decode_threads():
    return [t for t in threading.enumerate() if t.name.startswith("chunkstore-decode-")]


def open_files():
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def test_dropping_an_iterator_half_way_leaves_no_thread_and_no_file():
    store = MemoryStore([4000], chunk=64)
    loader = WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=4000)
    files = open_files()
    batches = loader.batches(0)
    next(batches)
    assert decode_threads()
    del batches
    gc.collect()
    assert not decode_threads()
    assert open_files() == files
    assert len(list(loader.batches(0))) == loader.n_batches()
    loader.close()
    assert loader._residency is None


def test_an_exception_in_the_loop_leaves_no_thread():
    store = MemoryStore([4000], chunk=64)

    def train():
        with WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=4000) as loader:
            for _ in loader.batches(0):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    gc.collect()
    assert not decode_threads()


def test_a_newer_iteration_takes_over_and_the_older_says_so():
    store = MemoryStore([4000], chunk=64)
    with WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=4000) as loader:
        old, new = loader.batches(0), loader.batches(1)
        next(old)
        check_batch(next(new), 8)
        with pytest.raises(ConfigError, match="a newer one"):
            for _ in old:
                pass
        rest = sum(len(check_batch(b, 8)) for b in new)
        assert rest == loader.n_windows - 16


def test_a_batch_that_was_being_cut_when_a_newer_iteration_took_over_is_not_handed_out(monkeypatch):
    store = MemoryStore([300] * 6)
    with WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=2500) as loader:
        old, new = loader.batches(0), loader.batches(1)
        next(old)
        cut = loader._gather

        def slow(*args):
            monkeypatch.undo()
            for batch in itertools.islice(new, 40):  # its blocks lie where those of the older one lay
                check_batch(batch, 8)
            cut(*args)

        monkeypatch.setattr(loader, "_gather", slow)
        with pytest.raises(ConfigError, match="a newer one"):
            next(old)


@pytest.mark.parametrize("where", ["take", "read"])
def test_an_iterator_that_a_reading_thread_meets_as_garbage_ends(where, monkeypatch):
    """With the lock held, or without it, while another thread waits for what this one reads."""
    store = MemoryStore([300] * 60)
    loader = WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=2500)
    given, calls = getattr(Residency, where), []
    dropped, met = threading.Event(), threading.Event()
    late = {"take": 28, "read": 3}[where]  # of a piece beyond those that the first batch needs

    def collecting(self, *args):
        calls.append(args)
        if len(calls) == late and dropped.wait(5):
            gc.collect()
            met.set()
        return given(self, *args)

    class Ring:
        """Something that only the collector frees."""

    monkeypatch.setattr(Residency, where, collecting)
    gc.disable()
    try:
        ring = Ring()
        ring.self = ring
        ring.flow = ahead_of(((batch, None) for batch in loader.batches(0)), 16, Passed())
        next(ring.flow)
        del ring
        dropped.set()
        assert met.wait(5)
        end = time.monotonic() + 5
        while decode_threads() and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        gc.enable()
    assert not decode_threads()
    assert len(list(loader.batches(1))) == loader.n_batches()


@pytest.mark.parametrize("ahead", [0, 4])
def test_an_iterator_that_is_met_as_garbage_under_a_lock_waits_for_no_thread_that_wants_it(ahead):
    """The collector may run in the middle of anything, here where a lock of the store is held."""
    store, lock, read_on = MemoryStore([300] * 60), threading.Lock(), threading.Event()
    loader = WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=2500)
    reads, want, met = store.read_into, threading.Event(), threading.Event()

    def read_into(*args):
        if read_on.is_set():
            want.set()
            with lock:
                pass
        return reads(*args)

    class Ring:
        """Something that only the collector frees."""

    def train():
        ring = Ring()
        ring.self, flow = ring, loader.batches(0)
        ring.flow = ahead_of(((batch, None) for batch in flow), ahead, Passed()) if ahead else flow
        del flow
        next(ring.flow)
        with lock:
            read_on.set()
            while not want.wait(0.02):
                next(ring.flow)
            del ring
            gc.collect()
            met.set()

    store.read_into = read_into
    gc.disable()
    try:
        threading.Thread(target=train, daemon=True).start()
        assert met.wait(10)
    finally:
        gc.enable()
    end = time.monotonic() + 5
    while decode_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not decode_threads()
    assert len(list(loader.batches(1))) == loader.n_batches()


def test_an_iteration_for_which_there_are_no_threads_leaves_the_loader_usable(monkeypatch):
    store = MemoryStore([300] * 6)
    with WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=2500) as loader:
        start, begun = threading.Thread.start, []

        def refuse(self):
            begun.append(self)
            start(self)
            if len(begun) == 1:
                raise KeyboardInterrupt  # as where it is met while the thread begins

        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(KeyboardInterrupt):
            next(loader.batches(0))
        assert len(begun) == 1
        assert not decode_threads()
        assert loader._residency.session is None
        monkeypatch.undo()
        assert len(list(loader.batches(0))) == loader.n_batches()


def test_two_iterations_that_begin_side_by_side_share_one_arena():
    """One of them takes over; none is ever given what lies in an arena of the other."""
    for _ in range(20):
        store = MemoryStore([300] * 20, latency=0.0001)
        loader = WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=2500)
        arenas, ended, arena = [], [], loader._arena

        def slow(obs, arena=arena, arenas=arenas):
            made = arena(obs)
            time.sleep(0.01)
            arenas.append(made)
            return made

        def train(epoch, loader=loader, ended=ended):
            try:
                for batch in loader.batches(epoch):
                    check_batch(batch, 8)
                ended.append("whole")
            except ConfigError:
                ended.append("taken over")

        loader._arena = slow
        both = [threading.Thread(target=train, args=(epoch,)) for epoch in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert len(arenas) == 1
        assert sorted(ended) in (["taken over", "whole"], ["whole", "whole"])
        loader.close()


def test_an_iteration_that_broke_off_while_it_looked_for_work_leaves_the_loader_usable(monkeypatch):
    store = MemoryStore([300] * 6)
    with WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=2500) as loader:
        take, calls = Residency.take, []

        def breaking(self, *args):
            calls.append(args)
            if len(calls) == 3:  # jobs of the first two have been made, and will not be done
                raise MemoryError("for a moment")
            return take(self, *args)

        monkeypatch.setattr(Residency, "take", breaking)
        with pytest.raises(MemoryError):
            next(loader.batches(0))
        rows = [row for batch in loader.batches(1) for row in check_batch(batch, 8)]
        assert set(rows) == windows_of([store], WindowSpec(8))


def test_memory_that_is_short_says_nothing_about_the_store(monkeypatch):
    def no_room(*_):
        raise MemoryError("no room")

    store = MemoryStore([300] * 6)
    with WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=2500) as loader:
        with monkeypatch.context() as short:
            short.setattr(store, "read_into", no_room)
            with pytest.raises(MemoryError, match="no room"):
                next(loader.batches(0))
        check_batch(next(loader.batches(0)), 8)


def test_of_many_iterations_begun_at_once_the_last_goes_on():
    store = MemoryStore([300] * 6)
    with WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=2500) as loader:
        loader.order(0)
        done, refused = [], []

        def run():
            try:
                done.append([row for batch in loader.batches(0) for row in check_batch(batch, 8)])
            except ConfigError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=run) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) + len(refused) == 6
        assert done
        assert all(set(rows) == windows_of([store], WindowSpec(8)) for rows in done)
        assert all("a newer one" in text for text in refused)


@pytest.mark.parametrize("ending", ["", "raise OSError"])
def test_a_program_that_ends_half_way_ends(ending):
    program = (
        "from chunkstore import WindowLoader, WindowSpec\nfrom chunkstore.examples import small_store\n"
        "kept = WindowLoader(small_store(), WindowSpec(2), batch_size=2).batches(0)\n"
        f"print(len(next(kept)['x']), flush=True)\n{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("2\n", int(bool(ending)))
    assert ("Traceback" in done.stderr) == bool(ending)


def test_a_loader_that_is_dropped_gives_its_memory_back():
    import weakref

    store = MemoryStore([4000], chunk=64)
    loader = WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=4000)
    list(loader.batches(0))
    arena = weakref.ref(loader._residency.arrays["a"])
    del loader
    gc.collect()
    assert arena() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_instead_of_hanging():
    store = MemoryStore([4000], chunk=64)
    loader = WindowLoader(store, WindowSpec(8), fields=["a"], batch_size=16, memory_limit=4000)
    batches = loader.batches(0)
    next(batches)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            list(batches)
        except ForkError:
            try:
                list(loader.batches(0))
            except ForkError as error:
                code = 0 if "spawn" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    loader.close()


def test_a_loader_travels_to_another_process_without_its_arena():
    import pickle

    from chunkstore.examples import small_store

    with WindowLoader(small_store(), WindowSpec(2), fields=["x"], batch_size=4) as loader:
        want = [b["x"].tolist() for b in loader.batches(0)]
        again = pickle.loads(pickle.dumps(loader))
    assert [b["x"].tolist() for b in again.batches(0)] == want
    again.close()


# ---- at the door


def test_what_cannot_be_is_refused_with_what_there_is():
    store = MemoryStore([50, 30])
    with pytest.raises(UnknownNameError, match="no field 'q'; it has a, b, v"):
        WindowLoader(store, WindowSpec(5), fields=["q"], batch_size=4)
    with pytest.raises(ConfigError, match=r"one needs 99 obs .* the longest segment has 50"):
        WindowLoader(store, WindowSpec(99), fields=["a"], batch_size=4)
    with pytest.raises(ConfigError, match="batch_size"):
        WindowLoader(store, WindowSpec(5), batch_size=0)
    with pytest.raises(MemoryLimitError, match="the least that would do is"):
        WindowLoader(store, WindowSpec(5), fields=["a"], batch_size=4, memory_limit=100)
    with WindowLoader(store, WindowSpec(5), fields=["a"], batch_size=4, lanes=3) as loader:
        with pytest.raises(ConfigError, match="rank 2 is not one of 2"):
            loader.batches(0, rank=2, world_size=2)
        with pytest.raises(ConfigError, match="multiple of lane_groups x world_size"):
            next(loader.batches(0, rank=1, world_size=2))
    other = MemoryStore([50])
    other.fields["a"] = FieldSpec("a", "float64")
    with pytest.raises(ConfigError, match="stored as float64 in memory-0 and as float32"):
        WindowLoader([store, other], WindowSpec(5), fields=["a"], batch_size=4)


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        ({"units": "m/s"}, {"units": "km/h"}, "is in 'km/h' in .*b.zarr and in 'm/s' in .*a.zarr"),
        (
            {"categories": ("dry", "wet")},
            {"categories": ("wet", "dry")},
            r"stand for \['wet', 'dry'\] in .*b.zarr",
        ),
        ({"categories": ("dry", "wet")}, {}, "stand for numbers in .*b.zarr"),
        ({"scale_factor": 0.5}, {"scale_factor": 0.1}, "scale 0.1"),
    ],
)
def test_fields_of_one_name_that_mean_something_else_are_not_read_as_one(tmp_path, mine, theirs, told):
    stores = []
    for name, about in (("a", mine), ("b", theirs)):
        with StoreWriter(tmp_path / f"{name}.zarr", [FieldSpec("x", "int16", **about)]) as out:
            out.write(name, {"x": [about["categories"][0]] * 9 if "categories" in about else range(9)})
        stores.append(open_store(tmp_path / f"{name}.zarr"))
    with pytest.raises(ConfigError, match=told):
        WindowLoader(stores, WindowSpec(5), fields=["x"], batch_size=4)
    cutting = {"window": 5, "stride": 1, "phase": 0, "short": "drop", "fields": ["x"], "channels": "first"}
    none = ("targets", "target_offset", "target_length", "labels", "dtype", "normalize", "normalize_targets")
    with pytest.raises(ConfigError, match=told):
        plan_recipe(tuple(stores), Cutting(**cutting, **dict.fromkeys(none)))


def test_units_that_one_store_does_not_state_are_taken_for_those_of_the_other(tmp_path):
    stores = []
    for name, units in (("a", "m/s"), ("b", None)):
        with StoreWriter(tmp_path / f"{name}.zarr", [FieldSpec("x", "int16", units=units)]) as out:
            out.write(name, {"x": range(9)})
        stores.append(open_store(tmp_path / f"{name}.zarr"))
    with WindowLoader(stores, WindowSpec(5), fields=["x"], batch_size=4) as loader:
        assert loader.n_windows == 10


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stores": "memory://x"}, "open it with open_store"),
        ({"stores": None}, "open it with open_store"),
        ({"window": 8}, r"write WindowSpec\(length\)"),
        ({"split": 3}, "split must be the name of a part"),
        ({"arena": "torch"}, "arena='torch' is not known"),
        ({"fields": 3}, "fields must be a name or several"),
        ({"fields": ["a", None]}, "fields must be a name or several"),
        ({"targets": 3}, "targets must be a name or several"),
        ({"targets": {"y": ("a",)}}, r"targets\['y'\] must be a Cut"),
        ({"sampling": {"weights": [1.0, 1.0], "n": 2**60}}, r"at most 2\*\*48 draws"),
        ({"sampling": {"weights": "ab"}}, "weights must be numbers"),
        ({"sampling": {"weights": [[[1.0]]]}}, "weights must be one number for each sequence"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_name(options, told):
    given_ = {"stores": MemoryStore([50, 30]), "window": WindowSpec(5), "batch_size": 4} | options
    with pytest.raises(ConfigError, match=told):
        WindowLoader(given_.pop("stores"), given_.pop("window"), **given_).schedule(0)


@pytest.mark.parametrize("name", ["x", "start", "room", "group"])
def test_a_target_cannot_hide_what_a_batch_has(name):
    with pytest.raises(ConfigError, match=f"cannot be named {name}"):
        WindowLoader(MemoryStore([50]), WindowSpec(5), batch_size=4, targets={name: Cut(("a",), 0, 5)})


def test_one_field_may_be_given_by_its_name_alone():
    store = MemoryStore([50])
    store.fields["level"] = FieldSpec("level", "float32")
    with WindowLoader(store, WindowSpec(5), batch_size=4, fields="level") as loader:
        assert loader.field_names == ("level",)


def test_the_fingerprint_changes_with_whatever_changes_the_order():
    store = MemoryStore([500])
    base = {"fields": ["a"], "batch_size": 4, "lanes": 4, "passes": 1}
    marks = set()
    for change in (
        {},
        {"seed": 1},
        {"lanes": 8},
        {"passes": 2},
        {"shuffle": False},
        {"sampling": "per_sequence"},
    ):
        with WindowLoader(store, WindowSpec(5), **(base | change)) as loader:
            marks.add(loader.fingerprint)
    with WindowLoader(store, WindowSpec(5, stride=2), **base) as loader:
        marks.add(loader.fingerprint)
    assert len(marks) == 7


# ---- sampling, through the loader


def test_random_phases_and_weights_are_served_as_they_are_drawn():
    store = MemoryStore([300, 90], chunk=16)
    with WindowLoader(
        store, WindowSpec(8, stride=7, phase="random"), fields=["a"], batch_size=8, memory_limit=1500
    ) as loader:
        epochs = [[r for b in loader.batches(e) for r in check_batch(b, 8)] for e in range(3)]
        assert {len(rows) for rows in epochs} == {loader.n_windows}
        assert all(len(set(rows)) == len(rows) for rows in epochs)
        assert len({tuple(sorted(rows)) for rows in epochs}) == 3
    with WindowLoader(
        store,
        WindowSpec(8),
        fields=["a"],
        batch_size=50,
        memory_limit=1500,
        sampling={"weights": [1.0, 3.0], "n": 400, "by": "sequence"},
    ) as loader:
        rows = [r for b in loader.batches(0) for r in check_batch(b, 8)]
    assert len(rows) == 400
    assert sum(q == 1 for _, q, _ in rows) == pytest.approx(300, abs=10)

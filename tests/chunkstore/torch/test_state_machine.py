"""A dataset that is stopped, resumed, dropped and set to epochs at random, against a model that is a set."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import chunkstore
from chunkstore.torch import ZarrWindowDataset

SIZES = (40, 13, 0, 66, 9)
W = 8
EVERY = {(s, p) for s, n in enumerate(SIZES) for p in range(n - W + 1)}
_orders: dict[tuple[object, ...], list[tuple[int, int]]] = {}


@pytest.fixture(scope="module", autouse=True)
def _store():
    with chunkstore.StoreWriter("memory://states", {"x": "i4"}, chunk=8, shard=16, overwrite=True) as out:
        for number, size in enumerate(SIZES):
            out.write(f"s{number}", {"x": [number * 1000 + at for at in range(size)]})


def rows_of(batch):
    """Return (sequence, start) of the rows of a batch, whose values must say the same."""
    rows = list(zip(batch["sequence"].tolist(), batch["start"].tolist(), strict=True))
    for (sequence, start), row in zip(rows, batch["x"][:, 0].tolist(), strict=True):
        assert row == [sequence * 1000 + start + i for i in range(W)]
    return rows


class TrainingMachine(RuleBasedStateMachine):
    """One dataset at a time; ``seen`` are the rows of the epoch that were consumed by any of them."""

    @initialize(
        groups=st.sampled_from([1, 2]),
        lanes=st.sampled_from([2, 4]),
        passes=st.sampled_from([1, 2]),
        memory=st.sampled_from([1200, 10**6]),
        seed=st.integers(0, 2),
    )
    def begin(self, groups, lanes, passes, memory, seed):
        self.options = {"lane_groups": groups, "lanes": lanes, "passes": passes, "seed": seed}
        self.options |= {"memory_limit": max(memory, 1 << 14), "fields": "x"}
        self.dataset = self.made(batch_size=5, ahead=0)
        self.iterator = None
        self.upcoming, self.pending = 0, []  # the next epoch, and what of it is already seen
        self.epoch, self.seen, self.order_of = -1, [], {}
        self.saved = []

    def made(self, **how):
        self.how = how
        return ZarrWindowDataset("memory://states", W, **self.options, **how)

    @precondition(lambda self: self.iterator is None)
    @rule()
    def begin_an_epoch(self):
        self.iterator = iter(self.dataset)
        self.epoch, self.seen = self.upcoming, list(self.pending)
        self.upcoming, self.pending = self.epoch + 1, []

    @precondition(lambda self: self.iterator is not None)
    @rule(batches=st.integers(1, 12))
    def train(self, batches):
        for _ in range(batches):
            batch = next(self.iterator, None)
            if batch is None:
                assert sorted(self.seen) == sorted(EVERY), "an epoch is every window once"
                self.check_order()
                self.iterator = None
                return
            self.seen += rows_of(batch)
            self.last = batch
        assert len(set(self.seen)) == len(self.seen)

    def check_order(self):
        """However often it was stopped: batches of one size come in the order of an unbroken epoch."""
        if self.options["lane_groups"] > 1:
            return  # groups take turns by batches: another batch size is another order
        key = (self.epoch, *sorted(map(str, self.options.items())))
        assert _orders.setdefault(key, self.seen) == self.seen

    @precondition(lambda self: self.iterator is not None and self.seen and self.seen != self.pending)
    @rule(by_batch=st.booleans())
    def save(self, by_batch):
        if not hasattr(self, "last"):
            return
        state = self.dataset.state_dict(self.last) if by_batch else self.dataset.state_dict()
        if by_batch and rows_of(self.last)[-1] != self.seen[-1]:
            return  # the last batch was of an iteration before
        self.saved.append((json.loads(json.dumps(state)), self.epoch, list(self.seen)))

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def stop_in_the_middle(self):
        self.iterator.close()
        self.iterator = None

    @precondition(lambda self: self.saved)
    @rule(
        which=st.integers(0, 50),
        fresh=st.booleans(),
        batch_size=st.sampled_from([1, 5, 16]),
        ahead=st.sampled_from([0, 2]),
    )
    def resume(self, which, fresh, batch_size, ahead):
        if self.iterator is not None:
            self.iterator.close()
            self.iterator = None
        if fresh:
            self.dataset.close()
            self.dataset = self.made(batch_size=batch_size, ahead=ahead)
        state, self.upcoming, self.pending = self.saved[which % len(self.saved)]
        self.dataset.load_state_dict(state)

    @precondition(lambda self: self.iterator is None)
    @rule(epoch=st.integers(0, 4))
    def set_epoch(self, epoch):
        kept = self.pending and epoch == self.upcoming
        self.dataset.set_epoch(epoch)
        if not kept:
            self.upcoming, self.pending = epoch, []

    def teardown(self):
        if getattr(self, "iterator", None) is not None:
            self.iterator.close()
        if hasattr(self, "dataset"):
            self.dataset.close()


TestTrainingMachine = TrainingMachine.TestCase
TestTrainingMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)

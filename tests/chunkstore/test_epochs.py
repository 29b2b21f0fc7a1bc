"""Which epoch an iteration serves, in one process and as a worker is told."""

from __future__ import annotations

import copy
import pickle

import pytest

from chunkstore import epochs
from chunkstore.epochs import EpochClock
from chunkstore.state import Position


def worker_of(trainer):
    """Return the clock as a worker has it: a copy that shares the cell."""
    worker = object.__new__(EpochClock)
    worker.__dict__.update(trainer.__dict__)
    return worker


def test_every_iteration_serves_the_next_epoch():
    clock = EpochClock(groups=2)
    assert [clock.begin() for _ in range(3)] == [Position.start(e, 2) for e in range(3)]


def test_set_epoch_is_obeyed_and_may_repeat():
    clock = EpochClock(groups=1)
    clock.set_epoch(5)
    assert clock.begin().epoch == 5
    clock.set_epoch(5)
    assert clock.begin() == Position(5, 0, (0,))
    assert clock.begin().epoch == 6


def test_a_loaded_position_survives_set_epoch_of_its_own_epoch_only():
    clock = EpochClock(groups=1)
    clock.resume(Position(3, 0, (64,)))
    clock.set_epoch(3)
    assert clock.begin() == Position(3, 0, (64,))
    clock.resume(Position(3, 0, (64,)))
    clock.set_epoch(4)
    assert clock.begin() == Position(4, 0, (0,))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_goes_its_own_way(copied):
    clock = EpochClock(groups=1)
    clock.set_epoch(2)
    other = copied(clock)
    other.set_epoch(9)
    assert (clock.begin().epoch, other.begin().epoch) == (2, 9)


def test_a_worker_that_lives_on_counts_by_itself_until_it_is_told(monkeypatch):
    trainer = EpochClock(groups=1)
    worker = worker_of(trainer)
    with monkeypatch.context() as in_worker:
        in_worker.setattr(epochs, "find_worker", lambda: (0, 1))
        assert [worker.begin().epoch, worker.begin().epoch] == [0, 1]
    trainer.set_epoch(7)
    with monkeypatch.context() as in_worker:
        in_worker.setattr(epochs, "find_worker", lambda: (0, 1))
        assert [worker.begin().epoch, worker.begin().epoch] == [7, 8]


def test_the_trainer_learns_what_workers_that_are_gone_have_served(monkeypatch):
    trainer = EpochClock(groups=1)
    assert not trainer.served_by_workers
    worker = worker_of(trainer)
    with monkeypatch.context() as in_worker:
        in_worker.setattr(epochs, "find_worker", lambda: (0, 1))
        worker.begin()
        worker.serving()
    assert trainer.served_by_workers
    assert trainer.upcoming.epoch == 1
    trainer.set_epoch(0)
    assert trainer.upcoming.epoch == 0

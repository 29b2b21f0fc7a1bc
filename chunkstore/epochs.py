"""Which epoch an iteration serves, agreed between the process that trains and its workers.

The rule, the same with and without workers: every iteration serves the epoch after the last one
begun, unless ``set_epoch`` or a loaded state said otherwise since. A few shared integers carry
that to workers which outlive an epoch, and back from workers which do not.
"""

from __future__ import annotations

import multiprocessing.context
import os
from multiprocessing.sharedctypes import RawArray
from typing import Any, Final

from chunkstore.distributed import find_worker
from chunkstore.errors import StateError
from chunkstore.forks import Living
from chunkstore.state import Position

__all__ = ["EpochClock"]

_SHIFT = 32  # one integer says (generation, epoch + 1), so that it is read and written whole


class EpochClock:
    """Hands out the position at which each iteration starts.

    Parameters
    ----------
    groups
        Number of lane groups, the length of a position.

    Examples
    --------
    >>> clock = EpochClock(groups=1)
    >>> clock.begin().epoch, clock.begin().epoch
    (0, 1)
    >>> clock.set_epoch(7)
    >>> clock.begin().epoch
    7
    """

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._next = Position.start(0, groups)
        self._resumed = False
        self._generation = 0
        self._plan = 0  # counts the plans that were taken from loaded states
        self._begun: Position | None = None
        self._cell = _new_cell(groups)
        self._pid: int | None = os.getpid()
        _LIVING.add(self)

    @property
    def upcoming(self) -> Position:
        """Where the next iteration starts."""
        self._fold()
        return self._next

    @property
    def served_by_workers(self) -> bool:
        """Whether worker processes have served batches since the epoch was last set."""
        return find_worker() is None and self._served() > 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration serve ``epoch``; what was loaded for this very epoch is kept."""
        self._fold()
        if not (self._resumed and self._next.epoch == epoch):
            self._command(Position.start(epoch, self._groups))

    def resume(self, position: Position, *, replanned: bool = False) -> None:
        """Let the next iteration go on at ``position``, perhaps in an order that is new to living workers."""
        self._plan += replanned
        self._command(position)
        self._resumed = True

    def begin(self) -> Position:
        """Return where the iteration that begins now starts."""
        if find_worker() is None:
            self._fold()
        elif self._begun is not None and self._cell[0] != self._generation:  # told since the last one
            self._generation = self._cell[0]
            self._next = Position.from_numbers(self._cell[1:-2])
        position = self._begun = self._next
        self._next = Position.start(position.epoch + 1, self._groups)
        self._resumed = False
        return position

    def check_plan(self) -> None:
        """Refuse to go on in a worker that was started before a state with another order was loaded.

        Raises
        ------
        StateError
            If that is so.
        """
        if find_worker() is not None and self._cell[-2] != self._plan:
            raise StateError(
                "a state with other lanes, passes or blocks was loaded after this worker was started: make "
                "a new DataLoader, or give it persistent_workers=False, or load through TrainingLoader"
            )

    def serving(self) -> None:
        """Say, in a worker, that the first batch of the iteration is being made."""
        if find_worker() is not None and self._begun is not None:
            self._cell[-1] = (self._generation << _SHIFT) | (self._begun.epoch + 1)

    def _served(self) -> int:
        """Return the epoch that comes after the last one that workers served; 0 for none."""
        self._own()
        generation, epoch = divmod(self._cell[-1], 1 << _SHIFT)
        return epoch if generation == self._generation else 0

    def _own(self) -> None:
        """Leave the cell of the process that this one came from, unless this is its worker."""
        if self._pid != os.getpid() and find_worker() is None:
            self._pid = os.getpid()
            self._cell = _new_cell(self._groups, self._generation, self._plan)
            _LIVING.add(self)

    def _command(self, position: Position) -> None:
        self._next = position
        self._resumed = False
        if find_worker() is None:
            self._own()
            self._generation += 1
            self._cell[1:-1] = [*position.to_numbers(), self._plan]
            self._cell[0] = self._generation

    def _fold(self) -> None:
        """Learn, in the process that trains, how far its workers came."""
        if find_worker() is None and (epoch := self._served()) > self._next.epoch:
            self._next = Position.start(epoch, self._groups)
            self._resumed = False

    def __getstate__(self) -> dict[str, Any]:
        self._fold()
        state = dict(self.__dict__)
        if multiprocessing.context.get_spawning_popen() is None:  # a copy of its own, not a worker's
            state |= {"_cell": _NO_CELL, "_pid": None}
        return state


_NO_CELL = (0,)
_LIVING: Final[Living[EpochClock]] = Living()


def _new_cell(groups: int, generation: int = 0, plan: int = 0) -> Any:
    """Return the shared integers: a command (generation, position, plan), then what workers served."""
    cell = RawArray("q", 1 + 2 + groups + 1 + 1)
    cell[0], cell[-2] = generation, plan
    return cell


def _fold_all() -> None:
    for clock in _LIVING.listed():
        clock._fold()  # noqa: SLF001 - the hook belongs to the class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_fold_all)

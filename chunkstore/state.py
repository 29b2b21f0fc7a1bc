"""Where a training run stands: a few integers, in JSON, that outlive the process.

A position counts the draws that the training loop *consumed*, of all ranks together and for each
lane group, so it holds for another number of ranks and of workers. Decides nothing about the
order itself. Pure: no store, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError, StateError
from chunkstore.numbers import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Position", "Rotation", "epoch_number", "make_state", "read_state"]

MOST_EPOCHS = 2**31  # which workers are told beside other things
FORMAT = "chunkstore-training-state"
VERSION = 1


def epoch_number(epoch: int) -> int:
    """Return an epoch as an int.

    Raises
    ------
    ConfigError
        If it is no whole number from 0 on, or 2**31 or more.
    """
    number = whole_number("epoch", epoch, 0)
    if number >= MOST_EPOCHS:
        raise ConfigError(f"epoch must be less than 2**31, got {number}")
    return number


@dataclass(frozen=True, slots=True)
class Position:
    """How much of an epoch has been consumed.

    Examples
    --------
    >>> Position.start(0, groups=2).after(0, 64).after(1, 64).after(0, 64)
    Position(epoch=0, turn=1, drawn=(128, 64))
    """

    epoch: int
    """The epoch, from 0."""
    turn: int
    """Lane group whose batch is next."""
    drawn: tuple[int, ...]
    """Draws consumed of each lane group, all ranks together."""

    @classmethod
    def start(cls, epoch: int, groups: int) -> Position:
        """Return the start of an epoch."""
        return cls(epoch, 0, (0,) * groups)

    def after(self, group: int, draws: int) -> Position:
        """Return the position after one batch: ``draws`` global draws of lane group ``group``."""
        drawn = list(self.drawn)
        drawn[group] += draws
        return Position(self.epoch, (group + 1) % len(drawn), tuple(drawn))

    def to_numbers(self) -> list[int]:
        """Return int64[2 + groups]: epoch, turn, then the draws of each group."""
        return [self.epoch, self.turn, *self.drawn]

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> Position:
        """Return the position that :meth:`to_numbers` wrote."""
        epoch, turn, *drawn = (int(n) for n in numbers)
        return cls(epoch, turn, tuple(drawn))


@dataclass(frozen=True, slots=True)
class Rotation:
    """Which lane group each batch comes from: in turn, a group that has none left being passed over.

    Examples
    --------
    >>> rotation = Rotation(n_draws=(9, 7), step=4, drop_last=False)
    >>> list(rotation.batches(Position.start(0, groups=2)))
    [(0, 0, 4), (1, 0, 4), (0, 4, 4), (1, 4, 3), (0, 8, 1)]
    >>> rotation.count(Position(0, 1, (4, 0)))
    4
    """

    n_draws: tuple[int, ...]
    """Global draws of each lane group in an epoch."""
    step: int
    """Global draws of a full batch: batch size times world size."""
    drop_last: bool
    """Whether a group's last batch, where it is not full, is left out."""

    def left(self, group: int, drawn: int) -> int:
        """Return how many batches lane group ``group`` still gives after ``drawn`` of its draws."""
        rest = max(0, self.n_draws[group] - drawn)
        return rest // self.step if self.drop_last else -(-rest // self.step)

    def count(self, position: Position, groups: Sequence[int] | None = None) -> int:
        """Return how many batches are left of the epoch (of some groups only, where given)."""
        which = range(len(self.n_draws)) if groups is None else groups
        return sum(self.left(g, position.drawn[g]) for g in which)

    def batches(
        self, position: Position, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (group, first draw, draws) of every batch left, in order."""
        n = len(self.n_draws)
        mine = set(range(n) if groups is None else groups)
        drawn = list(position.drawn)
        order = [g for k in range(n) if (g := (position.turn + k) % n) in mine]
        while True:
            order = [g for g in order if self.left(g, drawn[g])]
            if not order:
                return
            for g in order:
                draws = min(self.step, self.n_draws[g] - drawn[g])
                yield g, drawn[g], draws
                drawn[g] += draws

    def deliveries(self, position: Position, workers: int = 1) -> Iterator[tuple[int, int, int, Position]]:
        """Yield (worker, group, draws, position behind it) of every batch left, in a DataLoader's order.

        Worker ``w`` of W serves the groups whose distance from the next turn is ``w`` modulo W; the
        DataLoader takes one batch of each worker in turn and passes over those that have none left.

        Examples
        --------
        >>> rotation = Rotation(n_draws=(8, 8), step=4, drop_last=False)
        >>> [(w, g) for w, g, _, _ in rotation.deliveries(Position(0, 1, (4, 0)), workers=2)]
        [(0, 1), (1, 0), (0, 1)]
        """
        alive = {w: self.batches(position, self.groups_of(w, workers, position.turn)) for w in range(workers)}
        while alive:
            for worker in list(alive):
                batch = next(alive[worker], None)
                if batch is None:
                    del alive[worker]
                    continue
                group, _, draws = batch
                position = position.after(group, draws)
                yield worker, group, draws, position

    def groups_of(self, worker: int, workers: int, turn: int) -> tuple[int, ...]:
        """Return the lane groups that a worker serves from ``turn`` on."""
        return tuple(g for g in range(len(self.n_draws)) if (g - turn) % workers == worker)


def make_state(
    position: Position, fingerprint: Mapping[str, Any], worker: tuple[int, Sequence[int]] | None = None
) -> dict[str, Any]:
    """Return the state as JSON values.

    Parameters
    ----------
    position
        What was consumed.
    fingerprint
        Everything that decides the order, by name; JSON values.
    worker
        Where it is the state of one DataLoader worker: the number of workers, and the lane
        groups that this one serves.
    """
    state: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "epoch": position.epoch,
        "turn": position.turn,
        "drawn": list(position.drawn),
        "fingerprint": dict(fingerprint),
    }
    if worker is not None:
        state |= {"workers": worker[0], "groups": list(worker[1])}
    return state


def read_state(
    state: Mapping[str, Any], fingerprint: Mapping[str, Any], workers: int | None = None
) -> tuple[Position, tuple[int, ...] | None]:
    """Return the position in ``state`` and the lane groups it speaks for (None: all of them).

    Parameters
    ----------
    state
        What :func:`make_state` returned, perhaps through JSON.
    fingerprint
        What decides the order of the dataset that is to go on.
    workers
        The number of workers where a DataLoader worker loads it; None outside of workers.

    Raises
    ------
    StateError
        If it is not such a state, of a version not known here, of a worker among another number
        of workers, or of another dataset; the message names each difference.

    Examples
    --------
    >>> state = make_state(Position.start(3, groups=1), {"window": 512})
    >>> read_state(state, {"window": 512})
    (Position(epoch=3, turn=0, drawn=(0,)), None)
    >>> read_state(state, {"window": 256})
    Traceback (most recent call last):
    ...
    chunkstore.errors.StateError: the state belongs to another dataset: window is 512 in the state, 256 here;
    build the dataset as it was, or start anew without this state
    """
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise StateError(
            "this is not a training state of chunkstore (no 'format': "
            f"{FORMAT!r}); pass what state_dict() returned, unchanged"
        )
    if state.get("version") != VERSION:
        raise StateError(
            f"the state has version {state.get('version')!r}, this chunkstore reads version {VERSION}; "
            "resume with the chunkstore that wrote it"
        )
    theirs: Any = state.get("fingerprint")
    if not isinstance(theirs, dict):
        raise StateError("the state has no fingerprint; pass what state_dict() returned, unchanged")
    if (drawn := theirs.get("order", 1)) != (draws := fingerprint.get("order", 1)):
        raise StateError(
            f"the state counts draws of order version {drawn}, this chunkstore draws in order version "
            f"{draws}: to go on would show some windows twice and others never in this epoch; resume with "
            "the chunkstore that wrote it, or start the epoch anew without this state"
        )
    differences = [
        f"{name} is {theirs.get(name, 'absent')} in the state, {fingerprint.get(name, 'absent')} here"
        for name in sorted({*theirs, *fingerprint})
        if theirs.get(name) != fingerprint.get(name)
    ]
    if differences:
        raise StateError(
            f"the state belongs to another dataset: {'; '.join(differences)}; "
            "build the dataset as it was, or start anew without this state"
        )
    if state.get("workers") != workers:
        raise StateError(
            f"the state is that of {_who(state.get('workers'))}, and is loaded into {_who(workers)}; resume "
            "with the same number of workers, or save the whole loader's state: dataset.state_dict(batch)"
        )
    try:
        epoch, turn, *drawn = (
            whole_number("it", n) for n in (state["epoch"], state["turn"], *state["drawn"])
        )
        position = Position(epoch_number(epoch), turn, tuple(drawn))
        groups = None if workers is None else tuple(whole_number("it", g) for g in state["groups"])
    except (KeyError, TypeError, ValueError) as err:
        raise StateError(
            f"the state is damaged ({err!r}); pass what state_dict() returned, unchanged"
        ) from None
    if not 0 <= position.turn < len(position.drawn) or min(position.epoch, *position.drawn) < 0:
        raise StateError(f"the state is damaged: {position}; pass what state_dict() returned, unchanged")
    return position, groups


def _who(workers: int | None) -> str:
    return "the whole loader" if workers is None else f"one of {workers} workers"

"""Which of how many processes this is: given by hand, by ``torch.distributed``, or by the environment.

Imports no torch: a process group can only exist where torch is already imported.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError
from chunkstore.numbers import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Place", "find_place", "find_worker"]


@dataclass(frozen=True, slots=True)
class Place:
    """One process among those that train together."""

    rank: int = 0
    """This process, from 0."""
    world_size: int = 1
    """Number of processes."""
    origin: str = "alone"
    """Where it is known from: ``given``, ``torch.distributed``, ``environment`` or ``alone``."""

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} of world_size {self.world_size} ({self.origin}) is none: "
                "the rank must be at least 0 and below the world size"
            )


def find_place(
    rank: int | None = None, world_size: int | None = None, environ: Mapping[str, str] | None = None
) -> Place:
    """Return this process's place.

    What is given wins, then an initialised ``torch.distributed`` group, then the variables
    ``RANK`` and ``WORLD_SIZE`` that ``torchrun`` sets, else one process alone.

    Raises
    ------
    ConfigError
        If only one of both is given, or the rank does not fit into the world size.

    Examples
    --------
    >>> find_place(3, 4)
    Place(rank=3, world_size=4, origin='given')
    >>> find_place(environ={"RANK": "1", "WORLD_SIZE": "2"})
    Place(rank=1, world_size=2, origin='environment')
    """
    if (rank is None) != (world_size is None):
        raise ConfigError(
            f"rank ({rank}) and world_size ({world_size}) belong together; give both, or neither"
        )
    if rank is not None and world_size is not None:
        return Place(whole_number("rank", rank), whole_number("world_size", world_size), "given")
    group: Any = sys.modules.get("torch.distributed")
    if environ is None and group is not None and group.is_available() and group.is_initialized():
        return Place(group.get_rank(), group.get_world_size(), "torch.distributed")
    variables = os.environ if environ is None else environ
    texts = variables.get("RANK"), variables.get("WORLD_SIZE")
    if texts[0] is None or texts[1] is None:
        return Place()
    try:
        return Place(int(texts[0]), int(texts[1]), "environment")
    except ValueError as error:
        raise ConfigError(
            f"the environment says RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r}; both must be integers, "
            "the rank below the world size (or give rank= and world_size=)"
        ) from error


def find_worker() -> tuple[int, int] | None:
    """Return (number, count) of the DataLoader worker that this process is, or None outside of workers.

    Examples
    --------
    >>> find_worker() is None
    True
    """
    data: Any = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return None if info is None else (int(info.id), int(info.num_workers))

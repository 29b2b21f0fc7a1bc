"""Cutting the work: which task reads and writes what, made one at a time while they are handed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ingest.assemble import Slices
from ingest.place import task_borders
from ingest.stage import StageTask
from ingest.write import PlacedTask, StagedTask

if TYPE_CHECKING:
    from chunkstore.layout import Layout
    from ingest.exchange import Exchange
    from ingest.folder import Folder
    from ingest.plan import Plan

__all__ = ["PlacedTasks", "stage_task", "staged_task"]

#: slices and segments that a task may carry itself
INLINE = 500


def stage_task(plan: Plan, index: int) -> StageTask:
    """Return one staging task of a plan."""
    low, high = int(plan.groups[index]), int(plan.groups[index + 1])
    parts = tuple(plan.parts[i] for i in range(low, high))
    placed = bool(plan.keys) and all(p.sequence >= 0 for p in parts)
    keys = tuple(plan.keys[p.sequence] for p in parts) if placed else None
    return StageTask(index, parts, keys, plan.key_order, plan.key_once)


@dataclass(frozen=True)
class PlacedTasks:
    """The write tasks of a placed plan."""

    plan: Plan
    """The plan."""
    borders: np.ndarray
    """int64[T + 1]: shard with which each begins."""
    offsets: np.ndarray
    """int64[S + 1]: first obs of each sequence."""

    @classmethod
    def of(cls, plan: Plan) -> PlacedTasks:
        """Cut the work of a plan."""
        assert plan.layout is not None
        assert plan.places is not None
        borders = task_borders(plan.layout, plan.places.start)
        if borders.size == 1:
            borders = np.zeros(2, np.int64)  # nothing to store, but parts to answer for
        offsets = np.concatenate([[0], np.cumsum(plan.places.rowsize)]).astype(np.int64)
        return cls(plan, borders, offsets)

    def __len__(self) -> int:
        return self.borders.size - 1

    def __getitem__(self, index: int) -> PlacedTask:
        layout, places = self.plan.layout, self.plan.places
        assert layout is not None
        assert places is not None
        a, b = int(self.borders[index]), int(self.borders[index + 1])
        start, stop = a * layout.shard, min(b * layout.shard, layout.n_obs)
        lo, hi = places.touching(start, stop)
        parts = tuple((self.plan.parts[int(places.part[i])], int(places.start[i])) for i in range(lo, hi))
        borders = _inside(self.offsets, start, stop)
        return PlacedTask(index, (a, b), parts, borders, index == len(self) - 1)


def _inside(offsets: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Sequence starts within [start, stop)."""
    low, high = np.searchsorted(offsets, [start, stop])
    return np.unique(offsets[low:high])


def staged_task(
    index: int,
    shards: tuple[int, int],
    layout: Layout,
    exchange: Exchange,
    *,
    offsets: np.ndarray,
    scratch: Folder,
) -> StagedTask:
    """Cut out of the exchange what one write task needs; a long list travels through scratch."""
    start, stop = shards[0] * layout.shard, min(shards[1] * layout.shard, layout.n_obs)
    lo, hi = exchange.places.touching(start, stop)
    own = exchange.places.slice[lo:hi]
    segments, local = np.unique(exchange.segment_of[own], return_inverse=True)
    slices: Slices | str = Slices(
        tuple(exchange.segments[i] for i in segments.tolist()),
        local.astype(np.int64),
        exchange.row[own],
        exchange.places.start[lo : hi + 1],
        exchange.places.cluster[lo:hi],
    )
    if own.size + 10 * segments.size > INLINE and isinstance(slices, Slices):
        name = f"task/{index:06d}.npz"
        scratch.put(name, slices.dump())
        slices = name
    return StagedTask(index, shards, slices, _inside(offsets, start, stop))

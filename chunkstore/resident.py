"""Blocks in memory: one arena under a hard limit.

Decides which slot a block gets, which block leaves, and what of it is decoded; which blocks are needed
when is told by :mod:`chunkstore.schedule`, and threads belong to :mod:`chunkstore.session`. Python loops
run over pieces and chunks, never over windows.

A *residency* lives as long as its loader: what it holds at the end of one epoch is there for the next.
What leaves is the block that is needed last (the order is known), and only when its slot is needed.
A chunk that is in the arena is not decoded again: a slot knows which of its chunks are there, so a
block that few windows touch holds only the chunks they need.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkstore.errors import ChunkstoreError, CorruptDataError, ForkError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkstore.budget import Plan
    from chunkstore.schedule import Blocks
    from chunkstore.session import Session

__all__ = ["Counters", "Job", "Residency"]

log = logging.getLogger(__name__)

NEVER = np.iinfo(np.int64).max


@dataclass(slots=True)
class Counters:
    """What a residency has done since it was made."""

    chunks_decoded: int = 0
    """Chunks (of one field each) decoded, halos included."""
    bytes_decoded: int = 0
    """Bytes that reads filled."""
    loads: int = 0
    """Times that a block got a slot."""
    waits: int = 0
    """Times that a batch had to wait for a block."""
    seconds_waited: float = 0.0
    """Seconds that batches waited."""
    windows_replaced: int = 0
    """Windows that lay on bad chunks and were replaced."""
    bad_chunks: dict[tuple[int, int], str] = field(default_factory=dict)
    """(store, chunk) that could not be read, and why; only with ``on_bad_chunk="skip"``."""


class Job:
    """One piece's reads; done when the chunks are in the arena or an error stands for them."""

    __slots__ = ("chunks", "done", "error", "piece", "place", "ranges", "slot", "store")

    def __init__(self, piece: int, store: int, slot: int, chunks: NDArray[np.int64], place: int) -> None:
        self.piece, self.store, self.slot, self.chunks = piece, store, slot, chunks
        #: what is added to an obs to find it in the arena
        self.place = place
        self.ranges: list[tuple[int, int]] = []
        self.done = False
        self.error: BaseException | None = None


class Residency:
    """The arena of a loader and what lies in it.

    Parameters
    ----------
    stores : sequence of ChunkStore
        Where blocks come from.
    fields : sequence of str
        Fields to hold, by name.
    arrays : mapping of str to ndarray
        The arena: one C-contiguous array [obs] or [obs, items] a field.
    blocks : Blocks
        All blocks, numbered.
    plan : Plan
        Slots or whole.
    on_bad_chunk : {"raise", "skip"}
        Whether a chunk that cannot be read is an error at the draw that needs it.
    loaded : callable, optional
        Called as ``loaded(field, start, stop)`` when a range of the arena has been filled, in the
        thread that did it; for arenas that are mirrored on a device.
    stacks : mapping, optional
        For cuts whose fields are rows of one array: that array [field, obs], and which rows they are.
    """

    def __init__(
        self,
        stores: Sequence[Any],
        fields: Sequence[str],
        arrays: dict[str, NDArray[Any]],
        blocks: Blocks,
        plan: Plan,
        *,
        on_bad_chunk: Literal["raise", "skip"] = "raise",
        threads: int | None = None,
        loaded: Callable[[str, int, int], None] | None = None,
        stacks: Mapping[str, tuple[NDArray[Any], NDArray[np.int64]]] | None = None,
    ) -> None:
        self.stores, self.fields, self.arrays = stores, tuple(fields), arrays
        self.blocks, self.plan = blocks, plan
        self.skip = on_bad_chunk == "skip"
        self.loaded = loaded
        self.stacks = stacks or {}
        self.counters = Counters()
        self.threads = threads or min(4, max(2, os.cpu_count() or 1))
        self.chunk = np.array([s.layout.chunk for s in stores], np.int64)
        self.n_obs = np.array([s.layout.n_obs for s in stores], np.int64)
        self.bytes_per_obs = sum(a.itemsize * int(np.prod(a.shape[1:])) for a in arrays.values())
        mutex = threading.RLock()
        #: guards all that follows; readers wait on it for room
        self.lock = threading.Condition(mutex)
        #: what the consumer waits on: woken once, when all it waits for is here
        self.arrived = threading.Condition(mutex)
        self.session: Session | None = None
        #: threads of the latest session, which may still be ending
        self.running: list[threading.Thread] = []
        self.pid = os.getpid()
        #: what is added to an obs of a block to find it in the arena; meaningful while resident
        self.origin = np.zeros(len(blocks), np.int64)
        if plan.whole:
            length = blocks.stop - blocks.start  # blocks that meet in a store meet in the arena
            self.origin += np.cumsum(length) - length - blocks.start
            n_chunks = -(-self.n_obs // self.chunk)
            self._chunk_base = np.cumsum(n_chunks) - n_chunks
            self._here = np.zeros(int(n_chunks.sum()), bool)
            self._coming: dict[int, Job] = {}
        else:
            most = int(max(-(-plan.slot_obs // c) for c in self.chunk)) + 1
            self._slot_here = np.zeros((plan.slots, most), bool)
            self._slot_coming: list[dict[int, Job]] = [{} for _ in range(plan.slots)]
            self._slot_block = np.full(plan.slots, -1, np.int64)
            self._slot_refs = np.zeros(plan.slots, np.int64)
            self._slot_next = np.full(plan.slots, NEVER, np.int64)
            self._block_slot: dict[int, int] = {}

    def check_process(self) -> None:
        """Refuse to go on in a forked child.

        Raises
        ------
        ForkError
            If this is not the process that made the residency.
        """
        if os.getpid() != self.pid:
            raise ForkError(
                f"this loader was used in process {self.pid} and now in its forked child {os.getpid()}, "
                "which has none of its threads: start workers with 'spawn' or 'forkserver', or make the "
                "loader in the child"
            )

    def chunks_of(self, block: int, ranges: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """Return the chunks of the block's store that ranges of obs touch, ascending."""
        c = int(self.chunk[self.blocks.store[block]])
        if len(ranges) == 1:
            return np.arange(ranges[0][0] // c, (ranges[0][1] - 1) // c + 1)
        parts = [np.arange(a // c, (b - 1) // c + 1) for a, b in ranges]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    # ---- decisions; the lock is held

    def take(
        self, piece: int, block: int, ranges: Sequence[tuple[int, int]], next_need: int
    ) -> list[Job] | None:
        """Reserve a place for a piece; return the jobs it waits for, a new one first.

        None where no slot is free.
        """
        store = int(self.blocks.store[block])
        chunks = self.chunks_of(block, ranges)
        if self.plan.whole:
            at = chunks + self._chunk_base[store]
            waits = [job for i in at.tolist() if (job := self._coming.get(i)) is not None]
            missing = [
                c
                for c, i in zip(chunks.tolist(), at.tolist(), strict=True)
                if not self._here[i] and i not in self._coming
            ]
            if not missing:
                return waits
            job = Job(piece, store, -1, np.array(missing), int(self.origin[block]))
            for c in missing:
                self._coming[c + int(self._chunk_base[store])] = job
            self._cut(job, 0, int(self.n_obs[store]))
            self.counters.loads += 1
            return [job, *waits]
        slot = self._block_slot.get(block, -1)
        if slot < 0:
            slot = self._free_slot()
            if slot < 0:
                return None
            old = int(self._slot_block[slot])
            if old >= 0:
                del self._block_slot[old]
            self._slot_block[slot], self._block_slot[block] = block, slot
            self._slot_here[slot] = False
            self._slot_coming[slot] = {}
            self.origin[block] = slot * self.plan.slot_obs - int(self.blocks.start[block])
            self.counters.loads += 1
        self._slot_refs[slot] += 1
        self._slot_next[slot] = next_need
        first = int(self.blocks.start[block] // self.chunk[store])
        coming, here = self._slot_coming[slot], self._slot_here[slot]
        self._borrow(block, slot, chunks)
        waits = [job for c in chunks.tolist() if (job := coming.get(c)) is not None]
        missing = [c for c in chunks.tolist() if not here[c - first] and c not in coming]
        if not missing:
            return waits
        job = Job(piece, store, slot, np.array(missing), int(self.origin[block]))
        for c in missing:
            coming[c] = job
        start = int(self.blocks.start[block])
        self._cut(job, start, min(start + self.plan.slot_obs, int(self.n_obs[store])))
        return [job, *waits]

    def _borrow(self, block: int, slot: int, chunks: NDArray[np.int64]) -> None:
        """Copy what the block needs of the chunk behind it from the next block, if that is resident."""
        following = block + 1
        if self.loaded is not None or following >= len(self.blocks):
            return
        stop = int(self.blocks.stop[block])
        if self.blocks.start[following] != stop or self.blocks.store[following] != self.blocks.store[block]:
            return
        other = self._block_slot.get(following, -1)
        c = int(self.chunk[self.blocks.store[block]])
        behind = stop // c
        nth = behind - int(self.blocks.start[block]) // c
        if other < 0 or int(chunks[-1]) != behind or not self._slot_here[other, 0]:
            return
        if self._slot_here[slot, nth] or behind in self._slot_coming[slot]:
            return
        start, low = int(self.blocks.start[block]), int(self.origin[following])
        high = min((behind + 1) * c, start + self.plan.slot_obs, int(self.n_obs[self.blocks.store[block]]))
        to = int(self.origin[block])
        for array in self.arrays.values():
            array[stop + to : high + to] = array[stop + low : high + low]
        self._slot_here[slot, nth] = True

    def _free_slot(self) -> int:
        free = self._slot_refs == 0
        if not free.any():
            return -1
        return int(np.argmax(np.where(free, np.where(self._slot_block < 0, NEVER, self._slot_next), -1)))

    def _cut(self, job: Job, low: int, high: int) -> None:
        """Set the job's obs ranges: runs of its chunks, within [low, high)."""
        c = int(self.chunk[job.store])
        one, last = int(job.chunks[0]), int(job.chunks[-1])
        if last - one == len(job.chunks) - 1:
            job.ranges = [(max(one * c, low), min((last + 1) * c, high))]
            return
        runs = np.split(job.chunks, np.flatnonzero(np.diff(job.chunks) != 1) + 1)
        job.ranges = [(max(int(r[0]) * c, low), min((int(r[-1]) + 1) * c, high)) for r in runs]

    def finish(self, job: Job) -> None:
        """Record that a job's chunks are in the arena, or are not coming."""
        good = job.error is None
        if self.plan.whole:
            at = job.chunks + self._chunk_base[job.store]
            self._here[at] = good
            for i in at.tolist():
                self._coming.pop(i, None)
        else:
            coming = self._slot_coming[job.slot]
            first = int(self.blocks.start[self._slot_block[job.slot]] // self.chunk[job.store])
            self._slot_here[job.slot, job.chunks - first] = good
            for c in job.chunks.tolist():
                coming.pop(c, None)
        job.done = True

    def release(self, block: int) -> None:
        """Give back a piece's hold on its block; the block stays until its slot is needed."""
        if not self.plan.whole:
            self._slot_refs[self._block_slot[block]] -= 1

    def begin(self, order: NDArray[np.int64]) -> None:
        """Learn when what is resident is needed first in a new order of blocks; no thread is reading."""
        if self.plan.whole:
            self._coming.clear()
            return
        self._slot_refs[:] = 0
        self._slot_next[:] = NEVER
        for coming in self._slot_coming:
            coming.clear()  # of a session that failed, whose jobs nobody will do
        if self._block_slot and len(order):
            held, first = np.unique(order, return_index=True)
            at = np.minimum(np.searchsorted(held, self._slot_block), len(held) - 1)
            found = held[at] == self._slot_block
            self._slot_next[found] = first[at[found]]

    # ---- work; the lock is not held

    def read(self, jobs: Sequence[Job]) -> None:
        """Decode what jobs need into the arena; errors are kept in the job they belong to."""
        by_store: dict[int, list[Job]] = {}
        for job in jobs:
            by_store.setdefault(job.store, []).append(job)
        for number, group in by_store.items():
            try:
                self._read_ranges(number, [(r, j.place) for j in group for r in j.ranges])
            except Exception as error:
                if len(group) == 1 and not self.skip:
                    group[0].error = error
                    continue
                for job in group:
                    self._read_alone(number, job)
        for job in jobs:
            chunks = len(job.chunks) * len(self.fields)
            obs = sum(b - a for a, b in job.ranges)
            with self.lock:
                self.counters.chunks_decoded += chunks
                self.counters.bytes_decoded += obs * self.bytes_per_obs

    def _read_ranges(self, number: int, ranges: Sequence[tuple[tuple[int, int], int]]) -> None:
        store = self.stores[number]
        for name in self.fields:
            array = self.arrays[name]
            if len(ranges) == 1:
                (start, stop), place = ranges[0]
                store.read_into(name, start, stop, array[start + place : stop + place])
            else:
                outs = [array[a + place : b + place] for (a, b), place in ranges]
                store.read_ranges(name, [a for (a, _), _ in ranges], [b for (_, b), _ in ranges], outs)
            if self.loaded is not None:
                for (a, b), place in ranges:
                    self.loaded(name, a + place, b + place)

    def _read_alone(self, number: int, job: Job) -> None:
        """Read one job by itself; with ``skip``, chunk by chunk, so that only bad chunks are given up."""
        try:
            self._read_ranges(number, [(r, job.place) for r in job.ranges])
            return
        except Exception as error:
            if not self.skip or isinstance(error, ForkError):
                job.error = error
                return
        c = int(self.chunk[number])
        for low, high in job.ranges:
            for k in range(low // c, (high - 1) // c + 1):
                piece = (max(low, k * c), min(high, (k + 1) * c))
                try:
                    self._read_ranges(number, [(piece, job.place)])
                except Exception as error:
                    for name in self.fields:
                        self.arrays[name][piece[0] + job.place : piece[1] + job.place] = 0
                    with self.lock:
                        known = (number, k) in self.counters.bad_chunks
                        self.counters.bad_chunks[number, k] = f"{type(error).__name__}: {error}"
                    if not known:
                        log.warning(
                            "chunk %d of %s cannot be read, its windows are replaced: %s; "
                            "run 'chunkstore verify --deep' to see what else is damaged",
                            k,
                            self._name(number),
                            error,
                        )

    def _name(self, number: int) -> str:
        return str(getattr(self.stores[number], "url", f"store {number}"))

    def explain(self, job: Job, error: BaseException) -> BaseException:
        """Return what to raise for a job that failed: named by store, sequence and offset."""
        if isinstance(error, ChunkstoreError) and not isinstance(error, CorruptDataError):
            return error
        low, high = job.ranges[0][0], job.ranges[-1][1]
        store = self.stores[job.store]
        where = f"obs [{low}, {high})"
        try:
            table = store.sequences
            at = int(np.searchsorted(table.offsets, low, side="right")) - 1
            offset = low - int(table.offsets[at])
            where = f"sequence {table.ids[at]!r} from obs {offset} on ({where} of the store)"
        except Exception:
            log.debug("no sequence could be named for %s", where, exc_info=True)
        return CorruptDataError(
            f"{self._name(job.store)}: {where}, field{'s' if len(self.fields) > 1 else ''} "
            f"{', '.join(self.fields)}: {error}; run `chunkstore verify`, or pass on_bad_chunk='skip' to go "
            "on without these windows"
        )

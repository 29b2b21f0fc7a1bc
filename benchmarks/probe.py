"""What a subject measures itself with, in its own process: rates, times, bytes read, facts.

Nothing here starts a process or decides what is run; ``harness.py`` does. Runs inside the environments of the
peers, so it needs the standard library only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.usage import Usage, disk_bytes, evict, usage

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Probe"]


class Probe:
    """Collects what a subject measures; ``harness.measure`` writes it down.

    ``scale`` shortens all times of `stream`: 0.4 in a quick run. ``turn`` counts the processes of a subject:
    what no clock decides needs to be found in the first only.
    """

    def __init__(self, scale: float = 1.0, turn: int = 0) -> None:
        self.scale, self.turn = scale, turn
        self.lists: dict[str, list[float]] = {}
        self.values: dict[str, Any] = {}
        self.started: float | None = None

    def start(self) -> None:
        """Preparation ends here: peak memory counts from now on. Called by the timers if not by hand."""
        if self.started is None:
            self.started = time.monotonic()

    def add(self, name: str, value: float) -> None:
        """One repeat of a measured number."""
        self.lists.setdefault(name, []).append(float(value))

    def set(self, **values: Any) -> None:
        """Facts that are not repeated: counts, bytes on disk, yes and no, settings."""
        self.values.update(values)

    def disk(self, path: str | os.PathLike[str], name: str = "disk_bytes") -> None:
        """Record the bytes of a file or folder."""
        self.values[name] = disk_bytes(path)

    def evict(self, *paths: str | os.PathLike[str]) -> None:
        """Drop the cached pages of files or folders, and record whether that was possible."""
        self.values["cold"] = all([evict(path) for path in paths])  # noqa: C419 - all of them are tried

    def _rate(self, spent: Usage, units: float) -> None:
        self.add("per_s", units / max(spent.wall_s, 1e-9))
        if spent.cpu_s > 0.05:  # the counters tick 100 times a second
            self.add("per_cpu_s", units / spent.cpu_s)
        self.add("seconds", spent.wall_s)

    def _read(self, spent: Usage, units: float) -> None:
        """Bytes read for so many units; ``read_disk_bytes`` counts the pages of mapped files, too."""
        more = {"read_bytes": spent.read_calls_bytes, "read_disk_bytes": spent.read_disk_bytes}
        for name, value in (more | {"units": units}).items():
            self.values[name] = self.values.get(name, 0) + value

    def stream(
        self,
        batches: Callable[[], Iterable[Any]],
        count: Callable[[Any], int] = len,
        *,
        seconds: float = 5.0,
        slices: int = 5,
        warmup_s: float = 1.0,
        see: Callable[[Any], None] | None = None,
    ) -> None:
        """Draw batches for ``seconds`` in ``slices`` equal times; a rate each. An ended stream starts again.

        Records ``first_batch_s`` (from asking for an iterator to the first batch), then ``per_s`` and
        ``per_cpu_s`` in units a second. Bytes read are those of the whole stream, first batch and warm-up
        among them, since a reader may read all it needs at once. ``count(batch)`` says how many units a
        batch holds, ``see`` is handed the batches of the warm-up. That goes on, up to twelve times as long,
        while the rate rises: who reads through a map or a cache is slow until all has been touched.
        """
        self.start()
        seconds, warmup_s = seconds * self.scale, warmup_s * self.scale
        opened = usage()
        begin = time.perf_counter()
        turning = iter(batches())
        batch = next(turning)
        self.add("first_batch_s", time.perf_counter() - begin)
        drawn_in_all = count(batch)
        if see:
            see(batch)

        def endless() -> Iterator[Any]:
            nonlocal turning
            while True:
                drawn = 0
                for item in turning:
                    drawn += 1
                    yield item
                if not drawn:
                    raise RuntimeError("the stream holds no batch")
                turning = iter(batches())

        flow = endless()
        best, pieces, level = 0.0, 0, 0
        while warmup_s and level < 2 and pieces < 24:
            piece, drawn = time.perf_counter(), 0
            while time.perf_counter() - piece < warmup_s / 2:
                batch = next(flow)
                drawn += count(batch)
                if see:
                    see(batch)
            rate = drawn / (time.perf_counter() - piece)
            level = 0 if rate > 1.05 * best else level + 1
            best, pieces = max(best, rate), pieces + 1
            drawn_in_all += drawn
        whole, total = usage(), 0
        for _ in range(slices):
            before, units = usage(), 0
            end = time.perf_counter() + seconds / slices
            while time.perf_counter() < end:
                units += count(next(flow))
            self._rate(usage() - before, units)
            total += units
        ended = usage()
        self._read(ended - opened, drawn_in_all + total)
        if "per_cpu_s" not in self.lists:  # every slice used less than the counters can tell
            self.add("per_cpu_s", total / max((ended - whole).cpu_s, 0.01))

    def job(
        self,
        work: Callable[[], Any],
        units: float = 1,
        *,
        repeats: int = 1,
        warmup: int = 0,
        before: Callable[[], Any] | None = None,
    ) -> Any:
        """Call ``work`` ``repeats`` times (``before`` each, not timed); ``per_s`` is ``units`` a second."""
        self.start()
        result = None
        for turn in range(-warmup, repeats):
            if before:
                before()
            earlier = usage()
            result = work()
            if turn >= 0:
                spent = usage() - earlier
                self._rate(spent, units)
                self._read(spent, units)
        return result

"""What a person sees while a job runs: stages, tasks, rows, bytes a second, time left, faults.

The job reports to a :class:`Progress`; who shows it is decided here. :class:`Silent` shows nothing,
:class:`Lines` writes a plain line now and then, :class:`JsonLines` writes one JSON object an event, and
:class:`Bars` draws bars on a terminal.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from chunkstore.errors import ConfigError
from chunkstore.text import human_bytes, human_seconds, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

#: characters of a message that are shown; names of files in it may be anything
MESSAGE = 4000

__all__ = ["Bars", "JsonLines", "Lines", "Progress", "Silent", "make_progress"]


@dataclass
class Progress:
    """The state of a job, and the events that change it. Shows nothing by itself."""

    rows: int = 0
    """Rows read in the stage that reads."""
    lost: int = 0
    """Rows that are not in the store."""
    losing: int = 0
    """Faults that lose rows."""
    faults: dict[str, int] = field(default_factory=dict)
    """Faults by code."""
    bytes_in: int = 0
    """Encoded bytes read."""
    bytes_out: int = 0
    """Bytes written in this stage."""
    stage: str = ""
    """Name of the stage."""
    done: int = 0
    """Tasks of the stage that are finished."""
    tasks: int = 0
    """Tasks of the stage."""
    began: float = 0.0
    """When the stage began, by the monotonic clock."""
    skipped: int = 0
    """Tasks of the stage that an earlier run had finished."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage."""
    rate: float | None = None
    """Obs a second of the recordings (audio), to tell rows as hours."""

    def start(self, stage: str, tasks: int, skipped: int = 0) -> None:
        """Begin a stage."""
        self.end()
        self.stage, self.tasks, self.done, self.skipped = stage, tasks, skipped, skipped
        self.bytes_out = 0
        self.began = time.monotonic()
        self.show("start")

    def count(self, summary: Mapping[str, Any]) -> None:
        """Add what a task found, without counting the task."""
        self.rows += summary["rows"]
        self.lost += summary["lost"]
        self.losing += summary["losing"]
        self.bytes_in += summary["bytes_in"]
        for code, n in summary["faults"].items():
            self.faults[code] = self.faults.get(code, 0) + n

    def advance(self, summary: Mapping[str, Any]) -> None:
        """Count a finished task."""
        self.count(summary)
        self.bytes_out += summary["bytes_out"]
        self.done += 1
        self.show("task")

    def end(self) -> None:
        """End the stage."""
        if self.stage:
            took = time.monotonic() - self.began
            self.seconds[self.stage] = round(self.seconds.get(self.stage, 0.0) + took, 3)
            self.show("end")
            self.stage = ""

    def message(self, text: str) -> None:
        """Tell something in words."""

    def show(self, event: str) -> None:
        """Show the state after an event."""

    def close(self) -> None:
        """End the last stage and let go of the terminal."""
        self.end()

    @property
    def left(self) -> float | None:
        """Seconds left in this stage, as far as one can tell."""
        fresh = self.done - self.skipped
        if fresh <= 0 or not self.began:
            return None
        return (time.monotonic() - self.began) / fresh * (self.tasks - self.done)

    def line(self) -> str:
        """Return the state as one line."""
        took = max(1e-9, time.monotonic() - self.began)
        words = [f"{self.stage}: {self.done}/{self.tasks} tasks"]
        if self.rows:
            words.append(
                f"{human_seconds(self.rows / self.rate)} of audio" if self.rate else f"{self.rows:,} rows"
            )
        if self.bytes_out:
            words.append(f"{human_bytes(self.bytes_out)} written, {human_bytes(self.bytes_out / took)}/s")
        if self.left:
            words.append(f"{self.left:.0f} s left")
        if self.losing:
            words.append(f"{self.losing} faults lost {self.lost:,} rows")
        return ", ".join(words)


class Silent(Progress):
    """Shows nothing."""


class Lines(Progress):
    """A plain line every few seconds, for logs and pipes."""

    every = 5.0

    def __init__(self, out: IO[str] | None = None, rate: float | None = None) -> None:
        super().__init__(rate=rate)
        self._out = out or sys.stderr
        self._shown = time.monotonic()

    def show(self, event: str) -> None:
        """Show the state, if it is time."""
        now = time.monotonic()
        if event == "end" or (event == "task" and now - self._shown >= self.every):
            self._shown = now
            self._out.write(self.line() + "\n")
            self._out.flush()

    def message(self, text: str) -> None:
        """Tell something in words."""
        self._out.write(printable(text, MESSAGE) + "\n")
        self._out.flush()


class JsonLines(Progress):
    """One JSON object an event, for machines."""

    every = 1.0

    def __init__(self, out: IO[str] | None = None, rate: float | None = None) -> None:
        super().__init__(rate=rate)
        self._out = out or sys.stderr
        self._shown = 0.0

    def event(self, event: str, **told: Any) -> None:
        """Write one event; names that are no text have their bytes written out, as strict readers need."""
        told = {k: printable(v, MESSAGE) if isinstance(v, str) else v for k, v in told.items()}
        self._out.write(json.dumps({"time": round(time.time(), 3), "event": event, **told}) + "\n")
        self._out.flush()

    def show(self, event: str) -> None:
        """Write the state, if it is time."""
        now = time.monotonic()
        if event == "task" and now - self._shown < self.every:
            return
        self._shown = now
        left = self.left
        self.event(
            event,
            stage=self.stage,
            done=self.done,
            tasks=self.tasks,
            rows=self.rows,
            rows_lost=self.lost,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            faults=dict(self.faults),
            seconds_left=None if left is None else round(left, 1),
        )

    def message(self, text: str) -> None:
        """Tell something in words."""
        self.event("message", text=text)


class Bars(Progress):
    """A bar for each stage, on a terminal."""

    every = 0.1

    def __init__(self, rate: float | None = None) -> None:
        super().__init__(rate=rate)
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._rich = RichProgress(
            TextColumn("{task.description:<7}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} tasks"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
            console=Console(stderr=True),
        )
        self._rich.start()
        self._task: Any = None
        self._shown = 0.0

    def show(self, event: str) -> None:
        """Move the bar."""
        now = time.monotonic()
        if event == "task" and now - self._shown < self.every:
            return
        self._shown = now
        if event == "start":
            self._task = self._rich.add_task(self.stage, total=self.tasks, completed=self.done, told="")
        elif self._task is not None:
            told = ", ".join(self.line().split(", ")[1:])
            self._rich.update(self._task, completed=self.done, told=told)

    def message(self, text: str) -> None:
        """Tell something in words."""
        self._rich.console.print(printable(text, MESSAGE), highlight=False, markup=False)

    def close(self) -> None:
        """End the last stage and let go of the terminal."""
        super().close()
        self._rich.stop()


def make_progress(kind: bool | str | Progress, rate: float | None = None) -> Progress:
    """Return a progress by name: ``auto`` (or True), ``bars``, ``lines``, ``json``, ``silent`` (or False).

    Raises
    ------
    ConfigError
        If it is none of these.
    """
    if isinstance(kind, Progress):
        return kind
    if kind in {True, "auto"}:
        kind = "bars" if sys.stderr is not None and sys.stderr.isatty() else "lines"
    if kind == "bars":
        return Bars(rate)
    if kind == "lines":
        return Lines(rate=rate)
    if kind == "json":
        return JsonLines(rate=rate)
    if kind in {False, "silent"}:
        return Silent()
    raise ConfigError(f"progress is {kind!r}; it is True, False, 'auto', 'bars', 'lines', 'json' or 'silent'")

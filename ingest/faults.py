"""Fault codes, counted and written down: what was wrong with the inputs, one line each.

A code is stable: scripts may match on it. Every source lists its own in a dict ``CODES``; the
engine's are here, and :func:`codes` joins them. This module decides what counts as lost and
what ends a job (``max_bad``); it leaves the finding of faults to the sources.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError
from ingest.protocol import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CODES", "FaultCount", "MaxBad", "codes", "fault_from_json", "fault_to_json", "loses_rows"]

#: what the engine itself can find
#:
#: :meta hide-value:
CODES: Mapping[str, str] = {
    "rows-unaccounted": "a source gave fewer rows than the input claims and named no fault for them",
    "rows-unclaimed": "a source gave more rows than the input claims; all of them are stored",
    "label-conflict": "two parts of one sequence state different values of a label; the first is kept",
    "duplicate-id": "several records have one id where a record is a sequence; later ones get a number",
    "time-backward": "times of a sequence go back and the order of the inputs was asked for",
    "time-missing": "obs without a time: among integers they count as 0, among floats as after all others",
    "time-duplicate": "obs of one sequence have the same time",
}

#: actions after which rows of the input are not in the store
LOSING = frozenset({"quarantined", "gap"})
_MODULES = ("ingest.sources.avro", "ingest.sources.audio", "ingest.sources.npy")


def codes() -> dict[str, str]:
    """Return every fault code that this installation can report, with its sentence.

    Examples
    --------
    >>> codes()["label-conflict"]
    'two parts of one sequence state different values of a label; the first is kept'
    """
    known = dict(CODES)
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        known.update(getattr(module, "CODES", {}))
    return known


def loses_rows(fault: Fault) -> bool:
    """Whether data was kept out of the store because of this fault.

    Examples
    --------
    >>> loses_rows(Fault("x", "f", "m")), loses_rows(Fault("x", "f", "m", action="kept"))
    (True, False)
    """
    return fault.action in LOSING


def fault_to_json(fault: Fault) -> dict[str, Any]:
    """Return the fault as one line of a report."""
    return {
        "file": fault.file,
        "offset": fault.offset,
        "block": fault.block,
        "claimed_rows": fault.rows,
        "code": fault.code,
        "message": fault.message,
        "action": fault.action,
    }


def fault_from_json(value: Mapping[str, Any]) -> Fault:
    """Return the fault that :func:`fault_to_json` wrote.

    Examples
    --------
    >>> import json
    >>> fault = Fault("code", "file", "message", 3, 4, 5)
    >>> fault_from_json(json.loads(json.dumps(fault_to_json(fault)))) == fault
    True
    """
    return Fault(
        value["code"],
        value["file"],
        value["message"],
        value["offset"],
        value["block"],
        value["claimed_rows"],
        value["action"],
    )


@dataclass(slots=True)
class FaultCount:
    """Faults by code, and how many lost rows.

    Examples
    --------
    >>> count = FaultCount()
    >>> count.add([Fault("a", "f", "m", rows=3), Fault("b", "f", "m", action="kept")])
    >>> count.by_code, count.losing, count.total
    ({'a': 1, 'b': 1}, 1, 2)
    """

    by_code: dict[str, int] = field(default_factory=dict)
    """Number of faults of each code."""
    losing: int = 0
    """Faults after which rows are missing."""
    total: int = 0
    """All faults."""

    def add(self, faults: Iterable[Fault]) -> None:
        """Count more faults."""
        for fault in faults:
            self.by_code[fault.code] = self.by_code.get(fault.code, 0) + 1
            self.losing += loses_rows(fault)
            self.total += 1


@dataclass(frozen=True, slots=True)
class MaxBad:
    """How much may be lost before a job gives up.

    Examples
    --------
    >>> MaxBad.parse("1%").exceeded(faults=5, rows_lost=30, rows_in=1000)
    True
    >>> MaxBad.parse(5).exceeded(faults=5, rows_lost=30, rows_in=1000)
    False
    """

    faults: int | None = None
    """Faults that lose rows; ``None`` for no limit."""
    share: float | None = None
    """Share of the rows that are read, or claimed if those are more; ``None`` for no limit."""

    @classmethod
    def parse(cls, value: int | str | None) -> MaxBad:
        """Read ``None``, a number of faults, or a share of the rows such as ``"0.5%"``."""
        if value is None:
            return cls()
        text = str(value).strip()
        try:
            if text.endswith("%"):
                share = float(text[:-1]) / 100
                if 0 <= share <= 1:
                    return cls(share=share)
            elif int(text) >= 0:
                return cls(faults=int(text))
        except ValueError:
            pass
        raise ConfigError(
            f"max_bad is {value!r}; give a number of faults, or a share of the rows such as '1%'"
        )

    def exceeded(self, faults: int, rows_lost: int, rows_in: int) -> bool:
        """Whether the job must end."""
        if self.faults is not None and faults > self.faults:
            return True
        return self.share is not None and rows_lost > self.share * max(1, rows_in)

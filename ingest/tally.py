"""Rows and faults of a job, added up receipt by receipt: a few numbers a file, nothing a task."""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ingest.faults import FaultCount, fault_from_json, loses_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ingest.ledger import Ledger
    from ingest.plan import Plan
    from ingest.protocol import Fault

__all__ = ["KINDS", "Tally"]

#: what becomes of a row: read; and then stored, in a gap or in quarantine
KINDS = ("rows_in", "stored", "gap", "quarantined")


class Tally:
    """Rows by file and faults by code.

    Parameters
    ----------
    files : sequence of str
        The inputs.
    faults : iterable of Fault
        What the scan found.

    Examples
    --------
    >>> from ingest.protocol import Fault
    >>> tally = Tally(["f", "g"], [Fault("x", "g", "m", rows=2)])
    >>> tally.add({"faults": [], "accounts": [
    ...     {"file": "f", "rows_in": 5, "stored": 4, "gap": 1, "quarantined": 0}]})
    >>> tally.rows
    {'rows_in': 7, 'stored': 4, 'gap': 1, 'quarantined': 2}
    >>> dict(tally.by_file())["g"], tally.faults.by_code
    ({'rows_in': 2, 'stored': 0, 'gap': 0, 'quarantined': 2}, {'x': 1})
    """

    def __init__(self, files: Sequence[str], faults: Iterable[Fault] = ()) -> None:
        self._place = {name: i for i, name in enumerate(files)}
        self._rows = {kind: array("q", repeat(0, len(self._place))) for kind in KINDS}
        self.faults = FaultCount()
        """Faults by code."""
        for fault in faults:
            self.faults.add([fault])
            if fault.rows and loses_rows(fault):
                at = self._at(fault.file)
                if fault.action == "quarantined":
                    self._rows["rows_in"][at] += fault.rows
                    self._rows["quarantined"][at] += fault.rows

    @classmethod
    def of(cls, plan: Plan) -> Tally:
        """Begin with what the scan of a plan found."""
        return cls(plan.parts.files, plan.faults)

    def read(self, ledger: Ledger, plan: Plan, write_tasks: int) -> Tally:
        """Take in all receipts of tasks that read inputs."""
        stage, count = ("write", write_tasks) if plan.placed else ("stage", plan.n_stage_tasks)
        for receipt in ledger.receipts(stage, count):
            self.add(receipt)
        return self

    def _at(self, file: str) -> int:
        at = self._place.setdefault(file, len(self._place))
        if at == len(self._rows["gap"]):
            for column in self._rows.values():
                column.append(0)
        return at

    def add(self, receipt: Mapping[str, Any]) -> None:
        """Take in the receipt of a task."""
        self.faults.add(fault_from_json(f) for f in receipt["faults"])
        for account in receipt["accounts"]:
            at = self._at(account["file"])
            for kind, column in self._rows.items():
                column[at] += account[kind]

    @property
    def rows(self) -> dict[str, int]:
        """Rows of all files."""
        return {kind: sum(column) for kind, column in self._rows.items()}

    def by_file(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Yield each file and its rows, in the order of the inputs."""
        for name, at in self._place.items():
            yield name, {kind: column[at] for kind, column in self._rows.items()}

    def to_json(self, more: Iterable[Fault]) -> dict[str, Any]:
        """Return what the store itself keeps (its ledger may be deleted), with faults found at the end."""
        count = FaultCount(dict(self.faults.by_code))
        count.add(more)
        return {"rows": self.rows, "faults": dict(sorted(count.by_code.items()))}

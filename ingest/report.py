"""How a job ended: ``report.json`` for machines, a summary for people, faults one a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeGuard

from chunkstore.errors import IngestError
from chunkstore.text import counted, human_bytes
from ingest.faults import FaultCount, codes, fault_to_json
from ingest.inputs import is_url, local_path, shown
from ingest.memory import row_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ingest.finish import Finished
    from ingest.plan import Plan
    from ingest.protocol import Fault
    from ingest.tally import Tally

__all__ = ["build_report", "is_report", "tell", "write_faults"]


def build_report(
    plan: Plan,
    tally: Tally,
    done: Finished,
    more: Sequence[Fault],
    *,
    write_tasks: int,
    store: str,
    workers: int,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """Check that every row of all receipts is accounted for, and say how it went.

    Parameters
    ----------
    tally : Tally
        Rows and faults of the scan and of all receipts.
    more : sequence of Fault
        Faults that came to light at the end.

    Raises
    ------
    IngestError
        If rows in are not rows stored and rows lost, for any file or in all.
    """
    count = FaultCount(dict(tally.faults.by_code), tally.faults.losing)
    count.add(more)
    rows = tally.rows
    files: list[dict[str, Any]] = [{"file": shown(name), **own} for name, own in tally.by_file()]
    for own in files:
        if own["rows_in"] != own["stored"] + own["gap"] + own["quarantined"]:
            raise IngestError(f"{own} does not add up; this is a bug, please report it")
    if rows["stored"] + rows["gap"] != done.obs:
        raise IngestError(
            f"{rows['stored']} rows stored and {rows['gap']} in gaps do not make the {done.obs} obs of the "
            "store; this is a bug, please report it"
        )
    return {
        "store": store,
        "plan": plan.hash,
        "source": plan.source,
        "exit_code": 3 if count.losing else 0,
        "sequences": done.sequences,
        "obs": done.obs,
        "gaps": done.gaps,
        "cuts": done.cuts,
        "times_backward": done.backward,
        "times_duplicate": done.duplicates,
        "rows": rows,
        # a record that cannot be read does not say how many obs it would have been
        "quarantined_are": "records" if plan.key_once else "rows",
        "files": files,
        "faults": dict(sorted(count.by_code.items())),
        "bytes_in": plan.nbytes,
        "bytes_decoded": done.obs * row_bytes(plan.fields),
        "bytes_stored": done.bytes_stored,
        "write_tasks": write_tasks,
        "stage_tasks": plan.n_stage_tasks,
        "memory_a_worker": plan.memory,
        "workers": workers,
        "seconds": dict(seconds),
        "versions": dict(plan.versions),
    }


def tell(report: Mapping[str, Any]) -> str:
    """Return a report as a person reads it."""
    rows = report["rows"]
    decoded, stored = report["bytes_decoded"], report["bytes_stored"]
    seconds = report["seconds"].get("all", 0.0)
    what = f"{report['sequences']:,} sequences, {report['obs']:,} obs from {len(report['files']):,} files"
    sizes = [human_bytes(n) for n in (report["bytes_in"], decoded, stored)]
    lines = [
        f"{report['store']}: {what} in {seconds:.1f} s",
        "{} read, {} decoded, {} stored".format(*sizes)
        + (f" (1 : {decoded / stored:.1f})" if stored else ""),
    ]
    if rows["gap"] or rows["quarantined"]:
        if report.get("quarantined_are") == "records":
            lines.append(
                f"{rows['stored']:,} obs are stored, {rows['gap']:,} are gaps; "
                f"{counted(rows['quarantined'], 'record')} in quarantine, of as many obs as nobody knows"
            )
        else:
            lines.append(
                f"of {rows['rows_in']:,} rows {rows['stored']:,} are stored, {rows['gap']:,} are gaps, "
                f"{rows['quarantined']:,} are in quarantine"
            )
    if report["cuts"]:
        lines.append(f"sequences were cut at {report['cuts']:,} places")
    if report["times_backward"] or report["times_duplicate"]:
        lines.append(
            f"in sequences {report['times_backward']:,} times go back, {report['times_duplicate']:,} repeat"
            + ("; --on-disorder sort puts them in order" if report["times_backward"] else "")
        )
    told = codes() if report["faults"] else {}
    lines += [f"  {n:,} x {code}: {told.get(code, '')}".rstrip(": ") for code, n in report["faults"].items()]
    return "\n".join(lines)


def is_report(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a document is a report that can be told, and not a damaged one.

    Examples
    --------
    >>> is_report({"exit_code": 0})
    False
    """
    if not isinstance(value, dict) or type(value.get("exit_code")) is not int:
        return False
    try:
        tell(value)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return False
    return True


def write_faults(
    place: str, faults: Iterable[Fault], storage_options: Mapping[str, Any] | None = None
) -> None:
    """Write faults as JSON lines to a file or URL."""

    def lines() -> Iterable[str]:
        for fault in faults:
            told = {**fault_to_json(fault), "file": shown(fault.file)}
            yield json.dumps(told, ensure_ascii=True) + "\n"

    if is_url(place):
        import fsspec

        from ingest.remote import register_clouds

        register_clouds()
        with fsspec.open(place, "wt", encoding="utf-8", **dict(storage_options or {})) as out:
            out.writelines(lines())
        return
    with open(local_path(place), "w", encoding="utf-8") as out:  # noqa: PTH123  # a path as it was typed
        out.writelines(lines())

"""A job from its inputs to a finished store: scan, stage, place, write, finish, and all of it again.

Every step looks first at what the ledger says is done. A job that was killed at any moment is therefore
continued by the same steps. This module decides their order; the work is done elsewhere.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import ConfigError, IngestError, InputError, NotAStoreError, StoreExistsError
from chunkstore.origins import holds, identity
from chunkstore.places import open_place
from chunkstore.skeleton import create_store, open_skeleton
from ingest.difference import changed_files, difference
from ingest.exchange import gather, scratch_is_whole
from ingest.faults import MaxBad, fault_from_json
from ingest.finish import Finished, Sequences, conflict, finish, repeats
from ingest.folder import open_folder
from ingest.inputs import is_url, local_path, shown
from ingest.ledger import SHELF, Ledger, Lock, is_ledger_name, ledger_url
from ingest.memory import choose_layout
from ingest.plan import Job, Plan, digest, make_plan
from ingest.report import build_report, is_report, write_faults
from ingest.rows import Account
from ingest.run import patiently
from ingest.runners import check_workers, make_runner, start_early
from ingest.sources import open_source
from ingest.stage import stage, summary
from ingest.tally import Tally
from ingest.tasks import PlacedTasks, stage_task, staged_task
from ingest.versions import versions_here
from ingest.write import StagedTask, write_placed, write_staged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from chunkstore.layout import Layout
    from ingest.local import LocalWorkers
    from ingest.memory import Choices
    from ingest.progress import Progress
    from ingest.run import Runner

__all__ = ["Execution", "IngestResult", "plan_job", "run_job"]

log = logging.getLogger(__name__)
#: what file systems and desktops leave in any folder
_DROPPED = re.compile(r"(.*/)?\.(DS_Store|directory|_[^/]*|nfs[^/]*|fuse_hidden[^/]*)", re.DOTALL)


@dataclass(frozen=True)
class IngestResult:
    """How a job ended."""

    exit_code: int
    """0: clean; 3: finished, but some rows are in quarantine (1 and 2 are exceptions)."""
    store: str
    """URL of the store."""
    report: Mapping[str, Any]
    """What ``report.json`` holds."""

    def summary(self) -> str:
        """Return the report as a person reads it."""
        from ingest.report import tell

        return tell(self.report)


@dataclass(frozen=True)
class Execution:
    """How a job is run; none of it changes a byte of the store."""

    resume: bool = False
    """Go on with a job that was broken off."""
    overwrite: bool = False
    """Remove the store that is there, if it is one of ours."""
    workers: int | None = None
    """Local worker processes; 0 for none at all."""
    scheduler: str | None = None
    """Address of a dask scheduler."""
    client: Any = None
    """A dask client."""
    tmp_dir: str | None = None
    """Where scratch lies; beside the store by default."""
    report: str | None = None
    """File that faults are written to, one JSON object a line."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the object store of the output."""


def plan_job(source: str, options: Mapping[str, Any], files: Sequence[str], choices: Choices) -> Plan:
    """Scan the files and plan the job; nothing is written."""
    scan = open_source(source, options).scan(files)
    return make_plan(scan, choices)


def run_job(
    source: str,
    options: Mapping[str, Any],
    files: Sequence[str],
    out: str,
    *,
    choices: Choices,
    how: Execution,
    progress: Progress,
) -> IngestResult:
    """Run a job to its end, or as far as it gets; see the module."""
    if how.resume and how.overwrite:
        raise ConfigError("resume and overwrite exclude each other: go on with what is there, or remove it")
    MaxBad.parse(choices.max_bad)
    out = out.rstrip("/")
    check_workers(how.workers, how.scheduler, how.client)
    _check_places(files, out, how)
    work = _Work(source, options, out, choices=choices, how=how, progress=progress)
    work.look()
    with Lock(work.ledger.folder, shown(out)) as lock:
        work.lock = lock
        try:
            work.look()  # another job may have come and gone meanwhile
            return work.go(files)
        finally:
            progress.close()


def _check_places(files: Sequence[str], out: str, how: Execution) -> None:
    """Refuse an output, scratch or a report that would stand in the way of each other or of an input."""
    place = identity(out, how.storage_options if is_url(out) else None)
    there = is_url(place) or os.path.exists(place)  # noqa: PTH110 - strings, as elsewhere in jobs
    inside = next((f for f in files if there and holds(place, f)), None)
    if inside is not None:
        raise ConfigError(
            f"the input {shown(inside)} lies in the output {shown(out)}, where all is replaced; "
            "choose another output"
        )
    if how.tmp_dir is not None and holds(place, how.tmp_dir):
        raise ConfigError(f"tmp_dir {shown(how.tmp_dir)} lies in the output; choose another folder")
    if how.report is None:
        return
    told = how.report.rstrip("/") if is_url(how.report) else os.path.realpath(local_path(how.report))
    if any(holds(told, f) for f in files):
        raise ConfigError(f"the report {shown(how.report)} is one of the inputs; choose another file")
    if holds(place, told) or holds(ledger_url(place), told):
        raise ConfigError(
            f"the report {shown(how.report)} lies in the output or its ledger; choose another file"
        )
    if not is_url(told) and (os.path.isdir(told) or not os.path.isdir(os.path.dirname(told))):  # noqa: PTH112, PTH120 - as above
        raise ConfigError(f"the report {told} is a folder, or in none that exists; choose another file")


class _Work:
    """One run of a job."""

    def __init__(
        self,
        source: str,
        options: Mapping[str, Any],
        out: str,
        *,
        choices: Choices,
        how: Execution,
        progress: Progress,
    ) -> None:
        self.source = source
        self.options = options
        self.out = out
        self.choices = choices
        self.how = how
        self.progress = progress
        # beside the store itself, whatever link leads to it: there is one lock a store
        self.ledger = Ledger(ledger_url(out if is_url(out) else identity(out)), how.storage_options)
        #: options of the place of the store: those of inputs in an object store mean nothing to a folder
        self.storage_options = how.storage_options if is_url(out) else {}
        self.place = open_place(out, self.storage_options)
        self.lock: Lock | None = None
        self.began = time.monotonic()
        self.max_bad = MaxBad.parse(choices.max_bad)
        self.rows = self.lost = self.losing = 0
        #: rows that the inputs claim: what a share of lost rows is measured against
        self.expected = 0

    # ---------------------------------------------------------------- what is there

    def status(self) -> str:
        """``empty``, ``foreign``, ``incomplete`` or ``complete``."""
        if self.place.is_empty():
            return "empty"
        own = self._told()
        if own is None:
            return "foreign"
        return "complete" if own.get("status") == "complete" else "incomplete"

    def _told(self) -> dict[str, Any] | None:
        """Return what the root says of a store of ours; ``None`` if it is none."""
        try:
            own = json.loads(self.place.get("zarr.json") or b"")["attributes"]["chunkstore"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return own if isinstance(own, dict) else None

    def _is_of(self, plan: Plan) -> bool:
        """Whether the store that is complete is what the plan leads to, as far as it says."""
        made = (self._told() or {}).get("provenance")
        return not isinstance(made, dict) or made.get("plan", plan.content) == plan.content

    def look(self) -> None:
        """Refuse what must not be touched, before anything is done."""
        status = self.status()
        if status == "foreign":
            raise StoreExistsError(
                f"{self.place.url} is not empty and is not a store of chunkstore; choose another output"
            )
        if self.how.resume or self.how.overwrite:
            return
        if status != "empty":
            raise StoreExistsError(
                f"there is already {'a' if status == 'complete' else 'an unfinished'} store at "
                f"{self.place.url}; use --resume to go on with it, or --overwrite to replace it"
            )
        if self.ledger.exists():
            raise StoreExistsError(
                f"a job for {self.place.url} was broken off; use --resume to go on with it, or --overwrite "
                "to start anew"
            )

    def remove(self) -> None:
        """Remove our store and its ledger; broken off, it never leaves a store that looks whole."""
        self._spare_others()
        data = self.place.get("zarr.json")
        if data is not None:
            root = json.loads(data)
            root["attributes"]["chunkstore"]["status"] = "incomplete"
            self.place.put("zarr.json", json.dumps(root).encode())
            for key, _ in self.place.walk():  # listed whole, then yielded
                if key != "zarr.json":
                    self.place.delete(key)
            self.place.clear()
        for name in self.ledger.folder.names():
            if name != "lock.json":
                self.ledger.folder.delete(name)

    def _spare_others(self) -> None:
        """Refuse to remove folders in which somebody keeps things of their own."""
        arrays: set[str] = set()
        others: dict[str, str] = {}
        for key, _ in self.place.walk():  # sorted
            head, _, rest = key.partition("/")
            if rest == "zarr.json":
                arrays.add(head)
            elif key != "zarr.json" and not _DROPPED.fullmatch(key):
                # what stands in an array is a chunk, or somebody's own
                others.setdefault(head if rest.startswith("c/") else f"{head}/", key)
        strange = [key for head, key in others.items() if head not in arrays]
        strange = strange or [n for n in self.ledger.folder.names() if not is_ledger_name(n)]
        if strange:
            where = self.place.url if others and strange[0] in others.values() else self.ledger.url
            raise StoreExistsError(
                f"{where} also holds {strange[0]!r}, which no ingest has written; nothing was removed: take "
                "it away, or choose another output"
            )

    # ---------------------------------------------------------------- the steps

    def go(self, files: Sequence[str]) -> IngestResult:
        """Plan, stage, write and finish."""
        how = self.how
        early = start_early(how.workers, how.scheduler, how.client, source=self.source, options=self.options)
        try:
            return self._go(files, early)
        finally:
            if early is not None:
                early.close()

    def _go(self, files: Sequence[str], early: LocalWorkers | None) -> IngestResult:
        self.progress.start("scan", 1)
        plan = plan_job(self.source, self.options, files, self.choices)
        self.progress.advance(summary(Account(-1, ""), plan.faults, 0, 0))
        self.ledger.plan = plan.hash
        self.expected = plan.claimed
        self.settle(plan)
        self._watch(summary(Account(-1, ""), plan.faults, 0, 0))
        scratch = self._scratch_url(plan)
        if self.status() == "complete":
            if not self._is_of(plan):
                raise StoreExistsError(
                    f"the store at {self.place.url} is complete, but another job made it than the one of its "
                    "ledger; use --overwrite to replace both, or choose another output"
                )
            return self._again(plan, scratch)
        job = Job(
            store=self.out,
            ledger=self.ledger.url,
            scratch=scratch,
            storage_options=self.how.storage_options,
            plan=plan.hash,
            token=self.lock.token if self.lock else "",
            source=self.source,
            options=plan.options,
            fields=plan.fields,
            time_field=plan.time_field,
            order=plan.order,
            cut=plan.cut,
            segment=plan.segment,
            layout=plan.layout,
            on_error=self.choices.on_error,
            versions=versions_here(plan.versions),
        )
        runner: Runner | None = None
        try:
            runner = make_runner(early or self.how.workers, self.how.scheduler, self.how.client)
            if runner.dashboard:
                self.progress.message(f"dask dashboard: {runner.dashboard}")
            workers = runner.workers
            if plan.placed:
                sequences, count, faults = self._write_placed(plan, job, runner)
            else:
                sequences, count, faults = self._exchange(plan, job, runner)
        except BaseException:
            self._tell_faults(plan)
            raise
        finally:
            if runner is not None:
                runner.close()  # one of ours that nobody hears of must not write into a finished store
        if self.lock is not None and not self.lock.held():
            raise IngestError(
                f"another job took the lock of {shown(self.out)}; this one stops before finishing"
            )
        self.progress.start("finish", 1)
        tally = Tally.of(plan)
        done = finish(
            plan,
            self.ledger,
            store=self.out,
            sequences=sequences,
            write_tasks=count,
            faults=faults,
            tally=tally,
            storage_options=self.storage_options,
        )
        self.progress.done = 1
        self.progress.end()
        return self._end(plan, tally, done, done.faults, count=count, workers=workers, scratch=scratch)

    def _again(self, plan: Plan, scratch: str) -> IngestResult:
        """Return the report of a store that is complete, made anew if it is missing."""
        self.place.sweep()  # an earlier run may have been killed in its very last step
        report = self.ledger.get_json("report.json")
        if not is_report(report):
            done, more, count = self._kept()
            tally = Tally.of(plan).read(self.ledger, plan, count)
            return self._end(plan, tally, done, more, count=count, workers=0, scratch=scratch)
        self.progress.message(f"{self.place.url} is complete already")
        if self.how.report is not None:
            self._report(chain(self._faults(plan), self._kept()[1]))
        open_folder(scratch, self.how.storage_options).delete_all()
        return IngestResult(report["exit_code"], self.out, report)

    def _kept(self) -> tuple[Finished, list[Any], int]:
        """Return what the last step told the ledger: the numbers, its faults, how many tasks wrote."""
        kept = self.ledger.get_json("finished.json")
        try:
            more = [fault_from_json(f) for f in kept["more"]]
            return Finished.from_json(kept["done"]), more, int(kept["write_tasks"])
        except (TypeError, KeyError, ValueError, AttributeError):
            raise IngestError(
                f"finished.json of the ledger {self.ledger.url} is lost or damaged; the store is complete, "
                "only its report cannot be made again; --overwrite starts anew"
            ) from None

    def settle(self, plan: Plan) -> None:
        """Bring ledger and plan together: the same plan goes on, another is refused with the difference."""
        old = self.ledger.get_json("plan.json")
        if old is not None and not isinstance(old, dict):
            old = {}  # not a plan of ours: it will differ
        if self.how.resume and old is not None:
            if old.get("hash") != plan.hash:
                raise InputError(self._changed(old, plan))
            return
        if self.how.resume and self.status() != "empty":
            raise NotAStoreError(
                f"there is a store at {self.place.url} but no ledger of an unfinished job; "
                "use --overwrite to replace it"
            )
        self.remove()
        self.ledger.folder.put_stream("parts.jsonl", plan.parts.blocks())
        self.ledger.put_json("plan.json", plan.to_json())

    def _changed(self, old: Mapping[str, Any], plan: Plan) -> str:
        damage = (FileNotFoundError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
        try:
            lines = difference(old, plan.to_json())
        except damage:
            lines = ["plan.json of the ledger is damaged"]
        try:
            rows = (json.loads(line) for line in self.ledger.folder.get("parts.jsonl").splitlines())
            lines += changed_files(rows, plan.parts)
        except damage:
            lines.append("parts.jsonl of the ledger cannot be read")
        told = "; ".join(lines)
        return (
            f"this is not the job that was broken off: {told}. Give the same inputs and options, or "
            "--overwrite to start anew"
        )

    def _scratch_url(self, plan: Plan) -> str:
        if self.how.tmp_dir is None:
            return self.ledger.url + "/scratch"
        # another job may do the same work for another store, and will remove its scratch at the end
        return self.how.tmp_dir.rstrip("/") + f"/ingest-{digest([plan.hash, self.ledger.url])[:16]}"

    # ---------------------------------------------------------------- tasks

    def _map(
        self,
        name: str,
        count: int,
        *,
        make: Callable[[int], Any],
        work: Callable[[Any], Any],
        runner: Runner,
        finished: Callable[[Mapping[str, Any]], bool],
    ) -> None:
        """Run the tasks of a stage that the ledger does not have, bounded, and keep count."""
        missing = self._missing(name, count, finished)
        self.progress.start(name, count, count - len(missing))
        for _, result in runner.map(work, map(make, missing), len(missing)):
            self._watch(result)
            self.progress.advance(result)

    def _missing(self, name: str, count: int, finished: Callable[[Mapping[str, Any]], bool]) -> Sequence[int]:
        def look(index: int) -> Mapping[str, Any] | None:
            receipt = self.ledger.receipt(name, index)
            if receipt is None:
                return None
            if finished(receipt):
                return receipt
            log.warning(
                "%s task %d left something that is not what it wrote; it is done again, nothing need be done",
                name,
                index,
            )
            self.ledger.forget(name, index)
            return None

        if not self.how.resume:
            return range(count)
        missing = array("q")
        with ThreadPoolExecutor(4) as pool:
            for low in range(0, count, SHELF):
                there = self.ledger.recorded(name, low)
                missing.extend(sorted(set(range(low, min(low + SHELF, count))).difference(there)))
                for at in range(0, len(there), 64):  # receipts of 64 are in memory
                    some = there[at : at + 64]
                    for index, receipt in zip(some, pool.map(look, some), strict=True):
                        if receipt is None:
                            missing.append(index)
                        else:
                            self._recount(receipt)
        return missing

    def _recount(self, receipt: Mapping[str, Any]) -> None:
        faults = [fault_from_json(f) for f in receipt["faults"]]
        whole = Account(-1, "")
        for a in receipt["accounts"]:
            whole.rows_in += a["rows_in"]
            whole.gap += a["gap"]
            whole.quarantined += a["quarantined"]
        told = summary(whole, faults, 0, 0)
        self.progress.count(told)
        self._watch(told)

    def _watch(self, told: Mapping[str, Any]) -> None:
        """End the job when more is lost than was allowed."""
        self.rows += told["rows"]
        self.lost += told["lost"]
        self.losing += told["losing"]
        if told["losing"] and self.choices.on_error == "stop":
            raise IngestError(f"stopped at the first fault, as asked: {told['first']}")
        if self.max_bad.exceeded(self.losing, self.lost, max(self.rows, self.expected)):
            raise IngestError(
                f"{self.losing} faults lost {self.lost} of {self.rows} rows read so far, more than max_bad "
                f"({self.choices.max_bad}) allows"
            )

    def _create(self, plan: Plan, layout: Layout) -> None:
        """Make the empty store, unless an earlier run has made it and written to it."""
        status = self.status()
        if status == "incomplete" and self.how.resume and self.ledger.folder.size("created.json") is not None:
            return
        create_store(
            self.out,
            fields=plan.fields,
            layout=layout,
            codec=plan.choices.codec,
            attrs=plan.attrs,
            overwrite=status == "incomplete",
            storage_options=self.storage_options,
        )
        self.ledger.put_json("created.json", {"plan": plan.hash})

    def _is_written(self) -> Callable[[Mapping[str, Any]], bool]:
        """Whether what a write receipt names is what lies in the store."""
        skeleton = open_skeleton(self.out, self.storage_options)

        def written(receipt: Mapping[str, Any]) -> bool:
            return all(
                patiently(skeleton.shard_checksum, name, shard["shard"])
                == (None if what is None else tuple(what))
                for shard in receipt["shards"]
                for name, what in shard["objects"].items()
            )

        return written

    def _write_placed(self, plan: Plan, job: Job, runner: Runner) -> tuple[Sequences, int, list[Any]]:
        layout, places = plan.layout, plan.places
        assert layout is not None
        assert places is not None
        self._create(plan, layout)
        tasks = PlacedTasks.of(plan)
        count = len(tasks)
        self._map(
            "write",
            count,
            make=tasks.__getitem__,
            work=partial(write_placed, job),
            runner=runner,
            finished=self._is_written(),
        )
        labels: dict[str, dict[int, Any]] = {}
        return Sequences(plan.keys, places.rowsize, labels), count, []

    def _exchange(self, plan: Plan, job: Job, runner: Runner) -> tuple[Sequences, int, list[Any]]:
        scratch = open_folder(job.scratch, self.how.storage_options)

        kept = self.ledger.get_json("place.json") if self.how.resume else None

        def whole(receipt: Mapping[str, Any]) -> bool:
            return scratch_is_whole(receipt, scratch)

        self._map(
            "stage",
            plan.n_stage_tasks,
            make=partial(stage_task, plan),
            work=partial(stage, job),
            runner=runner,
            finished=whole,
        )
        exchange = gather(plan, self.ledger, scratch)
        places = exchange.places
        layout = choose_layout(places.n_obs, plan.fields, self.choices, 0, staged=True, aside=plan.aside)
        told = {"n_obs": layout.n_obs, "chunk": layout.chunk, "shard": layout.shard, "plan": plan.hash}
        told["sequences"] = digest([list(exchange.ids), places.rowsize.tolist()])
        if kept is not None and kept != told:
            raise IngestError(
                f"staging led to other sequences or lengths than before ({told} now, {kept} then); a decoder "
                "that does not repeat itself? Start anew with --overwrite"
            )
        self.ledger.put_json("place.json", told)
        self._create(plan, layout)
        job = replace(job, layout=layout)
        offsets = np.concatenate([[0], np.cumsum(places.rowsize)]).astype(np.int64)

        def make_write(index: int) -> StagedTask:
            return staged_task(index, (index, index + 1), layout, exchange, offsets=offsets, scratch=scratch)

        count = layout.n_shards
        self._map(
            "write",
            count,
            make=make_write,
            work=partial(write_staged, job),
            runner=runner,
            finished=self._is_written(),
        )
        faults = [conflict(*c) for c in exchange.conflicts] + repeats(exchange.repeated)
        return Sequences(exchange.ids, places.rowsize, exchange.labels), count, faults

    # ---------------------------------------------------------------- the end

    def _faults(self, plan: Plan) -> Iterator[Any]:
        yield from plan.faults
        name, count = ("write", len(PlacedTasks.of(plan))) if plan.placed else ("stage", plan.n_stage_tasks)
        for low in range(0, count, SHELF):  # of a job that was broken off any receipt may be missing
            for receipt in map(partial(self.ledger.receipt, name), self.ledger.recorded(name, low)):
                if receipt is not None:
                    yield from (fault_from_json(f) for f in receipt["faults"])

    def _report(self, faults: Iterable[Any]) -> None:
        assert self.how.report is not None
        write_faults(self.how.report, faults, self.how.storage_options)

    def _tell_faults(self, plan: Plan) -> None:
        if self.how.report is not None:
            try:
                self._report(self._faults(plan))
            except Exception as error:
                log.warning(
                    "cannot write the report %s: %s; the store is not touched by that: "
                    "give another place with --report and run again with --resume",
                    shown(self.how.report),
                    error,
                )

    def _end(
        self,
        plan: Plan,
        tally: Tally,
        done: Finished,
        faults: Sequence[Any],
        *,
        count: int,
        workers: int,
        scratch: str,
    ) -> IngestResult:
        report = build_report(
            plan,
            tally,
            done,
            faults,
            write_tasks=count,
            store=self.place.url,
            workers=workers,
            seconds={**self.progress.seconds, "all": round(time.monotonic() - self.began, 3)},
        )
        self.ledger.put_json("report.json", report)
        if self.how.report is not None:
            self._report(chain(self._faults(plan), faults))
        open_folder(scratch, self.how.storage_options).delete_all()
        return IngestResult(report["exit_code"], self.out, report)

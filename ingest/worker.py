"""What a worker process keeps between tasks: sources, ledgers, stores, and the fence.

A task gets a :class:`~ingest.plan.Job` and opens what it needs here, once a process. The fence stops a
task of a job that has lost its lock (it was killed, and another job went on) from writing anything.
"""

from __future__ import annotations

import json
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from chunkstore.errors import IngestError, SourceChangedError
from chunkstore.forks import new_lock
from chunkstore.shards import open_skeleton
from ingest.folder import LocalFolder, open_folder
from ingest.inputs import is_url, shown
from ingest.ledger import Ledger
from ingest.remote import register_clouds
from ingest.sources import open_source

if TYPE_CHECKING:
    from chunkstore.shards import StoreSkeleton
    from ingest.folder import Folder
    from ingest.plan import Job
    from ingest.protocol import Part, Source

__all__ = ["check_identity", "fence", "ledger_of", "scratch_of", "skeleton_of", "source_of"]

_lock = new_lock()
_sources: dict[tuple[int, str, str], Source] = {}
_fenced: dict[str, float] = {}
_skeletons: dict[tuple[str, str], StoreSkeleton] = {}
#: seconds for which a look at a lock in an object store is believed; a local one is looked at every time
_FENCE_SECONDS = 2.0


def source_of(job: Job) -> Source:
    """Return the job's source, made once a thread: a source need not be safe to share."""
    key = (threading.get_ident(), job.source, json.dumps(job.options, sort_keys=True))
    with _lock:
        found = _sources.get(key)
        if found is None:
            if len(_sources) > 64:
                _sources.clear()
            register_clouds()
            found = _sources[key] = open_source(job.source, job.options)
    return found


def ledger_of(job: Job) -> Ledger:
    """Return the job's ledger."""
    return Ledger(job.ledger, job.storage_options, job.plan)


def scratch_of(job: Job) -> Folder:
    """Return the job's scratch folder."""
    return open_folder(job.scratch, job.storage_options)


def skeleton_of(job: Job) -> StoreSkeleton:
    """Return the job's store, opened once: as long as a job holds its lock nobody makes another store."""
    key = (job.store, job.token)
    with _lock:
        found = _skeletons.get(key)
        if found is None:
            if len(_skeletons) > 8:
                _skeletons.clear()
            options = job.storage_options if is_url(job.store) else None
            found = _skeletons[key] = open_skeleton(job.store, options)
    return found


def fence(job: Job, ledger: Ledger) -> None:
    """Raise ``IngestError`` if another job has taken the lock since this task was made."""
    now = time.monotonic()
    believed = 0.0 if isinstance(ledger.folder, LocalFolder) else _FENCE_SECONDS
    if now - _fenced.get(job.token, -math.inf) < believed:  # in one look: other threads forget
        return
    held: Any = ledger.get_json("lock.json")
    if not isinstance(held, dict) or held.get("token") != job.token:
        raise IngestError(
            f"this job no longer holds the lock of {shown(job.store)}; its task stops without writing"
        )
    if len(_fenced) > 64:
        _fenced.clear()
    _fenced[job.token] = now


def check_identity(source: Source, part: Part) -> None:
    """Raise ``SourceChangedError`` if an input is not what was scanned."""
    try:
        now = source.identity(part.file)
    except FileNotFoundError as error:
        raise SourceChangedError(
            f"{shown(part.file)} was there at the scan and is gone now; bring it back and "
            "run again with --resume"
        ) from error
    if now != part.identity:
        raise SourceChangedError(
            f"{shown(part.file)} changed since the scan ({part.identity} then, {now} now); bring the old "
            "file back and run again with --resume, or start anew with --overwrite"
        )

"""Which runner a job gets: this process, processes of this machine, or a cluster that is already there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from chunkstore.errors import IngestError
from ingest.local import LocalWorkers, local_cluster
from ingest.run import DaskRunner, SerialRunner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest.run import Runner

__all__ = ["available_cores", "make_runner", "start_early"]


def start_early(
    workers: int | None, scheduler: str | None, client: Any, *, source: str, options: Mapping[str, Any]
) -> LocalWorkers | None:
    """Start the local worker processes that :func:`make_runner` would, before there is work for them.

    They import what they need meanwhile. Give them to it, and close them at the end.
    """
    count = available_cores() if workers is None else workers
    if client is not None or scheduler is not None or count == 0:
        return None
    return LocalWorkers(count, source, options)


def make_runner(
    workers: int | LocalWorkers | None = None,
    scheduler: str | None = None,
    client: Any = None,
    folder: str | None = None,
) -> Runner:
    """Return a runner: ``client`` if given, else a scheduler's address, else local processes.

    Parameters
    ----------
    workers : int, optional
        Local worker processes, or those of :func:`start_early`; 0 runs everything in this process. As many as
        there are cores by default.
    scheduler : str, optional
        Address of a cluster that is already there, e.g. ``"tcp://10.0.0.1:8786"``.
    client : distributed.Client, optional
        A client that is already there.
    """
    if client is not None:
        return DaskRunner(client)
    if scheduler is not None:
        import distributed

        library: Any = distributed
        try:
            found = library.Client(scheduler, set_as_default=False, timeout=20)
        except (OSError, TimeoutError) as error:
            raise IngestError(f"no dask scheduler answers at {scheduler}: {error}") from error
        return DaskRunner(found, [found.close])
    count = available_cores() if workers is None else workers
    if count == 0:
        return SerialRunner()
    return local_cluster(count, folder)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""Which runner a job gets: this process, processes of this machine, or a cluster that is already there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError, IngestError
from ingest.local import LocalWorkers, local_cluster
from ingest.run import DaskRunner, SerialRunner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest.run import Runner

__all__ = ["available_cores", "check_workers", "make_runner", "start_early"]


def check_workers(workers: int | None, scheduler: str | None, client: Any) -> None:
    """Refuse what no runner can be made of, before there is any work.

    Raises
    ------
    ConfigError
        If ``workers`` is negative, more than one of the three is given, or the client cannot be used.

    Examples
    --------
    >>> check_workers(2, None, None)
    >>> check_workers(2, "tcp://10.0.0.1:8786", None)
    Traceback (most recent call last):
    chunkstore.errors.ConfigError: workers and scheduler exclude each other: ...
    """
    given = {"workers": workers, "scheduler": scheduler, "client": client}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(
            f"{' and '.join(named)} exclude each other: a cluster that is there has workers of its own"
        )
    if workers is not None and workers < 0:
        raise ConfigError(f"workers is {workers}; give a number of processes, or 0 to run all in this one")
    if client is None:
        return
    if not hasattr(client, "submit") or not hasattr(client, "nthreads"):
        raise ConfigError(f"client is of type {type(client).__name__}; give a distributed.Client")
    if getattr(client, "asynchronous", False):
        raise ConfigError(
            "client is asynchronous, and a job waits for its tasks; give a client made without "
            "asynchronous=True, outside of an event loop"
        )
    if client.status not in {"running", "connecting"}:
        raise ConfigError(f"client is {client.status}; give one that is connected to its scheduler")


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

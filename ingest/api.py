"""Ingest as functions: :func:`ingest_avro`, :func:`ingest_audio`, and :func:`ingest` for any source."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.layout import parse_bytes
from ingest.inputs import expand, is_url, local_path
from ingest.job import Execution, IngestResult, plan_job, run_job
from ingest.memory import Choices
from ingest.progress import make_progress
from ingest.sources import open_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ingest.plan import Plan
    from ingest.progress import Progress

    Inputs = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

__all__ = ["ingest", "ingest_audio", "ingest_avro", "plan_ingest"]

_DEFAULT_MEMORY = "2GiB"


def ingest(
    source: str,
    inputs: Inputs,
    out: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    client: Any = None,
    memory_limit: int | str = _DEFAULT_MEMORY,
    codec: str = "default",
    chunk: int | str | None = None,
    shard: int | str | None = None,
    tmp_dir: str | os.PathLike[str] | None = None,
    on_error: str = "quarantine",
    max_bad: int | str | None = None,
    report: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | str | Progress = False,
) -> IngestResult:
    """Fill a store from files of any source.

    Parameters
    ----------
    source : str
        ``"avro"``, ``"audio"``, ``"npy"``, or ``"module:Class"``.
    inputs : path or iterable of paths
        Files, folders, globs, ``@list`` files and URLs; see :func:`ingest.inputs.expand`.
    out : str or path
        Where the store will be; refused if something is there.
    options : mapping, optional
        Options of the source.
    resume : bool
        Go on with a job that was broken off. The same inputs and options must be given.
    overwrite : bool
        Remove what is at ``out`` if it is one of our stores; nothing else is ever removed.
    workers : int, optional
        Local worker processes, as many as cores by default; 0 runs all in this process.
    scheduler : str, optional
        Address of a dask scheduler that is already there.
    client : distributed.Client, optional
        A dask client that is already there; it is not closed.
    memory_limit : int or str
        Peak bytes of one worker; sizes of shards follow from it.
    codec : str
        Compression of all fields, see :mod:`chunkstore.codecs`.
    chunk, shard : int or str, optional
        Lengths in obs, or in bytes of the widest field as text.
    tmp_dir : str or path, optional
        Scratch for data whose place is not known while it is read; every worker must see it. Beside the
        store by default.
    on_error : {"quarantine", "stop"}
        What a damaged input does.
    max_bad : int or str, optional
        Number of faults that lose rows, or share of the rows such as ``"1%"``, above which the job ends.
    report : str or path, optional
        File for all faults, one JSON object a line.
    storage_options : mapping, optional
        Options of the object stores of inputs and output. Credentials are better left to the environment.
    progress : bool, str or Progress
        ``True``, ``"bars"``, ``"lines"``, ``"json"``; nothing is shown by default.

    Returns
    -------
    IngestResult
        With ``exit_code`` 0, or 3 if rows are in quarantine.

    Raises
    ------
    ConfigError, InputError, StoreExistsError
        For what can be known before the work.
    IngestError
        If the job cannot go on; what is finished is kept for ``resume``.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, chunkstore
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "a.npy", np.arange(5.0)); np.save(folder / "b.npy", np.arange(3.0))
    >>> result = ingest("npy", folder, folder / "out.zarr", {"field": "level"}, workers=0)
    >>> result.exit_code, result.report["rows"]["stored"]
    (0, 8)
    >>> chunkstore.open_store(folder / "out.zarr").read("level", 4, 7)
    array([4., 0., 1.])
    """
    given = _given(source, options, storage_options)
    files = _files(source, inputs, given, storage_options)
    choices = _choices(
        chunk=chunk,
        shard=shard,
        codec=codec,
        memory_limit=memory_limit,
        on_error=on_error,
        max_bad=max_bad,
    )
    how = Execution(
        resume=resume,
        overwrite=overwrite,
        workers=workers,
        scheduler=scheduler,
        client=client,
        tmp_dir=None if tmp_dir is None else _place(tmp_dir),
        report=None if report is None else _place(report),
        storage_options=dict(storage_options or {}),
    )
    shown = make_progress(progress, given.get("rate") if source == "audio" else None)
    try:
        return run_job(source, given, files, _place(out), choices=choices, how=how, progress=shown)
    finally:
        shown.close()


def plan_ingest(
    source: str,
    inputs: Inputs,
    options: Mapping[str, Any] | None = None,
    *,
    memory_limit: int | str = _DEFAULT_MEMORY,
    codec: str = "default",
    chunk: int | str | None = None,
    shard: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Plan:
    """Scan and plan, and write nothing: what ``--dry-run`` shows.

    See :func:`ingest` for the parameters, and :func:`ingest.dry.tell_plan` for the plan in words.
    """
    given = _given(source, options, storage_options)
    files = _files(source, inputs, given, storage_options)
    return plan_job(
        source, given, files, _choices(chunk=chunk, shard=shard, codec=codec, memory_limit=memory_limit)
    )


def ingest_avro(
    inputs: Inputs,
    out: str | os.PathLike[str],
    *,
    sequence_key: str | Iterable[str] | None = None,
    sequence_per: str | None = None,
    time: str | None = None,
    fields: str | Iterable[str] | None = None,
    **more: Any,
) -> IngestResult:
    """Fill a store from Avro object container files.

    Parameters
    ----------
    inputs, out
        See :func:`ingest`.
    sequence_key : str or sequence of str, optional
        Fields whose values name the sequence of a record.
    sequence_per : {"file", "record", "all"}, optional
        What a sequence is where no key names it.
    time : str, optional
        The field that orders obs inside a sequence.
    fields : str or sequence of str, optional
        Fields to store; all that can be stored by default.
    **more
        Options of :func:`ingest` and of ``ingest.sources.avro.AvroOptions``, by name.

    Returns
    -------
    IngestResult
    """
    from ingest.sources.avro import AvroOptions

    given = {"sequence_key": sequence_key, "sequence_per": sequence_per, "time": time, "fields": fields}
    options, engine = _split(AvroOptions, given, more)
    return ingest("avro", inputs, out, options, **engine)


def ingest_audio(
    inputs: Inputs,
    out: str | os.PathLike[str],
    *,
    rate: int | None = None,
    channels: str | int = "mean",
    dtype: str = "int16",
    label_from: str | None = None,
    **more: Any,
) -> IngestResult:
    """Fill a store from audio files.

    Parameters
    ----------
    inputs, out
        See :func:`ingest`.
    rate : int, optional
        Sample rate of the store in Hz.
    channels : str or int
        ``"mean"``, ``"first"``, an index, or ``"error"``.
    dtype : {"int16", "float32"}
        What is stored.
    label_from : {"parent", "regex"}, optional
        Where the label of a recording comes from.
    **more
        Options of :func:`ingest` and of ``ingest.sources.audio.AudioOptions``, by name.

    Returns
    -------
    IngestResult
    """
    from ingest.sources.audio import AudioOptions

    given = {"rate": rate, "channels": channels, "dtype": dtype, "label_from": label_from}
    options, engine = _split(AudioOptions, given, more)
    return ingest("audio", inputs, out, options, **engine)


def _split(
    kind: Any, given: Mapping[str, Any], more: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part options of the source from those of the engine; ``storage_options`` goes to both."""
    import dataclasses

    known = {f.name for f in dataclasses.fields(kind)}
    options = {k: _plain(v) for k, v in given.items() if v is not None}
    options |= {k: _plain(v) for k, v in more.items() if k in known and v is not None}
    engine = {k: v for k, v in more.items() if k not in known or k == "storage_options"}
    return options, engine


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool, dict)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return value.item()
    return list(value)


def _given(
    source: str, options: Mapping[str, Any] | None, storage_options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the options of a source; one that reads object stores is told theirs."""
    given = dict(options or {})
    if storage_options and "storage_options" not in given:
        own = getattr(open_source(source, given), "options", None)
        if hasattr(own, "storage_options"):
            given["storage_options"] = dict(storage_options)
    return given


def _files(
    source: str, inputs: Inputs, options: Mapping[str, Any], storage_options: Mapping[str, Any] | None
) -> list[str]:
    made = open_source(source, options)
    return expand(inputs, tuple(getattr(made, "suffixes", ())), storage_options)


def _choices(
    *,
    chunk: int | str | None,
    shard: int | str | None,
    codec: str,
    memory_limit: int | str,
    on_error: str = "quarantine",
    max_bad: int | str | None = None,
) -> Choices:
    return Choices(
        chunk=chunk,
        shard=shard,
        codec=codec,
        memory_limit=parse_bytes(memory_limit),
        on_error=on_error,
        max_bad=max_bad,
    )


def _place(out: str | os.PathLike[str]) -> str:
    text = os.fspath(out)
    return text if is_url(text) else os.path.abspath(local_path(text))  # noqa: PTH100

"""Verbs of the command line: ``ingest avro``, ``ingest audio``, ``ingest npy``, ``scan``, ``merge``.

The options of a verb are tables: one of the engine, one for each source. Only names and help stand here; what
they mean is decided by :mod:`ingest.api`, which is imported when a verb runs.
"""

from __future__ import annotations

import inspect
import logging
import re
import signal
import sys
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chunkstore.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ingest.progress import JsonLines

__all__ = ["register"]

log = logging.getLogger(__name__)

_Row = tuple[str, Any, Any, str]

_PLACES: tuple[_Row, ...] = (
    ("inputs", list[str], ..., "Files, folders, globs, @lists, URLs."),
    ("out", str, ..., "-o/--out: where the store will be."),
)

_ENGINE: tuple[_Row, ...] = (
    ("resume", bool, False, "Go on with a job that was broken off."),
    ("overwrite", bool, False, "Replace a store of ours; nothing else is ever removed."),
    ("dry_run", bool, False, "Print the plan and write nothing."),
    ("workers", int | None, None, "Local worker processes; 0 runs all in this process. [default: cores]"),
    ("scheduler", str | None, None, "Address of a dask scheduler that is already there."),
    ("memory_limit", str, "2GiB", "Peak memory of one worker."),
    ("codec", str, "default", "Compression: none, lz4, zstd, blosc-*, pcodec."),
    ("chunk", str | None, None, "Chunk length: obs, or bytes such as 256KiB."),
    ("shard", str | None, None, "Shard length: obs, or bytes such as 64MiB."),
    ("tmp_dir", str | None, None, "Scratch, seen by all workers. [default: beside the store]"),
    ("on_error", str, "quarantine", "A damaged input: quarantine, or stop."),
    ("max_bad", str | None, None, "Faults, or share of rows (1%), above which the job ends."),
    ("report", str | None, None, "File for all faults, one JSON object a line."),
    ("log_json", bool, False, "Progress, warnings and errors as JSON lines on stderr."),
    ("quiet", bool, False, "No progress and no summary."),
)

_AVRO: tuple[_Row, ...] = (
    ("sequence_key", str | None, None, "Field(s), comma separated, that name the sequence of a record."),
    ("sequence_per", str | None, None, "file, record, or all: what a sequence is without a key."),
    ("time", str | None, None, "Field that orders obs inside a sequence."),
    ("fields", str | None, None, "Fields to store, comma separated, dotted paths. [default: all]"),
    ("exclude", str | None, None, "Fields not to store."),
    ("labels", str | None, None, "Fields, constant in a sequence, that become labels."),
    ("on_disorder", str | None, None, "Times that go back: error, keep or sort. [default: keep]"),
    ("cut_on", str | None, None, "Fields a change of which starts a new sequence."),
    ("max_gap", str | None, None, "Largest step of time inside a sequence, e.g. 10s."),
    ("on_drift", str | None, None, "Schemas that differ: fail or union. [default: fail]"),
    ("reader_schema", str | None, None, "File with a schema that all inputs are resolved to."),
    ("null_values", str | None, None, "Values that stand for null in integer fields: a=-1,b=0."),
    ("vector_lengths", str | None, None, "Lengths of array fields that hold vectors: a=3,b=12."),
    ("obs_axis", str | None, None, "Which of two nested arrays holds the obs: outer, inner or auto."),
    ("check_text", bool | None, None, "Quarantine blocks with text that is not UTF-8. [default: check]"),
    ("decoder", str | None, None, "auto, kernel or fastavro."),
    ("part_bytes", str | None, None, "Encoded bytes that one read decodes."),
    ("max_block_bytes", str | None, None, "Largest block, encoded or decoded."),
    ("max_ratio", int | None, None, "Decoded bytes an encoded byte above which large blocks are refused."),
)

_AUDIO: tuple[_Row, ...] = (
    ("rate", int | None, None, "Sample rate of the store in Hz."),
    ("channels", str, "mean", "mean, first, an index from 0, or error."),
    ("dtype", str, "int16", "int16 or float32."),
    ("field", str | None, None, "Name of the field. [default: audio]"),
    ("label_from", str | None, None, "parent or regex."),
    ("label_regex", str | None, None, "Searched in the sequence id."),
    ("metadata", str | None, None, "CSV or parquet file with one row a recording."),
    ("metadata_key", str | None, None, "Its column that names the recording."),
    ("empty", str | None, None, "Recordings without a sample: keep, skip or error."),
    ("segment", str | None, None, "Cut recordings into pieces, e.g. 60s."),
    ("silence", float | None, None, "Level in dB of full scale below which sound becomes a gap."),
    ("silence_min", str | None, None, "Shortest silence that becomes a gap, in seconds."),
    ("nonfinite", str | None, None, "Files with NaN or infinity: quarantine or zero."),
    ("damaged", str | None, None, "Damaged files: keep what decodes, or quarantine."),
    ("max_duration", str | None, None, "Longest recording that is decoded."),
    ("time_regex", str | None, None, "Finds the start time in a file's name."),
    ("quality", str | None, None, "Of resampling: QQ, LQ, MQ, HQ, VHQ."),
    ("isolate", bool | None, None, "Decode in processes of their own. [default: isolate]"),
    ("timeout", str | None, None, "Seconds without progress after which a decoder is stopped."),
    ("max_peak", float | None, None, "Samples beyond so many times full scale are no audio."),
    ("decoder_memory", str | None, None, "Memory that a decoder process may use."),
)

_NPY: tuple[_Row, ...] = (
    ("field", str, "x", "Name of the field."),
    ("rate", float | None, None, "Obs a second."),
)


def register(app: typer.Typer) -> None:
    """Add the verbs of this package to a command line."""
    group = typer.Typer(
        no_args_is_help=True, help="Fill a store from files, on one machine or a dask cluster."
    )
    _add(group, "avro", _AVRO, "Avro object container files to a store.")
    _add(group, "audio", _AUDIO, "Audio files of any kind to a store.")
    _add(group, "npy", _NPY, "Numpy arrays, one sequence a file, to a store.")
    app.add_typer(group, name="ingest")
    app.command("merge", help=_help("merge", "Make one store of several."))(merge)
    app.command("scan", help=_help("scan", "Say what Avro files hold and how to ingest them."))(scan)


_EXAMPLES = {
    "avro": "ingest avro readings/ -o sensors.zarr --sequence-key station --time time",
    "audio": "ingest audio birds/ -o birds.zarr --rate 32000 --label-from parent",
    "npy": "ingest npy arrays/ -o arrays.zarr --field x --rate 100",
    "merge": "merge monday.zarr tuesday.zarr -o week.zarr",
    "scan": "scan readings/",
}


def _help(verb: str, about: str) -> str:
    return f"{about}\n\nExample: `chunkstore {_EXAMPLES[verb]}`"


def _add(group: typer.Typer, source: str, rows: tuple[_Row, ...], about: str) -> None:
    names = [row[0] for row in (*rows, *_ENGINE)]

    def verb(**values: Any) -> int:
        from chunkstore.cli import exit_code
        from chunkstore.errors import ChunkstoreError
        from ingest.progress import JsonLines

        events = JsonLines() if values["log_json"] and not values["quiet"] else None
        with _terminable(), nullcontext() if events is None else _logged(events):
            try:
                return _run(source, {row[0] for row in rows}, values, events)
            except Exception as error:
                if isinstance(error, ChunkstoreError):
                    error.args = tuple(_flags(a, names) if isinstance(a, str) else a for a in error.args)
                if events is None or isinstance(error, typer.BadParameter):
                    raise
                log.debug("the job failed", exc_info=True)
                code = exit_code(error)
                events.event("error", kind=type(error).__name__, text=str(error), exit_code=code)
                return code

    parameters = [
        inspect.Parameter(
            "inputs",
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            annotation=Annotated[list[str], typer.Argument(help=_PLACES[0][3], show_default=False)],
        ),
        inspect.Parameter(
            "out",
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[str, typer.Option("-o", "--out", help="Where the store will be.")],
        ),
        *(_parameter(row, "Options of the source") for row in rows),
        *(_parameter(row, "Options of the job") for row in _ENGINE),
    ]
    verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = {p.name: p.annotation for p in parameters}
    verb.__name__ = source
    group.command(source, help=_help(source, about))(verb)


def _parameter(row: _Row, panel: str) -> inspect.Parameter:
    name, kind, default, about = row
    flag = "--" + name.replace("_", "-")
    both = kind == bool | None
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if both else flag,
        help=about,
        rich_help_panel=panel,
        show_default=default not in (None, False),
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


@contextmanager
def _terminable() -> Iterator[None]:
    """End in order when a scheduler of machines asks for it: workers ended, the lock given back."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    own = threading.current_thread() is threading.main_thread()
    own = own and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if own:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if own:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _logged(events: JsonLines) -> Iterator[None]:
    """Write what is logged, and warnings, as events: nothing but JSON on stderr."""

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = self.format(record)
            events.event("log", level=record.levelname.lower(), logger=record.name, text=text)

    root = logging.getLogger()
    before, root.handlers = root.handlers, [Told()]
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers = before


def _run(source: str, own: set[str], values: Mapping[str, Any], events: JsonLines | None = None) -> int:
    from ingest import api
    from ingest.dry import tell_plan
    from ingest.runners import available_cores

    given = dict(values)
    inputs, out = given.pop("inputs"), given.pop("out")
    dry, quiet = given.pop("dry_run"), given.pop("quiet")
    del given["log_json"]  # those are the events
    options = {k: given.pop(k) for k in list(given) if k in own}
    options = {k: _value(source, k, v) for k, v in options.items() if v is not None}
    for name in ("chunk", "shard"):
        given[name] = _length(given[name])
    if dry:
        chosen = {k: given[k] for k in ("memory_limit", "codec", "chunk", "shard")}
        planned = api.plan_ingest(source, inputs, options, **chosen)
        cores = available_cores() if given["workers"] is None else max(1, given["workers"])
        _say(tell_plan(planned, cores))
        if source == "avro":
            from ingest.inputs import expand
            from ingest.sources.avro.describe import describe

            _say(f"{'decoder':<10} {describe(expand(inputs, ('.avro',)), **options).decoder}")
        return 0
    if events is not None and source == "audio":
        events.rate = options.get("rate")
    try:
        result = api.ingest(source, inputs, out, options, **given, progress=events or not quiet)
    except (KeyboardInterrupt, SystemExit) as error:
        code = 130 if isinstance(error, KeyboardInterrupt) else error.code
        text = "what is finished is kept: run again with --resume"
        if events is not None:
            events.event("error", kind="Interrupted", text=text, exit_code=code)
        else:
            sys.stderr.write(f"chunkstore: {text}\n")
        if isinstance(error, SystemExit):
            raise
        return 130
    if not quiet:
        _say(result.summary())
    return result.exit_code


def _flags(message: str, names: Iterable[str]) -> str:
    """Write options in a message as they are typed here: ``sequence_key=F`` as ``--sequence-key F``.

    >>> _flags("give rate=8000; on_error and 'on_error' differ", ["rate", "on_error"])
    "give --rate 8000; --on-error and 'on_error' differ"
    """
    for name in names:
        flag = "--" + name.replace("_", "-")
        before = rf"(?<![\w'\"./-]){name}"
        message = re.sub(before + "=", flag + " ", message)
        if "_" in name:
            message = re.sub(before + r"\b", flag, message)
    return message


def _length(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _value(source: str, name: str, value: Any) -> Any:
    if source == "avro" and name == "max_gap" and re.fullmatch(r"-?\d+", str(value)):
        return int(value)
    if source == "avro" and name in {"null_values", "vector_lengths"}:
        return _pairs(name, value)
    return value


def _pairs(name: str, text: str) -> dict[str, int]:
    """Read ``a=-1,b=0``."""
    try:
        return {k.strip(): int(v) for k, v in (pair.rsplit("=", 1) for pair in text.split(","))}
    except ValueError:
        flag = "--" + name.replace("_", "-")
        raise typer.BadParameter(f"{flag} is {text!r}; write FIELD=NUMBER, several with commas") from None


def merge(
    stores: Annotated[list[str], typer.Argument(help="Stores, in their order.")],
    *,
    out: Annotated[str, typer.Option("-o", "--out", help="Where the new store will be.")],
    codec: Annotated[str | None, typer.Option("--codec", help="Compression. [default: of the first]")] = None,
    chunk: Annotated[str | None, typer.Option("--chunk", help="Chunk length.")] = None,
    shard: Annotated[str | None, typer.Option("--shard", help="Shard length.")] = None,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Put the store's name before each id, so that ids differ.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store of ours.")] = False,
) -> None:
    """Make one store of several."""
    from ingest.merging import merge as run

    told = run(
        stores,
        out,
        codec=codec,
        chunk=_length(chunk),
        shard=_length(shard),
        prefix=prefix,
        overwrite=overwrite,
    )
    _say(told)


def scan(
    inputs: Annotated[list[str], typer.Argument(help="Avro files, folders, globs, @lists, URLs.")],
    *,
    sequence_key: Annotated[str | None, typer.Option(help="As for `ingest avro`.")] = None,
    sequence_per: Annotated[str | None, typer.Option(help="As for `ingest avro`.")] = None,
    time: Annotated[str | None, typer.Option(help="As for `ingest avro`.")] = None,
    fields: Annotated[str | None, typer.Option(help="As for `ingest avro`.")] = None,
    on_drift: Annotated[str | None, typer.Option(help="As for `ingest avro`.")] = None,
    decoder: Annotated[str | None, typer.Option(help="As for `ingest avro`.")] = None,
) -> None:
    """Say what Avro files hold and how to ingest them."""
    from chunkstore.errors import InputError
    from ingest.inputs import expand
    from ingest.remote import register_clouds
    from ingest.sources.avro import scan_text

    register_clouds()
    given = {
        "sequence_key": sequence_key,
        "sequence_per": sequence_per,
        "time": time,
        "fields": fields,
        "on_drift": on_drift,
        "decoder": decoder,
    }
    options = {k: v for k, v in given.items() if v is not None}
    try:
        paths = expand(inputs, (".avro",))
    except InputError as error:
        raise InputError(
            f"{error}; scan is for Avro: look at sounds with "
            "chunkstore ingest audio INPUTS -o OUT.zarr --dry-run"
        ) from None
    _say(scan_text(paths, inputs=inputs if len(inputs) <= 3 else (), **options))


def _say(text: str) -> None:
    """Print text, in which names that files made up do no harm."""
    typer.echo("\n".join(printable(line, 4000) for line in text.split("\n")))

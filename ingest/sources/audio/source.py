"""AudioSource: a file is a part; its samples come out converted, counted and labelled.

Scanning reads headers in plain Python; decoding happens in :mod:`convert`, in a process of its own
(:mod:`isolate`). Lengths are known only after decoding, so audio is a staged source: nothing here
believes a header.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chunkstore.errors import ConfigError, InputError
from chunkstore.layout import RESERVED, FieldSpec
from ingest.parts import Parts
from ingest.protocol import Batch, ColumnSpec, Fault, Part, Scan
from ingest.sources.audio import files
from ingest.sources.audio.convert import Converted, Failure, convert
from ingest.sources.audio.decode import SNDFILE, av_module, soundfile_module
from ingest.sources.audio.isolate import pool
from ingest.sources.audio.metadata import (
    Table,
    label_names,
    labels_of,
    read_table,
    recording_ids,
    start_time,
    stated_duration,
)
from ingest.sources.audio.options import AudioOptions
from ingest.sources.audio.probe import Claim, probe
from ingest.sources.audio.quantise import FULL_SCALE
from ingest.sources.audio.resample import resampled_length
from ingest.sources.audio.segment import SILENCE_STEP, overlaps, peaks, segments, silent_ranges
from ingest.sources.audio.sniff import SUFFIXES
from ingest.sources.audio.spool import Spool
from ingest.versions import versions_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["AudioSource"]

#: Samples of one batch.
_BATCH_ROWS = 1 << 18
#: Peak bytes of reading one part: the decoder process (libraries, a block, soxr) and one batch here.
_MEMORY = 160 << 20

#: Notes that say why a recording has another length than its header claims.
_LENGTH = frozenset(
    {"audio-chained", "audio-damaged", "audio-header-frames", "audio-length-unstated", "audio-truncated"}
)

_COLUMNS = (
    ColumnSpec("source", "string", long_name="path or URL of the file"),
    ColumnSpec("recording", "string", long_name="id of the recording that this is a part of"),
    ColumnSpec("offset", "int64", units="1", long_name="first sample within the recording"),
    ColumnSpec(
        "start_time", "float64", "seconds since 1970-01-01T00:00:00", "start, as file or name state it"
    ),
    ColumnSpec("sample_rate", "float64", "Hz", "sample rate in this store"),
    ColumnSpec("source_rate", "int64", "Hz", "sample rate of the file"),
    ColumnSpec("source_channels", "int32", long_name="channels of the file"),
    ColumnSpec("source_frames", "int64", long_name="frames decoded from the file"),
    ColumnSpec("claimed_frames", "int64", long_name="frames that the file's header claims, -1 for none"),
    ColumnSpec("codec", "string", long_name="coding of the file", categorical=True),
    ColumnSpec("decoder", "string", long_name="decoder and its version", categorical=True),
    ColumnSpec("clipped", "int64", long_name="samples of the recording beyond full scale"),
    ColumnSpec("nonfinite", "int64", long_name="NaN and infinite values of the file"),
    ColumnSpec("peak", "float32", long_name="largest absolute sample of the recording, before clipping"),
)


class _Seen(NamedTuple):
    """What the scan saw of a file."""

    claim: Claim
    size: int = 0
    identity: str = ""
    """As it was before anything of it was read."""
    fault: Fault | None = None


class AudioSource:
    """Recordings of every kind, one part a file.

    Parameters
    ----------
    **options
        Those of :class:`AudioOptions`.

    Examples
    --------
    >>> AudioSource(rate=32000, label_from="parent").options.rate
    32000
    """

    name = "audio"
    suffixes = SUFFIXES
    """What files of a folder are looked at; the content decides."""

    def __init__(self, **options: Any) -> None:
        self.options = AudioOptions.from_json(options)

    def identity(self, file: str) -> str:
        """Size and mtime, or etag, of an input as it is now."""
        return files.identity(file)

    def warm(self) -> None:
        """Start a decoder process, before there is work for it."""
        if self.options.isolate:
            pool.give(pool.take(int(self.options.decoder_memory)))

    def scan(self, inputs: Sequence[str]) -> Scan:
        """Read the headers of all files.

        Raises
        ------
        InputError
            If there is nothing to read, or the metadata can't be read.
        ConfigError
            If no rate was given and the files have several, or a label has the name of another column.
        MissingDependencyError
            If a library that the files need is not installed.
        """
        wanted = list(dict.fromkeys(inputs))
        if not wanted:
            raise InputError("there are no audio files to read")
        faults = [
            Fault(
                "audio-duplicate",
                file,
                "the file was given more than once; it is read once",
                action="skipped",
            )
            for file in _repeated(inputs)
        ]
        ids = recording_ids(wanted)
        named = label_names(self.options.label_from, self.options.label_regex)
        ours = frozenset(c.name for c in _COLUMNS)
        if clash := ours.intersection(named):
            raise ConfigError(
                f"the group {min(clash)!r} of label_regex has the name of a column that every recording has; "
                "name it otherwise"
            )
        taken = ours | {*RESERVED, "n_obs", "lost_obs", self.options.field, *named}
        table = self._table(ids, wanted, taken)
        faults += [
            Fault(
                "audio-metadata-unmatched",
                str(self.options.metadata),
                f"no file for the row {key!r}",
                action="skipped",
            )
            for key in (table.unmatched if table else ())
        ]
        found = [self._look(file) for file in wanted]
        claims = [seen.claim for seen in found]
        self._require(claims)
        rate = self.options.rate or self._common_rate(wanted, claims)
        options = replace(self.options, rate=rate, own_rate=self.options.rate is None)
        parts = Parts()
        for at, (file, seen) in enumerate(zip(wanted, found, strict=True)):
            if seen.fault is not None:
                faults.append(seen.fault)
                continue
            row = table.rows[at] if table else None
            if table and row is None:
                faults.append(
                    Fault(
                        "audio-metadata-missing",
                        file,
                        "the metadata have no row for this file",
                        action="kept",
                    )
                )
            parts.append(self._part(len(parts), file, ids[at], seen, row, options))
        columns = (
            *(ColumnSpec(name, "string", categorical=True) for name in named),
            *_COLUMNS,
            *(table.columns if table else ()),
        )
        return Scan(
            source=self.name,
            fields=(_field(options),),
            parts=parts,
            columns=columns,
            faults=tuple(faults),
            options=options.to_json(),
            versions=versions_of(("libsndfile", "soxr", "av")),
            attrs={"sample_rate": options.rate},
        )

    def read(self, part: Part) -> Iterator[Batch]:
        """Decode one file; a file that can't be used is one batch of no rows with its fault."""
        if not (self.options.isolate and part.nbytes):
            with Spool() as spool:
                result = self._convert(part, spool)
                yield from self._batches(part, result, spool)
            return
        process = pool.take(int(self.options.decoder_memory))
        finished = False
        try:
            result = process.convert(part.file, self.options)
            yield from self._batches(part, result, process.spool)
            finished = True
        finally:
            if finished:
                pool.give(process)
            else:
                process.close()

    def _convert(self, part: Part, spool: Spool) -> Converted | Failure:
        if part.nbytes:
            return convert(part.file, spool, self.options)
        return Converted(0, 0, 0, 0, -1, "", "", "", 0, 0, 0.0)

    def _table(self, ids: Sequence[str], names: Sequence[str], taken: frozenset[str]) -> Table | None:
        if self.options.metadata is None or self.options.metadata_key is None:
            return None
        return read_table(self.options.metadata, self.options.metadata_key, ids, taken, names)

    def _look(self, file: str) -> _Seen:
        """Read the claims of one file; a fault where it can't be opened or is no audio."""
        try:
            size, identity = files.size_of(file), files.identity(file)
            if size == 0:
                return _Seen(Claim(None), 0, identity)
            with files.open_input(file) as opened:
                claim = probe(opened, size)
        except (OSError, ValueError) as err:
            reason = getattr(err, "strerror", None) or str(err) or type(err).__name__
            return _Seen(Claim(None), fault=Fault("audio-unreadable", file, f"it can't be read: {reason}"))
        fault = None
        if claim.container is None:
            message = f"its {size} bytes are of no kind of audio known here, whatever its name says"
            fault = Fault("audio-unrecognised", file, message)
        return _Seen(claim, size, identity, fault)

    def _require(self, claims: Sequence[Claim]) -> None:
        """Fail before work starts where a library is missing for some of the files."""
        containers = {claim.container for claim in claims} - {None}
        if containers - {"riff", "w64"}:
            soundfile_module()
        if containers - SNDFILE:
            av_module()

    def _common_rate(self, names: Sequence[str], claims: Sequence[Claim]) -> int:
        rates: dict[int, str] = {}
        for name, claim in zip(names, claims, strict=True):
            if claim.rate > 0:
                rates.setdefault(claim.rate, name)
        if len(rates) != 1:
            seen = "; ".join(f"{rate} Hz in {name}" for rate, name in list(rates.items())[:3])
            raise ConfigError(
                f"the files have {len(rates)} sample rates ({seen}); choose one, e.g. rate=32000"
                if rates
                else "no header states a sample rate; choose one, e.g. rate=32000"
            )
        return next(iter(rates))

    def _part(  # noqa: PLR0917 (one caller, above)
        self,
        index: int,
        file: str,
        identifier: str,
        seen: _Seen,
        row: Mapping[str, Any] | None,
        options: AudioOptions,
    ) -> Part:
        opts, claim = self.options, seen.claim
        started = start_time(identifier.rsplit("/", 1)[-1], claim.comment, claim.origin, opts.time_regex)
        labels = labels_of(identifier, file, opts.label_from, opts.label_regex)
        known = claim.frames >= 0 and claim.rate > 0 and options.rate is not None
        return Part(
            index=index,
            file=file,
            identity=seen.identity,
            nbytes=seen.size,
            claimed=resampled_length(claim.frames, claim.rate, options.rate or 0) if known else -1,
            memory=_MEMORY,
            payload={
                "id": identifier,
                "labels": {**labels, **(row or {})},
                "start_time": started,
                "duration": stated_duration(row),
            },
            estimate=True,
        )

    def _batches(self, part: Part, result: Converted | Failure, spool: Spool) -> Iterator[Batch]:
        """Turn what the spool holds into batches, the labels of a sequence with its last rows."""
        options, identifier = self.options, str(part.payload["id"])
        dtype = np.dtype(options.dtype)
        nothing = {options.field: np.zeros(0, dtype)}
        if isinstance(result, Failure):
            message = result.message + "".join(f"; then {text}" for text in result.tried)
            fault = Fault(result.code, part.file, message, result.offset, rows=max(0, part.claimed))
            yield Batch(nothing, 0, faults=(fault,))
            return
        faults = list(self._faults(part, result))
        if result.rows == 0:
            action = {"keep": "kept", "skip": "skipped", "error": "quarantined"}[options.empty]
            faults.append(Fault("audio-empty", part.file, "the recording holds no sample", action=action))
            if options.empty != "keep":
                yield Batch(nothing, 0, faults=tuple(faults))
                return
        rate = options.rate or result.rate
        step = max(1, round(SILENCE_STEP * rate))
        silent = self._silent(result, spool, step, dtype) if options.silence is not None else []
        length = None if options.segment is None else max(1, round(float(options.segment) * rate))
        pieces = segments(result.rows, length)
        digits = len(str(len(pieces) - 1))
        for number, (start, stop) in enumerate(pieces):
            key = identifier if length is None else f"{identifier}#{number:0{digits}d}"
            at = start
            while True:
                upto = min(at + _BATCH_ROWS, stop)
                values = spool.read(at, upto, dtype)
                last = upto == stop
                yield Batch(
                    {options.field: values},
                    upto - at,
                    keys=(key,),
                    labels=self._labels(part, result, identifier, start, rate) if last else {},
                    lost=overlaps(silent, at, upto),
                    faults=tuple(faults) if last and number == len(pieces) - 1 else (),
                )
                at = upto
                if last:
                    break

    def _silent(
        self, result: Converted, spool: Spool, step: int, dtype: np.dtype[Any]
    ) -> list[tuple[int, int]]:
        assert self.options.silence is not None
        block = step * max(1, _BATCH_ROWS // step)
        found = [
            peaks(spool.read(at, min(at + block, result.rows), dtype), step)
            for at in range(0, result.rows, block)
        ]
        level = 10 ** (self.options.silence / 20) * (FULL_SCALE if dtype.kind == "i" else 1.0)
        shortest = round(float(self.options.silence_min) * (self.options.rate or result.rate))
        return silent_ranges(
            np.concatenate([np.zeros(0), *found]), level, step, max(1, shortest), result.rows
        )

    def _faults(self, part: Part, result: Converted) -> Iterator[Fault]:
        wrong = part.claimed - result.rows if part.claimed >= 0 else 0
        for note in result.notes:
            # the first that speaks of the length answers for the whole difference
            told = note.code in _LENGTH
            rows = max(0, wrong) if told else 0
            wrong = 0 if told else wrong
            yield Fault(note.code, part.file, note.message, note.offset, rows=rows, action="kept")
        if wrong:
            message = f"the header claims {part.claimed} samples, {result.rows} came of it"
            yield Fault("audio-header-frames", part.file, message, rows=max(0, wrong), action="kept")
        stated = part.payload.get("duration")
        seconds = result.frames / result.rate if result.rate else 0.0
        if stated is not None and abs(seconds - stated) > max(0.05, 0.005 * stated):
            yield Fault(
                "audio-metadata-duration",
                part.file,
                f"the metadata state {stated:g} s, {seconds:.3f} s were decoded",
                action="kept",
            )

    def _labels(
        self, part: Part, result: Converted, identifier: str, start: int, rate: int
    ) -> dict[str, tuple[Any, ...]]:
        began = part.payload.get("start_time")
        values: dict[str, Any] = {
            "source": part.file,
            "recording": identifier,
            "offset": start,
            "start_time": math.nan if began is None else began + start / rate,
            "sample_rate": float(rate),
            "source_rate": result.rate,
            "source_channels": result.channels,
            "source_frames": result.frames,
            "claimed_frames": result.claimed,
            "codec": result.codec,
            "decoder": result.decoder,
            "clipped": result.clipped,
            "nonfinite": result.nonfinite,
            "peak": result.peak,
            **part.payload["labels"],
        }
        return {name: (value,) for name, value in values.items()}


def _field(options: AudioOptions) -> FieldSpec:
    whole = options.dtype == "int16"
    return FieldSpec(
        options.field,
        options.dtype,
        units="1",
        long_name="sound pressure as a fraction of full scale",
        scale_factor=1 / FULL_SCALE if whole else None,
        attrs={"sample_rate": options.rate},
    )


def _repeated(inputs: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    again: dict[str, None] = {}
    for file in inputs:
        if file in seen:
            again[file] = None
        seen.add(file)
    return list(again)

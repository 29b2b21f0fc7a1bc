"""What is known of a recording beside its samples: labels, start time, the rows of a table.

Everything here is found at the scan and travels in the parts, so that workers read no table.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from chunkstore.errors import InputError, UnknownNameError
from ingest.protocol import ColumnSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pandas as pd

__all__ = ["Table", "labels_of", "read_table", "recording_ids", "start_time", "stated_duration"]

_DURATIONS = ("duration", "duration_s", "duration_seconds", "duration_sec", "length_seconds", "length_s")
_NAME_TIME = re.compile(
    r"(?<!\d)(\d{4})[-_]?(\d\d)[-_]?(\d\d)[-_T $]{1,2}(\d\d)[-_:.]?(\d\d)[-_:.]?(\d\d)(?!\d)(?:[.](\d{1,6}))?"
)
_MOTH = re.compile(
    r"Recorded at (\d\d):(\d\d):(\d\d)(?:\.(\d{3}))? (\d\d)/(\d\d)/(\d{4}) "
    r"\(UTC(?:([+-])(\d{1,2})(?::(\d\d))?)?\)"
)


def recording_ids(files: Sequence[str]) -> list[str]:
    """Return an id for each file: its path below the folder that all have in common.

    Examples
    --------
    >>> recording_ids(["/data/rain/1.ogg", "/data/sea/1.ogg"]), recording_ids(["/data/a.wav"])
    (['rain/1.ogg', 'sea/1.ogg'], ['a.wav'])
    """
    split = [file.replace("\\", "/").split("/") for file in files]
    shared = 0
    shortest = min((len(s) for s in split), default=1) - 1
    while shared < shortest and len({s[shared] for s in split}) == 1:
        shared += 1
    return ["/".join(s[shared:]) for s in split]


def labels_of(identifier: str, file: str, label_from: str | None, pattern: str | None) -> dict[str, str]:
    r"""Return the labels that a file's place gives it; ``{}`` where the pattern does not match.

    Examples
    --------
    >>> labels_of("rain/1.ogg", "/data/rain/1.ogg", "parent", None)
    {'label': 'rain'}
    >>> labels_of("3_theo_0.wav", "/d/3_theo_0.wav", "regex", r"(?P<digit>\d)_(?P<speaker>[a-z]+)")
    {'digit': '3', 'speaker': 'theo'}
    """
    if label_from == "parent":
        pieces = file.replace("\\", "/").split("/")
        return {"label": pieces[-2] if len(pieces) > 1 else ""}
    if label_from == "regex" and pattern is not None:
        found = re.search(pattern, identifier)
        if found is None:
            return {}
        return {k: v or "" for k, v in found.groupdict().items()} or {"label": found[1] or ""}
    return {}


def label_names(label_from: str | None, pattern: str | None) -> tuple[str, ...]:
    """Return the names of the columns that :func:`labels_of` fills."""
    if label_from == "regex" and pattern is not None:
        return tuple(re.compile(pattern).groupindex) or ("label",)
    return ("label",) if label_from else ()


def start_time(name: str, comment: str = "", origin: str = "", pattern: str | None = None) -> float | None:
    """Return the start of a recording in seconds since 1970-01-01 UTC, if anything states it.

    What the header states (AudioMoth's comment, the bext chunk) goes before the name. Times without a
    zone are taken as UTC.

    Examples
    --------
    >>> start_time("SITE1_20180805_190000.wav")
    1533495600.0
    >>> start_time("a.wav", "Recorded at 19:00:00 05/08/2018 (UTC+2) by AudioMoth 1")
    1533488400.0
    >>> start_time("take-7.wav") is None
    True
    """
    found = _MOTH.search(comment)
    try:
        if found:
            hour, minute, second, milli, day, month, year = (int(g or 0) for g in found.groups()[:7])
            shift = timedelta(hours=int(found[9] or 0), minutes=int(found[10] or 0))
            zone = timezone(-shift if found[8] == "-" else shift)
            return datetime(year, month, day, hour, minute, second, milli * 1000, zone).timestamp()
        if pattern is not None:
            own = re.search(pattern, name)
            text = own[1] if own else ""
        elif re.match(r"\d{4}.\d\d.\d\d.\d\d.\d\d.\d\d$", origin):
            text = origin
        else:
            usual = _NAME_TIME.search(name)
            text = usual[0] if usual else ""
        digits = re.sub(r"\D", "", text or "")
        if len(digits) < 14:
            return None
        whole = datetime.strptime(digits[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
        return whole.timestamp() + float(f"0.{digits[14:20] or 0}")
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Table:
    """A table of metadata joined to files."""

    columns: tuple[ColumnSpec, ...]
    """What it adds along ``sequence``."""
    rows: tuple[dict[str, Any] | None, ...]
    """For each file its values by column name; None where the table has no row for it."""
    unmatched: tuple[str, ...]
    """Keys of rows that name no file."""


#: numbers that are names: a zero in front would be lost
_ZERO = r"\s*[+-]?0\d"
#: whole numbers of which floats do not hold all digits
_LONG = r"\s*[+-]?\d{16,}\s*$"


def _frame(path: str, key: str) -> pd.DataFrame:
    """Read a table: numbers where a column holds nothing else and no digit is lost, all else as written.

    Words that pandas takes for a missing value, such as ``NA`` and ``None``, are words where others stand.
    """
    import pandas as pd

    try:
        if path.lower().endswith((".parquet", ".pq")):
            return pd.read_parquet(path, dtype_backend="numpy_nullable")
        with warnings.catch_warnings():
            # a row longer than the header would shift all columns by one, or lose its end
            warnings.simplefilter("error", pd.errors.ParserWarning)
            comma = "\t" if path.lower().endswith((".tsv", ".tab")) else ","
            frame = pd.read_csv(path, sep=comma, index_col=False)
            text = pd.read_csv(path, sep=comma, index_col=False, dtype=str, keep_default_na=False)
            for at, name in enumerate(frame.columns):
                kind, words = frame.dtypes.iloc[at], text[name].str
                holes = pd.api.types.is_float_dtype(kind)
                if (
                    name == key
                    or not pd.api.types.is_numeric_dtype(kind)
                    or words.match(_ZERO).any()
                    or (holes and (words.match(_LONG).any() or frame[name].isna().all()))
                ):
                    frame[name] = text[name]
            return frame
    except pd.errors.ParserWarning as err:
        raise InputError(
            f"the metadata file {path!r} has rows with more fields than its header; quote what holds a "
            "separator"
        ) from err
    except FileNotFoundError as err:
        raise InputError(f"there is no metadata file {path!r}") from err
    except (ValueError, OSError, ImportError) as err:
        raise InputError(f"the metadata file {path!r} can't be read: {err}") from err


def read_table(
    path: str, key: str, ids: Sequence[str], taken: frozenset[str], files: Sequence[str] = ()
) -> Table:
    """Read a CSV or parquet file and find the row of each recording.

    Parameters
    ----------
    path : str
        ``.csv``, ``.tsv`` or ``.parquet``.
    key : str
        Column that names the file: by its id, by its name or as much of its path as one likes, with or
        without the suffix.
    ids : sequence of str
        Ids of the recordings.
    taken : frozenset of str
        Names of columns that exist already; a column of such a name gets the prefix ``metadata_``.
    files : sequence of str
        Paths of the recordings; the ids, if not given.

    Raises
    ------
    UnknownNameError
        If there is no column ``key``.
    InputError
        If the file can't be read, or two rows name one file.
    """
    frame = _frame(path, key)
    if key not in frame.columns:
        raise UnknownNameError(f"{path!r} has no column {key!r}; it has {', '.join(map(str, frame.columns))}")
    keys = ["" if gone else str(v) for v, gone in zip(frame[key], frame[key].isna(), strict=True)]
    row_of: dict[str, int] = {}
    for at, value in enumerate(keys):
        if not value:
            continue  # a row that names nothing
        if value in row_of:
            raise InputError(f"{path!r} has two rows with {key} = {value!r} (rows {row_of[value]} and {at})")
        row_of[value] = at
    rows = _match(ids, files or ids, row_of)
    columns, values = [], {}
    used = set(taken)
    for name in frame.columns:
        if name == key:
            continue
        spec, column = _column(str(name), frame[name], used)
        used.add(spec.name)
        columns.append(spec)
        values[spec.name] = column
    found = {at for at in rows if at is not None}
    return Table(
        tuple(columns),
        tuple(None if at is None else {name: column[at] for name, column in values.items()} for at in rows),
        tuple(value for at, value in enumerate(keys) if at not in found),
    )


def _tails(file: str) -> list[str]:
    """List what may stand for a file: its path from any folder on, longest first, then without the suffix.

    Examples
    --------
    >>> _tails("d/rain/1.ogg")
    ['d/rain/1.ogg', 'rain/1.ogg', '1.ogg', 'd/rain/1', 'rain/1', '1']
    """
    steps = file.replace("\\", "/").split("/")
    stems = [*steps[:-1], steps[-1].rsplit(".", 1)[0]]
    return ["/".join(way[at:]) for way in (steps, stems) for at in range(len(way))]


def _match(ids: Sequence[str], files: Sequence[str], row_of: Mapping[str, int]) -> list[int | None]:
    """Find each id's row: by the id, else by as much of its path as names no other file."""
    rows_by = {key.replace("\\", "/").removeprefix("./"): row for key, row in row_of.items()}
    named = [[t for t in _tails(file) if t in rows_by] for file in files]
    count = Counter(t for tails in named for t in set(tails))
    rows: list[int | None] = []
    for identifier, tails in zip(ids, named, strict=True):
        row = row_of.get(identifier)
        if row is None:
            row = next((rows_by[t] for t in tails if count[t] == 1), None)
        rows.append(row)
    return rows


def _free(name: str, taken: Collection[str]) -> str:
    """Make a name that a store takes, and that stands for nothing else: categories have a second array.

    Examples
    --------
    >>> _free("my col", ()), _free("codec", {"codec"}), _free("species_code", {"species"})
    ('my_col', 'metadata_codec', 'metadata_species_code')
    """
    clean = re.sub(r"[^A-Za-z0-9_.\-]", "_", name) or "column"
    clean = re.sub(r"^(__+|[.\-])", "_", clean)

    def stands(text: str) -> bool:
        return text in taken or f"{text}_code" in taken or text.removesuffix("_code") in taken

    clean = clean[:160]  # what a store takes, with a number or a word before or behind it
    number, made = 1, clean
    while stands(made):
        made = f"metadata_{clean}" if number == 1 else f"metadata_{clean}_{number}"
        number += 1
    return made


def _column(name: str, series: pd.Series[Any], taken: Collection[str]) -> tuple[ColumnSpec, list[Any]]:
    """Type one column: integers, floats (also integers with holes), bools, else strings."""
    import pandas as pd

    clean = _free(name, taken)
    note = name if clean != name else None
    missing = series.isna()
    if pd.api.types.is_bool_dtype(series) and not missing.any():
        return ColumnSpec(clean, "bool", long_name=note), [bool(v) for v in series]
    if pd.api.types.is_integer_dtype(series):
        whole = [None if gone else int(v) for v, gone in zip(series, missing, strict=True)]
        dtype = "uint64" if max((v for v in whole if v is not None), default=0) >= 2**63 else "int64"
        return ColumnSpec(clean, dtype, long_name=note), whole
    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
        return ColumnSpec(clean, "float64", long_name=note), [
            float("nan") if gone else float(v) for v, gone in zip(series, missing, strict=True)
        ]
    values = ["" if gone else str(v) for v, gone in zip(series, missing, strict=True)]
    few = len(set(values)) <= max(1, len(values) // 2)
    return ColumnSpec(clean, "string", long_name=note, categorical=few), values


def stated_duration(row: Mapping[str, Any] | None) -> float | None:
    """Return the seconds that a row of metadata claims for its recording, if a column says so.

    Examples
    --------
    >>> stated_duration({"species": "robin", "duration": 5})
    5.0
    """
    for name, value in (row or {}).items():
        if name.lower().removeprefix("metadata_") in _DURATIONS:
            try:
                seconds = float(value)
            except ValueError:
                continue
            return seconds if seconds >= 0 else None
    return None

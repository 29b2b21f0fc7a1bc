"""The last step of writing: what stands along ``sequence``, the gaps, and the root that says complete."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.arrays import ArrayMeta
from chunkstore.clock import time_field
from chunkstore.errors import ConfigError, UnknownNameError
from chunkstore.layout import RESERVED, FieldSpec, Layout, check_name
from chunkstore.metadata import FORMAT, dump_json, write_root
from chunkstore.places import Place, open_place
from chunkstore.plain import write_plain
from chunkstore.reader import encode_strings
from chunkstore.segments import check_ranges
from chunkstore.shards import StoreSkeleton

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkstore.sequences import ColumnData
    from chunkstore.statistics import FieldStatistics

__all__ = ["finish_store"]


def root_attributes(attrs: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(attrs or {})
    for name in ("chunkstore", "coordinates"):
        if name in found:
            raise ConfigError(f"the root attribute {name!r} belongs to the format; choose another name")
    try:
        dump_json(found)
    except (TypeError, ValueError) as err:
        raise ConfigError(f"attributes must be JSON values: {err}") from None
    return found


def check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen or name in RESERVED:
            raise ConfigError(f"the name {name!r} would stand for two arrays; rename a field or column")
        seen.add(name)


def _ranges(indices: Iterable[int]) -> list[list[int]]:
    """Return ascending indices as half-open ranges."""
    found: list[list[int]] = []
    for index in indices:
        if found and found[-1][1] == index:
            found[-1][1] += 1
        else:
            found.append([index, index + 1])
    return found


def _column_arrays(place: Place, column: ColumnData, n: int) -> list[ArrayMeta]:
    if len(column.values) != n:
        raise ConfigError(f"column {column.name!r} has {len(column.values)} values for {n} sequences")
    about: dict[str, Any] = {}
    if column.units is not None:
        about["units"] = column.units
    if column.long_name is not None:
        about["long_name"] = column.long_name
    about.update(column.attrs)
    if column.dtype != "string":
        dtype = np.dtype(column.dtype)
        if dtype.kind not in "biuf":
            raise ConfigError(
                f"column {column.name!r} has dtype {column.dtype}; use numbers, bool or 'string'"
            )
        fill = np.nan if dtype.kind == "f" else None
        given = column.values
        if not isinstance(given, np.ndarray) or given.dtype == object:
            if fill is None and any(v is None for v in given):
                raise ConfigError(
                    f"column {column.name!r} of {dtype} has values that are not known; use a float"
                )
            given = np.array([fill if v is None else v for v in given], dtype=dtype)
        return [
            write_plain(
                place, column.name, given.astype(dtype), "sequence", data_type=dtype.name, attributes=about
            )
        ]
    texts = ["" if v is None else str(v) for v in column.values]
    made = [write_plain(place, column.name, texts, "sequence", data_type="string", attributes=about)]
    if column.categorical:
        words = sorted({str(v) for v in column.values if v is not None})
        code = {word: i for i, word in enumerate(words)}
        codes = np.array([-1 if v is None else code[str(v)] for v in column.values], dtype=np.int32)
        labels = {"long_name": f"code of {column.name}", "categories": words, "missing": -1}
        made.append(
            write_plain(place, f"{column.name}_code", codes, "sequence", data_type="int32", attributes=labels)
        )
    return made


def finish_store(
    url: str | os.PathLike[str],
    *,
    rowsize: Sequence[int] | NDArray[np.int64],
    ids: Sequence[str],
    columns: Mapping[str, ColumnData] | None = None,
    gaps: Sequence[tuple[int, int]] | NDArray[np.int64] = (),
    statistics: Mapping[str, FieldStatistics] | None = None,
    attrs: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    stored: Mapping[str, Iterable[int]] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    n_obs: int | None = None,
) -> None:
    """Write what stands along ``sequence``, the gaps and the root's metadata, and make the store complete.

    Runs in one process, once, last; running it again after it was broken off gives the same bytes.

    Parameters
    ----------
    rowsize : int64[S]
        Obs of each sequence; their sum is the length of ``obs``.
    ids : sequence of str
        One for each sequence, all different.
    columns : mapping of str to ColumnData, optional
    gaps : int64[G, 2], optional
        Half-open ranges of obs whose data was lost, ascending and apart.
    statistics : mapping of str to FieldStatistics, optional
    attrs : mapping, optional
        Attributes of the root, added to those of the creation.
    provenance : mapping, optional
        Kept in the ``chunkstore`` object: hash of the plan, versions of decoders. JSON values.
    stored : mapping of str to indices, optional
        Shards of each field and mask that a ledger knows to be stored. By default those that are there.
    n_obs : int, optional
        Another length of ``obs`` than at the creation (for writers that learn it last).

    Raises
    ------
    ConfigError
        If lengths do not fit together, or an id comes twice.
    """
    place = open_place(url, storage_options)
    skeleton = StoreSkeleton(place)
    if skeleton.status != "incomplete":
        raise ConfigError(f"store {place.url} is already complete")
    layout = skeleton.layout
    if n_obs is not None:
        layout = Layout(n_obs, layout.chunk, layout.shard)
    lengths = np.asarray(rowsize, dtype=np.int64).reshape(-1)
    if len(lengths) and lengths.min() < 0:
        raise ConfigError(f"sequence {int(np.argmin(lengths))} has a length of {int(lengths.min())}")
    total = sum(lengths.tolist())
    if total != layout.n_obs:
        raise ConfigError(f"rowsize sums to {total}, but the store has {layout.n_obs} obs")
    names = [str(i) for i in ids]
    if len(names) != len(lengths):
        raise ConfigError(f"{len(names)} ids for {len(lengths)} sequences")
    if len(set(names)) != len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise ConfigError(f"the id {twice!r} names two sequences; ids must differ")
    holes = np.asarray(gaps, dtype=np.int64).reshape(-1, 2)
    try:
        check_ranges(holes, layout.n_obs, "gap")
    except ValueError as err:
        raise ConfigError(str(err)) from None
    table = list((columns or {}).values())
    for column in table:
        check_name(column.name, "a column")
    check_names(
        [*skeleton.arrays]
        + [c.name for c in table]
        + [f"{c.name}_code" for c in table if c.categorical and c.dtype == "string"]
    )
    for name in statistics or {}:
        if name not in skeleton.fields:
            raise UnknownNameError(f"statistics are given for {name!r}, which is no field of {place.url}")
    more = root_attributes(attrs)

    arrays = [
        ArrayMeta(
            a.name,
            (layout.n_obs, *a.shape[1:]),
            a.dims,
            a.data_type,
            a.chunk,
            a.shard,
            True,
            a.codecs,
            a.attributes,
        )
        for a in skeleton.arrays.values()
        if a.sharded
    ]
    shards: dict[str, list[list[int]]] = {}
    for meta in arrays:
        there = skeleton.stored_shards(meta.name)
        if there and there[-1] >= layout.n_shards:
            raise ConfigError(f"field {meta.name!r} has a shard {there[-1]}, the store {layout.n_shards}")
        wanted = there if stored is None or meta.name not in stored else sorted(set(stored[meta.name]))
        if wanted != there:
            lost = sorted(set(wanted) ^ set(there))
            raise ConfigError(
                f"field {meta.name!r}: {len(lost)} shards differ between the ledger and the store, "
                f"first {lost[0]}; write them again"
            )
        shards[meta.name] = _ranges(there)
        if meta.shape != skeleton.arrays[meta.name].shape:
            place.put(f"{meta.name}/zarr.json", dump_json(meta.to_json()))
    arrays.append(
        write_plain(
            place,
            "rowsize",
            lengths,
            "sequence",
            data_type="int64",
            attributes={"long_name": "number of obs of each sequence", "sample_dimension": "obs"},
        )
    )
    arrays.append(
        write_plain(
            place,
            "id",
            names,
            "sequence",
            data_type="string",
            attributes={"long_name": "name of each sequence", "cf_role": "timeseries_id"},
        )
    )
    for column in table:
        arrays.extend(_column_arrays(place, column, len(lengths)))
    for i, name in enumerate(("gap_start", "gap_stop")):
        about = {"long_name": ("first obs of each gap", "one past the last obs of each gap")[i]}
        arrays.append(
            write_plain(
                place, name, np.ascontiguousarray(holes[:, i]), "gap", data_type="int64", attributes=about
            )
        )
    own = dict(skeleton.attrs["chunkstore"])
    own.pop("token", None)  # it told writers at work apart; what they made depends on the values alone
    own.update(
        status="complete",
        n_obs=layout.n_obs,
        columns=[c.name for c in table],
        fingerprint=_fingerprint(layout, arrays, skeleton.fields, lengths, names, holes),
        shards=shards,
        statistics={k: statistics[k].to_json() for k in skeleton.fields if k in statistics}
        if statistics
        else {},
        splits={},
    )
    if provenance:
        own["provenance"] = dict(provenance)
    attributes = {k: v for k, v in skeleton.attrs.items() if k != "chunkstore"}
    coordinates = ["id", *[c.name for c in table], *filter(None, [time_field(skeleton.fields)])]
    attributes |= {**more, "coordinates": " ".join(coordinates), "chunkstore": own}
    place.sweep()  # before the root says complete: whoever is killed after that is not run again
    place.settle()  # and where the power fails after that, nothing of the store may be lost
    write_root(place, attributes, arrays)
    place.sweep()


def _fingerprint(  # noqa: PLR0917 - what is hashed, in its order
    layout: Layout,
    arrays: Sequence[ArrayMeta],
    fields: Mapping[str, FieldSpec],
    rowsize: NDArray[np.int64],
    ids: Sequence[str],
    gaps: NDArray[np.int64],
) -> str:
    """Return a hash of what decides which windows there are, not of what they hold."""
    digest = hashlib.sha256()
    described = {
        "format": FORMAT,
        "layout": [layout.n_obs, layout.chunk, layout.shard],
        "fields": [[a.name, a.data_type, a.items] for a in arrays if a.name in fields],
    }
    digest.update(dump_json(described))
    for part in (
        rowsize.astype("<i8").tobytes(),
        encode_strings(ids),
        gaps.astype("<i8").tobytes(),
    ):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:32]

"""One store of several: sequences of all, one after the other, in a new store.

Stores can be trained on together as they are; merging is for those who want one. Rows are copied shard by
shard of the new store through the same steps as any ingest, so that memory stays bounded and codec, chunk and
shard may be chosen anew.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import chunkstore
from chunkstore.clock import sample_rates
from chunkstore.errors import ConfigError, InputError
from chunkstore.finish import check_names
from chunkstore.layout import Layout
from chunkstore.origins import identity
from chunkstore.sequences import ColumnData
from chunkstore.skeleton import create_store, finish_store
from chunkstore.statistics import FieldStatistics
from ingest.rows import has_mask, mask_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkstore.layout import FieldSpec
    from chunkstore.store import ChunkStore

__all__ = ["merge"]


def merge(
    stores: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    codec: str | None = None,
    chunk: int | str | None = None,
    shard: int | str | None = None,
    prefix: bool = False,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Copy several stores into a new one, and return one line about it.

    Parameters
    ----------
    stores : sequence of str or path
        Complete stores with the same fields, in the order that their sequences will have. Splits are not
        copied: what they keep apart in each store says nothing of all of them.
    out : str or path
        Where the new store will be.
    codec, chunk, shard : optional
        As for :func:`ingest.ingest`; those of the first store by default.
    prefix : bool
        Put the name of its store before each id (``a/id``): for stores whose ids are not all different.
    overwrite : bool
        Replace a store of ours.
    storage_options : mapping, optional
        Options of object stores.

    Raises
    ------
    ConfigError
        If fields or units differ, or an id is in two stores and ``prefix`` is not asked for. Nothing is
        written or removed then.

    Examples
    --------
    >>> import chunkstore
    >>> for name, n in (("a", 3), ("b", 2)):
    ...     place = f"memory://merge-{name}"
    ...     with chunkstore.StoreWriter(place, fields={"x": "f4"}, overwrite=True) as store:
    ...         store.write(name, {"x": np.arange(n)})
    >>> merge(["memory://merge-a", "memory://merge-b"], "memory://merge-c", overwrite=True)
    'memory://merge-c: 2 sequences, 5 obs from 2 stores'
    >>> chunkstore.open_store("memory://merge-c").read("x", 2, 5)
    array([2., 0., 1.], dtype=float32)
    """
    if not stores:
        raise InputError("no stores to merge")
    opened = [chunkstore.open_store(s, storage_options=storage_options) for s in stores]
    target = os.fspath(out)
    place = identity(target, storage_options)
    if any(identity(s, storage_options) == place for s in stores):
        raise ConfigError(f"{target} is one of the stores to merge; choose another output")
    fields = _same_fields(opened)
    first = opened[0]
    n_obs = sum(s.n_obs for s in opened)
    names = _names(opened)
    ids, origin = _ids(opened, names, prefix)
    columns = _columns(opened)
    fields = _with_rates(opened, fields, columns)
    arrays = {f.name for f in fields} | {mask_name(f.name) for f in fields if has_mask(f)}
    if not {"store", "store_code"} & (arrays | {*columns} | {f"{c}_code" for c in columns}):
        columns["store"] = ColumnData("store", [names[i] for i in origin], "string", categorical=True)
    check_names([*arrays, *columns, *(f"{c.name}_code" for c in columns.values() if c.categorical)])
    layout = (
        Layout(n_obs, first.layout.chunk, first.layout.shard)
        if chunk is None and shard is None
        else Layout.plan(n_obs, fields, chunk, shard)
    )
    skeleton = create_store(
        target,
        fields=fields,
        layout=layout,
        codec=codec or _codec(first),
        attrs=_common([s.attrs for s in opened]),
        overwrite=overwrite,
        storage_options=storage_options,
    )
    starts = np.concatenate([[0], np.cumsum([s.n_obs for s in opened])]).astype(np.int64)
    gaps = [
        [int(a) + int(o), int(b) + int(o)]
        for s, o in zip(opened, starts[:-1], strict=True)
        for a, b in s.gaps
    ]
    statistics: dict[str, FieldStatistics] = {}
    for spec in fields:
        told = [s.statistics.get(spec.name) for s in opened]
        whole = FieldStatistics.empty(spec.items)
        if None not in told:
            statistics[spec.name] = functools.reduce(FieldStatistics.merge, filter(None, told), whole)
    for index in range(layout.n_shards):
        low, high = layout.shard_range(index)
        for spec in fields:
            skeleton.write_shard(
                spec.name, index, _gather(opened, starts, name=spec.name, spec=spec, low=low, high=high)
            )
            if has_mask(spec):
                name = mask_name(spec.name)
                skeleton.write_shard(
                    name, index, _gather(opened, starts, name=name, spec=None, low=low, high=high)
                )
    finish_store(
        target,
        rowsize=np.concatenate([s.sequences.rowsize for s in opened]),
        ids=ids,
        columns=columns,
        gaps=_joined(gaps),
        statistics=statistics,
        provenance={"merged": [s.fingerprint for s in opened]},
        storage_options=storage_options,
    )
    return f"{target}: {len(ids):,} sequences, {n_obs:,} obs from {len(opened):,} stores"


def _gather(
    stores: Sequence[ChunkStore],
    starts: np.ndarray,
    *,
    name: str,
    spec: FieldSpec | None,
    low: int,
    high: int,
) -> np.ndarray:
    out = np.empty(high - low, bool) if spec is None else np.empty(spec.shape(high - low), spec.np_dtype)
    for store, start, stop in zip(stores, starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        a, b = max(low, start), min(high, stop)
        if a < b:
            out[a - low : b - low] = store.read(name, a - start, b - start)
    return out


def _same_fields(stores: Sequence[ChunkStore]) -> list[FieldSpec]:
    first = stores[0]
    wanted = {name: _meaning(f) for name, f in first.fields.items()}
    for store in stores[1:]:
        found = {name: _meaning(f) for name, f in store.fields.items()}
        if found != wanted:
            names = [n for n in {*wanted, *found} if wanted.get(n) != found.get(n)]
            raise ConfigError(
                f"{store.url} and {first.url} differ in {', '.join(sorted(names))}; only stores with the "
                "same fields, dtypes, units, scale factors and categories can be merged"
            )
    return [
        replace(f, attrs=_common([s.fields[f.name].attrs for s in stores])) for f in first.fields.values()
    ]


def _meaning(spec: FieldSpec) -> tuple[Any, ...]:
    """Return what must be alike for values of two stores to mean the same."""
    calendar = spec.attrs.get("calendar", "standard")
    return spec.dtype, spec.items, spec.nullable, spec.units, spec.scale_factor, spec.categories, calendar


def _with_rates(
    stores: Sequence[ChunkStore], fields: list[FieldSpec], columns: dict[str, ColumnData]
) -> list[FieldSpec]:
    """Return the fields; sample rates stated for whole stores become a column where they differ."""
    stated = {
        (*(f.attrs.get("sample_rate") for f in s.fields.values()), s.attrs.get("sample_rate")) for s in stores
    }
    if len(stated) == 1:
        return fields
    rates = np.concatenate([sample_rates(s) for s in stores])
    columns["sample_rate"] = ColumnData("sample_rate", rates, "float64", units="Hz")
    return [replace(f, attrs={k: v for k, v in f.attrs.items() if k != "sample_rate"}) for f in fields]


def _names(stores: Sequence[ChunkStore]) -> list[str]:
    """Return a name for each store: the last part of its URL, or as many parts as tell them apart."""
    parts = [s.url.rstrip("/").removesuffix(".zarr").split("/") for s in stores]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [p[-1] for p in parts]


def _ids(stores: Sequence[ChunkStore], names: Sequence[str], prefix: bool) -> tuple[list[str], list[int]]:
    ids: list[str] = []
    origin: list[int] = []
    for i, store in enumerate(stores):
        own = list(store.sequences.ids)
        ids += [f"{names[i]}/{one}" for one in own] if prefix else own
        origin += [i] * len(own)
    if len(set(ids)) != len(ids):
        seen: set[str] = set()
        twice = next(one for one in ids if one in seen or seen.add(one))  # type: ignore[func-returns-value]
        raise ConfigError(
            f"the id {twice!r} is in two stores; "
            + (
                "is one of them given twice?"
                if prefix
                else "use --prefix to put the store's name before each"
            )
        )
    return ids, origin


def _columns(stores: Sequence[ChunkStore]) -> dict[str, ColumnData]:
    columns: dict[str, ColumnData] = {}
    wanted = dict.fromkeys(c for s in stores for c in s.sequences.columns)
    for name in wanted:
        values: list[Any] = []
        kinds = set()
        labels = False
        for store in stores:
            table = store.sequences
            if name not in table.columns:
                values += [None] * len(table)
                continue
            column = np.asarray(table.column(name))
            kinds.add("string" if column.dtype.kind in "OUST" else column.dtype.name)
            if kinds == {"string"} and _is_label(table, name):
                labels = True
                codes, words = table.codes(name), table.categories(name)
                values += [None if c < 0 else words[c] for c in codes.tolist()]
            else:
                values += column.tolist()
        if len(kinds) > 1 and "string" in kinds:
            raise ConfigError(f"column {name!r} holds text in one store and numbers in another")
        about = [dict(s.sequences.attrs(name)) for s in stores if name in s.sequences.columns]
        if len({a.get("units") for a in about}) > 1:
            raise ConfigError(
                f"column {name!r} has units {', '.join(repr(a.get('units')) for a in about)}; only columns "
                "in the same units can be merged"
            )
        more = _common(about)
        units, long_name = more.pop("units", None), more.pop("long_name", None)
        dtype = "string" if "string" in kinds else np.result_type(*kinds).name
        if dtype != "string" and np.dtype(dtype).kind != "f" and any(v is None for v in values):
            dtype = "float64"
        if dtype == "float64" and any(isinstance(v, int) and abs(v) > 1 << 53 for v in values):
            dtype, values = "string", [None if v is None else str(v) for v in values]  # no float holds them
        columns[name] = ColumnData(name, values, dtype, labels, units, long_name, more)
    return columns


def _is_label(table: Any, name: str) -> bool:
    try:
        table.categories(name)
    except (KeyError, ValueError):
        return False
    return True


def _codec(store: ChunkStore) -> str:
    return str(store.attrs["chunkstore"].get("codec", "default"))


def _common(attrs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = dict(attrs[0])
    return {
        k: v
        for k, v in first.items()
        if k not in {"chunkstore", "Conventions", "coordinates"} and all(a.get(k) == v for a in attrs[1:])
    }


def _joined(gaps: Sequence[Sequence[int]]) -> np.ndarray:
    out: list[list[int]] = []
    for low, high in gaps:
        if out and out[-1][1] == low:
            out[-1][1] = high
        else:
            out.append([low, high])
    return np.array(out, np.int64).reshape(-1, 2)

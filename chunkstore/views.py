"""A store as xarray sees it, and xarray datasets as stores.

Datasets are lazy: their dask chunks are the shards, read through the store's own engine.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import ConfigError

if TYPE_CHECKING:
    import os

    import xarray as xr
    from numpy.typing import NDArray

    from chunkstore.store import ChunkStore

#: Attributes that a field of a store gets anew, or that readers would apply to its values.
_OWN = frozenset(
    {
        "_FillValue",
        "missing_value",
        "add_offset",
        "scale_factor",
        "_Unsigned",
        "_ARRAY_DIMENSIONS",
        "coordinates",
    }
    | {"valid_min", "valid_max", "valid_range", "dtype", "ancillary_variables", "flag_meanings", "categories"}
)

__all__ = ["from_xarray", "sequence_dataset", "store_dataset"]


class _Lazy:
    """A field as an array that dask can slice; pickled with its store's place."""

    def __init__(self, store: ChunkStore, name: str, start: int, stop: int) -> None:
        meta = store._array(name)  # noqa: SLF001 - a view belongs to its store
        self.store, self.name, self.start = store, name, start
        self.shape = (stop - start, *meta.shape[1:])
        self.dtype = meta.dtype
        self.ndim = len(self.shape)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        index = index if isinstance(index, tuple) else (index,)
        low, high, step = index[0].indices(self.shape[0])
        values = self.store.read(self.name, self.start + low, max(self.start + low, self.start + high))
        return values[(slice(None, None, step), *index[1:])]


def _attributes(store: ChunkStore, name: str) -> dict[str, Any]:
    found = dict(store._array(name).attributes)  # noqa: SLF001
    if "flag_values" in found:
        found["flag_values"] = np.asarray(found["flag_values"], dtype=store._array(name).dtype)  # noqa: SLF001
    return found


def store_dataset(store: ChunkStore) -> xr.Dataset:
    """Return the whole store as a Dataset along ``obs`` and ``sequence``; nothing along ``obs`` is read."""
    import dask.array as da
    import xarray as xr
    from dask.base import tokenize

    data: dict[str, Any] = {}
    n = store.n_obs
    token = tokenize(store.url, json.dumps(dict(store.attrs), sort_keys=True))
    for name in [*store.fields, *store.masks.values()]:
        source = _Lazy(store, name, 0, n)
        chunks = (max(1, min(store.layout.shard, n)), *source.shape[1:])
        lazy = da.from_array(  # type: ignore[no-untyped-call]
            source,
            chunks=chunks,
            name=f"{name}-{token}",
            asarray=False,
            meta=np.empty((0,) * source.ndim, source.dtype),
        )
        data[name] = (store._array(name).dims, lazy, _attributes(store, name))  # noqa: SLF001
    table = store.sequences.to_xarray()
    for key, variable in table.data_vars.items():
        if key != "start":
            data[str(key)] = variable
    for i, name in enumerate(("gap_start", "gap_stop")):
        data[name] = ("gap", store.gaps[:, i], dict(store._root.arrays[name].attributes))  # noqa: SLF001
    dataset = xr.Dataset(data, coords=table.coords, attrs=_root_attrs(store))
    names = [n for n in (*store.sequences.columns, "time") if n in dataset.data_vars]
    return xr.decode_cf(dataset.set_coords(names))


def _root_attrs(store: ChunkStore) -> dict[str, Any]:
    return {k: v for k, v in store.attrs.items() if k not in ("chunkstore", "coordinates")}


def sequence_dataset(store: ChunkStore, id: str) -> xr.Dataset:  # noqa: A002 - the format's own word
    """Return one sequence, read into memory, with its columns as scalar coordinates.

    Examples
    --------
    >>> import chunkstore
    >>> with chunkstore.StoreWriter("memory://doc-view", fields={"x": "f4"}, overwrite=True) as out:
    ...     out.write("a", {"x": [1, 2]}, labels={"kind": "dog"})
    >>> one = chunkstore.open_store("memory://doc-view").sequence("a")
    >>> one.x.values, one.kind.item()
    (array([1., 2.], dtype=float32), 'dog')
    """
    import xarray as xr

    index = store.sequences.index_of(id)
    low, high = (int(v) for v in store.sequences.offsets[index : index + 2])
    data: dict[str, Any] = {}
    for name in [*store.fields, *store.masks.values()]:
        data[name] = (store._array(name).dims, store.read(name, low, high), _attributes(store, name))  # noqa: SLF001
    scalars: dict[str, Any] = {"id": id}
    for name in store.sequences.columns:
        scalars[name] = ((), store.sequences.column(name)[index], dict(store.sequences.attrs(name)))
    dataset = xr.Dataset(data, coords=scalars, attrs={**_root_attrs(store), "start": low})
    if "time" in dataset.data_vars:
        dataset = dataset.set_coords("time")
        return xr.decode_cf(dataset)
    clock = _regular_clock(store, index, high - low)
    return xr.decode_cf(dataset) if clock is None else xr.decode_cf(dataset).assign_coords(time=clock)


def _regular_clock(
    store: ChunkStore, index: int, rows: int
) -> tuple[str, NDArray[Any], dict[str, str]] | None:
    """Return the times of a sequence whose sample rate is stated, or None where nothing states it.

    They are datetime64[ns] where the column ``start_time`` (seconds since 1970) tells when the sequence
    began, else seconds since its start.
    """
    table = store.sequences
    rate: Any = table.column("sample_rate")[index] if "sample_rate" in table.columns else None
    for attrs in (*(spec.attrs for spec in store.fields.values()), store.attrs):
        rate = attrs.get("sample_rate") if rate is None else rate
    if rate is None or not float(rate) > 0:
        return None
    began = table.column("start_time")[index] if "start_time" in table.columns else np.nan
    if np.issubdtype(np.asarray(began).dtype, np.number) and np.isfinite(began):
        whole = np.datetime64(round(float(began) * 1e6), "us").astype("datetime64[ns]")
        steps = np.rint(np.arange(rows) * (1e9 / float(rate))).astype("timedelta64[ns]")
        return "obs", whole + steps, {"long_name": "time"}
    return "obs", np.arange(rows) / float(rate), {"units": "s", "long_name": "time since the start"}


def from_xarray(
    dataset: xr.Dataset,
    url: str | os.PathLike[str],
    *,
    obs: str | None = None,
    sequence: str | None = None,
    id: str = "0",  # noqa: A002 - the format's own word
    block: int | str = "64MiB",
    **options: Any,
) -> ChunkStore:
    """Write a dataset as a store, block by block, and open it.

    Three shapes are understood. A contiguous ragged dataset has a variable with the attribute
    ``sample_dimension`` (as our own stores have). With ``sequence``, each index along that dimension
    is a sequence of the length of ``obs``. Else the dataset is one sequence.

    Parameters
    ----------
    dataset : xarray.Dataset
        Lazy datasets are read a block at a time.
    url : str or path
    obs : str, optional
        The dimension that becomes ``obs``; found where only one can be meant.
    sequence : str, optional
        The dimension along which sequences stand.
    id : str
        Name of the sequence where there is only one.
    block : int or str
        Obs, or bytes, read at once.
    **options
        As of :class:`chunkstore.StoreWriter`.

    Returns
    -------
    ChunkStore

    Examples
    --------
    >>> import xarray as xr
    >>> ds = xr.Dataset({"t2m": ("time", np.arange(4.0)), "wind": (("time", "uv"), np.ones((4, 2)))})
    >>> store = from_xarray(ds, "memory://doc-xarray", obs="time", overwrite=True)
    >>> store.read("wind", 0, 2)
    array([[1., 1.], [1., 1.]])
    """
    from chunkstore.layout import FieldSpec, parse_bytes
    from chunkstore.store import open_store
    from chunkstore.writer import StoreWriter

    counts = next((v for v in dataset.variables.values() if "sample_dimension" in v.attrs), None)
    ragged = counts is not None and sequence is None
    if ragged:
        assert counts is not None
        obs, sequence = str(counts.attrs["sample_dimension"]), str(counts.dims[0])
    if obs is None:
        left = [str(d) for d in dataset.dims if d != sequence]
        named = [d for d in ("obs", "time") if d in left]
        obs = left[0] if len(left) == 1 else named[0] if named else None
    if obs is None or obs not in dataset.dims or (sequence is not None and sequence not in dataset.dims):
        raise ConfigError(
            f"name the dimension that becomes obs, and the one along which sequences stand: the dataset has "
            f"{', '.join(map(str, dataset.dims))}, got obs={obs!r}, sequence={sequence!r}"
        )
    fields: dict[str, FieldSpec] = {}
    sources: dict[str, Any] = {}
    for key, variable in dataset.variables.items():
        name = str(key)
        lead = (obs,) if ragged or sequence is None else (sequence, obs)
        if obs not in variable.dims:
            continue
        ordered = variable if set(lead) - set(variable.dims) else variable.transpose(*lead, ...)
        if ordered.dims[: len(lead)] != lead:
            if ordered.dims != (obs,):
                raise ConfigError(
                    f"{name!r} has dimensions {variable.dims}; a field has {lead} and one more at most"
                )
            lead = (obs,)  # shared by all sequences, like a time axis
        inner = ordered.dims[len(lead) :]
        if len(inner) > 1:
            raise ConfigError(f"{name!r} has dimensions {variable.dims}; an obs holds a scalar or one vector")
        target = "time" if name == obs and name != "time" else name
        attrs = {k: v for k, v in variable.attrs.items() if isinstance(v, (str, int, float))}
        units, dtype = attrs.pop("units", None), variable.dtype
        if dtype.kind in "mM":
            unit = np.datetime_data(dtype)[0]
            long = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}[unit]
            units, dtype = f"{long} since 1970-01-01" if dtype.kind == "M" else long, np.dtype("int64")
        if dtype.kind not in "biuf":
            raise ConfigError(
                f"{name!r} has dtype {variable.dtype}; a field holds numbers, bool or datetimes"
            )
        long_name = attrs.pop("long_name", None)
        attrs = {k: v for k, v in attrs.items() if k not in _OWN}
        fields[target] = FieldSpec(
            target,
            dtype.name,
            items=ordered.sizes[inner[0]] if inner else 0,
            units=None if units is None else str(units),
            long_name=None if long_name is None else str(long_name),
            attrs=attrs,
        )
        sources[target] = (ordered, len(lead) == 2)
    if not fields:
        raise ConfigError(f"the dataset has no variable along {obs!r}")
    width = max(f.bytes_per_obs for f in fields.values())
    step = block if isinstance(block, int) else max(1, parse_bytes(block) // width)
    n = dataset.sizes[sequence] if sequence is not None else 1
    lengths = (
        counts.values.astype(np.int64) if ragged and counts is not None else np.full(n, dataset.sizes[obs])
    )
    offsets = np.concatenate([[0], np.cumsum(lengths)]) if ragged else np.zeros(n + 1, np.int64)
    if ragged and int(offsets[-1]) != dataset.sizes[obs]:
        raise ConfigError(f"the lengths sum to {int(offsets[-1])}, {obs!r} has {dataset.sizes[obs]}")
    ids, labels, columns = _per_sequence(dataset, sequence, n, id)
    with StoreWriter(url, fields=list(fields.values()), **options) as out:
        for i in range(n):
            out.begin(
                ids[i],
                labels={k: v[i] for k, v in labels.items()},
                columns={k: v[i] for k, v in columns.items()},
            )
            for at in range(0, int(lengths[i]), step):
                low, high = int(offsets[i]) + at, int(offsets[i]) + min(int(lengths[i]), at + step)
                out.extend(
                    {
                        name: (v[i, low:high] if per_sequence else v[low:high]).values
                        for name, (v, per_sequence) in sources.items()
                    }
                )
    return open_store(url, storage_options=options.get("storage_options"))


def _per_sequence(
    dataset: xr.Dataset, sequence: str | None, n: int, single: str
) -> tuple[list[str], dict[str, list[Any]], dict[str, list[Any]]]:
    """Return ids, labels and columns of the sequences of a dataset."""
    ids = [single] if sequence is None else [str(i) for i in range(n)]
    labels: dict[str, list[Any]] = {}
    columns: dict[str, list[Any]] = {}
    for key, variable in dataset.variables.items():
        name = str(key)
        if sequence is None or variable.dims != (sequence,) or "sample_dimension" in variable.attrs:
            continue
        values = variable.values.tolist()
        if variable.attrs.get("cf_role") or name == sequence:
            ids = [str(v) for v in values]
        elif variable.dtype.kind in "OUST":
            labels[name] = [str(v) for v in values]
        elif variable.dtype.kind in "biuf" and not (
            name.endswith("_code") and name[:-5] in dataset.variables
        ):
            columns[name] = values
    return ids, labels, columns

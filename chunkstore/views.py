"""A store as xarray sees it. For the other way see ``chunkstore.convert``.

Datasets are lazy: their dask chunks are the shards, read through the store's own engine.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.clock import clock_of, sample_rates, time_field

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

    from chunkstore.opened import OpenStore

__all__ = ["sequence_dataset", "store_dataset"]


logger = logging.getLogger(__name__)


class _Lazy:
    """A field as an array that dask can slice; pickled with its store's place."""

    def __init__(self, store: OpenStore, name: str, start: int, stop: int) -> None:
        meta = store._array(name)  # noqa: SLF001 - a view belongs to its store
        self.store, self.name, self.start = store, name, start
        self.shape = (stop - start, *meta.shape[1:])
        self.dtype = meta.dtype
        self.ndim = len(self.shape)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        index = index if isinstance(index, tuple) else (index,)
        picked = range(self.shape[0])[index[0]]  # dask asks for slices, of any step, and for single obs
        obs = picked if isinstance(picked, range) else range(picked, picked + 1)
        low, high = (min(obs[0], obs[-1]), max(obs[0], obs[-1]) + 1) if obs else (0, 0)
        values = self.store.read(self.name, self.start + low, self.start + high)[:: obs.step]
        return values[(slice(None) if isinstance(picked, range) else 0, *index[1:])]


def described(store: OpenStore, name: str) -> tuple[tuple[str, ...], np.dtype[Any], dict[str, Any]]:
    """Return dimensions, dtype and attributes of a field or mask, as xarray takes them."""
    meta = store._array(name)  # noqa: SLF001
    found = dict(meta.attributes)
    if "flag_values" in found:
        found["flag_values"] = np.asarray(found["flag_values"], dtype=meta.dtype)
    return meta.dims, meta.dtype, found


def store_dataset(store: OpenStore) -> xr.Dataset:
    """Return the whole store as a Dataset along ``obs`` and ``sequence``; nothing along ``obs`` is read."""
    import dask.array as da
    import xarray as xr
    from dask.base import tokenize

    data: dict[str, Any] = {}
    n = store.n_obs
    # dask knows what it has kept by the names of arrays: those of the next store at this place must differ
    token = tokenize(store.url, store._instance)  # noqa: SLF001 - a view belongs to its store
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
        dims, _, attrs = described(store, name)
        data[name] = (dims, lazy, attrs)
    table = store.sequences.to_xarray()
    for key, variable in table.data_vars.items():
        if key != "start":
            data[str(key)] = variable
    for i, name in enumerate(("gap_start", "gap_stop")):
        data[name] = ("gap", store.gaps[:, i], dict(store._root.arrays[name].attributes))  # noqa: SLF001
    dataset = xr.Dataset(data, coords=table.coords, attrs=_root_attrs(store))
    names = [
        n for n in (*store.sequences.columns, "time", time_field(store.fields)) if n in dataset.data_vars
    ]
    return _decoded(dataset.set_coords(names))


def _decoded(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset with times, scales and fill values applied; times beyond any calendar stay numbers."""
    import xarray as xr

    try:
        return xr.decode_cf(dataset)
    except (ValueError, OverflowError) as err:
        logger.info("times stay numbers, for xarray cannot decode them: %s", err)
        return xr.decode_cf(dataset, decode_times=False)


def _root_attrs(store: OpenStore) -> dict[str, Any]:
    return {k: v for k, v in store.attrs.items() if k not in ("chunkstore", "coordinates")}


def sequence_dataset(store: OpenStore, id: str) -> xr.Dataset:  # noqa: A002 - the format's own word
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
        dims, _, attrs = described(store, name)
        data[name] = (dims, store.read(name, low, high), attrs)
    scalars: dict[str, Any] = {"id": id}
    for name in store.sequences.columns:
        scalars[name] = ((), store.sequences.column(name)[index], dict(store.sequences.attrs(name)))
    dataset = xr.Dataset(data, coords=scalars, attrs={**_root_attrs(store), "start": low})
    told = time_field(store.fields) or "time"
    if told in dataset.data_vars:
        return _decoded(dataset.set_coords(told))
    clock = _regular_clock(store, index, high - low)
    return _decoded(dataset) if clock is None else _decoded(dataset).assign_coords(time=clock)


def _regular_clock(
    store: OpenStore, index: int, rows: int
) -> tuple[str, NDArray[Any], dict[str, str]] | None:
    """Return the times of a sequence whose sample rate is stated, or None where nothing states it.

    They are datetime64[ns] where the column ``start_time`` tells when the sequence began, else seconds since
    its start.
    """
    obs, own = np.arange(rows), np.full(rows, index)
    clock = clock_of(store)
    if clock is not None:
        times = clock.times(own, obs)
        if not np.isnat(times).any():
            return "obs", times, {"long_name": "time"}
    rate = sample_rates(store)[index]
    if np.isnan(rate):
        return None
    return "obs", obs / rate, {"units": "s", "long_name": "time since the start"}

"""Whether data lies where something is to be written, which would remove it before it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePath
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np

from chunkstore.errors import ConfigError
from chunkstore.places import LocalPlace, open_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import xarray as xr

    from chunkstore.opened import OpenStore

__all__ = ["holds", "identity", "reads_from", "spare_store"]


def identity(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> str:
    """Return the same text for two spellings of one place: links, relative paths, slashes at the end.

    Examples
    --------
    >>> identity("memory://a/") == identity("memory://a"), identity("a/../b") == identity("b/")
    (True, True)
    """
    place = open_place(url, options)
    return place.root if isinstance(place, LocalPlace) else place.url.rstrip("/")


def holds(place: str, path: str | os.PathLike[str]) -> bool:
    """Whether a file, folder or URL is a place, or lies in it.

    Parameters
    ----------
    place : str
        As :func:`identity` has it.
    path : str or path
        A path, as it was typed, or a URL.

    Examples
    --------
    >>> holds("/data/a.zarr", "/data/b/../a.zarr/x"), holds("/data/a.zarr", "/data/a.zarr.old")
    (True, False)
    >>> holds("s3://bucket/a.zarr", "s3://bucket/a.zarr/x/c/0")
    True
    """
    text = os.fspath(path)
    if "://" in place:
        text, bare = text.rstrip("/"), place.partition("://")[2]  # file systems leave the scheme out
        return any(text == p or text.startswith(f"{p}/") for p in (place, bare))
    if "://" in text:
        if not text.startswith("file://"):
            return False
        text = unquote(text.removeprefix("file://").removeprefix("localhost"))
    real = os.path.realpath(text)
    return real == place or real.startswith(place.rstrip(os.sep) + os.sep)


def spare_store(store: OpenStore, path: str | os.PathLike[str]) -> None:
    """Refuse to write a file into a store that is open: it might be one of the store's own.

    Raises
    ------
    ConfigError
        If the path lies in the folder of the store.
    """
    place = store._place  # noqa: SLF001 - of the same package
    if isinstance(place, LocalPlace) and holds(place.root, path):
        raise ConfigError(f"{os.fspath(path)} lies in the store {store.url}; write to another place")


def reads_from(
    dataset: xr.Dataset, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> bool:
    """Whether values of a dataset that are not in memory are still to be read from a place.

    Whatever opened it: what its arrays would read from is looked for in all that they are made of.

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> store = small_store()
    >>> dataset = store.to_xarray()
    >>> reads_from(dataset, store.url), reads_from(dataset.load(), store.url)
    (True, False)
    """
    lazy = [v for v in dataset.variables.values() if not _in_memory(v)]
    if not lazy:
        return False
    place = identity(url, options)
    told = [dataset.encoding.get("source"), *(v.encoding.get("source") for v in lazy)]
    if any(isinstance(t, (str, os.PathLike)) and holds(place, t) for t in told):
        return True
    return any(holds(place, path) for path in _paths([v._data for v in lazy]))  # noqa: SLF001


def _in_memory(variable: xr.Variable) -> bool:
    return isinstance(variable._data, np.ndarray) or type(variable._data).__name__.startswith("Pandas")  # noqa: SLF001


def _paths(values: Iterable[Any]) -> set[str]:
    """Return the paths and URLs in all that values consist of, as objects tell it for copies of them."""
    found: set[str] = set()
    met: dict[int, Any] = {}  # kept, so that no other object gets the number of one that is gone
    todo = list(values)
    while todo:
        value = todo.pop()
        if id(value) in met:
            continue
        met[id(value)] = value
        if isinstance(value, str):
            if value.startswith(os.sep) or "/" in value.strip("/"):
                found.add(value)
        elif isinstance(value, PurePath):
            found.add(os.fspath(value))
        elif not isinstance(value, _PLAIN):
            if type(value).__name__ == "StorePath":  # of zarr: a store, and a path in it
                found.add(str(value))
            todo += _inside(value)
    return found


def _inside(value: Any) -> list[Any]:
    """Return what one object consists of."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    try:
        if isinstance(value, FunctionType):
            return [cell.cell_contents for cell in value.__closure__ or ()] + [value.__defaults__]
        told = value.__reduce_ex__(4)
        return [x for part in told[1:] if part is not None for x in _listed(part)]
    except Exception:
        return []


def _listed(part: Any) -> list[Any]:
    """Return what copies are made from; some of it comes by iterators."""
    return list(part) if isinstance(part, Iterator) else [part]


#: what holds no path
_PLAIN: Final = (bool, int, float, complex, bytes, type, type(None), np.ndarray, np.generic, np.dtype)

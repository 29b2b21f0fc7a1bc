"""Nulls of fields that are no floats, as NaN: what a mask beside a field says, put into the values.

Decides which dtype such values need in memory and fills it. Everything else of a store stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["NullsAsNaN", "resident_dtype", "resident_dtypes", "with_nan"]


def resident_dtype(spec: Any, masked: bool, wanted: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype in which values of a field lie in memory: stored, or a float that can say NaN.

    Parameters
    ----------
    spec : FieldSpec
        Of the field.
    masked : bool
        Whether a mask stands beside it, in any store.
    wanted : iterable of numpy.dtype
        Of all batches that the values go into; one that cannot say NaN keeps the values as stored.

    Examples
    --------
    >>> from chunkstore.layout import FieldSpec
    >>> spec = FieldSpec("n", "int16", nullable=True)
    >>> resident_dtype(spec, True, [np.dtype("float32")]), resident_dtype(spec, True, [np.dtype("int64")])
    (dtype('float32'), dtype('int16'))
    """
    stored: np.dtype[Any] = spec.np_dtype
    kinds = list(wanted)
    if not masked or not kinds or any(kind.kind != "f" for kind in kinds):
        return stored
    return np.dtype(np.float64 if any(kind.itemsize > 4 for kind in kinds) else np.float32)


def resident_dtypes(
    stores: Sequence[Any], batches: Sequence[tuple[Sequence[str], np.dtype[Any]]]
) -> dict[str, np.dtype[Any]]:
    """Return :func:`resident_dtype` of each field of some batches, given as (fields, dtype)."""
    return {
        name: resident_dtype(
            stores[0].fields[name],
            any(name in getattr(store, "masks", ()) for store in stores),
            [dtype for fields, dtype in batches if name in fields],
        )
        for name in dict.fromkeys(name for fields, _ in batches for name in fields)
    }


def with_nan(stores: Sequence[Any], dtypes: Mapping[str, np.dtype[Any]]) -> list[Any]:
    """Return the stores, those that hold such fields as :class:`NullsAsNaN`."""
    return [
        NullsAsNaN(store, dtypes)
        if any(dtype != store.fields[name].np_dtype for name, dtype in dtypes.items())
        else store
        for store in stores
    ]


class NullsAsNaN:
    """A store whose reads of some fields give floats, NaN where the mask says null.

    Parameters
    ----------
    store : ChunkStore
        What is read.
    dtypes : mapping of str to numpy.dtype
        Of the values of each field; a field whose dtype is the stored one is read as ever.
    """

    def __init__(self, store: Any, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self._store = store
        self._changed = {n for n, dtype in dtypes.items() if dtype != store.fields[n].np_dtype}

    def __getattr__(self, name: str) -> Any:
        if name == "_store" or name.startswith("__"):  # a copy that is being unpickled
            raise AttributeError(name)
        return getattr(self._store, name)

    def read_into(self, field: str, start: int, stop: int, out: NDArray[Any]) -> None:
        """Decode obs [start, stop) of a field into ``out``."""
        if field in self._changed:
            self.read_ranges(field, [start], [stop], [out])
        else:
            self._store.read_into(field, start, stop, out)

    def read_ranges(
        self, field: str, starts: Sequence[int], stops: Sequence[int], outs: Sequence[NDArray[Any]]
    ) -> None:
        """Decode ranges of obs of a field, each into its own array."""
        if field not in self._changed:
            self._store.read_ranges(field, starts, stops, outs)
            return
        stored = [np.empty(out.shape, self._store.fields[field].np_dtype) for out in outs]
        self._store.read_ranges(field, starts, stops, stored)
        for out, values in zip(outs, stored, strict=True):
            out[...] = values
        mask = self._store.masks.get(field)
        if mask is None:
            return
        valid = [np.empty(len(out), bool) for out in outs]
        self._store.read_ranges(mask, starts, stops, valid)
        for out, known in zip(outs, valid, strict=True):
            out[~known] = np.nan

"""Values as they are given become values as a field stores them; what would change is refused.

Lists, masked arrays, None, datetimes and words come in; arrays of the stored dtypes and their masks
go out. Floats alone are rounded, to the precision of their field. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.clock import parse_units
from chunkstore.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from chunkstore.layout import FieldSpec

__all__ = ["as_array", "stored_arrays"]


def stored_arrays(
    id: str,  # noqa: A002 - the format's own word
    fields: Mapping[str, FieldSpec],
    masks: Mapping[str, str],
    data: Mapping[str, Any],
) -> dict[str, NDArray[Any]]:
    """Check the values of one sequence and return them in their stored dtypes, masks included.

    Raises
    ------
    UnknownNameError
        If a field is missing, or there is none of a name.
    ConfigError
        If a value would not be stored as what it is.
    """
    missing = [n for n in fields if n not in data]
    unknown = [n for n in data if n not in (*fields, *masks.values())]
    if missing or unknown:
        raise UnknownNameError(
            f"sequence {id!r}: fields {missing or 'none'} are missing, {unknown or 'none'} are unknown; "
            f"the store has {', '.join(fields)}"
        )
    found: dict[str, NDArray[Any]] = {}
    for name, spec in fields.items():
        given = data[name]
        mask = masks.get(name)
        valid: Any = data.get(mask) if mask else None
        given, none = _without_none(as_array(given))
        if none is not None:
            given = np.ma.MaskedArray(given, none)
        elif isinstance(given, np.ndarray) and given.dtype.kind in "mM" and np.isnat(given).any():
            given = np.ma.MaskedArray(given, np.isnat(given))
        if isinstance(given, np.ma.MaskedArray):
            lost: Any = np.ma.getmaskarray(given)
            if lost.ndim == 2 and spec.np_dtype.kind != "f":
                if (lost.any(axis=1) & ~lost.all(axis=1)).any():
                    raise ConfigError(
                        f"sequence {id!r}: {name!r} has vectors of which a part is masked; a mask is of "
                        "whole obs: use a float dtype, whose items can be NaN, or a field for each item"
                    )
                lost = lost.any(axis=1)
            if spec.np_dtype.kind == "f":
                given = np.ma.filled(given.astype(spec.np_dtype), np.nan)
            elif mask is None and lost.any():
                raise ConfigError(
                    f"sequence {id!r}: {name!r} has nulls (masked, None or NaT), but is not nullable"
                )
            else:
                valid = ~lost if valid is None else ~lost & np.asarray(valid, dtype=bool)
                given = _filled(spec, given)
        values = _convert(id, spec, given)
        if mask is not None:
            ok: Any = np.ones(len(values), bool) if valid is None else np.asarray(valid)
            if ok.dtype.kind not in "bui":
                raise ConfigError(f"sequence {id!r}: {mask} holds {ok.dtype}; give bool")
            ok = ok.astype(bool)
            if ok.shape != (len(values),):
                raise ConfigError(
                    f"sequence {id!r}: {mask} has shape {ok.shape}, {name} has {len(values)} obs"
                )
            if not ok.all():
                values = values.copy()
                values[~ok] = 0  # what a null holds is defined, so that stores are equal byte for byte
            found[mask] = ok
        found[name] = values
    lengths = {n: len(v) for n, v in found.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"sequence {id!r}: its fields differ in length: {lengths}")
    return found


def _convert(id: str, spec: FieldSpec, given: Any) -> NDArray[Any]:  # noqa: A002
    values = np.asarray(given)
    if spec.categories is not None and values.dtype.kind in "OUT":
        code = {word: i for i, word in enumerate(spec.categories)}
        try:
            values = np.array([code[str(v)] for v in values.tolist()], dtype=spec.np_dtype)
        except KeyError as err:
            raise ConfigError(f"sequence {id!r}: {spec.name} has no category {err}") from None
    if values.ndim and not len(values):
        values = np.zeros(spec.shape(0), spec.np_dtype)
    if values.dtype.kind in "mM":
        values = _instants(id, spec, values)
    if values.shape[1:] != spec.shape(0)[1:] or values.ndim == 0:
        raise ConfigError(
            f"sequence {id!r}: {spec.name} has shape {values.shape}, it takes {['n', *spec.shape(0)[1:]]}"
        )
    if values.dtype != spec.np_dtype:
        if not np.can_cast(values.dtype, spec.np_dtype, "same_kind") and not (
            values.dtype.kind in "biu" and spec.np_dtype.kind in "iuf"
        ):
            raise ConfigError(
                f"sequence {id!r}: {spec.name} holds {spec.dtype}, "
                f"values of {values.dtype} would lose their meaning"
            )
        with np.errstate(over="ignore"):
            cast = values.astype(spec.np_dtype)
        if (
            spec.np_dtype.kind == "f"
            and np.isinf(cast).any()
            and not np.array_equal(np.isinf(cast), np.isinf(values))
        ):
            raise ConfigError(f"sequence {id!r}: {spec.name} has values too large for {spec.dtype}")
        if spec.np_dtype.kind in "iu" and not np.array_equal(cast, values):
            raise ConfigError(f"sequence {id!r}: {spec.name} has values that do not fit {spec.dtype}")
        if spec.np_dtype.kind == "f" and values.dtype.kind in "iu" and not _exact(values, cast):
            raise ConfigError(
                f"sequence {id!r}: {spec.name} has whole numbers that {spec.dtype} would round; give the "
                "field a wider dtype or an integer one, or give floats, which are rounded"
            )
        values = cast
    if spec.categories is not None and values.size:
        least, most = int(values.min()), int(values.max())
        if least < 0 or most >= len(spec.categories):
            raise ConfigError(
                f"sequence {id!r}: {spec.name} has the code {least if least < 0 else most}, "
                f"there are {len(spec.categories)} categories"
            )
    return values


def _exact(whole: NDArray[Any], floats: NDArray[Any]) -> bool:
    """Whether floats are the very integers that they were made of."""
    limits = np.iinfo(whole.dtype)
    wide = floats.astype(np.float64, copy=False)
    if not (wide < float(limits.max) + (limits.bits < 54)).all():  # rounded up to what the dtype cannot hold
        return False
    return bool((wide.astype(whole.dtype) == whole).all())


def as_array(values: Any) -> Any:
    """Return an array; one of objects where numbers and None stand side by side."""
    if isinstance(values, np.ndarray):
        return values
    dtype = getattr(values, "dtype", None)
    if dtype is not None and not isinstance(dtype, np.dtype):  # an extension of pandas
        return np.asarray(values, dtype="datetime64[ns]" if hasattr(dtype, "tz") else object)
    try:
        return np.asarray(values)
    except ValueError as err:
        raise ConfigError(f"{values!r:.60} is no array: {err}") from None


def _without_none(values: Any) -> tuple[Any, NDArray[np.bool_] | None]:
    """Return values, and where they were None (or pandas' NA) if they were anywhere."""
    if (
        getattr(values, "dtype", None) is None
        or values.dtype != object
        or isinstance(values, np.ma.MaskedArray)
    ):
        return values, None
    flat = np.asarray(values, dtype=object)
    none = np.array([v is None or type(v).__name__ == "NAType" for v in flat.reshape(-1)]).reshape(flat.shape)
    known = flat[~none].tolist()
    if any(isinstance(v, str) for v in known):
        return (flat, None) if not none.any() else (flat, none)
    plain = np.asarray(known)
    filled = np.zeros(flat.shape, dtype=plain.dtype if len(known) else np.int8)
    filled[~none] = plain
    return filled, none if none.any() else None


def _filled(spec: FieldSpec, values: np.ma.MaskedArray[Any, Any]) -> NDArray[Any]:
    """Return masked values with something that the field takes where they are masked."""
    lost = np.ma.getmaskarray(values)
    data = np.array(values.data, copy=True)
    if data.dtype.kind in "OUT" and spec.categories:
        data = data.astype(object)
        data[lost] = spec.categories[0]
    elif data.dtype.kind in "mM":
        data[lost] = np.array(0, dtype=data.dtype) if spec.units is None else _origin(spec, data.dtype)
    else:
        data[lost] = 0
    return data


def _origin(spec: FieldSpec, dtype: np.dtype[Any]) -> Any:
    """Return a datetime that is a whole number in the units of a field."""
    found = parse_units(spec.units)
    return (
        np.datetime64((found[1] if found else 0), "ns").astype(dtype)
        if dtype.kind == "M"
        else np.array(0, dtype)
    )


def _instants(id: str, spec: FieldSpec, values: NDArray[Any]) -> NDArray[np.int64]:  # noqa: A002
    """Return datetimes and timedeltas as whole numbers in the units of their field."""
    step, count = np.datetime_data(values.dtype)
    nanoseconds = {"D": 86400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9}
    nanoseconds |= {"ms": 10**6, "us": 10**3, "ns": 1}
    own = nanoseconds.get(step, 0) * count
    found = (
        parse_units(spec.units) if values.dtype.kind == "M" else parse_units(f"{spec.units} since 1970-01-01")
    )
    if found is None or not own:
        example = "milliseconds since 1970-01-01" if values.dtype.kind == "M" else "ms"
        raise ConfigError(
            f"sequence {id!r}: {spec.name} is given {values.dtype}, but its units are {spec.units!r}; name "
            f"units such as {example!r}, or give whole numbers"
        )
    unit, origin = found
    whole = values.astype(np.int64)
    if whole.size:
        ends = [(int(v) * own - origin) // unit for v in (whole.min(), whole.max())]
        if not all(-(2**63) <= v < 2**63 for v in ends):
            raise ConfigError(f"sequence {id!r}: {spec.name} has instants too far away for {spec.units!r}")
    if own % unit == 0 and origin % unit == 0:
        return whole * (own // unit) - origin // unit
    if unit % own == 0 and origin % own == 0:
        shifted = whole - origin // own
        if not (shifted % (unit // own)).any():
            return shifted // (unit // own)
    raise ConfigError(
        f"sequence {id!r}: {spec.name} has instants that are no whole number of {spec.units!r}; use finer "
        "units"
    )

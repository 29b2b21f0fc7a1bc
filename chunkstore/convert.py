"""Any xarray dataset as a store: what each variable becomes, and the writing, block by block.

Numbers are stored as the dataset's own files store them where xarray says how: integers with a scale
factor stay integers, instants keep their unit. Whatever would not come back as it was is refused.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.clock import parse_units
from chunkstore.errors import ConfigError
from chunkstore.layout import RESERVED, FieldSpec, parse_bytes
from chunkstore.numbers import whole_number
from chunkstore.origins import reads_from
from chunkstore.places import redact_url
from chunkstore.store import open_store
from chunkstore.writer import StoreWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import xarray as xr
    from numpy.typing import NDArray

    from chunkstore.store import ChunkStore

__all__ = ["from_xarray"]

logger = logging.getLogger(__name__)

#: Attributes that a field of a store gets anew, or that readers would apply to its values.
_OWN: Final = frozenset(
    {"_FillValue", "missing_value", "add_offset", "scale_factor", "_Unsigned", "_ARRAY_DIMENSIONS"}
    | {"valid_min", "valid_max", "valid_range", "dtype", "ancillary_variables", "categories", "coordinates"}
    | {"units", "long_name"}
)
#: Attributes that say how stored numbers become others, on datasets that are not decoded yet.
_RAW: Final = frozenset({"_FillValue", "missing_value", "add_offset", "scale_factor", "_Unsigned"})
#: datetime64 unit -> its name in CF, nanoseconds
_STEPS: Final = {
    "s": ("seconds", 10**9),
    "ms": ("milliseconds", 10**6),
    "us": ("microseconds", 10**3),
    "ns": ("nanoseconds", 1),
}


@dataclass(frozen=True)
class _Source:
    """One variable along ``obs``, and how its values are stored."""

    variable: xr.Variable
    spec: FieldSpec
    per_sequence: bool
    """Whether it has its own values for each sequence of a rectangular dataset."""
    mask: xr.Variable | None = None
    packed: bool = False
    """Whether floats go back to the integers that their file holds."""
    step: tuple[int, int, int] | None = None
    """For instants: nanoseconds in a unit of the values, in a unit of the field, of the field's origin."""

    def block(self, sequence: int, low: int, high: int) -> dict[str, Any]:
        """Return obs [low, high) as :meth:`StoreWriter.extend` takes them."""
        index = (sequence, slice(low, high)) if self.per_sequence else (slice(low, high),)
        values: NDArray[Any] = np.asarray(self.variable[index].values)
        name = self.spec.name
        if values.dtype.kind in "mM":
            known = ~np.isnat(values)
            whole = np.where(known, values.astype(np.int64), 0)
            if self.step is not None:
                whole = np.where(known, _rescaled(whole, *self.step), 0)
            return {name: whole, f"{name}_valid": known} if self.spec.nullable else {name: whole}
        valid = None if self.mask is None else np.asarray(self.mask[index].values, dtype=bool)
        if self.packed:
            return self._pack(values, valid)
        if valid is None:
            return {name: values}
        if self.spec.nullable:
            return {name: values, f"{name}_valid": valid}
        lost = ~valid if values.ndim == 1 else ~valid[:, None]
        return {name: np.where(lost, np.array(np.nan, values.dtype), values)}

    def _pack(self, values: NDArray[Any], valid: NDArray[np.bool_] | None) -> dict[str, Any]:
        """Return floats as the integers that, times the scale factor, are these floats."""
        name, factor = self.spec.name, self.spec.scale_factor or 1.0
        lost = np.isnan(values) if valid is None else np.isnan(values) | ~valid
        if lost.any() and not self.spec.nullable:
            raise ConfigError(f"{name!r} has NaN, but its encoding names no _FillValue; {_ADVICE}")
        exact = np.rint(np.where(lost, 0, values).astype(np.float64) / factor)
        limits = np.iinfo(self.spec.np_dtype)
        with np.errstate(invalid="ignore"):  # of infinities
            near = np.abs(exact * factor - values) <= 4 * np.finfo(values.dtype).eps * np.abs(values)
        # as a float the greatest of 64 bits is one too many
        fits = lost | (near & (exact >= limits.min) & (exact < float(limits.max) + 1))
        if not fits.all():
            at = int(np.flatnonzero(~fits.reshape(-1))[0])
            raise ConfigError(
                f"{name!r} holds {values.reshape(-1)[at]!r}, which is no {self.spec.dtype} times its "
                f"scale_factor {factor!r}; {_ADVICE}"
            )
        whole = exact.astype(self.spec.np_dtype)
        if not self.spec.nullable:
            return {name: whole}
        whole[lost] = 0
        return {name: whole, f"{name}_valid": ~lost}


_ADVICE: Final = "use dataset.drop_encoding() to store the floats"


def _rescaled(values: NDArray[np.int64], own: int, unit: int, origin: int) -> NDArray[np.int64]:
    """Return instants, counted since 1970 in steps of ``own`` nanoseconds, in a unit with an origin."""
    if own % unit == 0:
        return values * (own // unit) - origin // unit
    return (values - origin // own) // (unit // own)


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
    ``sample_dimension`` (as our own stores have, whose gaps, masks and labels are kept). With
    ``sequence``, each index along that dimension is a sequence of the length of ``obs``. Else the dataset
    is one sequence, and its scalars become columns.

    Integers that xarray has decoded to floats (``scale_factor``, ``_FillValue`` in the encoding) are
    stored as those integers again, with the scale factor and a mask; where there is an ``add_offset``, or
    vectors with a ``_FillValue``, they are stored as floats. Instants keep the unit of the encoding where it
    fits them.
    Variables that are neither along ``obs`` nor along ``sequence`` are left out, and logged.

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
        Name of the sequence where there is only one, and no scalar ``id``.
    block : int or str
        Obs, or bytes, read at once.
    **options
        As of :class:`chunkstore.StoreWriter`.

    Returns
    -------
    ChunkStore

    Raises
    ------
    ConfigError
        If a variable cannot be a field, or holds what its encoding cannot; or if ``overwrite`` would remove
        a store that the dataset has still to read. Nothing is touched then.

    Examples
    --------
    >>> import xarray as xr
    >>> ds = xr.Dataset({"t2m": ("time", np.arange(4.0)), "wind": (("time", "uv"), np.ones((4, 2)))})
    >>> store = from_xarray(ds, "memory://doc-xarray", obs="time", overwrite=True)
    >>> store.read("wind", 0, 2)
    array([[1., 1.], [1., 1.]])
    """
    if options.get("overwrite") and reads_from(dataset, url, options.get("storage_options")):
        raise ConfigError(
            f"the dataset has still to read what lies at {redact_url(os.fspath(url))}, which overwrite would "
            "remove; write to another place, or load the dataset first"
        )
    if any(_RAW & set(v.attrs) for v in dataset.variables.values()):
        import xarray

        dataset = xarray.decode_cf(dataset, decode_times=False, decode_coords=False)
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
    sources = list(_sources(dataset, obs, sequence, ragged=ragged))
    if not sources:
        raise ConfigError(f"the dataset has no variable along {obs!r}")
    width = max(s.spec.bytes_per_obs for s in sources)
    step = max(1, parse_bytes(block) // width) if isinstance(block, str) else whole_number("block", block, 1)
    n = dataset.sizes[sequence] if sequence is not None else 1
    lengths = (
        counts.values.astype(np.int64) if ragged and counts is not None else np.full(n, dataset.sizes[obs])
    )
    offsets = np.concatenate([[0], np.cumsum(lengths)]) if ragged else np.zeros(n + 1, np.int64)
    if ragged and len(lengths) and int(lengths.min()) < 0:
        at = int(np.argmin(lengths))
        raise ConfigError(f"the length of sequence {at} is {int(lengths[at])}; it must be 0 or more")
    if ragged and int(offsets[-1]) != dataset.sizes[obs]:
        raise ConfigError(f"the lengths sum to {int(offsets[-1])}, {obs!r} has {dataset.sizes[obs]}")
    gaps = _gaps(dataset) if ragged else np.empty((0, 2), np.int64)
    table = _Table.of(dataset, sequence, n, id)
    options["attrs"] = {**_root_attributes(dataset), **dict(options.get("attrs") or {})}
    with StoreWriter(url, fields=[s.spec for s in sources], **options) as out:
        for name, about in table.about.items():
            out.describe_column(name, **about)
        for i in range(n):
            out.begin(
                table.ids[i],
                labels={k: v[i] for k, v in table.labels.items()},
                columns={k: v[i] for k, v in table.columns.items()},
            )
            base, length = int(offsets[i]), int(lengths[i])
            first, last = (
                np.searchsorted(gaps[:, 1], base, "right"),
                np.searchsorted(gaps[:, 0], base + length),
            )
            mine = np.clip(gaps[first:last] - base, 0, length)
            out.mark_gaps([(a, b) for a, b in mine.tolist() if a < b], length)
            for at in range(0, length, step):
                low, high = base + at, base + min(length, at + step)
                data: dict[str, Any] = {}
                for source in sources:
                    data |= source.block(i, low, high)
                out.extend(data)
    return open_store(url, storage_options=options.get("storage_options"))


def _sources(dataset: xr.Dataset, obs: str, sequence: str | None, *, ragged: bool) -> Iterator[_Source]:
    """Yield the variables along ``obs``, each with the field that it becomes."""
    masks = {
        str(v.attrs["ancillary_variables"]): str(k)
        for k, v in dataset.variables.items()
        if v.attrs.get("ancillary_variables") == f"{k}_valid" and f"{k}_valid" in dataset.variables
    }
    left_out = []
    for key, variable in dataset.variables.items():
        name = str(key)
        if obs not in variable.dims:
            known = variable.dims == (() if sequence is None else (sequence,))
            if not known and name not in ("gap_start", "gap_stop"):
                left_out.append(name)
            continue
        if name in masks:
            continue
        lead: tuple[str, ...] = (obs,) if ragged or sequence not in variable.dims else (str(sequence), obs)
        ordered = variable.transpose(*lead, ...)
        inner = ordered.dims[len(lead) :]
        if len(inner) > 1:
            raise ConfigError(
                f"{name!r} has dimensions {variable.dims}; an obs holds a scalar or one vector"
                + ("" if sequence else ", unless sequence= names the dimension along which sequences stand")
            )
        target = name
        if name == obs:  # the coordinate of the dimension itself
            target = "time" if name == "time" or "time" not in dataset.variables else f"{name}_coordinate"
        mask = dataset.variables[f"{name}_valid"] if f"{name}_valid" in masks else None
        items = ordered.sizes[inner[0]] if inner else 0
        if inner and not items:
            raise ConfigError(
                f"{name!r} has no items along {inner[0]!r}: an obs holds a scalar or a vector of 1 item or "
                "more; drop the variable"
            )
        yield _source(target, ordered, items, mask, per_sequence=len(lead) == 2)
    if left_out:
        logger.warning(
            "left out, for they are along neither obs nor sequence: %s; to keep one, "
            "give it the dimension of obs or rename its own",
            ", ".join(left_out),
        )


def _source(
    name: str, variable: xr.Variable, items: int, mask: xr.Variable | None, *, per_sequence: bool
) -> _Source:
    attrs, encoding, dtype = variable.attrs, variable.encoding, variable.dtype
    about: dict[str, Any] = {
        "items": items,
        "units": None if attrs.get("units") is None else str(attrs["units"]),
        "long_name": None if attrs.get("long_name") is None else str(attrs["long_name"]),
        "attrs": {k: v for k, v in _json(attrs).items() if k not in _OWN},
    }
    if dtype.kind in "mM":
        return _instants(name, variable, about, per_sequence)
    if dtype.kind not in "biuf":
        raise ConfigError(f"{name!r} has dtype {dtype}; a field holds numbers, bool or datetimes")
    stored = np.dtype(encoding.get("dtype", dtype))
    fills = "_FillValue" in encoding or "missing_value" in encoding
    scale = encoding.get("scale_factor")
    packed = dtype.kind == "f" and stored.kind in "iu" and (scale is not None or fills)
    if packed and not float(encoding.get("add_offset", 0)):
        if str(encoding.get("_Unsigned", "false")).lower() == "true":
            stored = np.dtype(f"u{stored.itemsize}")
        if not items or not (fills or mask is not None):
            about["scale_factor"] = None if scale is None else float(np.asarray(scale).item())
            spec = FieldSpec(name, stored.name, nullable=fills or mask is not None, **about)
            return _Source(variable, spec, per_sequence, mask, packed=True)
        logger.info("%s is stored as floats: a mask has no items, its values have %d", name, items)
    words = _words(attrs) if dtype.kind in "iu" else None
    if words is not None:
        about["categories"] = words
        about["attrs"] = {
            k: v for k, v in about["attrs"].items() if k not in ("flag_values", "flag_meanings")
        }
    spec = FieldSpec(name, dtype.name, nullable=mask is not None and dtype.kind != "f", **about)
    return _Source(variable, spec, per_sequence, mask)


def _instants(name: str, variable: xr.Variable, about: dict[str, Any], per_sequence: bool) -> _Source:
    """Return the field of datetimes or timedeltas: in the unit of their encoding where all fit it."""
    word, own = _STEPS[np.datetime_data(variable.dtype)[0]]
    units, step = f"{word} since 1970-01-01", None
    lost = False
    wanted = str(variable.encoding.get("units", ""))
    found = parse_units(wanted) if variable.dtype.kind == "M" else None
    fits = found is not None and np.dtype(variable.encoding.get("dtype", np.int64)).kind in "iu"
    rows = int(np.prod(variable.shape[:1]))
    size = max(1, (1 << 20) // max(1, int(np.prod(variable.shape[1:]))))
    for low in range(0, rows, size):
        values = np.asarray(variable[low : low + size].values)
        known = ~np.isnat(values)
        lost |= not known.all()
        whole = values[known].astype(np.int64)
        if fits and found is not None and len(whole):
            unit, origin = found
            grid, top = max(own, unit), 2**62 // max(1, own // unit)
            fits = origin % min(own, unit) == 0 and grid % min(own, unit) == 0 and abs(whole).max() < top
            if fits and unit > own:
                fits = origin % own == 0 and not ((whole - origin // own) % (unit // own)).any()
    if fits and found is not None:
        units, step = wanted, (own, *found)
    about["units"] = units if variable.dtype.kind == "M" else word
    return _Source(variable, FieldSpec(name, "int64", nullable=lost, **about), per_sequence, step=step)


def _words(attrs: Any) -> tuple[str, ...] | None:
    """Return the words that integer codes from 0 on stand for, as our stores or CF say them, or None."""
    words = attrs.get("categories")
    if isinstance(words, (list, tuple)) and all(isinstance(w, str) for w in words):
        return tuple(words)
    meanings = attrs.get("flag_meanings")
    if not isinstance(meanings, str) or "flag_values" not in attrs:
        return None
    values = np.atleast_1d(attrs["flag_values"]).tolist()
    found = tuple(meanings.split())
    return found if values == list(range(len(found))) and len(set(found)) == len(found) else None


def _json(attrs: Any) -> dict[str, Any]:
    """Return the attributes that are JSON values, numpy's scalars and arrays as Python's."""
    found = {}
    for key, value in attrs.items():
        plain = value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
        try:
            json.dumps(plain, allow_nan=False)
        except (TypeError, ValueError):
            continue
        found[str(key)] = plain
    return found


def _root_attributes(dataset: xr.Dataset) -> dict[str, Any]:
    """Return the attributes of a dataset that its store keeps."""
    return {
        k: v for k, v in _json(dataset.attrs).items() if k not in ("chunkstore", "coordinates", "Conventions")
    }


def _gaps(dataset: xr.Dataset) -> NDArray[np.int64]:
    """Return the gaps of a dataset that one of our stores has given."""
    found = [dataset.variables.get(n) for n in ("gap_start", "gap_stop")]
    if any(v is None or v.ndim != 1 or v.dtype.kind not in "iu" for v in found):
        return np.empty((0, 2), np.int64)
    return np.stack([v.values.astype(np.int64) for v in found if v is not None], axis=1)


@dataclass(frozen=True)
class _Table:
    """What a dataset says of each sequence."""

    ids: list[str]
    labels: dict[str, list[Any]]
    columns: dict[str, list[Any]]
    about: dict[str, dict[str, str]]
    """Column -> its units and long_name."""

    @classmethod
    def of(cls, dataset: xr.Dataset, sequence: str | None, n: int, single: str) -> _Table:
        found = cls([single] if sequence is None else [str(i) for i in range(n)], {}, {}, {})
        wanted = () if sequence is None else (sequence,)
        along = {str(k): v for k, v in dataset.variables.items() if v.dims == wanted}
        # of several that could name the sequences the first does, the others stay columns
        naming = [n for n, v in along.items() if v.attrs.get("cf_role") == "timeseries_id"]
        naming += [n for n in ("id", sequence) if n in along]
        naming += [n for n, v in along.items() if v.attrs.get("cf_role")]
        for name, variable in along.items():
            if "sample_dimension" in variable.attrs:
                continue
            values: list[Any] = np.atleast_1d(variable.values).tolist()
            is_id = name == next(iter(naming), None)
            if is_id:
                found.ids[:] = [_text(v) or "" for v in values]
            elif name in RESERVED:
                logger.warning(
                    "left out, for a store has an array of that name itself: %s; rename it to keep it", name
                )
                continue
            elif _is_code(dataset, name):
                continue
            elif variable.dtype.kind in "OUST":
                code = dataset.variables[f"{name}_code"] if _is_code(dataset, f"{name}_code") else None
                codes = [0] * n if code is None else np.atleast_1d(code.values).tolist()
                found.labels[name] = [
                    _text(v) if c != -1 else None for v, c in zip(values, codes, strict=True)
                ]
            elif variable.dtype.kind == "M":
                texts = np.datetime_as_string(np.atleast_1d(variable.values)).tolist()
                found.columns[name] = [None if t == "NaT" else f"{t}Z" for t in texts]
            elif variable.dtype.kind in "biuf":
                found.columns[name] = np.atleast_1d(variable.values).tolist()
            else:
                logger.warning(
                    "left out, for a column cannot hold its dtype %s: %s; "
                    "convert it to numbers or text to keep it",
                    variable.dtype,
                    name,
                )
                continue
            about = {k: str(variable.attrs[k]) for k in ("units", "long_name") if k in variable.attrs}
            if about and not is_id:
                found.about[name] = about
        return found


def _is_code(dataset: xr.Dataset, name: str) -> bool:
    """Whether a variable is what a store of ours keeps beside a label: the name alone may be anybody's."""
    found, stem = dataset.variables.get(name), name.removesuffix("_code")
    return (
        found is not None
        and stem != name
        and stem in dataset.variables
        and {"categories", "missing"} <= set(found.attrs)
    )


def _text(value: Any) -> str | None:
    """Return text of a value along ``sequence``; None and NaN are no text."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)

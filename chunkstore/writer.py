"""Append sequences from arrays in bounded memory: any data becomes a store.

One buffer of one shard a field is all that is held. For jobs with many workers see
``chunkstore.skeleton``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.errors import ConfigError, StoreExistsError
from chunkstore.layout import FieldSpec, Layout, check_name, parse_bytes
from chunkstore.metadata import parse_root
from chunkstore.places import open_place
from chunkstore.sequences import ColumnData
from chunkstore.skeleton import create_store, finish_store
from chunkstore.statistics import FieldStatistics
from chunkstore.values import as_array, stored_arrays

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

__all__ = ["StoreWriter"]

#: Obs that are converted at once.
_BLOCK: Final = 1 << 18


def as_fields(fields: Mapping[str, Any] | Iterable[FieldSpec]) -> list[FieldSpec]:
    """Return fields given as FieldSpec, or as a mapping of names to dtypes or FieldSpec.

    Examples
    --------
    >>> [(f.name, f.dtype, f.items) for f in as_fields({"x": "f4", "acc": "3f4"})]
    [('x', 'float32', 0), ('acc', 'float32', 3)]
    """
    if not isinstance(fields, Mapping):
        found = list(fields)
        if not all(isinstance(f, FieldSpec) for f in found):
            raise ConfigError("fields are a list of FieldSpec, or a mapping of names to dtypes")
        return found
    made = []
    for name, value in fields.items():
        if isinstance(value, FieldSpec):
            if value.name != name:
                raise ConfigError(f"field {name!r} is given a FieldSpec of {value.name!r}")
            made.append(value)
            continue
        try:
            dtype = np.dtype(value)
        except TypeError as err:
            raise ConfigError(f"field {name!r}: {value!r} is not a dtype: {err}") from None
        base, shape = dtype.subdtype or (dtype, ())
        if len(shape) > 1 or 0 in shape:
            raise ConfigError(
                f"field {name!r}: an obs holds a scalar or a vector of 1 item or more, not shape {shape}"
            )
        made.append(FieldSpec(name, base.name, items=shape[0] if shape else 0))
    return made


class _Buffer:
    """Values of one array that wait for their shard to be full."""

    def __init__(self, length: int, items: int, dtype: np.dtype[Any]) -> None:
        self.length = length
        shape = (items,) if items else ()
        self.values = np.empty((min(length, 4096), *shape), dtype=dtype)

    def put(self, at: int, values: NDArray[Any]) -> None:
        need = at + len(values)
        if need > len(self.values):
            grown = min(self.length, max(need, 2 * len(self.values)))
            bigger = np.empty((grown, *self.values.shape[1:]), dtype=self.values.dtype)
            bigger[:at] = self.values[:at]
            self.values = bigger
        self.values[at:need] = values


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What is known of the numbers of a column so far."""

    low: int = 0
    high: int = 0
    rounded: bool = False
    """Whether the column will be float64: some are floats, or not known."""
    text: bool = False

    @property
    def exact(self) -> bool:
        """Whether a dtype holds all of them as they are."""
        if self.text:
            return True
        if self.rounded:
            return self.low >= -(2**53) and self.high <= 2**53
        return (self.low >= -(2**63) and self.high < 2**63) or (self.low >= 0 and self.high < 2**64)


def _check_text(value: str, what: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"{what} is not text that UTF-8 can hold") from None


def _check_cell(id: str, name: str, value: Any) -> None:  # noqa: A002
    """Refuse a value of a column that no array can hold, while the sequence can still be left out."""
    if isinstance(value, str):
        _check_text(value, f"sequence {id!r}: {name} = {value!r:.60}")
    elif value is not None and (
        isinstance(value, np.longdouble)
        or not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating))
    ):
        raise ConfigError(
            f"sequence {id!r}: {name} is {value!r:.60}; give text or a number (an instant as ISO text, or as "
            "seconds since 1970)"
        )


def _common_dtype(values: Sequence[Any], *, whole: bool) -> str:
    """Return the dtype that holds the numbers of a column; a float where some are not known."""
    dtype = np.asarray(values).dtype
    if whole and dtype.kind not in "iu" and all(isinstance(v, (int, np.integer)) for v in values):
        return "bool" if dtype.kind == "b" else "uint64"  # numpy rounds what lies on both sides of 2**63
    return "float64" if dtype.kind not in "biuf" or not (whole or dtype.kind == "f") else dtype.name


class StoreWriter:
    """Append sequences to a new store; a context manager.

    An exception inside leaves a store that is incomplete, which readers refuse.

    Parameters
    ----------
    url : str or path
    fields : mapping of str to dtype, or sequence of FieldSpec
        ``{"x": "f4", "acc": "3f4"}`` gives a scalar and a vector of 3.
    codec, chunk, shard, overwrite, attrs, checksums, storage_options
        As in :func:`chunkstore.create_store`.
    memory_limit : int or str
        What the buffers, and encoding them, may take: ``shard`` is chosen to fit. A ``shard`` that is given
        is taken as it is, and the buffers then take one of it a field.

    Examples
    --------
    >>> import chunkstore
    >>> with StoreWriter("memory://doc-writer", fields={"x": "i2"}, overwrite=True) as out:
    ...     out.write("a", {"x": [1, 2, 3]}, labels={"kind": "dog"}, gaps=[(1, 2)])
    ...     out.write("b", {"x": []}, labels={"kind": "cat"})
    >>> store = chunkstore.open_store("memory://doc-writer")
    >>> store.n_obs, store.gaps, store.statistics["x"].mean
    (3, array([[1, 2]]), 2.0)
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        fields: Mapping[str, Any] | Iterable[FieldSpec],
        *,
        codec: str = "default",
        chunk: int | str | None = None,
        shard: int | str | None = None,
        overwrite: bool = False,
        attrs: Mapping[str, Any] | None = None,
        checksums: bool = True,
        memory_limit: int | str = "512MiB",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        specs = as_fields(fields)
        if not specs:
            raise ConfigError("a store needs at least one field")
        layout = Layout.plan(0, specs, chunk, shard)
        width = sum(f.bytes_per_obs + f.nullable for f in specs)
        limit = parse_bytes(memory_limit) // 2  # the other half is for encoding
        if shard is None and layout.shard * width > limit:
            layout = Layout(0, layout.chunk, max(1, limit // (layout.chunk * width)) * layout.chunk)
        self._skeleton = create_store(
            url,
            fields=specs,
            layout=layout,
            codec=codec,
            attrs=attrs,
            overwrite=overwrite,
            checksums=checksums,
            storage_options=storage_options,
        )
        self._token = self._skeleton.attrs["chunkstore"]["token"]
        self._url, self._options = url, storage_options
        self.layout = layout
        self.fields: Mapping[str, FieldSpec] = {f.name: f for f in specs}
        self._masks = dict(self._skeleton.masks)
        self._buffers = {
            a.name: _Buffer(layout.shard, a.items, a.dtype) for a in self._skeleton.arrays.values()
        }
        self._statistics = {f.name: FieldStatistics.empty(f.items) for f in specs}
        self._shard = 0
        self._filled = 0
        self._rowsize: list[int] = []
        self._ids: list[str] = []
        self._seen: set[str] = set()
        self._gaps: list[list[int]] = []
        self._labels: dict[str, dict[int, Any]] = {}
        self._columns: dict[str, dict[int, Any]] = {}
        self._numbers: dict[str, _Numbers] = {}
        self._about: dict[str, dict[str, Any]] = {}
        self._open = True
        self._broken = False

    @property
    def n_obs(self) -> int:
        """Obs written so far."""
        return self._shard * self.layout.shard + self._filled

    def write(
        self,
        id: str,  # noqa: A002 - the format's own word
        data: Mapping[str, Any],
        *,
        labels: Mapping[str, str | None] | None = None,
        columns: Mapping[str, Any] | None = None,
        gaps: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Append one sequence.

        Parameters
        ----------
        id : str
            Its name, which no other sequence has.
        data : mapping of str to array
            [n] or [n, items] for every field, all of one length. Nullable fields take masked
            arrays, or a mask ``<field>_valid`` [n] beside them; fields with categories take words.
        labels : mapping of str to str, optional
            Kept with a dictionary of codes.
        columns : mapping of str to str or number, optional
            Kept as they are.
        gaps : sequence of (start, stop)
            Half-open ranges of this sequence whose data is lost.

        Raises
        ------
        ConfigError
            If something does not fit. Nothing of the sequence is written then, and the writer may go on; only
            where a shard was already full before it was found is the store beyond repair.
        """
        sized = {n: v if hasattr(v, "shape") else as_array(v) for n, v in data.items()}
        lengths = {n: v.shape[0] if v.shape else -1 for n, v in sized.items()}
        if len(set(lengths.values())) > 1 or -1 in lengths.values():
            raise ConfigError(f"sequence {id!r}: its fields differ in length: {lengths}")
        length = next(iter(lengths.values()), 0)
        before, shard, filled, numbers = self.n_obs, self._shard, self._filled, dict(self._numbers)
        self.begin(id, labels=labels, columns=columns)
        try:
            self.mark_gaps(gaps, length)
            for at in range(0, max(1, length), _BLOCK):
                self.extend({n: v[at : at + _BLOCK] for n, v in sized.items()})
        except BaseException:
            if self._shard == shard:
                self._filled, self._broken, self._numbers = filled, False, numbers
                self._withdraw(before)
            else:
                self._broken = True
            raise

    def begin(
        self,
        id: str,  # noqa: A002 - the format's own word
        *,
        labels: Mapping[str, str | None] | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin a sequence that :meth:`extend` fills piece by piece, for what does not fit in memory.

        Examples
        --------
        >>> with StoreWriter("memory://doc-extend", fields={"x": "i2"}, overwrite=True) as out:
        ...     out.begin("a")
        ...     for piece in ([1, 2], [3]):
        ...         out.extend({"x": piece})
        ...     out.n_obs
        3
        """
        if not self._open or self._broken:
            raise ConfigError(
                f"the writer of {self._skeleton.url} is closed, or has failed within a sequence"
            )
        if not isinstance(id, str) or id in self._seen:
            raise ConfigError(f"{id!r} cannot name a sequence: ids are text, and each comes once")
        self._end()
        _check_text(id, f"the id {id!r:.60}")
        pairs = ((self._labels, self._columns, labels or {}), (self._columns, self._labels, columns or {}))
        both = {*(labels or {})} & {*(columns or {})}
        for kept, other, given in pairs:
            for name, value in given.items():
                if name in self._buffers or name in other or name in both:
                    raise ConfigError(f"sequence {id!r}: the name {name!r} is taken")
                if name not in kept:
                    self._check_column(id, name, label=kept is self._labels, given=labels or {})
                _check_cell(id, name, value)
        numbers = self._check_numbers(id, columns or {})
        self._broken = True  # an interrupt between these leaves no writer that goes on
        self._numbers.update(numbers)
        for kept, _, given in pairs:
            for name, value in given.items():
                kept.setdefault(name, {})[len(self._ids)] = value
        self._ids.append(id)
        self._seen.add(id)
        self._rowsize.append(0)
        self._broken = False

    def describe_column(self, name: str, *, units: str | None = None, long_name: str | None = None) -> None:
        """Say what a column or label is, for its attributes; before or after its values are given.

        Examples
        --------
        >>> with StoreWriter("memory://doc-about", fields={"x": "i2"}, overwrite=True) as out:
        ...     out.describe_column("height", units="m")
        ...     out.write("a", {"x": [1]}, columns={"height": 1.8})
        """
        self._about[name] = {"units": units, "long_name": long_name}

    def _check_column(self, id: str, name: str, *, label: bool, given: Mapping[str, Any]) -> None:  # noqa: A002
        """Refuse the name of a new column while it can still be changed, not when all is written."""
        check_name(name, f"a column of sequence {id!r}")
        code, stem = f"{name}_code", name.removesuffix("_code")
        if label:
            check_name(code, f"the codes of label {name!r:.40}")
        arrays = (*self._buffers, *self._labels, *self._columns)
        if (label and code in arrays) or (stem != name and (stem in self._labels or stem in given)):
            raise ConfigError(
                f"sequence {id!r}: {code if label and code in arrays else name!r} cannot stand beside the "
                "label whose codes have that name; rename one"
            )

    def _check_numbers(self, id: str, given: Mapping[str, Any]) -> dict[str, _Numbers]:  # noqa: A002
        """Return what is known of the numbers of each column, or refuse those that would be rounded."""
        found: dict[str, _Numbers] = {}
        for name in {*self._numbers, *given}:
            old = self._numbers.get(name, _Numbers(rounded=bool(self._ids)))
            value = given.get(name)
            if isinstance(value, str):
                new = replace(old, text=True)
            elif value is None or isinstance(value, (float, np.floating)):
                new = replace(old, rounded=True)
            else:
                new = replace(old, low=min(old.low, int(value)), high=max(old.high, int(value)))
            if not new.exact:
                raise ConfigError(
                    f"sequence {id!r}: column {name!r} holds integers from {new.low} to {new.high}"
                    + (", and is not known or a float elsewhere" if new.rounded else "")
                    + "; no dtype holds all of them exactly, give them as text"
                )
            found[name] = new
        return found

    def _end(self) -> None:
        """Check, before the next begins, that the gaps of the last sequence lie within it."""
        if self._gaps and self._gaps[-1][1] > self.n_obs:
            low, high = (v - self.n_obs + self._rowsize[-1] for v in self._gaps[-1])
            raise ConfigError(
                f"sequence {self._ids[-1]!r}: the gap [{low}, {high}) is not inside its "
                f"{self._rowsize[-1]} obs"
            )

    def _withdraw(self, n_obs: int) -> None:
        """Forget the sequence that was begun at ``n_obs`` and of which nothing is written."""
        at = len(self._ids) - 1
        self._seen.discard(self._ids.pop())
        self._rowsize.pop()
        for kept in (*self._labels.values(), *self._columns.values()):
            kept.pop(at, None)
        self._gaps = [gap for gap in self._gaps if gap[0] < n_obs]
        for table in (self._labels, self._columns):
            for name in [n for n, values in table.items() if not values]:
                del table[name]

    def mark_gaps(self, gaps: Sequence[tuple[int, int]], length: int | None = None) -> None:
        """Mark half-open ranges of the sequence that was begun last as lost, before their shard is full."""
        if not self._ids or not self._open or self._broken:
            raise ConfigError("begin a sequence before marking its gaps")
        base = self.n_obs - self._rowsize[-1]
        last = max(0, self._gaps[-1][1] - base) if self._gaps else 0
        for low, high in sorted((int(a), int(b)) for a, b in gaps):
            if not last <= low < high or (length is not None and high > length):
                raise ConfigError(
                    f"sequence {self._ids[-1]!r}: the gap [{low}, {high}) overlaps another, "
                    f"or is not inside its {length} obs"
                )
            if base + low < self._shard * self.layout.shard:
                raise ConfigError(
                    f"sequence {self._ids[-1]!r}: obs [{low}, {high}) are written already, and counted in "
                    "the statistics; mark gaps before their obs"
                )
            self._gaps.append([base + low, base + high])
            last = high

    def extend(self, data: Mapping[str, Any]) -> None:
        """Append obs to the sequence that was begun last; arguments as in :meth:`write`."""
        if not self._ids or not self._open or self._broken:
            raise ConfigError("begin a sequence before extending it")
        arrays = stored_arrays(self._ids[-1], self.fields, self._masks, data)
        length = len(next(iter(arrays.values())))
        at = 0
        self._broken = True  # until all of it is in: a shard may fail to be written
        while at < length:
            step = min(length - at, self.layout.shard - self._filled)
            for name, values in arrays.items():
                self._buffers[name].put(self._filled, values[at : at + step])
            self._filled += step
            at += step
            if self._filled == self.layout.shard:
                self._flush()
        self._rowsize[-1] += length
        self._broken = False

    def _flush(self) -> None:
        """Write the buffers as one shard."""
        low, count = self._shard * self.layout.shard, self._filled
        keep = np.ones(count, dtype=bool)
        for start, stop in reversed(self._gaps):
            if stop <= low:
                break
            keep[max(0, start - low) : max(0, stop - low)] = False
        whole = bool(keep.all())
        self._check_mine()
        for name, buffer in self._buffers.items():
            self._skeleton._write(name, self._shard, buffer.values[:count], count)  # noqa: SLF001 - the length of obs is not known yet
        # once all is written, and all of them at once: a shard that failed is counted when it succeeds
        merged: dict[str, FieldStatistics] = {}
        for name in self.fields:
            mask = self._masks.get(name)
            values = self._buffers[name].values[:count]
            valid = self._buffers[mask].values[:count] if mask else None
            if not whole:
                values, valid = values[keep], None if valid is None else valid[keep]
            merged[name] = self._statistics[name].merge(FieldStatistics.from_values(values, valid))
        self._statistics, self._shard, self._filled = merged, self._shard + 1, 0

    def _check_mine(self) -> None:
        """Refuse to go on where another writer has begun the store anew, or has finished it."""
        found = parse_root(open_place(self._url, self._options))
        if found.status != "incomplete" or found.own.get("token") != self._token:
            raise StoreExistsError(
                f"another writer has replaced the store {self._skeleton.url} while this one was writing; "
                "give each its own output"
            )

    def close(self) -> None:
        """Write what waits and make the store complete. Called at the end of ``with``."""
        if not self._open:
            return
        self._open = False
        if self._broken:
            raise ConfigError(f"store {self._skeleton.url} stays incomplete: a sequence was written in part")
        self._end()
        total = self.n_obs
        if self._filled:
            self._flush()
        self._check_mine()
        finish_store(
            self._url,
            rowsize=np.asarray(self._rowsize, dtype=np.int64),
            ids=self._ids,
            columns=self._table(),
            gaps=np.asarray(self._gaps, dtype=np.int64).reshape(-1, 2),
            statistics=self._statistics,
            storage_options=self._options,
            n_obs=total,
        )

    def _table(self) -> dict[str, ColumnData]:
        n = len(self._ids)
        table: dict[str, ColumnData] = {}
        for name, kept in self._labels.items():
            table[name] = ColumnData(
                name, [kept.get(i) for i in range(n)], "string", categorical=True, **self._about.get(name, {})
            )
        for name, kept in self._columns.items():
            values = [kept.get(i) for i in range(n)]
            known = [v for v in values if v is not None]
            if any(isinstance(v, str) for v in known) or not known:
                dtype = "string"
            else:
                dtype = _common_dtype(known, whole=len(known) == n)
            table[name] = ColumnData(name, values, dtype, **self._about.get(name, {}))
        return table

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        self._open = False

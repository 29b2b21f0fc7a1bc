"""Append sequences from arrays in bounded memory: any data becomes a store.

One buffer of one shard a field is all that is held. For jobs with many workers see
``chunkstore.skeleton``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.errors import ConfigError, UnknownNameError
from chunkstore.layout import FieldSpec, Layout, check_name, parse_bytes
from chunkstore.sequences import ColumnData
from chunkstore.skeleton import create_store, finish_store
from chunkstore.statistics import FieldStatistics

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence
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
    if not isinstance(fields, dict):
        found = [f for f in fields if isinstance(f, FieldSpec)]
        if len(found) != len(list(fields)):
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
        if len(shape) > 1:
            raise ConfigError(f"field {name!r}: an obs holds a scalar or a vector, not shape {shape}")
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
        What the buffers may take; where ``shard`` is not given, it is chosen to fit.

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
            If something does not fit; nothing of the sequence is written then.
        """
        sized = {n: v if hasattr(v, "shape") else np.asarray(v) for n, v in data.items()}
        lengths = {n: v.shape[0] if v.shape else -1 for n, v in sized.items()}
        if len(set(lengths.values())) > 1 or -1 in lengths.values():
            raise ConfigError(f"sequence {id!r}: its fields differ in length: {lengths}")
        length = next(iter(lengths.values()), 0)
        before = self.n_obs
        self.begin(id, labels=labels, columns=columns)
        try:
            self.mark_gaps(gaps, length)
            for at in range(0, max(1, length), _BLOCK):
                self.extend({n: v[at : at + _BLOCK] for n, v in sized.items()})
        except BaseException:
            if self.n_obs == before:
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
        pairs = ((self._labels, self._columns, labels or {}), (self._columns, self._labels, columns or {}))
        for _, other, given in pairs:
            for name, value in given.items():
                if name in self._buffers or name in other:
                    raise ConfigError(f"sequence {id!r}: the name {name!r} is taken")
                check_name(name, f"a column of sequence {id!r}")
                if value is not None and not isinstance(value, (str, bool, int, float, np.generic)):
                    raise ConfigError(f"sequence {id!r}: {name} is {value!r:.60}; give text or a number")
        for kept, _, given in pairs:
            for name, value in given.items():
                kept.setdefault(name, {})[len(self._ids)] = value
        self._ids.append(id)
        self._seen.add(id)
        self._rowsize.append(0)

    def _withdraw(self, n_obs: int) -> None:
        """Forget the sequence that was begun at ``n_obs`` and of which nothing is written."""
        at = len(self._ids) - 1
        self._seen.discard(self._ids.pop())
        self._rowsize.pop()
        for kept in (*self._labels.values(), *self._columns.values()):
            kept.pop(at, None)
        self._gaps = [gap for gap in self._gaps if gap[0] < n_obs]

    def mark_gaps(self, gaps: Sequence[tuple[int, int]], length: int | None = None) -> None:
        """Mark half-open ranges of the sequence that was begun last as lost, before their shard is full."""
        before = sum(1 for gap in self._gaps if gap[0] >= self.n_obs - self._rowsize[-1])
        base, last = self.n_obs - self._rowsize[-1], 0
        if before:
            last = self._gaps[-1][1] - base
        for low, high in sorted((int(a), int(b)) for a, b in gaps):
            if not last <= low < high or (length is not None and high > length):
                raise ConfigError(
                    f"sequence {self._ids[-1]!r}: the gap [{low}, {high}) overlaps another, "
                    f"or is not inside its {length} obs"
                )
            self._gaps.append([base + low, base + high])
            last = high

    def extend(self, data: Mapping[str, Any]) -> None:
        """Append obs to the sequence that was begun last; arguments as in :meth:`write`."""
        if not self._ids or not self._open or self._broken:
            raise ConfigError("begin a sequence before extending it")
        arrays = self._arrays(self._ids[-1], data)
        length = len(next(iter(arrays.values())))
        at = 0
        while at < length:
            step = min(length - at, self.layout.shard - self._filled)
            for name, values in arrays.items():
                self._buffers[name].put(self._filled, values[at : at + step])
            self._filled += step
            at += step
            if self._filled == self.layout.shard:
                self._flush()
        self._rowsize[-1] += length

    def _arrays(self, id: str, data: Mapping[str, Any]) -> dict[str, NDArray[Any]]:  # noqa: A002
        """Check the values of one sequence and return them in their stored dtypes, masks included."""
        missing = [n for n in self.fields if n not in data]
        unknown = [n for n in data if n not in self._buffers]
        if missing or unknown:
            raise UnknownNameError(
                f"sequence {id!r}: fields {missing or 'none'} are missing, {unknown or 'none'} are unknown; "
                f"the store has {', '.join(self.fields)}"
            )
        found: dict[str, NDArray[Any]] = {}
        for name, spec in self.fields.items():
            given = data[name]
            mask = self._masks.get(name)
            valid: Any = data.get(mask) if mask else None
            if isinstance(given, np.ma.MaskedArray):
                lost: Any = np.ma.getmaskarray(given)
                lost = lost.any(axis=1) if lost.ndim == 2 else lost
                if spec.np_dtype.kind == "f":
                    given = np.ma.filled(given.astype(spec.np_dtype), np.nan)
                elif mask is None and lost.any():
                    raise ConfigError(f"sequence {id!r}: {name!r} has masked values, but is not nullable")
                else:
                    valid, given = ~lost if valid is None else valid, np.ma.filled(given, 0)
            values = self._convert(id, spec, given)
            if mask is not None:
                ok: Any = np.ones(len(values), bool) if valid is None else np.asarray(valid, dtype=bool)
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

    def _convert(self, id: str, spec: FieldSpec, given: Any) -> NDArray[Any]:  # noqa: A002
        values = np.asarray(given)
        if spec.categories is not None and values.dtype.kind in "OUT":
            code = {word: i for i, word in enumerate(spec.categories)}
            try:
                values = np.array([code[str(v)] for v in values.tolist()], dtype=spec.np_dtype)
            except KeyError as err:
                raise ConfigError(f"sequence {id!r}: {spec.name} has no category {err}") from None
        if values.size == 0:
            values = np.zeros(spec.shape(0), spec.np_dtype)
        if values.dtype.kind in "mM":
            values = values.astype(np.int64)
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
            if spec.np_dtype.kind in "iu" and not np.array_equal(cast, values):
                raise ConfigError(f"sequence {id!r}: {spec.name} has values that do not fit {spec.dtype}")
            values = cast
        return values

    def _flush(self) -> None:
        """Write the buffers as one shard."""
        low, count = self._shard * self.layout.shard, self._filled
        keep = np.ones(count, dtype=bool)
        for start, stop in reversed(self._gaps):
            if stop <= low:
                break
            keep[max(0, start - low) : max(0, stop - low)] = False
        whole = bool(keep.all())
        for name, buffer in self._buffers.items():
            values = buffer.values[:count]
            self._skeleton._write(name, self._shard, values, count)  # noqa: SLF001 - the length of obs is not known yet
            if name in self.fields:
                mask = self._masks.get(name)
                valid = self._buffers[mask].values[:count] if mask else None
                if not whole:
                    values, valid = values[keep], None if valid is None else valid[keep]
                self._statistics[name] = self._statistics[name].merge(
                    FieldStatistics.from_values(values, valid)
                )
        self._shard += 1
        self._filled = 0

    def close(self) -> None:
        """Write what waits and make the store complete. Called at the end of ``with``."""
        if not self._open:
            return
        self._open = False
        if self._broken:
            raise ConfigError(f"store {self._skeleton.url} stays incomplete: a sequence was written in part")
        total = self.n_obs
        if self._filled:
            self._flush()
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
            table[name] = ColumnData(name, [kept.get(i) for i in range(n)], "string", categorical=True)
        for name, kept in self._columns.items():
            values = [kept.get(i) for i in range(n)]
            known = [v for v in values if v is not None]
            if any(isinstance(v, str) for v in known) or not known:
                dtype = "string"
            else:
                dtype = np.asarray(known).dtype.name
                if dtype == "object" or (len(known) < n and np.dtype(dtype).kind != "f"):
                    dtype = "float64"
            table[name] = ColumnData(name, values, dtype)
        return table

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        self._open = False

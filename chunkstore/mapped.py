"""Windows by number: scattered reads, coalesced a batch at a time, through a small cache of chunks.

For evaluation, debugging and samplers of others. Decides which chunks a batch needs and which stay;
the order is the caller's. Python loops run over chunks, numpy over windows.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.forks import new_lock
from chunkstore.layout import parse_bytes
from chunkstore.nulls import resident_dtypes, with_nan
from chunkstore.targets import Cut
from chunkstore.windows import WindowIndex

if TYPE_CHECKING:
    import numpy.typing as npt

    from chunkstore.recipe import Recipe
    from chunkstore.store import ChunkStore

__all__ = ["ChunkCache", "PlaceReader", "WindowReader"]


class ChunkCache:
    """Decoded chunks, the least recently used leaving first.

    Parameters
    ----------
    limit
        Bytes that may be kept; a batch that needs more takes more while it is made.
    """

    def __init__(self, limit: int | str) -> None:
        self._limit = parse_bytes(limit)
        self._kept: OrderedDict[tuple[int, str, int], npt.NDArray[Any]] = OrderedDict()
        self._bytes = 0
        self._lock = new_lock()

    def rows(
        self,
        number: int,
        store: ChunkStore,
        field: str,
        chunks: npt.NDArray[np.int64],
        dtype: np.dtype[Any] | None = None,
    ) -> list[npt.NDArray[Any]]:
        """Return decoded chunks of a field, in the order asked for; those not kept are read in one call.

        Parameters
        ----------
        number
            Of the store, the cache's name for it.
        store, field
            What to read.
        chunks
            int64[n], ascending, without repeats.
        dtype
            What the store gives, if not what it holds.
        """
        with self._lock:
            found = {c: self._kept.get((number, field, c)) for c in chunks.tolist()}
            for c, rows in found.items():
                if rows is not None:
                    self._kept.move_to_end((number, field, c))
        missing = [c for c, rows in found.items() if rows is None]
        if missing:
            spec = store.fields[field]
            ranges = [store.layout.chunk_range(c) for c in missing]
            outs = [np.empty(spec.shape(stop - start), dtype or spec.np_dtype) for start, stop in ranges]
            store.read_ranges(field, [a for a, _ in ranges], [b for _, b in ranges], outs)
            found.update(zip(missing, outs, strict=True))
            self._keep({(number, field, c): found[c] for c in missing})
        return [rows for rows in found.values() if rows is not None]

    def _keep(self, chunks: dict[tuple[int, str, int], npt.NDArray[Any] | None]) -> None:
        with self._lock:
            for key, rows in chunks.items():
                if rows is not None and key not in self._kept:
                    self._kept[key] = rows
                    self._bytes += rows.nbytes
            while self._bytes > self._limit and self._kept:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes

    def __reduce__(self) -> tuple[type[ChunkCache], tuple[int]]:
        return ChunkCache, (self._limit,)


class PlaceReader:
    """Windows of a recipe wherever they lie, cut from chunks that are read for them.

    Parameters
    ----------
    recipe
        What is cut.
    dtype
        Of ``x`` and ``y``; None keeps that of the fields.
    channels
        ``"first"`` or ``"last"``.
    cache
        Bytes of decoded chunks to keep.
    """

    def __init__(self, recipe: Recipe, *, dtype: Any, channels: str, cache: int | str) -> None:
        self.recipe = recipe
        self._dtype = dtype
        self._channels = channels
        cuts = [Cut(recipe.fields, 0, recipe.window.length), *filter(None, [recipe.target.cut])]
        self._given = resident_dtypes(recipe.stores, [(cut.fields, self._out_dtype(cut)) for cut in cuts])
        self._stores = with_nan(recipe.stores, self._given)
        self._cache = ChunkCache(cache)

    def read_places(self, places: Any) -> dict[str, Any]:
        """Return windows as a batch of arrays, without what is known of their sequences.

        Parameters
        ----------
        places
            int64[batch] each: ``store``, ``sequence``, ``start`` (within the store), ``room`` (obs from
            there to the end of the segment).
        """
        recipe = self.recipe
        stores = recipe.stores
        batch: dict[str, Any] = {"x": self._cut(Cut(recipe.fields, 0, recipe.window.length), places)}
        if recipe.target.cut is not None:
            batch["y"] = self._cut(recipe.target.cut, places)
        first = np.empty(len(places.start), np.int64)
        for at in np.unique(places.store).tolist():
            rows = places.store == at
            first[rows] = stores[at].sequences.offsets[places.sequence[rows]]
        batch |= {
            "sequence": places.sequence,
            "start": places.start - first,
            "length": np.minimum(places.room, recipe.window.length),
            "room": places.room,
        }
        if len(stores) > 1:
            batch["store"] = places.store
        return batch

    def _cut(self, cut: Cut, places: Any) -> npt.NDArray[Any]:
        """Return [batch, channel, length], or channels last."""
        stores = self.recipe.stores
        specs = [stores[0].fields[name] for name in cut.fields]
        widths = [max(1, spec.items) for spec in specs]
        n = len(places.start)
        out = np.zeros((n, sum(widths), cut.length), self._out_dtype(cut))
        start = places.start + cut.offset
        length = np.clip(places.room - cut.offset, 0, cut.length)
        for at in np.unique(places.store).tolist():
            rows = np.flatnonzero((places.store == at) & (length > 0))
            if not len(rows):  # of windows that are padded whole there is nothing to read
                continue
            channel = 0
            for spec, width in zip(specs, widths, strict=True):
                values = self._field(at, spec.name, start[rows], length[rows], cut.length)
                out[rows, channel : channel + width] = (
                    np.moveaxis(values, 1, 2) if spec.items else values[:, None]
                )
                channel += width
        return out if self._channels == "first" else np.ascontiguousarray(out.swapaxes(1, 2))

    def _out_dtype(self, cut: Cut) -> np.dtype[Any]:
        if self._dtype is not None:
            given: np.dtype[Any] = np.dtype(self._dtype)
            return given
        kinds = {s.fields[name].np_dtype for s in self.recipe.stores for name in cut.fields}
        common: np.dtype[Any] = np.result_type(*kinds)
        return common

    def _field(
        self,
        number: int,
        field: str,
        start: npt.NDArray[np.int64],
        length: npt.NDArray[np.int64],
        width: int,
    ) -> npt.NDArray[Any]:
        """Return [window, width] or [window, width, items]: runs of one field, zeros behind ``length``."""
        store = self._stores[number]
        spec, chunk = store.fields[field], store.layout.chunk
        first, last = start // chunk, (start + length - 1) // chunk
        needed = np.unique(np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]))
        # chunks that follow each other lie so in the buffer: a window is one run of it
        buffer = np.concatenate(self._cache.rows(number, store, field, needed, self._given[field]))
        base = np.searchsorted(needed, first) * chunk + start % chunk
        steps = np.arange(width)
        inside = steps < length[:, None]
        values = buffer[np.where(inside, base[:, None] + steps, 0)]
        values[~inside] = 0
        if spec.scale_factor is not None and self._dtype is not None and np.dtype(self._dtype).kind == "f":
            values = values.astype(self._dtype) * np.dtype(self._dtype).type(spec.scale_factor)
        return np.asarray(values)


class WindowReader(PlaceReader):
    """The windows of a recipe, by number.

    Parameters
    ----------
    recipe, dtype, channels, cache
        As for :class:`PlaceReader`.
    split
        Name of a stored split, or None for everything.
    """

    def __init__(
        self, recipe: Recipe, *, split: str | None, dtype: Any, channels: str, cache: int | str
    ) -> None:
        super().__init__(recipe, dtype=dtype, channels=channels, cache=cache)
        self.index = WindowIndex([s.segments(split) for s in recipe.stores], recipe.window)

    def read(self, ids: npt.ArrayLike) -> tuple[dict[str, Any], npt.NDArray[np.int64]]:
        """Return the windows as a batch of arrays, and the room of each: obs to the end of its segment.

        Parameters
        ----------
        ids : int array [batch]
            Numbers of windows.
        """
        batch = self.read_places(self.index.locate(ids))
        room = batch.pop("room")  # a label may have that name
        self.recipe.add_labels(batch)
        return batch, room

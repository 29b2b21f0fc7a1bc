"""An open store as its arrays: what it holds, and reading it.

Opened from the root metadata alone; nothing in that is proportional to ``obs``. Which engine
decodes a field is decided here, once a field, and said in ``store.engine``. What is built on it,
splits, views and sound, comes above, and :class:`chunkstore.ChunkStore` offers both.
"""

from __future__ import annotations

import logging
import os
import uuid
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.engine import EngineInfo, choose_engine, direct_works, route
from chunkstore.errors import (
    ChunkstoreError,
    ConfigError,
    ForkError,
    FormatError,
    IncompleteStoreError,
    StateError,
    UnknownNameError,
)
from chunkstore.forks import new_rlock
from chunkstore.metadata import RootInfo, parse_root
from chunkstore.numbers import whole_number, whole_numbers
from chunkstore.places import open_place
from chunkstore.reader import ABSENT, ArrayReader, IndexCache, read_plain
from chunkstore.segments import check_ranges
from chunkstore.sequences import SequenceTable
from chunkstore.statistics import FieldStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from chunkstore.arrays import ArrayMeta
    from chunkstore.layout import FieldSpec

__all__ = ["OpenStore"]

logger = logging.getLogger(__name__)

#: Process in which chunks were first decoded: a forked child must not go on with its threads.
_decoded_in: int | None = None


class OpenStore:
    """The arrays and metadata of a :class:`chunkstore.ChunkStore`, whose attributes are told there."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        allow_incomplete: bool = False,
        engine: str = "auto",
    ) -> None:
        if engine not in ("auto", "zarrs", "direct"):
            raise ConfigError(f"engine {engine!r} is none of 'auto', 'zarrs', 'direct'")
        self._arguments = (os.fspath(url), storage_options, allow_incomplete, engine)
        self._lock = new_rlock()
        self._engine_wanted = engine
        self._instance = uuid.uuid4().hex
        self._place = open_place(url, storage_options)
        self.url = self._place.url
        self._adopt(parse_root(self._place), allow_incomplete)

    def _adopt(self, root: RootInfo, allow_incomplete: bool) -> None:
        if root.status != "complete" and not allow_incomplete:
            raise IncompleteStoreError(
                f"store {self.url} is incomplete: its writing has not finished or was broken off; "
                "resume the ingest, or open it with allow_incomplete=True"
            )
        self._root = root
        self.layout = root.layout
        self.fields: Mapping[str, FieldSpec] = MappingProxyType(dict(root.fields))
        self.masks: Mapping[str, str] = MappingProxyType(dict(root.masks))
        self.status = root.status
        self.attrs: Mapping[str, Any] = MappingProxyType(dict(root.attributes))
        self._cache = IndexCache()
        self._readers: dict[str, ArrayReader] = {}
        self._zarrs: dict[str, Any] = {}
        self._engines: dict[str, EngineInfo] = {}
        self._gaps: NDArray[np.int64] | None = None
        self._split_cache: dict[str, Any] = {}
        self._table = (
            SequenceTable(self._place, root.arrays, root.columns, root.layout.n_obs)
            if root.status == "complete"
            else None
        )

    def _refresh(self) -> None:
        """Take over splits that were added; nothing else of a complete store ever changes."""
        with self._lock:
            root = parse_root(self._place)
            self._check_same(root.lasting)
            self._root = root
            self.attrs = MappingProxyType(dict(self._root.attributes))
            self._split_cache = {}

    def _check_same(self, lasting: str | None) -> None:
        """Refuse a root that is not of the store that was opened: another may stand at its place."""
        if lasting is not None and self.status == "complete" and self._root.lasting != lasting:
            raise StateError(
                f"store {self.url} was replaced by another since it was opened; open it again, and make anew "
                "what reads it"
            )

    def __getstate__(self) -> dict[str, Any]:
        url, *rest = self._arguments
        if self._place.kind == "local" and "://" not in url:
            url = os.path.abspath(url)  # noqa: PTH100 - resolve() would follow links; the other process may be elsewhere
        return {
            "arguments": (url, *rest),
            "lasting": self._root.lasting if self.status == "complete" else None,
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        url, options, allow, engine = state["arguments"]
        OpenStore.__init__(self, url, storage_options=options, allow_incomplete=allow, engine=engine)
        self._check_same(state["lasting"])

    def __repr__(self) -> str:
        sequences = f", {self.n_sequences} sequences" if self._table is not None else ""
        fields = ", ".join(self.fields)
        return (
            f"<{type(self).__name__} {self.url}: {self.n_obs} obs{sequences}, fields {fields}, {self.status}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of open files and kept indices; the store may still be used, and opens them again."""
        self._cache.clear()
        self._place.close()

    # -- what it is ---------------------------------------------------------------------------

    @property
    def n_obs(self) -> int:
        """Length of the ``obs`` axis."""
        return self.layout.n_obs

    @property
    def sequences(self) -> SequenceTable:
        """The table of sequences."""
        if self._table is None:
            raise IncompleteStoreError(f"store {self.url} is incomplete: it has no sequences yet")
        return self._table

    @property
    def n_sequences(self) -> int:
        """Number of sequences."""
        return len(self.sequences)

    @property
    def gaps(self) -> NDArray[np.int64]:
        """Half-open ranges of obs whose data was lost: int64[G, 2], ascending."""
        with self._lock:
            if self._gaps is None:
                if self.status != "complete":
                    raise IncompleteStoreError(f"store {self.url} is incomplete: it has no gaps yet")
                arrays = self._root.arrays
                ranges = [read_plain(self._place, arrays[n]) for n in ("gap_start", "gap_stop")]
                gaps = np.stack(ranges, axis=1)
                check_ranges(gaps, self.n_obs, f"store {self.url}: gap")
                gaps.flags.writeable = False
                self._gaps = gaps
            return self._gaps

    @property
    def fingerprint(self) -> str:
        """Hash of the layout of the content: fields, lengths, ids and gaps. Splits do not change it."""
        found = self._root.own.get("fingerprint")
        if not isinstance(found, str):
            raise FormatError(f"store {self.url} has no fingerprint")
        return found

    @property
    def statistics(self) -> Mapping[str, FieldStatistics]:
        """Statistics of the fields for which they were gathered."""
        found = self._root.own.get("statistics", {})
        if not isinstance(found, dict):
            raise FormatError(f"store {self.url}: statistics is {found!r:.60}")
        return {k: FieldStatistics.from_json(v) for k, v in found.items() if k in self.fields}

    # -- reading ------------------------------------------------------------------------------

    def _array(self, name: str) -> ArrayMeta:
        meta = self._root.arrays.get(name)
        if meta is None or not meta.sharded:
            masks = f"; masks: {', '.join(self.masks.values())}" if self.masks else ""
            raise UnknownNameError(
                f"store {self.url} has no field {name!r}; it has {', '.join(self.fields) or 'none'}{masks}"
            )
        return meta

    def _reader(self, name: str) -> ArrayReader:
        reader = self._readers.get(name)
        if reader is None:
            meta = self._array(name)
            shards = self._root.own.get("shards", {})
            stored = shards.get(name) if isinstance(shards, dict) else None
            try:
                reader = ArrayReader(
                    self._place, meta, stored=stored, cache=self._cache, describe=self._describe
                )
            except (ValueError, TypeError, OverflowError):
                raise FormatError(
                    f"store {self.url}: the list of stored shards of {name!r} is damaged"
                ) from None
            self._readers[name] = reader
        return reader

    def _describe(self, low: int, high: int) -> str:
        """Say which sequences lie in [low, high), for an error; says nothing where that fails too."""
        try:
            table = self.sequences
            first = int(np.searchsorted(table.offsets, low, side="right")) - 1
            last = int(np.searchsorted(table.offsets, high, side="left")) - 1
            first, last = max(0, first), min(last, len(table) - 1)
            if first > last:
                return ""
            ids = table.ids
            if first == last:
                return f", sequence {ids[first]!r} at {low - int(table.offsets[first])}"
            return f", sequences {ids[first]!r} to {ids[last]!r} ({last - first + 1})"
        except (ChunkstoreError, OSError):
            return ""

    def _check_process(self) -> None:
        global _decoded_in  # noqa: PLW0603 - the threads of the decoder belong to the process
        pid = os.getpid()
        if _decoded_in is None:
            _decoded_in = pid
        elif _decoded_in != pid:
            raise ForkError(
                f"store {self.url} is used in a forked child of a process that has already decoded; the "
                "decoder's threads do not survive a fork. Start workers with 'spawn' or 'forkserver', or "
                "fork before the first read"
            )

    @property
    def engine(self) -> Mapping[str, EngineInfo]:
        """Which engine decodes each field, and why."""
        return {name: self._engine(name) for name in self.fields}

    def _engine(self, name: str) -> EngineInfo:
        found = self._engines.get(name)
        if found is None:
            with self._lock:
                if name not in self._engines:
                    meta = self._array(name)
                    chosen, pipeline = choose_engine(self._place, meta, self._engine_wanted)
                    if pipeline is not None:
                        self._zarrs[name] = pipeline
                    self._engines[name] = chosen
                found = self._engines[name]
        return found

    def read(self, field: str, start: int, stop: int) -> NDArray[Any]:
        """Return obs [start, stop) of a field, in its stored dtype: [n] or [n, items].

        Raises
        ------
        UnknownNameError
            If there is no such field.
        ConfigError
            If the range leaves ``obs``.
        CorruptDataError
            If stored bytes are damaged or missing.
        """
        meta = self._array(field)
        start, stop = self._check_range(start, stop)
        out = np.empty((stop - start, *meta.shape[1:]), dtype=meta.dtype)
        self.read_into(field, start, stop, out)
        return out

    def _check_range(self, start: int, stop: int) -> tuple[int, int]:
        start, stop = whole_number("start", start), whole_number("stop", stop)
        if not 0 <= start <= stop <= self.n_obs:
            raise ConfigError(f"store {self.url}: obs [{start}, {stop}) is not inside [0, {self.n_obs})")
        return start, stop

    def _check_out(self, meta: ArrayMeta, start: int, stop: int, out: Any) -> None:
        shape = (stop - start, *meta.shape[1:])
        if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != meta.dtype:
            given = f"{out.dtype}{list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
            raise ConfigError(
                f"field {meta.name!r}: out is {given}, the range [{start}, {stop}) needs an array "
                f"{meta.dtype}{list(shape)}"
            )

    def read_into(self, field: str, start: int, stop: int, out: NDArray[Any]) -> None:
        """Decode obs [start, stop) of a field straight into ``out``.

        Thread-safe; the interpreter is free while bytes are read and decoded.

        Parameters
        ----------
        field : str
        start, stop : int
            Half-open range of obs.
        out : ndarray
            [stop - start] or [stop - start, items], of the field's dtype; contiguous is fastest.
        """
        meta = self._array(field)
        start, stop = self._check_range(start, stop)
        self._check_out(meta, start, stop, out)
        if start == stop:
            return
        self._check_process()
        for engine, low, high in self._route(meta, start, stop):
            part = out[low - start : high - start]
            if engine == "zarrs":
                self._read_zarrs(field, low, high, part)
            else:
                self._reader(field).read_into(low, high, part)

    def _route(self, meta: ArrayMeta, start: int, stop: int) -> list[tuple[str, int, int]]:
        return route(meta, self._engine(meta.name).name, self._engine_wanted, start, stop)

    def read_ranges(
        self,
        field: str,
        starts: Sequence[int] | NDArray[np.int64],
        stops: Sequence[int] | NDArray[np.int64],
        outs: Sequence[NDArray[Any]],
    ) -> None:
        """Decode many ranges of obs, each into its own array: chunks that ranges share are decoded once.

        Raises
        ------
        ConfigError
            If a range leaves ``obs``, or an array does not fit its range.
        CorruptDataError
            If stored bytes are damaged or missing; nothing is written into the arrays after that.

        Examples
        --------
        >>> import chunkstore
        >>> with chunkstore.StoreWriter("memory://doc-ranges", fields={"x": "i4"}, overwrite=True) as out:
        ...     out.write("a", {"x": np.arange(10)})
        >>> outs = np.empty((2, 3), "i4")
        >>> chunkstore.open_store("memory://doc-ranges").read_ranges("x", [0, 6], [3, 9], list(outs))
        >>> outs
        array([[0, 1, 2], [6, 7, 8]], dtype=int32)
        """
        meta = self._array(field)
        begin, end = whole_numbers("starts", starts).tolist(), whole_numbers("stops", stops).tolist()
        if not len(begin) == len(end) == len(outs):
            raise ConfigError(f"{len(begin)} starts, {len(end)} stops and {len(outs)} outs do not fit")
        for start, stop, out in zip(begin, end, outs, strict=True):
            self._check_range(start, stop)
            self._check_out(meta, start, stop, out)
        self._check_process()
        if not direct_works(meta):
            for start, stop, out in zip(begin, end, outs, strict=True):
                self.read_into(field, start, stop, out)
            return
        self._reader(field).read_ranges(begin, end, outs)

    def _read_zarrs(self, field: str, start: int, stop: int, out: NDArray[Any]) -> None:
        from zarr.core.buffer import cpu

        reader = self._reader(field)
        shard = self.layout.shard
        whole = start % shard == 0 and stop % shard == 0
        for index in range(start // shard, (stop - 1) // shard + 1):
            reader.shard(index)  # links, missing shards and indices are checked before zarrs opens the object
        if not whole and self._array(field).codec.crc:
            reader.check_range(start, stop)  # zarrs does not check chunks of shards that it reads in part
        target = out if out.flags.c_contiguous else np.empty_like(out, order="C")
        try:
            self._zarrs[field].get_basic_selection(
                slice(start, stop), out=cpu.NDBuffer.from_numpy_array(target)
            )
        except Exception:
            logger.info("store %s: zarrs failed in %s [%d, %d)", self.url, field, start, stop, exc_info=True)
            reader.cache.clear()
            if not direct_works(self._array(field)):
                reader.check_range(start, stop)
                raise
            reader.read_into(start, stop, out)  # names the damaged chunk, or reads what zarrs would not
            return
        if target is not out:
            out[...] = target

    def stored_bytes(self, field: str, shard: int) -> NDArray[np.int64]:
        """Return the stored bytes of each chunk of a shard, int64[chunks]; 0 where it is not stored.

        Raises
        ------
        ConfigError
            If there is no shard of that number.
        """
        meta = self._array(field)
        shard = whole_number("shard", shard)
        if not 0 <= shard < self.layout.n_shards:
            raise ConfigError(f"store {self.url}: shard {shard} is not one of {self.layout.n_shards}")
        found = self._reader(field).shard(shard)
        if found is None:
            return np.zeros(meta.chunks_per_shard, dtype=np.int64)
        return np.where(found.offsets == ABSENT, 0, found.lengths).astype(np.int64)

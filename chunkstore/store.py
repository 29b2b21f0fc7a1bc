"""Open a store and read it: the handle that everything else works on.

A :class:`ChunkStore` is opened from its root metadata alone; nothing in that is proportional to
``obs``. Which engine decodes a field is decided here, once a field, and said in ``store.engine``.
Writing is in ``chunkstore.writer``, xarray in ``chunkstore.views``.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import warnings
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.arrays import ArrayMeta
from chunkstore.codecs import has_pcodec
from chunkstore.errors import (
    ChunkstoreError,
    ConfigError,
    ForkError,
    FormatError,
    IncompleteStoreError,
    NotAStoreError,
    StoreNotFoundError,
    UnknownNameError,
)
from chunkstore.layout import FieldSpec, Layout
from chunkstore.places import Place, open_place
from chunkstore.reader import ABSENT, ArrayReader, IndexCache, read_plain
from chunkstore.segments import Segments, check_ranges, cut_segments
from chunkstore.sequences import SequenceTable
from chunkstore.statistics import FieldStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    import xarray as xr
    from numpy.typing import NDArray

    from chunkstore.audio import Sound
    from chunkstore.splits import SplitAudit, SplitSet

__all__ = ["ChunkStore", "EngineInfo", "open_store"]

logger = logging.getLogger(__name__)

#: Version of the store format that is written, and the only one that is read.
FORMAT: Final = 1
#: Fewer decoded bytes go direct: the cost of a call of zarrs outweighs its threads (benchmarks/store.py).
_ZARRS_LEAST_BYTES: Final = 4 * 1024 * 1024
#: With fewer cores our own reader decodes faster than zarrs, with every codec (benchmarks/store.py); zarrs
#: decodes on all cores without the interpreter, ours on eight threads at most.
_ZARRS_LEAST_CORES: Final = 8
#: Process in which chunks were first decoded: a forked child must not go on with its threads.
_decoded_in: int | None = None
_KNOWN_ATTRS: Final = ("units", "long_name", "scale_factor", "categories")
_DERIVED_ATTRS: Final = ("flag_values", "flag_meanings", "ancillary_variables")


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Which code decodes a field, and why."""

    name: str
    """``zarrs`` (whole shards; the reason says what goes direct), or ``direct`` for everything."""
    reason: str


@dataclass(frozen=True, slots=True)
class RootInfo:
    """What the root ``zarr.json`` says, checked."""

    status: str
    layout: Layout
    arrays: Mapping[str, ArrayMeta]
    fields: Mapping[str, FieldSpec]
    masks: Mapping[str, str]
    """Field name -> name of its mask."""
    columns: tuple[str, ...]
    attributes: Mapping[str, Any]
    """All attributes of the group."""

    @property
    def own(self) -> Mapping[str, Any]:
        """The ``chunkstore`` object of the attributes."""
        found: Mapping[str, Any] = self.attributes["chunkstore"]
        return found


def load_json(place: Place, key: str) -> Any:
    """Return the JSON of an object, or None where there is none.

    Raises
    ------
    FormatError
        If it is not JSON.
    """
    data = place.get(key)
    if data is None:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as err:
        raise FormatError(f"store {place.url}: {key} is not JSON: {err}") from None


def parse_root(place: Place) -> RootInfo:
    """Read and check the metadata of a store: one object, or one more an array where it is incomplete.

    Raises
    ------
    StoreNotFoundError, NotAStoreError, FormatError
    """
    root = load_json(place, "zarr.json")
    if root is None:
        if place.kind != "http" and place.is_empty():
            raise StoreNotFoundError(f"there is nothing at {place.url}")
        raise NotAStoreError(f"{place.url} is not a store: it has no zarr.json")
    attributes = root.get("attributes") if isinstance(root, dict) else None
    attributes = attributes if isinstance(attributes, dict) else {}
    own = attributes.get("chunkstore")
    if not isinstance(own, dict) or root.get("node_type") != "group":
        raise NotAStoreError(
            f"{place.url} is Zarr, but not a store of chunkstore: its root has no 'chunkstore' object; "
            "chunkstore.from_xarray writes one from any dataset"
        )
    try:
        return _parse_own(place, root, attributes, own)
    except FormatError as err:
        if str(err).startswith("store "):
            raise
        raise FormatError(f"store {place.url}: {err}") from None


def _parse_own(
    place: Place, root: Mapping[str, Any], attributes: Mapping[str, Any], own: Mapping[str, Any]
) -> RootInfo:
    if own.get("format") != FORMAT:
        raise FormatError(
            f"it has format {own.get('format')!r:.40}, this version reads {FORMAT}; upgrade chunkstore"
        )
    status = own.get("status")
    if status not in ("incomplete", "complete"):
        raise FormatError(f"status is {status!r:.40}; it must be 'incomplete' or 'complete'")

    def names(key: str) -> tuple[str, ...]:
        found = own.get(key, [])
        if not isinstance(found, list) or not all(isinstance(n, str) and n and "/" not in n for n in found):
            raise FormatError(f"{key} must be a list of names, found {found!r:.120}")
        if len(set(found)) != len(found):
            raise FormatError(f"{key} names something twice: {found!r:.120}")
        return tuple(found)

    numbers = [own.get(key) for key in ("n_obs", "chunk", "shard")]
    if not all(type(n) is int and 0 <= n <= 2**60 for n in numbers):
        raise FormatError(f"n_obs, chunk and shard are {numbers}; each must be an integer in 0..2**60")
    try:
        layout = Layout(*numbers)  # type: ignore[arg-type]
    except ConfigError as err:
        raise FormatError(str(err)) from None
    consolidated = root.get("consolidated_metadata")
    metadata = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    arrays: dict[str, ArrayMeta] = {}

    def array(name: str) -> ArrayMeta | None:
        found = metadata.get(name) if isinstance(metadata, dict) else load_json(place, f"{name}/zarr.json")
        if found is None:
            return None
        arrays[name] = ArrayMeta.parse(name, found)
        return arrays[name]

    fields: dict[str, FieldSpec] = {}
    masks: dict[str, str] = {}
    for name in names("fields"):
        meta = array(name)
        if meta is None:
            raise FormatError(f"field {name!r} has no array")
        mask = (
            array(f"{name}_valid") if meta.attributes.get("ancillary_variables") == f"{name}_valid" else None
        )
        for part in (meta, mask):
            if part is not None:
                _check_field(part, layout, status)
        if mask is not None:
            masks[name] = mask.name
        fields[name] = field_of(meta, nullable=mask is not None)
    if status == "incomplete":
        return RootInfo(status, layout, arrays, fields, masks, names("columns"), attributes)
    expected = {"rowsize": "int64", "id": "string", "gap_start": "int64", "gap_stop": "int64"}
    for name, data_type in expected.items():
        meta = array(name)
        if meta is None:
            raise FormatError(f"the array {name!r} is missing")
        if meta.data_type != data_type or meta.sharded or len(meta.shape) != 1:
            raise FormatError(f"the array {name!r} must be one-dimensional {data_type} in plain chunks")
    if arrays["rowsize"].shape != arrays["id"].shape or arrays["gap_start"].shape != arrays["gap_stop"].shape:
        raise FormatError("rowsize and id, gap_start and gap_stop must be of one length")
    for name in names("columns"):
        meta = array(name)
        if meta is None or meta.shape != arrays["rowsize"].shape or meta.sharded:
            raise FormatError(f"column {name!r} has no array of the length of rowsize")
        code = array(f"{name}_code") if meta.is_string else None
        if code is not None and (
            code.shape != meta.shape
            or code.data_type != "int32"
            or not isinstance(code.attributes.get("categories"), list)
        ):
            raise FormatError(f"{name}_code must be int32, as long as {name!r}, with its categories")
    for split in _splits(own).values():
        for suffix in ("start", "stop", "part"):
            meta = array(f"{split['array']}_{suffix}")
            if meta is None or meta.data_type != "int64" or len(meta.shape) != 1:
                raise FormatError(f"the array {split['array']}_{suffix} of a split is missing or not int64")
    return RootInfo(status, layout, arrays, fields, masks, names("columns"), attributes)


def _splits(own: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    found = own.get("splits", {})
    if not isinstance(found, dict) or not all(
        isinstance(s, dict)
        and isinstance(s.get("array"), str)
        and "/" not in s["array"]
        and isinstance(s.get("parts"), list)
        and all(isinstance(p, str) for p in s["parts"])
        for s in found.values()
    ):
        raise FormatError(f"splits must map names to objects with 'array' and 'parts', found {found!r:.120}")
    return found


def _check_field(meta: ArrayMeta, layout: Layout, status: str) -> None:
    if not meta.sharded or meta.is_string or (meta.chunk, meta.shard) != (layout.chunk, layout.shard):
        raise FormatError(
            f"field {meta.name!r} has chunks of {meta.chunk} in shards of {meta.shard}; "
            f"all fields of the store share {layout.chunk} and {layout.shard}"
        )
    if meta.dims[0] != "obs" or (status == "complete" and meta.shape[0] != layout.n_obs):
        raise FormatError(
            f"field {meta.name!r} has length {meta.shape[0]} along {meta.dims[0]!r}; "
            f"it must be {layout.n_obs} along 'obs'"
        )


def field_of(meta: ArrayMeta, *, nullable: bool) -> FieldSpec:
    """Return the field that an array's metadata describes."""
    attributes = meta.attributes
    categories = attributes.get("categories")
    try:
        return FieldSpec(
            meta.name,
            meta.data_type,
            items=meta.items,
            units=attributes.get("units"),
            long_name=attributes.get("long_name"),
            nullable=nullable,
            scale_factor=attributes.get("scale_factor"),
            categories=None if categories is None else tuple(map(str, categories)),
            attrs={k: v for k, v in attributes.items() if k not in (*_KNOWN_ATTRS, *_DERIVED_ATTRS)},
        )
    except (ConfigError, TypeError) as err:
        raise FormatError(f"array {meta.name!r}: {err}") from None


def open_store(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    allow_incomplete: bool = False,
    engine: str = "auto",
) -> ChunkStore:
    """Open a store for reading.

    Parameters
    ----------
    url : str or path
        A folder, ``memory://name``, ``s3://``, ``gs://``, ``az://``, ``http(s)://``.
    storage_options : mapping, optional
        For remote places: keys of obstore's configuration (``endpoint``, ``region``,
        ``access_key_id`` ...), ``client_options``, ``retry_config``.
    allow_incomplete : bool
        Open a store whose writing has not finished: it has fields, but no sequences.
    engine : {"auto", "zarrs", "direct"}
        What decodes. By default our own reader, and on 8 cores and more ``zarrs`` for whole shards of
        4 MiB and more; ``store.engine`` says what was chosen and why.

    Raises
    ------
    StoreNotFoundError
        If there is nothing.
    NotAStoreError
        If what is there is not a store.
    IncompleteStoreError
        If its writing has not finished.
    FormatError
        If its metadata break a rule of the format.

    Examples
    --------
    >>> import chunkstore
    >>> with chunkstore.StoreWriter("memory://doc-open", fields={"x": "f4"}, overwrite=True) as out:
    ...     out.write("a", {"x": [1, 2, 3]})
    >>> store = chunkstore.open_store("memory://doc-open")
    >>> store.read("x", 1, 3)
    array([2., 3.], dtype=float32)
    """
    return ChunkStore(url, storage_options=storage_options, allow_incomplete=allow_incomplete, engine=engine)


class ChunkStore:
    """A store that is open for reading. Thread-safe; pickled by its place, not its contents.

    Attributes
    ----------
    url : str
        Where it is, without credentials.
    layout : Layout
        Length of ``obs``, of a chunk and of a shard.
    fields : mapping of str to FieldSpec
    sequences : SequenceTable
    status : str
        ``complete`` or ``incomplete``.
    attrs : mapping
        Attributes of the root.
    """

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
        self._lock = threading.RLock()
        self._engine_wanted = engine
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
            self._root = parse_root(self._place)
            self.attrs = MappingProxyType(dict(self._root.attributes))
            self._split_cache = {}

    def __getstate__(self) -> dict[str, Any]:
        url, *rest = self._arguments
        if self._place.kind == "local" and "://" not in url:
            url = os.path.abspath(url)  # noqa: PTH100 - resolve() would follow links; the other process may be elsewhere
        return {"arguments": (url, *rest)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        url, options, allow, engine = state["arguments"]
        ChunkStore.__init__(self, url, storage_options=options, allow_incomplete=allow, engine=engine)

    def __repr__(self) -> str:
        sequences = f", {self.n_sequences} sequences" if self._table is not None else ""
        fields = ", ".join(self.fields)
        return f"<ChunkStore {self.url}: {self.n_obs} obs{sequences}, fields {fields}, {self.status}>"

    def _repr_html_(self) -> str:
        from chunkstore.notebook import store_html

        return store_html(self)

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
                found = self._engines[name] = self._choose(name)
        return found

    def _choose(self, name: str) -> EngineInfo:
        meta = self._array(name)
        if self._engine_wanted == "direct":
            return EngineInfo("direct", "asked for")
        if self._place.kind == "memory":
            return EngineInfo("direct", "zarrs does not read the memory of this process")
        if self._engine_wanted == "auto" and _direct_works(meta) and usable_cores() < _ZARRS_LEAST_CORES:
            return EngineInfo(
                "direct",
                f"{usable_cores()} cores: our reader is faster than zarrs on fewer than {_ZARRS_LEAST_CORES}",
            )
        try:
            self._zarrs[name] = _zarrs_array(self._place, meta)
        except Exception as err:
            if self._engine_wanted == "zarrs":
                raise ConfigError(f"store {self.url}, field {name!r}: zarrs cannot read it: {err}") from None
            logger.info("store %s, field %s: zarrs does not apply: %s", self.url, name, err)
            return EngineInfo("direct", f"zarrs does not apply: {err}")
        least = 0 if self._engine_wanted == "zarrs" else _ZARRS_LEAST_BYTES
        if not _direct_works(meta):
            return EngineInfo("zarrs", "all reads: the library for decoding pcodec direct is not installed")
        if meta.codec.crc and meta.shard * meta.chunk_bytes // meta.chunk < least:
            return EngineInfo("direct", f"shards of less than {least} bytes decode faster direct")
        if not meta.codec.crc:
            return EngineInfo(
                "zarrs", f"reads of {least} bytes and more; smaller and scattered ones go direct"
            )
        return EngineInfo("zarrs", "whole shards; parts of shards go direct, where each checksum is checked")

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
        self._check_range(start, stop)
        out = np.empty((stop - start, *meta.shape[1:]), dtype=meta.dtype)
        self.read_into(field, start, stop, out)
        return out

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.n_obs:
            raise ConfigError(f"store {self.url}: obs [{start}, {stop}) is not inside [0, {self.n_obs})")

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
        self._check_range(start, stop)
        shape = (stop - start, *meta.shape[1:])
        if out.shape != shape or out.dtype != meta.dtype:
            raise ConfigError(
                f"field {field!r}: out is {out.dtype}{list(out.shape)}, "
                f"the range needs {meta.dtype}{list(shape)}"
            )
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
        """Cut a range into parts, each with the engine that reads it.

        zarrs checks the crc32c of a chunk only where it decodes a shard whole; parts of shards go
        direct, where every checksum is checked.
        """
        if self._engine(meta.name).name != "zarrs":
            return [("direct", start, stop)]
        if not _direct_works(meta) or (not meta.codec.crc and self._engine_wanted == "zarrs"):
            return [("zarrs", start, stop)]
        first, last = -(-start // meta.shard) * meta.shard, stop // meta.shard * meta.shard
        least = 0 if self._engine_wanted == "zarrs" else _ZARRS_LEAST_BYTES
        width = meta.chunk_bytes // meta.chunk
        if not meta.codec.crc and (stop - start) * width >= least:
            return [("zarrs", start, stop)]
        if first >= last or meta.shard * width < least:
            return [("direct", start, stop)]
        parts = [("direct", start, first), ("zarrs", first, last), ("direct", last, stop)]
        return [part for part in parts if part[1] < part[2]]

    def read_ranges(
        self,
        field: str,
        starts: Sequence[int] | NDArray[np.int64],
        stops: Sequence[int] | NDArray[np.int64],
        outs: Sequence[NDArray[Any]],
    ) -> None:
        """Decode many ranges of obs, each into its own array: chunks that ranges share are decoded once.

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
        begin = np.asarray(starts, dtype=np.int64).tolist()
        end = np.asarray(stops, dtype=np.int64).tolist()
        for start, stop, out in zip(begin, end, outs, strict=True):
            self._check_range(start, stop)
            if out.shape != (stop - start, *meta.shape[1:]) or out.dtype != meta.dtype:
                raise ConfigError(
                    f"field {field!r}: an output is {out.dtype}{list(out.shape)}, "
                    f"range [{start}, {stop}) needs {meta.dtype}"
                )
        self._check_process()
        if not _direct_works(meta):
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
            if not _direct_works(self._array(field)):
                reader.check_range(start, stop)
                raise
            reader.read_into(start, stop, out)  # names the damaged chunk, or reads what zarrs would not
            return
        if target is not out:
            out[...] = target

    def stored_bytes(self, field: str, shard: int) -> NDArray[np.int64]:
        """Return the stored bytes of each chunk of a shard, int64[chunks]; 0 where it is not stored."""
        meta = self._array(field)
        found = self._reader(field).shard(shard)
        if found is None:
            return np.zeros(meta.chunks_per_shard, dtype=np.int64)
        return np.where(found.offsets == ABSENT, 0, found.lengths).astype(np.int64)

    # -- segments and splits ------------------------------------------------------------------

    def segments(self, split: str | None = None) -> Segments:
        """Return the stretches of obs in which windows may live.

        Parameters
        ----------
        split : str, optional
            A part of a split, ``"train"``; ``"name:train"`` where several splits have that part.
        """
        ranges = None
        if split is not None:
            from chunkstore.splits import find_part

            ranges = find_part(self, split)
        return cut_segments(self.sequences.offsets, gaps=self.gaps, ranges=ranges)

    @property
    def splits(self) -> Mapping[str, SplitSet]:
        """The splits that are kept in the store, by name."""
        from chunkstore.splits import load_splits

        return load_splits(self)

    def add_split(self, name: str, **options: Any) -> SplitSet:
        """Choose and keep a split; see :func:`chunkstore.splits.add_split` for the options."""
        from chunkstore.splits import add_split

        return add_split(self, name, **options)

    def audit_splits(self, window: int = 1, horizon: int = 0) -> SplitAudit:
        """Prove that no obs is seen by two parts of a split; see :func:`chunkstore.splits.audit_splits`."""
        from chunkstore.splits import audit_splits

        return audit_splits(self, window=window, horizon=horizon)

    # -- views --------------------------------------------------------------------------------

    def sequence(self, id: str) -> xr.Dataset:  # noqa: A002 - the format's own word
        """Return one sequence as an xarray Dataset along ``obs``."""
        from chunkstore.views import sequence_dataset

        return sequence_dataset(self, id)

    def play(
        self,
        id: str,  # noqa: A002 - the format's own word
        start: float = 0.0,
        stop: float | None = None,
        *,
        field: str | None = None,
    ) -> Sound:
        """Return a span, in seconds, as a sound that a notebook plays; see :func:`chunkstore.audio.play`."""
        from chunkstore.audio import play

        return play(self, id, start, stop, field=field)

    def export(
        self,
        id: str,  # noqa: A002 - the format's own word
        path: str | os.PathLike[str],
        start: float = 0.0,
        stop: float | None = None,
        *,
        field: str | None = None,
    ) -> Path:
        """Write a span, in seconds, to a ``.wav`` or ``.flac``; see :func:`chunkstore.audio.export`."""
        from chunkstore.audio import export

        return export(self, id, path, start, stop, field=field)

    def to_xarray(self) -> xr.Dataset:
        """Return the whole store as a lazy xarray Dataset, dask chunks equal to shards."""
        from chunkstore.views import store_dataset

        return store_dataset(self)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _direct_works(meta: ArrayMeta) -> bool:
    """Whether our own reader can decode an array: pcodec needs its library."""
    return meta.codec.name != "pcodec" or has_pcodec()


def _zarrs_array(place: Place, meta: ArrayMeta) -> Any:
    """Return a zarr array that decodes through zarrs, or raise where it would fall back."""
    import zarr
    from zarr.core.array import AsyncArray
    from zarr.core.metadata import ArrayV3Metadata
    from zarr.storage import StorePath

    with (
        _CONFIG_LOCK,
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Numcodecs codecs are not in the Zarr version 3")
        warnings.filterwarnings("ignore", "Successfully reconstructed a store defined in another")
        described = meta.to_json()
        described["attributes"] = {}
        path = StorePath(place.zarr_store(), meta.name)
        inner = AsyncArray(metadata=ArrayV3Metadata.from_dict(described), store_path=path)
    pipeline = inner.codec_pipeline
    if type(pipeline).__name__ != "ZarrsCodecPipeline" or getattr(pipeline, "impl", None) is None:
        raise TypeError(f"the pipeline is {type(pipeline).__name__}")
    return zarr.Array(inner)


_CONFIG_LOCK: Final = threading.Lock()

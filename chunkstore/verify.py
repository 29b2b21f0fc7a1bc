"""Check a store against its specification: structure always, every checksum where asked.

Each thing that is wrong becomes a :class:`Finding` that names the array, shard and chunk and the
sequences that lie there. Verifying never stops at the first, and holds one chunk at a time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.arrays import ArrayMeta
from chunkstore.codecs import ChunkDamageError
from chunkstore.errors import ChunkstoreError, CorruptDataError, FormatError, NotAStoreError
from chunkstore.finish import _fingerprint
from chunkstore.metadata import RootInfo, load_json, parse_root
from chunkstore.places import Place, open_place
from chunkstore.reader import ABSENT, Shard, grouped, parse_shard, read_plain
from chunkstore.store import ChunkStore as _ChunkStore
from chunkstore.text import printable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

__all__ = ["Finding", "VerifyReport", "verify_store"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    code: str
    """Stable: ``format metadata sequences missing-shard index chunk array stray``."""
    message: str
    array: str | None = None
    shard: int | None = None
    chunk: int | None = None
    """Index of the chunk within its shard."""
    start: int | None = None
    """First obs that is affected."""
    stop: int | None = None
    sequences: tuple[str, ...] = ()
    """Ids of the sequences that lie there, the first 5."""
    n_sequences: int = 0
    """How many lie there."""


@dataclass(slots=True)
class VerifyReport:
    """What was checked and what was found."""

    url: str
    deep: bool
    findings: list[Finding] = field(default_factory=list)
    objects: int = 0
    """Stored objects that were looked at."""
    chunks: int = 0
    """Chunks whose checksum and content were checked."""
    nbytes: int = 0
    """Stored bytes of the objects of fields."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "url": self.url,
            "deep": self.deep,
            "ok": self.ok,
            "objects": self.objects,
            "chunks": self.chunks,
            "nbytes": self.nbytes,
            "findings": [asdict(f) for f in self.findings],
        }


def verify_store(
    url: str | os.PathLike[str],
    *,
    deep: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check a store.

    Parameters
    ----------
    url : str or path
    deep : bool
        Also read and decode every chunk, and check its crc32c.
    progress : callable, optional
        Called with (shards done, shards in all).

    Raises
    ------
    NotAStoreError
        If there is no store; anything that is wrong with one is in the report.

    Examples
    --------
    >>> import chunkstore
    >>> with chunkstore.StoreWriter("memory://doc-verify", fields={"x": "f4"}, overwrite=True) as out:
    ...     out.write("a", {"x": [1, 2, 3]})
    >>> report = verify_store("memory://doc-verify", deep=True)
    >>> report.ok, report.chunks
    (True, 1)
    """
    place = open_place(url, storage_options)
    report = VerifyReport(place.url, deep)
    try:
        root = parse_root(place)
        check = _Check(place, root, report, url, storage_options)
    except NotAStoreError:
        raise
    except (FormatError, OSError) as err:
        report.findings.append(Finding("format", str(err)))
        return report
    if root.status != "complete":
        report.findings.append(
            Finding("format", f"store {place.url} is incomplete: its writing has not finished")
        )
    check.metadata()
    if root.status == "complete":
        check.sequences()
    check.fields(progress)
    check.strays()
    return report


class _Check:
    """The checks of one store."""

    def __init__(
        self,
        place: Place,
        root: RootInfo,
        report: VerifyReport,
        url: str | os.PathLike[str],
        options: Mapping[str, Any] | None,
    ) -> None:
        self.place, self.root, self.report = place, root, report
        self.store = _ChunkStore(url, storage_options=options, allow_incomplete=True, engine="direct")
        self.offsets: Any = None
        self.ids: Any = None

    def add(self, code: str, message: str, **where: Any) -> None:
        if where.get("start") is not None:
            ids = where.get("sequences", ())
            more = (
                f" and {where['n_sequences'] - len(ids)} more"
                if where.get("n_sequences", 0) > len(ids)
                else ""
            )
            named = f"; sequences {', '.join(map(repr, ids))}{more}" if ids else ""
            message = f"{message} (obs [{where['start']}, {where['stop']}){named})"
        self.report.findings.append(Finding(code, printable(message, 4000), **where))

    def metadata(self) -> None:
        """Each array's own metadata must say what the root's copy says."""
        for name, meta in self.root.arrays.items():
            try:
                own = load_json(self.place, f"{name}/zarr.json")
                if own is None:
                    self.add("metadata", f"{name}/zarr.json is missing", array=name)
                elif ArrayMeta.parse(name, own) != meta:
                    self.add("metadata", f"{name}/zarr.json differs from the root's copy", array=name)
            except (ChunkstoreError, OSError) as err:
                self.add("metadata", str(err), array=name)

    def sequences(self) -> None:
        """Everything that is not along ``obs`` is small: it is read whole."""
        store = self.store
        for name, meta in self.root.arrays.items():
            if meta.sharded:
                continue
            self.report.objects += meta.n_objects
            try:
                read_plain(self.place, meta)
            except (CorruptDataError, FormatError, OSError) as err:
                self.add("array", str(err), array=name)
        checks: list[tuple[str, Callable[[], Any]]] = [
            ("rowsize", lambda: store.sequences.offsets),
            ("id", lambda: store.sequences.ids),
            ("gap_start", lambda: store.gaps),
            ("statistics", lambda: store.statistics),
            ("fingerprint", lambda: store.fingerprint),
            ("splits", lambda: store.splits),
        ]
        checks += [
            (f"{n}_code", lambda n=n: store.sequences.codes(n))  # type: ignore[misc]
            for n in store.sequences.columns
            if store.sequences.is_categorical(n)
        ]
        for name, call in checks:
            try:
                value = call()
            except CorruptDataError as err:
                self.unless_said(err, name)
                continue
            except (FormatError, OSError) as err:
                self.add("sequences", str(err), array=name)
                continue
            if name == "rowsize":
                self.offsets = value
            if name == "id":
                self.ids = value
                if len(set(value.tolist())) != len(value):
                    self.add("sequences", "an id names two sequences", array="id")

        self.agreement()

    def agreement(self) -> None:
        """Compare what the store says twice: fingerprint and content, labels and codes, counts and obs."""
        store = self.store
        try:
            rowsize, ids, gaps = store.sequences.rowsize, store.sequences.ids, store.gaps
            told = _fingerprint(
                self.root.layout,
                list(self.root.arrays.values()),
                self.root.fields,
                rowsize,
                ids.tolist(),
                gaps,
            )
            if told != store.fingerprint:
                self.add("sequences", f"the fingerprint is {store.fingerprint}, the content gives {told}")
            obs = store.n_obs - int((gaps[:, 1] - gaps[:, 0]).sum())
            for name, found in store.statistics.items():
                counted = {c + n for c, n in zip(found.counts, found.null_counts, strict=True)}
                if counted - {obs}:
                    self.add(
                        "sequences",
                        f"the statistics of {name!r} count {max(counted)} values and nulls, outside gaps "
                        f"there are {obs} obs",
                        array=name,
                    )
            for name in store.sequences.columns:
                if store.sequences.is_categorical(name):
                    words = np.array([*store.sequences.categories(name), ""], dtype=object)
                    wrong = np.flatnonzero(words[store.sequences.codes(name)] != store.sequences.column(name))
                    if len(wrong):
                        at = int(wrong[0])
                        self.add(
                            "sequences",
                            f"{name} and {name}_code differ in {len(wrong)} sequences, first {ids[at]!r}: "
                            f"{store.sequences.column(name)[at]!r:.60} has the code of "
                            f"{words[store.sequences.codes(name)[at]]!r:.60}",
                            array=name,
                        )
        except (CorruptDataError, FormatError, OSError) as err:
            self.unless_said(err, None)

    def unless_said(self, err: Exception, array: str | None) -> None:
        """Report damage that an earlier check has not met: storage may answer the second time otherwise."""
        if not any(f.code in ("array", "sequences") for f in self.report.findings):
            self.add("array", str(err), array=array)

    def where(self, low: int, high: int) -> dict[str, Any]:
        """Return the obs and sequences of a range, for a finding."""
        found: dict[str, Any] = {"start": low, "stop": min(high, self.root.layout.n_obs)}
        if self.offsets is None or self.ids is None:
            return found
        first = int(np.searchsorted(self.offsets, low, side="right")) - 1
        last = int(np.searchsorted(self.offsets, found["stop"], side="left"))
        found["sequences"] = tuple(self.ids[first : min(last, first + 5)].tolist())
        found["n_sequences"] = max(0, last - first)
        return found

    def fields(self, progress: Callable[[int, int], None] | None) -> None:
        """Every shard: that it is there, its index, and deep, its chunks."""
        arrays = [a for a in self.root.arrays.values() if a.sharded]
        jobs = [(meta, index) for meta in arrays for index in self._shards(meta)]
        for done, (meta, index) in enumerate(jobs, 1):
            self._shard(meta, index)
            if progress:
                progress(done, len(jobs))

    def _shard(self, meta: ArrayMeta, index: int) -> None:
        low = index * meta.shard

        def bad(code: str, text: str) -> None:
            self.add(code, text, array=meta.name, shard=index, **self.where(low, low + meta.shard))

        try:
            blob = self.place.blob(meta.key(index), 16 * meta.chunks_per_shard + 4)
        except (ChunkstoreError, OSError) as err:
            bad("index", str(err))
            return
        if blob is None:
            bad("missing-shard", f"{meta.key(index)} is missing, though the store says it was written")
            return
        self.report.objects += 1
        self.report.nbytes += blob.size
        try:
            shard = parse_shard(blob, meta.chunks_per_shard)
            self._check_index(meta, index, shard)
        except ChunkDamageError as err:
            bad("index", f"{meta.key(index)}: {err}")
            return
        if self.report.deep:
            self._chunks(meta, index, shard)

    def _shards(self, meta: ArrayMeta) -> list[int]:
        """Return the shards to look at: those that must be there and those that are."""
        kept = self.root.own.get("shards", {})
        ranges = kept.get(meta.name, []) if isinstance(kept, dict) else []
        found: set[int] = set()
        try:
            for low, high in ranges:
                if not 0 <= low < high <= max(meta.n_objects, 0):
                    raise ValueError
                found.update(range(low, high))
        except (TypeError, ValueError):
            self.add("format", f"the list of stored shards of {meta.name!r} is damaged", array=meta.name)
        if self.place.kind == "http":
            return sorted(found)
        there = set(self.store_shards(meta))
        if self.root.status == "complete":
            for index in sorted(there - found):
                self.add(
                    "stray",
                    f"{meta.key(index)} is stored, but the store does not list it",
                    array=meta.name,
                    shard=index,
                )
        return sorted(found | {i for i in there if i < meta.n_objects})

    def store_shards(self, meta: ArrayMeta) -> list[int]:
        """Return the shards of an array that are stored."""
        end = "/0" if meta.items else ""
        lead = f"{meta.name}/c/"
        try:
            keys = [key for key, _ in self.place.walk(lead[:-1]) if key.endswith(end)]
        except (FormatError, OSError) as err:
            self.add("stray", str(err), array=meta.name)
            return []
        texts = [key[len(lead) : len(key) - len(end)] for key in keys]
        return [int(t) for t in texts if t.isascii() and t.isdigit()]

    def _check_index(self, meta: ArrayMeta, index: int, shard: Shard) -> None:
        """Chunks must fill the object from its start to its index, without overlap."""
        present = shard.offsets != ABSENT
        order = np.argsort(shard.offsets[present], kind="stable")
        offsets, lengths = shard.offsets[present][order], shard.lengths[present][order]
        ends = offsets + lengths
        size = shard.blob.size - 16 * meta.chunks_per_shard - 4
        if len(offsets) and ((offsets[1:] != ends[:-1]).any() or offsets[0] != 0 or int(ends[-1]) != size):
            raise ChunkDamageError("its chunks overlap, or leave bytes that belong to none")
        beyond = max(0, -(-(meta.shape[0] - index * meta.shard) // meta.chunk))
        if present[beyond:].any():
            raise ChunkDamageError("it holds chunks beyond the end of obs")

    def _chunks(self, meta: ArrayMeta, index: int, shard: Shard) -> None:
        """Read the chunks of a shard, neighbours at once, and decode each."""
        scratch = np.empty(meta.chunk_shape, meta.dtype)
        present = np.flatnonzero(shard.offsets != ABSENT).tolist()
        spans = sorted((int(shard.offsets[c]), int(shard.lengths[c]), c) for c in present)
        for group in grouped(spans):
            base = group[0][0]
            end = max(offset + length for offset, length, _ in group)
            try:
                data = memoryview(shard.blob.read([(base, end)])[0])
            except OSError as err:
                data = memoryview(b"")
                reason = f"cannot be read: {err}"
            else:
                reason = "the object ends sooner than its index says"
            for start, length, chunk in group:
                self.report.chunks += 1
                part = data[start - base : start - base + length]
                try:
                    if len(part) != length:
                        raise ChunkDamageError(reason)
                    meta.codec.decode_into(part, scratch)
                except ChunkDamageError as err:
                    low = index * meta.shard + chunk * meta.chunk
                    self.add(
                        "chunk",
                        f"{meta.key(index)}, chunk {chunk} at byte {start}: {err}",
                        array=meta.name,
                        shard=index,
                        chunk=chunk,
                        **self.where(low, low + meta.chunk),
                    )

    def strays(self) -> None:
        """Objects that the specification does not know, and links."""
        if self.place.kind == "http":
            return
        known = {"zarr.json"} | {f"{n}/zarr.json" for n in self.root.arrays}
        try:
            keys = [key for key, _ in self.place.walk()]
        except OSError as err:
            self.add("stray", f"what else is stored cannot be listed: {err}")
            return
        for key in keys:
            name, _, rest = key.partition("/c/")
            meta = self.root.arrays.get(name)
            fits = (
                meta is not None
                and rest
                and key in {meta.key(int(p)) for p in rest.split("/")[:1] if p.isdigit()}
            )
            if key not in known and not fits:
                self.add("stray", f"{key} is no part of the store")
            elif fits and meta is not None and int(rest.split("/")[0]) >= meta.n_objects:
                self.add("stray", f"{key} lies beyond the end of {name}", array=name)
            try:
                self.place.check_key(key)
            except FormatError as err:
                self.add("stray", str(err))

"""Open a store: the handle that users hold.

A :class:`ChunkStore` is an open store (:mod:`chunkstore.opened`) with all that is built on one: splits,
xarray views, sound, the look of it in a notebook. Writing is in ``chunkstore.writer``, conversion from
xarray in ``chunkstore.convert``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkstore.engine import EngineInfo
from chunkstore.opened import OpenStore
from chunkstore.segments import Segments, cut_segments
from chunkstore.splits import add_split, load_splits, part_segments
from chunkstore.views import sequence_dataset, store_dataset

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    import xarray as xr

    from chunkstore.audio import Sound
    from chunkstore.audits import SplitAudit
    from chunkstore.splits import SplitSet

__all__ = ["ChunkStore", "EngineInfo", "open_store"]


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


class ChunkStore(OpenStore):
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

    def _repr_html_(self) -> str:
        from chunkstore.notebook import store_html

        return store_html(self)

    # -- segments and splits ------------------------------------------------------------------

    def segments(self, split: str | None = None) -> Segments:
        """Return the stretches of obs in which windows may live.

        Parameters
        ----------
        split : str, optional
            A part of a split, ``"train"``; ``"name:train"`` where several splits have that part.
        """
        if split is not None:
            return part_segments(self, split)
        return cut_segments(self.sequences.offsets, gaps=self.gaps)

    @property
    def splits(self) -> Mapping[str, SplitSet]:
        """The splits that are kept in the store, by name."""
        return load_splits(self)

    def add_split(self, name: str, **options: Any) -> SplitSet:
        """Choose and keep a split; see :func:`chunkstore.splits.add_split` for the options."""
        return add_split(self, name, **options)

    def audit_splits(self, window: int = 1, horizon: int = 0) -> SplitAudit:
        """Prove that no obs is seen by two parts of a split; see :func:`chunkstore.audits.audit_splits`."""
        from chunkstore.audits import audit_splits  # here, so that opening and reading load less

        return audit_splits(self, window=window, horizon=horizon)

    # -- views --------------------------------------------------------------------------------

    def sequence(self, id: str) -> xr.Dataset:  # noqa: A002 - the format's own word
        """Return one sequence as an xarray Dataset along ``obs``."""
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
        return store_dataset(self)

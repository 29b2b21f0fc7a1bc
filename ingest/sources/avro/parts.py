"""The parts of a scan, kept as a few integers each, made into :class:`~ingest.protocol.Part` on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ingest.lazy import LazyList
from ingest.protocol import Part
from ingest.sources.avro.survey import file_ids, limits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.sources.avro.columns import Plan
    from ingest.sources.avro.options import AvroOptions
    from ingest.sources.avro.survey import FileSurvey

__all__ = ["PartTable"]

_FIXED = 48 << 20
#: rows with keys that are decoded at a time, unless one block has more
KEYED_ROWS = 1 << 17
#: bytes of a key that is met once: in the kernel's dictionary while it grows, and as text
_KEY = 320


class PartTable(LazyList[Part]):
    """All parts of a scan, in order: a lazy sequence, eight integers a part.

    Parameters
    ----------
    surveys
        The readable files.
    options
        Of the source.
    plan
        What is taken of each record.
    """

    def __init__(self, surveys: Sequence[FileSurvey], options: AvroOptions, plan: Plan) -> None:
        self._urls = [s.url for s in surveys]
        self._identities = [s.identity for s in surveys]
        self._ids = file_ids(self._urls)
        self._per = options.sequence_per
        self._placed = self._per in {"file", "all"}
        self._labels = bool(plan.labels)
        rows = [
            (i, p.start, p.stop, p.block, p.row, p.rows - (0 if self._placed else p.lost), p.largest, p.most)
            for i, s in enumerate(surveys)
            for p in s.slices
        ]
        self._table = np.array(rows, np.int64).reshape(-1, 8)
        self._limits = limits_of(options)
        self._codecs = [s.header.codec if s.header else "null" for s in surveys]
        self._row_bytes = plan.row_bytes
        self._cost = plan.row_bytes + 12 * (len(plan.keys) + len(plan.labels))
        self._words = len(plan.words)
        self._per_record = plan.per_record

    @property
    def keys(self) -> tuple[str, ...]:
        """Sequence ids of placed inputs."""
        if self._per == "file":
            return tuple(self._ids)
        return ("all",) if self._per == "all" else ()

    def __len__(self) -> int:
        return len(self._table)

    def item(self, index: int) -> Part:
        """Make one part."""
        file, start, stop, block, row, rows, largest, most = self._table[index].tolist()
        payload: dict[str, int | str] = {"start": start, "stop": stop, "block": block, "row": row}
        if self._per == "record":
            payload["id"] = self._ids[file]
        elif self._labels and self._per is not None:
            payload["key"] = self.keys[file if self._per == "file" else 0]
        return Part(
            index=index,
            file=self._urls[file],
            identity=self._identities[file],
            nbytes=stop - start,
            claimed=rows if not self._per_record else -1,
            memory=self._memory(self._codecs[file], largest, most) + self._keys(rows, most),
            sequence={"file": file, "all": 0}.get(self._per or "", -1),
            payload=payload,
        )

    def _keys(self, rows: int, most: int) -> int:
        """Bytes of keys and labels, if those of all rows at hand are different."""
        return self._words * _KEY * max(most, min(rows, KEYED_ROWS))

    def _memory(self, codec: str, largest: int, most: int) -> int:
        """Peak bytes of reading: a slab of encoded bytes, its arena, and the columns of its rows."""
        block = largest if codec == "null" else min(self._limits.decoded(largest), 32 * largest + (1 << 16))
        return _FIXED + 2 * largest + 2 * block + 3 * most * self._cost

"""Segments of scratch, and proof that what is read of them is what was written.

A segment is one object: its columns one after the other, then a crc32c of each page of each column. A page
is a fixed number of rows: who reads a few rows checks a few pages, and nothing is checked twice. The receipt
of staging holds a crc32c of these sums: another segment in its place is as wrong as a flipped bit.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from chunkstore.errors import CorruptDataError, IngestError
from ingest.folder import LocalFolder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.exchange import SegmentRef
    from ingest.folder import Folder

__all__ = ["DamagedScratchError", "SegmentReader", "page_rows", "page_sums"]

#: bytes of a page of a column, about
PAGE = 1 << 18


class DamagedScratchError(CorruptDataError):
    """A segment does not hold what was written to it."""

    def __init__(self, segment: str, message: str) -> None:
        super().__init__(message)
        self.segment = segment


def page_rows(width: int) -> int:
    """Return the rows of a page of a column with ``width`` bytes a row.

    Examples
    --------
    >>> page_rows(8), page_rows(1 << 20)
    (32768, 1)
    """
    return max(1, PAGE // max(1, width))


def page_sums(data: Iterable[np.ndarray], width: int) -> np.ndarray:
    """Return the crc32c of each page of a column, uint32, from its bytes, uint8, in one or more pieces.

    Examples
    --------
    >>> pieces = np.frombuffer(b"1234", np.uint8), np.frombuffer(b"56789", np.uint8)
    >>> page_sums(pieces, 1 << 20).tolist() == [0xE3069283]
    True
    """
    step = page_rows(width) * width
    sums: list[int] = []
    left = 0  # bytes that the last page still takes
    for piece in data:
        view = piece.view()
        view.flags.writeable = False  # the library takes read-only buffers only
        if left:
            sums[-1] = google_crc32c.extend(sums[-1], view[:left])
        sums += [google_crc32c.value(view[at : at + step]) for at in range(left, len(view), step)]
        left = (left - len(view)) % step
    return np.array(sums, "<u4")


class SegmentReader:
    """Columns of one segment, checked where they are touched.

    Parameters
    ----------
    folder : Folder
        Scratch.
    ref : SegmentRef
        What lies there; a segment of an older version may have no sums, and is then believed.

    Raises
    ------
    IngestError
        From its methods, if the segment is gone or shorter than it was.
    DamagedScratchError
        If it holds something else than what was written.
    """

    def __init__(self, folder: Folder, ref: SegmentRef) -> None:
        self.folder, self.ref = folder, ref
        self.local = isinstance(folder, LocalFolder)
        self._whole: np.ndarray | None = None
        self._sums: np.ndarray | None = None
        self._good: dict[str, bytearray] = {}
        self._columns: dict[str, tuple[np.ndarray, bytearray, int, int]] = {}

    def column(self, name: str, low: int, high: int) -> tuple[np.ndarray, int]:
        """Return (values, row of the first) that hold at least rows [low, high) of a column, not checked yet.

        A local segment is mapped whole, once; of a remote one whole pages are read.
        """
        offset, dtype, items, _ = self.ref.columns[name]
        kind, width = np.dtype(dtype), max(1, items)
        if self.local:
            low, high = 0, self.ref.rows
        else:
            self._good.pop(name, None)  # another read may have gone wrong where the last did not
            step = page_rows(width * kind.itemsize)
            low, high = low // step * step, min(self.ref.rows, -(-high // step) * step)
        flat = self._bytes(offset + low * width * kind.itemsize, (high - low) * width * kind.itemsize).view(
            kind
        )
        return (flat.reshape(high - low, items) if items else flat), low

    def _bytes(self, offset: int, count: int) -> np.ndarray:
        try:
            if not self.local:
                found = self.folder.array(self.ref.name, offset, np.dtype(np.uint8), count)
                if found.size != count:
                    raise self._lost()
                return found
            if self._whole is None:
                self._whole = self._mapped()
        except (FileNotFoundError, ValueError) as error:
            raise self._lost() from error
        if offset + count > self._whole.size:
            raise self._lost()
        return self._whole[offset : offset + count]

    def _mapped(self) -> np.ndarray:
        assert isinstance(self.folder, LocalFolder)
        with self.folder.open(self.ref.name) as file:
            try:
                whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:  # an empty file cannot be mapped
                return np.empty(0, np.uint8)
        return np.frombuffer(whole, np.uint8)

    def _lost(self) -> IngestError:
        return IngestError(
            f"scratch {self.folder.url} has lost {self.ref.name}; run again with --resume, which stages it "
            "anew"
        )

    def run(self, name: str, row: int, rows: int) -> np.ndarray:
        """Return rows [row, row + rows) of a column as they lie, checked; of local segments only."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = (self.column(name, 0, self.ref.rows)[0], *self._pages(name))
        values, good, step, first = found
        if self.ref.sums is not None:
            for page in range(row // step, (row + rows - 1) // step + 1):
                if not good[page]:
                    self._check_page(name, values[page * step : (page + 1) * step], page, step, first)
                    good[page] = 1
        return values[row : row + rows]

    def _pages(self, name: str) -> tuple[bytearray, int, int]:
        """Return (which pages of a column are known to be good, rows of a page, index of its first sum)."""
        _, dtype, items, first = self.ref.columns[name]
        step = page_rows(np.dtype(dtype).itemsize * max(1, items))
        good = self._good.get(name)
        if good is None:
            good = self._good[name] = bytearray(-(-self.ref.rows // step))
        return good, step, first

    def _check_page(self, name: str, values: np.ndarray, page: int, step: int, first: int) -> None:
        data = values.reshape(-1).view(np.uint8)  # read-only, as it came
        if google_crc32c.value(data) != self._sum(first + page):
            raise self._damaged(f"rows from {page * step} on of {name!r}")

    def _damaged(self, what: str) -> DamagedScratchError:
        return DamagedScratchError(
            self.ref.name,
            f"{self.ref.name} in scratch {self.folder.url} is damaged: {what} are not what was written "
            "there; it is removed, run again with --resume, which stages it anew",
        )

    def check(
        self, name: str, values: np.ndarray, base: int, rows: np.ndarray, lengths: np.ndarray | None = None
    ) -> None:
        """Compare with their sums the pages in which some rows lie.

        Parameters
        ----------
        name, values, base
            A column, and what :meth:`column` returned.
        rows : int64[n]
            Rows, or the first of each of some runs.
        lengths : int64[n], optional
            Rows of each run, at least 1.
        """
        if self.ref.sums is None or not rows.size:
            return
        good, step, first = self._pages(name)
        if lengths is None:
            hit = np.zeros(len(good), bool)
            hit[rows // step] = True
        else:
            edges = np.zeros(len(good) + 1, np.int64)
            np.add.at(edges, rows // step, 1)
            np.add.at(edges, (rows + lengths - 1) // step + 1, -1)
            hit = np.cumsum(edges[:-1]) > 0
        for page in np.flatnonzero(hit).tolist():
            if not good[page]:
                low = page * step - base
                self._check_page(name, values[low : low + step], page, step, first)
                good[page] = 1

    def _sum(self, index: int) -> int:
        if self._sums is None:
            assert self.ref.sums is not None
            offset, count, crc = self.ref.sums
            table = self._bytes(offset, 4 * count)
            if google_crc32c.value(table) != crc:
                raise self._damaged("its checksums")
            self._sums = table.view("<u4")
        return int(self._sums[index])

"""Arrays in ``.npy`` files, one sequence a file: the shortest whole source, and the pattern for another.

A source says what the inputs hold without reading them (:meth:`NpySource.scan`) and reads one part
when asked (:meth:`NpySource.read`). That is all: planning, placing, writing, faults that
end a job, resuming and reporting belong to the engine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import ConfigError, InputError, UnsupportedError
from chunkstore.layout import FieldSpec
from chunkstore.numbers import whole_number
from ingest.inputs import is_url
from ingest.parts import Parts
from ingest.protocol import Batch, Fault, Part, Scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CODES", "NpySource"]

#: fault codes of this source
CODES = {
    "npy-unreadable": "not a .npy file, or its header is damaged",
    "npy-other": "the array has another dtype or number of items than the first",
    "npy-truncated": "the file ends before its array does; the rows that are missing are a gap",
}
_ROWS = 65536
#: what a header may claim beyond the bytes that are there, and still be taken for that of a file cut short:
#: so many bytes, or so many times those that are there
_MISSING, _TIMES = 16 << 20, 1000


class NpySource:
    """One array a file, [obs] or [obs, items], all of one dtype; each file is one sequence.

    Parameters
    ----------
    field : str
        Name of the field.
    rate : float, optional
        Obs a second, kept along ``sequence``.
    part_rows : int
        Rows that one part holds: a long file is several parts.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "a.npy", np.arange(5.0))
    >>> source = NpySource(part_rows=4)
    >>> scan = source.scan([str(folder / "a.npy")])
    >>> [part.claimed for part in scan.parts], scan.keys
    ([4, 1], ('a',))
    >>> [batch.columns["x"].tolist() for batch in source.read(scan.parts[1])]
    [[4.0]]
    """

    name = "npy"
    suffixes = (".npy",)

    def __init__(self, field: str = "x", rate: float | None = None, part_rows: int = 1 << 20) -> None:
        if rate is not None and not 0 < rate < float("inf"):
            raise ConfigError(f"rate is {rate}; it must be a number of obs a second, above 0")
        self.field = field
        self.rate = rate
        self.part_rows = whole_number("part_rows", part_rows, 1)

    def identity(self, file: str) -> str:
        """Size and time of the last change."""
        stat = os.stat(file)  # noqa: PTH116  # a path that is a string everywhere else
        return f"{stat.st_size}-{stat.st_mtime_ns}"

    def scan(self, inputs: Sequence[str]) -> Scan:
        """Read the headers.

        Raises
        ------
        InputError
            If no file can be read.
        UnsupportedError
            If an input is not on a disk of this machine.
        """
        if away := [file for file in inputs if is_url(file)]:
            raise UnsupportedError(f"npy files are read from disks only; copy {away[0]!r} to one")
        faults: list[Fault] = []
        parts = Parts()
        keys: list[str] = []
        taken: set[str] = set()
        first: tuple[np.dtype[Any], int] | None = None
        for file in inputs:
            try:
                identity = self.identity(file)
                shape, dtype, offset = _header(file)
            except Exception as error:  # numpy evaluates the header: a wrong one ends in any error
                why = str(error) or type(error).__name__
                faults.append(Fault("npy-unreadable", file, f"cannot read the header: {why[:200]}"))
                continue
            items = shape[1] if len(shape) == 2 else 0
            first = first or (dtype, items)
            if (dtype, items) != first:
                message = f"holds {dtype} with {items} items, the first file {first[0]} with {first[1]}"
                faults.append(Fault("npy-other", file, message, rows=shape[0]))
                continue
            width = dtype.itemsize * max(1, items)
            for start in range(0, max(1, shape[0]), self.part_rows):
                rows = min(self.part_rows, shape[0] - start)
                parts.append(
                    Part(
                        index=len(parts),
                        file=file,
                        identity=identity,
                        nbytes=rows * width,
                        claimed=rows,
                        memory=3 * min(rows, _ROWS) * width + 4096,
                        sequence=len(keys),
                        payload={"offset": offset + start * width, "dtype": dtype.str, "items": items},
                    )
                )
            stem = Path(file).stem
            keys.append(stem if stem not in taken else file)
            taken.add(keys[-1])
        if first is None:
            why = f": {faults[0].message}" if faults else ""
            raise InputError(f"none of {len(inputs)} files is a .npy file of numbers{why}")
        labels = {} if self.rate is None else {"sample_rate": (self.rate,) * len(keys)}
        return Scan(
            source=self.name,
            fields=(FieldSpec(self.field, first[0].name, items=first[1]),),
            parts=parts,
            keys=tuple(keys),
            placed=True,
            key_labels=labels,
            faults=tuple(faults),
            options={"field": self.field, "rate": self.rate, "part_rows": self.part_rows},
            versions={"numpy": np.__version__},
        )

    def read(self, part: Part) -> Iterator[Batch]:
        """Read one part, some rows at a time; rows that the file does not hold are lost."""
        dtype = np.dtype(part.payload["dtype"])
        items = int(part.payload["items"])
        width = dtype.itemsize * max(1, items)
        native = dtype.newbyteorder("=")
        with Path(part.file).open("rb") as data:
            data.seek(part.payload["offset"])
            for start in range(0, part.claimed, _ROWS):
                rows = min(_ROWS, part.claimed - start)
                raw = data.read(rows * width)
                got = len(raw) // width
                values = np.zeros((rows, items) if items else rows, native)
                values[:got] = np.frombuffer(raw[: got * width], dtype).reshape(values[:got].shape)
                lost: tuple[tuple[int, int], ...] = ()
                faults: tuple[Fault, ...] = ()
                if got < rows:
                    lost = ((got, rows),)
                    message = f"the file ends {rows - got} rows before its array does"
                    faults = (Fault("npy-truncated", part.file, message, rows=rows - got, action="gap"),)
                yield Batch({self.field: values}, rows, lost=lost, faults=faults)


def _header(file: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return (shape, dtype, offset of the values) of a .npy file."""
    if not Path(file).is_file():
        raise OSError("it is no regular file")
    with Path(file).open("rb") as data:
        version = np.lib.format.read_magic(data)
        if version not in {(1, 0), (2, 0), (3, 0)}:
            raise ValueError(f"there is no version {version[0]}.{version[1]} of the format")
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(data)
        offset, size = data.tell(), os.fstat(data.fileno()).st_size
    many = len(shape) == 2
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or len(shape) not in (1, 2) or (fortran and many):
        raise ValueError(f"holds {dtype}{list(shape)}, not numbers by row")
    if min(shape) < 0 or (many and not shape[1]):
        raise ValueError(f"the shape is {list(shape)}")
    there = max(0, size - offset)
    missing = shape[0] * dtype.itemsize * (shape[1] if many else 1) - there
    if missing > max(_MISSING, _TIMES * there):
        raise ValueError(
            f"claims {shape[0]} rows and holds {there} bytes, which is no file that was cut short"
        )
    return shape, dtype, offset

"""What a decoder makes of some blocks, and the protocol that both decoders follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from ingest.sources.avro.columns import Column

__all__ = ["Decoded", "Decoder", "blank", "key_text"]


@dataclass(slots=True)
class Decoded:
    """Columns of some consecutive blocks.

    Records keep the place that their block claimed: block ``b`` has the records from
    ``sum(counts[:b])`` on, whether it decoded or not. Where records are obs, so do the rows of the
    columns; where records are sequences, obs are packed and a record of a bad block has none.
    """

    columns: dict[str, np.ndarray]
    """Name -> [rows] or [rows, items]; masks as ``<name>_valid``."""
    status: np.ndarray
    """int32[blocks]; 0 is good, else an index into ``faults.STATUS_CODES``."""
    where: np.ndarray
    """int64[blocks]: byte in the decoded block at which it went wrong."""
    dictionaries: dict[str, tuple[np.ndarray, tuple[str | int | float | bool | None, ...]]] = field(
        default_factory=dict
    )
    """Steps of a key or label, joined -> int32[records] codes (-1: none) and the values they stand for."""
    rowsize: np.ndarray | None = None
    """int64[records]: obs of each record, where records are sequences."""


class Decoder(Protocol):
    """Turns decoded blocks into columns."""

    name: str

    def decode(self, arena: np.ndarray, starts: np.ndarray, stops: np.ndarray, counts: np.ndarray) -> Decoded:
        """Decode blocks.

        Parameters
        ----------
        arena : uint8[n]
            Decompressed bytes.
        starts, stops : int64[blocks]
            Where each block lies in the arena; a block with ``stop < start`` is bad already and
            keeps its place.
        counts : int64[blocks]
            Records that each block claims.
        """
        ...


def blank(c: Column, rows: int) -> np.ndarray:
    """Rows of nulls."""
    dtype = np.dtype(c.dtype)
    fill: Any = np.nan if dtype.kind == "f" else (c.null_value or 0)
    return np.full((rows, c.items) if c.items else rows, fill, dtype)


def key_text(value: bytes, kind: str) -> str:
    """Text of a key's bytes: UTF-8 for strings, else ASCII or hexadecimal digits.

    Examples
    --------
    >>> key_text(b"A7", "bytes"), key_text(bytes([0, 255]), "fixed")
    ('A7', '00ff')
    """
    if kind == "string":
        return value.decode("utf-8")
    if value and all(32 <= b < 127 for b in value):
        return value.decode("ascii")
    return value.hex()

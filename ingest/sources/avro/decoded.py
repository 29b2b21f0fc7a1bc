"""What a decoder makes of some blocks, and the protocol that both decoders follow."""

from __future__ import annotations

import uuid
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


def key_text(value: bytes, kind: str, scale: int = 0) -> str:
    """Text of a key's bytes; different bytes of one kind never read the same.

    UTF-8 for strings, digits for decimals, else ASCII or hexadecimal digits. Those of ``bytes``, whose
    length says nothing, stand behind ``0x``.

    Examples
    --------
    >>> key_text(b"A7", "bytes"), key_text(bytes([0, 255]), "fixed"), key_text(bytes([0, 255]), "bytes")
    ('A7', '00ff', '0x00ff')
    >>> key_text(bytes([255, 131]), "decimal", scale=2)
    '-1.25'
    """
    if kind == "string":
        return value.decode("utf-8")
    if kind == "decimal":
        number = int.from_bytes(value, "big", signed=True)
        digits = str(abs(number)).zfill(scale + 1)
        cut = len(digits) - scale
        return "-" * (number < 0) + digits[:cut] + ("." + digits[cut:] if scale else "")
    if kind == "uuid":
        return str(uuid.UUID(bytes=value))
    if value and all(32 <= b < 127 for b in value) and not (kind == "bytes" and value.startswith(b"0x")):
        return value.decode("ascii")
    return ("0x" if kind == "bytes" and value else "") + value.hex()

"""One store of several: ``chunkstore merge A B -o C``."""

from __future__ import annotations

from chunkstore.errors import UnsupportedError

__all__ = ["merge"]


def merge(*_: object, **__: object) -> None:
    """Not built yet."""
    raise UnsupportedError("merging stores is not built yet; several stores can be trained on as one")

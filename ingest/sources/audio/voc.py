"""Creative Voice files: which of them libsndfile reads as they are meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["simple"]

_SOUND = (1, 2, 9)
_SILENCE = 3


def simple(file: BinaryIO) -> bool:
    """Whether all sound stands in one block: libsndfile takes the headers of further ones for samples.

    Examples
    --------
    >>> import io
    >>> head = b"Creative Voice File" + bytes([0x1A, 26, 0, 10, 1, 0x29, 0x11])
    >>> block = bytes([1, 4, 0, 0, 131, 0, 128, 128])
    >>> simple(io.BytesIO(head + block + bytes(1))), simple(io.BytesIO(head + 2 * block + bytes(1)))
    (True, False)
    """
    file.seek(20)
    at, sounds = int.from_bytes(file.read(2), "little"), 0
    for _ in range(10_000):
        file.seek(at)
        header = file.read(4)
        if len(header) < 4 or header[0] == 0:
            break
        sounds += header[0] in _SOUND
        if sounds > 1 or header[0] == _SILENCE:
            return False
        at += 4 + int.from_bytes(header[1:], "little")
    return True

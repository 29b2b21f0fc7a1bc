"""How a batch gets from a worker process to the loop: large tensors through slots of shared memory.

torch would hand over a file descriptor for every tensor of every batch, which costs more than the
batch itself. Here a worker keeps a few slots, hands over the descriptor of each once, and uses it
again as soon as the receiver has copied its contents; small tensors travel in the message.
Nothing is named in ``/dev/shm``: slots vanish with the processes that hold them.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import numpy as np
import torch

__all__ = ["SharedBatch", "forget_gone"]

LEAST = 16 * 1024  # bytes from which a tensor travels in a slot
HEAD = 64  # bytes before the contents of a slot; the first says whether they are still to be copied


class SharedBatch(dict[str, Any]):
    """A batch that leaves its process in slots, and arrives as a plain dict of tensors of its own."""

    def __copy__(self) -> SharedBatch:
        return SharedBatch(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (_own_slots().origin, [(key, _pack(value)) for key, value in self.items()])


class _Slots:
    """The slots of a worker."""

    def __init__(self) -> None:
        self.origin = (os.getpid(), secrets.randbits(64))
        self._slots: list[torch.Tensor] = []

    def put(self, flat: torch.Tensor) -> tuple[int, torch.Tensor | None]:
        """Copy bytes into a free slot; return its number, and the slot itself the first time."""
        size = len(flat)
        for number, slot in enumerate(self._slots):
            if len(slot) >= HEAD + size and not int(slot[0]):
                _copy(slot[HEAD : HEAD + size], flat)
                slot[0] = 1
                return number, None
        slot = torch.zeros(HEAD + size, dtype=torch.uint8)
        slot.share_memory_()  # type: ignore[no-untyped-call]
        _copy(slot[HEAD:], flat)
        slot[0] = 1
        self._slots.append(slot)
        return len(self._slots) - 1, slot


_mine: list[_Slots] = []  # of this process; a list, so that a forked child can tell that it is not its own
_theirs: dict[tuple[int, int], dict[int, torch.Tensor]] = {}  # slots of workers, by origin and number


def _own_slots() -> _Slots:
    if not _mine or _mine[0].origin[0] != os.getpid():
        _mine[:] = [_Slots()]
    return _mine[0]


def _pack(value: Any) -> Any:
    """Return what stands for a value in the message."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        return "as is", value
    value = value.detach().contiguous()
    flat = value.reshape(-1).view(torch.uint8) if value.numel() else value.new_empty(0, dtype=torch.uint8)
    if len(flat) < LEAST:
        return "small", bytes(flat.numpy()), value.dtype, tuple(value.shape)
    number, slot = _own_slots().put(flat)
    return "slot", number, slot, len(flat), value.dtype, tuple(value.shape)


def _arrive(origin: tuple[int, int], packed: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the batch; called where the message is read."""
    if origin not in _theirs:
        forget_gone()
        _theirs[origin] = {}
    known = _theirs[origin]
    batch: dict[str, Any] = {}
    for key, (kind, *rest) in packed:
        if kind == "as is":
            (batch[key],) = rest
        elif kind == "small":
            data, dtype, shape = rest
            flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
            batch[key] = flat.reshape(shape)
        else:
            number, slot, size, dtype, shape = rest
            slot = known.setdefault(number, slot)
            out = torch.empty(shape, dtype=dtype)
            _copy(out.reshape(-1).view(torch.uint8), slot[HEAD : HEAD + size])
            slot[0] = 0
            batch[key] = out
    return batch


def _copy(out: torch.Tensor, flat: torch.Tensor) -> None:
    """Copy bytes by numpy: torch would share even this among threads that spin until all have come.

    On a busy machine, which is where workers are used, that costs ten times the copy.
    """
    np.copyto(out.numpy(), flat.numpy())


def forget_gone() -> None:
    """Give back the slots of workers that have ended."""
    for origin in list(_theirs):
        try:
            os.kill(origin[0], 0)
        except ProcessLookupError:
            _theirs.pop(origin, None)
        except PermissionError:  # alive, of another user
            continue

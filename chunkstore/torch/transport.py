"""How a batch gets from a worker process to the loop: large tensors through slots of shared memory.

torch would hand over a file descriptor for every tensor of every batch, which costs more than the
batch itself. Here a worker keeps a few slots, hands over the descriptor of each once, and uses it
again as soon as the receiver has let go of its contents; small tensors travel in the message.
What arrives lies in its slot as long as somebody holds it. Of one worker a few batches may do so;
whoever keeps more gets copies, so that shared memory stays small however long they are kept.
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
HEAD = 64  # bytes before the contents of a slot; the first says whether they are still needed
LEASED = 3  # slots of one worker whose contents may be used where they lie


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


class _Sender:
    """A worker as its receiver knows it."""

    def __init__(self) -> None:
        self.slots: dict[int, torch.Tensor] = {}
        self.leased: list[None] = []  # one for each slot in use; a list, since its ends are atomic


class _Lease:
    """What a tensor that lies in a slot stands on; gives the slot back with its last holder."""

    __slots__ = ("__array_interface__", "_flag", "_leased")

    def __init__(self, sender: _Sender, slot: torch.Tensor, size: int) -> None:
        self._flag, self._leased = slot.numpy(), sender.leased  # the array keeps the memory
        self._leased.append(None)
        place = (slot.data_ptr() + HEAD, False)
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": place}

    def __del__(self) -> None:
        self._flag[0] = 0
        self._leased.pop()


_mine: list[_Slots] = []  # of this process; a list, so that a forked child can tell that it is not its own
_theirs: dict[tuple[int, int], _Sender] = {}  # slots of workers, by origin


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
        _theirs[origin] = _Sender()
    sender = _theirs[origin]
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
            slot = sender.slots.setdefault(number, slot)
            if len(sender.leased) < LEASED:
                flat = torch.from_numpy(np.asarray(_Lease(sender, slot, size)))
                batch[key] = flat.view(dtype).reshape(shape)
                continue
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

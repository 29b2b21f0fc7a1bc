"""How a batch gets from a worker process to the loop: large tensors through slots of shared memory.

torch would hand over a file descriptor for every tensor of every batch, which costs more than the
batch itself. Here a worker keeps a few slots, hands over the descriptor of each once, and uses it
again as soon as the receiver has let go of its contents; small tensors travel in the message.
A worker cuts its windows in a free slot to begin with, and sends no more than the number of the slot. What a
transform made anew is copied, and so is what something in the worker, such as a transform that collects
batches, still holds: nobody sees what another process writes.
What arrives lies in its slot as long as somebody holds it. Of one worker a few batches may do so;
whoever keeps more gets copies, so that shared memory stays small however long they are kept.
Nothing is named in ``/dev/shm``: slots vanish with the processes that hold them.
"""

from __future__ import annotations

import math
import os
import secrets
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chunkstore.buffers import BatchBuffers

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["SharedBatch", "SlotBuffers", "forget_gone"]

LEAST = 16 * 1024  # bytes from which a tensor travels in a slot
HEAD = 64  # bytes before the contents of a slot; the first says whether the receiver still needs them
LEASED = 3  # slots of one worker whose contents may be used where they lie, of any size
LEASED_SMALL = 8  # as many where they are small
LEASED_BYTES = 12 << 20  # bytes of all of them together, up to which they are small
SLOTS = 64  # of one worker, more only while all are in use: batches may grow and grow
SCHEMAS = 64  # kinds of batches that sender and receiver know by number
ALIGN = 16  # bytes; small tensors begin at multiples of it

# key, kind, dtype, shape, and bytes of a slot or first byte among the small tensors: of each value
_Entry = tuple[str, str, Any, tuple[int, ...], int]
_Schema = tuple[_Entry, ...]


class SharedBatch(dict[str, Any]):
    """A batch that leaves its process in slots, and arrives as a plain dict of tensors of its own."""

    def __copy__(self) -> SharedBatch:
        return SharedBatch(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, _pack(_own_slots(), self)


class SlotBuffers(BatchBuffers):
    """Room for the windows of a worker's batches, in slots: where they are cut, they can be sent."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return a C-contiguous array, its values not set; its slot is not used again while it is held."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size < LEAST:
            return np.empty(shape, kind)
        return np.asarray(_Room(_own_slots().take(size), shape, kind))

    def __reduce__(self) -> tuple[type[SlotBuffers], tuple[int]]:
        return SlotBuffers, (self.keep,)


class _Look:
    """How the contents of a slot look as an array: mostly as they did the last time."""

    __slots__ = ("_interface", "_kind", "place")

    def __init__(self, memory: torch.Tensor) -> None:
        #: where the contents begin
        self.place = memory.data_ptr() + HEAD
        self._kind: tuple[Any, ...] = ()
        self._interface: dict[str, Any] = {}

    def as_array(self, shape: tuple[int, ...], typestr: str) -> dict[str, Any]:
        """Return the ``__array_interface__`` of the contents."""
        if self._kind != (shape, typestr):
            self._kind = (shape, typestr)
            data = (self.place, False)
            self._interface = {"version": 3, "shape": shape, "typestr": typestr, "data": data}
        return self._interface


class _Slot:
    """One slot as its worker knows it."""

    __slots__ = ("held", "look", "memory", "number", "shown", "size", "values")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.memory = torch.zeros(HEAD + size, dtype=torch.uint8)
        self.memory.share_memory_()  # type: ignore[no-untyped-call]
        self.values, self.size = self.memory.numpy().data, size
        self.look = _Look(self.memory)
        #: whether the receiver has its descriptor
        self.shown = False
        #: whether something in this process stands on it
        self.held = False

    @property
    def free(self) -> bool:
        """Whether neither side needs the contents."""
        return not self.held and not self.values[0]


class _Slots:
    """The slots of a worker."""

    def __init__(self) -> None:
        self.origin = (os.getpid(), secrets.randbits(64))
        self.slots: list[_Slot] = []
        self._by_place: dict[int, _Slot] = {}
        self._schemas: dict[_Schema, int] = {}
        self._lock = threading.Lock()  # batches are cut in one thread and sent in another

    def take(self, size: int) -> _Slot:
        """Return the smallest free slot that is large enough, or a new one; it is then held."""
        with self._lock:
            found: _Slot | None = None
            for slot in self.slots:
                if slot.size >= size and (found is None or slot.size < found.size) and slot.free:
                    found = slot
            if found is None:
                found = self._made(size)
            found.held = True
        return found

    def _made(self, size: int) -> _Slot:
        """Return a new slot; of many, it takes the place of the smallest free one."""
        free = [slot for slot in self.slots if slot.free] if len(self.slots) >= SLOTS else []
        if free:
            old = min(free, key=lambda slot: slot.size)
            made = self.slots[old.number] = _Slot(old.number, size)
            del self._by_place[old.look.place]
        else:
            made = _Slot(len(self.slots), size)
            self.slots.append(made)
        self._by_place[made.look.place] = made
        return made

    def under(self, tensor: torch.Tensor) -> _Slot | None:
        """Return the slot whose contents begin where a tensor does, if there is one."""
        return self._by_place.get(tensor.data_ptr())

    def number_of(self, schema: _Schema) -> tuple[int, _Schema | None]:
        """Return the number of a kind of batch (-1: none), and the kind if the receiver is to learn it."""
        number = self._schemas.get(schema, -1)
        if number >= 0:
            return number, None
        if len(self._schemas) < SCHEMAS:
            number = self._schemas[schema] = len(self._schemas)
        return number, schema


class _Room:
    """What an array that was cut in a slot stands on; lets go of the slot with its last holder."""

    __slots__ = ("__array_interface__", "_slot")

    def __init__(self, slot: _Slot, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
        self._slot = slot
        self.__array_interface__ = slot.look.as_array(shape, kind.str)

    def __del__(self) -> None:
        self._slot.held = False


class _Sender:
    """A worker as its receiver knows it."""

    def __init__(self) -> None:
        self.slots: dict[int, _Seen] = {}
        self.schemas: dict[int, _Schema] = {}
        self.leased: list[int] = []  # bytes of each slot in use; a list, since its ends are atomic

    def may_lease(self, size: int) -> bool:
        """Return whether so many bytes more may be used where they lie."""
        n = len(self.leased)
        return n < LEASED or (n < LEASED_SMALL and (n + 1) * size <= LEASED_BYTES)


class _Seen:
    """A slot as its receiver knows it."""

    __slots__ = ("look", "memory", "values")

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory, self.values = memory, memory.numpy().data
        self.look = _Look(memory)


class _Lease:
    """What a tensor that lies in a slot stands on; gives the slot back with its last holder."""

    __slots__ = ("__array_interface__", "_leased", "_slot")

    def __init__(self, sender: _Sender, slot: _Seen, size: int, shape: tuple[int, ...], typestr: str) -> None:
        self._slot, self._leased = slot, sender.leased
        self._leased.append(size)
        self.__array_interface__ = slot.look.as_array(shape, typestr)

    def __del__(self) -> None:
        self._slot.values[0] = 0
        self._leased.pop()


_mine: list[_Slots] = []  # of this process; a list, so that a forked child can tell that it is not its own
_theirs: dict[tuple[int, int], _Sender] = {}  # slots of workers, by origin


def _disown() -> None:
    """Let what a forked child lets go of say nothing to the workers: its parent still holds it."""
    for sender in _theirs.values():
        for slot in sender.slots.values():
            slot.values = memoryview(bytearray(1))
    _theirs.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


def _own_slots() -> _Slots:
    if not _mine or _mine[0].origin[0] != os.getpid():
        _mine[:] = [_Slots()]
    return _mine[0]


def _holders(batch: dict[str, Any], key: str) -> tuple[int, ...]:
    """Return how often a tensor and its memory are held: by name, as storage, by views and by arrays."""
    storage = batch[key].untyped_storage()
    return (
        sys.getrefcount(batch[key]),
        sys.getrefcount(storage),
        batch[key]._use_count(),  # noqa: SLF001 - nothing public counts
        torch._C._storage_Use_Count(storage._cdata),  # noqa: SLF001
    )


def _is_alone(batch: dict[str, Any], key: str) -> bool:
    """Return whether nothing but the batch holds a large tensor."""
    if not isinstance(batch[key], torch.Tensor) or batch[key].layout != torch.strided:
        return False
    return bool(_ALONE) and batch[key].nbytes >= LEAST and _holders(batch, key) == _ALONE


def _holders_of_one() -> tuple[int, ...]:
    """Return :func:`_holders` of a tensor that nothing but its batch holds; () where torch does not count."""
    try:
        return _holders({"x": torch.from_numpy(np.zeros(1))}, "x")
    except AttributeError:
        return ()


_ALONE = _holders_of_one()
_PLAIN = (
    torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
_TYPES = {dtype: torch.empty(0, dtype=dtype).numpy().dtype.str for dtype in _PLAIN}  # as numpy writes them


def _pack(slots: _Slots, batch: dict[str, Any]) -> tuple[Any, ...]:
    """Return what :func:`_arrive` makes a batch of."""
    schema: list[_Entry] = []
    parts: list[Any] = []
    small: list[bytes] = []
    at = 0
    for key in batch:  # noqa: PLC0206 - a name for the value would be a holder
        alone = _is_alone(batch, key)
        value = batch[key]
        if not _has_bytes(value):
            schema.append((key, "as is", None, (), 0))
            parts.append(value)
            continue
        value = value.detach().resolve_conj().resolve_neg()
        size = value.numel() * value.element_size()
        shape = tuple(value.shape)
        if size < LEAST:
            schema.append((key, "small", value.dtype, shape, at))
            small += _bytes(value), b"\0" * (-size % ALIGN)
            at += size + -size % ALIGN
            continue
        schema.append((key, "slot", value.dtype, shape, size))
        slot = slots.under(value) if alone and value.is_contiguous() else None
        if slot is not None and not slot.values[0]:
            slot.values[0] = 1  # before this process lets go of it
        else:
            slot = slots.take(size)
            _copy(slot.memory[HEAD : HEAD + size], _flat(value))
            slot.values[0] = 1
            slot.held = False
        parts.append((slot.number, None if slot.shown else slot.memory))
        slot.shown = True
    return slots.origin, *slots.number_of(tuple(schema)), parts, b"".join(small)


def _has_bytes(value: Any) -> bool:
    """Whether a value is a tensor that its bytes in C order tell all of."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def _flat(value: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in C order, as a tensor."""
    return value.contiguous().reshape(-1).view(torch.uint8)


def _bytes(value: torch.Tensor) -> bytes:
    """Return the bytes of a small tensor in C order."""
    try:
        return value.numpy().tobytes()
    except TypeError:  # numpy has no such dtype
        return _flat(value).numpy().tobytes() if value.numel() else b""


def _arrive(
    origin: tuple[int, int], number: int, schema: _Schema | None, parts: list[Any], small: bytes
) -> dict[str, Any]:
    """Return the batch; called where the message is read."""
    sender = _theirs.get(origin)
    if sender is None:
        forget_gone()
        sender = _theirs[origin] = _Sender()
    if schema is None:
        schema = sender.schemas[number]
    elif number >= 0:
        sender.schemas[number] = schema
    batch: dict[str, Any] = {}
    part = iter(parts)
    data = bytearray(small)  # the receiver's own
    for key, kind, dtype, shape, size in schema:
        if kind == "as is":
            batch[key] = next(part)
        elif kind == "small":
            n = math.prod(shape)
            flat = (
                torch.frombuffer(data, dtype=dtype, count=n, offset=size)
                if n
                else torch.empty(0, dtype=dtype)
            )
            batch[key] = flat if len(shape) == 1 else flat.reshape(shape)
        else:
            number, memory = next(part)
            batch[key] = _from_slot(sender, number, memory, dtype, shape, size)
    return batch


def _from_slot(  # noqa: PLR0917 - all of them, from one place
    sender: _Sender, number: int, memory: torch.Tensor | None, dtype: Any, shape: tuple[int, ...], size: int
) -> torch.Tensor:
    """Return what lies in a slot: where it lies, or a copy where too much lies there already."""
    if memory is not None:
        sender.slots[number] = _Seen(memory)
    slot = sender.slots[number]
    if sender.may_lease(size):
        typestr = _TYPES.get(dtype)
        if typestr is not None:
            return torch.from_numpy(np.asarray(_Lease(sender, slot, size, shape, typestr)))
        flat = torch.from_numpy(np.asarray(_Lease(sender, slot, size, (size,), "|u1")))
        return flat.view(dtype).reshape(shape)
    out = torch.empty(shape, dtype=dtype)
    _copy(out.reshape(-1).view(torch.uint8), slot.memory[HEAD : HEAD + size])
    slot.values[0] = 0
    return out


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

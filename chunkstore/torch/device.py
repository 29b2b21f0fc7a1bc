"""Windows on a torch device: an arena that lives there, or batches that are copied ahead.

With the arena a block crosses the bus once and all its windows are cut there. Every resident array
has a mirror on the device. What a thread has decoded is copied over in that thread; a batch is
gathered from the mirrors. All of this is put on the device's default stream, so that a slot is never
overwritten before the windows cut from it are there.

Tested with ``device="cpu"``, where the mirror is a second copy; on a GPU the same calls run.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chunkstore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["DeviceArena", "put_ahead", "torch_device"]


def torch_device(device: str | int | torch.device | None) -> torch.device | None:
    """Return the torch device that is meant, once it is known that tensors can live there; None stays.

    Raises
    ------
    ConfigError
        If torch knows no such device, or it is not on this machine.

    Examples
    --------
    >>> torch_device("cpu")
    device(type='cpu')
    """
    if device is None:
        return None
    try:
        probe = torch.zeros(1, device=torch.device(device))
        probe.cpu()  # "meta" takes tensors, but no values
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        there = ["'cpu'", *(f"'cuda:{n}'" for n in range(torch.cuda.device_count()))]
        why = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"device={device!r} cannot hold tensors here; give one that this machine has "
            f"({', '.join(there)}), or leave device out. torch says: {why[:200]}"
        ) from error
    return probe.device  # with its number: threads that make batches may have another current device


class DeviceArena:
    """Allocates the arrays of a :class:`~chunkstore.loader.WindowLoader` and cuts windows from their mirrors.

    Parameters
    ----------
    device
        Where the mirrors are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._mirrors: dict[int, torch.Tensor] = {}

    def __call__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array to decode into; page-locked where the device has a bus."""
        kind = _torch_dtype(np.dtype(dtype))
        host = torch.empty(shape, dtype=kind, pin_memory=self.device.type == "cuda")
        array: npt.NDArray[Any] = host.numpy()
        place = _place(array)
        self._mirrors[place] = torch.zeros(shape, dtype=kind, device=self.device)
        weakref.finalize(array, self._mirrors.pop, place, None).atexit = False
        return array

    def loaded(self, array: npt.NDArray[Any], start: int, stop: int) -> None:
        """Copy a range that has been decoded to the device, and wait until it is there."""
        self._mirrors[_place(array)][start:stop].copy_(torch.from_numpy(array[start:stop]))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
        """Return a batch on the device, not filled."""
        return torch.empty(shape, dtype=_torch_dtype(dtype), device=self.device)

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Return the values of an array on the device."""
        return torch.from_numpy(array).to(self.device)

    def cut(
        self,
        array: npt.NDArray[Any],
        at: npt.NDArray[np.int64],
        valid: npt.NDArray[np.int64],
        out: torch.Tensor,
        channel: int,
        *,
        channels_last: bool = False,
        scale: float | None = None,
    ) -> None:
        """Fill the channels of one field; as :func:`chunkstore.gather.cut_windows`, on the device."""
        mirror = self._mirrors[_place(array)]
        width = out.shape[1] if channels_last else out.shape[2]
        start = torch.from_numpy(at).to(self.device)
        if int(valid.min(initial=width)) >= width:
            strides = (mirror.stride(0), *mirror.stride())
            view = mirror.as_strided((len(mirror) - width + 1, width, *mirror.shape[1:]), strides)
            values = view[start]
        else:
            steps = torch.arange(width, device=self.device)
            inside = steps < torch.from_numpy(valid).to(self.device)[:, None]
            values = mirror[torch.where(inside, start[:, None] + steps, 0)]
            values[~inside] = 0
        values = values.to(out.dtype)
        if scale is not None:
            values *= scale
        if mirror.ndim == 1:
            values = values[..., None]
        target = slice(channel, channel + values.shape[2])
        if channels_last:
            out[:, :, target] = values
        else:
            out[:, target] = values.transpose(1, 2)

    def __reduce__(self) -> tuple[type[DeviceArena], tuple[torch.device]]:
        return DeviceArena, (self.device,)


def _place(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError as error:
        raise ConfigError(
            f"torch has no {dtype} for a device; leave device out, or store the field in another dtype"
        ) from error


def put_ahead(
    batches: Iterator[dict[str, torch.Tensor]], device: torch.device
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches on a device, but for ``position`` and what is no tensor.

    On a GPU the next batch is copied beside the step.

    Examples
    --------
    >>> batch = {"x": torch.zeros(2), "position": torch.zeros(3)}
    >>> [b["x"].device.type for b in put_ahead(iter([batch, batch]), torch.device("cpu"))]
    ['cpu', 'cpu']
    """
    if device.type != "cuda":
        for batch in batches:
            yield {k: v.to(device) if _moves(k, v) else v for k, v in batch.items()}
        return
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def put(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        with torch.cuda.stream(side):
            return {k: v.to(device, non_blocking=True) if _moves(k, v) else v for k, v in batch.items()}

    ready: dict[str, torch.Tensor] | None = None
    for batch in batches:
        coming = put(batch)
        if ready is not None:
            yield ready
        torch.cuda.current_stream(device).wait_stream(side)
        for key, value in coming.items():
            if _moves(key, value):
                value.record_stream(torch.cuda.current_stream(device))
        ready = coming
    if ready is not None:
        yield ready


def _moves(key: str, value: Any) -> bool:
    return key != "position" and isinstance(value, torch.Tensor)

"""Arrays as tensors, tensors as arrays, and a scale of channels on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

    from chunkstore.normalize import ChannelScale
    from chunkstore.recipe import Recipe

__all__ = ["ScaleTensors", "scales_of", "to_host", "to_tensor"]

CACHED = 128 * 1024  # bytes that stay in a core's cache from one pass to the next


def scales_of(recipe: Recipe, channels: str) -> tuple[tuple[str, int, ScaleTensors], ...]:
    """Return what is scaled in a recipe's batches: key, first obs of that cut in a window, and scale."""
    target = recipe.target.cut
    both = ("x", 0, recipe.x_scale), ("y", target.offset if target else 0, recipe.y_scale)
    return tuple((key, offset, ScaleTensors(scale, channels)) for key, offset, scale in both if scale)


class ScaleTensors:
    """A :class:`ChannelScale`, applied to windows wherever they live; padding stays 0.

    On the host numpy does it in the thread that makes the batch: torch would share it among threads that
    spin until all have come, which takes as much as twenty times the processor time from others.
    """

    def __init__(self, scale: ChannelScale, channels: str) -> None:
        self._shape = (1, -1, 1) if channels == "first" else (1, 1, -1)
        self._axis = 2 if channels == "first" else 1
        self._numbers = scale.factor, scale.shift

    def apply(self, x: torch.Tensor, valid: npt.NDArray[np.int64]) -> None:
        """Scale windows in place, but for what lies behind their first ``valid`` obs (int64[batch])."""
        if x.device.type == "cpu":
            self._on_host(x.numpy())
        else:
            factor, shift = (
                torch.from_numpy(n).to(x.device, x.dtype).reshape(self._shape) for n in self._numbers
            )
            torch.addcmul(shift, x, factor, out=x)
        width = x.shape[self._axis]
        if valid.min(initial=width) < width:
            short = np.flatnonzero(valid < width)
            beyond = np.arange(width) >= valid[short, None]
            beyond = beyond[:, None, :] if self._axis == 2 else beyond[:, :, None]
            rows = torch.from_numpy(short).to(x.device)
            x[rows] = x[rows].masked_fill(torch.from_numpy(beyond).to(x.device), 0.0)

    def _on_host(self, x: npt.NDArray[Any]) -> None:
        factor, shift = (n.astype(x.dtype) for n in self._numbers)
        if self._axis == 2 or not x.flags.c_contiguous:
            factor, shift = factor.reshape(self._shape), shift.reshape(self._shape)
        else:  # long runs instead of one for every obs
            width = x.shape[1]
            x = x.reshape(len(x), -1)
            factor, shift = np.tile(factor, width), np.tile(shift, width)
        step = max(1, CACHED // max(1, x[:1].nbytes))
        for low in range(0, len(x), step):
            part = x[low : low + step]
            np.multiply(part, factor, out=part)
            np.add(part, shift, out=part)


def to_tensor(value: Any) -> torch.Tensor:
    """Return a tensor that shares the memory of an array; a tensor as it is."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.asarray(value))


def to_host(value: Any) -> Any:
    """Return a numpy array of a tensor on any device, or of what numpy takes."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)

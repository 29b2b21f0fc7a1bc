"""Arrays as tensors, tensors as arrays, and a scale of channels on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from chunkstore.normalize import ChannelScale

__all__ = ["ScaleTensors", "to_host", "to_tensor"]


class ScaleTensors:
    """A :class:`ChannelScale` as two tensors on the device of the batch."""

    def __init__(self, scale: ChannelScale, channels: str) -> None:
        shape = (1, -1, 1) if channels == "first" else (1, 1, -1)
        self._axis = 2 if channels == "first" else 1
        self._factor = torch.from_numpy(scale.factor).float().reshape(shape)
        self._shift = torch.from_numpy(scale.shift).float().reshape(shape)

    def apply(self, batch: dict[str, torch.Tensor], key: str) -> None:
        """Scale ``batch[key]`` in place; padding of ``x`` stays 0."""
        x = batch[key]
        factor, shift = (t.to(x.device, x.dtype) for t in (self._factor, self._shift))
        torch.addcmul(shift, x, factor, out=x)
        width = x.shape[self._axis]
        if key == "x" and bool((batch["length"] < width).any()):
            short = torch.nonzero(batch["length"] < width).flatten()
            outside = torch.arange(width) >= batch["length"][short, None]
            outside = outside[:, None, :] if self._axis == 2 else outside[:, :, None]
            short = short.to(x.device)
            x[short] = x[short].masked_fill(outside.to(x.device), 0.0)


def to_tensor(value: Any) -> torch.Tensor:
    """Return a tensor that shares the memory of an array; a tensor as it is."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.asarray(value))


def to_host(value: Any) -> Any:
    """Return a numpy array of a tensor on any device, or of what numpy takes."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)

"""Numbers brought to a common scale: per channel from statistics, or per window from itself.

Decides means and standard deviations; both are applied to a batch in place or by plain
arithmetic that numpy and torch share, so the batch may live on any device. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ChannelScale", "Standardize", "channel_scale", "merge_moments"]


@dataclass(frozen=True, slots=True)
class ChannelScale:
    """``(x - mean) / std`` for each channel; a channel that never changes is only shifted.

    Examples
    --------
    >>> scale = ChannelScale(mean=np.array([1.0, 5.0]), std=np.array([2.0, 0.0]))
    >>> scale.factor, scale.shift
    (array([0.5, 1. ]), array([-0.5, -5. ]))
    """

    mean: npt.NDArray[np.float64]
    """float64[channel]."""
    std: npt.NDArray[np.float64]
    """float64[channel], 0 for a channel that never changes."""

    def __post_init__(self) -> None:
        if self.mean.shape != self.std.shape or self.mean.ndim != 1:
            raise ConfigError(
                f"normalize needs one mean and one std for each channel, got shapes {self.mean.shape} "
                f"and {self.std.shape}"
            )
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all() and (self.std >= 0).all()):
            raise ConfigError(
                f"normalize needs finite means and standard deviations of 0 or more, got {self.mean} "
                f"and {self.std}; give numbers for channels that are all null"
            )

    @property
    def factor(self) -> npt.NDArray[np.float64]:
        """What a channel is multiplied with."""
        return 1.0 / np.where(self.std > 0, self.std, 1.0)

    @property
    def shift(self) -> npt.NDArray[np.float64]:
        """What is added to a channel after that."""
        return -self.mean * self.factor


def merge_moments(
    parts: Sequence[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and standard deviation of several sets of values, from (count, mean, std) of each.

    Examples
    --------
    >>> merge_moments([(2, [1.0], [0.0]), (2, [3.0], [0.0])])
    (array([2.]), array([1.]))
    """
    counts = [np.asarray(n, np.float64) for n, _, _ in parts]
    means = [np.nan_to_num(np.atleast_1d(np.asarray(m, np.float64))) for _, m, _ in parts]
    stds = [np.nan_to_num(np.atleast_1d(np.asarray(s, np.float64))) for _, _, s in parts]
    total = np.maximum(sum(counts), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused as not finite
        return _pooled(counts, means, stds, total)


def _pooled(
    counts: Sequence[npt.NDArray[np.float64]],
    means: Sequence[npt.NDArray[np.float64]],
    stds: Sequence[npt.NDArray[np.float64]],
    total: Any,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    mean = sum((n * m for n, m in zip(counts, means, strict=True)), np.zeros(1)) / total
    square = sum(
        (n * (s**2 + (m - mean) ** 2) for n, m, s in zip(counts, means, stds, strict=True)), np.zeros(1)
    )
    return np.asarray(mean, np.float64), np.sqrt(np.asarray(square, np.float64) / total)


def channel_scale(
    normalize: str | bool | Mapping[str, tuple[Any, Any]] | Sequence[Any] | ChannelScale | None,
    fields: Sequence[tuple[str, int]],
    statistics: Sequence[Mapping[str, tuple[Any, Any, Any]]],
) -> ChannelScale | None:
    """Decide the scale of every channel.

    Parameters
    ----------
    normalize
        None or False: none. ``"store"`` or True: from the stores' statistics. A mapping from field
        to (mean, std), numbers or one for each item; fields that it leaves out stay as they are.
        A pair (mean, std) of numbers or one for each channel.
    fields
        Name and number of items (0 for a scalar) of each field, in the order of the channels.
    statistics
        Of each store, by field: (count, mean, std), numbers or one for each item, in the units that
        the batch has.

    Raises
    ------
    ConfigError, UnknownNameError
        If it is none of these, names an unknown field, or a number of channels does not fit.

    Examples
    --------
    >>> channel_scale({"wind": (4.0, 2.0)}, [("temp", 0), ("wind", 0)], []).mean
    array([0., 4.])
    """
    if normalize is None or normalize is False:
        return None
    if isinstance(normalize, ChannelScale):
        return normalize
    widths = [max(1, items) for _, items in fields]
    if normalize is True or normalize == "store":
        pairs = []
        for name, _ in fields:
            of = [known[name] for known in statistics if name in known]
            if len(of) < len(statistics) or not of:
                raise ConfigError(
                    f"normalize='store', but {len(statistics) - len(of)} of {len(statistics)} stores have no "
                    f"statistics of field {name!r}; give normalize={{{name!r}: (mean, std)}}"
                )
            pairs.append(merge_moments(of))
    elif isinstance(normalize, Mapping):
        unknown = sorted(set(normalize) - {name for name, _ in fields})
        if unknown:
            raise UnknownNameError(
                f"normalize names {', '.join(map(repr, unknown))}, which is no field of the windows; "
                f"those are: {', '.join(name for name, _ in fields)}"
            )
        pairs = [_pair(normalize.get(name, (0.0, 1.0)), f"of field {name!r}") for name, _ in fields]
    elif isinstance(normalize, Sequence) and not isinstance(normalize, str):
        mean, std = _pair(normalize, "for the channels")
        return ChannelScale(*(_spread(v, sum(widths), "channels") for v in (mean, std)))
    else:
        raise ConfigError(
            f"normalize={normalize!r} is none of: 'store', a mapping from field to (mean, std), (mean, std)"
        )
    columns = [
        [_spread(v, width, f"items of {name!r}") for v in pair]
        for pair, width, (name, _) in zip(pairs, widths, fields, strict=True)
    ]
    return ChannelScale(np.concatenate([m for m, _ in columns]), np.concatenate([s for _, s in columns]))


def _pair(value: Any, of: str) -> tuple[Any, Any]:
    try:
        mean, std = value
    except (TypeError, ValueError) as error:
        raise ConfigError(f"normalize {of} must be a pair (mean, std), got {value!r}") from error
    return mean, std


def _spread(value: Any, width: int, of: str) -> npt.NDArray[np.float64]:
    array = np.atleast_1d(np.asarray(value, np.float64))
    if array.ndim != 1 or array.size not in {1, width}:
        raise ConfigError(f"normalize gives {array.size} numbers for {width} {of}; give 1 or {width}")
    return np.broadcast_to(array, (width,)).copy()


@dataclass(frozen=True, slots=True)
class Standardize:
    """A batch transform: each channel of each window to mean 0 and standard deviation 1.

    Works on numpy arrays and on tensors of any device. Padding stays 0 and is not counted. A
    window that never changes becomes 0.

    Examples
    --------
    >>> batch = {"x": np.array([[[1.0, 3.0, 0.0]]]), "length": np.array([2])}
    >>> Standardize()(batch)["x"]
    array([[[-1.,  1.,  0.]]])
    """

    key: str = "x"
    """Name of the array in the batch, [batch, channel, window]."""
    eps: float = 1e-8
    """Added to the variance, in squared units of the field."""
    channels: str = "first"
    """``"first"`` for [batch, channel, window], ``"last"`` for [batch, window, channel]."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with its windows standardised; the array given is left as it is."""
        x = batch[self.key]
        axis = 2 if self.channels == "first" else 1
        width = x.shape[axis]
        length = batch["length"]
        if bool((length >= width).all()):
            centred = x - x.mean(axis=axis, keepdims=True)
            variance = (centred * centred).mean(axis=axis, keepdims=True)
        else:
            shape = [1, 1, 1]
            shape[axis] = width
            count = length.reshape(-1, 1, 1)
            outside = _positions(length, width).reshape(*shape) >= count
            centred = x - x.sum(axis=axis, keepdims=True) / count  # padding is 0 and adds nothing
            centred[_broadcast(outside, centred)] = 0
            variance = (centred * centred).sum(axis=axis, keepdims=True) / count
        standard: Any = centred / (variance + self.eps) ** 0.5
        return {**batch, self.key: _as_dtype(standard, x.dtype)}


def _positions(like: Any, n: int) -> Any:
    """Return 0 .. n - 1 where ``like`` lives."""
    return np.arange(n) if isinstance(like, np.ndarray) else like.new_ones(n).cumsum(0) - 1


def _broadcast(mask: Any, like: Any) -> Any:
    return np.broadcast_to(mask, like.shape) if isinstance(like, np.ndarray) else mask.expand_as(like)


def _as_dtype(values: Any, dtype: Any) -> Any:
    return values.astype(dtype) if isinstance(values, np.ndarray) else values.to(dtype)

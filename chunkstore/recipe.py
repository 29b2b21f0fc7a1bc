"""What is cut from which stores: names checked and resolved once, at the door.

Decides fields and their channels, the target, labels, the scale of each channel and the window
that all of it needs. Orders nothing and reads no obs; both datasets of :mod:`chunkstore.torch`
stand on it. numpy only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkstore.channels import all_fields, batch_dtype, check_meaning
from chunkstore.errors import ConfigError, UnknownNameError
from chunkstore.labels import LabelColumn, balance_weights, label_column
from chunkstore.normalize import ChannelScale, channel_scale
from chunkstore.numbers import whole_number
from chunkstore.targets import Target, names_of, plan_target
from chunkstore.windows import WindowIndex, WindowSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkstore.store import ChunkStore

__all__ = ["Cutting", "Recipe", "channel_names", "chosen_sampling", "plan_recipe", "resolve_stores"]


@dataclass(frozen=True, slots=True)
class Cutting:
    """What is asked of both datasets alike, as given: see :class:`chunkstore.torch.ZarrWindowDataset`."""

    window: int
    stride: int
    phase: Any
    short: Literal["drop", "pad", "error"]
    fields: str | Sequence[str] | None
    targets: str | Sequence[str] | None
    target_offset: int | None
    target_length: int | None
    labels: str | Sequence[str] | None
    dtype: Any
    channels: Literal["first", "last"]
    normalize: Any
    normalize_targets: Any

    def __post_init__(self) -> None:
        if self.channels not in {"first", "last"}:
            raise ConfigError(f"channels must be 'first' or 'last', got {self.channels!r}")
        check_plain(self.dtype, None, window=self.window, stride=self.stride)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything about a batch but its order."""

    stores: tuple[ChunkStore, ...]
    """The stores, in the order of ``batch["store"]``."""
    window: WindowSpec
    """Length, stride, horizon and what happens to short sequences."""
    fields: tuple[str, ...]
    """Fields of ``x``, in the order of its channels."""
    target: Target
    """What makes ``y``."""
    labels: tuple[LabelColumn, ...]
    """Columns of the sequences that are carried under their own names."""
    y_labels: tuple[LabelColumn, ...]
    """Columns that make ``y``."""
    x_scale: ChannelScale | None
    """Scale of the channels of ``x``."""
    y_scale: ChannelScale | None
    """Scale of the channels of ``y``."""

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Name of each channel of ``x``; items of vectors as ``field[0]``."""
        return channel_names(self.stores[0], self.fields)

    def add_labels(self, batch: dict[str, Any]) -> None:
        """Add what is known of the sequences: labels under their names, ``"y"`` where labels make it.

        Parameters
        ----------
        batch
            With ``"sequence"`` and, for several stores, ``"store"``, int64[batch] each. ``"y"``
            becomes [batch] for one label, [batch, label] for several.
        """
        store, sequence = batch.get("store"), batch["sequence"]
        for column in self.labels:
            batch[column.name] = column.take(store, sequence)
        if self.y_labels:
            values = [c.take(store, sequence) for c in self.y_labels]
            batch["y"] = values[0] if len(values) == 1 else np.stack(values, axis=1)


def resolve_stores(stores: Any, storage_options: Mapping[str, Any] | None = None) -> tuple[ChunkStore, ...]:
    """Return open stores from one or several places or stores.

    Raises
    ------
    ConfigError
        If there is none.
    """
    from chunkstore.store import ChunkStore, open_store

    if isinstance(stores, (str, os.PathLike, ChunkStore)):
        stores = [stores]
    elif not isinstance(stores, Iterable):
        raise ConfigError(f"stores must be a path, a URL, an open store or several of them, got {stores!r}")
    many = list(stores)
    if not many:
        raise ConfigError("there is no store to read; give the path of at least one")
    for one in many:
        if not isinstance(one, (str, os.PathLike, ChunkStore)):
            raise ConfigError(f"a store must be a path, a URL or an open store, got {one!r:.120}")
    return tuple(
        one if isinstance(one, ChunkStore) else open_store(one, storage_options=storage_options)
        for one in many
    )


def check_plain(dtype: Any, transform: Any, **numbers: Any) -> None:
    """Refuse at the door what would fail deep inside.

    Raises
    ------
    ConfigError
        If one of ``numbers`` is no whole number, no window has such a dtype, or the transform is no function.
    """
    for name, value in numbers.items():
        whole_number(name, value)
    if dtype is not None:
        batch_dtype(dtype)
    if transform is not None and not callable(transform):
        raise ConfigError(f"transform must be a function of a batch, got {transform!r}")


def channel_names(store: ChunkStore, fields: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each channel that ``fields`` make."""
    names: list[str] = []
    for name in fields:
        items = store.fields[name].items
        names += [f"{name}[{i}]" for i in range(items)] if items else [name]
    return tuple(names)


def plan_recipe(stores: tuple[ChunkStore, ...], cutting: Cutting) -> Recipe:
    """Check every name and number against every store.

    Raises
    ------
    UnknownNameError
        If a field or label is in none, or not in all, of the stores.
    ConfigError
        If the numbers do not fit together.
    """
    first = stores[0]
    target = plan_target(
        cutting.targets,
        window=cutting.window,
        fields=first.fields,
        labels=first.sequences.columns,
        offset=cutting.target_offset,
        length=cutting.target_length,
    )
    names = all_fields(first) if cutting.fields is None else names_of("fields", cutting.fields)
    if not names:
        raise ConfigError(f"{first.url} has no field that makes an x; it has {', '.join(first.fields)}")
    cut_fields = target.cut.fields if target.cut else ()
    for name in dict.fromkeys((*names, *cut_fields)):
        _check_field(stores, name, cutting.dtype)
    tables = [s.sequences for s in stores]
    carried = tuple(label_column(tables, name) for name in names_of("labels", cutting.labels or ()))
    clash = {c.name for c in carried} & RESERVED_KEYS
    if clash:
        raise ConfigError(
            f"a label named {', '.join(sorted(clash))} would hide that key of the batch; "
            "rename the column in the store"
        )
    return Recipe(
        stores=stores,
        window=WindowSpec(
            length=cutting.window,
            stride=cutting.stride,
            horizon=target.cut.horizon(cutting.window) if target.cut else 0,
            short=cutting.short,
            **({} if cutting.phase is None else {"phase": cutting.phase}),
        ),
        fields=names,
        target=target,
        labels=carried,
        y_labels=tuple(label_column(tables, name) for name in target.labels),
        x_scale=_scale(cutting.normalize, stores, names, cutting.dtype),
        y_scale=_scale(cutting.normalize_targets, stores, cut_fields, cutting.dtype) if cut_fields else None,
    )


def chosen_sampling(recipe: Recipe, sampling: Any, split: str | None) -> Any:
    """Return a sampling by class or by store as weights of windows; any other sampling as it is.

    ``{"balance": label, "n": draws}`` draws every class equally often, ``{"stores": [2, 1], "n": draws}``
    two windows of the first store for each of the second. Only windows of the split count; ``n`` is,
    if not given, the number of sequences that have some, or of windows.

    Raises
    ------
    ConfigError
        If the mapping has other keys, no sequence has a class, or weights do not fit the stores.
    """
    kind = isinstance(sampling, Mapping) and next((k for k in ("balance", "stores") if k in sampling), None)
    if not kind:
        return sampling
    if set(sampling) - {kind, "n"}:
        raise ConfigError(
            f"sampling={dict(sampling)!r} is not known; use {{'balance': label, 'n': draws}} or "
            "{'stores': [weights], 'n': draws}"
        )
    by = _by_class if kind == "balance" else _by_store
    return by(recipe, sampling[kind], sampling.get("n"), split)


def _by_class(recipe: Recipe, label: str, n: int | None, split: str | None) -> Any:
    from chunkstore.sampling import Weighted

    column = label_column([s.sequences for s in recipe.stores], str(label))
    if column.values.dtype.kind == "f":
        raise ConfigError(f"label {column.name!r} holds numbers with fractions; balance by a class")
    codes, classes = np.full(len(column.values), -1, np.int64), np.unique(column.values)
    least = 1 if recipe.window.short == "pad" else recipe.window.span
    for at, store in enumerate(recipe.stores):
        segments = store.segments(split)
        here = column.offsets[at] + segments.sequence[segments.stop - segments.start >= least]
        if column.categories is not None:
            here = here[column.values[here] >= 0]  # -1 says that there is no label; of numbers it is one
        codes[here] = np.searchsorted(classes, column.values[here])
    weights = balance_weights(codes)
    parts = np.split(weights, column.offsets[1:-1])
    return Weighted(
        parts if len(parts) > 1 else parts[0], n=n or int(np.count_nonzero(weights)), by="sequence"
    )


def _by_store(recipe: Recipe, weights: Any, n: int | None, split: str | None) -> Any:
    from chunkstore.sampling import Weighted

    given = np.asarray(weights, np.float64)
    if given.shape != (len(recipe.stores),) or not (given >= 0).all() or not given.any():
        raise ConfigError(
            f"weights of stores are {weights!r}; give {len(recipe.stores)} numbers of 0 or more, not all 0"
        )
    counts = [WindowIndex([s.segments(split)], recipe.window).n_windows for s in recipe.stores]
    parts = [
        np.full(len(s.sequences), w / max(1, count))
        for s, w, count in zip(recipe.stores, given, counts, strict=True)
    ]
    return Weighted(parts if len(parts) > 1 else parts[0], n=n or sum(counts), by="window")


#: keys of a batch that are not labels
RESERVED_KEYS = frozenset({"x", "y", "store", "sequence", "start", "length", "position", "repeated"})


def _check_field(stores: tuple[ChunkStore, ...], name: str, dtype: Any) -> None:
    scaled = dtype is not None and np.dtype(dtype).kind == "f"
    for store in stores:
        if name not in store.fields:
            raise UnknownNameError(
                f"{store.url} has no field {name!r}; it has {', '.join(store.fields) or 'none'}"
            )
        spec, expected = store.fields[name], stores[0].fields[name]
        if spec.items != expected.items:
            raise ConfigError(
                f"field {name!r} holds {spec.items or 1} items an obs in {store.url}, "
                f"{expected.items or 1} in {stores[0].url}; they cannot make one batch"
            )
        if not scaled and spec.scale_factor != expected.scale_factor:
            raise ConfigError(
                f"field {name!r} has scale {spec.scale_factor} in {store.url} and {expected.scale_factor} in "
                f"{stores[0].url}; ask for a float dtype, in which both are scaled"
            )
        check_meaning(store, stores[0], name)


def _scale(
    normalize: Any, stores: tuple[ChunkStore, ...], fields: Sequence[str], dtype: Any
) -> ChannelScale | None:
    if normalize is None or normalize is False:
        return None
    scaled = dtype is not None
    dtypes = [np.dtype(dtype)] if scaled else [s.fields[f].np_dtype for s in stores for f in fields]
    if any(one.kind != "f" for one in dtypes):
        raise ConfigError("normalize needs floats; leave dtype at 'float32', or normalise in transform")
    statistics = []
    if normalize is True or isinstance(normalize, str):
        for store in stores:
            known = {}
            for name in fields:
                if name in store.statistics:
                    factor = (store.fields[name].scale_factor or 1.0) if scaled else 1.0
                    of = store.statistics[name]
                    known[name] = (
                        np.asarray(of.count),
                        np.asarray(of.mean, np.float64) * factor,
                        np.asarray(of.std, np.float64) * abs(factor),
                    )
            statistics.append(known)
    specs = [(name, stores[0].fields[name].items) for name in fields]
    return channel_scale(normalize, specs, statistics)

"""Fields as channels of a batch: which there are, what an arena must know of them, what they become.

Decides names, dtypes and scales at the door. Reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import ConfigError, UnknownNameError
from chunkstore.sampling import Weighted
from chunkstore.targets import Cut, names_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from chunkstore.windows import WindowSpec

__all__ = [
    "all_fields",
    "batch_dtype",
    "check_fields",
    "check_meaning",
    "out_dtype",
    "scale_of",
    "target_cuts",
]


#: what a batch of a loader has besides its targets
OWN_KEYS = frozenset({"x", "sequence", "start", "length", "room", "store", "group", "draws", "repeated"})


def all_fields(store: Any) -> tuple[str, ...]:
    """Return the names of all fields that hold quantities: no codes of words, no instants."""
    names = tuple(
        name
        for name, spec in store.fields.items()
        if name != "time" and spec.categories is None and " since " not in (spec.units or "")
    )
    if not names:
        raise ConfigError(
            f"{_url(store)} has no field that makes an x; it has {', '.join(store.fields) or 'none'}"
        )
    return names


def _url(store: Any) -> str:
    return str(getattr(store, "url", store))


def target_cuts(targets: Cut | Sequence[str] | Mapping[str, Cut] | None, length: int) -> dict[str, Cut]:
    """Return cuts by the key of the batch that they make; bare names are cut like the window itself."""
    if targets is None:
        return {}
    if isinstance(targets, Cut):
        return {"y": targets}
    if isinstance(targets, Mapping):
        if taken := sorted(OWN_KEYS & set(targets)):
            raise ConfigError(f"targets cannot be named {', '.join(taken)}: batches have that key already")
        if strange := [key for key, cut in targets.items() if not isinstance(cut, Cut)]:
            raise ConfigError(f"targets[{strange[0]!r}] must be a Cut, got {targets[strange[0]]!r:.120}")
        return dict(targets)
    return {"y": Cut(names_of("targets", targets), 0, length)}


def check_fields(stores: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse fields that a store lacks, or that differ between stores in what an arena must know."""
    for store in stores:
        for name in names:
            spec, wanted = store.fields.get(name), stores[0].fields.get(name)
            if spec is None or wanted is None:
                raise UnknownNameError(
                    f"{_url(store)} has no field {name!r}; it has {', '.join(store.fields)}"
                )
            mine = (spec.np_dtype, spec.items, spec.scale_factor)
            if mine != (wanted.np_dtype, wanted.items, wanted.scale_factor):
                raise ConfigError(
                    f"field {name!r} is stored as {_kind(spec)} in {_url(store)} and as {_kind(wanted)} in "
                    f"{_url(stores[0])}; stores that are read as one must store a field alike"
                )
            check_meaning(store, stores[0], name)


def check_meaning(store: Any, first: Any, name: str) -> None:
    """Refuse a field of one name whose values mean something else in another store.

    Raises
    ------
    ConfigError
        If both state units and those differ, or codes stand for other words.
    """
    spec, wanted = store.fields[name], first.fields[name]
    if spec.categories != wanted.categories:
        raise ConfigError(
            f"the codes of field {name!r} stand for {_words(spec)} in {_url(store)} and for {_words(wanted)} "
            f"in {_url(first)}; stores that are read as one must have the same categories"
        )
    if None not in (spec.units, wanted.units) and spec.units != wanted.units:
        raise ConfigError(
            f"field {name!r} is in {spec.units!r} in {_url(store)} and in {wanted.units!r} in {_url(first)}; "
            "write one of them anew in the units of the other"
        )


def _words(spec: Any) -> str:
    return "numbers" if spec.categories is None else f"{list(spec.categories)!r:.60}"


def batch_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype that windows are cut in.

    Raises
    ------
    ConfigError
        If numpy knows no such dtype, or it holds anything but numbers of this machine.

    Examples
    --------
    >>> batch_dtype("float32")
    dtype('float32')
    """
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"numpy has no dtype {dtype!r}; use 'float32', say, or None") from error
    if found.kind not in "biufc" or not found.isnative or found in (np.longdouble, np.clongdouble):
        raise ConfigError(f"windows cannot be cut as {found.str!r}; use 'float32', say, or None")
    return found


def out_dtype(stores: Sequence[Any], names: Sequence[str], dtype: DTypeLike | None) -> np.dtype[Any]:
    """Return the dtype of a batch: as asked for, or what numpy promotes the fields to."""
    if dtype is not None:
        return batch_dtype(dtype)
    common: np.dtype[Any] = np.result_type(*[stores[0].fields[n].np_dtype for n in names])
    return common


def _kind(spec: Any) -> str:
    text = f"{spec.dtype}[{spec.items}]" if spec.items else str(spec.dtype)
    return text if spec.scale_factor is None else f"{text} with scale {spec.scale_factor}"


def no_window_text(window: WindowSpec, segments: Sequence[Any]) -> str:
    longest = max((int((s.stop - s.start).max(initial=0)) for s in segments), default=0)
    return (
        f"there is no window: one needs {window.span} obs (length {window.length} + horizon "
        f"{window.horizon}), the longest segment has {longest}; lower the window, or pad with short='pad'"
    )


def describe_sampling(sampling: Any) -> list[bytes | str]:
    if not isinstance(sampling, Weighted):
        return [repr(sampling)]
    parts = sampling.weights if isinstance(sampling.weights, (list, tuple)) else [sampling.weights]
    weights = [np.asarray(w, np.float64).tobytes() for w in parts]
    return [*weights, f"{sampling.n} {sampling.by}"]


def scale_of(store: Any, name: str) -> float | None:
    """Return what stored values of a field are multiplied with, if anything."""
    factor = store.fields[name].scale_factor
    return None if factor is None else float(factor)

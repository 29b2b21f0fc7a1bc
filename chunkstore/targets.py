"""What a training step is asked to predict: fields cut beside the window, or a label of the sequence.

Decides names, offsets and lengths. Reading belongs to the loader, tensors to
:mod:`chunkstore.torch`. Pure: no file, no thread, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["Cut", "Target", "names_of", "plan_target"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Fields cut over ``[start + offset, start + offset + length)`` of a window that starts at ``start``.

    Examples
    --------
    >>> Cut(("temp",), offset=24, length=12).horizon(window=24)
    12
    """

    fields: tuple[str, ...]
    """Names of the fields, in the order of their channels."""
    offset: int
    """First obs of the cut, counted from the first obs of the window; 0 or more."""
    length: int
    """Obs in the cut; 1 or more."""

    def __post_init__(self) -> None:
        if not self.fields:
            raise ConfigError("a cut needs at least one field")
        given: tuple[Any, ...] = (self.offset, self.length)
        if not all(isinstance(n, Integral) and not isinstance(n, bool) for n in given):
            raise ConfigError(
                f"the offset and length of a target are whole numbers of obs, got {self.offset!r} and "
                f"{self.length!r}"
            )
        for name in ("offset", "length"):  # numpy's numbers look and travel otherwise
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.offset < 0 or self.length < 1:
            raise ConfigError(
                f"a target of {self.length} obs at offset {self.offset} is none: the offset must be 0 or "
                "more (counted from the window's first obs) and the length 1 or more"
            )

    def horizon(self, window: int) -> int:
        """Return the obs that the cut needs behind a window of ``window`` obs."""
        return max(0, self.offset + self.length - window)


@dataclass(frozen=True, slots=True)
class Target:
    """What makes ``"y"``: a cut of fields, or labels of the sequence, or nothing."""

    cut: Cut | None = None
    """Fields over obs; ``y`` is then [batch, channel, length]."""
    labels: tuple[str, ...] = ()
    """Columns of the sequence; ``y`` is then int64[batch] (or [batch, label] for several)."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no ``y``."""
        return self.cut is None and not self.labels


def names_of(what: str, given: Any) -> tuple[str, ...]:
    """Return one name or several as a tuple.

    Raises
    ------
    ConfigError
        If something else is given.

    Examples
    --------
    >>> names_of("fields", "temp"), names_of("fields", ["temp", "wind"])
    (('temp',), ('temp', 'wind'))
    """
    names = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{what} must be a name or several, got {given!r:.120}")
    return names


def plan_target(
    targets: str | Sequence[str] | None,
    *,
    window: int,
    fields: Collection[str],
    labels: Collection[str],
    offset: int | None = None,
    length: int | None = None,
) -> Target:
    """Decide what ``targets`` means: names of fields, or names of labels, never both.

    Parameters
    ----------
    targets
        One name or several; None for no ``y``.
    window
        Window length, in obs.
    fields, labels
        What the store holds along ``obs`` and along ``sequence``.
    offset
        First obs of the target, counted from the window's first obs. Default 0, or ``window``
        where only ``length`` is given (what comes next).
    length
        Obs of the target. Default ``window`` at offset 0, else 1.

    Raises
    ------
    UnknownNameError
        If a name is neither a field nor a label.
    ConfigError
        If fields and labels are mixed, or offset and length are given for labels or for nothing.

    Examples
    --------
    >>> plan_target("temp", window=24, fields=["temp", "wind"], labels=["station"]).cut
    Cut(fields=('temp',), offset=0, length=24)
    >>> plan_target("temp", window=24, fields=["temp"], labels=[], length=6).cut
    Cut(fields=('temp',), offset=24, length=6)
    >>> plan_target("station", window=24, fields=["temp"], labels=["station"]).labels
    ('station',)
    """
    names = () if targets is None else names_of("targets", targets)
    if not names:
        if offset is not None or length is not None:
            raise ConfigError("target_offset and target_length need targets: name the fields to predict")
        return Target()
    unknown = [n for n in names if n not in fields and n not in labels]
    if unknown:
        raise UnknownNameError(
            f"no field or label is named {', '.join(map(repr, unknown))}; fields: "
            f"{', '.join(sorted(fields)) or 'none'}; labels: {', '.join(sorted(labels)) or 'none'}"
        )
    cut_names = tuple(n for n in names if n in fields)
    label_names = tuple(n for n in names if n not in fields)
    if cut_names and label_names:
        raise ConfigError(
            f"targets mix fields ({', '.join(cut_names)}) and labels ({', '.join(label_names)}); "
            "give the fields as targets=... and the labels as labels=..."
        )
    if label_names:
        if offset is not None or length is not None:
            raise ConfigError(
                f"target_offset and target_length cut fields, but {', '.join(label_names)} "
                "is a label of the whole sequence; leave them out"
            )
        return Target(labels=label_names)
    if offset is None:
        offset = 0 if length is None else window
    if length is None:
        length = window if offset == 0 else 1
    return Target(cut=Cut(cut_names, offset, length))

"""What is known of a sequence, as numbers that a batch can carry, over several stores at once.

Text becomes codes of one dictionary, although each store has its own. Also the weights that
balance classes. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from chunkstore.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

__all__ = ["LabelColumn", "balance_weights", "label_column"]


class _Table(Protocol):
    """The part of a store's sequence table that is read here."""

    @property
    def columns(self) -> Iterable[str]: ...
    def __len__(self) -> int: ...
    def column(self, name: str) -> npt.NDArray[Any]: ...
    def codes(self, name: str) -> npt.NDArray[np.int32]: ...
    def categories(self, name: str) -> Sequence[str]: ...
    def attrs(self, name: str) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """One column of the sequences of all stores.

    Examples
    --------
    >>> column = LabelColumn("bird", np.array([0, 1, 0]), ("owl", "wren"), np.array([0, 2, 3]))
    >>> column.take(store=np.array([0, 1]), sequence=np.array([1, 0]))
    array([1, 0])
    """

    name: str
    """Name of the column."""
    values: npt.NDArray[Any]
    """int64[sequences] codes or integers, float32 or float64[sequences]; one store after the other."""
    categories: tuple[str, ...] | None
    """Words that codes stand for; None for numbers. A code of -1 says that the label is missing."""
    offsets: npt.NDArray[np.int64]
    """int64[stores + 1], first sequence of each store in ``values``."""

    def take(self, store: npt.NDArray[np.int64] | None, sequence: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the values of sequences, given by store (None: the first) and number within it."""
        return self.values[sequence if store is None else self.offsets[store] + sequence]


def label_column(tables: Sequence[_Table], name: str) -> LabelColumn:
    """Join one column of several sequence tables.

    Text becomes int64 codes of one dictionary, in sorted order; bools and integers become
    int64, floats stay.

    Raises
    ------
    UnknownNameError
        If a store has no such column; the message lists what there is.
    ConfigError
        If it is text in one store and numbers in another, or in other units.
    """
    parts: list[npt.NDArray[Any]] = []
    words: list[Sequence[str] | None] = []
    for at, table in enumerate(tables):
        if name not in table.columns:
            raise UnknownNameError(
                f"store {at} has no label {name!r} along its sequences; it has: "
                f"{', '.join(sorted(table.columns)) or 'none'}"
            )
        values = np.asarray(table.column(name))
        if values.dtype.kind in "biuf":
            parts.append(values if values.dtype.kind == "f" else values.astype(np.int64))
            words.append(None)
        else:
            parts.append(np.asarray(table.codes(name), np.int64))
            words.append(tuple(table.categories(name)))
    if len({w is None for w in words}) > 1:
        raise ConfigError(f"label {name!r} is text in some stores and numbers in others; pick one kind")
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int64)
    if words[0] is None:
        units = dict.fromkeys(table.attrs(name).get("units") for table in tables)
        if len(told := [repr(u) for u in units if u is not None]) > 1:
            raise ConfigError(
                f"label {name!r} is in {' and '.join(told)}; write the stores anew with the same units"
            )
        return LabelColumn(name, np.concatenate(parts), None, offsets)
    joined = tuple(sorted({w for some in words for w in (some or ())}))
    code_of = {word: code for code, word in enumerate(joined)}
    mapped = []
    for codes, some in zip(parts, words, strict=True):
        table_map = np.array([code_of[w] for w in some or ()] + [-1], np.int64)  # -1 finds the last
        mapped.append(table_map[codes])
    return LabelColumn(name, np.concatenate(mapped), joined, offsets)


def balance_weights(codes: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return a weight for each sequence that makes every class equally likely.

    Parameters
    ----------
    codes
        int[sequences], the class of each; a negative code is left out (weight 0).

    Returns
    -------
    float64[sequences]
        Weights that sum to 1; those of each class sum to the same.

    Raises
    ------
    ConfigError
        If no sequence has a class.

    Examples
    --------
    >>> balance_weights([0, 0, 1, -1])
    array([0.25, 0.25, 0.5 , 0.  ])
    """
    array = np.asarray(codes, np.int64)
    known = array >= 0
    if not known.any():
        raise ConfigError("no sequence has a class to balance by: all codes are negative or there is none")
    counts = np.bincount(array[known])
    weights = np.zeros(len(array))
    weights[known] = 1.0 / (counts[array[known]] * np.count_nonzero(counts))
    return weights

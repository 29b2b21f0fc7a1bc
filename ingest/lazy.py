"""Lists whose items are made when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

__all__ = ["LazyList"]

T = TypeVar("T")


class LazyList(Sequence[T]):
    """A sequence that knows its length and how to make one item; slices are plain lists.

    Examples
    --------
    >>> class Squares(LazyList[int]):
    ...     def __len__(self):
    ...         return 5
    ...
    ...     def item(self, index):
    ...         return index * index
    >>> Squares()[-1], Squares()[1:3], list(Squares())
    (16, [1, 4], [0, 1, 4, 9, 16])
    """

    @abstractmethod
    def item(self, index: int) -> T:
        """Make the item at ``index``, which lies in [0, len)."""

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        places = range(len(self))[index]
        return [self.item(i) for i in places] if isinstance(places, range) else self.item(places)

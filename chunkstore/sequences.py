"""The table of sequences: ids, lengths, and whatever is known of each.

Nothing is read before it is asked for, so that a store of a million sequences opens at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import FormatError, UnknownNameError
from chunkstore.forks import new_rlock
from chunkstore.reader import read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    import xarray as xr
    from numpy.typing import NDArray

    from chunkstore.arrays import ArrayMeta
    from chunkstore.places import Place

__all__ = ["ColumnData", "SequenceTable"]


@dataclass(frozen=True, slots=True)
class ColumnData:
    """One column along ``sequence``, as it is handed over for writing."""

    name: str
    values: Sequence[Any] | NDArray[Any]
    """One value a sequence; None where it is not known (strings become ``""``, floats NaN)."""
    dtype: str = "string"
    """Numpy's name, or ``"string"``."""
    categorical: bool = False
    """A label: strings with a dictionary of codes."""
    units: str | None = None
    long_name: str | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Further attributes of the array, JSON values."""


class SequenceTable:
    """Ids, lengths, offsets and columns of the sequences of a store.

    Examples
    --------
    >>> import chunkstore
    >>> with chunkstore.StoreWriter("memory://doc-table", fields={"x": "f4"}, overwrite=True) as out:
    ...     out.write("a", {"x": [1, 2, 3]}, labels={"kind": "dog"})
    ...     out.write("b", {"x": [4]}, labels={"kind": "cat"})
    >>> table = chunkstore.open_store("memory://doc-table").sequences
    >>> len(table), list(table.ids), table.offsets, table.codes("kind"), table.categories("kind")
    (2, ['a', 'b'], array([0, 3, 4]), array([1, 0], dtype=int32), ('cat', 'dog'))
    """

    def __init__(
        self, place: Place, arrays: Mapping[str, ArrayMeta], columns: Sequence[str], n_obs: int
    ) -> None:
        self._place = place
        self._arrays = arrays
        self._n_obs = n_obs
        self._kept: dict[str, Any] = {}
        self._lock = new_rlock()
        self.columns: tuple[str, ...] = tuple(columns)
        """Names of the columns, in their order."""

    def __len__(self) -> int:
        return self._arrays["rowsize"].shape[0]

    def _read(self, name: str) -> NDArray[Any]:
        with self._lock:
            if name not in self._kept:
                values = read_plain(self._place, self._arrays[name])
                values.flags.writeable = False
                self._kept[name] = values
            found: NDArray[Any] = self._kept[name]
            return found

    @property
    def rowsize(self) -> NDArray[np.int64]:
        """Obs of each sequence, int64[S]."""
        return self._read("rowsize")

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each sequence starts along ``obs``, and the end of the last: int64[S + 1].

        Raises
        ------
        FormatError
            If a length is negative, or they do not sum to the length of ``obs``.
        """
        with self._lock:
            if "offsets" not in self._kept:
                rowsize = self.rowsize
                offsets = np.zeros(len(rowsize) + 1, dtype=np.int64)
                np.cumsum(rowsize, out=offsets[1:])
                if len(rowsize) and (rowsize.min() < 0 or rowsize.max() > self._n_obs or offsets.min() < 0):
                    at = int(np.argmax((rowsize < 0) | (rowsize > self._n_obs)))
                    raise FormatError(
                        f"store {self._place.url}: rowsize of sequence {at} is {rowsize[at]}; "
                        f"it must lie in 0..{self._n_obs}"
                    )
                if int(offsets[-1]) != self._n_obs:
                    raise FormatError(
                        f"store {self._place.url}: rowsize sums to {int(offsets[-1])}, "
                        f"but obs has length {self._n_obs}"
                    )
                offsets.flags.writeable = False
                self._kept["offsets"] = offsets
            found: NDArray[np.int64] = self._kept["offsets"]
            return found

    @property
    def ids(self) -> NDArray[Any]:
        """Id of each sequence, an object array of str."""
        return self._read("id")

    def index_of(self, id: str) -> int:  # noqa: A002 - the format's own word
        """Return the index of the sequence with this id.

        Raises
        ------
        UnknownNameError
            If there is none.
        """
        with self._lock:
            if "index" not in self._kept:
                self._kept["index"] = {name: i for i, name in enumerate(self.ids.tolist())}
            index: dict[str, int] = self._kept["index"]
        try:
            return index[id]
        except KeyError:
            shown = ", ".join(map(repr, self.ids[:5])) + (", ..." if len(self) > 5 else "")
            raise UnknownNameError(
                f"store {self._place.url} has no sequence {id!r}; it has {len(self)}: {shown}"
            ) from None

    def _known(self, name: str) -> str:
        if name not in self.columns:
            raise UnknownNameError(
                f"store {self._place.url} has no column {name!r} along sequence; "
                f"it has {', '.join(self.columns) or 'none'}"
            )
        return name

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, one value a sequence; an object array of str for text."""
        return self._read(self._known(name))

    def is_categorical(self, name: str) -> bool:
        """Whether a column is a label with codes."""
        code = f"{self._known(name)}_code"
        return code in self._arrays and code not in self.columns

    def codes(self, name: str) -> NDArray[np.int32]:
        """Return the code of each sequence's label, int32[S]; -1 where it has none."""
        if not self.is_categorical(name):
            raise UnknownNameError(
                f"column {name!r} of store {self._place.url} is not a label: it has no codes"
            )
        codes = self._read(f"{name}_code")
        if len(codes) and (codes.min() < -1 or codes.max() >= len(self.categories(name))):
            raise FormatError(f"store {self._place.url}: {name}_code points outside its categories")
        return codes

    def categories(self, name: str) -> tuple[str, ...]:
        """Return the words of a label, in the order of their codes."""
        if not self.is_categorical(name):
            raise UnknownNameError(
                f"column {name!r} of store {self._place.url} is not a label: it has no codes"
            )
        words = self._arrays[f"{name}_code"].attributes.get("categories", [])
        if not all(isinstance(w, str) for w in words) or len(set(words)) != len(words):
            raise FormatError(f"store {self._place.url}: the categories of {name!r} must be different words")
        return tuple(words)

    def attrs(self, name: str) -> Mapping[str, Any]:
        """Return the attributes of a column: units, long_name."""
        return self._arrays[self._known(name)].attributes

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a DataFrame, indexed by id: rowsize, start and every column."""
        import pandas as pd

        data: dict[str, Any] = {"rowsize": self.rowsize, "start": self.offsets[:-1]}
        for name in self.columns:
            if self.is_categorical(name):
                words: Any = list(self.categories(name))
                data[name] = pd.Categorical.from_codes(self.codes(name).tolist(), words)
            else:
                data[name] = self.column(name)
        return pd.DataFrame(data, index=pd.Index(self.ids, name="id"))

    def to_xarray(self) -> xr.Dataset:
        """Return the table as a Dataset along ``sequence``."""
        import xarray as xr

        data: dict[str, Any] = {
            "rowsize": ("sequence", self.rowsize, dict(self._arrays["rowsize"].attributes)),
            "start": ("sequence", self.offsets[:-1], {"long_name": "first obs of the sequence"}),
        }
        for name in self.columns:
            data[name] = ("sequence", self.column(name), dict(self.attrs(name)))
            if self.is_categorical(name):
                about = dict(self._arrays[f"{name}_code"].attributes)
                data[f"{name}_code"] = ("sequence", self.codes(name), about)
        ids = ("sequence", self.ids, dict(self._arrays["id"].attributes))
        return xr.Dataset(data, coords={"id": ids})

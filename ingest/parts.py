"""All parts of a scan as columns of numbers: a million parts are tens of megabytes, not half a gigabyte.

A :class:`~ingest.protocol.Part` is made when it is asked for. What repeats (a file's name, its identity, a
word of the payload) is kept once. Decided here: how parts are kept, and how they are written as lines of
``parts.jsonl``. What they mean is left to the plan and the source.
"""

from __future__ import annotations

import json
from array import array
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chunkstore.errors import ConfigError, IngestError
from ingest.lazy import LazyList
from ingest.protocol import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Parts", "part_line", "plain"]

#: no JSON value, and itself again after pickling
_ABSENT: Final = ...
#: kinds of values that are looked up before they are kept again
_SHARED: Final = frozenset({str, bool, type(None)})
_REMEMBERED: Final = 4096
_BLOCK: Final = 4096


def plain(value: Any) -> Any:
    """Return what stands in JSON for a value that is none.

    Raises
    ------
    ConfigError
        If nothing does.

    Examples
    --------
    >>> plain(np.int16(3)), plain(b"ab")
    (3, '6162')
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return value.hex()
    raise ConfigError(f"{value!r} is no JSON value; options and labels of a source must be")


_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True, default=plain).encode


def part_line(part: Part) -> bytes:
    r"""Return one line of ``parts.jsonl``: a list in the order of the fields of ``Part``.

    Examples
    --------
    >>> part_line(Part(0, "a.npy", "9-1", 8, 2, 4096, 0, {"offset": 128}))
    b'[0,"a.npy","9-1",8,2,4096,0,{"offset":128}]\n'
    """
    row = [part.index, part.file, part.identity, part.nbytes, part.claimed, part.memory, part.sequence]
    return _encode([*row, part.payload]).encode() + b"\n"


class _Column:
    """Values of any kind: integers of 64 bits while all are, else numbers of values that are kept once."""

    __slots__ = ("_codes", "_ints", "_known", "_values")

    def __init__(self, absent: int = 0) -> None:
        self._ints: array[int] | None = array("q") if absent == 0 else None
        self._codes = array("I", repeat(0, absent))
        self._values: list[Any] = [_ABSENT] if absent else []
        self._known: dict[Any, int] = {}

    def append(self, value: Any) -> None:
        if self._ints is not None:
            if type(value) is int and -(1 << 63) <= value < 1 << 63:
                self._ints.append(value)
                return
            self._values = self._ints.tolist()
            self._codes = array("I", range(len(self._values)))
            self._ints = None
        shared = type(value) in _SHARED or value is _ABSENT
        code = self._known.get(value) if shared else None
        if code is None:
            code = len(self._values)
            self._values.append(value)
            if shared:
                if len(self._known) >= _REMEMBERED:  # a column of different texts keeps no index of them
                    self._known.clear()
                self._known[value] = code
        self._codes.append(code)

    def __getitem__(self, index: int) -> Any:
        return self._values[self._codes[index]] if self._ints is None else self._ints[index]

    def distinct(self) -> list[Any]:
        """Return the values, each at its first place."""
        return list(dict.fromkeys(self._values if self._ints is None else self._ints))

    def texts(self, low: int, high: int) -> list[str | None]:
        """Return entries [low, high) as JSON; None where there is none."""
        if self._ints is not None:
            return [str(v) for v in self._ints[low:high]]
        known: dict[int, str | None] = {}
        found = []
        for code in self._codes[low:high]:
            if code not in known:
                value = self._values[code]
                known[code] = None if value is _ABSENT else _encode(value)
            found.append(known[code])
        return found


class Parts(LazyList[Part]):
    """A list of parts that costs about 60 bytes a part, and what is different of names and payload.

    Parameters
    ----------
    parts : iterable of Part
        In order; each says its place as ``index``.

    Examples
    --------
    >>> parts = Parts(Part(i, "a.npy", "9-1", 80, 10, 4096, 0, {"offset": 80 * i}) for i in range(3))
    >>> len(parts), parts[1].payload, parts.files, parts.claimed.tolist()
    (3, {'offset': 80}, ('a.npy',), [10, 10, 10])
    >>> parts.append(Part(7, "b.npy", "9-1", 80, 10, 4096))
    Traceback (most recent call last):
    chunkstore.errors.IngestError: part 7 came in place 3; parts must be in order
    """

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._file, self._identity = _Column(), _Column()
        self._nbytes, self._claimed = array("q"), array("q")
        self._memory, self._sequence = array("q"), array("q")
        self._estimate = bytearray()
        self._payload: dict[str, _Column] = {}
        for part in parts:
            self.append(part)

    def append(self, part: Part) -> None:
        """Keep one more part.

        Raises
        ------
        IngestError
            If its ``index`` is not its place.
        """
        at = len(self._estimate)
        if part.index != at:
            raise IngestError(f"part {part.index} came in place {at}; parts must be in order")
        self._file.append(part.file)
        self._identity.append(part.identity)
        self._nbytes.append(part.nbytes)
        self._claimed.append(part.claimed)
        self._memory.append(part.memory)
        self._sequence.append(part.sequence)
        self._estimate.append(part.estimate)
        payload = part.payload
        if payload.keys() != self._payload.keys():
            for name in payload:
                if name not in self._payload:
                    self._payload[name] = _Column(at)
        for name, column in self._payload.items():
            column.append(payload.get(name, _ABSENT))

    def __len__(self) -> int:
        return len(self._estimate)

    def item(self, index: int) -> Part:
        """Make one part."""
        found = [(name, column[index]) for name, column in self._payload.items()]
        return Part(
            index,
            self._file[index],
            self._identity[index],
            self._nbytes[index],
            self._claimed[index],
            self._memory[index],
            self._sequence[index],
            {name: value for name, value in found if value is not _ABSENT},
            bool(self._estimate[index]),
        )

    @property
    def nbytes(self) -> np.ndarray:
        """int64[P]: encoded bytes of each part."""
        return _numbers(self._nbytes)

    @property
    def claimed(self) -> np.ndarray:
        """int64[P]: rows that each part claims, -1 for none."""
        return _numbers(self._claimed)

    @property
    def memory(self) -> np.ndarray:
        """int64[P]: peak bytes that reading each needs."""
        return _numbers(self._memory)

    @property
    def sequence(self) -> np.ndarray:
        """int64[P]: sequence of each, -1 where it is unknown."""
        return _numbers(self._sequence)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """All inputs, in the order in which parts name them."""
        return tuple(self._file.distinct())

    def blocks(self) -> Iterator[bytes]:
        """Yield the lines of ``parts.jsonl``, some thousands at a time."""
        names = [(_encode(name), self._payload[name]) for name in sorted(self._payload)]
        for low in range(0, len(self), _BLOCK):
            high = min(low + _BLOCK, len(self))
            payloads = repeat("{}", high - low) if not names else _objects(names, low, high)
            rows = zip(
                range(low, high),
                self._file.texts(low, high),
                self._identity.texts(low, high),
                self._nbytes[low:high],
                self._claimed[low:high],
                self._memory[low:high],
                self._sequence[low:high],
                payloads,
                strict=True,
            )
            yield "".join(f"[{i},{f},{d},{n},{c},{m},{s},{p}]\n" for i, f, d, n, c, m, s, p in rows).encode()


def _objects(names: Sequence[tuple[str, _Column]], low: int, high: int) -> Iterator[str]:
    """Payloads as JSON objects, keys in order."""
    columns = [column.texts(low, high) for _, column in names]
    keys = [name for name, _ in names]
    for row in zip(*columns, strict=True):
        inside = ",".join(f"{k}:{v}" for k, v in zip(keys, row, strict=True) if v is not None)
        yield f"{{{inside}}}"


def _numbers(values: array[int]) -> np.ndarray:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)

"""Storage that fails on purpose: a wrapper round any place, for tests of what is built on stores.

Latency, errors, short reads, flipped bits and torn writes, each with a probability. Whether a call fails
depends on (seed, call, key, how often that call was made for that key), never on threads or the
clock: the same seed fails the same way. Nothing here is used unless a test asks for it.

Examples
--------
>>> import chunkstore
>>> with chunkstore.StoreWriter("memory://doc-testing", {"x": "f4"}, overwrite=True) as out:
...     out.write("a", {"x": [1, 2, 3]})
>>> with broken_storage("memory://doc-testing", Faults(flip=1.0, keys="x/c/")) as told:
...     chunkstore.open_store("memory://doc-testing").read("x", 0, 3)
Traceback (most recent call last):
chunkstore.errors.CorruptDataError: ...
>>> [fault.kind for fault in told]
['flip']
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError
from chunkstore.places import WRAPPERS, Blob, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Fault", "Faults", "FaultyPlace", "Mischief", "break_storage", "broken_storage", "mend_storage"]


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, and how often.

    Examples
    --------
    >>> Faults(seed=3, error=0.1).error
    0.1
    >>> Faults(flip=2)
    Traceback (most recent call last):
    chunkstore.errors.ConfigError: flip is 2; a probability is between 0 and 1
    """

    seed: int = 0
    error: float = 0.0
    """Probability that a call raises an ``OSError``."""
    short: float = 0.0
    """Probability that a read returns fewer bytes than there are."""
    flip: float = 0.0
    """Probability that a read returns one flipped bit."""
    torn: float = 0.0
    """Probability that a write leaves only the first part of the object and raises an ``OSError``."""
    lying: float = 0.0
    """Probability that a write leaves only the first part of the object and says nothing."""
    latency: float = 0.0
    """Mean seconds that a call takes longer; the longest is twice that."""
    keys: str = ""
    """Regular expression: only keys in which it is found are touched."""
    limit: int | None = None
    """At most so many faults, then everything works; latency is no fault."""

    def __post_init__(self) -> None:
        for name in ("error", "short", "flip", "torn", "lying"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} is {value}; a probability is between 0 and 1")


@dataclass(frozen=True, slots=True)
class Fault:
    """One call that went wrong."""

    kind: str
    """``error``, ``short``, ``flip``, ``torn`` or ``lying``."""
    call: str
    """``get``, ``ranges``, ``blob``, ``size``, ``put``, ``delete`` or ``walk``."""
    key: str


class Mischief:
    """Decides what goes wrong, and remembers it: one for all objects that fail together. Thread-safe.

    Examples
    --------
    >>> mischief = Mischief(Faults(short=1.0))
    >>> len(mischief.spoil("get", "a", b"1234", mischief.begin("get", "a"))) < 4
    True
    >>> mischief.told
    [Fault(kind='short', call='get', key='a')]
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.told: list[Fault] = []
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._touched = re.compile(faults.keys)

    def luck(self, call: str, key: str) -> Iterator[float]:
        """Yield numbers in [0, 1) that belong to this call of this key."""
        with self._lock:
            number = self._calls[call, key]
            self._calls[call, key] += 1
        text = f"{self.faults.seed}\0{call}\0{key}\0{number}".encode()
        at = 0
        while True:
            digest = hashlib.blake2b(text + at.to_bytes(4, "little"), digest_size=64).digest()
            for i in range(0, 64, 8):
                yield (int.from_bytes(digest[i : i + 8], "little") >> 11) / 2**53
            at += 1

    def happens(self, kind: str, call: str, key: str, luck: Iterator[float]) -> bool:
        """Return whether this goes wrong now, and note it."""
        if next(luck) >= getattr(self.faults, kind) or not self._touched.search(key):
            return False
        with self._lock:
            if self.faults.limit is not None and len(self.told) >= self.faults.limit:
                return False
            self.told.append(Fault(kind, call, key))
        return True

    def begin(self, call: str, key: str) -> Iterator[float]:
        """Begin a call: wait, perhaps fail, and return its luck."""
        luck = self.luck(call, key)
        wait = 2 * self.faults.latency * next(luck)
        if wait and self._touched.search(key):
            time.sleep(wait)
        if self.happens("error", call, key, luck):
            raise OSError(5, f"injected error in {call} of {key!r}")
        return luck

    def spoil(self, call: str, key: str, data: bytes, luck: Iterator[float]) -> bytes:
        """Return what a read returns: the data, or fewer bytes, or one flipped bit."""
        short, flip = self.happens("short", call, key, luck), self.happens("flip", call, key, luck)
        if flip and data:
            spoiled = bytearray(data)
            spoiled[int(next(luck) * len(data))] ^= 1 << int(next(luck) * 8)
            data = bytes(spoiled)
        return data[: int(next(luck) * len(data))] if short else data


class FaultyPlace(Place):
    """A place whose calls fail now and then; thread-safe.

    What zarr reads through :meth:`zarr_store` does not fail.

    Examples
    --------
    >>> from chunkstore.places import MemoryPlace
    >>> place = FaultyPlace(MemoryPlace("doc-faulty"), Faults(torn=1.0))
    >>> place.put("a", b"1234")
    Traceback (most recent call last):
    OSError: [Errno 5] injected torn write of 'a'
    >>> place.told
    [Fault(kind='torn', call='put', key='a')]
    """

    def __init__(self, inner: Place, faults: Faults, mischief: Mischief | None = None) -> None:
        self.inner = inner
        self.mischief = mischief or Mischief(faults)
        self.told: list[Fault] = self.mischief.told
        self.url = inner.url
        self.kind = inner.kind
        self.read_only = inner.read_only

    # -- the calls of a place -----------------------------------------------------------------

    def get(self, key: str, most: int | None = None) -> bytes | None:
        """Return a whole object, perhaps spoiled."""
        luck = self.mischief.begin("get", key)
        data = self.inner.get(key, most)
        return None if data is None else self.mischief.spoil("get", key, data, luck)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        """Return ranges of an object, perhaps spoiled."""
        luck = self.mischief.begin("ranges", key)
        return [
            self.mischief.spoil("ranges", key, bytes(d), luck) for d in self.inner.get_ranges(key, ranges)
        ]

    def blob(self, key: str, tail: int) -> Blob | None:
        """Open an object whose reads may be spoiled, and its tail."""
        luck = self.mischief.begin("blob", key)
        found = self.inner.blob(key, tail)
        if found is None:
            return None
        return Blob(self, key, found.size, self.mischief.spoil("blob", key, found.tail, luck))

    def size(self, key: str) -> int | None:
        """Return the size of an object, or fail."""
        self.mischief.begin("size", key)
        return self.inner.size(key)

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Write an object, perhaps not all of it."""
        luck = self.mischief.begin("put", key)
        part = bytes(data)[: int(next(luck) * len(data))]
        if self.mischief.happens("torn", "put", key, luck):
            self.inner.put(key, part)
            raise OSError(5, f"injected torn write of {key!r}")
        self.inner.put(key, part if self.mischief.happens("lying", "put", key, luck) else data)

    def delete(self, key: str) -> None:
        """Remove an object, or fail."""
        self.mischief.begin("delete", key)
        self.inner.delete(key)

    def walk(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield (key, size), or fail at once."""
        self.mischief.begin("walk", prefix)
        yield from self.inner.walk(prefix)

    def zarr_store(self) -> Any:
        """Return the zarr store of the place inside."""
        return self.inner.zarr_store()

    def is_empty(self) -> bool:
        """Whether there is nothing here yet."""
        return self.inner.is_empty()

    def clear(self, keep: str | None = None) -> None:
        """Remove everything here but the object ``keep``."""
        self.inner.clear(keep)

    def settle(self, *names: str) -> None:
        """Return when what was written would outlive a loss of power."""
        self.inner.settle(*names)

    def sweep(self) -> None:
        """Remove what writers that were killed have left behind."""
        self.inner.sweep()

    def sweep_object(self, key: str) -> None:
        """Remove what writers of this object have left behind."""
        self.inner.sweep_object(key)

    def check_key(self, key: str) -> None:
        """Refuse a key that leads out of the store."""
        self.inner.check_key(key)

    def close(self) -> None:
        """Let go of whatever is held open."""
        self.inner.close()


_broken: list[tuple[list[Callable[[Any], Any]], Callable[[Any], Any], Mischief]] = []


def break_storage(url: str, faults: Faults) -> None:
    """Let every place of this process whose URL begins with ``url`` fail, until :func:`mend_storage`.

    A dask worker is reached by ``client.run(break_storage, url, faults)``. Each process counts its own calls.

    Examples
    --------
    >>> break_storage("memory://doc-break", Faults(error=1.0))
    >>> mend_storage()
    []
    """
    mischief, wrap = _wrap(url, faults)
    remember(WRAPPERS, wrap, mischief)


def remember(wrappers: list[Callable[[Any], Any]], wrap: Callable[[Any], Any], mischief: Mischief) -> None:
    """Let :func:`mend_storage` take ``wrap`` out of ``wrappers`` again."""
    _broken.append((wrappers, wrap, mischief))


def mend_storage() -> list[Fault]:
    """End what :func:`break_storage` began in this process; return what went wrong.

    Examples
    --------
    >>> mend_storage()
    []
    """
    told: list[Fault] = []
    while _broken:
        wrappers, wrap, mischief = _broken.pop()
        wrappers.remove(wrap)
        told += mischief.told
    return told


def _wrap(url: str, faults: Faults) -> tuple[Mischief, Callable[[Place], Place]]:
    mischief = Mischief(faults)

    def wrap(place: Place) -> Place:
        return FaultyPlace(place, faults, mischief) if place.url.startswith(url) else place

    WRAPPERS.append(wrap)
    return mischief, wrap


@contextlib.contextmanager
def broken_storage(url: str, faults: Faults) -> Iterator[list[Fault]]:
    """Let places fail for the time of a ``with``; give the list of what went wrong.

    Examples
    --------
    >>> with broken_storage("memory://doc-broken", Faults(error=1.0)) as told:
    ...     len(told)
    0
    """
    mischief, wrap = _wrap(str(url), faults)
    try:
        yield mischief.told
    finally:
        WRAPPERS.remove(wrap)

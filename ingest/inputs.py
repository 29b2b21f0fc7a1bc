"""From what a person types to a list of inputs: files, folders, globs, lists, URLs.

The order is natural (``a2`` before ``a10``) within each argument and as typed between them. Whether
a file is what its name says is decided by its source, by content.
"""

# paths are strings here: they travel to workers, fsspec and object stores
# ruff: noqa: PTH100, PTH110, PTH111, PTH112, PTH113, PTH114, PTH118, PTH119, PTH120, PTH207

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from chunkstore.errors import InputError
from chunkstore.places import redact_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["expand", "is_url", "local_path", "natural_key", "shown"]

_DIGITS = re.compile(r"(\d+)")
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]+://")
_FILE = re.compile("^file://", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts numbers in text by value.

    Examples
    --------
    >>> sorted(["a10", "a2", "a", "b1"], key=natural_key)
    ['a', 'a2', 'a10', 'b1']
    """
    pieces = _DIGITS.split(text)
    key: list[tuple[int, int, str]] = [
        (0, int(piece), piece) if piece.isdigit() and piece.isascii() else (1, 0, piece)
        for piece in pieces
        if piece
    ]
    return tuple(key)


def is_url(text: str) -> bool:
    """Whether the text names a place outside the local file system (``file://`` aside).

    Examples
    --------
    >>> is_url("s3://bucket/a"), is_url("/tmp/a"), is_url("file:///tmp/a")
    (True, False, False)
    """
    return bool(_URL.match(text)) and not _FILE.match(text)


def local_path(text: str) -> str:
    """Return the path that ``file://`` names, as the reader of stores has it; any other text is a path.

    Examples
    --------
    >>> local_path("file:///data/my%20birds"), local_path("/data/my%20birds")
    ('/data/my birds', '/data/my%20birds')
    """
    found = _FILE.match(text)
    return unquote(text[found.end() :].removeprefix("localhost")) if found else text


def shown(text: str) -> str:
    """Return an input as it may stand in a message: URLs without user, password and query.

    Examples
    --------
    >>> shown("https://me:pw@host/a.avro?sig=abc"), shown("s3://bucket/day?.avro"), shown("/data/a?b=c")
    ('https://host/a.avro', 's3://bucket/day?.avro', '/data/a?b=c')
    """
    if not is_url(text):
        return text
    query = text.partition("?")[2]
    secret = not query or "=" in query or text.lower().startswith("http")
    return redact_url(text) if secret else f"{redact_url(text)}?{query}"  # a ? of a glob


def expand(
    inputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    suffixes: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return the inputs as a list of absolute paths and URLs, without repeats.

    A file that is reached through two folders, one of them a link, is a repeat; a link to a file is none.

    Parameters
    ----------
    inputs : path or iterable of paths
        Files, folders (searched to any depth, those that links lead to as well, each once), globs (``**``
        too), ``@list.txt`` (one input a line, ``#`` starts a comment) and URLs that fsspec knows.
    suffixes : sequence of str
        What files of a folder must end with, e.g. ``[".avro"]``, in any case; all files if empty. A file
        that is named itself is taken whatever its name. A folder named ``x.avro`` is a folder.
    storage_options : mapping, optional
        Options of the file systems of URLs.

    Raises
    ------
    InputError
        If an input does not exist, a folder holds a link that leads nowhere or cannot be read, or there
        is nothing to read.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ["b10.avro", "b9.AVRO", "._b1.avro", "notes.txt"]:
    ...     _ = (folder / name).write_bytes(b"")
    >>> [Path(p).name for p in expand(folder, [".avro"])]
    ['b9.AVRO', 'b10.avro']
    """
    given = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    wanted = tuple(s.lower() for s in suffixes)
    found: dict[str, str] = {}
    entry = _Entries()
    for one in given:
        for path in _one(os.fspath(one), wanted, storage_options or {}, depth=0):
            found.setdefault(path if is_url(path) else entry(path), path)
    if not found:
        what = f" ending in {', '.join(suffixes)}" if suffixes else ""
        where = ", ".join(shown(os.fspath(g)) for g in given[:3]) or "no inputs given"
        raise InputError(f"nothing to read: no file{what} in {where}")
    return list(found.values())


class _Entries:
    """Where files stand, by whatever links they are reached: a link itself is not followed."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def __call__(self, path: str) -> str:
        folder, name = os.path.split(path)
        real = self._real.get(folder)
        if real is None:
            real = self._real[folder] = os.path.realpath(folder)
        return os.path.join(real, name)


def _one(text: str, wanted: tuple[str, ...], options: Mapping[str, Any], depth: int) -> Iterator[str]:
    if text.startswith("@") and not os.path.exists(text):
        yield from _listed(text[1:], wanted, options, depth)
    elif is_url(text):
        yield from _remote(text, wanted, options)
    else:
        yield from _local(local_path(text), wanted)


def _listed(name: str, wanted: tuple[str, ...], options: Mapping[str, Any], depth: int) -> Iterator[str]:
    if depth > 8:
        raise InputError(f"list file {name!r} names lists more than 8 deep; do they name each other?")
    try:
        told = Path(name).read_bytes().decode("utf-8-sig", "surrogateescape")  # as names of files are
    except OSError as error:
        raise InputError(f"cannot read the list file {name!r}: {error}") from error
    if "\0" in told:
        raise InputError(f"cannot read the list file {name!r}: it is no UTF-8 text")
    base = os.path.dirname(os.path.abspath(name))
    for line in told.split("\n"):  # other separators of lines may stand in names
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        if entry.startswith("@"):
            yield from _one("@" + os.path.join(base, entry[1:]), wanted, options, depth + 1)
        elif is_url(entry):
            yield from _one(entry, wanted, options, depth + 1)
        else:
            path = os.path.join(base, os.path.expanduser(local_path(entry)))
            yield from _one(path, wanted, options, depth + 1)


def _local(text: str, wanted: tuple[str, ...]) -> Iterator[str]:
    path = os.path.abspath(os.path.expanduser(text))
    if os.path.isdir(path):
        yield from _walk(path, wanted)
    elif os.path.exists(path):
        yield path
    elif _MAGIC.search(text):
        hits = sorted(glob.glob(path, recursive=True), key=natural_key)
        if not hits:
            raise InputError(f"nothing matches {text}")
        yield from _shortest(list(_matched(hits, text, wanted)))
    else:
        raise InputError(f"no such file or folder: {text}")


def _matched(hits: Iterable[str], text: str, wanted: tuple[str, ...]) -> Iterator[str]:
    """Yield the files among the hits of a glob, and those of its folders."""
    for hit in hits:
        if os.path.isdir(hit):
            # `x/*` and `x/**` name folders beside files: their files come by the walk, once
            yield from _walk(hit, wanted)
        elif not _hidden(os.path.basename(hit)) and (not wanted or _named(hit, wanted, text)):
            yield hit


def _shortest(paths: Sequence[str]) -> Iterator[str]:
    """Yield each file once, by its shortest path: ``**`` follows links, and those that lead back 40 times."""
    entry = _Entries()
    best: dict[str, str] = {}
    for path in paths:
        at = entry(path)
        if path.count(os.sep) < best.setdefault(at, path).count(os.sep):
            best[at] = path
    kept = set(best.values())
    yield from (path for path in dict.fromkeys(paths) if path in kept)


def _named(hit: str, wanted: tuple[str, ...], pattern: str) -> bool:
    """Whether a hit of a glob is wanted: a glob with a suffix of its own (``*.dat``) is taken at its word."""
    last = os.path.basename(pattern)
    return hit.lower().endswith(wanted) or not last.endswith("*")


def _hidden(name: str) -> bool:
    return name.startswith(".")


def _walk(root: str, wanted: tuple[str, ...]) -> Iterator[str]:
    hits: list[str] = []
    seen: set[str] = set()  # a folder that links lead to twice, or back to, is read once
    waiting = [root]
    while waiting:
        linked: list[str] = []
        for start in waiting:
            for folder, folders, files in os.walk(start, onerror=_unreadable):
                real = os.path.realpath(folder)
                if real in seen:
                    folders.clear()
                    continue
                seen.add(real)
                folders[:] = [f for f in folders if not _hidden(f)]
                linked += [p for p in (os.path.join(folder, f) for f in folders) if os.path.islink(p)]
                hits += [
                    os.path.join(folder, f)
                    for f in files
                    if not _hidden(f) and (not wanted or f.lower().endswith(wanted))
                ]
        waiting = sorted(linked, key=natural_key)
    for hit in sorted(hits, key=natural_key):
        if not os.path.isfile(hit):
            what = "a link that leads nowhere" if os.path.islink(hit) else "not a file"
            raise InputError(f"{hit} is {what}; remove it, or name the files to read")
        yield hit


def _unreadable(error: OSError) -> None:
    raise InputError(f"the folder {error.filename} cannot be read: {error.strerror}") from error


def _remote(text: str, wanted: tuple[str, ...], options: Mapping[str, Any]) -> Iterator[str]:
    from ingest.remote import filesystem

    system, path = filesystem(text, options)
    scheme = text.split("://", 1)[0]
    system.invalidate_cache()  # what it remembers of a listing knows no files that came since

    def address(hit: str) -> str:
        return hit if "://" in hit else f"{scheme}://{hit}"

    try:
        if system.isfile(path):  # first: brackets may stand in names, and ? before a signature
            yield text
            return
        if _MAGIC.search(text) and not system.isdir(path):
            hits = [h for h in system.glob(path) if not _hidden(h.rsplit("/", 1)[-1]) and not system.isdir(h)]
        else:
            hits = [
                h
                for h in system.find(path)
                if not _hidden(h.rsplit("/", 1)[-1]) and (not wanted or h.lower().endswith(wanted))
            ]
    except FileNotFoundError:
        hits = []
    if not hits:
        raise InputError(f"nothing to read at {shown(text)}")
    yield from (address(h) for h in sorted(hits, key=natural_key))

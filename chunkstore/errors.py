"""The tree of errors. Each is also a builtin, so that code that knows nothing of us can catch it.

::

    ChunkstoreError
    ├── ConfigError            (ValueError)           an option or argument that cannot be used
    │   └── MemoryLimitError                          the limit is below what the work needs
    ├── UnknownNameError       (KeyError)             no field, sequence, label or split of that name
    ├── NotAStoreError         (ValueError)           nothing there, or something that is not a store
    │   └── StoreNotFoundError (FileNotFoundError)    the place is empty
    ├── StoreExistsError       (FileExistsError)      the output is already there
    ├── IncompleteStoreError   (ValueError)           a store whose writing has not finished
    ├── FormatError            (ValueError)           metadata that breaks a rule of the format
    ├── CorruptDataError       (OSError)              bytes that fail their checksum or do not decode
    ├── StateError             (ValueError)           a saved state that belongs to something else
    ├── ForkError              (RuntimeError)         used in a forked child of a process that decoded
    ├── IngestError            (RuntimeError)         an ingest that cannot go on
    │   ├── InputError         (ValueError)           nothing to read, or inputs that do not fit together
    │   └── SourceChangedError (OSError)              an input that is not what was scanned
    ├── MissingDependencyError (ImportError)          an optional library is needed
    └── UnsupportedError       (NotImplementedError)  legal, but not built

Every message is one clear sentence with both numbers, the place (store, field, sequence,
offset) and the next step.
"""

from __future__ import annotations

from chunkstore.text import printable

__all__ = [
    "ChunkstoreError",
    "ConfigError",
    "CorruptDataError",
    "ForkError",
    "FormatError",
    "IncompleteStoreError",
    "IngestError",
    "InputError",
    "MemoryLimitError",
    "MissingDependencyError",
    "NotAStoreError",
    "SourceChangedError",
    "StateError",
    "StoreExistsError",
    "StoreNotFoundError",
    "UnknownNameError",
    "UnsupportedError",
]

#: Characters of a message; what is longer loses its middle.
_LONGEST = 4000


class ChunkstoreError(Exception):
    """The root: whatever this project raises on purpose.

    Messages quote names that files made up: they are shown without control characters, and cut if long.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(a, _LONGEST) if isinstance(a, str) else a for a in args))


class ConfigError(ChunkstoreError, ValueError):
    """An option or argument that cannot be used as given."""


class MemoryLimitError(ConfigError):
    """The memory limit is below the least that the work needs; the message says both."""


class UnknownNameError(ChunkstoreError, KeyError):
    """There is no field, sequence, label or split of that name; the message lists what there is."""

    def __str__(self) -> str:  # KeyError would show the repr of its argument
        return str(self.args[0]) if self.args else ""


class NotAStoreError(ChunkstoreError, ValueError):
    """The place holds something that is not a store of ours."""


class StoreNotFoundError(NotAStoreError, FileNotFoundError):
    """The place is empty."""

    def __str__(self) -> str:  # FileNotFoundError shows errno fields that are not set
        return str(self.args[0]) if self.args else ""


class StoreExistsError(ChunkstoreError, FileExistsError):
    """The output is already there and neither ``overwrite`` nor ``resume`` was asked for."""


class IncompleteStoreError(ChunkstoreError, ValueError):
    """The store's writing has not finished (or was broken off)."""


class FormatError(ChunkstoreError, ValueError):
    """Metadata that breaks a rule of the store format."""


class CorruptDataError(ChunkstoreError, OSError):
    """Stored bytes that fail their checksum, do not decode, or are missing."""


class StateError(ChunkstoreError, ValueError):
    """A saved training state that belongs to another dataset, seed or version."""


class ForkError(ChunkstoreError, RuntimeError):
    """A store used in a forked child of a process that has already decoded with it."""


class IngestError(ChunkstoreError, RuntimeError):
    """An ingest that cannot start or go on."""


class InputError(IngestError, ValueError):
    """Nothing to read, or inputs that do not fit together."""


class SourceChangedError(IngestError, OSError):
    """An input that is no longer what was scanned."""


class MissingDependencyError(ChunkstoreError, ImportError):
    """An optional library is needed; the message gives the ``pip install`` line."""


class UnsupportedError(ChunkstoreError, NotImplementedError):
    """Legal, but not built; the message says what to do instead."""

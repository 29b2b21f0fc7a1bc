"""One module a format, found by name.

A source is a class behind :class:`ingest.protocol.Source`, made from options that are JSON values. A
name with a colon (``"mypackage.module:Class"``) is imported, so that a format needs no change here.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from chunkstore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest.protocol import Source

__all__ = ["NAMES", "open_source"]

#: short names of the sources that come with the package
NAMES: Mapping[str, str] = {
    "avro": "ingest.sources.avro:AvroSource",
    "audio": "ingest.sources.audio:AudioSource",
    "npy": "ingest.sources.npy:NpySource",
}


def open_source(name: str, options: Mapping[str, Any]) -> Source:
    """Make a source from its name and options.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`, or ``"module:Class"``.
    options : mapping
        Options of the source by name, JSON values.

    Raises
    ------
    ConfigError
        If there is no such source, or it has no such option.

    Examples
    --------
    >>> open_source("npy", {"rate": 100.0}).name
    'npy'
    """
    address = NAMES.get(name, name)
    module, _, attribute = address.partition(":")
    if not attribute:
        raise ConfigError(f"no source {name!r}; there are {', '.join(NAMES)}, or give 'module:Class'")
    try:
        made = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load the source {address!r}: {error}") from error
    try:
        source: Source = made(dict(options)) if _takes_mapping(made) else made(**options)
    except TypeError as error:
        raise ConfigError(f"source {name!r}: {error}") from error
    return source


def _takes_mapping(made: Any) -> bool:
    """Whether a source wants its options as one mapping, and not by name."""
    first = next(iter(inspect.signature(made).parameters.values()), None)
    return first is not None and first.name == "options" and first.kind is first.POSITIONAL_OR_KEYWORD

"""What decides the bytes of a store beside its inputs: versions that must be the same in every worker."""

from __future__ import annotations

import importlib.metadata
from functools import lru_cache
from typing import TYPE_CHECKING

import chunkstore
from chunkstore.errors import IngestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["check_versions", "versions_here", "versions_of"]


def versions_of(libraries: Iterable[str]) -> dict[str, str]:
    """Return the versions of libraries in this process, "none" for what is not there.

    Examples
    --------
    >>> import numpy as np
    >>> versions_of(["numpy", "no-such-library"]) == {"numpy": np.__version__, "no-such-library": "none"}
    True
    """
    return {name: _version(name) for name in libraries}


@lru_cache(maxsize=64)
def _version(name: str) -> str:
    if name == "libsndfile":  # comes with soundfile, or from the system
        try:
            import soundfile
        except (ImportError, OSError):
            return "none"
        return str(soundfile.__libsndfile_version__)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def versions_here(decoders: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of the engine, of the codecs and of some decoders in this process.

    Examples
    --------
    >>> sorted(versions_here(["numpy"]))
    ['chunkstore', 'numcodecs', 'numpy']
    """
    return versions_of(("numcodecs", *decoders)) | {"chunkstore": chunkstore.__version__}


def check_versions(wanted: Mapping[str, str]) -> None:
    """Raise ``IngestError`` unless this process, a worker perhaps, has the versions of the client.

    Examples
    --------
    >>> check_versions(versions_here())
    """
    here = versions_here(wanted)
    other = [f"{name} {here[name]}, not {told}" for name, told in wanted.items() if here[name] != told]
    if other:
        raise IngestError(
            f"a worker has other versions than the client, which may give other bytes: {'; '.join(other)}; "
            "install the same on all machines and run again with --resume"
        )

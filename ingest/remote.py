"""URLs of other places: which library opens them.

Inputs are opened through fsspec, whose drivers are optional. Where the driver of a cloud is not
installed but obstore is, obstore stands in. Credentials come by the usual means only: the
environment, the machine's role, configuration files, or ``storage_options``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from chunkstore.errors import ConfigError, MissingDependencyError
from ingest.inputs import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["filesystem", "latest_info", "register_clouds", "stamp"]

#: what tells one version of an object from another, the surest first; each driver spells them its own way
_STAMPS: Final = (
    *("etag", "md5hash", "md5", "contentmd5", "crc32c", "versionid", "version", "generation", "sha"),
    *("lastmodified", "mtime", "modified", "modificationtime", "modify", "lastwritetime", "created"),
)
_CLOUDS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl")


def register_clouds() -> None:
    """Let obstore serve the clouds for which fsspec has no driver installed. Safe to call again."""
    import fsspec

    try:
        import obstore.fsspec
    except ImportError:
        return
    for scheme in _CLOUDS:
        try:
            fsspec.get_filesystem_class(scheme)
        except (ImportError, ValueError):
            try:
                obstore.fsspec.register(scheme)
            except Exception:  # noqa: S112  # a scheme that this obstore does not know
                continue


def filesystem(url: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return (fsspec file system, path in it) of a URL.

    Raises
    ------
    MissingDependencyError
        If no library that opens this kind of URL is installed.
    ConfigError
        If the URL cannot be understood.

    Examples
    --------
    >>> filesystem("memory://a/b")[1]
    '/a/b'
    """
    import fsspec

    register_clouds()
    try:
        system, path = fsspec.core.url_to_fs(url, **dict(storage_options or {}))
    except ImportError as error:
        raise MissingDependencyError(f"{shown(url)}: {error}; pip install 'chunkstore[cloud]'") from error
    except ValueError as error:
        told = str(error).replace(url, shown(url))
        raise ConfigError(f"{shown(url)}: {told}") from None
    return system, path


def latest_info(system: Any, path: str) -> dict[str, Any]:
    """Return what a file system tells of a file now, not what it remembers of a listing."""
    system.invalidate_cache(path)
    found: dict[str, Any] = system.info(path)
    return found


def stamp(info: Mapping[str, Any]) -> str:
    """Return what tells this version of a file from others of its size; "" where nothing does.

    Examples
    --------
    >>> stamp({"size": 3, "e_tag": '"a1"', "last_modified": "today"})
    'a1'
    >>> stamp({"size": 3, "LastModified": "today"}), stamp({"size": 3, "ETag": None})
    ('today', '')
    """
    told = {re.sub("[^a-z0-9]", "", key.lower()): value for key, value in info.items() if value}
    return next((str(told[name]).replace('"', "") for name in _STAMPS if name in told), "")

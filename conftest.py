"""Which modules need a library that is not here: doctests cannot import those. And their example store."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chunkstore.store import ChunkStore

#: adapters, and the library that each is for; `make test-adapters` runs them in an environment of their own
ADAPTERS = {"fastai": "fastai", "tsai": "tsai", "lightning": "lightning"}
collect_ignore = [f"chunkstore/{name}.py" for name, library in ADAPTERS.items() if find_spec(library) is None]


@pytest.fixture
def small_store() -> ChunkStore:
    """Return the store of the examples, for doctests that cannot spell it out."""
    from chunkstore import examples

    return examples.small_store()

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
WITHOUT_TORCH = find_spec("torch") is None
if WITHOUT_TORCH:
    collect_ignore += ["chunkstore/torch", "tests/adapters", "tests/chunkstore/torch"]
    collect_ignore += ["tests/chunkstore/test_normalize.py", "tests/chunkstore/test_numbers.py"]


def pytest_report_header() -> str:
    """Say what cannot be tested here."""
    return "torch is not installed: what needs it is not tested" if WITHOUT_TORCH else ""


@pytest.fixture
def small_store() -> ChunkStore:
    """Return the store of the examples, for doctests that cannot spell it out."""
    from chunkstore import examples

    return examples.small_store()

"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# compiled kernels are loaded at their first call, and machines are shared: no time is asserted
settings.register_profile("chunkstore", deadline=None)
settings.load_profile("chunkstore")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real recordings; the test skips, and says so, where it is absent."""
    folder = Path(os.environ.get("CHUNKSTORE_TEST_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / "README.md").is_file():
        pytest.skip(f"no real recordings at {folder}; set CHUNKSTORE_TEST_DATA to their folder")
    return folder

"""Kill -9 of workers, of the client, of everything: the store that results is the undisturbed one.

A few seeds run with the suite; ``python tests/ingest/support/kills.py 30`` runs as many as you like.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent / "support"


@pytest.mark.cluster
@pytest.mark.slow
def test_jobs_that_were_killed_end_with_the_bytes_of_one_that_was_not():
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "kills.py"), "4"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 runs" in done.stdout

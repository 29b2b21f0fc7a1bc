"""Prepare one reader's copy of the data: ``python -m benchmarks.peers FUNCTION CLASS TASK OUT``."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

if __name__ == "__main__":
    module, name = sys.argv[1].split(":")
    make = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
    module, name = sys.argv[2].split(":")
    make(getattr(importlib.import_module(module), name)(**json.loads(sys.argv[3])), Path(sys.argv[4]))

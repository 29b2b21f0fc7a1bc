"""Prepare one reader's copy of the data: ``python -m benchmarks.peers module:function task out``."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from benchmarks.peers.task import Task

if __name__ == "__main__":
    module, name = sys.argv[1].split(":")
    make = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
    make(Task(**json.loads(sys.argv[2])), Path(sys.argv[3]))

"""Compare folders byte for byte."""

from __future__ import annotations

import hashlib
from pathlib import Path


def tree(folder):
    """Name -> hash of every file under a folder."""
    root = Path(folder)
    return {
        str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }

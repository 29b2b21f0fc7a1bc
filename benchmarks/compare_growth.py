"""How time and memory of this project grow: against obs, sequences, stores, lanes, workers and ranks.

``python -m benchmarks.compare_growth`` changes one size at a time: 8 million obs of one float32 field in 64
sequences and one store, windows of 512 in batches of 256 from 256 lanes, no workers, one rank. The design
says: set-up, memory and rate are flat in obs, stores and ranks; memory grows with sequences by tens of bytes
each, and with lanes by a block each.
"""

from __future__ import annotations

import sys

from benchmarks.harness import Subject, main

AXES: dict[str, tuple[int, ...]] = {
    "obs": (1 << 20, 1 << 22, 1 << 24, 1 << 26),
    "sequences": (64, 1_000, 10_000, 100_000),
    "stores": (1, 4, 16, 64),
    "lanes": (16, 64, 256, 1024),
    "workers": (0, 1, 2, 4),
    "ranks": (1, 2, 4, 8),
}
QUICK = {"obs": (1 << 20, 1 << 22), "sequences": (64, 1_000), "ranks": (1, 4)}
#: windows of a hundred thousand sequences of 83 obs each must be shorter than they are
MORE = {"sequences": {"length": 64}}


def subjects(quick: bool) -> list[Subject]:
    """One row a point of a plot."""
    return [
        Subject(
            f"{axis} {value:,}",
            "benchmarks.peers.growth:ours",
            {"axis": axis, "value": value} | MORE.get(axis, {}),
            table=axis,
            packages=("zarr", "zarrs"),
            timeout_s=300,
        )
        for axis, values in (QUICK if quick else AXES).items()
        for value in values
    ]


if __name__ == "__main__":
    sys.exit(main("compare_growth", subjects, repeats=2))

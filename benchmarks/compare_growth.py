"""How time and memory of this project grow: against obs, sequences, stores, lanes, workers and ranks.

``python -m benchmarks.compare_growth`` changes one size at a time: 67 million obs of one float32 field in
64 sequences and one store, windows of 512 in batches of 256 from 128 lanes, half of the data's size as the
memory limit, no workers, one rank. The design says: set-up, memory and rate are flat in obs, stores and
ranks; memory grows with sequences by tens of bytes each, and with lanes by a block each, up to the limit.
"""

from __future__ import annotations

import sys

from benchmarks.harness import Subject, main

AXES: dict[str, tuple[int, ...]] = {
    "obs": (1 << 20, 1 << 22, 1 << 24, 1 << 26),
    "sequences": (64, 1_000, 10_000, 100_000),
    "stores": (1, 4, 16, 64),
    "lanes": (8, 32, 128, 256),
    "workers": (0, 1, 2, 4),
    "ranks": (1, 2, 4, 8),
}
QUICK = {"obs": (1 << 20, 1 << 22), "sequences": (64, 1_000), "ranks": (1, 4)}
QUICK_SIZE = {"obs": 1 << 22, "memory_limit": 16 << 20, "lanes": 16}
#: a hundred thousand sequences have 671 obs each, and still some windows each
MORE = {"sequences": {"length": 64}}


def subjects(quick: bool) -> list[Subject]:
    """One row a point of a plot."""
    return [
        Subject(
            f"{axis} {value:,}",
            "benchmarks.peers.growth:ours",
            (QUICK_SIZE if quick else {}) | MORE.get(axis, {}) | {"axis": axis, "value": value},
            table=axis,
            packages=("zarr", "zarrs"),
            timeout_s=300,
        )
        for axis, values in (QUICK if quick else AXES).items()
        for value in values
    ]


if __name__ == "__main__":
    sys.exit(main("compare_growth", subjects))

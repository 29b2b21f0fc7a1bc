"""A source for tests of the engine: rows of many sequences mixed over ``.npz`` files, with known faults.

Each value says where it came from: ``value`` is the number of the row over all files. What goes wrong is an
option, so that every path of the engine can be walked with data that an oracle in pandas knows.
"""

from __future__ import annotations

import os
import time as clock
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from chunkstore.layout import FieldSpec
from ingest.protocol import Batch, ColumnSpec, CutRule, Fault, Part, Scan
from ingest.sources.npy import NpySource

FIELDS = (
    FieldSpec("time", "int64", units="seconds since 2000-01-01"),
    FieldSpec("value", "float64"),
    FieldSpec("pair", "int32", items=2),
    FieldSpec("count", "int64", nullable=True),
    FieldSpec("flag", "int8"),
)


class KeyedSource:
    name = "keyed"
    suffixes = (".npz",)

    def __init__(
        self,
        order="keep",
        key_order="input",
        cut_on=(),
        max_gap=None,
        part_rows=50,
        batch_rows=17,
        bad_every=0,
        lost_every=0,
        slow=0.0,
        claims=True,
        hold=None,
        memory=1 << 16,
        dead=None,
        time_kind="int64",
    ):
        self.options = {k: v for k, v in locals().items() if k != "self"}
        self.__dict__.update(self.options)

    def identity(self, file):
        stat = os.stat(file)
        return f"{stat.st_size}-{stat.st_mtime_ns}"

    def scan(self, inputs):
        parts = []
        for file in inputs:
            with np.load(file) as data:
                rows = len(data["time"])
            for start in range(0, rows, self.part_rows):
                n = min(self.part_rows, rows - start)
                parts.append(
                    Part(
                        len(parts),
                        file,
                        self.identity(file),
                        nbytes=n * 40,
                        claimed=n if self.claims else -1,
                        memory=self.memory,
                        payload={"start": start, "rows": n},
                    )
                )
        cut = None
        if self.cut_on or self.max_gap is not None:
            cut = CutRule(tuple(self.cut_on), self.max_gap)
        return Scan(
            source="keyed_source:KeyedSource",
            fields=(replace(FIELDS[0], dtype=self.time_kind), *FIELDS[1:]),
            parts=parts,
            columns=(ColumnSpec("home", "string", categorical=True), ColumnSpec("size", "int64")),
            time_field="time",
            order=self.order,
            cut=cut,
            key_order=self.key_order,
            options=self.options,
            versions={"keyed": "1"},
        )

    def read(self, part):
        if self.slow:
            clock.sleep(self.slow)
        if self.hold and Path(self.hold).exists():
            while Path(self.hold).exists():
                clock.sleep(0.02)
        if self.dead and Path(self.dead).exists() and part.index == 3:
            Path(self.dead).unlink()
            os._exit(9)
        if self.bad_every and part.index % self.bad_every == 1:
            fault = Fault("keyed-bad", part.file, "this part is bad", rows=part.payload["rows"])
            yield Batch({}, 0, faults=(fault,))
            return
        start, rows = part.payload["start"], part.payload["rows"]
        with np.load(part.file) as data:
            columns = {name: data[name][start : start + rows] for name in data.files}
        for low in range(0, rows, self.batch_rows):
            piece = {name: column[low : low + self.batch_rows] for name, column in columns.items()}
            n = len(piece["time"])
            codes, known = pd.factorize(piece.pop("key"))
            lost = ()
            faults = ()
            if self.lost_every and part.index % self.lost_every == 2 and low == 0 and n > 4:
                lost = ((1, 4),)
                faults = (Fault("keyed-lost", part.file, "three rows are lost", rows=3, action="gap"),)
                for column in piece.values():
                    column[1:4] = 77
            names = tuple(f"dev{k}" for k in known.tolist())
            yield Batch(
                piece,
                n,
                keys=names,
                codes=codes.astype(np.int32),
                labels={"home": tuple(f"home{k % 3}" for k in known.tolist()), "size": tuple(known.tolist())},
                lost=lost,
                faults=faults,
            )


class SlowNpy(NpySource):
    """The example source, slowed down so that there is time to kill it."""

    def read(self, part):
        clock.sleep(0.15)
        yield from super().read(part)


class SortedNpy(NpySource):
    """The example source with its rows sorted, and a label that names the place of each file."""

    def scan(self, inputs):
        found = super().scan(inputs)
        places = tuple(range(len(found.keys)))
        return replace(
            found,
            source="keyed_source:SortedNpy",
            time_field=self.field,
            order="sort",
            key_order="sorted",
            columns=(ColumnSpec("place", "int64"),),
            key_labels={"place": places},
        )


def make_files(folder, files, rows, keys, seed=0, disorder=0.3, gap=0.02, dtype="int64"):
    """Write files of mixed rows and return them all as one dict of columns, in the order of the inputs."""
    random = np.random.default_rng(seed)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    clock_of = dict.fromkeys(range(keys), 0)
    number = 0
    for f in range(files):
        key = random.integers(0, keys, rows)
        time = np.empty(rows, dtype)
        for i, k in enumerate(key.tolist()):
            clock_of[k] += int(random.integers(0, 3)) + (100 if random.random() < gap else 0)
            late = int(random.integers(1, 30)) if random.random() < disorder else 0
            time[i] = clock_of[k] - late
        value = np.arange(number, number + rows, dtype=np.float64)
        number += rows
        value[random.random(rows) < 0.1] = np.nan
        columns = {
            "key": key,
            "time": time,
            "value": value,
            "pair": random.integers(-9, 9, (rows, 2)).astype(np.int32),
            "count": random.integers(0, 2**60, rows),
            "count_valid": random.random(rows) < 0.8,
            "flag": (random.random(rows) < 0.1).astype(np.int8),
        }
        np.savez(folder / f"part{f}.npz", **columns)
        made.append(columns)
    return {name: np.concatenate([m[name] for m in made]) for name in made[0]}

"""Filling arrays: rows of Avro and seconds of audio, by loops, by table engines, by this project.

``python -m benchmarks.compare_ingest`` generates Avro files (a file a device, then devices interleaved row
by row) and ogg files, and measures rows a second and seconds of audio a second, peak memory and
bytes on disk. Only four of the eight Avro fields are asked for, as in practice.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from benchmarks.harness import Probe, Subject, main, work_dir
from benchmarks.peers.audio import AudioTask
from benchmarks.peers.tables import AvroTask

#: table | name | function of ``peers`` | environment | packages | setting
FILLERS = """
avro  | fastavro loop to npy    | tables:fastavro_npy       | tables  | fastavro           | a list a column and device, np.save
avro  | fastavro loop to zarr   | tables:fastavro_zarr      | tables  | fastavro zarr      | the same, zarr's default codec, sharded
avro  | polars to npy           | tables:polars_npy         | tables  | polars             | read_avro(columns=), stable sort by device
avro  | polars to zarr          | tables:polars_zarr        | tables  | polars zarr        | the same, zarr's default codec, sharded
avro  | polars to parquet       | tables:polars_parquet     | tables  | polars             | the same, write_parquet
avro  | DataFusion to npy       | tables:datafusion_npy     | tables  | datafusion pyarrow | register_avro, order by device, time
avro  | DataFusion to zarr      | tables:datafusion_zarr    | tables  | datafusion zarr    | the same, zarr's default codec, sharded
avro  | DataFusion to parquet   | tables:datafusion_parquet | tables  | datafusion         | the same, write_parquet
avro  | ours                    | ours:ingest_avro          | own     | zarr fastavro numba | ingest_avro, defaults, as many workers as cores
avro  | ours, in process        | ours:ingest_avro_here     | own     | zarr fastavro numba | ingest_avro(workers=0)
audio | soundfile + soxr loop   | tables:soxr_loop          | loaders | soundfile soxr     | soxr 'HQ', one npy a recording
audio | librosa loop            | tables:librosa_loop       | loaders | librosa soxr       | librosa.load(sr=16000)
audio | ours                    | ours:ingest_audio         | own     | zarr soundfile soxr | ingest_audio(rate=16000), defaults
"""  # noqa: E501 - a table


def _fill(probe: Probe, filler: str, task: Any, units: float) -> None:
    module, name = filler.split(":")
    work = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
    if module == "ours":
        importlib.import_module("benchmarks.peers.ours").prepare_ingest()
    folder = Path(mkdtemp(prefix="fill-", dir=work_dir()))
    out = folder / "out"
    try:
        settle = getattr(os, "sync", None)  # what others wrote goes to the disk before the clock starts
        rows = probe.job(lambda: work(task, out), units, before=settle)
        probe.disk(out)
        probe.set(rows=int(rows))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def avro(probe: Probe, filler: str, **task: Any) -> None:
    """Rows a second."""
    asked = AvroTask(**task)
    paths = asked.paths()
    probe.set(input_bytes=sum(path.stat().st_size for path in paths))
    probe.evict(*paths)
    _fill(probe, filler, asked, asked.n_rows)


def audio(probe: Probe, filler: str, **task: Any) -> None:
    """Seconds of audio a second."""
    asked = AudioTask(**task)
    files = asked.files()
    probe.set(input_bytes=sum(path.stat().st_size for path in files))
    probe.evict(*files)
    _fill(probe, filler, asked, float(asked.seconds().sum()))


def subjects(quick: bool) -> list[Subject]:
    """Avro plain, Avro interleaved, audio."""
    rows = {"rows": 50_000} if quick else {"rows": 250_000, "repeat": 2}
    sizes = {
        "avro": rows,
        "avro, interleaved": rows | {"interleaved": True},
        "audio": {"recordings": 12 if quick else 48},
    }
    found = []
    for table, size in sizes.items():
        for line in FILLERS.strip().splitlines():
            kind, name, filler, venv, packages, setting = (cell.strip() for cell in line.split("|"))
            if table.split(",")[0] != kind:
                continue
            target = f"benchmarks.compare_ingest:{kind}"
            params = {"filler": filler} | size
            found.append(Subject(name, target, params, venv, setting, table, tuple(packages.split()), 400))
    return found


if __name__ == "__main__":
    sys.exit(main("compare_ingest", subjects))

"""From Avro files to arrays: the loop one writes first, two table engines, each to npy, parquet or Zarr.

Every function ``f(task, out)`` reads the files of `AvroTask`, puts the rows of each device together in the
order of the files, and leaves the columns below ``out``; it returns the number of rows written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import atomic_folder
from benchmarks.harness import work_dir
from benchmarks.peers.task import apart

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: the fields that are asked for; every column is kept in its own width
FIELDS = {"a": np.float32, "b": np.float32, "c": np.float64, "d": np.float64}
SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "a", "type": "float"},
        {"name": "b", "type": "float"},
        {"name": "c", "type": "double"},
        {"name": "d", "type": ["null", "double"]},
        {"name": "counter", "type": "int"},
        {"name": "note", "type": "string"},
    ],
}


@dataclass(frozen=True, slots=True)
class AvroTask:
    """Files of rows of a few devices; ``interleaved`` ones change the device with every row."""

    files: int = 8
    rows: int = 250_000
    """Rows a file that are generated."""
    repeat: int = 1
    """How often a file holds their blocks."""
    devices: int = 8
    interleaved: bool = False
    codec: str = "deflate"
    seed: int = 0

    @property
    def n_rows(self) -> int:
        return self.files * self.rows * self.repeat

    def paths(self) -> list[Path]:
        kind = "mixed" if self.interleaved else "plain"
        place = (
            work_dir()
            / "stores"
            / f"avro-{kind}-{self.files}x{self.rows}x{self.repeat}-{self.devices}-{self.codec}"
        )
        return sorted(apart("tables:make_avro", self, place).glob("*.avro"))


def _generated(task: AvroTask, number: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng([task.seed, number])
    values = np.round(np.cumsum(rng.standard_normal((task.rows, 4)), axis=0) * 0.05, 3)
    missing = rng.random(task.rows) < 0.02
    keys = (
        np.arange(task.rows) % task.devices if task.interleaved else np.full(task.rows, number % task.devices)
    )
    first = 1_700_000_000_000 + number * task.rows * 10
    for row in range(task.rows):
        a, b, c, d = values[row]
        yield {
            "device": f"device-{keys[row]:04d}",
            "time": first + row * 10,
            "a": float(np.float32(a)),
            "b": float(np.float32(b)),
            "c": c,
            "d": None if missing[row] else d,
            "counter": row,
            "note": "ok",
        }


def make_avro(task: AvroTask, out: Path) -> None:
    import fastavro

    with atomic_folder(out) as partial:
        partial.mkdir()
        for number in range(task.files):
            path, rows = partial / f"{number:04d}.avro", _generated(task, number)
            with path.open("wb") as file:
                fastavro.writer(file, SCHEMA, rows, codec=task.codec, sync_interval=64_000)
            whole = path.read_bytes()
            blocks = whole[whole.index(whole[-16:]) + 16 :]  # after the header, which ends with the marker
            with path.open("ab") as file:
                for _ in range(task.repeat - 1):
                    file.write(blocks)


def _loop(task: AvroTask) -> dict[str, dict[str, np.ndarray]]:
    """What the fastavro documentation shows, with a list a column and device."""
    import fastavro

    found: dict[str, dict[str, list[float]]] = {}
    for path in task.paths():
        with path.open("rb") as file:
            for record in fastavro.reader(file):
                columns = found.get(record["device"])
                if columns is None:
                    columns = found[record["device"]] = {name: [] for name in FIELDS}
                for name in FIELDS:
                    value = record[name]
                    columns[name].append(np.nan if value is None else value)
    return {k: {n: np.asarray(v, FIELDS[n]) for n, v in columns.items()} for k, columns in found.items()}


def fastavro_npy(task: AvroTask, out: Path) -> int:
    out.mkdir(parents=True)
    devices = _loop(task)
    for name in FIELDS:
        np.save(out / f"{name}.npy", np.concatenate([devices[key][name] for key in sorted(devices)]))
    return task.n_rows


def fastavro_zarr(task: AvroTask, out: Path) -> int:
    devices = _loop(task)
    columns = {name: np.concatenate([devices[key][name] for key in sorted(devices)]) for name in FIELDS}
    return _to_zarr(columns, out)


def _to_zarr(columns: dict[str, np.ndarray], out: Path) -> int:
    import zarr

    group = zarr.open_group(str(out), mode="w")
    n = 0
    for name, values in columns.items():
        n = len(values)
        array = group.create_array(name, shape=(n,), dtype=values.dtype, chunks=(65_536,), shards=(1 << 22,))
        array[:] = values
    return n


def _polars(task: AvroTask) -> Any:
    import polars as pl

    frames = [pl.read_avro(path, columns=["device", *FIELDS]) for path in task.paths()]
    return pl.concat(frames).sort("device", maintain_order=True)


def polars_npy(task: AvroTask, out: Path) -> int:
    frame = _polars(task)
    out.mkdir(parents=True)
    for name in FIELDS:
        np.save(out / f"{name}.npy", frame[name].to_numpy())
    return len(frame)


def polars_zarr(task: AvroTask, out: Path) -> int:
    frame = _polars(task)
    return _to_zarr({name: frame[name].to_numpy() for name in FIELDS}, out)


def polars_parquet(task: AvroTask, out: Path) -> int:
    frame = _polars(task)
    out.mkdir(parents=True)
    frame.write_parquet(out / "data.parquet")
    return len(frame)


def _datafusion(task: AvroTask) -> Any:
    from datafusion import SessionContext

    context = SessionContext()
    context.register_avro("readings", str(task.paths()[0].parent))
    return context.sql("select device, time, a, b, c, d from readings order by device, time")


def datafusion_parquet(task: AvroTask, out: Path) -> int:
    _datafusion(task).write_parquet(str(out))
    return task.n_rows


def datafusion_zarr(task: AvroTask, out: Path) -> int:
    table = _datafusion(task).to_arrow_table()
    return _to_zarr({name: table[name].to_numpy() for name in FIELDS}, out)


def datafusion_npy(task: AvroTask, out: Path) -> int:
    table = _datafusion(task).to_arrow_table()
    out.mkdir(parents=True)
    for name in FIELDS:
        np.save(out / f"{name}.npy", table[name].to_numpy())
    return len(table)


# ---- audio --------------------------------------------------------------------------------------


def soxr_loop(task: Any, out: Path) -> int:
    """Decode with soundfile, resample with soxr, one npy a recording."""
    import soundfile
    import soxr

    out.mkdir(parents=True)
    frames = 0
    for path in task.files():
        x, rate = soundfile.read(path, dtype="float32")
        y = np.round(np.clip(soxr.resample(x, rate, 16_000), -1, 1) * 32767).astype(np.int16)
        np.save(out / f"{path.stem}.npy", y)
        frames += len(y)
    return frames


def librosa_loop(task: Any, out: Path) -> int:
    """``librosa.load(sr=...)``, one npy a recording."""
    import librosa

    out.mkdir(parents=True)
    frames = 0
    for path in task.files():
        y, _ = librosa.load(path, sr=16_000)
        y = np.round(np.clip(y, -1, 1) * 32767).astype(np.int16)
        np.save(out / f"{path.stem}.npy", y)
        frames += len(y)
    return frames

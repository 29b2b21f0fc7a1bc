"""Avro: decoding to columns, scanning, filling a store, and memory: ``python -m benchmarks.avro``.

Three kinds of records: a device, a time and 4 floats (``plain``); the same with nullable doubles
(``nullable``); 40 mixed fields of which 6 are asked for (``wide``). Blocks are of 64,000 bytes,
uncompressed or zstandard. Everything runs in one process and, unless said, on one core. What is compared:

* decode: rows a second from files in the page cache to columns in memory. fastavro only iterates over its
  records, which is less than columns; fastavro and polars read no zstandard here.
* scan: rows a second that a scan accounts for (headers of blocks), beside fastavro's decoding.
* store: from files to a finished compressed store, beside the loop fastavro -> numpy -> zarr; with workers.
* memory: peak of filling a store from an input, and from one ten times as large.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import atomic_folder
from benchmarks.harness import Probe, Subject, main, work_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 200_000
TIME = {"type": "long", "logicalType": "timestamp-micros"}
WANTED = ("f03", "f08", "f13", "f21", "f30", "f37")


def schema(kind: str) -> dict[str, Any]:
    """The schema of one kind of records."""
    fields = [{"name": "device", "type": "string"}, {"name": "time", "type": TIME}]
    if kind == "plain":
        fields += [{"name": n, "type": "float"} for n in "abcd"]
    elif kind == "nullable":
        fields += [{"name": n, "type": ["null", "double"]} for n in "abcd"]
    else:
        enum = {"type": "enum", "name": "State", "symbols": ["ON", "OFF", "IDLE"]}
        kinds = [
            "double",
            "string",
            "int",
            "float",
            ["null", "double"],
            "long",
            "boolean",
            ["null", "string"],
        ]
        made = [{"name": f"f{i:02d}", "type": kinds[i % 8]} for i in range(37)]
        made += [{"name": "f37", "type": enum}]
        fields += made
    return {"type": "record", "name": "Reading", "fields": fields}


def records(kind: str, number: int) -> Iterator[dict[str, Any]]:
    """Rows of a walk of 64 devices that take turns in runs of 20."""
    rng = np.random.default_rng(number)
    values = np.round(np.cumsum(rng.standard_normal((ROWS, 4)), axis=0) * 0.05, 3)
    missing = rng.random((ROWS, 4)) < 0.1
    words = ["", "ok", "calibrated", "a longer remark about this reading"]
    for row in range(ROWS):
        out: dict[str, Any] = {
            "device": f"device-{row // 20 % 64:04d}",
            "time": 1_700_000_000_000_000 + number * 10**9 + row * 1000,
        }
        four = values[row].tolist()
        if kind == "plain":
            out |= zip("abcd", four, strict=True)
        elif kind == "nullable":
            out |= {n: None if m else v for n, m, v in zip("abcd", missing[row], four, strict=True)}
        else:
            x = four[row % 4]
            eight = [
                x,
                words[row % 4],
                row % 1000 - 500,
                x,
                None if missing[row, 0] else x,
                row,
                row % 2 == 0,
                None,
            ]
            out |= {f"f{i:02d}": eight[i % 8] for i in range(37)}
            out["f37"] = ("ON", "OFF", "IDLE")[row // 7 % 3]
        yield out


def paths(kind: str, codec: str, repeat: int = 1, files: int = 2) -> list[Path]:
    """Files of ``ROWS * repeat`` rows each, made on the first call."""
    folder = work_dir() / "data" / f"avro-{kind}-{codec}-{files}x{ROWS}x{repeat}"
    if not folder.exists():
        import cramjam
        import fastavro

        from ingest.sources.avro.container import read_header, walk
        from ingest.sources.avro.inputs import open_input

        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as partial:
            partial.mkdir()
            for number in range(files):
                path = partial / f"{number:03d}.avro"
                with path.open("wb") as file:
                    fastavro.writer(file, schema(kind), records(kind, number), sync_interval=64_000)
                whole = path.read_bytes()
                with open_input(str(path)) as source:
                    header = read_header(source)
                    table = next(iter(walk(source, header)))
                head = whole[: header.data_offset]
                if codec == "zstandard":
                    head = head.replace(b"\x14avro.codec\x08null", b"\x14avro.codec\x12zstandard")
                blocks = []
                for at, n, size in zip(table.payloads, table.counts, table.sizes, strict=True):
                    data = whole[at : at + size]
                    if codec == "zstandard":
                        data = bytes(cramjam.zstd.compress(data, level=3))
                    blocks.append(_number(int(n)) + _number(len(data)) + data + header.sync)
                body = b"".join(blocks)
                with path.open("wb") as file:
                    file.write(head)
                    for _ in range(repeat):
                        file.write(body)
    return sorted(folder.glob("*.avro"))


def _number(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _fields(kind: str) -> list[str] | None:
    return list(WANTED) if kind == "wide" else None


def _ready(probe: Probe, kind: str, codec: str, repeat: int) -> tuple[list[str], int]:
    found = [str(p) for p in paths(kind, codec, repeat)]
    for p in found:
        Path(p).read_bytes()  # into the page cache
    probe.set(input_bytes=sum(Path(p).stat().st_size for p in found))
    return found, len(found) * ROWS * repeat


# ---------------------------------------------------------------- decode


def ours(probe: Probe, kind: str, codec: str, repeat: int = 1, decoder: str = "kernel") -> None:
    """All batches of the source, keys as codes."""
    from ingest.sources.avro import AvroSource

    files, rows = _ready(probe, kind, codec, repeat)
    options = {"sequence_key": "device", "fields": _fields(kind), "decoder": decoder}
    scan = AvroSource(**options).scan(files)
    source = AvroSource(**scan.options)

    def work() -> int:
        return sum(batch.rows for part in scan.parts for batch in source.read(part))

    assert probe.job(work, rows, repeats=5, warmup=1) == rows


def fastavro(probe: Probe, kind: str, codec: str, repeat: int = 1) -> None:
    """Nothing but the records."""
    import fastavro as fa

    files, rows = _ready(probe, kind, codec, repeat)

    def work() -> int:
        n = 0
        for path in files:
            with open(path, "rb") as file:
                for _ in fa.reader(file):
                    n += 1
        return n

    assert probe.job(work, rows, repeats=2) == rows


def polars(probe: Probe, kind: str, codec: str, repeat: int = 1) -> None:
    """``polars.read_avro`` of the columns that are asked for."""
    import polars as pl

    files, rows = _ready(probe, kind, codec, repeat)
    wanted = ["device", *WANTED] if kind == "wide" else None

    def work() -> int:
        return sum(len(pl.read_avro(path, columns=wanted)) for path in files)

    assert probe.job(work, rows, repeats=5, warmup=1) == rows


def datafusion(probe: Probe, kind: str, codec: str, repeat: int = 1) -> None:
    """``register_avro``, one partition, all columns that are asked for as Arrow batches."""
    import datafusion as df

    files, rows = _ready(probe, kind, codec, repeat)
    wanted = ["device", *WANTED] if kind == "wide" else ["device", "time", *"abcd"]

    def work() -> int:
        context = df.SessionContext(df.SessionConfig().with_target_partitions(1))
        n = 0
        for i, path in enumerate(files):
            context.register_avro(f"t{i}", path)
            for batch in context.table(f"t{i}").select(*wanted).execute_stream():
                n += batch.to_pyarrow().num_rows
        return n

    assert probe.job(work, rows, repeats=5, warmup=1) == rows


# ---------------------------------------------------------------- scan


def scan(probe: Probe, kind: str, codec: str, repeat: int = 1) -> None:
    """Headers of all blocks, schemas, the plan of parts."""
    from ingest.sources.avro import AvroSource

    files, rows = _ready(probe, kind, codec, repeat)

    def work() -> int:
        return sum(
            part.claimed for part in AvroSource(sequence_key="device", fields=_fields(kind)).scan(files).parts
        )

    assert probe.job(work, rows, repeats=5, warmup=1) == rows


# ---------------------------------------------------------------- store


def loop(probe: Probe, kind: str, codec: str, repeat: int = 1) -> None:
    """The loop that one writes first: a list a field and device, numpy, one array a field."""
    import fastavro as fa
    import zarr

    files, rows = _ready(probe, kind, codec, repeat)
    names = _fields(kind) or ["time", *"abcd"]
    folder = Path(mkdtemp(prefix="avro-", dir=work_dir()))

    def work() -> None:
        found: dict[str, dict[str, list[Any]]] = {}
        for path in files:
            with open(path, "rb") as file:
                for record in fa.reader(file):
                    columns = found.setdefault(record["device"], {name: [] for name in names})
                    for name in names:
                        columns[name].append(record[name])
        group = zarr.open_group(str(folder / "out"), mode="w")
        for name in names:
            values = [v for key in sorted(found) for v in found[key][name]]
            if name == "time":
                array = np.array([v.timestamp() * 1e6 for v in values], np.int64)
            elif isinstance(values[0], str):
                array = np.unique(np.array(values), return_inverse=True)[1].astype(np.int8)
            else:
                array = np.array([np.nan if v is None else v for v in values])
                array = array.astype(np.float32) if kind == "plain" else array
            group.create_array(name, data=array, chunks=(65_536,), shards=(-(-rows // 65_536) * 65_536,))

    try:
        probe.job(work, rows)
        probe.disk(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def store(probe: Probe, kind: str, codec: str, repeat: int = 1, workers: int = 0) -> None:
    """``ingest_avro`` with its defaults; 0 workers: in this process."""
    from ingest import ingest_avro

    files, rows = _ready(probe, kind, codec, repeat)
    folder = Path(mkdtemp(prefix="avro-", dir=work_dir()))

    def work() -> Any:
        return ingest_avro(
            files,
            str(folder / "out.zarr"),
            sequence_key="device",
            fields=_fields(kind),
            workers=workers,
            overwrite=True,
            progress=False,
        )

    try:
        result = probe.job(work, rows, repeats=2, warmup=1)
        assert result.exit_code == 0
        probe.disk(folder / "out.zarr")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def subjects(quick: bool) -> list[Subject]:
    """One row a reader and kind; ``quick`` keeps one kind, and short stores."""
    out = []
    kinds = ("plain",) if quick else ("plain", "nullable", "wide")
    for kind in kinds:
        for codec in ("null", "zstandard"):
            params = {"kind": kind, "codec": codec}
            table = f"decode {kind} {codec}"

            def add(
                name: str,
                venv: str = "own",
                *,
                table: str = table,
                params: dict[str, Any] = params,
                **more: Any,
            ) -> None:
                out.append(
                    Subject(
                        name, f"benchmarks.avro:{more.pop('call', name)}", params | more, venv, table=table
                    )
                )

            add("ours")
            add("datafusion", "tables")
            if codec == "null":
                add("fastavro")
                add("polars", "tables")
            add("scan", table=f"scan {kind} {codec}")
    for kind in kinds:
        params = {"kind": kind, "codec": "null"}
        table = f"store {kind}"
        out.append(Subject("fastavro loop to zarr", "benchmarks.avro:loop", params, table=table))
        for workers, name in ((0, "ours, in process"), (1, "ours, 1 worker"), (2, "ours, 2 workers")):
            more = params | {
                "workers": workers,
                "repeat": (2 if quick else 8) if workers == 0 else (8 if quick else 60),
            }
            out.append(Subject(name, "benchmarks.avro:store", more, table=table))
    for repeat in (1, 10) if quick else (4, 40):
        more = {"kind": "plain", "codec": "zstandard", "repeat": repeat}
        out.append(
            Subject(f"ours, {2 * ROWS * repeat:,} rows", "benchmarks.avro:store", more, table="memory")
        )
    return out


if __name__ == "__main__":
    raise SystemExit(main("avro", subjects, repeats=1))  # each repeats its work by itself

"""Helpers of the Avro tests: files from records, blocks taken apart, columns read back, an oracle."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from types import SimpleNamespace

import cramjam
import fastavro
import numpy as np
import pytest

from ingest.sources.avro import AvroSource
from ingest.sources.avro.container import MAGIC, read_header, walk
from ingest.sources.avro.inputs import open_input


def zigzag(number):
    """Encode a long the way the specification has it, whatever its size."""
    value = (number << 1) ^ (number >> 63) if -(1 << 63) <= number < 1 << 63 else number << 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def compress(codec, data):
    if codec == "null":
        return data
    if codec == "deflate":
        worker = zlib.compressobj(6, zlib.DEFLATED, -15)
        return worker.compress(data) + worker.flush()
    if codec == "snappy":
        return bytes(cramjam.snappy.compress_raw(data)) + zlib.crc32(data).to_bytes(4, "big")
    if codec == "zstandard":
        return bytes(cramjam.zstd.compress(data))
    if codec == "bzip2":
        return bz2.compress(data)
    assert codec == "xz"
    return lzma.compress(data)


SYNC = bytes(range(16))


def container(schema_text, blocks, codec="null", sync=SYNC, extra=None):
    """Build a container from (rows, encoded bytes) blocks."""
    metadata = {"avro.schema": schema_text.encode(), "avro.codec": codec.encode()} | (extra or {})
    out = MAGIC + zigzag(len(metadata))
    for key, value in metadata.items():
        name = key if isinstance(key, bytes) else key.encode()
        out += zigzag(len(name)) + name + zigzag(len(value)) + value
    out += b"\0" + sync
    for rows, data in blocks:
        out += zigzag(rows) + zigzag(len(data)) + data + sync
    return out


def avro_bytes(schema, records, codec="null", sync_interval=400):
    """Write records with fastavro, in the codec that is asked for (zstandard is put on afterwards)."""
    stream = io.BytesIO()
    fastavro.writer(stream, schema, records, codec="null", sync_interval=sync_interval, sync_marker=SYNC)
    if codec == "null":
        return stream.getvalue()
    stream.seek(0)
    blocks = [(b.num_records, compress(codec, b.bytes_.getvalue())) for b in fastavro.block_reader(stream)]
    return container(json.dumps(schema), blocks, codec)


def read(path, drop=(), **options):
    """Scan and read everything: all columns joined, keys, labels, faults, lost ranges."""
    paths = [str(p) for p in path] if isinstance(path, (list, tuple)) else [str(path)]
    scan = AvroSource(**options).scan(paths)
    worker = AvroSource(**scan.options)
    columns, keys, labels, faults, lost, sequence = {}, [], {}, list(scan.faults), [], []
    at = 0
    for part in scan.parts:
        in_part = 0
        for batch in worker.read(part):
            for name, values in batch.columns.items():
                assert len(values) == batch.rows
                columns.setdefault(name, []).append(values)
            faults += batch.faults
            lost += [(at + lo, at + hi) for lo, hi in batch.lost]
            if batch.codes is not None:
                assert batch.codes.dtype == np.int32
                assert len(batch.codes) == batch.rows
                sequence += [batch.keys[c] for c in batch.codes.tolist()]
            elif scan.placed:
                sequence += [scan.keys[part.sequence]] * batch.rows
            for name, values in batch.labels.items():
                for key, value in zip(batch.keys, values, strict=True):
                    labels.setdefault(name, {}).setdefault(key, value)
            keys += [k for k in batch.keys if k not in keys]
            at += batch.rows
            in_part += batch.rows
        if scan.placed:
            assert in_part == part.claimed
    joined = {name: np.concatenate(v) for name, v in columns.items()}
    return SimpleNamespace(
        scan=scan,
        columns=joined,
        keys=keys,
        labels=labels,
        faults=faults,
        lost=lost,
        rows=at,
        sequence=sequence,
    )


def same(a, b):
    """Columns equal to the bit, NaN included."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].shape == b[name].shape, name
        assert np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f"), name


def flat(value, path):
    """Follow a dotted path through records; None where another branch stands."""
    for step in path.split(".") if path else ():
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def expected(field, records):
    """What a column must hold, from fastavro's records alone."""
    dtype = np.dtype(field.dtype)
    rows, valid = [], []
    path = field.attrs.get("avro_path", field.name)
    for record in records:
        value = flat(record, path)
        valid.append(value is not None)
        null = np.nan if dtype.kind == "f" else 0
        if value is None:
            rows.append([null] * field.items if field.items else null)
        elif "precision" in field.attrs:
            rows.append(int.from_bytes(value, "big", signed=True))
        elif field.attrs.get("avro_logical_type") == "duration":
            rows.append(list(np.frombuffer(value, "<u4")))
        elif field.categories:
            rows.append(field.categories.index(value))
        elif field.items:
            rows.append([null if v is None else v for v in value])
        else:
            rows.append(value)
    shape = (len(records), field.items) if field.items else len(records)
    return np.array(rows, dtype).reshape(shape), np.array(valid, bool)


def plain(schema):
    """Take logical types off a schema, so that fastavro gives the numbers themselves."""
    if isinstance(schema, list):
        return [plain(s) for s in schema]
    if isinstance(schema, dict):
        inner = ("type", "items", "values", "fields")
        return {k: plain(v) if k in inner else v for k, v in schema.items() if k != "logicalType"}
    return schema


def records(path):
    """All records of a file as fastavro reads them, numbers raw; what it can't open is taken apart."""
    with open(path, "rb") as file:
        stream = io.BytesIO(file.read())
    try:
        reader = fastavro.block_reader(stream)
        schema = reader.writer_schema
        blocks = [(b.num_records, b.bytes_.getvalue()) for b in reader]
    except (UnicodeDecodeError, ValueError):  # metadata that is not text, or zstandard without its library
        with open_input(str(path)) as source:
            header = read_header(source)
            expand = {"zstandard": cramjam.zstd.decompress, "deflate": lambda d: zlib.decompress(d, -15)}[
                header.codec
            ]
            blocks = [
                (int(n), bytes(expand(source.read(int(p), int(s)))))
                for t in walk(source, header)
                for p, n, s in zip(t.payloads, t.counts, t.sizes, strict=True)
            ]
        schema = json.loads(header.schema)
    parsed = fastavro.parse_schema(plain(schema), _write_hint=False, _force=True)
    out = []
    for rows, block in blocks:
        stream = io.BytesIO(block)
        out += [fastavro.schemaless_reader(stream, parsed, None) for _ in range(rows)]
        assert stream.tell() == len(block)
    return out


@pytest.fixture(scope="session")
def avro():
    """The helpers of this folder."""
    return SimpleNamespace(
        expected=expected,
        records=records,
        zigzag=zigzag,
        compress=compress,
        container=container,
        bytes=avro_bytes,
        read=read,
        same=same,
        SYNC=SYNC,
    )

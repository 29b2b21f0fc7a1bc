"""What is fuzzed: each target takes bytes and returns, or raises only if there is a bug.

Hostile input may end in an error of ours (``ChunkstoreError``) or in a fault that is counted. Anything else
(another exception, a wrong value, a byte written outside an array, a hang, memory) is a bug.
Used by ``fuzz/run.py`` and by ``tests/fuzz``.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np

import chunkstore
import ingest
from chunkstore.arrays import ArrayMeta
from chunkstore.codecs import ChunkDamageError, checksum
from chunkstore.errors import ChunkstoreError
from chunkstore.places import Blob, MemoryPlace
from chunkstore.reader import decode_strings, encode_strings, parse_shard
from chunkstore.verify import verify_store
from ingest.sources import open_source
from ingest.sources.audio import flac, mpeg, ogg, riff
from ingest.sources.audio.by_pcm import PcmDecoder
from ingest.sources.audio.decode import DecodeError
from ingest.sources.audio.probe import MAX_CLAIM, probe
from ingest.sources.audio.sniff import HEAD_BYTES
from ingest.sources.avro import schema as schemas
from ingest.sources.avro.columns import make_plan
from ingest.sources.avro.fallback import FastavroDecoder
from ingest.sources.avro.kernel_decoder import KernelDecoder
from ingest.sources.avro.options import AvroOptions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


@dataclass(frozen=True)
class Target:
    """One thing that is fuzzed."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    """Inputs to begin with."""
    instrument: tuple[str, ...] = ()
    """Modules whose branches guide a coverage-guided fuzzer."""
    words: tuple[bytes, ...] = field(default=())
    """Pieces that a mutation may put in."""


# ---- an Avro file, whole: header, schema, blocks, and what they hold


def _record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": k, "type": v} for k, v in fields.items()]}


SCHEMA = _record(
    key="string",
    t="long",
    x=["null", "double"],
    e={"type": "enum", "name": "E", "symbols": ["A", "B"]},
    v={"type": "array", "items": "float"},
    s={"type": "map", "values": ["null", "string"]},
)


def _rows(n: int) -> list[dict[str, Any]]:
    return [
        {
            "key": "ab"[i % 2],
            "t": i,
            "x": None if i % 3 else i / 2,
            "e": "AB"[i % 2],
            "v": [1.0, 2.0],
            "s": {"k": "w"},
        }
        for i in range(n)
    ]


def _containers() -> list[bytes]:
    found = []
    for codec in ("null", "deflate", "snappy", "zstandard", "bzip2", "xz"):
        out = io.BytesIO()
        with contextlib.suppress(ValueError):
            fastavro.writer(
                out, SCHEMA, _rows(9), codec=codec, sync_interval=60, sync_marker=b"0123456789abcdef"
            )
            found.append(out.getvalue())
    return found


def avro_file(data: bytes) -> None:
    """Scan and read a file; rows that are handed out have columns of one length."""
    with tempfile.NamedTemporaryFile(dir=_shm(), suffix=".avro") as file:
        file.write(data)
        file.flush()
        try:
            source = open_source(
                "avro", {"sequence_key": ["key"], "vector_lengths": {"v": 2}, "max_block_bytes": "1MiB"}
            )
            scan = source.scan([file.name])
            source = open_source("avro", scan.options)
            for part in scan.parts:
                for batch in source.read(part):
                    for name, column in batch.columns.items():
                        assert len(column) == batch.rows, name
                    if batch.codes is not None:
                        assert len(batch.codes) == batch.rows
                        assert not batch.rows or int(batch.codes.max()) < len(batch.keys)
        except ChunkstoreError:
            pass


@cache
def _shm() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# ---- the payload of a block: the kernel against fastavro

KERNEL_CASES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (SCHEMA, {"sequence_key": "key", "vector_lengths": {"v": 2}}),
    (
        _record(
            key=["null", "string"],
            m={"type": "array", "items": _record(s="string") | {"name": "In"}},
            f={"type": "fixed", "name": "F", "size": 3},
            u=["null", "string", "long", {"type": "array", "items": "bytes"}],
            d={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            b="boolean",
            i="int",
            g="float",
        ),
        {"sequence_key": "key"},
    ),
    (
        _record(
            key="string",
            a={"type": "array", "items": "int"},
            z={"type": "array", "items": ["null", "double"]},
        ),
        {"sequence_key": "key", "sequence_per": "record"},
    ),
    (_record(value="long", next=["R", "null"]), {"sequence_per": "all", "fields": ("value",)}),
)


@cache
def _decoders(which: int) -> tuple[Any, Any, Any]:
    schema, options = KERNEL_CASES[which]
    node = schemas.parse(json.dumps(schema))
    plan = make_plan(node, AvroOptions(**options), {})
    return KernelDecoder(node, node, plan), FastavroDecoder(node, node, plan), plan


def _payloads() -> list[bytes]:
    text = [
        _rows(2),
        [{"key": "k", "m": [{"s": "a"}], "f": b"123", "u": [b"1"], "d": b"\1", "b": True, "i": -5, "g": 0.5}],
        [{"key": "k", "a": [1, 2], "z": [None, 0.5]}],
        [{"value": 7, "next": {"value": 8, "next": None}}],
    ]
    found = []
    for which, rows in enumerate(text):
        parsed = fastavro.parse_schema(json.loads(json.dumps(KERNEL_CASES[which][0])))
        out = io.BytesIO()
        for row in rows:
            fastavro.schemaless_writer(out, parsed, row)
        found.append(bytes([which, len(rows)]) + out.getvalue())
    return found


def avro_kernel(data: bytes) -> None:
    """Decode a block with the kernel: a fault, or what fastavro reads."""
    if len(data) < 2:
        return
    kernel, slow, _ = _decoders(data[0] % len(KERNEL_CASES))
    body = np.frombuffer(data[2:], np.uint8)
    args = (body, np.zeros(1, np.int64), np.array([body.size], np.int64), np.array([data[1] % 8], np.int64))
    fast = kernel.decode(*args)
    _feedback(int(fast.status[0]), int(fast.where[0]))
    if fast.status[0]:
        return
    truth = slow.decode(*args)
    assert truth.status[0] == 0, f"fastavro refuses what the kernel takes: {truth.status[0]}"
    for name, column in fast.columns.items():
        assert np.array_equal(column, truth.columns[name], equal_nan=column.dtype.kind == "f"), name
    if fast.rowsize is not None:
        assert np.array_equal(fast.rowsize, truth.rowsize)


def _feedback(status: int, where: int) -> int:
    """Tell a coverage-guided fuzzer, which cannot look into compiled code, how far the kernel came."""
    seen = 0
    for bit in range(5):
        if status >> bit & 1:
            seen += [3, 5, 7, 11, 13][bit]
    step = 0
    while where > step:  # counted in powers of two by the fuzzer
        step += 1
    return seen + step


# ---- the root of a store


@cache
def _store() -> dict[str, bytes]:
    url = "memory://fuzz-root"
    with chunkstore.StoreWriter(
        url,
        [chunkstore.FieldSpec("x", "f4", units="m"), chunkstore.FieldSpec("n", "i2", nullable=True)],
        chunk=8,
        shard=32,
        overwrite=True,
    ) as out:
        for name, n in (("a", 40), ("b", 0), ("c", 30)):
            values = {"x": np.arange(n), "n": np.ma.masked_equal(np.arange(n), 3)}
            out.write(name, values, labels={"kind": name}, columns={"rate": 2.0}, gaps=[(1, 3)] if n else [])
    chunkstore.open_store(url).add_split("train/val")
    return dict(MemoryPlace("fuzz-root").objects)


def store_root(data: bytes) -> None:
    """Open a store whose root is the input, use all of it, verify it."""
    place = MemoryPlace("fuzz-root")
    place.objects.clear()
    place.objects.update(_store())
    place.objects["zarr.json"] = data
    url = "memory://fuzz-root"
    with contextlib.suppress(ChunkstoreError):
        verify_store(url)
    try:
        store = chunkstore.open_store(url)
    except ChunkstoreError:
        return
    uses: list[Callable[[], object]] = [
        store.segments,
        lambda: store.segments("train"),
        lambda: store.statistics,
        lambda: store.fingerprint,
        lambda: store.engine,
        lambda: store.sequences.ids,
        lambda: [store.sequences.column(n) for n in store.sequences.columns],
        lambda: store.audit_splits(2),
        store.to_xarray,
        lambda: store.sequence("a"),
    ]
    uses += [lambda n=n: store.read(n, 0, min(store.n_obs, 200)) for n in store.fields]  # type: ignore[misc]
    for use in uses:
        with contextlib.suppress(ChunkstoreError):
            use()


# ---- what a chunk decodes to, where its checksum holds

_CODECS = ("none", "lz4", "zstd", "blosc-lz4", "blosc-zstd", "pcodec")


@cache
def _codec(which: int) -> Any:
    meta = ArrayMeta.build("x", (64,), ("obs",), "int32", chunk=64, shard=64, codec=_CODECS[which])
    return meta.codec


def _chunks() -> list[bytes]:
    found = []
    for which in range(len(_CODECS)):
        with contextlib.suppress(chunkstore.MissingDependencyError):
            found.append(bytes([which]) + _codec(which).encode(np.arange(64, dtype="<i4") // 5)[:-4])
    texts = encode_strings(["a", "bc", ""])
    found.append(bytes([len(_CODECS)]) + texts)
    index = struct.pack("<8Q", 0, 10, 10, 5, 2**64 - 1, 2**64 - 1, 15, 1)
    return [*found, bytes([len(_CODECS) + 1]) + b"0" * 16 + index]


def chunk(data: bytes) -> None:
    """Decode forged bytes under a checksum that holds: damage, or 64 values and not a byte beyond."""
    if not data:
        return
    which, body = data[0] % (len(_CODECS) + 2), data[1:]
    if which == len(_CODECS):
        with contextlib.suppress(ChunkDamageError):
            found = decode_strings(body)
            assert encode_strings(found) == body
        return
    if which == len(_CODECS) + 1:
        whole = body + checksum(body[-64:]).to_bytes(4, "little")
        with contextlib.suppress(ChunkDamageError):
            shard = parse_shard(Blob(MemoryPlace("fuzz"), "x", len(whole), whole), 4)
            there = shard.offsets != 2**64 - 1
            assert (shard.offsets[there] + shard.lengths[there] <= len(whole)).all()
        return
    codec = _codec(which)
    room = np.full(64 * 3, 0x5A5A5A5A, np.int32)
    with contextlib.suppress(ChunkDamageError):
        codec.decode_into(body + checksum(body).to_bytes(4, "little"), room[64:128])
    assert (room[:64] == 0x5A5A5A5A).all()
    assert (room[128:] == 0x5A5A5A5A).all()


# ---- the ledger of an ingest that was broken off: its plan, parts, lock and receipts

_DOCUMENTS = ("plan.json", "parts.jsonl", "lock.json", "write/000/000000.json", "created.json", "report.json")


@cache
def _broken_off() -> tuple[Path, Path, dict[str, bytes]]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-ledger-", dir=_shm()))
    np.save(folder / "a.npy", np.arange(20, dtype=np.int16))
    np.save(folder / "b.npy", np.arange(20, 50, dtype=np.int16))
    out = folder / "o.zarr"
    _ingest(folder, out)
    wanted = {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    return folder, out, wanted


def _ingest(folder: Path, out: Path, **how: Any) -> None:
    ingest.ingest("npy", [folder / "a.npy", folder / "b.npy"], out, {}, workers=0, chunk=8, shard=16, **how)


def _ledgers() -> list[bytes]:
    _, out, _ = _broken_off()
    found = []
    for which, name in enumerate(_DOCUMENTS):
        path = Path(f"{out}.ledger", name)
        found.append(
            bytes([which]) + (path.read_bytes() if path.exists() else b'{"token":"x","host":"y","pid":1}')
        )
    return found


def ledger(data: bytes) -> None:
    """Resume a job of whose ledger one document is the input: the right store, or an error of ours."""
    if not data:
        return
    folder, out, wanted = _broken_off()
    beside = Path(f"{out}.ledger")
    name = _DOCUMENTS[data[0] % len(_DOCUMENTS)]
    if not (beside / "plan.json").exists() or any(
        not (out / k).exists() or (out / k).read_bytes() != v for k, v in wanted.items()
    ):
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(beside, ignore_errors=True)
        _ingest(folder, out)
    kept = {n: (beside / n).read_bytes() for n in _DOCUMENTS if (beside / n).exists()}
    if data[0] & 0x80:  # the store is complete; else it is as if it had been broken off at the last step
        pass
    else:
        root = json.loads(wanted["zarr.json"])
        root["attributes"]["chunkstore"]["status"] = "incomplete"
        (out / "zarr.json").write_text(json.dumps(root))
        (beside / "report.json").unlink(missing_ok=True)
    (beside / name).write_bytes(data[1:])
    try:
        _ingest(folder, out, resume=True)
        after = {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}
        assert after == wanted
    except ChunkstoreError:
        pass
    finally:
        (out / "zarr.json").write_bytes(wanted["zarr.json"])
        for n in _DOCUMENTS:
            if n in kept:
                (beside / n).write_bytes(kept[n])
            else:
                (beside / n).unlink(missing_ok=True)


# ---- the headers and containers of audio: what is read here, without a library


@cache
def _recordings() -> tuple[bytes, ...]:
    ramp = np.arange(-300, 300, dtype="<i2")
    found = [
        _wav(b"RIFF", 1, 16, ramp.tobytes()),
        _wav(b"RIFX", 1, 16, ramp.byteswap().tobytes()),
        _wav(b"RF64", 3, 32, (ramp / 300).astype("<f4").tobytes()),
        _wav(b"RIFF", 1, 24, b"\x01\x02\x00" * 200, extensible=True),
        _wav(b"RIFF", 7, 8, bytes(range(256))),
        _w64(ramp.tobytes()),
    ]
    # Ogg: a page that opens a stream of Opus, and one that ends it
    head = b"OpusHead" + struct.pack("<BBHIhB", 1, 1, 312, 48000, 0, 0)
    found.append(_page(2, 0, 0, head) + _page(0, 0, 1, b"OpusTags") + _page(4, 960, 2, bytes(300)))
    # MPEG: a tag, and frames of layer 3 at 128 kbit/s and 44.1 kHz, 417 bytes each; the first may hold claims
    frame = b"\xff\xfb\x90\x00" + bytes(413)
    info = bytearray(frame)
    info[36:52] = b"Xing" + struct.pack(">III", 3, 3, 3 * 417)
    found.append(b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10) + frame * 3)
    found.append(bytes(info) + frame * 3 + b"TAG" + bytes(125))
    with contextlib.suppress(ImportError):
        import soundfile

        for form, coding in (
            ("FLAC", "PCM_16"),
            ("OGG", "VORBIS"),
            ("AIFF", "PCM_24"),
            ("MP3", "MPEG_LAYER_III"),
        ):
            out = io.BytesIO()
            with contextlib.suppress(soundfile.LibsndfileError, ValueError):  # an old library writes no MP3
                soundfile.write(out, ramp, 8000, format=form, subtype=coding)
                found.append(out.getvalue())
    return tuple(found)


def _wav(kind: bytes, tag: int, bits: int, data: bytes, *, extensible: bool = False) -> bytes:
    order = ">" if kind == b"RIFX" else "<"
    width = bits // 8
    fmt = struct.pack(order + "HHIIHH", 0xFFFE if extensible else tag, 1, 8000, 8000 * width, width, bits)
    if extensible:
        fmt += struct.pack("<HHIH", 22, bits, 4, tag) + bytes(14)
    notes = b"INFOICMT" + struct.pack(order + "I", 4) + b"hey\0"
    chunks = b""
    if kind == b"RF64":
        chunks += b"ds64" + struct.pack("<IQQQI", 28, 0, len(data), 0, 0)
    for name, body in ((b"LIST", notes), (b"fmt ", fmt), (b"data", data)):
        size = 0xFFFFFFFF if kind == b"RF64" and name == b"data" else len(body)
        chunks += name + struct.pack(order + "I", size) + body + bytes(len(body) & 1)
    return kind + struct.pack(order + "I", 4 + len(chunks)) + b"WAVE" + chunks


def _w64(data: bytes) -> bytes:
    tail = b"\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
    fmt = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    body = b"fmt " + tail + struct.pack("<Q", 24 + len(fmt)) + fmt
    body += b"data" + tail + struct.pack("<Q", 24 + len(data)) + data
    return (
        b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
        + struct.pack("<Q", 40 + len(body))
        + b"wave"
        + tail
        + body
    )


def _page(flags: int, granule: int, number: int, body: bytes) -> bytes:
    table = b"\xff" * (len(body) // 255) + bytes([len(body) % 255])
    page = (
        b"OggS\0" + struct.pack("<BqIII", flags, granule, 7, number, 0) + bytes([len(table)]) + table + body
    )
    return page[:22] + ogg._crc(page).to_bytes(4, "little") + page[26:]  # noqa: SLF001  # a good checksum leads further in


def audio_header(data: bytes) -> None:
    """Sniff, probe and walk: what is found lies within the file, and PCM gives the frames that are there."""
    with tempfile.NamedTemporaryFile(dir=_shm()) as file:
        file.write(data)
        file.flush()
        with Path(file.name).open("rb") as opened:
            _audio_walks(opened, data)
        try:
            decoder = PcmDecoder(file.name)
            blocks = list(decoder.blocks())
            assert all(b.dtype == np.float32 and b.shape[1] == decoder.channels for b in blocks)
            assert sum(len(b) for b in blocks) == decoder._facts.frames  # noqa: SLF001
        except DecodeError:
            pass


def _audio_walks(file: Any, data: bytes) -> None:
    size = len(data)
    claim = probe(file, size)
    assert -1 <= claim.frames <= MAX_CLAIM
    assert claim.rate >= 0 <= claim.channels
    with contextlib.suppress(riff.RiffError):
        facts = riff.read_facts(file, size)
        assert facts.start + facts.nbytes <= size
        assert 0 <= facts.frames * facts.block <= facts.nbytes
    pages = ogg.walk(file)
    at = 0
    for link in pages.links:
        assert at <= link.start <= link.stop <= size
        at = link.stop
    assert pages.junk_bytes <= size
    assert all(0 <= bad < size for bad in pages.bad_pages)
    if data:
        frames = mpeg.walk(file)
        assert 0 <= frames.cut <= size
        assert frames.junk_bytes <= size
        assert all(0 <= a < b <= size for a, b in frames.junk)
        assert frames.samples >= 0 <= frames.expected
        assert not frames.frames or mpeg.frame_header(data[frames.start : frames.start + 4], free=1)
    for head in (data[:HEAD_BYTES], data[: len(data) // 2]):
        info = flac.stream_info(head)
        last = None if info is None else flac.last_frame(data[-HEAD_BYTES:], info)
        assert last is None or last.start >= 0 < last.samples


_JSON = (
    b"null",
    b"-1",
    b"1e999",
    b"[]",
    b"{}",
    b'""',
    b"true",
    b"18446744073709551616",
    b"[" * 9,
    b'"x":',
    b"\xff",
)

TARGETS = {
    t.name: t
    for t in (
        Target(
            "avro-file",
            avro_file,
            _containers,
            ("ingest.sources.avro",),
            (
                b"Obj\x01",
                b"avro.schema",
                b"avro.codec",
                b"null",
                b"0123456789abcdef",
                b'"type":',
                b"record",
                b"\xff" * 9,
            ),
        ),
        Target(
            "avro-kernel",
            avro_kernel,
            _payloads,
            ("ingest.sources.avro", "fuzz.targets"),
            (b"\xff" * 9, b"\x00\x00"),
        ),
        Target("store-root", store_root, lambda: [_store()["zarr.json"]], ("chunkstore",), _JSON),
        Target("chunk", chunk, _chunks, ("chunkstore",), (b"\xff" * 8, b"\x28\xb5\x2f\xfd")),
        Target(
            "audio-header",
            audio_header,
            lambda: list(_recordings()),
            ("ingest.sources.audio",),
            (
                b"RIFF",
                b"RF64",
                b"WAVE",
                b"fmt ",
                b"data",
                b"ds64",
                b"LIST",
                b"OggS",
                b"fLaC",
                b"ID3",
                b"TAG",
                b"LYRICSBEGIN",
                b"LYRICS200",
                b"APETAGEX",
                b"FORM",
                b"AIFF",
                b"COMM",
                b"\xff\xfb\x90\x00",
                b"\xff\xff\xff\xff",
                b"\xff\xff\xff\x7f",
            ),
        ),
        Target("ledger", ledger, _ledgers, ("ingest",), _JSON),
    )
}


def mutate(data: bytes, luck: random.Random, words: tuple[bytes, ...], most: int = 1 << 16) -> bytes:
    """Return the input with one to six small changes: what the bounded fuzzer knows to do."""
    found = bytearray(data)
    for _ in range(luck.choice((1, 1, 2, 3, 6))):
        at = luck.randrange(len(found) + 1)
        kind = luck.randrange(8)
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << luck.randrange(8)
        elif kind == 1 and found:
            found[at % len(found)] = luck.choice((0, 1, 2, 127, 128, 254, 255, luck.randrange(256)))
        elif kind == 2:
            del found[at : at + luck.choice((1, 2, 8, 100))]
        elif kind == 3:
            found[at:at] = luck.randbytes(luck.randrange(1, 9))
        elif kind == 4 and words:
            found[at : at + luck.choice((0, 1, 4))] = luck.choice(words)
        elif kind == 5 and found:
            other = luck.randrange(len(found))
            found[at:at] = found[other : other + luck.randrange(1, 40)]
        elif kind == 6 and found:
            # a number in text
            places = [i for i, b in enumerate(found) if 48 <= b < 58]
            if places:
                found[luck.choice(places)] = luck.choice(b'-.0987e"')
        else:
            found = found[: luck.randrange(len(found) + 1)] if luck.random() < 0.3 else found
    return bytes(found[:most])

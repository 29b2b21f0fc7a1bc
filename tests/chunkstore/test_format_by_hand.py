"""A reader written from docs/store-format.md alone, with json, numpy and two decompressors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import google_crc32c
import numcodecs
import numpy as np
import pytest

from chunkstore import FieldSpec, StoreWriter, open_store

ROOT = Path(__file__).resolve().parents[2]


class HandReader:
    """Knows nothing but the page."""

    def __init__(self, path: Path) -> None:
        self.path = path
        root = json.loads((path / "zarr.json").read_text())
        self.own = root["attributes"]["chunkstore"]
        self.meta = root["consolidated_metadata"]["metadata"]
        assert self.own["format"] == 1
        assert self.own["status"] == "complete"

    @staticmethod
    def decode(data: bytes, codecs: list[dict]) -> bytes:
        for codec in reversed(codecs):
            if codec["name"] == "crc32c":
                assert google_crc32c.value(data[:-4]) == int.from_bytes(data[-4:], "little")
                data = data[:-4]
            elif codec["name"] == "blosc":
                data = numcodecs.Blosc().decode(data)
            elif codec["name"] == "zstd":
                data = numcodecs.Zstd().decode(data)
        return data

    def plain(self, name: str):
        meta = self.meta[name]
        length, chunk = meta["shape"][0], meta["chunk_grid"]["configuration"]["chunk_shape"][0]
        out: list = []
        for index in range(-(-length // chunk)):
            file = self.path / name / "c" / str(index)
            if not file.exists():
                out += [meta["fill_value"]] * chunk
                continue
            raw = self.decode(file.read_bytes(), meta["codecs"])
            if meta["data_type"] != "string":
                out += np.frombuffer(raw, np.dtype(meta["data_type"]).newbyteorder("<")).tolist()
                continue
            at = 4
            for _ in range(int.from_bytes(raw[:4], "little")):
                size = int.from_bytes(raw[at : at + 4], "little")
                out.append(raw[at + 4 : at + 4 + size].decode())
                at += 4 + size
        return out[:length]

    def field(self, name: str) -> np.ndarray:
        meta = self.meta[name]
        dtype = np.dtype(meta["data_type"]).newbyteorder("<")
        rest = meta["shape"][1:]
        settings = meta["codecs"][0]["configuration"]
        chunk, shard = self.own["chunk"], self.own["shard"]
        out = np.full((-(-self.own["n_obs"] // shard) * shard, *rest), float(meta["fill_value"]), dtype)
        for first, stop in self.own["shards"][name]:
            for index in range(first, stop):
                data = (self.path / name / "c" / "/".join([str(index), *["0"] * len(rest)])).read_bytes()
                tail = data[-(16 * shard // chunk + 4) :]
                assert google_crc32c.value(tail[:-4]) == int.from_bytes(tail[-4:], "little")
                for i, (at, size) in enumerate(np.frombuffer(tail[:-4], "<u8").reshape(-1, 2).tolist()):
                    if at != 2**64 - 1:
                        raw = self.decode(data[at : at + size], settings["codecs"])
                        low = index * shard + i * chunk
                        out[low : low + chunk] = np.frombuffer(raw, dtype).reshape(chunk, *rest)
        return out[: self.own["n_obs"]]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "blosc-lz4", "blosc-zstd"])
def test_a_reader_written_from_the_page_reads_everything(tmp_path, codec):
    rng = np.random.default_rng(4)
    lengths = [0, 100, 7, 300]
    fields = [
        FieldSpec("x", "float32"),
        FieldSpec("v", "int16", items=2),
        FieldSpec("n", "int64", nullable=True),
    ]
    data = {
        "x": rng.normal(size=407).astype("f4"),
        "v": rng.integers(-9, 9, (407, 2)),
        "n": rng.integers(0, 9, 407),
    }
    data["x"][100:200] = np.nan
    valid = rng.random(407) > 0.2
    data["n"][~valid] = 0
    ends = np.cumsum(lengths)
    with StoreWriter(tmp_path / "a.zarr", fields, codec=codec, chunk=16, shard=64) as out:
        for i, (low, high) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            part = {k: v[low:high] for k, v in {**data, "n_valid": valid}.items()}
            out.write(f"séquence {i}", part, labels={"who": "ba"[i % 2]}, gaps=[(1, 3)] if i == 3 else ())
    hand = HandReader(tmp_path / "a.zarr")
    assert np.array_equal(hand.field("x"), data["x"], equal_nan=True)
    assert np.array_equal(hand.field("v"), data["v"])
    assert np.array_equal(hand.field("n"), data["n"])
    assert np.array_equal(hand.field("n_valid"), valid)
    assert hand.plain("rowsize") == lengths
    assert hand.plain("id") == [f"séquence {i}" for i in range(4)]
    assert hand.plain("who") == ["b", "a", "b", "a"]
    assert hand.plain("who_code") == [1, 0, 1, 0]
    assert hand.meta["who_code"]["attributes"]["categories"] == ["a", "b"]
    assert (hand.plain("gap_start"), hand.plain("gap_stop")) == ([108], [110])
    open_store(tmp_path / "a.zarr").add_split("train/val", by="time", embargo=2)
    hand = HandReader(tmp_path / "a.zarr")
    rule = hand.own["splits"]["train/val"]
    starts, stops, parts = (hand.plain(f"{rule['array']}_{s}") for s in ("start", "stop", "part"))
    assert [rule["parts"][p] for p in parts] == ["train", "val", "train", "val", "train", "val"]
    assert all(a < b for a, b in zip(starts, stops, strict=True))


def test_the_how_to_from_npy_runs(tmp_path):
    values = np.arange(3000, dtype="f4").reshape(1000, 3)
    np.save(tmp_path / "x.npy", values)
    np.save(tmp_path / "lengths.npy", np.array([400, 0, 600]))
    script = ROOT / "docs" / "snippets" / "npy_to_store.py"
    subprocess.run(
        [sys.executable, str(script), "x.npy", "lengths.npy", "out.zarr"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=120,
    )
    store = open_store(tmp_path / "out.zarr")
    assert store.sequences.rowsize.tolist() == [400, 0, 600]
    assert np.array_equal(store.read("x", 0, 1000), values)

"""Every source passes the same suite."""

from __future__ import annotations

import importlib.util
import math
import struct
import sys
import wave
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("ingest_source_tests", HERE / "source_tests.py")
source_tests = importlib.util.module_from_spec(spec)
sys.modules["ingest_source_tests"] = source_tests
spec.loader.exec_module(source_tests)
SourceTests = source_tests.SourceTests


class TestNpy(SourceTests):
    source = "npy"
    options: ClassVar = {"field": "level", "rate": 10.0, "part_rows": 7}

    def inputs(self, folder):
        for i, rows in enumerate((20, 1, 0, 33)):
            np.save(folder / f"{i}.npy", np.arange(rows, dtype=np.float32) + 100 * i)
        return [str(folder)]


class TestKeyed(SourceTests):
    source = "keyed_source:KeyedSource"
    options: ClassVar = {"part_rows": 30, "order": "sort"}

    @pytest.fixture(autouse=True)
    def reach(self, monkeypatch):
        monkeypatch.syspath_prepend(str(HERE / "support"))

    def inputs(self, folder):
        from keyed_source import make_files

        make_files(folder, files=3, rows=80, keys=4)
        return [str(folder)]

    def test_a_file_of_zeros_and_an_empty_one_are_named_not_fatal(self):
        pytest.skip("a stand-in that reads only what the tests wrote")

    def test_no_inputs_are_an_error_in_one_sentence(self):
        pytest.skip("a stand-in that reads only what the tests wrote")


def records(rows):
    for i in range(rows):
        yield {
            "device": f"d{i % 3}",
            "time": 1000 * (i // 3),
            "x": math.sin(i),
            "n": None if i % 5 == 0 else i,
        }


SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "x", "type": "double"},
        {"name": "n", "type": ["null", "long"]},
    ],
}


def write_avro(folder):
    fastavro = pytest.importorskip("fastavro")
    for name, codec, rows in (("a", "null", 40), ("b", "deflate", 25)):
        with (folder / f"{name}.avro").open("wb") as out:
            fastavro.writer(out, SCHEMA, records(rows), codec=codec, sync_interval=200)
    return [str(folder)]


class TestAvroByKey(SourceTests):
    source = "avro"
    options: ClassVar = {"sequence_key": ["device"], "time": "time"}

    def inputs(self, folder):
        return write_avro(folder)


class TestAvroByKeySorted(SourceTests):
    source = "avro"
    options: ClassVar = {"sequence_key": ["device"], "time": "time", "on_disorder": "sort"}

    def inputs(self, folder):
        return write_avro(folder)


class TestAvroByFile(SourceTests):
    source = "avro"
    options: ClassVar = {"sequence_per": "file", "time": "time", "fields": ["time", "x", "n"]}

    def inputs(self, folder):
        return write_avro(folder)


class TestAudio(SourceTests):
    source = "audio"
    options: ClassVar = {"rate": 8000, "label_from": "parent", "isolate": False}

    def inputs(self, folder):
        pytest.importorskip("soundfile")
        pytest.importorskip("soxr")
        for i, frames in enumerate((400, 1234)):
            with wave.open(str(folder / f"{i}.wav"), "wb") as out:
                out.setnchannels(1)
                out.setsampwidth(2)
                out.setframerate(16000)
                tone = (int(9000 * math.sin(k / 7)) for k in range(frames))
                out.writeframes(b"".join(struct.pack("<h", v) for v in tone))
        return [str(folder)]

"""Inputs that are no files, and files with names that are no text: named, never waited for, never fatal."""

from __future__ import annotations

import io
import os
import sys
import wave

import fastavro
import numpy as np
import pytest

import chunkstore
import ingest
from chunkstore.errors import InputError

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "double"}]}


def avro() -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, SCHEMA, [{"x": float(i)} for i in range(9)])
    return out.getvalue()


def wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.arange(9, dtype="<i2").tobytes())
    return out.getvalue()


def npy() -> bytes:
    out = io.BytesIO()
    np.save(out, np.arange(9.0))
    return out.getvalue()


KINDS = {
    "avro": (avro, {"sequence_per": "file"}, "avro-unreadable"),
    "audio": (wav, {"rate": 8000, "isolate": False}, "audio-unreadable"),
    "npy": (npy, {}, "npy-unreadable"),
}
SUFFIX = {"avro": ".avro", "audio": ".wav", "npy": ".npy"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_is_a_fault_and_nobody_waits_for_it(tmp_path, kind):
    make, options, code = KINDS[kind]
    good, pipe = tmp_path / f"good{SUFFIX[kind]}", tmp_path / f"pipe{SUFFIX[kind]}"
    good.write_bytes(make())
    os.mkfifo(pipe)
    result = ingest.ingest(kind, [str(good), str(pipe)], tmp_path / "o.zarr", options, workers=0)
    assert result.report["faults"] == {code: 1}
    assert result.report["rows"]["stored"] == 9
    assert result.exit_code == 3


@pytest.mark.skipif(sys.platform == "darwin", reason="this file system holds names as text")
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_is_no_text_is_written_with_its_bytes_as_digits(tmp_path, kind):
    make, options, _ = KINDS[kind]
    (tmp_path / "in").mkdir()
    name = os.fsencode(tmp_path / "in") + b"/caf\xe9" + SUFFIX[kind].encode()
    with open(name, "wb") as out:
        out.write(make())
    ingest.ingest(kind, [str(tmp_path / "in")], tmp_path / "o.zarr", options, workers=0)
    store = chunkstore.open_store(tmp_path / "o.zarr")
    (key,) = store.sequences.ids
    assert key.removesuffix(SUFFIX[kind]) == "caf\\xe9"
    assert store.n_obs == 9


def test_metadata_with_rows_longer_than_the_header_are_refused_not_shifted(tmp_path):
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "m.csv").write_text("file,species\na.wav,Parus, major\n")
    options = {"rate": 8000, "metadata": str(tmp_path / "m.csv"), "metadata_key": "file"}
    with pytest.raises(InputError, match="more fields than its header"):
        ingest.ingest("audio", [str(tmp_path / "a.wav")], tmp_path / "o.zarr", options, workers=0)


def test_inputs_are_never_where_the_output_or_its_report_goes(tmp_path):
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(3.0))
    url = tmp_path / "out.zarr"
    assert ingest.ingest("npy", tmp_path, url, {"field": "x"}, workers=0).exit_code == 0
    for inner in (url / "x" / "c.npy", url / ".hidden" / "c.npy"):
        inner.parent.mkdir(exist_ok=True)
        np.save(inner, np.arange(2.0))
        (tmp_path / "link.npy").unlink(missing_ok=True)
        (tmp_path / "link.npy").symlink_to(inner)
        for given in (inner, tmp_path / "link.npy"):
            with pytest.raises(chunkstore.ConfigError, match="lies in the output"):
                ingest.ingest("npy", given, url, {"field": "x"}, workers=0, overwrite=True)
        assert np.load(inner).tolist() == [0, 1]
        inner.unlink()
    (tmp_path / "link.npy").unlink()
    with pytest.raises(chunkstore.ConfigError, match="is one of the inputs"):
        ingest.ingest(
            "npy", tmp_path, tmp_path / "new.zarr", {"field": "x"}, workers=0, report=tmp_path / "x/../a.npy"
        )
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2]
    assert chunkstore.open_store(url).n_obs == 6

"""The verbs, as a person types them: what is printed, and with which exit code they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import chunkstore
import ingest
from chunkstore.cli import run
from ingest.recordings import make_avro


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(3):
        np.save(tmp_path / "in" / f"{i}.npy", np.arange(10.0) + i)
    return tmp_path / "in"


def test_files_become_a_store_and_a_summary(folder, tmp_path, capsys):
    assert run(["ingest", "npy", str(folder), "-o", str(tmp_path / "o.zarr"), "--workers", "0"]) == 0
    told = capsys.readouterr()
    assert "3 sequences, 30 obs from 3 files" in told.out
    assert "write: 1/1 tasks" in told.err
    assert chunkstore.open_store(tmp_path / "o.zarr").n_obs == 30


def test_a_dry_run_prints_the_plan_and_writes_nothing(folder, tmp_path, capsys):
    assert run(["ingest", "npy", str(folder), "-o", str(tmp_path / "o.zarr"), "--dry-run"]) == 0
    told = capsys.readouterr().out
    for word in ("inputs", "sequences  3", "obs        30", "memory", "scratch    none", "plan"):
        assert word in told
    assert list(tmp_path.iterdir()) == [folder]


def test_damage_ends_with_3_and_a_report(folder, tmp_path, capsys):
    file = folder / "1.npy"
    file.write_bytes(file.read_bytes()[:-20])
    (folder / "9.npy").write_bytes(b"no array")
    report = tmp_path / "faults.jsonl"
    words = ["ingest", "npy", str(folder), "-o", str(tmp_path / "o.zarr"), "--workers", "0"]
    assert run([*words, "--report", str(report)]) == 3
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(Path(f["file"]).name, f["code"], f["claimed_rows"], f["action"]) for f in lines] == [
        ("9.npy", "npy-unreadable", 0, "quarantined"),
        ("1.npy", "npy-truncated", 3, "gap"),
    ]
    assert set(lines[0]) == {"file", "offset", "block", "claimed_rows", "code", "message", "action"}
    told = capsys.readouterr().out
    assert "1 x npy-truncated" in told
    assert "27 are stored, 3 are gaps" in told
    kept = json.loads((tmp_path / "o.zarr.ledger" / "report.json").read_text())
    assert (kept["exit_code"], kept["rows"]["stored"]) == (3, 27)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "no such file"),
        (["{in}", "--codec", "zip"], "zip"),
        (["{in}", "--memory-limit", "1MiB"], "memory limit is 1 MiB"),
        (["{in}", "--max-bad", "lots"], "--max-bad"),
        (["{in}", "--resume", "--overwrite"], "exclude each other"),
        (["{in}", "--chunk", "zwölf"], "not a size"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_2(folder, tmp_path, capsys, words, told):
    words = [w.format(**{"in": folder}) for w in words]
    assert run(["ingest", "npy", *words, "-o", str(tmp_path / "o.zarr"), "--workers", "0"]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("chunkstore:")]
    assert len(error) == 1
    assert told in error[0]
    assert not (tmp_path / "o.zarr").exists()


def test_an_output_that_is_there_is_exit_2_and_overwrite_helps(folder, tmp_path, capsys):
    words = ["ingest", "npy", str(folder), "-o", str(tmp_path / "o.zarr"), "--workers", "0", "--quiet"]
    assert run(words) == 0
    assert capsys.readouterr() == ("", "")
    assert run(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run([*words, "--overwrite"]) == 0
    assert run([*words, "--resume"]) == 0


def test_progress_can_be_json_lines(folder, tmp_path, capsys):
    words = ["ingest", "npy", str(folder), "-o", str(tmp_path / "o.zarr"), "--workers", "0", "--log-json"]
    assert run(words) == 0
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {e["stage"] for e in events if "stage" in e} == {"scan", "write", "finish"}
    ends = [e for e in events if e["event"] == "end"]
    assert [e["done"] == e["tasks"] for e in ends] == [True] * 3
    assert ends[-1]["rows"] == 30


def test_an_interrupt_says_how_to_go_on(folder, tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ingest.sources.npy.NpySource.read", interrupted)
    words = ["ingest", "npy", str(folder), "-o", str(tmp_path / "o.zarr"), "--workers", "0"]
    assert run(words) == 130
    assert "run again with --resume" in capsys.readouterr().err
    monkeypatch.undo()
    assert run([*words, "--resume"]) == 0


def test_merge_makes_one_store(folder, tmp_path, capsys):
    for name, files in (("a", "0.npy"), ("b", "[12].npy")):
        out = str(tmp_path / f"{name}.zarr")
        assert run(["ingest", "npy", str(folder / files), "-o", out, "--workers", "0", "--quiet"]) == 0
    words = ["merge", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr"), "-o", str(tmp_path / "c.zarr")]
    assert run(words) == 0
    assert "3 sequences, 30 obs from 2 stores" in capsys.readouterr().out


def test_scan_proposes_a_command_that_works(tmp_path, capsys):
    fastavro = pytest.importorskip("fastavro")
    fields = [{"name": "k", "type": "string"}, {"name": "x", "type": "double"}]
    with (tmp_path / "a.avro").open("wb") as out:
        rows = [{"k": f"d{i % 2}", "x": float(i)} for i in range(20)]
        fastavro.writer(out, {"type": "record", "name": "R", "fields": fields}, rows)
    assert run(["scan", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "20 rows" in told
    assert "chunkstore ingest avro" in told
    words = ["ingest", "avro", str(tmp_path), "-o", str(tmp_path / "o.zarr"), "--sequence-key", "k"]
    assert run([*words, "--dry-run"]) == 0
    assert "decoder    kernel" in capsys.readouterr().out
    assert run([*words, "--workers", "0"]) == 0
    assert chunkstore.open_store(tmp_path / "o.zarr").n_sequences == 2


def test_help_names_every_option_of_the_functions(capsys):
    import inspect

    from ingest.api import ingest

    run(["ingest", "avro", "--help"])
    told = capsys.readouterr().out
    python_only = {"source", "inputs", "out", "options", "client", "storage_options", "progress"}
    for name in set(inspect.signature(ingest).parameters) - python_only:
        assert "--" + name.replace("_", "-") in told, name


@pytest.mark.parametrize(
    ("verb", "module", "options"), [("avro", "avro", "AvroOptions"), ("audio", "audio", "AudioOptions")]
)
def test_every_option_of_a_source_is_an_option_of_its_verb(verb, module, options):
    import dataclasses
    import importlib

    from ingest import cli

    known = {
        f.name
        for f in dataclasses.fields(getattr(importlib.import_module(f"ingest.sources.{module}"), options))
    }
    rows = {row[0] for row in getattr(cli, f"_{verb.upper()}")}
    found_by_the_scan = {"keys", "inner_obs", "own_rate"}
    assert rows == known - {"storage_options"} - found_by_the_scan


def test_messages_name_options_as_they_are_typed(tmp_path, capsys):
    make_avro(tmp_path / "readings", hours=20)
    assert run(["ingest", "avro", str(tmp_path / "readings"), "-o", str(tmp_path / "s.zarr")]) == 2
    told = capsys.readouterr().err
    assert "--sequence-key FIELD" in told
    assert "sequence_per" not in told


def test_warnings_and_errors_are_json_lines_too(folder, tmp_path, capsys, monkeypatch):
    import logging
    import warnings

    from ingest.sources.npy import NpySource

    real = NpySource.read

    def read(self, part):
        logging.getLogger("ingest.test").warning("storage %s", "\udce9 slow")
        warnings.warn("old", stacklevel=1)
        yield from real(self, part)

    monkeypatch.setattr(NpySource, "read", read)
    words = ["ingest", "npy", str(folder), "-o", str(tmp_path / "o.zarr"), "--workers", "0", "--log-json"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run(words) == 0
    told = capsys.readouterr().err
    events = [json.loads(line) for line in told.splitlines()]
    assert {e["logger"] for e in events if e["event"] == "log"} == {"ingest.test", "py.warnings"}
    assert "\\ud" not in told.replace("\\\\ud", "")  # no half of a character, which strict readers refuse
    assert run(words) == 2
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (event,) = [e for e in events if e["event"] != "log"]  # newer libraries may have something to warn of
    assert (event["event"], event["kind"], event["exit_code"]) == ("error", "StoreExistsError", 2)
    assert "--overwrite" in event["text"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_a_job_that_is_told_to_end_gives_its_lock_back_and_ends_its_workers(folder, tmp_path):
    np.save(folder / "long.npy", np.arange(3_000_000.0))
    words = [
        "ingest",
        "npy",
        str(folder),
        "-o",
        str(tmp_path / "o.zarr"),
        "--workers",
        "1",
        "--shard",
        "1024",
    ]
    code = "import sys; from chunkstore.cli import main; main()"
    running = subprocess.Popen(
        [sys.executable, "-c", code, *words, "--chunk", "1024"],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    ledger = tmp_path / "o.zarr.ledger"
    deadline = time.monotonic() + 60
    while not list(ledger.glob("write/*/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    running.terminate()
    _, told = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM
    assert b"run again with --resume" in told
    assert (ledger / "plan.json").exists()
    assert not (ledger / "lock.json").exists()


def test_progress_of_a_kind_that_there_is_not_is_refused(folder, tmp_path):
    with pytest.raises(chunkstore.ConfigError, match="progress is 'jsno'"):
        ingest.ingest("npy", folder, tmp_path / "o.zarr", workers=0, progress="jsno")


def test_only_recordings_are_told_as_audio(folder, tmp_path, capsys):
    ingest.ingest("npy", folder, tmp_path / "o.zarr", {"rate": 100.0}, workers=0, progress="lines")
    told = capsys.readouterr().err
    assert "30 rows" in told
    assert "audio" not in told

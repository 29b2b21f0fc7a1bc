"""Decoding in a process of its own: a crash, a hang, a greedy file each cost one file."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from ingest.sources.audio import AudioSource, isolate

#: A decoder process in which some file names have a sad fate.
_FATES = """
import json, os, signal, sys, time
sys.path[:] = json.loads(sys.argv[1])
from ingest.sources.audio import isolate
convert = isolate.convert
def fated(file, spool, options, alive):
    name = os.path.basename(file)
    if "crash" in name: os.kill(os.getpid(), signal.SIGSEGV)
    if "hang" in name: time.sleep(3600)
    if "greedy" in name: bytearray(1 << 33)
    if "slow" in name:
        for _ in range(8): time.sleep(0.3); alive()
    if "chatty" in name: print("noise", flush=True); os.write(1, b"more noise")
    return convert(file, spool, options, alive)
isolate.convert = fated
isolate.serve(json.loads(sys.argv[2]), int(sys.argv[3]))
"""


@pytest.fixture
def fates(monkeypatch):
    monkeypatch.setattr(isolate, "_CHILD", _FATES)
    monkeypatch.setattr(isolate, "_START", 60.0)
    isolate.pool.close()
    yield
    isolate.pool.close()


def _idle_pids() -> list[int]:
    return [process.pid for process in isolate.pool._idle]


def test_one_process_serves_many_files_and_gives_what_this_process_gives(make):
    files = [
        make.file(f"{n}.ogg", make.encode(make.tone(n), 8000, "OGG", "VORBIS")) for n in (0, 1, 700, 300_000)
    ]
    here = make.read(files, rate=16000)
    there = make.read(files, rate=16000, isolate=True)
    (first,) = _idle_pids()
    again = make.read(files, rate=16000, isolate=True)
    assert _idle_pids() == [first]
    for other in (there, again):
        assert repr(other.labels) == repr(here.labels)
        assert {k: v.tobytes() for k, v in other.samples.items()} == {
            k: v.tobytes() for k, v in here.samples.items()
        }


def test_a_crash_a_hang_and_a_greedy_file_cost_one_file_each(make, fates):
    names = ["a.wav", "crash.wav", "b.wav", "hang.wav", "c.wav", "greedy.wav", "chatty.wav"]
    files = [make.file(name, make.wav16([1, 2, 3])) for name in names]
    got = make.read(files, rate=8000, isolate=True, timeout=1.0, decoder_memory="1GiB")
    reasons = {os.path.basename(f.file): (f.code, f.message) for f in got.faults}
    assert reasons["crash.wav"] == ("audio-decoder-crash", "the decoder process died (SIGSEGV)")
    assert reasons["hang.wav"][0] == "audio-timeout"
    assert "no progress for 1 s" in reasons["hang.wav"][1]
    assert reasons["greedy.wav"][0] == "audio-decode-error"
    assert "MemoryError" in reasons["greedy.wav"][1]
    assert len(reasons) == 3
    assert {k: v.tolist() for k, v in got.samples.items()} == {
        name: [1, 2, 3] for name in ("a.wav", "b.wav", "c.wav", "chatty.wav")
    }


def test_slow_is_not_hanging(make, fates):
    got = make.read([make.file("slow.wav", make.wav16([5]))], rate=8000, isolate=True, timeout=1.0)
    assert got.only.tolist() == [5]


def test_a_named_pipe_that_never_opens_is_stopped(make):
    good = make.file("good.wav", make.wav16([1]))
    pipe = make.folder / "pipe.wav"
    os.mkfifo(pipe)
    scanned = make.read([pipe], rate=8000)
    assert scanned.codes("quarantined") == ["audio-unreadable"]
    source = AudioSource(rate=8000, timeout=0.5)
    (part,) = source.scan([str(good)]).parts
    list(source.read(part))  # the process has started: its first file has a longer limit
    (batch,) = source.read(replace(part, file=str(pipe)))
    assert [f.code for f in batch.faults] == ["audio-timeout"]


def test_a_reader_that_stops_early_leaves_no_process_at_work(make):
    path = make.file("a.wav", make.wav16(np.arange(30_000)))
    isolate.pool.close()
    source = AudioSource(rate=8000, segment=0.1)
    (part,) = source.scan([str(path)]).parts
    batches = source.read(part)
    next(batches)
    batches.close()
    assert _idle_pids() == []


def _in_a_daemon(path, answers):
    source = AudioSource(rate=8000)
    (part,) = source.scan([path]).parts
    answers.put(sum(batch.rows for batch in source.read(part)))


def test_it_works_in_daemonic_workers(make):
    path = make.file("a.wav", make.wav16(np.arange(300)))
    context = multiprocessing.get_context("forkserver")
    answers = context.Queue()
    worker = context.Process(target=_in_a_daemon, args=(str(path), answers), daemon=True)
    worker.start()
    assert answers.get(timeout=120) == 300
    worker.join(30)
    assert worker.exitcode == 0


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at processes through /proc")
def test_a_killed_owner_leaves_no_process_behind(make):
    code = (
        "import os, time; from ingest.sources.audio.isolate import DecoderProcess; "
        "p = DecoderProcess(1 << 30); print(p.pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
        with open(f"/proc/{child}/stat") as stat:
            if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                break
        time.sleep(0.05)
    else:
        assert not os.path.exists(f"/proc/{child}")

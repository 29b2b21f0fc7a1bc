"""An ingest that is killed at any write, whose files are damaged between, and that goes on.

The model is one store: the bytes of an undisturbed run. (`test_kills.py` kills real processes; here each
step is chosen by hypothesis, and a failing history is shrunk.)
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import chunkstore
import ingest
from chunkstore.errors import ChunkstoreError, InputError
from chunkstore.places import LocalPlace
from ingest.folder import LocalFolder

SUPPORT = Path(__file__).parent / "support"


class Killed(BaseException):
    """What no part of the engine catches and goes on."""


def tree(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


class IngestMachine(RuleBasedStateMachine):
    """A staged job with sorting, or a placed one."""

    @initialize(staged=st.booleans())
    def begin(self, staged):
        self.folder = Path(tempfile.mkdtemp(prefix="ingest-machine-"))
        self.out, self.ledger = self.folder / "o.zarr", self.folder / "o.zarr.ledger"
        luck = np.random.default_rng(7)
        (self.folder / "in").mkdir()
        for i in range(3):
            if staged:
                columns = {
                    "key": luck.integers(0, 3, 40),
                    "time": luck.integers(0, 99, 40),
                    "value": np.arange(40.0) + 100 * i,
                    "pair": luck.integers(-9, 9, (40, 2)).astype("i4"),
                    "count": luck.integers(0, 9, 40),
                    "count_valid": luck.random(40) < 0.8,
                    "flag": luck.integers(0, 2, 40).astype("i1"),
                }
                np.savez(self.folder / f"in/{i}.npz", **columns)
            else:
                np.save(self.folder / f"in/{i}.npy", np.arange(40 * i, 40 * i + 33.0))
        self.job = ("keyed_source:KeyedSource", {"order": "sort", "part_rows": 20}) if staged else ("npy", {})
        self.begun = self.complete = False
        self.run(self.folder / "wanted.zarr", resume=False)
        self.wanted = tree(self.folder / "wanted.zarr")

    def run(self, out, *, resume):
        source, options = self.job
        with (
            mock.patch("ingest.plan.SEGMENT", 2000),
            mock.patch("ingest.plan.stage_target", return_value=1500),
        ):
            return ingest.ingest(
                source, self.folder / "in", out, options, workers=0, chunk=8, shard=32, resume=resume
            )

    def attempt(self):
        result = self.run(self.out, resume=self.begun)
        assert result.exit_code == 0
        self.begun = self.complete = True
        assert tree(self.out) == self.wanted
        assert not (self.ledger / "lock.json").exists()

    @rule(after=st.integers(0, 60), half=st.booleans())
    def kill(self, after, half):
        """Die at the n-th write of anything; half of them after the bytes are there, half before."""
        count = itertools.count()

        def dying(real):
            def put(self, *arguments):
                if next(count) == after:
                    if half:
                        real(self, *arguments)
                    raise Killed
                return real(self, *arguments)

            return put

        places = [
            (LocalPlace, "put"),
            (LocalPlace, "delete"),
            (LocalFolder, "put_stream"),
            (LocalFolder, "delete"),
        ]
        with contextlib_stack([mock.patch.object(c, n, dying(getattr(c, n))) for c, n in places]):
            try:
                self.attempt()
            except Killed:
                self.begun = True
        if (self.ledger / "lock.json").exists():
            self.a_killed_process_keeps_its_lock()  # this process lives on, the one that it plays is dead
        if not self.complete and self.out.exists():
            try:
                chunkstore.open_store(self.out)
            except ChunkstoreError:
                return
            assert tree(self.out) == self.wanted  # died after the last write of the store

    @precondition(lambda self: self.begun)
    @rule()
    def a_killed_process_keeps_its_lock(self):
        import socket

        self.ledger.mkdir(exist_ok=True)
        held = {"token": "x", "host": socket.gethostname(), "pid": 2**22 + 5, "user": "me", "since": 0}
        (self.ledger / "lock.json").write_text(json.dumps(held))

    def pick(self, folder, which):
        found = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "lock.json"]
        return found[which % len(found)] if found else None

    @precondition(lambda self: self.begun and not self.complete)
    @rule(which=st.integers(0, 10**6), how=st.sampled_from(["delete", "cut", "flip"]))
    def damage_a_shard(self, which, how):
        found = [p for p in sorted(self.out.glob("*/c/**/*")) if p.is_file()]
        root = self.out / "zarr.json"
        whole = root.exists() and b'"status":"complete"' in root.read_bytes()  # resume has nothing left to do
        if found and not whole:
            spoil(found[which % len(found)], how, which)

    @precondition(lambda self: self.begun)
    @rule(which=st.integers(0, 10**6), how=st.sampled_from(["delete", "cut", "flip"]))
    def damage_a_receipt(self, which, how):
        found = sorted(self.ledger.glob("stage/*/*.json")) + sorted(self.ledger.glob("write/*/*.json"))
        if found and not self.complete:
            spoil(found[which % len(found)], how, which)

    @precondition(lambda self: self.begun and not self.complete)
    @rule()
    def lose_scratch(self):
        shutil.rmtree(self.ledger / "scratch", ignore_errors=True)

    @precondition(lambda self: self.begun)
    @rule()
    def another_job_is_refused(self):
        if not (self.ledger / "plan.json").exists():
            return
        before = tree(self.out) if self.out.exists() else None
        source, options = self.job
        try:
            ingest.ingest(
                source, self.folder / "in", self.out, options, workers=0, chunk=16, shard=32, resume=True
            )
        except InputError:
            assert (tree(self.out) if self.out.exists() else None) == before
        else:
            raise AssertionError("another layout was taken for the same job")

    @rule()
    def go_on(self):
        self.attempt()

    def teardown(self):
        if hasattr(self, "folder"):
            self.attempt()
            shutil.rmtree(self.folder)


def spoil(path, how, which):
    data = path.read_bytes()
    if how == "delete":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: which % max(1, len(data))])
    else:
        at = which % len(data)
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])


def contextlib_stack(patches):
    import contextlib

    stack = contextlib.ExitStack()
    for patch in patches:
        stack.enter_context(patch)
    return stack


class TestIngestMachine(IngestMachine.TestCase):
    settings = settings(max_examples=4, stateful_step_count=6, deadline=None)

    def setUp(self):
        import sys

        sys.path.insert(0, str(SUPPORT))

    def tearDown(self):
        import sys

        sys.path.remove(str(SUPPORT))

"""Decoding in a process of its own, so that a crash or a hang of a C library costs one file.

A process is started once and serves many files; it is replaced when it dies or makes no progress
within the time limit. It is a plain subprocess, no ``multiprocessing`` child: dask's workers are
daemons, which may not have such children, and a fork would copy the locks of their threads.
Requests and answers are lines of JSON over pipes; samples travel through a :class:`spool.Spool` that both
hold open, which leaves nothing behind whoever is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from chunkstore.forks import new_lock
from ingest.sources.audio.convert import Converted, Failure, convert
from ingest.sources.audio.options import AudioOptions
from ingest.sources.audio.spool import Spool, SpoolError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DecoderProcess", "Pool", "pool"]

_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ingest.sources.audio.isolate import serve; serve(json.loads(sys.argv[2]), int(sys.argv[3]))"
)
#: Seconds between two signs of life that a process sends while it decodes.
_PULSE = 0.25
#: Seconds that a process may take from its start to its first sign of life.
_START = 120.0


class DecoderProcess:
    """One decoder process, from the side of its owner."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.spool = Spool()
        descriptors = self.spool.descriptors
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(  # noqa: S603 (this interpreter, our own module)
            [sys.executable, "-c", _CHILD, json.dumps(sys.path), json.dumps(descriptors), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[d for d in descriptors if d >= 0],
            env={**os.environ, **threads},
        )
        assert self._process.stdout is not None
        self._answers = self._process.stdout
        os.set_blocking(self._answers.fileno(), False)
        self._rest = b""
        self._fresh = True

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def convert(self, file: str, options: AudioOptions) -> Converted | Failure:
        """Convert one file into ``spool``; a crash or a hang is a failure, and the process is then dead."""
        request = f'{{"file": {json.dumps(file)}, "options": {options.text}}}\n'
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except OSError:
            return self._died()
        limit = max(float(options.timeout), _START if self._fresh else 0.0)
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while True:
                line = self._line()
                if line is not None:
                    self._fresh = False
                    limit = float(options.timeout)
                    deadline = time.monotonic() + limit
                    answer = json.loads(line)
                    if "alive" not in answer:
                        return _decoded(answer)
                    continue
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    return Failure(
                        "audio-timeout", f"the decoder made no progress for {limit:g} s and was stopped"
                    )
                more = self._answers.read()
                if more == b"":
                    return self._died()
                self._rest += more or b""

    def _line(self) -> bytes | None:
        line, found, rest = self._rest.partition(b"\n")
        if not found:
            return None
        self._rest = rest
        return line

    def _died(self) -> Failure:
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            code = 0
        self.close()
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit status {code}"
        return Failure("audio-decoder-crash", f"the decoder process died ({name})")

    @property
    def alive(self) -> bool:
        """Whether it can take another file."""
        return self._process.poll() is None and not self.spool.closed

    def close(self) -> None:
        """End the process and let go of the spool."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not sent to a dead process
                    pipe.close()
        self.spool.close()


def _decoded(answer: dict[str, Any]) -> Converted | Failure:
    if "failure" in answer:
        value = answer["failure"]
        return Failure(value["code"], value["message"], value["offset"], tuple(value["tried"]))
    if "missing" in answer:
        from chunkstore.errors import MissingDependencyError

        raise MissingDependencyError(answer["missing"])
    if "spool" in answer:
        raise SpoolError(*answer["spool"])
    return Converted.from_json(answer["converted"])


class Pool:
    """Decoder processes at rest, for the threads of one process to take and give back."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._idle: list[DecoderProcess] = []
        self._owner = os.getpid()

    def take(self, memory: int) -> DecoderProcess:
        """Return a live process, started if need be."""
        with self._lock:
            if self._owner != os.getpid():  # after a fork they are our parent's
                self._idle, self._owner = [], os.getpid()
            while self._idle:
                process = self._idle.pop()
                if process.alive and process.memory == memory:
                    return process
                process.close()
        return DecoderProcess(memory)

    def give(self, process: DecoderProcess) -> None:
        """Keep a process for the next file."""
        if process.alive:
            with self._lock:
                self._idle.append(process)

    def close(self) -> None:
        """End all processes at rest."""
        with self._lock:
            idle, self._idle = (self._idle, []) if self._owner == os.getpid() else ([], [])
        for process in idle:
            process.close()


#: The processes that all sources of this process share.
pool = Pool()
atexit.register(pool.close)


def _limit_memory(nbytes: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
    except (ImportError, ValueError, OSError):  # not every system has such limits
        return


def _follow(parent: int) -> None:
    """End this process when its parent is gone, even while a decoder hangs."""
    while os.getppid() == parent:
        time.sleep(2)
    os._exit(1)


def serve(descriptors: tuple[int, int], memory: int) -> None:
    """Run a decoder process: requests on stdin, signs of life and one answer a request on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who ends this process
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what libraries print must not reach the answers
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    _limit_memory(memory)
    spool = Spool((descriptors[0], descriptors[1]))
    last = 0.0

    def alive() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PULSE:
            last = now
            answers.write(b'{"alive":1}\n')

    alive()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answers.write(json.dumps(_answer(request, spool, alive)).encode() + b"\n")


def _answer(request: dict[str, Any], spool: Spool, alive: Callable[[], None]) -> dict[str, Any]:
    try:
        options = AudioOptions.from_json(request["options"])
        result = convert(request["file"], spool, options, alive)
    except ImportError as err:
        return {"missing": str(err)}
    except SpoolError as err:
        return {"spool": [err.errno, err.strerror or str(err), err.filename]}
    except Exception as err:  # an error of ours still costs one file only
        return {"failure": asdict(Failure("audio-decode-error", f"{type(err).__name__}: {err}"))}
    return {"failure": asdict(result)} if isinstance(result, Failure) else {"converted": result.to_json()}

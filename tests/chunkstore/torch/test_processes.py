"""Worker processes, ranks and killed runs: the same windows in the same order, and nothing left behind."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import chunkstore
from chunkstore.errors import ConfigError, ForkError, StateError
from chunkstore.torch import TrainingLoader, ZarrWindowDataset, transport

CHILDREN = Path(__file__).with_name("children.py")
SIZES = (150, 40, 333, 8, 260, 0, 97, 512)
W = 24
STARTS = Counter((s, p) for s, n in enumerate(SIZES) for p in range(n - W + 1))

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks:DeprecationWarning"),
]


def dataset(path, **options):
    return ZarrWindowDataset(path, W, **{"batch_size": 64, "lane_groups": 4, "fields": "x", **options})


def rows(batch):
    return list(zip(batch["sequence"].tolist(), batch["start"].tolist(), strict=True))


def shared_memory_of(pids):
    return [f for f in os.listdir("/dev/shm") if any(f"_{pid}_" in f for pid in pids)]


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture(scope="module")
def epochs(path):
    """Return the batches of three epochs as one process makes them."""
    alone = dataset(path)
    return [[rows(batch) for batch in alone] for _ in range(3)]


@pytest.mark.parametrize(
    ("workers", "context", "persistent"),
    [(1, "forkserver", True), (2, "spawn", True), (2, "forkserver", False), (4, "forkserver", True)],
)
def test_workers_give_the_order_of_one_process_in_every_epoch(path, epochs, workers, context, persistent):
    loader = TrainingLoader(
        dataset(path), num_workers=workers, multiprocessing_context=context, persistent_workers=persistent
    )
    got = []
    for _ in range(3 if persistent else 2):
        got.append([])
        for number, batch in enumerate(loader):
            at = batch["start"][:, None] + torch.arange(W)
            assert torch.equal(batch["x"][:, 0], (batch["sequence"][:, None] * 1000 + at).float())
            got[-1].append(rows(batch))
            if number == 4:
                state = loader.state_dict()
    assert got == epochs[: len(got)]
    assert len({str(e) for e in epochs}) == 3
    # the state knows nothing of what workers had fetched ahead
    again = dataset(path)
    again.load_state_dict(state)
    assert [rows(batch) for batch in again] == got[-1][5:]


def test_workers_share_a_limit_that_holds_everything_once_but_not_for_each(path):
    # 1400 obs of 4 bytes and a little: what one process may hold, two may not
    options = {"batch_size": 32, "lane_groups": 2, "fields": "x", "memory_limit": 8000, "seed": 5}
    alone = [rows(batch) for batch in TrainingLoader(ZarrWindowDataset(path, W, **options))]
    shared = TrainingLoader(ZarrWindowDataset(path, W, **options), num_workers=2)
    assert [rows(batch) for batch in shared] == alone


def test_workers_do_not_serve_a_split_that_was_drawn_anew(tmp_path):
    """The trainer would go on with the old one, and test with what workers train with."""
    place = tmp_path / "s.zarr"
    with chunkstore.StoreWriter(place, fields={"x": "f4"}) as out:
        for name in "abcdefgh":
            out.write(name, {"x": range(100)})
    chunkstore.open_store(place).add_split("train/val", fractions=[0.5, 0.5], seed=1)
    windows = dataset(place, split="train")
    assert [rows(batch) for batch in TrainingLoader(windows, num_workers=1)]
    chunkstore.open_store(place).add_split("train/val", fractions=[0.5, 0.5], seed=3, overwrite=True)
    with pytest.raises(StateError, match="other windows"):
        next(iter(TrainingLoader(windows, num_workers=1)))


@pytest.mark.parametrize("counting", [True, False])
def test_workers_that_live_on_learn_of_an_order_that_a_state_brought(path, counting):
    other = dataset(path, lanes=4, passes=1)
    first, state = [], None
    for number, batch in enumerate(other):
        first += rows(batch)
        if number == 2:
            state = other.state_dict(batch)
            break
    windows = dataset(path)
    if counting:
        loader = TrainingLoader(windows, num_workers=2)
    else:
        options = {"multiprocessing_context": "forkserver", "persistent_workers": True}
        loader = DataLoader(windows, batch_size=None, num_workers=2, **options)
    for _ in zip(range(2), loader, strict=False):
        pass
    (loader if counting else windows).load_state_dict(state)
    if counting:
        assert Counter(first + [row for batch in loader for row in rows(batch)]) == STARTS
    else:
        with pytest.raises(StateError, match="loaded after this worker was started"):
            next(iter(loader))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
def test_a_worker_refuses_an_order_that_its_trainer_would_not_learn_of(path):
    def loader(**options):
        return StatefulDataLoader(
            dataset(path, **options), batch_size=None, num_workers=1, multiprocessing_context="forkserver"
        )

    first = loader(lanes=4, passes=1)
    next(iter(first))
    other = loader()
    other.load_state_dict(first.state_dict())
    with pytest.raises(StateError, match="lanes is 4 in the state"):
        next(iter(other))


def test_a_newer_iteration_takes_no_batch_of_workers_from_an_older_one(path):
    loader = TrainingLoader(dataset(path), num_workers=2)
    older, newer = iter(loader), iter(loader)
    next(older)
    got = rows(next(newer))
    with pytest.raises(ConfigError, match="a newer one over the same loader"):
        next(older)
    assert Counter(got + [row for batch in newer for row in rows(batch)]) == STARTS


def test_a_plain_dataloader_needs_the_batch_for_an_exact_state(path, epochs):
    windows = dataset(path)
    loader = DataLoader(windows, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    for _, batch in zip(range(3), loader, strict=False):
        last = batch
    with pytest.raises(StateError, match=r"state_dict\(batch\)"):
        windows.state_dict()
    again = dataset(path)
    again.load_state_dict(windows.state_dict(last))
    assert [rows(b) for b in again] == epochs[0][3:]
    assert [rows(b) for b in loader] == epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_dataloader_resumes_in_mid_epoch(path, epochs, workers):
    options = {"batch_size": None, "num_workers": workers}
    warnings.filterwarnings("ignore", "'set_vital' is deprecated", UserWarning)  # torchdata calls it
    if workers:
        options["multiprocessing_context"] = "forkserver"
    loader = StatefulDataLoader(dataset(path), **options)
    assert [rows(b) for b in loader] == epochs[0]
    for number, _ in enumerate(loader):
        if number == 4:
            state = loader.state_dict()
            break
    again = StatefulDataLoader(dataset(path), **options)
    again.load_state_dict(json.loads(json.dumps(state)) if not workers else state)
    assert [rows(b) for b in again] == epochs[1][5:]
    assert [rows(b) for b in again] == epochs[2]


def test_a_forked_worker_of_a_process_that_has_decoded_is_refused_with_the_remedy(path):
    windows = dataset(path)
    next(iter(windows))
    loader = DataLoader(windows, batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=30)
    with pytest.raises(ForkError, match="multiprocessing_context='forkserver'"):
        list(loader)
    fresh = DataLoader(
        dataset(path), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=30
    )
    with pytest.raises(ForkError):
        list(fresh)


def test_lanes_that_workers_cannot_share_are_refused_with_the_number_that_would_do(path):
    loader = TrainingLoader(dataset(path, lane_groups=1), num_workers=2)
    with pytest.raises(ConfigError, match="multiple of 2"):
        list(loader)


def test_a_dataloader_whose_workers_would_stack_batches_is_refused_with_the_remedy(path):
    loader = DataLoader(dataset(path), batch_size=4, num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(ConfigError, match="batch_size=None"):
        next(iter(loader))


def test_a_worker_that_dies_is_an_error_within_seconds(path):
    dies = functools.partial(exec, "import os; os._exit(7)")  # called with the batch
    loader = TrainingLoader(dataset(path, transform=dies), num_workers=2)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="worker"):
        list(loader)
    assert time.monotonic() - began < 60  # a hang would be forever


class Collects:
    """A transform that keeps what it was given, and says whether that is as it was, and how many slots."""

    def __init__(self, of):
        self.of, self.kept = of, []

    def __call__(self, batch):
        self.kept.append((self.of(batch["x"]), batch["x"].clone()))
        same = [torch.equal(torch.as_tensor(kept), self.of(was)) for kept, was in self.kept]
        return batch | {"same": torch.tensor(same), "slots": torch.tensor(len(transport._own_slots().slots))}


def itself(x):
    return x


def a_view(x):
    return x[5:, :, 3:]


def nothing(x):
    return x.sum()


@pytest.mark.parametrize("of", [itself, a_view, nothing])
@pytest.mark.parametrize("kind", [TrainingLoader, DataLoader])
def test_a_worker_that_keeps_its_batches_never_sees_them_change(path, of, kind):
    options = {"batch_size": 175, "lane_groups": 2, "transform": Collects(of)}
    alone = [batch["x"] for batch in dataset(path, **{**options, "transform": None})]
    more = {"multiprocessing_context": "forkserver"}
    if kind is DataLoader:
        more["batch_size"] = None
    got = []
    for batch in kind(dataset(path, **options), num_workers=2, **more):
        assert bool(batch["same"].all())
        got.append(batch["x"].clone())
        batch["x"] += 1e6  # the loop's own
        slots = int(batch["slots"])
    assert all(torch.equal(a, b) for a, b in zip(got, alone, strict=True))
    assert alone[0].nbytes >= transport.LEAST
    if of is not nothing:  # what is kept takes a slot for each; a short last batch takes none
        assert slots >= len(batch["same"]) - 1


def test_a_transform_that_raises_in_a_worker_names_the_sequences(path):
    raises = functools.partial(exec, "raise ValueError('no')")
    loader = TrainingLoader(dataset(path, transform=raises, shuffle=False, lane_groups=2), num_workers=2)
    with pytest.raises(ValueError, match=r"in the transform of a batch with windows of 's0' \[0, 24\)"):
        list(loader)


def run(log, *arguments):
    """Start a program of ``children.py`` that writes to a file: its own children would hold a pipe open."""
    environment = {k: v for k, v in os.environ.items() if k not in {"RANK", "WORLD_SIZE"}}
    environment["OMP_NUM_THREADS"] = "1"
    with log.open("w") as out:
        return subprocess.Popen(
            [sys.executable, str(CHILDREN), *map(str, arguments)],
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def finish(child, log):
    """Wait for a program and return its lines of JSON."""
    try:
        child.wait(120)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, log.read_text()
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_a_checkpoint_at_4_ranks_goes_on_at_2_and_at_1_and_every_window_comes_once(path, tmp_path):
    log = tmp_path / "out.txt"
    lines = finish(run(log, "ranks", path, tmp_path), log)
    assert [line["world"] for line in lines] == [4, 2, 1]
    assert [len(line["seen"][0]) for line in lines[:2]] == [5, 7]
    seen = Counter(tuple(row) for line in lines for rank in line["seen"] for batch in rank for row in batch)
    assert seen == STARTS


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_behind_its_last_step_and_leaves_nothing(path, tmp_path, workers):
    log, out = tmp_path / "log.jsonl", tmp_path / "out.txt"
    child = run(out, "train", path, log, workers)
    deadline = time.monotonic() + 120
    while not log.exists() or log.read_text().count("\n") < 8:
        assert time.monotonic() < deadline
        assert child.poll() is None, out.read_text()
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    text = log.read_text()
    log.write_text(text[: text.rindex("\n") + 1])  # a line that was cut short had not been saved
    first = [json.loads(line) for line in log.read_text().splitlines()]
    finish(run(out, "train", path, log, workers), out)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert 8 <= len(first) < len(lines)
    assert Counter(tuple(row) for line in lines for row in line["seen"]) == STARTS
    pids = {pid for line in lines for pid in line["pids"]}
    assert len(pids) == 2 * (1 + workers)
    deadline = time.monotonic() + 30  # orphaned workers look for their parent every few seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids if alive(pid)]
    assert not shared_memory_of(pids)

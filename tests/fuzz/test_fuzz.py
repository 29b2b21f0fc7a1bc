"""Hostile bytes, a bounded number of them: inputs that were found once, and mutations of good ones.

``make fuzz`` looks for longer, guided by coverage; what it finds is added to ``inputs/TARGET``.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INPUTS = Path(__file__).parent / "inputs"
sys.path.insert(0, str(ROOT))
try:
    from fuzz.targets import TARGETS, mutate
finally:
    sys.path.remove(str(ROOT))

#: mutations tried with the suite
TRIES = {
    "avro-file": 400,
    "avro-kernel": 3000,
    "audio-header": 2500,
    "store-root": 1500,
    "chunk": 6000,
    "ledger": 60,
}
FOUND = sorted(p for p in INPUTS.glob("*/*") if p.is_file())


@pytest.mark.parametrize("path", FOUND, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_what_was_found_once_stays_mended(path):
    TARGETS[path.parent.name].run(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_pass(name):
    seeds = TARGETS[name].seeds()
    assert seeds
    for seed in seeds:
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", TRIES)
def test_mutated_inputs_end_in_an_answer_or_an_error_of_ours(name):
    target = TARGETS[name]
    luck = random.Random(f"suite {name}")
    seeds = target.seeds()
    for _ in range(TRIES[name]):
        data = mutate(luck.choice(seeds), luck, target.words)
        try:
            target.run(data)
        except Exception as err:
            err.add_note(f"the input is {data!r:.4000}")
            raise


def test_the_list_of_targets_is_whole():
    sys.path.insert(0, str(ROOT))
    from fuzz.run import NAMES

    assert set(NAMES) == set(TARGETS) == set(TRIES)

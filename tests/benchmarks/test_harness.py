"""The harness: what it records of a subject, and what it says when there is nothing to record."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import harness
from benchmarks.harness import Subject, main, measure, order_of, rotated, run_all, summed_up
from benchmarks.probe import Probe
from benchmarks.usage import disk_bytes, evict, tree, usage


def counts_sleeps(probe, n):
    probe.stream(lambda: iter([range(n)] * 3), len, seconds=0.05, slices=2, warmup_s=0)
    probe.set(answer=42)


def holds_memory(probe, n_bytes):
    probe.start()
    held = np.ones(n_bytes, np.uint8)
    time.sleep(0.6)
    probe.set(sum=int(held[:10].sum()))


def fails(probe):
    raise ValueError("two words\nand a line")


def sleeps(probe):
    time.sleep(60)


HERE = "tests.benchmarks.test_harness"


def test_one_value_is_its_own_median_and_ends():
    assert summed_up([[2.0]]) == {"median": 2.0, "low": 2.0, "high": 2.0, "n": 1}


@given(st.integers(1, 40), st.integers(1, 8))
def test_every_turn_has_all_rows_once_in_the_same_round(n, turns):
    for turn in range(turns):
        order = rotated(n, turn, turns)
        assert sorted(order) == list(range(n))
        assert all((b - a) % n == 1 % n for a, b in pairwise(order))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 5))
def test_in_every_turn_the_rows_of_a_table_follow_each_other(sizes, turns):
    subjects = [Subject(str(n), "m:f", table=f"t{k}") for k, size in enumerate(sizes) for n in range(size)]
    for turn in range(turns):
        order = order_of(subjects, turn, turns)
        assert sorted(order) == list(range(len(subjects)))
        changes = sum(subjects[a].table != subjects[b].table for a, b in pairwise(order))
        assert changes == len(sizes) - 1


@given(st.integers(2, 30), st.integers(0, 29), st.integers(1, 5))
def test_ours_comes_twice_in_a_long_table_half_of_it_apart(size, ours, turns):
    ours %= size
    subjects = [Subject("ours" if n == ours else str(n), "m:f") for n in range(size)]
    for turn in range(turns):
        order = order_of(subjects, turn, turns)
        at = [k for k, place in enumerate(order) if place == ours]
        assert sorted(set(order)) == list(range(size))
        if size <= harness.LONG:
            assert len(at) == 1
        else:
            assert len(at) == 2
            assert size // 2 <= at[1] - at[0] <= size - size // 2 + 1


def test_turns_begin_at_other_rows_and_facts_and_gaps_are_asked_for_once(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKSTORE_BENCH_LOCK", str(tmp_path / "lock"))
    asked = []

    def measured(subject, scale, turn):
        asked.append(subject.name)
        return {"gap": "no"} if subject.name == "gap" else {"lists": {"per_s": [1.0]}, "values": {}}

    monkeypatch.setattr(harness, "measure", measured)
    subjects = [Subject("a", "m:f"), Subject("facts", "m:f", once=True), Subject("gap", "m:f")]
    found = run_all([*subjects, Subject("b", "m:f")], repeats=2, scale=1.0)
    assert asked == ["a", "facts", "gap", "b", "b", "a"]
    assert [record.get("processes") for record in found] == [2, 1, None, 2]


def test_a_row_is_the_median_of_its_processes_and_what_it_read_adds_up():
    runs = [[1.0, 1.0, 9.0], [2.0, 2.0, 2.0], [3.0, 4.0, 5.0]]
    records = [{"lists": {"per_s": run}, "values": {"read_bytes": 10, "units": 2}} for run in runs]
    merged = harness._merge(records)
    assert merged["summary"]["per_s"] == {"median": 2.0, "low": 1.0, "high": 4.0, "n": 3}
    assert (merged["values"]["read_bytes"], merged["values"]["units"]) == (30, 6)
    assert merged["turns"] == {"per_s": [1.0, 2.0, 4.0]}


def test_a_turn_that_failed_is_none_and_what_the_first_found_stays():
    good = {"lists": {"per_s": [2.0]}, "values": {}}
    merged = harness._merge([good | {"values": {"mixed": 7}}, {"gap": "no"}, good])
    assert merged["turns"] == {"per_s": [2.0, None, 2.0]}
    assert merged["values"] == {"mixed": 7}
    assert merged["failed_repeats"] == 1


def test_two_processes_of_one_turn_are_one_number_of_it():
    records = [{"lists": {"per_s": [rate]}, "values": {}} for rate in (1.0, 3.0, 5.0, 5.0)]
    merged = harness._merge(records, [0, 0, 1, 1])
    assert merged["turns"] == {"per_s": [2.0, 5.0]}
    assert merged["processes"] == 4


@pytest.mark.parametrize(("rises_s", "least", "most"), [(0, 1.5, 1.6), (3, 3.0, 5.1), (60, 12.0, 12.1)])
def test_a_warm_up_goes_on_while_the_rate_rises_and_ends(rises_s, least, most, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("benchmarks.probe.time.perf_counter", lambda: clock[0])

    def batches():
        while True:
            clock[0] += 0.01 / 1.2 ** (2 * min(clock[0], rises_s))  # a fifth faster each half second
            yield [0]

    Probe().stream(batches, len, seconds=1e-3, slices=1, warmup_s=1.0)
    assert least < clock[0] < most


def test_bytes_read_are_those_of_the_whole_stream_the_first_batch_among_them(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(1 << 20))

    def batches():
        with path.open("rb") as file:
            file.read()
        yield from ([0] for _ in range(10**6))

    probe = Probe()
    probe.stream(batches, len, seconds=0.05, slices=2, warmup_s=0)
    assert probe.values["read_bytes"] >= 1 << 20
    assert probe.values["units"] >= 2


def test_a_stream_that_ends_is_started_again_and_every_slice_has_a_rate():
    probe = Probe()
    starts = []

    def batches():
        starts.append(1)
        return iter([[0, 0]] * 2)

    probe.stream(batches, len, seconds=0.02, slices=4, warmup_s=0)
    assert len(starts) > 1
    assert len(probe.lists["per_s"]) == 4
    assert len(probe.lists["first_batch_s"]) == 1


def test_an_empty_stream_is_an_error_and_not_an_endless_loop():
    first = iter([iter([[1]]), iter([])])
    with pytest.raises(RuntimeError, match="no batch"):
        Probe().stream(lambda: next(first), len, seconds=0.5, slices=1, warmup_s=0)


def test_a_job_counts_repeats_but_not_the_warm_up():
    probe, calls = Probe(), []
    assert probe.job(lambda: calls.append(1) or 7, units=3, repeats=2, warmup=1) == 7
    assert len(calls) == 3
    assert len(probe.lists["seconds"]) == 2
    assert probe.values["units"] == 6


def test_a_subject_runs_in_a_process_of_its_own_and_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKSTORE_BENCH_WORK", str(tmp_path))
    record = measure(Subject("s", f"{HERE}:counts_sleeps", {"n": 5}, packages=("numpy",)))
    assert "gap" not in record, record
    assert record["values"]["answer"] == 42
    assert record["versions"]["numpy"] == np.__version__
    assert min(record["lists"]["per_s"]) > 0


def test_peak_memory_covers_what_the_subject_held(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKSTORE_BENCH_WORK", str(tmp_path))
    record = measure(Subject("s", f"{HERE}:holds_memory", {"n_bytes": 64 << 20}))
    assert record["peak_bytes"] > 64 << 20


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (Subject("s", f"{HERE}:fails"), "ValueError: two words and a line"),
        (Subject("s", f"{HERE}:sleeps", timeout_s=0.5), "did not finish"),
        (Subject("s", f"{HERE}:fails", venv="nowhere"), "not installed"),
        (Subject("s", "tests.benchmarks.nowhere:f"), "ModuleNotFoundError"),
    ],
    ids=["raises", "hangs", "no environment", "no module"],
)
def test_a_subject_that_cannot_be_measured_is_a_stated_gap(subject, text, tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKSTORE_BENCH_WORK", str(tmp_path))
    assert text in measure(subject)["gap"]


def test_main_writes_versions_machine_and_summary(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKSTORE_BENCH_LOCK", str(tmp_path / "lock"))
    monkeypatch.setenv("CHUNKSTORE_BENCH_WORK", str(tmp_path))
    subjects = [Subject("one", f"{HERE}:counts_sleeps", {"n": 2}), Subject("two", f"{HERE}:fails")]
    out = tmp_path / "r.json"
    assert main("example", subjects, ["--repeats", "2", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["machine"]["cores"] >= 1
    assert result["subjects"][0]["summary"]["per_s"]["n"] == 2
    assert "ValueError" in result["subjects"][1]["gap"]


def test_what_is_kept_says_what_asked_for_it_on_which_machine_when_and_of_which_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    harness.keep(harness.about("audio", "codecs"), {"a": 1}, "audio-codecs")
    stored = json.loads((tmp_path / "audio-codecs.json").read_text())
    assert stored["command"] == "python -m benchmarks.audio codecs"
    assert stored["found"] == {"a": 1}
    assert {"question", "quick", "date", "commit", "machine", "found", "command"} == set(stored)


def test_a_quick_run_stores_nothing_unless_it_is_told_where(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    head = harness.about("store", quick=True)
    harness.keep(head, {})
    assert not (tmp_path / "results").exists()
    harness.keep(head, {}, out=tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["quick"] is True


def test_main_lists_only_what_was_asked_for(capsys):
    main("example", lambda quick: [Subject("one", "a:b"), Subject("two", "a:b")], ["--list", "--only", "tw"])
    assert "one" not in capsys.readouterr().out


def test_usage_counts_processor_time_and_the_tree_holds_this_process():
    before = usage()
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    spent = usage() - before
    assert spent.cpu_s >= 0.05
    assert harness.os.getpid() in tree(harness.os.getpid())


def test_disk_bytes_add_up_and_files_survive_eviction(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"123")
    (tmp_path / "y").write_bytes(b"45")
    assert disk_bytes(tmp_path) == 5
    evict(tmp_path)
    assert (tmp_path / "a" / "x").read_bytes() == b"123"

"""The page of the benchmarks, and the guard: what they say of given results."""

from __future__ import annotations

import json

import pytest

from benchmarks import check, page
from benchmarks.compare_windows import readers
from benchmarks.winners import ELSEWHERE, REASONS, reason, winners


def record(name, rate, *, table="t", peak=100 << 20, disk=10 << 20, first=0.1, **values):
    lists = {"per_s": rate, "per_cpu_s": rate, "first_batch_s": first}
    return {
        "name": name,
        "table": table,
        "setting": "",
        "summary": {key: {"median": v, "low": v * 0.9, "high": v * 1.1, "n": 4} for key, v in lists.items()},
        "values": {"disk_bytes": disk} | values,
        "peak_bytes": peak,
        "versions": {"python": "3", "zarr": "3.1"},
    }


def result(*records):
    about = {"processor": "p", "cores": 2, "memory_bytes": 1 << 30, "python": "3.11", "load_before": 0.1}
    return {
        "machine": about,
        "command": "c",
        "date": "d",
        "commit": "e",
        "repeats": 2,
        "subjects": list(records),
    }


def test_rows_stand_fastest_first_and_say_how_many_times_as_fast_ours_is():
    slow = record("slow", 10.0, read_bytes=5000, read_disk_bytes=100, units=10)
    lines = page._rates(result(slow, record("ours", 200.0)), "t", "windows").splitlines()
    assert "read B a window (disk)" in lines[0]
    assert lines[2].startswith("| **ours** | 200 |")
    assert (
        lines[3]
        == "| slow | 10.0 | -10\N{NO-BREAK SPACE}+10 | 20.0 | 20.0 | 0.10 | 500 (10.0) | 100 | 10.0 |"
    )


def test_a_peer_that_is_ahead_is_named_with_its_reason():
    text = winners(result(record("ours", 10.0), record("tsai", 20.0)), ["t"])
    assert "| tsai | 2.0 | 2.0 |" in text
    assert f"- *tsai*: {REASONS['tsai']}." in text


def test_a_reason_that_many_share_stands_once():
    peers = [record("polars to npy", 20.0), record("polars to zarr", 30.0)]
    text = winners(result(record("ours", 10.0), *peers), ["t"], batches=False)
    assert text.count(REASONS["polars"]) == 1
    assert "- *polars to zarr, polars to npy*:" in text


def test_a_peer_that_is_ahead_in_one_of_two_tables_has_a_dash_for_the_other():
    ours = [record("ours", 10.0, table=name) for name in ("t", "u")]
    peers = [record("tsai", 20.0), record("tsai", 5.0, table="u")]
    assert "| tsai | 2.0 / - |" in winners(result(*ours, *peers), ["t", "u"])


def test_a_win_without_a_reason_is_called_open():
    assert "the reason is open" in winners(result(record("ours", 1.0), record("new", 2.0)), ["t"])


def test_what_is_no_rate_has_one_line_for_all_peers():
    peers = [record("ours", 9.0), record("a", 1.0, first=0.01), record("b", 1.0, first=0.05)]
    text = winners(result(*peers), ["t"])
    assert "| a | 10 |" in text
    assert "| b | 2.0 |" in text
    assert f"- **first batch**, all of them: {ELSEWHERE['first batch']}." in text


def test_nobody_ahead_is_said():
    assert "No peer" in winners(result(record("ours", 2.0), record("new", 1.0)), ["t"])


@pytest.mark.parametrize(
    "reader", [r for r in readers() if not r.name.startswith("ours")], ids=lambda r: r.name
)
def test_every_peer_has_a_reason_should_it_win(reader):
    assert reason(reader.name) != "the reason is open"


def test_a_gap_is_stated_and_stands_in_no_table():
    broken = {"name": "torchcodec", "table": "t", "gap": "OSError: no library"}
    found = result(record("ours", 1.0), broken)
    assert "torchcodec" not in page._rates(found, "t", "crops")
    assert "- torchcodec: OSError: no library" in page.gaps(found)


def test_what_a_batch_costs_is_told_of_the_loop_and_of_the_workers_and_pages_and_calls_of_both():
    def row(name, workers, **values):
        summary = {key: {"median": v, "low": v, "high": v, "n": 1} for key, v in values.items()}
        return record(name, 0.0) | {"summary": summary, "params": {"workers": workers}}

    loop = {"per_s": 100.0, "loop_user_ms": 1.0, "loop_system_ms": 0.5, "loop_pages": 2.0, "loop_calls": 3.0}
    more = {"workers_user_ms": 4.0, "workers_system_ms": 5.0, "workers_pages": 510.0, "workers_calls": 4.2}
    none = dict.fromkeys(more, 0.0)
    lines = page._workers(result(row("a", 0, **loop, **none), row("a, 2", 2, **loop, **more))).splitlines()
    assert lines[2] == "| a | 100 | 1.0 | 0.50 | - | - | 2 | 3 |"
    assert lines[3] == "| a (2 workers) | 100 | 1.0 | 0.50 | 4.0 | 5.0 | 512 | 7 |"


def test_directives_become_tables_and_a_missing_result_is_said(tmp_path):
    given = {"compare_audio": result(record("ours", 1.0, table="crops"))}
    text = page.page(
        "# T\n\n@rates compare_audio; crops; crops\n\n@rates compare_windows; t; w\n", given, tmp_path
    )
    assert "| **ours** |" in text
    assert "Not measured yet: `python -m benchmarks.compare_windows`" in text


def test_growth_draws_a_plot_for_each_size(tmp_path):
    points = [record(f"obs {n}", 1000.0, table="obs", value=n) for n in (1 << 20, 1 << 22)]
    text = page.page("@growth compare_growth\n", {"compare_growth": result(*points)}, tmp_path)
    assert "_static/growth-obs.svg" in text
    assert (tmp_path / "growth-obs.svg").read_text().count("<circle") == 4


def test_the_template_asks_only_for_questions_that_exist():
    for line in page.TEMPLATE.read_text().splitlines():
        if line.startswith("@"):
            question = line.split()[1].rstrip(";")
            assert (page.ROOT / "benchmarks" / f"{question}.py").is_file()


@pytest.mark.parametrize(
    ("found", "stored", "holds"),
    [
        ({"per_s": 0.5, "peak_bytes": 1}, None, True),
        ({"per_s": 0.5, "peak_bytes": 1}, {"per_s": 0.6, "peak_bytes": 1}, True),
        ({"per_s": 0.15, "peak_bytes": 1}, {"per_s": 0.6, "peak_bytes": 1}, False),
        ({"per_s": 0.6, "peak_bytes": 1 << 30}, {"per_s": 0.6, "peak_bytes": 1 << 26}, False),
        ({"gap": "no"}, {"per_s": 0.6, "peak_bytes": 1}, False),
        ({"per_s": 0.2, "per_cpu_s": 0.6, "peak_bytes": 1}, {"per_cpu_s": 0.6, "peak_bytes": 1}, True),
        (
            {"per_s": 0.6, "per_cpu_s": 0.2, "peak_bytes": 1},
            {"per_s": 0.6, "per_cpu_s": 0.6, "peak_bytes": 1},
            False,
        ),
    ],
    ids=["nothing stored", "near", "slower", "fatter", "gap", "not stored yet", "more work"],
)
def test_the_guard_fails_on_a_slower_ratio_or_more_memory_only(found, stored, holds):
    assert check.verdict(found, stored)[0] is holds


def test_the_guard_ends_with_1_when_one_ratio_fell(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CHUNKSTORE_BENCH_LOCK", str(tmp_path / "lock"))  # else it waits for real measurements
    monkeypatch.setattr(check, "STORED", tmp_path / "check.json")
    monkeypatch.setattr(check, "ratio_of", lambda guard, repeats: {"per_s": 1.0, "peak_bytes": 1})
    assert check.main(["--update"]) == 0
    assert set(json.loads(check.STORED.read_text())["guards"]) == {g.name for g in check.guards()}
    asked = []

    def slow(guard, repeats):
        asked.append(repeats)
        return {"per_s": 0.3, "peak_bytes": 1}

    monkeypatch.setattr(check, "ratio_of", slow)
    assert check.main(["--only", "torch"]) == 1
    assert "FAIL windows, torch" in capsys.readouterr().out
    assert asked == [3, 6]


def test_what_a_noisy_moment_failed_is_measured_again_and_may_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKSTORE_BENCH_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(check, "STORED", tmp_path / "check.json")
    stored = {"windows, torch": {"per_s": 1.0, "peak_bytes": 1}}
    check.STORED.write_text(json.dumps({"guards": stored}))
    found = iter([0.2, 0.9])
    monkeypatch.setattr(check, "ratio_of", lambda guard, repeats: {"per_s": next(found), "peak_bytes": 1})
    assert check.main(["--only", "torch"]) == 0

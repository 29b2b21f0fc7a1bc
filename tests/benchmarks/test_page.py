"""The page of the benchmarks, and the guard: what they say of given results."""

from __future__ import annotations

import json

import pytest

from benchmarks import check, page
from benchmarks.compare_windows import readers


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


def test_rows_stand_fastest_first_and_carry_their_share_of_ours():
    text = page._rates(result(record("slow", 10.0), record("ours", 200.0)), "t", "windows")
    lines = text.splitlines()
    assert lines[2].startswith("| **ours** | 200 |")
    assert lines[3].startswith("| slow | 10 | +-10% | 0.05 | 0.05 |")


def test_a_peer_that_is_ahead_is_named_with_its_reason():
    text = page.winners(result(record("ours", 10.0), record("tsai", 20.0)), ["t"])
    assert "**rate: tsai**, 2x." in text
    assert page.REASONS["tsai"] in text


def test_a_win_without_a_reason_is_called_open():
    assert "the reason is open" in page.winners(result(record("ours", 1.0), record("new", 2.0)), ["t"])


def test_what_is_no_rate_has_one_line_for_all_peers():
    peers = [record("ours", 9.0), record("a", 1.0, first=0.01), record("b", 1.0, first=0.05)]
    text = page.winners(result(*peers), ["t"])
    assert f"- **first batch**: a 10x; b 2x. Why: {page.ELSEWHERE['first batch']}." in text


def test_nobody_ahead_is_said():
    assert "No peer" in page.winners(result(record("ours", 2.0), record("new", 1.0)), ["t"])


@pytest.mark.parametrize(
    "reader", [r for r in readers() if not r.name.startswith("ours")], ids=lambda r: r.name
)
def test_every_peer_has_a_reason_should_it_win(reader):
    assert page.reason(reader.name) != "the reason is open"


def test_a_gap_is_stated_and_stands_in_no_table():
    broken = {"name": "torchcodec", "table": "t", "gap": "OSError: no library"}
    found = result(record("ours", 1.0), broken)
    assert "torchcodec" not in page._rates(found, "t", "crops")
    assert "- torchcodec: OSError: no library" in page.gaps(found)


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
        ({"ratio": 0.5, "peak_bytes": 1}, None, True),
        ({"ratio": 0.5, "peak_bytes": 1}, {"ratio": 0.6, "peak_bytes": 1}, True),
        ({"ratio": 0.2, "peak_bytes": 1}, {"ratio": 0.6, "peak_bytes": 1}, False),
        ({"ratio": 0.6, "peak_bytes": 1 << 30}, {"ratio": 0.6, "peak_bytes": 1 << 26}, False),
        ({"gap": "no"}, {"ratio": 0.6, "peak_bytes": 1}, False),
    ],
    ids=["nothing stored", "near", "slower", "fatter", "gap"],
)
def test_the_guard_fails_on_a_slower_ratio_or_more_memory_only(found, stored, holds):
    assert check.verdict(found, stored)[0] is holds


def test_the_guard_ends_with_1_when_one_ratio_fell(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CHUNKSTORE_BENCH_LOCK", str(tmp_path / "lock"))  # else it waits for real measurements
    monkeypatch.setenv("CHUNKSTORE_BENCH_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(check, "STORED", tmp_path / "check.json")
    monkeypatch.setattr(check, "ratio_of", lambda guard, repeats: {"ratio": 1.0, "peak_bytes": 1})
    assert check.main(["--update"]) == 0
    assert set(json.loads(check.STORED.read_text())["guards"]) == {g.name for g in check.guards()}
    monkeypatch.setattr(check, "ratio_of", lambda guard, repeats: {"ratio": 0.4, "peak_bytes": 1})
    assert check.main(["--only", "torch"]) == 1
    assert "FAIL windows, torch" in capsys.readouterr().out

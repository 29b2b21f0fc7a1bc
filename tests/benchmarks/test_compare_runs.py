"""Two runs agree where their ratios do, whatever their times."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import compare_runs
from benchmarks.compare_runs import Ratio, agreements, ratios


def row(name, rate, table="512x4", noise=0.0, **values):
    of = {"median": rate, "low": rate * (1 - noise), "high": rate * (1 + noise), "n": 3}
    summary = dict.fromkeys(("per_s", "per_cpu_s"), of)
    return {"name": name, "table": table, "summary": summary, "values": values, "versions": {"numpy": "2.4"}}


def counted(name, missed=0):
    facts = {"exactly_once": not missed, "missed": missed, "repeated": 0, "crossing": 0}
    return {"name": name, "table": "once", "once": True, "summary": {}, "values": facts, "versions": {}}


def run(*records, **more):
    machine = {"processor": "p", "cores": 2, "memory_bytes": 1 << 30, "python": "3.11", "load_before": 0.1}
    about = {"machine": machine, "date": "d", "commit": "abc1234", "repeats": 3, "quick": False}
    return {"compare_windows": about | {"subjects": list(records)} | more}


def stored(folder, result):
    folder.mkdir()
    for name, content in result.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


def test_a_ratio_is_ours_over_the_row():
    (result,) = run(row("ours", 100.0), row("tsai", 20.0)).values()
    assert list(ratios(result)) == [("512x4", "tsai", Ratio(5.0, 5.0, 5.0))]


def test_a_ratio_is_of_one_turn_and_of_the_turns_the_median():
    ours, other = row("ours", 100.0), row("tsai", 20.0)
    ours["turns"], other["turns"] = {"per_s": [100.0, 50.0, 110.0]}, {"per_s": [20.0, 10.0, 11.0]}
    (result,) = run(ours, other).values()
    assert list(ratios(result)) == [("512x4", "tsai", Ratio(5.0, 5.0, 10.0))]


def test_a_point_of_growth_is_divided_into_the_first_one():
    points = [row(f"obs {n}", rate, "obs", axis="obs", value=n) for n, rate in ((1, 100.0), (4, 50.0))]
    (result,) = run(*points).values()
    assert list(ratios(result)) == [("obs", "obs 4", Ratio(2.0, 2.0, 2.0))]


@given(st.floats(0.01, 100), st.lists(st.floats(1, 1e6), min_size=2, max_size=5))
def test_a_machine_that_is_faster_throughout_changes_nothing(factor, rates):
    names = ["ours", *(f"peer {k}" for k in range(len(rates) - 1))]
    slow = run(*(row(name, rate) for name, rate in zip(names, rates, strict=True)))
    fast = run(*(row(name, rate * factor) for name, rate in zip(names, rates, strict=True)))
    found = agreements(slow, fast)
    assert len(found) == len(rates) - 1
    assert all(one.agrees for one in found)


@given(st.floats(0.2, 5))
def test_rows_agree_within_the_tolerance_both_ways(change):
    a, b = run(row("ours", 10.0), row("p", 10.0)), run(row("ours", 10.0), row("p", 10.0 / change))
    (there,), (back,) = agreements(a, b), agreements(b, a)
    assert there.agrees == back.agrees
    assert there.agrees == (1 / 1.2 <= 1 / there.change <= 1.2)
    assert there.change == pytest.approx(change)


@pytest.mark.parametrize(
    ("first", "second", "agrees"),
    [
        (
            [{"name": "p", "table": "512x4", "gap": "no"}],
            [{"name": "p", "table": "512x4", "gap": "nor"}],
            True,
        ),
        ([{"name": "p", "table": "512x4", "gap": "no"}], [row("p", 1.0)], False),
        ([row("p", 1.0)], [], False),
        ([counted("p")], [counted("p")], True),
        ([counted("p")], [counted("p", missed=3)], False),
        ([counted("p")], [], False),
    ],
    ids=["two gaps", "a gap in one", "a row in one", "the same facts", "other facts", "facts of one"],
)
def test_what_has_no_two_ratios_agrees_only_if_it_is_the_same(first, second, agrees):
    (found,) = agreements(run(row("ours", 1.0), *first), run(row("ours", 1.0), *second))
    assert found.agrees is agrees
    assert found.change is None


def test_a_row_that_differs_says_whether_the_repeats_overlap(tmp_path):
    quiet, loud = (run(row("ours", 10.0), row("p", 10.0, noise=noise)) for noise in (0.01, 0.4))
    slower = run(row("ours", 10.0), row("p", 7.0, noise=0.01))
    (apart,), (within,) = agreements(quiet, slower), agreements(loud, slower)
    assert not apart.agrees
    assert "overlap" not in apart.line()
    assert not within.agrees
    assert within.line().endswith("(repeats overlap)")


def test_the_command_tells_machines_versions_and_rows_and_ends_with_1_where_one_differs(tmp_path, capsys):
    a = stored(tmp_path / "a", run(row("ours", 10.0), row("near", 5.0), row("far", 5.0)))
    b = stored(tmp_path / "b", run(row("ours", 20.0), row("near", 9.0), row("far", 5.0)))
    assert compare_runs.main([a, b]) == 1
    told = capsys.readouterr().out
    assert "commit abc1234, p, 2 cores" in told
    assert "numpy 2.4" in told
    lines = {line.split()[3]: line.split()[0] for line in told.splitlines() if " 512x4 " in line}
    assert lines == {"near": "ok", "far": "DIFF"}
    assert "1 of 2 ratios within 20%; 1 of 2 rows differ" in told
    assert compare_runs.main([a, b, "--tolerance", "1.5"]) == 0
    assert compare_runs.main([a, a]) == 0


def test_a_question_of_one_run_only_is_said_and_does_not_fail(tmp_path, capsys):
    both = run(row("ours", 1.0), row("p", 1.0))
    a = stored(tmp_path / "a", both)
    b = stored(tmp_path / "b", both | {"compare_audio": both["compare_windows"]})
    assert compare_runs.main([a, b]) == 0
    assert "only in B, not compared: compare_audio" in capsys.readouterr().out


def test_other_versions_and_quick_runs_are_said(tmp_path, capsys):
    first, second = run(row("ours", 1.0)), run(row("ours", 1.0), quick=True)
    second["compare_windows"]["subjects"][0]["versions"] = {"numpy": "2.5"}
    compare_runs.main([stored(tmp_path / "a", first), stored(tmp_path / "b", second)])
    told = capsys.readouterr().out
    assert "other versions: numpy 2.4 in A, 2.5 in B" in told
    assert "a quick run has other sizes" in told


def test_a_folder_without_results_is_an_error_that_says_what_to_give(tmp_path, capsys):
    assert compare_runs.main([str(tmp_path), str(tmp_path)]) == 2
    assert "benchmarks/results" in capsys.readouterr().err

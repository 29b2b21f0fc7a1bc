"""``make bench`` asks each question without arguments, ``make bench-quick`` with ``--quick``."""

from __future__ import annotations

import re
import runpy
import sys

import pytest

from benchmarks.__main__ import ORDER, QUICK_PARTS, questions


def test_parts_of_a_quick_run_are_those_of_questions_that_there_are():
    assert set(QUICK_PARTS) <= set(questions())


def test_the_order_of_a_whole_run_names_every_question_once_and_no_other():
    assert list(ORDER) == questions()


@pytest.mark.parametrize("name", questions())
def test_a_question_can_be_asked_without_arguments_and_quickly(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert end.value.code == 0
    usage = re.search(r"usage:(.*?)\n\n", capsys.readouterr().out, re.DOTALL)[1]
    assert "--quick" in usage
    rest = usage
    while (shorter := re.sub(r"\[[^\[\]]*\]", "", rest)) != rest:
        rest = shorter
    assert len(rest.split()) <= 3, f"needs arguments: {rest}"  # "python -m benchmarks.name"

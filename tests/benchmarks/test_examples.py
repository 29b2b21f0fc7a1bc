"""The examples in the docstrings of the benchmarks hold."""

from __future__ import annotations

import doctest

import pytest

from benchmarks import check, compare_runs, compare_windows, harness, numbers, quotes, winners


@pytest.mark.parametrize(
    "module",
    [check, compare_runs, compare_windows, harness, numbers, quotes, winners],
    ids=lambda m: m.__name__,
)
def test_examples_hold(module):
    assert doctest.testmod(module).failed == 0

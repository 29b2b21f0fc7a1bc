"""What ``targets`` means."""

from __future__ import annotations

import pytest

from chunkstore.errors import ConfigError, UnknownNameError
from chunkstore.targets import Cut, plan_target

NAMES = {"fields": ("temp", "wind"), "labels": ("station",)}


@pytest.mark.parametrize(
    ("targets", "options", "cut"),
    [
        ("temp", {}, Cut(("temp",), 0, 24)),
        (["temp", "wind"], {"offset": 24}, Cut(("temp", "wind"), 24, 1)),
        ("temp", {"length": 6}, Cut(("temp",), 24, 6)),
        ("temp", {"offset": 12, "length": 3}, Cut(("temp",), 12, 3)),
    ],
    ids=["same window", "one step ahead", "what comes next", "inside"],
)
def test_fields_are_cut_over_offset_and_length(targets, options, cut):
    target = plan_target(targets, window=24, **NAMES, **options)
    assert target.cut == cut
    assert not target.labels


@pytest.mark.parametrize(("offset", "length", "horizon"), [(0, 24, 0), (24, 6, 6), (20, 4, 0), (20, 5, 1)])
def test_the_horizon_is_what_lies_behind_the_window(offset, length, horizon):
    assert Cut(("temp",), offset, length).horizon(24) == horizon


def test_a_label_of_the_sequence_is_a_target_too():
    assert plan_target("station", window=24, **NAMES).labels == ("station",)


def test_nothing_asked_for_is_nothing():
    assert plan_target(None, window=24, **NAMES).is_empty


@pytest.mark.parametrize(
    ("targets", "options", "error", "text"),
    [
        ("rain", {}, UnknownNameError, "'rain'; fields: temp, wind; labels: station"),
        (["temp", "station"], {}, ConfigError, "mix fields"),
        ("station", {"length": 3}, ConfigError, "label of the whole sequence"),
        (None, {"length": 3}, ConfigError, "need targets"),
        ("temp", {"offset": -1}, ConfigError, "offset -1"),
        ("temp", {"length": 0}, ConfigError, "0 obs"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(targets, options, error, text):
    with pytest.raises(error, match=text):
        plan_target(targets, window=24, **NAMES, **options)


@pytest.mark.parametrize(("offset", "length"), [(0, 2.5), (0.5, 2), (0, True)])
def test_offset_and_length_are_whole_numbers(offset, length):
    with pytest.raises(ConfigError, match="whole numbers of obs"):
        plan_target("temp", window=24, **NAMES, offset=offset, length=length)

"""Which of how many processes this is."""

from __future__ import annotations

import pytest

from chunkstore.distributed import Place, find_place
from chunkstore.errors import ConfigError


def test_what_is_given_wins_over_the_environment():
    assert find_place(1, 3, environ={"RANK": "0", "WORLD_SIZE": "2"}) == Place(1, 3, "given")


def test_the_environment_of_torchrun_is_understood(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert find_place() == Place(2, 4, "environment")


@pytest.mark.parametrize("environ", [{}, {"RANK": "1"}, {"WORLD_SIZE": "2"}])
def test_a_process_without_company_is_alone(environ):
    assert find_place(environ=environ) == Place()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rank": 1}, "belong together"),
        ({"world_size": 2}, "belong together"),
        ({"rank": 2, "world_size": 2}, "rank 2 of world_size 2"),
        ({"rank": -1, "world_size": 2}, "rank -1"),
        ({"environ": {"RANK": "x", "WORLD_SIZE": "2"}}, "RANK='x'"),
    ],
)
def test_what_cannot_be_is_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        find_place(**options)

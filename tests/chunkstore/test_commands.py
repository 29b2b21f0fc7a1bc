"""The verbs, as a person types them."""

import json

import numpy as np
import pytest
import typer

import chunkstore
from chunkstore import cli


@pytest.fixture
def place(tmp_path):
    with chunkstore.StoreWriter(tmp_path / "s.zarr", fields={"x": "float32"}, chunk=16, shard=64) as out:
        for i in range(8):
            out.write(f"s{i}", {"x": np.arange(100) + 1000 * i}, labels={"site": "ab"[i % 2]})
    return str(tmp_path / "s.zarr")


def verbs():
    cli._load_verbs(cli.app)
    root = typer.main.get_command(cli.app)

    def walk(path, command):
        children = getattr(command, "commands", None)
        if children is None:
            yield path, command
        for name, child in (children or {}).items():
            yield from walk(f"{path} {name}", child)

    return list(walk("chunkstore", root))


@pytest.mark.parametrize(
    ("path", "command"), verbs(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_verb_has_help_with_an_example(path, command):
    assert f"`{path} " in command.help or f"`{path}`" in command.help
    assert all(p.help for p in command.params if p.param_type_name == "option" and p.name != "help")


def test_a_whole_store_verifies(place, capsys):
    assert cli.run(["verify", place, "--deep", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["chunks"] == 50  # 800 obs in chunks of 16


def test_a_damaged_store_is_named_and_exits_1(place, capsys, tmp_path):
    shard = max((tmp_path / "s.zarr" / "x").rglob("0"), key=lambda f: f.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[10] ^= 255
    shard.write_bytes(data)
    assert cli.run(["verify", place, "--deep"]) == 1
    assert "x shard 0" in capsys.readouterr().out


def test_a_split_is_kept_audited_and_listed(place, capsys):
    words = [
        "split",
        place,
        "train/val",
        "--by",
        "label",
        "--on",
        "site",
        "--fractions",
        "0.75,0.25",
        "--json",
    ]
    assert cli.run(words) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["ok"]
    assert made["splits"]["train/val"]["n_obs"] == {"train": 600, "val": 200}
    assert cli.run(["split", place]) == 0
    assert "train/val (by label on site)" in capsys.readouterr().out
    assert cli.run(["info", place]) == 0
    assert "val 200 obs in 2 sequences" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--by", "colour"],
        ["--by", "label", "--on", "nope"],
        ["--fractions", "0.5,half"],
        ["--fractions", "0.9,0.9"],
    ],
)
def test_a_split_that_cannot_be_is_one_line_and_exit_2(place, capsys, words):
    assert cli.run(["split", place, "train/val", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_epoch_is_played_without_reading_it(place, capsys):
    words = ["simulate", place, "--window", "10", "--batch-size", "8", "--memory-limit", "1MiB"]
    assert cli.run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["windows"] == 8 * 91
    assert cli.run(words) == 0
    assert "perfect" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["--window", "0"], ["--window", "101"], ["--window", "10", "--lanes", "x"], []],
    ids=["short", "long", "lanes", "none"],
)
def test_an_epoch_that_cannot_be_played_is_one_line_and_exit_2(place, capsys, words):
    assert cli.run(["simulate", place, *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1

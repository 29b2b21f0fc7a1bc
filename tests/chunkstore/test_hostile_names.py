"""Names that files made up: kept as they are in a store, and harmless and short wherever they are shown."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import chunkstore
from chunkstore.errors import ChunkstoreError
from chunkstore.text import printable
from chunkstore.verify import verify_store

NAMES = [
    "a" * 100_000,
    "../../etc/passwd",
    "tab\tnew\nline\r",
    "\x1b[2J\x1b]0;owned\x07",
    "\u202eright to left",
    "nul\0byte",
    "<script>alert(1)</script>",
    "[bold]markup[/]",
    "",
    "..",
    "\x7f",
    "\x9b31m",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    with chunkstore.StoreWriter(folder / "a.zarr", {"x": "f4"}, chunk=4, shard=8) as out:
        for name in NAMES:
            out.write(name, {"x": np.arange(6)}, labels={"kind": name or None}, columns={"file": name})
    assert [p.name for p in folder.iterdir()] == ["a.zarr"]
    shard = folder / "a.zarr/x/c/0"
    damaged = bytearray(shard.read_bytes())
    damaged[10] ^= 255
    shard.write_bytes(damaged)
    return folder / "a.zarr"


def harmless(text, most=20_000):
    assert len(text) < most
    assert not [c for c in text if (c < " " and c not in "\n\t") or "\x7f" <= c < "\xa0" or c == "\u202e"]
    assert "<script>alert" not in text
    return True


def test_a_store_keeps_every_name_as_it_is(path):
    store = chunkstore.open_store(path)
    assert store.sequences.ids.tolist() == NAMES
    assert store.sequences.column("file").tolist() == NAMES
    assert sorted({*store.sequences.column("kind").tolist()}) == sorted(NAMES)
    assert [store.sequences.index_of(n) for n in NAMES] == list(range(len(NAMES)))


def test_errors_and_findings_that_quote_names_stay_short_and_harmless(path):
    store = chunkstore.open_store(path)
    calls = [
        lambda: store.read("x", 0, 6),
        lambda: store.sequence("\x1b" * 9),
        lambda: store.sequences.index_of("b" * 100_000),
        lambda: store.read("y\x9b", 0, 1),
        lambda: store.segments("\x1b[2J"),
    ]
    for call in calls:
        with pytest.raises(ChunkstoreError) as caught:
            call()
        text = str(caught.value)
        assert len(text) < 5000
        assert text.isprintable()
    report = verify_store(path, deep=True)
    assert report.findings
    assert all(harmless(f.message) for f in report.findings)
    assert harmless(store._repr_html_())


@pytest.mark.parametrize("words", [["info"], ["verify"], ["verify", "--deep"], ["simulate", "--window", "4"]])
def test_the_command_line_shows_them_harmless_and_short(path, words):
    done = subprocess.run(
        [sys.executable, "-m", "chunkstore.cli", words[0], str(path), *words[1:]],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1)
    assert harmless(done.stdout.replace("<script>", "")) and harmless(done.stderr)  # noqa: PT018


def test_a_path_with_control_characters_is_told_without_them(tmp_path, capsys):
    from chunkstore import cli

    assert cli.run(["info", str(tmp_path / "ev\x1b[31mil.zarr")]) == 2
    assert "ev\\x1b[31mil" in capsys.readouterr().err


def test_long_text_loses_its_middle_and_says_how_much():
    assert printable("é" * 30 + "\u2066", 200) == "é" * 30 + "\\u2066"
    shown = printable("a" * 50 + "b" * 10**6 + "c" * 50, 100)
    assert shown == "a" * 50 + "... (1,000,000 more) ..." + "c" * 50

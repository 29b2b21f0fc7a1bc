"""What README and docs quote of the benchmarks is what the stored results say."""

from __future__ import annotations

import re

import pytest

from benchmarks import page, quotes
from benchmarks.quotes import QUOTES, pages, quoted

MARK = re.compile(r"<!-- measured: ([\w-]+) -->")


def test_no_page_differs_from_the_stored_results():
    assert page.stale() == [], "python -m benchmarks.page writes them"


def test_a_page_that_differs_is_named_and_ends_the_check_with_1(tmp_path, monkeypatch, capsys):
    template = tmp_path / "docs" / "template.md"
    template.parent.mkdir()
    template.write_text("# Title\n")
    for name, value in (("ROOT", tmp_path), ("PAGE", tmp_path / "docs" / "b.md"), ("TEMPLATE", template)):
        monkeypatch.setattr(page, name, value)
    monkeypatch.setattr(page, "PLOTS", tmp_path / "plots")
    monkeypatch.setattr(page, "pages", list)
    monkeypatch.setattr(page, "stored", dict)
    assert page.main([]) == 0
    assert page.main(["--check"]) == 0
    page.PAGE.write_text("# Another\n")
    assert page.main(["--check"]) == 1
    assert "docs/b.md differs" in capsys.readouterr().out


def test_a_figure_is_filled_in_where_it_is_marked_and_again_without_change():
    found = {"store": {"scattered": {"chunkstore.read_ranges": 90, "zarrs pipeline": 10}}}
    text = quoted("it is <!-- measured: store-scattered -->?<!-- /measured --> times\n", found)
    assert text == "it is <!-- measured: store-scattered -->9.0<!-- /measured --> times\n"
    assert quoted(text, found) == text


def test_a_figure_that_was_not_measured_stays():
    text = "<!-- measured: store-scattered -->9<!-- /measured -->"
    assert quoted(text, {}) == text


def test_a_name_that_nobody_measures_is_an_error():
    with pytest.raises(KeyError):
        quoted("a <!-- measured: nothing -->1<!-- /measured -->", {})


def test_every_figure_is_quoted_somewhere_and_every_mark_is_closed():
    texts = [path.read_text() for path in [*pages(), page.TEMPLATE]]
    assert {name for text in texts for name in MARK.findall(text)} == set(QUOTES)
    for text in texts:
        assert len(MARK.findall(text)) == text.count("<!-- /measured -->")


def test_a_mark_within_a_sentence_does_not_begin_its_line():
    for path in pages():  # Markdown takes such a line for HTML
        for line in path.read_text().splitlines():
            if line.startswith("<!--") and MARK.search(line):
                assert line == MARK.match(line)[0], (path, line)


def test_a_codec_leads_those_that_pack_closer_only():
    speeds, sizes = {"ours": 4.0, "closer": 2.0, "larger": 1.0}, {"ours": 0.5, "closer": 0.4, "larger": 0.6}
    assert quotes._lead(speeds, sizes, "ours") == "2.0"

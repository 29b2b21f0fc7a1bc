"""Links of all Markdown pages lead somewhere, as far as that can be told without a network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_links  # noqa: E402 - lies beside the code


def test_every_link_leads_to_a_file_a_heading_or_a_well_formed_address(capsys):
    assert check_links.main() == 0, capsys.readouterr().err
    listed = capsys.readouterr().out
    assert "https://zarr.dev  (README.md" in listed


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("other.md", None),
        ("other.md#two-words", None),
        ("#here", None),
        ("https://zarr.dev/a?b=c", None),
        ("gone.md", "is no file"),
        ("other.md#three", "names no heading of that page"),
        ("#there", "names no heading of that page"),
        ("http://zarr.dev", "is not https"),
        ("https://zarr", "names no host"),
        ("ftp://zarr.dev", "has the scheme ftp"),
    ],
)
def test_what_is_wrong_with_a_link_is_said(tmp_path, target, why):
    page = tmp_path / "page.md"
    page.write_text("# Here\n")
    (tmp_path / "other.md").write_text("# Other\n\n## Two `words`\n")
    assert check_links.wrong(page, target) == why


def test_links_in_code_are_text():
    text = "[a](b.md) `[c](d.md)`\n\n```text\n[e](f.md)\n```\n"
    assert check_links.links(text) == ["b.md"]

"""The site builds without a warning, its links lead somewhere, and its reference is complete."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from browser import needs_chromium, visit  # noqa: E402 - lies one folder up


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    pytest.importorskip("sphinx", reason="the documentation needs pip install 'chunkstore[docs]'")
    out = tmp_path_factory.mktemp("site")
    child = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-q",
            "-j",
            "1",
            "-b",
            "html",
            "docs",
            str(out),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return out


class Links(HTMLParser):
    """Targets of links and images, and names that a link may point to."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.names = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            self.names.add(found["id"])
        for key in ("href", "src"):
            if found.get(key):
                self.targets.append(found[key])


@pytest.mark.slow
def test_every_link_inside_the_site_leads_somewhere(site):
    pages = {p: Links(p.read_text()) for p in site.rglob("*.html")}
    lost = []
    for page, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or target.startswith("//"):
                continue
            place = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            named = not parts.fragment or place not in pages or unquote(parts.fragment) in pages[place].names
            if not place.exists() or not named:
                lost.append(f"{page.relative_to(site)}: {target}")
    assert lost == []


def exported(package):
    return [name for name in package.__all__ if not name.startswith("__")]


@pytest.mark.slow
def test_the_reference_holds_every_name_that_the_packages_export(site):
    from sphinx.util.inventory import InventoryFile

    import chunkstore
    import ingest

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    for package in (chunkstore, ingest):
        homes = package._HOMES if hasattr(package, "_HOMES") else {}
        missing = [
            name
            for name in exported(package)
            if not any(k.rpartition(".")[2] == name and k.startswith(package.__name__ + ".") for k in known)
        ]
        assert missing == [], homes


@pytest.mark.slow
def test_every_verb_and_every_fault_code_has_its_entry(site):
    import typer

    from chunkstore import cli
    from ingest import faults

    cli._load_verbs(cli.app)
    text = (site / "reference" / "generated" / "command-line.html").read_text()
    for name in typer.main.get_command(cli.app).commands:
        assert f"chunkstore {name}" in text
    codes = (site / "reference" / "generated" / "fault-codes.html").read_text()
    for code in ("duplicate-id", "avro-truncated", "audio-damaged", *faults.codes()):
        assert code in codes


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390], ids=["wide", "narrow"])
def test_pages_fit_the_screen_and_complain_of_nothing(site, width):
    ask = {"overflow": "document.documentElement.scrollWidth - window.innerWidth"}
    for page in ("index.html", "explanation/schedule.html", "reference/generated/command-line.html"):
        seen = visit(site / page, width=width, ask=ask)
        assert seen.errors == [], page
        assert seen.values["overflow"] <= 0, page


LINKED = ("README.md", "CONTRIBUTING.md")


@pytest.mark.parametrize("name", LINKED)
def test_links_in_the_repository_lead_somewhere(name):
    import re

    text = (ROOT / name).read_text()
    lost = [
        target
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
        if not target.startswith("http") and not (ROOT / target).exists()
    ]
    assert lost == []

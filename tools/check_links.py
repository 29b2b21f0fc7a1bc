"""Check the links of every Markdown page without a network: files, headings, the form of outside addresses.

``python tools/check_links.py`` lists the outside addresses, each with the pages that name it, and exits
with 1 where a link leads nowhere. Whether outside addresses answer is for ``sphinx -b linkcheck``, which
needs a network.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
BARE = re.compile(r"<(https?://[^>\s]+)>")
GENERATED = ROOT / "docs" / "reference" / "generated"
HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}", re.IGNORECASE)


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that people read: those beside the code and those of the documentation."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    return sorted(p for p in found if "_build" not in p.parts)


def links(text: str) -> list[str]:
    """Return the targets of all links of a page, those in code left out.

    Examples
    --------
    >>> links("[a](b.md#c), `[d](e)`, <https://f.org>")
    ['b.md#c', 'https://f.org']
    """
    text = CODE.sub("", FENCE.sub("", text))
    return [*LINK.findall(text), *BARE.findall(text)]


def anchors(text: str) -> set[str]:
    r"""Return the names that headings of a page are known by.

    Examples
    --------
    >>> sorted(anchors("# A page\n\n## What `it` is, really\n\n(given)=\n"))
    ['a-page', 'given', 'what-it-is-really']
    """
    text = FENCE.sub("", text)
    heads = re.findall(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads)
    return {*plain, *re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)}


def wrong(page: Path, target: str) -> str | None:
    """Return what is wrong with a link, or None."""
    parts = urlsplit(target)
    if parts.scheme in ("http", "https"):
        if parts.scheme == "http":
            return "is not https"
        return None if HOST.fullmatch(parts.netloc) else "names no host"
    if parts.scheme:
        return None if parts.scheme == "mailto" else f"has the scheme {parts.scheme}"
    place = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not place.exists():
        # the build of the site makes these, and fails where one is named that it does not make
        return None if GENERATED in place.parents else "is no file"
    if parts.fragment and place.suffix == ".md" and unquote(parts.fragment) not in anchors(place.read_text()):
        return "names no heading of that page"
    return None


def main() -> int:
    """List outside addresses, then what is wrong; return the exit code."""
    outside: dict[str, set[str]] = defaultdict(set)
    lost = []
    for page in pages():
        name = str(page.relative_to(ROOT))
        for target in links(page.read_text(encoding="utf-8")):
            why = wrong(page, target)
            if why is not None:
                lost.append(f"{name}: {target} {why}")
            elif urlsplit(target).scheme:
                outside[target].add(name)
    for target in sorted(outside):
        print(f"{target}  ({', '.join(sorted(outside[target]))})")
    print(f"{len(outside)} outside addresses, well formed; whether they answer was not asked")
    for line in lost:
        print(line, file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())

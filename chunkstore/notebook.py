"""What a store and a dataset show in a notebook: HTML in the manner of xarray, from :mod:`chunkstore.info`.

No scripts, no network; colours come from the notebook's theme.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from chunkstore.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkstore.opened import OpenStore

__all__ = ["dataset_html", "store_html", "windows_html"]

_STYLE = """<style>
.cks{font-size:.9em;line-height:1.5;max-width:64em}
.cks header{border-bottom:1px solid rgba(128,128,128,.4);padding:.2em 0 .4em;overflow-wrap:anywhere}
.cks details{margin:.3em 0}.cks summary{cursor:pointer;font-weight:600}
.cks summary span{font-weight:400;opacity:.7}
.cks .box{overflow-x:auto;padding-left:1.2em}
.cks table{border-collapse:collapse;font-size:1em}
.cks th,.cks td{text-align:left;padding:.1em .8em .1em 0;background:none;white-space:nowrap}
.cks th,.cks td{vertical-align:top}
.cks th.num,.cks td.num{text-align:right;font-variant-numeric:tabular-nums}
.cks th{opacity:.7;font-weight:600}
</style>"""


def store_html(store: OpenStore) -> str:
    """Return the HTML that a notebook shows for a store.

    Parameters
    ----------
    store : ChunkStore
        An open store.

    Returns
    -------
    str
        One ``div`` with its own style; sections fold.

    Examples
    --------
    >>> from chunkstore.examples import small_store
    >>> "3 of 3 to 4 obs" in store_html(small_store())
    True
    """
    from chunkstore import info

    found = info.describe(store)
    head, rows = info.field_rows(found)
    parts = [
        _pairs("Store", info.headline(found), open_=True),
        _table("Fields", f"({len(rows)})", head, rows, open_=True),
        _pairs("Along sequence", info.column_rows(found), open_=len(found["fields"]) < 20),
        _pairs("Splits", info.split_rows(found)),
        _pairs("Provenance", info.provenance_rows(found)),
    ]
    return _page("chunkstore.ChunkStore", found["url"], parts)


def dataset_html(name: str, facts: Sequence[tuple[str, str]], stores: Sequence[OpenStore] = ()) -> str:
    """Return the HTML that a notebook shows for a dataset of windows.

    Parameters
    ----------
    name : str
        Name of the class.
    facts : sequence of (str, str)
        What it will give: windows, batches, lanes, memory and so on.
    stores : sequence of ChunkStore
        Where the windows come from.

    Examples
    --------
    >>> "1,000" in dataset_html("ZarrWindowDataset", [("windows", "1,000")])
    True
    """
    from chunkstore import info

    parts = [_pairs("Windows", list(facts), open_=True)]
    parts += [_pairs(f"Store {s.url}", info.headline(info.describe(s))) for s in stores]
    return _page(f"chunkstore.{name}", "", parts)


def windows_html(dataset: Any) -> str:
    """Return the HTML that a notebook shows for a ``ZarrWindowDataset``: windows, order, memory, stores.

    Parameters
    ----------
    dataset : ZarrWindowDataset
        With ``n_windows``, ``fields``, ``plan``, ``epoch`` and ``stores``.
    """
    from chunkstore.text import counted, human_bytes

    plan = dataset.plan
    facts = [
        ("windows", f"{dataset.n_windows:,} an epoch, {len(dataset):,} batches on this rank"),
        ("fields", ", ".join(dataset.fields)),
        ("next epoch", str(dataset.epoch)),
        (
            "order",
            "a full shuffle of all windows"
            if plan.full
            else f"{plan.lanes:,} lanes, {plan.passes:,} passes, {counted(plan.lane_groups, 'lane group')}",
        ),
        ("memory", f"{human_bytes(plan.arena_bytes)} of {human_bytes(plan.memory_limit)} allowed"),
        ("why", plan.reason),
    ]
    return dataset_html(type(dataset).__name__, facts, dataset.stores)


def _page(kind: str, title: str, parts: Sequence[str]) -> str:
    title = escape(printable(title, 400))
    head = f"<header><span style='opacity:.7'>&lt;{escape(kind)}&gt;</span> <b>{title}</b></header>"
    return f"{_STYLE}<div class='cks'>{head}{''.join(parts)}</div>"


def _section(title: str, detail: str, body: str, open_: bool) -> str:
    flag = " open" if open_ else ""
    return (
        f"<details{flag}><summary>{escape(title)} <span>{escape(detail)}</span></summary>"
        f"<div class='box'>{body}</div></details>"
    )


def _pairs(title: str, lines: Sequence[tuple[str, str]], *, open_: bool = False) -> str:
    if not lines:
        return ""
    rows = "".join(
        f"<tr><th>{escape(printable(name))}</th>"
        f"<td style='white-space:normal'>{escape(printable(text, 2000))}</td></tr>"
        for name, text in lines
    )
    return _section(title, f"({len(lines)})" if not open_ else "", f"<table>{rows}</table>", open_)


def _table(title: str, detail: str, head: list[str], rows: list[list[Any]], *, open_: bool = False) -> str:
    if not rows:
        return ""
    numeric = {"count", "missing", "min", "mean", "max", "std", "stored", "ratio"}
    top = "".join(f"<th{' class=num' if h in numeric else ''}>{escape(h)}</th>" for h in head)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=num' if h in numeric else ''}>{escape(printable(str(cell)))}</td>"
            for h, cell in zip(head, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return _section(title, detail, f"<table><tr>{top}</tr>{body}</table>", open_)

"""The figures of a report: arrays in, plotly's JSON out. Knows nothing of stores or pages.

Colours of text, grid and background are left to the page, which knows whether it is read in the
light or in the dark.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkstore.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Figure", "bars", "heatmap", "histogram", "lines", "plotly_script"]

#: Mid tones that can be told apart on white, on black, and by most colour-blind people.
COLOURS = ("#4c8dd6", "#d68a3c", "#5aa469", "#c25b78", "#8a78c9", "#8c8c5a", "#3ea7a7", "#b0723e")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, ready for the page."""

    title: str
    data: str
    """Plotly's JSON: data and layout."""
    note: str = ""
    """What it was made from, where that is not everything."""
    wide: bool = False
    """Whether it takes the whole width of the page."""


def _plotly() -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise MissingDependencyError(
            "a report needs plotly and jinja2: pip install 'chunkstore[report]'"
        ) from error
    return go


def plotly_script() -> str:
    """Return plotly's own JavaScript, to stand inside the page."""
    _plotly()
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _figure(
    traces: Sequence[Any],
    title: str,
    *,
    x: str = "",
    y: str = "",
    height: int = 260,
    note: str = "",
    wide: bool = False,
    layout: Mapping[str, Any] | None = None,
) -> Figure:
    go = _plotly()
    figure = go.Figure(list(traces))
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 56, "r": 12, "t": 8, "b": 42},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        colorway=list(COLOURS),
        font={"family": "system-ui, sans-serif", "size": 12},
        xaxis={"title": {"text": x}, "automargin": True, "zeroline": False},
        yaxis={"title": {"text": y}, "automargin": True, "zeroline": False},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        bargap=0.05,
    )
    if layout:
        figure.update_layout(**layout)
    if layout and layout.get("showlegend"):
        figure.update_layout(margin_t=34, height=height + 26)
    # "<" could end the page's script element, or begin another
    text = json.dumps(json.loads(figure.to_json()), separators=(",", ":")).replace("<", "\\u003c")
    return Figure(title, text, note, wide)


def histogram(
    counts: np.ndarray,
    edges: np.ndarray,
    title: str,
    *,
    x: str = "",
    log: bool = False,
    note: str = "",
) -> Figure:
    """Draw counts between edges.

    Parameters
    ----------
    counts : int64[n]
        How many values lie in each bin.
    edges : float64[n + 1] or datetime64[n + 1]
        Edges of the bins.
    title : str
        What it shows.
    x : str
        Name of the axis, with its unit.
    log : bool
        Whether the bins are to be even on a logarithmic axis.
    note : str
        What was sampled.
    """
    go = _plotly()
    middle: Any
    width: Any
    if edges.dtype.kind == "M":
        times = edges.astype("datetime64[ms]")
        steps = np.diff(times)
        middle = [str(t) for t in times[:-1] + steps // 2]
        width = np.maximum(steps.astype(np.int64), 1)  # plotly measures dates in milliseconds
        ranges = [f"{a} to {b}".replace("T", " ") for a, b in itertools.pairwise(_rounded(times))]
    else:
        middle = edges[:-1] / 2 + edges[1:] / 2
        width = np.diff(edges)
        ranges = [f"{a:.4g} to {b:.4g}" for a, b in itertools.pairwise(edges)]
    hover = "%{customdata}: %{y:,}<extra></extra>"
    trace = (
        go.Scatter(  # plotly's bars have no width of their own on such an axis
            x=edges,
            y=[*counts, counts[-1]],
            mode="lines",
            line={"shape": "hv", "width": 1},
            fill="tozeroy",
            customdata=[*ranges, ranges[-1]],
            hovertemplate=hover,
        )
        if log
        else go.Bar(
            x=middle, y=counts, width=width, customdata=ranges, hovertemplate=hover, marker_line_width=0
        )
    )
    layout: dict[str, Any] = {"bargap": 0}
    if edges.dtype.kind == "M":
        layout["xaxis"] = {"type": "date", "title": {"text": x}}
    elif log:
        layout["xaxis"] = {"type": "log", "title": {"text": x}}
    return _figure([trace], title, x=x, y="", height=220, note=note, layout=layout)


def _rounded(times: np.ndarray) -> np.ndarray:
    """Return times without digits that tell nothing: as fine as a tenth of the steps between them."""
    step = np.diff(times).astype(np.int64).min(initial=2**62)
    return times.astype(
        "datetime64[m]" if step >= 600_000 else "datetime64[s]" if step >= 10_000 else "datetime64[ms]"
    )


def _literal(text: str) -> str:
    """Return a text that plotly shows as it is: it takes some tags for formatting."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def bars(
    names: Sequence[str], series: Mapping[str, Sequence[float]], title: str, *, x: str = "", note: str = ""
) -> Figure:
    """Draw horizontal bars, one group a name, the first on top."""
    go = _plotly()
    shown = [_literal(str(n) if len(str(n)) <= 28 else str(n)[:27] + "…") for n in names]
    traces = [
        go.Bar(
            y=shown, x=list(values), name=name, orientation="h", hovertemplate="%{y}: %{x:,}<extra></extra>"
        )
        for name, values in series.items()
    ]
    height = 90 + 22 * len(shown) * max(1, len(series))
    few = max((v for values in series.values() for v in values), default=0) <= 5
    layout = {
        "xaxis": {"dtick": 1 if few else None},  # there is no half of a sequence
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        "showlegend": len(series) > 1,
        "bargap": 0.25,
    }
    return _figure(traces, title, x=x, height=max(180, height), note=note, layout=layout)


def lines(
    x: np.ndarray,
    series: Mapping[str, np.ndarray],
    title: str,
    *,
    x_name: str = "",
    y_name: str = "",
    envelope: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    note: str = "",
    wide: bool = False,
    height: int = 240,
) -> Figure:
    """Draw one line a series over ``x``, with the band from low to high where there is one."""
    go = _plotly()
    traces = []
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        if envelope and name in envelope:
            low, high = envelope[name]
            for edge, fill in ((high, None), (low, "tonexty")):
                traces.append(
                    go.Scatter(
                        x=x,
                        y=edge,
                        mode="lines",
                        line={"width": 0.5, "color": colour},
                        fill=fill,
                        showlegend=False,
                        hoverinfo="skip",
                    )
                )
        traces.append(
            go.Scatter(x=x, y=values, mode="lines", name=_literal(name), line={"width": 1.4, "color": colour})
        )
    layout = {"showlegend": len(series) > 1}
    return _figure(traces, title, x=x_name, y=y_name, note=note, wide=wide, height=height, layout=layout)


def heatmap(
    z: np.ndarray,
    title: str,
    *,
    x: np.ndarray,
    y: np.ndarray | Sequence[str],
    x_name: str = "",
    y_name: str = "",
    scale: str = "Viridis",
    bar: str | None = None,
    limits: tuple[float, float] | None = None,
    note: str = "",
    wide: bool = False,
    height: int = 240,
) -> Figure:
    """Draw a matrix [len(y), len(x)] as colours; ``bar`` names the scale, None hides it."""
    go = _plotly()
    trace = go.Heatmap(
        z=z,
        x=x,
        y=[_literal(v) if isinstance(v, str) else v for v in y],
        colorscale=scale,
        zmin=limits[0] if limits else None,
        zmax=limits[1] if limits else None,
        showscale=bar is not None,
        colorbar={"title": {"text": bar or ""}, "thickness": 12},
        hovertemplate="%{x}, %{y}: %{z}<extra></extra>",
    )
    return _figure([trace], title, x=x_name, y=y_name, note=note, wide=wide, height=height)

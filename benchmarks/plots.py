"""Growth, drawn as SVG: rate and peak memory against one size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarks.numbers import fact, middle, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.numbers import Record

__all__ = ["plot"]


def _line(points: Sequence[tuple[float, float]], box: tuple[float, float, float, float], unit: str) -> str:
    """One panel of a plot: x on a scale of powers, y from zero."""
    left, top, width, height = box
    logs = [math.log10(max(x, 0.5)) for x, _ in points]
    low, high = min(logs), max(logs)
    most = max(y for _, y in points) * 1.15 or 1.0
    at = [
        (left + width * ((lx - low) / (high - low or 1)), top + height * (1 - y / most))
        for lx, (_, y) in zip(logs, points, strict=True)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    parts = [
        f'<line x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top + height}" stroke="#888"/>',
        f'<polyline points="{path}" fill="none" stroke="#2a6fb0" stroke-width="2"/>',
        f'<text x="{left}" y="{top - 10}" fill="#666" font-weight="bold">{unit}</text>',
    ]
    for (x, y), (value, amount) in zip(at, points, strict=True):
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#2a6fb0"/>',
            f'<text x="{x:.1f}" y="{y - 7:.1f}" fill="#666" text-anchor="middle">{number(amount)}</text>',
            f'<text x="{x:.1f}" y="{top + height + 15}" fill="#666" text-anchor="middle">{value:,.0f}</text>',
        ]
    return "\n".join(parts)


def plot(axis: str, records: Sequence[Record]) -> str:
    """SVG of two panels: rate and peak memory against one size."""
    records = sorted(records, key=lambda record: fact(record, "value"))
    rate = [(fact(r, "value"), (middle(r, "per_s") or 0) / 1000) for r in records]
    held = [(fact(r, "value"), r.get("peak_bytes", 0) / 2**20) for r in records]
    head = 'viewBox="0 0 700 210" font-family="sans-serif" font-size="11" role="img"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {head} aria-label="rate and memory against {axis}">',
            _line(rate, (50, 40, 250, 120), "thousand windows/s"),
            _line(held, (400, 40, 250, 120), "peak MiB"),
            f'<text x="350" y="205" fill="#666" text-anchor="middle">{axis}</text>',
            "</svg>",
        ]
    )

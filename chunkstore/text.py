"""Numbers as people read them: bytes, counts, durations. Pure."""

from __future__ import annotations

import math
import re

__all__ = ["counted", "human_bytes", "human_number", "human_seconds", "printable"]

#: what moves a cursor, colours a terminal or turns the direction of text
_CONTROLS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def printable(text: str, most: int = 160) -> str:
    r"""Return text from a file as it may be shown: without control characters, its middle left out if long.

    Examples
    --------
    >>> printable("\x1b[2Jowl"), printable("a" * 1000, 20)
    ('\\x1b[2Jowl', 'aaaaaaaaaa... (980 more) ...aaaaaaaaaa')
    """
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}... ({len(text) - 2 * half:,} more) ...{text[len(text) - half :]}"
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def human_bytes(value: float) -> str:
    """Return a number of bytes with a binary prefix.

    Examples
    --------
    >>> human_bytes(0), human_bytes(1023), human_bytes(1536), human_bytes(5 * 2**30)
    ('0 B', '1023 B', '1.5 KiB', '5.0 GiB')
    """
    for prefix in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if not prefix else f"{value:.1f} {prefix}B"
        value /= 1024
    return f"{value:.1f} PiB"


def counted(value: int, name: str) -> str:
    """Return a count with its thousands set apart, and what is counted, in the plural where it is due.

    Examples
    --------
    >>> counted(26115, "chunk"), counted(1, "chunk")
    ('26,115 chunks', '1 chunk')
    """
    return f"{value:,} {name}" + ("" if value == 1 else "s")


def human_number(value: float | None) -> str:
    """Return a measurement with four significant digits, whole numbers whole; a dash where there is none.

    Examples
    --------
    >>> human_number(0.123456), human_number(1234567.5), human_number(32000.0), human_number(None)
    ('0.1235', '1.235e+06', '32,000', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    if abs(value) < 1e9 and value == int(value):
        return f"{int(value):,}"
    return f"{value:.4g}"


def human_seconds(value: float) -> str:
    """Return a duration in the unit that a person would use.

    Examples
    --------
    >>> human_seconds(0.0042), human_seconds(12.34), human_seconds(4000), human_seconds(200000)
    ('4.2 ms', '12.3 s', '1 h 6 min', '2 d 7 h')
    """
    if value < 1:
        return f"{value * 1000:.1f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes = int(value // 60)
    if minutes < 120:
        return (
            f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {value % 60:.0f} s"
        )
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"

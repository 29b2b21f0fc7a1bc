"""Figures that README and other pages quote: made from the results, between two comments.

``<!-- measured: NAME -->...<!-- /measured -->`` in a page stands for the text that `QUOTES` makes under that
name. An inline one must not begin a line: Markdown would take the comment for a block of HTML.
``python -m benchmarks.page`` writes it, with ``--check`` it says where it differs, and a test asks for that.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from benchmarks.harness import ROOT
from benchmarks.numbers import middle, number, rows_of, table, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    Results = Mapping[str, Mapping[str, Any]]

__all__ = ["QUOTES", "pages", "quoted"]

_MARKED = re.compile(r"<!-- measured: ([\w-]+) -->.*?<!-- /measured -->", re.DOTALL)


def pages() -> list[Path]:
    """All pages that may quote a figure."""
    made = ROOT / "docs" / "_build", ROOT / "docs" / "reference" / "generated"
    found = [path for path in (ROOT / "docs").rglob("*.md") if not any(m in path.parents for m in made)]
    return [ROOT / "README.md", *sorted(found)]


def quoted(text: str, results: Results) -> str:
    """The text of a page with all its figures as the results say.

    A result that is not there leaves what stands there; a name that nobody knows is a KeyError.
    """

    def fill(found: re.Match[str]) -> str:
        question, make = QUOTES[found[1]]
        if question not in results:
            return found[0]
        made = make(told(results[question]))
        made = f"\n\n{made}\n\n" if "\n" in made else made
        return f"<!-- measured: {found[1]} -->{made}<!-- /measured -->"

    return _MARKED.sub(fill, text)


def between(values: Iterable[float], digits: int = 2) -> str:
    """The least and the greatest, or the one that both are.

    >>> between([2.31, 1.04]), between([9.02, 8.96])
    ('1.0 to 2.3', '9.0')
    """
    values = list(values)
    low, high = number(min(values), digits), number(max(values), digits)
    return low if low == high else f"{low} to {high}"


# ---- codecs ---------------------------------------------------------------------------------------

_AUDIO = {
    "none": "`none`",
    "lz4": "`lz4`",
    "zstd:3": "`zstd:3`",
    "blosc-lz4:5": "**`blosc-lz4:5`**, bits shuffled",
    "blosc-zstd:1": "`blosc-zstd:1`",
    "blosc-zstd:3": "`blosc-zstd:3`",
    "pcodec:8": "`pcodec:8`",
    "FLAC (no Zarr codec)": "FLAC, for comparison",
}
_SOUNDS = ("esc10, 32 kHz int16", "soundscape, 48 kHz int16", "speech and digits, 16 kHz int16")
_STORED = ("none", "lz4", "zstd", "blosc-lz4", "blosc-zstd", "pcodec")
_RECORDINGS = {
    "gait, float32": "accelerometer (gait), float32",
    "weather, float32": "weather, float32",
    "esc10, int16": "clips (esc10), int16",
    "soundscape, int16": "soundscape, int16",
}


def audio_codecs(found: Mapping[str, Any]) -> str:
    """Share of float32 for three kinds of sound, then speeds of the first, in MB/s."""
    rows = [
        [
            shown,
            *(f"{found[sound][codec]['share_of_float32_npy']:.3f}" for sound in _SOUNDS),
            *(number(found[_SOUNDS[0]][codec][what]) for what in ("encode_MB_s", "decode_MB_s")),
        ]
        for codec, shown in _AUDIO.items()
    ]
    head = ["codec", "clips", "soundscape", "speech", "encode", "decode"]
    return table(head, rows, right=range(1, 6))


def _lead(speeds: Mapping[str, float], sizes: Mapping[str, float], ours: str) -> str:
    """How many times as fast ``ours`` decodes as each codec that packs closer."""
    return between(speeds[ours] / speeds[c] for c in speeds if sizes[c] < sizes[ours])


def audio_lead(found: Mapping[str, Any]) -> str:
    """The default beside the codecs of the table that are smaller, FLAC left out."""
    clips = {k: v for k, v in found[_SOUNDS[0]].items() if k in _AUDIO and not k.startswith("FLAC")}
    speeds = {k: v["decode_MB_s"] for k, v in clips.items()}
    return _lead(speeds, {k: v["share_of_float32_npy"] for k, v in clips.items()}, "blosc-lz4:5")


def audio_flac(found: Mapping[str, Any]) -> str:
    """How many times as fast as FLAC the default decodes clips."""
    clips = found[_SOUNDS[0]]
    return number(clips["blosc-lz4:5"]["decode_MB_s"] / clips["FLAC (no Zarr codec)"]["decode_MB_s"], 2)


def store_codecs(found: Mapping[str, Any]) -> str:
    """Ratio and GB/s of decoding, a pair of lines a recording."""
    rows = []
    for name, shown in _RECORDINGS.items():
        if name in found["codecs"]:
            codecs = found["codecs"][name]
            rows.append([shown, "ratio", *(f"{codecs[c]['ratio']:.2f}" for c in _STORED)])
            rows.append(["", "decode", *(number(codecs[c]["decode GB/s"], 2) for c in _STORED)])
    return table(["recording", "", *(f"`{c}`" for c in _STORED)], rows, right=range(2, 8))


def store_lead(found: Mapping[str, Any]) -> str:
    """The default beside all codecs of the table that pack closer, over all recordings."""
    leads = []
    for name in _RECORDINGS.keys() & found["codecs"].keys():
        codecs = {c: v for c, v in found["codecs"][name].items() if c in _STORED}
        ours = codecs["blosc-lz4"]
        closer = [v for v in codecs.values() if v["ratio"] > ours["ratio"]]
        leads += [ours["decode GB/s"] / v["decode GB/s"] for v in closer]
    return between(leads)


def store_engine(found: Mapping[str, Any]) -> str:
    """Our reader beside zarrs, bytes for a second of processor time."""
    return between(
        readers["chunkstore, engine=direct"]["GB/cpu-s"] / readers["chunkstore, engine=zarrs"]["GB/cpu-s"]
        for readers in found["read"].values()
    )


def store_scattered(found: Mapping[str, Any]) -> str:
    """The same for scattered small chunks, by the clock."""
    rates = found["scattered"]
    return number(rates["chunkstore.read_ranges"] / rates["zarrs pipeline"], 2)


# ---- rows and windows -----------------------------------------------------------------------------


def _decoded(name: str) -> Callable[[Mapping[str, Any]], str]:
    """Millions of records a second that a reader decodes, over the kinds of records that are not packed."""

    def make(found: Mapping[str, Any]) -> str:
        rates = [
            middle(r, "per_s")
            for r in found["subjects"]
            if r["name"] == name and r["table"].startswith("decode") and r["table"].endswith("null")
        ]
        return between(rate / 1e6 for rate in rates if rate)

    return make


def _rates(readers: Sequence[str], tables: Sequence[str]) -> Callable[[Mapping[str, Any]], str]:
    """Windows a second of some readers, over some tables."""

    def make(found: Mapping[str, Any]) -> str:
        rates = [
            middle(record, "per_s")
            for name in tables
            for record in rows_of(found, name)
            if record["name"] in readers and "gap" not in record
        ]
        return between((rate for rate in rates if rate), 3)

    return make


def two_workers(found: Mapping[str, Any]) -> str:
    """How many times as fast two workers are as one, over the jobs measured."""
    return between(
        job["wall_ratio"] for job in found.values() if isinstance(job, dict) and "wall_ratio" in job
    )


_SHAPES = ("512x4", "64x40", "4096x1")

#: name | question whose results it needs | what it is made by
QUOTES: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "audio-codecs": ("audio-codecs", audio_codecs),
    "audio-lead": ("audio-codecs", audio_lead),
    "audio-flac": ("audio-codecs", audio_flac),
    "store-codecs": ("store", store_codecs),
    "store-lead": ("store", store_lead),
    "store-engine": ("store", store_engine),
    "store-scattered": ("store", store_scattered),
    "avro-fastavro": ("avro", _decoded("fastavro")),
    "avro-ours": ("avro", _decoded("ours")),
    "windows-scattered": ("compare_windows", _rates(("zarr", "zarr + zarrs"), _SHAPES)),
    "ingest-workers": ("ingest-workers", two_workers),
    "windows-ours": ("compare_windows", _rates(("ours",), _SHAPES)),
}

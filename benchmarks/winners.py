"""Who is ahead of this project in what, and why: one table, and each reason once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.numbers import fact, middle, number, ours_over, own_row, peak, rows_of, shown, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.numbers import Record

__all__ = ["ELSEWHERE", "REASONS", "reason", "winners"]

#: why a peer can be faster than ours, by the start of its name
REASONS = {
    "all in memory": "everything is decoded in memory before the clock starts; the ceiling, possible only "
    "while the data fits there",
    "memory map, fancy index": "uncompressed, and every page of the file is cached after the first "
    "touch; once a file is larger than memory, every batch waits for hundreds of random pages",
    "memory map + DataLoader": "nothing to decode and no block to fill before the first batch",
    "tsai": "nothing to decode and no block to fill before the first batch",
    "WebDataset cut": "its buffer holds windows of a few neighbouring samples, so all copies hit the "
    "processor's cache, and a batch mixes very few places",
    "npy": "uncompressed float32 in the page cache: nothing to decode, for several times the bytes on disk",
    "LitData": "uncompressed chunks are memory-mapped in place, so there is nothing to decode",
    "HF datasets crops": "Arrow is memory-mapped: nothing to decode before the first batch",
    "zarr": "one window needs one small chunk; nothing else is read or held",
    "tensorstore": "only the small reads of one batch are in flight; nothing is read ahead",
    "annbatch": "a batch needs a few rows of chunks only, and nothing is read ahead",
    "streaming": "samples are stored uncompressed and read as they are asked for",
    "WebDataset crops": "the tar is read from its start, sample by sample; nothing else is held",
    "grain": "records are compressed whole, and only one is held at a time",
    "insitubatch": "it reads with a codec setting that packs closer than our default, chosen for speed",
    "xbatcher": "one window needs one small chunk; nothing else is read or held",
    "DataFusion": "a table engine in one process, which sorts all rows in memory: no workers to start, "
    "no plan, no ledger, no check of what was stored",
    "polars": "a table engine in one process, which sorts all rows in memory: no workers to start, "
    "no plan, no ledger, no check of what was stored",
    "fastavro loop": "a loop in one process holds lists of the columns asked for and nothing else",
    "soundfile + soxr loop": "no workers to start, no plan, no checks; with few recordings that decides",
    "librosa loop": "one process, one recording at a time",
    "soundfile seek": "it opens one file and decodes a few pages of it: nothing is kept between crops",
    "PyAV seek": "it opens one file and decodes a few pages of it: nothing is kept between crops",
    "torchcodec": "it opens one file and decodes a few pages of it: nothing is kept between crops",
    "HF datasets Audio": "compressed files stay compressed, and nothing is kept between crops",
    "HF datasets undecoded": "compressed files stay compressed, and nothing is kept between crops",
    "decode all": "compressed files stay compressed, and nothing is kept between crops",
    "librosa": "compressed files stay compressed, and nothing is kept between crops",
}

RATES = ("rate", "rate per CPU s")

#: why peers are ahead in what is no rate; the same for all of them
ELSEWHERE = {
    "first batch": "they fill no blocks before the first batch; ours reads as many blocks as a batch has "
    "windows, so that already the first batch is mixed well",
    "peak memory": "they keep little between batches, or the data and nothing else, and pages of mapped "
    "files are not counted; ours keeps decoded blocks up to its memory limit and makes batches ahead",
    "bytes on disk": "their codecs pack closer than our default, which is chosen for the speed of reading; "
    "`codec=` picks another",
}

#: the same where a store is filled and there are no batches
FILLING = {
    "peak memory": "one process, one recording at a time; ours starts worker processes, each with an "
    "interpreter and libraries of its own",
}

#: what no ``codec=`` of ours does
LOSSY = "; ogg is smaller still since it is lossy, which no codec of a store is"

#: a peer is ahead from here on
AHEAD = 1.05


def reason(name: str) -> str:
    """Why a peer may be faster."""
    found = [start for start in REASONS if name.startswith(start)]
    return REASONS[max(found, key=len)] if found else "the reason is open"


def _leads(ours: Record, record: Record, *, batches: bool) -> dict[str, float]:
    """{what: how many times better than ours}, of what both have."""
    pairs = {
        "rate": (1.0, ours_over(record, ours)),
        "rate per CPU s": (1.0, ours_over(record, ours, "per_cpu_s")),
        "first batch": (middle(ours, "first_batch_s"), middle(record, "first_batch_s")),
        "peak memory": (peak(ours), peak(record)),
        "bytes on disk": (fact(ours, "disk_bytes"), fact(record, "disk_bytes")),
    }
    if not batches:
        del pairs["first batch"]
    return {what: more / less for what, (more, less) in pairs.items() if more and less}


def _ahead(
    result: Mapping[str, Any], tables: Sequence[str], *, batches: bool
) -> dict[str, dict[str, dict[str, float]]]:
    """{peer: {what: {table: how many times ahead}}}, the rates' winners first."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in tables:
        records = [record for record in rows_of(result, name) if "gap" not in record]
        ours = own_row(records)
        for record in records:
            if not ours or record["name"].startswith("ours"):
                continue
            for what, lead in _leads(ours, record, batches=batches).items():
                if lead > AHEAD:
                    found.setdefault(shown(record), {}).setdefault(what, {})[name] = lead
    return dict(sorted(found.items(), key=lambda item: not any(what in item[1] for what in RATES)))


def _once(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """A line a reason, with all whom it holds for."""
    names: dict[str, list[str]] = {}
    for who, why in reasons:
        names.setdefault(why, []).append(who)
    return [f"- *{', '.join(who)}*: {why}." for why, who in names.items()]


def winners(result: Mapping[str, Any], tables: Sequence[str], *, batches: bool = True) -> str:
    """A table of all peers that are ahead of ours by more than a twentieth, and the reasons below it."""
    found = _ahead(result, tables, batches=batches)
    if not found:
        return "No peer is ahead in any number of these tables."
    columns = [w for w in (*RATES, *ELSEWHERE) if any(w in won for won in found.values())]
    rows = [
        [
            peer,
            *(
                " / ".join(number(won.get(what, {}).get(name), 2) for name in tables) if what in won else ""
                for what in columns
            ),
        ]
        for peer, won in found.items()
    ]
    kinds = f" in {' / '.join(name.replace(', ', ' ') for name in tables)}" if len(tables) > 1 else ""
    lines = [
        f"How many times better than *ours* each is{kinds}; what is not ahead by a twentieth is left out.",
        "",
        table(["peer", *columns], rows, right=range(1, len(columns) + 1)),
        "",
        "Why:",
        "",
        *_once((peer, reason(peer)) for peer, won in found.items() if any(what in won for what in RATES)),
    ]
    for what, why in (ELSEWHERE | ({} if batches else FILLING)).items():
        peers = [peer for peer, won in found.items() if what in won]
        more = LOSSY if what == "bytes on disk" and any("ogg" in peer for peer in peers) else ""
        lines += [f"- **{what}**, all of them: {why}{more}."] * bool(peers)
    return "\n".join(lines)

"""The regression guard: a few ratios of this project to a yardstick, against the ratios stored.

``python -m benchmarks.check`` measures each pair in turns and divides, rates of wall time and rates for a
second of processor time: work shows in both, waiting in the first only. The noise of a machine touches both
sides of a ratio. It fails where one fell below the stored one by more than `NUMBERS` allows, or where peak
memory doubled; what fails is measured once more, with more turns, before it is said. ``--update`` stores the
ratios of this machine in ``benchmarks/results/check.json``. The yardsticks need no peer's environment.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import RESULTS, Subject, Turn, about, measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: what is divided, what it is called, and to which share of the stored ratio it may fall. Shared machines
#: vary by a third, caches by more; where all cores are busy, our threads wait, a yardstick of one does not.
NUMBERS = {"per_s": ("rate", 1 / 3), "per_cpu_s": ("rate per CPU s", 1 / 2)}
#: peak memory may rise by this factor, and by what an interpreter holds
MEMORY, ROOM = 2, 64 << 20
STORED = RESULTS / "check.json"
WINDOWS = {"length": 512, "channels": 4, "sequences": 16, "resumes": "", "seconds": 2.0}
AVRO = {"rows": 50_000, "repeat": 8, "files": 4}


@dataclass(frozen=True, slots=True)
class Guard:
    """Two subjects whose rates are divided."""

    name: str
    ours: Subject
    yardstick: Subject
    numbers: tuple[str, ...] = tuple(NUMBERS)
    """Rates that are guarded."""


def _windows(name: str, reader: str) -> Subject:
    return Subject(name, "benchmarks.compare_windows:speed", WINDOWS | {"reader": reader})


def _avro(name: str, filler: str, **more: Any) -> Subject:
    return Subject(name, "benchmarks.compare_ingest:avro", AVRO | {"filler": filler} | more)


def guards() -> list[Guard]:
    """Every ratio that is guarded."""
    memory = _windows("all in memory", "arrays:memory")
    loop = _avro("fastavro loop", "tables:fastavro_npy")
    mixed = _avro("fastavro loop", "tables:fastavro_npy", interleaved=True)
    audio = {"recordings": 24}
    return [
        Guard("windows", _windows("ours", "ours:loader"), memory),
        Guard("windows, 8 passes", _windows("ours, 8 passes", "ours:eight_passes"), memory),
        Guard("windows, torch", _windows("ours, torch", "ours:dataloader"), memory),
        Guard(
            "audio crops",
            Subject("ours", "benchmarks.compare_audio:crops", audio | {"reader": "ours:crops"}),
            Subject("maps kept open", "benchmarks.compare_audio:crops", audio | {"reader": "audio:npy_kept"}),
        ),
        Guard("avro", _avro("ours", "ours:ingest_avro_here"), loop),
        Guard("avro, interleaved", _avro("ours", "ours:ingest_avro_here", interleaved=True), mixed),
        Guard(
            "audio ingest",
            Subject("ours", "benchmarks.compare_ingest:audio", audio | {"filler": "ours:ingest_audio"}),
            Subject("soxr loop", "benchmarks.compare_ingest:audio", audio | {"filler": "tables:soxr_loop"}),
            ("per_s",),  # processes of ours that end in between take their counters along
        ),
    ]


def ratio_of(guard: Guard, repeats: int) -> dict[str, Any]:
    """Each number's ratio (median of turns), ``peak_bytes`` of ours; or ``gap``."""
    ratios: dict[str, list[float]] = {number: [] for number in guard.numbers}
    peaks = []
    for _ in range(repeats):
        ours, yardstick = measure(guard.ours, 0.5), measure(guard.yardstick, 0.5)
        for record in (ours, yardstick):
            if "gap" in record:
                return {"gap": f"{record['name']}: {record['gap']}"}
        for number, found in ratios.items():
            rates = [statistics.median(record["lists"][number]) for record in (ours, yardstick)]
            found.append(rates[0] / rates[1])
        peaks.append(ours.get("peak_bytes", 0))
    middles = {number: float(f"{statistics.median(found):.4g}") for number, found in ratios.items()}
    return middles | {"peak_bytes": min(peaks)}


def verdict(found: Mapping[str, Any], stored: Mapping[str, Any] | None) -> tuple[bool, str]:
    """Whether a guard holds, and the sentence for it.

    >>> verdict({"per_cpu_s": 0.4, "peak_bytes": 10}, {"per_cpu_s": 0.5, "peak_bytes": 10})
    (True, 'rate per CPU s 0.4 (stored 0.5)')
    >>> verdict({"per_cpu_s": 0.2, "peak_bytes": 10}, {"per_cpu_s": 0.5, "peak_bytes": 10})
    (False, 'rate per CPU s 0.2 of the yardstick fell below 0.25, 50% of the stored 0.5')
    """
    if "gap" in found:
        return False, str(found["gap"])
    stored = stored or {}
    told = []
    for number, (name, share) in NUMBERS.items():
        if number not in found:
            continue
        least = stored.get(number, 0) * share
        if found[number] < least:
            return False, (
                f"{name} {found[number]:g} of the yardstick fell below {least:.3g}, "
                f"{share:.0%} of the stored {stored[number]:g}"
            )
        told.append(f"{name} {found[number]:g} (stored {stored.get(number, 'not yet')})")
    if "peak_bytes" in stored and found["peak_bytes"] > stored["peak_bytes"] * MEMORY + ROOM:
        return False, f"peak memory {found['peak_bytes']:,} bytes, stored {stored['peak_bytes']:,}"
    return True, ", ".join(told)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, compare or store; 1 if a guard fails."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.check", description="Guard against regressions."
    )
    parser.add_argument("--update", action="store_true", help="store the ratios of this machine")
    parser.add_argument("--only", action="append", default=[], help="part of a guard's name; repeatable")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args(argv)
    stored = json.loads(STORED.read_text())["guards"] if STORED.exists() else {}
    head, found, failed = about("check", "--update"), {}, 0
    turn = Turn()
    for guard in guards():
        if asked.only and not any(part in guard.name for part in asked.only):
            continue
        turn.take()
        wanted = None if asked.update else stored.get(guard.name)
        result = ratio_of(guard, asked.repeats)
        holds, sentence = verdict(result, wanted)
        if not holds and "gap" not in result:
            print(f"     {guard.name}: {sentence}; once more", flush=True)
            result = ratio_of(guard, 2 * asked.repeats)
            holds, sentence = verdict(result, wanted)
        turn.rest()
        found[guard.name] = result
        failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {guard.name}: {sentence}", flush=True)
    turn.rest(done=True)
    if asked.update and not failed:
        STORED.write_text(json.dumps(head | {"guards": stored | found}, indent=1) + "\n")
        print(f"wrote {STORED}")
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())

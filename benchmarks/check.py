"""The regression guard: a few ratios of this project to a yardstick, against the ratios stored.

``python -m benchmarks.check`` measures each pair in turns and divides: the noise of a machine touches both.
It fails where a ratio fell below the stored one by more than `TOLERANCE`, or where peak memory rose
by as much. ``--update`` stores the ratios of this machine in ``benchmarks/results/check.json``. The
yardsticks need no peer's environment.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import RESULTS, Subject, Turn, machine, measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: a ratio may fall to this share of the stored one: shared machines vary by a third, caches by more
TOLERANCE = 0.5
STORED = RESULTS / "check.json"
WINDOWS = {"length": 512, "channels": 4, "sequences": 16, "resumes": "", "seconds": 2.0}
AVRO = {"rows": 50_000, "repeat": 8, "files": 4}


@dataclass(frozen=True, slots=True)
class Guard:
    """Two subjects whose rates are divided, and which number of theirs that is."""

    name: str
    ours: Subject
    yardstick: Subject
    number: str = "per_cpu_s"


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
            "per_s",
        ),
    ]


def ratio_of(guard: Guard, repeats: int) -> dict[str, Any]:
    """``ratio`` (median of turns), ``peak_bytes`` of ours; or ``gap``."""
    ratios, peaks = [], []
    for _ in range(repeats):
        ours, yardstick = measure(guard.ours, 0.5), measure(guard.yardstick, 0.5)
        for record in (ours, yardstick):
            if "gap" in record:
                return {"gap": f"{record['name']}: {record['gap']}"}
        rates = [statistics.median(record["lists"][guard.number]) for record in (ours, yardstick)]
        ratios.append(rates[0] / rates[1])
        peaks.append(ours.get("peak_bytes", 0))
    return {"ratio": float(f"{statistics.median(ratios):.4g}"), "peak_bytes": min(peaks)}


def verdict(
    found: Mapping[str, Any], stored: Mapping[str, Any] | None, tolerance: float = TOLERANCE
) -> tuple[bool, str]:
    """Whether a guard holds, and the sentence for it.

    >>> verdict({"ratio": 0.4, "peak_bytes": 10}, {"ratio": 0.5, "peak_bytes": 10})
    (True, 'ratio 0.4, stored 0.5')
    >>> verdict({"ratio": 0.2, "peak_bytes": 10}, {"ratio": 0.5, "peak_bytes": 10})
    (False, 'ratio 0.2 fell below 0.25, half of the stored 0.5')
    """
    if "gap" in found:
        return False, str(found["gap"])
    if stored is None:
        return True, f"ratio {found['ratio']:g}, nothing stored to compare with"
    least, most = stored["ratio"] * tolerance, stored["peak_bytes"] / tolerance
    if found["ratio"] < least:
        share = "half" if tolerance == 0.5 else f"{tolerance:.0%}"
        return (
            False,
            f"ratio {found['ratio']:g} fell below {least:g}, {share} of the stored {stored['ratio']:g}",
        )
    if found["peak_bytes"] > most + (64 << 20):
        return False, f"peak memory {found['peak_bytes']:,} bytes, stored {stored['peak_bytes']:,}"
    return True, f"ratio {found['ratio']:g}, stored {stored['ratio']:g}"


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
    found, failed = {}, 0
    turn = Turn()
    for guard in guards():
        if asked.only and not any(part in guard.name for part in asked.only):
            continue
        turn.take()
        result = found[guard.name] = ratio_of(guard, asked.repeats)
        turn.rest()
        holds, sentence = verdict(result, None if asked.update else stored.get(guard.name))
        failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {guard.name}: {sentence}", flush=True)
    turn.rest(done=True)
    if asked.update and not failed:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        kept = stored | found
        STORED.write_text(json.dumps({"date": today, "machine": machine(), "guards": kept}, indent=1) + "\n")
        print(f"wrote {STORED}")
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())

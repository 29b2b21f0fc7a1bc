"""A plan in words: what ``--dry-run`` prints, and what a job says before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkstore.text import human_bytes
from ingest.memory import row_bytes
from ingest.place import task_borders

if TYPE_CHECKING:
    from ingest.plan import Plan

__all__ = ["tell_plan"]


def tell_plan(plan: Plan, workers: int = 1) -> str:
    """Return what will be read, stored and needed, one line each.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, ingest
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "a.npy", np.arange(5.0))
    >>> print(tell_plan(ingest.plan_ingest("npy", folder)))
    source     npy (numpy ...)
    inputs     1 files, 40 B in 1 parts
    fields     x float64
    sequences  1
    obs        5, 40 B decoded
    way        placed: rows go straight to their place
    layout     chunks of 32768 obs, shards of 524288 obs, 1 shards
    tasks      0 to stage, 1 to write
    memory     at most ... MiB a worker, 1 workers
    scratch    none
    plan       ...
    """
    width = row_bytes(plan.fields)
    files = len(plan.parts.files)
    layout = plan.layout
    obs = layout.n_obs if layout is not None else plan.claimed
    decoded = obs * width
    versions = ", ".join(f"{k} {v}" for k, v in sorted(plan.versions.items()))
    lines = [
        ("source", f"{plan.source} ({versions})" if versions else plan.source),
        (
            "inputs",
            f"{files:,} files, {human_bytes(plan.nbytes)} in {len(plan.parts):,} parts",
        ),
        (
            "fields",
            ", ".join(f"{f.name} {f.dtype}" + (f"[{f.items}]" if f.items else "") for f in plan.fields),
        ),
    ]
    if layout is not None:
        borders = task_borders(layout, plan.places.start if plan.places is not None else None)
        lines += [
            ("sequences", f"{len(plan.keys):,}"),
            ("obs", f"{obs:,}, {human_bytes(decoded)} decoded"),
            ("way", "placed: rows go straight to their place"),
            (
                "layout",
                f"chunks of {layout.chunk} obs, shards of {layout.shard} obs, {layout.n_shards:,} shards",
            ),
            ("tasks", f"0 to stage, {max(1, borders.size - 1):,} to write"),
        ]
    else:
        claimed = f"{obs:,} claimed, {human_bytes(decoded)} decoded" if obs else "known once they are decoded"
        lines += [
            ("sequences", f"{len(plan.keys):,}" if plan.keys else "known once they are decoded"),
            ("obs", claimed),
            ("way", "staged: rows are decoded into scratch and counted, then placed"),
            ("tasks", f"{plan.n_stage_tasks:,} to stage, one a shard to write"),
        ]
    lines += [
        ("memory", f"at most {-(-plan.memory // 2**20)} MiB a worker, {workers} workers"),
        ("scratch", "none" if plan.placed else (human_bytes(decoded) if obs else "the decoded size")),
        ("plan", plan.hash),
    ]
    if plan.order != "keep":
        lines.append(("order", f"{plan.order} by {plan.time_field}"))
    decoders = plan.attrs.get("decoders") or plan.attrs.get("decoder_paths")
    if decoders:
        lines.append(("decoders", str(decoders)))
    lines += [("fault", f"{f.code}: {f.file}: {f.message}") for f in plan.faults[:20]]
    if len(plan.faults) > 20:
        lines.append(("faults", f"and {len(plan.faults) - 20:,} more"))
    return "\n".join(f"{name:<10} {text}" for name, text in lines)

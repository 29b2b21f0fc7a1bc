"""What a process and its children use: memory, processor time, bytes read. Linux' /proc, else psutil.

Nothing here decides anything; ``harness.py`` asks. Runs inside the environments of the peers too,
so it needs the standard library only.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Usage", "disk_bytes", "evict", "memory", "tree", "usage"]

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters of a process tree at one moment; subtract two for what happened in between."""

    wall_s: float
    """Monotonic clock, in seconds."""
    cpu_s: float
    """User and system time of all living processes and of the children they have reaped, in seconds."""
    read_calls_bytes: int
    """Bytes that read calls returned, from the page cache or the disk; a memory map does not count."""
    read_disk_bytes: int
    """Bytes that had to come from the disk."""

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            self.wall_s - earlier.wall_s,
            self.cpu_s - earlier.cpu_s,
            self.read_calls_bytes - earlier.read_calls_bytes,
            self.read_disk_bytes - earlier.read_disk_bytes,
        )


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def tree(root: int) -> list[int]:
    """Process ids of ``root`` and everything below it."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return [root]
    children: dict[int, list[int]] = {}
    for pid in pids:
        stat = _stat(pid)
        if stat is not None:
            children.setdefault(int(stat[1]), []).append(pid)
    found, queue = [root], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def usage(root: int | None = None) -> Usage:
    """Counters of the tree below ``root`` (default: this process) now."""
    cpu, calls, disk = 0.0, 0, 0
    for pid in tree(root or os.getpid()):
        stat = _stat(pid)
        if stat is None:
            continue
        cpu += sum(int(stat[k]) for k in (11, 12, 13, 14)) / _TICK
        try:
            lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        except (OSError, ValueError):
            continue
        calls += int(lines["rchar"])
        disk += int(lines["read_bytes"])
    return Usage(time.monotonic(), cpu or time.process_time(), calls, disk)


def memory(root: int) -> tuple[int, int]:
    """Bytes that the tree holds now: (its own: private and shared memory, mapped from files).

    Shared pages are divided among those who share them. Pages of a memory-mapped file are counted
    apart, since the kernel drops them when somebody needs the room.
    """
    own, mapped = 0, 0
    for pid in tree(root):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                own += int(line.split()[1]) * 1024
            elif line.startswith("Pss_File:"):
                mapped += int(line.split()[1]) * 1024
    if not own:
        try:
            import psutil

            process = psutil.Process(root)
            own = sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])
        except Exception:
            own = 0
    return own, mapped


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [Path(folder) / name for folder, _, names in os.walk(path) for name in names]


def disk_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes of a file, or of all files below a folder."""
    return sum(file.stat().st_size for file in _files(Path(path)))


def evict(path: str | os.PathLike[str]) -> bool:
    """Ask the kernel to forget the cached pages of these files; whether it can be asked at all.

    Needs no rights and touches no other file. Pages that some process still maps stay.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    for file in _files(Path(path)):
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    return True

"""What the machine is, how it is shared, and what a process has used of it.

Owns: reading `/proc`, and the real-time class that keeps other jobs out of a measurement.  Must never know: what is measured.
"""

import contextlib
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """What a process has used so far, and holds now."""

    cpu_s: float
    resident_mb: float
    descriptors: int


def usage(pid: int) -> Usage:
    """Processor time of all its threads, resident memory, open descriptors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS_PER_S, resident / 1e6, descriptors)


def disk_mb(folder: Path) -> float:
    """The bytes of all files below, whoever writes them just now."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(place) / name).stat().st_size
    return total / 1e6


def busy_s() -> float:
    """Processor time of the whole machine, all but idle and waiting for the disk."""
    ticks = [int(tick) for tick in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / _TICKS_PER_S


def first_in_line() -> bool:
    """Put this process, and every process it starts from now on, before all ordinary ones; False where that is not allowed.

    On a kernel without preemption an ordinary process that wakes up while other jobs keep every core busy waits for the next tick: a
    write of 0.15 ms then reads as 4 ms.  Real-time processes do not wait for ordinary ones.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


def write_ms(folder: Path, count: int = 200) -> float:
    """The median of one append of 200 bytes with its `fdatasync`."""
    took = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            file.write(b"x" * 200)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(took), 3)


def description(folder: Path) -> dict:
    """What a reader of the figures must know of the machine."""
    model = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory_kb = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cores": os.cpu_count(),
        "processor": model[0] if model else platform.processor(),
        "memory_gb": round(memory_kb / 1e6, 1),
        "kernel": platform.release(),
        "filesystem": _filesystem(folder),
        "append_fdatasync_ms": write_ms(folder),
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _filesystem(folder: Path) -> str:
    """The type of the mount that the folder lies in."""
    mounts = [line.split() for line in _lines("/proc/mounts")]
    inside = [(len(mount[1]), mount[2]) for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return max(inside)[1]

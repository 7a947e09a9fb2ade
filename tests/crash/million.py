"""A store of many rows, and what it costs to begin with it, to read it anywhere, to check it and to keep it within its bounds.

    python -m tests.crash.million [ROWS] [SCHEDULES]

prints one JSON line a figure; a million rows over a thousand schedules if nothing else is said.  Owns: the store and the measuring.  Must
never know: what a figure should be.  Wall time and processor time are both given, since the first says little on a busy machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from scheduler_daemon.core.model import Now, Row, Settings
from scheduler_daemon.store.retention import Retention
from scheduler_daemon.store.store import Store
from scheduler_daemon.store.tools import verify
from tests.scribe import Scribe

ROWS, SCHEDULES = 1_000_000, 1_000
ROWS_OF_A_RUN = 3
BATCH_RUNS = 200
CHECKPOINT_ROWS = 50_000
PAGE = 100
DAYS_AGO = 5
YEARLY = "0 0 1 1 *"


class _Forgotten(defaultdict[str, list[Row]]):
    """The scribe's memory of rows, which a million of them would be too much for."""

    def setdefault(self, _key: str, _default: Any = None) -> list[Row]:
        return []


@contextmanager
def measured(name: str, said: dict[str, Any]) -> Iterator[None]:
    """Seconds of wall and processor time that something takes, this process and the children it waits for."""
    wall, cpu = time.monotonic(), _cpu_s()
    yield
    said[f"{name}_s"] = round(time.monotonic() - wall, 3)
    said[f"{name}_cpu_s"] = round(_cpu_s() - cpu, 3)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _cpu_of(pid: int) -> float:
    """What a living process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ids(schedules: int) -> list[str]:
    return [f"schedule-{number:05d}" for number in range(schedules)]


def now() -> Now:
    return Now(datetime.now(UTC), 1000.0)


async def fill(root: Path, rows: int, schedules: int, *, retention: Retention | None = None) -> dict[str, Any]:
    """Put so many more rows of runs into a store, evenly, with checkpoints as often as the daemon makes them."""
    store = Store(root, retention=retention or Retention(), mint=lambda: "million")
    opened = store.open(Settings(), now())
    scribe = Scribe(opened.state)
    scribe.rows = _Forgotten()
    scribe.at = max(datetime.now(UTC) - timedelta(days=DAYS_AGO), *(_ends(scribe)))
    await store.commit(scribe.epoch(opened.epoch))
    names = ids(schedules)
    missing = [name for name in names if name not in opened.state.schedules]
    if missing:
        await store.commit([event for name in missing for event in scribe.create(name, cron=YEARLY)])
    wanted = [name for _ in range(rows // schedules // ROWS_OF_A_RUN + 1) for name in names][: rows // ROWS_OF_A_RUN]
    since = 0
    slowest_s = 0.0
    for start in range(0, len(wanted), BATCH_RUNS):
        batch = [event for name in wanted[start : start + BATCH_RUNS] for event in scribe.ran(name)]
        await store.commit(batch)
        since += len(batch)
        if since >= CHECKPOINT_ROWS:
            begun = time.monotonic()
            await store.checkpoint(scribe.state)
            slowest_s, since = max(slowest_s, time.monotonic() - begun), 0
    await store.checkpoint(scribe.state)
    await store.checkpoint(scribe.state)
    store.close()
    return {"rows": len(wanted) * ROWS_OF_A_RUN, "slowest_checkpoint_s": round(slowest_s, 3)}


def _ends(scribe: Scribe) -> list[datetime]:
    return [each.updated_at for each in scribe.state.schedules.values()] or [datetime(2020, 1, 1, tzinfo=UTC)]


def sizes(root: Path) -> dict[str, int]:
    """Bytes on disk by folder."""
    found: dict[str, int] = {}
    for path in (root / "schedules").rglob("*"):
        if path.is_file():
            part = path.relative_to(root / "schedules").parts[0]
            found[part] = found.get(part, 0) + path.stat().st_size
    return found


def page_times(root: Path, schedules: int, looks: int) -> dict[str, Any]:
    """The slowest and the usual page: the first, one in the middle and the last of schedules here and there, after a restart."""
    chance = random.Random(3)
    store = Store(root, mint=lambda: "million")
    said: dict[str, Any] = {}
    with measured("open", said):
        store.open(Settings(), now())
    times: dict[str, list[float]] = {"first": [], "middle": [], "deep": []}
    try:
        for name in chance.choices(ids(schedules), k=looks):
            last_n = _last_n(store, name)
            for where, after in (("first", None), ("middle", last_n // 2), ("deep", last_n - PAGE)):
                begun = time.thread_time()
                page = store.page(name, after, PAGE)
                times[where].append(time.thread_time() - begun)
                assert len(page.rows) == PAGE
    finally:
        store.close()
    for where, each in times.items():
        said[f"{where}_page_ms_median"] = round(1e3 * sorted(each)[len(each) // 2], 2)
        said[f"{where}_page_ms_worst"] = round(1e3 * max(each), 2)
    return said


def _last_n(store: Store, schedule_id: str) -> int:
    assert store._opening is not None
    return store._opening.recovered.state.schedules[schedule_id].n


def start_times(root: Path) -> dict[str, Any]:
    """From the command line to READY, and an ordinary stop."""
    argv = ["serve", "--store-root", str(root), "--listen", "127.0.0.1:0", "--server", "http://127.0.0.1:9/rpc"]
    said: dict[str, Any] = {}
    with measured("start", said):
        process = subprocess.Popen(
            [sys.executable, "-m", "scheduler_daemon", *argv], stderr=subprocess.PIPE, text=True, bufsize=1
        )
        assert process.stderr is not None
        while '"ready"' not in process.stderr.readline():
            assert process.poll() is None
    said["start_cpu_s"] = _cpu_of(process.pid)  # it has not ended, so nobody has counted it yet
    process.terminate()
    process.communicate()
    assert process.returncode == 0
    return said


def verify_times(root: Path) -> dict[str, Any]:
    """As an operator runs it."""
    said: dict[str, Any] = {}
    with measured("verify", said):
        done = subprocess.run(
            [sys.executable, "-m", "scheduler_daemon", "verify", str(root)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout
    return said


def measure(root: Path, rows: int, schedules: int, say: Any = print) -> dict[str, Any]:
    """Build, measure, and go beyond what is kept; every figure is said as soon as it is there."""
    said: dict[str, Any] = {}

    def add(what: str, figures: dict[str, Any]) -> None:
        say(json.dumps({"case": what, **figures}), flush=True)
        said.update({f"{what}.{key}": value for key, value in figures.items()})

    building: dict[str, Any] = {}
    with measured("built", building):
        filled = asyncio.run(fill(root, rows, schedules))
    report = verify(root)
    add("build", {**filled, **building, "problems": len(report.problems), "rows_found": report.rows})
    add("disk", sizes(root))
    add("pages", page_times(root, schedules, 300))
    add("start", start_times(root))
    add("verify", verify_times(root))
    kept = Retention()
    with measured("more", more := {}):
        filled = asyncio.run(fill(root, rows // 2, schedules))
    report = verify(root)
    bound = int(kept.runs_max * (1 + kept.slack)) * schedules
    add("retention", {**filled, **more, "rows_kept": report.rows, "rows_bound": bound, **sizes(root)})
    add("pages-after-retention", page_times(root, schedules, 100))
    said["problems"] = len(report.problems)
    return said


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="scheduler-million-") as folder:
        numbers = [int(word) for word in sys.argv[1:]]
        measure(Path(folder) / "store", *(numbers or [ROWS]), *([SCHEDULES] if len(numbers) < 2 else []))

"""The real daemon under a steady little load while one of its system calls fails, and what must be true whatever failed.

Owns: the load, the list of faults by call, the judgement.  Must never know: how the store writes.

The load is a few one-shots that are far away and a few that run at once, small bounds so that segments begin and checkpoints come
within it, and an ordinary stop.  It is refused here and there, cut short, or not affected; in each case the next start without
faults must know everything that was acknowledged, and nothing may have run twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rpc_client.errors import AmbiguousOutcome, Rejected, RpcError, Unavailable
from tests.crash import launch
from tests.crash.daemons import END_S, create, daemon_on, ended, injected, schedule_ids, traced, verified
from tests.fakes.http import HttpFace
from tests.integration.process import Daemon, rows_of, until

SCHEDULES, RUNS = 10, 3
DUE_S = 3.0
QUIET_S = 12.0
"""How long the runs and a checkpoint after them are waited for; a fault may have taken either."""

IN_ORDER, NOT_TRUSTED, NOT_USABLE, KILLED = 0, 74, 78, -signal.SIGKILL

FAULTS: dict[str, tuple[str, ...]] = {
    "write": ("signal=KILL", "error=EIO", "error=ENOSPC", "error=EDQUOT", "error=EROFS"),
    "fdatasync": ("signal=KILL", "error=EIO", "error=ENOSPC"),
    "fsync": ("signal=KILL", "error=EIO", "error=EDQUOT"),
    "syncfs": ("signal=KILL", "error=EIO"),
    "rename": ("signal=KILL", "error=EIO", "error=ENOSPC", "error=EROFS"),
    "openat": ("error=EMFILE", "error=ENOSPC", "error=EROFS", "signal=KILL"),
    "unlink": ("signal=KILL", "error=EROFS"),
    "pwrite64": ("signal=KILL", "error=EIO", "error=ENOSPC"),
    "mkdir": ("signal=KILL", "error=ENOSPC", "error=EROFS"),
}
NUMBERS_MAX = {"write": 10, "fdatasync": 8, "fsync": 8, "syncfs": 2, "rename": 2, "openat": 8, "unlink": 2, "mkdir": 4}
NUMBERS_OTHERWISE = 6


@dataclass(frozen=True)
class Point:
    """The `number`-th such call of each thread fails like that."""

    call: str
    fault: str
    number: int

    def __str__(self) -> str:
        return f"{self.call} {self.number} {self.fault}"


def _ends_of(point: Point) -> set[int]:
    """How the process may end: whoever is killed is killed, and after an I/O error nothing on disk is trusted.

    Without room, or on a filesystem that takes no writes, it goes on once it is up; before that it does not come up.
    """
    match point.fault:
        case "signal=KILL":
            return {KILLED}
        case "error=EIO":
            return {NOT_TRUSTED}
        case _ if point.call in {"fdatasync", "fsync", "syncfs"}:
            return {NOT_TRUSTED}
        case _:
            return {IN_ORDER, NOT_TRUSTED, NOT_USABLE}


def every_point() -> list[Point]:
    """All of them, the early ones of every call first."""
    found = [
        Point(call, fault, number)
        for call, faults in FAULTS.items()
        for fault in faults
        for number in range(1, NUMBERS_MAX.get(call, NUMBERS_OTHERWISE) + 1)
    ]
    return sorted(found, key=lambda point: (point.number, point.call))


def some_points(count: int, seed: int) -> list[Point]:
    """As many, each with another call or fault as far as there are any."""
    chance = random.Random(seed)
    points = every_point()
    chance.shuffle(points)
    seen: Counter[str] = Counter()
    for point in points:
        seen[f"{point.call} {point.fault}"] += 1
    first = {f"{point.call} {point.fault}": point for point in points}
    return chance.sample(list(first.values()), min(count, len(first)))


def paths_of(store: Path) -> list[Path]:
    """Every path of the store that the load may touch: tracing looks at whole names only, so the numbers are guessed widely."""
    folder = store / "schedules"
    numbers = [f"{number:020d}.jsonl" for number in range(1, 100)]
    return [
        *(store, store / "scheduler.lock", folder, folder / "FORMAT.json", folder / "FORMAT.json.tmp"),
        *(folder / name for name in ("journal", "snapshot", "occurrences", "runs", "quarantine")),
        *(folder / "journal" / name for name in numbers),
        *(folder / "snapshot" / f"{name}{end}" for name in numbers for end in ("", ".tmp")),
        *(folder / "occurrences" / f"{number:02x}" for number in range(256)),
        *(folder / "runs" / f"{number:02x}.jsonl" for number in range(256)),
    ]


@dataclass
class Story:
    """What one run under a fault came to."""

    point: Point
    acknowledged: set[str]
    refused: set[str]
    doubtful: set[str]
    code: int = 0
    met: bool = False

    @property
    def sort(self) -> str:
        end = "came up and stopped in order" if self.code == 0 else f"ended with {self.code}"
        return f"{end}{', refused something' if self.refused else ''}" if self.met else "the fault was not met"


async def suffer(folder: Path, face: HttpFace, point: Point) -> Story:
    """Run the load under one fault, then start without it and judge.  Raises `AssertionError`."""
    store, trace = folder / "store", folder / "trace"
    daemon = daemon_on(folder, store, face.url)
    daemon.environment |= {"CRASH_CHECKPOINT_BYTES": "300", "CRASH_SEGMENT_BYTES": "1000"}
    daemon.prefix = (*traced(trace, point.call, f"{point.fault}:when={point.number}", paths_of(store)), *launch.PREFIX)
    story = Story(point, set(), set(), set())
    runs = {f"{folder.name}-run{number}" for number in range(RUNS)}
    try:
        story.code = await _live(daemon, story, runs)
    finally:
        if daemon.process is not None and daemon.process.returncode is None:
            await daemon.kill()
    story.met = bool(injected(trace)) or story.code == -signal.SIGKILL  # who is killed leaves no such line
    said = daemon.log_path.read_text()
    assert story.met or story.code == IN_ORDER, f"{point}: exit {story.code}: {said[-3000:]}"
    assert not story.met or story.code in _ends_of(point), f"{point}: exit {story.code}: {said[-3000:]}"
    assert '"bug"' not in said, f"{point}: {said[-3000:]}"
    assert "Traceback" not in said, f"{point}: {said[-3000:]}"
    assert story.code in {IN_ORDER, KILLED} or '"reason"' in said, f"{point}: no reason: {said[-2000:]}"
    daemon.prefix = ()
    await _judge(daemon, face, story, runs)
    return story


async def _live(daemon: Daemon, story: Story, runs: set[str]) -> int:
    """From the start to the end; how it ended."""
    try:
        await daemon.start()
    except AssertionError:
        assert daemon.process is not None
        assert daemon.process.returncode is not None, f"{story.point}: neither up nor gone"
    else:
        await _load(daemon, story, runs)
    try:
        return await ended(daemon)
    except TimeoutError:
        raise AssertionError(f"{story.point}: no end: {daemon.log_path.read_text()[-2000:]}") from None


async def _load(daemon: Daemon, story: Story, runs: set[str]) -> None:
    """Create, and once more what was refused for want of room; wait for the runs and for two checkpoints; stop."""
    async with daemon.app() as app:
        wanted = [*runs, *(f"{daemon.folder.name}-{number}" for number in range(SCHEDULES))]
        for name in [*wanted, *wanted]:
            if daemon.process is not None and daemon.process.returncode is not None:
                return
            if name in story.acknowledged | story.doubtful:
                continue
            try:
                await create(app, name, DUE_S if name in runs else 1e7, input={"id": {"from": "schedule.id"}})
                story.acknowledged.add(name)
            except (AmbiguousOutcome, Unavailable):
                story.doubtful.add(name)
            except Rejected as refused:
                assert refused.code in {"StorageFull", "Draining", "InvalidTrigger"}, f"{story.point}: {refused}"
                if refused.code != "InvalidTrigger":  # a busy machine took longer to ask than the instant lay ahead
                    story.refused.add(name)
                await asyncio.sleep(0.2 if refused.code == "StorageFull" else 0)
        with_end = asyncio.create_task(ended(daemon))
        quiet = asyncio.create_task(until(lambda: _quiet(app, daemon, story.acknowledged & runs), seconds=QUIET_S))
        await asyncio.wait({with_end, quiet}, return_when=asyncio.FIRST_COMPLETED)
        for task in (with_end, quiet):
            task.cancel()
        await asyncio.gather(with_end, quiet, return_exceptions=True)
    if daemon.process is not None and daemon.process.returncode is None:
        os.killpg(daemon.process.pid, signal.SIGTERM)  # the tracer takes none for itself


async def _quiet(app, daemon: Daemon, runs: set[str]) -> bool:
    try:
        ends = [await rows_of(app, each) for each in runs]
    except RpcError:
        return False
    actions = [line["action"] for line in daemon.log()]
    settled = max((number for number, action in enumerate(actions) if action == "run_settled"), default=0)
    return "checkpoint" in actions[settled:] and all(rows and rows[-1]["status"] == "completed" for rows in ends)


async def _judge(daemon: Daemon, face: HttpFace, story: Story, runs: set[str]) -> None:
    async with daemon, daemon.app() as app:
        there = await schedule_ids(app)
        assert story.acknowledged <= there, f"{story.point}: lost {story.acknowledged - there}"
        never = story.refused - story.acknowledged - story.doubtful
        assert not never & there, f"{story.point}: refused and there all the same: {never & there}"
        blocked = [each["schedule_id"] async for each in app.schedules() if each["state"] == "blocked"]
        assert not blocked, f"{story.point}: {blocked} are blocked, though nothing is damaged"
        for name in runs & there:
            await until(lambda name=name: _final(app, name), seconds=END_S)
        await create(app, f"{daemon.folder.name}-later")
        assert await daemon.stop() == 0
    verified(daemon.store)
    times = Counter(execution.input["id"] for execution in face.fake.execution_log)
    assert all(times[name] <= 1 for name in runs), f"{story.point}: run twice: {times}"


async def _final(app, name: str) -> bool:
    rows = await rows_of(app, name)
    return bool(rows) and rows[-1]["status"] in {"completed", "failed", "skipped-misfire", "preflight-rejected"}

"""Single-bit flips over a whole store, and what a flip may do to what is served.

Owns: a store worth damaging, the choice of a bit, the judgement.  Must never know: which file means what.

A flip may block the schedule it hit, be shown as a diagnostic row, be harmless, or stop the start with a reason.  It may never change
a value that is served.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass

from scheduler_daemon.core.model import Row, Settings
from scheduler_daemon.store.errors import StoreUnusable
from scheduler_daemon.store.history import DAMAGED
from scheduler_daemon.store.lock import Seen
from scheduler_daemon.store.retention import Retention
from scheduler_daemon.store.runindex import bucket_of
from scheduler_daemon.store.store import Opened, Store
from tests.crash.simfs import Image, SimFileSystem
from tests.crash.stage import ROOT, SimLock
from tests.scribe import NOW, Scribe, durable


@dataclass(frozen=True)
class Truth:
    """An image, what its lock file has seen, and all that a store opened from it says."""

    image: Image
    seen: Seen
    state: dict
    rows: dict[str, dict[int, Row]]


def build(schedules: int, rows: int) -> Truth:
    """A store with snapshots, histories, a run index, and a journal that goes on after them."""
    fs = SimFileSystem()
    store = _store(fs)
    opened = store.open(Settings(), NOW)
    scribe = Scribe(opened.state)
    asyncio.run(_fill(store, scribe, opened.epoch, schedules, rows))
    seen = Seen(opened.epoch, store.facts()["seq"])
    store.close()
    found = {key: {row.n: row for row in rows} for key, rows in scribe.rows.items()}
    return Truth(fs.image(), seen, durable(scribe.state), found)


async def _fill(store: Store, scribe: Scribe, epoch: int, schedules: int, rows: int) -> None:
    chance = random.Random(7)
    ids = [f"schedule-{number:03d}" for number in range(schedules)]
    await store.commit(scribe.epoch(epoch))
    for each in ids:
        await store.commit(scribe.create(each))
    checkpoints = {int(rows * part) for part in (0.45, 0.9)}
    written = 0
    while written < rows:
        batch = [event for each in chance.sample(ids, min(8, schedules)) for event in _something(scribe, each, chance)]
        await store.commit([*batch, *scribe.decided()])
        written = sum(map(len, scribe.rows.values()))
        if checkpoints and written >= min(checkpoints):
            checkpoints.discard(min(checkpoints))
            await store.checkpoint(scribe.state)


def _something(scribe: Scribe, schedule_id: str, chance: random.Random):
    if scribe.state.schedules[schedule_id].runs:
        return scribe.settle(schedule_id)
    return chance.choice([scribe.ran, scribe.ran, scribe.skip, scribe.admit])(schedule_id)


def _store(fs: SimFileSystem, seen: Seen | None = None) -> Store:
    keep = Retention(runs_max=10_000, others_max=10_000)
    return Store(ROOT, fs=fs, lock=SimLock(seen), segment_bytes_max=1 << 20, retention=keep, mint=lambda: "store")


class WrongValue(AssertionError):
    """Something was served that was never written."""


class Missing(WrongValue):
    """Something that was written is not served, and no page says so.  `untold`: rows of no run, at the end of a history."""

    def __init__(self, message: str, *, untold: bool = False) -> None:
        super().__init__(message)
        self.untold = untold


def flip(image: Image, chance: random.Random) -> tuple[Image, str]:
    """One bit of one file is another; which."""
    files = [(path, content) for path, content in image.items() if content]
    path, content = chance.choices(files, [len(content) for _, content in files])[0]
    bit = chance.randrange(len(content) * 8)
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return {**image, path: bytes(damaged)}, f"{path} byte {bit // 8} bit {bit % 8}"


def judge(truth: Truth, image: Image, where: str) -> str:
    """What a damaged image does: `refused`, `all`, the number of blocked schedules, or `harmless`.  Raises `WrongValue`."""
    store = _store(SimFileSystem(image), truth.seen)
    try:
        opened = store.open(Settings(), NOW)
    except StoreUnusable as unusable:
        return "refused" if unusable.reason else "refused without a reason"
    try:
        blocked = {damage.schedule_id for damage in opened.damages}
        _judge_state(truth, opened, blocked, where)
        looked_at = _some_schedules(truth, where, blocked)
        seen = sum(
            _judge_rows(truth, store, each, where, blocked=each in blocked or None in blocked) for each in looked_at
        )
        if "/runs/" in where:
            _judge_runs(truth, store, where)
        if None in blocked:
            return "all"
        return f"{len(blocked)} blocked" if blocked else ("diagnostic row" if seen else "harmless")
    finally:
        store.close()


def _judge_state(truth: Truth, opened: Opened, blocked: set[str | None], where: str) -> None:
    state = durable(opened.state)
    if None in blocked:
        return
    for schedule_id, expected in truth.state["schedules"].items():
        if schedule_id not in blocked and state["schedules"].get(schedule_id) != expected:
            raise WrongValue(f"{where}: {schedule_id} is another, and it is not blocked")
    if set(state["schedules"]) - set(truth.state["schedules"]):
        raise WrongValue(f"{where}: schedules that were never made")
    for name in ("epoch", "decided_until", "unknown"):
        if state[name] != truth.state[name]:
            raise WrongValue(f"{where}: {name} is another")
    if state["run_number"] < truth.state["run_number"]:
        raise WrongValue(f"{where}: run numbers would be used again")


def _some_schedules(truth: Truth, where: str, blocked: set[str | None]) -> list[str]:
    """Whose rows to compare: those whose file was hit, those that are blocked, and some others; sometimes everybody's."""
    chance = random.Random(where)
    everybody = list(truth.rows)
    if chance.random() < 0.05:
        return everybody
    hit = [each for each in everybody if f"/{each}.jsonl" in where or each in blocked]
    return [*dict.fromkeys([*hit, *chance.sample(everybody, min(8, len(everybody)))])]


def _judge_rows(truth: Truth, store: Store, schedule_id: str, where: str, *, blocked: bool) -> int:
    expected = truth.rows[schedule_id]
    found = store.page(schedule_id, None, 1_000_000).rows
    if [row.n for row in found] != sorted({row.n for row in found}):
        raise WrongValue(f"{where}: rows of {schedule_id} out of order")
    stand_ins = [row for row in found if row.status == DAMAGED]
    for row in found:
        if row.status != DAMAGED and expected.get(row.n) != row:
            raise WrongValue(f"{where}: row {row.n} of {schedule_id} is another")
    if len(found) - len(stand_ins) < len(expected) and not stand_ins and not blocked:
        served = {row.n for row in found}
        lost = [row for n, row in expected.items() if n not in served]
        untold = all(row.run_id is None and row.n > max(served, default=0) for row in lost)
        raise Missing(f"{where}: rows of {schedule_id} are missing without a word", untold=untold)
    return len(stand_ins)


def _judge_runs(truth: Truth, store: Store, where: str) -> None:
    for schedule_id, rows in truth.rows.items():
        for row in rows.values():
            for run_id in (row.run_id, row.server_run_id):
                if run_id is None or f"{bucket_of(run_id):02x}.jsonl" not in where:
                    continue
                found = store.find_run(run_id)
                if found is not None and found.schedule_id != schedule_id:
                    raise WrongValue(f"{where}: run {run_id} is found at {found.schedule_id}")
                if found is None or row not in found.rows:
                    raise Missing(f"{where}: run {run_id} is not found where it is")


def tally(truth: Truth, flips: int, seed: int) -> Counter[str]:
    """Damage one bit, many times over."""
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(flips):
        image, where = flip(truth.image, chance)
        found[judge(truth, image, where)] += 1
    return found

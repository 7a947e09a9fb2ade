"""Stores that are full before the daemon starts, written by the daemon's own store.

Owns: consistent events in large numbers, and the run from a new store to a closed one.  Must never know: what is measured on them.
"""

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from zoneinfo import available_timezones

from scheduler_daemon.core import events as ev
from scheduler_daemon.core.fold import fold
from scheduler_daemon.core.model import Cron, Definition, Now, Settings, Trigger
from scheduler_daemon.core.state import State
from scheduler_daemon.store.retention import Retention
from scheduler_daemon.store.store import Store

EXPRESSIONS, ZONES = 300, 40
_CHUNK = 5_000
_WIDE = Retention(runs_max=1_000_000, others_max=1_000_000, bytes_max=1 << 40)
"""Bounds that cut nothing off while a store is written."""


async def written(root: Path, at: datetime, events: Iterable[ev.Event]) -> None:
    """A store that was written at `at` and then closed, its last checkpoint done."""
    root.mkdir(parents=True, exist_ok=True)
    store = Store(root, retention=_WIDE)
    opened = store.open(Settings(), Now(at, 0.0))
    left = iter([ev.EpochStarted(at=at, epoch=opened.epoch)])
    try:
        while chunk := list(islice(left, _CHUNK)):
            await _commit(store, opened.state, chunk, at)
            if isinstance(chunk[0], ev.EpochStarted):
                left = iter(events)
        await _commit(store, opened.state, [ev.Decided(at=at, until=at)], at)
        await store.checkpoint(opened.state)
    finally:
        store.close()


async def _commit(store: Store, state: State, events: list[ev.Event], at: datetime) -> None:
    draft = state.draft(Now(at, 0.0))
    for event in events:
        fold(draft, event)
    await store.commit(events)
    draft.merge()
    if store.wants_checkpoint():
        await store.checkpoint(state)


# --- schedules --------------------------------------------------------------------------------------------------------


def created(schedule_id: str, at: datetime, trigger: Trigger, **fields: str) -> ev.ScheduleCreated:
    told = {"k": {"value": schedule_id}, "due": {"from": "occurrence.instant"}}
    definition = Definition(schedule_id=schedule_id, deployment_id="bench", trigger=trigger, input=told, **fields)
    return ev.ScheduleCreated(at=at, schedule_id=schedule_id, n=1, definition=definition)


def asleep(count: int, at: datetime, prefix: str = "z") -> Iterator[ev.Event]:
    """So many schedules, of 300 expressions in 40 zones, none of which is due within the next days."""
    zones = sorted(available_timezones())[:: len(available_timezones()) // ZONES][:ZONES]
    # Four days off at least, in either direction and in every month, so that no zone makes it today.
    days = [day for day in range(1, 28) if 4 <= (day - at.day) % 28 <= 24]
    for number in range(count):
        expression = number % EXPRESSIONS
        minute, hour, day = expression % 60, expression // 60 + 3, days[expression % len(days)]
        trigger = Cron(f"{minute} {hour} {day} * *", zones[number // EXPRESSIONS % len(zones)])
        yield created(f"{prefix}{number:06d}", at, trigger)


def minutely(count: int, at: datetime, *, paused_from: int | None = None) -> Iterator[ev.Event]:
    """So many minutely schedules, those from a number on paused."""
    for number in range(count):
        yield created(f"m{number:06d}", at, Cron("* * * * *"))
    for number in range(count if paused_from is None else paused_from, count):
        yield ev.SchedulePaused(at=at, schedule_id=f"m{number:06d}", n=2, revision=2)


def history(schedule_id: str, rows: int, end: datetime) -> Iterator[ev.Event]:
    """One schedule with so many rows of instants that did not run, a second apart, the last one at `end`."""
    began = end - timedelta(seconds=rows)
    yield created(schedule_id, began, Cron("0 0 1 1 *"))
    for number in range(1, rows + 1):
        instant = began + timedelta(seconds=number)
        yield ev.OccurrenceClosed(
            at=instant,
            schedule_id=schedule_id,
            n=number + 1,
            instant=instant,
            status="skipped-misfire",
            reason="late",
            revision=1,
        )


def ago(seconds: float) -> datetime:
    return datetime.fromtimestamp(time.time() - seconds, UTC).replace(microsecond=0)

"""A store on a simulated filesystem, played through a script; and what must hold of every image that a crash may leave.

Owns: the script's verbs, the record of what was begun and acknowledged, the check of one image.  Must never know: how the store works.

The record keeps, for each number of batches, what the state and the rows were after them.  A legal image must open as one of those
between the batches that were acknowledged and those that were begun: nothing acknowledged is missing, nothing is there by half.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from scheduler_daemon.core.events import Event
from scheduler_daemon.core.model import Row, Settings
from scheduler_daemon.store.errors import StorageFull
from scheduler_daemon.store.lock import Seen
from scheduler_daemon.store.retention import Retention
from scheduler_daemon.store.store import Opened, Store
from tests.crash.simfs import Image, SimFileSystem
from tests.scribe import NOW, Scribe, durable

ROOT = Path("/store")
SEGMENT_BYTES = 3000
TRIES_MAX = 50
KEPT = Retention(runs_max=6, others_max=4, slack=0.0)


class SimLock:
    """Ownership without a second process; what it remembers is what a lock file holds for certain after a crash."""

    def __init__(self, seen: Seen | None = None) -> None:
        self.seen = seen or Seen()
        self.held = False

    def acquire(self, started_at: datetime) -> Seen:
        self.held = True
        return self.seen

    def check(self) -> None:
        assert self.held

    def note(self, epoch: int, seq: int, *, durably: bool) -> None:
        if durably:
            self.seen = Seen(epoch, 0)

    def release(self) -> None:
        self.held = False


@dataclass(frozen=True)
class Moment:
    """What must be found after a number of batches."""

    state: Any
    rows: dict[str, list[Row]]


@dataclass(frozen=True)
class Crash:
    """An image and what was known when it was taken."""

    image: Image
    call: int
    acked: int
    begun: int
    seen: Seen


@dataclass
class Stage:
    """Plays a script on one store; every verb is one batch."""

    fs: SimFileSystem
    lock: SimLock = field(default_factory=SimLock)
    moments: list[Moment] = field(default_factory=list)
    acked: int = 0
    refused: int = 0
    scribe: Scribe = field(default_factory=Scribe)

    def __post_init__(self) -> None:
        self._remember()

    @property
    def begun(self) -> int:
        return len(self.moments) - 1

    def _remember(self) -> None:
        rows = {schedule_id: list(rows) for schedule_id, rows in self.scribe.rows.items()}
        self.moments.append(Moment(durable(self.scribe.state), rows))

    def open(self, *, accept_restore: bool = False) -> Store:
        store = new_store(self.fs, self.lock)
        opened = store.open(Settings(), NOW, accept_restore=accept_restore)
        assert opened.damages == (), opened.damages
        self.store = store
        self._epoch = opened.epoch
        return store

    async def commit(self, *events: Event) -> None:
        """One batch, of events that the scribe has just folded.  Without room it is tried again, as the engine would."""
        self._remember()
        await self._until_room(lambda: self.store.commit(events))
        self.acked += 1

    async def checkpoint(self) -> None:
        await self._until_room(lambda: self.store.checkpoint(self.scribe.state))

    async def _until_room(self, attempt: Callable[[], Awaitable[None]]) -> None:
        for _ in range(TRIES_MAX):
            try:
                return await attempt()
            except StorageFull:
                self.refused += 1
        raise AssertionError("there is room again, and it is still refused")

    async def begin(self) -> None:
        await self.commit(*self.scribe.epoch(self._epoch))

    async def reopen(self) -> None:
        self.store.close()
        self.open()
        await self.begin()


Script = Callable[[Stage], Any]


def new_store(fs: SimFileSystem, lock: SimLock, retention: Retention = KEPT) -> Store:
    return Store(
        ROOT,
        fs=fs,
        lock=lock,
        segment_bytes_max=SEGMENT_BYTES,
        retention=retention,
        mint=lambda: "store",
    )


def play(script: Script, fs: SimFileSystem) -> tuple[Stage, Exception | None]:
    """Run a script until it ends or something raises; what was played, and what was raised."""
    stage = Stage(fs)

    async def run() -> None:
        try:
            stage.open()
            await stage.begin()
            await script(stage)
        finally:
            if hasattr(stage, "store"):
                stage.store.close()

    try:
        asyncio.run(run())
    except Exception as error:  # the caller judges which errors may come
        return stage, error
    return stage, None


def crashes_now(stage: Stage, images: Iterable[Image] | None = None) -> list[Crash]:
    """Every distinct legal image of a crash at the point that a script has reached, or those given."""
    distinct = {frozenset(image.items()): image for image in images or stage.fs.crash_images()}
    return [Crash(image, stage.fs.calls, stage.acked, stage.begun, stage.lock.seen) for image in distinct.values()]


def crashes_of(script: Script, fs: SimFileSystem) -> tuple[list[Crash], Stage]:
    """Every distinct legal image after every call of a script that runs to its end."""
    found: dict[Any, Crash] = {}
    stage = Stage(fs)

    def watch() -> None:
        for crash in crashes_now(stage):
            found.setdefault((frozenset(crash.image.items()), crash.acked, crash.begun, crash.seen), crash)

    async def run() -> None:
        stage.open()
        try:
            await stage.begin()
            await script(stage)
        finally:
            stage.store.close()

    fs.watch = watch
    asyncio.run(run())
    return list(found.values()), stage


class Violation(AssertionError):
    """Something that must never be found after a crash."""


def check(crash: Crash, moments: Sequence[Moment]) -> int:
    """Open what the crash left; how many batches are there.  Raises `Violation`."""
    store = new_store(SimFileSystem(crash.image), SimLock(crash.seen))
    try:
        return _found(store, _opened(store, crash), crash, moments)
    finally:
        store.close()


def check_going_on(crash: Crash, moments: Sequence[Moment]) -> None:
    """Open what the crash left, go on from there, and find all of it once more after an ordinary stop.  Raises `Violation`."""
    fs, lock = SimFileSystem(crash.image), SimLock(crash.seen)
    store = new_store(fs, lock)
    try:
        opened = _opened(store, crash)
        scribe = Scribe(opened.state)
        rows = {schedule_id: _pages(store, schedule_id) for schedule_id in opened.state.schedules}
        asyncio.run(_go_on(store, scribe, opened.epoch))
    finally:
        store.close()
    store = new_store(fs, lock)
    try:
        if durable(_opened(store, crash).state) != durable(scribe.state):
            raise Violation(f"after call {crash.call} and going on: the state is another")
        for schedule_id, before in rows.items():
            expected = [*before, *scribe.rows.get(schedule_id, [])]
            found = _pages(store, schedule_id)
            if found != _kept(expected, found, schedule_id, durable(scribe.state)):
                raise Violation(f"after call {crash.call} and going on: the rows of {schedule_id} are others")
    finally:
        store.close()


async def _go_on(store: Store, scribe: Scribe, epoch: int) -> None:
    await store.commit(scribe.epoch(epoch))
    await store.commit(scribe.create("later"))
    living = [key for key, schedule in scribe.state.schedules.items() if not schedule.deleted]
    await store.commit([event for key in living for event in scribe.ran(key)])
    await store.checkpoint(scribe.state)
    await store.commit([event for key in living for event in scribe.skip(key)])


def _opened(store: Store, crash: Crash) -> Opened:
    try:
        opened = store.open(Settings(), NOW)
    except Exception as error:
        raise Violation(f"after call {crash.call}: the store does not open: {error!r}") from error
    if opened.damages:
        raise Violation(f"after call {crash.call}: damage where there was only a crash: {opened.damages}")
    return opened


def _found(store: Store, opened: Opened, crash: Crash, moments: Sequence[Moment]) -> int:
    state = durable(opened.state)
    candidates = [n for n in range(crash.acked, crash.begun + 1) if moments[n].state == state]
    if not candidates:
        older = [n for n in range(len(moments)) if moments[n].state == state]
        raise Violation(
            f"after call {crash.call}: {crash.acked} batches were acknowledged, the state is that after {older}"
        )
    pages = {schedule_id: _pages(store, schedule_id) for schedule_id in state["schedules"]}
    for n in candidates:
        rows = moments[n].rows
        if all(found == _kept(rows.get(key, []), found, key, state) for key, found in pages.items()):
            return n
    raise Violation(f"after call {crash.call}: the rows are not those after {candidates}")


def _pages(store: Store, schedule_id: str) -> list[Row]:
    rows: list[Row] = []
    after_n = None
    while True:
        page = store.page(schedule_id, after_n, 3)
        rows += page.rows
        if page.next_n is None:
            return rows
        after_n = page.next_n


def _kept(rows: list[Row], found: list[Row], schedule_id: str, state: Any) -> list[Row]:
    """The model's rows without those that retention may have dropped: older than its bounds, and of no unfinished run."""
    unfinished = {run["run_id"] for run in state["schedules"][schedule_id].get("runs", ())}
    runs = [row.n for row in rows if row.run_id is not None]
    others = [row.n for row in rows if row.run_id is None]
    sacred = {*runs[-KEPT.runs_max :], *others[-KEPT.others_max :]}
    present = {row.n for row in found}
    return [row for row in rows if row.n in present or row.n in sacred or row.run_id in unfinished]

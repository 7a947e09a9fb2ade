"""Crash under the real engine after every call of its store: whatever left, a request or an answer, has its intent on every legal disk.

The mutants are engines that let something out before the batch is durable; the very same check must catch each.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.model import Now, Settings
from scheduler_daemon.core.state import State
from scheduler_daemon.runtime.engine import Engine
from scheduler_daemon.store.lock import Seen
from scheduler_daemon.store.retention import Retention
from tests.builders import definition, facts, preflight, result
from tests.crash.simfs import Image, SimFileSystem
from tests.crash.stage import SimLock, Violation, new_store
from tests.scribe import NOON, NOW, Scribe

SCHEDULES, INSTANTS, PATIENCE = 3, 2, 2_000
FIRST_DUE = NOON + timedelta(seconds=60)
ALL_ROWS = Retention()


@dataclass(frozen=True)
class Left:
    """An image, with the runs that the server had been asked for and the schedules whose creation had been answered."""

    image: Image
    call: int
    seen: Seen
    sent: frozenset[str]
    answered: frozenset[str]


class QuickClock:
    """Time passes as soon as somebody waits for it."""

    def __init__(self) -> None:
        self._now = NOW

    def now(self) -> Now:
        return self._now

    def _pass(self, seconds: float) -> None:
        self._now = Now(self._now.at + timedelta(seconds=seconds), self._now.mono + seconds)

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        await asyncio.sleep(0)
        if not event.is_set():
            self._pass(min(1.0, seconds if seconds is not None else 1.0))

    async def sleep(self, seconds: float) -> None:
        self._pass(seconds)
        await asyncio.sleep(0)


class World:
    """A server that answers at once, callers who create schedules, and every disk that a crash may leave meanwhile."""

    def __init__(self, make: type[Engine]) -> None:
        self.fs, self.lock = SimFileSystem(), SimLock()
        self.sent: set[str] = set()
        self.answered: set[str] = set()
        self.found: dict[Any, Left] = {}
        self._clock = QuickClock()
        self._make = make
        self._engine: Engine

    def watch(self) -> None:
        sent, answered = frozenset(self.sent), frozenset(self.answered)
        for image in self.fs.crash_images():
            key = (frozenset(image.items()), sent, answered)
            if key not in self.found:
                self.found[key] = Left(image, self.fs.calls, self.lock.seen, sent, answered)

    def perform(self, effect: cmd.Effect) -> None:
        match effect:
            case cmd.StartCall():
                self.sent.add(effect.run_id)
                told = result(server_run_id=f"run_{effect.run_id}")
                self._engine.observe(cmd.CallAnswered(effect.seq, effect.schedule_id, effect.run_id, told))
            case cmd.Probe():
                self._engine.observe(cmd.ServerSeen(effect.seq, facts()))
            case cmd.AskPreflight():
                told = preflight(effect.deployment_id)
                asked_at = self._clock.now().at
                self._engine.observe(cmd.PreflightAnswered(effect.seq, effect.deployment_id, asked_at, told))
            case _:
                raise AssertionError(effect)

    async def live(self) -> None:
        store = new_store(self.fs, self.lock, ALL_ROWS)
        opened = store.open(Settings(), NOW)
        state: State = opened.state
        await store.commit(Scribe(state).epoch(opened.epoch))
        self.fs.watch = self.watch
        self._engine = self._make(
            state, store, self._clock, perform=self.perform, settled=lambda _: None, poll_interval_s=1.0
        )
        turning = asyncio.create_task(self._engine.run())
        try:
            for number in range(SCHEDULES):
                schedule_id = f"s{number}"
                made = definition(schedule_id, None, FIRST_DUE + timedelta(seconds=number % INSTANTS))
                answer = self._engine.submit(cmd.Create(made, preflight(made.deployment_id), ("max-steps",)))
                answer.add_done_callback(lambda _answer, name=schedule_id: self.answered.add(name))
                await answer
            for _ in range(PATIENCE):
                if len(self.sent) == SCHEDULES and not any(each.runs for each in state.schedules.values()):
                    break
                await asyncio.sleep(0.001)
            self._engine.stop()
            await turning
        finally:
            turning.cancel()
            store.close()


def check(left: Left) -> None:
    """Raises `Violation` unless everything that left is known on this disk: the mark of each request, each answered schedule."""
    store = new_store(SimFileSystem(left.image), SimLock(left.seen), ALL_ROWS)
    try:
        state = store.open(Settings(), NOW).state
        missing = left.answered - set(state.schedules)
        if missing:
            raise Violation(f"after call {left.call}: {missing} were answered and are not there")
        for run_id in left.sent:
            found = store.find_run(run_id)
            if found is None or not any(row.status == "running" for row in found.rows):
                raise Violation(f"after call {left.call}: the server was asked for {run_id}, and nothing says so")
    finally:
        store.close()


def _lived(make: type[Engine]) -> World:
    world = World(make)
    asyncio.run(world.live())
    assert len(world.sent) == SCHEDULES
    return world


def test_every_legal_disk_knows_of_every_request_and_every_answer_that_left():
    world = _lived(Engine)
    for left in world.found.values():
        check(left)
    told = sum(bool(left.sent) for left in world.found.values())
    print(f"engine: {world.fs.calls} calls, {len(world.found)} images, {told} of them after a dispatch, 0 violations")
    assert told > SCHEDULES


class DispatchesFirst(Engine):
    """Lets effects out as soon as they are planned, before the batch that marks them is durable."""

    def _plan(self, inputs: Any, now: Now) -> Any:
        batch = super()._plan(inputs, now)
        for plan in batch.plans:
            for effect in plan.effects:
                self._perform(effect)
        batch.plans = [replace(plan, effects=[]) for plan in batch.plans]
        return batch


class AnswersFirst(Engine):
    """Tells callers as soon as their command is planned."""

    def _plan(self, inputs: Any, now: Now) -> Any:
        batch = super()._plan(inputs, now)
        for answer, value in batch.answers:
            answer.set_result(value)
        return batch

    async def _commit(self, events: Any) -> None:
        await asyncio.sleep(0)  # callers run before the write begins
        await super()._commit(events)


@pytest.mark.parametrize("mutant", [DispatchesFirst, AnswersFirst])
def test_what_leaves_before_its_batch_is_durable_is_noticed(mutant):
    world = _lived(mutant)
    found = [str(violation) for left in world.found.values() if (violation := _violation(left)) is not None]
    print(f"{mutant.__name__}: {len(found)} violations in {len(world.found)} images, the first: {found[:1]}")
    assert found


def _violation(left: Left) -> Violation | None:
    try:
        check(left)
    except Violation as violation:
        return violation
    return None

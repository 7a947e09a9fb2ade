"""A disk in memory, and a store on it with the facade of the real one.

Owns: what is durable, and every way in which a write goes wrong: slow, full, failed, cut by a kill before or after it was
durable, and a lock that is taken away.
Must never know: policy.  What it stores goes through the real encoding and comes back through the real fold.

A batch that was acknowledged is never lost.  One that was being written when its process died is kept or lost by the seed:
both are legal, and nobody was told.

Beside the records the disk folds a state of its own, batch by batch, from decoded bytes alone: the replay that every start
gets, and the yardstick for the live state.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from scheduler_daemon.core.events import Event, row_of
from scheduler_daemon.core.fold import fold
from scheduler_daemon.core.model import Now, Row, RunLive, Settings
from scheduler_daemon.core.state import State
from scheduler_daemon.store.errors import Holder, LockHeld, OwnershipLost, StorageFailed, StorageFull
from tests.simulation.loop import Process
from tests.simulation.model import LONG_AGO, Violation

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode

STORE_ID = "0f5e"


class Opened(msgspec.Struct):
    state: State
    damages: tuple[Any, ...]
    torn: tuple[Any, ...]
    epoch: int
    restored: bool
    replayed: int
    harmless: tuple[Any, ...] = ()


class Page(msgspec.Struct):
    rows: tuple[Row, ...]
    next_n: int | None


class FoundRun(msgspec.Struct):
    run_id: str
    schedule_id: str
    server_run_id: str | None
    rows: tuple[Row, ...]


@dataclass
class DiskFaults:
    """Rates per write, and the one condition that lasts."""

    slow: float = 0.0
    slow_s_max: float = 0.0
    kill_before: float = 0.0
    kill_after: float = 0.0
    failed: float = 0.0
    full: bool = False


@dataclass
class Disk:
    """What survives every process.  `watch` is told of each batch in the moment it is durable."""

    settings: Settings
    random: Random
    watch: Callable[[Sequence[Event]], None]
    faults: DiskFaults = field(default_factory=DiskFaults)
    records: list[bytes] = field(default_factory=list)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    owner: "SimStore | None" = None
    shadow: State = field(init=False)

    def __post_init__(self) -> None:
        self.shadow = State(STORE_ID, self.settings)

    def append(self, data: Sequence[bytes]) -> None:
        """From here on this batch is what every later process reads."""
        events = [_decode(one) for one in data]
        self.records.extend(data)
        _replay(self.shadow, events)
        for event in events:
            row = row_of(event)
            if row is not None:
                self.rows.setdefault(row.schedule_id, []).append(row)
        self.watch(events)

    def copied(self) -> State:
        """The replayed state, for a process to live in."""
        state = State(STORE_ID, self.settings)
        state.globals = self.shadow.globals
        state.schedules = dict(self.shadow.schedules)
        state.unknown = dict(self.shadow.unknown)
        state.owners = dict(self.shadow.owners)
        return state

    def replayed(self) -> State:
        """The state that the records alone lead to, from the first one on."""
        state = State(STORE_ID, self.settings)
        _replay(state, [_decode(record) for record in self.records])
        return state


def _replay(state: State, events: Sequence[Event]) -> None:
    """Fold and merge, without the agenda: nothing is ever decided on this state."""
    draft = state.draft(Now(LONG_AGO, 0.0))
    for event in events:
        fold(draft, event)
    draft._touched.clear()
    draft.merge()


def durable_part(state: State) -> dict[str, Any]:
    """Everything of a state that a replay must bring back, in a form that compares."""
    kept = state.globals
    return {
        "schedules": {
            key: msgspec.structs.replace(
                one, runs=tuple(msgspec.structs.replace(run, live=RunLive()) for run in one.runs)
            )
            for key, one in state.schedules.items()
        },
        "unknown": {key: msgspec.structs.replace(one, live=RunLive()) for key, one in state.unknown.items()},
        "owners": dict(state.owners),
        "globals": (
            kept.epoch,
            kept.run_number,
            kept.decided_until,
            kept.slots_used,
            kept.clock_step_s,
            kept.clock_step_at,
        ),
    }


class SimStore:
    """One process's hold of the disk."""

    root = Path("/nowhere/store")

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk = disk
        self.process = process
        self.state: State | None = None
        self.lost = False
        self.failed = False
        self.unheard = False
        self.writing: list[bytes] | None = None

    # --- the facade ---

    def open(self, settings: Settings, now: Now, accept_restore: bool = False) -> Opened:
        if self.disk.owner is not None:
            raise LockHeld(Holder())
        self.disk.owner = self
        state = self.state = self.disk.copied()
        state.rebuild_agenda(now)
        return Opened(state, (), (), state.globals.epoch + 1, False, len(self.disk.records))

    def check_ownership(self) -> None:
        if self.lost or self.disk.owner is not self:
            raise OwnershipLost("the lock is somebody else's")

    def check_trusted(self) -> None:
        if self.failed:
            raise StorageFailed("fdatasync: input/output error")

    async def commit(self, events: Sequence[Event]) -> None:
        """One write.  Until it returns the batch may or may not be what the next process reads."""
        if self.failed:
            raise Violation("a write after a failed fsync")
        self.check_ownership()
        faults, chance = self.disk.faults, self.disk.random
        data = [encode(event) for event in events]
        if [_decode(one) for one in data] != list(events):
            raise Violation("an event does not survive its encoding")
        if faults.full:
            raise StorageFull("no room")
        self.writing = data
        # Even the fastest disk lets others go first: whoever does not wait for it is found out.
        await asyncio.sleep(chance.uniform(0.0, faults.slow_s_max) if chance.random() < faults.slow else 0)
        if chance.random() < faults.kill_before:
            await self._killed()
        if chance.random() < faults.failed:
            self.failed = True  # the process must end now, and whether the batch is there the next one finds out
            raise StorageFailed("fdatasync: input/output error")
        self.check_ownership()
        self.writing = None
        self.unheard = True
        self.disk.append(data)
        if chance.random() < faults.kill_after:
            await self._killed()
        self.unheard = False

    def disarm(self) -> None:
        """No fault that was drawn before comes after the healing."""

    async def _killed(self) -> None:
        self.process.kill()
        await asyncio.get_running_loop().create_future()

    def page(self, schedule_id: str, after_n: int | None, limit: int) -> Page:
        rows = [row for row in self.disk.rows.get(schedule_id, ()) if after_n is None or row.n > after_n]
        shown = tuple(rows[:limit])
        return Page(shown, shown[-1].n if len(rows) > limit else None)

    def find_run(self, run_id: str) -> FoundRun | None:
        for schedule_id, rows in self.disk.rows.items():
            owner = next((row.run_id for row in rows if row.run_id and run_id in (row.run_id, row.server_run_id)), None)
            if owner is not None:
                own = tuple(row for row in rows if row.run_id == owner)
                server_run_id = next((row.server_run_id for row in reversed(own) if row.server_run_id), None)
                return FoundRun(owner, schedule_id, server_run_id, own)
        return None

    def rowed_after(self, schedule_id: str, at: datetime) -> tuple[datetime, ...]:
        """Instants later than `at` that have a row of their own."""
        rows = self.disk.rows.get(schedule_id, ())
        return tuple(sorted({row.instant for row in rows if row.instant is not None and row.instant > at}))

    def finish_restore(self) -> None:
        raise Violation("no restore was accepted here")

    def wants_checkpoint(self) -> bool:
        return self.disk.random.random() < 0.5

    async def checkpoint(self, state: State) -> None:
        """Nothing to write here; what the real one writes is compared instead."""
        self.check_ownership()
        self.compare()

    def close(self) -> None:
        if self.disk.owner is self:
            self.disk.owner = None

    # --- the outside ---

    def give_up(self) -> None:
        """The lock is taken away; whoever starts next gets the store."""
        self.lost = True
        self.close()

    def compare(self) -> None:
        """Replaying the records gives the live state exactly."""
        if self.state is None:
            return
        live, told = durable_part(self.state), durable_part(self.disk.shadow)
        if live != told:
            different = {name: (live[name], told[name]) for name in live if live[name] != told[name]}
            raise Violation(f"live state and replay differ (live, replay): {different}")

    def died(self) -> None:
        """The process is gone: the lock is free, and a batch in flight is kept or lost."""
        if not self.lost and not self.unheard:
            self.compare()
        if self.writing is not None and not self.lost and self.disk.random.random() < 0.5:
            self.disk.append(self.writing)
        self.writing = None
        self.close()

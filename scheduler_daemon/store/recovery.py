"""From readable and unreadable records to the state: the second half of the table *found at recovery*, as code.

Owns: what a batch with missing records means, whom damage belongs to, what becomes of the schedule it belongs to.  Must never know:
files.  Recovery is replay: the state changes in `core.fold` and nowhere else, live and here alike.

Whom does an unreadable record belong to?

| what is known                                         | conclusion                                                                 |
|-------------------------------------------------------|----------------------------------------------------------------------------|
| its batch's commit line                               | schedules named there whose `n` does not add up (`_attribute`)             |
| the commit line adds up for every schedule            | it was global; the commit line repeats what mattered of it (`_repeat`)     |
| no commit line, a later record leaves a gap in `n`    | the schedule with the gap (`_gap`)                                         |
| no commit line, no gap until the end                  | nobody knows: admission stops for all (`finish`)                           |
| only a commit line, and later batches                 | nothing is missing                                                         |
| only the commit line of the last batch                | every schedule of that batch, since it may have been acted on (`_open`)    |
| good checksum, but unknown or against the lifecycle   | the schedule it names; without one the store is refused                    |

A damaged schedule is folded on as far as its later records fit what is left of it: they are true, and leaving them out would end a run
twice.  What was concluded is written with the next batch (`Judged`), so that the next replay reaches the same state, and damage that
was found before is told from damage that is new.  It stays pending until a `ScheduleBlocked` says that somebody acted on it.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from scheduler_daemon.core.events import (
    Decided,
    EpochStarted,
    Event,
    ScheduleBlocked,
    ScheduleCreated,
    ScheduleDeleted,
    ScheduleEvent,
)
from scheduler_daemon.core.fold import fold
from scheduler_daemon.core.lifecycle import Contradiction
from scheduler_daemon.core.model import Definition, Now, OneShot, Schedule
from scheduler_daemon.core.state import Draft, State
from scheduler_daemon.store.errors import StoreUnusable
from scheduler_daemon.store.scan import Batch, Entry, Found, Lost
from scheduler_daemon.store.schema import Accepted, Commit, Damage, DamageLine, Judged, Skipped, Unreadable

_RECORD_BYTES_MIN: Final = 64
"""No record is shorter; how many may have been in an unreadable stretch follows from its length."""

_LOST_DEFINITION: Final = "its definition was lost to damage; update it before unblocking it"

Key = tuple[str | None, str, int]


def key_of(damage: Damage) -> Key:
    """What makes damage the same damage at the next start."""
    return damage.schedule_id, damage.file, damage.offset


class _ReplayDraft(Draft):
    """Indexes nothing on the way: the agenda is derived once, after the last record."""

    def reindex(self) -> None:
        pass


class Replay:
    """Folds batches into a state that already holds everything up to record `base_seq`."""

    def __init__(self, state: State, now: Now, base_seq: int, judged: list[DamageLine]) -> None:
        self.state = state
        self.replayed = 0
        self.harmless: list[Damage] = []
        self.lost: list[Lost] = []
        self.events: list[Event] = []
        self.judged: dict[Key, DamageLine] = {key_of(line.damage): line for line in judged}
        self.epoch = state.globals.epoch
        self._draft = _ReplayDraft(state, now)
        self._base_seq = base_seq
        self._fresh: dict[Key, Damage] = {}
        self._last_n: dict[str, int] = {}
        self._unnamed: list[tuple[int, Lost]] = []
        self._run_number_min = 0

    # --- batches ---

    def apply(self, batch: Batch) -> None:
        """Take in one batch; one that the snapshot holds already changes nothing, be it damaged or not."""
        if batch.last <= self._base_seq and not batch.open:
            return
        self.lost.extend(batch.lost)
        explained: set[str] = set()
        if batch.open:
            self._open(batch)
        elif batch.missing:
            explained = self._attribute(batch)
        elif batch.lost:
            self._harmless(batch.lost[0], "a commit line; nothing of its batch is missing")
        for entry in batch.entries:
            self._take(entry, explained)
        if batch.commit is not None:
            self._repeat(batch.commit)
            for schedule_id, n in batch.commit.last_n.items():
                self._last_n[schedule_id] = max(n, self._n_of(schedule_id))

    def _open(self, batch: Batch) -> None:
        """The end is damaged.  One bad line after everything else is the commit line, so that all records are known."""
        where = batch.lost[0] if batch.lost else Lost(batch.file, batch.start, b"", "no commit line")
        known = bool(batch.entries) and len(batch.lost) == 1 and where.offset > batch.entries[-1].offset
        for entry in batch.entries:
            if entry.record.schedule_id is not None:
                self._damaged(entry.record.schedule_id, where.file, where.offset, Found.DAMAGED.value)
        if not known:
            self._unnamed.append((1 + sum(len(lost.data) for lost in batch.lost) // _RECORD_BYTES_MIN, where))

    def _attribute(self, batch: Batch) -> set[str]:
        """Records are nowhere: name the schedules that lack one, by the commit line."""
        where, commit = batch.lost[0], batch.commit
        if commit is None:
            self._unnamed.append((len(batch.missing), where))
            return set()
        present: dict[str, int] = {}
        for entry in batch.entries:
            if entry.record.schedule_id is not None:
                present[entry.record.schedule_id] = present.get(entry.record.schedule_id, 0) + 1
        explained: set[str] = set()
        count = 0
        for schedule_id, n in commit.last_n.items():
            lacking = n - self._n_of(schedule_id) - present.get(schedule_id, 0)
            if lacking > 0:
                count += lacking
                explained.add(schedule_id)
                self._damaged(schedule_id, where.file, where.offset, where.reason)
                self._hold_place(schedule_id, commit)
        if count > len(batch.missing):
            self._explain(count - len(batch.missing))
        elif count < len(batch.missing):
            self._harmless(where, "a record of no schedule, repeated in its commit line")
        return explained

    def _repeat(self, commit: Commit) -> None:
        """A commit line says again what its batch's global records said; folding that twice changes nothing."""
        self.epoch = max(self.epoch, commit.epoch)
        if commit.epoch > self._draft.globals.epoch:
            fold(self._draft, EpochStarted(at=commit.at, epoch=commit.epoch))
        if commit.decided_until is not None:
            fold(self._draft, Decided(at=commit.at, until=commit.decided_until))
        self._draft.globals.run_number = max(self._draft.globals.run_number, commit.run_number)

    # --- records ---

    def _take(self, entry: Entry, explained: set[str]) -> None:
        record = entry.record
        if record.epoch < self.epoch:
            raise StoreUnusable(f"epoch {record.epoch} follows epoch {self.epoch}", entry.file, entry.offset)
        self.epoch = record.epoch
        self.replayed += 1
        match record.content:
            case Judged():
                self._believe(record.content)
            case Accepted():
                self._accept()
            case Unreadable(reason=reason):
                self._unreadable(entry, reason)
            case Skipped():
                raise AssertionError("a record after the snapshot was skipped")
            case event:
                self._fold(entry, event, explained)

    def _unreadable(self, entry: Entry, reason: str) -> None:
        schedule_id = entry.record.schedule_id
        if schedule_id is None:
            raise StoreUnusable(reason, entry.file, entry.offset)
        self._damaged(schedule_id, entry.file, entry.offset, reason)
        self._last_n[schedule_id] = max(entry.record.n, self._n_of(schedule_id))

    def _fold(self, entry: Entry, event: Event, explained: set[str]) -> None:
        if entry.record.epoch > self._draft.globals.epoch and not isinstance(event, EpochStarted):
            fold(self._draft, EpochStarted(at=event.at, epoch=entry.record.epoch))
        if not isinstance(event, ScheduleEvent):
            fold(self._draft, event)
            return
        schedule_id = event.schedule_id
        self._gap(entry, event, explained)
        try:
            fold(self._draft, event)
        except (Contradiction, KeyError) as error:
            if not self._has_fresh(schedule_id):
                self._damaged(schedule_id, entry.file, entry.offset, f"contradiction: {error}")
        self._last_n[schedule_id] = max(event.n, self._n_of(schedule_id))
        self.events.append(event)
        if isinstance(event, ScheduleBlocked | ScheduleDeleted):
            self.acted_on(schedule_id)

    def _gap(self, entry: Entry, event: ScheduleEvent, explained: set[str]) -> None:
        """A schedule's numbers have no gaps: one here is a record that was lost."""
        schedule_id = event.schedule_id
        lacking = event.n - self._n_of(schedule_id) - 1
        if lacking != 0 and schedule_id not in explained:
            where = self._unnamed[0][1] if self._unnamed and lacking > 0 else None
            file, offset = (where.file, where.offset) if where is not None else (entry.file, entry.offset)
            self._damaged(
                schedule_id, file, offset, f"record {event.n} follows record {self._n_of(schedule_id)} of its schedule"
            )
            self._explain(max(0, lacking))
        if schedule_id not in self._draft.schedules and not isinstance(event, ScheduleCreated):
            self._hold_place(schedule_id, event)

    # --- damage ---

    def _n_of(self, schedule_id: str) -> int:
        known = self._last_n.get(schedule_id)
        if known is None:
            schedule = self._draft.schedules.get(schedule_id)
            known = self._last_n[schedule_id] = schedule.n if schedule is not None else 0
        return known

    def _has_fresh(self, schedule_id: str) -> bool:
        return any(key[0] == schedule_id for key in self._fresh)

    def _damaged(self, schedule_id: str | None, file: str, offset: int, reason: str) -> None:
        self.damaged(Damage(schedule_id, file, offset, reason))

    def damaged(self, damage: Damage) -> None:
        """Note damage, unless an earlier recovery did."""
        if key_of(damage) not in self.judged:
            self._fresh.setdefault(key_of(damage), damage)

    def _harmless(self, where: Lost, reason: str) -> None:
        self.harmless.append(Damage(None, where.file, where.offset, reason))

    def _explain(self, count: int) -> None:
        """That many of the records that nobody could name were this schedule's."""
        while count > 0 and self._unnamed:
            left, where = self._unnamed.pop(0)
            if left > count:
                self._unnamed.insert(0, (left - count, where))
            count -= left

    def _hold_place(self, schedule_id: str, told: Commit | ScheduleEvent) -> None:
        """The id is taken and its history lives, but the record that made it is lost: an empty definition stands in for it."""
        if schedule_id in self._draft.schedules:
            return
        definition = Definition(schedule_id=schedule_id, deployment_id="", trigger=OneShot(at=told.at))
        self._draft.put(
            Schedule(
                definition=definition,
                revision=1,
                created_at=told.at,
                updated_at=told.at,
                watermark=told.at,
                note=_LOST_DEFINITION,
            )
        )

    # --- what earlier recoveries concluded ---

    def _believe(self, judged: Judged) -> None:
        for damage in judged.damages:
            self._fresh.pop(key_of(damage), None)
            self._unnamed = [
                (count, lost) for count, lost in self._unnamed if (None, lost.file, lost.offset) != key_of(damage)
            ]
            self.judged[key_of(damage)] = self._pending(damage)
        for schedule_id, n in judged.last_n.items():
            self._go_on_at(schedule_id, n)
        self._draft.globals.run_number = max(self._draft.globals.run_number, judged.run_number)

    def _pending(self, damage: Damage) -> DamageLine:
        """The damage, and who has to be blocked for it: nobody who is deleted, since that admits nothing as it is."""
        if damage.schedule_id is not None:
            schedule = self._draft.schedules.get(damage.schedule_id)
            return DamageLine(damage, (damage.schedule_id,) if schedule is None or not schedule.deleted else ())
        everyone = tuple(schedule.schedule_id for schedule in self._draft.schedules.values() if not schedule.deleted)
        return DamageLine(damage, everyone)

    def _accept(self) -> None:
        self.judged = {key: line for key, line in self.judged.items() if key[0] is not None}
        self._unnamed.clear()

    def acted_on(self, schedule_id: str) -> None:
        """The schedule admits nothing any more: whatever damage waited for that has been dealt with."""
        self.judged = without_waiting(self.judged, schedule_id)

    def _go_on_at(self, schedule_id: str, n: int) -> None:
        schedule = self._draft.schedules.get(schedule_id)
        if schedule is not None and schedule.n != n:
            self._draft.put(replace(schedule, n=n))
        self._last_n[schedule_id] = n

    # --- the end ---

    def finish(self) -> Judged | None:
        """Make what was replayed the state; what has to be written about new damage with the next batch, if there is any."""
        for count, where in self._unnamed:
            self._run_number_min += count
            self._damaged(None, where.file, where.offset, where.reason)
        fresh = tuple(self._fresh.values())
        n = {key: self._n_of(key) for key in dict.fromkeys(damage.schedule_id for damage in fresh) if key is not None}
        for schedule_id, last in n.items():
            self._go_on_at(schedule_id, last)
        if self._run_number_min:
            self._draft.globals.run_number += self._run_number_min
        for damage in fresh:
            self.judged[key_of(damage)] = self._pending(damage)
        self._draft.merge()
        return Judged(fresh, n, self.state.globals.run_number) if fresh else None


def without_waiting(judged: dict[Key, DamageLine], schedule_id: str) -> dict[Key, DamageLine]:
    """The damage that still waits after that schedule was blocked or deleted; what was found in a history is remembered."""
    left: dict[Key, DamageLine] = {}
    for key, line in judged.items():
        waiting = tuple(waits for waits in line.waiting if waits != schedule_id)
        if waiting or (key[0] is not None and "/occurrences/" in key[1]):
            left[key] = line if len(waiting) == len(line.waiting) else DamageLine(line.damage, waiting)
    return left

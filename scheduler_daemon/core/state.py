"""The whole state as committed, and a draft on top of it.

Owns: where a value is looked up and how a draft becomes the state.  Must never know: what an event means (`fold.py`), what is due
(`agenda.py` indexes it, `decide.py` decides it).

Readers see `State`, which holds committed values only.  A batch of plans is made on one `Draft`; when the batch is durable the
draft is merged, and when the write fails it is dropped.  The agenda is derived and shared: a dropped draft rebuilds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Generic, TypeVar

import msgspec

from scheduler_daemon.core.agenda import Agenda
from scheduler_daemon.core.live import Answer, ServerView
from scheduler_daemon.core.model import Now, Run, Schedule, Settings, UnknownRun

EPOCH_AT = datetime(1970, 1, 1, tzinfo=UTC)

V = TypeVar("V")


class Globals(msgspec.Struct, kw_only=True):
    """The few values that belong to no schedule.  `effect_seq`, `server` and the modes are live, the rest is durable.

    A state's are never changed: each draft has its own copy, which takes their place when it is merged.
    """

    epoch: int = 0
    run_number: int = 0
    decided_until: datetime = EPOCH_AT
    slots_used: int = 0
    effect_seq: int = 0
    server: ServerView = ServerView()
    draining: bool = False
    full: bool = False
    clock_step_s: float | None = None
    clock_step_at: datetime | None = None


class Overlay(Generic[V]):
    """A dict with changes on top that can be merged or forgotten."""

    __slots__ = ("_base", "_changed")

    def __init__(self, base: dict[str, V]) -> None:
        self._base = base
        self._changed: dict[str, V | None] = {}

    def get(self, key: str) -> V | None:
        changed = self._changed
        return changed[key] if key in changed else self._base.get(key)

    def __getitem__(self, key: str) -> V:
        changed = self._changed
        value = changed[key] if key in changed else self._base.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __setitem__(self, key: str, value: V) -> None:
        self._changed[key] = value

    def pop(self, key: str) -> None:
        self._changed[key] = None

    def values(self) -> Iterator[V]:
        """Every value, changed ones as they are now; order of first insertion, new ones last."""
        for key in self.keys():
            value = self.get(key)
            if value is not None:
                yield value

    def keys(self) -> list[str]:
        return [*self._base, *(key for key in self._changed if key not in self._base)]

    def merge(self) -> None:
        for key, value in self._changed.items():
            if value is None:
                self._base.pop(key, None)
            else:
                self._base[key] = value
        self._changed.clear()


class State:
    """Committed truth plus the live view, with the agenda derived from both.

    `owners` maps the ids, ours and the server's, of unfinished and `outcome-unknown` runs to their schedule.
    """

    def __init__(self, store_id: str, settings: Settings) -> None:
        self.store_id = store_id
        self.settings = settings
        self.globals = Globals()
        self.schedules: dict[str, Schedule] = {}
        self.unknown: dict[str, UnknownRun] = {}
        self.owners: dict[str, str] = {}
        self.answers: dict[str, Answer] = {}
        self.agenda = Agenda()

    def watermark_of(self, schedule: Schedule) -> datetime:
        """Everything of this schedule due at or before it is decided for good."""
        return effective_watermark(schedule, self.globals.decided_until)

    def draft(self, now: Now) -> Draft:
        return Draft(self, now)

    def rebuild_agenda(self, now: Now) -> None:
        """Index everything anew: after a load, and after a draft was dropped."""
        self.agenda = Agenda()
        draft = self.draft(now)
        for schedule in self.schedules.values():
            self.agenda.index(draft, schedule)
        for unknown in self.unknown.values():
            self.agenda.index_unknown(unknown)
        for answer in self.answers.values():
            self.agenda.index_answer(answer)
        self.agenda.index_server(self.globals.server)


class Draft:
    """The state as it will be if what was planned on it becomes durable."""

    def __init__(self, state: State, now: Now) -> None:
        self.state = state
        self.now = now
        self.settings = state.settings
        self.store_id = state.store_id
        self.agenda = state.agenda
        self.globals = msgspec.structs.replace(state.globals)
        self.schedules: Overlay[Schedule] = Overlay(state.schedules)
        self.unknown: Overlay[UnknownRun] = Overlay(state.unknown)
        self.owners: Overlay[str] = Overlay(state.owners)
        self.answers: Overlay[Answer] = Overlay(state.answers)
        self._touched: dict[str, None] = {}

    def watermark_of(self, schedule: Schedule) -> datetime:
        return effective_watermark(schedule, self.globals.decided_until)

    def put(self, schedule: Schedule) -> None:
        """Replace one schedule; it is indexed again before anything next asks the agenda."""
        schedule_id = schedule.definition.schedule_id
        self.schedules[schedule_id] = schedule
        self._touched[schedule_id] = None

    def touch(self, schedule_id: str) -> None:
        """Index a schedule again although it did not change: the agenda gave it out."""
        self._touched[schedule_id] = None

    def reindex(self) -> None:
        """Bring the agenda up to date with every schedule put or touched since."""
        for schedule_id in self._touched:
            schedule = self.schedules.get(schedule_id)
            if schedule is not None:
                self.agenda.index(self, schedule)
        self._touched.clear()

    def run_of(self, run_id: str) -> Run | None:
        """The unfinished run with that id of ours or of the server's."""
        owner = self.owners.get(run_id)
        schedule = self.schedules.get(owner) if owner is not None else None
        if schedule is None:
            return None
        for run in schedule.runs:
            if run_id in (run.run_id, run.server_run_id):
                return run
        return None

    def next_seq(self) -> int:
        """A number for an effect, never used before in this process."""
        self.globals.effect_seq += 1
        return self.globals.effect_seq

    def merge(self) -> None:
        """What was planned is durable: it is the state now."""
        self.reindex()
        for overlay in (self.schedules, self.unknown, self.owners, self.answers):
            overlay.merge()
        self.state.globals = msgspec.structs.replace(self.globals)

    def drop(self) -> None:
        """The write failed: nothing of this happened."""
        self.state.rebuild_agenda(self.now)


def effective_watermark(schedule: Schedule, decided_until: datetime) -> datetime:
    """The later of its own watermark and the global one, unless it was made, or rewound, while that lay in the future."""
    if schedule.exempt_until is not None and decided_until <= schedule.exempt_until:
        return schedule.watermark
    return max(schedule.watermark, decided_until)

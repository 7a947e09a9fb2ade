"""A plan while it is being made.

Owns: the one way in which the core decides something: `emit` an event, which is folded into the draft at once, so that the next
decision of the same plan sees it; ask for an effect; say a line for the log.  Must never know: what is being decided.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from scheduler_daemon.core import events as ev
from scheduler_daemon.core.commands import Effect, LogLine, Plan
from scheduler_daemon.core.fold import fold, note
from scheduler_daemon.core.model import Json, Run, RunLive, Schedule
from scheduler_daemon.core.state import Draft


class Planner:
    """Collects a `Plan` on a draft.  `consumed` says that an instant was decided, so that `Decided` must follow."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.plan = Plan()
        self.consumed = False
        self.at: datetime = draft.now.at
        self.mono: float = draft.now.mono

    def schedule(self, schedule_id: str) -> Schedule:
        return self.draft.schedules[schedule_id]

    def next_n(self, schedule_id: str) -> int:
        """The number of the next event of this schedule."""
        return self.draft.schedules[schedule_id].n + 1

    def emit(self, event: ev.Event) -> None:
        fold(self.draft, event)
        self.plan.events.append(event)

    def note(self, live: ev.Note) -> None:
        note(self.draft, live)

    def note_run(self, run: Run, live: RunLive) -> None:
        note(self.draft, ev.RunNoted(run.schedule_id, run.run_id, live))

    def effect(self, effect: Effect) -> None:
        self.plan.effects.append(effect)

    def log(self, action: str, level: Literal["info", "warning", "error"] = "info", **fields: Json) -> None:
        self.plan.logs.append(LogLine(action, level, fields))


def backoff_s(tries: int, first_s: float, most_s: float) -> float:
    """Doubling waits: `first_s` for the first try (0), never more than `most_s`."""
    return min(most_s, first_s * 2.0 ** min(tries, 30))

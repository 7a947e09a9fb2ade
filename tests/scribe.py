"""Events by hand, for the tests of the store: consistent ones, without a decision, a clock or a server behind them.

Owns: the numbers that consistent events need (`n`, run numbers, instants that pass).  Must never know: files, policy.  What it hands out
it also folds, so that `state` is what a recovery has to arrive at.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from scheduler_daemon.core import events as ev
from scheduler_daemon.core.events import row_of
from scheduler_daemon.core.fold import fold
from scheduler_daemon.core.model import Checkpoint, Diagnostic, Mark, Now, Result, Row, ServerFacts, Settings
from scheduler_daemon.core.state import State
from tests.builders import definition

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
NOW = Now(NOON, 1000.0)
SERVER = ServerFacts("http://server.example:8765", "/srv/a", "i1", ("idempotent-start",))


class Scribe:
    """Writes down what happened to schedules; each call gives the event or events, already folded."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state if state is not None else State("store", Settings())
        self.at = NOON
        self.rows: dict[str, list[Row]] = {}

    def _fold(self, *events: ev.Event) -> list[ev.Event]:
        draft = self.state.draft(Now(self.at, 1000.0))
        for event in events:
            fold(draft, event)
            row = row_of(event)
            if row is not None:
                self.rows.setdefault(row.schedule_id, []).append(row)
        draft.merge()
        return list(events)

    def tick(self, seconds: float = 1.0) -> None:
        self.at += timedelta(seconds=seconds)

    def _n(self, schedule_id: str, ahead: int = 1) -> int:
        schedule = self.state.schedules.get(schedule_id)
        return (schedule.n if schedule is not None else 0) + ahead

    # --- the whole daemon ---

    def epoch(self, epoch: int) -> list[ev.Event]:
        return self._fold(ev.EpochStarted(at=self.at, epoch=epoch))

    def decided(self) -> list[ev.Event]:
        return self._fold(ev.Decided(at=self.at, until=self.at))

    # --- schedules ---

    def create(self, schedule_id: str, **fields: Any) -> list[ev.Event]:
        made = definition(schedule_id, **fields)
        return self._fold(ev.ScheduleCreated(at=self.at, schedule_id=schedule_id, n=1, definition=made))

    def pause(self, schedule_id: str, note: str | None = None) -> list[ev.Event]:
        revision = self.state.schedules[schedule_id].revision + 1
        return self._fold(
            ev.SchedulePaused(at=self.at, schedule_id=schedule_id, n=self._n(schedule_id), revision=revision, note=note)
        )

    def delete(self, schedule_id: str) -> list[ev.Event]:
        revision = self.state.schedules[schedule_id].revision + 1
        return self._fold(
            ev.ScheduleDeleted(at=self.at, schedule_id=schedule_id, n=self._n(schedule_id), revision=revision)
        )

    def block(self, schedule_id: str, code: str = "damaged-record") -> list[ev.Event]:
        revision = self.state.schedules[schedule_id].revision + 1
        diagnostic = Diagnostic(code, "a record cannot be read", self.at)
        return self._fold(
            ev.ScheduleBlocked(
                at=self.at, schedule_id=schedule_id, n=self._n(schedule_id), revision=revision, diagnostic=diagnostic
            )
        )

    # --- occurrences ---

    def skip(self, schedule_id: str, reason: str = "late") -> list[ev.Event]:
        """One instant that did not run; each is a second after the one before."""
        self.tick()
        return self._fold(
            ev.OccurrenceClosed(
                at=self.at,
                schedule_id=schedule_id,
                n=self._n(schedule_id),
                instant=self.at,
                status="skipped-misfire",
                reason=reason,
                revision=self.state.schedules[schedule_id].revision,
            )
        )

    def admit(self, schedule_id: str, **fields: Any) -> list[ev.Event]:
        """A run that is admitted and marked in one batch."""
        self.tick()
        number = self.state.globals.run_number + 1
        run_id, revision = f"run-{number:06d}", self.state.schedules[schedule_id].revision
        admitted = ev.RunAdmitted(
            at=self.at,
            schedule_id=schedule_id,
            n=self._n(schedule_id),
            instant=self.at,
            run_id=run_id,
            number=number,
            key=f"store:{run_id}",
            revision=revision,
            deployment_id="dep",
            input=fields.pop("input", {"who": "world"}),
        )
        mark = Mark(kind="start", key=f"store:{run_id}", marked_at=self.at, server=SERVER)
        marked = ev.DispatchMarked(
            at=self.at,
            schedule_id=schedule_id,
            n=self._n(schedule_id, 2),
            run_id=run_id,
            instant=self.at,
            revision=revision,
            mark=mark,
        )
        return self._fold(admitted, marked)

    def run_of(self, schedule_id: str) -> str:
        """The id of its oldest unfinished run."""
        return self.state.schedules[schedule_id].runs[0].run_id

    def interrupt(self, schedule_id: str, run_id: str | None = None) -> list[ev.Event]:
        run = self.state.schedules[schedule_id].run(run_id or self.run_of(schedule_id))
        assert run is not None
        return self._fold(
            ev.RunInterrupted(
                at=self.at,
                schedule_id=schedule_id,
                n=self._n(schedule_id),
                run_id=run.run_id,
                instant=run.instant,
                revision=run.revision,
                server_run_id=server_id(run.run_id),
                checkpoint=Checkpoint("interrupted", 1),
                interrupt={"ask": "go on?"},
            )
        )

    def settle(
        self, schedule_id: str, run_id: str | None = None, *, status: Any = "completed", **fields: Any
    ) -> list[ev.Event]:
        run = self.state.schedules[schedule_id].run(run_id or self.run_of(schedule_id))
        assert run is not None
        unknown = fields.get("reason") == "outcome-unknown"  # then there was no answer to tell an id or an output
        known = run.server_run_id if unknown else server_id(run.run_id)
        answered = Result(status=status, server_run_id=known, output=fields.pop("output", {"result": "hello"}))
        return self._fold(
            ev.RunSettled(
                at=self.at,
                schedule_id=schedule_id,
                n=self._n(schedule_id),
                run_id=run.run_id,
                instant=run.instant,
                revision=run.revision,
                status=status,
                server_run_id=known,
                result=None if unknown else answered,
                **fields,
            )
        )

    def ran(self, schedule_id: str) -> list[ev.Event]:
        """A whole run, as one batch."""
        return [*self.admit(schedule_id), *self.settle(schedule_id)]


def server_id(run_id: str) -> str:
    """The id that the server gave that run."""
    return f"run_{int(run_id[4:]):032x}"


def durable(state: State) -> Any:
    """What of a state must survive a restart, to be compared: everything but what is live."""
    values = msgspec.to_builtins(
        {
            "schedules": state.schedules,
            "unknown": state.unknown,
            "owners": state.owners,
            "epoch": state.globals.epoch,
            "run_number": state.globals.run_number,
            "decided_until": state.globals.decided_until,
            "slots_used": state.globals.slots_used,
        }
    )
    for schedule in values["schedules"].values():
        for run in schedule.get("runs", ()):
            run.pop("live", None)
    for unknown in values["unknown"].values():
        unknown.pop("live", None)
    return values


def last_n(events: Sequence[ev.Event]) -> dict[str, int]:
    """The last `n` of every schedule in a batch."""
    return {event.schedule_id: event.n for event in events if isinstance(event, ev.ScheduleEvent)}

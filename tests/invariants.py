"""What holds after every turn of the core, whatever the test is about: the invariants of `DESIGN.md`, by number.

Owns: a second state that is fed the events alone (invariant 11), and what must never be seen twice.  Must never know: which test
runs, why an event was decided.

2 none before its instant or its creation; 3 overlap; 5 the watermark; 6 one final row; 7 nothing from a paused span; 9 no call without
its mark; 11 replay; 12 the same plan from a rebuilt agenda, and none right after; 13 slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import events as ev
from scheduler_daemon.core.commands import Plan
from scheduler_daemon.core.decide import decide, next_wake
from scheduler_daemon.core.events import row_of
from scheduler_daemon.core.fold import fold
from scheduler_daemon.core.lifecycle import HOLDS_SLOT
from scheduler_daemon.core.model import FINAL, Now, RunLive, Schedule
from scheduler_daemon.core.state import State


def rebuilt(state: State, now: Now) -> State:
    """The same state with nothing derived kept: what a process would have that lost its agenda."""
    twin = State(state.store_id, state.settings)
    twin.globals = state.globals
    twin.schedules, twin.unknown = dict(state.schedules), dict(state.unknown)
    twin.owners, twin.answers = dict(state.owners), dict(state.answers)
    twin.rebuild_agenda(now)
    return twin


def replayed(events: Sequence[ev.Event], state: State, now: Now) -> State:
    """What recovery makes of a journal."""
    fresh = State(state.store_id, state.settings)
    draft = fresh.draft(now)
    for event in events:
        fold(draft, event)
    draft.merge()
    fresh.rebuild_agenda(now)
    return fresh


class Watch:
    """Sees every turn."""

    def __init__(self, state: State) -> None:
        self._shadow = State(state.store_id, state.settings)
        self._final: set[tuple[str, datetime]] = set()
        self._spans: dict[str, list[tuple[datetime, datetime | None]]] = {}
        self._starts: dict[str, int] = {}
        self._born: dict[str, datetime] = {}

    def restarted(self, journal: Sequence[ev.Event], now: Now) -> State:
        """The state after a crash; the shadow goes on from the same journal."""
        fresh = replayed(journal, self._shadow, now)
        self._shadow = replayed(journal, self._shadow, now)
        return fresh

    def turn(self, state: State, now: Now, plan: Plan, from_rebuilt: Plan | None) -> None:
        """`plan` was merged into `state`; `from_rebuilt` is what a rebuilt agenda made of the same inputs, if it was asked."""
        for event in plan.events:
            self._before(event, now)
            draft = self._shadow.draft(now)
            fold(draft, event)
            draft.merge()
            self._after(event)
        if from_rebuilt is not None:
            _assert_same_plan(plan, from_rebuilt)
        assert _durable(state) == _durable(self._shadow), "11: replay does not give the live state"
        self._assert_calls_are_marked(state, plan)
        _assert_slots(state)
        _assert_quiet(state, now)

    # --- one event ---

    def _before(self, event: ev.Event, now: Now) -> None:
        if not isinstance(event, ev.ScheduleEvent):
            return
        schedule = self._shadow.schedules.get(event.schedule_id)
        known_n = schedule.n if schedule is not None else 0
        assert event.n == known_n + 1, f"the number of {event} is not contiguous"
        row = row_of(event)
        if row is not None and row.status in FINAL and row.instant is not None:
            assert (row.schedule_id, row.instant) not in self._final, f"6: a second final row for {row}"
            self._final.add((row.schedule_id, row.instant))
        if schedule is not None:
            self._assert_new_instant(schedule, event)
            if isinstance(event, ev.RunAdmitted):
                self._assert_admissible(schedule, event, now)

    def _assert_new_instant(self, schedule: Schedule, event: ev.ScheduleEvent) -> None:
        """5: what is decided now lies after the watermark, or is the one held candidate."""
        if isinstance(event, ev.RunAdmitted | ev.CandidateHeld | ev.OccurrenceClosed):
            held = schedule.candidate is not None and schedule.candidate.instant == event.instant
            assert held or event.instant > self._shadow.watermark_of(schedule), f"5: {event} lies behind the watermark"
            assert event.instant not in schedule.taken, f"6: {event} has a row already"

    def _assert_admissible(self, schedule: Schedule, event: ev.RunAdmitted, now: Now) -> None:
        assert schedule.admits, f"a schedule that must not admit did: {event}"
        assert event.instant <= now.at, f"2: {event} before its instant"
        born_at = self._born.get(event.schedule_id, schedule.created_at)
        assert event.instant > born_at, f"2: {event} before the creation"
        assert schedule.blocking_run_id(event.at) is None, f"3: overlap is closed to {event}"
        assert (event.schedule_id, event.instant) not in self._final, f"6: {event} ended already"
        for since, until in self._spans.get(event.schedule_id, ()):
            assert not since < event.instant <= (until or now.at), f"7: {event} lies in a paused span"

    def _after(self, event: ev.Event) -> None:
        if not isinstance(event, ev.ScheduleEvent):
            return
        spans = self._spans.setdefault(event.schedule_id, [])
        if isinstance(event, ev.ScheduleUnblocked) and event.rewound:
            self._born[event.schedule_id] = event.at  # it may have been created under the wrong clock
        match event:
            case ev.SchedulePaused() | ev.ScheduleBlocked() if not spans or spans[-1][1] is not None:
                spans.append((event.at, None))
            case ev.ScheduleResumed() | ev.ScheduleUnblocked() if self._shadow.schedules[event.schedule_id].admits:
                if spans and spans[-1][1] is None:
                    spans[-1] = (spans[-1][0], event.at)
            case ev.DispatchMarked():
                self._starts[event.run_id] = self._starts.get(event.run_id, 0) + 1
                assert self._starts[event.run_id] == 1, f"1: a second first request of {event.run_id}"
            case ev.DispatchNotSent():
                self._starts[event.run_id] -= 1
            case _:
                pass

    # --- one plan ---

    def _assert_calls_are_marked(self, state: State, plan: Plan) -> None:
        runs = {run.run_id: run for schedule in state.schedules.values() for run in schedule.runs}
        for effect in plan.effects:
            if isinstance(effect, cmd.StartCall | cmd.ResumeCall):
                run = runs[effect.run_id]
                assert run.mark is not None, f"9: {effect} without a mark"
                assert run.live.call_seq == effect.seq, f"9: {effect} is not the run's open call"
                if effect.repeat:
                    assert run.mark.server.keyed, f"1: {effect} is sent again to a server without keys"


def _assert_same_plan(plan: Plan, from_rebuilt: Plan) -> None:
    """12.  Questions asked ahead of time are left out: having been asked, or not, is not worth remembering."""
    assert _by_schedule(plan) == _by_schedule(from_rebuilt), "12: another agenda, another plan"
    assert _comparable(plan) == _comparable(from_rebuilt), "12: another agenda, other effects"


def _by_schedule(plan: Plan) -> dict[str | None, list[ev.Event]]:
    """What each schedule has of it.  Who is looked at first does not matter where it leads to the same records and run ids."""
    events: dict[str | None, list[ev.Event]] = {}
    for event in plan.events:
        events.setdefault(event.schedule_id if isinstance(event, ev.ScheduleEvent) else None, []).append(event)
    return events


def _comparable(plan: Plan) -> list[Any]:
    return [
        msgspec.structs.replace(effect, seq=0) for effect in plan.effects if not isinstance(effect, cmd.AskPreflight)
    ]


def _durable(state: State) -> Any:
    schedules = {
        key: msgspec.structs.replace(one, runs=tuple(msgspec.structs.replace(run, live=RunLive()) for run in one.runs))
        for key, one in state.schedules.items()
    }
    unknown = {key: msgspec.structs.replace(one, live=RunLive()) for key, one in state.unknown.items()}
    kept = state.globals
    numbers = (kept.epoch, kept.run_number, kept.decided_until, kept.slots_used, kept.clock_step_s, kept.clock_step_at)
    return schedules, unknown, state.owners, numbers


def _assert_slots(state: State) -> None:
    held = sum(run.phase in HOLDS_SLOT for schedule in state.schedules.values() for run in schedule.runs)
    assert state.globals.slots_used == held, "13: slots are miscounted"


def _assert_quiet(state: State, now: Now) -> None:
    """12: deciding again right away decides nothing, and the next wake lies ahead."""
    draft = state.draft(now)
    again = decide(draft)
    draft.merge()
    assert again.events == [], "12: a decision right after a decision"
    assert again.effects == [], "12: effects right after a decision"
    wake_at, wake_mono = next_wake(state)
    assert wake_at is None or wake_at > now.at, "a hot loop: the next wake is not later than now"
    assert wake_mono is None or wake_mono > now.mono, "a hot loop: the next timer is not later than now"

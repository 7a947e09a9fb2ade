"""What to do now: the wake.

Owns: the order in which due instants are decided and slots are given out.  All branching over schedules lives here; single questions
are answered in `admission`, rows are written in `closing`.  Must never know: what woke it.

A wake does four things.  Timers that ran out are acted on.  Each schedule with something due consumes its instants: late and
overlapping ones get rows, the rest contend.  Contenders and whoever waits in line are admitted, fairest first, as long as slots
last.  `Decided` closes the wake.  Deciding again right away gives an empty plan.
"""

from __future__ import annotations

import heapq
from datetime import datetime, timedelta

from scheduler_daemon.core import events as ev
from scheduler_daemon.core import judging, triggers, upstream
from scheduler_daemon.core.admission import (
    Admit,
    Held,
    Refuse,
    capacity_shut,
    gate,
    is_late,
    late_due,
    on_time_due,
    waiting_now,
)
from scheduler_daemon.core.agenda import FairKey, fair_key, waiting_instant
from scheduler_daemon.core.calendar import CalendarBroken
from scheduler_daemon.core.closing import block, close_candidate, close_due, close_one, end_unsent, lateness, untaken
from scheduler_daemon.core.commands import Plan
from scheduler_daemon.core.dispatching import admit, dispatch
from scheduler_daemon.core.model import Schedule, Waiting
from scheduler_daemon.core.planning import Planner
from scheduler_daemon.core.state import Draft, State

HEARTBEAT = timedelta(seconds=60)
"""How old `Decided` may grow while nothing is due: what a restart may have to look at again.  Source: spec section 5."""

Contenders = list[tuple[FairKey, str, list[datetime]]]


def decide(draft: Draft) -> Plan:
    """Decide everything that is due at `draft.now`."""
    planner = Planner(draft)
    draft.reindex()
    modes = draft.globals
    if not (modes.draining or modes.full):
        _act_on_timers(planner)
        contenders = _consume_due(planner)
        _admit_in_order(planner, contenders)
        if planner.consumed or draft.now.at - modes.decided_until >= HEARTBEAT:
            planner.emit(ev.Decided(at=planner.at, until=planner.at))
        draft.reindex()
        upstream.ask_ahead(planner)
    draft.reindex()
    return planner.plan


def next_wake(state: State) -> tuple[datetime | None, float | None]:
    """When to decide next, by the wall clock and by the monotonic one; None: not before something happens."""
    if state.globals.draining or state.globals.full:
        return None, None
    look_at, look_mono = state.agenda.next_look()
    heartbeat_at = state.globals.decided_until + HEARTBEAT
    return (heartbeat_at if look_at is None else min(look_at, heartbeat_at)), look_mono


def settled_until(draft: Draft) -> datetime:
    """Up to when everything is decided already, without deciding anything more: what a stop may write down."""
    overdue = draft.agenda.overdue()
    until = draft.now.at if overdue is None else min(draft.now.at, overdue - timedelta(microseconds=1))
    return max(until, draft.globals.decided_until)


def _act_on_timers(planner: Planner) -> None:
    """Everything that waited for monotonic time: the probe, backoffs, looks at runs."""
    for kind, subject in planner.draft.agenda.timers(planner.mono):
        match kind:
            case "server":
                upstream.probe(planner)
            case "deployment":
                upstream.retry(planner, subject)
            case "run":
                judging.look(planner, subject)
            case _:
                judging.look_unknown(planner, subject)


# --- consuming instants -----------------------------------------------------------------------------------------------


def _consume_due(planner: Planner) -> Contenders:
    """Every schedule with something due decides its instants; what may still run is returned, one entry per schedule."""
    contenders: Contenders = []
    for schedule_id in planner.draft.agenda.due(planner.at):
        planner.draft.touch(schedule_id)
        schedule = planner.draft.schedules.get(schedule_id)
        if schedule is None or not schedule.admits:
            continue
        try:
            fresh = _consume_skip(planner, schedule) if schedule.definition.misfire == "skip" else _consume_latest(planner, schedule)
        except CalendarBroken as broken:
            block(planner, schedule_id, "calendar-broken", str(broken))
            continue
        if fresh:
            planner.consumed = True
            contenders.append((fair_key(planner.schedule(schedule_id), fresh[0]), schedule_id, fresh))
    return contenders


def _consume_skip(planner: Planner, schedule: Schedule) -> list[datetime]:
    """`misfire: skip`: late is missed; on time contends, oldest first, unless overlap is closed."""
    draft, schedule_id = planner.draft, schedule.definition.schedule_id
    late, on_time = late_due(draft, schedule), untaken(schedule, on_time_due(draft, schedule))
    _expire_held(planner, schedule)
    if late.instants:
        close_due(planner, schedule_id, late, "skipped-misfire", "late")
    if not on_time:
        return []
    schedule = planner.schedule(schedule_id)
    blocking_run_id = schedule.blocking_run_id(planner.at)
    if blocking_run_id is not None:
        _skip_overlapping(planner, schedule_id, list(on_time), blocking_run_id)
        return []
    held = [schedule.candidate.instant] if schedule.candidate is not None and schedule.candidate.instant <= planner.at else []
    return [*held, *on_time]


def _expire_held(planner: Planner, schedule: Schedule) -> None:
    """A candidate and an unsent run are missed once they are late, for the reason that kept them."""
    draft, schedule_id = planner.draft, schedule.definition.schedule_id
    end_unsent(planner, schedule_id, "skipped-misfire", "not-sent", which=lambda run: is_late(draft, schedule, run.instant))
    candidate = schedule.candidate
    if candidate is not None and is_late(draft, schedule, candidate.instant):
        why = waiting_now(draft, schedule, candidate.waiting)
        close_candidate(planner, schedule_id, "skipped-misfire", why, lateness(planner.at, candidate.instant))


def _consume_latest(planner: Planner, schedule: Schedule) -> list[datetime]:
    """`misfire: latest`: only the newest due instant contends; everything older gives way to it."""
    draft, schedule_id = planner.draft, schedule.definition.schedule_id
    trigger, watermark = schedule.definition.trigger, planner.draft.watermark_of(schedule)
    newest = triggers.due(trigger, watermark, planner.at).last
    while newest is not None and newest in schedule.taken:
        newest = triggers.due_before(trigger, watermark, newest).last
    if newest is None:
        return []
    older = triggers.due_before(trigger, watermark, newest)
    end_unsent(planner, schedule_id, "superseded", "newer-instant")
    close_candidate(planner, schedule_id, "superseded", "newer-instant")
    if older.instants:
        close_due(planner, schedule_id, older, "coalesced", "newer-instant")
    draft.touch(schedule_id)
    return [newest]


def _skip_overlapping(planner: Planner, schedule_id: str, instants: list[datetime], blocking_run_id: str) -> None:
    for instant in instants:
        close_one(planner, schedule_id, instant, "skipped-overlap", "overlap", blocking_run_id=blocking_run_id)


# --- giving out slots -------------------------------------------------------------------------------------------------


def _admit_in_order(planner: Planner, contenders: Contenders) -> None:
    """Fairest first over those just due and those in line; who is not admitted is held, or stays in line."""
    heapq.heapify(contenders)
    planner.draft.reindex()
    while True:
        from_line = _line_is_next(planner, contenders)
        if from_line:
            _admit_from_line(planner)
        elif contenders:
            _, schedule_id, instants = heapq.heappop(contenders)
            left = _contend(planner, schedule_id, instants)
            if left:
                heapq.heappush(contenders, (fair_key(planner.schedule(schedule_id), left[0]), schedule_id, left))
        else:
            return


def _line_is_next(planner: Planner, contenders: Contenders) -> bool:
    if capacity_shut(planner.draft) is not None:
        return False
    first = planner.draft.agenda.first_in_line()
    return first is not None and (not contenders or first < contenders[0][0])


def _admit_from_line(planner: Planner) -> None:
    """The first in line is dispatched, refused, or sent to wait for its deployment's answer."""
    draft = planner.draft
    schedule_id = draft.agenda.next_in_line()
    if schedule_id is None:
        return
    draft.touch(schedule_id)
    schedule = draft.schedules[schedule_id]
    instant = waiting_instant(schedule, planner.at, planner.mono)
    if instant is None:
        return
    unsent = next((run for run in schedule.runs if run.phase == "admitted" and run.instant == instant), None)
    if unsent is not None:
        dispatch(planner, unsent)
        return
    previous_at = schedule.candidate.previous_instant if schedule.candidate is not None else None
    verdict = gate(draft, schedule, instant, previous_at)
    match verdict:
        case Admit():
            admit(planner, schedule, instant, verdict.workflow_input, verdict.answer)
        case Refuse():
            _reject(planner, schedule_id, instant, verdict)
        case Held():
            _wait_for_answer(planner, schedule, verdict)


def _contend(planner: Planner, schedule_id: str, instants: list[datetime]) -> list[datetime]:
    """The oldest of these is admitted or refused, and the rest is returned to contend again; or the newest is held."""
    draft, instant = planner.draft, instants[0]
    schedule = draft.schedules[schedule_id]
    verdict = gate(draft, schedule, instant, _previous_at(schedule, instant))
    match verdict:
        case Admit():
            admit(planner, schedule, instant, verdict.workflow_input, verdict.answer)
        case Refuse():
            _reject(planner, schedule_id, instant, verdict)
        case Held():
            _hold_newest(planner, schedule, instants, verdict.waiting)
            _wait_for_answer(planner, schedule, verdict)
            return []
    left = instants[1:]
    blocking_run_id = draft.schedules[schedule_id].blocking_run_id(planner.at)
    if left and blocking_run_id is not None:
        _skip_overlapping(planner, schedule_id, left, blocking_run_id)
        return []
    return left


def _previous_at(schedule: Schedule, instant: datetime) -> datetime | None:
    """The instant of the newest earlier row; a held candidate had it pinned when it was held."""
    if schedule.candidate is not None and schedule.candidate.instant == instant:
        return schedule.candidate.previous_instant
    return schedule.row_last_at


def _hold_newest(planner: Planner, schedule: Schedule, instants: list[datetime], waiting: Waiting) -> None:
    """One candidate at most: the newest.  One held since an earlier wake is superseded, those of this wake are coalesced."""
    schedule_id, newest = schedule.definition.schedule_id, instants[-1]
    held = schedule.candidate
    if held is not None and held.instant == newest:
        return
    close_candidate(planner, schedule_id, "superseded", "newer-instant")
    for instant in instants[:-1]:
        if held is None or instant != held.instant:
            close_one(planner, schedule_id, instant, "coalesced", "newer-instant")
    planner.emit(
        ev.CandidateHeld(
            at=planner.at,
            schedule_id=schedule_id,
            n=planner.next_n(schedule_id),
            instant=newest,
            waiting=waiting,
            previous_instant=planner.schedule(schedule_id).row_last_at,
        )
    )


def _reject(planner: Planner, schedule_id: str, instant: datetime, verdict: Refuse) -> None:
    detail = {"diagnostics": list(verdict.diagnostics)}
    close_one(planner, schedule_id, instant, "preflight-rejected", "preflight", detail=detail)


def _wait_for_answer(planner: Planner, schedule: Schedule, verdict: Held) -> None:
    """Stand aside until the deployment's answer is there, so that nobody behind waits for it too."""
    if verdict.ask:
        deployment_id = schedule.definition.deployment_id
        upstream.ask(planner, deployment_id)
        planner.draft.agenda.park(deployment_id, schedule.definition.schedule_id)

"""What to do now: the wake.

Owns: the order in which due instants are decided and slots are given out.  All branching over schedules lives here; single questions
are answered in `admission`, rows are written in `closing`.  Must never know: what woke it.

A wake does four things.  Timers that ran out are acted on.  Each schedule with something due consumes its instants: late and
overlapping ones get rows, the rest contend.  Contenders and whoever waits in line are admitted, fairest first, as long as slots
last.  `Decided` closes the wake.  Deciding again right away gives an empty plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from datetime import datetime, timedelta

from scheduler_daemon.core import events as ev
from scheduler_daemon.core import judging, upstream
from scheduler_daemon.core.admission import (
    Admit,
    Held,
    Refuse,
    capacity_shut,
    due_by_lateness,
    gate,
    is_late,
    newest_due,
    waiting_now,
)
from scheduler_daemon.core.agenda import FairKey, Timer, fair_key, waiting
from scheduler_daemon.core.closing import (
    block_for_fault,
    close_all,
    close_candidate,
    close_due,
    close_one,
    end_unsent,
    lateness,
)
from scheduler_daemon.core.commands import Plan
from scheduler_daemon.core.dispatching import admit, dispatch
from scheduler_daemon.core.faults import SCHEDULE_FAULTS
from scheduler_daemon.core.model import Run, Schedule, Waiting
from scheduler_daemon.core.planning import Planner
from scheduler_daemon.core.state import Draft, State

HEARTBEAT = timedelta(seconds=60)
"""How old `Decided` may grow while nothing is due: what a restart may have to look at again.  Source: spec section 5."""

WRITTEN_MAX = 256
"""How many schedules that are due at once are all written down in one wake.  More stand in line first, so that the writing of ten
thousand candidates does not delay the first start."""

_TICK = timedelta(microseconds=1)
Contender = tuple[FairKey, str, Sequence[datetime]]


def decide(draft: Draft) -> Plan:
    """Decide everything that is due at `draft.now`."""
    planner = Planner(draft)
    draft.reindex()
    modes = draft.globals
    if not (modes.draining or modes.full):
        _act_on_timers(planner)
        contest = _Contest(_consume_due(planner))
        draft.reindex()
        _admit_in_order(planner, contest)
        if planner.consumed or draft.now.at - modes.decided_until >= HEARTBEAT:
            _note_decided(planner)
        draft.reindex()
        upstream.ask_ahead(planner)
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
    until = draft.now.at if overdue is None else min(draft.now.at, overdue - _TICK)
    return max(until, draft.globals.decided_until)


def _note_decided(planner: Planner) -> None:
    """Say how far everything is decided: up to now, or up to the first instant that stands, if that says anything new."""
    draft = planner.draft
    stands_at = draft.agenda.oldest_standing()
    until = planner.at if stands_at is None else min(planner.at, stands_at - _TICK)
    if stands_at is None or until > draft.globals.decided_until:
        planner.emit(ev.Decided(at=planner.at, until=until))


# --- monotonic time ---------------------------------------------------------------------------------------------------


def _act_on_timers(planner: Planner) -> None:
    """Everything that waited for monotonic time: the probe, backoffs, looks at runs; and what these set off at once.

    It ends: whatever acts on a timer moves it later or drops it.
    """
    while timers := planner.draft.agenda.timers(planner.mono):
        for timer in timers:
            try:
                _act_on_timer(planner, timer)
            except SCHEDULE_FAULTS as fault:
                _block_owner(planner, timer, fault)
        planner.draft.reindex()


def _act_on_timer(planner: Planner, timer: Timer) -> None:
    kind, subject = timer
    match kind:
        case "server":
            upstream.probe(planner)
        case "deployment":
            upstream.retry(planner, subject)
        case "run":
            judging.look(planner, subject)
        case _:
            judging.look_unknown(planner, subject)


def _block_owner(planner: Planner, timer: Timer, fault: Exception) -> None:
    schedule_id = planner.draft.owners.get(timer[1])
    if schedule_id is None:
        raise fault
    block_for_fault(planner, schedule_id, fault)


# --- consuming instants -----------------------------------------------------------------------------------------------


def _consume_due(planner: Planner) -> list[Contender]:
    """Every schedule with something due decides its instants; what may still run is returned, one entry per schedule."""
    contenders: list[Contender] = []
    agenda = planner.draft.agenda
    due = agenda.due(planner.at)
    if len(due) > WRITTEN_MAX:
        due = agenda.stand(planner.draft, due)
    due += agenda.stood_long(planner.at)
    for schedule_id in due:
        schedule = planner.draft.schedules.get(schedule_id)
        if schedule is None or not schedule.admits:
            continue
        try:
            fresh = _consume(planner, schedule)
        except SCHEDULE_FAULTS as fault:
            block_for_fault(planner, schedule_id, fault)
            continue
        if fresh:
            planner.consumed = True
            contenders.append((fair_key(planner.schedule(schedule_id), fresh[0]), schedule_id, fresh))
        else:
            planner.draft.touch(schedule_id)
    return contenders


def _consume(planner: Planner, schedule: Schedule) -> Sequence[datetime]:
    if schedule.definition.misfire == "skip":
        return _consume_skip(planner, schedule)
    return _consume_latest(planner, schedule)


def _consume_skip(planner: Planner, schedule: Schedule) -> Sequence[datetime]:
    """`misfire: skip`: late is missed; on time contends, oldest first, unless overlap is closed."""
    schedule_id = schedule.definition.schedule_id
    late, on_time = due_by_lateness(planner.draft, schedule)
    _expire_held(planner, schedule)
    if late.instants:
        close_due(planner, schedule_id, late, "skipped-misfire", "late")
    if not on_time:
        return ()
    schedule = planner.schedule(schedule_id)
    blocking_run_id = schedule.blocking_run_id(planner.at)
    if blocking_run_id is not None:
        close_all(planner, schedule_id, on_time, "skipped-overlap", "overlap", blocking_run_id=blocking_run_id)
        return ()
    held = schedule.candidate
    return on_time if held is None or held.instant > planner.at else [held.instant, *on_time]


def _expire_held(planner: Planner, schedule: Schedule) -> None:
    """A candidate and an unsent run are missed once they are late, for the reason that kept them."""
    draft, schedule_id = planner.draft, schedule.definition.schedule_id
    end_unsent(
        planner, schedule_id, "skipped-misfire", "not-sent", which=lambda run: is_late(draft, schedule, run.instant)
    )
    candidate = schedule.candidate
    if candidate is not None and is_late(draft, schedule, candidate.instant):
        why = waiting_now(draft, schedule, candidate.waiting)
        close_candidate(planner, schedule_id, "skipped-misfire", why, lateness(planner.at, candidate.instant))


def _consume_latest(planner: Planner, schedule: Schedule) -> Sequence[datetime]:
    """`misfire: latest`: only the newest due instant contends; everything older gives way to it."""
    schedule_id = schedule.definition.schedule_id
    newest, older = newest_due(planner.draft, schedule)
    if newest is None:
        return ()
    end_unsent(planner, schedule_id, "superseded", "newer-instant", which=lambda run: run.instant < newest)
    close_candidate(planner, schedule_id, "superseded", "newer-instant")
    if older.instants:
        close_due(planner, schedule_id, older, "coalesced", "newer-instant")
    return (newest,)


# --- giving out slots -------------------------------------------------------------------------------------------------


class _Contest:
    """Who was just due, fairest first; whoever has more than one instant comes again, behind those who had none.

    Sorted once, because due schedules arrive nearly in order; only the few that come again cost a heap.
    """

    def __init__(self, contenders: list[Contender]) -> None:
        self._once = sorted(contenders, reverse=True)
        self._again: list[Contender] = []

    def first(self) -> FairKey | None:
        tops = [rest[end][0] for rest, end in ((self._once, -1), (self._again, 0)) if rest]
        return min(tops) if tops else None

    def take(self) -> Contender:
        if self._again and (not self._once or self._again[0] < self._once[-1]):
            return heapq.heappop(self._again)
        return self._once.pop()

    def put_back(self, contender: Contender) -> None:
        heapq.heappush(self._again, contender)


def _admit_in_order(planner: Planner, contest: _Contest) -> None:
    """Fairest first over those just due and those in line; who is not admitted is held, or stays in line."""
    while True:
        first = contest.first()
        in_line = planner.draft.agenda.first_in_line() if capacity_shut(planner.draft) is None else None
        if in_line is not None and (first is None or in_line < first):
            schedule_id, instants = in_line[-1], ()
            planner.draft.agenda.leave_line(schedule_id)
        elif first is not None:
            _, schedule_id, instants = contest.take()
        else:
            return
        try:
            left = _contend(planner, schedule_id, instants) if instants else _admit_from_line(planner, schedule_id)
        except SCHEDULE_FAULTS as fault:
            block_for_fault(planner, schedule_id, fault)
            continue
        if in_line is not None and not instants:
            planner.draft.reindex()
        if left:
            contest.put_back((fair_key(planner.schedule(schedule_id), left[0]), schedule_id, left))


def _admit_from_line(planner: Planner, schedule_id: str) -> Sequence[datetime]:
    """The first in line is dispatched, refused, or sent to wait for its deployment's answer; it has nothing left to contend."""
    draft = planner.draft
    draft.touch(schedule_id)
    schedule = draft.schedules[schedule_id]
    first = waiting(schedule, planner.at, planner.mono)
    if isinstance(first, Run):
        dispatch(planner, first)
        return ()
    instant = draft.agenda.standing_at(schedule_id) if first is None else first.instant
    if instant is None or instant > planner.at:  # the clock may have gone back since it began to stand
        return ()
    verdict = gate(draft, schedule, instant, _previous_at(schedule, instant))
    match verdict:
        case Admit():
            planner.consumed = planner.consumed or first is None
            admit(planner, schedule, instant, verdict.workflow_input, verdict.answer)
        case Refuse():
            _reject(planner, schedule_id, instant, verdict)
        case Held():
            _wait_for_answer(planner, schedule, verdict)
    return ()


def _contend(planner: Planner, schedule_id: str, instants: Sequence[datetime]) -> Sequence[datetime]:
    """The oldest of these is admitted or refused, and the rest is returned to contend again; or the newest is held."""
    draft, instant = planner.draft, instants[0]
    draft.touch(schedule_id)
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
            return ()
    left = instants[1:]
    blocking_run_id = draft.schedules[schedule_id].blocking_run_id(planner.at)
    if left and blocking_run_id is not None:
        close_all(planner, schedule_id, left, "skipped-overlap", "overlap", blocking_run_id=blocking_run_id)
        return ()
    return left


def _previous_at(schedule: Schedule, instant: datetime) -> datetime | None:
    """The instant of the newest earlier row; a held candidate had it pinned when it was held.

    After a wrong clock there are rows of later instants: none of them is the previous one of this.
    """
    if schedule.candidate is not None and schedule.candidate.instant == instant:
        return schedule.candidate.previous_instant
    last = schedule.row_last_at
    return last if last is not None and last < instant else None


def _hold_newest(planner: Planner, schedule: Schedule, instants: Sequence[datetime], waiting_for: Waiting) -> None:
    """One candidate at most: the newest.  One held since an earlier wake is superseded, those of this wake are coalesced."""
    schedule_id, newest = schedule.definition.schedule_id, instants[-1]
    held = schedule.candidate
    if held is not None and held.instant == newest:
        return
    close_candidate(planner, schedule_id, "superseded", "newer-instant")
    dropped = [instant for instant in instants[:-1] if held is None or instant != held.instant]
    if dropped:
        close_all(planner, schedule_id, dropped, "coalesced", "newer-instant")
    planner.emit(
        ev.CandidateHeld(
            at=planner.at,
            schedule_id=schedule_id,
            n=planner.next_n(schedule_id),
            instant=newest,
            waiting=waiting_for,
            previous_instant=_previous_at(planner.schedule(schedule_id), newest),
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

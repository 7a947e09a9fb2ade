"""Instants that will never run: which rows say so, and what ends with them.

Owns: the row, or the rows, or the one summary row, for missed and superseded instants; the end of held candidates and of unsent runs.
Must never know: whether an instant should have run; whoever calls has decided that.

The rows of one wake are bounded: up to `ROWS_MAX` instants have a row each, more share one.  Source: spec section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from scheduler_daemon.core import events as ev
from scheduler_daemon.core import triggers
from scheduler_daemon.core.calendar import Due
from scheduler_daemon.core.faults import SCHEDULE_FAULTS, code_of
from scheduler_daemon.core.lifecycle import Contradiction
from scheduler_daemon.core.model import Diagnostic, Json, Run, Status
from scheduler_daemon.core.planning import Planner

NEVER_SENT = "never-sent"
"""The reason in words for a run whose request provably never left: no effect happened."""


def close_one(
    planner: Planner,
    schedule_id: str,
    instant: datetime,
    status: Status,
    reason: str,
    *,
    blocking_run_id: str | None = None,
    detail: dict[str, Json] | None = None,
) -> None:
    """One instant gets its final row."""
    planner.consumed = True
    planner.emit(
        ev.OccurrenceClosed(
            at=planner.at,
            schedule_id=schedule_id,
            n=planner.next_n(schedule_id),
            instant=instant,
            status=status,
            reason=reason,
            revision=planner.schedule(schedule_id).revision,
            blocking_run_id=blocking_run_id,
            detail=detail,
        )
    )


def close_due(planner: Planner, schedule_id: str, due: Due, status: Status, reason: str) -> None:
    """All that are due and have no row yet get rows."""
    instants = planner.schedule(schedule_id).untaken(due.instants)
    close_all(planner, schedule_id, instants, status, reason, last_at=due.last_at if due.at_least else None)


def close_all(
    planner: Planner,
    schedule_id: str,
    instants: Sequence[datetime],
    status: Status,
    reason: str,
    *,
    last_at: datetime | None = None,
    blocking_run_id: str | None = None,
) -> None:
    """All of these get rows: one each, or together one summary.  `last_at` given: there are more, up to that one."""
    if len(instants) > triggers.ROWS_MAX:
        close_range(planner, schedule_id, instants, status, reason, last_at=last_at, blocking_run_id=blocking_run_id)
        return
    for instant in instants:
        late = lateness(planner.at, instant) if status == "skipped-misfire" else None
        close_one(planner, schedule_id, instant, status, reason, blocking_run_id=blocking_run_id, detail=late)


def close_range(
    planner: Planner,
    schedule_id: str,
    instants: Sequence[datetime],
    status: Status,
    reason: str,
    *,
    last_at: datetime | None = None,
    blocking_run_id: str | None = None,
) -> None:
    """These instants share one row, which counts exactly up to `COUNT_MAX`."""
    if not instants:
        return
    planner.consumed = True
    planner.emit(
        ev.RangeClosed(
            at=planner.at,
            schedule_id=schedule_id,
            n=planner.next_n(schedule_id),
            first_instant=instants[0],
            last_instant=last_at if last_at is not None else instants[-1],
            count=min(len(instants), triggers.COUNT_MAX),
            at_least=last_at is not None or len(instants) > triggers.COUNT_MAX,
            status=status,
            reason=reason,
            revision=planner.schedule(schedule_id).revision,
            blocking_run_id=blocking_run_id,
        )
    )


def lateness(at: datetime, instant: datetime) -> dict[str, Json]:
    """How late, in seconds, for a row's detail."""
    return {"lateness_s": round((at - instant).total_seconds(), 3)}


def close_candidate(
    planner: Planner, schedule_id: str, status: Status, reason: str, detail: dict[str, Json] | None = None
) -> None:
    """The held candidate, if there is one, will not run."""
    candidate = planner.schedule(schedule_id).candidate
    if candidate is not None:
        close_one(planner, schedule_id, candidate.instant, status, reason, detail=detail)


def end_unsent(
    planner: Planner, schedule_id: str, status: Status, reason: str, which: Callable[[Run], bool] | None = None
) -> None:
    """Admitted runs whose request never left end without effect; their rows say so."""
    for run in planner.schedule(schedule_id).runs:
        if run.phase == "admitted" and (which is None or which(run)):
            settle_unsent(planner, run, status, reason)


def settle_unsent(planner: Planner, run: Run, status: Status, reason: str) -> None:
    """One unsent run ends as a candidate would, and says that nothing happened."""
    detail: dict[str, Json] = {"sent": NEVER_SENT, "message": "no effect happened"}
    if status == "skipped-misfire":
        detail |= lateness(planner.at, run.instant)
    planner.emit(
        ev.RunSettled(
            at=planner.at,
            schedule_id=run.schedule_id,
            n=planner.next_n(run.schedule_id),
            run_id=run.run_id,
            instant=run.instant,
            revision=run.revision,
            status=status,
            reason=reason,
            detail=detail,
        )
    )


def close_span(planner: Planner, schedule_id: str, reason: str) -> None:
    """Consume (watermark, now] before a pause, block, deletion or trigger change; or the span that a pause or block has lasted.

    A calendar that raises here must not stand in the way of stopping the schedule it broke: the span then has no row.
    """
    schedule = planner.schedule(schedule_id)
    if schedule.admits:
        end_unsent(planner, schedule_id, "superseded", reason)
        close_candidate(planner, schedule_id, "superseded", reason)
    after = (
        schedule.span_at
        if not schedule.admits and schedule.span_at is not None
        else planner.draft.watermark_of(schedule)
    )
    try:
        due = triggers.due(schedule.definition.trigger, after, planner.at)
    except SCHEDULE_FAULTS as fault:
        planner.log("calendar_broken", "error", schedule_id=schedule_id, reason=str(fault))
        return
    if schedule.admits:
        close_due(planner, schedule_id, due, "superseded", reason)
    else:
        ruling = "blocked" if schedule.blocked else "paused"
        last_at = due.last_at if due.at_least else None
        close_range(planner, schedule_id, schedule.untaken(due.instants), "superseded", ruling, last_at=last_at)


def block(planner: Planner, schedule_id: str, code: str, message: str, **data: Json) -> None:
    """Stop one schedule with a diagnostic, once per cause; no other schedule notices.

    A pause that it falls into ends as a span of its own, with its row; a block that lasts already goes on.
    """
    schedule = planner.draft.schedules.get(schedule_id)
    if (
        schedule is None
        or schedule.deleted
        or any(known.code == code and known.data == data for known in schedule.diagnostics)
    ):
        return
    if not schedule.blocked:
        close_span(planner, schedule_id, "blocked")
    planner.emit(
        ev.ScheduleBlocked(
            at=planner.at,
            schedule_id=schedule_id,
            n=planner.next_n(schedule_id),
            revision=planner.schedule(schedule_id).revision + 1,
            diagnostic=Diagnostic(code, message, planner.at, data),
        )
    )
    planner.log("schedule_blocked", "error", schedule_id=schedule_id, code=code, reason=message, **data)


def block_for_fault(planner: Planner, schedule_id: str, fault: Exception) -> None:
    """Deciding about one schedule failed: it alone stops."""
    code, words = code_of(fault), f"{type(fault).__name__}: {fault}"
    planner.log("schedule_fault", "error", schedule_id=schedule_id, code=code, reason=words)
    block(planner, schedule_id, code, words, **_contradictory_run(planner, schedule_id, fault))


def _contradictory_run(planner: Planner, schedule_id: str, fault: Exception) -> dict[str, Json]:
    """The run that the fault is about, by which an unblock finds it."""
    schedule = planner.draft.schedules.get(schedule_id)
    if schedule is None or not isinstance(fault, Contradiction) or schedule.run(fault.subject) is None:
        return {}
    return {"run_id": fault.subject}

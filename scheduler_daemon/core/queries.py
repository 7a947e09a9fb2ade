"""What callers are shown.

Owns: the payload of a schedule, the pages of lists, the synthesised `pending` row.  Must never know: JSON-RPC, files.  Reads committed
state or a draft alike, through the few attributes both have.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from scheduler_daemon.core import triggers
from scheduler_daemon.core.admission import capacity_shut
from scheduler_daemon.core.faults import SCHEDULE_FAULTS
from scheduler_daemon.core.model import (
    Candidate,
    Definition,
    Diagnostic,
    Json,
    Now,
    OneShot,
    Row,
    Run,
    Schedule,
    ScheduleStatus,
    Trigger,
)

UPCOMING = 5

BEHIND = timedelta(seconds=120)
"""How far the watermark may lie ahead of the clock before an operator must say what is true.  Source: spec section 5."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """An unfinished run as shown: `ambiguous` says that a request was sent and its outcome is not known yet."""

    run_id: str
    instant: datetime
    status: str
    revision: int
    admitted_at: datetime
    deployment_id: str
    ambiguous: bool
    server_run_id: str | None = None
    attempt: int = 0
    interrupt: Json = None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of `workflow.schedules.get`.  Times are RFC 3339 UTC."""

    schedule_id: str
    deployment_id: str
    trigger: Trigger
    input: dict[str, Json]
    overlap: str
    max_active_runs: int | None
    misfire: str
    lateness_s: int | None
    max_steps: int | None
    hold_unknown_s: float
    run_timeout_s: float | None
    revision: int
    state: ScheduleStatus
    paused: bool
    blocked: bool
    deleted: bool
    note: str | None
    created_at: datetime
    updated_at: datetime
    watermark: datetime
    next_instants: tuple[datetime, ...]
    candidate: Candidate | None
    active_runs: tuple[RunView, ...]
    ambiguous_runs: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    warnings: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


def state_of(schedule: Schedule, watermark: datetime) -> ScheduleStatus:
    """The first that holds of deleted, blocked, paused, finished, active.  Source: spec section 3."""
    if schedule.deleted:
        return "deleted"
    if schedule.blocked:
        return "blocked"
    if schedule.paused:
        return "paused"
    return "finished" if _finished(schedule, watermark) else "active"


def _finished(schedule: Schedule, watermark: datetime) -> bool:
    trigger = schedule.definition.trigger
    waiting = schedule.candidate is not None or any(run.phase == "admitted" for run in schedule.runs)
    return isinstance(trigger, OneShot) and trigger.at <= watermark and not waiting


def schedule_view(
    view: Any, schedule_id: str, warnings: tuple[str, ...] | None = None, now: Now | None = None
) -> ScheduleView:
    """Everything about one schedule.  `view` is a draft, or a state together with `now`."""
    schedule: Schedule = view.schedules[schedule_id]
    at: datetime = now.at if now is not None else view.now.at
    watermark: datetime = view.watermark_of(schedule)
    definition: Definition = schedule.definition
    return ScheduleView(
        **msgspec.structs.asdict(definition),
        revision=schedule.revision,
        state=state_of(schedule, watermark),
        paused=schedule.paused,
        blocked=schedule.blocked,
        deleted=schedule.deleted,
        note=schedule.note,
        created_at=schedule.created_at,
        updated_at=schedule.updated_at,
        watermark=watermark,
        next_instants=_next_instants(schedule, watermark, at),
        candidate=candidate_of(view, schedule),
        active_runs=tuple(run_view(run) for run in schedule.runs),
        ambiguous_runs=tuple(run.run_id for run in schedule.runs if run.phase == "ambiguous"),
        diagnostics=(*schedule.diagnostics, *clock_behind(schedule, watermark, at)),
        warnings=msgspec.UNSET if warnings is None else warnings,
    )


def _next_instants(schedule: Schedule, watermark: datetime, at: datetime) -> tuple[datetime, ...]:
    """What it would fire at next; for a paused schedule, what it would fire at if it were resumed now."""
    if schedule.deleted:
        return ()
    try:
        return triggers.upcoming(schedule.definition.trigger, max(watermark, at), UPCOMING)
    except SCHEDULE_FAULTS:
        return ()


def clock_behind(schedule: Schedule, watermark: datetime, at: datetime) -> tuple[Diagnostic, ...]:
    """A watermark far ahead of the clock: the clock was wrong once, and until an operator says so nothing fires."""
    if schedule.deleted or watermark - at <= BEHIND:
        return ()
    message = f"everything up to {watermark.isoformat()} counts as decided, but the clock says {at.isoformat()}; unblock sets it back"
    return (Diagnostic("clock-behind", message, at),)


def run_view(run: Run) -> RunView:
    """One unfinished run; what the server knows beside it is not invented here."""
    return RunView(
        run_id=run.run_id,
        instant=run.instant,
        status="running" if run.phase == "ambiguous" else run.phase,
        revision=run.revision,
        admitted_at=run.admitted_at,
        deployment_id=run.deployment_id,
        ambiguous=run.phase == "ambiguous",
        server_run_id=run.server_run_id,
        attempt=run.attempts,
        interrupt=run.interrupt if run.phase == "interrupted" else None,
    )


def candidate_of(view: Any, schedule: Schedule) -> Candidate | None:
    """The held candidate, or the instant that stands in line and is not written down yet."""
    stands_at = view.agenda.standing_at(schedule.definition.schedule_id)
    if schedule.candidate is not None or stands_at is None:
        return schedule.candidate
    return Candidate(stands_at, stands_at, capacity_shut(view) or "preflight-pending")


def pending_row(view: Any, schedule: Schedule) -> Row | None:
    """The candidate as a row; synthesised, never stored."""
    held = candidate_of(view, schedule)
    if held is None:
        return None
    return Row(
        n=0,
        schedule_id=schedule.definition.schedule_id,
        status="pending",
        at=held.held_at,
        instant=held.instant,
        reason=held.waiting,
        revision=schedule.revision,
    )


def list_ids(
    view: Any, *, after: str | None, limit: int, include_deleted: bool, deployment_id: str | None, state: str | None
) -> tuple[list[str], str | None]:
    """One page of schedule ids in order of id, and the id to go on after (None at the end)."""
    found: list[str] = []
    ids: list[str] = list(view.schedules.keys())
    for schedule_id in sorted(ids if after is None else (one for one in ids if one > after)):
        schedule: Schedule = view.schedules[schedule_id]
        if schedule.deleted and not (include_deleted or state == "deleted"):
            continue
        if deployment_id is not None and schedule.definition.deployment_id != deployment_id:
            continue
        if state is not None and state_of(schedule, view.watermark_of(schedule)) != state:
            continue
        if len(found) == limit:
            return found, found[-1]
        found.append(schedule_id)
    return found, None

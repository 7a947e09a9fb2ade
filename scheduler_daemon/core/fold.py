"""What an event means: the only code that changes the state, live and at recovery alike.

Owns: one small function per event and per note.  Must never know: why it was decided, when "now" is (an event brings its own
`at`), the calendar.  Folding the same events again gives the same state, which is all that recovery does.

Every step of an occurrence goes through `lifecycle.after`, so that a contradiction in a journal raises here and nowhere later.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from scheduler_daemon.core import events as ev
from scheduler_daemon.core import lifecycle
from scheduler_daemon.core.live import ServerView
from scheduler_daemon.core.model import Candidate, Closing, Hold, Run, RunLive, Schedule, UnknownRun
from scheduler_daemon.core.state import EPOCH_AT, Draft


def fold(draft: Draft, event: ev.Event) -> None:
    """Apply one durable event.  Raises `lifecycle.Contradiction` when the table does not list it."""
    _FOLDS[type(event)](draft, event)


def note(draft: Draft, live: ev.Note) -> None:
    """Apply one unjournalled change of the live view, and keep the agenda true to it."""
    match live:
        case ev.RunNoted():
            _note_run(draft, live)
        case ev.ServerNoted():
            draft.globals.server = live.server
            draft.agenda.index_server(live.server)
        case ev.AnswerNoted():
            draft.answers[live.answer.deployment_id] = live.answer
            draft.agenda.index_answer(live.answer)
        case ev.ModeNoted():
            draft.globals.draining, draft.globals.full = live.draining, live.full


# --- the whole daemon -------------------------------------------------------------------------------------------------


def _epoch_started(draft: Draft, event: ev.EpochStarted) -> None:
    """A new process: calls that were open are ambiguous, and what was known of the server is not any more."""
    known = draft.globals
    known.epoch, known.server, known.draining, known.full = event.epoch, ServerView(), False, False
    draft.agenda.index_server(draft.globals.server)
    for answer in list(draft.answers.keys()):
        draft.answers.pop(answer)
    for schedule in list(draft.schedules.values()):
        if schedule.runs:
            draft.put(replace(schedule, runs=tuple(_after_restart(run) for run in schedule.runs)))
    for unknown in list(draft.unknown.values()):
        forgotten = replace(unknown, live=RunLive())
        draft.unknown[unknown.run_id] = forgotten
        draft.agenda.index_unknown(forgotten)


def _after_restart(run: Run) -> Run:
    if run.phase not in lifecycle.HOLDS_SLOT:
        return replace(run, live=RunLive())
    lifecycle.after(run.phase, "EpochStarted", run.run_id)
    return replace(run, phase="ambiguous", live=RunLive())


def _decided(draft: Draft, event: ev.Decided) -> None:
    draft.globals.decided_until = max(draft.globals.decided_until, event.until)


def _clock_stepped(draft: Draft, event: ev.ClockStepped) -> None:
    draft.globals.clock_step_s, draft.globals.clock_step_at = event.step_s, event.at


# --- schedules --------------------------------------------------------------------------------------------------------


def _created(draft: Draft, event: ev.ScheduleCreated) -> None:
    if event.schedule_id in draft.schedules:
        raise lifecycle.Contradiction("existing", "ScheduleCreated", event.schedule_id)
    draft.put(
        Schedule(
            definition=event.definition,
            revision=1,
            created_at=event.at,
            updated_at=event.at,
            watermark=event.at,
            exempt_until=_exemption(draft, event.at),
            n=event.n,
        )
    )


def _updated(draft: Draft, event: ev.ScheduleUpdated) -> None:
    schedule = draft.schedules[event.schedule_id]
    changes: dict[str, Any] = {
        "definition": event.definition,
        "revision": event.revision,
        "updated_at": event.at,
        "n": event.n,
    }
    if event.trigger_changed:
        changes |= _consumed(draft, schedule, event, "trigger-changed")
        if not schedule.admits:
            changes["span_at"] = changes["watermark"]
    draft.put(replace(schedule, **changes))


def _paused(draft: Draft, event: ev.SchedulePaused) -> None:
    schedule = draft.schedules[event.schedule_id]
    changes = _stopped(draft, schedule, event, "paused")
    draft.put(replace(schedule, paused=True, revision=event.revision, note=event.note or schedule.note, **changes))


def _resumed(draft: Draft, event: ev.ScheduleResumed) -> None:
    schedule = draft.schedules[event.schedule_id]
    changes = _continued(draft, schedule, event, admits=not schedule.blocked)
    draft.put(replace(schedule, paused=False, revision=event.revision, note=event.note or schedule.note, **changes))


def _deleted(draft: Draft, event: ev.ScheduleDeleted) -> None:
    schedule = draft.schedules[event.schedule_id]
    changes = _stopped(draft, schedule, event, "deleted")
    draft.put(replace(schedule, deleted=True, revision=event.revision, note=event.note or schedule.note, **changes))


def _blocked(draft: Draft, event: ev.ScheduleBlocked) -> None:
    schedule = draft.schedules[event.schedule_id]
    changes = _stopped(draft, schedule, event, "blocked")
    if schedule.blocked:
        changes["span_at"] = schedule.span_at
    diagnostics = (*schedule.diagnostics, event.diagnostic)
    draft.put(replace(schedule, blocked=True, revision=event.revision, diagnostics=diagnostics, **changes))


def _unblocked(draft: Draft, event: ev.ScheduleUnblocked) -> None:
    schedule = draft.schedules[event.schedule_id]
    changes = _continued(draft, schedule, event, admits=not schedule.paused)
    if event.rewound:
        changes |= {"watermark": event.at, "exempt_until": _exemption(draft, event.at), "taken": event.taken}
        changes |= {"span_at": event.at} if schedule.paused else {}
        if schedule.candidate is not None and schedule.candidate.instant > event.at:
            changes["candidate"] = None  # it was held before its time, has no row, and comes again when it is due
    draft.put(replace(schedule, blocked=False, diagnostics=(), revision=event.revision, note=event.note, **changes))


def _consumed(draft: Draft, schedule: Schedule, event: ev.ScheduleEvent, reason: str) -> dict[str, Any]:
    """The time up to the event is consumed, and so are runs that turn out not to have been sent."""
    watermark = max(draft.watermark_of(schedule), event.at)
    return {"watermark": watermark, "candidate": None, "closing": Closing(event.n, reason)}


def _stopped(draft: Draft, schedule: Schedule, event: ev.ScheduleEvent, reason: str) -> dict[str, Any]:
    """Admission ends here; the time that follows is a span without rows."""
    span_at = max(draft.watermark_of(schedule), event.at)
    return {**_consumed(draft, schedule, event, reason), "span_at": span_at, "n": event.n, "updated_at": event.at}


def _continued(draft: Draft, schedule: Schedule, event: ev.ScheduleEvent, *, admits: bool) -> dict[str, Any]:
    """The span ends here; when something else still stops admission, another begins."""
    watermark = max(draft.watermark_of(schedule), event.at)
    return {"watermark": watermark, "span_at": None if admits else watermark, "n": event.n, "updated_at": event.at}


def _exemption(draft: Draft, at: datetime) -> datetime | None:
    """A global watermark that lies ahead of `at` was raised under a clock that was wrong; it must not swallow what starts now."""
    ahead = draft.globals.decided_until
    return ahead if ahead > at and ahead > EPOCH_AT else None


# --- occurrences ------------------------------------------------------------------------------------------------------


def _instant_state(schedule: Schedule, instant: datetime) -> lifecycle.State:
    return "pending" if schedule.candidate is not None and schedule.candidate.instant == instant else "none"


def _candidate_held(draft: Draft, event: ev.CandidateHeld) -> None:
    schedule = draft.schedules[event.schedule_id]
    if schedule.candidate is not None:
        raise lifecycle.Contradiction("pending", "CandidateHeld", event.schedule_id)
    candidate = Candidate(event.instant, event.at, event.waiting, event.previous_instant)
    draft.put(replace(schedule, candidate=candidate, n=event.n, watermark=max(schedule.watermark, event.instant)))


def _occurrence_closed(draft: Draft, event: ev.OccurrenceClosed) -> None:
    schedule = draft.schedules[event.schedule_id]
    lifecycle.after(_instant_state(schedule, event.instant), "OccurrenceClosed", f"{event.schedule_id} {event.instant}")
    draft.put(replace(schedule, **_passed(schedule, event.n, event.instant)))


def _range_closed(draft: Draft, event: ev.RangeClosed) -> None:
    schedule = draft.schedules[event.schedule_id]
    draft.put(replace(schedule, **_passed(schedule, event.n, event.last_instant)))


def _passed(schedule: Schedule, n: int, instant: datetime) -> dict[str, Any]:
    """An instant got its row: it is behind the watermark, and no longer a candidate."""
    held, watermark = schedule.candidate, max(schedule.watermark, instant)
    return {
        "n": n,
        "watermark": watermark,
        "row_last_at": max(schedule.row_last_at or instant, instant),
        "candidate": None if held is not None and held.instant == instant else held,
        "taken": tuple(taken for taken in schedule.taken if taken > watermark) if schedule.taken else (),
    }


# --- runs -------------------------------------------------------------------------------------------------------------


def _run_admitted(draft: Draft, event: ev.RunAdmitted) -> None:
    schedule = draft.schedules[event.schedule_id]
    lifecycle.after(_instant_state(schedule, event.instant), "RunAdmitted", f"{event.schedule_id} {event.instant}")
    run = Run(
        run_id=event.run_id,
        schedule_id=event.schedule_id,
        instant=event.instant,
        revision=event.revision,
        admitted_at=event.at,
        admitted_n=event.n,
        key=event.key,
        deployment_id=event.deployment_id,
        artifact_id=event.artifact_id,
        artifact_version=event.artifact_version,
        input=event.input,
        max_steps=event.max_steps,
    )
    passed = _passed(schedule, event.n, event.instant)
    draft.put(replace(schedule, runs=(*schedule.runs, run), admitted_last_at=event.at, **passed))
    draft.owners[event.run_id] = event.schedule_id
    draft.globals.run_number = max(draft.globals.run_number, event.number)


def _dispatch_marked(draft: Draft, event: ev.DispatchMarked) -> None:
    _move(draft, event, mark=event.mark, server=event.mark.server, live=RunLive())


def _dispatch_not_sent(draft: Draft, event: ev.DispatchNotSent) -> None:
    run = _run(draft, event)
    _move(draft, event, mark=None, live=RunLive(tries=run.live.tries))


def _call_lost(draft: Draft, event: ev.CallLost) -> None:
    mark = _run(draft, event).mark
    if mark is not None and event.caller_gone:
        mark = replace(mark, caller_gone=True)
    _move(draft, event, mark=mark, live=RunLive())


def _attempt_marked(draft: Draft, event: ev.AttemptMarked) -> None:
    _move(draft, event, mark=event.mark, server=event.mark.server, attempts=event.mark.attempt, checkpoint=event.mark.checkpoint,
          live=RunLive())  # fmt: skip


def _attempt_reverted(draft: Draft, event: ev.AttemptReverted) -> None:
    _move(draft, event, mark=None, live=RunLive())


def _run_interrupted(draft: Draft, event: ev.RunInterrupted) -> None:
    _move(draft, event, mark=None, live=RunLive(), server_run_id=event.server_run_id, checkpoint=event.checkpoint,
          interrupt=event.interrupt)  # fmt: skip
    draft.owners[event.server_run_id] = event.schedule_id


def _checkpoint_seen(draft: Draft, event: ev.CheckpointSeen) -> None:
    _move(draft, event, live=RunLive(), checkpoint=event.checkpoint, interrupt=event.interrupt)


def _run_settled(draft: Draft, event: ev.RunSettled) -> None:
    run = _run(draft, event)
    lifecycle.after(run.phase, "RunSettled", run.run_id)
    schedule = draft.schedules[event.schedule_id]
    holds = schedule.holds
    if event.hold_until is not None:
        holds = (*(hold for hold in holds if hold.until > event.at), Hold(run.run_id, event.hold_until))
    draft.put(replace(schedule, runs=_without(schedule.runs, run), holds=holds, n=event.n))
    _count_slot(draft, run, None)
    if event.reason == "outcome-unknown":
        _keep_unknown(draft, event, run)
    else:
        for owned in (run.run_id, run.server_run_id):
            if owned is not None:
                draft.owners.pop(owned)


def _keep_unknown(draft: Draft, event: ev.RunSettled, run: Run) -> None:
    unknown = UnknownRun(
        run_id=event.run_id,
        schedule_id=event.schedule_id,
        settled_at=event.at,
        server_run_id=event.server_run_id,
        attempt=event.attempt,
        checkpoint=event.checkpoint,
        watch_until=event.watch_until,
        server=run.server,
    )
    draft.unknown[event.run_id] = unknown
    draft.agenda.index_unknown(unknown)


def _outcome_observed(draft: Draft, event: ev.OutcomeObserved) -> None:
    unknown = draft.unknown[event.run_id]
    lifecycle.after("unknown", "OutcomeObserved", event.run_id)
    observed = replace(unknown, observed=event.result, watch_until=None, live=RunLive())
    draft.unknown[event.run_id] = observed
    draft.agenda.index_unknown(observed)
    schedule = draft.schedules[event.schedule_id]
    draft.put(replace(schedule, n=event.n))


def _run(draft: Draft, event: Any) -> Run:
    run = draft.schedules[event.schedule_id].run(event.run_id)
    if run is None:
        raise lifecycle.Contradiction("none", type(event).__name__, event.run_id)
    return run


def _move(draft: Draft, event: Any, **changes: Any) -> None:
    """Take one unfinished run along the lifecycle table to another unfinished state."""
    schedule = draft.schedules[event.schedule_id]
    before = _run(draft, event)
    phase = lifecycle.after(before.phase, type(event).__name__, before.run_id)
    after = replace(before, phase=phase, **changes)
    draft.put(replace(schedule, runs=_with(schedule.runs, before, after), n=event.n))
    _count_slot(draft, before, after)


def _with(runs: tuple[Run, ...], before: Run, after: Run) -> tuple[Run, ...]:
    """These runs with one of them changed; nearly always it is the only one."""
    return (after,) if len(runs) == 1 else tuple(after if run is before else run for run in runs)


def _without(runs: tuple[Run, ...], ended: Run) -> tuple[Run, ...]:
    return () if len(runs) == 1 else tuple(run for run in runs if run is not ended)


def _count_slot(draft: Draft, before: Run, after: Run | None) -> None:
    held = before.phase in lifecycle.HOLDS_SLOT
    holds = after is not None and after.phase in lifecycle.HOLDS_SLOT
    if held != holds:
        draft.globals.slots_used += 1 if holds else -1


def _note_run(draft: Draft, live: ev.RunNoted) -> None:
    schedule = draft.schedules.get(live.schedule_id)
    run = schedule.run(live.run_id) if schedule is not None else None
    if schedule is not None and run is not None:
        noted = replace(run, live=live.live)
        draft.put(replace(schedule, runs=_with(schedule.runs, run, noted)))
        return
    unknown = draft.unknown.get(live.run_id)
    if unknown is not None:
        noted_unknown = replace(unknown, live=live.live)
        draft.unknown[live.run_id] = noted_unknown
        draft.agenda.index_unknown(noted_unknown)


_FOLDS: dict[type, Callable[[Draft, Any], None]] = {
    ev.EpochStarted: _epoch_started,
    ev.Decided: _decided,
    ev.ClockStepped: _clock_stepped,
    ev.ScheduleCreated: _created,
    ev.ScheduleUpdated: _updated,
    ev.SchedulePaused: _paused,
    ev.ScheduleResumed: _resumed,
    ev.ScheduleDeleted: _deleted,
    ev.ScheduleBlocked: _blocked,
    ev.ScheduleUnblocked: _unblocked,
    ev.CandidateHeld: _candidate_held,
    ev.OccurrenceClosed: _occurrence_closed,
    ev.RangeClosed: _range_closed,
    ev.RunAdmitted: _run_admitted,
    ev.DispatchMarked: _dispatch_marked,
    ev.DispatchNotSent: _dispatch_not_sent,
    ev.CallLost: _call_lost,
    ev.AttemptMarked: _attempt_marked,
    ev.AttemptReverted: _attempt_reverted,
    ev.RunInterrupted: _run_interrupted,
    ev.CheckpointSeen: _checkpoint_seen,
    ev.RunSettled: _run_settled,
    ev.OutcomeObserved: _outcome_observed,
}

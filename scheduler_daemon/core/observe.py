"""What an observation changes.

Owns: the evidence table of spec section 6: where a request stands when its call ended badly.  Must never know: sockets, exceptions; the
dispatcher has already put what happened into one of four endings.

The evidence speaks for the first request under a mark only.  On a repeat of it, "not sent" says nothing about the first one, and an
error fails closed.  An observation whose `seq` is not that of the open call is about the past, and is dropped.
"""

from __future__ import annotations

from datetime import datetime
from typing import cast

from msgspec.structs import replace

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import events as ev
from scheduler_daemon.core import judging, upstream
from scheduler_daemon.core.closing import settle_unsent
from scheduler_daemon.core.commands import Plan
from scheduler_daemon.core.model import Json, Result, Run, RunLive, Schedule
from scheduler_daemon.core.planning import Planner, backoff_s
from scheduler_daemon.core.settling import fail_closed, readable, reject, settle, speaks_of
from scheduler_daemon.core.state import Draft

NOT_RUN = frozenset({-32600, -32601, -32602, -32700, 413})
"""JSON-RPC codes, and HTTP 413, that a server gives before a method runs.  Source: spec section 6."""

APPLICATION = 5000
RESEND_FIRST_S, RESEND_MOST_S = 0.5, 30.0
STEP_S = 2.0


def observe(draft: Draft, observation: cmd.Observation) -> Plan:
    """Take one observation in."""
    planner = Planner(draft)
    draft.reindex()
    match observation:
        case cmd.CallAnswered():
            _answered(planner, observation)
        case cmd.CallRefused():
            _refused(planner, observation)
        case cmd.CallNotSent():
            _not_sent(planner, observation)
        case cmd.CallLostSight():
            _lost_sight(planner, observation)
        case cmd.RunInspected():
            judging.inspected(planner, observation)
        case cmd.StoppedListed():
            judging.listed(planner, observation)
        case cmd.PreflightAnswered():
            upstream.answered(planner, observation)
        case cmd.ServerSeen():
            upstream.seen(planner, observation)
        case cmd.ServerMissed():
            upstream.missed(planner, observation)
        case cmd.Stepped():
            _stepped(planner, observation)
        case cmd.StoreRoom():
            planner.note(ev.ModeNoted(draining=draft.globals.draining, full=observation.full))
    return planner.plan


def _open_run(planner: Planner, seq: int, run_id: str) -> Run | None:
    """The run whose open call this is about."""
    run = planner.draft.run_of(run_id)
    return run if run is not None and run.live.call_seq == seq else None


def _answered(planner: Planner, observation: cmd.CallAnswered) -> None:
    run = _open_run(planner, observation.seq, observation.run_id)
    if run is None:
        return
    result = observation.result
    if result.status == "unrunnable" and run.mark is not None and run.mark.kind == "start":
        reject(planner, run, "unrunnable", "the server would not run the deployment", result.diagnostics)
    elif readable(result) and speaks_of(planner.draft, run, result):
        settle(planner, run, result)
    elif run.live.repeat:
        fail_closed(planner, run, "H", f"the repeated request was answered with {_told(result)}")
    else:
        _lose(planner, run, f"unreadable answer: {_told(result)}")


def _told(result: Result) -> str:
    return f"status {result.status!r} of run {result.server_run_id!r}"


# --- refused ----------------------------------------------------------------------------------------------------------


def _refused(planner: Planner, observation: cmd.CallRefused) -> None:
    run = _open_run(planner, observation.seq, observation.run_id)
    if run is None or run.mark is None:
        return
    said = f"{observation.code} {observation.message}"
    if run.live.repeat:
        fail_closed(planner, run, "H", f"the repeated request was refused: {said}", error=_error(observation))
    elif run.mark.kind == "resume" and _resume_refused(observation, run.server_run_id or ""):
        _revert(planner, run, "refused", _error(observation))
    elif run.mark.kind == "start" and _start_refused(observation, run.deployment_id):
        reject(planner, run, "refused", _message(observation))
    else:
        _lose(planner, run, f"the server answered {said}")


def _start_refused(observation: cmd.CallRefused, deployment_id: str) -> bool:
    """Proven not run: refused before the method, or no such deployment."""
    if observation.code in NOT_RUN:
        return True
    return (
        observation.code == APPLICATION
        and _application_code(observation) == "KeyError"
        and deployment_id in _message(observation)
    )


def _resume_refused(observation: cmd.CallRefused, server_run_id: str) -> bool:
    """Proven not resumed: refused before the method, or this run cannot be resumed.

    The same error without the run's name may come from the middle of an execution.
    """
    if observation.code in NOT_RUN:
        return True
    said = _application_code(observation) in ("ValueError", "KeyError") and server_run_id in _message(observation)
    return observation.code == APPLICATION and said


def _application_code(observation: cmd.CallRefused) -> str:
    return str(_said(observation).get("code", ""))


def _message(observation: cmd.CallRefused) -> str:
    return str(_said(observation).get("message") or observation.message)


def _said(observation: cmd.CallRefused) -> dict[str, Json]:
    return cast("dict[str, Json]", observation.data) if isinstance(observation.data, dict) else {}


def _error(observation: cmd.CallRefused) -> dict[str, Json]:
    return {"code": observation.code, "message": observation.message, "data": observation.data}


# --- not sent ---------------------------------------------------------------------------------------------------------


def _not_sent(planner: Planner, observation: cmd.CallNotSent) -> None:
    run = _open_run(planner, observation.seq, observation.run_id)
    if observation.server_down:
        upstream.missed(planner, cmd.ServerMissed(0, observation.reason))
    if run is None or run.mark is None:
        return
    if run.live.repeat:
        _still_unsure(planner, run)
    elif run.mark.kind == "resume":
        _revert(planner, run, "not-sent", {"message": observation.reason})
    else:
        _unsend(planner, run, observation.reason)


def _unsend(planner: Planner, run: Run, reason: str) -> None:
    """Back to admitted; but what a pause, an edit or a newer instant has passed over meanwhile ends here, without effect.

    So does what an unblock has set the watermark back behind: it was admitted before its time, and would hold overlap until then.
    """
    planner.emit(
        ev.DispatchNotSent(
            at=planner.at,
            schedule_id=run.schedule_id,
            n=planner.next_n(run.schedule_id),
            run_id=run.run_id,
            instant=run.instant,
            revision=run.revision,
            reason=reason,
        )
    )
    planner.log("dispatch_not_sent", "warning", schedule_id=run.schedule_id, run_id=run.run_id, reason=reason)
    schedule, tries = planner.schedule(run.schedule_id), run.live.tries
    unsent = schedule.run(run.run_id)
    if unsent is None:
        return
    if schedule.closing is not None and schedule.closing.n > run.admitted_n:
        settle_unsent(planner, unsent, "superseded", schedule.closing.reason)
    elif run.instant > planner.draft.watermark_of(schedule):
        settle_unsent(planner, unsent, "superseded", "clock-behind")
    elif schedule.definition.misfire == "latest" and _overtaken(schedule, run, planner.at):
        settle_unsent(planner, unsent, "superseded", "newer-instant")
    else:
        look_mono = planner.mono + backoff_s(tries, RESEND_FIRST_S, RESEND_MOST_S)
        planner.note_run(unsent, RunLive(look_mono=look_mono, tries=tries + 1))


def _overtaken(schedule: Schedule, run: Run, at: datetime) -> bool:
    """Whether a newer instant became due while the request was on its way: it has a row, or it is the candidate."""
    held = schedule.candidate.instant if schedule.candidate is not None else None
    return any(newer is not None and run.instant < newer <= at for newer in (held, schedule.row_last_at))


def _revert(planner: Planner, run: Run, reason: str, detail: dict[str, Json]) -> None:
    """The attempt had no effect; the run waits at its interrupt, and a refusal is a reason to look at it now."""
    planner.emit(
        ev.AttemptReverted(
            at=planner.at,
            schedule_id=run.schedule_id,
            n=planner.next_n(run.schedule_id),
            run_id=run.run_id,
            instant=run.instant,
            revision=run.revision,
            reason="refused" if reason == "refused" else "not-sent",
            detail=detail,
        )
    )
    reverted = planner.draft.run_of(run.run_id)
    if reverted is not None and reason == "refused":
        planner.note_run(reverted, RunLive(look_mono=planner.mono, tries=1))


# --- lost -------------------------------------------------------------------------------------------------------------


def _lost_sight(planner: Planner, observation: cmd.CallLostSight) -> None:
    run = _open_run(planner, observation.seq, observation.run_id)
    if run is None:
        return
    beyond = run.live.beyond + 1 if observation.beyond else 0
    if run.live.repeat and beyond >= judging.BEYOND_MAX:
        fail_closed(planner, run, "H", f"the repeated request was answered, but not readably: {observation.reason}")
    elif run.live.repeat:
        _still_unsure(planner, run, beyond)
    else:
        _lose(planner, run, observation.reason, caller_gone=observation.caller_gone)


def _lose(planner: Planner, run: Run, reason: str, *, caller_gone: bool = False) -> None:
    """Sent, and the outcome is not known: the run is ambiguous, and it is judged as soon as the server was heard of again.

    When only the caller went away nothing speaks against the server, and the judgement is now.
    """
    if run.mark is None:
        return
    planner.emit(
        ev.CallLost(
            at=planner.at,
            schedule_id=run.schedule_id,
            n=planner.next_n(run.schedule_id),
            run_id=run.run_id,
            instant=run.instant,
            revision=run.revision,
            reason=reason,
            mark_kind=run.mark.kind,
            caller_gone=caller_gone,
        )
    )
    planner.log("call_lost", "warning", schedule_id=run.schedule_id, run_id=run.run_id, reason=reason)
    lost = planner.draft.run_of(run.run_id)
    if lost is None:
        return
    lost_mono = None if caller_gone else planner.mono
    planner.note_run(lost, RunLive(look_mono=planner.mono, lost_mono=lost_mono, unsure_mono=planner.mono))
    if caller_gone and not planner.draft.globals.server.up:
        planner.log(
            "reconcile_failed", "error", schedule_id=run.schedule_id, run_id=run.run_id, reason="server unreachable"
        )
    noted = planner.draft.run_of(run.run_id)
    if noted is not None:
        judging.judge(planner, noted)


def _still_unsure(planner: Planner, run: Run, beyond: int = 0) -> None:
    """A repeat that came to nothing says nothing about the first request; nor do a few answers that cannot be read."""
    look_mono = planner.mono + backoff_s(run.live.tries, judging.RETRY_FIRST_S, judging.RETRY_MOST_S)
    live = replace(run.live, call_seq=None, repeat=False, lost_mono=planner.mono, look_mono=look_mono, beyond=beyond)
    planner.note_run(run, live)


# --- the machine ------------------------------------------------------------------------------------------------------


def _stepped(planner: Planner, observation: cmd.Stepped) -> None:
    """The wall clock was set.  Nothing is decided by it: the watermark does not go back, and a jump ahead is downtime.

    Set back, it makes what had its time, or had run out, lie ahead again: what is held, and the watch of an unknown end.
    """
    if abs(observation.step_s) <= STEP_S:
        return
    planner.emit(ev.ClockStepped(at=planner.at, step_s=observation.step_s))
    planner.log("clock_stepped", "warning", step_s=observation.step_s)
    if observation.step_s > 0:
        return
    draft = planner.draft
    for schedule in draft.schedules.values():
        if schedule.candidate is not None or schedule.runs:
            draft.touch(schedule.definition.schedule_id)
    for unknown in draft.unknown.values():
        draft.agenda.index_unknown(unknown)

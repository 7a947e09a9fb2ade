"""From a decision to run to a request on its way.

Owns: the events that admit an occurrence and set its executing mark, and the effect that follows them.  Must never know: whether it
should run.

The window of ambiguity opens here.  `DispatchMarked` says "the request may have left this process"; it is durable before the effect
is carried out, and from then until an observation is durable nobody can tell what happened but the server.
"""

from __future__ import annotations

from datetime import datetime

from scheduler_daemon.core import events as ev
from scheduler_daemon.core.commands import ResumeCall, StartCall
from scheduler_daemon.core.live import Answer
from scheduler_daemon.core.model import Json, Mark, Run, RunLive, Schedule, ServerFacts
from scheduler_daemon.core.planning import Planner


def next_run_id(run_number: int) -> str:
    """`run-000001`, with more digits when needed.  Source: spec section 2."""
    return f"run-{run_number + 1:06d}"


def admit(
    planner: Planner, schedule: Schedule, instant: datetime, workflow_input: dict[str, Json], answer: Answer
) -> None:
    """Decide durably that this occurrence runs, and dispatch it in the same commit."""
    draft = planner.draft
    schedule_id = schedule.definition.schedule_id
    run_id = next_run_id(draft.globals.run_number)
    planner.emit(
        ev.RunAdmitted(
            at=planner.at,
            schedule_id=schedule_id,
            n=schedule.n + 1,
            instant=instant,
            run_id=run_id,
            number=draft.globals.run_number + 1,
            key=f"{draft.store_id}:{run_id}",
            revision=schedule.revision,
            deployment_id=schedule.definition.deployment_id,
            input=workflow_input,
            artifact_id=answer.artifact_id,
            artifact_version=answer.artifact_version,
            max_steps=schedule.definition.max_steps,
        )
    )
    run = draft.schedules[schedule_id].runs[-1]
    dispatch(planner, run)


def dispatch(planner: Planner, run: Run) -> None:
    """Set the executing mark of an admitted run and send its start."""
    draft = planner.draft
    mark = Mark(kind="start", key=run.key, marked_at=planner.at, server=server_facts(planner))
    planner.emit(
        ev.DispatchMarked(
            at=planner.at,
            schedule_id=run.schedule_id,
            n=planner.next_n(run.schedule_id),
            run_id=run.run_id,
            instant=run.instant,
            revision=run.revision,
            mark=mark,
        )
    )
    seq = draft.next_seq()
    planner.note_run(run, RunLive(call_seq=seq, call_mono=planner.mono, tries=run.live.tries))
    planner.effect(start_call(planner, run, seq, repeat=False))


def start_call(planner: Planner, run: Run, seq: int, *, repeat: bool) -> StartCall:
    """The request for this run; a repeat is the very same one."""
    return StartCall(
        seq=seq,
        run_id=run.run_id,
        schedule_id=run.schedule_id,
        instant=run.instant,
        deployment_id=run.deployment_id,
        input=run.input,
        key=run.key,
        max_steps=run.max_steps,
        timeout_s=planner.schedule(run.schedule_id).definition.run_timeout_s,
        repeat=repeat,
    )


def resume_call(run: Run, mark: Mark, seq: int, *, repeat: bool) -> ResumeCall:
    """The resume that this mark stands for; a repeat is the very same one.  `run_timeout_s` is for starts: somebody waits here."""
    return ResumeCall(
        seq=seq,
        run_id=run.run_id,
        schedule_id=run.schedule_id,
        attempt=mark.attempt,
        server_run_id=run.server_run_id or "",
        payload=mark.payload or {},
        outcome=mark.outcome or "",
        key=mark.key,
        timeout_s=None,
        repeat=repeat,
    )


def server_facts(planner: Planner) -> ServerFacts:
    """What the server announced last, for the mark."""
    return planner.draft.globals.server.facts or ServerFacts(planner.draft.settings.server_url)

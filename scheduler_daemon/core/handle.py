"""What a command changes, or why it is refused.

Owns: the meaning of create, update, pause, resume, delete, unblock, and of resuming or abandoning one run.  Must never know: how a
command arrived.  What the server had to be asked first comes with the command; everything is compared again here, at the commit.

Idempotent calls that change nothing emit nothing and answer as if they had.
"""

from __future__ import annotations

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import events as ev
from scheduler_daemon.core import queries, upstream
from scheduler_daemon.core.bindings import Facts, resolve
from scheduler_daemon.core.closing import block, close_span, end_unsent
from scheduler_daemon.core.commands import Plan, Rejected
from scheduler_daemon.core.decide import settled_until
from scheduler_daemon.core.dispatching import resume_call, server_facts
from scheduler_daemon.core.model import Checkpoint, Definition, Json, Mark, Run, RunLive, Schedule
from scheduler_daemon.core.planning import Planner
from scheduler_daemon.core.queries import BEHIND
from scheduler_daemon.core.restoring import accept_restore
from scheduler_daemon.core.settling import fail, readable, settle
from scheduler_daemon.core.state import Draft
from scheduler_daemon.core.triggers import zone_of
from scheduler_daemon.core.validate import check_against_server, check_definition, check_note, in_utc, with_changes

SAMPLE_RUN_ID = "run-000000"
"""The run id of the sample occurrence that create and update check the input with.  Source: spec section 3."""


def handle(draft: Draft, command: cmd.Command) -> Plan:
    """Carry out one command.  Raises `Rejected`; then nothing of it happened."""
    planner = Planner(draft)
    draft.reindex()
    match command:
        case cmd.Create():
            _create(planner, command)
        case cmd.Update():
            _update(planner, command)
        case cmd.Pause():
            _pause(planner, command)
        case cmd.Resume():
            _resume(planner, command)
        case cmd.Delete():
            _delete(planner, command)
        case cmd.Unblock():
            _unblock(planner, command)
        case cmd.Block():
            _known(planner, command.schedule_id)
            block(
                planner,
                command.schedule_id,
                command.diagnostic.code,
                command.diagnostic.message,
                **command.diagnostic.data,
            )
        case cmd.ResumeRun():
            _resume_run(planner, command)
        case cmd.AbandonRun():
            _abandon_run(planner, command)
        case cmd.Drain():
            _drain(planner)
        case cmd.AcceptRestore():
            accept_restore(planner)
    return planner.plan


def _known(planner: Planner, schedule_id: str) -> Schedule:
    schedule = planner.draft.schedules.get(schedule_id)
    if schedule is None:
        raise Rejected("ScheduleNotFound", f"no schedule {schedule_id!r}", schedule_id=schedule_id)
    return schedule


def _editable(planner: Planner, schedule_id: str) -> Schedule:
    """A schedule that is neither deleted nor blocked."""
    schedule = _alive(planner, schedule_id)
    _not_blocked(schedule)
    return schedule


def _not_blocked(schedule: Schedule) -> None:
    if schedule.blocked and not schedule.deleted:
        raise Rejected(
            "ScheduleBlocked",
            f"schedule {schedule.schedule_id!r} is blocked; look at its diagnostics, then unblock it with a note",
            schedule_id=schedule.schedule_id,
            diagnostics=[{"code": one.code, "message": one.message} for one in schedule.diagnostics],
        )


def _alive(planner: Planner, schedule_id: str) -> Schedule:
    schedule = _known(planner, schedule_id)
    if schedule.deleted:
        raise Rejected(
            "ScheduleDeleted",
            f"schedule {schedule_id!r} is deleted; its id is never used again",
            schedule_id=schedule_id,
        )
    return schedule


def _reply(planner: Planner, schedule_id: str, warnings: tuple[str, ...] | None = None) -> None:
    planner.plan.reply = queries.schedule_view(planner.draft, schedule_id, warnings)


# --- definitions ------------------------------------------------------------------------------------------------------


def sample_input(definition: Definition, draft: Draft, revision: int) -> dict[str, Json]:
    """The input resolved for a sample occurrence: `run-000000`, now, no previous instant."""
    facts = Facts(
        instant=draft.now.at,
        timezone=zone_of(definition.trigger),
        previous_instant=None,
        schedule_id=definition.schedule_id,
        revision=revision,
        run_id=SAMPLE_RUN_ID,
    )
    return resolve(definition.input, facts)


def precheck_create(draft: Draft, definition: Definition) -> tuple[str, ...]:
    """Everything that can be refused before the server is asked; returns the warnings that the definition deserves."""
    warnings = check_definition(definition, draft.now.at)
    if definition.schedule_id in draft.schedules:
        raise Rejected("ScheduleExists", f"schedule {definition.schedule_id!r} exists; ids are never reused",
                       schedule_id=definition.schedule_id)  # fmt: skip
    return warnings


def _create(planner: Planner, command: cmd.Create) -> None:
    draft, definition = planner.draft, in_utc(command.definition)
    warnings = precheck_create(draft, definition)
    check_against_server(definition, command.preflight, command.features, sample_input(definition, draft, 1))
    planner.emit(ev.ScheduleCreated(at=planner.at, schedule_id=definition.schedule_id, n=1, definition=definition))
    upstream.learn(planner, command.preflight)
    planner.log("schedule_created", schedule_id=definition.schedule_id, deployment_id=definition.deployment_id)
    _reply(planner, definition.schedule_id, warnings)


def precheck_update(draft: Draft, schedule_id: str, expected_revision: int, changes: dict[str, Json]) -> Definition:
    """What can be refused before the server is asked; returns the definition that it must be asked about."""
    return _precheck_update(draft, schedule_id, expected_revision, changes)[0]


def _precheck_update(
    draft: Draft, schedule_id: str, expected_revision: int, changes: dict[str, Json]
) -> tuple[Definition, tuple[str, ...]]:
    schedule = _editable(Planner(draft), schedule_id)
    if schedule.revision != expected_revision:
        raise Rejected(
            "RevisionConflict",
            f"schedule {schedule_id!r} is at revision {schedule.revision}, not {expected_revision}; get it and decide again",
            schedule_id=schedule_id,
            expected_revision=expected_revision,
            revision=schedule.revision,
        )
    definition = in_utc(with_changes(schedule.definition, changes))
    new_trigger = definition.trigger != schedule.definition.trigger
    return definition, check_definition(definition, draft.now.at, new_trigger=new_trigger)


def _update(planner: Planner, command: cmd.Update) -> None:
    draft, schedule_id = planner.draft, command.schedule_id
    definition, warnings = _precheck_update(draft, schedule_id, command.expected_revision, command.changes)
    schedule = planner.schedule(schedule_id)
    trigger_changed = definition.trigger != schedule.definition.trigger
    check_against_server(
        definition, command.preflight, command.features, sample_input(definition, draft, schedule.revision + 1)
    )
    if definition != schedule.definition:
        if trigger_changed:
            close_span(planner, schedule_id, "trigger-changed")
        planner.emit(
            ev.ScheduleUpdated(
                at=planner.at,
                schedule_id=schedule_id,
                n=planner.next_n(schedule_id),
                definition=definition,
                revision=schedule.revision + 1,
                trigger_changed=trigger_changed,
            )
        )
        planner.log("schedule_updated", schedule_id=schedule_id, revision=schedule.revision + 1)
    upstream.learn(planner, command.preflight)
    _reply(planner, schedule_id, warnings)


# --- states -----------------------------------------------------------------------------------------------------------


def _pause(planner: Planner, command: cmd.Pause) -> None:
    check_note(command.note)
    schedule_id = command.schedule_id
    schedule = _alive(planner, schedule_id)
    if not schedule.paused:
        close_span(planner, schedule_id, "paused")
        planner.emit(
            ev.SchedulePaused(
                at=planner.at,
                schedule_id=schedule_id,
                n=planner.next_n(schedule_id),
                revision=schedule.revision + 1,
                note=command.note,
            )
        )
        planner.log("schedule_paused", schedule_id=schedule_id)
    _reply(planner, schedule_id)


def _resume(planner: Planner, command: cmd.Resume) -> None:
    check_note(command.note)
    schedule_id = command.schedule_id
    schedule = _editable(planner, schedule_id)
    if schedule.paused:
        close_span(planner, schedule_id, "paused")
        planner.emit(
            ev.ScheduleResumed(
                at=planner.at,
                schedule_id=schedule_id,
                n=planner.next_n(schedule_id),
                revision=schedule.revision + 1,
                note=command.note,
            )
        )
        planner.log("schedule_resumed", schedule_id=schedule_id)
    _reply(planner, schedule_id)


def _delete(planner: Planner, command: cmd.Delete) -> None:
    check_note(command.note)
    schedule_id = command.schedule_id
    schedule = _known(planner, schedule_id)
    if not schedule.deleted:
        close_span(planner, schedule_id, "deleted")
        planner.emit(
            ev.ScheduleDeleted(
                at=planner.at,
                schedule_id=schedule_id,
                n=planner.next_n(schedule_id),
                revision=schedule.revision + 1,
                note=command.note,
            )
        )
        planner.log("schedule_deleted", schedule_id=schedule_id)
    _reply(planner, schedule_id)


def _unblock(planner: Planner, command: cmd.Unblock) -> None:
    """An operator takes responsibility: contradictory runs end, the span is consumed, a watermark ahead of the clock is set back."""
    check_note(command.note)
    schedule_id = command.schedule_id
    schedule = _alive(planner, schedule_id)
    behind = planner.draft.watermark_of(schedule) - planner.at > BEHIND
    if schedule.blocked or behind:
        for run in _contradictory(schedule):
            fail(planner, run, "contradiction", f"settled by unblock: {command.note}")
        if schedule.blocked:
            close_span(planner, schedule_id, "blocked")
        if behind:
            end_unsent(planner, schedule_id, "superseded", "clock-behind", which=lambda run: run.instant > planner.at)
        planner.emit(
            ev.ScheduleUnblocked(
                at=planner.at,
                schedule_id=schedule_id,
                n=planner.next_n(schedule_id),
                revision=schedule.revision + 1,
                note=command.note,
                rewound=behind,
                taken=command.rowed if behind else (),
            )
        )
        planner.log("schedule_unblocked", schedule_id=schedule_id, note=command.note)
    _reply(planner, schedule_id)


def _contradictory(schedule: Schedule) -> list[Run]:
    """The unfinished runs that its diagnostics name."""
    named = {diagnostic.data.get("run_id") for diagnostic in schedule.diagnostics}
    return [run for run in schedule.runs if run.run_id in named]


# --- single runs ------------------------------------------------------------------------------------------------------


def resumable(draft: Draft, run_id: str) -> Run:
    """The interrupted run with that id of ours or of the server's; refuses every other case by its name."""
    if draft.globals.draining:
        raise Rejected("Draining", "the daemon is stopping; resume after it has started again", run_id=run_id)
    run = _unfinished(draft, run_id)
    if run.phase == "interrupted":
        return run
    if run.mark is not None and run.mark.kind == "resume":
        if run.phase == "running":
            raise Rejected("ResumeInProgress", f"run {run.run_id} is being resumed now", run_id=run.run_id)
        raise _ambiguous_attempt(run.run_id)
    raise Rejected("RunNotResumable", f"run {run.run_id} is not interrupted", run_id=run.run_id, phase=run.phase)


def _unfinished(draft: Draft, run_id: str) -> Run:
    """The unfinished run of that id; its schedule must not be blocked, since what blocks it may be this run."""
    run = draft.run_of(run_id)
    if run is None:
        raise _not_resumable(draft, run_id)
    _not_blocked(draft.schedules[run.schedule_id])
    return run


def _not_resumable(draft: Draft, run_id: str) -> Rejected:
    """A run that is over: one that ended unknown during a resume must not be repeated, ever."""
    unknown = next((one for one in draft.unknown.values() if run_id in (one.run_id, one.server_run_id)), None)
    if unknown is None:
        return Rejected("RunNotFound", f"no unfinished run {run_id!r}", run_id=run_id)
    if unknown.attempt:
        return _ambiguous_attempt(unknown.run_id)
    return Rejected("RunNotResumable", f"run {unknown.run_id} ended outcome-unknown", run_id=unknown.run_id)


def _ambiguous_attempt(run_id: str) -> Rejected:
    message = f"an earlier resume of run {run_id} may have had its effect; it is never repeated"
    return Rejected("AttemptAmbiguous", message, run_id=run_id)


def _resume_run(planner: Planner, command: cmd.ResumeRun) -> None:
    """Mark the attempt ACTIVE with a checkpoint read just now, and send the resume.

    When that reading shows that somebody resumed the run elsewhere, its result is taken and the call is refused.
    """
    run, fresh = resumable(planner.draft, command.run_id), command.fresh
    server = planner.draft.globals.server
    if server.facts is None or not server.up:
        # A mark says which server it is for, and whether that keeps keys: what another process announced must not stand in it.
        raise Rejected("ServerUnavailable", "the workflow server was not heard of yet; nothing was changed, try again")
    if fresh.status != "interrupted":
        if readable(fresh):
            settle(planner, run, fresh)
        message = f"run {run.run_id} is {fresh.status} at the server"
        planner.plan.reply = Rejected("RunNotResumable", message, run_id=run.run_id)
        return
    attempt = run.attempts + 1
    mark = Mark(
        kind="resume",
        key=f"{run.key}:{attempt}",
        marked_at=planner.at,
        server=server_facts(planner),
        attempt=attempt,
        checkpoint=Checkpoint(fresh.status, fresh.trace_count),
        payload=command.payload,
        outcome=command.outcome,
    )
    planner.emit(
        ev.AttemptMarked(
            at=planner.at,
            schedule_id=run.schedule_id,
            n=planner.next_n(run.schedule_id),
            run_id=run.run_id,
            instant=run.instant,
            revision=run.revision,
            mark=mark,
        )
    )
    seq = planner.draft.next_seq()
    planner.note_run(run, RunLive(call_seq=seq, call_mono=planner.mono))
    planner.effect(resume_call(run, mark, seq, repeat=False))
    planner.log("attempt_marked", schedule_id=run.schedule_id, run_id=run.run_id, attempt=attempt)
    planner.plan.reply = seq


def _abandon_run(planner: Planner, command: cmd.AbandonRun) -> None:
    """Nobody will answer this interrupt: `failed`, and overlap is released.  The server is not touched."""
    check_note(command.note)
    run = _unfinished(planner.draft, command.run_id)
    if run.phase != "interrupted":
        raise Rejected(
            "RunNotResumable", f"only an interrupted run can be abandoned; {run.run_id} is not", run_id=run.run_id
        )
    fail(planner, run, "abandoned", command.note)
    planner.plan.reply = run.run_id


def _drain(planner: Planner) -> None:
    """Nothing more is admitted; what was decided so far is written down, so that the stop is not downtime before its time."""
    draft = planner.draft
    until = settled_until(draft)
    if until > draft.globals.decided_until:
        planner.emit(ev.Decided(at=planner.at, until=until))
    planner.note(ev.ModeNoted(draining=True, full=draft.globals.full))
    planner.log("draining", until=until.isoformat())

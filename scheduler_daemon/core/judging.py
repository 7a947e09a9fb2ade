"""Acting on the recovery table: looks at runs whose outcome is open, and at those that may be resumed elsewhere.

Owns: what each decision of `reconcile` makes happen, and how long until the next look.  Must never know: letters' conditions (the
table has them), what a result means (`settling`).

Nothing here starts anything new.  The one request that is ever sent a second time is the same request under the same key, to a
server that announced both times that it would not execute it again.
"""

from __future__ import annotations

from msgspec.structs import replace

from scheduler_daemon.core import events as ev
from scheduler_daemon.core import upstream
from scheduler_daemon.core.closing import block
from scheduler_daemon.core.commands import InspectRun, ListStopped, RunInspected, StoppedListed
from scheduler_daemon.core.dispatching import resume_call, start_call
from scheduler_daemon.core.model import Finding, Run, RunLive, UnknownRun
from scheduler_daemon.core.planning import Planner, backoff_s
from scheduler_daemon.core.reconcile import Case, classify, facts_of
from scheduler_daemon.core.settling import fail_closed, readable, settle

WATCH_FIRST_S, WATCH_MOST_S = 5.0, 60.0
"""How often an interrupted run is asked after.  Source: spec section 6."""

UNKNOWN_MOST_S = 600.0
WAIT_S = 0.5
RETRY_FIRST_S, RETRY_MOST_S = 0.5, 10.0

BEYOND_MAX = 5
"""So many unreadable answers in a row are the server's last word; fewer may come from something between it and us."""


def look(planner: Planner, run_id: str) -> None:
    """The time of an unfinished run has come."""
    run = planner.draft.run_of(run_id)
    if run is None:
        return
    if run.phase == "admitted":
        planner.note_run(run, replace(run.live, look_mono=None))
        return
    if run.live.call_seq is None and run.live.ask_seq is None:
        judge(planner, _looked_at_anew(planner, run))


def _looked_at_anew(planner: Planner, run: Run) -> Run:
    """What an inspection said earlier is out of date when the time for the next one has come; a listing is not."""
    finding = run.live.finding
    if finding is None or finding.kind == "listed":
        return run
    live = replace(run.live, finding=None)
    planner.note_run(run, live)
    return replace(run, live=live)


def judge(planner: Planner, run: Run) -> None:
    """Find the case and do what it says."""
    facts = facts_of(run, planner.draft.globals.server, planner.mono, planner.draft.settings.reconcile_grace_s)
    case = classify(facts)
    if case.decision not in ("wait", "watch"):
        planner.log(
            "reconcile", schedule_id=run.schedule_id, run_id=run.run_id, case=case.letter, decision=case.decision
        )
    match case.decision:
        case "nothing" | "plan" | "dispatch":
            pass
        case "wait":
            _wait(planner, run, case)
        case "watch":
            _watch(planner, run)
        case "inspect":
            _inspect(planner, run)
        case "list":
            _list(planner, run)
        case "repeat":
            _repeat(planner, run)
        case "settle":
            _settle(planner, run)
        case "fail" | "fail-and-block":
            _fail(planner, run, case)
        case "block-and-watch":
            block(planner, run.schedule_id, *_contradiction(case), run_id=run.run_id)
            rerun = planner.draft.run_of(run.run_id)
            if rerun is not None:
                _watch(planner, rerun)


def _wait(planner: Planner, run: Run, case: Case) -> None:
    """Keep overlap and slot.  Only case F lets a grace run out; elsewhere it starts when the server is there to be asked."""
    if case.letter == "D":
        return
    unsure_mono = (run.live.unsure_mono or planner.mono) if case.letter == "F" else None
    live = replace(run.live, look_mono=planner.mono + WAIT_S, unsure_mono=unsure_mono)
    planner.note_run(run, live)
    upstream.probe_soon(planner)


def _watch(planner: Planner, run: Run) -> None:
    """Ask after an interrupted run now and then; the first time is a while after it stopped."""
    live = run.live
    ready = live.finding is None and live.look_mono is not None and live.look_mono <= planner.mono
    server = planner.draft.globals.server
    same = run.server is not None and server.facts is not None and run.server.same_server(server.facts)
    if ready and server.up and same:
        _inspect(planner, run)
        return
    wait_s = backoff_s(live.tries, WATCH_FIRST_S, WATCH_MOST_S)
    planner.note_run(run, replace(live, finding=None, look_mono=planner.mono + wait_s, tries=live.tries + 1))


def _inspect(planner: Planner, run: Run) -> None:
    """Ask for this run; after an answer that told nothing new, not before a while has passed."""
    live = run.live
    unsure_mono = live.unsure_mono if live.unsure_mono is not None else planner.mono
    if live.finding is not None:
        wait_s = backoff_s(live.tries, RETRY_FIRST_S, RETRY_MOST_S)
        planner.note_run(
            run, replace(live, look_mono=planner.mono + wait_s, tries=live.tries + 1, unsure_mono=unsure_mono)
        )
        return
    seq = planner.draft.next_seq()
    planner.note_run(run, replace(live, ask_seq=seq, look_mono=None, unsure_mono=unsure_mono))
    planner.effect(
        InspectRun(
            seq=seq,
            run_id=run.run_id,
            schedule_id=run.schedule_id,
            server_run_id=run.server_run_id or "",
            attempt=run.attempts,
            watch=run.phase == "interrupted",
        )
    )


def _list(planner: Planner, run: Run) -> None:
    """Before failing closed: which runs of this deployment did the server stop since?  A help for people, never a decision."""
    seq = planner.draft.next_seq()
    since = run.mark.marked_at if run.mark is not None else run.admitted_at
    planner.note_run(run, replace(run.live, ask_seq=seq, look_mono=None))
    planner.effect(
        ListStopped(
            seq=seq, run_id=run.run_id, schedule_id=run.schedule_id, deployment_id=run.deployment_id, since=since
        )
    )


def _repeat(planner: Planner, run: Run) -> None:
    """The same request with the same key: the server answers what became of the first one, and executes nothing twice."""
    mark = run.mark
    if mark is None:
        return
    seq = planner.draft.next_seq()
    planner.note_run(
        run,
        replace(run.live, call_seq=seq, call_mono=planner.mono, repeat=True, look_mono=None, tries=run.live.tries + 1),
    )
    if mark.kind == "start":
        planner.effect(start_call(planner, run, seq, repeat=True))
    else:
        planner.effect(resume_call(run, mark, seq, repeat=True))


def _settle(planner: Planner, run: Run) -> None:
    finding = run.live.finding
    if finding is not None and finding.result is not None:
        settle(planner, run, finding.result)


def _fail(planner: Planner, run: Run, case: Case) -> None:
    finding = run.live.finding
    stopped_since = list(finding.run_ids) if finding is not None else []
    code, message = _contradiction(case)
    extra = {"stopped_since": stopped_since} if run.mark is not None and run.mark.kind == "start" else {}
    fail_closed(planner, run, case.letter, message, **extra)
    if case.decision == "fail-and-block":
        block(planner, run.schedule_id, code, message, run_id=run.run_id)


def _contradiction(case: Case) -> tuple[str, str]:
    """Code and words for what an operator finds; one per letter that fails or blocks."""
    return {
        "G": ("server-unreachable", "sight of the start was lost and the server stayed unreachable"),
        "I": ("start-lost", "sight of the start was lost, and this server cannot tell what became of it"),
        "J": ("run-unknown-at-server", "the server does not know the run that was being resumed"),
        "L": ("resume-lost", "sight of the resume was lost, and the server shows no newer result"),
        "X": ("caller-gone", "the caller of the resume went away, and the server shows no newer result"),
        "N": ("run-unknown-at-server", "the server does not know this interrupted run"),
        "Q": ("another-server", "the run was left at another server than the one configured now"),
    }[case.letter]


# --- answers ----------------------------------------------------------------------------------------------------------


def inspected(planner: Planner, observation: RunInspected) -> None:
    """The server spoke about one run.  An answer to an older question, or about an older attempt, is dropped."""
    finding, beyond = _finding_of(observation), 0
    unknown = planner.draft.unknown.get(observation.run_id)
    if unknown is not None and unknown.live.ask_seq == observation.seq:
        _observe_unknown(planner, unknown, finding)
        return
    run = planner.draft.run_of(observation.run_id)
    if run is None or run.live.ask_seq != observation.seq or run.attempts != observation.attempt:
        return
    if finding.kind == "result" and finding.result is None:
        beyond = run.live.beyond + 1
        finding = finding if beyond >= BEYOND_MAX else Finding(kind="failed", reason="unreadable answer")
    if finding.kind == "failed" and run.mark is not None and run.mark.caller_gone:
        planner.log("reconcile_failed", "error", schedule_id=run.schedule_id, run_id=run.run_id, reason=finding.reason)
    _judge_with(planner, run, finding, beyond)


def listed(planner: Planner, observation: StoppedListed) -> None:
    """The server listed what it stopped; an answer to an older question is dropped."""
    run = planner.draft.run_of(observation.run_id)
    if run is not None and run.live.ask_seq == observation.seq:
        _judge_with(planner, run, Finding(kind="listed", run_ids=observation.server_run_ids))


def _judge_with(planner: Planner, run: Run, finding: Finding, beyond: int = 0) -> None:
    planner.note_run(run, replace(run.live, ask_seq=None, look_mono=None, finding=finding, beyond=beyond))
    known = planner.draft.run_of(run.run_id)
    if known is not None:
        judge(planner, known)


def _finding_of(observation: RunInspected) -> Finding:
    if observation.failed is not None:
        return Finding(kind="failed", reason=observation.failed)
    if not observation.known:
        return Finding(kind="unknown")
    return Finding(kind="result", result=observation.result)


# --- runs that ended outcome-unknown ----------------------------------------------------------------------------------


def look_unknown(planner: Planner, run_id: str) -> None:
    """Ask what became of a run that ended `outcome-unknown`, as long as it is watched and the server is the same."""
    unknown = planner.draft.unknown.get(run_id)
    if unknown is None or unknown.watch_until is None:
        return
    if planner.at >= unknown.watch_until:
        return
    server = planner.draft.globals.server
    same = server.facts is not None and unknown.server is not None and unknown.server.same_server(server.facts)
    if not (server.up and same):
        _look_later(planner, unknown)
        return
    seq = planner.draft.next_seq()
    _note_unknown(planner, unknown, replace(unknown.live, ask_seq=seq, look_mono=None))
    planner.effect(
        InspectRun(
            seq=seq,
            run_id=unknown.run_id,
            schedule_id=unknown.schedule_id,
            server_run_id=unknown.server_run_id or "",
            attempt=unknown.attempt,
            watch=True,
        )
    )


def _observe_unknown(planner: Planner, unknown: UnknownRun, finding: Finding) -> None:
    result, checkpoint = finding.result, unknown.checkpoint
    stale = (
        checkpoint is not None and result is not None and not checkpoint.older_than(result.status, result.trace_count)
    )
    if result is None or stale or not readable(result):
        _look_later(planner, unknown)
        return
    planner.emit(
        ev.OutcomeObserved(
            at=planner.at,
            schedule_id=unknown.schedule_id,
            n=planner.next_n(unknown.schedule_id),
            run_id=unknown.run_id,
            result=result,
        )
    )
    planner.log("outcome_observed", schedule_id=unknown.schedule_id, run_id=unknown.run_id, status=result.status)


def _look_later(planner: Planner, unknown: UnknownRun) -> None:
    live = unknown.live
    wait_s = backoff_s(live.tries, WATCH_FIRST_S, UNKNOWN_MOST_S)
    _note_unknown(planner, unknown, replace(live, ask_seq=None, look_mono=planner.mono + wait_s, tries=live.tries + 1))


def _note_unknown(planner: Planner, unknown: UnknownRun, live: RunLive) -> None:
    planner.note(ev.RunNoted(unknown.schedule_id, unknown.run_id, live))

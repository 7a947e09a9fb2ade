"""What is known of the workflow server: is it there, may it be used, what does it say about a deployment.

Owns: the one prober, the shared preflight answers and their backoff.  Must never know: schedules' policies.  All of it is live: a new
process asks anew.

Only a failed connection or a failed health call makes the server unreachable for everybody; a deployment whose validate fails backs
off alone.  Source: spec section 5.
"""

from __future__ import annotations

from msgspec.structs import replace

from scheduler_daemon.core import events as ev
from scheduler_daemon.core.admission import capacity_shut
from scheduler_daemon.core.commands import (
    AskPreflight,
    CancelCall,
    Preflight,
    PreflightAnswered,
    Probe,
    ServerMissed,
    ServerSeen,
)
from scheduler_daemon.core.live import Answer, ServerView
from scheduler_daemon.core.planning import Planner, backoff_s

HEALTH_S = 5.0
"""How often a server that answers is asked for its health."""

CONNECTING_S = 10.0
"""How long a call may take from its decision until the server has it: the connect timeout, twice."""

PROBE_FIRST_S, PROBE_MOST_S = 0.25, 5.0
ASK_FIRST_S, ASK_MOST_S = 0.5, 30.0


# --- the prober -------------------------------------------------------------------------------------------------------


def probe(planner: Planner) -> None:
    """Ask for health; a server that is not up, or is another process than before, is checked as at first contact."""
    server = planner.draft.globals.server
    if server.probe_seq is None:
        seq, first = planner.draft.next_seq(), not server.up or server.refusal is not None
        planner.note(ev.ServerNoted(replace(server, probe_seq=seq, probe_first=first)))
        planner.effect(Probe(seq, first_contact=first))


def probe_soon(planner: Planner) -> None:
    """Something happened that makes the last health answer too old to decide on."""
    server = planner.draft.globals.server
    if server.probe_seq is None and server.probe_mono > planner.mono:
        planner.note(ev.ServerNoted(replace(server, probe_mono=planner.mono)))


def seen(planner: Planner, observation: ServerSeen) -> None:
    """Health answered.

    A plain health answer counts only from a server that is still up and still the same process; any other must be checked first.
    """
    server = planner.draft.globals.server
    if observation.seq != server.probe_seq:
        return
    restarted = server.facts is not None and server.facts.instance_id != observation.facts.instance_id
    if restarted:
        _end_calls_before(planner, server.seen_mono)
    checked = server.probe_first or (server.up and not restarted)
    planner.note(
        ev.ServerNoted(
            ServerView(
                up=checked,
                facts=observation.facts,
                refusal=observation.refusal if server.probe_first else server.refusal,
                reason="" if checked else "not checked since it is back",
                seen_mono=planner.mono,
                probe_mono=planner.mono + HEALTH_S if checked else planner.mono,
            )
        )
    )
    if checked and not server.up:
        planner.log("server_up", instance_id=observation.facts.instance_id, features=list(observation.facts.features))
        _ask_anew(planner)


def missed(planner: Planner, observation: ServerMissed) -> None:
    """Health did not answer, or a connection for a call did not come about (`seq` 0).

    While the server is known to be down, calls that fail are no news, and the prober keeps its own pace.
    """
    server = planner.draft.globals.server
    if observation.seq not in (0, server.probe_seq) or (observation.seq == 0 and not server.up):
        return
    open_seq = server.probe_seq if observation.seq == 0 else None
    if server.up:
        planner.log("server_down", "warning", reason=observation.reason)
    planner.note(
        ev.ServerNoted(
            replace(
                server,
                up=False,
                reason=observation.reason,
                probe_seq=open_seq,
                probe_mono=planner.mono + backoff_s(server.tries, PROBE_FIRST_S, PROBE_MOST_S),
                tries=server.tries + 1,
            )
        )
    )


def _end_calls_before(planner: Planner, seen_mono: float | None) -> None:
    """The process last seen at `seen_mono` is gone: calls that had reached it, or an earlier one, by then are lost.

    A call decided shortly before may have been connecting still, and have reached the successor; its connection ends it.
    """
    if seen_mono is None:
        return
    for schedule_id in dict.fromkeys(planner.draft.owners.values()):
        for run in planner.schedule(schedule_id).runs:
            if run.live.call_seq is not None and run.live.call_mono + CONNECTING_S < seen_mono:
                planner.effect(CancelCall(run.live.call_seq, run.run_id, "the server process restarted"))


# --- preflight answers ------------------------------------------------------------------------------------------------


def ask(planner: Planner, deployment_id: str) -> None:
    """Ask about one deployment, unless a question is open or its backoff runs."""
    answer = planner.draft.answers.get(deployment_id) or Answer(deployment_id=deployment_id)
    if answer.ask_seq is None and answer.retry_mono <= planner.mono:
        seq = planner.draft.next_seq()
        planner.note(ev.AnswerNoted(replace(answer, ask_seq=seq, retry_mono=0.0)))
        planner.effect(AskPreflight(seq, deployment_id))


def ask_ahead(planner: Planner) -> None:
    """Fetch the answer just before the next instant, for what overlap and slots would admit as things stand."""
    draft = planner.draft
    for schedule_id in draft.agenda.due_ahead(planner.at):
        schedule, next_at = draft.schedules.get(schedule_id), draft.agenda.next_at.get(schedule_id)
        if (
            schedule is None
            or next_at is None
            or capacity_shut(draft) is not None
            or schedule.blocking_run_id(planner.at) is not None
        ):
            continue
        answer = draft.answers.get(schedule.definition.deployment_id)
        needed_mono = planner.mono + (next_at - planner.at).total_seconds()
        if answer is None or answer.diagnostics or answer.until_mono <= needed_mono:
            ask(planner, schedule.definition.deployment_id)


def answered(planner: Planner, observation: PreflightAnswered) -> None:
    """The server spoke about a deployment, or failed to."""
    known = planner.draft.answers.get(observation.deployment_id)
    if known is None or known.ask_seq != observation.seq:
        return
    if observation.preflight is None:
        planner.log("preflight_failed", "warning", deployment_id=observation.deployment_id, reason=observation.failed)
        retry_mono = planner.mono + backoff_s(known.tries, ASK_FIRST_S, ASK_MOST_S)
        planner.note(ev.AnswerNoted(replace(known, ask_seq=None, retry_mono=retry_mono, tries=known.tries + 1)))
        return
    learn(planner, observation.preflight, asked=observation)


def learn(planner: Planner, preflight: Preflight, asked: PreflightAnswered | None = None) -> None:
    """Keep what the server said about a deployment for `preflight_ttl_s`; a create's own question counts like any other.

    Whoever waited for an answer has one now, and a backoff that ran is over.
    """
    known = planner.draft.answers.get(preflight.deployment_id)
    planner.note(
        ev.AnswerNoted(
            Answer(
                deployment_id=preflight.deployment_id,
                diagnostics=preflight.diagnostics if preflight.known else (_unknown_deployment(preflight),),
                answered_at=asked.asked_at if asked is not None else None,
                until_mono=planner.mono + planner.draft.settings.preflight_ttl_s,
                artifact_id=preflight.artifact_id,
                artifact_version=preflight.artifact_version,
                input_schema=preflight.input_schema,
                ask_seq=known.ask_seq if known is not None and asked is None else None,
            )
        )
    )
    planner.draft.agenda.unpark(planner.draft, preflight.deployment_id)


def retry(planner: Planner, deployment_id: str) -> None:
    """The backoff of one deployment is over: whoever waits for it may ask again."""
    answer = planner.draft.answers.get(deployment_id)
    if answer is not None:
        planner.note(ev.AnswerNoted(replace(answer, retry_mono=0.0)))
        planner.draft.agenda.unpark(planner.draft, deployment_id)


def _ask_anew(planner: Planner) -> None:
    """The server is back: no deployment has to sit out a backoff that its absence caused."""
    for answer in list(planner.draft.answers.values()):
        if answer.retry_mono > 0:
            retry(planner, answer.deployment_id)


def _unknown_deployment(preflight: Preflight) -> dict[str, str]:
    message = f"the server knows no deployment {preflight.deployment_id!r}"
    return {"severity": "error", "code": "deployment_not_found", "message": message}

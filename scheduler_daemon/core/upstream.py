"""What is known of the workflow server: is it there, may it be used, what does it say about a deployment.

Owns: the one prober, the shared preflight answers and their backoff.  Must never know: schedules' policies.  All of it is live: a new
process asks anew.

Only a failed connection or a failed health call makes the server unreachable for everybody; a deployment whose validate fails backs
off alone.  Source: spec section 5.
"""

from __future__ import annotations

from msgspec.structs import replace

from scheduler_daemon.core import events as ev
from scheduler_daemon.core.commands import AskPreflight, CancelCall, Preflight, PreflightAnswered, Probe, ServerMissed, ServerSeen
from scheduler_daemon.core.model import Answer, ServerFacts, ServerView
from scheduler_daemon.core.planning import Planner, backoff_s

HEALTH_S = 5.0
"""How often a server that answers is asked for its health."""

PROBE_FIRST_S, PROBE_MOST_S = 0.25, 5.0
ASK_FIRST_S, ASK_MOST_S = 0.5, 30.0


# --- the prober -------------------------------------------------------------------------------------------------------


def probe(planner: Planner) -> None:
    """Ask for health; a server that is not up, or is another process than before, is checked as at first contact."""
    server = planner.draft.globals.server
    if server.probe_seq is None:
        seq = planner.draft.next_seq()
        planner.note(ev.ServerNoted(replace(server, probe_seq=seq)))
        planner.effect(Probe(seq, first_contact=not server.up))


def probe_soon(planner: Planner) -> None:
    """Something happened that makes the last health answer too old to decide on."""
    server = planner.draft.globals.server
    if server.probe_seq is None and server.probe_mono > planner.mono:
        planner.note(ev.ServerNoted(replace(server, probe_mono=planner.mono)))


def seen(planner: Planner, observation: ServerSeen) -> None:
    """Health answered."""
    server = planner.draft.globals.server
    if observation.seq != server.probe_seq:
        return
    known = server.facts
    restarted = known is not None and known.instance_id != observation.facts.instance_id
    if restarted:
        _end_calls_to(planner, server, known)
    unchecked = server.up and restarted
    planner.note(
        ev.ServerNoted(
            ServerView(
                up=not unchecked,
                facts=observation.facts,
                refusal=observation.refusal,
                reason="restarted" if unchecked else "",
                seen_mono=planner.mono,
                probe_mono=planner.mono if unchecked else planner.mono + HEALTH_S,
            )
        )
    )
    if not server.up:
        planner.log("server_up", instance_id=observation.facts.instance_id, features=list(observation.facts.features))
        _ask_anew(planner)


def missed(planner: Planner, observation: ServerMissed) -> None:
    """Health did not answer, or a connection for a call did not come about (`seq` 0)."""
    server = planner.draft.globals.server
    if observation.seq not in (0, server.probe_seq):
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


def _end_calls_to(planner: Planner, server: ServerView, gone: ServerFacts) -> None:
    """Calls that the process which is gone was seen alive after are lost; a later one may have reached its successor."""
    for schedule_id in dict.fromkeys(planner.draft.owners.values()):
        for run in planner.schedule(schedule_id).runs:
            live, mark = run.live, run.mark
            if live.call_seq is None or mark is None or mark.server.instance_id != gone.instance_id or live.repeat:
                continue
            if server.seen_mono is not None and live.call_mono < server.seen_mono:
                planner.effect(CancelCall(live.call_seq, run.run_id, "the server process restarted"))


# --- preflight answers ------------------------------------------------------------------------------------------------


def ask(planner: Planner, deployment_id: str) -> None:
    """Ask about one deployment, unless a question is open or its backoff runs."""
    answer = planner.draft.answers.get(deployment_id) or Answer(deployment_id=deployment_id)
    if answer.ask_seq is None and answer.retry_mono <= planner.mono:
        seq = planner.draft.next_seq()
        planner.note(ev.AnswerNoted(replace(answer, ask_seq=seq, retry_mono=0.0)))
        planner.effect(AskPreflight(seq, deployment_id))


def ask_ahead(planner: Planner) -> None:
    """Fetch the answer just before the next instant, for what overlap would admit then."""
    draft = planner.draft
    for schedule_id in draft.agenda.due_ahead(planner.at):
        schedule, next_at = draft.schedules.get(schedule_id), draft.agenda.next_at.get(schedule_id)
        if schedule is None or next_at is None or not draft.globals.server.up or schedule.blocking_run_id(planner.at) is not None:
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
    planner.draft.agenda.unpark(planner.draft, observation.deployment_id)


def learn(planner: Planner, preflight: Preflight, asked: PreflightAnswered | None = None) -> None:
    """Keep what the server said about a deployment for `preflight_ttl_s`; a create's own question counts like any other."""
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

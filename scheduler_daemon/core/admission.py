"""Whether one due instant may run now, and if not, why.

Owns: the gate (overlap, server, slot, preflight answer, input), and the split of due instants into late and on time.  Pure leaf
functions with named results; must never know: in which order schedules are asked, or what becomes of a refused instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from scheduler_daemon.core import bindings, triggers
from scheduler_daemon.core.agenda import AT_ONCE
from scheduler_daemon.core.calendar import Due
from scheduler_daemon.core.dispatching import next_run_id
from scheduler_daemon.core.live import Answer
from scheduler_daemon.core.model import Json, Schedule, Waiting
from scheduler_daemon.core.state import Draft, State


class Admit(msgspec.Struct, frozen=True):
    """Everything allows it; this is the input to pin."""

    workflow_input: dict[str, Json]
    answer: Answer


class Held(msgspec.Struct, frozen=True):
    """Not now; `ask` when the deployment's answer is what is missing."""

    waiting: Waiting
    ask: bool = False


class Refuse(msgspec.Struct, frozen=True):
    """The server would not run it: no run will exist."""

    diagnostics: tuple[Json, ...]


Verdict = Admit | Held | Refuse


def gate(draft: Draft, schedule: Schedule, instant: datetime, previous_instant: datetime | None) -> Verdict:
    """Ask the gates in the order in which their answers cost and matter: overlap, server, slot, deployment, input."""
    if schedule.blocking_run_id(draft.now.at) is not None:
        return Held("overlap")
    shut = capacity_shut(draft)
    if shut is not None:
        return Held(shut)
    answer = _fresh_answer(draft, schedule)
    if answer is None:
        return Held("preflight-pending", ask=True)
    if answer.diagnostics:
        judged = answer.answered_at is not None and instant <= answer.answered_at
        return Refuse(answer.diagnostics) if judged else Held("preflight-pending", ask=True)
    return _check_input(draft, schedule, instant, previous_instant, answer)


def _fresh_answer(draft: Draft, schedule: Schedule) -> Answer | None:
    """What the server said of the deployment, as long as it counts: up to and with the last moment of its `preflight_ttl_s`."""
    answer = draft.answers.get(schedule.definition.deployment_id)
    return None if answer is None or answer.diagnostics is None or answer.until_mono < draft.now.mono else answer


def capacity_shut(draft: Draft | State) -> Waiting | None:
    """Why nothing at all may be dispatched now; None when a slot is free and the server may be used."""
    server = draft.globals.server
    if not server.up or server.refusal is not None:
        return "server-unreachable"
    if draft.globals.slots_used >= draft.settings.max_concurrent_runs:
        return "no-slot"
    return None


def _check_input(
    draft: Draft, schedule: Schedule, instant: datetime, previous_instant: datetime | None, answer: Answer
) -> Verdict:
    facts = bindings.Facts(
        instant=instant,
        timezone=triggers.zone_of(schedule.definition.trigger),
        previous_instant=previous_instant,
        schedule_id=schedule.definition.schedule_id,
        revision=schedule.revision,
        run_id=next_run_id(draft.globals.run_number),
    )
    workflow_input = bindings.resolve(schedule.definition.input, facts)
    wrong = bindings.check_input(answer.input_schema, workflow_input)
    if wrong:
        return Refuse(tuple({"severity": "error", "code": "input_invalid", "message": message} for message in wrong))
    return Admit(workflow_input, answer)


def due_by_lateness(draft: Draft, schedule: Schedule) -> tuple[Due, Sequence[datetime]]:
    """What is due and undecided: the instants past the allowance, and those within it; oldest first."""
    first_at = _first_due(draft, schedule)
    if first_at is None:
        return triggers.NOTHING, ()
    if _alone(draft, schedule, first_at):
        return (triggers.just(first_at), ()) if is_late(draft, schedule, first_at) else (triggers.NOTHING, (first_at,))
    trigger, watermark = schedule.definition.trigger, draft.watermark_of(schedule)
    since = draft.now.at - schedule.allowance(draft.settings)
    late = triggers.due_before(trigger, watermark, since)
    return late, schedule.untaken(triggers.due_since(trigger, watermark, since, draft.now.at))


def newest_due(draft: Draft, schedule: Schedule) -> tuple[datetime | None, Due]:
    """The newest instant that is due and undecided, and the older ones; what has a row already is passed over."""
    first_at = _first_due(draft, schedule)
    if first_at is None or _alone(draft, schedule, first_at):
        return first_at, triggers.NOTHING
    trigger, watermark = schedule.definition.trigger, draft.watermark_of(schedule)
    newest = triggers.due(trigger, watermark, draft.now.at).last_at
    while newest is not None and newest in schedule.taken:
        newest = triggers.due_before(trigger, watermark, newest).last_at
    return newest, triggers.NOTHING if newest is None else triggers.due_before(trigger, watermark, newest)


def _first_due(draft: Draft, schedule: Schedule) -> datetime | None:
    """The oldest instant that is due and undecided.  Raises what the calendar raised when the agenda asked it."""
    next_at = draft.agenda.next_at.get(schedule.definition.schedule_id)
    if next_at == AT_ONCE:
        triggers.next_after(schedule.definition.trigger, draft.watermark_of(schedule))
    return None if next_at is None or next_at > draft.now.at else next_at


def _alone(draft: Draft, schedule: Schedule, first_at: datetime) -> bool:
    """Whether no other instant is due, as in nearly every wake: one memoised question then tells all."""
    following_at = triggers.next_after(schedule.definition.trigger, first_at)
    return following_at is None or following_at > draft.now.at


def is_late(draft: Draft, schedule: Schedule, instant: datetime) -> bool:
    """Whether a start now would be later than the allowance; at its very end it would not."""
    return draft.now.at - instant > schedule.allowance(draft.settings)


def waiting_now(draft: Draft, schedule: Schedule, since: Waiting) -> Waiting:
    """Why a held instant still is not admitted: what shuts everything now, else the missing answer, else what it was held for."""
    if schedule.blocking_run_id(draft.now.at) is not None:
        return "overlap"
    if (shut := capacity_shut(draft)) is not None:
        return shut
    return since if _fresh_answer(draft, schedule) is not None else "preflight-pending"

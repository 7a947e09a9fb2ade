"""Whether one due instant may run now, and if not, why.

Owns: the gate (overlap, server, slot, preflight answer, input), and the split of due instants into late and on time.  Pure leaf
functions with named results; must never know: in which order schedules are asked, or what becomes of a refused instant.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from scheduler_daemon.core import bindings, triggers
from scheduler_daemon.core.calendar import Due
from scheduler_daemon.core.dispatching import next_run_id
from scheduler_daemon.core.model import Answer, Json, Schedule, Waiting
from scheduler_daemon.core.state import Draft


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
    answer = draft.answers.get(schedule.definition.deployment_id)
    if answer is None or answer.diagnostics is None or answer.until_mono <= draft.now.mono:
        return Held("preflight-pending", ask=True)
    if answer.diagnostics:
        judged = answer.answered_at is not None and instant <= answer.answered_at
        return Refuse(answer.diagnostics) if judged else Held("preflight-pending", ask=True)
    return _check_input(draft, schedule, instant, previous_instant, answer)


def capacity_shut(draft: Draft) -> Waiting | None:
    """Why nothing at all may be dispatched now; None when a slot is free and the server may be used."""
    server = draft.globals.server
    if not server.up or server.refusal is not None:
        return "server-unreachable"
    if draft.globals.slots_used >= draft.settings.max_concurrent_runs:
        return "no-slot"
    return None


def _check_input(draft: Draft, schedule: Schedule, instant: datetime, previous_instant: datetime | None, answer: Answer) -> Verdict:
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


def late_due(draft: Draft, schedule: Schedule) -> Due:
    """Instants after the watermark that are past the allowance."""
    before = draft.now.at - schedule.allowance(draft.settings)
    return triggers.due_before(schedule.definition.trigger, draft.watermark_of(schedule), before)


def on_time_due(draft: Draft, schedule: Schedule) -> tuple[datetime, ...]:
    """Instants after the watermark that are due and within the allowance, oldest first."""
    since = draft.now.at - schedule.allowance(draft.settings)
    return triggers.due_since(schedule.definition.trigger, draft.watermark_of(schedule), since, draft.now.at)


def is_late(draft: Draft, schedule: Schedule, instant: datetime) -> bool:
    return draft.now.at - instant > schedule.allowance(draft.settings)


def waiting_now(draft: Draft, schedule: Schedule, since: Waiting) -> Waiting:
    """Why a held instant still is not admitted: what shuts everything now, else what it was held for."""
    shut = capacity_shut(draft)
    if schedule.blocking_run_id(draft.now.at) is not None:
        return "overlap"
    return shut if shut is not None else since

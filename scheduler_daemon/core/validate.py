"""Whether a definition may be stored: each refusal names its code, the field and the reason.

Owns: the field rules of spec section 3.  Must never know: whether the deployment exists; the server says that.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from scheduler_daemon.core import bindings, calendar
from scheduler_daemon.core.calendar import CalendarBroken, CronRefused
from scheduler_daemon.core.commands import Preflight, Rejected
from scheduler_daemon.core.model import Cron, Definition, Json, OneShot, Trigger

_SCHEDULE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_DEPLOYMENT_ID_MAX = 256
_LATENESS_MAX_S = 86_400
_HOLD_MAX_S = 7 * 86_400
_TIMEOUT_MAX_S = 366 * 86_400
_STEPS_MAX = 1_000_000
_ACTIVE_MAX = 1_000
_AHEAD_MAX = timedelta(days=366 * calendar.YEARS_MAX)
NOTE_MAX = 1_000


def check_schedule_id(schedule_id: str) -> None:
    """Refuse what could not be a file name, a label or a path segment."""
    if not _SCHEDULE_ID.match(schedule_id):
        reason = "1 to 128 characters of A-Z a-z 0-9 _ . - , the first one a letter, a digit or _"
        raise Rejected("InvalidScheduleId", f"schedule_id: {reason}", field="schedule_id", reason=reason)


def check_note(note: str | None) -> None:
    """Notes are shown on terminals: no control characters, bounded."""
    if note is not None and (len(note) > NOTE_MAX or not note.isprintable()):
        reason = f"at most {NOTE_MAX} printable characters on one line"
        raise Rejected("InvalidInput", f"note: {reason}", field="note", reason=reason)


def check_definition(definition: Definition, now: datetime, *, new_trigger: bool = True) -> tuple[str, ...]:
    """Refuse a definition that breaks a field rule; returns the warnings it deserves."""
    check_schedule_id(definition.schedule_id)
    _check_deployment_id(definition.deployment_id)
    _check_policies(definition)
    _check_budgets(definition)
    try:
        bindings.check_bindings(definition.input)
    except bindings.BindingRefused as refused:
        raise Rejected(
            "InvalidInput", f"{refused.field}: {refused.reason}", field=refused.field, reason=refused.reason
        ) from None
    return check_trigger(definition.trigger, now, new=new_trigger)


def check_trigger(trigger: Trigger, now: datetime, *, new: bool) -> tuple[str, ...]:
    """Refuse a trigger that can never fire or would not mean what it says; returns warnings."""
    if isinstance(trigger, OneShot):
        if trigger.at.tzinfo is None:
            raise _trigger("trigger.at", "needs an offset, such as 2030-01-31T09:00:00+01:00 or …Z")
        if new and trigger.at <= now:
            raise _trigger("trigger.at", f"must lie in the future; the daemon's clock says {now.isoformat()}")
        if new and trigger.at - now > _AHEAD_MAX:
            raise _trigger("trigger.at", f"must lie within {calendar.YEARS_MAX} years")
        return ()
    return _check_cron(trigger, now)


def _check_cron(trigger: Cron, now: datetime) -> tuple[str, ...]:
    try:
        return calendar.check_expression(trigger.expression, trigger.timezone, now)
    except CronRefused as refused:
        field = "trigger.timezone" if refused.field == "timezone" else "trigger.expression"
        where = "" if refused.field in ("timezone", "expression") else f"{refused.field}: "
        raise _trigger(field, f"{where}{refused.reason}") from None
    except CalendarBroken as broken:
        raise _trigger("trigger.expression", f"the calendar cannot resolve it: {broken}") from None


def _trigger(field: str, reason: str) -> Rejected:
    return Rejected("InvalidTrigger", f"{field}: {reason}", field=field, reason=reason)


def _policy(field: str, reason: str) -> Rejected:
    return Rejected("InvalidPolicy", f"{field}: {reason}", field=field, reason=reason)


def _check_deployment_id(deployment_id: str) -> None:
    if not 1 <= len(deployment_id) <= _DEPLOYMENT_ID_MAX or not deployment_id.isprintable():
        reason = f"1 to {_DEPLOYMENT_ID_MAX} printable characters"
        raise Rejected("InvalidInput", f"deployment_id: {reason}", field="deployment_id", reason=reason)


def _check_policies(definition: Definition) -> None:
    if definition.overlap == "parallel" and definition.max_active_runs is None:
        raise _policy("max_active_runs", "is required with overlap 'parallel'")
    if definition.overlap == "skip" and definition.max_active_runs is not None:
        raise _policy("max_active_runs", "is only for overlap 'parallel'")
    _check_range("max_active_runs", definition.max_active_runs, 1, _ACTIVE_MAX)


def _check_budgets(definition: Definition) -> None:
    _check_range("lateness_s", definition.lateness_s, 1, _LATENESS_MAX_S)
    _check_range("max_steps", definition.max_steps, 1, _STEPS_MAX)
    _check_range("hold_unknown_s", definition.hold_unknown_s, 0, _HOLD_MAX_S)
    _check_range("run_timeout_s", definition.run_timeout_s, 1, _TIMEOUT_MAX_S)


def _check_range(field: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise _policy(field, f"must be between {least} and {most}")


def check_against_server(
    definition: Definition, preflight: Preflight, features: tuple[str, ...], sample: dict[str, Json]
) -> None:
    """Refuse what the server would not run: unknown or unrunnable deployment, input against its schema, missing feature."""
    if not preflight.known:
        raise Rejected(
            "DeploymentNotFound",
            f"the server knows no deployment {definition.deployment_id!r}",
            field="deployment_id",
            deployment_id=definition.deployment_id,
        )
    if preflight.diagnostics:
        raise Rejected(
            "DeploymentUnrunnable",
            f"the server says that deployment {definition.deployment_id!r} is not runnable",
            field="deployment_id",
            diagnostics=list(preflight.diagnostics),
        )
    if definition.max_steps is not None and "max-steps" not in features:
        raise Rejected("Unsupported", "max_steps: the server does not announce the feature max-steps", field="max_steps",
                       reason="the server does not announce the feature max-steps")  # fmt: skip
    wrong = bindings.check_input(preflight.input_schema, sample)
    if wrong:
        raise Rejected("InvalidInput", f"input: {wrong[0]}", field="input", reason=wrong[0], violations=list(wrong))


def in_utc(definition: Definition) -> Definition:
    """The definition as it is stored: instants are UTC, whatever offset they came with.  A naive one is refused by the check."""
    trigger = definition.trigger
    if not isinstance(trigger, OneShot) or trigger.at.tzinfo in (None, UTC):
        return definition
    try:
        return replace(definition, trigger=OneShot(trigger.at.astimezone(UTC)))
    except OverflowError:
        raise _trigger("trigger.at", "lies beyond the calendar") from None


def with_changes(definition: Definition, changes: dict[str, Any]) -> Definition:
    """The definition that an update leads to; None is "not patched", and `overlap: skip` drops `max_active_runs`."""
    given = {name: value for name, value in changes.items() if value is not None}
    if given.get("overlap") == "skip" and "max_active_runs" not in given:
        given["max_active_runs"] = None
    return replace(definition, **given)

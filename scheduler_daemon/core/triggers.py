"""Instants of a trigger, cron and one-shot alike.

Owns: turning "which instants lie in (after, until]" into calendar calls, and the limits of an answer.  Must never know: policy, the
clock, what was decided before.  `CalendarBroken` passes through: the one schedule it concerns is blocked by the caller.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduler_daemon.core import calendar
from scheduler_daemon.core.calendar import Due
from scheduler_daemon.core.model import Cron, OneShot, Trigger

COUNT_MAX = 1000
"""How far a summary counts exactly.  Source: spec section 5."""

ROWS_MAX = 100
"""How many missed instants get a row each.  Source: spec section 5."""

ON_TIME_MAX = 24 * 60 + 1
"""How many instants the longest lateness allowance, a day, can hold: every minute of it, both ends included."""

_TICK = timedelta(microseconds=1)
NOTHING = Due(instants=(), at_least=False, last_at=None, next_at=None)


def next_after(trigger: Trigger, after: datetime) -> datetime | None:
    """The first instant strictly later than `after`."""
    if isinstance(trigger, OneShot):
        return trigger.at if trigger.at > after else None
    return calendar.first_after(trigger.expression, trigger.timezone, after)


def upcoming(trigger: Trigger, after: datetime, count: int) -> tuple[datetime, ...]:
    """The next `count` instants strictly later than `after`."""
    if isinstance(trigger, OneShot):
        return (trigger.at,) if trigger.at > after else ()
    return calendar.upcoming(trigger.expression, trigger.timezone, after, count)


def due(trigger: Trigger, after: datetime, until: datetime, limit: int = COUNT_MAX + 1) -> Due:
    """The instants in (after, until], the first `limit` of them, and the newest."""
    if until <= after:
        return NOTHING
    if isinstance(trigger, OneShot):
        return just(trigger.at) if after < trigger.at <= until else NOTHING
    return calendar.due_between(trigger.expression, trigger.timezone, after, until, limit)


def just(instant: datetime) -> Due:
    """One instant, in the shape of an answer."""
    return Due(instants=(instant,), at_least=False, last_at=instant, next_at=None)


def due_before(trigger: Trigger, after: datetime, before: datetime) -> Due:
    """As `due`, without `before` itself."""
    return due(trigger, after, before - _TICK)


def due_since(trigger: Trigger, after: datetime, since: datetime, until: datetime) -> tuple[datetime, ...]:
    """The instants later than `after`, at or after `since`, at or before `until`, oldest first: `ON_TIME_MAX` at most."""
    if since <= after:
        return due(trigger, after, until, ON_TIME_MAX).instants
    if isinstance(trigger, OneShot):
        return (trigger.at,) if since <= trigger.at <= until else ()
    return calendar.tail_between(trigger.expression, trigger.timezone, after, since, until, ON_TIME_MAX)


def zone_of(trigger: Trigger) -> str:
    """The IANA zone that an occurrence's local time is told in."""
    return trigger.timezone if isinstance(trigger, Cron) else "UTC"

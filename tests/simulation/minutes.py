"""A calendar that only counts minutes: the judge of what the daemon's calendar yields.

Owns: the instants of the few expressions that the simulation uses, by trying each minute in UTC.
Must never know: croniter, zones that change their offset, the daemon's calendar.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from scheduler_daemon.core.model import OneShot, Trigger

_MINUTE = timedelta(minutes=1)
_OFFSETS = {"UTC": timedelta(), "Asia/Kathmandu": timedelta(hours=5, minutes=45)}
_EPOCH_AT = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=256)
def _field(text: str, least: int, most: int) -> frozenset[int]:
    """Numbers of one field: lists of `*`, `*/n`, `a`, `a-b` and `a-b/n`."""
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        low, high = (least, most) if span == "*" else (int(first), int(last or first))
        found.update(range(low, high + 1, int(step or 1)))
    return frozenset(found)


def _matches(expression: str, timezone: str, at: datetime) -> bool:
    minute, hour, *_ = expression.split()
    local = at + _OFFSETS[timezone]
    return local.minute in _field(minute, 0, 59) and local.hour in _field(hour, 0, 23)


def instants(trigger: Trigger, after: datetime, until: datetime) -> Iterator[datetime]:
    """Every instant later than `after` and not later than `until`, oldest first."""
    if isinstance(trigger, OneShot):
        if after < trigger.at <= until:
            yield trigger.at
        return
    yield from _scan(trigger.expression, trigger.timezone, after, until)


def _scan(expression: str, timezone: str, after: datetime, until: datetime) -> Iterator[datetime]:
    at = after.replace(second=0, microsecond=0) + _MINUTE
    while at <= until:
        if _matches(expression, timezone, at):
            yield at
            at += _MINUTE
        elif not _hour_matches(expression, timezone, at):
            at = _next_hour(timezone, at)
        else:
            at += _MINUTE


def _hour_matches(expression: str, timezone: str, at: datetime) -> bool:
    return (at + _OFFSETS[timezone]).hour in _field(expression.split()[1], 0, 23)


def _next_hour(timezone: str, at: datetime) -> datetime:
    local = at + _OFFSETS[timezone]
    return local.replace(minute=0) + timedelta(hours=1) - _OFFSETS[timezone]


def is_instant(trigger: Trigger, at: datetime) -> bool:
    """Whether the trigger has this very instant."""
    if isinstance(trigger, OneShot):
        return trigger.at == at
    return at.second == at.microsecond == 0 and _matches(trigger.expression, trigger.timezone, at)

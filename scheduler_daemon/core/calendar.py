"""Which instants a cron expression has in a time zone.  The only importer of croniter.

Owns: the forward chain, the checks of an expression at the door, the memo.  Must never know: schedules, policies, the clock.

**The calendar is the forward chain.**  croniter's `get_next` is right; its `get_prev` can answer an instant that no forward walk
ever yields, and acting on one would run a schedule twice.  So instants come from walking forward, and `get_prev` is only ever
asked for a place to start walking from.

**It does not depend on where the walk starts.**  A watermark is any moment, not only an instant of the schedule, and `get_next`
from a moment *inside an hour that the clock repeats* can answer differently from a walk that came through that hour: `30 1 1 11 *`
in New York on 1 November 2026 has one instant, 01:30 EDT, yet asked at 01:10 EST croniter offers 01:30 EST as well.  Hence
`first_after` steps from `after` itself only where the wall clock is unambiguous there; inside a repeated hour it walks from
before the first pass.  From an unambiguous moment the two are equal: no difference in 120,000 trials around the transitions from
2024 to 2037, and a property test goes on looking.

**Away from transitions the zone is arithmetic.**  Given a naive start, croniter answers the next match on the wall clock.  If that
match exists once, at the offset that holds at the start, this is what croniter answers with the zone as well (its zone code then
returns the match untouched); otherwise it is asked again with the zone, and its word stands.  Matches on the wall clock are the
same in every zone and from every start between two of them, so a handful of spans answers for thousands of schedules.

Measured on croniter 7.0.0 and pinned by golden vectors (`tests/unit/calendar_vectors.json`):

* In a gap, an hour field of `*` skips; any other has one instant at the first minute after the gap, however many matches it held.
* In a fold, the second pass repeats the first if the next match after it lies at another offset than the first pass: hourly and
  daily expressions have both, a yearly one only if its next date falls on the other side of the change.
* Where the fold is not one hour long (Lord Howe, Troll), croniter loses the second pass of some patterns such as `*/7`.

Arguments are aware.  Their seconds are dropped, which changes no answer: instants lie on whole minutes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.metadata import version
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from croniter import CroniterBadDateError, croniter

from scheduler_daemon.core.grammar import CronRefused, Reading, read
from scheduler_daemon.core.zones import ZoneUnknown, zone

__all__ = [
    "CALENDAR_VERSION",
    "CalendarBroken",
    "CronRefused",
    "Due",
    "check_expression",
    "due_between",
    "first_after",
    "tail_between",
    "upcoming",
]

CALENDAR_VERSION = f"croniter {version('croniter')} / tzdata {version('tzdata')}"
"""What the instants were computed with; stored with the state, because both change meaning between releases."""

YEARS_MAX = 50
"""How far ahead an instant is looked for.  Source: spec section 3."""

TAIL_WINDOW_MAX = timedelta(hours=48)
"""Widest window of `tail_between`: twice the longest lateness allowance."""

_WALK_MAX = 4 * 1440
"""Longest walk of a search, in instants: far more than a repeated hour, or the way from a hint, can hold."""

_HINTS_MAX = 16
"""How often `get_prev` may be asked for an earlier starting point."""

_SPANS_MAX = 64
"""Spans between two matches that one expression remembers: the zones at one moment, and the next moments."""

_EXPRESSIONS_MAX = 4096
_ANSWERS_MAX = 32_768
_DUES_MAX = 1024

_NO_TIME = timedelta()
_MINUTE = timedelta(minutes=1)
_TICK = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - croniter reads the wall clock of a naive start, and must not read the machine's

_CRONITER_RAISES = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, AssertionError, RuntimeError)
"""What an expression that passed the grammar could make croniter raise: it asserts, indexes and overflows."""


class CalendarBroken(Exception):
    """The calendar of one stored schedule gave no usable answer: block that schedule, the others go on."""


class Due(msgspec.Struct, frozen=True):
    """The instants of (after, until].

    `instants` are the first of them, oldest first; `at_least` says that there are more.  `last_at` is the newest (None without any),
    `next_at` the first instant later than `until` (None when none comes).
    """

    instants: tuple[datetime, ...]
    at_least: bool
    last_at: datetime | None
    next_at: datetime | None


# --- questions ----------------------------------------------------------------------------------------------------------


def check_expression(expression: str, timezone: str, after: datetime) -> tuple[str, ...]:
    """Refuse what cannot be scheduled, and answer the warnings its author should see.

    Raises `CronRefused`.  An instant within `YEARS_MAX` years of `after` is part of being valid.
    """
    return _checked(expression, timezone, after.replace(second=0, microsecond=0))


@lru_cache(_EXPRESSIONS_MAX)
def _checked(expression: str, timezone: str, after: datetime) -> tuple[str, ...]:
    """Remembered, because a thousand schedules that are created in one minute share a few expressions."""
    reading = read(expression)
    try:
        zone(timezone)
    except ZoneUnknown as unknown:
        raise CronRefused("timezone", str(unknown)) from unknown
    try:
        coming = upcoming(expression, timezone, after, 5)
    except CalendarBroken as broken:
        raise CronRefused("expression", f"the calendar cannot resolve it: {broken}") from broken
    if not coming:
        raise CronRefused("day_of_month", f"no instant within {YEARS_MAX} years: no month given has such a day")
    return _warnings(reading, timezone, coming)


def first_after(expression: str, timezone: str, after: datetime) -> datetime | None:
    """The first instant strictly later than `after`, in UTC; None when none comes within `YEARS_MAX` years.

    Raises `CalendarBroken`, as every function below.
    """
    return _first_after(expression, timezone, after)


def upcoming(expression: str, timezone: str, after: datetime, count: int) -> tuple[datetime, ...]:
    """The first `count` instants strictly later than `after`, oldest first; fewer when the calendar ends."""
    return tuple(islice(_instants(expression, timezone, after), count))


def due_between(expression: str, timezone: str, after: datetime, until: datetime, limit: int) -> Due:
    """The instants in (after, until], at most the first `limit` of them, and what lies at the end of the span."""
    return _due_between(expression, timezone, after, until, limit)


def tail_between(  # noqa: PLR0917 - the order of the arguments is that of time
    expression: str, timezone: str, after: datetime, since: datetime, until: datetime, limit: int
) -> tuple[datetime, ...]:
    """The last `limit` instants that are later than `after` and within [since, until], oldest first.

    Raises `ValueError` if `until` is more than `TAIL_WINDOW_MAX` later than `since`: every instant in between is visited.
    """
    if until - since > TAIL_WINDOW_MAX:
        raise ValueError(f"a tail spans at most {TAIL_WINDOW_MAX}, asked for {until - since}")
    late = _instants(expression, timezone, max(after, since - _TICK))
    return tuple(deque(takewhile(lambda at: at <= until, late), maxlen=limit))


def _instants(expression: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """The chain from its first instant later than `after`, for as long as the caller goes on taking."""
    at = first_after(expression, timezone, after)
    matches, place = _calendar(expression, timezone)
    while at is not None:
        yield at
        at = _step(matches, place, at)


def _warnings(reading: Reading, timezone: str, coming: tuple[datetime, ...]) -> tuple[str, ...]:
    if not reading.days_match_with_or:
        return ()
    instants = ", ".join(at.astimezone(zone(timezone)).isoformat() for at in coming)
    either = (
        f"day_of_month and day_of_week are both restricted: a day that matches either counts. Next instants: {instants}"
    )
    stepped = " and ".join(reading.restricted_by_step)
    vixie = f"a */n restricts here, as in {stepped}; Vixie cron would ask for days that match both fields"
    return (either, vixie) if stepped else (either,)


# --- the memo -----------------------------------------------------------------------------------------------------------


# A watermark has microseconds, and thousands of schedules share the very same one: the exact arguments are looked up first, then
# the whole minutes they lie in, which schedules created at different moments of a minute share.


@lru_cache(maxsize=_ANSWERS_MAX)
def _first_after(expression: str, timezone: str, after: datetime) -> datetime | None:
    if (whole_at := _whole_minute(after)) != after:
        return _first_after(expression, timezone, whole_at)
    matches, place = _calendar(expression, timezone)
    local = after.astimezone(place)
    if _repeated(local):
        return _either_side(_chain(matches, place, after), after)[1]
    return _next(matches, local)


@lru_cache(maxsize=_DUES_MAX)
def _due_between(expression: str, timezone: str, after: datetime, until: datetime, limit: int) -> Due:
    whole = _whole_minute(after), _whole_minute(until)
    if whole != (after, until):
        return _due_between(expression, timezone, *whole, limit)
    found: list[datetime] = []
    for at in _instants(expression, timezone, after):
        if at > until:
            return Due(instants=tuple(found), at_least=False, last_at=found[-1] if found else None, next_at=at)
        if len(found) == limit:
            last, next_at = _newest(*_calendar(expression, timezone), until)
            return Due(instants=tuple(found), at_least=True, last_at=last, next_at=next_at)
        found.append(at)
    return Due(instants=tuple(found), at_least=False, last_at=found[-1] if found else None, next_at=None)


def _whole_minute(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise ValueError(f"{at.isoformat()} has no offset: it would be read in the machine's own zone")
    return at.replace(second=0, microsecond=0) if at.second or at.microsecond else at


def _calendar(expression: str, timezone: str) -> tuple[_Matches, ZoneInfo]:
    """Both were checked when the schedule was stored; a release that no longer takes one breaks that schedule only."""
    try:
        return _matches(_canonical(expression)), zone(timezone)
    except (CronRefused, ZoneUnknown) as refused:
        raise CalendarBroken(f"the stored trigger is no longer understood: {refused}") from refused


@lru_cache(maxsize=_EXPRESSIONS_MAX)
def _canonical(expression: str) -> str:
    return read(expression).canonical


@lru_cache(maxsize=_EXPRESSIONS_MAX)
def _matches(canonical: str) -> _Matches:
    return _Matches(canonical)


# --- the walk -----------------------------------------------------------------------------------------------------------


def _newest(matches: _Matches, place: ZoneInfo, until: datetime) -> tuple[datetime, datetime | None]:
    """The chain's newest instant at or before `until`, and the one after it; the caller knows that there is one before."""
    hint = until + _TICK
    for _ in range(_HINTS_MAX):
        hint = matches.hint_before(hint.astimezone(place))
        last, following_at = _either_side(_chain(matches, place, hint - _MINUTE), until)
        if last is not None:
            return last, following_at
    raise CalendarBroken(f"no instant found before {until.isoformat()}, although there is one")


def _either_side(chain: Iterator[datetime], until: datetime) -> tuple[datetime | None, datetime | None]:
    """The last instant of a chain at or before `until`, and the first one later."""
    last = None
    for at in chain:
        if at > until:
            return last, at
        last = at
    return last, None


def _chain(matches: _Matches, place: ZoneInfo, start_at: datetime) -> Iterator[datetime]:
    """The chain from `start_at` on, or from a little earlier.

    In a repeated hour, twice its length back is before its first pass, where a walk may start.
    """
    at = _step(matches, place, start_at - 2 * _repeated(start_at.astimezone(place)))
    for _ in range(_WALK_MAX):
        if at is None:
            return
        yield at
        at = _step(matches, place, at)
    raise CalendarBroken(f"walked {_WALK_MAX} instants from {start_at.isoformat()} without arriving")


def _step(matches: _Matches, place: ZoneInfo, instant: datetime) -> datetime | None:
    """The instant that follows one *of the chain*, where croniter's single step is by definition right."""
    local_at = instant.astimezone(place)
    return matches.next_in_zone(local_at) if _repeated(local_at) else _next(matches, local_at)


def _next(matches: _Matches, local_at: datetime) -> datetime | None:
    """One step from an unambiguous `local_at`, by the cheaper of the two ways where they are the same."""
    wall_at = matches.next_on_wall(local_at.replace(tzinfo=None))
    if wall_at is None:
        return None
    found_at = wall_at.replace(tzinfo=local_at.tzinfo)
    if _repeated(found_at) or found_at.utcoffset() != local_at.utcoffset():
        return matches.next_in_zone(local_at)
    return found_at.astimezone(UTC)


def _repeated(local_at: datetime) -> timedelta:
    """The length of the stretch around `local_at` that the wall clock shows twice: nearly always zero.

    Negative where the wall clock never shows `local_at`, which can be a match but not the reading of an instant.
    """
    offset, other = local_at.utcoffset(), local_at.replace(fold=1 - local_at.fold).utcoffset()
    if offset is None or other is None or offset == other:
        return _NO_TIME
    return other - offset if local_at.fold else offset - other


_Question = Callable[..., datetime]
"""croniter's `get_next` or `get_prev`."""


class _Matches:
    """One expression, in every zone.  Every question passes its start: the croniter object itself is at no particular moment.

    Invariant: `_nexts` ascends, and for each `i` `_nexts[i]` is the first match later than `_starts[i]`.
    """

    __slots__ = ("_back", "_forward", "_nexts", "_starts")

    def __init__(self, canonical: str) -> None:
        cron: Any = croniter(  # ships no types; its two questions get theirs here
            canonical,
            _EPOCH,
            ret_type=datetime,
            day_or=True,
            max_years_between_matches=YEARS_MAX,
            implement_cron_bug=False,
            second_at_beginning=False,
            expand_from_start_time=False,
        )
        self._forward: _Question = cron.get_next
        self._back: _Question = cron.get_prev
        self._starts: list[datetime] = []
        self._nexts: list[datetime] = []

    def next_on_wall(self, wall_at: datetime) -> datetime | None:
        """The first match later than `wall_at`, both naive and in whole minutes; None when none comes."""
        index = bisect_right(self._nexts, wall_at)
        if index < len(self._nexts) and self._starts[index] <= wall_at:
            return self._nexts[index]
        found_at = self._ask(self._forward, wall_at)
        if found_at is not None:
            if found_at <= wall_at:
                raise CalendarBroken(
                    f"croniter answered {found_at.isoformat()} to {wall_at.isoformat()}, which is not later"
                )
            self._remember(index, wall_at, found_at)
        return found_at

    def next_in_zone(self, local_at: datetime) -> datetime | None:
        """The answer of croniter itself to a start with a zone, in UTC; None when none comes."""
        found_at = self._ask(self._forward, local_at)
        # Compared in UTC: within one zone Python compares wall clocks, which run backwards in a fold.
        if found_at is not None and found_at.astimezone(UTC) <= local_at.astimezone(UTC):
            raise CalendarBroken(
                f"croniter answered {found_at.isoformat()} to {local_at.isoformat()}, which is not later"
            )
        return None if found_at is None else found_at.astimezone(UTC)

    def hint_before(self, local_at: datetime) -> datetime:
        """An instant earlier than `local_at`, perhaps an invented one, in UTC: a place to start walking from."""
        found_at = self._ask(self._back, local_at)
        if found_at is None or found_at.astimezone(UTC) >= local_at.astimezone(UTC):
            raise CalendarBroken(f"croniter found nothing before {local_at.isoformat()}, although there is something")
        return found_at.astimezone(UTC)

    @staticmethod
    def _ask(question: _Question, start_at: datetime) -> datetime | None:
        try:
            return question(datetime, start_time=start_at)
        except CroniterBadDateError:
            return None
        except _CRONITER_RAISES as error:
            raise CalendarBroken(
                f"croniter raised {type(error).__name__} for {start_at.isoformat()}: {error}"
            ) from error

    def _remember(self, index: int, start_at: datetime, found_at: datetime) -> None:
        if index < len(self._nexts) and self._nexts[index] == found_at:
            self._starts[index] = start_at
            return
        if len(self._nexts) >= _SPANS_MAX:
            self._starts.clear()
            self._nexts.clear()
            index = 0
        self._starts.insert(index, start_at)
        self._nexts.insert(index, found_at)

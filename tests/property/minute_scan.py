"""The calendar by brute force: every minute is looked at, and the daylight-saving rule is applied as the README states it.

Shares nothing with the code under test but the zone database.  Good for folds of one hour that begin on the hour; where a fold is
another shape croniter loses some second passes, which the golden vectors pin instead.
"""

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


def number(text, field):
    if text in MONTHS and field == 3:
        return MONTHS.index(text) + 1
    if text in WEEKDAYS and field == 4:
        return WEEKDAYS.index(text)
    return int(text)


def listed(text, field):
    """The values that a field of the grammar lists, or None for an unrestricted one."""
    low, high = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))[field]
    values = set()
    for item in text.lower().split(","):
        span, _, step = item.partition("/")
        if span == "*" and not step:
            return None
        first, dash, last = span.partition("-")
        if span == "*":
            begin, end = low, high
        elif dash:
            begin, end = number(first, field), 7 if last == "sun" else number(last, field)
        else:
            begin = end = number(first, field)
        values |= set(range(begin, end + 1, int(step or 1)))
    return {0 if field == 4 and value == 7 else value for value in values}


class Pattern:
    """An expression as five predicates of the wall clock."""

    def __init__(self, expression):
        texts = expression.split()
        self.minutes, self.hours, self.days, self.months, self.weekdays = map(listed, texts, range(5))
        self.every_hour = self.hours is None or len(self.hours) == 24
        self.of_day = [
            (self.hours is None or at // 60 in self.hours) and (self.minutes is None or at % 60 in self.minutes)
            for at in range(1440)
        ]

    def branches(self):
        """The day rules that an instant may satisfy: one, or two when both day fields restrict."""
        if self.days is not None and self.weekdays is not None:
            return [(self.days, None), (None, self.weekdays)]
        return [(self.days, self.weekdays)]

    def day(self, day, branch):
        days, weekdays = branch
        return (
            (self.months is None or day.month in self.months)
            and (days is None or day.day in days)
            and (weekdays is None or day.isoweekday() % 7 in weekdays)
        )

    def any_day(self, day):
        return any(self.day(day, branch) for branch in self.branches())

    def wall(self, wall, branch=None):
        fits = self.any_day(wall.date()) if branch is None else self.day(wall.date(), branch)
        return fits and self.of_day[wall.hour * 60 + wall.minute]


@lru_cache(maxsize=256)
def transitions(zone, first_year, end_year):
    """Each change of the zone's offset: (instant, offset before, offset after), found to the minute."""
    found, at = [], datetime(first_year, 1, 1, tzinfo=UTC)
    end = datetime(end_year, 1, 1, tzinfo=UTC)
    place = ZoneInfo(zone)
    while at < end:
        before, after = offset_at(at, place), offset_at(at + 6 * HOUR, place)
        if before != after:
            minute = next(at + k * MINUTE for k in range(1, 361) if offset_at(at + k * MINUTE, place) != before)
            found.append((minute, before, after))
        at += 6 * HOUR
    return tuple(found)


def offset_at(instant, place):
    return instant.astimezone(place).utcoffset()


def scan(expression, zone, after, until):
    """Every instant in (after, until], oldest first."""
    pattern, place = Pattern(expression), ZoneInfo(zone)
    changes = [
        change for change in transitions(zone, after.year - 1, until.year + 2) if after - DAY < change[0] <= until
    ]
    found, begin, skip_until = [], after, None
    for instant, before, new in [*changes, (until + MINUTE, None, None)]:
        found += plain(pattern, place, max(begin, after), instant, skip_until)
        begin, skip_until = instant - MINUTE, None
        if before is None:
            break
        if new > before and instant > after and not pattern.every_hour and gap_holds(pattern, instant, before, new):
            found.append(instant)
        if new < before and not second_pass(pattern, place, instant, before, new):
            skip_until = instant + (before - new)
    return sorted({at for at in found if after < at <= until})


def plain(pattern, place, begin, end, skip_until):
    """The matches of (begin, end), a stretch in which the offset does not change after its first minute."""
    first = begin.replace(second=0, microsecond=0) + MINUTE
    if first >= end:
        return []
    offset, found, at = offset_at(first, place), [], first
    while at < end:
        wall = (at + offset).replace(tzinfo=None)
        midnight_at = min(end, at + DAY - timedelta(hours=wall.hour, minutes=wall.minute))
        if pattern.any_day(wall.date()):
            begin_minute = wall.hour * 60 + wall.minute
            count = -((at - midnight_at) // MINUTE)
            found += [at + k * MINUTE for k in range(count) if pattern.of_day[begin_minute + k]]
        at = midnight_at
    return [at for at in found if skip_until is None or at >= skip_until]


def gap_holds(pattern, instant, before, after):
    """Whether a wall-clock minute that does not exist is a match."""
    wall, end = (instant + before).replace(tzinfo=None), (instant + after).replace(tzinfo=None)
    return any(pattern.wall(wall + k * MINUTE) for k in range((end - wall) // MINUTE))


def second_pass(pattern, place, instant, before, after):
    """Whether the second pass counts: the next match after the first pass must lie at another offset than that pass."""
    wall, end = (instant + after).replace(tzinfo=None), (instant + before).replace(tzinfo=None)
    minutes = [wall + k * MINUTE for k in range((end - wall) // MINUTE)]
    return any(
        offset_of_next(pattern, branch, place, end) not in {None, before}
        for branch in pattern.branches()
        if any(pattern.wall(minute, branch) for minute in minutes)
    )


def offset_of_next(pattern, branch, place, wall):
    """The offset at the first match at or after a wall-clock reading, in one day rule."""
    start = wall
    for ahead in range(366 * 30):
        day = date.fromordinal(wall.toordinal() + ahead)
        if not pattern.day(day, branch):
            continue
        midnight = datetime.combine(day, time.min)
        for minute in range(1440):
            at = midnight + minute * MINUTE
            if not pattern.of_day[minute] or at < start:
                continue
            early, late = at.replace(tzinfo=place).utcoffset(), at.replace(tzinfo=place, fold=1).utcoffset()
            if late > early and pattern.every_hour:
                continue
            return max(early, late)
    return None

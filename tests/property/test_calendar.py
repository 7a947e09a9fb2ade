"""The calendar against a brute-force scan and against croniter's own forward chain, on sampled expressions of the grammar.

The default tier looks at the days around transitions.  `CALENDAR_FULL=1` adds three whole years of each zone.
"""

import os
import random
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from croniter import CroniterBadDateError, croniter
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler_daemon.core import calendar, grammar
from tests.property.minute_scan import DAY, HOUR, MINUTE, Pattern, scan, transitions

FULL = "CALENDAR_FULL" in os.environ
FULL_EXPRESSIONS = 24

# Each has folds of one hour that begin on the hour, or none.
ZONES = [
    "America/New_York",
    "Europe/London",
    "Europe/Dublin",
    "Africa/Casablanca",
    "America/Sao_Paulo",
    "Asia/Gaza",
    "America/Santiago",
    "Atlantic/Azores",
    "Africa/Cairo",
    "Pacific/Apia",
    "Asia/Kathmandu",
    "UTC",
]
ODD_ZONES = ["Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Chatham"]
TICK = timedelta(microseconds=1)


# --- samples ------------------------------------------------------------------------------------------------------------


@st.composite
def spans(draw, low, high, names=(), closing=None):
    first = draw(st.integers(low, high - 1))
    last = draw(st.integers(first + 1, closing or high))
    shown = [str(first), str(last)]
    if names and last - first < len(names) and draw(st.booleans()):  # by names, sun-sun says nothing
        shown = [names[first - low], names[(last - low) % len(names)]]
    step = draw(st.one_of(st.just(""), st.integers(1, high - low + 1).map("/{}".format)))
    return "-".join(shown) + step


@st.composite
def fields(draw, low, high, names=(), closing=None):
    single = st.integers(low, closing or high).map(str)
    if names:
        single = st.one_of(single, st.sampled_from(names))
    item = st.one_of(
        st.just("*"), single, spans(low, high, names, closing), st.integers(1, high - low + 1).map("*/{}".format)
    )
    return ",".join(draw(st.lists(item, min_size=1, max_size=3)))


def mixed_case(text):
    return st.sampled_from([text, text.upper(), text.title()])


expressions = st.tuples(
    fields(0, 59),
    fields(0, 23),
    st.one_of(st.just("*"), fields(1, 31)),
    st.one_of(st.just("*"), fields(1, 12, grammar._MONTHS)),
    st.one_of(st.just("*"), fields(0, 6, grammar._WEEKDAYS, closing=7)),
).map(" ".join)


@st.composite
def near_transition(draw, zones):
    """A zone, a moment near one of its transitions (or anywhere if it has none), and an expression that likes that day."""
    zone = draw(st.sampled_from(zones))
    changes = transitions(zone, 2010, 2031)
    centre = draw(st.sampled_from([change[0] for change in changes])) if changes else datetime(2026, 3, 1, tzinfo=UTC)
    wall = (centre - MINUTE).astimezone(ZoneInfo(zone))
    nearby = st.lists(st.integers(-2, 2).map(lambda by: str((wall.hour + by) % 24)), min_size=1, max_size=3).map(
        ",".join
    )
    texts = [
        draw(fields(0, 59)),
        draw(st.one_of(nearby, fields(0, 23))),
        draw(st.one_of(st.just("*"), st.just(str(wall.day)), fields(1, 31))),
        draw(st.one_of(st.just("*"), st.just(str(wall.month)))),
        draw(st.one_of(st.just("*"), st.just("*"), fields(0, 6, grammar._WEEKDAYS, closing=7))),
    ]
    after = centre + draw(st.integers(-180, 180)) * MINUTE + draw(st.integers(0, 59_999_999)) * TICK
    return zone, centre, after, " ".join(texts)


def raw_chain(expression, zone, start, until):
    """croniter's own forward walk, the expression as it was written: nothing of the code under test."""
    cron, place, at, found = croniter(expression, start), ZoneInfo(zone), start, []
    while at <= until:
        try:
            at = cron.get_next(datetime, start_time=at.astimezone(place)).astimezone(UTC)
        except CroniterBadDateError:
            break
        found.append(at)
    return found


def ambiguous(at, zone):
    local = at.astimezone(ZoneInfo(zone))
    return local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset()


# --- the grammar --------------------------------------------------------------------------------------------------------


@given(expressions.flatmap(mixed_case))
@settings(max_examples=120)
def test_an_expression_reaches_croniter_as_exactly_the_values_it_lists(expression):
    pattern = Pattern(expression)
    expanded, nth = croniter.expand(grammar.read(expression).canonical)
    assert nth == {}
    for values, meant, size in zip(
        expanded,
        (pattern.minutes, pattern.hours, pattern.days, pattern.months, pattern.weekdays),
        (60, 24, 31, 12, 7),
        strict=True,
    ):
        full = meant is None or len(meant) == size
        assert values == ["*"] if meant is None else values == sorted(meant) or (full and values == ["*"])


@given(st.text(max_size=40) | st.text(alphabet="0123456789*/-,# LWRH?@\tsunjamo", max_size=40))
@settings(max_examples=300)
def test_any_text_is_understood_or_refused_with_field_and_reason(text):
    try:
        calendar.check_expression(text, "UTC", datetime(2026, 1, 1, tzinfo=UTC))
    except calendar.CronRefused as error:
        refused = error
    else:
        return
    assert refused.field in {"expression", "minute", "hour", "day_of_month", "month", "day_of_week"}
    assert refused.reason


# --- the scan -----------------------------------------------------------------------------------------------------------


@given(near_transition(ZONES))
@settings(max_examples=150)
def test_the_instants_around_a_transition_are_those_of_a_minute_by_minute_scan(sample):
    zone, centre, after, expression = sample
    until = centre + 20 * HOUR
    due = calendar.due_between(expression, zone, after - 12 * HOUR, until, 10_000)
    assert list(due.instants) == scan(expression, zone, after - 12 * HOUR, until)


@given(st.sampled_from(ZONES), expressions, st.integers(0, 3 * 365))
@settings(max_examples=40)
def test_the_instants_of_any_three_days_are_those_of_a_minute_by_minute_scan(zone, expression, day):
    after = datetime(2025, 1, 1, 7, 31, tzinfo=UTC) + day * DAY
    due = calendar.due_between(expression, zone, after, after + 3 * DAY, 10_000)
    assert list(due.instants) == scan(expression, zone, after, after + 3 * DAY)


def sampled_expression(rng):
    def field(low, high):
        kind = rng.random()
        if kind < 0.2:
            return f"*/{rng.randint(1, high - low + 1)}"
        if kind < 0.4:
            first = rng.randint(low, high - 1)
            return f"{first}-{rng.randint(first + 1, high)}"
        return ",".join(str(rng.randint(low, high)) for _ in range(rng.randint(1, 3)))

    return " ".join(
        "*" if rng.random() < star else field(low, high)
        for low, high, star in ((0, 59, 0.05), (0, 23, 0.2), (1, 31, 0.6), (1, 12, 0.7), (0, 6, 0.6))
    )


@pytest.mark.skipif(not FULL, reason="set CALENDAR_FULL=1 for three years of each zone")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("zone", ZONES)
def test_three_years_of_a_zone_are_those_of_a_minute_by_minute_scan(zone):
    rng = random.Random(zone)
    begin = 2016 if zone == "America/Sao_Paulo" else 2010 if zone == "Pacific/Apia" else 2026
    count = 0
    for _ in range(FULL_EXPRESSIONS):
        expression = sampled_expression(rng)
        for year in range(begin, begin + 3):
            after, until = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
            due = calendar.due_between(expression, zone, after, until, 1_000_000)
            assert list(due.instants) == scan(expression, zone, after, until), (expression, year)
            count += len(due.instants)
        calendar._due_between.cache_clear()
    print(f"{zone}: {FULL_EXPRESSIONS} expressions, {count} instants")


# --- the chain ----------------------------------------------------------------------------------------------------------


@given(near_transition(ZONES + ODD_ZONES))
@settings(max_examples=100)
def test_the_first_instant_after_any_moment_is_the_next_of_a_walk_from_26_hours_before(sample):
    zone, _, after, expression = sample
    start = after - 26 * HOUR
    assume(not ambiguous(start, zone))
    chain = raw_chain(grammar.read(expression).canonical, zone, start, after)
    wanted = chain[-1] if chain and chain[-1] > after else None
    assert calendar.first_after(expression, zone, after) == wanted


@given(near_transition(ZONES + ODD_ZONES), st.integers(1, 40), st.integers(1, 60))
@settings(max_examples=100)
def test_due_tail_and_upcoming_are_slices_of_the_forward_chain(sample, limit, width):
    zone, centre, after, expression = sample
    until = centre + 8 * HOUR + after.microsecond * TICK
    start = after - 30 * HOUR
    assume(not ambiguous(start, zone))
    chain = raw_chain(grammar.read(expression).canonical, zone, start, until)
    first, beyond = bisect_right(chain, after), bisect_right(chain, until)
    inside = chain[first:beyond]

    due = calendar.due_between(expression, zone, after, until, limit)
    assert list(due.instants) == inside[:limit]
    assert due.at_least == (len(inside) > limit)
    assert due.last_at == (inside[-1] if inside else None)
    assert due.next_at == (chain[beyond] if beyond < len(chain) else None)

    since = (until - width * MINUTE).replace(second=0, microsecond=0)
    tail = calendar.tail_between(expression, zone, after, since, until, limit)
    assert list(tail) == [at for at in inside if at >= since][-limit:]

    count = min(limit, len(inside))
    assert list(calendar.upcoming(expression, zone, after, count)) == inside[:count]


@given(near_transition(ZONES + ODD_ZONES))
@settings(max_examples=60)
def test_the_chain_only_ever_moves_forward(sample):
    zone, _, after, expression = sample
    coming = calendar.upcoming(expression, zone, after, 12)
    assert all(earlier < later for earlier, later in pairwise((after, *coming)))
    assert all(at.tzinfo is UTC for at in coming)

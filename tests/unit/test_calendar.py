"""The grammar at the door, the golden vectors, and what the calendar does when it cannot answer."""

import json
import time
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from scheduler_daemon.core import calendar, grammar, zones
from scheduler_daemon.core.calendar import CalendarBroken, CronRefused

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
VECTORS = json.loads(Path(__file__).with_name("calendar_vectors.json").read_text(encoding="utf-8"))


def at(text):
    """An instant in UTC from RFC 3339 text with any offset."""
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.fixture(autouse=True)
def nothing_is_remembered():
    for memo in (calendar._first_after, calendar._due_between, calendar._matches):
        memo.cache_clear()


# --- golden vectors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['zone']} {v['expression']} {v['after']}")
def test_each_golden_vector_holds(vector):
    after, wanted = at(vector["after"]), [at(text) for text in vector["instants"]]
    assert list(calendar.upcoming(vector["expression"], vector["zone"], after, len(wanted))) == wanted
    shown = [instant.astimezone(ZoneInfo(vector["zone"])).isoformat(timespec="minutes") for instant in wanted]
    assert shown == vector["instants"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['zone']} {v['expression']} {v['after']}")
def test_asking_from_any_minute_of_a_golden_vector_gives_the_instant_it_lists_next(vector):
    after, wanted = at(vector["after"]), [at(text) for text in vector["instants"]]
    moment, last = after, min(wanted[-1], after + timedelta(days=3))
    while moment < last:
        following = next(instant for instant in wanted if instant > moment)
        assert calendar.first_after(vector["expression"], vector["zone"], moment) == following
        moment += timedelta(minutes=7)


def test_the_vectors_cover_the_zones_with_the_oddest_clocks():
    covered = {vector["zone"] for vector in VECTORS}
    assert len(covered) >= 12
    assert covered >= {
        "America/New_York",
        "Europe/London",
        "Australia/Lord_Howe",
        "Africa/Casablanca",
        "America/Sao_Paulo",
        "Asia/Gaza",
        "Antarctica/Troll",
        "Pacific/Apia",
        "America/Santiago",
        "Asia/Kathmandu",
    }


# --- what is refused ----------------------------------------------------------------------------------------------------

REFUSED = [
    ("* * * *", "expression", "4 given"),
    ("* * * * * *", "expression", "6 given"),
    ("* * * * * * 2026", "expression", "7 given"),
    ("", "expression", "0 given"),
    ("@daily", "expression", "@daily"),
    ("@every 5m", "expression", "aliases"),
    ("* " * 128 + "*", "expression", "at most 256"),
    ("0\t9 * * *", "expression", "printable ASCII"),
    ("0 9 * * *\n", "expression", "printable ASCII"),
    ("0 9 * * *\x00", "expression", "printable ASCII"),
    ("0\u00a09 * * *", "expression", "printable ASCII"),
    ("\u0663 9 * * *", "expression", "printable ASCII"),
    ("R * * * *", "minute", "'R'"),
    ("H 9 * * *", "minute", "'H'"),
    ("R/5 * * * *", "minute", "a step follows"),
    ("h(0-9) * * * *", "minute", "not understood"),
    ("5-5 * * * *", "minute", "same value"),
    ("50-10 * * * *", "minute", "50-59,0-10"),
    ("59-0 * * * *", "minute", "write 59,0"),
    ("60 * * * *", "minute", "0 to 59"),
    ("5/15 * * * *", "minute", "a step follows"),
    ("*/0 * * * *", "minute", "1 to 60"),
    ("*/61 * * * *", "minute", "1 to 60"),
    ("1-9/61 * * * *", "minute", "1 to 60"),
    ("1,,2 * * * *", "minute", "empty"),
    (",1 * * * *", "minute", "empty"),
    ("-1 * * * *", "minute", "not understood"),
    ("1-2-3 * * * *", "minute", "not understood"),
    ("005 * * * *", "minute", "not understood"),
    ("1.5 * * * *", "minute", "not understood"),
    ("+1 * * * *", "minute", "not understood"),
    ("**/2 * * * *", "minute", "not understood"),
    ("*-5 * * * *", "minute", "not understood"),
    ("mon * * * *", "minute", "'mon'"),
    ("0 24 * * *", "hour", "0 to 23"),
    ("0 22-2 * * *", "hour", "22-23,0-2"),
    ("0 */25 * * *", "hour", "1 to 24"),
    ("0 0 0 * *", "day_of_month", "1 to 31"),
    ("0 0 32 * *", "day_of_month", "1 to 31"),
    ("0 0 L * *", "day_of_month", "'L'"),
    ("0 0 15W * *", "day_of_month", "not understood"),
    ("0 0 ? * *", "day_of_month", "not understood"),
    ("0 0 31 2 *", "day_of_month", "50 years"),
    ("0 0 30,31 feb *", "day_of_month", "50 years"),
    ("0 0 31 4,6,9,11 *", "day_of_month", "50 years"),
    ("0 0 1 0 *", "month", "1 to 12"),
    ("0 0 1 13 *", "month", "1 to 12"),
    ("0 0 1 nov-feb *", "month", "nov-dec,jan-feb"),
    ("0 0 1 january *", "month", "'january'"),
    ("0 0 1 mon *", "month", "'mon'"),
    ("0 0 * * 8", "day_of_week", "0 to 7"),
    ("0 0 * * fri-mon", "day_of_week", "fri-sat,sun-mon"),
    ("0 0 * * 7-2", "day_of_week", "runs backwards"),
    ("0 0 * * 7-7", "day_of_week", "same value"),
    ("0 0 * * 7-sun", "day_of_week", "same value"),
    ("0 0 * * sun-sun", "day_of_week", "same value"),
    ("0 0 * * 5#2", "day_of_week", "not understood"),
    ("0 0 * * 5L", "day_of_week", "not understood"),
    ("0 0 * * */8", "day_of_week", "1 to 7"),
    ("0 0 * * jan", "day_of_week", "'jan'"),
]


@pytest.mark.parametrize(("expression", "field", "reason"), REFUSED, ids=lambda value: repr(value)[:30])
def test_what_the_grammar_does_not_take_is_refused_with_field_and_reason(expression, field, reason):
    with pytest.raises(CronRefused) as refused:
        calendar.check_expression(expression, "UTC", NEW_YEAR)
    assert refused.value.field == field
    assert reason in refused.value.reason
    assert str(refused.value) == f"{field}: {refused.value.reason}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("Europe/Berlni", "did you mean Europe/Berlin?"),
        ("", "not an IANA"),
        ("../../etc/passwd", "not an IANA"),
        ("/etc/localtime", "not an IANA"),
        ("Factory", "not an IANA"),
        ("UTC\n", "not an IANA"),
        ("+02:00", "not an IANA"),
        ("x" * 5000, "not an IANA"),
    ],
)
def test_an_unknown_zone_is_refused_and_the_nearest_one_named(name, hint):
    with pytest.raises(CronRefused) as refused:
        calendar.check_expression("0 9 * * *", name, NEW_YEAR)
    assert refused.value.field == "timezone"
    assert hint in refused.value.reason
    assert len(refused.value.reason) < 200


# --- what is understood -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "canonical"),
    [
        ("*/60 */24 * */12 *", "0 0 * 1 *"),
        ("0-59/60 0-23/24 * * *", "0 0 * * *"),
        ("*/1 0-23 * 1-12 *", "* * * * *"),
        ("05 09 * * *", "5 9 * * *"),
        ("  0  9   * * *  ", "0 9 * * *"),
        ("0 9 * * *,5", "0 9 * * *"),
        ("3,1,2,1 * * * *", "1,2,3 * * * *"),
        ("1-5/2,2 * * * *", "1,2,3,5 * * * *"),
        ("0 0 * jan-mar *", "0 0 * 1,2,3 *"),
        ("0 0 * JAN,Dec *", "0 0 * 1,12 *"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * sun", "0 0 * * 0"),
        ("0 0 * * */7", "0 0 * * 0"),
        ("0 0 * * 0,7,sun", "0 0 * * 0"),
        ("0 0 * * 5-7", "0 0 * * 0,5,6"),
        ("0 0 * * fri-sun", "0 0 * * 0,5,6"),
        ("0 0 * * FRI-7", "0 0 * * 0,5,6"),
        ("0 0 * * 6-7", "0 0 * * 0,6"),
        ("0 0 * * sat-sun", "0 0 * * 0,6"),
        ("0 0 * * sun-tue", "0 0 * * 0,1,2"),
        ("0 0 * * 1-7/2", "0 0 * * 0,1,3,5"),
        ("0 0 * * 2-7/2", "0 0 * * 2,4,6"),
        ("0 0 * * 1-7/3", "0 0 * * 0,1,4"),
        ("0 0 * * 0-7/7", "0 0 * * 0"),
        ("0 0 * * 0-7", "0 0 * * 0,1,2,3,4,5,6"),
        ("0 0 * * sun-7", "0 0 * * 0,1,2,3,4,5,6"),
        ("0 0 * * 0-sun", "0 0 * * 0,1,2,3,4,5,6"),
    ],
)
def test_an_expression_has_one_canonical_spelling(expression, canonical):
    assert grammar.read(expression).canonical == canonical


def test_an_expression_of_256_characters_is_read_and_one_of_257_is_not():
    longest = "0 9 * * " + ",".join(["mon"] * 62)
    assert len(longest) == 255
    assert grammar.read(longest + " ").canonical == "0 9 * * 1"
    with pytest.raises(CronRefused, match="257 characters"):
        grammar.read(longest + "  ")


@pytest.mark.parametrize("days", ["1-31", "*/1"])
def test_a_day_field_that_lists_every_day_restricts_whatever_asterisk_stands_beside_it(days):
    """Left to itself, croniter reads the first pair as every day and the second as every second weekday."""
    for weekdays in ("0,2,4,6", "*/2"):
        expression = f"0 0 {days} * {weekdays}"
        assert len(calendar.upcoming(expression, "UTC", NEW_YEAR, 7)) == 7
        assert calendar.upcoming(expression, "UTC", NEW_YEAR, 7)[-1] == at("2026-01-08T00:00Z")


def test_both_day_fields_restricted_warn_of_the_or_rule_with_the_next_five_instants():
    (warning,) = calendar.check_expression("0 9 13 * fri", "Europe/Berlin", NEW_YEAR)
    assert "matches either" in warning
    for instant in ("2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16", "2026-01-23"):
        assert f"{instant}T09:00:00+01:00" in warning


@pytest.mark.parametrize(
    ("expression", "fields"),
    [
        ("0 9 */2 * fri", "day_of_month"),
        ("0 9 13 * */2", "day_of_week"),
        ("0 9 */2 * */2", "day_of_month and day_of_week"),
    ],
)
def test_a_step_that_restricts_a_day_field_warns_that_vixie_cron_differs(expression, fields):
    _, warning = calendar.check_expression(expression, "UTC", NEW_YEAR)
    assert f"as in {fields};" in warning
    assert "Vixie" in warning


@pytest.mark.parametrize("expression", ["0 9 * * fri", "0 9 13 * *", "0 9 */2 * *", "0 9 *,5 * fri", "*/7 * * * *"])
def test_one_restricted_day_field_warns_of_nothing(expression):
    assert calendar.check_expression(expression, "UTC", NEW_YEAR) == ()


# --- answers ------------------------------------------------------------------------------------------------------------


def test_the_next_instant_is_strictly_later_than_an_instant():
    nine = at("2026-03-02T09:00Z")
    assert calendar.first_after("0 9 * * *", "UTC", nine) == at("2026-03-03T09:00Z")
    assert calendar.first_after("0 9 * * *", "UTC", nine - timedelta(microseconds=1)) == nine
    assert calendar.first_after("0 9 * * *", "UTC", nine + timedelta(microseconds=1)) == at("2026-03-03T09:00Z")


def test_a_moment_in_any_offset_is_the_moment_it_is():
    nine = datetime(2026, 3, 2, 14, 45, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    found = calendar.first_after("0 9 * * *", "UTC", nine)
    assert found == at("2026-03-03T09:00Z")
    assert found.tzinfo is UTC


def test_a_naive_moment_is_a_mistake_of_the_program():
    with pytest.raises(ValueError, match="has no offset"):
        calendar.first_after("0 9 * * *", "UTC", NEW_YEAR.replace(tzinfo=None))
    with pytest.raises(ValueError, match="has no offset"):
        calendar.due_between("0 9 * * *", "UTC", NEW_YEAR, NEW_YEAR.replace(tzinfo=None), 5)


def test_an_impossible_date_has_no_next_instant():
    assert calendar.first_after("0 0 30 2 *", "UTC", NEW_YEAR) is None
    assert calendar.upcoming("0 0 30 2 *", "UTC", NEW_YEAR, 5) == ()
    assert calendar.due_between("0 0 30 2 *", "UTC", NEW_YEAR, at("2027-01-01T00:00Z"), 5) == calendar.Due(
        instants=(), at_least=False, last_at=None, next_at=None
    )


def test_the_29th_of_february_waits_eight_years_over_a_century():
    assert calendar.upcoming("0 0 29 2 *", "UTC", at("2096-01-01T00:00Z"), 2) == (
        at("2096-02-29T00:00Z"),
        at("2104-02-29T00:00Z"),
    )


def test_due_instants_are_those_after_the_watermark_up_to_and_including_the_end():
    due = calendar.due_between("*/15 * * * *", "UTC", at("2026-03-02T09:00Z"), at("2026-03-02T09:45Z"), 10)
    assert due.instants == (at("2026-03-02T09:15Z"), at("2026-03-02T09:30Z"), at("2026-03-02T09:45Z"))
    assert due.at_least is False
    assert due.last_at == at("2026-03-02T09:45Z")
    assert due.next_at == at("2026-03-02T10:00Z")


def test_nothing_due_still_says_what_comes_next():
    due = calendar.due_between("0 9 * * *", "UTC", at("2026-03-02T09:00Z"), at("2026-03-02T09:00:59.999999Z"), 10)
    assert due == calendar.Due(instants=(), at_least=False, last_at=None, next_at=at("2026-03-03T09:00Z"))


def test_more_than_the_limit_gives_the_first_ones_and_the_newest():
    due = calendar.due_between("* * * * *", "UTC", at("2026-03-02T09:00Z"), at("2026-03-02T10:00:30Z"), 3)
    assert due.instants == (at("2026-03-02T09:01Z"), at("2026-03-02T09:02Z"), at("2026-03-02T09:03Z"))
    assert due.at_least is True
    assert due.last_at == at("2026-03-02T10:00Z")
    assert due.next_at == at("2026-03-02T10:01Z")


def test_exactly_the_limit_is_no_at_least():
    due = calendar.due_between("* * * * *", "UTC", at("2026-03-02T09:00Z"), at("2026-03-02T09:03Z"), 3)
    assert len(due.instants) == 3
    assert due.at_least is False


def test_the_newest_due_instant_is_never_one_that_stepping_back_invents():
    """At 01:45 EST, croniter's `get_prev` answers a second 01:30 that no forward walk yields; it would run twice."""
    due = calendar.due_between("30 1 1 11 *", "America/New_York", at("2020-01-01T00:00Z"), at("2026-11-01T06:45Z"), 2)
    assert due.at_least is True
    assert due.last_at == at("2026-11-01T01:30-04:00")
    assert due.next_at == at("2027-11-01T01:30-04:00")


def test_a_watermark_inside_a_repeated_hour_does_not_bring_back_an_instant():
    """The watermark is raised to any moment, so 01:10 EST is one; a yearly 01:30 was decided an hour before."""
    watermark = at("2026-11-01T01:10:00.5-05:00")
    assert calendar.first_after("30 1 1 11 *", "America/New_York", watermark) == at("2027-11-01T01:30-04:00")
    due = calendar.due_between("30 1 1 11 *", "America/New_York", watermark, at("2026-11-01T02:00-05:00"), 5)
    assert due.instants == ()
    assert due.next_at == at("2027-11-01T01:30-04:00")


def test_a_watermark_between_the_passes_does_not_skip_the_second_one():
    watermark = at("2026-11-01T01:50-04:00")
    assert calendar.first_after("30 1 * * *", "America/New_York", watermark) == at("2026-11-01T01:30-05:00")


def test_the_tail_holds_the_newest_instants_of_its_window():
    tail = calendar.tail_between(
        "* * * * *", "UTC", at("2026-01-01T00:00Z"), at("2026-03-02T09:58Z"), at("2026-03-02T10:00:30Z"), 10
    )
    assert tail == (at("2026-03-02T09:58Z"), at("2026-03-02T09:59Z"), at("2026-03-02T10:00Z"))
    newest = calendar.tail_between(
        "* * * * *", "UTC", at("2026-01-01T00:00Z"), at("2026-03-02T09:58Z"), at("2026-03-02T10:00:30Z"), 2
    )
    assert newest == (at("2026-03-02T09:59Z"), at("2026-03-02T10:00Z"))


def test_the_tail_does_not_reach_behind_the_watermark():
    after = at("2026-03-02T09:59Z")
    tail = calendar.tail_between("* * * * *", "UTC", after, at("2026-03-02T09:50Z"), at("2026-03-02T10:00Z"), 10)
    assert tail == (at("2026-03-02T10:00Z"),)


def test_a_tail_of_more_than_48_hours_is_a_mistake_of_the_program():
    until = at("2026-03-04T00:00Z")
    with pytest.raises(ValueError, match="at most 2 days"):
        calendar.tail_between("* * * * *", "UTC", NEW_YEAR, until - timedelta(hours=48, seconds=1), until, 10)
    assert len(calendar.tail_between("0 * * * *", "UTC", NEW_YEAR, until - timedelta(hours=48), until, 99)) == 49


def test_fewer_instants_than_asked_for_are_not_counted_past():
    assert calendar.upcoming("* * * * *", "UTC", NEW_YEAR, 0) == ()
    assert len(calendar.upcoming("* * * * *", "UTC", NEW_YEAR, 7)) == 7


# --- when it cannot answer ----------------------------------------------------------------------------------------------


class Broken:
    """A croniter whose every question is answered by one function."""

    def __init__(self, answer):
        self.get_next = self.get_prev = lambda _kind, *, start_time: answer(start_time)


def fail(error):
    raise error


@pytest.mark.parametrize(
    "answer",
    [
        lambda start: start,
        lambda start: start - timedelta(minutes=1),
        lambda _: fail(AssertionError("two passes")),
        lambda _: fail(OverflowError("date value out of range")),
        lambda _: fail(IndexError("list index out of range")),
        lambda _: fail(RecursionError("too deep")),
    ],
    ids=["the same", "earlier", "AssertionError", "OverflowError", "IndexError", "RecursionError"],
)
@pytest.mark.parametrize("after", ["2026-03-02T09:00Z", "2026-11-01T01:10-05:00"], ids=["plain", "repeated hour"])
def test_an_answer_that_is_not_later_or_an_error_breaks_this_calendar_and_no_other(monkeypatch, answer, after):
    assert calendar.first_after("0 10 * * *", "America/New_York", at(after)) is not None
    monkeypatch.setattr(calendar, "croniter", lambda *_, **__: Broken(answer))
    with pytest.raises(CalendarBroken):
        calendar.first_after("0 9 * * *", "America/New_York", at(after))
    with pytest.raises(CalendarBroken):
        calendar.due_between("0 9 * * *", "America/New_York", at(after), at(after) + timedelta(days=9), 2)
    assert calendar.first_after("0 10 * * *", "America/New_York", at(after) + timedelta(days=1)) is not None


def test_a_broken_calendar_refuses_the_expression_at_the_door(monkeypatch):
    monkeypatch.setattr(calendar, "croniter", lambda *_, **__: Broken(lambda start: start))
    with pytest.raises(CronRefused) as refused:
        calendar.check_expression("0 9 * * *", "UTC", NEW_YEAR)
    assert refused.value.field == "expression"
    assert "cannot resolve" in refused.value.reason


@pytest.mark.parametrize(("expression", "zone"), [("5-5 * * * *", "UTC"), ("0 9 * * *", "Mars/Olympus")])
def test_a_stored_trigger_that_is_no_longer_understood_is_a_broken_calendar(expression, zone):
    with pytest.raises(CalendarBroken, match="no longer understood"):
        calendar.first_after(expression, zone, NEW_YEAR)


def test_a_hint_that_never_leads_back_ends_as_a_broken_calendar(monkeypatch):
    matches = calendar._matches("* * * * *")
    monkeypatch.setattr(calendar, "_matches", lambda _: matches)
    matches._back = lambda _kind, *, start_time: start_time + timedelta(days=1)
    with pytest.raises(CalendarBroken, match="nothing before"):
        calendar.due_between("* * * * *", "UTC", NEW_YEAR, at("2026-02-01T00:00Z"), 3)


def test_a_walk_that_never_arrives_ends_as_a_broken_calendar(monkeypatch):
    matches = calendar._matches("* * * * *")
    monkeypatch.setattr(calendar, "_matches", lambda _: matches)
    matches._back = lambda _kind, *, start_time: start_time - timedelta(days=300)
    with pytest.raises(CalendarBroken, match="without arriving"):
        calendar.due_between("* * * * *", "UTC", NEW_YEAR, at("2027-02-01T00:00Z"), 3)


def test_the_end_of_all_dates_is_a_broken_calendar_and_not_an_accident():
    with pytest.raises(CalendarBroken):
        calendar.first_after("0 0 1 1 *", "UTC", at("9999-12-31T23:00Z"))


# --- sources and cost ---------------------------------------------------------------------------------------------------


def test_the_version_names_what_the_instants_were_computed_with():
    assert f"croniter {version('croniter')} / tzdata {version('tzdata')}" == calendar.CALENDAR_VERSION
    assert calendar.CALENDAR_VERSION.startswith("croniter 7.0.")


def test_zones_come_from_the_package_and_not_from_the_machine():
    assert zoneinfo.TZPATH == ()
    assert zones.zone("Europe/Berlin") is ZoneInfo("Europe/Berlin")


def test_every_zone_keeps_whole_minutes_so_seconds_can_be_dropped():
    for name in zones._names():
        for year in range(1973, 2051):
            for month in (1, 7):
                offset = datetime(year, month, 1, tzinfo=zones.zone(name)).utcoffset()
                assert offset is not None
                assert offset % timedelta(minutes=1) == timedelta()


def counted(monkeypatch):
    asked = []
    ask = calendar._Matches._ask

    def noted(question, start):
        asked.append(start)
        return ask(question, start)

    monkeypatch.setattr(calendar._Matches, "_ask", staticmethod(noted))
    return asked


def test_ten_thousand_watermarks_and_every_spelling_cost_croniter_one_question(monkeypatch):
    asked = counted(monkeypatch)
    for index in range(10_000):
        after = at("2026-03-02T10:00Z") + timedelta(microseconds=index * 7_000_001)
        assert calendar.first_after("0 9 * * *", "UTC", after) == at("2026-03-03T09:00Z")
    for expression in ("00 9 * * *", "0  09 * * *", "0 9,9 * * *"):
        assert calendar.first_after(expression, "UTC", at("2026-03-02T11:00Z")) == at("2026-03-03T09:00Z")
    assert len(asked) == 1


def test_forty_zones_share_what_one_expression_knows_of_the_wall_clock(monkeypatch):
    names = sorted(zones._names())[::15]
    asked = counted(monkeypatch)
    found = {calendar.first_after("0 9 * * *", name, at("2026-07-01T00:00Z")) for name in names}
    assert len(found) > 10
    assert len(asked) < 12


def test_a_year_of_a_minutely_expression_costs_no_walk_through_the_year(monkeypatch):
    asked = counted(monkeypatch)
    due = calendar.due_between("* * * * *", "America/New_York", at("2025-07-01T00:00Z"), at("2026-07-01T00:00Z"), 100)
    assert due.last_at == at("2026-07-01T00:00Z")
    assert due.next_at == at("2026-07-01T00:01Z")
    assert len(asked) < 110


@pytest.mark.alone
def test_a_remembered_answer_costs_a_small_part_of_one_step_of_croniter():
    after, until = at("2026-03-02T09:00:00.123Z"), at("2026-03-03T09:00:00.456Z")
    cron = croniter("0 9 * * *", after)
    step_s = min(_timed(lambda: cron.get_next(datetime, start_time=after), 200) for _ in range(5))
    due_s = min(
        _timed(lambda: calendar.due_between("0 9 * * *", "Europe/Berlin", after, until, 1001)) for _ in range(5)
    )
    first_s = min(_timed(lambda: calendar.first_after("0 9 * * *", "Europe/Berlin", after)) for _ in range(5))
    assert due_s < step_s / 10
    assert first_s < step_s / 10


def _timed(call, count=2000):
    begin_s = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin_s) / count

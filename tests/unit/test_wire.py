"""The wire structs: which door refuses what, and that the published bounds are the core's own."""

import re
from datetime import UTC, datetime

import msgspec
import pytest

from scheduler_daemon.api import wire
from scheduler_daemon.core.bindings import BindingRefused, check_bindings
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Cron, Definition, OneShot, Row
from scheduler_daemon.core.validate import check_definition, check_schedule_id

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CRON = {"kind": "cron", "expression": "0 9 * * *"}
LEAST = {"schedule_id": "nightly", "deployment_id": "report.default", "trigger": CRON}


def create(**fields) -> wire.Create:
    return msgspec.convert({**LEAST, **fields}, wire.Create)


def refusal_of(at: str) -> Rejected:
    with pytest.raises(Rejected) as caught:
        create(trigger={"kind": "oneshot", "at": at}).definition()
    return caught.value


def test_the_least_definition_gets_the_defaults_of_the_specification():
    assert create().definition() == Definition(
        schedule_id="nightly", deployment_id="report.default", trigger=Cron(expression="0 9 * * *", timezone="UTC")
    )


def test_every_field_of_a_definition_arrives():
    whole = create(
        input={"who": {"value": "world"}},
        overlap="parallel",
        max_active_runs=2,
        misfire="latest",
        lateness_s=5,
        max_steps=7,
        hold_unknown_s=1.5,
        run_timeout_s=60,
    )
    assert whole.definition() == Definition(
        schedule_id="nightly",
        deployment_id="report.default",
        trigger=Cron(expression="0 9 * * *", timezone="UTC"),
        input={"who": {"value": "world"}},
        overlap="parallel",
        max_active_runs=2,
        misfire="latest",
        lateness_s=5,
        max_steps=7,
        hold_unknown_s=1.5,
        run_timeout_s=60.0,
    )


def test_create_and_update_know_exactly_the_fields_of_a_definition():
    fields = set(Definition.__struct_fields__)
    assert set(wire.Create.__struct_fields__) == fields
    assert set(wire.Update.__struct_fields__) == fields | {"expected_revision"}


# --- triggers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2030-01-31T09:00:00+01:00", datetime(2030, 1, 31, 8, tzinfo=UTC)),
        ("2030-01-31T08:00:00Z", datetime(2030, 1, 31, 8, tzinfo=UTC)),
        ("2030-01-31T08:00:00.250Z", datetime(2030, 1, 31, 8, 0, 0, 250_000, tzinfo=UTC)),
    ],
)
def test_a_one_shot_with_an_offset_becomes_a_moment_in_utc(text, at):
    trigger = create(trigger={"kind": "oneshot", "at": text}).definition().trigger
    assert trigger == OneShot(at=at)
    assert trigger.at.tzinfo is UTC


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2030-01-31T09:00:00", "needs an offset"),
        ("2030-01-31", "is not RFC 3339"),
        ("tomorrow", "is not RFC 3339"),
        ("", "is not RFC 3339"),
        ("2030-01-31T25:00:00Z", "is not RFC 3339"),
        ("9999-12-31T23:59:59-12:00", "outside the years"),
        ("0001-01-01T00:00:00+12:00", "outside the years"),
    ],
)
def test_a_one_shot_that_names_no_moment_is_an_invalid_trigger_with_field_and_reason(text, reason):
    refused = refusal_of(text)
    assert refused.code == "InvalidTrigger"
    assert refused.data["field"] == "trigger.at"
    assert reason in refused.data["reason"]


def test_an_update_refuses_a_naive_time_in_the_same_way():
    update = msgspec.convert(
        {"schedule_id": "a", "expected_revision": 1, "trigger": {"kind": "oneshot", "at": "2030-01-31T09:00:00"}},
        wire.Update,
    )
    with pytest.raises(Rejected) as caught:
        update.changes()
    assert caught.value.code == "InvalidTrigger"


@pytest.mark.parametrize(
    ("trigger", "where"),
    [
        ({"kind": "interval"}, "kind"),
        ({"expression": "* * * * *"}, "kind"),
        ({"kind": "cron"}, "expression"),
        ({"kind": "cron", "expression": "* * * * *", "at": "2030-01-31T09:00:00Z"}, "at"),
        ({"kind": "oneshot", "at": "2030-01-31T09:00:00Z", "timezone": "UTC"}, "timezone"),
        ({"kind": "oneshot", "at": 1893456000}, "trigger.at"),
        ("0 9 * * *", "trigger"),
    ],
)
def test_a_trigger_of_another_shape_is_refused_by_its_place(trigger, where):
    with pytest.raises(msgspec.ValidationError, match=re.escape(where)):
        create(trigger=trigger)


# --- update -----------------------------------------------------------------------------------------------------------


def test_an_update_carries_only_what_was_given_and_null_is_not_given():
    update = msgspec.convert(
        {"schedule_id": "a", "expected_revision": 3, "lateness_s": 5, "misfire": None, "trigger": None, "input": {}},
        wire.Update,
    )
    assert update.changes() == {"lateness_s": 5, "input": {}}


def test_an_update_turns_its_trigger_into_the_cores():
    update = msgspec.convert({"schedule_id": "a", "expected_revision": 3, "trigger": CRON}, wire.Update)
    assert update.changes() == {"trigger": Cron(expression="0 9 * * *", timezone="UTC")}


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (wire.Create, {**LEAST, "overlap": "queue"}),
        (wire.Create, {**LEAST, "lateness_s": 1.5}),
        (wire.Create, {**LEAST, "lateness_s": True}),
        (wire.Create, {**LEAST, "lateness_s": "5"}),
        (wire.Create, {**LEAST, "job": 1}),
        (wire.Create, {"schedule_id": "a", "trigger": CRON}),
        (wire.Update, {"schedule_id": "a"}),
        (wire.Update, {"schedule_id": "a", "expected_revision": 0}),
        (wire.Update, {"schedule_id": "a", "expected_revision": 2**53}),
        (wire.ListSchedules, {"limit": 0}),
        (wire.ListSchedules, {"limit": 1001}),
        (wire.ListSchedules, {"state": "running"}),
        (wire.ListSchedules, {"cursor": "a" * 1025}),
        (wire.ListOccurrences, {"schedule_id": "a", "limit": 0}),
        (wire.ListOccurrences, {"schedule_id": "a", "limit": 101}),
        (wire.ScheduleWithNote, {"schedule_id": "a", "note": "n" * 1001}),
        (wire.Unblock, {"schedule_id": "a"}),
        (wire.Unblock, {"schedule_id": "a", "note": ""}),
        (wire.AbandonRun, {"run_id": "run-000001"}),
        (wire.OneRun, {"run_id": ""}),
        (wire.OneRun, {"run_id": "a" * 257}),
        (wire.OneRun, {"run_id": "run-000001\n"}),
        (wire.OneRun, {"run_id": "run\x1b[2J"}),
        (wire.OneRun, {"run_id": "run\u2028"}),
        (wire.ResumeRun, {"run_id": "run-000001", "resume_payload": []}),
        (wire.ResumeRun, {"run_id": "run-000001", "resume_outcome": ""}),
        (wire.ResumeRun, {"run_id": "run-000001", "trace_range": []}),
        (wire.Nothing, {"verbose": True}),
    ],
)
def test_a_wrong_shape_is_refused(kind, given):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(given, kind, strict=True)


def test_a_resume_answers_with_nothing_submitted_and_waits_unless_told_otherwise():
    resume = msgspec.convert({"run_id": "run-000001"}, wire.ResumeRun)
    assert (resume.resume_payload, resume.resume_outcome, resume.wait) == ({}, "submitted", True)


# --- the schema shows what the core enforces --------------------------------------------------------------------------

PROPERTIES = msgspec.json.schema(wire.Create)["$defs"]["Create"]["properties"]


def bounds_of(field: str) -> dict:
    schema = PROPERTIES[field]
    return next(one for one in schema.get("anyOf", [schema]) if one["type"] != "null")


def assert_refused(**fields) -> None:
    with pytest.raises(Rejected) as caught:
        check_definition(create(**fields).definition(), NOW)
    assert caught.value.code == "InvalidPolicy"
    assert caught.value.data["field"] in fields


@pytest.mark.parametrize(
    ("field", "beside"),
    [
        ("max_active_runs", {"overlap": "parallel"}),
        ("lateness_s", {}),
        ("max_steps", {}),
        ("hold_unknown_s", {}),
        ("run_timeout_s", {}),
    ],
)
def test_the_published_range_is_the_one_that_the_core_enforces(field, beside):
    bounds = bounds_of(field)
    for taken in (bounds["minimum"], bounds["maximum"]):
        check_definition(create(**{field: taken}, **beside).definition(), NOW)
    for refused in (bounds["minimum"] - 1, bounds["maximum"] + 1):
        assert_refused(**{field: refused}, **beside)


@pytest.mark.parametrize("schedule_id", ["a", "_", "0", "A.b-c_d", "a" * 128])
def test_the_published_pattern_takes_the_ids_that_the_core_takes(schedule_id):
    assert re.search(PROPERTIES["schedule_id"]["pattern"], schedule_id)
    check_schedule_id(schedule_id)


@pytest.mark.parametrize("schedule_id", ["", "../x", "-a", ".a", "a b", "a/b", "a\n", "ä", "a\0", "a" * 129])
def test_the_published_pattern_refuses_the_ids_that_the_core_refuses(schedule_id):
    assert not re.search(PROPERTIES["schedule_id"]["pattern"], schedule_id)
    with pytest.raises(Rejected) as caught:
        check_schedule_id(schedule_id)
    assert caught.value.code == "InvalidScheduleId"


def test_the_published_facts_are_those_that_the_core_resolves():
    check_bindings({str(n): {"from": fact} for n, fact in enumerate(wire.FACTS)})
    with pytest.raises(BindingRefused) as caught:
        check_bindings({"a": {"from": "occurrence.nothing"}})
    named = re.findall(r"[a-z]+\.[a-z_]+", caught.value.reason)
    assert [fact for fact in named if fact != "occurrence.nothing"] == list(wire.FACTS)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_shows_absent_members_as_null_and_no_members_of_a_summary():
    shown = msgspec.to_builtins(wire.occurrence(Row(n=3, schedule_id="a", status="completed", at=NOW, instant=NOW)))
    assert shown["reason"] is None
    assert shown["run_id"] is None
    assert set(shown) == {
        "n", "schedule_id", "instant", "status", "at", "reason", "run_id", "server_run_id", "revision", "blocking_run_id",
        "detail",
    }  # fmt: skip


def test_a_summary_shows_its_range_and_whether_the_count_is_exact():
    row = Row(
        n=3,
        schedule_id="a",
        status="skipped-misfire",
        at=NOW,
        first_instant=datetime(2026, 1, 1, tzinfo=UTC),
        last_instant=datetime(2026, 2, 1, tzinfo=UTC),
        count=1000,
        at_least=True,
    )
    shown = msgspec.to_builtins(wire.occurrence(row))
    assert shown["first_instant"] == "2026-01-01T00:00:00Z"
    assert (shown["count"], shown["at_least"], shown["instant"]) == (1000, True, None)

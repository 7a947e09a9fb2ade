"""What a definition is refused for: code, field and reason of each (spec sections 3 and 11)."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Cron, OneShot
from scheduler_daemon.core.validate import check_definition, check_note, in_utc, with_changes
from tests.builders import World, at, definition, preflight

NOW = at("09:00")


def refused(**fields):
    with pytest.raises(Rejected) as raised:
        check_definition(definition(**fields), NOW)
    refusal = raised.value
    assert refusal.data["reason"]
    assert refusal.data["field"] in refusal.message
    return refusal.code, refusal.data["field"]


@pytest.mark.parametrize(
    "schedule_id", ["", "../x", ".hidden", "-dash", "a b", "a/b", "ä", "x" * 129, "line\n", "tab\t", "a" * 200]
)
def test_an_id_that_could_not_be_a_file_name_is_refused(schedule_id):
    assert refused(schedule_id=schedule_id) == ("InvalidScheduleId", "schedule_id")


@pytest.mark.parametrize("schedule_id", ["a", "_", "9", "x" * 128, "daily-report.v2_final"])
def test_an_id_of_letters_digits_underscore_dot_and_dash_is_taken(schedule_id):
    assert check_definition(definition(schedule_id=schedule_id), NOW) == ()


@pytest.mark.parametrize("deployment_id", ["", "x" * 257, "a\nb"])
def test_a_deployment_id_that_cannot_be_shown_is_refused(deployment_id):
    assert refused(deployment_id=deployment_id) == ("InvalidInput", "deployment_id")


@pytest.mark.parametrize(
    "expression",
    [
        "* * * * * *",
        "* * * * * * *",
        "R * * * *",
        "H * * * *",
        "@daily",
        "5-5 * * * *",
        "50-10 * * * *",
        "",
        "0 0 31 2 *",
        "*",
    ],
)
def test_an_expression_that_would_not_mean_what_it_says_is_refused(expression):
    assert refused(cron=expression or " ") == ("InvalidTrigger", "trigger.expression")


def test_an_expression_of_more_than_256_characters_is_refused():
    assert refused(cron="0," * 150 + "0 * * * *") == ("InvalidTrigger", "trigger.expression")


@pytest.mark.parametrize("timezone_name", ["Mars/Olympus", "", "../etc/passwd", "local"])
def test_an_unknown_zone_is_refused(timezone_name):
    assert refused(cron="0 9 * * *", timezone=timezone_name) == ("InvalidTrigger", "trigger.timezone")


def test_a_naive_one_shot_is_refused():
    assert refused(at=datetime(2026, 1, 5, 10, 0)) == ("InvalidTrigger", "trigger.at")  # noqa: DTZ001


@pytest.mark.parametrize("moment", [at("09:00"), at("08:59:59.999999"), at("2020-01-01 00:00")])
def test_a_one_shot_that_is_not_in_the_future_is_refused(moment):
    assert refused(at=moment) == ("InvalidTrigger", "trigger.at")


def test_a_one_shot_a_microsecond_ahead_is_taken():
    assert check_definition(definition(at=at("09:00:00.000001")), NOW) == ()


@pytest.mark.parametrize("moment", [datetime(9999, 12, 31, 23, 59, tzinfo=UTC), datetime(2080, 1, 5, tzinfo=UTC)])
def test_a_one_shot_further_ahead_than_fifty_years_is_refused(moment):
    assert refused(at=moment) == ("InvalidTrigger", "trigger.at")


def test_a_one_shot_that_utc_cannot_express_is_refused_and_not_stored():
    world = World()
    with pytest.raises(Rejected) as raised:
        world.create(at=datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-12))))
    assert (raised.value.code, raised.value.data["field"]) == ("InvalidTrigger", "trigger.at")
    assert world.state.schedules == {}


def test_both_day_fields_restricted_earn_a_warning_with_the_next_five_instants():
    (warning,) = check_definition(definition(cron="0 9 13 * fri"), NOW)
    assert "a day that matches either counts" in warning
    assert warning.count("T09:00:00") == 5


def test_the_warning_comes_with_the_answer_of_create():
    view = World().create(cron="0 9 13 * fri")
    assert len(view.warnings) == 1
    assert World().create().warnings == ()


POLICIES = [
    ({"overlap": "parallel"}, "max_active_runs"),
    ({"max_active_runs": 2}, "max_active_runs"),
    ({"overlap": "parallel", "max_active_runs": 0}, "max_active_runs"),
    ({"overlap": "parallel", "max_active_runs": 1001}, "max_active_runs"),
    ({"lateness_s": 0}, "lateness_s"),
    ({"lateness_s": 86_401}, "lateness_s"),
    ({"max_steps": 0}, "max_steps"),
    ({"hold_unknown_s": -1.0}, "hold_unknown_s"),
    ({"hold_unknown_s": float("nan")}, "hold_unknown_s"),
    ({"hold_unknown_s": float("inf")}, "hold_unknown_s"),
    ({"run_timeout_s": 0.5}, "run_timeout_s"),
    ({"run_timeout_s": float("inf")}, "run_timeout_s"),
]


@pytest.mark.parametrize(("fields", "field"), POLICIES)
def test_a_policy_out_of_its_range_is_refused(fields, field):
    with pytest.raises(Rejected) as raised:
        check_definition(definition(**fields), NOW)
    assert (raised.value.code, raised.value.data["field"]) == ("InvalidPolicy", field)


@pytest.mark.parametrize(
    "fields",
    [
        {"overlap": "parallel", "max_active_runs": 1},
        {"lateness_s": 1},
        {"lateness_s": 86_400},
        {"max_steps": 1},
        {"hold_unknown_s": 0.0},
        {"run_timeout_s": 1.0},
    ],
)
def test_the_ends_of_each_range_are_taken(fields):
    assert check_definition(definition(**fields), NOW) == ()


@pytest.mark.parametrize("binding", [7, {}, {"value": 1, "from": "run.id"}, {"from": "run.colour"}, {"from": 3}])
def test_a_binding_that_is_neither_a_literal_nor_a_fact_is_refused_by_its_name(binding):
    with pytest.raises(Rejected) as raised:
        check_definition(definition(input={"who": binding}), NOW)
    assert raised.value.code == "InvalidInput"
    assert raised.value.data["field"].startswith("input.who")


@pytest.mark.parametrize("note", ["x" * 1001, "two\nlines", "bell\a", "\x1b[31mred"])
def test_a_note_that_a_terminal_could_choke_on_is_refused(note):
    with pytest.raises(Rejected) as raised:
        check_note(note)
    assert (raised.value.code, raised.value.data["field"]) == ("InvalidInput", "note")


def test_a_note_of_a_thousand_printable_characters_and_no_note_are_taken():
    check_note("ü" * 1000)
    check_note(None)


# --- what only the server can say ---------------------------------------------------------------------------------------


def refused_by_server(said, features=(), **fields):
    world = World()
    journal = list(world.journal)
    with pytest.raises(Rejected) as raised:
        world.command(cmd.Create(definition(**fields), said, features))
    assert world.journal == journal
    assert world.state.schedules == {}
    return raised.value


def test_an_unknown_deployment_is_refused():
    refusal = refused_by_server(preflight(known=False))
    assert (refusal.code, refusal.data["field"], refusal.data["deployment_id"]) == (
        "DeploymentNotFound",
        "deployment_id",
        "dep",
    )


def test_an_unrunnable_deployment_is_refused_with_its_diagnostics():
    refusal = refused_by_server(preflight(diagnostics=({"code": "no_tool"},)))
    assert (refusal.code, refusal.data["diagnostics"]) == ("DeploymentUnrunnable", [{"code": "no_tool"}])


def test_max_steps_needs_a_server_that_knows_it():
    refusal = refused_by_server(preflight(), max_steps=5)
    assert (refusal.code, refusal.data["field"]) == ("Unsupported", "max_steps")
    assert World().create(max_steps=5).max_steps == 5


def test_a_sample_input_that_violates_the_schema_is_refused():
    schema = {"type": "object", "required": ["who"]}
    refusal = refused_by_server(preflight(input_schema=schema))
    assert (refusal.code, refusal.data["field"]) == ("InvalidInput", "input")
    assert "who" in refusal.data["reason"]


def test_the_sample_occurrence_is_run_zero_now_without_a_previous_instant():
    schema = {
        "type": "object",
        "properties": {
            "run": {"const": "run-000000"},
            "before": {"type": "null"},
            "now": {"const": "2026-01-05T08:59:30Z"},
            "revision": {"const": 1},
        },
    }
    world = World()
    made = definition(
        input={
            "run": {"from": "run.id"},
            "before": {"from": "occurrence.previous_instant"},
            "now": {"from": "occurrence.instant"},
            "revision": {"from": "schedule.revision"},
        }
    )
    assert world.command(cmd.Create(made, preflight(input_schema=schema))).state == "active"


def test_an_update_is_checked_against_the_server_as_well():
    world = World()
    world.create()
    update = {"schedule_id": "daily", "expected_revision": 1, "changes": {"lateness_s": 5}}
    with pytest.raises(Rejected) as raised:
        world.command(cmd.Update(**update, preflight=preflight(known=False)))
    assert raised.value.code == "DeploymentNotFound"
    assert world.view().revision == 1


# --- changes ------------------------------------------------------------------------------------------------------------


def test_changes_replace_what_is_given_and_null_is_not_patched():
    before = definition(lateness_s=30, max_steps=4)
    after = with_changes(before, {"misfire": "latest", "lateness_s": None, "max_steps": None})
    assert (after.misfire, after.lateness_s, after.max_steps) == ("latest", 30, 4)


def test_overlap_skip_drops_the_limit_but_not_one_given_beside_it():
    before = definition(overlap="parallel", max_active_runs=3)
    assert with_changes(before, {"overlap": "skip"}).max_active_runs is None
    assert with_changes(before, {"overlap": "skip", "max_active_runs": 3}).max_active_runs == 3


def test_an_input_is_replaced_whole():
    before = definition(input={"a": {"value": 1}, "b": {"value": 2}})
    assert with_changes(before, {"input": {"c": {"value": 3}}}).input == {"c": {"value": 3}}


def test_a_cron_is_left_as_it_is_and_a_one_shot_is_brought_to_utc():
    cron = definition(cron="0 9 * * *", timezone="Europe/Berlin")
    assert in_utc(cron) is cron
    moved = in_utc(definition(at=at("09:00").astimezone(timezone(timedelta(hours=5)))))
    assert moved.trigger == OneShot(at("09:00"))
    assert moved.trigger.at.tzinfo is UTC
    assert isinstance(cron.trigger, Cron)

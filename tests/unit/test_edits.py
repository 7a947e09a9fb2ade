"""Updates: what they consume, what they keep, what they refuse (spec section 3)."""

from datetime import timedelta, timezone

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Cron, OneShot
from tests.builders import DAILY, World, at

each_policy = pytest.mark.parametrize("misfire", ["skip", "latest"])


def daily(hour):
    return Cron(f"0 {hour} * * *", "UTC")


@each_policy
def test_an_edit_to_an_earlier_time_of_the_same_day_never_fires_at_once(misfire):
    world = World("11:00:00")
    world.create(cron="0 12 * * *", misfire=misfire)
    world.update(trigger=daily(9))
    assert world.history() == []
    assert world.view().next_instants[0] == at("2026-01-06 09:00")
    world.restart()
    world.until("12:00")
    assert world.history() == []
    world.live_until("2026-01-06 09:00")
    assert world.history() == ["2026-01-06 09:00 admitted", "2026-01-06 09:00 running"]


@each_policy
def test_an_edit_to_a_later_time_of_the_same_day_never_fires_again_at_the_old_one(misfire):
    world = World("08:00:00")
    world.create(cron=DAILY, misfire=misfire)
    world.update(trigger=daily(10))
    world.until("09:00")
    assert world.history() == []
    world.until("10:00")
    assert world.history() == ["10:00 admitted", "10:00 running"]


@each_policy
def test_an_edit_to_a_later_time_after_the_old_one_has_run_fires_at_the_new_one_too(misfire):
    world = World()
    world.create(cron=DAILY, misfire=misfire)
    world.until("09:00")
    world.answered()
    world.update(trigger=daily(10))
    world.restart()
    world.until("10:00")
    assert world.history()[2:] == ["09:00 completed", "10:00 admitted", "10:00 running"]


@each_policy
def test_an_edit_to_an_earlier_time_after_the_old_one_has_run_waits_for_tomorrow(misfire):
    world = World("11:59:30")
    world.create(cron="0 12 * * *", misfire=misfire)
    world.until("12:00")
    world.answered()
    world.update(trigger=daily(9))
    world.until("23:00")
    assert world.history() == ["12:00 admitted", "12:00 running", "12:00 completed"]


def test_an_edit_back_to_a_time_that_has_run_never_runs_it_again():
    world = World()
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00")
    world.answered()
    world.update(trigger=daily(10))
    world.update(trigger=daily(9))
    world.until("09:30")
    assert world.history() == ["09:00 admitted", "09:00 running", "09:00 completed"]


def test_a_changed_trigger_records_what_was_due_and_undecided():
    world = World()
    world.create()
    world.asleep_until("09:01:10")
    world.update(trigger=daily(10))
    assert world.history() == ["09:00 superseded trigger-changed", "09:01 superseded trigger-changed"]
    assert world.view().watermark == at("09:01:10")


def test_other_edits_keep_the_candidate_which_is_admitted_under_the_new_revision():
    world = World(max_concurrent_runs=1)
    world.create("a-holder", DAILY)
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00")
    world.update(input={"who": {"value": "new"}})
    world.answered()
    admitted = world.rows()[0]
    assert (admitted.status, admitted.revision) == ("admitted", 2)
    assert world.run("run-000002").input == {"who": "new"}


def test_an_edit_does_not_touch_what_was_admitted():
    world = World()
    world.create(cron=DAILY, input={"who": {"value": "old"}})
    world.until("09:00")
    world.update(input={"who": {"value": "new"}}, deployment_id="other")
    world.not_sent()
    world.live_until("09:00:02")
    again = world.call()
    assert (again.input, again.deployment_id) == ({"who": "old"}, "dep")


@pytest.mark.parametrize(
    "changes", [{"lateness_s": 30}, {"misfire": "latest"}, {"overlap": "parallel", "max_active_runs": 2}], ids=str
)
def test_an_edit_that_arrives_before_a_due_instant_is_decided_admits_it_under_the_new_revision_alone(changes):
    world = World()
    world.create(cron=DAILY)
    world.asleep_until("09:00:00.5")
    world.update(**changes)
    assert [(row.status, row.revision) for row in world.rows()] == [("admitted", 2), ("running", 2)]
    assert len(world.all(cmd.StartCall)) == 1


def test_an_edit_that_arrives_after_a_due_instant_is_decided_leaves_it_under_the_old_revision_alone():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.update(lateness_s=30)
    world.until("09:00:30")
    world.answered()
    assert [(row.status, row.revision) for row in world.rows()] == [("admitted", 1), ("running", 1), ("completed", 1)]


def test_a_trigger_edit_that_arrives_before_a_due_instant_is_decided_consumes_it_and_starts_nothing():
    world = World()
    world.create(cron=DAILY, misfire="latest")
    world.asleep_until("09:00:00.5")
    world.update(trigger=daily(10))
    assert [(row.status, row.reason, row.revision) for row in world.rows()] == [("superseded", "trigger-changed", 1)]
    assert world.all(cmd.StartCall) == []


def test_a_stale_revision_is_refused_with_the_current_one_and_changes_nothing():
    world = World()
    world.create()
    world.update(lateness_s=30)
    journal = list(world.journal)
    with pytest.raises(Rejected) as refused:
        world.update(revision=1, lateness_s=40)
    assert refused.value.code == "RevisionConflict"
    assert (refused.value.data["revision"], refused.value.data["expected_revision"]) == (2, 1)
    assert world.journal == journal
    assert world.view().lateness_s == 30


def test_setting_a_field_to_the_value_it_has_is_no_change():
    world = World()
    world.create(cron=DAILY, lateness_s=30)
    journal = list(world.journal)
    view = world.update(lateness_s=30, trigger=Cron(DAILY, "UTC"), misfire="skip")
    assert view.revision == 1
    assert world.journal == journal


def test_the_same_moment_with_another_offset_is_no_change():
    world = World()
    world.create(at=at("09:00"))
    plus_two = at("09:00").astimezone(tz=timezone(timedelta(hours=2)))
    assert world.update(trigger=OneShot(plus_two)).revision == 1


def test_null_means_not_patched():
    world = World()
    world.create(lateness_s=30)
    view = world.update(lateness_s=None, misfire="latest")
    assert (view.lateness_s, view.misfire, view.revision) == (30, "latest", 2)


def test_a_rejected_update_leaves_everything_untouched():
    world = World()
    world.create(cron=DAILY)
    journal, before = list(world.journal), world.schedule()
    with pytest.raises(Rejected) as refused:
        world.update(overlap="parallel")
    assert (refused.value.code, refused.value.data["field"]) == ("InvalidPolicy", "max_active_runs")
    assert world.journal == journal
    assert world.schedule() == before


def test_every_edit_makes_the_revision_grow_by_one():
    world = World()
    world.create()
    revisions = [
        world.update(lateness_s=30).revision,
        world.pause().revision,
        world.resume().revision,
        world.delete().revision,
    ]
    assert revisions == [2, 3, 4, 5]


def test_a_finished_one_shot_with_a_new_trigger_is_active_again():
    world = World()
    world.create(at=at("09:00"))
    world.until("09:00")
    world.answered()
    assert world.view().state == "finished"
    assert world.update(trigger=OneShot(at("10:00"))).state == "active"
    world.until("10:00")
    assert world.history()[-2:] == ["10:00 admitted", "10:00 running"]


def test_an_update_that_sets_a_one_shot_in_the_past_is_refused():
    world = World("10:00:00")
    world.create(at=at("11:00"))
    with pytest.raises(Rejected) as refused:
        world.update(trigger=OneShot(at("09:00")))
    assert (refused.value.code, refused.value.data["field"]) == ("InvalidTrigger", "trigger.at")


def test_another_field_of_a_one_shot_in_the_past_can_be_edited():
    world = World()
    world.create(at=at("09:00"))
    world.until("09:00")
    assert world.update(lateness_s=30).lateness_s == 30


def test_a_deployment_that_is_changed_while_its_answer_is_awaited_does_not_strand_the_candidate():
    world = World(attended=False)
    world.server_up()
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00:01")
    assert world.schedule().candidate.waiting == "preflight-pending"
    world.update(deployment_id="other")
    assert world.history() == ["09:00 admitted", "09:00 running"]
    assert world.call().deployment_id == "other"


def test_a_one_shots_instant_is_stored_in_utc():
    zone = timezone(timedelta(hours=2))
    world = World()
    world.create(at=at("09:00").astimezone(zone))
    stored = world.schedule().definition.trigger.at
    assert stored.isoformat() == "2026-01-05T09:00:00+00:00"

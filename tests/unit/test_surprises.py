"""What an operator would look at twice at three in the morning: odd dates, folds, clocks and edits, each through the whole core."""

from datetime import timedelta

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Cron, Diagnostic, OneShot
from tests.builders import DAILY, World, at

NEW_YORK, BERLIN = "America/New_York", "Europe/Berlin"
LOCAL = {"local": {"from": "occurrence.local_time"}, "before": {"from": "occurrence.previous_instant"}}
DAMAGE = Diagnostic("damaged", "a record is damaged", at("08:59"), {"offset": 12})


def admitted(world, schedule_id="daily"):
    return [row.instant for row in world.rows(schedule_id) if row.status == "admitted"]


# --- dates --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("misfire", "end"), [("skip", "skipped-misfire late"), ("latest", "running")])
def test_the_29th_of_february_that_was_missed_is_missed_or_made_up_for_once(misfire, end):
    world = World("2026-01-05 08:00")
    view = world.create(cron="0 9 29 2 *", misfire=misfire)
    assert view.next_instants[:2] == (at("2028-02-29 09:00"), at("2032-02-29 09:00"))
    world.until("2028-03-05 10:00")
    assert world.history()[-1] == f"2028-02-29 09:00 {end}"
    assert len(world.history()) <= 2


def test_the_31st_comes_seven_times_a_year_and_is_never_moved():
    world = World("2026-01-01 00:00", max_concurrent_runs=9, preflight_ttl_s=10**9)
    world.create(cron="0 9 31 * *", overlap="parallel", max_active_runs=9)
    for day in range(1, 365):
        world.asleep_until((at("2026-01-01 09:00") + timedelta(days=day)).strftime("%Y-%m-%d %H:%M"))
        world.wake()
    assert [(instant.month, instant.day) for instant in admitted(world)] == [
        (month, 31) for month in (1, 3, 5, 7, 8, 10, 12)
    ]


def test_a_one_shot_that_lies_now_or_in_the_past_is_refused_and_a_moment_later_is_taken():
    world = World("09:00:00")
    for moment in ("08:00", "09:00"):
        with pytest.raises(Rejected) as refused:
            world.create(at=at(moment))
        assert (refused.value.code, refused.value.data["field"]) == ("InvalidTrigger", "trigger.at")
    world.create(at=at("09:00:00.000001"))
    world.pass_s(0.000001)
    assert len(admitted(world)) == 1


# --- folds --------------------------------------------------------------------------------------------------------------


def test_a_daemon_that_slept_through_a_fold_misses_both_passes_by_a_row_each():
    world = World("2026-11-01 05:10")
    world.create(cron="30 1 * * *", timezone=NEW_YORK)
    world.until("2026-11-01 08:00")
    assert world.history() == [
        "2026-11-01 05:30 skipped-misfire late",
        "2026-11-01 06:30 skipped-misfire late",
    ]


def test_of_two_passes_that_were_missed_a_latest_schedule_makes_up_for_the_second_and_says_so():
    world = World("2026-11-01 05:10")
    world.create(cron="30 1 * * *", timezone=NEW_YORK, misfire="latest", input=LOCAL)
    world.until("2026-11-01 08:00")
    assert world.history() == [
        "2026-11-01 05:30 coalesced newer-instant",
        "2026-11-01 06:30 admitted",
        "2026-11-01 06:30 running",
    ]
    assert world.run().input == {"local": "2026-11-01T01:30:00-05:00", "before": "2026-11-01T05:30:00Z"}


def test_a_run_of_the_first_pass_that_goes_on_for_an_hour_keeps_the_second_one_out():
    world = World("2026-11-01 05:10", preflight_ttl_s=36_000)
    world.create(cron="30 1 * * *", timezone=NEW_YORK)
    world.until("2026-11-01 05:30")
    world.until("2026-11-01 06:30")
    assert world.history()[2:] == ["2026-11-01 06:30 skipped-overlap overlap"]


def test_a_pause_between_the_two_passes_consumes_the_second_alone():
    world = World("2026-11-01 05:10")
    world.create(cron="30 1 * * *", timezone=NEW_YORK, misfire="latest")
    world.until("2026-11-01 05:30")
    world.answered()
    world.pause()
    world.until("2026-11-01 12:00")
    world.resume()
    assert world.history()[3:] == ["2026-11-01 06:30..2026-11-01 06:30 x1 superseded paused"]


def test_a_daily_instant_inside_a_gap_fires_once_at_its_end():
    world = World("2026-03-08 06:00")
    world.create(cron="30 2 * * *", timezone=NEW_YORK, input=LOCAL)
    for text in ("06:30", "07:00", "07:30", "08:00"):
        world.until(f"2026-03-08 {text}")
    assert admitted(world) == [at("2026-03-08 07:00")]
    assert world.run().input["local"] == "2026-03-08T03:00:00-04:00"


def test_a_thousand_schedules_with_the_same_fold_run_each_pass_once():
    world = World("2026-11-01 05:29", checked=False, max_concurrent_runs=1000, preflight_ttl_s=36_000)
    for number in range(1000):
        world.create(f"s{number:03}", "30 1 * * *", timezone=NEW_YORK, misfire="latest")
    for text in ("2026-11-01 05:30", "2026-11-01 06:30"):
        world.until(text)
        world.pass_s(4)
        calls = world.all(cmd.StartCall)
        assert len(calls) == 1000
        for call in calls:
            world.answered(call.run_id)
    world.until("2026-11-02 06:29")
    assert world.all(cmd.StartCall) == []
    for number in range(1000):
        assert admitted(world, f"s{number:03}") == [at("2026-11-01 05:30"), at("2026-11-01 06:30")]


# --- edits --------------------------------------------------------------------------------------------------------------


def test_a_zone_that_moves_todays_instant_into_the_past_waits_for_tomorrow():
    world = World("08:30:00")
    world.create(cron=DAILY, misfire="latest")
    world.update(trigger=Cron(DAILY, BERLIN))
    world.until("12:00")
    assert world.history() == []
    world.until("2026-01-06 08:00")
    assert admitted(world) == [at("2026-01-06 08:00")]


def test_a_zone_that_moves_todays_instant_into_the_future_runs_it_again_because_it_is_another_instant():
    world = World("07:59:30")
    world.create(cron=DAILY, timezone=BERLIN)
    world.until("08:00")
    world.answered()
    world.update(trigger=Cron(DAILY, "UTC"))
    world.until("09:00")
    assert admitted(world) == [at("08:00"), at("09:00")]


def test_a_zone_edited_right_after_a_downtime_finds_the_old_zones_instants_decided_at_the_start():
    world = World("07:00:00")
    world.create(cron=DAILY, timezone=BERLIN)
    world.asleep_until("08:30")
    world.restart()
    world.update(trigger=Cron(DAILY, "UTC"))
    world.until("09:00")
    assert world.history() == ["08:00 skipped-misfire late", "09:00 admitted", "09:00 running"]


def test_a_policy_edited_to_latest_does_not_bring_back_what_was_missed():
    world = World()
    world.create(cron=DAILY)
    world.until("09:05")
    world.update(misfire="latest")
    world.until("12:00")
    assert world.history() == ["09:00 skipped-misfire late"]


def test_a_one_shot_moved_while_it_waits_for_a_slot_runs_at_its_new_time_alone():
    world = World(max_concurrent_runs=1)
    world.create("a-holder", at=at("09:00"))
    world.create(at=at("09:00"), misfire="latest")
    world.until("09:00")
    world.update(trigger=OneShot(at("10:00")))
    world.answered()
    assert world.history() == ["09:00 superseded trigger-changed"]
    world.until("10:00")
    assert admitted(world) == [at("10:00")]


@pytest.mark.parametrize("act", ["create", "pause", "resume"])
def test_an_instant_at_the_very_moment_of_a_create_a_pause_or_a_resume_does_not_fire(act):
    world = World("08:58:30")
    if act == "create":
        world.asleep_until("09:00")
        world.create(cron=DAILY, misfire="latest")
    else:
        world.create(cron=DAILY, misfire="latest")
        if act == "resume":
            world.pause()
        world.asleep_until("09:00")
        world.pause() if act == "pause" else world.resume()
    world.until("12:00")
    assert admitted(world) == []


@pytest.mark.parametrize("misfire", ["skip", "latest"])
def test_an_unblock_after_three_days_starts_nothing_of_them(misfire):
    world = World()
    world.create(cron=DAILY, misfire=misfire)
    world.command(cmd.Block("daily", DAMAGE))
    world.until("2026-01-07 12:00")
    world.unblock()
    assert world.history() == ["09:00..2026-01-07 09:00 x3 superseded blocked"]
    world.until("2026-01-08 09:00")
    assert admitted(world) == [at("2026-01-08 09:00")]


# --- interrupts that nobody answers -------------------------------------------------------------------------------------


def test_three_weeks_behind_an_interrupt_are_a_row_a_day_that_names_it():
    world = World(attended=True)
    world.create(cron=DAILY)
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    for day in range(6, 27):
        world.until(f"2026-01-{day:02} 09:00")
    skipped = [row for row in world.rows() if row.status == "skipped-overlap"]
    assert len(skipped) == 21
    assert {row.blocking_run_id for row in skipped} == {"run-000001"}


def test_an_interrupt_given_up_after_a_week_lets_a_latest_schedule_start_the_newest_day_alone():
    world = World(preflight_ttl_s=10**7)
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    for day in range(6, 13):
        world.until(f"2026-01-{day:02} 09:00")
    world.abandon()
    assert admitted(world) == [at("09:00"), at("2026-01-12 09:00")]
    superseded = [row.instant.day for row in world.rows() if row.status == "superseded"]
    assert superseded == [6, 7, 8, 9, 10, 11]


# --- clocks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("misfire", ["skip", "latest"])
def test_a_clock_set_back_an_hour_inside_a_pause_gives_no_instant_a_second_row(misfire):
    world = World()
    world.create(misfire=misfire)
    world.until("09:00")
    world.answered()
    world.pause()
    world.until("09:10:30")
    world.set_clock("08:10:30")
    world.until("08:30")
    world.resume()
    world.until("08:59")
    assert admitted(world) == [at("09:00")]
    assert [one.code for one in world.view().diagnostics] == ["clock-behind"]
    for text in ("09:00", "09:05", "09:10", "09:11"):
        world.until(text)
    assert admitted(world) == [at("09:00"), at("09:11")]


def test_a_clock_a_day_ahead_for_an_hour_costs_that_day_until_somebody_says_otherwise():
    world = World(preflight_ttl_s=10**7)
    world.create(cron="0 * * * *")
    world.set_clock("2026-01-06 08:30")
    assert world.rows()[0].reason == "late"
    world.set_clock("09:30")
    for text in ("10:00", "11:00"):
        world.until(text)
    assert admitted(world) == []
    assert [one.code for one in world.view().diagnostics] == ["clock-behind"]
    world.unblock(note="the clock was a day ahead")
    for text in ("12:00", "13:00"):
        world.until(text)
    rowed = {row.instant for row in world.rows() if row.status == "skipped-misfire"}
    assert at("12:00") in rowed
    assert admitted(world) == []
    world.until("2026-01-06 09:00")
    assert admitted(world)[-1:] == [at("2026-01-06 09:00")]


def test_a_clock_set_ahead_while_a_candidate_waits_makes_it_late_for_what_kept_it():
    world = World(max_concurrent_runs=1)
    world.create("a-holder", DAILY)
    world.create(cron=DAILY)
    world.until("09:00")
    world.set_clock("09:30")
    assert world.history() == ["09:00 skipped-misfire no-slot"]

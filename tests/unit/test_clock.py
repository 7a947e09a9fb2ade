"""The wall clock: steps, a watermark ahead of it, what was created under a wrong one (spec section 5)."""

from datetime import timedelta
from itertools import pairwise

from scheduler_daemon.core import calendar, triggers
from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import events as ev
from scheduler_daemon.core.model import Cron, OneShot
from tests.builders import DAILY, HOURLY, World, at


def test_a_step_back_admits_nothing_twice():
    world = World()
    world.create()
    world.until("09:00")
    world.answered()
    world.set_clock("08:00")
    for minute in ("08:30", "08:59", "09:00", "09:00:30"):
        world.until(minute)
    assert [line for line in world.history() if line.endswith("admitted")] == ["09:00 admitted"]
    world.until("09:01")
    assert world.history()[-2:] == ["09:01 admitted", "09:01 running"]


def test_a_step_forward_is_downtime_and_the_misfire_rule_applies():
    world = World()
    world.create("skips", DAILY)
    world.create("latest", DAILY, misfire="latest")
    world.set_clock("2026-01-06 10:00")
    assert world.history("skips") == ["09:00 skipped-misfire late", "2026-01-06 09:00 skipped-misfire late"]
    assert world.history("latest") == [
        "09:00 coalesced newer-instant",
        "2026-01-06 09:00 admitted",
        "2026-01-06 09:00 running",
    ]


def test_a_step_over_two_seconds_is_recorded_and_logged():
    world = World()
    world.set_clock("08:59:27")
    steps = [event for event in world.journal if isinstance(event, ev.ClockStepped)]
    assert [step.step_s for step in steps] == [-3.0]
    assert (world.state.globals.clock_step_s, world.state.globals.clock_step_at) == (-3.0, at("08:59:27"))
    assert "clock_stepped" in world.actions()


def test_a_step_of_two_seconds_is_not_worth_a_word():
    world = World()
    world.set_clock("08:59:32")
    assert [event for event in world.journal if isinstance(event, ev.ClockStepped)] == []


def test_a_candidate_that_lies_in_the_future_after_a_step_back_waits_for_its_instant():
    world = World(max_concurrent_runs=1)
    world.create("a-holder", DAILY)
    world.create("held", DAILY, misfire="latest")
    world.until("09:00")
    world.set_clock("08:00")
    world.answered()
    assert world.all(cmd.StartCall) == []
    world.until("08:59:59")
    assert world.all(cmd.StartCall) == []
    world.live_until("09:00:01")
    assert world.one(cmd.StartCall).schedule_id == "held"


def test_an_unsent_run_whose_instant_lies_in_the_future_after_a_step_back_waits_for_it():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.not_sent()
    world.set_clock("08:00")
    world.until("08:30")
    assert world.all(cmd.StartCall) == []
    world.live_until("09:00:01")
    assert world.call().run_id == "run-000001"


def test_a_watermark_far_ahead_is_a_diagnostic_and_nothing_fires():
    world = World()
    world.create()
    world.until("09:00")
    world.answered()
    world.set_clock("08:00")
    view = world.view()
    assert [one.code for one in view.diagnostics] == ["clock-behind"]
    assert view.state == "active"
    assert "09:00" in view.diagnostics[0].message


def test_a_watermark_two_minutes_ahead_is_no_diagnostic_yet():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00:30")
    world.set_clock("08:58:30")
    assert world.view().watermark == at("09:00:30")
    assert world.view().diagnostics == ()


def test_unblock_sets_a_watermark_that_ran_ahead_to_now_and_fires_again():
    world = World("2026-01-06 08:00")
    world.create(cron="0 * * * *")
    world.until("2026-01-06 08:59:30")
    world.set_clock("08:30")
    view = world.unblock(note="the clock was a day ahead")
    assert view.watermark == at("08:30")
    assert view.diagnostics == ()
    world.until("09:00")
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_an_instant_that_has_a_row_is_never_admitted_again_after_the_watermark_was_set_back():
    world = World("08:30")
    world.create(cron="*/30 * * * *", misfire="latest")
    world.until("09:00")
    world.answered()
    world.set_clock("08:40")
    world.unblock()
    world.until("09:00")
    world.until("09:10")
    assert world.history() == ["09:00 admitted", "09:00 running", "09:00 completed"]
    world.until("09:30")
    assert world.history()[3:] == ["09:30 admitted", "09:30 running"]


def test_a_taken_instant_is_passed_over_between_others_that_are_due():
    for misfire, expected in (("skip", "08:50 skipped-misfire late"), ("latest", "08:50 coalesced newer-instant")):
        world = World("08:45")
        world.create(cron="*/10 * * * *", misfire=misfire)
        world.until("09:00")
        world.answered()
        world.set_clock("08:41")
        world.unblock()
        world.until("09:05")
        finals = [line for line in world.history() if line.startswith("09:00")]
        assert finals == ["09:00 admitted", "09:00 running", "09:00 completed"]
        assert world.history()[0] == expected


def test_a_candidate_held_before_its_time_is_forgotten_and_comes_again_when_it_is_due():
    world = World("08:59", max_concurrent_runs=1)
    world.create("a-holder", DAILY)
    world.create("held", DAILY, misfire="latest")
    world.until("09:00")
    assert world.schedule("held").candidate.instant == at("09:00")
    world.set_clock("08:00")
    world.unblock("held")
    assert world.schedule("held").candidate is None
    world.until("09:00")
    world.answered()
    assert world.history("held") == ["09:00 admitted", "09:00 running"]


def test_an_unsent_run_from_before_its_time_ends_with_the_unblock_and_overlap_is_free():
    world = World("2026-01-06 08:59:30")
    world.create(cron=HOURLY)
    world.until("2026-01-06 09:00")
    world.not_sent()
    world.set_clock("08:59:30")
    world.unblock()
    assert world.history()[-1] == "2026-01-06 09:00 superseded clock-behind"
    assert world.rows()[-1].detail["sent"] == "never-sent"
    world.until("09:00")
    assert world.history()[-2:] == ["09:00 admitted", "09:00 running"]


def test_a_start_that_turns_out_unsent_after_the_unblock_ends_as_well():
    for misfire in ("skip", "latest"):
        world = World("2026-01-06 08:59:30")
        world.create(cron=HOURLY, misfire=misfire)
        world.until("2026-01-06 09:00")
        world.set_clock("08:59:30")
        world.unblock()
        world.not_sent()
        assert world.history()[-1] == "2026-01-06 09:00 superseded clock-behind"
        world.until("09:00")
        assert world.history()[-2:] == ["09:00 admitted", "09:00 running"]


def test_an_unsent_run_whose_instant_has_come_outlives_the_unblock():
    world = World()
    world.create(cron=DAILY, lateness_s=86_400)
    world.until("09:00")
    world.not_sent(server_down=True)
    world.until("12:00")
    world.set_clock("09:10")
    world.unblock()
    world.server_up()
    world.pass_s(60)
    assert world.call().run_id == "run-000001"


def test_unblocking_a_watermark_does_not_touch_a_paused_schedules_pause():
    world = World("2026-01-06 08:00")
    world.create()
    world.pause()
    world.set_clock("09:00:30")
    world.unblock()
    world.until("09:02:30")
    assert world.resume().state == "active"
    assert world.history() == ["09:01..09:02 x2 superseded paused"]


def test_a_schedule_created_under_a_clock_that_was_set_back_fires_at_once_in_its_own_time():
    world = World("2026-01-06 08:00")
    world.create("old", "0 * * * *")
    world.until("2026-01-06 08:30")
    world.set_clock("08:30")
    world.create("new", "0 * * * *")
    world.until("09:00")
    assert world.history("old") == []
    assert world.history("new") == ["09:00 admitted", "09:00 running"]
    assert world.view("new").diagnostics == ()


def test_such_a_schedule_keeps_its_own_watermark_over_a_restart_and_decides_nothing_twice():
    world = World("2026-01-06 08:00")
    world.set_clock("08:30")
    world.create("new", "0 * * * *", misfire="latest")
    world.until("09:00")
    world.answered()
    world.restart()
    world.until("09:30")
    assert world.history("new") == ["09:00 admitted", "09:00 running", "09:00 completed"]
    world.until("10:00")
    assert world.history("new")[3:] == ["10:00 admitted", "10:00 running"]


def test_its_exemption_ends_when_the_clock_has_passed_what_was_decided_under_the_wrong_one():
    world = World("2026-01-06 08:00")
    world.set_clock("08:30")
    world.create("new", DAILY)
    world.until("2026-01-06 08:30")
    assert world.view("new").watermark == at("2026-01-06 08:30")


def test_a_candidate_of_an_exempt_schedule_does_not_spin():
    world = World("2026-01-06 08:00", max_concurrent_runs=1)
    world.set_clock("08:58")
    world.create("a-holder", DAILY)
    world.create("held", misfire="latest")
    world.until("08:59")
    world.until("09:00")
    world.until("09:01")
    assert world.history("held")[:2] == ["08:59 admitted", "08:59 running"]
    assert world.schedule("held").candidate.instant == at("09:01")


def test_a_pause_under_a_watermark_that_lies_ahead_consumes_nothing_twice():
    world = World()
    world.create()
    world.until("09:00")
    world.answered()
    world.set_clock("08:30")
    world.pause()
    world.until("08:50")
    world.resume()
    world.until("09:00:30")
    assert world.history() == ["09:00 admitted", "09:00 running", "09:00 completed"]


def test_a_trigger_change_under_a_watermark_that_lies_ahead_leaves_it_there():
    world = World()
    world.create()
    world.until("09:00:10")
    world.answered()
    world.set_clock("08:30")
    world.update(trigger=OneShot(at("08:45")))
    assert world.view().watermark == at("09:00:10")
    world.until("08:50")
    assert world.history() == ["09:00 admitted", "09:00 running", "09:00 completed"]


def test_a_trigger_change_of_a_paused_schedule_under_a_watermark_that_lies_ahead_gives_no_instant_a_second_row():
    world = World()
    world.create()
    world.until("09:00:10")
    world.answered()
    world.set_clock("08:30")
    world.pause()
    world.update(trigger=Cron("*/2 * * * *", "UTC"))
    world.until("09:10")
    world.resume()
    assert world.history()[3:] == ["09:02..09:10 x5 superseded paused"]


def test_the_heartbeat_is_written_every_minute_and_only_then():
    world = World()
    world.create(cron=DAILY)
    written = []
    for _ in range(200):
        plan = world.pass_s(1)
        written += [event.until for event in plan.events if isinstance(event, ev.Decided)]
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(written)]
    assert all(gap <= 60 for gap in gaps)
    assert len(written) <= 5


def test_an_instant_that_a_new_time_zone_database_places_before_the_last_sign_of_life_is_not_due(monkeypatch):
    world = World()
    world.create(cron="0 10 * * *", misfire="latest")
    world.live_until("09:30")
    move_instants(world, monkeypatch, minutes=-45)
    world.restart()
    world.until("09:40")
    assert world.history() == []
    world.until("2026-01-06 09:20")
    assert world.history() == ["2026-01-06 09:15 admitted", "2026-01-06 09:15 running"]


def test_an_instant_that_a_new_time_zone_database_places_in_the_downtime_is_missed_like_any_other(monkeypatch):
    world = World()
    world.create(cron="0 10 * * *", misfire="latest")
    world.live_until("09:30")
    move_instants(world, monkeypatch, minutes=-25)
    world.asleep_until("09:40")
    world.restart()
    assert world.history() == ["09:35 admitted", "09:35 running"]


def move_instants(world, monkeypatch, minutes):
    """A calendar that knows other offsets now: every instant lies elsewhere by so much."""
    world.compared = False
    moved, next_after, due = timedelta(minutes=minutes), triggers.next_after, triggers.due

    def moved_due(trigger, after, until, limit=triggers.COUNT_MAX + 1):
        found = due(trigger, after - moved, until - moved, limit)
        instants = tuple(instant + moved for instant in found.instants)
        return calendar.Due(instants=instants, at_least=False, last_at=instants[-1] if instants else None, next_at=None)

    monkeypatch.setattr(triggers, "next_after", lambda trigger, after: next_after(trigger, after - moved) + moved)
    monkeypatch.setattr(triggers, "due", moved_due)

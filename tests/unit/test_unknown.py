"""Runs that ended `outcome-unknown`: what they hold, what is kept for good, what is still looked for (spec section 6)."""

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import events as ev
from scheduler_daemon.core.model import Result
from tests.builders import DAILY, World, at, result

FRESH = result("interrupted", "server-run-000001", trace_count=1)


def lost_start(**fields):
    """A plain server; the start was lost and failed closed at 09:00:05."""
    world = World()
    world.create(**fields)
    world.until("09:00")
    world.lost()
    world.live_s(5)
    world.listed("run_b", "run_c")
    return world


def lost_resume(**fields):
    """A plain server; a resume was lost and its caller is gone."""
    world = World()
    world.create(**fields)
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    world.resume_run()
    world.lost(caller_gone=True)
    world.inspected(FRESH)
    return world


def test_the_end_discloses_what_is_not_known_and_what_stopped_since():
    world = lost_start(cron=DAILY)
    row = world.rows()[-1]
    assert (row.status, row.reason, row.run_id) == ("failed", "outcome-unknown", "run-000001")
    assert row.detail["message"] == (
        "the outcome is not known: external effects may already have happened, and the run may still be executing at the server; "
        "this occurrence is never started again"
    )
    assert row.detail["stopped_since"] == ["run_b", "run_c"]
    assert "outcome_unknown" in world.actions()


def test_the_listing_asks_for_runs_of_the_deployment_since_the_dispatch():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00:01")
    world.lost()
    world.live_s(5)
    ask = world.one(cmd.ListStopped)
    assert (ask.deployment_id, ask.since) == ("dep", at("09:00:01"))


def test_without_a_hold_overlap_is_free_at_once():
    world = lost_start()
    assert world.schedule().blocking_run_id(world.now.at) is None


def test_a_hold_keeps_overlap_for_its_time_and_rows_name_the_run():
    world = lost_start(hold_unknown_s=60)
    world.until("09:01")
    assert world.history()[-1] == "09:01 skipped-overlap overlap"
    assert world.rows()[-1].blocking_run_id == "run-000001"
    world.until("09:01:05")
    assert world.schedule().blocking_run_id(world.now.at) is None
    world.until("09:02")
    assert world.history()[-2:] == ["09:02 admitted", "09:02 running"]


def test_a_hold_survives_a_restart():
    world = lost_start(hold_unknown_s=60)
    world.restart()
    assert world.schedule().blocking_run_id(world.now.at) == "run-000001"


def test_holds_that_are_over_are_forgotten_with_the_next_one():
    world = World(preflight_ttl_s=36_000)
    world.create(hold_unknown_s=10)
    for minute in ("09:00", "09:01"):
        world.until(minute)
        call = world.one(cmd.StartCall)
        world.lost(call.run_id)
        world.live_s(5)
        world.listed()
    assert [hold.run_id for hold in world.schedule().holds] == ["run-000002"]


def test_an_unknown_end_of_a_start_is_not_watched_because_nobody_knows_its_id_at_the_server():
    world = lost_start(cron=DAILY)
    unknown = world.state.unknown["run-000001"]
    assert (unknown.server_run_id, unknown.watch_until) == (None, None)
    world.pass_s(3600)
    assert world.all(cmd.InspectRun) == []


def test_an_unknown_end_of_a_resume_is_watched_for_a_day_with_backoff():
    world = lost_resume(cron=DAILY)
    assert world.state.unknown["run-000001"].watch_until == at("2026-01-06 09:00")
    waits, since_mono = [], world.now.mono
    for _ in range(9):
        while not world.all(cmd.InspectRun):
            world.pass_s(1)
        waits.append(world.now.mono - since_mono)
        since_mono = world.now.mono
        world.inspected(FRESH)
    assert waits == [0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0]
    world.until("2026-01-06 08:59")
    if world.all(cmd.InspectRun):
        world.inspected(FRESH)
    world.until("2026-01-06 09:00:10")
    world.pass_s(3600)
    assert world.all(cmd.InspectRun) == []


def test_a_newer_result_is_recorded_beside_the_row_and_the_status_stays():
    world = lost_resume(cron=DAILY)
    before = world.history()
    world.pass_s(5)
    world.inspected(result("completed", "server-run-000001", trace_count=7))
    assert world.state.unknown["run-000001"].observed == Result(
        status="completed", server_run_id="server-run-000001", trace_count=7
    )
    assert world.history() == before
    observed = [event for event in world.journal if isinstance(event, ev.OutcomeObserved)]
    assert len(observed) == 1
    assert "outcome_observed" in world.actions()
    world.pass_s(3600)
    assert world.all(cmd.InspectRun) == []


def test_the_old_checkpoint_a_failed_question_and_an_unreadable_status_are_no_news():
    for answer in (
        {"said": FRESH},
        {"failed": "timeout"},
        {"known": False},
        {"said": result("running", "server-run-000001", trace_count=9)},
    ):
        world = lost_resume(cron=DAILY)
        world.pass_s(5)
        world.inspected(**answer)
        assert world.state.unknown["run-000001"].observed is None
        world.pass_s(5)
        assert len(world.all(cmd.InspectRun)) == 1


def test_the_watch_goes_on_after_a_restart():
    world = lost_resume(cron=DAILY)
    world.restart()
    world.live_s(5)
    assert world.one(cmd.InspectRun).server_run_id == "server-run-000001"


def test_a_watch_that_a_wrong_clock_ended_goes_on_when_the_clock_is_set_right():
    world = lost_resume(cron=DAILY)
    world.inspected(FRESH)
    world.set_clock("2026-01-07 09:00")
    world.pass_s(60)
    assert world.all(cmd.InspectRun) == []
    world.set_clock("09:01")
    assert world.one(cmd.InspectRun).server_run_id == "server-run-000001"


def test_setting_the_clock_back_neither_hastens_a_watch_nor_revives_one_that_is_over():
    world = lost_resume(cron=DAILY)
    world.inspected(FRESH)
    world.pass_s(1)
    world.set_clock("08:30")
    assert world.all(cmd.InspectRun) == []
    world.pass_s(4)
    world.inspected(FRESH)
    world.until("2026-01-07 09:00")
    world.set_clock("2026-01-06 10:00")
    world.pass_s(3600)
    assert world.all(cmd.InspectRun) == []


def test_another_server_is_not_asked():
    world = lost_resume(cron=DAILY)
    world.open.clear()
    world.restart()
    world.server_up(store_root="/srv/b")
    world.pass_s(60)
    asked = [one for one in world.all(cmd.InspectRun) if one.seq > 0]
    assert len(asked) <= 1


def test_ids_and_attempt_are_kept_for_good():
    world = lost_resume(cron=DAILY)
    world.until("2026-03-05 09:00")
    world.restart()
    unknown = world.state.unknown["run-000001"]
    assert (unknown.run_id, unknown.server_run_id, unknown.attempt) == ("run-000001", "server-run-000001", 1)
    assert world.state.owners["run-000001"] == "daily"
    assert world.state.owners["server-run-000001"] == "daily"

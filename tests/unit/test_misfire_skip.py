"""`misfire: skip`: late is missed, on time is admitted, held or overlapped (spec section 5)."""

from datetime import timedelta

from scheduler_daemon.core import commands as cmd
from tests.builders import World, at


def test_an_instant_on_time_is_admitted_and_running_in_one_commit():
    world = World()
    world.create()
    world.until("09:00")
    assert world.history() == ["09:00 admitted", "09:00 running"]
    assert world.one(cmd.StartCall).instant == at("09:00")


def test_an_instant_at_the_very_end_of_its_allowance_is_not_late():
    world = World()
    world.create(cron="0 9 * * *")
    world.until("09:01")
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_an_instant_a_microsecond_past_its_allowance_is_missed_with_its_lateness():
    world = World()
    world.create(cron="0 9 * * *")
    world.until("09:01:00.000001")
    assert world.history() == ["09:00 skipped-misfire late"]
    assert world.rows()[0].detail == {"lateness_s": 60.0}


def test_a_schedules_own_allowance_overrides_the_daemons():
    world = World()
    world.create(cron="0 9 * * *", lateness_s=10)
    world.until("09:00:10.5")
    assert world.history() == ["09:00 skipped-misfire late"]
    assert world.rows()[0].detail == {"lateness_s": 10.5}


def test_late_ones_are_missed_and_the_ones_on_time_contend_oldest_first():
    world = World(preflight_ttl_s=600)
    world.create(overlap="parallel", max_active_runs=9, lateness_s=150)
    world.until("09:05:10")
    assert world.history() == [
        "09:00 skipped-misfire late",
        "09:01 skipped-misfire late",
        "09:02 skipped-misfire late",
        "09:03 admitted",
        "09:03 running",
        "09:04 admitted",
        "09:04 running",
        "09:05 admitted",
        "09:05 running",
    ]


def test_without_a_free_slot_an_instant_is_held_and_then_missed_for_want_of_a_slot():
    world = World(max_concurrent_runs=1)
    world.create("first", "0 9 * * *")
    world.create("second", "0 9 * * *")
    world.until("09:00")
    assert world.history("second") == []
    assert world.schedule("second").candidate.waiting == "no-slot"
    world.live_until("09:01:01")
    assert world.history("second") == ["09:00 skipped-misfire no-slot"]


def test_a_candidate_is_missed_just_after_its_allowance_and_not_before():
    world = World(max_concurrent_runs=1)
    world.create("first", "0 9 * * *")
    world.create("second", "0 9 * * *")
    world.until("09:00")
    world.until("09:01")
    assert world.history("second") == []
    world.pass_s(0.000001)
    assert world.history("second") == ["09:00 skipped-misfire no-slot"]


def test_while_the_server_is_unreachable_an_instant_is_held_and_missed_for_that_reason():
    world = World()
    world.create(cron="0 9 * * *")
    world.server_down()
    world.until("09:00")
    assert world.schedule().candidate.waiting == "server-unreachable"
    world.live_until("09:01:01")
    assert world.history() == ["09:00 skipped-misfire server-unreachable"]


def test_while_the_preflight_answer_is_missing_an_instant_is_held_and_missed_for_that_reason():
    world = World(attended=False)
    world.server_up()
    world.create(cron="0 9 * * *")
    world.until("09:00:01")
    assert world.schedule().candidate.waiting == "preflight-pending"
    world.until("09:01:01")
    assert world.history() == ["09:00 skipped-misfire preflight-pending"]


def test_the_reason_of_a_missed_candidate_is_what_kept_it_last():
    world = World(attended=False, max_concurrent_runs=1)
    world.server_up()
    world.create("first", "0 9 * * *")
    world.create("second", "0 9 * * *", deployment_id="other")
    world.until("09:00:01")
    world.answer("dep")
    assert world.schedule("second").candidate.waiting == "preflight-pending"
    world.answer("other")
    world.until("09:01:01")
    assert world.history("second") == ["09:00 skipped-misfire no-slot"]


def test_a_candidate_whose_limit_was_lowered_is_missed_for_overlap():
    world = World(max_concurrent_runs=2, preflight_ttl_s=600)
    world.create("first", "0 9 * * *")
    world.create("second", overlap="parallel", max_active_runs=3)
    world.until("09:00")
    world.until("09:01")
    assert world.schedule("second").candidate.waiting == "no-slot"
    world.update("second", overlap="skip")
    world.answered("run-000001")
    assert world.schedule("second").candidate.instant == at("09:01")
    world.until("09:02")
    assert world.history("second")[2:] == ["09:02 skipped-overlap overlap"]
    world.pass_s(0.000001)
    assert world.history("second")[3:] == ["09:01 skipped-misfire overlap"]


def test_a_held_instant_is_admitted_as_soon_as_a_slot_is_free():
    world = World(max_concurrent_runs=1)
    world.create("first", "0 9 * * *")
    world.create("second", "0 9 * * *")
    world.until("09:00:01")
    world.pass_s(20)
    world.answered("run-000001")
    assert world.history("second") == ["09:00 admitted", "09:00 running"]


def test_an_unsent_run_is_missed_once_late_and_says_that_it_was_never_sent():
    world = World()
    world.create(cron="0 9 * * *")
    world.until("09:00")
    world.not_sent(server_down=True)
    assert world.run().phase == "admitted"
    world.live_until("09:01:01")
    assert world.history() == [
        "09:00 admitted",
        "09:00 running",
        "09:00 admitted not-sent",
        "09:00 skipped-misfire not-sent",
    ]
    last = world.rows()[-1]
    assert last.detail["sent"] == "never-sent"
    assert last.detail["message"] == "no effect happened"
    assert last.run_id == "run-000001"


def test_a_not_sent_answer_that_arrives_late_ends_the_run_at_once():
    world = World()
    world.create(cron="0 9 * * *")
    world.until("09:00")
    world.until("09:05")
    world.not_sent()
    assert world.history()[-1] == "09:00 skipped-misfire not-sent"


def test_a_day_of_allowance_on_a_minutely_cron_loses_no_instant():
    world = World("09:00:30", preflight_ttl_s=100_000)
    world.create(lateness_s=86_400)
    world.until("2026-01-06 09:00:10")
    rows = world.rows()
    assert world.history()[:2] == ["09:01 admitted", "09:01 running"]
    overlapped = rows[2]
    assert (overlapped.status, overlapped.reason) == ("skipped-overlap", "overlap")
    assert (overlapped.count, overlapped.at_least) == (1000, True)
    assert (overlapped.first_instant, overlapped.last_instant) == (at("09:02"), at("2026-01-06 09:00"))
    assert overlapped.blocking_run_id == "run-000001"
    assert len(rows) == 3


def test_a_day_of_allowance_after_a_longer_downtime_judges_the_whole_day_as_on_time():
    world = World("09:00:30", max_concurrent_runs=1000, preflight_ttl_s=1_000_000)
    world.create(lateness_s=86_400, overlap="parallel", max_active_runs=1000)
    world.until("2026-01-08 09:00:00")
    late, *runs = world.rows()
    assert (late.status, late.count, late.at_least) == ("skipped-misfire", 1000, True)
    assert late.last_instant == at("2026-01-07 08:59")
    admitted = [row.instant for row in runs if row.status == "admitted"]
    assert admitted[0] == at("2026-01-07 09:00")
    assert admitted == [admitted[0] + timedelta(minutes=minute) for minute in range(1000)]
    rest = runs[-1]
    assert (rest.status, rest.first_instant, rest.last_instant) == (
        "skipped-overlap",
        admitted[-1] + timedelta(minutes=1),
        at("2026-01-08 09:00"),
    )
    assert (rest.count, rest.at_least) == (441, False)


def test_a_held_instant_contends_before_the_newer_one_of_its_schedule():
    world = World(max_concurrent_runs=1)
    world.create("first", "0 9 * * *")
    world.create("second", lateness_s=300, overlap="parallel", max_active_runs=2)
    world.until("09:00")
    world.answered("run-000001")
    assert world.history("second") == ["09:00 admitted", "09:00 running"]


def test_an_edit_to_misfire_skip_expires_a_late_candidate_at_once():
    world = World(max_concurrent_runs=1)
    world.create("first", "0 9 * * *")
    world.create("second", "0 9 * * *", misfire="latest")
    world.until("09:00")
    world.until("09:10")
    assert world.history("second") == []
    world.update("second", misfire="skip")
    assert world.history("second") == ["09:00 skipped-misfire no-slot"]


def test_an_edit_to_misfire_skip_expires_a_late_unsent_run_at_once():
    world = World()
    world.create(cron="0 9 * * *", misfire="latest")
    world.until("09:00")
    world.not_sent(server_down=True)
    world.until("09:10")
    assert world.run().phase == "admitted"
    world.update(misfire="skip")
    assert world.history()[-1] == "09:00 skipped-misfire not-sent"


def test_while_the_answer_is_missing_only_the_newest_of_several_on_time_is_held():
    world = World(attended=False)
    world.server_up()
    world.create(lateness_s=150)
    world.until("09:03")
    assert world.history() == [
        "09:00 skipped-misfire late",
        "09:01 coalesced newer-instant",
        "09:02 coalesced newer-instant",
    ]
    assert world.schedule().candidate.instant == at("09:03")

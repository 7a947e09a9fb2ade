"""`misfire: latest`: only the newest due instant runs, and one wake starts one occurrence at most (spec section 5)."""

from scheduler_daemon.core import commands as cmd
from tests.builders import World, at


def test_an_instant_on_time_is_admitted():
    world = World()
    world.create(misfire="latest")
    world.until("09:00")
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_a_late_instant_is_admitted_however_late_it_is():
    world = World()
    world.create(cron="0 9 * * *", misfire="latest")
    world.until("17:00")
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_late_and_on_time_instants_in_one_wake_start_exactly_one_the_newest():
    world = World(preflight_ttl_s=600)
    world.create(misfire="latest", overlap="parallel", max_active_runs=9, lateness_s=90)
    world.until("09:03:10")
    assert world.history() == [
        "09:00 coalesced newer-instant",
        "09:01 coalesced newer-instant",
        "09:02 coalesced newer-instant",
        "09:03 admitted",
        "09:03 running",
    ]
    assert len(world.all(cmd.StartCall)) == 1


def test_the_newest_late_instant_is_held_when_no_on_time_one_follows_and_no_slot_is_free():
    world = World(max_concurrent_runs=1)
    world.create("first", "0 9 * * *", misfire="latest")
    world.create("second", "0,10,20 9 * * *", misfire="latest")
    world.until("09:00")
    world.until("09:25")
    assert world.history("second") == ["09:00 superseded newer-instant", "09:10 coalesced newer-instant"]
    assert world.schedule("second").candidate.instant == at("09:20")


def test_a_candidate_stays_for_as_long_as_nothing_newer_is_due():
    world = World(max_concurrent_runs=1)
    world.create("first", "0 9 * * *")
    world.create("second", "0 9 * * *", misfire="latest")
    world.until("09:00")
    world.until("20:00")
    assert world.schedule("second").candidate.instant == at("09:00")
    assert world.history("second") == []
    world.answered()
    assert world.history("second") == ["09:00 admitted", "09:00 running"]


def test_a_newer_instant_supersedes_the_candidate_and_is_held_in_its_place():
    world = World(max_concurrent_runs=1)
    world.create("first", "0 9 * * *")
    world.create("second", misfire="latest")
    world.until("09:00")
    world.until("09:01")
    assert world.history("second") == ["09:00 superseded newer-instant"]
    assert world.schedule("second").candidate.instant == at("09:01")


def test_a_newer_instant_supersedes_an_unsent_run_and_is_held_or_admitted_in_its_place():
    world = World()
    world.create(misfire="latest")
    world.until("09:00")
    world.not_sent(server_down=True)
    world.until("09:01")
    assert world.history()[-1] == "09:00 superseded newer-instant"
    assert world.rows()[-1].detail == {"sent": "never-sent", "message": "no effect happened"}
    assert world.schedule().candidate.instant == at("09:01")
    assert world.schedule().candidate.waiting == "server-unreachable"


def test_a_not_sent_answer_that_arrives_after_a_newer_instant_was_held_supersedes_its_run():
    world = World()
    world.create(misfire="latest")
    world.until("09:00")
    world.until("09:01")
    assert world.schedule().candidate.instant == at("09:01")
    world.not_sent()
    assert world.history() == [
        "09:00 admitted",
        "09:00 running",
        "09:00 admitted not-sent",
        "09:00 superseded newer-instant",
        "09:01 admitted",
        "09:01 running",
    ]


def test_a_not_sent_answer_that_arrives_after_a_newer_instant_was_admitted_supersedes_its_run():
    world = World(preflight_ttl_s=600)
    world.create(misfire="latest", overlap="parallel", max_active_runs=2)
    world.until("09:00")
    world.until("09:01")
    world.not_sent("run-000001")
    assert world.history()[-1] == "09:00 superseded newer-instant"
    assert [run.run_id for run in world.schedule().runs] == ["run-000002"]


def test_a_not_sent_answer_without_a_newer_instant_leaves_the_run_to_be_sent_again_however_late():
    world = World()
    world.create(cron="0 9 * * *", misfire="latest")
    world.until("09:00")
    world.until("11:00")
    world.not_sent()
    assert world.run().phase == "admitted"
    world.live_until("11:00:02")
    assert world.history()[-1] == "09:00 running"


def test_overlap_holds_the_newest_instead_of_skipping_it():
    world = World()
    world.create(misfire="latest")
    world.until("09:00")
    world.until("09:01")
    world.until("09:02")
    assert world.history() == ["09:00 admitted", "09:00 running", "09:01 superseded newer-instant"]
    assert world.schedule().candidate.waiting == "overlap"
    world.answered()
    assert world.history()[-2:] == ["09:02 admitted", "09:02 running"]


def test_an_unrunnable_deployment_rejects_the_newest_and_coalesces_the_rest():
    world = World()
    world.create(misfire="latest")
    world.unrunnable()
    world.until("09:02")
    assert world.history() == [
        "09:00 coalesced newer-instant",
        "09:01 coalesced newer-instant",
        "09:02 preflight-rejected preflight",
    ]


def test_under_permanent_overload_a_minutely_schedule_still_runs():
    world = World(max_concurrent_runs=1)
    world.create("minutely", misfire="latest")
    for number in range(6):
        world.create(f"rival-{number}", misfire="latest")
    for minute in range(14):
        world.live_until(f"09:{minute:02}:30")
        running = next(call for call in world.all(cmd.StartCall))
        world.answered(running.run_id)
    runs = [row for row in world.rows("minutely") if row.status == "admitted"]
    assert len(runs) >= 2

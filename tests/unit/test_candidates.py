"""Candidates: one at most, superseded or coalesced, shown as `pending` (spec sections 2 and 5)."""

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.queries import pending_row
from tests.builders import DAILY, World, at


def full(**fields):
    """One slot, held by another schedule's run, so that `daily` only ever holds candidates."""
    world = World(max_concurrent_runs=1, preflight_ttl_s=36_000)
    world.create("a-holder", at=at("09:00"))
    world.create(**fields)
    world.until("09:00")
    return world


def test_superseded_means_held_since_an_earlier_wake():
    world = full(misfire="latest")
    world.until("09:01")
    assert world.history() == ["09:00 superseded newer-instant"]
    assert world.schedule().candidate.instant == at("09:01")


def test_coalesced_means_dropped_in_its_own_wake():
    world = full(misfire="latest")
    world.until("09:03")
    assert world.history() == [
        "09:00 superseded newer-instant",
        "09:01 coalesced newer-instant",
        "09:02 coalesced newer-instant",
    ]
    assert world.schedule().candidate.instant == at("09:03")


def test_a_skip_candidate_is_replaced_by_a_newer_one_too():
    world = full(lateness_s=600)
    world.until("09:02")
    assert world.history() == ["09:00 superseded newer-instant", "09:01 coalesced newer-instant"]
    assert world.schedule().candidate.instant == at("09:02")


def test_many_that_are_dropped_in_one_wake_share_a_row():
    world = full(lateness_s=86_400)
    world.until("12:00")
    assert world.history() == ["09:00 superseded newer-instant", "09:01..11:59 x179 coalesced newer-instant"]
    assert world.schedule().candidate.instant == at("12:00")


def test_the_candidate_is_shown_as_a_pending_row_that_is_never_stored():
    world = full(cron=DAILY, misfire="latest")
    row = pending_row(world.state, world.schedule())
    assert (row.status, row.instant, row.reason, row.n) == ("pending", at("09:00"), "no-slot", 0)
    assert (row.at, row.revision, row.schedule_id) == (at("09:00"), 1, "daily")
    assert [stored for stored in world.rows() if stored.status == "pending"] == []
    world.answered()
    assert pending_row(world.state, world.schedule()) is None


def test_a_schedule_without_a_candidate_has_no_pending_row():
    world = World()
    world.create()
    assert pending_row(world.state, world.schedule()) is None


def test_a_candidate_is_admitted_for_its_own_instant_and_the_previous_one_it_was_held_with():
    world = World(max_concurrent_runs=1, preflight_ttl_s=36_000)
    world.create(
        cron="*/10 * * * *",
        misfire="latest",
        input={"now": {"from": "occurrence.instant"}, "before": {"from": "occurrence.previous_instant"}},
    )
    world.until("09:00")
    world.answered()
    world.create("z-holder", at=at("09:05"))
    world.until("09:05")
    world.until("09:10")
    world.pass_s(90)
    world.answered("run-000002")
    assert world.run("run-000003").input == {"now": "2026-01-05T09:10:00Z", "before": "2026-01-05T09:00:00Z"}


def test_the_first_occurrence_has_no_previous_instant():
    world = World()
    world.create(cron=DAILY, input={"before": {"from": "occurrence.previous_instant"}})
    world.until("09:00")
    assert world.run().input == {"before": None}


def test_the_previous_instant_is_that_of_the_newest_earlier_row_whatever_became_of_it():
    world = World(preflight_ttl_s=36_000)
    world.create(cron="*/10 * * * *", input={"before": {"from": "occurrence.previous_instant"}})
    world.until("09:05")
    world.until("09:10")
    assert world.history()[0] == "09:00 skipped-misfire late"
    assert world.run().input == {"before": "2026-01-05T09:00:00Z"}


def test_a_candidate_survives_a_restart():
    world = full(cron=DAILY, misfire="latest")
    world.restart()
    world.live_s(1)
    world.listed()
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_a_candidate_is_held_for_each_of_the_four_reasons():
    reasons = set()
    world = full(cron=DAILY)
    reasons.add(world.schedule().candidate.waiting)
    world = World()
    world.create(cron=DAILY)
    world.server_down()
    world.until("09:00")
    reasons.add(world.schedule().candidate.waiting)
    world = World(attended=False)
    world.server_up()
    world.create(cron=DAILY)
    world.until("09:00:05")
    reasons.add(world.schedule().candidate.waiting)
    world = World()
    world.create(misfire="latest")
    world.until("09:00")
    world.until("09:01")
    reasons.add(world.schedule().candidate.waiting)
    assert reasons == {"no-slot", "server-unreachable", "preflight-pending", "overlap"}


def test_a_hold_that_ends_lets_the_candidate_go_at_that_very_moment():
    world = World(preflight_ttl_s=36_000)
    world.create(misfire="latest", hold_unknown_s=90)
    world.until("09:00")
    world.lost()
    world.live_s(5)
    world.listed()
    settled_at = world.now.at
    world.until("09:01")
    assert world.schedule().candidate.waiting == "overlap"
    world.live_until("09:01:34.9")
    assert world.schedule().candidate is not None
    world.live_until("09:01:36")
    admitted = [row for row in world.rows() if row.status == "admitted"][-1]
    assert (admitted.instant, (admitted.at - settled_at).total_seconds()) == (at("09:01"), 90.0)
    assert len(world.all(cmd.StartCall)) == 1

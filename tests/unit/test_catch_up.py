"""After a downtime the past is summarised, whatever its length (spec section 5)."""

import time

import pytest

from scheduler_daemon.core import commands as cmd
from tests.builders import World, at


def test_fifty_minutes_down_are_fifty_rows():
    world = World("08:59:30")
    world.create()
    world.restart()
    world.until("09:50:30")
    assert len(world.rows()) == 50 + 2
    assert world.history()[:2] == ["09:00 skipped-misfire late", "09:01 skipped-misfire late"]
    assert world.history()[-3:] == ["09:49 skipped-misfire late", "09:50 admitted", "09:50 running"]


def test_a_hundred_missed_instants_have_a_row_each():
    world = World("08:59:30")
    world.create()
    world.until("10:39:59.999999")
    assert [row.count for row in world.rows()] == [None] * len(world.rows())
    assert world.history()[98] == "10:38 skipped-misfire late"


def test_a_hundred_and_one_missed_instants_share_one_row_that_counts_them():
    world = World("08:59:30")
    world.create()
    world.until("10:41:30")
    summary = world.rows()[0]
    assert (summary.status, summary.count, summary.at_least) == ("skipped-misfire", 101, False)
    assert (summary.first_instant, summary.last_instant) == (at("09:00"), at("10:40"))


def test_a_thousand_missed_instants_are_counted_exactly():
    world = World("00:00:30")
    world.create()
    world.until("16:41:30")
    summary = world.rows()[0]
    assert (summary.count, summary.at_least) == (1000, False)
    assert (summary.first_instant, summary.last_instant) == (at("00:01"), at("16:40"))


def test_a_thousand_and_one_missed_instants_are_at_least_a_thousand():
    world = World("00:00:30")
    world.create()
    world.until("16:42:30")
    summary = world.rows()[0]
    assert (summary.count, summary.at_least) == (1000, True)
    assert (summary.first_instant, summary.last_instant) == (at("00:01"), at("16:41"))


@pytest.mark.parametrize(
    ("back", "last"),
    [("2026-02-04 09:00:30", "2026-02-04 08:59"), ("2027-01-05 09:00:30", "2027-01-05 08:59")],
    ids=["30 days", "a year"],
)
def test_a_long_downtime_of_a_skip_schedule_is_one_row_and_what_is_on_time(back, last):
    world = World()
    world.create()
    world.restart()
    world.until(back)
    summary, *rest = world.rows()
    assert (summary.status, summary.reason, summary.count, summary.at_least) == ("skipped-misfire", "late", 1000, True)
    assert (summary.first_instant, summary.last_instant) == (at("09:00"), at(last))
    assert [row.status for row in rest] == ["admitted", "running"]


@pytest.mark.parametrize("back", ["2026-02-04 09:00:30", "2027-01-05 09:00:30"], ids=["30 days", "a year"])
def test_a_long_downtime_of_a_latest_schedule_is_one_row_and_starts_exactly_one(back):
    world = World()
    world.create(misfire="latest")
    world.restart()
    world.until(back)
    summary, *rest = world.rows()
    assert (summary.status, summary.reason, summary.count, summary.at_least) == (
        "coalesced",
        "newer-instant",
        1000,
        True,
    )
    assert [row.status for row in rest] == ["admitted", "running"]
    assert len(world.all(cmd.StartCall)) == 1


def test_a_latest_schedule_that_was_down_while_it_held_a_candidate_still_starts_only_the_newest():
    world = World(max_concurrent_runs=1)
    world.create("a-holder", at=at("09:00"))
    world.create("held", misfire="latest")
    world.until("09:00")
    world.asleep_until("2026-01-08 09:00:30")
    world.restart()
    world.live_s(1)
    world.listed()
    assert world.history("held") == [
        "09:00 superseded newer-instant",
        "09:01..2026-01-08 08:59 x1000+ coalesced newer-instant",
        "2026-01-08 09:00 admitted",
        "2026-01-08 09:00 running",
    ]


def test_a_year_of_a_minutely_schedule_is_decided_in_milliseconds():
    took_s = []
    for _ in range(3):
        world = World(checked=False, attended=False)
        world.server_up()
        world.create(misfire="latest")
        started = time.perf_counter()
        world.until("2027-01-05 09:00:30")
        took_s.append(time.perf_counter() - started)
    assert min(took_s) < 0.1, took_s


def test_a_pause_before_the_downtime_ends_leaves_its_own_reason():
    world = World()
    world.create()
    world.asleep_until("09:03:10")
    world.pause()
    assert world.history() == [
        "09:00 superseded paused",
        "09:01 superseded paused",
        "09:02 superseded paused",
        "09:03 superseded paused",
    ]


def test_a_one_shot_that_was_missed_is_one_row():
    world = World()
    world.create(at=at("09:00"))
    world.until("2027-01-05 09:00:30")
    assert world.history() == ["09:00 skipped-misfire late"]
    assert world.view().state == "finished"


def test_what_was_decided_before_the_downtime_is_not_decided_again():
    world = World()
    world.create(cron="0 9 * * *")
    world.until("09:00:30")
    world.answered()
    world.until("09:10")
    before = world.history()
    world.restart()
    world.until("09:30")
    assert world.history() == before

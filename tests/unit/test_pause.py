"""Pause: a span that is consumed and never replayed (spec section 3)."""

import pytest

from scheduler_daemon.core.model import Cron
from tests.builders import DAILY, World, at


@pytest.mark.parametrize("misfire", ["skip", "latest"])
@pytest.mark.parametrize("restarted", [False, True], ids=["awake", "restarted inside"])
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_two_hours_of_pause_admit_nothing_and_are_one_row_without_a_misfire(misfire, restarted, times):
    world = World()
    world.create(misfire=misfire)
    assert [world.pause().revision for _ in range(times)] == [2] * times
    if restarted:
        world.until("10:00")
        world.restart()
        assert [world.pause().revision for _ in range(times - 1)] == [2] * (times - 1)
    world.until("10:59:30")
    assert [world.resume().revision for _ in range(times)] == [3] * times
    assert world.history() == ["09:00..10:59 x120 superseded paused"]
    world.until("11:00")
    assert world.history()[1:] == ["11:00 admitted", "11:00 running"]


@pytest.mark.parametrize("misfire", ["skip", "latest"])
def test_a_daemon_that_was_down_for_the_whole_pause_replays_nothing(misfire):
    world = World()
    world.create(misfire=misfire)
    world.pause()
    world.restart()
    world.until("10:59:30")
    world.resume()
    assert world.history() == ["09:00..10:59 x120 superseded paused"]


def test_pausing_twice_and_resuming_twice_change_nothing_more():
    world = World()
    world.create()
    first = world.pause(note="holiday")
    again = world.pause(note="another")
    assert (first.revision, again.revision, again.note) == (2, 2, "holiday")
    world.until("09:01:30")
    back = world.resume()
    assert (back.revision, back.state) == (3, "active")
    journal = list(world.journal)
    assert world.resume().revision == 3
    assert world.journal == journal


def test_resuming_a_schedule_that_is_not_paused_changes_nothing():
    world = World()
    world.create()
    journal = list(world.journal)
    view = world.resume(note="why not")
    assert (view.revision, view.note) == (1, None)
    assert world.journal == journal


def test_a_pause_records_what_was_due_and_undecided_up_to_now():
    world = World("08:58:30")
    world.create()
    world.asleep_until("09:00:10")
    world.pause()
    assert world.history() == ["08:59 superseded paused", "09:00 superseded paused"]
    assert world.view().watermark == at("09:00:10")


def test_a_not_sent_answer_that_arrives_after_pause_and_resume_still_ends_the_run():
    world = World()
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00")
    world.pause()
    world.resume()
    world.not_sent()
    assert world.history()[-1] == "09:00 superseded paused"


def test_a_run_admitted_after_the_resume_is_not_ended_by_the_pause_before_it():
    world = World()
    world.create(misfire="latest")
    world.pause()
    world.resume()
    world.until("09:00")
    world.not_sent(server_down=True)
    assert world.run().phase == "admitted"


def test_a_span_without_an_instant_has_no_row():
    world = World()
    world.create(cron=DAILY)
    world.pause()
    world.until("08:59:50")
    world.resume()
    assert world.history() == []


def test_a_paused_one_shot_whose_instant_passes_is_finished_after_the_resume():
    world = World()
    world.create(at=at("09:00"))
    world.pause()
    world.until("09:05")
    view = world.resume()
    assert world.history() == ["09:00..09:00 x1 superseded paused"]
    assert view.state == "finished"


def test_a_long_pause_is_one_row_that_counts_at_least_a_thousand():
    world = World()
    world.create()
    world.pause()
    world.until("2026-02-05 09:00:30")
    world.resume()
    assert world.history() == ["09:00..2026-02-05 09:00 x1000+ superseded paused"]


def test_deleting_a_paused_schedule_closes_its_span_as_paused():
    world = World()
    world.create()
    world.pause()
    world.until("09:01:30")
    world.delete()
    assert world.history() == ["09:00..09:01 x2 superseded paused"]


def test_a_trigger_change_while_paused_closes_the_span_under_the_old_trigger_and_begins_another():
    world = World()
    world.create()
    world.pause()
    world.until("09:02:30")
    world.update(trigger=Cron("*/5 * * * *", "UTC"))
    assert world.history() == ["09:00..09:02 x3 superseded paused"]
    world.until("09:11")
    world.resume()
    assert world.history()[1:] == ["09:05..09:10 x2 superseded paused"]
    assert world.view().state == "active"

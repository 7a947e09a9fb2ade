"""An accepted restore: nothing of the span since the copy was made is started, and what may have been sent is given up."""

import pytest

from scheduler_daemon.core import calendar
from scheduler_daemon.core import commands as cmd
from tests.builders import DAILY, World, at


def restored(world):
    """The copy is opened by a new process, and its operator accepts it."""
    world.restart()
    world.command(cmd.AcceptRestore())


def asleep_and_restored(world, text):
    """The same, after the daemon was away: nothing decides between the start and the acceptance."""
    world.asleep_until(text)
    world.command(cmd.AcceptRestore())


@pytest.mark.parametrize("misfire", ["skip", "latest"])
def test_what_came_due_since_the_copy_is_missed_under_either_policy(misfire):
    world = World()
    world.create(misfire=misfire)
    asleep_and_restored(world, "09:02:10")
    assert world.history() == [f"{minute} skipped-misfire restored" for minute in ("09:00", "09:01", "09:02")]
    world.until("09:03")
    assert world.history()[3:] == ["09:03 admitted", "09:03 running"]


def test_a_candidate_is_missed_because_another_process_may_have_started_it():
    world = World(max_concurrent_runs=1)
    world.create("a-holder", DAILY)
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00")
    restored(world)
    assert world.history() == ["09:00 skipped-misfire restored"]


def test_a_run_that_looks_unsent_may_have_been_sent_since_and_ends_unknown():
    world = World()
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00")
    world.not_sent(server_down=True)
    restored(world)
    assert world.history()[-1] == "09:00 failed outcome-unknown"
    assert world.rows()[-1].detail["case"] == "restored"


def test_a_start_that_a_plain_server_may_have_got_ends_unknown():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.attended = False
    restored(world)
    assert world.history()[-1] == "09:00 failed outcome-unknown"


def test_a_start_that_a_keyed_server_can_tell_of_is_asked_again_under_its_key():
    world = World()
    world.server_up("idempotent-start")
    world.create(cron=DAILY)
    world.until("09:00")
    key = world.call().key
    restored(world)
    world.live_s(2)
    again = world.one(cmd.StartCall)
    assert (again.repeat, again.key) == (True, key)


def test_an_interrupted_run_goes_on_being_asked_after():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    restored(world)
    assert world.run().phase == "interrupted"


def test_a_pause_goes_on_and_its_span_is_one_row_at_its_end():
    world = World()
    world.create()
    world.pause()
    asleep_and_restored(world, "09:02:10")
    assert world.history() == []
    world.until("09:04:10")
    world.resume()
    assert world.history() == ["09:00..09:04 x5 superseded paused"]


@pytest.mark.parametrize("error", [calendar.CalendarBroken, ValueError, LookupError])
def test_a_calendar_that_raises_blocks_its_own_schedule_and_the_restore_is_accepted(monkeypatch, error):
    world = World()
    world.create("broken", "1 9 * * *")
    world.create("good")
    world.compared = False
    honest = calendar.due_between

    def broken(expression, *args):
        if expression == "1 9 * * *":
            raise error("no answer")
        return honest(expression, *args)

    monkeypatch.setattr(calendar, "due_between", broken)
    asleep_and_restored(world, "09:01:10")
    assert world.view("broken").state == "blocked"
    assert world.history("good") == ["09:00 skipped-misfire restored", "09:01 skipped-misfire restored"]
    assert world.state.globals.decided_until == at("09:01:10")

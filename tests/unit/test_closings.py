"""Pause, delete, block and a changed trigger: each first ends what is undecided, held or unsent, with its own reason (spec section 3)."""

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.model import Cron, Diagnostic
from tests.builders import DAILY, World, at

DAMAGE = Diagnostic("damaged", "a record is damaged", at("08:59"), {"offset": 12})
CLOSINGS = {
    "paused": lambda world: world.pause(),
    "deleted": lambda world: world.delete(),
    "blocked": lambda world: world.command(cmd.Block("daily", DAMAGE)),
    "trigger-changed": lambda world: world.update(trigger=Cron("0 12 * * *", "UTC")),
}
each_closing = pytest.mark.parametrize("reason", CLOSINGS)
each_policy = pytest.mark.parametrize("misfire", ["skip", "latest"])


@each_policy
@each_closing
def test_what_was_due_and_undecided_is_superseded(reason, misfire):
    world = World()
    world.create(misfire=misfire)
    world.asleep_until("09:02:10")
    CLOSINGS[reason](world)
    assert world.history() == [f"{minute} superseded {reason}" for minute in ("09:00", "09:01", "09:02")]


@each_policy
@each_closing
def test_a_hundred_and_one_that_were_due_and_undecided_share_a_row(reason, misfire):
    world = World()
    world.create(misfire=misfire)
    world.asleep_until("10:40:10")
    CLOSINGS[reason](world)
    assert world.history() == [f"09:00..10:40 x101 superseded {reason}"]


@each_policy
@each_closing
def test_a_held_candidate_is_superseded(reason, misfire):
    world = World(max_concurrent_runs=1)
    world.create("a-holder", DAILY)
    world.create(cron=DAILY, misfire=misfire)
    world.until("09:00")
    assert world.schedule().candidate.instant == at("09:00")
    CLOSINGS[reason](world)
    assert world.history() == [f"09:00 superseded {reason}"]
    assert world.schedule().candidate is None
    world.answered()
    assert world.history() == [f"09:00 superseded {reason}"]


@each_policy
@each_closing
def test_an_unsent_run_is_superseded_and_says_that_nothing_happened(reason, misfire):
    world = World()
    world.create(cron=DAILY, misfire=misfire)
    world.until("09:00")
    world.not_sent(server_down=True)
    CLOSINGS[reason](world)
    assert world.history() == [
        "09:00 admitted",
        "09:00 running",
        "09:00 admitted not-sent",
        f"09:00 superseded {reason}",
    ]
    assert world.rows()[-1].detail == {"sent": "never-sent", "message": "no effect happened"}
    assert world.schedule().runs == ()


@each_policy
@each_closing
def test_a_run_that_turns_out_unsent_afterwards_is_superseded(reason, misfire):
    world = World()
    world.create(cron=DAILY, misfire=misfire)
    world.until("09:00")
    CLOSINGS[reason](world)
    assert world.run().phase == "running"
    world.not_sent()
    assert world.history()[-2:] == ["09:00 admitted not-sent", f"09:00 superseded {reason}"]


@each_policy
@each_closing
def test_a_run_that_was_sent_goes_on_and_settles(reason, misfire):
    world = World()
    world.create(cron=DAILY, misfire=misfire)
    world.until("09:00")
    CLOSINGS[reason](world)
    assert world.all(cmd.CancelCall) == []
    world.answered()
    assert world.history()[-1] == "09:00 completed"


@each_closing
def test_a_run_that_was_interrupted_goes_on_waiting_for_its_answer(reason):
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    CLOSINGS[reason](world)
    assert world.run().phase == "interrupted"
    world.live_s(6)
    assert len(world.all(cmd.InspectRun)) == 1


@each_closing
def test_nothing_is_ended_twice_by_a_second_closing(reason):
    world = World(max_concurrent_runs=1)
    world.create("a-holder", DAILY)
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00")
    CLOSINGS[reason](world)
    ended = world.history()
    world.delete()
    assert world.history() == ended

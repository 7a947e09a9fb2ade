"""Folding: what an event means, and that nothing else changes the truth.

`tests/invariants.py` folds the events of every turn of every test on a second state and compares; here is what a journal must not say,
and what a restart forgets.
"""

import msgspec
import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import events as ev
from scheduler_daemon.core.fold import fold
from scheduler_daemon.core.lifecycle import Contradiction
from scheduler_daemon.core.live import ServerView
from scheduler_daemon.core.model import RunLive
from tests.builders import DAILY, KEYED, World, at, definition, facts
from tests.invariants import replayed


def busy():
    """A journal with a bit of everything."""
    world = World(max_concurrent_runs=3, preflight_ttl_s=36_000)
    world.server_up(*KEYED)
    world.create("asks", DAILY)
    world.create("fails", DAILY, misfire="latest", hold_unknown_s=60)
    world.create("minutely", misfire="latest")
    world.create("waits", DAILY, misfire="latest")
    world.until("09:00")
    world.answered("run-000001", "interrupted", trace_count=1)
    world.resume_run("run-000001")
    world.lost("run-000001", caller_gone=True)
    world.inspected(known=False)
    world.not_sent("run-000002", server_down=True)
    world.until("09:03")
    world.server_up(*KEYED)
    world.pause("minutely")
    world.set_clock("08:30")
    world.unblock("waits")
    world.resume("minutely")
    world.until("10:00")
    world.delete("fails")
    return world


def test_the_journal_on_a_fresh_state_gives_the_live_truth():
    world = busy()
    again = replayed(world.journal, world.state, world.now)
    assert again.owners == world.state.owners
    assert again.globals.slots_used == world.state.globals.slots_used
    for schedule_id, schedule in world.state.schedules.items():
        other = again.schedules[schedule_id]
        assert msgspec.structs.replace(other, runs=()) == msgspec.structs.replace(schedule, runs=())
        assert [run.run_id for run in other.runs] == [run.run_id for run in schedule.runs]


def test_events_survive_the_way_through_json():
    world = busy()
    decoder = msgspec.json.Decoder(ev.Event)
    read = [decoder.decode(msgspec.json.encode(event)) for event in world.journal]
    assert read == world.journal


def test_every_kind_of_event_that_touches_a_run_or_an_instant_adds_one_row_with_its_number():
    world = busy()
    for event in world.journal:
        row = ev.row_of(event)
        if row is not None:
            assert (row.n, row.schedule_id, row.at) == (event.n, event.schedule_id, event.at)


def test_a_restart_turns_running_into_ambiguous_and_empties_the_live_view():
    world = World()
    world.create("runs", DAILY)
    world.create("rests", DAILY)
    world.until("09:00")
    world.answered("run-000001", "interrupted", trace_count=1)
    world.attended = False
    world.restart()
    assert world.run("run-000001").phase == "interrupted"
    assert world.run("run-000002").phase == "ambiguous"
    assert world.run("run-000002").live.call_seq is None
    assert world.state.answers == {}
    assert world.state.globals.server.up is False
    assert world.state.globals.epoch == 2


def test_the_epoch_grows_at_each_start():
    world = World()
    world.restart()
    world.restart()
    assert world.state.globals.epoch == 3


def test_a_live_state_that_started_a_new_epoch_forgets_what_was_open():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    draft = world.state.draft(world.now)
    fold(draft, ev.EpochStarted(at=world.now.at, epoch=2))
    assert draft.schedules["daily"].runs[0].live == RunLive()
    assert draft.globals.server == ServerView()
    assert draft.globals.slots_used == 1
    draft.drop()


def started():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    return world


def of_run(kind, **fields):
    common = {
        "at": at("09:01"),
        "schedule_id": "daily",
        "n": 4,
        "run_id": "run-000001",
        "instant": at("09:00"),
        "revision": 1,
    }
    return kind(**{**common, **fields})


CONTRADICTIONS = {
    "a second creation": lambda: ev.ScheduleCreated(at=at("09:01"), schedule_id="daily", n=4, definition=definition()),
    "a run that nobody admitted": lambda: of_run(ev.DispatchNotSent, run_id="run-000009", reason="?"),
    "an attempt of a run that is executing": lambda: of_run(ev.AttemptReverted, run_id="run-000002", reason="not-sent"),
    "a checkpoint of a run that is executing": lambda: of_run(
        ev.CheckpointSeen, checkpoint={"status": "interrupted", "trace_count": 1}
    ),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_journal_that_contradicts_itself_raises(what):
    world = started()
    draft = world.state.draft(world.now)
    with pytest.raises(Contradiction):
        fold(draft, CONTRADICTIONS[what]())


def test_a_second_candidate_raises():
    world = World(max_concurrent_runs=1)
    world.create("a-holder", DAILY)
    world.create(cron=DAILY)
    world.until("09:00")
    draft = world.state.draft(world.now)
    held = ev.CandidateHeld(at=at("09:01"), schedule_id="daily", n=3, instant=at("09:01"), waiting="no-slot")
    with pytest.raises(Contradiction):
        fold(draft, held)


def test_a_contradiction_leaves_the_ids_of_runs_as_they_were():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.not_sent()
    draft = world.state.draft(world.now)
    checkpoint = {"status": "interrupted", "trace_count": 1}
    with pytest.raises(Contradiction):
        fold(draft, of_run(ev.RunInterrupted, server_run_id="stray", checkpoint=checkpoint))
    assert "stray" not in draft.owners


def test_decided_raises_every_watermark_and_never_lowers_one():
    world = World()
    world.create("a", DAILY)
    world.until("08:59:50")
    world.create("b", DAILY)
    draft = world.state.draft(world.now)
    fold(draft, ev.Decided(at=world.now.at, until=at("08:59:55")))
    fold(draft, ev.Decided(at=world.now.at, until=at("08:59:40")))
    draft.merge()
    assert world.view("a").watermark == at("08:59:55")
    assert world.view("b").watermark == at("08:59:55")


def test_the_marks_server_is_remembered_after_the_mark_is_gone():
    world = started()
    world.answered(status="interrupted", trace_count=1)
    assert world.run().mark is None
    assert world.run().server == facts()


def test_both_ids_of_an_unfinished_run_find_its_schedule_and_are_forgotten_when_it_ends():
    world = started()
    world.answered(status="interrupted", trace_count=1)
    assert world.state.owners == {"run-000001": "daily", "server-run-000001": "daily"}
    world.resume_run()
    world.answered(trace_count=2)
    assert world.state.owners == {}


def test_a_drained_mode_is_not_durable():
    world = World()
    world.command(cmd.Drain())
    assert world.state.globals.draining
    world.restart()
    assert not world.state.globals.draining

"""Blocked: one schedule stops with a diagnostic, and no other notices (spec section 3)."""

import pytest

from scheduler_daemon.core import bindings, calendar
from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.calendar import CalendarBroken
from scheduler_daemon.core.lifecycle import Contradiction
from scheduler_daemon.core.model import Diagnostic
from tests.builders import DAILY, World, at

DAMAGE = Diagnostic("damaged", "a record is damaged", at("08:59"), {"file": "journal/1.jsonl", "offset": 12})
BROKEN = "1 9 * * *"


def break_the_calendar(world, monkeypatch, error=CalendarBroken, question="first_after"):
    """Every question about `BROKEN` raises from now on; the other expressions answer as ever."""
    world.compared = False
    for name in ("first_after", "due_between", "tail_between", "upcoming") if question == "all" else (question,):
        honest = getattr(calendar, name)

        def broken(expression, *args, honest=honest):
            if expression == BROKEN:
                raise error("no answer")
            return honest(expression, *args)

        monkeypatch.setattr(calendar, name, broken)


@pytest.mark.parametrize("question", ["first_after", "all"])
@pytest.mark.parametrize("error", [CalendarBroken, ValueError, OverflowError, LookupError, RecursionError])
@pytest.mark.parametrize("misfire", ["skip", "latest"])
def test_a_calendar_that_raises_blocks_its_schedule_and_the_other_fires_on_time(monkeypatch, misfire, error, question):
    world = World(preflight_ttl_s=600)
    world.create("broken", BROKEN, misfire=misfire)
    world.create("good", DAILY)
    break_the_calendar(world, monkeypatch, error, question)
    world.until("09:00")
    assert world.history("good") == ["09:00 admitted", "09:00 running"]
    world.restart()
    assert world.view("broken").state == "blocked"
    diagnostic = world.schedule("broken").diagnostics[0]
    assert diagnostic.code == ("calendar-broken" if error is CalendarBroken else "schedule-fault")
    assert "no answer" in diagnostic.message
    assert "schedule_fault" in world.actions()
    assert world.view("good").state == "active"


def test_a_calendar_that_raises_right_after_its_schedule_was_decided_blocks_it_and_does_not_spin(monkeypatch):
    world = World(preflight_ttl_s=600)
    world.create("broken", BROKEN)
    world.until("09:01")
    break_the_calendar(world, monkeypatch)
    world.answered()
    assert world.history("broken") == ["09:01 admitted", "09:01 running", "09:01 completed"]
    assert world.view("broken").state == "blocked"


def test_a_drain_with_a_broken_calendar_undecided_still_ends(monkeypatch):
    world = World()
    world.create("broken", BROKEN)
    break_the_calendar(world, monkeypatch)
    world.state.rebuild_agenda(world.now)
    world.command(cmd.Drain())
    assert world.state.globals.draining


@pytest.mark.parametrize("error", [ValueError, OverflowError, LookupError])
def test_bindings_that_raise_block_their_schedule_and_the_other_fires(monkeypatch, error):
    world = World(preflight_ttl_s=600)
    world.create("broken", DAILY, input={"who": {"from": "run.id"}})
    world.create("good", DAILY)
    honest = bindings.resolve

    def broken(raw, facts):
        if raw:
            raise error("cannot")
        return honest(raw, facts)

    monkeypatch.setattr(bindings, "resolve", broken)
    world.until("09:00")
    assert world.history("good") == ["09:00 admitted", "09:00 running"]
    assert world.view("broken").state == "blocked"
    assert world.schedule("broken").diagnostics[0].code == "schedule-fault"


def test_bindings_that_raise_for_a_candidate_in_line_block_its_schedule(monkeypatch):
    world = World(max_concurrent_runs=1, preflight_ttl_s=600)
    world.create("a-holder", DAILY)
    world.create("broken", DAILY, input={"who": {"from": "run.id"}})
    world.create("good", DAILY)
    world.until("09:00")

    def broken(raw, facts):
        if raw:
            raise ValueError("cannot")
        return {}

    monkeypatch.setattr(bindings, "resolve", broken)
    world.answered()
    assert world.history("broken") == ["09:00 superseded blocked"]
    assert world.history("good") == ["09:00 admitted", "09:00 running"]


def test_a_look_at_a_run_that_contradicts_its_records_blocks_its_schedule(monkeypatch):
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)

    def contradicts(planner, run_id):
        raise Contradiction("interrupted", "CallLost", run_id)

    monkeypatch.setattr("scheduler_daemon.core.judging.look", contradicts)
    world.pass_s(5)
    diagnostic = world.schedule().diagnostics[0]
    assert (diagnostic.code, diagnostic.data) == ("contradiction", {"run_id": "run-000001"})


def test_damage_found_by_the_store_blocks_with_its_place():
    world = World()
    world.create(cron=DAILY)
    world.command(cmd.Block("daily", DAMAGE))
    view = world.view()
    assert view.state == "blocked"
    assert view.revision == 2
    assert (view.diagnostics[0].code, view.diagnostics[0].data) == (
        "damaged",
        {"file": "journal/1.jsonl", "offset": 12},
    )
    assert "schedule_blocked" in world.actions()


def test_damage_of_a_schedule_that_nobody_knows_is_refused():
    with pytest.raises(cmd.Rejected) as refused:
        World().command(cmd.Block("nobody", DAMAGE))
    assert refused.value.code == "ScheduleNotFound"


def test_the_same_cause_blocks_once():
    world = World()
    world.create(cron=DAILY)
    world.command(cmd.Block("daily", DAMAGE))
    journal = list(world.journal)
    world.command(cmd.Block("daily", DAMAGE))
    assert world.journal == journal


def test_a_second_cause_is_added_and_the_span_goes_on():
    world = World()
    world.create()
    world.command(cmd.Block("daily", DAMAGE))
    world.until("09:01:30")
    world.command(cmd.Block("daily", Diagnostic("damaged", "another record", at("09:01"), {"offset": 99})))
    assert [one.data.get("offset") for one in world.schedule().diagnostics] == [12, 99]
    world.until("09:03:30")
    world.unblock()
    assert world.history() == ["09:00..09:03 x4 superseded blocked"]


def test_the_blocked_span_is_consumed_like_a_pause():
    world = World()
    world.create(misfire="latest")
    world.command(cmd.Block("daily", DAMAGE))
    world.until("10:00:30")
    world.unblock()
    assert world.history() == ["09:00..10:00 x61 superseded blocked"]
    world.until("10:01")
    assert world.history()[1:] == ["10:01 admitted", "10:01 running"]


def test_a_pause_that_a_block_falls_into_ends_with_its_own_row():
    world = World()
    world.create()
    world.pause()
    world.until("09:01:30")
    world.command(cmd.Block("daily", DAMAGE))
    assert world.history() == ["09:00..09:01 x2 superseded paused"]
    world.until("09:03:30")
    world.unblock()
    assert world.history()[1:] == ["09:02..09:03 x2 superseded blocked"]
    assert world.view().state == "paused"
    world.until("09:05:30")
    world.resume()
    assert world.history()[2:] == ["09:04..09:05 x2 superseded paused"]


def test_a_pause_of_a_blocked_schedule_outlives_the_block():
    world = World()
    world.create()
    world.command(cmd.Block("daily", DAMAGE))
    world.until("09:01:30")
    world.pause()
    world.until("09:03:30")
    world.unblock()
    assert world.view().state == "paused"
    world.until("09:05:30")
    world.resume()
    assert world.history() == [
        "09:00..09:01 x2 superseded blocked",
        "09:02..09:03 x2 superseded blocked",
        "09:04..09:05 x2 superseded paused",
    ]


def test_an_interrupted_run_that_the_server_does_not_know_blocks_and_keeps_overlap():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    world.pass_s(5)
    world.inspected(known=False)
    view = world.view()
    assert view.state == "blocked"
    assert (view.diagnostics[0].code, view.diagnostics[0].data) == ("run-unknown-at-server", {"run_id": "run-000001"})
    assert world.schedule().blocking_run_id(world.now.at) == "run-000001"
    assert "N" in world.letters()


def test_a_fault_of_one_schedule_leaves_the_slots_right(monkeypatch):
    world = World(max_concurrent_runs=1, preflight_ttl_s=600)
    world.create("a-broken", DAILY, input={"who": {"from": "run.id"}})
    world.create("good", DAILY)

    def broken(schema, value):
        if value:
            raise LookupError("cannot")
        return ()

    monkeypatch.setattr(bindings, "check_input", broken)
    world.until("09:00")
    assert world.view("a-broken").state == "blocked"
    assert world.state.globals.slots_used == 1
    world.answered()
    assert world.history("good")[-1] == "09:00 completed"
    assert world.state.globals.slots_used == 0

"""Unblock: an operator takes responsibility (spec sections 3 and 11)."""

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Diagnostic
from tests.builders import DAILY, World, at

DAMAGE = Diagnostic("damaged", "a record is damaged", at("08:59"), {"offset": 12})


def with_contradiction():
    """An interrupted run that the server does not know."""
    world = World()
    world.create()
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    world.pass_s(5)
    world.inspected(known=False)
    assert world.view().state == "blocked"
    return world


def test_a_contradictory_run_is_settled_failed_and_overlap_is_free():
    world = with_contradiction()
    world.unblock(note="the server lost its disk")
    assert world.history()[-1] == "09:00 failed contradiction"
    assert "the server lost its disk" in world.rows()[-1].detail["message"]
    assert world.view().state == "active"
    assert world.view().diagnostics == ()
    world.until("09:01")
    assert world.history()[-2:] == ["09:01 admitted", "09:01 running"]


def test_it_stays_free():
    world = with_contradiction()
    world.unblock()
    world.live_until("09:00:50")
    assert world.view().state == "active"
    assert world.all(cmd.InspectRun) == []


def test_runs_that_no_diagnostic_names_are_kept():
    world = World(preflight_ttl_s=600)
    world.create(overlap="parallel", max_active_runs=2)
    world.until("09:00")
    world.answered("run-000001", "interrupted", trace_count=1)
    world.until("09:00:05")
    world.inspected(known=False)
    world.unblock()
    world.until("09:01")
    world.answered("run-000002", "interrupted", trace_count=1)
    world.command(cmd.Block("daily", DAMAGE))
    world.unblock()
    assert [run.run_id for run in world.schedule().runs] == ["run-000002"]


def test_the_note_is_kept_and_the_revision_grows():
    world = with_contradiction()
    revision = world.view().revision
    view = world.unblock(note="checked by hand")
    assert (view.note, view.revision) == ("checked by hand", revision + 1)


def test_a_schedule_that_is_neither_blocked_nor_behind_is_left_as_it_is():
    world = World()
    world.create()
    journal = list(world.journal)
    assert world.unblock().revision == 1
    assert world.journal == journal


def test_a_note_with_a_control_character_is_refused():
    world = with_contradiction()
    with pytest.raises(Rejected) as refused:
        world.unblock(note="a\nb")
    assert (refused.value.code, refused.value.data["field"]) == ("InvalidInput", "note")


def test_a_schedule_whose_calendar_is_still_broken_is_blocked_again_at_once(monkeypatch):
    from scheduler_daemon.core import calendar

    world = World()
    world.create(cron=DAILY)

    def broken(*args):
        raise calendar.CalendarBroken("no answer")

    monkeypatch.setattr(calendar, "first_after", broken)
    monkeypatch.setattr(calendar, "due_between", broken)
    world.until("09:00")
    assert world.view().state == "blocked"
    world.unblock()
    assert world.view().state == "blocked"
    assert world.view().revision == 4


def test_an_open_call_of_a_contradictory_run_may_still_end_and_changes_nothing():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.command(cmd.Block("daily", Diagnostic("contradiction", "?", at("09:00"), {"run_id": "run-000001"})))
    world.unblock()
    assert world.history()[-1] == "09:00 failed contradiction"
    assert world.state.globals.slots_used == 0
    journal = list(world.journal)
    world.answered()
    assert world.journal == journal

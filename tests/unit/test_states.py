"""The state of a schedule and what works in it (the table of spec section 3)."""

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Diagnostic
from tests.builders import DAILY, World, at

DAMAGE = Diagnostic("damaged", "a record is damaged", at("08:59"), {"file": "journal/1.jsonl", "offset": 12})


def active():
    world = World()
    world.create(cron=DAILY)
    return world


def finished():
    world = World()
    world.create(at=at("09:00"))
    world.until("09:00")
    world.answered()
    return world


def paused():
    world = active()
    world.pause()
    return world


def blocked():
    world = active()
    world.command(cmd.Block("daily", DAMAGE))
    return world


def deleted():
    world = active()
    world.delete()
    return world


MAKERS = {"active": active, "finished": finished, "paused": paused, "blocked": blocked, "deleted": deleted}
EDITS = {
    "update": lambda world: world.update(lateness_s=30),
    "pause": lambda world: world.pause(),
    "resume": lambda world: world.resume(),
    "delete": lambda world: world.delete(),
    "unblock": lambda world: world.unblock(),
}
WORKS = {
    "active": {"update", "pause", "resume", "delete", "unblock"},
    "finished": {"update", "pause", "resume", "delete", "unblock"},
    "paused": {"update", "pause", "resume", "delete", "unblock"},
    "blocked": {"pause", "delete", "unblock"},
    "deleted": {"delete"},
}
REFUSALS = {"blocked": "ScheduleBlocked", "deleted": "ScheduleDeleted"}


@pytest.mark.parametrize("state", MAKERS)
def test_the_state_is_shown(state):
    assert MAKERS[state]().view().state == state


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("state", MAKERS)
def test_what_the_table_lists_works_and_the_rest_is_refused_by_the_states_name(state, edit):
    world = MAKERS[state]()
    journal = list(world.journal)
    if edit in WORKS[state]:
        EDITS[edit](world)
        return
    with pytest.raises(Rejected) as refused:
        EDITS[edit](world)
    assert refused.value.code == REFUSALS[state]
    assert world.journal == journal


@pytest.mark.parametrize("state", ["paused", "blocked", "deleted"])
def test_only_an_active_schedule_admits(state):
    world = MAKERS[state]()
    world.until("09:00")
    world.until("09:30")
    assert [row for row in world.rows() if row.status == "admitted"] == []


def test_deleted_is_shown_before_blocked_before_paused():
    world = active()
    world.pause()
    assert world.view().state == "paused"
    world.command(cmd.Block("daily", DAMAGE))
    assert world.view().state == "blocked"
    assert world.view().paused
    world.delete()
    assert world.view().state == "deleted"
    assert world.view().blocked


def test_a_one_shot_is_not_finished_while_its_candidate_waits():
    world = World(max_concurrent_runs=1)
    world.create("a-holder", at=at("09:00"))
    world.create(at=at("09:00"), misfire="latest")
    world.until("09:00")
    assert world.view().state == "active"
    world.answered()
    assert world.view().state == "finished"


def test_a_one_shot_is_not_finished_while_its_run_is_unsent():
    world = World()
    world.create(at=at("09:00"), misfire="latest")
    world.until("09:00")
    assert world.view().state == "finished"
    world.not_sent(server_down=True)
    assert world.view().state == "active"


def test_a_finished_schedule_can_be_paused_and_shows_it():
    world = finished()
    assert world.pause().state == "paused"
    assert world.resume().state == "finished"


def test_an_interrupted_run_of_a_deleted_schedule_can_be_resumed_and_abandoned():
    world = active()
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    world.delete()
    world.resume_run()
    world.answered(status="interrupted", trace_count=2)
    world.abandon()
    assert world.history()[-1] == "09:00 failed abandoned"


def test_runs_of_a_blocked_schedule_settle_but_are_neither_resumed_nor_abandoned():
    world = active()
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    world.command(cmd.Block("daily", DAMAGE))
    for act in (world.resume_run, world.abandon):
        with pytest.raises(Rejected) as refused:
            act()
        assert refused.value.code == "ScheduleBlocked"
        assert refused.value.data["diagnostics"] == [{"code": "damaged", "message": "a record is damaged"}]


def test_deleting_twice_is_idempotent():
    world = deleted()
    journal = list(world.journal)
    assert world.delete().revision == 2
    assert world.journal == journal


def test_an_id_is_never_used_again_not_even_after_deletion():
    world = deleted()
    with pytest.raises(Rejected) as refused:
        world.create()
    assert refused.value.code == "ScheduleExists"


@pytest.mark.parametrize("edit", EDITS)
def test_a_schedule_that_does_not_exist_is_not_found(edit):
    acts = {
        "update": cmd.Update(
            schedule_id="x", expected_revision=1, changes={}, preflight=cmd.Preflight(deployment_id="dep")
        ),
        "pause": cmd.Pause("x"),
        "resume": cmd.Resume("x"),
        "delete": cmd.Delete("x"),
        "unblock": cmd.Unblock("x", "note"),
    }
    with pytest.raises(Rejected) as refused:
        World().command(acts[edit])
    assert (refused.value.code, refused.value.data["schedule_id"]) == ("ScheduleNotFound", "x")


def test_a_note_is_kept_and_shown():
    world = active()
    world.pause(note="until the audit is over")
    assert world.view().note == "until the audit is over"
    world.resume()
    assert world.view().note == "until the audit is over"
    world.delete(note="not needed any more")
    assert world.view().note == "not needed any more"

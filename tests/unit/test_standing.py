"""A crowd that is due at once stands in line before it is written down: what happens to who stands meanwhile (spec section 5)."""

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import decide as deciding
from scheduler_daemon.core import events as ev
from scheduler_daemon.core.model import Cron, Diagnostic
from scheduler_daemon.core.queries import pending_row, schedule_view
from tests.builders import DAILY, World, at

DAMAGE = Diagnostic("damaged", "a record is damaged", at("08:59"), {"offset": 12})


@pytest.fixture(autouse=True)
def one_is_a_crowd(monkeypatch):
    monkeypatch.setattr(deciding, "WRITTEN_MAX", 0)


def crowd(*, misfire="skip", **settings):
    """`a` runs in the only slot, `b` stands."""
    world = World(max_concurrent_runs=1, preflight_ttl_s=600, **settings)
    for name in ("a", "b"):
        world.create(name, DAILY, misfire=misfire)
    world.until("09:00")
    assert world.history("a") == ["09:00 admitted", "09:00 running"]
    assert world.schedule("b").candidate is None
    return world


def decided(world):
    return [event.until for event in world.journal if isinstance(event, ev.Decided)]


def test_who_stands_runs_as_soon_as_a_slot_is_free_and_was_never_held():
    world = crowd()
    world.pass_s(2)
    world.answered()
    assert world.history("b") == ["09:00 admitted", "09:00 running"]
    assert not any(isinstance(event, ev.CandidateHeld) for event in world.journal)


def test_who_stands_is_shown_as_pending_like_a_candidate():
    world = crowd()
    row = pending_row(world.state, world.schedule("b"))
    assert (row.status, row.instant, row.reason) == ("pending", at("09:00"), "no-slot")
    shown = schedule_view(world.state, "b", now=world.now).candidate
    assert (shown.instant, shown.waiting) == (at("09:00"), "no-slot")
    world.answered()
    assert pending_row(world.state, world.schedule("b")) is None


def test_who_has_stood_for_three_seconds_is_held_for_want_of_a_slot():
    world = crowd()
    world.live_until("09:00:02.9")
    assert world.schedule("b").candidate is None
    world.live_until("09:00:03")
    held = world.schedule("b").candidate
    assert (held.instant, held.waiting) == (at("09:00"), "no-slot")
    world.live_until("09:01:01")
    assert world.history("b") == ["09:00 skipped-misfire no-slot"]


def test_a_crowd_is_served_in_the_order_in_which_it_would_be_if_it_were_held():
    world = World(max_concurrent_runs=1, preflight_ttl_s=600)
    for name in ("c", "a", "b"):
        world.create(name, DAILY)
    world.until("09:00")
    order = []
    for number in range(1, 4):
        order.append(world.one(cmd.StartCall).schedule_id)
        world.answered(f"run-{number:06}")
    assert order == ["a", "b", "c"]


def test_what_is_decided_reaches_up_to_the_first_instant_that_stands_and_beyond_it_only_afterwards():
    world = crowd()
    assert decided(world)[-1] < at("09:00")
    world.answered()
    assert decided(world)[-1] == at("09:00")


@pytest.mark.parametrize("back", ["08:59:59", "08:59:50", "08:00"])
@pytest.mark.parametrize("misfire", ["skip", "latest"])
def test_a_clock_that_is_set_back_starts_nobody_before_the_instant_he_stands_with(back, misfire):
    world = crowd(misfire=misfire)
    world.pass_s(0.5)
    world.set_clock(back)
    world.answered()
    assert world.all(cmd.StartCall) == []
    world.live_until("09:00:00.001")
    assert world.history("b") == ["09:00 admitted", "09:00 running"]
    assert world.rows("b")[0].at >= at("09:00")


def test_a_clock_that_is_set_ahead_makes_who_stands_late_like_anybody():
    world = crowd()
    world.set_clock("10:00")
    assert world.history("b") == ["09:00 skipped-misfire late"]


@pytest.mark.parametrize(
    ("reason", "close"),
    [
        ("paused", lambda world: world.pause("b")),
        ("deleted", lambda world: world.delete("b")),
        ("blocked", lambda world: world.command(cmd.Block("b", DAMAGE))),
        ("trigger-changed", lambda world: world.update("b", trigger=Cron("0 12 * * *", "UTC"))),
    ],
)
def test_a_closing_supersedes_who_stands(reason, close):
    world = crowd()
    world.pass_s(1)
    close(world)
    world.answered()
    assert world.history("b") == [f"09:00 superseded {reason}"]


def test_an_edit_is_seen_by_who_stands():
    world = crowd()
    world.update("b", input={"who": {"value": "new"}})
    world.answered()
    assert [(row.status, row.revision) for row in world.rows("b")] == [("admitted", 2), ("running", 2)]
    assert world.run("run-000002").input == {"who": "new"}


def test_an_allowance_that_is_cut_to_less_than_it_has_stood_makes_it_late_at_once():
    world = crowd()
    world.pass_s(2)
    world.update("b", lateness_s=1)
    assert world.history("b") == ["09:00 skipped-misfire late"]


def test_a_crash_finds_who_stood_undecided():
    world = crowd()
    world.restart()
    world.live_s(2)
    world.listed()
    assert world.history("b") == ["09:00 admitted", "09:00 running"]


def test_a_crash_for_longer_than_the_allowance_makes_it_a_miss():
    world = crowd()
    world.asleep_until("09:05")
    world.restart()
    assert world.history("b") == ["09:00 skipped-misfire late"]


def test_a_drain_leaves_who_stands_undecided():
    world = crowd()
    world.pass_s(1)
    world.command(cmd.Drain())
    assert world.state.globals.decided_until < at("09:00")
    world.restart()
    world.live_s(2)
    world.listed()
    assert world.history("b") == ["09:00 admitted", "09:00 running"]


def test_while_the_disk_is_full_who_stands_is_not_consumed():
    world = crowd()
    world.observe(cmd.StoreRoom(full=True))
    journal = list(world.journal)
    world.pass_s(20)
    assert world.journal == journal
    world.observe(cmd.StoreRoom(full=False))
    assert world.schedule("b").candidate.instant == at("09:00")


def test_a_server_that_goes_away_leaves_who_stands_to_be_held_for_it():
    world = crowd()
    world.server_down()
    world.live_until("09:00:03.001")
    assert world.schedule("b").candidate.waiting == "server-unreachable"


def test_who_waits_for_an_answer_stands_aside_and_runs_when_it_is_there():
    world = World(attended=False, preflight_ttl_s=10)
    world.server_up()
    for name in ("a", "b"):
        world.create(name, DAILY)
    world.until("09:00:01")
    world.answer()
    assert [call.schedule_id for call in world.all(cmd.StartCall)] == ["a", "b"]


def test_a_negative_answer_rejects_who_stands():
    world = World(attended=False, preflight_ttl_s=10)
    world.server_up()
    for name in ("a", "b"):
        world.create(name, DAILY)
    world.until("09:00:01")
    world.answer(diagnostics=({"code": "broken"},))
    assert world.history("b") == ["09:00 preflight-rejected preflight"]


def test_who_has_more_than_an_instant_to_decide_does_not_stand():
    world = World(max_concurrent_runs=3, preflight_ttl_s=600)
    for name in ("a", "b", "c"):
        world.create(name, misfire="skip")
    world.until("09:00")
    world.until("09:01")
    assert [world.history(name)[-1] for name in ("a", "b", "c")] == ["09:01 skipped-overlap overlap"] * 3


def test_a_one_shot_that_stands_is_not_finished():
    world = World(max_concurrent_runs=1, preflight_ttl_s=600)
    for name in ("a", "b"):
        world.create(name, at=at("09:00"))
    world.until("09:00")
    assert world.view("b").state == "active"
    world.answered()
    assert world.view("b").state == "finished"


def test_a_batch_that_could_not_be_written_is_decided_again():
    world = World(max_concurrent_runs=1, preflight_ttl_s=600, checked=False)
    for name in ("a", "b"):
        world.create(name, DAILY)
    world.asleep_until("09:00")
    draft = world.state.draft(world.now)
    assert deciding.decide(draft).events
    draft.drop()
    world.wake()
    assert world.history("a") == ["09:00 admitted", "09:00 running"]
    world.answered()
    assert world.history("b") == ["09:00 admitted", "09:00 running"]

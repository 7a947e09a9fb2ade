"""Runs whose outcome is open, and operators who do something about their schedule meanwhile: the run ends once, as it would have."""

import asyncio
from datetime import timedelta

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.lifecycle import Contradiction
from scheduler_daemon.core.model import Diagnostic, Settings
from scheduler_daemon.core.state import State
from scheduler_daemon.runtime import engine as engines
from scheduler_daemon.runtime.clock import SystemClock
from scheduler_daemon.runtime.engine import Engine
from tests.builders import DAILY, KEYED, World, definition, facts, preflight, result

OLD = result("interrupted", "server-run-000001", trace_count=1)
NEWER = result("completed", "server-run-000001", trace_count=4)
STOPS = {"pause": cmd.Pause, "delete": cmd.Delete}


def started(*features, **fields):
    world = World(reconcile_grace_s=30.0)
    world.server_up(*features)
    world.create(cron=DAILY, **fields)
    world.until("09:00")
    return world


def interrupted(*features):
    world = started(*features)
    world.answered(status="interrupted", trace_count=1)
    return world


def stop(world, how):
    world.command(STOPS[how]("daily", "because"))


# --- a pause or a deletion while sight of a call is lost --------------------------------------------------------------


@pytest.mark.parametrize("how", STOPS)
def test_a_plain_start_whose_grace_runs_out_meanwhile_fails_closed_once_and_gives_its_slot_back(how):
    world = started()
    world.server_down()
    world.lost()
    world.live_s(10)
    stop(world, how)
    world.live_s(25)
    row = world.rows()[-1]
    assert (row.status, row.reason, row.detail["case"]) == ("failed", "outcome-unknown", "G")
    assert (world.schedule().runs, world.state.globals.slots_used) == ((), 0)
    assert world.view().state == {"pause": "paused", "delete": "deleted"}[how]


@pytest.mark.parametrize("how", STOPS)
def test_a_keyed_start_is_still_sent_again_and_ends_in_the_truth(how):
    world = started(*KEYED)
    world.lost()
    stop(world, how)
    world.live_s(1)
    assert world.call().repeat
    world.answered()
    assert world.history()[-1] == "09:00 completed"


@pytest.mark.parametrize("how", STOPS)
def test_a_lost_resume_is_inspected_for_its_grace_and_fails_closed(how):
    world = interrupted()
    world.resume_run()
    world.lost()
    stop(world, how)
    for _ in range(200):
        world.live_s(1)
        if not world.schedule().runs:
            break
        if world.all(cmd.InspectRun):
            world.inspected(OLD)
    row = world.rows()[-1]
    assert (row.status, row.reason, row.detail["case"]) == ("failed", "outcome-unknown", "L")
    assert (world.schedule().runs, world.state.globals.slots_used) == ((), 0)


@pytest.mark.parametrize("how", STOPS)
def test_an_interrupted_run_can_still_be_resumed_and_abandoned(how):
    world = interrupted()
    stop(world, how)
    world.resume_run()
    world.answered(status="interrupted", trace_count=2)
    world.command(cmd.AbandonRun("run-000001", "nobody will answer"))
    assert world.history()[-1] == "09:00 failed abandoned"


def test_a_deleted_schedule_is_not_blocked_by_a_run_that_the_server_lost_and_the_run_can_be_abandoned():
    world = interrupted()
    stop(world, "delete")
    world.live_s(6)
    world.inspected(known=False)
    assert (world.view().state, world.view().diagnostics, world.run().phase) == ("deleted", (), "interrupted")
    world.command(cmd.AbandonRun("run-000001", "the server lost it"))
    assert world.schedule().runs == ()


def test_a_lost_resume_of_a_deleted_schedule_that_the_server_does_not_know_fails_closed_and_gives_its_slot_back():
    world = interrupted()
    world.resume_run()
    world.lost()
    stop(world, "delete")
    world.live_s(1)
    world.inspected(known=False)
    assert (world.rows()[-1].detail["case"], world.state.globals.slots_used) == ("J", 0)
    assert world.view().state == "deleted"


# --- an unblock, and what the server says at the same moment ----------------------------------------------------------


def blocked():
    """The server does not know the interrupted run; the next question about it is open."""
    world = interrupted()
    world.live_s(6)
    world.inspected(known=False)
    assert world.view().state == "blocked"
    world.live_s(61)
    world.one(cmd.InspectRun)
    return world


def test_an_unblock_before_the_servers_answer_is_the_last_word():
    world = blocked()
    world.unblock()
    world.inspected(NEWER)
    assert world.history()[-1] == "09:00 failed contradiction"
    assert (world.view().state, world.view().diagnostics) == ("active", ())


def test_an_unblock_after_the_servers_answer_finds_the_run_settled():
    world = blocked()
    world.inspected(NEWER)
    world.unblock()
    ends = [row.status for row in world.rows() if row.run_id == "run-000001" and row.status in ("completed", "failed")]
    assert ends == ["completed"]
    assert (world.view().state, world.view().diagnostics) == ("active", ())


def test_a_resume_marked_before_its_schedule_was_blocked_settles_all_the_same():
    world = interrupted()
    world.resume_run()
    world.command(cmd.Block("daily", Diagnostic("damaged-record", "?", world.now.at)))
    world.answered(trace_count=4)
    assert (world.history()[-1], world.view().state) == ("09:00 completed", "blocked")


# --- an input that contradicts the state ------------------------------------------------------------------------------


class _Store:
    async def commit(self, _events) -> None:
        return

    def check_ownership(self) -> None:
        return


async def test_an_answer_that_cannot_be_taken_in_blocks_its_schedule_and_an_unblock_gives_the_slot_back(monkeypatch):
    """Without the run in its diagnostic nothing would ever end the run: its call is over, and the slot would be gone."""
    effects: asyncio.Queue[cmd.Effect] = asyncio.Queue()
    clock, state = SystemClock(), State("store", Settings(server_url="http://server.example:8765"))
    engine = Engine(state, _Store(), clock, perform=effects.put_nowait, settled=lambda _: None, poll_interval_s=0.02)
    state.rebuild_agenda(clock.now())
    running = asyncio.create_task(engine.run())

    async def effect(kind):
        async with asyncio.timeout(10):
            while not isinstance(found := await effects.get(), kind):
                pass
        return found

    engine.observe(cmd.ServerSeen((await effect(cmd.Probe)).seq, facts()))
    made = definition("soon", at=clock.now().at + timedelta(seconds=1.5))
    await engine.submit(cmd.Create(made, preflight(made.deployment_id), ()))
    call = await effect(cmd.StartCall)

    def broken(_draft, _observation):
        raise Contradiction("running", "RunSettled", call.run_id)

    with monkeypatch.context() as patched:
        patched.setattr(engines, "observe", broken)
        engine.observe(cmd.CallAnswered(call.seq, "soon", call.run_id, result()))
        view = await engine.submit(cmd.Pause("soon"))
    (diagnostic,) = view.diagnostics
    assert (view.state, diagnostic.code, diagnostic.data["run_id"]) == ("blocked", "contradiction", call.run_id)
    assert state.globals.slots_used == 1
    view = await engine.submit(cmd.Unblock("soon", "looked into it"))
    assert (view.active_runs, state.globals.slots_used) == ((), 0)
    engine.stop()
    await running

"""Resumes through the daemon that meet something else at the worst moment: answers that overtake each other, or come just before.

Over real HTTP with the real process and a proxy that holds answers back until the test lets them go.
"""

import asyncio

import pytest

from rpc_client.errors import RpcError
from tests.fakes.proxy import Answer, DropResponse, Slow
from tests.fakes.scripts import Complete, Deployment, Interrupt
from tests.fakes.server import FakeWorkflowServer
from tests.integration.matrix import EVERYBODY, HEALTH, INSPECT, KEYED, RESUME, Bench
from tests.integration.process import rows_of, until

ASK, ASK_TWICE, WORK = "ask.default", "ask-twice.default", "work.default"


def _server(gate=None, **how) -> FakeWorkflowServer:
    done = Complete(steps=3, gate=gate)
    return FakeWorkflowServer(
        [
            Deployment(deployment_id=ASK, script=Interrupt(then=done)),
            Deployment(deployment_id=ASK_TWICE, script=Interrupt(then=Interrupt(payload={"n": 2}, steps=2, then=done))),
            Deployment(deployment_id=WORK, script=Complete()),
        ],
        **how,
    )


async def _statuses(bench: Bench, schedule_id: str) -> list[str]:
    return [row["status"] for row in await rows_of(bench.app, schedule_id)]


async def _until_met(bench: Bench, method: str, deployment_id: str) -> None:
    async def met() -> bool:
        return bench.proxy.met[method, deployment_id] > 0

    await until(met, seconds=30)


async def _leave(bench: Bench, run_id: str, when) -> None:
    """Resume, wait until `when` returns, and close the connection."""
    async with bench.daemon.app() as caller:
        call = asyncio.create_task(caller.resume_run(run_id, resume_payload={"approved": True}))
        await when()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_watchs_inspect_that_overtakes_a_resume_does_not_fail_it(tmp_path):
    gate, held = asyncio.Event(), asyncio.Event()
    async with Bench(tmp_path, _server(gate)) as bench:
        run_id = await bench.interrupted("ask", ASK)
        bench.proxy.plan(INSPECT, ASK, Slow(gate=held))
        await _until_met(bench, INSPECT, ASK)  # the watch has asked; its answer, read before the resume, is on its way
        resuming = asyncio.create_task(bench.resume(run_id))
        await bench.fake.until_executions(2, timeout_s=30)
        held.set()
        await bench.proxy.next_health()
        (run,) = (await bench.app.get_schedule("ask"))["active_runs"]
        assert (run["status"], run["ambiguous"]) == ("running", False)
        gate.set()
        assert await resuming == "completed"
        assert await _statuses(bench, "ask") == ["admitted", "running", "interrupted", "running", "completed"]


async def test_when_the_server_finished_just_before_the_caller_went_away_its_result_is_taken(tmp_path):
    """The run is over at the server, and the answer that says so is still on its way when nobody waits for it any more."""
    async with Bench(tmp_path, _server()) as bench:
        run_id = await bench.interrupted("ask", ASK)
        bench.proxy.plan(RESUME, ASK, Slow(gate=asyncio.Event()))
        await _leave(bench, run_id, lambda: _finished(bench, run_id))
        row = await bench.row_of("ask")
        assert (row["status"], row["reason"], row["detail"]["result"]["trace_count"]) == ("completed", None, 4)
        assert bench.executions("ask")[RESUME] == 1
        assert (await bench.figures())["scheduler_slots_used"] == 0


async def test_when_it_was_interrupted_again_just_before_the_caller_went_away_it_can_be_answered_again(tmp_path):
    async with Bench(tmp_path, _server()) as bench:
        run_id = await bench.interrupted("ask", ASK_TWICE)
        bench.proxy.plan(RESUME, ASK_TWICE, Slow(gate=asyncio.Event()))
        await _leave(bench, run_id, lambda: _finished(bench, run_id))

        async def at_its_second_interrupt() -> bool:
            return (await _statuses(bench, "ask"))[-3:] == ["running", "running", "interrupted"]  # marked, lost, found

        await until(at_its_second_interrupt)
        assert await bench.resume(run_id) == "completed"
        assert bench.executions("ask")[RESUME] == 2


async def _finished(bench: Bench, run_id: str) -> None:
    server_run_id = (await bench.app.get_schedule("ask"))["active_runs"][0]["server_run_id"]
    assert server_run_id is not None, run_id

    async def moved() -> bool:
        return bench.fake._runs[server_run_id].trace_count > 1

    await until(moved, seconds=30)


async def test_a_resume_of_a_run_that_the_server_finished_just_before_takes_the_result_and_is_refused(tmp_path):
    async with Bench(tmp_path, _server()) as bench:
        run_id = await bench.interrupted("ask", ASK)
        (run,) = (await bench.app.get_schedule("ask"))["active_runs"]
        await bench.fake.call(RESUME, {"run_id": run["server_run_id"], "resume_payload": {}})
        assert await bench.resume(run_id) == "RunNotResumable"
        assert await _statuses(bench, "ask") == ["admitted", "running", "interrupted", "completed"]
        assert sum(one.method == RESUME for one in bench.fake.received) == 1


async def test_a_repeat_that_did_not_reach_the_server_is_not_what_the_caller_of_the_resume_is_told(tmp_path):
    """The first request ran up to another interrupt.  "Nothing was changed, try again" would be a lie."""
    async with Bench(tmp_path, _server(features=KEYED)) as bench:
        run_id = await bench.interrupted("ask", ASK_TWICE)
        bench.proxy.plan(RESUME, ASK_TWICE, DropResponse(), Answer(429))
        assert await bench.resume(run_id) == "interrupted"
        assert bench.proxy.met[RESUME, ASK_TWICE] == 2
        assert (await _statuses(bench, "ask"))[-3:] == ["running", "running", "interrupted"]
        assert bench.executions("ask")[RESUME] == 1


async def test_an_abandon_that_overtakes_a_resume_wins_and_nothing_is_sent(tmp_path):
    """The abandon arrives while the resume reads its fresh checkpoint."""
    held = asyncio.Event()
    async with Bench(tmp_path, _server()) as bench:
        run_id = await bench.interrupted("ask", ASK)
        bench.proxy.plan(INSPECT, ASK, Slow(gate=held))
        resuming = asyncio.create_task(bench.resume(run_id))
        await _until_met(bench, INSPECT, ASK)
        abandoned = await bench.app.abandon_run(run_id, note="nobody will answer")
        assert (abandoned["status"], abandoned["reason"]) == ("failed", "abandoned")
        held.set()
        assert await resuming == "RunNotResumable"
        assert await _statuses(bench, "ask") == ["admitted", "running", "interrupted", "failed"]
        assert [one for one in bench.fake.received if one.method == RESUME] == []


async def test_an_abandon_that_comes_while_a_resume_executes_is_refused_and_the_resume_ends_as_it_will(tmp_path):
    gate = asyncio.Event()
    async with Bench(tmp_path, _server(gate)) as bench:
        run_id = await bench.interrupted("ask", ASK)
        resuming = asyncio.create_task(bench.resume(run_id))
        await bench.fake.until_executions(2, timeout_s=30)
        with pytest.raises(RpcError) as refused:
            await bench.app.abandon_run(run_id, note="too late")
        assert refused.value.code == "RunNotResumable"
        gate.set()
        assert await resuming == "completed"
        with pytest.raises(RpcError) as over:
            await bench.app.abandon_run(run_id, note="it is over")
        assert over.value.code == "RunNotResumable"


async def test_a_run_that_completes_at_the_server_while_it_is_abandoned_stays_abandoned(tmp_path):
    """The watch's question was on its way: its answer, that the run is over, comes after the operator's word."""
    held = asyncio.Event()
    async with Bench(tmp_path, _server()) as bench:
        run_id = await bench.interrupted("ask", ASK)
        (run,) = (await bench.app.get_schedule("ask"))["active_runs"]
        await bench.fake.call(RESUME, {"run_id": run["server_run_id"], "resume_payload": {}})
        bench.proxy.plan(INSPECT, ASK, Slow(gate=held))
        await _until_met(bench, INSPECT, ASK)
        await bench.app.abandon_run(run_id, note="given up")
        held.set()
        await bench.proxy.next_health()
        last = (await rows_of(bench.app, "ask"))[-1]
        assert (last["status"], last["reason"]) == ("failed", "abandoned")
        assert (await bench.app.abandon_run(run_id, note="again"))["reason"] == "abandoned"
        await bench.due_in(0.7, "next", WORK)
        assert (await bench.row_of("next"))["status"] == "completed"


@pytest.mark.parametrize("features", [(), KEYED], ids=["plain", "keyed"])
async def test_a_resume_right_after_a_start_is_marked_for_the_server_that_answers_and_judged_there(tmp_path, features):
    """Its caller is faster than the first health answer.  A mark that named no server was judged as one left at another."""
    async with Bench(tmp_path, _server(features=features)) as bench:
        again, lost = await bench.interrupted("again", ASK_TWICE), await bench.interrupted("lost", ASK)
        await bench.daemon.kill()
        bench.proxy.plan(HEALTH, EVERYBODY, Slow(1.0))
        bench.proxy.plan(RESUME, ASK, DropResponse())
        await bench.daemon.start()
        assert await asyncio.gather(bench.resume(again), bench.resume(lost)) == ["interrupted", "completed"]
        await _until_met(bench, HEALTH, EVERYBODY)
        bench.proxy.plan(INSPECT, ASK_TWICE, Slow(0.1))
        await _until_met(bench, INSPECT, ASK_TWICE)  # the watch has looked
        shown = await bench.app.get_schedule("again")
        assert (shown["diagnostics"], shown["active_runs"][0]["status"]) == ([], "interrupted")
        assert bench.twice() == {} or not features

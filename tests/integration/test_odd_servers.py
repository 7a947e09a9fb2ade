"""Servers that say what no server should, and servers that somebody else uses as well: nothing is believed that is not about the run.

Over real HTTP with the real process.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.fakes import payloads
from tests.fakes.params import RpcFault, operation_failed
from tests.fakes.proxy import Answer, DropResponse
from tests.fakes.scripts import Complete, Deployment, Interrupt
from tests.fakes.server import FakeWorkflowServer
from tests.integration.matrix import INSPECT, KEYED, RESUME, START, Bench
from tests.integration.process import rows_of, until

ASK, WORK = "ask.default", "work.default"


def _deployments(gate: asyncio.Event | None = None) -> list[Deployment]:
    done = Complete(steps=3, gate=gate)
    return [
        Deployment(deployment_id=ASK, script=Interrupt(then=done)),
        Deployment(deployment_id=WORK, script=Complete()),
    ]


def _instead_of(bench: Bench, method: str, answer) -> None:
    """The server answers this method with what `answer(params)` returns or raises, until `del bench.fake.call`."""
    real_call = bench.fake.call

    async def call(asked, params, *, key=None):
        return answer(params) if asked == method else await real_call(asked, params, key=key)

    bench.fake.call = call


async def _server_id(bench: Bench, schedule_id: str) -> str:
    return (await bench.app.get_schedule(schedule_id))["active_runs"][0]["server_run_id"]


# --- about other runs -------------------------------------------------------------------------------------------------


async def test_an_inspection_that_is_answered_about_another_run_settles_nothing(tmp_path):
    asked: list[str] = []
    async with Bench(tmp_path, FakeWorkflowServer(_deployments())) as bench:
        await bench.due_in(0.7, "done", WORK)
        other = await bench.app.inspect_run((await bench.row_of("done"))["server_run_id"])
        run_id = await bench.interrupted("ask", ASK)

        def of_another_run(params):
            asked.append(params["run_id"])
            return {"status": "completed", "run_id": other["server_run_id"], "trace_count": 9, "outcome": "ok"}

        _instead_of(bench, INSPECT, of_another_run)

        async def watched():
            return asked

        await until(watched, seconds=30)
        shown = await bench.app.inspect_run(run_id)
        assert (shown["status"], shown["source"], shown["trace_count"]) == ("interrupted", "daemon", 1)
        assert await bench.resume(run_id) == "ServerUnavailable"
        del bench.fake.call
        assert await bench.resume(run_id) == "completed"
        assert [row["status"] for row in await rows_of(bench.app, "ask")][-2:] == ["running", "completed"]


async def test_a_key_error_that_does_not_name_the_run_is_no_word_about_it(tmp_path):
    """Some other key was missing in the server's own work: that is no reason to block a schedule."""
    asked: list[str] = []

    def broken(params):
        asked.append(params["run_id"])
        raise operation_failed("KeyError", "'tenant'")

    async with Bench(tmp_path, FakeWorkflowServer(_deployments())) as bench:
        run_id = await bench.interrupted("ask", ASK)
        _instead_of(bench, INSPECT, broken)

        async def watched():
            return asked

        await until(watched, seconds=30)
        await bench.proxy.next_health()
        shown = await bench.app.get_schedule("ask")
        assert ([run["run_id"] for run in shown["active_runs"]], shown["diagnostics"]) == ([run_id], [])
        del bench.fake.call
        assert await bench.resume(run_id) == "completed"


async def test_two_starts_that_are_answered_with_one_id_are_not_taken_for_one_run(tmp_path):
    async with Bench(tmp_path, FakeWorkflowServer(_deployments(), run_ids=[f"run_{32 * 'a'}"] * 2)) as bench:
        first = await bench.interrupted("first", ASK)
        await bench.due_in(0.7, "second", ASK)
        row = await bench.row_of("second")
        assert (row["status"], row["reason"], row["detail"]["case"]) == ("failed", "outcome-unknown", "I")
        assert await bench.resume(first) == "completed"
        assert [one for one in bench.log.records if one["action"] == "bug"] == []
        assert (await bench.figures())["scheduler_slots_used"] == 0


async def test_a_key_that_the_server_knows_for_something_else_fails_closed_and_is_not_sent_a_third_time(tmp_path):
    async with Bench(tmp_path, FakeWorkflowServer(_deployments(), features=KEYED)) as bench:

        def conflict(params):
            raise operation_failed("KeyConflict", f"the key was used with other params than {params}")

        _instead_of(bench, START, conflict)
        await bench.due_in(0.7, "work", WORK)
        row = await bench.row_of("work")
        assert (row["status"], row["reason"], row["detail"]["case"]) == ("failed", "outcome-unknown", "H")
        assert "KeyConflict" in str(row["detail"])
        assert sum(one.method == START for one in bench.proxy.seen) == 2, "the start, and its repeat under the same key"


async def test_an_answer_that_is_too_large_to_read_does_not_hold_its_slot_for_ever(tmp_path):
    """A keyed server would repeat it as often as it is asked."""
    large = Complete(output={"x": "y" * (17 << 20)})
    server = FakeWorkflowServer([Deployment(deployment_id=WORK, script=large)], features=KEYED)
    async with Bench(tmp_path, server, options=("--max-concurrent-runs", "1")) as bench:
        await bench.due_in(0.7, "work", WORK)
        row = await bench.row_of("work")
        assert (row["status"], row["reason"], row["detail"]["case"]) == ("failed", "outcome-unknown", "H")
        assert "answer larger than" in row["detail"]["why"]
        assert (bench.twice(), (await bench.figures())["scheduler_slots_used"]) == ({}, 0)


# --- another clock ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-1, 1], ids=["an hour behind", "an hour ahead"])
async def test_a_server_with_another_clock_runs_and_is_reconciled_all_the_same(tmp_path, hours):
    def now() -> datetime:
        return datetime.now(UTC) + timedelta(hours=hours)

    async with Bench(tmp_path, FakeWorkflowServer(_deployments(), now=now)) as bench:
        await bench.due_in(0.7, "work", WORK)
        assert (await bench.row_of("work"))["status"] == "completed"
        run_id = await bench.interrupted("ask", ASK)
        bench.proxy.plan(RESUME, ASK, DropResponse())
        assert await bench.resume(run_id) == "completed"
        bench.proxy.plan(START, WORK, DropResponse())
        await bench.due_in(0.7, "lost", WORK)
        row = await bench.row_of("lost")
        assert (row["status"], row["reason"], row["detail"]["case"]) == ("failed", "outcome-unknown", "I")


# --- another daemon ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", [(), KEYED], ids=["plain", "keyed"])
async def test_two_daemons_at_one_server_run_their_own_and_leave_the_others_alone(tmp_path, features):
    """Schedules and runs of the same names, each daemon with a store of its own: keys of two stores never meet."""
    server = FakeWorkflowServer(_deployments(), features=features)
    async with (
        Bench(tmp_path / "one", server, options=("--gateway",)) as one,
        Bench(tmp_path / "two", server, options=("--gateway",)) as two,
    ):
        ours, theirs = await asyncio.gather(*(bench.interrupted("ask", ASK) for bench in (one, two)))
        assert ours == theirs == "run-000001"
        assert await _server_id(one, "ask") != await _server_id(two, "ask")
        assert await one.resume(ours) == "completed"
        (waiting,) = (await two.app.get_schedule("ask"))["active_runs"]
        assert waiting["status"] == "interrupted"

        # To the first daemon the other's run is one of the server's; to the other it was resumed elsewhere.
        assert await one.resume(waiting["server_run_id"]) == "completed"
        row = await two.row_of("ask", seconds=75)
        assert (row["status"], row["server_run_id"]) == ("completed", waiting["server_run_id"])
        assert one.twice() == {}


# --- the last word before anything runs -------------------------------------------------------------------------------


async def test_what_the_start_itself_is_refused_with_is_the_last_word_and_no_run_exists(tmp_path):
    """Every preflight was fine; then the server refused before anything ran, in each way that proves it."""
    refusals = {
        "unrunnable.default": lambda: payloads.unrunnable(Deployment(deployment_id="unrunnable.default")),
        "invalid.default": lambda: _raise(RpcFault(-32602, "Invalid params")),
        "gone.default": lambda: _raise(operation_failed("KeyError", "\"unknown workflow deployment 'gone.default'\"")),
    }
    server = FakeWorkflowServer([Deployment(deployment_id=one) for one in (*refusals, "large.default")])
    async with Bench(tmp_path, server, options=("--max-concurrent-runs", "1")) as bench:
        bench.proxy.plan(START, "large.default", Answer(413))
        _instead_of(bench, START, lambda params: refusals[params["deployment_id"]]())
        for name in (*refusals, "large.default"):
            await bench.due_in(1.0, name, name)
        for name in (*refusals, "large.default"):
            row = await bench.row_of(name)
            assert (row["status"], row["server_run_id"]) == ("preflight-rejected", None), name
            assert bench.executions(name) == {}
            assert (await bench.app.get_schedule(name))["active_runs"] == []
        assert (await bench.figures())["scheduler_slots_used"] == 0


def _raise(error: Exception):
    raise error

"""What the daemon finds out by itself: interrupted runs that somebody else resumed, runs that the server lost, ends that came later.

Over real HTTP with the real process.  The watch asks after 5 s at first and every 60 s at last, which these tests wait for.
"""

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

import pytest

from rpc_client.errors import RpcError
from tests.fakes.scripts import Complete, Deployment, Interrupt
from tests.fakes.server import FakeWorkflowServer
from tests.integration.matrix import INSPECT, RESUME, Bench
from tests.integration.process import rows_of, until

ASK, ASK_TWICE, WORK = "ask.default", "ask-twice.default", "work.default"
PATIENCE_S = 75.0
"""How long it may take until what was resumed elsewhere is settled here: a watch's longest pause, and room for the asking."""


def _server(gate=None) -> FakeWorkflowServer:
    done = Complete(steps=3, gate=gate)
    return FakeWorkflowServer(
        [
            Deployment(deployment_id=ASK, script=Interrupt(then=done)),
            Deployment(deployment_id=ASK_TWICE, script=Interrupt(then=Interrupt(payload={"n": 2}, steps=2, then=done))),
            Deployment(deployment_id=WORK, script=Complete()),
        ]
    )


@pytest.fixture
async def bench(tmp_path):
    async with Bench(tmp_path, _server()) as made:
        yield made


async def _server_id(bench: Bench, run_id: str) -> str:
    return (await bench.app.inspect_run(run_id))["server_run_id"]


async def _resume_elsewhere(bench: Bench, server_run_id: str) -> str:
    answer = await bench.fake.call(RESUME, {"run_id": server_run_id, "resume_payload": {"approved": True}})
    return answer["status"]


def _asked_about(bench: Bench, server_run_id: str) -> int:
    return sum(one.method == INSPECT and one.params == {"run_id": server_run_id} for one in bench.fake.received)


async def _refusal(call) -> str:
    with pytest.raises(RpcError) as refused:
        await call
    return refused.value.code


# --- resumed elsewhere ------------------------------------------------------------------------------------------------


async def test_a_run_that_was_resumed_at_the_server_is_settled_by_the_next_look(bench):
    run_id = await bench.interrupted("ask", ASK)
    server_run_id = await _server_id(bench, run_id)
    assert await _resume_elsewhere(bench, server_run_id) == "completed"
    row = await bench.row_of("ask", seconds=PATIENCE_S)
    assert (row["status"], row["run_id"], row["server_run_id"]) == ("completed", run_id, server_run_id)
    assert (await bench.app.get_schedule("ask"))["active_runs"] == []


async def test_an_interrupt_that_was_answered_elsewhere_and_led_to_another_can_be_answered_here(bench):
    run_id = await bench.interrupted("ask", ASK_TWICE)
    assert await _resume_elsewhere(bench, await _server_id(bench, run_id)) == "interrupted"

    async def second_interrupt():
        (run,) = (await bench.app.get_schedule("ask"))["active_runs"]
        return run["interrupt"]["payload"] == {"n": 2}

    await until(second_interrupt, seconds=PATIENCE_S)
    assert await bench.resume(run_id) == "completed"
    statuses = [row["status"] for row in await rows_of(bench.app, "ask")]
    assert statuses == ["admitted", "running", "interrupted", "interrupted", "running", "completed"]


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_even_after_a_long_rest_what_was_resumed_at_the_server_is_settled_within_75_s(bench):
    """The pauses have grown to their longest (5 + 10 + 20 + 40 s) before the first of them is answered."""
    chance = random.Random(5)
    runs = {f"ask-{n}": await bench.interrupted(f"ask-{n}", ASK) for n in range(6)}
    server_run_ids = {name: await _server_id(bench, run_id) for name, run_id in runs.items()}
    await asyncio.sleep(80)

    async def answered_and_settled(name: str) -> float:
        await asyncio.sleep(chance.uniform(0, 60))
        await _resume_elsewhere(bench, server_run_ids[name])
        began = time.monotonic()
        assert (await bench.row_of(name, seconds=PATIENCE_S))["status"] == "completed"
        return time.monotonic() - began

    took_s = await asyncio.gather(*(answered_and_settled(name) for name in runs))
    print(f"\nsettled after {', '.join(f'{one:.1f} s' for one in sorted(took_s))}")
    assert max(took_s) < PATIENCE_S


# --- lost at the server -----------------------------------------------------------------------------------------------


async def test_a_run_that_the_server_lost_blocks_its_schedule_keeps_overlap_and_an_unblock_frees_it_for_good(bench):
    run_id = await bench.interrupted("ask", ASK)
    server_run_id = await _server_id(bench, run_id)
    del bench.fake._runs[server_run_id]
    await bench.logged(action="schedule_blocked", schedule_id="ask")
    shown = await bench.app.get_schedule("ask")
    (diagnostic,) = shown["diagnostics"]
    assert (shown["state"], diagnostic["code"], diagnostic["data"]) == (
        "blocked",
        "run-unknown-at-server",
        {"run_id": run_id},
    )
    assert [run["run_id"] for run in shown["active_runs"]] == [run_id]
    assert await _refusal(bench.app.resume_run(run_id)) == "ScheduleBlocked"

    await bench.app.unblock_schedule("ask", note="the server's store was restored")
    asked = _asked_about(bench, server_run_id)
    last = (await rows_of(bench.app, "ask"))[-1]
    assert (last["status"], last["reason"], last["run_id"]) == ("failed", "contradiction", run_id)
    freed = await bench.app.get_schedule("ask")
    assert (freed["state"], freed["active_runs"], freed["diagnostics"]) == ("finished", [], [])

    await _next_run_rests(bench, freed["revision"])
    free = await bench.app.get_schedule("ask")
    assert (free["state"], free["diagnostics"], len(free["active_runs"])) == ("finished", [], 1)
    assert _asked_about(bench, server_run_id) == asked


async def _next_run_rests(bench: Bench, revision: int) -> None:
    """Another occurrence of the schedule runs up to its interrupt, and has been watched once."""
    due = datetime.now(UTC) + timedelta(seconds=1)
    await bench.app.update_schedule(
        schedule_id="ask", expected_revision=revision, trigger={"kind": "oneshot", "at": due.isoformat()}
    )

    async def interrupted():
        rows = await rows_of(bench.app, "ask")
        return rows[-1] if rows[-1]["status"] == "interrupted" else None

    server_run_id = (await until(interrupted, seconds=30))["server_run_id"]

    async def watched():
        return _asked_about(bench, server_run_id)

    await until(watched, seconds=PATIENCE_S)


# --- ends that came later ---------------------------------------------------------------------------------------------


async def test_what_became_of_a_deserted_resume_is_shown_beside_its_row_and_changes_no_status(tmp_path):
    gate = asyncio.Event()
    async with Bench(tmp_path, _server(gate)) as bench:
        run_id = await bench.interrupted("ask", ASK)
        async with bench.daemon.app() as caller:
            deserted = asyncio.create_task(caller.resume_run(run_id))
            await bench.fake.until_executions(2, timeout_s=30)
            deserted.cancel()
            await asyncio.gather(deserted, return_exceptions=True)
        assert (await bench.row_of("ask"))["reason"] == "outcome-unknown"
        gate.set()
        await bench.logged(action="outcome_observed", run_id=run_id, seconds=PATIENCE_S)
        last = (await rows_of(bench.app, "ask"))[-1]
        assert (last["status"], last["reason"]) == ("failed", "outcome-unknown")
        assert last["detail"]["observed_outcome"]["status"] == "completed"
        assert (await bench.app.inspect_run(run_id))["observed_outcome"]["status"] == "completed"


# --- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--gateway",)], ids=["alone", "as a gateway"])
async def test_an_unknown_id_of_the_daemons_form_is_not_found_and_never_asked_of_the_server(tmp_path, options):
    async with Bench(tmp_path, _server(), options=options) as bench:
        for call in (
            bench.app.inspect_run("run-999999"),
            bench.app.resume_run("run-999999"),
            bench.app.abandon_run("run-999999", note="gone"),
        ):
            assert await _refusal(call) == "RunNotFound"
        assert [one for one in bench.fake.received if "run_id" in (one.params or {})] == []

        foreign = "run_" + 32 * "f"
        assert await _refusal(bench.app.inspect_run(foreign)) == "KeyError"
        assert _asked_about(bench, foreign) == 1


@pytest.mark.timeout(180)
async def test_after_its_history_expired_a_run_is_not_found_and_an_ambiguous_attempt_is_still_refused(tmp_path):
    """Rows are dropped at a checkpoint, which is made when the journal has grown by 8 MiB: another schedule sees to that."""
    gate = asyncio.Event()
    environment = {"SCHEDULER_RETENTION_ROWS": "10"}
    async with Bench(tmp_path, _server(gate), environment=environment) as bench:
        ambiguous = await bench.interrupted("ask", ASK)
        async with bench.daemon.app() as caller:
            deserted = asyncio.create_task(caller.resume_run(ambiguous))
            await bench.fake.until_executions(2, timeout_s=30)
            deserted.cancel()
            await asyncio.gather(deserted, return_exceptions=True)
        await bench.row_of("ask")
        expired = await _run_to_its_end(bench, 0)
        for n in range(1, 6):
            await _run_to_its_end(bench, n)
        await _grow_the_journal(bench)

        async def forgotten():
            try:
                await bench.app.inspect_run(expired)
            except RpcError as refused:
                return refused.code
            return None

        assert await until(forgotten, seconds=30) == "RunNotFound"
        assert await _refusal(bench.app.resume_run(ambiguous)) == "AttemptAmbiguous"
        await bench.daemon.kill()
        await bench.daemon.start()
        assert await _refusal(bench.app.inspect_run(expired)) == "RunNotFound"
        assert await _refusal(bench.app.resume_run(expired)) == "RunNotFound"
        assert await _refusal(bench.app.resume_run(ambiguous)) == "AttemptAmbiguous"
        asked = {one.params.get("run_id") for one in bench.fake.received if one.method in (INSPECT, RESUME)}
        assert {expired, ambiguous} & asked == set()
        assert sum(one.method == RESUME for one in bench.fake.received) == 1


async def _grow_the_journal(bench: Bench) -> None:
    """Edits of 60 KB each, until a snapshot was written."""
    due = datetime.now(UTC) + timedelta(days=1)
    await bench.due_in(86_400, "ballast", WORK)
    for n in range(1, 1000):
        await bench.app.update_schedule(
            schedule_id="ballast",
            expected_revision=n,
            trigger={"kind": "oneshot", "at": due.isoformat()},
            input={"padding": {"value": f"{n}" * (60_000 // len(f"{n}"))}},
        )
        if any((bench.daemon.store / "schedules" / "snapshot").iterdir()):
            return


async def _run_to_its_end(bench: Bench, n: int) -> str:
    """One more occurrence of the same schedule; its run id."""
    revision = (await bench.app.get_schedule("ask"))["revision"]
    due = datetime.now(UTC) + timedelta(seconds=1)
    await bench.app.update_schedule(
        schedule_id="ask",
        expected_revision=revision,
        deployment_id=WORK,
        trigger={"kind": "oneshot", "at": due.isoformat()},
        input={"id": {"value": f"{n}"}},
    )

    async def ended():
        page = await bench.app.list_schedule_occurrences("ask", limit=100)
        rows = [row for row in page["occurrences"] if row["status"] == "completed"]
        return rows[-1] if rows and datetime.fromisoformat(rows[-1]["instant"]) == due else None

    return (await until(ended, seconds=30, every_s=0.1))["run_id"]

"""What the fake workflow server offers to tests beyond the contract: its log, its gates, its clock, its deaths."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.fakes.http import face_of
from tests.fakes.params import RpcFault
from tests.fakes.scripts import Complete, Deployment, Interrupt
from tests.fakes.server import IDEMPOTENT_START, MAX_STEPS, FakeWorkflowServer, ServerGone

AT = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


def start(fake, deployment_id="d", key=None, **workflow_input):
    params = {"deployment_id": deployment_id, "workflow_input": workflow_input}
    return fake.call("workflow.runs.start", params, key=key)


def gated(**how):
    gate = asyncio.Event()
    fake = FakeWorkflowServer([Deployment(deployment_id="d", script=Complete(gate=gate))], **how)
    return fake, gate


async def test_the_execution_log_holds_what_began_with_its_key_and_input():
    fake, gate = gated()
    running = asyncio.create_task(start(fake, key="k", who="w"))
    begun = await fake.until_executions(1)

    assert (begun.key, begun.deployment_id, begun.input, begun.method) == (
        "k",
        "d",
        {"who": "w"},
        "workflow.runs.start",
    )
    assert fake.executing == 1
    gate.set()
    assert (await running)["run_id"] == begun.run_id
    assert fake.executing == 0


async def test_an_execution_goes_on_when_its_caller_is_cancelled():
    fake, gate = gated()
    running = asyncio.create_task(start(fake))
    begun = await fake.until_executions(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.set()
    await fake.until_idle()

    assert (await fake.call("workflow.runs.inspect", {"run_id": begun.run_id}))["status"] == "completed"


async def test_a_key_whose_first_caller_was_cancelled_still_has_its_answer():
    fake, gate = gated(features={IDEMPOTENT_START})
    first = asyncio.create_task(start(fake, key="k"))
    begun = await fake.until_executions(1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(start(fake, key="k"))
    gate.set()

    assert (await second)["run_id"] == begun.run_id
    assert len(fake.execution_log) == 1


async def test_a_plain_server_logs_a_key_and_does_not_heed_it():
    fake = FakeWorkflowServer([Deployment(deployment_id="d")])
    await start(fake, key="k")
    await start(fake, key="k")

    assert [begun.key for begun in fake.execution_log] == ["k", "k"]


async def test_keys_used_before_an_upgrade_are_unknown_after_it():
    fake = FakeWorkflowServer([Deployment(deployment_id="d")])
    await start(fake, key="k")
    fake.restart(features={IDEMPOTENT_START})
    await start(fake, key="k")
    await start(fake, key="k")

    assert len(fake.execution_log) == 2


async def test_a_downgraded_server_runs_a_known_key_again():
    fake = FakeWorkflowServer([Deployment(deployment_id="d")], features={IDEMPOTENT_START})
    await start(fake, key="k")
    fake.restart(features=())
    await start(fake, key="k")

    assert len(fake.execution_log) == 2


async def test_a_kill_drops_every_caller_and_a_dead_server_takes_none():
    fake, _ = gated()
    running = asyncio.create_task(start(fake))
    await fake.until_executions(1)
    fake.kill()

    with pytest.raises(ServerGone):
        await running
    with pytest.raises(ServerGone):
        await fake.call("workflow.health", {})
    fake.restart()
    assert (await fake.call("workflow.runs.list", {}))["total"] == 0


async def test_a_kill_leaves_an_interrupted_run_at_its_checkpoint_on_a_plain_server():
    gate = asyncio.Event()
    script = Interrupt(then=Complete(gate=gate))
    fake = FakeWorkflowServer([Deployment(deployment_id="d", script=script)])
    run_id = (await start(fake))["run_id"]
    resuming = asyncio.create_task(fake.call("workflow.runs.resume", {"run_id": run_id}))
    await fake.until_executions(2)
    fake.restart()
    with pytest.raises(ServerGone):
        await resuming
    gate.set()

    assert (await fake.call("workflow.runs.inspect", {"run_id": run_id}))["status"] == "interrupted"
    assert (await fake.call("workflow.runs.resume", {"run_id": run_id}))["status"] == "completed"


async def test_two_resumes_at_once_both_execute_so_that_a_client_that_sends_two_is_caught():
    gate = asyncio.Event()
    fake = FakeWorkflowServer([Deployment(deployment_id="d", script=Interrupt(then=Complete(gate=gate)))])
    run_id = (await start(fake))["run_id"]
    both = [asyncio.create_task(fake.call("workflow.runs.resume", {"run_id": run_id})) for _ in range(2)]
    await fake.until_executions(3)
    gate.set()

    assert [(await one)["status"] for one in both] == ["completed", "completed"]


async def test_time_is_the_tests_own():
    clock = [AT]
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        clock[0] += timedelta(seconds=seconds)

    fake = FakeWorkflowServer(
        [Deployment(deployment_id="d", script=Complete(delay_s=3_600))],
        now=lambda: clock[0],
        sleep=sleep,
        run_ids=["run_a"],
    )
    answer = await start(fake)
    page = await fake.call("workflow.runs.list", {})

    assert slept == [3_600]
    assert answer["run_id"] == "run_a"
    assert fake.execution_log[0].at == AT
    assert page["runs"][0]["created_at"] == "2026-03-01T10:00:00+00:00"


async def test_a_budget_counts_the_steps_before_an_interrupt_too():
    script = Interrupt(steps=2, then=Complete(steps=2))
    fake = FakeWorkflowServer([Deployment(deployment_id="d", script=script)], features={MAX_STEPS})
    first = await fake.call("workflow.runs.start", {"deployment_id": "d", "max_steps": 3})
    second = await fake.call("workflow.runs.resume", {"run_id": first["run_id"]})

    assert (first["status"], first["trace_count"]) == ("interrupted", 2)
    assert (second["status"], second["trace_count"]) == ("exhausted", 3)


async def test_a_request_is_shown_to_the_test_before_anything_comes_of_it():
    fake = FakeWorkflowServer([Deployment(deployment_id="d")])
    seen = []
    fake.on_receive = lambda received: seen.append((received.method, received.key, len(fake.execution_log)))
    await start(fake, key="k")

    assert seen == [("workflow.runs.start", "k", 0)]


async def test_an_unknown_run_is_an_application_error():
    with pytest.raises(RpcFault) as fault:
        await FakeWorkflowServer().call("workflow.runs.inspect", {"run_id": "run-999"})

    assert fault.value.data == {"code": "KeyError", "message": "\"unknown workflow run 'run-999'\""}


async def test_over_http_it_is_killed_and_restarted_on_the_same_port():
    async with face_of(FakeWorkflowServer()) as face:
        before = face.url
        await face.kill()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", face.port)
        await face.restart()
        _, writer = await asyncio.open_connection("127.0.0.1", face.port)
        writer.close()

        assert face.url == before

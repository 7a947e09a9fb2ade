"""One URL for an existing client: with `--gateway` the daemon passes on what is not its own, unchanged, errors included.

The contract suite of workflow servers is held to a daemon in front of one; what the daemon answers itself there is left out by name.
"""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from rpc_client.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, Answered, Refused
from rpc_client.transport import Transport
from rpc_client.workflow import WorkflowClient
from tests.conformance.server_contract import ServerContract
from tests.conformance.talk import ServerUnderTest
from tests.conformance.test_fake import ROLES
from tests.fakes.proxy import Answer, DropRequest, DropResponse, Garbage
from tests.fakes.scripts import Complete, Deployment
from tests.fakes.server import FakeWorkflowServer
from tests.integration.matrix import KEYED, RESUME, START, Bench
from tests.integration.process import until

LIST = "workflow.deployments.list"


class Listing(FakeWorkflowServer):
    """A server that lists its deployments, too; the recorded one was never asked to."""

    rows: list[str] | None = None

    async def call(self, method, params, *, key=None):
        if method != LIST:
            return await super().call(method, params, key=key)
        self.listed = params
        rows = self.rows if self.rows is not None else self.deployments
        return {"deployments": [{"id": one} for one in rows], "next_cursor": None}


@asynccontextmanager
async def keyed_gateway(folder):
    """A keyed server behind a daemon, and a client of the daemon."""
    server = FakeWorkflowServer(features=KEYED)
    async with Bench(folder, server, options=("--gateway",)) as bench, Transport(bench.daemon.url) as transport:
        yield bench, WorkflowClient(transport)


@pytest.fixture
async def gateway(tmp_path):
    async with Bench(tmp_path, Listing(), options=("--gateway",)) as bench:
        yield bench


@pytest.fixture
async def through(gateway):
    async with Transport(gateway.daemon.url) as transport:
        yield WorkflowClient(transport)


@pytest.fixture
async def directly(gateway):
    async with Transport(gateway.face.url) as transport:
        yield WorkflowClient(transport)


async def test_an_existing_client_reads_through_the_daemon_what_it_reads_at_the_server(gateway, through, directly):
    run_id = (await through.runs_start("hello.default", {"who": "you"}, idempotency_key="man:1")).result["run_id"]
    for ask in (
        lambda client: client.forward(LIST, {"limit": 3}),
        lambda client: client.deployments_inspect("hello.default"),
        lambda client: client.deployments_inspect("nope"),
        lambda client: client.deployments_validate("unbound.default"),
        lambda client: client.artifacts_inspect("hello", 1),
        lambda client: client.artifacts_inspect("hello", 0),
        lambda client: client.sources_list(limit=1),
        lambda client: client.runs_list(),
        lambda client: client.runs_inspect(run_id),
        lambda client: client.runs_inspect("run_unknown"),
        lambda client: client.runs_start("nope", {}, idempotency_key="man:2"),
        lambda client: client.runs_start("unbound.default", {}, idempotency_key="man:3"),
        lambda client: client.forward("workflow.runs.trace", {"run_id": run_id}),
    ):
        assert await ask(through) == await ask(directly)
    assert gateway.fake.listed == {"limit": 3}


async def test_a_run_that_was_started_by_hand_is_resumed_through_the_daemon(gateway, through):
    started = await through.runs_start("approval.default", {"message": "ok?"}, idempotency_key="man:1")
    run_id = started.result["run_id"]
    resumed = await through.runs_resume(run_id, {"approved": True}, idempotency_key="man:2")
    assert (resumed.result["run_id"], resumed.result["status"]) == (run_id, "completed")
    again = await through.runs_resume(run_id, {"approved": True}, idempotency_key="man:3")
    assert (again.code, again.data["code"]) == (5000, "ValueError")
    assert [one.method for one in gateway.fake.execution_log] == [START, "workflow.runs.resume"]


async def test_a_call_whose_answer_was_lost_is_never_said_to_have_done_nothing(gateway, through):
    for mode in (DropResponse(), DropRequest(), Answer(502), Garbage()):
        gateway.proxy.plan(START, "hello.default", mode)
        lost = await through.runs_start("hello.default", {"who": "you"}, idempotency_key="man:1")
        assert (lost.code, "may have had its effect" in lost.data["message"]) == (INTERNAL_ERROR, True)
    gateway.proxy.plan(START, "hello.default", Answer(429))
    undone = await through.runs_start("hello.default", {"who": "you"}, idempotency_key="man:1")
    assert (undone.code, undone.data["code"]) == (5000, "ServerUnavailable")
    assert len(gateway.fake.execution_log) == 1


async def test_a_start_that_a_client_repeats_under_its_key_is_executed_once(tmp_path):
    """Its answer was lost on the way, as it does happen; the key has to reach the server for the repeat to be harmless."""
    async with keyed_gateway(tmp_path) as (gateway, through):
        gateway.proxy.plan(START, "steps.default", DropResponse())
        lost = await through.forward(START, {"deployment_id": "steps.default"}, idempotency_key="man:1")
        assert lost.code == INTERNAL_ERROR
        again = await through.forward(START, {"deployment_id": "steps.default"}, idempotency_key="man:1")
        assert again.result["status"] == "completed"
        assert [one.key for one in gateway.fake.execution_log] == ["man:1"]
        assert [one.key for one in gateway.fake.received if one.method == START] == ["man:1", "man:1"]


async def test_a_resume_that_a_client_repeats_under_its_key_is_executed_once(tmp_path):
    async with keyed_gateway(tmp_path) as (gateway, through):
        started = await through.runs_start("approval.default", {"message": "ok?"}, idempotency_key="man:1")
        run_id = started.result["run_id"]
        gateway.proxy.plan(RESUME, "approval.default", DropResponse())
        lost = await through.runs_resume(run_id, {"approved": True}, idempotency_key="man:2")
        assert lost.code == INTERNAL_ERROR
        again = await through.runs_resume(run_id, {"approved": True}, idempotency_key="man:2")
        assert again.result["status"] == "completed"
        assert [one.key for one in gateway.fake.execution_log] == ["man:1", "man:2"]


async def test_a_key_that_no_header_can_carry_is_refused_and_nothing_is_sent(gateway):
    body = {"jsonrpc": "2.0", "id": 1, "method": START, "params": {"deployment_id": "steps.default"}}
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.daemon.port)
    text = json.dumps(body).encode()
    head = (
        f"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1:{gateway.daemon.port}\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: sch\u00f6n\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + text)
    said = await reader.read()
    writer.close()
    assert b'"code":-32600' in said
    assert gateway.fake.execution_log == []


async def test_a_resume_passes_on_which_part_of_the_trace_is_wanted(gateway, through, directly):
    started = await through.runs_start("approval.default", {"message": "ok?"}, idempotency_key="man:1")
    params = {"run_id": started.result["run_id"], "trace_range": {"start": 0, "limit": 2}}
    assert isinstance(await through.forward(RESUME, params), Answered)
    assert gateway.fake.received[-1].params["trace_range"] == {"start": 0, "limit": 2}
    await gateway.app.create_schedule(
        schedule_id="mine",
        deployment_id="approval.default",
        trigger={"kind": "oneshot", "at": (datetime.now(UTC) + timedelta(seconds=3)).isoformat()},
        input={"message": {"value": "ok?"}},
    )
    row = await gateway.row_of("mine", "run_interrupted")
    refused = await through.forward(RESUME, {**params, "run_id": row["run_id"]})
    assert (refused.data["code"], refused.data["server_run_id"]) == ("Unsupported", row["server_run_id"])


async def test_an_id_of_the_daemons_form_is_never_passed_on_and_the_servers_is_named(gateway, through):
    await gateway.due_in(0.7, "mine", "steps.default")
    row = await gateway.row_of("mine")
    for run_id, theirs in ((row["run_id"], row["server_run_id"]), ("run-999999", None)):
        refused = await through.forward("workflow.runs.trace", {"run_id": run_id, "trace_range": {}})
        assert (refused.code, refused.data["code"], refused.data["server_run_id"]) == (5000, "RunNotFound", theirs)
    assert "workflow.runs.trace" not in {one.method for one in gateway.fake.received}


# --- size, time, and callers who leave --------------------------------------------------------------------------------


async def test_a_large_answer_comes_through_whole_and_one_that_is_too_large_is_not_called_undone(tmp_path):
    async with Bench(tmp_path, Listing(), options=("--gateway",)) as bench, Transport(bench.daemon.url) as transport:
        client = WorkflowClient(transport)
        bench.fake.rows = ["x" * 1024] * (8 << 10)
        whole = await client.forward(LIST, {})
        assert [one["id"] for one in whole.result["deployments"]] == bench.fake.rows
        bench.fake.rows = ["x" * 1024] * (17 << 10)
        cut = await client.forward(LIST, {})
        assert (cut.code, "larger than" in cut.data["message"]) == (INTERNAL_ERROR, True)
        assert "may have had its effect" in cut.data["message"]


async def test_a_request_that_is_too_large_is_refused_before_it_is_passed_on(gateway, through):
    refused = await through.forward(START, {"deployment_id": "steps.default", "workflow_input": {"x": "y" * (1 << 20)}})
    assert isinstance(refused, Refused)
    assert gateway.fake.execution_log == []


async def test_a_call_of_hours_holds_up_nobody_and_takes_no_slot(tmp_path):
    gate = asyncio.Event()
    slow = Deployment(deployment_id="slow.default", script=Complete(gate=gate))
    server = FakeWorkflowServer([slow, Deployment(deployment_id="steps.default", script=Complete(steps=3))])
    options = ("--gateway", "--max-concurrent-runs", "1")
    async with Bench(tmp_path, server, options=options) as bench, Transport(bench.daemon.url) as transport:
        client = WorkflowClient(transport)
        starting = [asyncio.create_task(client.forward(START, {"deployment_id": "slow.default"})) for _ in range(20)]
        await bench.fake.until_executions(20, timeout_s=30)
        await bench.due_in(0.7, "mine", "steps.default")
        assert (await bench.row_of("mine"))["status"] == "completed"
        gate.set()
        assert {one.result["status"] for one in await asyncio.gather(*starting)} == {"completed"}


async def test_a_caller_who_leaves_ends_the_wait_and_not_the_run(tmp_path):
    gate = asyncio.Event()
    server = FakeWorkflowServer([Deployment(deployment_id="slow.default", script=Complete(gate=gate))])
    async with Bench(tmp_path, server, options=("--gateway",)) as bench:
        async with Transport(bench.daemon.url) as transport:
            client = WorkflowClient(transport)
            starting = asyncio.create_task(client.forward(START, {"deployment_id": "slow.default"}))
            await bench.fake.until_executions(1, timeout_s=30)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

        await until(lambda: _nobody_waits(bench))
        assert bench.fake.executing == 1
        gate.set()
        await bench.fake.until_idle()
        async with Transport(bench.daemon.url) as transport:
            listed = await WorkflowClient(transport).runs_list()
        assert [run["status"] for run in listed.result["runs"]] == ["completed"]


async def _nobody_waits(bench: Bench) -> bool:
    """The daemon has no connection to the server open but those of its own health."""
    return len(bench.proxy._connections) <= 1


async def test_a_scheduled_run_stays_the_daemons_by_either_id(gateway, through):
    await gateway.due_in(0.7, "mine", "steps.default")
    row = await gateway.row_of("mine")
    asked = len(gateway.fake.received)
    shown = await through.runs_inspect(row["server_run_id"])
    assert (shown.result["run_id"], shown.result["schedule_id"]) == (row["run_id"], "mine")
    refused = await through.runs_resume(row["run_id"], idempotency_key="man:1")
    assert (refused.code, refused.data["code"]) == (5000, "RunNotResumable")
    assert "workflow.runs.resume" not in [one.method for one in gateway.fake.received[asked:]]


async def test_what_is_the_daemons_own_or_nobodys_is_never_passed_on(gateway, through):
    for method in ("workflow.schedules.explode", "system.exec", "rpc.nothing"):
        ending = await through.forward(method, {})
        assert isinstance(ending, Refused)
        assert ending.code == METHOD_NOT_FOUND
    health = await through.health()
    assert isinstance(health, Answered)
    assert "gateway" in health.result["features"]
    assert {"workflow.schedules.explode", "system.exec", "rpc.nothing"}.isdisjoint(
        {one.method for one in gateway.fake.received}
    )


async def test_without_the_flag_nothing_is_passed_on(tmp_path):
    async with Bench(tmp_path, Listing()) as bench, Transport(bench.daemon.url) as transport:
        client = WorkflowClient(transport)
        for method, params in ((LIST, {}), ("workflow.runs.list", {}), (START, {"deployment_id": "hello.default"})):
            ending = await client.forward(method, params)
            assert (ending.code, ending.message) == (METHOD_NOT_FOUND, "Method not found")
        assert bench.fake.execution_log == []
        assert {"workflow.runs.list", LIST}.isdisjoint({one.method for one in bench.fake.received})


@pytest.mark.long
class TestPlainServerBehindTheGateway(ServerContract):
    @pytest.fixture
    async def server(self, tmp_path):
        async with Bench(tmp_path, FakeWorkflowServer(), options=("--gateway",)) as bench:
            yield ServerUnderTest(url=bench.daemon.url, roles=ROLES, kill=bench.face.kill, restart=bench.face.restart)

    @pytest.fixture(autouse=True)
    def _what_the_daemon_answers_itself(self, request):
        if request.node.name in OWN:
            pytest.skip("the daemon answers this itself")


OWN = {
    "test_the_answer_has_the_recorded_shape[health]",
    "test_the_answer_has_the_recorded_shape[method_not_found]",  # asks for schedules, which are here
    "test_its_own_scheduler_is_not_there",
    # Its caller is told by the daemon that the answer was lost, instead of losing the daemon.
    "test_an_unkeyed_run_leaves_no_trace_of_success_when_the_server_is_killed",
}

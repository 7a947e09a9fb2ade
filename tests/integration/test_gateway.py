"""One URL for an existing client: with `--gateway` the daemon passes on what is not its own, unchanged, errors included.

The contract suite of workflow servers is held to a daemon in front of one; what the daemon answers itself there is left out by name.
"""

import pytest

from rpc_client.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, Answered, Refused
from rpc_client.transport import Transport
from rpc_client.workflow import WorkflowClient
from tests.conformance.server_contract import ServerContract
from tests.conformance.talk import ServerUnderTest
from tests.conformance.test_fake import ROLES
from tests.fakes.proxy import Answer, DropRequest, DropResponse, Garbage
from tests.fakes.server import FakeWorkflowServer
from tests.integration.matrix import START, Bench

LIST = "workflow.deployments.list"


class Listing(FakeWorkflowServer):
    """A server that lists its deployments, too; the recorded one was never asked to."""

    async def call(self, method, params, *, key=None):
        if method != LIST:
            return await super().call(method, params, key=key)
        self.listed = params
        return {"deployments": [{"id": one} for one in self.deployments], "next_cursor": None}


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

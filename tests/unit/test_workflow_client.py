"""The workflow server's methods as they go over the wire: names, parameters, and which of them may be sent twice."""

import asyncio
import json
from pathlib import Path

import pytest

from rpc_client.errors import Ambiguous, Answered, Refused
from rpc_client.transport import CallProbe, Transport
from rpc_client.workflow import WorkflowClient
from tests.fakes.raw import answers, http_answer, listening, raw_server, read_request

OPENRPC = json.loads((Path(__file__).parent.parent / "conformance" / "openrpc-methods.json").read_text())
DOCUMENTED = {method["name"]: {param["name"] for param in method["params"]} for method in OPENRPC["methods"]}
REQUIRED = {
    method["name"]: {param["name"] for param in method["params"] if param["required"]} for method in OPENRPC["methods"]
}

CALLS = {
    "workflow.health": (lambda client: client.health(), {}),
    "workflow.sources.list": (lambda client: client.sources_list(), {}),
    "workflow.deployments.validate": (lambda client: client.deployments_validate("d"), {"deployment_id": "d"}),
    "workflow.deployments.inspect": (lambda client: client.deployments_inspect("d"), {"deployment_id": "d"}),
    "workflow.artifacts.inspect": (lambda client: client.artifacts_inspect("a", 2), {"artifact_id": "a", "version": 2}),
    "workflow.runs.start": (
        lambda client: client.runs_start("d", {"who": "w"}, idempotency_key="k"),
        {"deployment_id": "d", "workflow_input": {"who": "w"}},
    ),
    "workflow.runs.resume": (lambda client: client.runs_resume("r", idempotency_key="k"), {"run_id": "r"}),
    "workflow.runs.inspect": (lambda client: client.runs_inspect("r"), {"run_id": "r"}),
    "workflow.runs.list": (lambda client: client.runs_list(), {}),
}
FULL_CALLS = {
    "workflow.sources.list": (lambda client: client.sources_list(cursor="2", limit=5), {"cursor": "2", "limit": 5}),
    "workflow.deployments.validate": (
        lambda client: client.deployments_validate("d", live_check=True),
        {"deployment_id": "d", "live_check": True},
    ),
    "workflow.runs.resume": (
        lambda client: client.runs_resume("r", {"approved": False}, "rejected", idempotency_key="k"),
        {"run_id": "r", "resume_payload": {"approved": False}, "resume_outcome": "rejected"},
    ),
    "workflow.runs.list": (
        lambda client: client.runs_list(status="failed", cursor="1", limit=1),
        {"status": "failed", "cursor": "1", "limit": 1},
    ),
}


async def sent_by(calling) -> dict:
    async with raw_server(answers()) as server, Transport(server.url) as transport:
        assert await calling(WorkflowClient(transport)) == Answered(True)
        return server.request()


@pytest.mark.parametrize(("method", "call"), CALLS.items(), ids=CALLS)
async def test_a_method_is_called_with_what_was_given_and_nothing_else(method, call):
    calling, params = call
    request = await sent_by(calling)

    assert request["method"] == method
    assert request["params"] == params


@pytest.mark.parametrize(("method", "call"), FULL_CALLS.items(), ids=FULL_CALLS)
async def test_every_optional_parameter_arrives_under_its_documented_name(method, call):
    calling, params = call
    request = await sent_by(calling)

    assert request["method"] == method
    assert request["params"] == params


@pytest.mark.parametrize("calls", [CALLS, FULL_CALLS], ids=["least", "most"])
def test_the_parameters_are_those_of_the_servers_own_document(calls):
    for method, (_, params) in calls.items():
        assert REQUIRED[method] <= params.keys() <= DOCUMENTED[method], method


async def test_a_step_budget_is_sent_only_when_there_is_one():
    request = await sent_by(lambda client: client.runs_start("d", {}, idempotency_key="k", max_steps=3))

    assert request["params"] == {"deployment_id": "d", "workflow_input": {}, "max_steps": 3}


async def test_a_forwarded_call_keeps_its_method_and_its_params_as_they_are():
    request = await sent_by(lambda client: client.forward("workflow.deployments.save", {"deployment": None}))

    assert request["method"] == "workflow.deployments.save"
    assert request["params"] == {"deployment": None}


async def test_the_probe_for_a_scheduler_reports_a_server_without_one():
    async def unknown(_reader, writer, request):
        body = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "Method not found"}}
        writer.write(http_answer(json.dumps(body).encode()))

    async with raw_server(unknown) as server, Transport(server.url) as transport:
        assert await WorkflowClient(transport).schedules_list_probe() == Refused(-32601, "Method not found")
        assert server.request()["params"] == {}


@pytest.mark.parametrize(
    ("calling", "executes"),
    [
        (lambda client: client.runs_start("d", {}, idempotency_key="k"), True),
        (lambda client: client.runs_resume("r", idempotency_key="k"), True),
        (lambda client: client.forward("m", {}), True),
        (lambda client: client.runs_inspect("r"), False),
        (lambda client: client.health(), False),
        (lambda client: client.deployments_validate("d"), False),
    ],
)
async def test_what_may_execute_something_is_sent_once_and_a_read_survives_a_stale_connection(calling, executes):
    """The first answer leaves the connection open; the server drops it as soon as anything more comes by it, and is not trusted again."""
    served = 0

    async def answer_once_then_drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        nonlocal served
        request = await read_request(reader, bytearray())
        served += 1
        writer.write(http_answer(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": served}).encode()))
        await reader.read(1)
        writer.transport.abort()

    async with listening(answer_once_then_drop) as port, Transport(f"http://127.0.0.1:{port}") as transport:
        client = WorkflowClient(transport)
        assert await calling(client) == Answered(1)
        second = await calling(client)
        assert isinstance(second, Ambiguous) if executes else second == Answered(2)
        assert [await calling(client) for _ in range(2)] == [Answered(served - 1), Answered(served)]
        kept = len(transport._reads._connector._conns)

    assert served == (3 if executes else 4)
    assert bool(kept) is not executes


async def test_the_key_travels_in_the_header_of_starts_and_resumes():
    async with raw_server(answers()) as server, Transport(server.url) as transport:
        client = WorkflowClient(transport)
        await client.runs_start("d", {}, idempotency_key="store:run-000001")
        assert server.head()["idempotency-key"] == "store:run-000001"
        await client.runs_resume("r", {}, idempotency_key="store:run-000001:2")
        assert server.head()["idempotency-key"] == "store:run-000001:2"
        await client.runs_inspect("r")
        assert "idempotency-key" not in server.head()


async def test_a_start_waits_without_bound_while_a_read_does_not():
    async def never(reader, _writer, _request):
        await reader.read()

    async with raw_server(never) as server, Transport(server.url) as transport:
        client, probe = WorkflowClient(transport), CallProbe()
        starting = asyncio.create_task(client.runs_start("d", {}, idempotency_key="k", probe=probe))
        await asyncio.wait_for(server.arrived.wait(), 5)
        read = await client.health(timeout_s=0.1)

        assert type(read).__name__ == "Ambiguous"
        assert not starting.done()
        assert probe.sent
        starting.cancel()

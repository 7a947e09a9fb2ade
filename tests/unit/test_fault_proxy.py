"""The fault proxy between a client and the fake server: what each mode does to the call, and what the server did."""

import asyncio

import pytest

from rpc_client.errors import Ambiguous, Answered, NotSent, Refused
from rpc_client.transport import Limits, Transport
from rpc_client.workflow import WorkflowClient
from tests.fakes import proxy as faults
from tests.fakes.http import serve
from tests.fakes.proxy import fault_proxy
from tests.fakes.server import FakeWorkflowServer

START = "workflow.runs.start"


@pytest.fixture
def fake():
    return FakeWorkflowServer()


@pytest.fixture
async def proxy(fake):
    async with serve(fake) as url, fault_proxy(url) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy):
    async with Transport(proxy.url, limits=Limits(connect_s=2)) as transport:
        yield WorkflowClient(transport)


def started(client, timeout_s=None):
    return client.runs_start("hello.default", {"who": "w"}, idempotency_key="k", timeout_s=timeout_s)


@pytest.mark.parametrize(
    "case",
    [
        (faults.Pass(), Answered, 1),
        (faults.Slow(delay_s=0.05), Answered, 1),
        (faults.DropRequest(), Ambiguous, 0),
        (faults.DropResponse(), Ambiguous, 1),
        (faults.CutResponse(after_bytes=0), Ambiguous, 1),
        (faults.CutResponse(after_bytes=20), Ambiguous, 1),
        (faults.CutResponse(after_bytes=250), Ambiguous, 1),
        (faults.BlackHole(), Ambiguous, 0),
        (faults.BlackHole(forwarded=True), Ambiguous, 1),
        (faults.Answer(307, ("Location: http://127.0.0.1:1/rpc",)), NotSent, 0),
        (faults.Answer(401), NotSent, 0),
        (faults.Answer(429), NotSent, 0),
        (faults.Answer(502), Ambiguous, 0),
        (faults.Answer(502, forwarded=True), Ambiguous, 1),
        (faults.Garbage(), Ambiguous, 0),
        (faults.Garbage(forwarded=True), Ambiguous, 1),
        (faults.RpcError(), Refused, 1),
        (faults.RpcError(forwarded=False), Refused, 0),
    ],
    ids=lambda case: str(case[0]),
)
async def test_a_start_meets_the_mode_and_ends_as_it_must(proxy, client, fake, case):
    mode, ending, executed = case
    await proxy.set(mode, START)
    timeout_s = 0.3 if isinstance(mode, faults.BlackHole) else None

    assert isinstance(await started(client, timeout_s), ending)
    assert len(fake.execution_log) == executed
    assert [(seen.method, seen.key, seen.mode) for seen in proxy.seen] == [(START, "k", mode)]


async def test_a_refused_connection_is_refused_for_every_method_until_it_passes_again(proxy, client, fake):
    await proxy.set(faults.Refuse())
    refused = [await started(client), await client.health()]
    await proxy.reset()

    assert [type(one) for one in refused] == [NotSent, NotSent]
    assert all(one.server_down for one in refused)
    assert proxy.seen == []
    assert isinstance(await started(client), Answered)


async def test_refusing_one_method_is_no_mode():
    with pytest.raises(ValueError, match="before its method is known"):
        await faults.FaultProxy("http://127.0.0.1:1/rpc").set(faults.Refuse(), START)


async def test_other_methods_are_not_touched(proxy, client):
    await proxy.set(faults.Answer(502), START)

    assert isinstance(await client.health(), Answered)
    assert isinstance(await started(client), Ambiguous)


async def test_the_mode_is_that_of_the_moment_at_which_the_request_arrives(proxy, client):
    await proxy.set(faults.Answer(502))
    first = await client.health()
    await proxy.reset()

    assert isinstance(first, Ambiguous)
    assert isinstance(await client.health(), Answered)


async def test_a_held_back_answer_comes_when_its_gate_opens(proxy, client, fake):
    gate = asyncio.Event()
    await proxy.set(faults.Slow(gate=gate), START)
    starting = asyncio.create_task(started(client))
    await fake.until_executions(1)
    await fake.until_idle()
    assert not starting.done()
    gate.set()

    assert isinstance(await asyncio.wait_for(starting, 5), Answered)


async def test_kept_connections_are_kept_through_the_proxy(proxy, client):
    for _ in range(3):
        assert isinstance(await client.health(), Answered)

    assert len(proxy._connections) == 1


async def test_a_client_that_leaves_is_gone_for_the_server_too_which_goes_on(proxy, client, fake):
    starting = asyncio.create_task(client.runs_start("slow.default", {"seconds": 0.2, "tag": "x"}, idempotency_key="k"))
    await fake.until_executions(1)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await fake.until_idle()

    assert (await client.runs_list()).result["total"] == 1

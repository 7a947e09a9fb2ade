"""A method that is not ours: passed on by a gateway, unknown otherwise, and in order within a batch."""

import json

from scheduler_daemon.api.methods import TABLE, pass_on
from scheduler_daemon.errors import ServerRefused
from scheduler_daemon.jsonrpc import Dispatcher


class _Gateway:
    def __init__(self):
        self.forwarded = []

    async def forward(self, method, params):
        self.forwarded.append((method, params))
        if params.get("deployment_id") == "nope":
            raise ServerRefused(5000, "Workflow operation failed", {"code": "KeyError", "message": "unknown"})
        return {"deployments": []}


async def _ask(gateway, *calls):
    dispatcher = Dispatcher((entry.method for entry in TABLE), on_bug=lambda *_: None, fallback=pass_on)
    requests = [
        {"jsonrpc": "2.0", "id": n, "method": method, "params": params} for n, (method, params) in enumerate(calls)
    ]
    return json.loads(await dispatcher.dispatch(json.dumps(requests).encode(), gateway))


async def test_another_method_of_the_server_is_passed_on_unchanged():
    gateway = _Gateway()
    (answer,) = await _ask(gateway, ("workflow.deployments.list", {"x": 1}))
    assert answer["result"] == {"deployments": []}
    assert gateway.forwarded == [("workflow.deployments.list", {"x": 1})]


async def test_what_the_server_refuses_comes_back_as_it_said_it():
    (answer,) = await _ask(_Gateway(), ("workflow.deployments.inspect", {"deployment_id": "nope"}))
    assert answer["error"] == {
        "code": 5000,
        "message": "Workflow operation failed",
        "data": {"code": "KeyError", "message": "unknown"},
    }


async def test_an_unknown_method_of_our_own_or_of_nobody_is_never_passed_on():
    gateway = _Gateway()
    answers = await _ask(gateway, ("workflow.schedules.explode", {}), ("system.exec", {}))
    assert [answer["error"]["code"] for answer in answers] == [-32601, -32601]
    assert gateway.forwarded == []


async def test_passed_on_calls_of_a_batch_run_one_after_the_other():
    gateway = _Gateway()
    await _ask(gateway, *((f"workflow.deployments.m{n}", {}) for n in range(10)))
    assert [method for method, _ in gateway.forwarded] == [f"workflow.deployments.m{n}" for n in range(10)]

"""The OpenRPC document of the real daemon, held against the real daemon: each method, each param, each result, each error."""

import asyncio
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import jsonschema
import pytest
import pytest_asyncio

from rpc_client import errors as rpc
from tests.integration.process import Daemon, until
from tests.integration.scenes import APPROVAL, EMBEDDED, HELLO, interrupted_run, last_row

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSED_ON = {("workflow.runs.resume", "trace_range")}
"""Params that only mean something to the workflow server behind a gateway; the tests of the gateway use them."""

WRONG = [
    True,
    7,
    -1,
    1.5,
    10**9,
    "x",
    "",
    "a\nb",
    "../x",
    [],
    ["x"],
    {},
    {"zz": 1},
    {"kind": "cron"},
    {"a": {"from": "nothing"}},
]
"""For each param those of these are sent that the document forbids."""


class Caller:
    """Somebody who knows nothing but the document, and believes it."""

    def __init__(self, daemon: Daemon, session: aiohttp.ClientSession) -> None:
        self.daemon = daemon
        self.used: dict[str, set[str]] = defaultdict(set)
        self._session = session

    async def read(self) -> None:
        """Get the document, over both ways that there are."""
        async with self._session.get(self.daemon.url.replace("/rpc", "/openrpc.json")) as response:
            self.document = await response.json()
        self.methods = {method["name"]: method for method in self.document["methods"]}
        assert await self.result("rpc.discover") == self.document

    async def post(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self._session.post(self.daemon.url, json=body) as response:
            assert response.status == 200
            return await response.json()

    async def result(self, method: str, **params: Any) -> Any:
        """The result of a call that the document permits; it must be taken, and what comes back be as described."""
        described = self.params(method)
        assert {name for name, one in described.items() if one["required"]} <= params.keys()
        for name, value in params.items():
            self.validate(described[name]["schema"], value)
        answer = await self.post(method, params)
        assert "result" in answer, (method, params, answer)
        self.validate(self.methods[method]["result"]["schema"], answer["result"])
        self.used[method] |= params.keys()
        return answer["result"]

    async def refusal(self, method: str, **params: Any) -> str | int:
        """The code of a call that must be refused; an application's must be one that the document promises."""
        answer = await self.post(method, params)
        assert "error" in answer, (method, params, answer)
        error = answer["error"]
        if error["code"] != rpc.APPLICATION_ERROR:
            return error["code"]
        promised = {one["data"]["code"] for one in self.methods[method]["errors"]}
        assert error["data"]["code"] in promised, (method, params, error)
        return error["data"]["code"]

    def params(self, method: str) -> dict[str, Any]:
        return {one["name"]: one for one in self.methods[method]["params"]}

    def validate(self, schema: dict[str, Any], value: Any) -> None:
        whole = {**schema, "components": self.document["components"]}
        jsonschema.Draft202012Validator.check_schema(whole)
        jsonschema.Draft202012Validator(whole).validate(value)

    def permits(self, schema: dict[str, Any], value: Any) -> bool:
        whole = {**schema, "components": self.document["components"]}
        return jsonschema.Draft202012Validator(whole).is_valid(value)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def caller(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openrpc")
    text = EMBEDDED.format(folder=folder, approval=APPROVAL, hello=HELLO)
    async with Daemon(folder, deployments=text) as daemon, aiohttp.ClientSession() as session:
        made = Caller(daemon, session)
        async with daemon.app() as app:
            await until(app.health)
        await made.read()
        yield made


DEFINITION = {
    "input": {"a": {"value": {"deep": [1, None]}}, "b": {"from": "occurrence.previous_instant"}},
    "overlap": "parallel",
    "max_active_runs": 2,
    "misfire": "latest",
    "lateness_s": 5,
    "max_steps": 3,
    "hold_unknown_s": 1.5,
    "run_timeout_s": 60,
}
NIGHTLY = {"kind": "cron", "expression": "0 3 * * 1-5", "timezone": "Europe/Berlin"}


async def test_every_method_takes_every_param_and_answers_as_described(caller):
    one = {"schedule_id": "one"}
    made = await caller.result("workflow.schedules.create", **one, deployment_id=HELLO, trigger=NIGHTLY, **DEFINITION)
    assert {name: made[name] for name in DEFINITION} == DEFINITION
    once = {"kind": "oneshot", "at": (datetime.now(UTC) + timedelta(seconds=2)).isoformat()}
    await caller.result("workflow.schedules.create", schedule_id="once", deployment_id=HELLO, trigger=once)
    await caller.result("workflow.schedules.get", **one)
    await caller.result(
        "workflow.schedules.update", **one, expected_revision=1, deployment_id=HELLO, trigger=NIGHTLY, **DEFINITION
    )
    await caller.result("workflow.schedules.update", **one, expected_revision=1, **dict.fromkeys(DEFINITION))
    for verb in ("pause", "unblock", "resume"):
        await caller.result(f"workflow.schedules.{verb}", **one, note="why")
    for state in ("active", "finished", "paused", "blocked", "deleted", None):
        filtered = {"state": state, "include_deleted": True, "deployment_id": HELLO, "limit": 1, "cursor": None}
        await caller.result("workflow.schedules.list", **filtered)
    page = await caller.result("workflow.schedules.list", limit=1)
    await caller.result("workflow.schedules.list", cursor=page["next_cursor"])
    async with caller.daemon.app() as app:
        await last_row(app, "once", "completed")
        first, second = await asyncio.gather(interrupted_run(app, "first"), interrupted_run(app, "second"))
    rows = await caller.result("workflow.schedules.occurrences.list", schedule_id="once", limit=1)
    await caller.result(
        "workflow.schedules.occurrences.list", schedule_id="once", cursor=rows["next_cursor"], limit=100
    )
    await caller.result("workflow.runs.inspect", run_id=first)
    answered = {"resume_payload": {"approved": True}, "resume_outcome": "agreed", "wait": False}
    await caller.result("workflow.runs.resume", run_id=first, **answered)
    await caller.result("workflow.runs.abandon", run_id=second, note="why")
    await caller.result("workflow.runs.inspect", run_id=second)
    await caller.result("workflow.health")
    await caller.result("workflow.schedules.delete", **one, note="why")
    used = {(method, name) for method, names in caller.used.items() for name in names}
    described = {(method, name) for method in caller.methods for name in caller.params(method)}
    assert caller.used.keys() | {"workflow.health", "rpc.discover"} == caller.methods.keys()
    assert described - used <= PASSED_ON


def good(method: str) -> dict[str, Any]:
    """Params that would be taken, of a schedule or run that does not exist: nothing changes by them."""
    given = {"schedule_id": "nobody", "run_id": "run-999999", "note": "why", "expected_revision": 1}
    return {**given, "deployment_id": "nobody.default", "trigger": NIGHTLY} if method.endswith("create") else given


async def test_what_the_document_requires_cannot_be_left_out_and_what_it_does_not_know_is_refused(caller):
    for method in caller.methods:
        described = caller.params(method)
        given = {name: value for name, value in good(method).items() if name in described}
        for name, one in described.items():
            if one["required"]:
                rest = {other: value for other, value in given.items() if other != name}
                assert await caller.refusal(method, **rest) == rpc.INVALID_PARAMS, (method, name)
        assert await caller.refusal(method, **given, colour="red") == rpc.INVALID_PARAMS, method


async def test_a_value_that_the_document_forbids_is_refused_with_a_word_that_it_promises(caller):
    async with caller.daemon.app() as app:
        before = [schedule async for schedule in app.schedules(include_deleted=True)]
        sent = 0
        for method in caller.methods:
            described = caller.params(method)
            given = {name: value for name, value in good(method).items() if name in described}
            for name, one in described.items():
                for value in WRONG:
                    if not caller.permits(one["schema"], value):
                        await caller.refusal(method, **{**given, name: value})
                        sent += 1
        print(f"{sent} calls that the document forbids, each refused")
        assert sent > 200
        assert [schedule["schedule_id"] for schedule in before] == [
            schedule["schedule_id"] async for schedule in app.schedules(include_deleted=True)
        ]


async def test_the_document_is_json_that_anybody_can_read(caller):
    assert json.loads(json.dumps(caller.document))["openrpc"] == "1.3.2"
    assert all(method["summary"] and method["paramStructure"] == "by-name" for method in caller.document["methods"])

"""Talking to a workflow server under test, and comparing what it says with the recordings."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.conformance.recorded import Exchange, Recorded, differences

IDEMPOTENT_START = "idempotent-start"
MAX_STEPS = "max-steps"
DEADLINE_S = 20.0
SOURCE_KINDS = {"system", "python", "connection"}
# What the `slow` role is asked for when a test needs to look at a running one, and when one is to outlive a kill.
A_WHILE_S = 0.9
FOR_EVER_S = 60.0
_BEGUN_AFTER_S = 0.3


class ServerUnderTest(msgspec.Struct, frozen=True, kw_only=True):
    """A server: its URL, its deployments by role, and the switches that its test module can work.

    `kill` ends the process without a chance to clean up and leaves it down; `restart` brings it up again on the same
    store and URL, stopping it first if it runs.
    """

    url: str
    roles: Mapping[str, str]
    kill: Callable[[], Awaitable[None]] | None = None
    restart: Callable[[], Awaitable[None]] | None = None


class Talk:
    """A conversation with the server under test, by plain HTTP: no client of this project stands between."""

    def __init__(self, server: ServerUnderTest, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._session = session

    @classmethod
    @asynccontextmanager
    async def with_(cls, server: ServerUnderTest):
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            yield cls(server, session)

    def role(self, name: str) -> str:
        if name not in self.server.roles:
            pytest.skip(f"this server has no deployment for the role {name!r}")
        return self.server.roles[name]

    async def post(self, body: Any, key: str | None = None) -> Exchange:
        headers = {} if key is None else {"Idempotency-Key": key}
        async with self._session.post(self.server.url, json=body, headers=headers) as response:
            return Exchange(response.status, response.content_type, await response.json(content_type=None))

    async def ask(self, method: str, params: Mapping[str, Any], key: str | None = None) -> Exchange:
        return await self.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, key)

    async def start(self, role: str, workflow_input: Mapping[str, Any], key: str | None = None) -> Any:
        params = {"deployment_id": self.role(role), "workflow_input": workflow_input}
        return (await self.ask("workflow.runs.start", params, key)).result

    async def resume(self, run_id: str, payload: Mapping[str, Any], key: str | None = None) -> Any:
        params = {"run_id": run_id, "resume_payload": payload}
        return (await self.ask("workflow.runs.resume", params, key)).result

    async def inspect(self, run_id: str) -> Any:
        return (await self.ask("workflow.runs.inspect", {"run_id": run_id})).result

    async def total(self) -> int:
        return (await self.ask("workflow.runs.list", {"limit": 1})).result["total"]

    async def features(self) -> set[str]:
        return set((await self.ask("workflow.health", {})).result.get("features", []))

    async def need(self, feature: str) -> None:
        if feature not in await self.features():
            pytest.skip(f"this server does not announce {feature!r}")

    async def replay(self, recorded: Recorded, **changed: Any) -> Exchange:
        """The recorded request, with this server's deployments, and its run or artifact ids where they are given."""
        params = dict(recorded.params)
        if params.get("deployment_id", "").endswith(".default"):
            params["deployment_id"] = self.role(params["deployment_id"].removesuffix(".default"))
        return await self.ask(recorded.method, params | changed)


async def eventually(look: Callable[[], Awaitable[Any]], until: Callable[[Any], bool]) -> Any:
    """Look until it is so; the last look, or a failure that shows it, when the deadline passes first."""
    seen = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not until(seen := await look()):  # noqa: ASYNC110  another process sets no event here
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"still {seen!r} after {DEADLINE_S} s")
    return seen


@asynccontextmanager
async def under_way(talk: Talk, calling: Awaitable[Any]):
    """A call that the server has begun to execute, going on beside the block and given up at its end.

    That it began cannot be seen from outside: a moment passes, and then the server answers something else, which it
    read later.
    """
    task = asyncio.ensure_future(calling)
    try:
        await asyncio.wait({task}, timeout=_BEGUN_AFTER_S)
        await talk.ask("workflow.health", {})
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def assert_like(exchange: Exchange, recorded: Recorded) -> None:
    """Same members, types, HTTP face, status words and error codes as recorded."""
    expected = recorded.answer
    assert expected is not None
    assert exchange.http_status == expected.http_status
    assert exchange.content_type == expected.content_type
    assert exchange.body["id"] == expected.body["id"]
    if "error" in expected.body:
        assert_same_error(exchange.error, expected.error)
        return
    assert differences(exchange.body, expected.body) == []
    for word in ("status", "resume_readiness", "kind"):
        if word in expected.result:
            assert exchange.result[word] == expected.result[word]


def assert_same_error(error: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert error["code"] == expected["code"]
    assert isinstance(error["message"], str)
    if expected["code"] == 5000:  # the data of the protocol's own errors belongs to whatever checked the params
        assert error["message"] == expected["message"]
        assert error["data"].keys() == expected["data"].keys()
        assert error["data"]["code"] == expected["data"]["code"]
        assert isinstance(error["data"]["message"], str)


def hook(switch: Callable[[], Awaitable[None]] | None, name: str) -> Callable[[], Awaitable[None]]:
    if switch is None:
        pytest.skip(f"this server cannot be told to {name} from here")
    return switch

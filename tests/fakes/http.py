"""The fake workflow server over real HTTP, as a process would serve it: killed and restarted on the same port.

Served by an AppRunner of its own: the test helpers of the HTTP library cancel a handler when its client leaves, and a
workflow server does not.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.fakes.params import RpcFault
from tests.fakes.server import FakeWorkflowServer, ServerGone

_LEAVE_S = 0.05
PARSE_ERROR = {"code": -32700, "message": "Parse error"}
INVALID_REQUEST = {"code": -32600, "message": "Invalid Request"}


class HttpFace:
    """One fake server on one loopback port. `token` makes it ask for a bearer token."""

    def __init__(self, fake: FakeWorkflowServer, *, token: str | None = None, port: int = 0) -> None:
        self.fake = fake
        self.token = token
        self.port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/rpc"

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 20)
        app.router.add_post("/rpc", self._post)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=_LEAVE_S)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening and close every connection. The fake itself lives on."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def kill(self) -> None:
        """SIGKILL: waiting callers lose their connection, new ones are refused."""
        self.fake.kill()
        await self.stop()

    async def restart(self, **how: Any) -> None:
        """Come back on the same port and the same store; `how` as in `FakeWorkflowServer.restart`."""
        self.fake.restart(**how)
        await self.stop()
        await self.start()

    async def _post(self, request: web.Request) -> web.StreamResponse:
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        key = request.headers.get("Idempotency-Key")
        try:
            answer = await self._answer(await request.read(), key)
        except ServerGone:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)  # goes nowhere: the connection is cut already
        if answer is None:
            return web.Response(status=204)
        return web.json_response(answer)

    async def _answer(self, body: bytes, key: str | None) -> Any:
        try:
            asked = json.loads(body)
        except ValueError:
            return {"jsonrpc": "2.0", "error": PARSE_ERROR, "id": None}
        if not isinstance(asked, list):
            return await self._one(asked, key)
        if not asked:
            return {"jsonrpc": "2.0", "error": INVALID_REQUEST, "id": None}
        answers = [await self._one(one, key) for one in asked]
        return [one for one in answers if one is not None] or None

    async def _one(self, asked: Any, key: str | None) -> dict[str, Any] | None:
        named = isinstance(asked, dict) and asked.get("jsonrpc") == "2.0" and isinstance(asked.get("method"), str)
        if not named:
            return {"jsonrpc": "2.0", "error": INVALID_REQUEST, "id": None}
        try:
            said = {"result": await self.fake.call(asked["method"], asked.get("params", {}), key=key)}
        except RpcFault as fault:
            said = {"error": fault.payload()}
        return {"jsonrpc": "2.0", **said, "id": asked["id"]} if "id" in asked else None


@asynccontextmanager
async def face_of(fake: FakeWorkflowServer, *, token: str | None = None) -> AsyncIterator[HttpFace]:
    """The fake on a loopback port, with its switch to kill and restart it."""
    face = HttpFace(fake, token=token)
    await face.start()
    try:
        yield face
    finally:
        fake.kill()
        await face.stop()


@asynccontextmanager
async def serve(fake: FakeWorkflowServer, *, token: str | None = None) -> AsyncIterator[str]:
    """The fake on a loopback port: yields its URL."""
    async with face_of(fake, token=token) as face:
        yield face.url

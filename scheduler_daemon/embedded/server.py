"""The face of the embedded server: one loopback port, `POST /rpc`, started and stopped with its owner.

Owns: the listening socket, the token, the limits on a request.  Must never know: what a method means.  It runs on the daemon's
loop, so nothing here blocks.

A loopback port is open to every user of the machine, and a deployment runs as the daemon's user: each start makes a random
token, and a request without it is 401.  Handlers are cancelled when their client goes away; executions are not theirs to end.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aiohttp import web

from scheduler_daemon.embedded.answers import Health
from scheduler_daemon.embedded.deployments import load
from scheduler_daemon.embedded.executions import Executions
from scheduler_daemon.embedded.methods import Methods, Request
from scheduler_daemon.embedded.runs import RunStore
from scheduler_daemon.embedded.steps import base_environment
from scheduler_daemon.jsonrpc import Dispatcher

HOST: Final = "127.0.0.1"
PATH: Final = "/rpc"
BODY_BYTES_MAX: Final = 1 << 20
BODY_WAIT_S: Final = 30.0
KEY_CHARS_MAX: Final = 512
SHUTDOWN_S: Final = 1.0


class EmbeddedServer:
    """A workflow server inside this process.  Each start is a new instance with a new token on the same data."""

    def __init__(
        self,
        deployments_file: Path,
        data_root: Path,
        *,
        port: int = 0,
        require_token: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_bug: Callable[[str, BaseException], None] = lambda _where, _bug: None,
    ) -> None:
        """`data_root` is the server's own folder (`<store_root>/embedded`); port 0 lets the system choose.

        `on_bug(where, exception)` hears of each failure that was answered -32603.
        """
        self.token: str | None = None
        self._deployments_file = deployments_file
        self._data_root = data_root
        self._port = port
        self._require_token = require_token
        self._now = now
        self._on_bug = on_bug
        self._store: RunStore | None = None
        self._executions: Executions | None = None
        self._runner: web.AppRunner | None = None
        self._dispatcher: Dispatcher | None = None
        self._url = ""

    async def start(self) -> str:
        """Settle what was cut short, listen, and return the URL to POST to; once started, the same URL again.

        Raises DeploymentsInvalid, StoreUnusable, and OSError for the folder or the port.
        """
        if self._runner is not None:
            return self._url
        try:
            await self._open()
            self._url = await self._listen()
        except BaseException:
            await self.stop()
            raise
        return self._url

    async def stop(self) -> None:
        """Stop listening, kill what executes, let the data go.  Idempotent, and harmless before a start."""
        executions, self._executions = self._executions, None
        runner, self._runner = self._runner, None
        store, self._store = self._store, None
        if executions is not None:
            await executions.stop()
        if runner is not None:
            await runner.cleanup()
        if store is not None:
            store.close()

    async def _open(self) -> None:
        deployments = await asyncio.to_thread(load, self._deployments_file)
        environment = base_environment()
        store = RunStore(self._data_root)
        await asyncio.to_thread(store.open, self._now)
        self._store = store
        self._executions = Executions(store, deployments, environment, now=self._now, on_bug=self._on_bug)
        root = await asyncio.to_thread(self._data_root.resolve)
        health = Health(store_root=str(root), instance_id=secrets.token_hex(16))
        methods = Methods(deployments, environment, store, self._executions, health)
        self._dispatcher = Dispatcher(methods.all(), on_bug=self._on_bug)
        self.token = secrets.token_urlsafe(32) if self._require_token else None

    async def _listen(self) -> str:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post(PATH, self._answer)
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self._port).start()
        port: int = self._runner.addresses[0][1]
        return f"http://{HOST}:{port}{PATH}"

    async def _answer(self, request: web.Request) -> web.Response:
        if not self._is_let_in(request.headers.get("Authorization", "")):
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
        key = request.headers.get("Idempotency-Key")
        if key is not None and not (0 < len(key) <= KEY_CHARS_MAX and key.isascii() and key.isprintable()):
            return web.Response(status=400, text=f"Idempotency-Key: 1 to {KEY_CHARS_MAX} printable ASCII characters\n")
        try:
            # aiohttp waits for ever for the rest of a body.
            async with asyncio.timeout(BODY_WAIT_S):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408)
        assert self._dispatcher is not None  # listening comes after it
        answer = await self._dispatcher.dispatch(body, Request(key))
        if answer is None:
            return web.Response(status=204)
        return web.Response(body=answer, content_type="application/json")

    def _is_let_in(self, authorization: str) -> bool:
        if self.token is None:
            return True
        given = authorization.encode(errors="surrogateescape")
        return hmac.compare_digest(given, f"Bearer {self.token}".encode())

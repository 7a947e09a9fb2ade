"""HTTP around JSON-RPC: the routes, the order of the checks, start and stop of the face.

Owns: `POST /rpc`, `GET /healthz /readyz /metrics /openrpc.json`, and which HTTP status says what.  Must never know: methods, schedules.

Every JSON-RPC answer, errors included, is HTTP 200; notifications alone are 204.  Any other status means that no method began.  The
order of the checks is part of the defence: whom the gate refuses costs no body, no decoding and no place among the calls.

A caller that goes away cancels its handler (`handler_cancellation`), which is how a resume learns that nobody waits for it.  So the
face is taken down only after the service was fenced: cancellations that it causes itself find nothing left to cancel.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol, cast

import msgspec
from aiohttp import hdrs, web

from scheduler_daemon import limits
from scheduler_daemon.api import auth, http_door, metrics, openrpc
from scheduler_daemon.api.http_door import HEADERS, AddressUnusable, Door
from scheduler_daemon.api.methods import TABLE, pass_on
from scheduler_daemon.api.service import Service
from scheduler_daemon.jsonrpc import Dispatcher
from scheduler_daemon.runtime.logs import log

__all__ = ["AddressUnusable", "ApiServer", "Listen", "Options"]

_TABLE, _DOCUMENT = openrpc.with_discovery(TABLE)
_ANONYMOUS = frozenset({"/healthz"})
_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104  compared with, never listened on by default
_HTTP_OK, _NO_CONTENT, _TOO_LARGE, _NOT_READY = 200, 204, 413, 503

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Listen(Protocol):
    """A TCP address."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class Options(Protocol):
    """Where to listen and whom to let in; `Config` is one."""

    @property
    def listen(self) -> Listen | None: ...
    @property
    def socket_path(self) -> Path | None: ...
    @property
    def allowed_hosts(self) -> tuple[str, ...]: ...
    def token(self) -> str | None:
        """The bearer token that callers must show, read now; None when none is demanded."""
        ...


class ApiServer:
    """The face of one service.  Start it once; stop is idempotent and may come before start."""

    def __init__(self, service: Service, options: Options, given: Sequence[socket.socket] = ()) -> None:
        """`given` are sockets that a service manager opened; they take the place of the configured addresses."""
        self._service = service
        self._given = given
        self._options = options
        self._gate = auth.Gate(token=None, hosts=())
        self._page = metrics.Page(service)
        self._runner: web.AppRunner | None = None
        self._door: Door | None = None
        self._listening: list[asyncio.AbstractServer] = []
        self._socket_path: Path | None = None
        self._dispatcher = Dispatcher((entry.method for entry in _TABLE), on_bug=_report, fallback=pass_on)

    async def start(self) -> list[str]:
        """Listen; returns the addresses.  Raises `AddressUnusable`, and then listens nowhere."""
        listen = self._options.listen
        if self._options.token() is None and any(_is_open(given) for given in self._given):
            raise AddressUnusable(
                "a socket of the service manager", "other machines can reach it: a token_file is needed"
            )
        self._gate = auth.Gate(
            token=self._options.token(),
            hosts=(*self._options.allowed_hosts, *(() if listen is None else (listen.host,))),
            any_address=listen is not None and listen.host in _WILDCARDS,
        )
        app = web.Application(middlewares=[self._guarded], client_max_size=limits.BODY_BYTES_MAX)
        app.add_routes(
            [
                web.post("/rpc", self._rpc),
                web.get("/healthz", self._healthz, allow_head=False),
                web.get("/readyz", self._readyz, allow_head=False),
                web.get("/metrics", self._metrics, allow_head=False),
                web.get("/openrpc.json", self._openrpc, allow_head=False),
            ]
        )
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=limits.STOP_S)
        await self._runner.setup()
        self._door = Door(cast("web.Server", self._runner.server), asyncio.get_running_loop())
        try:
            return await self._listen(self._door)
        except BaseException:
            await self.stop()
            raise

    async def _listen(self, door: Door) -> list[str]:
        addresses: list[str] = []
        for given in self._given:
            server, address = await http_door.listen_on(door, given)
            self._listening.append(server)
            addresses.append(address)
        if self._given:
            return addresses
        if self._options.listen is not None:
            server, address = await http_door.listen_tcp(door, self._options.listen.host, self._options.listen.port)
            self._listening.append(server)
            addresses.append(address)
        if self._options.socket_path is not None:
            unix, address = await http_door.listen_unix(door, self._options.socket_path)
            self._listening.append(unix)
            self._socket_path = self._options.socket_path
            addresses.append(address)
        return addresses

    async def stop(self) -> None:
        """Accept nothing more, let what is being answered end within `limits.STOP_S`, cancel the rest."""
        listening, self._listening = self._listening, []
        for server in listening:
            server.close()
        if self._socket_path is not None:
            http_door.forget_unix(self._socket_path)
            self._socket_path = None
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    # --- one request ---

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        route = request.path if request.match_info.http_exception is None else "other"
        response = await self._answered(request, handler)
        self._page.answered(route, response.status)
        return response

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = self._gate.judge(request.headers, anonymous=request.path in _ANONYMOUS)
        if refusal is not None:
            return _refused(refusal.status, refusal.reason)
        try:
            return await handler(request)
        except web.HTTPException as error:
            allow = error.headers.get(hdrs.ALLOW)
            return _refused(error.status, error.reason, **({} if allow is None else {hdrs.ALLOW: allow}))

    async def _rpc(self, request: web.Request) -> web.StreamResponse:
        refusal = auth.judge_content(request.headers)
        if refusal is not None:
            return _refused(refusal.status, refusal.reason)
        if (request.content_length or 0) > limits.BODY_BYTES_MAX:
            return _refused(_TOO_LARGE, f"a body holds at most {limits.BODY_BYTES_MAX} bytes")
        try:
            async with asyncio.timeout(limits.BODY_READ_S):
                body = await request.read()
        except TimeoutError:
            return _refused(408, f"the body did not arrive within {limits.BODY_READ_S:g} s")
        except web.RequestPayloadError:
            return _refused(400, "the body is not what its headers say")
        key = request.headers.get("Idempotency-Key")
        service = self._service if key is None else self._service.under(key)
        return await self._carried_out(request.protocol, body, service)

    async def _carried_out(self, connection: web.RequestHandler, body: bytes, service: Service) -> web.StreamResponse:
        """Dispatch.  From here on the connection is not given up for another one, so there is a bound of its own."""
        busy = cast("Door", self._door).busy
        if len(busy) >= limits.CALLS_MAX:
            return _refused(
                429, f"{limits.CALLS_MAX} calls are being carried out; try again", **{hdrs.RETRY_AFTER: "1"}
            )
        busy.add(connection)
        try:
            answer = await self._dispatcher.dispatch(body, service)
        finally:
            busy.discard(connection)
        if answer is None:
            return web.Response(status=_NO_CONTENT, headers=HEADERS)
        return _json(_HTTP_OK, answer)

    # --- what is read without JSON-RPC ---

    async def _healthz(self, _request: web.Request) -> web.StreamResponse:
        return _json(_HTTP_OK, b'{"status":"ok"}')

    async def _readyz(self, _request: web.Request) -> web.StreamResponse:
        checks = self._service.checks()
        ready = all(check.ok for check in checks)
        told = [{"name": check.name, "ok": check.ok, "figure": check.figure} for check in checks]
        return _json(_HTTP_OK if ready else _NOT_READY, msgspec.json.encode({"ready": ready, "checks": told}))

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        door = cast("Door", self._door)
        self._page.connections, self._page.calls = door.connections, len(door.busy)
        return web.Response(body=self._page.render(), headers={**HEADERS, hdrs.CONTENT_TYPE: metrics.CONTENT_TYPE})

    async def _openrpc(self, _request: web.Request) -> web.StreamResponse:
        return _json(_HTTP_OK, _DOCUMENT)


def _is_open(given: socket.socket) -> bool:
    """Whether other machines can reach it."""
    return given.family != socket.AF_UNIX and not ip_address(given.getsockname()[0]).is_loopback


def _report(method: str, bug: BaseException) -> None:
    log("bug", "error", method=method, exc_info=bug)


def _json(status: int, body: bytes, **headers: str) -> web.Response:
    return web.Response(status=status, body=body, headers={**HEADERS, **headers, hdrs.CONTENT_TYPE: "application/json"})


def _refused(status: int, reason: str, **headers: str) -> web.Response:
    """A refusal before any method.  The connection ends with it where the rest of the request was not read."""
    if status == 401:  # noqa: PLR2004  the one status that must say how to do better
        headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    response = _json(status, msgspec.json.encode({"error": reason}), **headers)
    if status != 429:  # noqa: PLR2004  there everything was read, and the same caller is asked to come back
        response.force_close()
    return response

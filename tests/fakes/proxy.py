"""A TCP proxy that breaks one call on its way to a workflow server, in a way that the test names.

The mode is chosen by the JSON-RPC method of each request, and may be changed at any moment; what a request meets is the
mode of the moment when it has arrived whole. `Refuse` alone works on connections, whose method nobody knows yet, and
so holds for every method.

Modes that answer something of their own can let the server have the request first (`forwarded=True`): the answer then
lies about a method that did run, which is the harder case for a client.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_KEY = re.compile(rb"\r\nidempotency-key:\s*([^\r]*)", re.IGNORECASE)


class Pass(msgspec.Struct, frozen=True):
    """Request and answer go through."""


class Refuse(msgspec.Struct, frozen=True):
    """No new connection is accepted."""


class DropRequest(msgspec.Struct, frozen=True):
    """The request is swallowed and the connection closed."""


class DropResponse(msgspec.Struct, frozen=True):
    """The server answers, and the connection closes without a byte of it."""


class CutResponse(msgspec.Struct, frozen=True):
    """The connection closes after this many bytes of the server's answer."""

    after_bytes: int


class BlackHole(msgspec.Struct, frozen=True):
    """Nothing is ever answered; the connection stays."""

    forwarded: bool = False


class Answer(msgspec.Struct, frozen=True):
    """An HTTP status of the proxy's own, with these header lines."""

    status: int
    headers: tuple[str, ...] = ()
    forwarded: bool = False


class Garbage(msgspec.Struct, frozen=True):
    """Bytes that are no HTTP."""

    forwarded: bool = False


class RpcError(msgspec.Struct, frozen=True):
    """A JSON-RPC error object of the proxy's own."""

    code: int = -32603
    forwarded: bool = True


class Slow(msgspec.Struct, frozen=True):
    """The server's answer is held back, for seconds or until a gate opens."""

    delay_s: float = 0.0
    gate: asyncio.Event | None = None


Mode: TypeAlias = (
    Pass | Refuse | DropRequest | DropResponse | CutResponse | BlackHole | Answer | Garbage | RpcError | Slow
)


class Seen(msgspec.Struct, frozen=True):
    """One request that reached the proxy and what it met."""

    method: str
    key: str | None
    mode: Mode


class _ClientLeft(Exception):
    """The client closed its connection while its request was under way."""


class FaultProxy:
    """The proxy in front of one server. `seen` lists the requests that arrived."""

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._path = parts.path
        self._mode: Mode = Pass()
        self._by_method: dict[str, Mode] = {}
        self._listening: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._changed = asyncio.Condition()
        self.port = 0
        self.seen: list[Seen] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self._path}"

    async def set(self, mode: Mode, *methods: str) -> None:
        """Meet these methods with `mode` from now on, or all that have no mode of their own."""
        if methods and isinstance(mode, Refuse):
            raise ValueError("a connection is refused before its method is known")
        for method in methods:
            self._by_method[method] = mode
        if not methods:
            self._mode = mode
            await (self._stop_listening() if isinstance(mode, Refuse) else self.start())

    async def reset(self) -> None:
        """Let everything pass."""
        self._by_method.clear()
        await self.set(Pass())

    def mode_of(self, method: str, params: Any) -> Mode:
        """What this request meets, asked once for each; for a proxy that tells requests apart by more than their method."""
        del params
        return self._by_method.get(method, self._mode)

    async def until_seen(self, count: int, *, timeout_s: float = 5.0) -> Seen:
        """Wait until that many requests have arrived, and answer the last of those."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: len(self.seen) >= count)
        return self.seen[count - 1]

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        if self._listening is None:
            self._listening = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
            self.port = self._listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        await self._stop_listening()
        left = list(self._connections.items())
        for task, writer in left:
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*(task for task, _ in left), return_exceptions=True)

    async def _stop_listening(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while await self._request(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, _ClientLeft):
            pass  # one side went away, or the test is over
        finally:
            writer.close()
            del self._connections[task]

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; False when the connection is to be closed."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        mode = await self._note(head, body)
        answer = await self._answer(mode, head + body, reader)
        if answer is None:
            return False
        writer.write(answer)
        await writer.drain()
        return isinstance(mode, Pass | Slow) and b"\r\nconnection: close" not in answer.lower()

    async def _note(self, head: bytes, body: bytes) -> Mode:
        asked = json.loads(body) if body else {}
        method = asked.get("method", "") if isinstance(asked, dict) else "(batch)"
        key = _KEY.search(head)
        mode = self.mode_of(method, asked.get("params") if isinstance(asked, dict) else None)
        async with self._changed:
            self.seen.append(Seen(method, key[1].decode() if key else None, mode))
            self._changed.notify_all()
        return mode

    async def _answer(self, mode: Mode, request: bytes, reader: asyncio.StreamReader) -> bytes | None:
        """What the client gets; None for nothing but the end of its connection."""
        match mode:
            case DropRequest() | Refuse():
                return None
            case BlackHole():
                if mode.forwarded:
                    await self._forward(request, reader)
                await _while_here(reader, asyncio.get_running_loop().create_future())
                return None
            case Answer() | Garbage() | RpcError():
                if mode.forwarded:
                    await self._forward(request, reader)
                return _own_answer(mode, request)
            case Pass() | DropResponse() | CutResponse() | Slow():
                return await _damage(mode, await self._forward(request, reader), reader)

    async def _forward(self, request: bytes, reader: asyncio.StreamReader) -> bytes:
        """The server's whole answer. When the client leaves, its connection to the server closes too."""
        upstream_reader, upstream = await asyncio.open_connection(*self._upstream)
        try:
            upstream.write(request)
            answering = asyncio.ensure_future(_read_answer(upstream_reader))
            await _while_here(reader, answering)
            return answering.result()
        finally:
            upstream.close()


async def _while_here(reader: asyncio.StreamReader, work: "asyncio.Future[bytes]") -> None:
    """Wait for the work, or raise when the client closes its connection first."""
    leaving = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({leaving, work}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise _ClientLeft
    finally:
        leaving.cancel()
        work.cancel()
        await asyncio.gather(leaving, work, return_exceptions=True)


async def _read_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return head + (await reader.readexactly(int(length[1])) if length else await reader.read())


async def _damage(
    mode: Pass | DropResponse | CutResponse | Slow, answer: bytes, reader: asyncio.StreamReader
) -> bytes | None:
    match mode:
        case Pass():
            return answer
        case DropResponse():
            return None
        case CutResponse():
            return answer[: mode.after_bytes]
        case Slow():
            held = asyncio.ensure_future(_held_back(mode))
            await _while_here(reader, held)
            return answer


async def _held_back(mode: Slow) -> bytes:
    await asyncio.sleep(mode.delay_s)
    if mode.gate is not None:
        await mode.gate.wait()
    return b""


def _own_answer(mode: Answer | Garbage | RpcError, request: bytes) -> bytes:
    if isinstance(mode, Garbage):
        return b"\x16\x03\x01 not what you asked for\r\n\r\n"
    if isinstance(mode, Answer):
        lines = (f"HTTP/1.1 {mode.status} Proxy", "Content-Length: 0", "Connection: close", *mode.headers, "", "")
        return "\r\n".join(lines).encode()
    request_id = json.loads(request.partition(b"\r\n\r\n")[2]).get("id")
    error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": mode.code, "message": "Internal error"}}
    body = json.dumps(error).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


@asynccontextmanager
async def fault_proxy(upstream_url: str) -> AsyncIterator[FaultProxy]:
    """A proxy in front of a server's URL, letting everything pass at first."""
    proxy = FaultProxy(upstream_url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()

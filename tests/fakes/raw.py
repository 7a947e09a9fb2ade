"""A TCP server that speaks as little HTTP as a test wants, for proving how a client takes what no framework would send.

Each connection is handed to the test's own function after its request was read; what arrived is kept, byte for byte.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)


class RawServer:
    """What a raw server has seen: `received` holds the bytes of each connection, in the order they were accepted."""

    def __init__(self) -> None:
        self.port = 0
        self.received: list[bytearray] = []
        self.arrived = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/rpc"

    def request(self, index: int = -1) -> Any:
        """The JSON-RPC request of one connection."""
        return json.loads(bytes(self.received[index]).partition(b"\r\n\r\n")[2])

    def head(self, index: int = -1) -> dict[str, str]:
        """The header fields of one connection, names in lower case."""
        lines = bytes(self.received[index]).partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Any], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader, kept: bytearray) -> Any:
    """Read one whole request into `kept` and answer its decoded body."""
    head = await reader.readuntil(b"\r\n\r\n")
    kept += head
    length = int(_LENGTH.search(head)[1])
    body = await reader.readexactly(length)
    kept += body
    return json.loads(body)


@asynccontextmanager
async def listening(
    handler: ConnectionHandler, *, unix_path: str | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Hand each connection to `handler(reader, writer)`; yields the port, and leaves no connection and no task behind."""
    open_now: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        open_now[task] = writer
        try:
            await handler(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side went away, which is what half of these tests are about, or the test is over
        finally:
            writer.close()
            del open_now[task]

    server = await (
        asyncio.start_unix_server(serve, unix_path)
        if unix_path is not None
        else asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    )
    try:
        yield 0 if unix_path is not None else server.sockets[0].getsockname()[1]
    finally:
        server.close()
        left = list(open_now.items())
        for task, writer in left:
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*(task for task, _ in left), return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def raw_server(handler: Handler, *, unix_path: str | None = None) -> AsyncIterator[RawServer]:
    """Serve `handler(reader, writer, request)`, one request a connection."""
    server = RawServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = bytearray()
        server.received.append(kept)
        request = await read_request(reader, kept)
        server.arrived.set()
        await handler(reader, writer, request)

    async with listening(serve, unix_path=unix_path) as server.port:
        yield server


def http_answer(
    body: bytes, *, status: str = "200 OK", headers: tuple[str, ...] = (), length: int | None = None
) -> bytes:
    """The bytes of one HTTP answer; `length` lies about the body where the test wants that."""
    fields = (f"Content-Length: {len(body) if length is None else length}", "Content-Type: application/json", *headers)
    return f"HTTP/1.1 {status}\r\n{''.join(field + chr(13) + chr(10) for field in fields)}\r\n".encode() + body


def answers(body: bytes | None = None, **how: Any) -> Handler:
    """A handler that answers with these bytes, or with the result `true` under the id that was asked."""

    async def handler(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Any) -> None:
        said = (
            body if body is not None else json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": True}).encode()
        )
        writer.write(http_answer(said, **how))
        await writer.drain()

    return handler

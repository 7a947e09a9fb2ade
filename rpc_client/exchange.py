"""One HTTP request out, one answer in.

Owns: the only use of the HTTP client library, connections and what keeps them, and the bytes of a request.
Must never know: JSON-RPC, how an answer is judged, whether anybody tries again.

The library connects, does TLS, keeps connections for a while and parses answers. The request is not left to its general
client: all requests of a pool have one head but for a few lines, and are written in one piece by `proof.Kept`, so that
the moment in which a request leaves is a line of ours and not a task of the library's. That is also half the cost.

Invariants
- A connection carries another request only if the answer was read to its end and the whole request was taken; every
  other way out of an exchange, cancellation included, aborts it. No exchange waits for a peer that takes no bytes.
- Redirects, proxies from the environment, cookies and compressed answers are not for this client: each could send the
  request somewhere else or cost unbounded memory.
- The number of exchanges at a time is the caller's to bound. A limit here would make a call wait inside the connect
  timeout and be taken for a server that is down.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError
from yarl import URL

from rpc_client.endpoint import Endpoint
from rpc_client.proof import CallProbe, Kept

OK = 200
"""JSON-RPC over HTTP answers with 200 and nothing else: of any other answer the body is not waited for."""

# A peer that vanished without a word (power, cable, NAT) is noticed by the kernel after some 30 s: the only bound on a
# call that may legally take hours. The user timeout covers bytes that are never acknowledged, the probes cover silence.
_PEER_LOST_S = 30
_SOCKET_OPTIONS = tuple(
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", _PEER_LOST_S * 1000),
    )
    if hasattr(socket, name)  # the names are the platform's
)
_OUR_OWN_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",  # a compressed answer is bounded on the wire and unbounded in memory
    "Content-Type": "application/json",
    "User-Agent": "rpc-client",
}
_CONTINUE, _SWITCHING, _FINAL = 100, 101, 200


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What came back; `body` is None when it is larger than allowed, and whatever had come when `status` is not `OK`."""

    status: int
    phrase: str
    body: bytes | None


class Unanswered(Exception):
    """No answer came back, for `reason`.

    `cut` says that the connection ended under the exchange, `shortage` that this side ran out of something and the server
    is not to blame. Whether the request had left, the probe knows.
    """

    def __init__(self, reason: str, *, cut: bool = False, shortage: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cut = cut
        self.shortage = shortage


class Connections:
    """The connections to one server that serve one kind of call, each kept for `rest_s` after its last.

    Made inside the event loop that it serves; it connects when the first exchange needs it.
    """

    def __init__(self, endpoint: Endpoint, *, tls: ssl.SSLContext | bool, rest_s: float, connect_s: float) -> None:
        self.kept = Kept()
        self._in_use: set[asyncio.WriteTransport] = set()
        self._connector = _connector(endpoint, tls=tls, rest_s=rest_s)
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s)
        loop = asyncio.get_running_loop()
        self._address = aiohttp.ClientRequest("POST", URL(endpoint.url), headers=_HEADERS, ssl=tls, loop=loop)
        self._head = _head(self._address)

    async def close(self) -> None:
        """Close every connection; what is under way ends as if its connection was lost."""
        for transport in self._in_use:
            transport.abort()
        await self._connector.close()

    async def exchange(
        self,
        headers: Mapping[str, str],
        body: bytes,
        probe: CallProbe,
        *,
        timeout_s: float | None,
        answer_bytes_max: int,
    ) -> Answer:
        """Post `body` with these headers besides the usual ones (names and values must be printable ASCII).

        Raises `Unanswered`. From the moment in which the probe says that the request was sent until this returns, nobody
        but the server knows what became of it.
        """
        try:
            if timeout_s is None:
                return await self._exchange(headers, body, probe, answer_bytes_max)
            async with asyncio.timeout(timeout_s):
                return await self._exchange(headers, body, probe, answer_bytes_max)
        except (aiohttp.ClientError, aiohttp.EofStream, HttpProcessingError, OSError) as error:
            cut = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
            shortage = getattr(error, "errno", None) in _OUR_OWN_SHORTAGE
            raise Unanswered(_words(error, timeout_s), cut=cut, shortage=shortage) from error

    async def _exchange(
        self, headers: Mapping[str, str], body: bytes, probe: CallProbe, answer_bytes_max: int
    ) -> Answer:
        connection = await self._connect()
        protocol, transport, whole = connection.protocol, connection.transport, False
        assert protocol is not None  # only a connection that was let go of has none
        try:
            if transport is not None:
                self._in_use.add(transport)
            spoken = protocol.should_close  # also where an answer that nobody asked for came while it rested
            protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            extra = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("ascii")
            request = b"%b%bContent-Length: %d\r\n\r\n%b" % (self._head, extra, len(body), body)
            self.kept.send(transport, request, probe, spoken=spoken)
            answer, whole = await _read(protocol, answer_bytes_max)
            return answer
        finally:
            self._let_go(connection, transport, whole=whole)

    async def _connect(self) -> aiohttp.connector.Connection:
        try:
            return await self._connector.connect(self._address, [], self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError("the server did not take the connection in time") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise aiohttp.ClientConnectionError("closed while connecting") from None  # it cancels what it waits for

    def _let_go(
        self, connection: aiohttp.connector.Connection, transport: asyncio.Transport | None, *, whole: bool
    ) -> None:
        if transport is not None:
            self._in_use.discard(transport)
        if whole and self.kept.trusted and transport is not None and not transport.get_write_buffer_size():
            connection.release()
            return
        if transport is not None:
            transport.abort()
        connection.close()


def _connector(endpoint: Endpoint, *, tls: ssl.SSLContext | bool, rest_s: float) -> aiohttp.BaseConnector:
    if endpoint.socket_path is not None:
        return aiohttp.UnixConnector(endpoint.socket_path, limit=0, keepalive_timeout=rest_s)
    return aiohttp.TCPConnector(limit=0, ssl=tls, socket_factory=_watched_socket, keepalive_timeout=rest_s)


def _head(address: aiohttp.ClientRequest) -> bytes:
    """The request line and the header lines that are always the same, as the library would put them."""
    headers = {name: value for name, value in address.headers.items() if name != "Content-Length"}
    lines = [f"POST {address.url.raw_path_qs} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), ""]
    return "\r\n".join(lines).encode("ascii")


async def _read(protocol: ResponseHandler, bytes_max: int) -> tuple[Answer, bool]:
    """The final answer, and whether all of it was read."""
    message, content = await protocol.read()
    while _CONTINUE <= message.code < _FINAL and message.code != _SWITCHING:
        message, content = await protocol.read()
    if content.is_eof():  # nearly every answer came with its head
        body = content.read_nowait()
        return Answer(message.code, message.reason, body if len(body) <= bytes_max else None), True
    if message.code != OK:
        return Answer(message.code, message.reason, b""), False
    whole = bytearray()
    async for chunk in content.iter_any():  # what its head says about its length proves nothing
        whole += chunk
        if len(whole) > bytes_max:
            return Answer(message.code, message.reason, None), False
    return Answer(message.code, message.reason, bytes(whole)), True


def _words(
    error: aiohttp.ClientError | aiohttp.EofStream | HttpProcessingError | OSError, timeout_s: float | None
) -> str:
    """What happened, for somebody who knows the address and not the library."""
    if isinstance(error, HttpProcessingError):
        return f"not HTTP: {error.message}"
    if type(error) is TimeoutError and timeout_s is not None:
        return f"no answer within {timeout_s:g} s"
    if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(error, aiohttp.ClientSSLError):
        return f"{type(error).__name__}: {error}"
    why, number = error.os_error, error.os_error.errno or 0
    path = getattr(error, "path", None)
    # The event loop puts the address where the reason belongs; a resolver's numbers are no errno and bring words of their own.
    said = os.strerror(number) if number > 0 else why.strerror or str(why)
    return f"cannot connect to {path or f'{error.host}:{error.port}'}: {said}"


def _watched_socket(address: tuple[Any, ...]) -> socket.socket:
    """A TCP socket whose kernel notices a vanished peer; `address` is a row of `getaddrinfo`."""
    family, kind, protocol = address[:3]
    opened = socket.socket(family, kind, protocol)
    try:
        for option in _SOCKET_OPTIONS:
            opened.setsockopt(*option)
    except BaseException:
        opened.close()
        raise
    return opened

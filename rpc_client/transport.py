"""One JSON-RPC call over HTTP, and the proof of how it ended.

Owns: the only use of the HTTP client library, connections, timeouts, and the verdict on every way a call can end.
Must never know: which methods exist, what a result means, whether a caller will try again.

Invariants
- A call that may execute something (`blocking=True`) is sent at most once, on a connection of its own: a kept
  connection that the server has just closed would swallow the request and leave a doubt that costs more than a connect.
  A read is sent at most twice, and twice only when a kept connection turned out to be stale.
- `NotSent` without a status is said only if the library never asked for the request's body. `_Body` sets
  `CallProbe.sent` when it is asked, before it hands out the first byte, and no method can begin before its params have
  arrived: the flag can be early, never late. (The library's tracing tells the same moment, at five times the cost.)
- Redirects, proxies from the environment, cookies and compressed answers are not for this client: each could send the
  request somewhere else or cost unbounded memory.
- The number of calls in flight is the caller's to bound (slots). A limit here would make a call wait inside the connect
  timeout and be taken for a server that is down.
"""

import asyncio
import contextlib
import errno
import itertools
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

from rpc_client.codec import decode_answer, encode_request
from rpc_client.endpoint import (
    Credentials,
    TokenSource,
    is_header_safe,
    parse_endpoint,
    tls_context,
    token_from_file,
)
from rpc_client.errors import TOO_LARGE, Ambiguous, Ending, NotSent, Refused


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a call.

    `read_s` is the whole time of a read that names no `timeout_s`. A kept connection is dropped after
    `keepalive_s` of rest, which is shorter than common servers keep theirs, so that a stale one stays an exception.
    """

    connect_s: float = 5.0
    read_s: float = 10.0
    keepalive_s: float = 4.0
    request_bytes_max: int = 1 << 20
    answer_bytes_max: int = 16 << 20


class CallProbe:
    """Filled in while a call runs, for a caller that cancels it and must know what it left behind.

    `sent` False after a cancellation proves that no byte of the request left; True means that it may have.
    """

    __slots__ = ("reused", "sent", "stale")

    def __init__(self) -> None:
        self.sent = False
        self.reused = False
        self.stale = False


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

_NOT_REACHED = frozenset({401, 403, 404, 405, 415, 421, 429})
_OUR_OWN_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",  # a compressed answer is bounded on the wire and unbounded in memory
    "Content-Type": "application/json",
    "User-Agent": "rpc-client",
}
_CLOSE_S = 1.0
_REASON_CHARS_MAX = 300
_UNPRINTABLE = re.compile(r"[^ -~]+")


class Transport:
    """Calls to one server.

    `url` is what `endpoint.parse_endpoint` accepts. `token` is the bearer token or a function that returns it,
    `token_file` a file that holds it; `ca_file` a PEM file that replaces the system's CAs. The constructor reads the CA
    file and raises OSError, ssl.SSLError or ValueError for what cannot be used; it opens no connection.
    Use it with `async with`, or `open()` and `close()`, both idempotent, inside one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        socket_path: str | None = None,
        token: str | TokenSource | None = None,
        token_file: Path | str | None = None,
        ca_file: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.endpoint = parse_endpoint(url, socket_path)
        self._limits = limits or Limits()
        self._tls = tls_context(self.endpoint.url, ca_file)
        self._credentials = Credentials(_token_source(token, token_file))
        self._request_ids = itertools.count(1)
        self._blocking: aiohttp.ClientSession | None = None
        self._reads: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Get ready to call. Nothing is connected before the first call needs it."""
        if self._blocking is None:
            self._blocking = self._session(force_close=True, timeout=self._timeout(None))
            self._reads = self._session(force_close=False, timeout=self._timeout(self._limits.read_s))

    async def close(self) -> None:
        """Close every connection; calls in flight end as if the connection was lost.

        Takes at most a moment: a peer that takes no bytes any more does not hold up the one that leaves.
        """
        sessions = (self._blocking, self._reads)
        self._blocking = self._reads = None
        for session in sessions:
            if session is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await session.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        blocking: bool,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        probe: CallProbe | None = None,
    ) -> Ending:
        """Call one method with named params and say how it ended.

        `blocking` is for what may execute something: never sent twice, and without a bound in time unless `timeout_s`
        gives one. Otherwise it is a read, bounded by `timeout_s` or by `Limits.read_s`.
        Raises TypeError for params without a JSON form, ValueError for an idempotency key that no header can carry,
        RuntimeError when not open. A cancellation passes through; `probe.sent` then tells what it left behind.
        """
        session = self._blocking if blocking else self._reads
        if session is None:
            raise RuntimeError("the transport is not open")
        request_id = next(self._request_ids)
        body = encode_request(method, params, request_id)
        if len(body) > self._limits.request_bytes_max:
            return Refused(
                TOO_LARGE, f"request of {len(body)} bytes; at most {self._limits.request_bytes_max} are sent"
            )
        headers = {} if idempotency_key is None else {"Idempotency-Key": _checked(idempotency_key)}
        try:
            token = await self._credentials.current()
        except (OSError, ValueError) as error:
            return NotSent(_line(f"no token to send: {error}"), server_down=False)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        timeout = session.timeout if timeout_s is None else self._timeout(timeout_s)
        exchange = _Exchange(session, self.endpoint.url, body, headers, timeout, request_id, probe or CallProbe())
        ending = await self._once(exchange)
        if exchange.probe.stale and not blocking:
            ending = await self._once(exchange)
        return ending

    async def _once(self, exchange: "_Exchange") -> Ending:
        ending = await exchange.run(self._limits.answer_bytes_max)
        if isinstance(ending, NotSent) and ending.http_status in {401, 403}:
            self._credentials.refused()
        return ending

    def _session(self, *, force_close: bool, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=self._connector(force_close=force_close),
            timeout=timeout,
            headers=_HEADERS,
            trace_configs=[] if force_close else [_reuse_trace()],
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            raise_for_status=False,
        )

    def _connector(self, *, force_close: bool) -> aiohttp.BaseConnector:
        keep: dict[str, Any] = {} if force_close else {"keepalive_timeout": self._limits.keepalive_s}
        if self.endpoint.socket_path is not None:
            return aiohttp.UnixConnector(self.endpoint.socket_path, limit=0, force_close=force_close, **keep)
        return aiohttp.TCPConnector(
            limit=0, force_close=force_close, ssl=self._tls, socket_factory=_watched_socket, **keep
        )

    def _timeout(self, total_s: float | None) -> aiohttp.ClientTimeout:
        connect_s = self._limits.connect_s
        return aiohttp.ClientTimeout(total=total_s, connect=connect_s, sock_connect=connect_s, sock_read=None)


class _Exchange(msgspec.Struct, frozen=True, gc=False):
    """One request, encoded, and where it goes."""

    session: aiohttp.ClientSession
    url: str
    body: bytes
    headers: dict[str, str]
    timeout: aiohttp.ClientTimeout
    request_id: int
    probe: CallProbe

    async def run(self, answer_bytes_max: int) -> Ending:
        """Send it and judge what comes back.

        From the moment the probe's flag is set until an answer was read the call is ambiguous; every way out of that
        window that is not an answer goes through `_unanswered`.
        """
        probe = self.probe
        probe.sent = probe.reused = probe.stale = False
        try:
            response = await self.session.post(
                self.url,
                data=_Body(self.body, probe),
                headers=self.headers,
                timeout=self.timeout,
                allow_redirects=False,
                trace_request_ctx=probe,
            )
            try:
                verdict = _status_verdict(response.status, response.reason)
                if verdict is not None:
                    return verdict
                answer = await _read_bounded(response, answer_bytes_max)
            finally:
                _let_go(response)
        except (aiohttp.ClientError, OSError) as error:
            return _unanswered(error, probe)
        if answer is None:
            return Ambiguous(f"answer larger than {answer_bytes_max} bytes", response.status)
        return decode_answer(answer, self.request_id)


def _let_go(response: aiohttp.ClientResponse) -> None:
    """Leave an answer: a read one gave its connection back already, any other takes its connection with it.

    Neither `async with` nor a polite close: both wait for the rest of the request to be taken, which a server that
    answered early and reads no further never does.
    """
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def _status_verdict(status: int, phrase: str | None) -> Ending | None:
    """What the HTTP status alone decides; None where the body must speak."""
    if status == 200:  # noqa: PLR2004  JSON-RPC over HTTP answers with 200 and nothing else
        return None
    reason = _line(f"HTTP {status} {phrase or ''}".rstrip())
    if status == TOO_LARGE:
        return Refused(TOO_LARGE, reason)
    if 300 <= status < 400 or status in _NOT_REACHED:  # noqa: PLR2004  the redirection class
        return NotSent(reason, status, server_down=False)
    return Ambiguous(reason, status)


async def _read_bounded(response: aiohttp.ClientResponse, bytes_max: int) -> bytes | None:
    """The whole body, or None as soon as more than allowed has come. What its head says about its length proves nothing."""
    whole = bytearray()
    async for chunk in response.content.iter_any():
        whole += chunk
        if len(whole) > bytes_max:
            return None
    return bytes(whole)


def _unanswered(error: aiohttp.ClientError | OSError, probe: CallProbe) -> NotSent | Ambiguous:
    reason = _line(f"{type(error).__name__}: {error}")
    if not probe.sent:
        return NotSent(reason, server_down=getattr(error, "errno", None) not in _OUR_OWN_SHORTAGE)
    probe.stale = probe.reused and isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    return Ambiguous(reason)


class _Body(aiohttp.BytesPayload):
    """The bytes of a request, which say when they are asked for."""

    def __init__(self, body: bytes, probe: CallProbe) -> None:
        super().__init__(body, content_type="application/json")
        self._probe = probe

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._probe.sent = True
        await super().write(writer)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._probe.sent = True
        await super().write_with_length(writer, content_length)


def _reuse_trace() -> aiohttp.TraceConfig:
    """Notes in the probe given as `trace_request_ctx` that a read went out on a kept connection."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_mark_reused)
    return trace


async def _mark_reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.reused = True


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


def _token_source(token: str | TokenSource | None, token_file: Path | str | None) -> TokenSource | None:
    if token is not None and token_file is not None:
        raise ValueError("give the token or the token file, not both")
    if token_file is not None:
        return token_from_file(token_file)
    return (lambda: token) if isinstance(token, str) else token


def _checked(idempotency_key: str) -> str:
    if not idempotency_key or not is_header_safe(idempotency_key):
        raise ValueError("an idempotency key must be printable ASCII")
    return idempotency_key


def _line(text: str) -> str:
    """One bounded printable line: what a server sends ends in logs and on terminals."""
    return _UNPRINTABLE.sub("?", text)[:_REASON_CHARS_MAX]

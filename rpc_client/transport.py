"""One JSON-RPC call over HTTP, and the proof of how it ended.

Owns: the only use of the HTTP client library, connections, timeouts, and the verdict on every way a call can end.
Must never know: which methods exist, what a result means, whether a caller will try again.

Invariants
- A call that may execute something (`blocking=True`) is sent at most once. It goes out on a kept connection only if that
  has rested for less than `Limits.reuse_s`, too short for any server to have let go of it, and only if nothing has come
  in on it meanwhile, which `proof.Body` looks at in the moment of writing; a connection that fails the look carried
  nothing, and another is taken. A server that lets go of one in spite of that gets each call on a connection of its own.
- A read is sent at most twice, and twice only when a kept connection turned out stale.
- `NotSent` without a status is said only if the library never asked for the request's body: see `proof.py`.
- Redirects, proxies from the environment, cookies and compressed answers are not for this client: each could send the
  request somewhere else or cost unbounded memory.
- The number of calls in flight is the caller's to bound (slots). A limit here would make a call wait inside the connect
  timeout and be taken for a server that is down.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

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
from rpc_client.proof import Body, CallProbe, Kept


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a call.

    `read_s` is the whole time of a read that names no `timeout_s`. A kept connection is dropped after
    `keepalive_s` of rest, which is shorter than common servers keep theirs, so that a stale one stays an exception; one
    that carries what may execute after `reuse_s`, well below the two seconds that are the least any server is known to give.
    """

    connect_s: float = 5.0
    read_s: float = 10.0
    keepalive_s: float = 4.0
    reuse_s: float = 1.25
    request_bytes_max: int = 1 << 20
    answer_bytes_max: int = 16 << 20


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
_STALE_MAX = 8
"""Kept connections that one call may find closed by the server before it counts as not reached for now."""

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
        self._kept_blocking, self._kept_reads = Kept(), Kept()
        self._blocking: aiohttp.ClientSession | None = None
        self._reads: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Get ready to call. Nothing is connected before the first call needs it."""
        if self._blocking is None:
            limits = self._limits
            self._blocking = self._session(limits.reuse_s, self._timeout(None))
            self._reads = self._session(limits.keepalive_s, self._timeout(limits.read_s))

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
        kept = self._kept_blocking if blocking else self._kept_reads
        if not kept.trusted:
            headers["Connection"] = "close"
        timeout = session.timeout if timeout_s is None else self._timeout(timeout_s)
        url = self.endpoint.url
        exchange = _Exchange(session, url, body, headers, timeout, request_id, probe or CallProbe(), kept)
        return await self._carry(exchange, sent_max=1 if blocking else 2)

    async def _carry(self, exchange: "_Exchange", sent_max: int) -> Ending:
        """Try again as long as kept connections turn out to be stale, and no more than `sent_max` requests have left."""
        probe, tries, sent = exchange.probe, 0, 0
        while True:
            ending = await exchange.run(self._limits.answer_bytes_max)
            tries, sent = tries + 1, sent + probe.sent
            if not probe.stale or sent >= sent_max or tries > _STALE_MAX:
                break
        if sent_max == 1 and sent and probe.stale:
            exchange.kept.trusted = False
        if isinstance(ending, NotSent) and ending.http_status in {401, 403}:
            self._credentials.refused()
        return ending

    def _session(self, rest_s: float, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=self._connector(rest_s),
            timeout=timeout,
            headers=_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            raise_for_status=False,
        )

    def _connector(self, rest_s: float) -> aiohttp.BaseConnector:
        if self.endpoint.socket_path is not None:
            return aiohttp.UnixConnector(self.endpoint.socket_path, limit=0, keepalive_timeout=rest_s)
        return aiohttp.TCPConnector(limit=0, ssl=self._tls, socket_factory=_watched_socket, keepalive_timeout=rest_s)

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
    kept: Kept

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
                data=Body(self.body, probe, self.kept),
                headers=self.headers,
                timeout=self.timeout,
                allow_redirects=False,
            )
            try:
                verdict = _status_verdict(response.status, response.reason)
                if verdict is not None:
                    return verdict
                content = response.content
                # Nearly every answer came with its head.
                answer = content.read_nowait() if content.is_eof() else await _read_bounded(content, answer_bytes_max)
            finally:
                _let_go(response)
        except (aiohttp.ClientError, OSError) as error:
            return _unanswered(error, probe)
        if answer is None or len(answer) > answer_bytes_max:
            return Ambiguous(f"answer larger than {answer_bytes_max} bytes", response.status, beyond=True)
        return decode_answer(answer, self.request_id)


def _let_go(response: aiohttp.ClientResponse) -> None:
    """Leave an answer: a read one gave its connection back already, any other takes its connection with it.

    Neither `async with` nor a polite close: both wait for the rest of the request to be taken, which a server that
    answered early and reads no further never does.
    """
    connection = response.connection
    if connection is None:
        return
    if connection.transport is not None:
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


async def _read_bounded(content: aiohttp.StreamReader, bytes_max: int) -> bytes | None:
    """The whole body, or None as soon as more than allowed has come. What its head says about its length proves nothing."""
    whole = bytearray()
    async for chunk in content.iter_any():
        whole += chunk
        if len(whole) > bytes_max:
            return None
    return bytes(whole)


def _words(error: aiohttp.ClientError | OSError) -> str:
    """What happened, for somebody who knows the address and not the library."""
    if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(error, aiohttp.ClientSSLError):
        return f"{type(error).__name__}: {error}"
    why, number = error.os_error, error.os_error.errno or 0
    path = getattr(error, "path", None)
    # The event loop puts the address where the reason belongs; a resolver's numbers are no errno and bring words of their own.
    said = os.strerror(number) if number > 0 else why.strerror or str(why)
    return f"cannot connect to {path or f'{error.host}:{error.port}'}: {said}"


def _unanswered(error: aiohttp.ClientError | OSError, probe: CallProbe) -> NotSent | Ambiguous:
    reason = _line(_words(error))
    if not probe.sent:
        return NotSent(reason, server_down=not probe.stale and getattr(error, "errno", None) not in _OUR_OWN_SHORTAGE)
    probe.stale = probe.reused and isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    return Ambiguous(reason)


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

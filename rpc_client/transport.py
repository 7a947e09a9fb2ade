"""One JSON-RPC call, and the proof of how it ended.

Owns: the verdict on every way a call can end, how often it is sent, timeouts and limits.
Must never know: which methods exist, what a result means, the HTTP library.

Invariants
- A call that may execute something (`blocking=True`) is sent at most once. It goes out on a kept connection only if that
  has rested for less than `Limits.reuse_s`, too short for any server to have let go of it, and only if nothing has come
  in on it meanwhile, which `proof.Kept` looks at in the moment of writing; a connection that fails the look carried
  nothing, and another is taken. A server that lets go of one in spite of that gets each call on a connection of its own.
- A read is sent at most twice, and twice only when a kept connection turned out stale.
- `NotSent` without a status is said only if the request was never written: see `proof.py`.
- The number of calls in flight is the caller's to bound (slots).
"""

import asyncio
import contextlib
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
from rpc_client.exchange import OK, Answer, Connections, Unanswered
from rpc_client.proof import CallProbe


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a call.

    `read_s` is the time of each try of a read that names no `timeout_s`. A kept connection is dropped after
    `keepalive_s` of rest, which is shorter than common servers keep theirs, so that a stale one stays an exception; one
    that carries what may execute after `reuse_s`, well below the two seconds that are the least any server is known to give.
    """

    connect_s: float = 5.0
    read_s: float = 10.0
    keepalive_s: float = 4.0
    reuse_s: float = 1.25
    request_bytes_max: int = 1 << 20
    answer_bytes_max: int = 16 << 20


_NOT_REACHED = frozenset({401, 403, 404, 405, 415, 421, 429})
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
        self._blocking: Connections | None = None
        self._reads: Connections | None = None

    async def open(self) -> None:
        """Get ready to call. Nothing is connected before the first call needs it."""
        if self._blocking is None:
            self._blocking = self._connections(self._limits.reuse_s)
            self._reads = self._connections(self._limits.keepalive_s)

    def _connections(self, rest_s: float) -> Connections:
        return Connections(self.endpoint, tls=self._tls, rest_s=rest_s, connect_s=self._limits.connect_s)

    async def close(self) -> None:
        """Close every connection; calls in flight end as if the connection was lost.

        Takes at most a moment: a peer that takes no bytes any more does not hold up the one that leaves.
        """
        pools = (self._blocking, self._reads)
        self._blocking = self._reads = None
        for pool in pools:
            if pool is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await pool.close()

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
        pool = self._blocking if blocking else self._reads
        if pool is None:
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
        if not pool.kept.trusted:
            headers["Connection"] = "close"
        if timeout_s is None and not blocking:
            timeout_s = self._limits.read_s
        call = _Call(pool, headers, body, request_id, probe or CallProbe(), timeout_s, self._limits.answer_bytes_max)
        ending = await call.carry(sent_max=1 if blocking else 2)
        if isinstance(ending, NotSent) and ending.http_status in {401, 403}:
            self._credentials.refused()
        return ending


class _Call(msgspec.Struct, frozen=True, gc=False):
    """One request, encoded, and what it goes out on."""

    pool: Connections
    headers: dict[str, str]
    body: bytes
    request_id: int
    probe: CallProbe
    timeout_s: float | None
    answer_bytes_max: int

    async def carry(self, sent_max: int) -> Ending:
        """Try again as long as kept connections turn out to be stale, and no more than `sent_max` requests have left."""
        probe, tries, sent = self.probe, 0, 0
        while True:
            ending = await self._try()
            tries, sent = tries + 1, sent + probe.sent
            if not probe.stale or sent >= sent_max or tries > _STALE_MAX:
                break
        if sent_max == 1 and sent and probe.stale:
            self.pool.kept.trusted = False
        return ending

    async def _try(self) -> Ending:
        """Send it and judge what comes back.

        From the moment the probe's flag is set until an answer was read the call is ambiguous; every way out of that
        window that is not an answer goes through `_unanswered`.
        """
        probe = self.probe
        probe.sent = probe.reused = probe.stale = False
        try:
            answer = await self.pool.exchange(
                self.headers, self.body, probe, timeout_s=self.timeout_s, answer_bytes_max=self.answer_bytes_max
            )
        except Unanswered as unanswered:
            return _unanswered(unanswered, probe)
        if answer.status != OK:
            return _status_verdict(answer)
        if answer.body is None:
            return Ambiguous(f"answer larger than {self.answer_bytes_max} bytes", answer.status, beyond=True)
        return decode_answer(answer.body, self.request_id)


def _status_verdict(answer: Answer) -> Ending:
    """What the HTTP status alone decides: whatever is not `OK`."""
    status = answer.status
    reason = _line(f"HTTP {status} {answer.phrase}".rstrip())
    if status == TOO_LARGE:
        return Refused(TOO_LARGE, reason)
    if 300 <= status < 400 or status in _NOT_REACHED:  # noqa: PLR2004  the redirection class
        return NotSent(reason, status, server_down=False)
    return Ambiguous(reason, status)


def _unanswered(unanswered: Unanswered, probe: CallProbe) -> NotSent | Ambiguous:
    reason = _line(unanswered.reason)
    if not probe.sent:
        return NotSent(reason, server_down=not (probe.stale or unanswered.shortage))
    probe.stale = probe.reused and unanswered.cut
    return Ambiguous(reason)


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

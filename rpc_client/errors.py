"""How a call ends, and what is raised when somebody would rather have an exception.

Owns: the four endings of a call, and the exceptions that `App` makes of them.
Must never know: the HTTP library, the methods called, the daemon.

Invariants
- Every call ends in exactly one `Ending`, cancellation apart.
- `NotSent` is said only with proof that the method did not begin. Whatever has no proof is `Ambiguous`: a doubt that is
  rounded down runs a job twice.
- `Refused` says that a server spoke, not that nothing ran: -32603 may come from the middle of an execution. Which codes
  mean "not run" is the caller's to judge, since it depends on the method; `NOT_RUN_CODES` lists those that always do.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import msgspec

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
APPLICATION_ERROR = 5000
"""The code under which workflow servers and the daemon report their own errors; `data.code` names which."""
TOO_LARGE = 413
"""HTTP 413, and a request that this side found too large to send: represented as `Refused`, for the request was judged
by its size before the method saw it, and sending the same again cannot help."""

NOT_RUN_CODES = frozenset({PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, TOO_LARGE})
"""Codes of a `Refused` that prove that the method did not begin, whatever the method."""


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """The server answered with a JSON-RPC result.

    `result` is decoded JSON: dict, list, str, int, float, bool or None.
    """

    result: Any


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The server answered with a JSON-RPC error object, or with HTTP 413 (`code` is `TOO_LARGE` then).

    `data` is decoded JSON; with `APPLICATION_ERROR` an object with `code` and `message`.
    """

    code: int
    message: str
    data: Any = None


class _Unanswered(msgspec.Struct, frozen=True):
    """What both endings without an answer carry: one printable line for logs, and the HTTP status if there was one."""

    reason: str
    http_status: int | None = None


class NotSent(_Unanswered, frozen=True, kw_only=True, tag="not-sent"):
    """Proven: the method did not begin, and the same request may be sent again.

    | http_status | server_down | the proof |
    |---|---|---|
    | None | True | no byte of the request left: refused, name not found, connect or TLS failure, connect timeout |
    | None | False | no byte left either, for a reason on this side: no descriptor or port, token file unreadable |
    | 3xx 401 403 404 405 415 421 429 | False | a server answered, but did not let the request reach the method |
    """

    server_down: bool


class Ambiguous(_Unanswered, frozen=True, tag="ambiguous"):
    """The method may have run, may be running, or may never run: nothing here says which.

    408, the other 4xx, all 5xx, a connection lost after sending, a timeout, an answer that cannot be read, is too large
    or answers another request.  `beyond`: it is too large or too deep, and would be so again.
    """

    beyond: bool = False


Ending: TypeAlias = Answered | Refused | NotSent | Ambiguous


class RpcError(Exception):
    """A call of `App` that has no result.

    `code` is a word to branch on: the server's own (`ScheduleNotFound`), or one of this side (`InvalidParams`,
    `NotReached`, `OutcomeUnknown`, ...). `data` is what the server sent beside it, an empty mapping when nothing.
    """

    def __init__(self, code: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.data: Mapping[str, Any] = {} if data is None else data


class Rejected(RpcError):
    """The request is at fault, nothing was done, and sending it again unchanged cannot help."""


class Unavailable(RpcError):
    """Nothing was done, and the same request may succeed later."""


class AmbiguousOutcome(RpcError):
    """It may have been done. Look before sending it again."""


_PROTOCOL_CODES = {
    PARSE_ERROR: "ParseError",
    INVALID_REQUEST: "InvalidRequest",
    METHOD_NOT_FOUND: "MethodNotFound",
    INVALID_PARAMS: "InvalidParams",
    TOO_LARGE: "RequestTooLarge",
}
_LATER_CODES = frozenset({"ServerUnavailable", "Draining", "StorageFull"})


def refusal(refused: Refused) -> RpcError:
    """The exception that says whose fault a refusal is.

    A code that is neither the protocol's nor an application error is ambiguous: nothing is promised about it.
    """
    data = cast("dict[str, Any]", refused.data if isinstance(refused.data, dict) else {})
    if refused.code == APPLICATION_ERROR:
        code, message = str(data.get("code", "Unknown")), str(data.get("message", refused.message))
        return (Unavailable if code in _LATER_CODES else Rejected)(code, message, data)
    word = _PROTOCOL_CODES.get(refused.code)
    if word is None:
        return AmbiguousOutcome("InternalError", f"{refused.message} ({refused.code})", data)
    return Rejected(word, refused.message, data)

"""JSON-RPC 2.0 as bytes: one request out, one answer in.

Owns: the request object, the reading of an answer, and every judgement on bytes that a server sent.
Must never know: HTTP, methods, what an answer is used for.

Invariants
- `decode_answer` never raises: bytes it cannot vouch for are `Ambiguous`, whatever they are.
- An answer is believed only if it says JSON-RPC 2.0, carries the id that was asked, and has exactly one of result and error.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rpc_client.errors import INVALID_REQUEST, PARSE_ERROR, Ambiguous, Answered, Refused

DEPTH_MAX = 128
"""Brackets an answer may nest. Decoders recurse: past some depth they raise, and on a small thread stack they crash."""

_UNIDENTIFIED_CODES = frozenset({PARSE_ERROR, INVALID_REQUEST})
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


class _Error(msgspec.Struct):
    code: int
    message: str = ""
    data: Any = None


class _Answer(msgspec.Struct):
    jsonrpc: str
    id: int | str | float | None = None
    result: Any = UNSET
    error: _Error | UnsetType | None = UNSET  # null is absent: some servers send both members always


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Answer)


def encode_request(method: str, params: Mapping[str, Any], request_id: int) -> bytes:
    """The bytes of one request with named params.

    Raises TypeError for a param that JSON has no form for: a fault of the caller, found before anything is sent.
    """
    return _encoder.encode({"jsonrpc": "2.0", "method": method, "params": params, "id": request_id})


def decode_answer(body: bytes, request_id: int) -> Answered | Refused | Ambiguous:
    """What the bytes of an answer to `request_id` say."""
    if is_deeper_than(body, DEPTH_MAX):
        return Ambiguous(f"unreadable answer: nested deeper than {DEPTH_MAX}", beyond=True)
    try:
        answer = _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Ambiguous(f"unreadable answer: {error}")
    return _judge(answer, request_id)


def _judge(answer: _Answer, request_id: int) -> Answered | Refused | Ambiguous:
    error = answer.error if isinstance(answer.error, _Error) else None
    if answer.jsonrpc != "2.0" or (answer.result is UNSET) == (error is None):
        return Ambiguous("unreadable answer: not a JSON-RPC 2.0 response")
    if answer.id != request_id and not (answer.id is None and _could_not_name_us(error)):
        return Ambiguous(f"answer to another request: id {answer.id!r} instead of {request_id}")
    if error is None:
        return Answered(answer.result)
    return Refused(error.code, error.message, error.data)


def _could_not_name_us(error: _Error | None) -> bool:
    """A server that could not read the request answers with id null; with any other error null proves nothing."""
    return error is not None and error.code in _UNIDENTIFIED_CODES


def is_deeper_than(body: bytes, depth_max: int) -> bool:
    """Whether JSON text nests deeper than `depth_max`; for text that is not JSON, True or False.

    Counting brackets settles nearly every answer. Else strings go, then everything that is no bracket, and each round
    removes the innermost pairs: rounds are depth, and all the work is done by whole-buffer operations rather than by
    a loop over bytes, so that a hostile megabyte costs milliseconds.
    """
    if body.count(b"[") + body.count(b"{") <= depth_max:
        return False
    left = _without_strings(body).translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(depth_max):
        if not left:
            return False
        left = left.replace(b"[]", b"")
    return bool(left)


def _without_strings(body: bytes) -> bytes:
    """The text outside string literals. Escapes go first, so that every quote left over opens or closes a string."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(plain.split(b'"')[::2])

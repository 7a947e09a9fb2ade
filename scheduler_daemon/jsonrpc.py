"""JSON-RPC 2.0 from the bytes of a request body to the bytes of an answer.

Owns: what a legal body is, the shape of every error answer, the order in which a batch runs.  Must never know: HTTP, schedules,
runs, or what any method means.  A leaf: it imports neither `core` nor `api`, and it is the only importer of jsonrpcserver.

Invariants.  Any bytes get a JSON-RPC answer, or None for notifications only; nothing but cancellation leaves `dispatch` as an
exception.  The text of an unexpected exception never reaches a caller.  A result that cannot be encoded is found while it can
still become an error.  When `dispatch` has ended, no handler that it started runs on.

What a body must be is stricter than JSON, because two readers of one text must not see two requests:

- nesting, and how many values there are, is measured on the bytes, before any decoder makes objects of them: a mebibyte of `{}` is
  350,000 objects, which takes a second to make and to look at, while nobody else is answered and no instant is decided;
- a key twice in one object, NaN, Infinity, a number out of range and broken UTF-8 are all unreadable: -32700;
- params are named; positional ones are -32602, and so is any name that the method does not list;
- an id is a string, an integer or null; a fraction or a boolean is -32600, since callers would compare it badly.

What a refusal quotes of the call is bounded as well, in number and in length: a caller may get back what it sent, not a multiple.

jsonrpcserver contributes its stages (request, call, response, error answers) and not its pipeline over them, which runs batches
without bound or order, lets siblings outlive a cancelled one, answers exception texts, and checks names slowly and types never.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final, cast

import msgspec

with warnings.catch_warnings():
    # It reads its schema with a call that 3.11 and 3.12 deprecate; nobody here can act on that warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    from jsonrpcserver import Error, Result, Success
    from jsonrpcserver.async_dispatcher import call as _call_untyped
    from jsonrpcserver.codes import (
        ERROR_INTERNAL_ERROR,
        ERROR_INVALID_PARAMS,
        ERROR_INVALID_REQUEST,
        ERROR_METHOD_NOT_FOUND,
    )
    from jsonrpcserver.dispatcher import create_request, to_response
    from jsonrpcserver.response import ErrorResponse, InvalidRequestResponse, ParseErrorResponse, serialize_error
    from jsonrpcserver.response import to_serializable_one as _serializable_untyped
    from jsonrpcserver.sentinels import NOID

BATCH_MAX: Final = 50
DEPTH_MAX: Final = 32
READS_MAX: Final = 8  # reads of one batch that are in flight together
VALUES_MAX: Final = 32_768
"""Containers, members and elements of one body, together: what a body costs is what is made of it, not its bytes."""

ANSWERS_BYTES_MAX: Final = 16 << 20
"""How large the answers of one batch may grow before its remaining calls are refused: fifty pages are not one answer."""

QUOTED_MAX: Final = 16
"""Unknown params that one refusal names."""

QUOTED_BYTES_MAX: Final = 256
"""How much of a name or a value a refusal quotes."""

Json = Any
Answer = dict[str, Json]
Call = Callable[..., Awaitable[Result]]
Fallback = Callable[[Any, str, dict[str, Json]], Awaitable[object]]

# The library declares a method as synchronous, and a response by two types that exclude each other.
call_method: Final = cast("Callable[[Any, object, Call], Awaitable[Result]]", _call_untyped)
serialize: Final = cast("Callable[[Any], Answer]", _serializable_untyped)

_MEMBERS: Final = frozenset({"jsonrpc", "method", "params", "id"})
_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_PLACE: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN_METHOD: Final = Error(ERROR_METHOD_NOT_FOUND, "Method not found")
_INTERNAL_ERROR: Final = Error(ERROR_INTERNAL_ERROR, "Internal error")


class Failure(Exception):
    """An answer that says no: it becomes the JSON-RPC error verbatim; `data` is left out when it is None."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code: int = code
        self.message: str = message
        self.data: object = data


class Unreadable(ValueError):
    """The bytes are not JSON that every reader would read in the same way."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method: `handler(context, params)` is awaited with an instance of `params`.

    `mutates` puts it in order within a batch; `result` is for documents that describe the method, and is not checked.
    """

    name: str
    params: type[msgspec.Struct]
    handler: Callable[[Any, Any], Awaitable[object]]
    mutates: bool
    result: Any = None


class Dispatcher:
    """The methods of one face, and the way from a body to its answer."""

    def __init__(
        self,
        methods: Iterable[Method],
        *,
        batch_max: int = BATCH_MAX,
        depth_max: int = DEPTH_MAX,
        on_bug: Callable[[str, BaseException], None],
        fallback: Fallback | None = None,
    ) -> None:
        """`on_bug(method, exception)` hears of each -32603.  Raises ValueError for params that accept unknown fields.

        `fallback(context, method, params)` carries out what no method is listed for; nobody knows whether it mutates, so it
        runs in order.
        """
        self.methods: Mapping[str, Method] = {method.name: method for method in methods}
        for method in self.methods.values():
            if not method.params.__struct_config__.forbid_unknown_fields:
                raise ValueError(f"{method.name}: params must be declared with forbid_unknown_fields")
        self._calls = {name: _bound(method, on_bug) for name, method in self.methods.items()}
        self._fallback = fallback
        self._on_bug = on_bug
        self._batch_max = batch_max
        self._depth_max = depth_max

    async def dispatch(self, body: bytes, context: object) -> bytes | None:
        """The answer to one body, a batch included; None when every request in it is a notification."""
        try:
            document = decode(body, depth_max=self._depth_max)
        except Unreadable as error:
            return msgspec.json.encode(_no_request(ParseErrorResponse, "json_invalid", str(error)))
        if isinstance(document, list):
            return await self._batch(cast("list[Json]", document), context)
        answer = await self._one(document, context)
        return None if answer is None else msgspec.json.encode(answer)

    async def _batch(self, items: list[Json], context: object) -> bytes | None:
        if not 0 < len(items) <= self._batch_max:
            reason = f"a batch holds 1 to {self._batch_max} requests, not {len(items)}"
            return msgspec.json.encode(_no_request(InvalidRequestResponse, "invalid_request", reason))
        answers: list[bytes] = []
        size = 0
        for wave in self._waves(items):
            full = size > ANSWERS_BYTES_MAX
            calls = [self._one(item, context, full=full) for item in wave]
            given = [msgspec.json.encode(answer) for answer in await _together(calls) if answer is not None]
            answers += given
            size += sum(map(len, given))
        return b"[" + b",".join(answers) + b"]" if answers else None

    def _waves(self, items: list[Json]) -> Iterator[list[Json]]:
        """What runs together: each mutation alone, in its place, and up to READS_MAX neighbouring reads."""
        wave: list[Json] = []
        for item in items:
            alone = self._mutates(item)
            if wave and (alone or len(wave) == READS_MAX):
                yield wave
                wave = []
            wave.append(item)
            if alone:
                yield wave
                wave = []
        if wave:
            yield wave

    def _mutates(self, item: Json) -> bool:
        name = cast("Answer", item).get("method") if isinstance(item, dict) else None
        method = self.methods.get(name) if isinstance(name, str) else None
        return self._fallback is not None if method is None else method.mutates

    async def _one(self, item: Json, context: object, *, full: bool = False) -> Answer | None:
        """The answer to one request; when the batch is `full`, only what wants none is still carried out."""
        if (reason := _why_not_a_request(item)) is not None:
            return _no_request(InvalidRequestResponse, "invalid_request", reason)
        request = create_request(item)
        if full and request.id is not NOID:
            return serialize(to_response(request, _BATCH_FULL))
        call = self._calls.get(request.method) or self._passed_on(request.method)
        result = _UNKNOWN_METHOD if call is None else await call_method(request, context, call)
        return None if request.id is NOID else serialize(to_response(request, result))

    def _passed_on(self, name: str) -> Call | None:
        fallback = self._fallback
        if fallback is None or len(name) > QUOTED_BYTES_MAX:
            return None
        return _guarded(name, lambda context, params: fallback(context, name, params), self._on_bug)


def decode(body: bytes, *, depth_max: int = DEPTH_MAX) -> Json:
    """The one JSON value in the bytes.  Raises Unreadable for whatever the module's head calls unreadable."""
    skeleton = _skeleton(body)
    if skeleton.count(b",") + skeleton.count(b"[") + skeleton.count(b"{") > VALUES_MAX:
        raise Unreadable(f"more than {VALUES_MAX} values")
    if _nests_deeper(skeleton, depth_max):
        raise Unreadable(f"brackets do not match, or nest deeper than {depth_max}")
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    # Each member of an object has one colon outside strings; a key that came twice is one member less when written again.
    colons = skeleton.count(b":")
    if colons and _skeleton(msgspec.json.encode(value)).count(b":") != colons:
        raise Unreadable("an object names the same key twice")
    return value


def _skeleton(body: bytes) -> bytes:
    """The text outside strings.  Escapes go first, so that every quote that is left opens or closes a string.

    A backslash outside a string would mislead this; it also ends every decoder, before whatever it hides.  Each value has at most
    two strings, its own and its name, so the quotes are bounded like the values, before a list of the parts between them is made.
    """
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * VALUES_MAX:
        raise Unreadable(f"more than {2 * VALUES_MAX} strings")
    return b"".join(plain.split(b'"')[::2])


def _nests_deeper(skeleton: bytes, depth_max: int) -> bool:
    """Whether brackets nest deeper, or cannot be shown not to; every pass takes the innermost pairs away."""
    if skeleton.count(b"[") + skeleton.count(b"{") <= depth_max:
        return False
    brackets = skeleton.translate(_TO_SQUARE, _NOT_BRACKETS)
    for _ in range(depth_max):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def _why_not_a_request(item: Json) -> str | None:
    if not isinstance(item, dict):
        return "a request is an object"
    request = cast("Answer", item)
    if not request.keys() <= _MEMBERS:
        return f"a request has no member {_cut(min(request.keys() - _MEMBERS))!r}"
    if request.get("jsonrpc") != "2.0":
        return "jsonrpc must be the string 2.0"
    if not isinstance(request.get("method"), str):
        return "method must be a string"
    if not isinstance(request.get("params", {}), (dict, list)):
        return "params must be an object"
    if type(request.get("id")) not in (str, int, type(None)):
        return "id must be a string, an integer or null"
    return None


async def _together(calls: Sequence[Coroutine[Any, Any, Answer | None]]) -> list[Answer | None]:
    """The answers in order.  A cancellation, of this wait or of one handler, goes on only when every sibling has ended."""
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _bound(method: Method, on_bug: Callable[[str, BaseException], None]) -> Call:
    """The method as jsonrpcserver calls it, its params checked."""

    async def checked(context: object, params: dict[str, Json]) -> object:
        return await method.handler(context, _checked(method.params, params))

    return _guarded(method.name, checked, on_bug)


def _guarded(
    name: str,
    handler: Callable[[Any, dict[str, Json]], Awaitable[object]],
    on_bug: Callable[[str, BaseException], None],
) -> Call:
    """A handler of named params: its result encoded, every failure made an error of the protocol."""

    async def call(context: object, /, *positional: Json, **params: Json) -> Result:
        try:
            if positional:
                raise _invalid(_entry("positional", "Params must be named"))
            return Success(msgspec.Raw(msgspec.json.encode(await handler(context, params))))
        except Failure as failure:
            return _refusal(name, failure, on_bug)
        except Exception as bug:
            on_bug(name, bug)
            return _INTERNAL_ERROR

    return call


def _refusal(name: str, failure: Failure, on_bug: Callable[[str, BaseException], None]) -> Result:
    try:
        data = [] if failure.data is None else [msgspec.Raw(msgspec.json.encode(failure.data))]
        return Error(failure.code, msgspec.Raw(msgspec.json.encode(failure.message)), *data)
    except Exception as bug:
        on_bug(name, bug)
        return _INTERNAL_ERROR


def _checked(params: type[msgspec.Struct], given: dict[str, Json]) -> msgspec.Struct:
    if unknown := given.keys() - params.__struct_encode_fields__:
        raise _invalid(*(_unknown(name, given[name]) for name in nsmallest(QUOTED_MAX, unknown)))
    try:
        return msgspec.convert(given, params, strict=True)
    except msgspec.ValidationError as error:
        raise _invalid(_located(str(error))) from error


def _located(text: str) -> Answer:
    """The sentence of msgspec as an error entry: "what - at `$.a[0].b`" becomes the place and the fault apart."""
    fault, _, path = text.partition(" - at `$")
    places = _PLACE.findall(path.removesuffix("`"))
    loc: list[Json] = [_cut(name) or (int(index) if index.isdecimal() else index) for name, index in places]
    if match := _UNKNOWN.fullmatch(fault):
        return _extra([*loc, _cut(match[1])])
    if match := _MISSING.fullmatch(fault):
        return _entry("missing", "Field required", [*loc, match[1]])
    typed = fault.startswith("Expected `") and ", got `" in fault
    return _entry("type_error" if typed else "value_error", _cut(fault), loc)


def _invalid(*entries: Answer) -> Failure:
    return Failure(ERROR_INVALID_PARAMS, "Invalid params", {"errors": entries})


def _unknown(name: str, value: Json) -> Answer:
    """An unknown param, with its value where that is short enough to help."""
    entry = _extra([_cut(name)])
    return entry | {"input": value} if len(msgspec.json.encode(value)) <= QUOTED_BYTES_MAX else entry


def _cut(text: str) -> str:
    return text if len(text) <= QUOTED_BYTES_MAX else text[:QUOTED_BYTES_MAX] + "…"


def _extra(loc: list[Json]) -> Answer:
    return _entry("extra_forbidden", "Extra inputs are not permitted", loc)


def _entry(kind: str, text: str, loc: Sequence[Json] = ()) -> Answer:
    return {"type": kind, "loc": loc, "msg": text}


def _no_request(response: Callable[[Answer], ErrorResponse], kind: str, reason: str) -> Answer:
    return serialize_error(response({"errors": [_entry(kind, reason)]}))


_FULL_REASON: Final = (
    f"the answers before it fill {ANSWERS_BYTES_MAX} bytes; it was not carried out, send it again by itself"
)
_BATCH_FULL: Final = Error(
    ERROR_INVALID_REQUEST, "Invalid request", {"errors": [_entry("invalid_request", _FULL_REASON)]}
)

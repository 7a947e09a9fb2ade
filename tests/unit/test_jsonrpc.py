"""JSON-RPC 2.0 from body bytes to answer bytes: what is refused, in which words, and what a batch promises."""

import asyncio
import json
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_daemon.jsonrpc import (
    QUOTED_MAX,
    READS_MAX,
    VALUES_MAX,
    Dispatcher,
    Failure,
    Method,
    Unreadable,
    decode,
)


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    row: int


class Echo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    times: Annotated[int, msgspec.Meta(ge=1)] = 1
    places: list[Place] = []


class Loose(msgspec.Struct):
    text: str = ""


class Face:
    """Methods that say what happened to them."""

    def __init__(self):
        self.log: list[str] = []
        self.bugs: list[tuple[str, BaseException]] = []
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.in_flight = 0
        self.in_flight_max = 0

    async def echo(self, context: Any, params: Echo):
        return {"text": params.text * params.times, "context": context}

    async def put(self, context: Any, params: Echo):
        self.log.append(f"put {params.text} begins")
        await asyncio.sleep(0)
        self.log.append(f"put {params.text} ends")
        return params.text

    async def read(self, context: Any, params: Nothing):
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        for _ in range(3):
            await asyncio.sleep(0)
        self.in_flight -= 1
        self.log.append("read")
        return list(self.log)

    async def wait(self, context: Any, params: Nothing):
        self.entered.set()
        try:
            await self.gate.wait()
        finally:
            self.log.append("wait left")

    async def cancelled(self, context: Any, params: Nothing):
        await self.entered.wait()
        raise asyncio.CancelledError

    async def refuse(self, context: Any, params: Nothing):
        raise Failure(5000, "Workflow operation failed", {"code": "KeyError", "message": "no such thing"})

    async def refuse_plainly(self, context: Any, params: Nothing):
        raise Failure(-32000, "No")

    async def crash(self, context: Any, params: Nothing):
        raise RuntimeError("the secret is 4711")

    async def unencodable(self, context: Any, params: Nothing):
        return {"socket": object()}

    async def refuse_unencodable(self, context: Any, params: Nothing):
        raise Failure(5000, "No", object())

    def dispatcher(self, **options: Any) -> Dispatcher:
        reads = ["read", "wait", "cancelled", "refuse", "refuse_plainly", "crash", "unencodable", "refuse_unencodable"]
        methods = [Method(name, Nothing, getattr(self, name), mutates=False) for name in reads]
        methods += [Method("echo", Echo, self.echo, mutates=False), Method("put", Echo, self.put, mutates=True)]
        return Dispatcher(methods, on_bug=lambda name, bug: self.bugs.append((name, bug)), **options)


@pytest.fixture
def face():
    return Face()


def request(method: str, params: Any = None, request_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}, "id": request_id}


def notification(method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


async def ask(face: Face, body: Any, context: object = "ctx", **options: Any) -> Any:
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await face.dispatcher(**options).dispatch(body, context)
    return None if answer is None else json.loads(answer)


async def error_of(face: Face, body: Any) -> dict[str, Any]:
    answer = await ask(face, body)
    assert answer["jsonrpc"] == "2.0"
    assert "result" not in answer
    return answer["error"]


# --- answers ---


async def test_a_call_gets_the_result_of_its_handler_and_its_own_id(face):
    answer = await ask(face, request("echo", {"text": "ab", "times": 2}, request_id=7))
    assert answer == {"jsonrpc": "2.0", "result": {"text": "abab", "context": "ctx"}, "id": 7}


@pytest.mark.parametrize("request_id", ["", "a", 0, -1, 10**30, None, "é😀"])
async def test_string_integer_and_null_ids_come_back_verbatim(face, request_id):
    assert (await ask(face, request("echo", {"text": "x"}, request_id=request_id)))["id"] == request_id


@pytest.mark.parametrize("request_id", [1.5, 1.0, True, [], {}])
async def test_any_other_id_is_an_invalid_request(face, request_id):
    answer = await ask(face, request("echo", {"text": "x"}, request_id=request_id))
    assert answer["error"]["code"] == -32600
    assert answer["id"] is None


async def test_a_notification_runs_and_is_not_answered(face):
    assert await ask(face, notification("put", {"text": "a"})) is None
    assert face.log == ["put a begins", "put a ends"]


async def test_a_notification_that_fails_is_not_answered_but_its_bug_is_reported(face):
    assert await ask(face, notification("crash")) is None
    assert [name for name, _ in face.bugs] == ["crash"]


async def test_params_may_be_absent_or_an_empty_list(face):
    assert (await ask(face, {"jsonrpc": "2.0", "method": "read", "id": 1}))["result"] == ["read"]
    assert (await ask(face, {"jsonrpc": "2.0", "method": "read", "params": [], "id": 1}))["result"] == ["read", "read"]


# --- refusals ---


async def test_an_unknown_method_is_refused_in_the_recorded_words(face):
    answer = await ask(face, request("workflow.schedules.list"))
    assert answer == {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": 1}


async def test_an_unknown_param_is_refused_in_the_recorded_shape(face):
    error = await error_of(face, request("echo", {"text": "w", "idempotency_key": "k"}))
    assert error == {
        "code": -32602,
        "message": "Invalid params",
        "data": {
            "errors": [
                {
                    "type": "extra_forbidden",
                    "loc": ["idempotency_key"],
                    "msg": "Extra inputs are not permitted",
                    "input": "k",
                }
            ]
        },
    }


async def test_every_unknown_param_is_named_at_once(face):
    error = await error_of(face, request("echo", {"text": "w", "b": 1, "a": None}))
    assert [entry["loc"] for entry in error["data"]["errors"]] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("params", "kind", "loc"),
    [
        ({}, "missing", ["text"]),
        ({"text": 1}, "type_error", ["text"]),
        ({"text": "x", "times": "2"}, "type_error", ["times"]),
        ({"text": "x", "times": 0}, "value_error", ["times"]),
        ({"text": "x", "places": [{"row": 1}, {"row": "2"}]}, "type_error", ["places", 1, "row"]),
        ({"text": "x", "places": [{}]}, "missing", ["places", 0, "row"]),
        ({"text": "x", "places": [{"row": 1, "col": 2}]}, "extra_forbidden", ["places", 0, "col"]),
    ],
)
async def test_a_param_that_does_not_fit_is_refused_with_its_place(face, params, kind, loc):
    error = await error_of(face, request("echo", params))
    assert (error["code"], error["message"]) == (-32602, "Invalid params")
    [entry] = error["data"]["errors"]
    assert (entry["type"], entry["loc"]) == (kind, loc)
    assert entry["msg"]


async def test_positional_params_are_refused(face):
    error = await error_of(face, request("echo", ["x"]))
    assert error["code"] == -32602
    assert error["data"]["errors"][0]["type"] == "positional"


async def test_a_param_named_context_is_a_param_like_any_other(face):
    error = await error_of(face, request("echo", {"text": "x", "context": 1, "self": 2}))
    assert [entry["loc"] for entry in error["data"]["errors"]] == [["context"], ["self"]]


@pytest.mark.parametrize(
    "body",
    [
        {"method": "read", "id": 1},
        {"jsonrpc": "1.0", "method": "read", "id": 1},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "method": 1, "id": 1},
        {"jsonrpc": "2.0", "method": "read", "params": "x", "id": 1},
        {"jsonrpc": "2.0", "method": "read", "params": None, "id": 1},
        {"jsonrpc": "2.0", "method": "read", "param": {}, "id": 1},
        1,
        "read",
        None,
        [],
    ],
)
async def test_what_is_not_a_request_is_refused_with_a_null_id_and_runs_nothing(face, body):
    answer = await ask(face, body)
    assert answer["error"]["code"] == -32600
    assert answer["id"] is None
    assert face.log == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1,]",
        b'{"jsonrpc":"2.0","method":"read","id":\xff}',
        b'{"jsonrpc":"2.0","method":"\xed\xa0\x80","id":1}',
        b'{"jsonrpc":"2.0","method":"\\ud800","id":1}',
        b'{"jsonrpc":"2.0","method":"read","id":NaN}',
        b'{"jsonrpc":"2.0","method":"read","id":-Infinity}',
        b'{"jsonrpc":"2.0","method":"read","params":{"x":1e999},"id":1}',
        b'{"jsonrpc":"2.0","method":"read","id":1,"id":2}',
        b'{"jsonrpc":"2.0","method":"read","params":{"x":{"a":1,"\\u0061":2}},"id":1}',
        b'"\\',
        b'"' + b'\\"' * 100_000,
        b"[" * 100_000,
        b"[" * 33 + b"]" * 33,
        b'{"a":' * 100_000,
    ],
)
async def test_what_is_not_plain_json_is_a_parse_error_with_a_null_id(face, body):
    answer = await ask(face, body)
    assert (answer["error"]["code"], answer["id"]) == (-32700, None)
    assert face.log == []


def test_nesting_is_allowed_to_the_limit_and_not_one_level_further():
    assert decode(b"[" * 32 + b"]" * 32, depth_max=32)
    assert decode(b"[" + b"[]," * 100 + b"{}]", depth_max=2)
    with pytest.raises(Unreadable):
        decode(b"[" * 33 + b"]" * 33, depth_max=32)


def test_brackets_and_colons_inside_strings_are_text():
    text = {"a": '[[[[ {{ : " \\', 'k":[': ":"}
    assert decode(json.dumps(text).encode(), depth_max=1) == text


@pytest.mark.parametrize(
    "unit", [b"{}", b"[]", b"1", b'""', b'{"a":1}', b"[" * 30 + b"]" * 30, b'{"a":' * 30 + b"{}" + b"}" * 30]
)
def test_what_a_body_costs_is_bounded_by_its_values_and_not_by_its_bytes(unit):
    values = unit.count(b"[") + unit.count(b"{") + 1
    few = b"[" + b",".join([unit] * (VALUES_MAX // values - 1)) + b"]"
    assert len(decode(few)) == VALUES_MAX // values - 1
    many = b"[" + b",".join([unit] * (VALUES_MAX // values + 2)) + b"]"
    with pytest.raises(Unreadable, match="more than 32768 values"):
        decode(many)


def test_a_mebibyte_of_quotes_is_not_taken_apart():
    with pytest.raises(Unreadable, match="strings"):
        decode(b'"' * (1 << 20))
    assert decode(b'"' + b'\\"' * 500_000 + b'"') == '"' * 500_000


@pytest.mark.parametrize("text", ["\\", '\\"', '"\\', "\\\\", '\\\\"', 'a"b\\', '\\"[{:,', "\n\\\t"])
def test_escapes_in_names_and_values_hide_nothing_and_reveal_nothing(text):
    value = {text: [text, {text + "x": text}], "y": {}}
    assert decode(json.dumps(value).encode()) == value
    twice = json.dumps({text: 1}).encode()[:-1] + b"," + json.dumps({text: 2}).encode()[1:]
    with pytest.raises(Unreadable, match="twice"):
        decode(twice)


async def test_a_refusal_quotes_a_bounded_part_of_the_call(face):
    error = await error_of(face, request("echo", {"text": "w", **{f"k{n:03}": "v" for n in range(500)}}))
    assert [entry["loc"] for entry in error["data"]["errors"]] == [[f"k{n:03}"] for n in range(QUOTED_MAX)]
    error = await error_of(face, request("echo", {"text": "w", "n" * 5000: "v" * 5000}))
    [entry] = error["data"]["errors"]
    assert (len(entry["loc"][0]), "input" in entry) == (257, False)
    for body in ({"jsonrpc": "2.0", "method": "read", "n" * 5000: 1}, request("echo", {"places": [{"n" * 5000: 1}]})):
        assert len(json.dumps(await ask(face, body))) < 1000


async def test_a_failure_becomes_the_error_verbatim(face):
    error = await error_of(face, request("refuse"))
    assert error == {
        "code": 5000,
        "message": "Workflow operation failed",
        "data": {"code": "KeyError", "message": "no such thing"},
    }
    assert await error_of(face, request("refuse_plainly")) == {"code": -32000, "message": "No"}
    assert face.bugs == []


@pytest.mark.parametrize("method", ["crash", "unencodable", "refuse_unencodable"])
async def test_a_bug_is_an_internal_error_without_its_text_and_is_reported(face, method):
    answer = await ask(face, request(method))
    assert answer == {"jsonrpc": "2.0", "error": {"code": -32603, "message": "Internal error"}, "id": 1}
    assert [name for name, _ in face.bugs] == [method]


def test_params_that_would_accept_unknown_fields_are_refused_at_once(face):
    with pytest.raises(ValueError, match="forbid_unknown_fields"):
        Dispatcher([Method("loose", Loose, face.echo, mutates=False)], on_bug=lambda *_: None)


# --- batches ---


async def test_a_batch_answers_each_request_in_order_and_leaves_out_notifications(face):
    body = [request("echo", {"text": "a"}, request_id=1), notification("read"), 3, request("nope", request_id="x")]
    answers = await ask(face, body)
    assert [answer["id"] for answer in answers] == [1, None, "x"]
    assert [answer.get("error", {}).get("code") for answer in answers] == [None, -32600, -32601]


async def test_a_batch_of_notifications_is_not_answered(face):
    assert await ask(face, [notification("read"), notification("read")]) is None
    assert face.log == ["read", "read"]


async def test_a_batch_over_the_limit_is_refused_whole(face):
    answer = await ask(face, [notification("read")] * 51)
    assert answer["error"]["code"] == -32600
    assert face.log == []
    assert await ask(face, [notification("read")] * 50) is None


async def test_when_its_answers_are_large_the_rest_of_a_batch_is_refused_and_not_carried_out(face, monkeypatch):
    monkeypatch.setattr("scheduler_daemon.jsonrpc.ANSWERS_BYTES_MAX", 5000)
    body = [request("echo", {"text": "x", "times": 6000}, request_id=1), request("put", {"text": "a"}, request_id=2)]
    answers = await ask(face, [*body, request("put", {"text": "b"}, request_id=3), notification("put", {"text": "c"})])
    assert [answer["id"] for answer in answers] == [1, 2, 3]
    assert [answer.get("error", {}).get("code") for answer in answers] == [None, -32600, -32600]
    assert "not carried out" in answers[1]["error"]["data"]["errors"][0]["msg"]
    assert face.log == ["put c begins", "put c ends"]


async def test_mutations_of_a_batch_run_one_after_another_and_reads_see_those_before_them(face):
    body = [notification("put", {"text": text}) for text in "ab"]
    body += [request("read", request_id=2), notification("put", {"text": "c"})]
    [answer] = await ask(face, body)
    assert answer["result"] == ["put a begins", "put a ends", "put b begins", "put b ends", "read"]
    assert face.log[-2:] == ["put c begins", "put c ends"]


async def test_reads_of_a_batch_overlap_but_not_without_bound(face):
    await ask(face, [request("read", request_id=n) for n in range(50)])
    assert face.in_flight_max == READS_MAX


async def test_a_cancelled_handler_of_a_batch_takes_its_siblings_along_before_it_is_heard(face):
    with pytest.raises(asyncio.CancelledError):
        await ask(face, [request("wait"), request("cancelled"), notification("put", {"text": "late"})])
    assert face.log == ["wait left"]


async def test_a_cancelled_caller_leaves_no_handler_behind(face):
    task = asyncio.ensure_future(ask(face, [request("wait"), request("wait")]))
    await face.entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert face.log == ["wait left", "wait left"]


# --- any bytes at all ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)
METHODS = st.sampled_from(["echo", "put", "read", "refuse", "crash", "unencodable", "refuse_unencodable", "nope"])
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "method": METHODS | JSON,
        "params": st.fixed_dictionaries({}, optional={"text": JSON, "times": JSON, "x": JSON}) | JSON,
        "id": JSON,
    },
)
BODIES = (LIKELY | st.lists(LIKELY | JSON, max_size=6) | JSON).map(lambda value: json.dumps(value).encode())


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(BODIES))
    for _ in range(draw(st.integers(0, 3))):
        if body:
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body)


def assert_is_an_answer(answer: Any) -> None:
    assert answer.keys() in ({"jsonrpc", "result", "id"}, {"jsonrpc", "error", "id"})
    assert answer["jsonrpc"] == "2.0"
    assert answer["id"] is None or type(answer["id"]) in (str, int)
    if "error" in answer:
        assert type(answer["error"]["code"]) is int
        assert type(answer["error"]["message"]) is str
        assert answer["error"].keys() <= {"code", "message", "data"}


@settings(max_examples=400, deadline=None)
@given(body=BODIES | damaged() | st.binary(max_size=60))
async def test_any_bytes_get_a_json_rpc_answer_or_none(body):
    answer = await Face().dispatcher().dispatch(body, None)
    if answer is None:
        return
    document = json.loads(answer, parse_constant=pytest.fail)
    if isinstance(document, list):
        assert document
        for each in document:
            assert_is_an_answer(each)
    else:
        assert_is_an_answer(document)

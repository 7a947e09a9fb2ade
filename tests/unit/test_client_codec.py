"""One answer as bytes: what is believed, and how deep it may nest."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc_client.codec import DEPTH_MAX, decode_answer, encode_request, is_deeper_than
from rpc_client.errors import Ambiguous, Answered, NotSent, Refused

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


def depth(value) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(json_values, st.integers(0, 2**40))
def test_any_result_comes_back_as_it_was_sent(value, request_id):
    body = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": value}).encode()

    assert decode_answer(body, request_id) == Answered(value)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_never_raise(body):
    assert isinstance(decode_answer(body, 1), Ambiguous | Refused | Answered)


@given(json_values, st.sampled_from([None, 2]))
def test_depth_is_counted_outside_strings_only(value, indent):
    body = json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "surrogatepass")

    assert not is_deeper_than(body, depth(value))
    if depth(value):
        assert is_deeper_than(body, depth(value) - 1)


@pytest.mark.parametrize("text", ['"[[[["', '"\\"[[[["', '"\\\\"', '"[\\\\\\"[[["', '"{}[[{{"'])
def test_brackets_in_strings_and_behind_escapes_nest_nothing(text):
    assert not is_deeper_than(f"[{text}]".encode(), 1)


def test_the_deepest_allowed_answer_is_read_on_a_small_thread_stack():
    body = b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}"
    seen = []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: seen.append(decode_answer(body, 1)))
        thread.start()
        thread.join(10)
    finally:
        threading.stack_size(before)

    assert isinstance(seen[0], Answered)


def test_one_level_more_is_refused_before_it_is_decoded():
    body = b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}"

    assert decode_answer(body, 1) == Ambiguous("unreadable answer: nested deeper than 128", beyond=True)


def test_an_error_member_of_null_counts_as_absent():
    assert decode_answer(b'{"jsonrpc":"2.0","id":7,"result":null,"error":null}', 7) == Answered(None)


def test_members_that_nobody_asked_for_are_ignored():
    assert decode_answer(b'{"jsonrpc":"2.0","id":7,"result":1,"took":3}', 7) == Answered(1)


def test_a_request_is_plain_json_rpc():
    assert json.loads(encode_request("m", {"a": [1, "ä"]}, 5)) == {
        "jsonrpc": "2.0",
        "id": 5,
        "method": "m",
        "params": {"a": [1, "ä"]},
    }


def test_whether_the_server_is_down_must_be_said():
    with pytest.raises(TypeError):
        NotSent("why")

"""What an answer of the face must look like, given the bytes that it answers: the second opinion of another JSON reader.

Python's own `json` is asked what the body is.  Where it finds no JSON, the answer must be a parse error; where it finds some that keeps
to the limits, it must not be.  Between the two lies what only one of them refuses, and that is written down here.
"""

import json
import math
from typing import Any

from scheduler_daemon import limits
from scheduler_daemon.api.faults import FAULTS
from scheduler_daemon.jsonrpc import BATCH_MAX, DEPTH_MAX, VALUES_MAX

PROTOCOL = frozenset({-32700, -32600, -32601, -32602})
SERVER = frozenset({"KeyError", "ValueError"})
"""Words of the workflow server that the daemon passes on."""

UNREADABLE = object()
"""No JSON for any reader."""

DOUBTFUL = object()
"""JSON for some readers: the daemon may refuse it, and may not."""


def complaint(text: bytes, status: int, answer: bytes) -> str | None:
    """What is wrong with an answer to `text`; None when nothing is."""
    if len(text) > limits.BODY_BYTES_MAX:
        return None if status == 413 else f"a body of {len(text)} bytes was answered with {status}"
    if status not in {200, 204}:
        return f"HTTP {status}"
    value = read(text)
    if status == 204:
        return None if answer == b"" and _wants_no_answer(value) else "204 for something that wants an answer"
    try:
        said = json.loads(answer, parse_constant=_refuse, object_pairs_hook=_once)
    except ValueError as error:
        return f"the answer is no JSON: {error}"
    return _whole(value, said)


def read(text: bytes) -> Any:
    """The value in the bytes, or what stands for none."""
    try:
        plain = text.decode()
        value = json.loads(plain, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_once)
    except RecursionError:
        return DOUBTFUL
    except ValueError as error:
        # More digits than Python converts: a number all the same.
        return DOUBTFUL if "digits" in str(error) else UNREADABLE
    if _has_lone_surrogates(plain) or _exceeds(value):
        return DOUBTFUL
    return value


def _whole(value: Any, said: Any) -> str | None:
    answers = said if isinstance(said, list) else [said]
    for one in answers:
        if (wrong := _malformed(one)) is not None:
            return wrong
    if value is UNREADABLE:
        return None if _code(said) == -32700 else "no JSON, and yet no parse error"
    if value is DOUBTFUL:
        return None
    if _code(said) == -32700:
        return f"JSON, and yet a parse error: {said['error']}"
    if isinstance(value, list):
        return _batch(value, said)
    return _pair(value, said)


def _batch(value: list[Any], said: Any) -> str | None:
    if not 0 < len(value) <= BATCH_MAX:
        return None if _code(said) == -32600 else f"a batch of {len(value)} was not refused"
    if not isinstance(said, list):
        return "a batch was answered by one answer"
    wanted = [one for one in value if not _wants_no_answer(one)]
    if len(wanted) != len(said):
        return f"{len(said)} answers to {len(wanted)} requests"
    return next((wrong for one, answer in zip(wanted, said, strict=True) if (wrong := _pair(one, answer))), None)


def _pair(request: Any, answer: Any) -> str | None:
    if isinstance(answer, list):
        return "one request was answered by a batch"
    if not _is_request(request):
        return None if _code(answer) == -32600 and answer["id"] is None else "what is no request was not refused as one"
    if answer["id"] != request["id"] or type(answer["id"]) is not type(request["id"]):
        return f"the answer to {request['id']!r} has the id {answer['id']!r}"
    return None


def _malformed(answer: Any) -> str | None:
    if not isinstance(answer, dict) or answer.get("jsonrpc") != "2.0" or "id" not in answer:
        return f"no JSON-RPC answer: {str(answer)[:200]}"
    if answer.keys() == {"jsonrpc", "result", "id"}:
        return None
    if answer.keys() != {"jsonrpc", "error", "id"}:
        return f"members {sorted(answer)}"
    error = answer["error"]
    if error["code"] == 5000:
        known = (error["data"]["code"] in FAULTS and error["data"]["hint"]) or error["data"]["code"] in SERVER
        return None if known else f"an unknown refusal: {error}"
    return None if error["code"] in PROTOCOL else f"error {error}"


def _code(answer: Any) -> int | None:
    return answer["error"]["code"] if isinstance(answer, dict) and "error" in answer else None


def _is_request(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() <= {"jsonrpc", "method", "params", "id"}
        and value.get("jsonrpc") == "2.0"
        and isinstance(value.get("method"), str)
        and isinstance(value.get("params", {}), dict | list)
        and type(value.get("id")) in (str, int, type(None))
    )


def _wants_no_answer(value: Any) -> bool:
    if isinstance(value, list):
        return 0 < len(value) <= BATCH_MAX and all(_is_notification(one) for one in value)
    return _is_notification(value)


def _is_notification(value: Any) -> bool:
    return _is_request(value) and "id" not in value


def _exceeds(value: Any) -> bool:
    """Whether it nests deeper, or holds more values, than a body may."""
    level, seen = [value], 0
    for _ in range(DEPTH_MAX + 1):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict | list):
                seen += 1 + max(0, len(node) - 1)
                inner += node.values() if isinstance(node, dict) else node
        if seen > VALUES_MAX:
            return True
        if not any(isinstance(node, dict | list) for node in level):
            return False
        level = inner
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is out of range")
    return number


def _has_lone_surrogates(plain: str) -> bool:
    return "\\ud" in plain.lower()

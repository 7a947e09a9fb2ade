"""Bodies for `POST /rpc`: legal calls, calls with one thing wrong, and texts that no program of good will writes.

`body(seed, index)` is a pure function, so that two numbers reproduce any one of them.  Whatever a body carries as a value has MARK in
it somewhere: the log must never show it.
"""

import copy
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

MARK = "mark-of-the-caller"
"""In inputs, notes and unknown members."""

IDS = 48
"""Schedule ids that legal calls use, so that a long run does not fill the store with schedules."""


class Body(NamedTuple):
    """The bytes, and the name of the generator that made them."""

    kind: str
    text: bytes


def body(seed: int, index: int) -> Body:
    """The body of this number."""
    draw = random.Random(f"{seed}/{index}")
    make = draw.choices(KINDS, WEIGHTS)[0]
    return Body(make.__name__, make(draw))


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


# --- legal calls ------------------------------------------------------------------------------------------------------

NASTY = [
    None, True, False, 0, -1, 1, 1.5, -0.0, 2**31, 2**53, 2**63, 2**64, 10**30, -(10**30), 1e308, "", " ", "a", "\x00", "\n", "\x1b[2J",
    "../../etc/passwd", "..\\..", "/", ".", "..", "-rf", "a/b", "a" * 129, "ä", "\u202e", "\u2028", "\ufeff", "😀" * 10, "%s%n%x",
    "{{7*7}}", "' OR 1=1 --", "${IFS}", "$(reboot)", "`id`", "<script>", "null", "NaN", "__proto__", "constructor", "\\", '"', "\\u0000",
    "0 9 * * 1-5", "* * * * * *", "@daily", "H * * * *", "0 0 30 2 *", "*/0 * * * *", "59 23 31 12 7", "a-a * * * *", "5-5 * * * *",
    "2030-01-31T09:00:00+01:00", "2030-01-31T09:00:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "2030-02-30T00:00:00Z",
    "Europe/Berlin", "../UTC", "posixrules", "UTC\x00", [], {}, [[]], {"": ""}, ["a"], {"a": {"b": {"c": 1}}}, [None] * 100, MARK,
]  # fmt: skip
WORDS = (
    "skip",
    "parallel",
    "latest",
    "active",
    "paused",
    "deleted",
    "blocked",
    "finished",
    "submitted",
    "cron",
    "oneshot",
)
DEPLOYMENTS = ("hello.default", "hello.default", "hello.default", "nobody.default")


def nasty(draw: random.Random) -> Any:
    """A value that does not belong, or a legal word that does not belong there; a copy, which may be changed."""
    return copy.deepcopy(draw.choice((*NASTY, *WORDS)))


def schedule_id(draw: random.Random) -> str:
    return f"fuzz-{draw.randrange(IDS)}"


def run_id(draw: random.Random) -> str:
    return draw.choice((f"run-{draw.randrange(1, 40):06}", "run_" + "0" * 32, "server-run"))


def trigger(draw: random.Random) -> dict[str, Any]:
    if draw.random() < 0.5:
        return {"kind": "oneshot", "at": f"20{draw.randrange(40, 76)}-0{draw.randrange(1, 10)}-11T09:00:00+02:00"}
    expression = f"{draw.randrange(60)} {draw.randrange(24)} {draw.randrange(1, 28)} {draw.randrange(1, 13)} *"
    zone = draw.choice(("UTC", "Europe/Berlin", "America/New_York"))
    return {"kind": "cron", "expression": expression, "timezone": zone}


def definition(draw: random.Random) -> dict[str, Any]:
    given = {
        "input": {"who": {"value": [MARK, draw.random()]}, "at": {"from": "occurrence.instant"}},
        "overlap": "skip",
        "misfire": draw.choice(("skip", "latest")),
        "lateness_s": draw.randrange(1, 86_400),
        "hold_unknown_s": draw.random() * 1000,
        "run_timeout_s": draw.randrange(1, 10_000),
        "max_steps": draw.randrange(1, 100),
    }
    return {name: value for name, value in given.items() if draw.random() < 0.4}


def params_of(draw: random.Random, method: str) -> dict[str, Any]:
    """Params that the method takes."""
    one = {"schedule_id": schedule_id(draw)}
    note = {"note": f"{MARK} {draw.random()}"}
    match method.removeprefix("workflow."):
        case "schedules.create":
            return {**one, "deployment_id": draw.choice(DEPLOYMENTS), "trigger": trigger(draw), **definition(draw)}
        case "schedules.update":
            return {**one, "expected_revision": draw.randrange(1, 9), **definition(draw)}
        case "schedules.get":
            return one
        case "schedules.list":
            return {"limit": draw.randrange(1, 30), "include_deleted": draw.random() < 0.5}
        case "schedules.pause" | "schedules.resume" | "schedules.delete":
            return one | (note if draw.random() < 0.5 else {})
        case "schedules.unblock":
            return one | note
        case "schedules.occurrences.list":
            return one | {"limit": draw.randrange(1, 101)}
        case "runs.inspect":
            return {"run_id": run_id(draw)}
        case "runs.resume":
            return {"run_id": run_id(draw), "resume_payload": {"a": MARK}, "wait": draw.random() < 0.5}
        case "runs.abandon":
            return {"run_id": run_id(draw), **note}
        case _:
            return {}


# `delete` is rare: its ids are gone for good, and with all of them deleted nothing else would happen any more.
METHODS = (
    *("workflow.schedules.create", "workflow.schedules.update", "workflow.schedules.get", "workflow.schedules.list") * 10,
    *("workflow.schedules.pause", "workflow.schedules.resume", "workflow.schedules.occurrences.list", "workflow.health") * 10,
    *("workflow.runs.inspect", "workflow.runs.resume", "workflow.runs.abandon", "workflow.schedules.unblock") * 10,
    *("rpc.discover",) * 3,
    "workflow.schedules.delete",
)  # fmt: skip


def call(draw: random.Random) -> dict[str, Any]:
    """A legal request."""
    method = draw.choice(METHODS)
    request = {"jsonrpc": "2.0", "id": draw.choice((1, 0, -7, "a", "", None, 2**60)), "method": method}
    given = params_of(draw, method)
    return {**request, "params": given} if given or draw.random() < 0.5 else request


def legal(draw: random.Random) -> bytes:
    return dumped(call(draw))


def notification(draw: random.Random) -> bytes:
    request = call(draw)
    del request["id"]
    return dumped(request)


# --- one thing wrong --------------------------------------------------------------------------------------------------


def near(draw: random.Random) -> bytes:
    """A legal call with one to three things changed."""
    request = call(draw)
    for _ in range(draw.randrange(1, 4)):
        _spoil(draw, request)
    return dumped(request)


def _spoil(draw: random.Random, request: dict[str, Any]) -> None:
    given = request.get("params")
    match draw.randrange(8):
        case 0:
            request[draw.choice(("jsonrpc", "id", "method", "params"))] = nasty(draw)
        case 1:
            request.pop(draw.choice(("jsonrpc", "id", "method", "params")), None)
        case 2:
            request[draw.choice(("parms", "extra", "", MARK, "id2"))] = nasty(draw)
        case 3:
            names = (
                "workflow.schedules.purge",
                "rpc.",
                "",
                "workflow.",
                "__init__",
                "a" * 5000,
                "workflow." + "a" * 5000,
            )
            request["method"] = draw.choice((*names, str(request.get("method"))[:-1]))
        case 4 if isinstance(given, dict) and given:
            given.pop(draw.choice(sorted(given)))
        case 5 if isinstance(given, dict):
            given[draw.choice(("note", "cursor", "limit", "revision", MARK, "schedule_id\x00"))] = nasty(draw)
        case _ if isinstance(given, dict) and given:
            _replace_inside(draw, given)
        case _:
            request["params"] = copy.deepcopy(draw.choice(([], [1], {"a": 1}, "x", None, [MARK] * 1000)))


def _replace_inside(draw: random.Random, node: dict[str, Any]) -> None:
    """Put a nasty value, or a legal word where it does not belong, somewhere inside."""
    name = draw.choice(sorted(node))
    inner = node[name]
    if isinstance(inner, dict) and inner and draw.random() < 0.6:
        _replace_inside(draw, inner)
    else:
        node[name] = nasty(draw)


# --- no program of good will ------------------------------------------------------------------------------------------


def deep(draw: random.Random) -> bytes:
    """Nested around the limit and far beyond it, closed or not."""
    depth = draw.choice((5, 20, 29, 30, 31, 32, 33, 34, 100, 2000, 60_000))
    opened, closed = draw.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]"), (b"[[],", b"]")))
    inner = opened * depth + b"1" + closed * (depth if draw.random() < 0.8 else draw.randrange(depth))
    bound = b'"params":{"schedule_id":"a","input":{"x":{"value":%s}}}'
    place = draw.choice((b'"params":%s', bound, b'"id":%s', b'"method":%s'))
    return b'{"jsonrpc":"2.0","method":"workflow.schedules.create",' + place % inner + b"}"


NUMBERS = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "9" * 400, "9" * 5000, "0." + "1" * 3000, "1e" + "9" * 50, "-0", "00",
    "01", "1.", ".5", "+1", "0x10", "1_000", "1e", "1e+", "--1", "- 1", "9007199254740993", "18446744073709551616", "-9223372036854775809",
)  # fmt: skip


def number(draw: random.Random) -> bytes:
    """A number that readers disagree about, or that is none, in the place of some number."""
    text = dumped(call(draw)).decode()
    places = [at for at, letter in enumerate(text) if letter.isdigit() and not text[at - 1].isdigit()]
    at = draw.choice(places)
    if draw.random() < 0.5:
        return (text[:at] + draw.choice(NUMBERS) + text[at + 1 :]).encode()
    one, other = draw.choice(NUMBERS), draw.choice(NUMBERS)
    return f'{{"jsonrpc":"2.0","id":{one},"method":"workflow.schedules.list","params":{{"limit":{other}}}}}'.encode()


def twice(draw: random.Random) -> bytes:
    """An object that names a key twice, perhaps in two spellings."""
    text = dumped(call(draw)).decode()
    name = draw.choice(("jsonrpc", "method", "id", "params", "schedule_id", "kind", MARK))
    spelled = name if draw.random() < 0.5 else f"\\u{ord(name[0]):04x}{name[1:]}"
    member = f'"{spelled}":{draw.choice(("1", "null", json.dumps(MARK), "{}"))}'
    opened = [at for at, letter in enumerate(text) if letter == "{"]
    at = draw.choice(opened) + 1
    doubled = f"{text[:at]}{member},{text[at:]}"
    return (doubled if draw.random() < 0.7 else f"{doubled[:at]}{member},{doubled[at:]}").encode()


BROKEN = (
    b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x80", b"\xf0\x9f\x98", b"\xfe\xff", b"\\ud800",
    b"\\udc00\\ud800", b"\x00", b"\x01", b"\x7f", b"\xc2\x85", b"\xe2\x80\xa8", b"\\u0000", b"\\x41", b"\\", b"\xef\xbb\xbf", b"\n",
)  # fmt: skip


def unicode(draw: random.Random) -> bytes:
    """Bytes that are no UTF-8, and characters that should not be there, inside strings and between them."""
    text = bytearray(dumped(call(draw)))
    for _ in range(draw.randrange(1, 3)):
        at = draw.randrange(len(text) + 1)
        text[at:at] = draw.choice(BROKEN)
    return bytes(text)


def damaged(draw: random.Random) -> bytes:
    """A legal call with bytes changed, cut off, or with something behind it."""
    text = bytearray(legal(draw))
    match draw.randrange(4):
        case 0:
            return bytes(text[: draw.randrange(len(text))])
        case 1:
            return bytes(text) + draw.choice((b"x", b"{}", b",", b"\x00", b"]", b" \n\t"))
        case _:
            for _ in range(draw.randrange(1, 6)):
                text[draw.randrange(len(text))] = draw.randrange(256)
            return bytes(text)


def noise(draw: random.Random) -> bytes:
    """No JSON at all."""
    text = (b"", b" ", b"null", b"true", b"{}", b"[]", b'"a"', b"<xml/>", b"GET / HTTP/1.1\r\n\r\n")
    return draw.choice((*text, draw.randbytes(draw.randrange(200))))


def batch(draw: random.Random) -> bytes:
    """Batches of every size, of legal calls, notifications and what is neither."""
    size = draw.choice((0, 1, 2, 3, 5, 5, 8, 49, 50, 51, 500))
    few = [draw.choice((legal, legal, notification, near, number, noise))(draw) for _ in range(min(size, 6))]
    return b"[" + b",".join(few[place % len(few)] for place in range(size)) + b"]"


UNITS = (
    b"{}", b"[]", b"1", b'""', b'{"a":1}', b"null", b'"\\u00e9"', b"[[[[[[[[]]]]]]]]", b'{"jsonrpc":"2.0","method":"workflow.health"}',
)  # fmt: skip


def giant(draw: random.Random) -> bytes:
    """Up to the largest body that is read, and a little more."""
    size = draw.choice((1 << 18, (1 << 20) - 40, (1 << 20) - 40, (1 << 20) + 1))
    match draw.randrange(4):
        case 0:
            unit = draw.choice(UNITS)
            return b"[" + b",".join([unit] * ((size - 2) // (len(unit) + 1))) + b"]"
        case 1:
            filler = draw.choice((b"x", b'\\"', b"\\\\", b"\\u00e9", "ä".encode(), b" ", b"[", b"{", b'"'))
            head = b'{"jsonrpc":"2.0","id":1,"method":"workflow.schedules.get","params":{"schedule_id":"'
            return head + filler * ((size - len(head) - 3) // len(filler)) + b'"}}'
        case 2:
            members = b",".join(b'"k%07d":1' % number for number in range(size // 13))
            return b'{"jsonrpc":"2.0","id":1,"method":"workflow.health","params":{' + members + b"}}"
        case _:
            return draw.choice((b"[", b"]", b'"', b"\\", b" ", b"9", b"\xff", b"\x00")) * size


KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    legal, notification, near, deep, number, twice, unicode, damaged, noise, batch, giant,
)  # fmt: skip
WEIGHTS = (200, 40, 280, 60, 70, 70, 80, 80, 40, 70, 3)

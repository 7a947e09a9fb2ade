"""Many calls at once to a server that answers each in another way: what the endings say is true, and nothing is left behind.

Single faults have tests of their own in `test_transport.py`; here connections are shared, given back and taken again between them.
"""

import asyncio
import random
from collections import Counter

import pytest

from rpc_client.errors import Answered, NotSent
from rpc_client.transport import CallProbe, Transport
from tests.fakes.raw import http_answer, listening, read_request

CALLS_AT_ONCE, ROUNDS = 40, 8
LONG = 300_000
"""More than is read ahead, so that reading pauses and goes on."""


async def _say(how, good, writer):
    """Answer in this way; whether the connection may carry another request."""
    match how:
        case "plain":
            writer.write(http_answer(good))
        case "in pieces":
            answer = http_answer(good)
            for at in range(0, 400, 7):
                writer.write(answer[at : at + 7])
                await asyncio.sleep(0)
            writer.write(answer[406:])
        case "in chunks":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(good), 1000):
                writer.write(b"%x\r\n%b\r\n" % (len(good[at : at + 1000]), good[at : at + 1000]))
                await asyncio.sleep(0)
            writer.write(b"0\r\nTrailer: x\r\n\r\n")
        case "more than asked for":
            writer.write(http_answer(good) + http_answer(b"", status="408 Request Timeout"))
        case "no content":
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        case "an error page":
            writer.write(http_answer(b"error" * 1000, status="500 Internal Server Error"))
        case "until the end":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + good)
            return False
        case "goodbye":
            writer.write(http_answer(good, headers=("Connection: close",)))
            return False
        case "an older protocol":
            writer.write(http_answer(good).replace(b"HTTP/1.1", b"HTTP/1.0"))
            return False
        case "half":
            writer.write(http_answer(good)[:60])
            return False
        case "nothing":
            return False
    return True


WHOLE = ("in pieces", "in chunks", "more than asked for", "until the end", "goodbye", "an older protocol")
BROKEN = ("no content", "an error page", "half", "nothing")


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_a_crowd_of_calls_meets_each_ending_is_true_and_every_connection_is_given_back(seed):
    dice, arrived, wrong = random.Random(seed), Counter(), []

    async def serve(reader, writer):
        head, goes_on = bytearray(), True
        while goes_on:
            request = await read_request(reader, head)
            asked = request["params"]
            arrived[asked["name"]] += 1
            good = b'{"jsonrpc":"2.0","id":%d,"result":"%b"}' % (request["id"], b"x" * asked["size"])
            goes_on = await _say(asked["how"], good, writer)
            await writer.drain()

    async def one(transport, name):
        how = dice.choice(("plain",) * 8 + WHOLE + BROKEN)
        blocking, size, probe = dice.random() < 0.7, dice.choice((1, 1, 1, LONG)), CallProbe()
        params = {"name": name, "how": how, "size": size, "padding": "p" * dice.choice((0, 0, LONG))}
        timeout_s = dice.choice((None, 30.0))
        calling = asyncio.create_task(transport.call("m", params, blocking=blocking, probe=probe, timeout_s=timeout_s))
        if dice.random() < 0.1:
            for _ in range(dice.randrange(30)):
                await asyncio.sleep(0)
            calling.cancel()
        (ending,) = await asyncio.gather(calling, return_exceptions=True)
        cancelled = isinstance(ending, asyncio.CancelledError)
        unsent = not probe.sent if cancelled else isinstance(ending, NotSent) and ending.http_status is None
        false = isinstance(ending, Answered) and ending.result != "x" * size
        if false or arrived[name] > (1 if blocking else 2) or (unsent and arrived[name]):
            wrong.append((how, blocking, arrived[name], ending))
        return "cancelled" if cancelled else (how, type(ending).__name__)

    async with listening(serve) as port, Transport(f"http://127.0.0.1:{port}") as transport:
        met = Counter()
        for turn in range(ROUNDS):
            met.update(await asyncio.gather(*(one(transport, f"{turn}-{n}") for n in range(CALLS_AT_ONCE))))
        held = [len(pool._connector._acquired) for pool in (transport._blocking, transport._reads)]

    assert wrong == []
    assert held == [0, 0]
    assert met["cancelled"]
    assert all(met[how, "Answered"] for how in ("plain", *WHOLE))
    assert all(met[how, "Ambiguous"] for how in BROKEN)

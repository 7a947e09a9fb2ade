"""What the benchmarks ask of the daemon: definitions, and many creates and reads at once.

Owns: the calls, singly by `rpc_client.App` and in JSON-RPC batches.  Must never know: what is measured by them.
A create counts when it was acknowledged, which comes after the schedule is durable.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice

import aiohttp
import msgspec

from rpc_client import App
from rpc_client.codec import encode_request

CONNECTIONS = 32
BATCH = 50
"""As many calls as the daemon takes in one body."""

_HEADERS = {"Content-Type": "application/json"}
_ROWS_MAX = 100


def oneshot(schedule_id: str, due: datetime) -> dict:
    return _definition(schedule_id, {"kind": "oneshot", "at": due.isoformat()})


def cron(schedule_id: str, expression: str, timezone: str = "UTC") -> dict:
    return _definition(schedule_id, {"kind": "cron", "expression": expression, "timezone": timezone})


def _definition(schedule_id: str, trigger: dict) -> dict:
    """The start tells the stub whose it is and which instant it is for."""
    told = {"k": {"value": schedule_id}, "due": {"from": "occurrence.instant"}}
    return {"schedule_id": schedule_id, "deployment_id": "bench", "trigger": trigger, "input": told}


async def create_singly(url: str, definitions: Iterable[dict], connections: int = CONNECTIONS) -> tuple[int, float]:
    """One create a call, by so many callers; how many were acknowledged, and the seconds it took."""
    left, acknowledged = iter(definitions), 0

    async def work(app: App) -> None:
        nonlocal acknowledged
        for definition in left:
            await app.create_schedule(**definition)
            acknowledged += 1

    async with App(url) as app:
        began = time.perf_counter()
        await asyncio.gather(*(work(app) for _ in range(connections)))
        return acknowledged, time.perf_counter() - began


async def create_in_batches(url: str, definitions: Iterable[dict]) -> tuple[int, float]:
    """The same in bodies of fifty creates."""
    began = time.perf_counter()
    answers = await in_batches(url, (("workflow.schedules.create", definition) for definition in definitions))
    seconds = time.perf_counter() - began
    refused = [answer for answer in answers if "result" not in answer]
    assert not refused, refused[0]
    return len(answers), seconds


async def histories(url: str, schedule_ids: Iterable[str]) -> dict[str, list[dict]]:
    """The first hundred rows of each of these, oldest first."""
    ids = list(schedule_ids)
    method = "workflow.schedules.occurrences.list"
    answers = await in_batches(url, ((method, {"schedule_id": one, "limit": _ROWS_MAX}) for one in ids))
    return {one: answer["result"]["occurrences"] for one, answer in zip(ids, answers, strict=True)}


async def in_batches(url: str, calls: Iterable[tuple[str, dict]], connections: int = CONNECTIONS) -> list[dict]:
    """Every answer, in the order of the calls."""
    answers: dict[int, dict] = {}
    left = _bodies(calls)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections)) as session:

        async def work() -> None:
            for body in left:
                async with session.post(url, data=body, headers=_HEADERS) as response:
                    for answer in msgspec.json.decode(await response.read()):
                        answers[answer["id"]] = answer

        await asyncio.gather(*(work() for _ in range(connections)))
    return [answers[number] for number in sorted(answers)]


def _bodies(calls: Iterable[tuple[str, dict]]) -> Iterator[bytes]:
    numbered = enumerate(calls)
    while group := list(islice(numbered, BATCH)):
        yield b"[" + b",".join(encode_request(method, params, number) for number, (method, params) in group) + b"]"

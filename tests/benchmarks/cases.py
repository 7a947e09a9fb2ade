"""The cases: each sets up the real daemon beside the stub, measures one thing, and returns what it measured."""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from rpc_client.codec import encode_request
from tests.integration.process import Daemon, free_port, until


@asynccontextmanager
async def stub() -> AsyncIterator[str]:
    """The stub as a process of its own; yields its base URL."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.stub", str(port), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def daemon_and_stub(*options: str) -> AsyncIterator[tuple[Daemon, str]]:
    with tempfile.TemporaryDirectory(prefix="scheduler-bench-") as folder:
        async with stub() as url:
            daemon = Daemon(Path(folder), server=f"{url}/rpc", options=options)
            async with daemon:
                yield daemon, url


async def arrivals(url: str) -> list[Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/arrivals") as response:
        return await response.json()


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)  # noqa: E731
    return {"p50_ms": at(0.50), "p99_ms": at(0.99), "max_ms": round(ordered[-1], 3)}


def _lateness_ms(seen: list[Any]) -> list[float]:
    return [(at - datetime.fromisoformat(due).timestamp()) * 1000 for at, due, _ in seen if due]


async def register(url: str, definitions: list[dict[str, Any]], *, connections: int = 32) -> float:
    """Create all of these, one call each, over so many connections; seconds taken."""
    left = iter(definitions)
    began = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections)) as session:

        async def worker() -> None:
            for number, definition in enumerate(left):
                body = encode_request("workflow.schedules.create", definition, number)
                async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
                    answer = await response.json()
                    assert "result" in answer, answer

        await asyncio.gather(*(worker() for _ in range(connections)))
    return time.perf_counter() - began


def _oneshot(schedule_id: str, due: datetime) -> dict[str, Any]:
    at = due.isoformat()
    return {
        "schedule_id": schedule_id,
        "deployment_id": "bench",
        "trigger": {"kind": "oneshot", "at": at},
        "input": {"due": {"from": "occurrence.instant"}},
    }


async def lateness(count: int = 60) -> dict[str, Any]:
    """One-shots due one second apart on an idle machine: from the instant to the arrival of the start."""
    async with daemon_and_stub() as (daemon, url):
        first = datetime.now(UTC) + timedelta(seconds=3)
        await register(daemon.url, [_oneshot(f"s{n}", first + timedelta(seconds=n)) for n in range(count)])
        await _all_arrived(url, count, count + 30)
        return {"case": "one-shots one second apart", "n": count, **percentiles(_lateness_ms(await arrivals(url)))}


async def burst(count: int = 1000, slots: int = 64) -> dict[str, Any]:
    """One-shots due at one instant, as many at once as there are slots."""
    async with daemon_and_stub("--max-concurrent-runs", str(slots)) as (daemon, url):
        due = datetime.now(UTC) + timedelta(seconds=5 + count / 300)
        took_s = await register(daemon.url, [_oneshot(f"s{n}", due) for n in range(count)])
        await _all_arrived(url, count, 120)
        seen = await arrivals(url)
        late = _lateness_ms(seen)
        return {
            "case": "burst of one-shots",
            "n": count,
            "slots": slots,
            "register_per_s": round(count / took_s),
            "first_ms": round(min(late), 3),
            **percentiles(late),
            "firings_per_s": round(count / (max(late) / 1000)),
            "bare_loop_per_s": round(await _bare_loop(url, count, slots)),
        }


async def _all_arrived(url: str, count: int, seconds: float) -> None:
    async def there() -> bool:
        return len(await arrivals(url)) >= count

    await until(there, seconds=seconds, every_s=0.25)


async def _bare_loop(url: str, count: int, slots: int) -> float:
    """The floor: the same posts by a loop that keeps no promise; per second."""
    left = iter(range(count))
    began = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def worker() -> None:
            for number in left:
                body = encode_request("workflow.runs.start", {"deployment_id": "bench", "workflow_input": {}}, number)
                async with session.post(
                    f"{url}/rpc", data=body, headers={"Content-Type": "application/json"}
                ) as response:
                    await response.read()

        await asyncio.gather(*(worker() for _ in range(slots)))
    return count / (time.perf_counter() - began)

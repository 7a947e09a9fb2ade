"""The bench itself: the daemon and the stub as processes of their own, what arrived, how late, and the floor beside it.

Owns: setting both up on a scratch store, waiting for arrivals, the arithmetic of lateness, the bare loop.  Must never know: the cases.
"""

import asyncio
import math
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from rpc_client.codec import encode_request
from tests.benchmarks import machine
from tests.integration.process import Daemon, free_port, until

SLOTS = 64
AS_INSTALLED = {"PYTHONDONTWRITEBYTECODE": ""}
"""An installation has its modules compiled; a start that compiles them each time would measure the compiler."""

_HEADERS = {"Content-Type": "application/json"}


class Rig:
    """One daemon on one store, one stub; `async with` of `rig` ends both."""

    def __init__(self, daemon: Daemon, stub_url: str, http: aiohttp.ClientSession) -> None:
        self.daemon = daemon
        self.stub_url = stub_url
        self.started_at = 0.0
        self._http = http

    async def start(self) -> float:
        """Start the daemon; seconds until it says that it is scheduling."""
        self.started_at = time.time()
        began = time.perf_counter()
        await self.daemon.start()
        await until(self._ready, seconds=60, every_s=0.005)
        return time.perf_counter() - began

    async def _ready(self) -> bool:
        async with self._http.get(self.daemon.url.removesuffix("rpc") + "readyz") as response:
            return response.status == 200

    def usage(self) -> machine.Usage:
        assert self.daemon.process is not None
        return machine.usage(self.daemon.process.pid)

    async def commits(self) -> tuple[int, float]:
        """How many batches were made durable since the start, and the seconds that took."""
        async with self._http.get(self.daemon.url.removesuffix("rpc") + "metrics") as response:
            page = dict(line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line[0] != "#")
        return int(float(page["scheduler_commit_seconds_count"])), float(page["scheduler_commit_seconds_sum"])

    async def arrivals(self) -> list[Any]:
        return await self._told("arrivals")

    async def count(self) -> int:
        return (await self._told("stats"))["count"]

    async def forget(self) -> None:
        await self._told("reset")

    async def _told(self, what: str) -> Any:
        async with self._http.get(f"{self.stub_url}/{what}") as response:
            return await response.json()

    async def arrived(self, count: int, seconds: float, every_s: float = 0.1) -> None:
        """Wait until so many starts have come in."""

        async def there() -> bool:
            return await self.count() >= count

        await until(there, seconds=seconds, every_s=every_s)

    async def quiet(self, wanted: int, seconds: float, rest_s: float = 3.0) -> None:
        """Wait until so many starts have come in, or none has for `rest_s`."""
        last, since = -1, time.monotonic()
        while (count := await self.count()) < wanted and time.monotonic() - since < seconds:
            if count != last:
                last, moved = count, time.monotonic()
            elif time.monotonic() - moved > rest_s:
                return
            await asyncio.sleep(0.1)


Seed = Callable[[Path], Awaitable[None]]


@asynccontextmanager
async def rig(*options: str, slots: int = SLOTS, seed: Seed | None = None) -> AsyncIterator[Rig]:
    """A rig whose daemon is started; on the store that `seed` has written, if it is given."""
    with tempfile.TemporaryDirectory(prefix="scheduler-bench-") as name:
        folder = Path(name)
        if seed is not None:
            await seed(folder / "store")
        async with stub() as url, aiohttp.ClientSession() as http:
            options = ("--max-concurrent-runs", str(slots), *options)
            made = Rig(Daemon(folder, server=f"{url}/rpc", options=options), url, http)
            made.daemon.environment = AS_INSTALLED
            await made.start()
            try:
                yield made
            finally:
                process = made.daemon.process
                if process is not None and process.returncode is None:
                    await made.daemon.kill()


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


# --- arithmetic -------------------------------------------------------------------------------------------------------


def lateness_ms(seen: list[Any]) -> list[float]:
    """From the instant to the first arrival of each start, in the order of arrival."""
    first: dict[tuple[str, str], float] = {}
    for arrived_at, k, due in seen:
        if due is not None:
            first.setdefault((k, due), arrived_at)
    return [(arrived_at - datetime.fromisoformat(due).timestamp()) * 1000 for (_, due), arrived_at in first.items()]


def spread(values: list[float]) -> dict[str, float]:
    """The quantiles that the table asks for."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"p50_ms": at(0.50), "p99_ms": at(0.99), "max_ms": round(ordered[-1], 3)}


def duplicates(seen: list[Any]) -> int:
    return len(seen) - len({(k, due) for _, k, due in seen})


def next_minute(at_least_s: float) -> datetime:
    """The first full minute that is at least so far ahead."""
    return datetime.fromtimestamp(math.ceil((time.time() + at_least_s) / 60) * 60, UTC)


def next_second(at_least_s: float) -> datetime:
    return datetime.fromtimestamp(math.ceil(time.time() + at_least_s), UTC)


async def wait_until(moment: datetime, before_s: float = 0.0) -> None:
    await asyncio.sleep(max(0.0, (moment - timedelta(seconds=before_s)).timestamp() - time.time()))


# --- the floor --------------------------------------------------------------------------------------------------------


async def bare_loop(stub_url: str, count: int, slots: int, *, closing: bool = False) -> float:
    """The same posts, as many at once, by a loop that keeps no promise; per second.

    `closing`: each on a connection of its own, as a client must that cannot afford a stale one.
    """
    connector = aiohttp.TCPConnector(limit=slots, force_close=closing)
    params = {"deployment_id": "bench", "workflow_input": {"k": "bare-00000", "due": "2026-01-05T09:00:00Z"}}
    bodies = iter([encode_request("workflow.runs.start", params, number) for number in range(count)])
    async with aiohttp.ClientSession(connector=connector) as session:

        async def work() -> None:
            for body in bodies:
                async with session.post(f"{stub_url}/rpc", data=body, headers=_HEADERS) as response:
                    await response.read()

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(slots)))
        return count / (time.perf_counter() - began)


async def floor(count: int, slots: int) -> dict[str, int]:
    """Both bare loops against a stub that nobody else uses."""
    async with stub() as url:
        await bare_loop(url, min(count, 500), slots)
        kept = await bare_loop(url, count, slots)
        closing = await bare_loop(url, count, slots, closing=True)
    return {"bare_loop_per_s": round(kept), "bare_loop_closing_per_s": round(closing)}

"""Cases about many schedules: creating them, holding them, not being slowed down by them, and reading a long history.

Owns: what is stored beside what is measured.  Must never know: what a figure should be.
"""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from rpc_client.codec import encode_request
from tests.benchmarks import calls, machine, seeds
from tests.benchmarks.firing import lead_s
from tests.benchmarks.rig import (
    Rig,
    bare_loop,
    duplicates,
    lateness_ms,
    next_minute,
    next_second,
    rig,
    spread,
    wait_until,
)

_SETTLE_S = 2.0
_PAGE = 100
_BYTES_KEPT = 1 << 34


async def registered(count: int = 10_000) -> dict[str, Any]:
    """Creates over 32 connections, one at a time and in batches of 50, and the bare loop of as many posts beside them."""
    async with rig() as bench:
        due = next_second(86_400)
        singly, singly_s = await calls.create_singly(
            bench.daemon.url, (calls.oneshot(f"a{n:06d}", due) for n in range(count))
        )
        batched, batched_s = await calls.create_in_batches(
            bench.daemon.url, (calls.oneshot(f"b{n:06d}", due) for n in range(count))
        )
        bare = await bare_loop(bench.stub_url, count, calls.CONNECTIONS, closing=True)
    return {
        "case": "register",
        "n": count,
        "acknowledged": singly + batched,
        "singly_per_s": round(singly / singly_s),
        "in_batches_per_s": round(batched / batched_s),
        "bare_loop_closing_per_s": round(bare),
    }


async def asleep(count: int = 100_000, *, idle_s: float = 30.0, starts: int = 3) -> dict[str, Any]:
    """Schedules of 300 expressions in 40 zones, none of them due: start, memory, cost of doing nothing."""
    written_at = seeds.ago(60)

    async def seed(root: Path) -> None:
        await seeds.written(root, written_at, seeds.asleep(count, written_at))

    async with rig(seed=seed) as bench:
        ready_s = []
        for _ in range(starts):
            await bench.daemon.stop()
            ready_s.append(await bench.start())
        idle = await _idle_cpu_s_per_min(bench, idle_s)
        return {
            "case": "asleep",
            "n": count,
            "ready_s": round(statistics.median(ready_s), 3),
            "resident_mb": round(bench.usage().resident_mb, 1),
            "idle_cpu_s_per_min": idle,
            "disk_mb": round(machine.disk_mb(bench.daemon.store), 1),
            "started": await bench.count(),
        }


async def _idle_cpu_s_per_min(bench: Rig, seconds: float) -> float:
    await asyncio.sleep(_SETTLE_S)
    before = bench.usage().cpu_s
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    return round((bench.usage().cpu_s - before) / (time.perf_counter() - began) * 60, 3)


async def paused(count: int = 100_000, *, awake: int = 10, minutes: int = 2) -> dict[str, Any]:
    """Minutely schedules, all paused but a few: the few are as on time as where nothing else is stored."""
    alone = await _minutely(awake, awake, minutes)
    beside = await _minutely(count, awake, minutes)
    return {
        "case": "all paused but a few",
        "n": count,
        "awake": awake,
        **beside,
        "alone": {name: alone[name] for name in ("first_ms", "p50_ms", "p99_ms")},
    }


async def _minutely(count: int, awake: int, minutes: int) -> dict[str, Any]:
    written_at = seeds.ago(1)

    async def seed(root: Path) -> None:
        await seeds.written(root, written_at, seeds.minutely(count, written_at, paused_from=awake))

    async with rig(seed=seed) as bench:
        await asyncio.sleep(_SETTLE_S)
        # What came due while the store was being written is late by no fault of the daemon's.
        await wait_until(next_minute(2), before_s=2)
        await bench.forget()
        before, began = bench.usage(), time.perf_counter()
        await bench.quiet(awake * minutes, minutes * 60 + 30, rest_s=70)
        minutes_taken = (time.perf_counter() - began) / 60
        seen, after = await bench.arrivals(), bench.usage()
    late = lateness_ms(seen)
    return {
        "first_ms": round(min(late), 3),
        "lost": awake * minutes - len(late),
        "duplicated": duplicates(seen),
        **spread(late),
        "cpu_s_per_min": round((after.cpu_s - before.cpu_s) / minutes_taken, 3),
    }


async def growth(
    few: int = 1_000, many: int = 100_000, *, firings: int = 1_000, idle_s: float = 20.0
) -> dict[str, Any]:
    """The same burst beside few and beside many sleeping schedules: processor time a firing, and of a wake with nothing due."""
    small, large = [await _beside(stored, firings, idle_s) for stored in (few, many)]
    return {
        "case": "growth",
        "n": [few, many],
        "firings": firings,
        "cpu_us_per_firing": [small["cpu_us"], large["cpu_us"]],
        "growth": round(large["cpu_us"] / small["cpu_us"], 3),
        "idle_cpu_s_per_min": [small["idle"], large["idle"]],
        "lost": small["lost"] + large["lost"],
    }


async def _beside(stored: int, firings: int, idle_s: float) -> dict[str, Any]:
    written_at = seeds.ago(60)

    async def seed(root: Path) -> None:
        await seeds.written(root, written_at, seeds.asleep(stored - firings, written_at))

    async with rig(seed=seed) as bench:
        idle = await _idle_cpu_s_per_min(bench, idle_s)
        due = next_second(lead_s(firings))
        await calls.create_in_batches(bench.daemon.url, (calls.oneshot(f"s{n:05d}", due) for n in range(firings)))
        await wait_until(due, before_s=0.5)
        before = bench.usage().cpu_s
        await bench.quiet(firings, 60, rest_s=10)
        spent = bench.usage().cpu_s - before
        lost = firings - len(lateness_ms(await bench.arrivals()))
    return {"cpu_us": round(spent / firings * 1e6), "idle": idle, "lost": lost}


async def history(rows: int = 1_000_000) -> dict[str, Any]:
    """Every page of one long history, a hundred rows each: time from the request to its whole answer."""
    ended_at = seeds.ago(1)

    async def seed(root: Path) -> None:
        await seeds.written(root, ended_at, seeds.history("long", rows, ended_at))

    kept = ("--retention-rows", str(max(rows, 1000)), "--retention-bytes", str(_BYTES_KEPT))
    async with rig(*kept, seed=seed) as bench:
        found, took_ms = await _pages(bench.daemon.url, "long")
        resident_mb = bench.usage().resident_mb
    return {
        "case": "history pages",
        "n": rows,
        "found": found,
        "pages": len(took_ms),
        "first_page_ms": round(took_ms[0], 3),
        "middle_page_ms": round(took_ms[len(took_ms) // 2], 3),
        "last_page_ms": round(took_ms[-1], 3),
        **spread(took_ms),
        "resident_mb": round(resident_mb, 1),
    }


async def _pages(url: str, schedule_id: str) -> tuple[int, list[float]]:
    found, took_ms, cursor = 0, [], None
    async with aiohttp.ClientSession() as session:
        while True:
            given = {"schedule_id": schedule_id, "limit": _PAGE, **({"cursor": cursor} if cursor else {})}
            body = encode_request("workflow.schedules.occurrences.list", given, len(took_ms))
            began = time.perf_counter()
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
                answer = await response.read()
            took_ms.append((time.perf_counter() - began) * 1000)
            page = msgspec.json.decode(answer)["result"]
            found += len(page["occurrences"])
            cursor = page["next_cursor"]
            if cursor is None:
                return found, took_ms

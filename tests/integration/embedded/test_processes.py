"""Steps are processes: whatever happens to the run, the server or the client, none is left behind."""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.integration.embedded.place import DEADLINE_S, Client, eventually, going_on, gone


async def test_a_step_out_of_time_is_ended_with_everything_it_started(client, place):
    run = await client.start("stubborn")
    assert (run["status"], run["error"]) == ("failed", "step 'step-1' was stopped after 0.3 s: still here")
    for pid in await place.pids(2):
        await eventually(lambda pid=pid: gone(pid))


async def test_what_a_step_leaves_in_the_background_neither_holds_the_run_nor_outlives_it(client, place):
    run = await client.start("leftover")
    assert (run["status"], run["output"]) == ("completed", {"left": 1})
    for pid in await place.pids(1):
        await eventually(lambda pid=pid: gone(pid))


async def test_stopping_the_server_ends_its_steps_and_the_next_start_says_so(client, server, place):
    async with going_on(client.start("hang", key="k")) as starting:
        pids = await place.pids(2)
        await server.stop()
        with pytest.raises(aiohttp.ClientError):
            await starting
    for pid in pids:
        await eventually(lambda pid=pid: gone(pid))

    client = Client(await server.start(), server.token)
    run = await client.start("hang", key="k")
    assert (run["status"], run["error"], run["trace_count"]) == ("failed", "server-restarted", 0)
    assert len(await place.pids(2)) == 2
    assert await client.inspect(run["run_id"]) == run


async def test_a_server_that_is_killed_takes_its_steps_with_it_grandchildren_included(process, place):
    client = Client(process.url, None)
    async with going_on(client.start("hang", key="k")) as starting:
        pids = await place.pids(2)
        await process.kill()
        with pytest.raises(aiohttp.ClientError):
            await starting
    for pid in pids:
        await eventually(lambda pid=pid: gone(pid))
    await process.restart()
    assert (await client.start("hang", key="k"))["error"] == "server-restarted"
    assert len(await place.pids(2)) == 2


async def test_a_launcher_that_is_killed_fails_the_run_and_is_replaced(client, server, place):
    async with going_on(client.start("gate")) as starting:
        [pid] = await place.pids(1)
        os.kill(_parent_of(pid), signal.SIGKILL)
        run = await starting
    assert run["status"] == "failed"
    assert "may have done its work" in run["error"]
    await eventually(lambda: gone(pid))
    assert (await client.start("hello"))["status"] == "completed"


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_run_goes_on_when_its_client_goes_away(client, place):
    async with going_on(client.start("gate")):
        await place.pids(1)
    assert await client.total() == 0
    place.open_the_gate()
    await eventually(lambda: place.ran() == ["x"])
    page = {}
    async with asyncio.timeout(DEADLINE_S):
        while not page.get("total"):
            page = (await client.ask("runs.list", {}))["result"]
    [row] = page["runs"]
    assert (row["deployment_id"], row["status"]) == ("gate.default", "completed")


async def test_many_runs_execute_at_once(client, place):
    async with going_on(asyncio.gather(*(client.start("gate") for _ in range(12)))) as starting:
        await place.pids(12)
        place.open_the_gate()
        runs = await starting
    assert {run["status"] for run in runs} == {"completed"}
    assert len({run["run_id"] for run in runs}) == 12

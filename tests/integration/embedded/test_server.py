"""The server as its clients and its owner see it."""

import io
from pathlib import Path

import aiohttp
import pytest

from scheduler_daemon.embedded.deployments import DeploymentsInvalid
from scheduler_daemon.embedded.runs import StoreUnusable
from scheduler_daemon.embedded.server import EmbeddedServer
from tests.integration.embedded.place import Client

# --- looking at it ---


async def test_what_cannot_start_is_unrunnable_with_a_diagnostic_and_makes_no_run(client):
    for name, code, place_of_it in (
        ("unbound", "program_missing", "x.argv"),
        ("nowhere", "folder_missing", "step-1.cwd"),
    ):
        validated = (await client.ask("deployments.validate", {"deployment_id": f"{name}.default"}))["result"]
        [diagnostic] = validated["diagnostics"]
        assert (validated["status"], diagnostic["code"], diagnostic["logical_ref"]) == ("unrunnable", code, place_of_it)
        run = await client.start(name)
        assert (run["status"], run["run_id"], run["output"]) == ("unrunnable", None, None)
        assert run["diagnostics"] == [diagnostic]
    assert await client.total() == 0


async def test_input_that_violates_the_schema_makes_a_failed_run_and_executes_nothing(client):
    run = await client.start("hello", {"who": 1}, key="k")
    assert (run["status"], run["trace_count"]) == ("failed", 0)
    assert run["error"] == "workflow input: 1 is not of type 'string'"
    assert await client.start("hello", {"who": 1}, key="k") == run


async def test_the_trace_can_be_read_in_parts(client):
    started = await client.start("approval", trace_range={"start": 1})
    assert [(entry["step"], entry["event"]) for entry in started["trace"]] == [("step-2", "interrupted")]
    await client.resume(started["run_id"])
    params = {"run_id": started["run_id"], "trace_range": {"start": 0, "limit": 3}}
    trace = (await client.ask("runs.trace", params))["result"]
    assert trace["trace_count"] == 4
    assert [entry["event"] for entry in trace["trace"]] == ["finished", "interrupted", "finished"]


async def test_the_server_names_itself_anew_at_each_start_and_its_store_the_same(client, server, place):
    first = (await client.ask("health", {}))["result"]
    assert first["store_root"] == str(place.data)
    assert first["features"] == ["idempotent-start", "max-steps"]
    token = server.token
    await server.stop()
    client = Client(await server.start(), server.token)
    second = (await client.ask("health", {}))["result"]
    assert second["store_root"] == first["store_root"]
    assert second["instance_id"] != first["instance_id"]
    assert server.token != token


async def test_a_caller_without_the_token_gets_nothing(client):
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": client.headers["Authorization"][7:]}):
        async with (
            aiohttp.ClientSession() as session,
            session.post(client.url, data=b"{}", headers=headers) as response,
        ):
            assert response.status == 401


async def test_a_body_over_the_limit_is_413_and_runs_nothing(client):
    async with (
        aiohttp.ClientSession() as session,
        session.post(client.url, data=io.BytesIO(b" " * (1 << 21)), headers=client.headers) as response,
    ):
        assert response.status == 413


async def test_stopped_runs_survive_a_restart_and_are_listed_latest_first(client, server):
    ids = [(await client.start(name))["run_id"] for name in ("hello", "fail", "interrupt")]
    await server.stop()
    client = Client(await server.start(), server.token)
    page = (await client.ask("runs.list", {"limit": 2}))["result"]
    assert [row["run_id"] for row in page["runs"]] == [ids[2], ids[1]]
    assert (page["total"], page["next_cursor"]) == (3, "2")
    after = (await client.ask("runs.list", {"limit": 2, "cursor": "2"}))["result"]
    assert [row["run_id"] for row in after["runs"]] == [ids[0]]
    assert after["next_cursor"] is None
    assert (await client.error("runs.list", {"cursor": "x"}))["code"] == "ValueError"


# --- the life of the server ---


async def test_stop_may_come_twice_and_before_start(place):
    server = EmbeddedServer(place.file, place.data)
    await server.stop()
    url = await server.start()
    assert await server.start() == url
    await server.stop()
    await server.stop()


async def test_a_start_that_fails_leaves_nothing_behind(place):
    server = EmbeddedServer(place.file, place.data)
    place.file.write_text("x = 1")
    with pytest.raises(DeploymentsInvalid, match="unknown key"):
        await server.start()
    place.write()
    assert (await Client(await server.start(), server.token).start("hello"))["status"] == "completed"
    await server.stop()


async def test_one_data_folder_serves_one_server(server, place):
    with pytest.raises(StoreUnusable, match="in use"):
        await EmbeddedServer(place.file, place.data).start()


async def test_a_folder_that_is_not_ours_is_refused_untouched(place):
    place.data.mkdir()
    (place.data / "thesis.txt").write_text("chapter 1")
    with pytest.raises(StoreUnusable, match="not ours"):
        await EmbeddedServer(place.file, place.data).start()
    assert [path.name for path in place.data.iterdir()] == ["thesis.txt"]


async def test_its_files_are_for_its_user_only(client, place):
    await client.start("interrupt", key="k")
    for path in [place.data, *place.data.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


async def test_nothing_blocks_the_loop(place, blocking_the_loop_fails):
    server = EmbeddedServer(place.file, place.data)
    try:
        client = Client(await server.start(), server.token)
        started = await client.start("approval", key="s")
        assert (await client.resume(started["run_id"], key="r"))["status"] == "completed"
        assert (await client.start("unbound"))["status"] == "unrunnable"
        assert await client.total() == 1
    finally:
        await server.stop()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_runs_leave_no_descriptor_open(client):
    await client.start("hello")
    before = descriptors()
    for _ in range(10):
        await client.start("hello")
        await client.start("fail")
    assert descriptors() <= before + 1

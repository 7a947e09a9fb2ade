"""A key executes once, whatever comes between."""

import asyncio

import aiohttp
import pytest

from tests.integration.embedded.place import Client, going_on


async def test_the_same_key_executes_once_and_is_answered_the_same_also_after_a_restart(client, server, place):
    first = await client.start("three", {"a": 1}, key="store:run-000001")
    assert await client.start("three", {"a": 1}, key="store:run-000001") == first
    await server.stop()
    client = Client(await server.start(), server.token)
    assert await client.start("three", {"a": 1}, key="store:run-000001") == first
    assert place.ran() == ["1", "2", "3"]
    assert await client.total() == 1


async def test_the_order_of_members_does_not_make_other_params(client, place):
    first = await client.start("three", {"a": 1, "b": {"c": 1, "d": 2}}, key="k")
    assert await client.start("three", {"b": {"d": 2, "c": 1}, "a": 1}, key="k") == first


async def test_the_same_key_while_it_executes_waits_for_that_execution(client, place):
    async with going_on(asyncio.gather(*(client.start("gate", key="k") for _ in range(3)))) as starting:
        await place.pids(1)
        place.open_the_gate()
        first, second, third = await starting
    assert first == second == third
    assert place.ran() == ["x"]


@pytest.mark.parametrize("change", [{"workflow_input": {"a": 2}}, {"max_steps": 9}, {"deployment_id": "hello.default"}])
async def test_a_key_with_other_params_is_a_conflict_while_it_executes_and_after(client, place, change):
    params = {"deployment_id": "gate.default", "workflow_input": {"a": 1}}
    async with going_on(client.ask("runs.start", params, "k")) as starting:
        await place.pids(1)
        assert (await client.error("runs.start", params | change, "k"))["code"] == "KeyConflict"
        place.open_the_gate()
        await starting
    assert (await client.error("runs.start", params | change, "k"))["code"] == "KeyConflict"
    assert place.ran() == ["x"]


async def test_a_key_belongs_to_one_request_whatever_its_method_or_run(client, place):
    one, two = await client.start("approval", key="s1"), await client.start("approval", key="s2")
    await client.resume(one["run_id"], key="r1")
    for params in ({"run_id": two["run_id"]}, {"run_id": one["run_id"], "resume_payload": {"x": 1}}):
        assert (await client.error("runs.resume", params, "r1"))["code"] == "KeyConflict"
    assert (await client.error("runs.resume", {"run_id": two["run_id"]}, "s2"))["code"] == "KeyConflict"
    assert (await client.error("runs.start", {"deployment_id": "approval.default"}, "r1"))["code"] == "KeyConflict"
    assert (await client.inspect(two["run_id"]))["status"] == "interrupted"


async def test_each_key_of_a_run_keeps_the_answer_of_its_own_request(client, server, place):
    started = await client.start("approval", key="s")
    resumed = await client.resume(started["run_id"], {"x": 1}, key="r")
    await server.stop()
    client = Client(await server.start(), server.token)
    assert await client.start("approval", key="s") == started
    assert await client.resume(started["run_id"], {"x": 1}, key="r") == resumed
    assert place.ran() == ["one", "two", "two", "three"]


async def test_a_key_outlives_its_deployment(client, server, place):
    first = await client.start("hello", key="k")
    await server.stop()
    place.file.write_text("")
    client = Client(await server.start(), server.token)
    assert await client.start("hello", key="k") == first


async def test_a_key_that_was_refused_is_not_spent(client, server, place):
    params = {"deployment_id": "late.default"}
    assert (await client.error("runs.start", params, "k"))["code"] == "KeyError"
    assert (await client.start("unbound", key="u"))["status"] == "unrunnable"
    await server.stop()
    place.write({"late": ["echo late >> ran"]})
    client = Client(await server.start(), server.token)
    assert (await client.start("late", key="k"))["status"] == "completed"


async def test_a_key_that_is_no_header_text_is_refused(client, server):
    for key in ("x" * 513, "caf\u00e9"):
        async with (
            aiohttp.ClientSession() as session,
            session.post(client.url, data=b"{}", headers={**client.headers, "Idempotency-Key": key}) as response,
        ):
            assert response.status == 400

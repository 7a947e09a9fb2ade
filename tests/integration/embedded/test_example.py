"""The deployments file that we hand out does what its comments say."""

from pathlib import Path

import pytest

from scheduler_daemon.embedded.server import EmbeddedServer
from tests.integration.embedded.place import Client

EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "deployments.toml"


@pytest.fixture
async def client(tmp_path):
    server = EmbeddedServer(EXAMPLE, tmp_path / "data")
    yield Client(await server.start(), server.token)
    await server.stop()


async def test_every_deployment_of_it_is_runnable(client):
    listed = (await client.ask("deployments.list", {}))["result"]["deployments"]
    assert [row["id"] for row in listed] == ["hello.default", "report.default", "approval.default", "slow.default"]
    for row in listed:
        assert (await client.ask("deployments.validate", {"deployment_id": row["id"]}))["result"][
            "status"
        ] == "runnable"


async def test_hello_says_hello(client):
    assert (await client.start("hello"))["output"] == {"result": "hello on a schedule"}


async def test_the_report_words_what_it_counted(client):
    given = {"who": "world", "as_of": "2026-11-30T09:00:00Z"}
    run = await client.start("report", given)
    assert run["output"]["result"].endswith("files for world as of 2026-11-30T09:00:00Z")
    assert (await client.start("report", {**given, "x": 1}))["error"].startswith("workflow input: ")


@pytest.mark.parametrize(
    ("payload", "status", "error"), [({"approved": True}, "completed", None), ({}, "failed", "not approved")]
)
async def test_the_approval_waits_and_heeds_the_answer(client, payload, status, error):
    started = await client.start("approval")
    assert (started["status"], started["interrupt"]["payload"]) == ("interrupted", {"message": "Shall I go on?"})
    run = await client.resume(started["run_id"], payload)
    assert (run["status"], run["error"]) == (status, error)

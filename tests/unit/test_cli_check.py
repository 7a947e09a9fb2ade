"""`scheduler-daemon check --server`: what the workflow server answers, and what the daemon would make of it."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from scheduler_daemon import errors
from scheduler_daemon.cli.root import group
from tests.fakes.http import face_of
from tests.fakes.server import FakeWorkflowServer


async def check(*argv: str):
    return await asyncio.to_thread(CliRunner().invoke, group, ["check", *argv], prog_name="scheduler-daemon")


def facts(printed: str) -> dict[str, str]:
    """The second table, as it is read by people."""
    rows = [line.split("  ", 1) for line in printed.partition("\nworkflow server")[2].splitlines()[1:]]
    return {row[0]: row[1].strip() for row in rows if len(row) > 1}


async def test_a_server_that_can_be_used_is_shown_with_what_it_announces(tmp_path):
    keyed = FakeWorkflowServer(features=("idempotent-start", "max-steps"), announces_instance=True)
    async with face_of(keyed) as face:
        result = await check("--server", face.url, "--store-root", str(tmp_path))
        assert result.exit_code == errors.EXIT_OK, result.output
        shown = facts(result.stdout)
        assert (shown["url"], shown["answers"], shown["usable"]) == (face.url, "yes", "yes")
        assert shown["features"] == "idempotent-start, max-steps"
        report = json.loads((await check("--server", face.url, "--json")).stdout)
        assert report["settings"]["server_url"] == {"value": face.url, "origin": "flag --server"}
        assert report["server"]["store_root"] == "/srv/fake/store"


async def test_a_plain_server_is_usable_and_said_to_announce_nothing():
    async with face_of(FakeWorkflowServer()) as face:
        assert facts((await check("--server", face.url)).stdout)["features"] == "none"


async def test_a_server_that_must_not_be_used_ends_with_78_and_the_reason():
    sources = [{"id": "tools", "kind": "connection", "enabled": True}]
    async with face_of(FakeWorkflowServer(sources=sources)) as face:
        result = await check("--server", face.url)
        assert result.exit_code == errors.EXIT_UNUSABLE
        assert facts(result.stdout)["usable"].startswith("no: ")
        assert "connection" in facts(result.stdout)["usable"]


async def test_a_token_that_the_server_refuses_ends_with_69_and_its_status(tmp_path):
    (tmp_path / "token").write_text("wrong\n")
    (tmp_path / "token").chmod(0o600)
    async with face_of(FakeWorkflowServer(), token="right") as face:
        result = await check("--server", face.url, "--server-token-file", str(tmp_path / "token"))
        assert result.exit_code == errors.EXIT_UNAVAILABLE
        assert "401" in facts(result.stdout)["answers"]
        assert "wrong" not in result.output


@pytest.mark.parametrize("how", ["list", "table"])
async def test_the_workflow_servers_own_file_leads_to_its_server_and_each_value_says_where_it_stands(tmp_path, how):
    async with face_of(FakeWorkflowServer()) as face:
        transport = {"kind": "rpc_http", "host": "127.0.0.1", "port": face.port}
        transports = [transport] if how == "list" else {"rpc_http": transport}
        scheduler = {"enabled": True, "lateness_s": 7}
        server = {"store": {"root": str(tmp_path / "store")}, "transports": transports, "scheduler": scheduler}
        path = tmp_path / "server.json"
        path.write_text(json.dumps({"server": server, "sources": [{"id": "local", "kind": "python"}]}))
        report = json.loads((await check("--config", str(path), "--json")).stdout)
        origins = {name: one["origin"] for name, one in report["settings"].items()}
        key = "server.transports[0]" if how == "list" else "server.transports.rpc_http"
        assert origins["server_url"] == f"file {path}: {key}"
        assert origins["store_root"] == f"file {path}: server.store.root"
        assert origins["lateness_s"] == f"file {path}: server.scheduler.lateness_s"
        assert origins["drain_grace_s"] == "default"
        assert report["server"]["answers"] == "yes"

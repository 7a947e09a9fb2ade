"""The embedded server is held to the contract of every workflow server, as a process that can be killed and restarted."""

import json
import sys

import aiohttp
import pytest

from tests.conformance.server_contract import ServerContract
from tests.conformance.talk import FOR_EVER_S, ServerUnderTest, under_way
from tests.embedded_process import EmbeddedProcess

# Each role in the least Python that does it: an interpreter per step is what takes the time here.
SCRIPTS = {
    "hello": """
        given = json.load(sys.stdin)
        print(json.dumps({"result": given["who"]}))
    """,
    "fail": """
        sys.exit(json.load(sys.stdin)["message"])
    """,
    "approval": """
        if "WORKFLOW_RESUME" not in os.environ:
            print(json.dumps(json.load(sys.stdin)))
            sys.exit(75)
        time.sleep(json.loads(os.environ["WORKFLOW_RESUME"])["payload"].get("seconds", 0))
    """,
    "slow": """
        time.sleep(json.load(sys.stdin)["seconds"])
    """,
}


def deployments() -> str:
    lines = []
    for role, script in SCRIPTS.items():
        body = "\n".join(line[8:] for line in script.strip("\n").splitlines())
        argv = [sys.executable, "-I", "-S", "-c", f"import json, os, sys, time\n{body}"]
        lines.append(f'[deployments."{role}.default"]')
        if role == "hello":
            lines.append('input_schema = { type = "object", properties.who.type = "string", required = ["who"] }')
        lines += [f'[[deployments."{role}.default".steps]]', f"argv = {json.dumps(argv)}"]
    lines.append('[deployments."unbound.default"]\nsteps = [{ argv = ["no-such-program-anywhere"] }]')
    lines.append('[deployments."steps.default"]\nsteps = [{ argv = ["true"] }, { argv = ["true"] }]')
    return "\n".join(lines)


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """One server for the whole suite: a start takes longer than most of its tests."""
    folder = tmp_path_factory.mktemp("embedded")
    file = folder / "deployments.toml"
    file.write_text(deployments(), "utf-8")
    process = EmbeddedProcess(file, folder / "data")
    process.start()
    yield process
    process.end()


class TestEmbeddedServer(ServerContract):
    @pytest.fixture
    async def server(self, process):
        roles = {role: f"{role}.default" for role in (*SCRIPTS, "unbound", "steps")}
        return ServerUnderTest(url=process.url, roles=roles, kill=process.kill, restart=process.restart)

    async def test_an_unkeyed_run_leaves_no_trace_of_success_when_the_server_is_killed(self, talk):
        """The recorded server forgets what it executed; this one promises to say at its start that it was cut short."""
        before = await talk.total()
        async with under_way(talk, talk.start("slow", {"seconds": FOR_EVER_S, "tag": "killed"})) as starting:
            await talk.server.kill()
            with pytest.raises(aiohttp.ClientError):
                await starting
        await talk.server.restart()
        page = (await talk.ask("workflow.runs.list", {"limit": 1})).result
        run = await talk.inspect(page["runs"][0]["run_id"])

        assert page["total"] == before + 1
        assert (run["deployment_id"], run["status"]) == (talk.role("slow"), "failed")
        assert run["error"] == "server-restarted"

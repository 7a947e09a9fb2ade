"""The operators' scripts, each against a running daemon: what they do, what they print, and with which code they end."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from scheduler_daemon import errors
from scheduler_daemon.config import loading as config
from tests.fakes.http import HttpFace
from tests.fakes.scripts import Complete, Deployment
from tests.fakes.server import FakeWorkflowServer
from tests.integration.process import Daemon, rows_of, until
from tests.integration.scenes import APPROVAL, EMBEDDED, HELLO, interrupted_run, last_row

SCRIPTS = Path(__file__).parents[2] / "deploy" / "curl"
NAMES = sorted(path.name for path in SCRIPTS.iterdir() if path.name != "lib.sh")
TOOLS = ("sh", "curl", "sed", "cat", "dirname")
"""Everything that the scripts need; jq is only nice to have."""

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="SKIP: curl is missing (Debian: curl)")


class Ended(NamedTuple):
    """How a script ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def result(self):
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out)

    @property
    def refusal(self):
        return json.loads(self.err)["error"]["data"]


class Operator:
    """Somebody at a shell; `environment` is what they exported."""

    def __init__(self, url: str, **environment: str) -> None:
        self.environment = {"PATH": os.environ["PATH"], "SCHEDULER_URL": url, **environment}

    async def run(self, name: str, *arguments: str) -> Ended:
        process = await asyncio.create_subprocess_exec(
            str(SCRIPTS / name),
            *arguments,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(20):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), err.decode())


def of(daemon: Daemon, **environment: str) -> Operator:
    return Operator(daemon.url.removesuffix("/rpc"), **environment)


def embedded(folder: Path, *options: str) -> Daemon:
    text = EMBEDDED.format(folder=folder, approval=APPROVAL, hello=HELLO)
    return Daemon(folder, deployments=text, options=options)


def in_a_moment() -> str:
    return (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()


# --- what they do -----------------------------------------------------------------------------------------------------


async def test_a_schedule_is_created_looked_at_changed_paused_resumed_and_deleted(tmp_path):
    async with embedded(tmp_path) as daemon:
        run = of(daemon).run
        made = (
            await run("create-cron", "nightly", HELLO, "0 3 * * *", "Europe/Berlin", '{"misfire": "latest"}')
        ).result
        assert made["trigger"] == {"kind": "cron", "expression": "0 3 * * *", "timezone": "Europe/Berlin"}
        assert (made["misfire"], made["revision"], len(made["next_instants"])) == ("latest", 1, 5)
        assert (await run("create-cron", "hourly", HELLO, "0 * * * *")).result["trigger"]["timezone"] == "UTC"
        assert [one["schedule_id"] for one in (await run("list")).result["schedules"]] == ["hourly", "nightly"]
        changed = (await run("update", "nightly", "1", ' { "misfire": "skip", "lateness_s": 7 } ')).result
        assert (changed["misfire"], changed["lateness_s"], changed["revision"]) == ("skip", 7, 2)
        paused = (await run("pause", "nightly", 'the "big" move \\ Friday')).result
        assert (paused["state"], paused["note"]) == ("paused", 'the "big" move \\ Friday')
        listed = (await run("list", '{"state": "paused"}')).result
        assert [one["schedule_id"] for one in listed["schedules"]] == ["nightly"]
        assert (await run("resume", "nightly")).result["state"] == "active"
        assert (await run("get", "nightly")).result["revision"] == 4
        assert (await run("delete", "nightly", "gone")).result["state"] == "deleted"
        assert (await run("get", "nightly")).result["state"] == "deleted"
        assert [one["schedule_id"] for one in (await run("list")).result["schedules"]] == ["hourly"]


async def test_a_run_is_started_inspected_and_its_history_read_page_by_page(tmp_path):
    async with embedded(tmp_path) as daemon, daemon.app() as app:
        run = of(daemon).run
        made = (await run("create-oneshot", "once", HELLO, in_a_moment(), '{"input": {"who": {"value": "a"}}}')).result
        assert made["input"] == {"who": {"value": "a"}}
        await last_row(app, "once", "completed")
        first = (await run("occurrences", "once", '{"limit": 2}')).result
        assert [row["status"] for row in first["occurrences"]] == ["admitted", "running"]
        rest = (await run("occurrences", "once", json.dumps({"cursor": first["next_cursor"]}))).result
        assert [row["status"] for row in rest["occurrences"]] == ["completed"]
        assert (await run("inspect-run", "run-000001")).result["output"] == {"result": "hello"}


async def test_an_interrupted_run_is_resumed_with_an_answer_or_abandoned_with_a_note(tmp_path):
    async with embedded(tmp_path) as daemon, daemon.app() as app:
        run = of(daemon).run
        first = await interrupted_run(app, "first")
        assert (await run("inspect-run", first)).result["interrupt"]["payload"] == {"message": "ok?"}
        begun = (await run("resume-run", first, '{"approved": true}', '{"wait": false}')).result
        assert begun["status"] == "running"
        (tmp_path / "gate").touch()
        await last_row(app, "first", "completed")
        second = await interrupted_run(app, "second")
        waited = (await run("resume-run", second, '{"approved": true}')).result
        assert (waited["status"], waited["output"]) == ("completed", {"approved": True})
        third = await interrupted_run(app, "third")
        given_up = (await run("abandon-run", third, "nobody is left to answer")).result
        assert (given_up["status"], given_up["reason"]) == ("failed", "abandoned")


async def test_a_blocked_schedule_is_unblocked_with_a_note(tmp_path):
    async with embedded(tmp_path) as daemon, daemon.app() as app:
        run_id = await interrupted_run(app, "approve")
        await daemon.stop()
    face = HttpFace(FakeWorkflowServer([Deployment(deployment_id=HELLO, script=Complete())]))
    await face.start()
    try:
        async with Daemon(tmp_path, server=face.url) as daemon, daemon.app() as app:
            run = of(daemon).run

            async def blocked():
                return (await run("get", "approve")).result["state"] == "blocked"

            await until(blocked)
            shown = (await run("get", "approve")).result
            assert [one["code"] for one in shown["diagnostics"]] == ["another-server"]
            unblocked = (await run("unblock", "approve", "the old server is gone")).result
            assert (unblocked["blocked"], unblocked["diagnostics"]) == (False, [])
            last = (await rows_of(app, "approve"))[-1]
            assert (last["run_id"], last["status"], last["reason"]) == (run_id, "failed", "contradiction")
    finally:
        await face.stop()


async def test_the_daemon_tells_how_it_is(tmp_path):
    async with embedded(tmp_path) as daemon:
        run = of(daemon).run
        assert (await run("health")).result["store_root"] == str(daemon.store)

        async def ready():
            return (await run("ready")).code == 0

        await until(ready)
        assert all(check["ok"] for check in (await run("ready")).result["checks"])
        assert re.search(r"^scheduler_slots_max 4\.0$", (await run("metrics")).out, re.MULTILINE)
        methods = {method["name"] for method in (await run("discover")).result["methods"]}
        called = {
            found for name in NAMES for found in re.findall(r"^call (\S+)", (SCRIPTS / name).read_text(), re.MULTILINE)
        }
        assert methods == called


# --- how they end -----------------------------------------------------------------------------------------------------


async def test_a_refusal_ends_with_1_and_says_what_to_change(tmp_path):
    async with embedded(tmp_path) as daemon:
        run = of(daemon).run
        refused = await run("get", "nobody")
        assert (refused.code, refused.out, refused.refusal["code"]) == (errors.EXIT_REJECTED, "", "ScheduleNotFound")
        assert refused.refusal["hint"]
        assert (await run("list", '{"colour": "red"}')).code == errors.EXIT_REJECTED
        assert (await run("resume-run", "run-000001", "not json")).code == errors.EXIT_REJECTED


async def test_what_may_succeed_later_ends_with_69(tmp_path):
    async with Daemon(tmp_path, server="http://127.0.0.1:9/rpc") as daemon:
        run = of(daemon).run
        refused = await run("create-cron", "nightly", HELLO, "0 3 * * *")
        assert (refused.code, refused.refusal["code"]) == (errors.EXIT_UNAVAILABLE, "ServerUnavailable")
        unready = await run("ready")
        assert unready.code == errors.EXIT_UNAVAILABLE
        assert [check["name"] for check in json.loads(unready.out)["checks"] if not check["ok"]] == ["server"]
        await daemon.stop()
        for name, *arguments in (("get", "a"), ("ready",), ("metrics",)):
            assert (await run(name, *arguments)).code == errors.EXIT_UNAVAILABLE, name


async def test_an_answer_that_was_cut_off_ends_with_3():
    async def cut(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"jsonrpc":"2.0","res')
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        ended = await Operator(f"http://127.0.0.1:{port}").run("pause", "nightly")
    assert (ended.code, ended.out) == (errors.EXIT_AMBIGUOUS, "")
    assert "look before you repeat it" in ended.err


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("get", ()),
        ("get", ("a", "b")),
        ("unblock", ("a",)),
        ("update", ("a", "one", "{}")),
        ("update", ("a", "1", "misfire=latest")),
        ("pause", ("a", "two\nlines")),
        ("create-oneshot", ("a\nb", "hello.default", "2060-01-01T00:00:00Z")),
    ],
)
async def test_wrong_arguments_end_with_2_and_nothing_is_sent(name, arguments):
    # Nobody listens there: a request would end with 69.
    assert (await Operator("http://127.0.0.1:9").run(name, *arguments)).code == errors.EXIT_USAGE


@pytest.mark.parametrize("name", NAMES)
async def test_each_script_explains_itself(name):
    helped = await Operator("http://127.0.0.1:9").run(name, "--help")
    assert (helped.code, helped.err) == (0, "")
    assert re.match(rf"{name}( [A-Z\[]|\n)", helped.out)


# --- how they reach the daemon ----------------------------------------------------------------------------------------


def bare_path(folder: Path) -> str:
    """A PATH with what the scripts need and nothing else."""
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (folder / tool).symlink_to(found)
    return str(folder)


async def test_without_jq_the_same_is_printed_in_one_line(tmp_path):
    async with embedded(tmp_path) as daemon:
        with_jq, without = of(daemon), of(daemon, PATH=bare_path(tmp_path / "bin"))
        made = await without.run("create-cron", "nightly", HELLO, "0 3 * * *")
        assert made.result["schedule_id"] == "nightly"
        plain = await without.run("get", "nightly")
        assert plain.out.count("\n") == 1
        assert plain.result == (await with_jq.run("get", "nightly")).result
        assert (await without.run("get", "nobody")).refusal["code"] == "ScheduleNotFound"


async def test_the_token_is_read_from_its_file_and_neither_it_nor_the_params_are_arguments(tmp_path):
    token_file = tmp_path / "token"
    token_file.write_text('with"quotes\\TOPSECRET\n')
    token_file.chmod(0o600)
    folder = Path(bare_path(tmp_path / "bin"))
    spied, real = tmp_path / "arguments", (folder / "curl").resolve()
    (folder / "curl").unlink()
    (folder / "curl").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {spied}\nexec {real} "$@"\n')
    (folder / "curl").chmod(0o755)
    async with embedded(tmp_path, "--token-file", str(token_file)) as daemon:
        assert (await of(daemon).run("list")).code == errors.EXIT_REJECTED
        assert (await of(daemon).run("metrics")).code == errors.EXIT_REJECTED
        knowing = of(daemon, PATH=str(folder), SCHEDULER_TOKEN_FILE=str(token_file))
        made = await knowing.run("create-cron", "private-name", HELLO, "0 3 * * *")
        assert made.result["schedule_id"] == "private-name"
        assert (await knowing.run("metrics")).code == 0
    given = spied.read_text()
    assert "--data-binary" in given
    assert "TOPSECRET" not in given
    assert "private" not in given


async def test_a_unix_socket_and_a_url_with_its_path_work_as_well(tmp_path):
    path = tmp_path / "run" / "rpc.sock"
    async with embedded(tmp_path, "--socket-path", str(path)) as daemon:
        # Nobody listens at that address: whoever answers was reached over the socket.
        elsewhere = Operator("http://localhost:9/rpc", SCHEDULER_SOCKET_PATH=str(path))
        assert (await elsewhere.run("health")).result["store_root"] == str(daemon.store)


async def test_the_url_may_end_with_rpc_as_it_does_for_the_command_line(tmp_path):
    async with embedded(tmp_path) as daemon:
        assert (await Operator(daemon.url).run("health")).result["status"] == "ok"


def test_the_scripts_read_the_variables_that_the_command_line_reads():
    named = set(re.findall(r"SCHEDULER_[A-Z_]+", (SCRIPTS / "lib.sh").read_text()))
    assert named == {*config.CLIENT_VARIABLES, "SCHEDULER_TOKEN_FILE", "SCHEDULER_SOCKET_PATH"}


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="SKIP: shellcheck is missing (Debian: shellcheck)")
def test_shellcheck_has_nothing_to_say():
    command = ["shellcheck", "--external-sources", f"--source-path={SCRIPTS}", "--shell=sh"]
    files = [str(path) for path in sorted(SCRIPTS.iterdir())]
    said = subprocess.run([*command, *files], capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_each_script_is_run_by_a_test():
    assert set(re.findall(r'run\(\s*"([a-z-]+)"', Path(__file__).read_text())) >= set(NAMES)

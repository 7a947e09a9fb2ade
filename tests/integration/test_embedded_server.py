"""The embedded server with real processes: exits, groups, interrupts, keys, restarts."""

import asyncio
import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from scheduler_daemon.embedded.deployments import DeploymentsInvalid
from scheduler_daemon.embedded.runs import StoreUnusable
from scheduler_daemon.embedded.server import EmbeddedServer
from tests.embedded_process import EmbeddedProcess

DEADLINE_S = 20.0

# Every step is a script of `sh`, which is there before any Python has started. `note` appends a line to a file in the
# folder of the deployments, so that executions can be counted.
STEPS = {
    "hello": ["""echo log line; echo '{"result": "hello"}'"""],
    "list": ["echo '[1, 2]'"],
    "null": ["echo null"],
    "quiet": ["true"],
    "text": ["echo 'all done'"],
    "blank": ["""echo '{"x": 1}'; echo; echo '  '"""],
    "twice": ["""echo '{"x": 1, "x": 2}'"""],
    "fail": ["echo out; echo first >&2; echo boom >&2; exit 3"],
    "silent": ["exit 4"],
    "signal": ["kill -KILL $$"],
    "huge": ["head -c 3000000 /dev/zero | tr '\\0' x"],
    "interrupt": ["""echo '{"message": "ok?"}'; exit 75"""],
    "interrupt_text": ["echo please; exit 75"],
    "interrupt_list": ["echo '[]'; exit 75"],
    "chain": ["cat", """printf '{"got": %s, "env": %s}' "$(cat)" "$WORKFLOW_INPUT" """],
    "three": ["echo 1 >> ran; cat", "echo 2 >> ran; cat", "echo 3 >> ran; cat"],
    "stop_at_two": ["echo 1 >> ran; echo '{}'", "echo 2 >> ran; echo broken >&2; exit 1", "echo 3 >> ran"],
    "approval": [
        """echo one >> ran; echo '{"from": "one"}'""",
        """echo two >> ran
           [ -z "$WORKFLOW_RESUME" ] && { echo '{"message": "ok?"}'; exit 75; }
           echo "{\\"resume\\": $WORKFLOW_RESUME, \\"input\\": $WORKFLOW_INPUT}" """,
        """echo three >> ran; [ -z "$WORKFLOW_RESUME" ] || exit 9; cat""",
    ],
    "again": ["echo '{}'; exit 75"],
    "gate": ["echo $$ >> pids; until [ -e open ]; do sleep 0.02; done; echo x >> ran; echo '{\"gate\": 1}'"],
    "ask_at_gate": [
        """[ -z "$WORKFLOW_RESUME" ] && { echo '{}'; exit 75; }
           echo $$ >> pids; until [ -e open ]; do sleep 0.02; done; echo x >> ran"""
    ],
    "hang": ["sleep 60 & echo $! >> pids; echo $$ >> pids; wait"],
    "stubborn": ["trap '' TERM; sleep 60 & echo $! >> pids; echo $$ >> pids; echo still here >&2; wait; sleep 60"],
    "leftover": ["sleep 60 & echo $! >> pids; echo '{\"left\": 1}'"],
    "sizes": ["""wc -c | tr -d ' ' > size; echo "{\\"env\\": ${#WORKFLOW_INPUT}, \\"stdin\\": $(cat size)}" """],
    "where": ["""echo "{\\"cwd\\": \\"$PWD\\", \\"color\\": \\"$COLOR\\", \\"secret\\": \\"$SCHEDULER_TOKEN\\"}" """],
}
EXTRA = {
    "hello": 'input_schema = { type = "object", properties.who.type = "string" }\ntitle = "Says hello"',
}
STEP_EXTRA = {"stubborn": ", timeout_s = 0.3", "where": ', cwd = "sub", env = { COLOR = "blue" }'}


def deployments(changed: dict[str, list[str]] | None = None) -> str:
    lines: list[str] = []
    for name, scripts in {**STEPS, **(changed or {})}.items():
        steps = [f'{{ argv = ["sh", "-c", {json.dumps(script)}]{STEP_EXTRA.get(name, "")} }}' for script in scripts]
        lines += [f'[deployments."{name}.default"]', EXTRA.get(name, ""), f"steps = [{', '.join(steps)}]"]
    lines += ['[deployments."unbound.default"]', 'steps = [{ name = "x", argv = ["no-such-program-anywhere"] }]']
    lines += ['[deployments."nowhere.default"]', 'steps = [{ argv = ["true"], cwd = "no/such/folder" }]']
    return "\n".join(lines)


class Client:
    """Plain HTTP, one connection a call."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def ask(self, method: str, params: dict, key: str | None = None) -> dict:
        headers = self.headers | ({"Idempotency-Key": key} if key else {})
        body = {"jsonrpc": "2.0", "id": 1, "method": f"workflow.{method}", "params": params}
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), timeout=timeout) as session,
            session.post(self.url, json=body, headers=headers) as response,
        ):
            assert response.status == 200, await response.text()
            return await response.json()

    async def start(self, name: str, given: dict | None = None, *, key: str | None = None, **more) -> dict:
        params = {"deployment_id": f"{name}.default", "workflow_input": given or {}, **more}
        return (await self.ask("runs.start", params, key))["result"]

    async def resume(self, run_id: str, payload: dict | None = None, *, key: str | None = None, **more) -> dict:
        params = {"run_id": run_id, "resume_payload": payload or {}, **more}
        return (await self.ask("runs.resume", params, key))["result"]

    async def error(self, method: str, params: dict, key: str | None = None) -> dict:
        error = (await self.ask(method, params, key))["error"]
        assert error["code"] == 5000
        return error["data"]

    async def inspect(self, run_id: str) -> dict:
        return (await self.ask("runs.inspect", {"run_id": run_id}))["result"]

    async def total(self) -> int:
        return (await self.ask("runs.list", {}))["result"]["total"]


class Place:
    """A folder with the deployments file, the data, and what the steps leave there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "deployments.toml"
        self.data = folder / "data"
        self.write()
        (folder / "sub").mkdir()

    def write(self, changed: dict[str, list[str]] | None = None) -> None:
        self.file.write_text(deployments(changed), "utf-8")

    def ran(self) -> list[str]:
        file = self.folder / "ran"
        return file.read_text().split() if file.exists() else []

    def open_the_gate(self) -> None:
        (self.folder / "open").touch()

    async def pids(self, count: int) -> list[int]:
        file = self.folder / "pids"
        await eventually(lambda: file.exists() and len(file.read_text().split()) >= count)
        return [int(pid) for pid in file.read_text().split()]


async def eventually(holds) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110  another process sets no event here
            await asyncio.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody reaps has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
async def server(place):
    bugs = []
    server = EmbeddedServer(place.file, place.data, on_bug=lambda where, bug: bugs.append((where, bug)))
    await server.start()
    yield server
    await server.stop()
    assert bugs == []


@pytest.fixture
async def client(server):
    return Client(await server.start(), server.token)


@pytest.fixture
def process(place):
    process = EmbeddedProcess(place.file, place.data)
    process.start()
    yield process
    process.end(signal.SIGKILL)


@contextlib.asynccontextmanager
async def going_on(call):
    task = asyncio.ensure_future(call)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- what an exit means ---


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("hello", {"result": "hello"}),
        ("list", {"result": [1, 2]}),
        ("null", {"result": None}),
        ("quiet", {}),
        ("text", {}),
        ("blank", {"x": 1}),
        ("twice", {}),
    ],
)
async def test_json_on_the_last_line_of_a_step_that_exits_0_is_the_output(client, name, output):
    run = await client.start(name)
    assert (run["status"], run["outcome"], run["error"]) == ("completed", "ok", None)
    assert run["output"] == output
    assert run["trace_count"] == 1


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fail", "first\nboom"),
        ("silent", "step 'step-1' exited with status 4"),
        ("signal", "step 'step-1' was ended by signal 9"),
        ("interrupt_text", "step 'step-1' exited with status 75 and no JSON object on its last line"),
        ("interrupt_list", "step 'step-1' exited with status 75 and no JSON object on its last line"),
        ("huge", "step 'step-1': its last line of output is longer than 1048576 bytes"),
    ],
)
async def test_any_other_end_of_a_step_fails_the_run_with_its_reason(client, name, error):
    run = await client.start(name)
    assert (run["status"], run["error"]) == ("failed", error)
    assert (run["output"], run["outcome"], run["trace_count"]) == ({}, None, 0)


async def test_exit_75_with_an_object_interrupts_with_it_as_the_payload(client):
    run = await client.start("interrupt")
    assert (run["status"], run["resume_readiness"], run["trace_count"]) == ("interrupted", "ready", 1)
    assert run["interrupt"]["payload"] == {"message": "ok?"}
    assert run["interrupt"]["node_id"] == "step-1"


async def test_the_next_step_gets_the_output_before_it_on_stdin_and_in_a_variable(client):
    run = await client.start("chain", {"who": 'wörld "x"'})
    assert run["output"] == {"got": {"who": 'wörld "x"'}, "env": {"who": 'wörld "x"'}}
    assert run["trace_count"] == 2


async def test_a_step_that_fails_ends_the_run_there(client, place):
    run = await client.start("stop_at_two")
    assert (run["status"], run["error"], run["trace_count"]) == ("failed", "broken", 1)
    assert place.ran() == ["1", "2"]


async def test_a_step_runs_in_its_folder_with_its_variables_and_without_the_daemons(place, monkeypatch):
    monkeypatch.setenv("SCHEDULER_TOKEN", "hush")
    server = EmbeddedServer(place.file, place.data)
    client = Client(await server.start(), server.token)
    try:
        output = (await client.start("where"))["output"]
    finally:
        await server.stop()
    assert output == {"cwd": str(place.folder / "sub"), "color": "blue", "secret": ""}


@pytest.mark.parametrize(("size", "in_env"), [(1_000, True), (200_000, False)])
async def test_an_input_too_large_for_a_variable_is_on_stdin_only(client, size, in_env):
    output = (await client.start("sizes", {"x": "y" * size}))["output"]
    assert output["stdin"] == size + 8
    assert output["env"] == (size + 8 if in_env else 0)


# --- processes ---


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


# --- interrupts and resumes ---


async def test_a_resume_repeats_the_interrupted_step_with_the_answer_and_goes_on(client, place):
    started = await client.start("approval", {"n": 1})
    assert (started["status"], started["trace_count"]) == ("interrupted", 2)
    assert started["interrupt"]["id"] == "interrupt:step-2"
    run = await client.resume(started["run_id"], {"approved": True}, resume_outcome="granted")

    assert (run["status"], run["run_id"]) == ("completed", started["run_id"])
    assert run["trace_count"] == 4
    assert run["output"] == {
        "resume": {"outcome": "granted", "payload": {"approved": True}},
        "input": {"from": "one"},
    }
    assert place.ran() == ["one", "two", "two", "three"]
    assert await client.inspect(run["run_id"]) == run


async def test_a_run_may_be_interrupted_again_and_again(client):
    run = await client.start("again")
    for count in (2, 3):
        run = await client.resume(run["run_id"])
        assert (run["status"], run["trace_count"]) == ("interrupted", count)


async def test_an_interrupted_run_goes_on_as_it_was_when_it_started_after_a_restart(client, server, place):
    started = await client.start("approval")
    await server.stop()
    place.write({"approval": ["echo changed >> ran"]})
    client = Client(await server.start(), server.token)

    assert await client.inspect(started["run_id"]) == started
    run = await client.resume(started["run_id"])
    assert run["status"] == "completed"
    assert place.ran() == ["one", "two", "two", "three"]


async def test_a_run_that_is_being_resumed_shows_its_checkpoint_and_refuses_another_resume(client, place):
    started = await client.start("ask_at_gate")
    async with going_on(client.resume(started["run_id"])) as resuming:
        await place.pids(1)
        assert await client.inspect(started["run_id"]) == started
        data = await client.error("runs.resume", {"run_id": started["run_id"]})
        assert data == {"code": "ValueError", "message": f"workflow run '{started['run_id']}' is already being resumed"}
        place.open_the_gate()
        assert (await resuming)["status"] == "completed"
    assert place.ran() == ["x"]


async def test_a_resume_of_what_is_not_interrupted_or_not_there_is_refused(client):
    run = await client.start("hello")
    data = await client.error("runs.resume", {"run_id": run["run_id"]})
    assert data == {"code": "ValueError", "message": f"workflow run '{run['run_id']}' is not interrupted"}
    for run_id in ("run-999", "run_" + "0" * 32, "../x", "run_" + "0" * 31 + "\n"):
        data = await client.error("runs.resume", {"run_id": run_id})
        assert (data["code"], data["message"]) == ("KeyError", f'"unknown workflow run {run_id!r}"')


async def test_a_resume_too_large_for_a_variable_is_refused_and_executes_nothing(client, place):
    started = await client.start("approval")
    data = await client.error("runs.resume", {"run_id": started["run_id"], "resume_payload": {"x": "y" * 200_000}})
    assert data["code"] == "ValueError"
    assert place.ran() == ["one", "two"]
    assert (await client.resume(started["run_id"]))["status"] == "completed"


# --- budgets ---


@pytest.mark.parametrize(
    ("max_steps", "status", "ran"), [(1, "exhausted", "1"), (2, "exhausted", "12"), (3, "completed", "123")]
)
async def test_a_budget_ends_a_run_before_the_step_that_would_pass_it(client, place, max_steps, status, ran):
    run = await client.start("three", {"a": 1}, max_steps=max_steps)
    assert (run["status"], run["trace_count"]) == (status, len(ran))
    assert "".join(place.ran()) == ran
    assert run["resume_readiness"] == "not_applicable"


async def test_a_budget_counts_finished_steps_across_a_resume_and_no_interrupts(client, place):
    started = await client.start("approval", max_steps=2)
    assert started["status"] == "interrupted"
    run = await client.resume(started["run_id"])
    assert (run["status"], run["trace_count"]) == ("exhausted", 3)
    assert place.ran() == ["one", "two", "two"]


# --- keys ---


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


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
async def test_runs_leave_no_descriptor_open(client):
    await client.start("hello")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        await client.start("hello")
        await client.start("fail")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1

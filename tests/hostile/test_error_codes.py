"""Every error code that the specification lists, as a caller of the real daemon gets it: over HTTP, from a situation that earns it.

A code that is added to the daemon's list and has no scene here fails `test_each_code_has_a_scene`.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import aiohttp
import pytest

from scheduler_daemon.api.faults import FAULTS
from scheduler_daemon.api.methods import TABLE
from scheduler_daemon.core.model import Settings
from scheduler_daemon.store.retention import Retention
from scheduler_daemon.store.store import Store
from tests.crash.disks import tmpfs
from tests.fakes.http import HttpFace, face_of
from tests.fakes.params import RpcFault
from tests.fakes.scripts import UNBOUND, Complete, Deployment, Interrupt, schema
from tests.fakes.server import FakeWorkflowServer
from tests.integration.process import HELLO, Daemon, until
from tests.integration.scenes import due_soon, interrupted_run, last_row
from tests.scribe import NOW, Scribe

PROTOCOL = (-32700, -32600, -32601, -32602, -32603)
CRON = {"kind": "cron", "expression": "0 3 * * *"}
PROMISED = {entry.method.name: entry.codes for entry in TABLE}


class Refusal(NamedTuple):
    """The error of an answer, under the name that a program branches on."""

    code: str | int
    error: dict[str, Any]


class Bench:
    """The daemon in front of a plain server that a test controls, and one way to ask it."""

    def __init__(self, daemon: Daemon, face: HttpFace | None = None) -> None:
        self.daemon = daemon
        self.face = face

    async def post(self, body: bytes) -> dict[str, Any]:
        """The answer to these bytes; HTTP says 200 whatever the answer is."""
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.daemon.url, data=body, headers=headers) as response,
        ):
            assert response.status == 200
            return await response.json()

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a call; a refusal must be one that the document promises for the method."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self.post(json.dumps(body).encode())
        code = answer.get("error", {}).get("data", {}).get("code")
        assert code is None or code in PROMISED[method], (method, code)
        return answer

    async def refused(self, method: str, **params: Any) -> Refusal:
        return refusal(await self.ask(method, **params))

    async def create(self, schedule_id: str, **fields: Any) -> dict[str, Any]:
        given = {"schedule_id": schedule_id, "deployment_id": "hello.default", "trigger": CRON, **fields}
        return await self.ask("workflow.schedules.create", **given)


def refusal(answer: dict[str, Any]) -> Refusal:
    """What was refused, after a look at what every refusal must say."""
    assert answer.keys() == {"jsonrpc", "id", "error"}
    error = answer["error"]
    if error["code"] != 5000:
        assert error["message"]
        return Refusal(error["code"], error)
    data, fault = error["data"], FAULTS[error["data"]["code"]]
    assert error["message"] == "Workflow operation failed"
    assert data["message"]
    assert (data["hint"], data["retryable"]) == (fault.hint, fault.retryable)
    return Refusal(data["code"], error)


# --- scenes that share a daemon ---------------------------------------------------------------------------------------

Scene = Callable[[Bench], Awaitable[Refusal]]
ORDINARY: dict[str | int, Scene] = {}


def earns(code: str | int) -> Callable[[Scene], Scene]:
    """Name the code that a scene ends with."""

    def listed(scene: Scene) -> Scene:
        assert code not in ORDINARY
        ORDINARY[code] = scene
        return scene

    return listed


@earns(-32700)
async def broken_json(bench: Bench) -> Refusal:
    return refusal(await bench.post(b'{"jsonrpc":"2.0","id":1,"method":"workflow.health"'))


@earns(-32600)
async def no_request(bench: Bench) -> Refusal:
    return refusal(await bench.post(b'{"jsonrpc":"1.0","id":1,"method":"workflow.health"}'))


@earns(-32601)
async def no_such_method(bench: Bench) -> Refusal:
    return await bench.refused("workflow.schedules.purge")


@earns(-32602)
async def no_such_param(bench: Bench) -> Refusal:
    found = await bench.refused("workflow.schedules.get", schedule_id="a", colour="red")
    assert found.error["data"]["errors"][0]["loc"] == ["colour"]
    return found


@earns(-32603)
async def an_error_inside_the_server_of_a_gateway(bench: Bench) -> Refusal:
    return await bench.refused("workflow.artifacts.break")


@earns("ScheduleExists")
async def the_same_id_again(bench: Bench) -> Refusal:
    assert "result" in await bench.create("twice")
    return refusal(await bench.create("twice", trigger={"kind": "oneshot", "at": "2060-01-01T00:00:00Z"}))


@earns("ScheduleNotFound")
async def an_id_that_nobody_used(bench: Bench) -> Refusal:
    return await bench.refused("workflow.schedules.occurrences.list", schedule_id="nobody")


@earns("ScheduleDeleted")
async def a_change_after_the_deletion(bench: Bench) -> Refusal:
    await bench.create("gone")
    await bench.ask("workflow.schedules.delete", schedule_id="gone")
    return await bench.refused("workflow.schedules.pause", schedule_id="gone")


@earns("InvalidScheduleId")
async def an_id_that_is_a_path(bench: Bench) -> Refusal:
    return await bench.refused("workflow.schedules.get", schedule_id="../../etc/passwd")


@earns("RevisionConflict")
async def a_revision_that_is_over(bench: Bench) -> Refusal:
    await bench.create("edited")
    given = {"schedule_id": "edited", "expected_revision": 1}
    assert (await bench.ask("workflow.schedules.update", **given, misfire="latest"))["result"]["revision"] == 2
    found = await bench.refused("workflow.schedules.update", **given, misfire="skip")
    assert found.error["data"]["revision"] == 2
    return found


@earns("InvalidTrigger")
async def six_fields(bench: Bench) -> Refusal:
    found = refusal(await bench.create("never", trigger={"kind": "cron", "expression": "0 0 3 * * *"}))
    assert found.error["data"]["field"] == "trigger.expression"
    return found


@earns("InvalidInput")
async def an_input_that_the_schema_forbids(bench: Bench) -> Refusal:
    found = refusal(await bench.create("typed", deployment_id="typed.default", input={"who": {"value": 7}}))
    assert found.error["data"]["violations"]
    return found


@earns("InvalidPolicy")
async def parallel_without_a_bound(bench: Bench) -> Refusal:
    found = refusal(await bench.create("parallel", overlap="parallel"))
    assert found.error["data"]["field"] == "max_active_runs"
    return found


@earns("Unsupported")
async def a_step_budget_at_a_plain_server(bench: Bench) -> Refusal:
    return refusal(await bench.create("budget", max_steps=3))


@earns("DeploymentNotFound")
async def a_deployment_that_the_server_does_not_know(bench: Bench) -> Refusal:
    return refusal(await bench.create("unknown", deployment_id="nobody.default"))


@earns("DeploymentUnrunnable")
async def a_deployment_that_cannot_run(bench: Bench) -> Refusal:
    found = refusal(await bench.create("unbound", deployment_id="unbound.default"))
    assert found.error["data"]["diagnostics"][0]["code"] == UNBOUND["code"]
    return found


@earns("RunNotFound")
async def a_run_that_never_was(bench: Bench) -> Refusal:
    return await bench.refused("workflow.runs.inspect", run_id="run-999999")


@earns("RunNotResumable")
async def a_run_that_is_over(bench: Bench) -> Refusal:
    async with bench.daemon.app() as app:
        await due_soon(app, "over", "hello.default", 0.5)
        run_id = (await last_row(app, "over", "completed"))["run_id"]
    return await bench.refused("workflow.runs.resume", run_id=run_id)


@earns("ResumeInProgress")
async def a_resume_beside_another(bench: Bench) -> Refusal:
    async with bench.daemon.app() as app:
        run_id = await interrupted_run(app, "asked")
    assert "result" in await bench.ask("workflow.runs.resume", run_id=run_id, wait=False)
    return await bench.refused("workflow.runs.resume", run_id=run_id)


@earns("AttemptAmbiguous")
async def a_resume_after_one_whose_caller_left(bench: Bench) -> Refusal:
    assert bench.face is not None
    async with bench.daemon.app() as app:
        run_id = await interrupted_run(app, "deserted")
        begun = len(bench.face.fake.execution_log)
        async with bench.daemon.app() as caller:
            call = asyncio.create_task(caller.resume_run(run_id))
            await bench.face.fake.until_executions(begun + 1, timeout_s=30)
            call.cancel()
            await asyncio.wait({call})
        await last_row(app, "deserted", "failed")
    return await bench.refused("workflow.runs.resume", run_id=run_id)


@earns("InvalidCursor")
async def a_cursor_that_nobody_gave_out(bench: Bench) -> Refusal:
    return await bench.refused("workflow.schedules.list", cursor="guessed")


@earns("ServerUnavailable")
async def a_schedule_while_the_server_is_away(bench: Bench) -> Refusal:
    assert bench.face is not None
    await bench.face.stop()
    found = refusal(await bench.create("later"))
    assert "error" in await bench.ask("workflow.schedules.get", schedule_id="later")
    return found


async def test_each_code_comes_from_the_situation_that_earns_it(tmp_path):
    gate = asyncio.Event()
    fake = FakeWorkflowServer(
        [
            Deployment(deployment_id="hello.default"),
            Deployment(deployment_id="typed.default", artifact_id="typed", input_schema=schema(who="string")),
            Deployment(deployment_id="unbound.default", diagnostics=(UNBOUND,)),
            Deployment(deployment_id="approval.default", script=Interrupt(then=Complete(gate=gate))),
        ]
    )
    answer = fake.call

    async def call(method, params, *, key=None):
        if method == "workflow.artifacts.break":
            raise RpcFault(-32603, "Internal error")
        return await answer(method, params, key=key)

    fake.call = call
    async with face_of(fake) as face, Daemon(tmp_path, server=face.url, options=("--gateway",)) as daemon:
        async with daemon.app() as app:
            await until(lambda: _is_up(app))
        bench = Bench(daemon, face)
        seen = {code: (await scene(bench)).code for code, scene in ORDINARY.items()}
        assert seen == {code: code for code in ORDINARY}
        assert [line for line in daemon.log() if line["action"] == "bug"] == []


async def _is_up(app):
    return (await app.health())["status"] == "ok"


# --- scenes that need a daemon of their own ---------------------------------------------------------------------------


async def test_a_resume_while_the_daemon_stops_is_draining(tmp_path):
    gate = asyncio.Event()
    ask = Deployment(deployment_id="approval.default", script=Interrupt(then=Complete()))
    fake = FakeWorkflowServer([Deployment(deployment_id="long.default", script=Complete(gate=gate)), ask])
    async with face_of(fake) as face, Daemon(tmp_path, server=face.url, options=("--drain-grace-s", "60")) as daemon:
        async with daemon.app() as app:
            run_id = await interrupted_run(app)
            await due_soon(app, "long", "long.default", 0.5)
            await fake.until_executions(2, timeout_s=30)
        assert daemon.process is not None
        daemon.process.terminate()
        await until(lambda: _logged(daemon, "draining"))
        assert (await Bench(daemon).refused("workflow.runs.resume", run_id=run_id)).code == "Draining"


async def _logged(daemon, action):
    return any(line["action"] == action for line in daemon.log())


async def prepared(folder) -> str:
    """A store with a blocked schedule, whose interrupted run is the answer, and with one that has a long history of last winter."""
    store = Store(folder, mint=lambda: "store")
    opened = store.open(Settings(), NOW)
    scribe = Scribe(opened.state)
    await store.commit([*scribe.epoch(opened.epoch), *scribe.create("blocked"), *scribe.create("old")])
    await store.commit(scribe.admit("blocked"))
    run_id = scribe.run_of("blocked")
    await store.commit([*scribe.interrupt("blocked", run_id), *scribe.block("blocked")])
    for _ in range(50):
        await store.commit(scribe.skip("old"))
    store.close()
    return run_id


async def test_a_change_of_a_blocked_schedule_and_a_cursor_that_retention_passed_are_refused(tmp_path):
    run_id = await prepared(tmp_path / "store")
    async with Daemon(tmp_path, deployments=HELLO) as daemon:
        bench = Bench(daemon)
        found = await bench.refused(
            "workflow.schedules.update", schedule_id="blocked", expected_revision=2, lateness_s=5
        )
        assert found.code == "ScheduleBlocked"
        assert (await bench.ask("workflow.schedules.pause", schedule_id="blocked"))["result"]["paused"] is True
        for verb, more in (("resume", {}), ("abandon", {"note": "n"})):
            found = await bench.refused(f"workflow.runs.{verb}", run_id=run_id, **more)
            assert found.code == "ScheduleBlocked"
        page = (await bench.ask("workflow.schedules.occurrences.list", schedule_id="old", limit=1))["result"]
        assert await daemon.stop() == 0
    await with_few_rows(tmp_path / "store")
    async with Daemon(tmp_path, deployments=HELLO) as daemon:
        given = {"schedule_id": "old", "cursor": page["next_cursor"], "limit": 1}
        assert (await Bench(daemon).refused("workflow.schedules.occurrences.list", **given)).code == "CursorExpired"


async def with_few_rows(folder) -> None:
    """Let retention do what it does now and then: a checkpoint that keeps ten rows."""
    store = Store(folder, retention=Retention(runs_max=10, others_max=10))
    opened = store.open(Settings(), NOW)
    await store.commit(Scribe(opened.state).epoch(opened.epoch))
    await store.checkpoint(opened.state)
    store.close()


def fill(ballast) -> None:
    """Write until there is no room."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@pytest.mark.root
async def test_a_change_that_finds_no_room_on_the_disk_is_storage_full(tmp_path):
    with tmpfs(tmp_path / "small", "size=256k") as folder:
        async with Daemon(folder, deployments=HELLO) as daemon:
            bench = Bench(daemon)
            assert "result" in await bench.create("before", deployment_id="scheduled_hello.default")
            fill(folder / "ballast")

            numbers = itertools.count()

            async def full():
                given = {"deployment_id": "scheduled_hello.default", "input": {"a": {"value": "x" * 9000}}}
                answer = await bench.create(f"another-{next(numbers)}", **given)
                return "error" in answer and refusal(answer)

            assert (await until(full)).code == "StorageFull"
            (folder / "ballast").unlink()
            await until(lambda: _pauses(bench))


async def _pauses(bench):
    return "result" in await bench.ask("workflow.schedules.pause", schedule_id="before")


ALONE = {"Draining", "ScheduleBlocked", "CursorExpired", "StorageFull"}
"""Produced by the tests of the section above."""


def test_each_code_has_a_scene():
    assert {*ORDINARY, *ALONE} == {*FAULTS, *PROTOCOL}
    assert not ALONE & ORDINARY.keys()

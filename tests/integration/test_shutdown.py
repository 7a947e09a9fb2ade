"""Stopping the real process while runs are open: nothing is repeated, nothing is forgotten, and the exit is on time.

Also the second daemon on the same store, which is refused and disturbs nobody.
"""

import asyncio
import json
import signal
import socket
import sys
import time
from contextlib import AsyncExitStack
from typing import Self

import pytest

from rpc_client.errors import INTERNAL_ERROR, AmbiguousOutcome, Refused
from rpc_client.transport import Transport
from rpc_client.workflow import WorkflowClient
from tests.fakes.http import HttpFace
from tests.fakes.scripts import Complete, Deployment, Interrupt
from tests.fakes.server import FakeWorkflowServer
from tests.integration.matrix import KEYED, START, LogTail
from tests.integration.process import Daemon, rows_of, until
from tests.integration.scenes import due_soon, last_row, records

MINUTE, HELLO, ASK = "minute.default", "hello.default", "ask.default"
EXIT_HELD = 75


class Stage:
    """A daemon in front of a server whose runs take a minute, or until `gate` opens."""

    def __init__(self, folder, stack: AsyncExitStack, features: tuple[str, ...]) -> None:
        self.gate = asyncio.Event()
        self.fake = FakeWorkflowServer(
            [
                Deployment(deployment_id=MINUTE, script=Complete(gate=self.gate)),
                Deployment(deployment_id=HELLO, script=Complete()),
                Deployment(deployment_id=ASK, script=Interrupt(then=Complete(gate=self.gate, steps=3))),
            ],
            features=features,
        )
        self.face = HttpFace(self.fake)
        self._folder, self._stack = folder, stack

    async def start(self, drain_grace_s: float, options: tuple[str, ...] = ()) -> Self:
        await self.face.start()
        self._stack.push_async_callback(self.face.stop)
        self._stack.callback(self.fake.kill)
        options = ("--max-concurrent-runs", "1", "--drain-grace-s", f"{drain_grace_s}", *options)
        self.daemon = Daemon(self._folder, server=self.face.url, options=options)
        self.daemon.environment = {"SCHEDULER_RECONCILE_GRACE_S": "1"}
        await self._stack.enter_async_context(self.daemon)
        self.log = LogTail(self.daemon.log_path)
        following = asyncio.create_task(self.log.follow())
        self._stack.callback(following.cancel)
        return self

    async def long_run(self) -> None:
        """A run that the server is busy with."""
        async with self.daemon.app() as app:
            await due_soon(app, "long", MINUTE)
            await self.fake.until_executions(1, timeout_s=30)

    async def logged(self, action: str) -> None:
        await self.log.until(lambda one: one["action"] == action, seconds=30)

    async def exits(self) -> tuple[int, float]:
        """Exit code, and seconds until then."""
        began = time.monotonic()
        code = await self.daemon.process.wait()
        return code, time.monotonic() - began

    def marks_and_ends(self) -> tuple[int, int]:
        return len(records(self.daemon, "DispatchMarked")), len(records(self.daemon, "RunSettled"))

    def starts(self) -> list[str | None]:
        return [one.key for one in self.fake.received if one.method == START]


@pytest.fixture(params=["plain", "keyed"])
async def stage(request, tmp_path):
    async with AsyncExitStack() as stack:
        yield Stage(tmp_path, stack, KEYED if request.param == "keyed" else ())


@pytest.fixture
async def plain(tmp_path):
    async with AsyncExitStack() as stack:
        yield Stage(tmp_path, stack, ())


async def _judged_once(stage: Stage) -> None:
    """The next start judges the run that the last one left: by its key, or it fails closed; either way once."""
    await stage.daemon.start()
    keyed = bool(stage.fake.features)
    async with stage.daemon.app() as app:
        if keyed:
            await until(_repeated(stage))
            stage.gate.set()
            assert (await last_row(app, "long", "completed"))["reason"] is None
        else:
            row = await last_row(app, "long", "failed")
            assert (row["reason"], row["detail"]["case"]) == ("outcome-unknown", "I")
        finals = [row["status"] for row in await rows_of(app, "long")]
        assert finals == ["admitted", "running", "completed" if keyed else "failed"]
        await due_soon(app, "next", HELLO)
        await last_row(app, "next", "completed")
    assert len(stage.fake.execution_log) == 2, "the long run and the next one"
    assert stage.marks_and_ends() == (2, 2)


def _repeated(stage: Stage):
    async def twice() -> bool:
        starts = stage.starts()
        return len(starts) == 2 and len(set(starts)) == 1

    return twice


async def test_sigterm_with_an_open_run_exits_after_the_grace_keeps_the_mark_and_the_next_start_judges_once(stage):
    await stage.start(drain_grace_s=2)
    await stage.long_run()
    stage.daemon.process.send_signal(signal.SIGTERM)
    code, took_s = await stage.exits()
    assert code == 0
    assert 1.9 < took_s < 5
    assert stage.marks_and_ends() == (1, 0)
    assert stage.fake.executing == 1, "the server goes on with what it has begun"
    await _judged_once(stage)


async def test_a_second_sigterm_cuts_the_drain_short_as_safely(stage):
    await stage.start(drain_grace_s=60)
    await stage.long_run()
    stage.daemon.process.send_signal(signal.SIGTERM)
    await stage.logged("draining")
    stage.daemon.process.send_signal(signal.SIGTERM)
    code, took_s = await stage.exits()
    assert (code, took_s < 3) == (0, True)
    assert stage.marks_and_ends() == (1, 0)
    await _judged_once(stage)


async def test_a_resume_that_is_waited_for_does_not_hold_up_the_exit_and_its_caller_learns_that_it_is_open(stage):
    await stage.start(drain_grace_s=2)
    async with stage.daemon.app() as app:
        await due_soon(app, "long", ASK)
        run_id = (await last_row(app, "long", "interrupted"))["run_id"]
        resuming = asyncio.create_task(app.resume_run(run_id))
        await stage.fake.until_executions(2, timeout_s=30)
        stage.daemon.process.send_signal(signal.SIGTERM)
        code, took_s = await stage.exits()
        assert code == 0
        assert 1.9 < took_s < 5
        with pytest.raises(AmbiguousOutcome) as told:
            await resuming
        assert "the daemon stopped" in told.value.data["message"]
    assert (len(records(stage.daemon, "AttemptMarked")), len(records(stage.daemon, "RunSettled"))) == (1, 0)


async def test_a_call_of_somebody_else_does_not_hold_up_the_exit_of_a_gateway(plain):
    await plain.start(drain_grace_s=0.5, options=("--gateway",))
    async with Transport(plain.daemon.url) as transport:
        client = WorkflowClient(transport)
        starting = asyncio.create_task(client.runs_start(MINUTE, {}, idempotency_key="man:1"))
        await plain.fake.until_executions(1, timeout_s=30)
        plain.daemon.process.send_signal(signal.SIGTERM)
        code, took_s = await plain.exits()
        assert (code, took_s < 3) == (0, True)
        ending = await starting
        assert isinstance(ending, Refused)
        assert (ending.code, "may have had its effect" in ending.data["message"]) == (INTERNAL_ERROR, True)


async def test_a_run_that_ends_within_the_grace_is_settled_and_the_daemon_waits_no_longer(plain):
    await plain.start(drain_grace_s=60)
    await plain.long_run()
    plain.daemon.process.send_signal(signal.SIGTERM)
    await plain.logged("draining")
    plain.gate.set()
    code, took_s = await plain.exits()
    assert (code, took_s < 5) == (0, True)
    assert plain.marks_and_ends() == (1, 1)
    assert [one["status"] for one in records(plain.daemon, "RunSettled")] == ["completed"]


async def test_while_it_drains_nothing_is_admitted_and_what_became_due_runs_after_the_next_start(plain):
    await plain.start(drain_grace_s=3)
    await plain.long_run()
    async with plain.daemon.app() as app:
        await due_soon(app, "due-in-the-drain", HELLO, 1.0)
        plain.daemon.process.send_signal(signal.SIGTERM)
        await plain.logged("draining")
        code, _ = await plain.exits()
    assert code == 0
    assert len(plain.fake.execution_log) == 1
    plain.gate.set()
    await plain.daemon.start()
    async with plain.daemon.app() as app:
        await last_row(app, "due-in-the-drain", "completed")
        assert [row["status"] for row in await rows_of(app, "due-in-the-drain")] == ["admitted", "running", "completed"]


# --- two daemons ------------------------------------------------------------------------------------------------------


async def test_a_second_daemon_is_refused_with_75_and_names_the_holder_who_goes_on_undisturbed(plain, tmp_path):
    await plain.start(drain_grace_s=1)
    async with plain.daemon.app() as app:
        await due_soon(app, "before", HELLO)
        before = await last_row(app, "before", "completed")
        health = await app.health()

        code, printed = await _second(tmp_path, plain.daemon)
        assert code == EXIT_HELD
        (refused,) = [one for one in printed if one["action"] == "ownership_lost"]
        holder = refused["holder"]
        assert (holder["pid"], holder["host"]) == (plain.daemon.process.pid, socket.gethostname())
        for told in (str(holder["pid"]), holder["host"], holder["started_at"][11:19]):
            assert told in refused["reason"]

        assert (await app.health())["instance_id"] == health["instance_id"]
        assert (await rows_of(app, "before"))[-1] == before
        await due_soon(app, "after", HELLO)
        await last_row(app, "after", "completed")
    assert await plain.daemon.stop() == 0
    assert len(records(plain.daemon, "EpochStarted")) == 1


async def _second(folder, first: Daemon) -> tuple[int, list[dict]]:
    """Start another daemon on the first one's store, on a port of its own: exit code and log."""
    (folder / "second").mkdir()
    second = Daemon(folder / "second", server="http://127.0.0.1:9/rpc")
    argv = [str(first.store) if one == str(second.store) else one for one in second.argv]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scheduler_daemon", *argv), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, printed = await process.communicate()
    return process.returncode, [json.loads(line) for line in printed.splitlines() if line.startswith(b"{")]

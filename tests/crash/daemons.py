"""A real daemon on a store of one's own, and what the tests of faults ask of it.

Owns: starting one with faults in its system calls, waiting for its end, asking for readiness, creating schedules.  Must never know: what
ought to come of a fault.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import aiohttp
import pytest

from rpc_client import App
from rpc_client.errors import RpcError
from tests.fakes.http import HttpFace
from tests.fakes.scripts import Complete, Deployment
from tests.fakes.server import FakeWorkflowServer
from tests.integration.process import Daemon

HELLO, GATED = "hello.default", "gated.default"
PROJECT = Path(__file__).parents[2]
END_S = 60.0


@asynccontextmanager
async def workflow_server() -> AsyncIterator[tuple[HttpFace, asyncio.Event]]:
    """A fake server with a deployment that answers at once and one that waits for the gate."""
    gate = asyncio.Event()
    face = HttpFace(
        FakeWorkflowServer(
            [
                Deployment(deployment_id=HELLO, script=Complete(output={"result": "hello"})),
                Deployment(deployment_id=GATED, script=Complete(output={"result": "late"}, gate=gate)),
            ]
        )
    )
    async with AsyncExitStack() as stack:
        await face.start()
        stack.push_async_callback(face.stop)
        stack.callback(face.fake.kill)
        yield face, gate


def daemon_on(folder: Path, store: Path, server: str, *options: str) -> Daemon:
    """A daemon, not yet started, whose log is in `folder` and whose store may be elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    daemon = Daemon(folder, server=server, options=options)
    daemon.store = store
    daemon.argv = tuple(str(store) if part == str(folder / "store") else part for part in daemon.argv)
    daemon.environment = {"PYTHONPATH": str(PROJECT)}
    return daemon


async def ended(daemon: Daemon, within_s: float = END_S) -> int:
    """Its exit code; negative when a signal ended it.  A tracer that stands before it hands on both."""
    assert daemon.process is not None
    async with asyncio.timeout(within_s):
        return await daemon.process.wait()


async def refused_start(daemon: Daemon) -> tuple[int, str]:
    """Start one that must not come up: its exit code and all it said."""
    process = await asyncio.create_subprocess_exec(
        *daemon.prefix,
        sys.executable,
        "-m",
        "scheduler_daemon",
        *daemon.argv,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **daemon.environment},
    )
    try:
        async with asyncio.timeout(END_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    return process.returncode or 0, said.decode()


async def ready(daemon: Daemon) -> tuple[int, str]:
    """What `GET /readyz` answers."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{daemon.port}/readyz") as response,
    ):
        return response.status, await response.text()


def in_s(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def create(app: App, schedule_id: str, due_s: float = 1e7, deployment_id: str = HELLO, **more) -> None:
    await app.create_schedule(
        schedule_id=schedule_id,
        deployment_id=deployment_id,
        trigger={"kind": "oneshot", "at": in_s(due_s)},
        **more,
    )


async def refusal_of(app: App, schedule_id: str, **more) -> str | None:
    """The code with which a create is refused, None when it is not."""
    try:
        await create(app, schedule_id, **more)
    except RpcError as error:
        return error.code
    return None


async def schedule_ids(app: App) -> set[str]:
    return {schedule["schedule_id"] async for schedule in app.schedules()}


def verified(store: Path) -> str:
    """What `scheduler-daemon verify` says of a store that must be clean."""
    argv = [sys.executable, "-m", "scheduler_daemon", "verify", str(store)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- faults in system calls ------------------------------------------------------------------------------------------


@cache
def _cannot_trace() -> str | None:
    if shutil.which("strace") is None:
        return "strace is not here"
    argv = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return f"strace cannot trace here: {done.stderr.strip()}" if done.returncode else None


def need_strace() -> None:
    """Skip, aloud, where system calls cannot be made to fail."""
    reason = _cannot_trace()
    if reason is not None:
        pytest.skip(f"SKIP: {reason}")


def traced(trace: Path, calls: str, fault: str, paths: Iterable[Path | str] = ()) -> tuple[str, ...]:
    """The command to stand before another so that these calls of it fail; with `paths` only calls on exactly those.

    `trace` gets a line a call that was looked at; the ones that failed say `INJECTED`.  Calls are counted thread by thread.
    """
    where = [word for path in paths for word in ("-P", str(path))]
    # With its filter in the kernel strace is much faster, and (6.1) sends a signal at the first call or never.
    quick = () if "signal" in fault else ("--seccomp-bpf",)
    return (
        *("strace", "-f", "-qq", *quick, "-y", "-ttt", "-o", str(trace), *where),
        *("-e", f"trace={calls}", "-e", f"inject={calls}:{fault}", "-e", "signal=none"),
    )


@asynccontextmanager
async def failing(daemon: Daemon, call: str) -> AsyncIterator[None]:
    """From now on this call of a daemon that runs already fails with EIO, until the block ends."""
    assert daemon.process is not None
    tracer = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-p", str(daemon.process.pid), "-o", os.devnull),
        *("-e", f"trace={call}", "-e", f"inject={call}:error=EIO", "-e", "signal=none"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert tracer.stderr is not None
    try:
        async with asyncio.timeout(END_S):
            said = (await tracer.stderr.readline()).decode()
        if "attached" not in said:
            pytest.skip(f"SKIP: strace cannot trace what runs already here: {said.strip()}")
        yield
    finally:
        with suppress(ProcessLookupError):
            tracer.terminate()
        await tracer.communicate()


def injected(trace: Path) -> list[str]:
    """The calls that were made to fail."""
    return [line for line in trace.read_text().splitlines() if "INJECTED" in line] if trace.exists() else []


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

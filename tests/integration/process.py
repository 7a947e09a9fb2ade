"""The real daemon as a child process: start it, talk to it, kill it."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

from rpc_client import App
from rpc_client.errors import RpcError

READY_S = 90.0

HELLO = """
[deployments."scheduled_hello.default"]
[[deployments."scheduled_hello.default".steps]]
argv = ["sh", "-c", "echo '{\\"result\\": \\"hello on a schedule\\"}'"]
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Daemon:
    """One store, one port; started and killed as often as a test wants."""

    def __init__(
        self, folder: Path, *, deployments: str | None = None, server: str | None = None, options: tuple[str, ...] = ()
    ):
        self.folder = folder
        self.store = folder / "store"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/rpc"
        self.log_path = folder / "daemon.log"
        if deployments is not None:
            (folder / "deployments.toml").write_text(deployments)
            where = ("--embedded", str(folder / "deployments.toml"))
        else:
            where = ("--server", server or "http://127.0.0.1:9/rpc")
        self.argv = ("serve", "--store-root", str(self.store), "--listen", f"127.0.0.1:{self.port}", *where, *options)
        self.process: asyncio.subprocess.Process | None = None
        self.prefix: tuple[str, ...] = ()
        self.environment: dict[str, str] = {}

    def app(self) -> App:
        return App(self.url)

    async def start(self) -> None:
        """Return when it answers; its log says why if it does not."""
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.prefix,
                sys.executable,
                "-m",
                "scheduler_daemon",
                *self.argv,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        async with asyncio.timeout(READY_S):
            while not await self._answers():
                assert self.process.returncode is None, self.log_path.read_text()
                await asyncio.sleep(0.01)

    async def _answers(self) -> bool:
        with contextlib.suppress(RpcError, OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.close()
            return True
        return False

    async def kill(self) -> None:
        """SIGKILL to the daemon and to everything it started."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.terminate()
        return await self.process.wait()

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *_) -> None:
        if self.process is not None and self.process.returncode is None:
            await self.kill()

    def log(self) -> list[dict]:
        return [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]


async def rows_of(app: App, schedule_id: str) -> list[dict]:
    """The whole history, oldest first, without the synthesised pending row."""
    return [row async for row in app.occurrences(schedule_id) if row["status"] != "pending"]


async def until(condition, *, seconds: float = 20.0, every_s: float = 0.02):
    """The first truthy value of an async condition, or a failure after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            found = await condition()
            if found:
                return found
            await asyncio.sleep(every_s)

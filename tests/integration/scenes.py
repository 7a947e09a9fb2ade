"""One interrupted run and a gate that keeps the server busy with its resume, at the plain fake and at the embedded server.

The tests of resumes say what must happen; a scene knows how to make it happen at its server.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.fakes.http import HttpFace
from tests.fakes.scripts import Complete, Deployment, Interrupt
from tests.fakes.server import FakeWorkflowServer
from tests.integration.process import Daemon, rows_of, until

APPROVAL, HELLO = "approval.default", "hello.default"

EMBEDDED = """
[deployments."{approval}"]
[[deployments."{approval}".steps]]
argv = ["sh", "-c", '''
if [ -z "$WORKFLOW_RESUME" ]; then echo '{{"message": "ok?"}}'; exit 75; fi
echo begun >> "{folder}/resumed.log"
while [ ! -e "{folder}/gate" ]; do sleep 0.02; done
echo '{{"approved": true}}'
''']

[deployments."{hello}"]
[[deployments."{hello}".steps]]
argv = ["sh", "-c", "echo '{{\\"result\\": \\"hello\\"}}'"]
"""


class Scene:
    """A daemon with one slot, and the server behind it."""

    daemon: Daemon

    async def resumes_begun(self) -> int:
        """How many resumes the server has begun to execute."""
        raise NotImplementedError

    def release(self) -> None:
        """Let the resume that the server is busy with go on."""
        raise NotImplementedError

    async def begun(self) -> None:
        await until(self.resumes_begun)


class FakeScene(Scene):
    def __init__(self, folder: Path, stack: AsyncExitStack, features: tuple[str, ...] = ()) -> None:
        self.gate = asyncio.Event()
        self.fake = FakeWorkflowServer(
            [
                Deployment(deployment_id=APPROVAL, script=Interrupt(then=Complete(gate=self.gate, steps=3))),
                Deployment(deployment_id=HELLO, script=Complete(output={"result": "hello"})),
            ],
            features=features,
        )
        self.face = HttpFace(self.fake)
        self.environment: dict[str, str] = {}
        self._folder, self._stack = folder, stack

    async def start(self, options: tuple[str, ...]) -> "FakeScene":
        await self.face.start()
        self._stack.push_async_callback(self.face.stop)
        self.daemon = Daemon(self._folder, server=self.face.url, options=options)
        self.daemon.environment = self.environment
        await self._stack.enter_async_context(self.daemon)
        return self

    async def resumes_begun(self) -> int:
        return sum(one.method == "workflow.runs.resume" for one in self.fake.execution_log)

    def release(self) -> None:
        self.gate.set()


class EmbeddedScene(Scene):
    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder, self._stack = folder, stack

    async def start(self, options: tuple[str, ...]) -> "EmbeddedScene":
        text = EMBEDDED.format(folder=self._folder, approval=APPROVAL, hello=HELLO)
        self.daemon = Daemon(self._folder, deployments=text, options=options)
        await self._stack.enter_async_context(self.daemon)
        return self

    async def resumes_begun(self) -> int:
        log = self._folder / "resumed.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def release(self) -> None:
        (self._folder / "gate").touch()


async def due_soon(app, schedule_id: str, deployment_id: str, seconds: float = 1.5) -> None:
    due = datetime.now(UTC) + timedelta(seconds=seconds)
    await app.create_schedule(
        schedule_id=schedule_id, deployment_id=deployment_id, trigger={"kind": "oneshot", "at": due.isoformat()}
    )


async def last_row(app, schedule_id: str, status: str) -> dict:
    """Wait until the newest row of a schedule has this status."""

    async def there():
        rows = await rows_of(app, schedule_id)
        return rows[-1] if rows and rows[-1]["status"] == status else None

    return await until(there)


async def interrupted_run(app, schedule_id: str = "approve") -> str:
    await due_soon(app, schedule_id, APPROVAL)
    return (await last_row(app, schedule_id, "interrupted"))["run_id"]


def records(daemon: Daemon, kind: str) -> list[dict]:
    """Every durable record of one kind, straight from the journal."""
    found = []
    for path in sorted((daemon.store / "schedules" / "journal").iterdir()):
        for line in path.read_bytes().splitlines():
            body = json.loads(line)["r"]
            if body.get("kind") == kind:
                found.append(body)
    return found

"""Deployments that do one thing each, a folder for what they leave behind, and a client that talks plain HTTP."""

import asyncio
import contextlib
import json
from pathlib import Path

import aiohttp

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


@contextlib.asynccontextmanager
async def going_on(call):
    task = asyncio.ensure_future(call)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

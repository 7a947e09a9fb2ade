"""`make demo`: the main job, end to end, on this machine.

Owns: the story that it tells. Must never know: anything that a user could not do; it starts the real daemon with the embedded server and
talks to it over JSON-RPC like everybody else, printing the curl line for each thing it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rpc_client import App
from rpc_client.errors import RpcError

DEPLOYMENTS = """
[deployments."hello.default"]
title = "Says hello"
[[deployments."hello.default".steps]]
argv = ["python3", "-c", "import json; print(json.dumps({'result': 'hello on a schedule'}))"]

[deployments."report.default"]
title = "Counts for two seconds, then reports"
input_schema = { type = "object", properties = { as_of = { type = "string" } }, required = ["as_of"] }
[[deployments."report.default".steps]]
argv = ["sh", "-c", "sleep 2; cat"]
"""
START_S = 20.0


class NotStarted(Exception):
    """The daemon's own log, which says why."""


async def main() -> int:
    """Run the story for `DEMO_S` seconds (default 130), or until Ctrl-C."""
    seconds = float(os.environ.get("DEMO_S", "130"))
    with tempfile.TemporaryDirectory(prefix="scheduler-demo-") as folder:
        root = Path(folder)
        (root / "deployments.toml").write_text(DEPLOYMENTS)
        url = f"http://127.0.0.1:{_free_port()}/rpc"
        daemon = await _start(root, url)
        try:
            await asyncio.wait_for(_tell(url), seconds)
        except (TimeoutError, asyncio.CancelledError):
            _say("\n# that was the demo; stopping the daemon with SIGTERM")
        finally:
            if daemon.returncode is None:
                daemon.terminate()
            code = await daemon.wait()
        _say(f"# the daemon left with exit code {code}")
        return code


async def _start(root: Path, url: str) -> asyncio.subprocess.Process:
    listen = url.removeprefix("http://").removesuffix("/rpc")
    argv = [
        "serve",
        "--store-root",
        str(root / "store"),
        "--embedded",
        str(root / "deployments.toml"),
        "--listen",
        listen,
    ]
    _say(f"$ scheduler-daemon {' '.join(argv)} &")
    log = (root / "daemon.log").open("wb")
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_daemon", *argv, stderr=log, start_new_session=True
    )
    async with App(url) as app:
        deadline = asyncio.get_running_loop().time() + START_S
        while asyncio.get_running_loop().time() < deadline and daemon.returncode is None:
            with contextlib.suppress(RpcError):
                await app.health()
                return daemon
            await asyncio.sleep(0.05)
    raise NotStarted((root / "daemon.log").read_text())


async def _tell(url: str) -> None:
    async with App(url) as app:
        due = datetime.now(UTC) + timedelta(seconds=2)
        await _create(app, url, schedule_id="hello-once", deployment_id="hello.default",
                      trigger={"kind": "oneshot", "at": due.isoformat()})  # fmt: skip
        await _create(app, url, schedule_id="every-minute", deployment_id="report.default",
                      trigger={"kind": "cron", "expression": "* * * * *", "timezone": "UTC"},
                      input={"as_of": {"from": "occurrence.instant"}})  # fmt: skip
        _say("\n# occurrences, as they move through their states:")
        _say(_curl(url, "workflow.schedules.occurrences.list", {"schedule_id": "hello-once"}))
        seen: set[tuple[str, int]] = set()
        while True:
            for schedule_id in ("hello-once", "every-minute"):
                await _show_new(app, url, schedule_id, seen)
            await asyncio.sleep(0.2)


async def _create(app: App, url: str, **definition: Any) -> None:
    _say("\n" + _curl(url, "workflow.schedules.create", definition))
    made = await app.create_schedule(**definition)
    _say(f"# {made['schedule_id']} is {made['state']}; next: {', '.join(made['next_instants'][:2])}")


async def _show_new(app: App, url: str, schedule_id: str, seen: set[tuple[str, int]]) -> None:
    page = await app.list_schedule_occurrences(schedule_id=schedule_id)
    for row in page["occurrences"]:
        if (schedule_id, row["n"]) in seen or row["status"] == "pending":
            continue
        seen.add((schedule_id, row["n"]))
        _say(
            f"{row['at'][11:23]}  {schedule_id:<13} {row['instant'][11:19]}  {row['status']:<10} {row.get('run_id') or ''}"
        )
        if row["status"] == "completed":
            run = await app.inspect_run(run_id=row["run_id"])
            _say("  " + _curl(url, "workflow.runs.inspect", {"run_id": row["run_id"]}))
            _say(f"  # output: {json.dumps(run['output'])}")


def _curl(url: str, method: str, params: dict[str, Any]) -> str:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    return f"$ curl -s {url} -H 'Content-Type: application/json' -d '{body}'"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run() -> int:
    """Ctrl-C ends the story, not in a traceback."""
    loop = asyncio.new_event_loop()
    story = loop.create_task(main())
    loop.add_signal_handler(signal.SIGINT, story.cancel)
    try:
        return loop.run_until_complete(story)
    except NotStarted as why:
        _say(f"the daemon did not start:\n{why}")
        return 1
    finally:
        loop.close()


if __name__ == "__main__":
    raise SystemExit(run())

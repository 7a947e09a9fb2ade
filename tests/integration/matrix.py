"""A daemon process, a fake server behind it, and a proxy between them that breaks chosen requests of chosen deployments.

Owns: which request meets which fault, and what daemon, journal and server each say about one schedule afterwards.
Must never know: what should follow from a fault; the cells say that.

Faults are planned by method and deployment, one mode for each request in turn, so that many cells can share one daemon without
one of them meeting the fault of another.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec

from rpc_client.errors import RpcError
from tests.fakes.http import HttpFace
from tests.fakes.proxy import BlackHole, FaultProxy, Mode, Pass, Refuse
from tests.fakes.server import FakeWorkflowServer, Run
from tests.integration.process import Daemon, rows_of

START, RESUME = "workflow.runs.start", "workflow.runs.resume"
INSPECT, VALIDATE, HEALTH = "workflow.runs.inspect", "workflow.deployments.validate", "workflow.health"
KEYED = ("idempotent-start",)
FINAL = frozenset({"completed", "failed", "exhausted", "skipped-misfire", "superseded", "preflight-rejected"})
"""Statuses of rows that end an occurrence, as far as a one-shot can reach them."""

EVERYBODY = ""


class Stuck(msgspec.Struct, frozen=True):
    """Accepts and never answers, until somebody cuts the connection; `forwarded` lets the server have the request first."""

    hold_s: float
    forwarded: bool = False


class LastWord(msgspec.Struct, frozen=True):
    """The server answers, nobody hears it, and from then on no connection is accepted; `sever` also cuts those that rest."""

    sever: bool = True


class CellProxy(FaultProxy):
    """Meets the requests of one method for one deployment with one planned mode after the other, then lets them pass."""

    def __init__(self, fake: FakeWorkflowServer, upstream_url: str) -> None:
        super().__init__(upstream_url)
        self._fake = fake
        self._plans: dict[tuple[str, str], deque[Mode]] = {}
        self._afterwards: dict[str, tuple[str, str, deque[Mode]]] = {}
        self.met: Counter[tuple[str, str]] = Counter()

    def plan(self, method: str, deployment_id: str, *modes: Any) -> None:
        self._plans[method, deployment_id] = deque(modes)

    def plan_health_after_start(self, deployment_id: str, *modes: Any) -> None:
        """Let health meet these as soon as a start of this deployment has arrived."""
        self._afterwards[deployment_id] = (HEALTH, EVERYBODY, deque(modes))

    def point_at(self, url: str) -> None:
        """Send what passes to another server from now on."""
        parts = urlsplit(url)
        self._upstream = (parts.hostname or "", parts.port or 80)

    async def refuse(self, *, sever: bool = True) -> None:
        """Accept no connection any more; `sever` also cuts those that rest."""
        await self.set(Refuse())
        if sever:
            await self.sever()

    async def sever(self) -> None:
        """Cut every connection, whatever it is busy with; new ones are as welcome as before."""
        for writer in list(self._connections.values()):
            writer.transport.abort()

    async def next_health(self) -> None:
        """Wait until the daemon asks for health the next time."""
        seen = len(self.seen)
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: any(one.method == HEALTH for one in self.seen[seen:]))

    def mode_of(self, method: str, params: Any) -> Mode:
        deployment_id = self._deployment_of(params or {})
        if method == START and deployment_id in self._afterwards:
            health, everybody, modes = self._afterwards.pop(deployment_id)
            self._plans[health, everybody] = modes
        planned = self._plans.get((method, deployment_id))
        if not planned:
            return super().mode_of(method, params)
        mode = planned.popleft()
        if not isinstance(mode, Pass):
            self.met[method, deployment_id] += 1
        return mode

    def _deployment_of(self, params: dict[str, Any]) -> str:
        if "deployment_id" in params:
            return params["deployment_id"]
        run = self._fake._runs.get(params.get("run_id", ""))
        return run.deployment.deployment_id if run is not None else EVERYBODY

    async def _answer(self, mode: Any, request: bytes, reader: asyncio.StreamReader) -> bytes | None:
        if isinstance(mode, LastWord):
            await self._forward(request, reader)
            await self.refuse(sever=mode.sever)
            return None
        if not isinstance(mode, Stuck):
            return await super()._answer(mode, request, reader)
        try:
            async with asyncio.timeout(mode.hold_s):
                return await super()._answer(BlackHole(forwarded=mode.forwarded), request, reader)
        except TimeoutError:
            return None


class LogTail:
    """The daemon's log as it grows, read by one task for everybody who waits for something in it.

    Many cells that each ask the daemon for their history many times a second would measure the asking.
    """

    def __init__(self, path: Path) -> None:
        self.records: list[dict[str, Any]] = []
        self._path = path
        self._grown = asyncio.Condition()

    async def follow(self) -> None:
        rest = b""
        with self._path.open("rb") as file:
            while True:
                *lines, rest = (rest + file.read()).split(b"\n")
                self.records += [json.loads(line) for line in lines if line.startswith(b"{")]
                if lines:
                    async with self._grown:
                        self._grown.notify_all()
                await asyncio.sleep(0.05)

    async def until(
        self, wanted: Callable[[dict[str, Any]], bool], *, seconds: float, since: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The first record that is wanted, old ones included, or only what comes after the record `since`."""
        seen = 0 if since is None else self.records.index(since) + 1
        async with asyncio.timeout(seconds), self._grown:
            while True:
                for record in self.records[seen:]:
                    if wanted(record):
                        return record
                seen = len(self.records)
                await self._grown.wait()


class Bench:
    """One daemon between a caller and one fake server; use it with `async with`."""

    def __init__(
        self,
        folder: Path,
        fake: FakeWorkflowServer,
        *,
        options: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.fake = fake
        self.face = HttpFace(fake)
        self.proxy: CellProxy
        self.daemon: Daemon
        self.refusals: dict[str, list[str]] = {}
        self._folder, self._options = folder, options
        self._environment = {"SCHEDULER_RECONCILE_GRACE_S": "1", **(environment or {})}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.face.start()
        self._stack.push_async_callback(self.face.stop)
        self._stack.callback(self.fake.kill)
        self.proxy = CellProxy(self.fake, self.face.url)
        await self.proxy.start()
        self._stack.push_async_callback(self.proxy.stop)
        self.daemon = Daemon(self._folder, server=self.proxy.url, options=self._options)
        self.daemon.environment = self._environment
        await self._stack.enter_async_context(self.daemon)
        self.log = LogTail(self.daemon.log_path)
        following = asyncio.create_task(self.log.follow())
        self._stack.callback(following.cancel)
        self.app = await self._stack.enter_async_context(self.daemon.app())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # --- acting ------------------------------------------------------------------------------------------------------

    async def due_in(self, seconds: float, schedule_id: str, deployment_id: str, **fields: Any) -> None:
        """A one-shot so far ahead, or further where a busy machine took longer to create it than that."""
        try:
            await self._create(seconds, schedule_id, deployment_id, fields)
        except RpcError as refused:
            if refused.code != "InvalidTrigger":
                raise
            await self.due_in(2 * seconds, schedule_id, deployment_id, **fields)

    async def _create(self, seconds: float, schedule_id: str, deployment_id: str, fields: dict[str, Any]) -> None:
        due = datetime.now(UTC) + timedelta(seconds=seconds)
        await self.app.create_schedule(
            schedule_id=schedule_id,
            deployment_id=deployment_id,
            trigger={"kind": "oneshot", "at": due.isoformat()},
            input={"id": {"from": "schedule.id"}},
            **fields,
        )

    async def interrupted(self, schedule_id: str, deployment_id: str) -> str:
        """A run that waits at its interrupt."""
        await self.due_in(0.7, schedule_id, deployment_id)
        return (await self.row_of(schedule_id, "run_interrupted"))["run_id"]

    async def resume(self, run_id: str) -> str:
        """Resume through the daemon: the status that its caller is told, or the code of the refusal."""
        try:
            told = (await self.app.resume_run(run_id, resume_payload={"approved": True}))["status"]
        except RpcError as refused:
            told = refused.code
            self.refusals.setdefault(run_id, []).append(told)
        return told

    # --- looking -----------------------------------------------------------------------------------------------------

    async def row_of(self, schedule_id: str, *actions: str, seconds: float = 60.0) -> dict[str, Any]:
        """The newest row, once the log says that the run is at rest; by default that it is over."""
        wanted = actions or ("run_settled", "outcome_unknown")
        await self.log.until(
            lambda one: one.get("schedule_id") == schedule_id and one["action"] in wanted, seconds=seconds
        )
        return (await rows_of(self.app, schedule_id))[-1]

    async def logged(self, seconds: float = 30.0, **fields: Any) -> dict[str, Any]:
        """Wait for a record with these fields."""
        return await self.log.until(
            lambda one: all(one.get(name) == value for name, value in fields.items()), seconds=seconds
        )

    async def figures(self) -> dict[str, float]:
        return await figures_of(self.daemon)

    def executions(self, schedule_id: str) -> Counter[str]:
        """How often the server began to execute starts and resumes of this schedule's runs."""
        run_ids = {
            one.run_id for one in self.fake.execution_log if one.method == START and one.input.get("id") == schedule_id
        }
        return Counter(one.method for one in self.fake.execution_log if one.run_id in run_ids)

    def runs(self, schedule_id: str) -> list[Run]:
        """The runs of this schedule as the server stores them, whatever the daemon heard."""
        return [run for run in self.fake._runs.values() if run.input.get("id") == schedule_id]

    def twice(self) -> dict[str | None, int]:
        """Keys that the server executed more than once."""
        return {key: n for key, n in Counter(one.key for one in self.fake.execution_log).items() if n > 1}

    def story(self, schedule_id: str, deployment_id: str, run_id: str) -> tuple[list[str], list[str]]:
        """What the daemon took each bad ending for and told its caller, and the letters by which it judged, in order."""
        journal = Counter(body["kind"] for body in self.journal() if body.get("schedule_id") == schedule_id)
        verdicts = ["not sent"] * journal["DispatchNotSent"] + ["lost"] * journal["CallLost"]
        verdicts += ["attempt taken back"] * journal["AttemptReverted"]
        letters, lost = [], False
        for one in self.log.records:
            ours, action = one.get("schedule_id") == schedule_id, one["action"]
            lost = action == "call_lost" if ours else lost
            if ours and action == "reconcile":
                letters.append(one["case"])
            if action == "preflight_failed" and one.get("deployment_id") == deployment_id:
                verdicts.append("preflight failed")
            if action == "server_down" and lost:
                verdicts.append("server down")
        verdicts += [f"caller told {code}" for code in self.refusals.get(run_id, [])]
        return verdicts, [letter for n, letter in enumerate(letters) if letters[n - 1 : n] != [letter]]

    def journal(self) -> list[dict[str, Any]]:
        """Every durable record; a last line that is being written just now is left out."""
        found = []
        for path in sorted((self.daemon.store / "schedules" / "journal").iterdir()):
            *lines, _ = path.read_bytes().split(b"\n")
            found += [json.loads(line)["r"] for line in lines]
        return found


async def figures_of(daemon: Daemon) -> dict[str, float]:
    """`GET /metrics` as name, labels included, to value."""
    async with aiohttp.ClientSession() as session, session.get(daemon.url.replace("/rpc", "/metrics")) as page:
        lines = (await page.text()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}

"""The face over real HTTP in front of a service that a test controls."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from scheduler_daemon.api.http import ApiServer
from scheduler_daemon.config import Address
from scheduler_daemon.core.calendar import upcoming
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Cron, Definition, Row
from scheduler_daemon.core.queries import ScheduleView
from scheduler_daemon.core.validate import check_definition, with_changes
from scheduler_daemon.runtime.figures import Counters, Figures
from scheduler_daemon.runtime.readiness import Check

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DAILY = {"kind": "cron", "expression": "0 9 * * *", "timezone": "Europe/Berlin"}
NIGHTLY = {"schedule_id": "nightly", "deployment_id": "report.default", "trigger": DAILY}


def view(definition: Definition, *, revision: int = 1, warnings: tuple[str, ...] = (), **facts: Any) -> ScheduleView:
    trigger = definition.trigger
    cron = isinstance(trigger, Cron)
    coming = upcoming(trigger.expression, trigger.timezone, NOW, 5) if cron else (trigger.at,)
    fields = {name: getattr(definition, name) for name in definition.__struct_fields__}
    rest = {"state": "active", "paused": False, "blocked": False, "deleted": False, "note": None, **facts}
    return ScheduleView(
        **fields,
        **rest,
        revision=revision,
        created_at=NOW,
        updated_at=NOW,
        watermark=NOW,
        next_instants=coming,
        candidate=None,
        active_runs=(),
        ambiguous_runs=(),
        diagnostics=(),
        warnings=warnings,
    )


class FakeService:
    """Keeps definitions, judges them as the core does, and refuses what `refusal` holds.

    `calls` is what arrived; `gate` holds `resume_run` back, and `left` says how its wait ended.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.views: dict[str, ScheduleView] = {}
        self.refusal: Exception | None = None
        self.rows: list[Row] = []
        self.ready: list[Check] = [Check("lock", True, "held"), Check("server", True, "up")]
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.left: asyncio.Future[str] | None = None

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if self.refusal is not None:
            raise self.refusal

    def _known(self, schedule_id: str) -> ScheduleView:
        if schedule_id not in self.views:
            raise Rejected("ScheduleNotFound", f"no schedule {schedule_id!r}", schedule_id=schedule_id)
        return self.views[schedule_id]

    def _put(self, schedule_id: str, **facts: Any) -> ScheduleView:
        known = self._known(schedule_id)
        self.views[schedule_id] = msgspec.structs.replace(known, revision=known.revision + 1, **facts)
        return self.views[schedule_id]

    async def create(self, definition: Definition) -> ScheduleView:
        self._note("create", definition)
        if definition.schedule_id in self.views:
            raise Rejected("ScheduleExists", "exists", schedule_id=definition.schedule_id)
        self.views[definition.schedule_id] = view(definition, warnings=check_definition(definition, NOW))
        return self.views[definition.schedule_id]

    async def update(self, schedule_id: str, expected_revision: int, changes: dict[str, Any]) -> ScheduleView:
        self._note("update", schedule_id, expected_revision, changes)
        known = self._known(schedule_id)
        if known.revision != expected_revision:
            raise Rejected("RevisionConflict", "changed", schedule_id=schedule_id, revision=known.revision)
        fields = {name: getattr(known, name) for name in Definition.__struct_fields__}
        definition = with_changes(Definition(**fields), changes)
        check_definition(definition, NOW)
        self.views[schedule_id] = view(definition, revision=known.revision + 1)
        return self.views[schedule_id]

    async def pause(self, schedule_id: str, note: str | None) -> ScheduleView:
        self._note("pause", schedule_id, note)
        return self._put(schedule_id, state="paused", paused=True, note=note)

    async def resume(self, schedule_id: str, note: str | None) -> ScheduleView:
        self._note("resume", schedule_id, note)
        return self._put(schedule_id, state="active", paused=False, note=note)

    async def delete(self, schedule_id: str, note: str | None) -> ScheduleView:
        self._note("delete", schedule_id, note)
        return self._put(schedule_id, state="deleted", deleted=True, note=note)

    async def unblock(self, schedule_id: str, note: str) -> ScheduleView:
        self._note("unblock", schedule_id, note)
        return self._put(schedule_id, note=note)

    def get(self, schedule_id: str) -> ScheduleView:
        self._note("get", schedule_id)
        return self._known(schedule_id)

    def list(self, **asked: Any) -> tuple[list[ScheduleView], str | None]:
        self._note("list", asked)
        if asked["cursor"] is not None:
            return [], None
        return [*self.views.values()][: asked["limit"]], "more"

    def occurrences(self, schedule_id: str, cursor: str | None, limit: int) -> tuple[list[Row], str | None]:
        self._note("occurrences", schedule_id, cursor, limit)
        self._known(schedule_id)
        return self.rows[:limit], None

    async def inspect_run(self, run_id: str) -> dict[str, Any]:
        self._note("inspect_run", run_id)
        return {"run_id": run_id, "status": "completed", "output": {"result": "hello"}, "instant": NOW}

    async def resume_run(
        self, run_id: str, payload: dict[str, Any], outcome: str, *, wait: bool, trace_range: Any = None
    ) -> dict[str, Any]:
        self._note("resume_run", run_id, payload, outcome, wait)
        self.left = asyncio.get_running_loop().create_future()
        self.entered.set()
        try:
            if wait:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.left.set_result("cancelled")
            raise
        self.left.set_result("answered")
        return {"run_id": run_id, "status": "completed" if wait else "running"}

    async def abandon_run(self, run_id: str, note: str) -> dict[str, Any]:
        self._note("abandon_run", run_id, note)
        return {"run_id": run_id, "status": "failed"}

    async def forward(self, method: str, params: dict[str, Any]) -> Any:
        self._note("forward", method, params)
        return {"forwarded": method}

    def health(self) -> dict[str, Any]:
        self._note("health")
        return {
            "status": "ok",
            "store_root": "/srv/store",
            "instance_id": "i",
            "features": ["schedules"],
            "version": "1",
        }

    def checks(self) -> list[Check]:
        return self.ready

    def figures(self) -> Figures:
        counted = Counters()
        counted.dispatch_lateness.add(0.003)
        counted.commit.add(0.0004)
        return Figures(
            schedules={"active": 2, "paused": 1},
            runs={"running": 1},
            candidates={"no-slot": 1},
            decisions={("completed", ""): 3, ("skipped-misfire", "no-slot"): 1},
            slots_used=1,
            slots_max=4,
            overdue_s=0.25,
            tick_age_s=0.5,
            server_up=True,
            draining=False,
            storage_full=False,
            dispatch_lateness=counted.dispatch_lateness,
            commit=counted.commit,
        )


class FaceOptions(NamedTuple):
    """Where the face listens in a test: a free port of loopback, or what a test says."""

    listen: Address | None = Address("127.0.0.1", 0)
    socket_path: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    secret: str | None = None

    def token(self) -> str | None:
        return self.secret


class Answer(NamedTuple):
    """An HTTP answer, read whole."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Face:
    """A running face: its address, its service, and an HTTP client that adds nothing by itself."""

    def __init__(self, service: FakeService, server: ApiServer, url: str, session: aiohttp.ClientSession) -> None:
        self.service = service
        self.server = server
        self.url = url
        self.session = session
        self.port = int(url.rpartition(":")[2]) if url.startswith("http") else 0

    async def post(self, body: Any, headers: dict[str, str] | None = None, path: str = "/rpc") -> Answer:
        raw = body if isinstance(body, bytes) or not isinstance(body, dict | list) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self.session.post(self.url + path, data=raw, headers=sent) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        async with self.session.get(self.url + path, headers=headers or {}) as response:
            return Answer(response.status, response.headers, await response.read())

    async def call(self, method: str, params: Any = None, **headers: str) -> dict[str, Any]:
        """The JSON-RPC answer; it must be one, over HTTP 200."""
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {} if params is None else params}
        answer = await self.post(body, headers)
        assert answer.status == 200, answer
        assert answer.json["jsonrpc"] == "2.0"
        assert answer.json["id"] == 7
        return answer.json

    async def result(self, method: str, params: Any = None) -> Any:
        answer = await self.call(method, params)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, params: Any = None) -> dict[str, Any]:
        answer = await self.call(method, params)
        assert "error" in answer, answer
        return answer["error"]


@contextlib.asynccontextmanager
async def running(options: FaceOptions | None = None, service: FakeService | None = None) -> AsyncIterator[Face]:
    """A face that listens, and is stopped whatever the test does."""
    service = service or FakeService()
    server = ApiServer(service, options or FaceOptions())
    addresses = await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Face(service, server, addresses[0], session)
    finally:
        await server.stop()


async def raw(port: int, text: bytes, *, until: Callable[[bytes], bool] | None = None) -> bytes:
    """What the face sends back to exactly these bytes before it closes the connection, or until `until` is content."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        writer.write(text)
        async with asyncio.timeout(20):
            while chunk := await reader.read(65536):
                got += chunk
                if until is not None and until(got):
                    break
    except ConnectionResetError:
        pass
    finally:
        writer.close()
    return got

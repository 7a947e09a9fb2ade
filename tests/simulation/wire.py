"""The wire between daemon and server: the client's method surface, and everything that can become of a request.

Owns: delays, lost requests and lost replies, statuses of things in between, garbage, silence; which of the four endings the
daemon is told.
Must never know: what the daemon makes of an ending.

A request is on its way by itself: neither its sender's death nor a timeout calls it back, so it may well execute after
everybody stopped waiting.  `CallProbe.sent` is set in the moment it leaves.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rpc_client.errors import (
    APPLICATION_ERROR,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    Ambiguous,
    Answered,
    Ending,
    NotSent,
    Refused,
)
from rpc_client.transport import CallProbe
from tests.simulation.loop import Process, outside
from tests.simulation.server import ServerProcess, ServerWorld

READ_S = 10.0
KEEPALIVE_S = 30.0
SILENT_S = 900.0
CONNECT_S = 5.0

GARBAGE = (
    "nonsense",
    {"status": 7},
    {"status": "dancing", "run_id": "run_x"},
    None,
    {"status": "interrupted", "run_id": None},
)


@dataclass
class NetFaults:
    """Rates per call, and the conditions that last.  `executing` rates are for starts and resumes alone."""

    slow: float = 0.0
    slow_s_max: float = 0.0
    lose_request: float = 0.0
    lose_reply: float = 0.0
    cut: float = 0.0
    cut_s_max: float = 60.0
    garbage: float = 0.0
    internal: float = 0.0
    odd: float = 0.0
    refuse: float = 0.0
    status: float = 0.0
    gateway: float = 0.0
    shortage: float = 0.0
    slow_refusal: float = 0.3
    black_hole: float = 0.0
    validate_fails: float = 0.0
    partition: bool = False
    shut_out: bool = False


@dataclass(eq=False)
class Call:
    """One request on the wire; `ending` is what its sender was told, None if nobody lived to be told."""

    method: str
    params: dict[str, Any]
    key: str | None
    server: ServerProcess
    daemon: Process
    sent_s: float
    future: asyncio.Future[Ending]
    ending: Ending | str | None = None
    mangle: str = ""
    silent_s: float = 0.005
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def executes(self) -> bool:
        return self.key is not None

    def end(self, ending: Ending) -> None:
        if not self.future.done():
            self.future.set_result(ending)
        for timer in self.timers:
            timer.cancel()


class Network:
    """All calls of all daemons to whatever answers at the server's address."""

    def __init__(
        self, server: ServerWorld, random: Random, watch: Callable[[Call], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.server = server
        self.random = random
        self.watch = watch
        self.faults = NetFaults()
        self.loop = loop
        self.calls: list[Call] = []

    def happens(self, rate: float) -> bool:
        return rate > 0 and self.random.random() < rate

    def later(self, call: Call, seconds: float, ending: Ending) -> None:
        call.timers.append(self.loop.call_later(seconds, call.end, ending, context=outside()))

    def delay_s(self) -> float:
        if self.happens(self.faults.slow):
            return self.random.uniform(0.0, self.faults.slow_s_max)
        return self.random.uniform(0.0005, 0.02)

    def server_died(self, process: ServerProcess) -> None:
        """Every connection to it breaks: at once, when keepalive notices, or with nobody noticing for long."""
        for call in self.calls:
            if call.server is process:
                self.later(call, call.silent_s, Ambiguous("connection lost"))
        self.calls = [call for call in self.calls if not call.future.done()]

    # --- one call ---

    def before_sending(self) -> NotSent | None:
        """Why nothing reaches the method, if so."""
        faults = self.faults
        if self.happens(faults.shortage):
            return NotSent("no descriptor left", server_down=False)
        if faults.partition:
            return NotSent("connect timed out", server_down=True)
        if self.server.process is None:
            return NotSent("connection refused", server_down=True)
        if faults.shut_out:
            return NotSent("HTTP 401", 401, server_down=False)
        if self.happens(faults.status):
            status = self.random.choice((302, 403, 404, 405, 415, 421, 429))
            return NotSent(f"HTTP {status}", status, server_down=False)
        return None

    def send(self, call: Call) -> None:
        """The request leaves; its fate is decided here."""
        faults, chance = self.faults, self.random
        self.calls.append(call)
        if call.executes or call.method == "workflow.runs.inspect":
            self.watch(call)
        if call.executes:
            call.silent_s = chance.choice((0.005, chance.uniform(0.0, KEEPALIVE_S)))
            if call.server.instance_id is not None and chance.random() < 0.1:
                call.silent_s = SILENT_S  # something in between keeps the connection: only the new instance id tells
        if self.happens(faults.cut):
            self.later(call, chance.uniform(0.0, faults.cut_s_max), Ambiguous("connection lost"))
        if self.happens(faults.lose_request):
            self.later(call, chance.uniform(0.0, 2.0), Ambiguous("connection lost"))
            return
        if not call.executes and self.happens(faults.black_hole):
            return
        call.mangle = self._mangle(call)
        self.loop.call_later(self.delay_s(), self._arrive, call, context=outside())

    def _mangle(self, call: Call) -> str:
        faults = self.faults
        for name in ("lose_reply", "garbage", "internal", "odd", "refuse", "gateway"):
            if (call.executes or name not in ("odd", "refuse")) and self.happens(getattr(faults, name)):
                return name
        if call.method == "workflow.deployments.validate" and self.happens(faults.validate_fails):
            return "internal"
        return ""

    def _arrive(self, call: Call) -> None:
        if self.faults.partition:
            self.later(call, KEEPALIVE_S, Ambiguous("connection lost"))
            return
        if not call.server.alive:
            return  # whoever it was sent to is gone, and the connection with it
        if call.mangle == "refuse":
            code = self.random.choice((INVALID_PARAMS, INVALID_REQUEST, 413))
            self._answer(call, Refused(code, "refused before the method"))
        elif call.mangle in ("internal", "odd", "gateway") and self.random.random() < 0.5:
            self._answer(call, Answered(None))  # it broke before anything ran, which nobody outside can tell
        else:
            call.server.receive(call.method, call.params, call.key, lambda ending: self._answer(call, ending))

    def _answer(self, call: Call, ending: Ending) -> None:
        match call.mangle:
            case "lose_reply":
                ending = Ambiguous("connection lost")
            case "garbage":
                ending = Answered(self.random.choice(GARBAGE)) if call.executes else Ambiguous("unreadable answer")
            case "internal":
                ending = Refused(INTERNAL_ERROR, "Internal error")
            case "odd":
                ending = Refused(
                    APPLICATION_ERROR, "Workflow operation failed", {"code": "RuntimeError", "message": "odd"}
                )
            case "gateway":
                ending = Ambiguous("HTTP 502", 502)
        self.loop.call_later(self.delay_s(), self._deliver, call, ending, context=outside())

    def _deliver(self, call: Call, ending: Ending) -> None:
        if call.server.alive and not self.faults.partition:
            call.end(ending)
        else:
            self.later(call, min(call.silent_s, KEEPALIVE_S), Ambiguous("connection lost"))

    def heal(self) -> None:
        """Nothing goes wrong any more, and what hangs on a server that is gone is noticed as keepalive would."""
        self.faults = NetFaults()
        for call in self.calls:
            if not call.server.alive:
                self.later(call, self.random.uniform(0.0, KEEPALIVE_S), Ambiguous("connection lost"))


class Wire:
    """`rpc_client.workflow.WorkflowClient` for one daemon process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    async def health(self, *, timeout_s: float | None = None) -> Ending:
        return await self._read("workflow.health", timeout_s)

    async def sources_list(
        self, *, cursor: str | None = None, limit: int | None = None, timeout_s: float | None = None
    ) -> Ending:
        return await self._read("workflow.sources.list", timeout_s, cursor=cursor, limit=limit)

    async def schedules_list_probe(self, *, timeout_s: float | None = None) -> Ending:
        return await self._read("workflow.schedules.list", timeout_s)

    async def deployments_validate(
        self, deployment_id: str, *, live_check: bool | None = None, timeout_s: float | None = None
    ) -> Ending:
        return await self._read("workflow.deployments.validate", timeout_s, deployment_id=deployment_id)

    async def artifacts_inspect(self, artifact_id: str, version: int, *, timeout_s: float | None = None) -> Ending:
        return await self._read("workflow.artifacts.inspect", timeout_s, artifact_id=artifact_id, version=version)

    async def runs_inspect(self, run_id: str, *, timeout_s: float | None = None) -> Ending:
        return await self._read("workflow.runs.inspect", timeout_s, run_id=run_id)

    async def runs_list(
        self,
        *,
        status: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> Ending:
        return await self._read("workflow.runs.list", timeout_s, cursor=cursor, limit=limit)

    async def runs_start(
        self,
        deployment_id: str,
        workflow_input: Mapping[str, Any],
        *,
        idempotency_key: str,
        max_steps: int | None = None,
        timeout_s: float | None = None,
        probe: CallProbe | None = None,
    ) -> Ending:
        params = {"deployment_id": deployment_id, "workflow_input": dict(workflow_input), "max_steps": max_steps}
        return await self._call("workflow.runs.start", params, idempotency_key, timeout_s, probe or CallProbe())

    async def runs_resume(
        self,
        run_id: str,
        resume_payload: Mapping[str, Any] | None = None,
        resume_outcome: str | None = None,
        *,
        idempotency_key: str,
        timeout_s: float | None = None,
        probe: CallProbe | None = None,
    ) -> Ending:
        params = {"run_id": run_id, "resume_payload": resume_payload, "resume_outcome": resume_outcome}
        return await self._call("workflow.runs.resume", params, idempotency_key, timeout_s, probe or CallProbe())

    async def forward(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        probe: CallProbe | None = None,
    ) -> Ending:
        return await self._call(method, dict(params), idempotency_key, timeout_s, probe or CallProbe())

    async def _read(self, method: str, timeout_s: float | None, **params: Any) -> Ending:
        return await self._call(method, params, None, READ_S if timeout_s is None else timeout_s, CallProbe())

    async def _call(
        self, method: str, params: dict[str, Any], key: str | None, timeout_s: float | None, probe: CallProbe
    ) -> Ending:
        network = self._network
        if network.faults.slow and network.happens(0.2):
            await asyncio.sleep(network.delay_s())  # connecting; nothing has left yet
        kept_out = network.before_sending()
        server = network.server.process
        if kept_out is not None or server is None:
            if network.faults.partition:
                await asyncio.sleep(CONNECT_S)
            elif key is not None and network.happens(network.faults.slow_refusal):
                await asyncio.sleep(network.random.uniform(0.0, CONNECT_S))
            return kept_out or NotSent("connection refused", server_down=True)
        probe.sent = True
        call = Call(method, params, key, server, self._process, network.loop.time(), network.loop.create_future())
        network.send(call)
        if timeout_s is not None:
            network.later(call, timeout_s, Ambiguous("timed out"))
        return await self._ending(call)

    async def _ending(self, call: Call) -> Ending:
        try:
            call.ending = await call.future
        except asyncio.CancelledError:
            call.ending = "cancelled"
            call.future.cancel()
            raise
        return call.ending

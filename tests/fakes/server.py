"""A workflow server as a state machine: everything of `contract/` that a client can observe, and none of the HTTP.

Owns: stored runs, keys, executions, and what survives a kill.
Must never know: the daemon; its code may not even be imported here, or the fake would share its mistakes.

Invariants, each recorded from a real server
- A run exists for readers only once it has stopped; while a resume executes, readers see the checkpoint before it.
- An execution goes on when its caller goes away.
- A kill leaves nothing of what was executing. A keyed server knows after its restart that it had begun, and says so.
- `execution_log` is what really happened in the world, written when an execution begins. It survives everything.

Plain or keyed is a matter of `features`, which may change at a restart, as an upgrade would do it. Clock, sleep and run
ids are injectable, so that a simulation owns time. Methods whose results nobody recorded (`deployments.list`, `save`,
`delete`, `runs.trace`) are not here.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import jsonschema
import msgspec

from tests.fakes import payloads
from tests.fakes.params import RpcFault, checked, operation_failed
from tests.fakes.scripts import Complete, Deployment, Fail, Interrupt, Script, usual_deployments

IDEMPOTENT_START = "idempotent-start"
MAX_STEPS = "max-steps"
EXECUTING_METHODS = frozenset({"workflow.runs.start", "workflow.runs.resume"})


class ServerGone(Exception):
    """The server's process ended: whoever waits for an answer sees the connection drop."""


class Received(msgspec.Struct, frozen=True):
    """One request as it arrived."""

    method: str
    params: Any
    key: str | None
    at: datetime


class Execution(msgspec.Struct, frozen=True):
    """One beginning of an execution. `input` is the workflow's for a start and the payload's for a resume."""

    key: str | None
    deployment_id: str
    input: Mapping[str, Any]
    run_id: str
    method: str
    at: datetime


class Run(msgspec.Struct):
    """A stopped run as it is stored."""

    run_id: str
    deployment: Deployment
    input: Mapping[str, Any]
    status: str = "failed"
    outcome: str | None = None
    error: str | None = None
    output: Mapping[str, Any] = {}
    interrupt: Mapping[str, Any] | None = None
    trace_count: int = 0
    max_steps: int | None = None
    then: Script | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    stop_n: int = 0


class _Key(msgspec.Struct):
    """A key that has begun to execute: the request it belongs to, its run, and the answer once there is one."""

    request: tuple[str, Any]
    run: Run
    answer: "asyncio.Future[Any]"


class FakeWorkflowServer:
    """See the module's head. `call` is the whole of its face."""

    def __init__(
        self,
        deployments: Iterable[Deployment] | None = None,
        *,
        features: Iterable[str] = (),
        announces_instance: bool = False,
        store_root: str = "/srv/fake/store",
        sources: Iterable[Mapping[str, Any]] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        run_ids: Iterable[str] | None = None,
    ) -> None:
        usual = usual_deployments() if deployments is None else deployments
        self.deployments = {one.deployment_id: one for one in usual}
        self.features = frozenset(features)
        self.announces_instance = announces_instance or bool(self.features)
        self.store_root = store_root
        self.sources = list(payloads.USUAL_SOURCES if sources is None else sources)
        self.alive = True
        self.received: list[Received] = []
        self.execution_log: list[Execution] = []
        self.on_receive: Callable[[Received], None] | None = None
        self._now = now
        self._sleep = sleep
        self._run_ids = iter(run_ids) if run_ids is not None else (f"run_{n:032x}" for n in itertools.count(1))
        self._starts = 1
        self._stops = itertools.count(1)
        self._runs: dict[str, Run] = {}
        self._keys: dict[str, _Key] = {}
        self._executing: dict[asyncio.Task[None], asyncio.Future[Any]] = {}
        self._began = asyncio.Condition()

    @property
    def instance_id(self) -> str:
        """Names the process: another one after every restart."""
        return f"instance-{self._starts}"

    @property
    def executing(self) -> int:
        """How many executions are under way."""
        return len(self._executing)

    async def call(self, method: str, params: Any, *, key: str | None = None) -> Any:
        """The result of one request. Raises RpcFault for an error object, ServerGone when the process ends meanwhile."""
        if not self.alive:
            raise ServerGone
        received = Received(method, params, key, self._now())
        self.received.append(received)
        if self.on_receive is not None:
            self.on_receive(received)
        given = checked(method, params, self.features)
        if method in EXECUTING_METHODS:
            return await self._executed(method, given, key)
        return self._read(method, given)

    async def until_executions(self, count: int, *, timeout_s: float = 5.0) -> Execution:
        """Wait until that many executions have begun, and answer the last of those."""
        async with asyncio.timeout(timeout_s), self._began:
            await self._began.wait_for(lambda: len(self.execution_log) >= count)
        return self.execution_log[count - 1]

    async def until_idle(self, *, timeout_s: float = 5.0) -> None:
        """Wait until nothing executes any more."""
        async with asyncio.timeout(timeout_s):
            while self._executing:
                await asyncio.wait(self._executing)

    def kill(self) -> None:
        """End the process at once: callers lose their connection, executions end without a record."""
        self.alive = False
        for task, answer in list(self._executing.items()):
            task.cancel()
            if not answer.done():
                answer.set_exception(ServerGone())
                answer.exception()  # read once, so that an answer that nobody waits for is not reported at its end
        self._executing.clear()

    def restart(self, *, features: Iterable[str] | None = None) -> None:
        """Start the process again on the same store, killing it first if it runs."""
        if self.alive:
            self.kill()
        self._starts += 1
        if features is not None:
            self.features = frozenset(features)
            self.announces_instance = self.announces_instance or bool(self.features)
        for known in self._keys.values():
            if isinstance(known.answer.exception(), ServerGone):
                self._settle_after_restart(known)
        self.alive = True

    # -- reads --------------------------------------------------------------------------------------------------------

    def _read(self, method: str, given: Mapping[str, Any]) -> Any:
        match method:
            case "workflow.health":
                return payloads.health(self.store_root, self.features, self.instance_id, self.announces_instance)
            case "workflow.sources.list":
                return payloads.source_page(self.sources, given)
            case "workflow.deployments.validate":
                return payloads.validation(self._deployment(given["deployment_id"]))
            case "workflow.deployments.inspect":
                return payloads.deployment(self._deployment(given["deployment_id"]))
            case "workflow.artifacts.inspect":
                return self._artifact(given["artifact_id"], given["version"])
            case "workflow.runs.inspect":
                return payloads.run(self._run(given["run_id"]))
            case "workflow.runs.list":
                return payloads.run_page(self._runs.values(), given)
            case _:
                raise AssertionError(f"{method} has parameters but no code")

    def _deployment(self, deployment_id: str) -> Deployment:
        if deployment_id not in self.deployments:
            raise operation_failed("KeyError", f"\"unknown workflow deployment '{deployment_id}'\"")
        return self.deployments[deployment_id]

    def _run(self, run_id: str) -> Run:
        if run_id not in self._runs:
            raise operation_failed("KeyError", f"\"unknown workflow run '{run_id}'\"")
        return self._runs[run_id]

    def _artifact(self, artifact_id: str, version: int) -> dict[str, Any]:
        for deployment in self.deployments.values():
            if (deployment.artifact_id, deployment.artifact_version) == (artifact_id, version):
                return payloads.artifact(deployment)
        raise operation_failed("KeyError", f"\"unknown workflow artifact '{artifact_id}' version {version}\"")

    # -- executions ---------------------------------------------------------------------------------------------------

    async def _executed(self, method: str, given: Mapping[str, Any], key: str | None) -> Any:
        heeded = key if IDEMPOTENT_START in self.features else None
        known = None if heeded is None else self._keys.get(heeded)
        if known is not None:
            if known.request != (method, given):
                raise operation_failed("KeyConflict", f"idempotency key {key!r} was used with other params")
            return await asyncio.shield(known.answer)
        run = self._startable(given) if method == "workflow.runs.start" else self._resumable(given["run_id"])
        if run is None:
            return payloads.unrunnable(self.deployments[given["deployment_id"]])
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if heeded is not None:
            self._keys[heeded] = _Key((method, given), run, answer)
        await self._begin(method, given, key, run, answer)
        return await asyncio.shield(answer)

    def _startable(self, given: Mapping[str, Any]) -> Run | None:
        deployment = self._deployment(given["deployment_id"])
        if deployment.diagnostics:
            return None
        given_input = given.get("workflow_input", {})
        return Run(next(self._run_ids), deployment, given_input, max_steps=given.get("max_steps"))

    def _resumable(self, run_id: str) -> Run:
        """A copy to execute on: the stored run stays what readers see until the copy stops.

        A second resume of a run whose first one executes is let through. Whether a real server does that is not
        recorded, and a client that relies on a refusal would be wrong where there is none.
        """
        stored = self._run(run_id)
        if stored.status != "interrupted":
            raise operation_failed("ValueError", f"workflow run '{run_id}' is not interrupted")
        return msgspec.structs.replace(stored)

    async def _begin(
        self, method: str, given: Mapping[str, Any], key: str | None, run: Run, answer: "asyncio.Future[Any]"
    ) -> None:
        resumed = method == "workflow.runs.resume"
        given_input = given.get("resume_payload", {}) if resumed else run.input
        deployment_id = run.deployment.deployment_id
        self.execution_log.append(Execution(key, deployment_id, given_input, run.run_id, method, self._now()))
        task = asyncio.get_running_loop().create_task(self._execute(run, given, answer))
        self._executing[task] = answer
        task.add_done_callback(lambda done: self._executing.pop(done, None))
        async with self._began:
            self._began.notify_all()

    async def _execute(self, run: Run, given: Mapping[str, Any], answer: "asyncio.Future[Any]") -> None:
        """One execution from its beginning to its stop; only the stop is stored."""
        try:
            invalid = None if run.then is not None else _schema_violation(run)
            if invalid is not None:
                run.status, run.error = "failed", f"workflow input: {invalid}"
            else:
                facts = {**run.input, **given.get("resume_payload", {})}
                script = run.then or run.deployment.script_for(facts)
                await self._take_its_time(script, facts)
                _stop_as(script, run, facts, given.get("resume_outcome", "submitted"))
            self._stop(run, answer)
        except Exception as bug:  # in a test's script: whoever waits for the answer shall see it
            answer.set_exception(bug)

    async def _take_its_time(self, script: Script, facts: Mapping[str, Any]) -> None:
        delay_s = script.delay_s(facts) if callable(script.delay_s) else script.delay_s
        if delay_s:
            await self._sleep(delay_s)
        if script.gate is not None:
            await script.gate.wait()

    def _stop(self, run: Run, answer: "asyncio.Future[Any]") -> None:
        run.updated_at = self._now()
        run.created_at = run.created_at or run.updated_at
        run.stop_n = next(self._stops)
        self._runs[run.run_id] = run
        if not answer.done():
            answer.set_result(payloads.run(run))

    def _settle_after_restart(self, known: _Key) -> None:
        """What a keyed server says of an execution that its end cut short: the key is spent, and nobody knows how far."""
        run = known.run
        run.status, run.error, run.interrupt, run.then = "failed", "server-restarted", None, None
        known.answer = asyncio.get_running_loop().create_future()
        self._stop(run, known.answer)


def _schema_violation(run: Run) -> str | None:
    try:
        jsonschema.validate(run.input, run.deployment.input_schema)
    except jsonschema.ValidationError as error:
        return error.message
    return None


def _stop_as(script: Script, run: Run, facts: Mapping[str, Any], resume_outcome: str) -> None:
    run.interrupt, run.then = None, None
    if run.max_steps is not None and run.trace_count + script.steps > run.max_steps:
        run.status, run.trace_count = "exhausted", run.max_steps
        return
    run.trace_count += script.steps
    match script:
        case Complete():
            run.status, run.error = "completed", None
            run.outcome = resume_outcome if script.outcome == "submitted" else script.outcome
            run.output = script.output(facts) if callable(script.output) else script.output
        case Fail():
            run.status, run.outcome = "failed", None
            run.error = script.error(facts) if callable(script.error) else script.error
        case Interrupt():
            run.status, run.then = "interrupted", script.then
            run.interrupt = script.payload(facts) if callable(script.payload) else script.payload


__all__ = ["EXECUTING_METHODS", "Execution", "FakeWorkflowServer", "Received", "RpcFault", "Run", "ServerGone"]

"""A model of the workflow server, without HTTP: what it executes, what it remembers, and what it forgets when it dies.

Owns: deployments, runs, idempotency keys, restarts; and the truth: how often each key was executed, and what came of it.
Must never know: schedules, the daemon, what becomes of an answer on its way.

As recorded from a real one: a run has no record before it has stopped; a plain server forgets what it was executing when
it dies, a keyed one answers `failed`, `server-restarted`; the client's going away stops nothing; inspect shows the old
checkpoint while a resume executes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

from rpc_client.errors import APPLICATION_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Answered, Ending, Refused
from tests.simulation.loop import SimLoop, VirtualClock, outside

KEYED, STEPS = "idempotent-start", "max-steps"
INPUT_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


@dataclass(eq=False)
class Deployment:
    """How its runs go: seconds, and weights of outcomes."""

    duration_s: tuple[float, float]
    outcomes: dict[str, float]
    known: bool = True
    runnable: bool = True
    version: int = 1


@dataclass(eq=False)
class ServerRun:
    """A run as the server's store has it; `stops` is every rest it came to, as (status, trace_count)."""

    run_id: str
    deployment_id: str
    start_key: str | None
    status: str = ""
    trace_count: int = 0
    interrupt: Any = None
    error: str | None = None
    updated_at: datetime | None = None
    stops: list[tuple[str, int]] = field(default_factory=list)


@dataclass(eq=False)
class Execution:
    """One start or resume that really ran; `ended` is None while it runs, and "lost" when its server died without a trace."""

    key: str | None
    kind: str
    deployment_id: str
    run: ServerRun | None
    max_steps: int | None
    ended: str | None = None
    answer: "Callable[[Ending], None] | None" = None


@dataclass(eq=False)
class KeyRecord:
    params: Any
    execution: Execution
    result: dict[str, Any] | None = None
    waiting: list[Callable[[Ending], None]] = field(default_factory=list)


@dataclass(eq=False)
class ServerStore:
    """What survives a restart."""

    root: str
    runs: dict[str, ServerRun] = field(default_factory=dict)
    forgotten: dict[str, ServerRun] = field(default_factory=dict)
    keys: dict[str, KeyRecord] = field(default_factory=dict)


class ServerProcess:
    """One life of the server.  `receive` answers at once, or later through `answer`, or never when it dies."""

    def __init__(
        self, world: "ServerWorld", store: ServerStore, features: tuple[str, ...], instance_id: str | None
    ) -> None:
        self.alive = True
        self.store = store
        self.features = features
        self.instance_id = instance_id
        self.executions: list[Execution] = []
        self._world = world

    @property
    def keyed(self) -> bool:
        return KEYED in self.features

    # --- reads ---

    def receive(self, method: str, params: dict[str, Any], key: str | None, answer: Callable[[Ending], None]) -> None:
        match method:
            case "workflow.health":
                answer(Answered(self._health()))
            case "workflow.sources.list":
                answer(
                    Answered({"sources": [{"id": "wf.std", "kind": "system", "enabled": True}], "next_cursor": None})
                )
            case "workflow.schedules.list":
                answer(Refused(METHOD_NOT_FOUND, "Method not found"))
            case "workflow.deployments.validate":
                answer(self._validate(params["deployment_id"]))
            case "workflow.artifacts.inspect":
                answer(
                    Answered({"id": params["artifact_id"], "version": params["version"], "input_schema": INPUT_SCHEMA})
                )
            case "workflow.runs.inspect":
                run = self.store.runs.get(params["run_id"])
                answer(_unknown("run", params["run_id"]) if run is None else Answered(_result(run)))
            case "workflow.runs.list":
                answer(Answered(self._list(params)))
            case "workflow.runs.start":
                self._start(params, key, answer)
            case "workflow.runs.resume":
                self._resume(params, key, answer)
            case _:
                answer(Refused(METHOD_NOT_FOUND, "Method not found"))

    def _health(self) -> dict[str, Any]:
        said: dict[str, Any] = {"status": "ok", "store_root": self.store.root}
        if self.features:
            said["features"] = list(self.features)
        if self.instance_id is not None:
            said["instance_id"] = self.instance_id
        return said

    def _validate(self, deployment_id: str) -> Ending:
        deployment = self._world.deployments.get(deployment_id)
        if deployment is None or not deployment.known:
            return _unknown("deployment", deployment_id)
        status = "runnable" if deployment.runnable else "unrunnable"
        diagnostics = [] if deployment.runnable else [{"severity": "error", "code": "binding_missing"}]
        return Answered(
            {
                "artifact_id": deployment_id,
                "artifact_version": deployment.version,
                "diagnostics": diagnostics,
                "status": status,
            }
        )

    def _list(self, params: dict[str, Any]) -> dict[str, Any]:
        newest = sorted(self.store.runs.values(), key=lambda run: (run.updated_at, run.run_id), reverse=True)
        offset, limit = int(params.get("cursor") or 0), params.get("limit") or 50
        rows = [
            {"run_id": run.run_id, "deployment_id": run.deployment_id, "updated_at": run.updated_at.isoformat()}
            for run in newest[offset : offset + limit]
            if run.updated_at is not None
        ]
        return {"runs": rows, "next_cursor": str(offset + limit) if offset + limit < len(newest) else None}

    # --- executions ---

    def _start(self, params: dict[str, Any], key: str | None, answer: Callable[[Ending], None]) -> None:
        if params.get("max_steps") is not None and STEPS not in self.features:
            answer(Refused(INVALID_PARAMS, "Invalid params"))
            return
        if self._known_key(params, key, answer):
            return
        deployment = self._world.deployments.get(params["deployment_id"])
        if deployment is None or not deployment.known:
            answer(_unknown("deployment", params["deployment_id"]))
        elif not deployment.runnable:
            diagnostics = [{"severity": "error", "code": "binding_missing"}]
            answer(Answered({"status": "unrunnable", "run_id": None, "diagnostics": diagnostics, "trace_count": 0}))
        else:
            execution = Execution(key, "start", params["deployment_id"], None, params.get("max_steps"))
            self._execute(execution, params, answer)

    def _resume(self, params: dict[str, Any], key: str | None, answer: Callable[[Ending], None]) -> None:
        if self._known_key(params, key, answer):
            return
        run = self.store.runs.get(params["run_id"])
        if run is None:
            answer(_unknown("run", params["run_id"]))
        elif run.status != "interrupted" or any(one.run is run for one in self.executions):
            answer(_refused("ValueError", f"workflow run {run.run_id!r} is not interrupted"))
        else:
            self._execute(Execution(key, "resume", run.deployment_id, run, None), params, answer)

    def _known_key(self, params: dict[str, Any], key: str | None, answer: Callable[[Ending], None]) -> bool:
        record = self.store.keys.get(key) if self.keyed and key is not None else None
        if record is None:
            return False
        if record.params != params:
            answer(_refused("KeyConflict", "the key was used with other params"))
        elif record.result is not None:
            answer(Answered(record.result))
        else:
            record.waiting.append(answer)
        return True

    def _execute(self, execution: Execution, params: dict[str, Any], answer: Callable[[Ending], None]) -> None:
        if self.keyed and execution.key is not None:
            self.store.keys[execution.key] = KeyRecord(params, execution)
        execution.answer = answer
        self.executions.append(execution)
        self._world.watch(execution)
        lasts_s = self._world.random.uniform(*self._world.deployments[execution.deployment_id].duration_s)
        self._world.later(lasts_s, self._finish, execution)

    def _finish(self, execution: Execution) -> None:
        if not self.alive or execution not in self.executions:
            return
        weights = dict(self._world.deployments[execution.deployment_id].outcomes)
        if execution.max_steps is None:
            weights.pop("exhausted", None)
        status = self._world.random.choices(list(weights), list(weights.values()))[0]
        self.executions.remove(execution)
        self._stop(execution, status, None)

    def _stop(self, execution: Execution, status: str, error: str | None) -> None:
        """The run came to rest; from here on it has a record."""
        run = execution.run
        if run is None:
            run = execution.run = ServerRun(self._world.new_run_id(), execution.deployment_id, execution.key)
            self.store.runs[run.run_id] = run
        run.status, run.trace_count = status, run.trace_count + self._world.random.randint(1, 3)
        run.error = error or ("boom" if status == "failed" else None)
        run.interrupt = {"id": "interrupt:ask", "payload": {"message": "ok?"}} if status == "interrupted" else None
        run.updated_at = self._world.clock.now().at
        run.stops.append((status, run.trace_count))
        execution.ended = status
        result = _result(run)
        record = self.store.keys.get(execution.key) if execution.key is not None else None
        waiting = [execution.answer] if execution.answer is not None else []
        if record is not None and record.execution is execution:
            record.result = result
            waiting += record.waiting
        for answer in waiting:
            answer(Answered(result))

    def somebody_starts(self, deployment_id: str) -> None:
        """A manual run."""
        self._start({"deployment_id": deployment_id, "workflow_input": {}}, None, lambda _: None)

    def somebody_resumes(self, run_id: str) -> None:
        """An interrupt is answered here, past the daemon."""
        self._resume({"run_id": run_id}, None, lambda _: None)

    def hurry(self) -> None:
        """Whatever executes comes to its end soon."""
        for execution in self.executions:
            self._world.later(self._world.random.uniform(0.0, 5.0), self._finish, execution)

    def forget(self, run: ServerRun) -> None:
        """Its record is lost; what is executing of it goes on, and nobody will hear of it."""
        self.store.forgotten[run.run_id] = self.store.runs.pop(run.run_id)

    def die(self) -> None:
        """The process is gone, and with it what it was executing: without a trace, or `failed` under its key."""
        self.alive = False
        for execution in self.executions:
            record = self.store.keys.get(execution.key) if execution.key is not None else None
            execution.answer = None
            execution.ended = "lost"
            if record is not None and record.execution is execution:
                record.waiting.clear()
                self._stop(execution, "failed", "server-restarted")
        self.executions.clear()


class ServerWorld:
    """What answers at the server's address, now or later; `process` is None while nothing does."""

    def __init__(self, loop: SimLoop, clock: VirtualClock, random: Random, watch: Callable[[Execution], None]) -> None:
        self.clock = clock
        self.random = random
        self.watch = watch
        self.deployments: dict[str, Deployment] = {}
        self.process: ServerProcess | None = None
        self._loop = loop
        self._numbers = 0

    def new_run_id(self) -> str:
        self._numbers += 1
        return f"run_{self._numbers:032x}"

    def later(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Call in the world's own time, whatever process asks for it."""
        self._loop.call_later(seconds, call, *args, context=outside())


def _result(run: ServerRun) -> dict[str, Any]:
    return {
        "artifact_id": run.deployment_id,
        "artifact_version": 1,
        "deployment_id": run.deployment_id,
        "diagnostics": [],
        "status": run.status,
        "run_id": run.run_id,
        "interrupt": run.interrupt,
        "outcome": "ok" if run.status == "completed" else None,
        "error": run.error,
        "output": {"result": run.run_id} if run.status == "completed" else {},
        "trace_count": run.trace_count,
    }


def _refused(code: str, message: str) -> Refused:
    return Refused(APPLICATION_ERROR, "Workflow operation failed", {"code": code, "message": message})


def _unknown(what: str, name: str) -> Refused:
    return _refused("KeyError", f'"unknown workflow {what} {name!r}"')

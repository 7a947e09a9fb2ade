"""The methods of the contract: params in, answers out.

Owns: the params of each method and the mapping of refusals to JSON-RPC errors.  Must never know: HTTP.  The error code 5000 and its
data are the contract's; so is a run that nobody knows being a KeyError with quotes in its text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from scheduler_daemon.embedded import answers
from scheduler_daemon.embedded.deployments import Deployment
from scheduler_daemon.embedded.executions import (
    Broken,
    Ended,
    Executions,
    NotDone,
    ResumeOf,
    Start,
    unknown,
)
from scheduler_daemon.embedded.runs import Run, RunDamaged, RunStore
from scheduler_daemon.embedded.steps import Resume, diagnose
from scheduler_daemon.jsonrpc import Failure, Method

OPERATION_FAILED: Final = 5000
INTERNAL_ERROR: Final = -32603
CURSOR_CHARS_MAX: Final = 15

Id = Annotated[str, Meta(min_length=1, max_length=512)]
Limit = Annotated[int, Meta(ge=1, le=100)]


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No params; what all params are."""


class TraceRange(Params, frozen=True):
    """Which entries of a trace."""

    start: Annotated[int, Meta(ge=0, le=2**53)] = 0
    limit: Limit = 20


class DeploymentParams(Params, frozen=True):
    """One deployment."""

    deployment_id: Id


class ValidateParams(DeploymentParams, frozen=True):
    """One deployment; `live_check` changes nothing here, where every check looks at the machine."""

    live_check: bool = False


class ArtifactParams(Params, frozen=True):
    """One version of an artifact."""

    artifact_id: Id
    version: Annotated[int, Meta(ge=1)]


class PageParams(Params, frozen=True):
    """A page."""

    cursor: str | None = None
    limit: Limit = 50


class RunsParams(PageParams, frozen=True):
    """A page of runs, of one status if it is given."""

    status: Literal["completed", "failed", "interrupted", "exhausted"] | None = None


class StartParams(DeploymentParams, frozen=True):
    """A start."""

    workflow_input: dict[str, Any] = {}
    trace_range: TraceRange | None = None
    max_steps: Annotated[int, Meta(ge=1, le=2**53)] | None = None


class RunParams(Params, frozen=True):
    """One run."""

    run_id: Id


class TraceParams(RunParams, frozen=True):
    """A part of one run's trace."""

    trace_range: TraceRange


class ResumeParams(RunParams, frozen=True):
    """The answer to an interrupt."""

    resume_payload: dict[str, Any] = {}
    resume_outcome: Id = "submitted"
    trace_range: TraceRange | None = None


class Request(msgspec.Struct, frozen=True):
    """What a method knows about its caller."""

    key: str | None


class Methods:
    """The methods over one store and its executions."""

    def __init__(
        self,
        deployments: Mapping[str, Deployment],
        environment: Mapping[str, str],
        store: RunStore,
        executions: Executions,
        health: answers.Health,
    ) -> None:
        self._deployments = deployments
        self._environment = environment
        self._store = store
        self._executions = executions
        self._health = health

    def all(self) -> Iterator[Method]:
        """Each method for a dispatcher whose context is a `Request`."""
        reads: list[tuple[str, type[Params], Callable[[Request, Any], Awaitable[object]], Any]] = [
            ("health", Params, self.health, answers.Health),
            ("sources.list", PageParams, self.sources, answers.SourcesAnswer),
            ("deployments.list", Params, self.deployments, answers.DeploymentsAnswer),
            ("deployments.inspect", DeploymentParams, self.deployment, answers.DeploymentAnswer),
            ("deployments.validate", ValidateParams, self.validate, answers.ValidationAnswer),
            ("artifacts.inspect", ArtifactParams, self.artifact, answers.ArtifactAnswer),
            ("runs.inspect", RunParams, self.inspect, answers.RunAnswer),
            ("runs.list", RunsParams, self.runs, answers.RunsAnswer),
            ("runs.trace", TraceParams, self.trace, answers.TraceAnswer),
        ]
        for name, params, handler, result in reads:
            yield Method(f"workflow.{name}", params, handler, mutates=False, result=result)
        yield Method("workflow.runs.start", StartParams, self.start, mutates=True, result=answers.RunAnswer)
        yield Method("workflow.runs.resume", ResumeParams, self.resume, mutates=True, result=answers.RunAnswer)

    async def health(self, _request: Request, _params: Params) -> answers.Health:
        """Who this is."""
        return self._health

    async def sources(self, _request: Request, params: PageParams) -> answers.SourcesAnswer:
        """One source, of kind `system`."""
        offset = _offset(params.cursor)
        return answers.SourcesAnswer(total=1, sources=(answers.source(),)[offset:])

    async def deployments(self, _request: Request, _params: Params) -> answers.DeploymentsAnswer:
        """All of them, in the file's order."""
        rows = tuple(map(answers.deployment_answer, self._deployments.values()))
        return answers.DeploymentsAnswer(deployments=rows)

    async def deployment(self, _request: Request, params: DeploymentParams) -> answers.DeploymentAnswer:
        """One of them."""
        return answers.deployment_answer(self._deployment(params.deployment_id))

    async def validate(self, _request: Request, params: ValidateParams) -> answers.ValidationAnswer:
        """Whether its programs and folders are there."""
        deployment = self._deployment(params.deployment_id)
        diagnostics = await self._executions.do(diagnose, deployment, self._environment)
        return answers.validation_answer(deployment, diagnostics)

    async def artifact(self, _request: Request, params: ArtifactParams) -> answers.ArtifactAnswer:
        """What a deployment of this version runs."""
        for deployment in self._deployments.values():
            if (deployment.artifact_id, deployment.version) == (params.artifact_id, params.version):
                return answers.artifact_answer(deployment)
        raise _failure(unknown("artifact", f"{params.artifact_id}@{params.version}"))

    async def start(self, request: Request, params: StartParams) -> answers.RunAnswer:
        """Run a deployment until it stops."""
        asked = Start(
            deployment_id=params.deployment_id, workflow_input=params.workflow_input, max_steps=params.max_steps
        )
        return await self._ask(asked, request.key, params.trace_range)

    async def resume(self, request: Request, params: ResumeParams) -> answers.RunAnswer:
        """Go on with an interrupted run until it stops again."""
        answer = Resume(outcome=params.resume_outcome, payload=params.resume_payload)
        return await self._ask(ResumeOf(run_id=params.run_id, answer=answer), request.key, params.trace_range)

    async def inspect(self, _request: Request, params: RunParams) -> answers.RunAnswer:
        """The run as it last stopped."""
        run = await self._run(params.run_id)
        return answers.run_answer(run, run.last)

    async def trace(self, _request: Request, params: TraceParams) -> answers.TraceAnswer:
        """A part of what its steps did."""
        run = await self._run(params.run_id)
        asked = params.trace_range
        return answers.TraceAnswer(
            run_id=run.identity.run_id,
            status=run.last.status,
            trace_count=run.last.trace_count,
            start=asked.start,
            limit=asked.limit,
            trace=answers.trace_slice(run, asked.start, asked.limit),
        )

    async def runs(self, _request: Request, params: RunsParams) -> answers.RunsAnswer:
        """The runs that have stopped, latest first."""
        offset = _offset(params.cursor)
        rows, total = await self._executions.do(self._store.page, params.status, offset, params.limit)
        return answers.runs_answer(rows, total, params.cursor, offset, params.limit)

    async def _ask(self, asked: Start | ResumeOf, key: str | None, wanted: TraceRange | None) -> answers.RunAnswer:
        try:
            answer = await self._executions.ask(asked, key)
        except NotDone as refused:
            raise _failure(refused) from refused
        except Broken as broken:
            raise Failure(INTERNAL_ERROR, "Internal error") from broken
        if not isinstance(answer, Ended):
            return answers.unrunnable_answer(answer.deployment, answer.diagnostics)
        shaped = answers.run_answer(answer.run, answer.stop)
        if wanted is None:
            return shaped
        trace = answers.trace_slice(answer.run, wanted.start, wanted.limit)
        return msgspec.structs.replace(shaped, trace=trace)

    def _deployment(self, deployment_id: str) -> Deployment:
        found = self._deployments.get(deployment_id)
        if found is None:
            raise _failure(unknown("deployment", deployment_id))
        return found

    async def _run(self, run_id: str) -> Run:
        try:
            run = await self._executions.do(self._store.run, run_id)
        except RunDamaged as damaged:
            raise _failure(NotDone("RunDamaged", str(damaged))) from damaged
        if run is None:
            raise _failure(unknown("run", run_id))
        return run


def _failure(refused: NotDone) -> Failure:
    data = {"code": refused.code, "message": refused.message}
    return Failure(OPERATION_FAILED, "Workflow operation failed", data)


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= CURSOR_CHARS_MAX):
        raise _failure(NotDone("ValueError", f"invalid cursor {cursor!r}"))
    return int(cursor)
